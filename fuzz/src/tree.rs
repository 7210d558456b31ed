//! Whole small trees with their pool's map, made from the bytes, and changes of them: what opens behaves as
//! an ordered map or gives errors of kind `Corrupt`.
//!
//! Input, read with `arbitrary`: keys for the leaves, how full nodes are, tweaks of nodes (separators,
//! children that are shared, swapped, missing or nonsense, entries out of order, bytes), tweaks of the map,
//! then operations.
//!
//! Promises that are checked: a scan ascends; a tree that a walk and a scan find whole holds its contents
//! under changes and checkpoints, and is the same when opened again.
//!
//! Neighbours: [`crate::blocks`] for single nodes, [`crate::image`] for trees that make a volume.

use crate::seal::{NODE_CRC_AT, seal_block};
use arbitrary::{Result, Unstructured};
use quire_base::{BLOCK_SIZE, BlockNo, ErrorKind};
use quire_device::{AlignedBuf, Device, IoClass};
use quire_format::extent::Run;
use quire_format::key::{Key, KeyKind, VALUE_MAX};
use quire_format::node::{
    BODY_BYTES, CHILDREN_MAX, NodeIdentity, NodePage, NodeRef, REF_BYTES, Roots, SLOT_BYTES, TREE_BOUNDS,
    TREES,
};
use quire_format::place::{NO_TWIN, Place};
use quire_format::pool::{ChunkEntry, ManifestPage, ManifestRef, PageIdentity, PageStamp};
use quire_tree::{CheckpointStamp, Class, PoolState, Short, Tree, TreeLimits};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

const VOLUME: u64 = 0xfeed;
const GENERATION: u64 = 5;
const DEVICE_BLOCKS: u64 = 600;
const POOL: Run = Run { start: BlockNo(16), blocks: 560 };
const LEAVES_MAX: usize = 40;
const LEVELS_MAX: usize = 10;
const OPERATIONS_MAX: usize = 120;
const LIMITS: TreeLimits = TreeLimits { cache_nodes: 16, dirty_nodes: 64 };

type Model = BTreeMap<Key, Vec<u8>>;

/// An entry of a node before it has bytes.
#[derive(Clone)]
enum Payload {
    Value(Vec<u8>),
    Node(usize),
    Nowhere(NodeRef),
}

#[derive(Clone)]
struct Plan {
    level: u8,
    entries: Vec<(Key, Payload)>,
    /// A byte to spoil after sealing: where, with what; the checksum is made right again.
    spoiled: Option<(usize, u8)>,
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut source = Unstructured::new(input);
    if let Ok((mut plans, roots)) = plan(&mut source)
        && tweak(&mut source, &mut plans).is_ok()
    {
        use_tree(&mut source, &plans, roots);
    }
}

fn key(source: &mut Unstructured<'_>) -> Result<Key> {
    const KINDS: [KeyKind; 8] = [
        KeyKind::FreeSpace,
        KeyKind::LoggedOp,
        KeyKind::OrphanKey,
        KeyKind::Inode,
        KeyKind::Symlink,
        KeyKind::Xattr,
        KeyKind::Entry,
        KeyKind::Extent,
    ];
    let [object, kind, offset]: [u8; 3] = source.arbitrary()?;
    let wide = |byte: u8| if byte == u8::MAX { u64::MAX } else { u64::from(byte) };
    Ok(Key::new(wide(object), KINDS[usize::from(kind) % KINDS.len()], wide(offset)))
}

fn value(source: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let [len, fill]: [u8; 2] = source.arbitrary()?;
    let len = match len {
        0..=127 => usize::from(len),
        255 => VALUE_MAX,
        len => usize::from(len - 127) * 8,
    };
    Ok(vec![fill; len])
}

/// Both trees, well formed, each bottom-up; and where their roots are.
fn plan(source: &mut Unstructured<'_>) -> Result<(Vec<Plan>, [usize; TREES])> {
    let (count, leaf_entries, fan_out): (u8, u8, u8) = source.arbitrary()?;
    let mut contents = Model::new();
    for _ in 0..count {
        contents.insert(key(source)?, value(source)?);
    }
    let names = contents.split_off(&Key::NAMES);
    let mut plans = Vec::new();
    let shape = (usize::from(leaf_entries % 16), usize::from(fan_out % 12) + 1);
    let roots = [contents, names].map(|contents| plan_tree(contents, shape, &mut plans));
    Ok((plans, roots))
}

fn plan_tree(contents: Model, (leaf_entries, fan_out): (usize, usize), plans: &mut Vec<Plan>) -> usize {
    let mut row: Vec<(Key, usize)> = Vec::new();
    let mut leaf = Plan { level: 0, entries: Vec::new(), spoiled: None };
    let mut used = 0;
    let mut close = |leaf: &mut Plan, used: &mut usize, plans: &mut Vec<Plan>| {
        row.push((leaf.entries.first().map_or(Key::MIN, |entry| entry.0), plans.len()));
        plans.push(std::mem::replace(leaf, Plan { level: 0, entries: Vec::new(), spoiled: None }));
        *used = 0;
    };
    for (key, value) in contents {
        let bytes = SLOT_BYTES + value.len();
        if used + bytes > BODY_BYTES || leaf.entries.len() > leaf_entries {
            if plans.len() + 1 >= LEAVES_MAX {
                break;
            }
            close(&mut leaf, &mut used, plans);
        }
        used += bytes;
        leaf.entries.push((key, Payload::Value(value)));
    }
    close(&mut leaf, &mut used, plans);
    while row.len() > 1 || (fan_out == 1 && usize::from(plans[plans.len() - 1].level) < LEVELS_MAX) {
        // One child a node would never end: then the last row is all under one.
        let fan_out = if fan_out == 1 { row.len().min(CHILDREN_MAX) } else { fan_out };
        let level = plans[row[0].1].level + 1;
        row = row
            .chunks(fan_out)
            .map(|children| {
                let entries = children.iter().map(|(key, node)| (*key, Payload::Node(*node))).collect();
                plans.push(Plan { level, entries, spoiled: None });
                (children[0].0, plans.len() - 1)
            })
            .collect();
    }
    plans.len() - 1
}

fn tweak(source: &mut Unstructured<'_>, plans: &mut [Plan]) -> Result<()> {
    for _ in 0..source.arbitrary::<u8>()? % 8 {
        let (which, what, place): (u8, u8, u8) = source.arbitrary()?;
        let count = plans.len();
        // Upper nodes come last and matter most.
        let which = count - 1 - usize::from(which) % count;
        let other = usize::from(source.arbitrary::<u8>()?) % count;
        let copied = plans[other].entries.clone();
        let plan = &mut plans[which];
        let entries = plan.entries.len();
        let at = usize::from(place) % entries.max(1);
        match what % 10 {
            0 if entries > 0 => plan.entries[at].0 = key(source)?,
            1 if entries > 0 => plan.entries[at].1 = Payload::Node(other),
            2 if entries > 0 => drop(plan.entries.remove(at)),
            3 if entries > 0 => plan.entries.push(plan.entries[at].clone()),
            4 if entries > 1 => plan.entries.swap(at, (at + 1) % entries),
            5 => plan.level = place % 40,
            6 => {
                let at = usize::from(source.arbitrary::<u16>()?) % BLOCK_SIZE;
                plan.spoiled = Some((at, place));
            }
            7 if entries > 0 => {
                let (block, generation, crc, level): (u16, u8, u32, u8) = source.arbitrary()?;
                plan.entries[at].1 = Payload::Nowhere(NodeRef {
                    block: BlockNo(block.into()),
                    twin: NO_TWIN,
                    generation: generation.into(),
                    crc,
                    level,
                });
            }
            8 => plan.entries = copied,
            // The same child many times, under keys of its own each.
            _ if entries > 0 => {
                let payload = plan.entries[at].1.clone();
                let first = plan.entries[0].0;
                plan.entries = (0..40)
                    .map(|step| (Key { offset: first.offset.wrapping_add(step), ..first }, payload.clone()))
                    .collect();
            }
            _ => {}
        }
    }
    Ok(())
}

/// Writes planned nodes to a device, children first.
struct Writer<'a> {
    device: &'a Device,
    plans: &'a [Plan],
    written: BTreeMap<usize, NodeRef>,
    in_hand: BTreeSet<usize>,
}

fn place(index: usize) -> BlockNo {
    POOL.start.offset(index as u64 + 1)
}

impl Writer<'_> {
    fn write(&mut self, index: usize) -> NodeRef {
        if let Some(known) = self.written.get(&index) {
            return *known;
        }
        if !self.in_hand.insert(index) {
            // A circle cannot have right checksums.
            return NodeRef { block: place(index), twin: NO_TWIN, generation: GENERATION, crc: 0, level: 0 };
        }
        let plan = self.plans[index].clone();
        let mut page = NodePage::new(plan.level);
        for (key, payload) in &plan.entries {
            let bytes = match payload {
                Payload::Value(value) => value.clone(),
                Payload::Node(child) => self.write(*child).encode().to_vec(),
                Payload::Nowhere(at) => at.encode().to_vec(),
            };
            debug_assert_eq!(REF_BYTES, 32);
            if page.fits(bytes.len()) {
                page.insert(page.count(), *key, &bytes);
            }
        }
        let mut block = AlignedBuf::blocks(1);
        let identity = NodeIdentity {
            volume: VOLUME,
            generation: GENERATION,
            incarnation: 1,
            birth: 0,
            place: Place::single(place(index)),
            bounds: TREE_BOUNDS[1],
        };
        let mut at = page.seal(&identity, &mut block);
        if let Some((byte, value)) = plan.spoiled {
            let bytes: &mut [u8; BLOCK_SIZE] = (&mut block[..]).try_into().expect("a block");
            bytes[byte] = value;
            at.crc = seal_block(bytes, NODE_CRC_AT);
        }
        self.device.write(IoClass::Metadata, at.block, &block).expect("memory takes it");
        self.written.insert(index, at);
        at
    }
}

/// Writes the map: the pool with the nodes marked, but for what the tweaks say.
fn write_map(source: &mut Unstructured<'_>, device: &Device, nodes: usize) -> Result<ManifestRef> {
    let mut used = [0u64; 16];
    for block in 0..=nodes {
        used[block / 64] |= 1 << (block % 64);
    }
    for _ in 0..source.arbitrary::<u8>()? % 4 {
        let bit = usize::from(source.arbitrary::<u16>()?) % POOL.blocks as usize;
        used[bit / 64] ^= 1 << (bit % 64);
    }
    let chunk = ChunkEntry { start: POOL.start, blocks: POOL.blocks as u32, used };
    let page = ManifestPage { chunks: vec![chunk], ..ManifestPage::default() };
    let identity = PageIdentity { volume: VOLUME, place: Place::single(POOL.start), index: 0, count: 1 };
    let mut block = AlignedBuf::blocks(1);
    let crc = page.encode(&identity, PageStamp { generation: GENERATION, incarnation: 1 }, &mut block);
    device.write(IoClass::Metadata, POOL.start, &block).expect("memory takes it");
    Ok(ManifestRef { block: POOL.start, twin: NO_TWIN, crc, count: 1 })
}

fn open(device: &Arc<Device>, roots: Roots, manifest: ManifestRef) -> quire_base::Result<Arc<Tree>> {
    let pool = PoolState::load(device, VOLUME, manifest, device.blocks())?;
    Tree::open(device.clone(), VOLUME, roots, pool, LIMITS)
}

/// What a tree holds, if all of it can be read.
fn contents(tree: &Tree) -> Option<Model> {
    let mut all = Model::new();
    let mut last = None;
    let scanned = tree.scan(Key::MIN, Key::MAX, &mut |key, value| {
        assert!(last < Some(key), "a scan ascends");
        last = Some(key);
        all.insert(key, value.to_vec());
        ControlFlow::Continue(())
    });
    check_kind(&scanned);
    scanned.ok().map(|()| all)
}

fn check_kind<T>(result: &quire_base::Result<T>) {
    if let Err(error) = result {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}

/// Whether each node is there once, in the map, and the map has nothing else.
fn is_whole(tree: &Tree) -> bool {
    let pool = tree.pool_state();
    let mut nodes = BTreeSet::new();
    let mut sound = true;
    let mut steps = 0;
    let walked = tree.walk_all(&mut |at, page| {
        steps += 1;
        sound &= page.is_ok() && nodes.insert(at.block) && pool.is_used(at.block);
        // A node that is shared is shown each time.
        if sound && steps < 2000 { Ok(()) } else { Err(quire_base::Error::corrupt("not whole")) }
    });
    walked.is_ok() && sound && nodes.len() as u64 == pool.nodes()
}

fn use_tree(source: &mut Unstructured<'_>, plans: &[Plan], roots: [usize; TREES]) {
    let device = Device::in_memory(DEVICE_BLOCKS);
    let mut writer = Writer { device: &device, plans, written: BTreeMap::new(), in_hand: BTreeSet::new() };
    let roots = roots.map(|root| writer.write(root));
    let Ok(manifest) = write_map(source, &device, plans.len()) else { return };
    let opened = open(&device, roots, manifest);
    check_kind(&opened);
    let Ok(tree) = opened else { return };
    let whole = is_whole(&tree);
    let model = contents(&tree).filter(|_| whole);
    let mut user = User { device, tree, model, checkpoint: GENERATION, broken: false };
    for _ in 0..OPERATIONS_MAX {
        if source.is_empty() || user.step(source).is_err() || user.broken {
            break;
        }
    }
    if !user.broken {
        user.checkpoint(true);
    }
}

/// A tree in use. With a model it must behave; without, it must not misbehave.
struct User {
    device: Arc<Device>,
    tree: Arc<Tree>,
    model: Option<Model>,
    checkpoint: u64,
    /// A checkpoint failed: nothing more can be done.
    broken: bool,
}

impl User {
    fn step(&mut self, source: &mut Unstructured<'_>) -> Result<()> {
        let what: u8 = source.arbitrary()?;
        match what % 8 {
            0..=2 => {
                let (key, value) = (key(source)?, value(source)?);
                self.change(key, Some(value));
            }
            3 | 4 => {
                let key = key(source)?;
                self.change(key, None);
            }
            5 => {
                let key = key(source)?;
                let found = self.tree.get(key);
                self.expect(found, |model| model.get(&key).cloned());
            }
            6 => {
                let (key, floor) = (key(source)?, key(source)?);
                let found = self.tree.last_at_or_before(key, floor);
                self.expect(found, |model| {
                    let mut range = if floor <= key { Some(model.range(floor..=key)) } else { None };
                    range.as_mut()?.next_back().map(|(key, value)| (*key, value.clone()))
                });
            }
            _ => self.checkpoint(what & 8 != 0),
        }
        Ok(())
    }

    /// Compares with what the model says, if there is one.
    fn expect<T: PartialEq + std::fmt::Debug>(
        &self,
        found: quire_base::Result<T>,
        said: impl FnOnce(&Model) -> T,
    ) {
        check_kind(&found);
        if let Some(model) = &self.model {
            assert_eq!(found.expect("the tree is whole"), said(model));
        }
    }

    /// A change as the engine does it: reserved, prepared, then applied.
    fn change(&mut self, key: Key, value: Option<Vec<u8>>) {
        let tree = self.tree.clone();
        let nodes = tree.nodes_for(1);
        let reserved = match tree.try_reserve(nodes, Class::Critical) {
            Ok(reserved) => reserved,
            Err(Short::Checkpoint) => {
                self.checkpoint(false);
                if self.broken {
                    return;
                }
                match tree.try_reserve(nodes, Class::Critical) {
                    Ok(reserved) => reserved,
                    Err(_) => return,
                }
            }
            Err(Short::PoolFull) => return,
        };
        let ticket = self.tree.ticket();
        let prepared = self.tree.prepare(&ticket, &[key]);
        let is_prepared = prepared.is_ok();
        self.expect(prepared, |_| ());
        if !is_prepared {
            return;
        }
        match &value {
            Some(value) => {
                let put = self.tree.put(key, value);
                self.expect(put, |_| ());
            }
            None => {
                let deleted = self.tree.delete(key);
                self.expect(deleted, |model| model.contains_key(&key));
            }
        }
        if let Some(model) = &mut self.model {
            match value {
                Some(value) => drop(model.insert(key, value)),
                None => drop(model.remove(&key)),
            }
        }
        drop((ticket, reserved));
    }

    /// Writes a checkpoint; compares, and goes on with the tree opened anew if asked to.
    fn checkpoint(&mut self, reopen: bool) {
        self.checkpoint += 1;
        let written = self.tree.write_frozen(
            self.tree.freeze(Vec::new()),
            CheckpointStamp { checkpoint: self.checkpoint, incarnation: 1 },
        );
        match written {
            Ok(image) => {
                self.tree.published(self.checkpoint);
                if let Some(model) = &self.model {
                    assert_eq!(contents(&self.tree).as_ref(), Some(model), "a checkpoint changes nothing");
                }
                if !reopen {
                    return;
                }
                let again = open(&self.device, image.roots, image.manifest);
                check_kind(&again);
                match again {
                    Ok(tree) => self.tree = tree,
                    Err(error) => {
                        assert!(self.model.is_none(), "what was written does not open: {error}");
                        self.broken = true;
                        return;
                    }
                }
                if let Some(model) = &self.model {
                    assert!(is_whole(&self.tree), "the map and the tree agree");
                    assert_eq!(contents(&self.tree).as_ref(), Some(model), "what was written is read");
                }
            }
            Err(error) => {
                assert!(self.model.is_none(), "a checkpoint of a whole tree failed: {error}");
                assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NoSpace), "{error}");
                self.broken = true;
            }
        }
    }
}
