//! A tree with the two superblock slots that a volume would have, and a model of what each slot must hold.

use quire_base::sync::Arc;
use quire_base::{BLOCK_SIZE, BlockNo, Result};
use quire_device::{AlignedBuf, Device, IoClass};
use quire_format::extent::Run;
use quire_format::key::Key;
use quire_format::orphan;
use quire_tree::{
    CheckpointImage, CheckpointStamp, Frozen, ManifestRef, NodeRef, PoolState, Roots, Tree, TreeLimits,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

pub type Model = BTreeMap<Key, Vec<u8>>;

pub const VOLUME: u64 = 0xfeed;
pub const SLOTS: [BlockNo; 2] = [BlockNo(0), BlockNo(8)];
pub const POOL_START: u64 = 16;

/// What a superblock says, as far as the tree is concerned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Root {
    pub checkpoint: u64,
    pub roots: Roots,
    pub manifest: ManifestRef,
}

impl Root {
    pub fn of(checkpoint: u64, image: &CheckpointImage) -> Root {
        Root { checkpoint, roots: image.roots, manifest: image.manifest }
    }

    pub fn write(&self, device: &Device, slot: usize) -> Result<()> {
        let mut block = AlignedBuf::blocks(1);
        let manifest = &self.manifest;
        let mut words = vec![
            self.checkpoint,
            manifest.block.0,
            manifest.twin.0,
            u64::from(manifest.crc),
            u64::from(manifest.count),
        ];
        for root in &self.roots {
            let numbers = [root.block.0, root.twin.0, root.generation];
            words.extend(numbers.into_iter().chain([u64::from(root.crc), u64::from(root.level)]));
        }
        for (bytes, word) in block[8..].chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let crc = crc32c::crc32c(&block[8..]);
        block[..4].copy_from_slice(&crc.to_le_bytes());
        device.write(IoClass::Metadata, SLOTS[slot], &block)?;
        device.flush_to(device.mark())
    }

    pub fn read(device: &Device, slot: usize) -> Option<Root> {
        let mut block = AlignedBuf::blocks(1);
        device.read(IoClass::Metadata, SLOTS[slot], &mut block).unwrap();
        let word = |n: usize| u64::from_le_bytes(block[8 + n * 8..][..8].try_into().unwrap());
        if block[..4] != crc32c::crc32c(&block[8..]).to_le_bytes() || word(0) == 0 {
            return None;
        }
        let root = |from: usize| NodeRef {
            block: BlockNo(word(from)),
            twin: BlockNo(word(from + 1)),
            generation: word(from + 2),
            crc: word(from + 3) as u32,
            level: word(from + 4) as u8,
        };
        Some(Root {
            checkpoint: word(0),
            roots: [root(5), root(10)],
            manifest: ManifestRef {
                block: BlockNo(word(1)),
                twin: BlockNo(word(2)),
                crc: word(3) as u32,
                count: word(4) as u32,
            },
        })
    }

    pub fn newest(device: &Device) -> Option<Root> {
        let slots = [Root::read(device, 0), Root::read(device, 1)];
        slots.into_iter().flatten().max_by_key(|root| root.checkpoint)
    }

    pub fn open(&self, device: &Arc<Device>, limits: TreeLimits) -> Result<Arc<Tree>> {
        let mut pool = PoolState::load(device, VOLUME, self.manifest, device.blocks())?;
        for (index, block) in pool.load_orphan_blocks(device, ORPHAN_BLOCKS).into_iter().enumerate() {
            orphan::decode(index as u64, &block?[..])?;
        }
        Tree::open(device.clone(), VOLUME, self.roots, pool, limits)
    }
}

pub const ORPHAN_BLOCKS: u32 = 2;

/// A checkpoint of the first incarnation.
pub fn stamp(checkpoint: u64) -> CheckpointStamp {
    CheckpointStamp { checkpoint, incarnation: 1 }
}

pub fn orphan_block(index: u32, value: u64) -> (u32, Box<[u8; BLOCK_SIZE]>) {
    (index, orphan::encode(u64::from(index), &[value; orphan::SLOTS]))
}

pub fn contents(tree: &Tree) -> Model {
    let mut all = Model::new();
    tree.scan(Key::MIN, Key::MAX, &mut |key, value| {
        assert!(all.insert(key, value.to_vec()).is_none(), "{key:?} came twice");
        ControlFlow::Continue(())
    })
    .unwrap();
    all
}

/// Opens a root afresh, compares the tree with the model, and its map with what the tree uses.
pub fn check_image(device: &Arc<Device>, root: &Root, model: &Model) {
    let tree = root.open(device, TreeLimits::with_cache_bytes(0)).unwrap();
    assert_eq!(&contents(&tree), model, "checkpoint {}", root.checkpoint);
    check_map(&tree, root);
}

/// The map names exactly the nodes, the orphan blocks and the manifest.
pub fn check_map(tree: &Tree, root: &Root) {
    let pool = tree.pool_state();
    let mut nodes = BTreeSet::new();
    let mut last: Option<Key> = None;
    tree.walk(&mut |at, page| {
        for block in at.place().copies() {
            assert!(nodes.insert(block), "block {block} is used twice");
            assert!(pool.is_used(block));
        }
        let bounds = page.bounds();
        let (first, count) = (usize::from(page.level() > 0), page.count());
        assert!(count <= first || bounds.low.is_none_or(|low| low <= page.key(first)), "{at:?}");
        assert!(count == 0 || bounds.high.is_none_or(|high| page.key(count - 1) < high), "{at:?}");
        for n in 0..if page.level() == 0 { page.count() } else { 0 } {
            assert!(last < Some(page.key(n)));
            last = Some(page.key(n));
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(nodes.len() as u64, pool.nodes() * pool.copies());
    let others = u64::from(ORPHAN_BLOCKS) + u64::from(root.manifest.count);
    assert_eq!(pool.used_blocks(), nodes.len() as u64 + others * pool.copies());
    assert_eq!(tree.stats().nodes, pool.nodes());
}

pub struct Volume {
    pub device: Arc<Device>,
    pub tree: Arc<Tree>,
    pub model: Model,
    /// What each slot names and must hold.
    pub slots: [Option<(Root, Model)>; 2],
    pub number: u64,
    pub limits: TreeLimits,
}

impl Volume {
    /// Makes a volume with a pool of so many blocks; its first checkpoint is in both slots.
    pub fn make(device: Arc<Device>, pool_blocks: u64, limits: TreeLimits) -> Volume {
        Volume::with_copies(device, pool_blocks, limits, 1)
    }

    /// As [`Volume::make`], with so many copies of everything in the pool.
    pub fn with_copies(device: Arc<Device>, pool_blocks: u64, limits: TreeLimits, copies: u32) -> Volume {
        let pool = PoolState::new(&[Run::new(BlockNo(POOL_START), pool_blocks)], copies);
        let tree = Tree::create(device.clone(), VOLUME, pool, limits);
        let orphans = (0..ORPHAN_BLOCKS).map(|index| orphan_block(index, 1)).collect();
        let image = tree.write_frozen(tree.freeze(orphans), stamp(1)).unwrap();
        device.flush_to(device.mark()).unwrap();
        let root = Root::of(1, &image);
        root.write(&device, 0).unwrap();
        root.write(&device, 1).unwrap();
        tree.both_slots(1);
        let slot = Some((root, Model::new()));
        Volume { device, tree, model: Model::new(), slots: [slot.clone(), slot], number: 1, limits }
    }

    pub fn put(&mut self, key: Key, value: &[u8]) {
        self.tree.put(key, value).unwrap();
        self.model.insert(key, value.to_vec());
    }

    pub fn delete(&mut self, key: Key) {
        assert_eq!(self.tree.delete(key).unwrap(), self.model.remove(&key).is_some());
    }

    pub fn freeze(&mut self) -> (Frozen, Model) {
        let orphans =
            if self.number.is_multiple_of(3) { vec![orphan_block(1, self.number)] } else { Vec::new() };
        (self.tree.freeze(orphans), self.model.clone())
    }

    /// Writes what was frozen; checks that neither slot has lost anything by it; publishes.
    pub fn write(&mut self, frozen: (Frozen, Model), check: bool) {
        let written = self.write_unpublished(frozen);
        self.publish(written, check);
    }

    /// Writes what was frozen as the next checkpoint.
    pub fn write_unpublished(&self, (frozen, model): (Frozen, Model)) -> (CheckpointImage, Model) {
        (self.tree.write_frozen(frozen, stamp(self.number + 1)).unwrap(), model)
    }

    /// The rest of [`Volume::write`].
    pub fn publish(&mut self, (image, model): (CheckpointImage, Model), check: bool) {
        self.number += 1;
        self.device.flush_to(self.device.mark()).unwrap();
        let root = Root::of(self.number, &image);
        if check {
            for (root, model) in self.slots.iter().flatten() {
                check_image(&self.device, root, model);
            }
            check_image(&self.device, &root, &model);
        }
        let slot = self.number as usize % 2;
        root.write(&self.device, slot).unwrap();
        self.slots[slot] = Some((root, model));
        self.tree.published(self.number);
    }

    pub fn checkpoint(&mut self, check: bool) {
        let frozen = self.freeze();
        self.write(frozen, check);
    }

    /// Opens the newest checkpoint, as after a clean end.
    pub fn reopen(&mut self) {
        self.checkpoint(false);
        let (root, model) = self.slots[self.number as usize % 2].clone().unwrap();
        assert_eq!(model, self.model);
        root.write(&self.device, 1 - self.number as usize % 2).unwrap();
        self.slots = [Some((root, model.clone())), Some((root, model))];
        self.tree = root.open(&self.device, self.limits).unwrap();
    }

    pub fn check(&self) {
        assert_eq!(contents(&self.tree), self.model);
    }
}
