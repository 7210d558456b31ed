//! Changes bytes of a closed volume and makes every checksum on the way up right again, so that only the
//! meaning is damaged.

use quire_base::{BLOCK_SIZE, BlockNo};
use quire_device::simulated::Image;
use quire_format::key::{Key, KeyKind};
use quire_format::node::{NodeIdentity, NodePage, NodeRef, Roots};
use quire_format::pool::{CHUNK_BYTES, HEADER_BYTES, ManifestPage, ORPHAN_BYTES, OrphanRef, PageIdentity};
use quire_format::snapshot::Snapshot;
use quire_format::superblock::{SLOT_BLOCKS, Superblock, far_slots};

const NODE_HEADER: usize = quire_format::node::HEADER_BYTES;
/// Where a reference to a child has its checksum.
const REF_CRC: usize = 24;
const SLOT: usize = 24;

pub struct Editor {
    pub image: Image,
}

/// Where a key's slot and value lie.
#[derive(Clone, Copy, Debug)]
pub struct Location {
    pub key: Key,
    pub node: BlockNo,
    /// Offset of the slot in the node.
    pub slot: usize,
    pub value: usize,
    pub len: usize,
}

fn crc(block: &mut [u8; BLOCK_SIZE], at: usize) -> u32 {
    block[at..at + 4].fill(0);
    let crc = crc32c::crc32c(block);
    block[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    crc
}

impl Editor {
    pub fn new(image: &Image) -> Editor {
        Editor { image: image.clone() }
    }

    pub fn block(&self, at: BlockNo) -> [u8; BLOCK_SIZE] {
        let mut block = [0; BLOCK_SIZE];
        self.image.read(at, &mut block);
        block
    }

    pub fn superblock(&self, slot: usize) -> Superblock {
        Superblock::decode(&self.block(SLOT_BLOCKS[slot])).unwrap()
    }

    /// The slot with the newer superblock.
    pub fn newest(&self) -> usize {
        usize::from(self.superblock(1).checkpoint > self.superblock(0).checkpoint)
    }

    pub fn set_superblock(&mut self, slot: usize, change: impl FnOnce(&mut Superblock)) {
        let mut superblock = self.superblock(slot);
        let blocks = superblock.block_count;
        change(&mut superblock);
        self.write_slot(slot, blocks, &superblock.encode());
    }

    /// Writes both copies of a slot of a volume of so many blocks.
    fn write_slot(&mut self, slot: usize, blocks: u64, bytes: &[u8; BLOCK_SIZE]) {
        self.image.write(SLOT_BLOCKS[slot], bytes);
        self.image.write(far_slots(blocks)[slot], bytes);
    }

    /// Changes bytes of a superblock and seals it, whatever they mean.
    pub fn edit_superblock(&mut self, slot: usize, change: impl FnOnce(&mut [u8; BLOCK_SIZE])) {
        let mut block = self.block(SLOT_BLOCKS[slot]);
        let blocks = self.superblock(slot).block_count;
        change(&mut block);
        crc(&mut block, 8);
        self.write_slot(slot, blocks, &block);
    }

    fn volume(&self) -> u64 {
        self.superblock(0).volume_id()
    }

    /// Of the space tree and the tree of names.
    fn roots(&self) -> Roots {
        let (a, b) = (self.superblock(0).roots(), self.superblock(1).roots());
        assert_eq!(a, b, "a closed volume has one state");
        a
    }

    /// Changes the checksum of a root in both superblocks.
    fn set_root_crc(&mut self, tree: usize, sum: u32) {
        for slot in 0..2 {
            self.set_superblock(slot, |superblock| {
                let mut roots = superblock.roots();
                roots[tree].crc = sum;
                superblock.set_roots(roots);
            });
        }
    }

    fn page(&self, at: &NodeRef) -> NodePage {
        NodePage::decode(&self.block(at.block), self.volume(), at).unwrap()
    }

    /// Every node, parents first; the tree of names first.
    pub fn nodes(&self) -> Vec<NodeRef> {
        let mut all: Vec<NodeRef> = self.roots().into_iter().rev().collect();
        let mut next = 0;
        while next < all.len() {
            let page = self.page(&all[next]);
            if page.level() > 0 {
                all.extend((0..page.count()).map(|at| page.child(at)));
            }
            next += 1;
        }
        all
    }

    /// Every key, ascending within each leaf.
    pub fn keys(&self) -> Vec<Location> {
        let mut all = Vec::new();
        for node in self.nodes().into_iter().filter(|node| node.level == 0) {
            let (page, block) = (self.page(&node), self.block(node.block));
            for at in 0..page.count() {
                let slot = NODE_HEADER + at * SLOT;
                let value = usize::from(u16::from_le_bytes([block[slot + 18], block[slot + 19]]));
                let len = page.value(at).len();
                all.push(Location { key: page.key(at), node: node.block, slot, value, len });
            }
        }
        all
    }

    pub fn find(&self, wanted: impl Fn(&Location) -> bool) -> Location {
        self.keys().into_iter().find(wanted).expect("the volume has such a key")
    }

    pub fn key(&self, key: Key) -> Location {
        self.find(|at| at.key == key)
    }

    pub fn of_kind(&self, kind: KeyKind) -> Vec<Location> {
        self.keys().into_iter().filter(|at| at.key.kind == kind).collect()
    }

    pub fn value(&self, at: &Location) -> Vec<u8> {
        self.block(at.node)[at.value..at.value + at.len].to_vec()
    }

    /// Replaces a value by one of the same length.
    pub fn set_value(&mut self, at: &Location, value: &[u8]) {
        assert_eq!(value.len(), at.len);
        self.edit_node(at.node, |block| block[at.value..at.value + at.len].copy_from_slice(value));
    }

    /// Changes a node's entries through its page: any change that fits.
    pub fn edit_page(&mut self, node: BlockNo, change: impl FnOnce(&mut NodePage)) {
        let at = self.nodes().into_iter().find(|at| at.block == node).unwrap();
        let mut page = self.page(&at);
        change(&mut page);
        let mut bytes = [0; BLOCK_SIZE];
        let identity = NodeIdentity {
            volume: self.volume(),
            generation: at.generation,
            incarnation: page.incarnation(),
            birth: page.birth(),
            place: at.place(),
            bounds: page.bounds(),
        };
        page.seal(&identity, &mut bytes);
        self.edit_node(node, |block| *block = bytes);
    }

    /// Removes a key.
    pub fn remove(&mut self, key: Key) {
        let at = self.key(key);
        self.edit_page(at.node, |page| {
            let place = page.search(&key).unwrap();
            page.remove(place);
        });
    }

    /// Adds a key, or changes the value of one, in the leaf where it belongs.
    pub fn put(&mut self, key: Key, value: &[u8]) {
        let mut node = self.roots()[usize::from(key >= Key::NAMES)];
        while node.level > 0 {
            let page = self.page(&node);
            let at = match page.search(&key) {
                Ok(at) => at,
                Err(at) => at.saturating_sub(1),
            };
            node = page.child(at);
        }
        self.edit_page(node.block, |page| match page.search(&key) {
            Ok(at) => {
                assert!(page.fits_instead(at, value.len()), "no room in the leaf");
                page.replace(at, value);
            }
            Err(at) => {
                assert!(page.fits(value.len()), "no room in the leaf");
                page.insert(at, key, value);
            }
        });
    }

    /// Changes a node's bytes; checksums follow up to both superblocks.
    pub fn edit_node(&mut self, node: BlockNo, change: impl FnOnce(&mut [u8; BLOCK_SIZE])) {
        let roots = self.roots();
        let mut path = Vec::new();
        let tree = roots.iter().position(|root| self.path(root, node, &mut path));
        let tree = tree.unwrap_or_else(|| panic!("no node at block {node}"));
        let mut block = self.block(node);
        change(&mut block);
        let mut sum = crc(&mut block, 4);
        self.image.write(node, &block);
        for (parent, entry) in path.into_iter().rev() {
            let mut block = self.block(parent);
            let slot = NODE_HEADER + entry * SLOT;
            let value = usize::from(u16::from_le_bytes([block[slot + 18], block[slot + 19]]));
            block[value + REF_CRC..value + REF_CRC + 4].copy_from_slice(&sum.to_le_bytes());
            sum = crc(&mut block, 4);
            self.image.write(parent, &block);
        }
        self.set_root_crc(tree, sum);
    }

    /// Changes bytes of several nodes at once, (node, offset, bytes); checksums follow up to both
    /// superblocks.
    pub fn edit_nodes(&mut self, changes: &[(BlockNo, usize, Vec<u8>)]) {
        // Children behind their parents, with the place of the checksum that vouches for each.
        let roots = self.roots();
        let mut nodes: Vec<(NodeRef, Option<(BlockNo, usize)>)> = roots.map(|root| (root, None)).to_vec();
        let mut next = 0;
        while next < nodes.len() {
            let at = nodes[next].0;
            let page = self.page(&at);
            let block = self.block(at.block);
            for child in 0..if page.level() > 0 { page.count() } else { 0 } {
                let slot = NODE_HEADER + child * SLOT;
                let value = usize::from(u16::from_le_bytes([block[slot + 18], block[slot + 19]]));
                nodes.push((page.child(child), Some((at.block, value + REF_CRC))));
            }
            next += 1;
        }
        let mut changed: Vec<BlockNo> = Vec::new();
        for (node, offset, bytes) in changes {
            self.image.edit(*node, |block| block[*offset..offset + bytes.len()].copy_from_slice(bytes));
            changed.push(*node);
        }
        for (at, parent) in nodes.iter().rev() {
            if !changed.contains(&at.block) {
                continue;
            }
            let mut block = self.block(at.block);
            let sum = crc(&mut block, 4);
            self.image.write(at.block, &block);
            match parent {
                Some((parent, place)) => {
                    let place = *place;
                    self.image
                        .edit(*parent, |block| block[place..place + 4].copy_from_slice(&sum.to_le_bytes()));
                    changed.push(*parent);
                }
                None => {
                    let tree =
                        roots.iter().position(|root| root.block == at.block).expect("it has no parent");
                    self.set_root_crc(tree, sum);
                }
            }
        }
    }

    /// Changes bytes of the root of a snapshot's space tree; checksums follow up to both superblocks. Nothing
    /// else names this node.
    pub fn edit_space_root(&mut self, number: u32, change: impl FnOnce(&NodePage, &mut [u8; BLOCK_SIZE])) {
        let at = self.key(Key::snapshot(number));
        let mut snapshot = Snapshot::decode(&self.value(&at)).unwrap();
        let mut roots = snapshot.superblock.roots();
        let root = roots[0];
        assert!(!self.nodes().contains(&root), "the volume has it, too");
        let (page, mut block) = (self.page(&root), self.block(root.block));
        change(&page, &mut block);
        roots[0].crc = crc(&mut block, 4);
        self.image.write(root.block, &block);
        snapshot.superblock.set_roots(roots);
        self.set_value(&at, &snapshot.encode());
    }

    fn path(&self, from: &NodeRef, to: BlockNo, path: &mut Vec<(BlockNo, usize)>) -> bool {
        if from.block == to {
            return true;
        }
        if from.level == 0 {
            return false;
        }
        let page = self.page(from);
        for at in 0..page.count() {
            path.push((from.block, at));
            if self.path(&page.child(at), to, path) {
                return true;
            }
            path.pop();
        }
        false
    }

    /// The only page of a slot's manifest.
    pub fn manifest(&self, slot: usize) -> (BlockNo, ManifestPage) {
        let superblock = self.superblock(slot);
        assert_eq!(superblock.manifest.count, 1);
        let at = superblock.manifest.block;
        let identity = PageIdentity {
            volume: superblock.volume_id(),
            place: superblock.manifest.place(),
            index: 0,
            count: 1,
        };
        (at, ManifestPage::decode(&self.block(at), &identity, superblock.manifest.crc).unwrap().1)
    }

    /// Changes bytes of a slot's manifest page.
    pub fn edit_manifest(&mut self, slot: usize, change: impl FnOnce(&mut [u8; BLOCK_SIZE])) {
        let at = self.superblock(slot).manifest.block;
        let mut block = self.block(at);
        change(&mut block);
        let sum = crc(&mut block, 4);
        self.image.write(at, &block);
        // A checkpoint that changed nothing shares its manifest with the one before.
        for slot in (0..2).filter(|slot| self.superblock(*slot).manifest.block == at).collect::<Vec<_>>() {
            self.set_superblock(slot, |superblock| superblock.manifest.crc = sum);
        }
    }

    /// Changes bytes of an orphan block; checksums follow through the manifests.
    pub fn edit_orphans(&mut self, orphan: OrphanRef, change: impl FnOnce(&mut [u8; BLOCK_SIZE])) {
        let mut block = self.block(orphan.block);
        change(&mut block);
        crc(&mut block, 4084);
        let sum = crc32c::crc32c(&block);
        self.image.write(orphan.block, &block);
        let shared = self.superblock(0).manifest.block == self.superblock(1).manifest.block;
        for slot in 0..if shared { 1 } else { 2 } {
            let (_, page) = self.manifest(slot);
            let Some(place) = page.orphans.iter().position(|other| other.block == orphan.block) else {
                continue;
            };
            let at = HEADER_BYTES + page.chunks.len() * CHUNK_BYTES + place * ORPHAN_BYTES + 4;
            self.edit_manifest(slot, |block| block[at..at + 4].copy_from_slice(&sum.to_le_bytes()));
        }
    }
}
