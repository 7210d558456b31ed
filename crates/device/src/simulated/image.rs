//! The contents of a device as a persistent tree of blocks: a copy costs one pointer, a change copies one
//! path.
//!
//! Layout: a radix tree of fan-out 64 over the block number, as many levels as the size needs; leaves hold
//! shared 4 KiB blocks. Copies share everything that neither has changed. An absent block was never written
//! (or was discarded) and reads as zeros.

use quire_base::{BLOCK_SIZE, BlockNo, Result};
use std::fmt;
use std::sync::Arc;

/// One block's bytes, shared between images and recorded writes.
pub type Block = Arc<[u8; BLOCK_SIZE]>;

const FAN_SHIFT: u32 = 6;
const FAN: usize = 1 << FAN_SHIFT;

#[derive(Clone)]
enum Slot {
    Empty,
    Inner(Arc<Node>),
    Block(Block),
}

#[derive(Clone)]
struct Node {
    slots: [Slot; FAN],
}

impl Node {
    fn empty() -> Node {
        Node { slots: [const { Slot::Empty }; FAN] }
    }
}

/// See the module's documentation.
#[derive(Clone)]
pub struct Image {
    blocks: u64,
    levels: u32,
    root: Option<Arc<Node>>,
}

impl Image {
    /// An image of `blocks` blocks, all absent.
    pub fn new(blocks: u64) -> Image {
        let mut levels = 1;
        while levels * FAN_SHIFT < u64::BITS && blocks >> (levels * FAN_SHIFT) != 0 {
            levels += 1;
        }
        Image { blocks, levels, root: None }
    }

    /// Size in blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The block at `at`, if it was ever written.
    pub fn get(&self, at: BlockNo) -> Option<&Block> {
        let mut node = self.root.as_deref()?;
        let mut level = self.levels;
        loop {
            level -= 1;
            match &node.slots[index(at, level)] {
                Slot::Empty => return None,
                Slot::Inner(inner) => node = inner,
                Slot::Block(block) => return Some(block),
            }
        }
    }

    /// Replaces the block at `at`; None makes it absent. Beyond the end nothing happens.
    pub fn set(&mut self, at: BlockNo, block: Option<Block>) {
        if at.0 >= self.blocks || (block.is_none() && self.get(at).is_none()) {
            return;
        }
        let mut node = Arc::make_mut(self.root.get_or_insert_with(|| Arc::new(Node::empty())));
        for level in (1..self.levels).rev() {
            let slot = &mut node.slots[index(at, level)];
            if !matches!(slot, Slot::Inner(_)) {
                *slot = Slot::Inner(Arc::new(Node::empty()));
            }
            let Slot::Inner(inner) = slot else { unreachable!("the slot was just made an inner one") };
            node = Arc::make_mut(inner);
        }
        node.slots[index(at, 0)] = block.map_or(Slot::Empty, Slot::Block);
    }

    /// Copies the bytes of the block at `at` into `into`.
    pub fn read(&self, at: BlockNo, into: &mut [u8; BLOCK_SIZE]) {
        match self.get(at) {
            Some(block) => *into = **block,
            None => into.fill(0),
        }
    }

    /// Replaces the bytes of the block at `at`.
    pub fn write(&mut self, at: BlockNo, bytes: &[u8; BLOCK_SIZE]) {
        self.set(at, Some(Arc::new(*bytes)));
    }

    /// Changes bytes of the block at `at` in place, whether it was written or not.
    pub fn edit(&mut self, at: BlockNo, change: impl FnOnce(&mut [u8; BLOCK_SIZE])) {
        let mut bytes = [0; BLOCK_SIZE];
        self.read(at, &mut bytes);
        change(&mut bytes);
        self.write(at, &bytes);
    }

    /// Calls `visit` for every block that was written, in ascending order.
    pub fn for_each(&self, visit: &mut dyn FnMut(BlockNo, &Block)) {
        if let Some(root) = &self.root {
            walk(root, self.levels - 1, 0, visit);
        }
    }

    /// Writes the image to a sparse file, for a look with other tools.
    pub fn save(&self, path: &std::path::Path) -> Result<()> {
        use std::os::unix::fs::FileExt;
        let failed = |e: std::io::Error| quire_base::Error::os(format_args!("saving {}", path.display()), &e);
        let file = std::fs::File::create(path).map_err(failed)?;
        file.set_len(self.blocks * BLOCK_SIZE as u64).map_err(failed)?;
        let mut outcome = Ok(());
        self.for_each(&mut |at, block| {
            if outcome.is_ok() {
                outcome = file.write_all_at(&**block, at.byte_offset());
            }
        });
        outcome.map_err(failed)
    }
}

impl PartialEq for Image {
    /// Equal when every block reads the same (an absent block equals one of zeros).
    fn eq(&self, other: &Image) -> bool {
        fn covered(one: &Image, other: &Image) -> bool {
            let mut same = true;
            one.for_each(&mut |at, block| {
                same = same
                    && match other.get(at) {
                        Some(theirs) => Arc::ptr_eq(block, theirs) || block == theirs,
                        None => block.iter().all(|byte| *byte == 0),
                    };
            });
            same
        }
        self.blocks == other.blocks && covered(self, other) && covered(other, self)
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut written = 0;
        self.for_each(&mut |_, _| written += 1);
        write!(f, "Image({} blocks, {written} written)", self.blocks)
    }
}

fn index(at: BlockNo, level: u32) -> usize {
    (at.0 >> (level * FAN_SHIFT)) as usize & (FAN - 1)
}

fn walk(node: &Node, level: u32, base: u64, visit: &mut dyn FnMut(BlockNo, &Block)) {
    for (slot, entry) in node.slots.iter().enumerate() {
        let number = base | (slot as u64) << (level * FAN_SHIFT);
        match entry {
            Slot::Empty => {}
            Slot::Inner(inner) => walk(inner, level - 1, number, visit),
            Slot::Block(block) => visit(BlockNo(number), block),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn behaves_as_a_map_and_copies_do_not_follow(
            blocks in prop_oneof![Just(1u64), Just(64), Just(65), Just(5000), Just(1 << 28)],
            changes in prop::collection::vec((any::<u64>(), prop::option::of(any::<u8>())), 0..60),
        ) {
            let (mut image, mut model) = (Image::new(blocks), BTreeMap::new());
            let half = changes.len() / 2;
            let mut copy = None;
            for (step, (at, byte)) in changes.into_iter().enumerate() {
                if step == half {
                    copy = Some((image.clone(), model.clone()));
                }
                let at = BlockNo(at % blocks);
                image.set(at, byte.map(|byte| Arc::new([byte; BLOCK_SIZE])));
                match byte {
                    Some(byte) => model.insert(at, byte),
                    None => model.remove(&at),
                };
            }
            for (image, model) in copy.into_iter().chain([(image, model)]) {
                let mut seen = BTreeMap::new();
                image.for_each(&mut |at, block| { seen.insert(at, block[0]); });
                prop_assert_eq!(&seen, &model);
                for (at, byte) in &model {
                    prop_assert_eq!(image.get(*at).map(|block| block[4095]), Some(*byte));
                }
            }
        }
    }
}
