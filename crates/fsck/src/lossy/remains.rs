//! The tree that can still be read: what a superblock leads to, and for what it does not lead to any more,
//! the nodes that a scan found.
//!
//! A subtree that is whole is kept as it is. Where a leaf is lost in all of its copies, an empty one takes
//! its place: an older version of it, if there is one, is none, since its parent named another. Where an
//! inner node is lost, its children are looked for among the nodes that were found: those in its range of
//! keys, as old as it or older, that the newest map of the pool calls used; the newest one where several
//! cover a key. Nodes of two images of one checkpoint, of which only the later one was published, are equally
//! old: the lower block is taken. That can be wrong without a map only, where all that was found is listed as
//! doubtful. What no such node covers is lost. Ranges of the map of used blocks are filled with "all used",
//! so that nothing is overwritten by whoever opens the volume before the repair has ended.
//!
//! Invariants: the result covers every key exactly once; a block is named once; no node is named that
//! contradicts what names it.
//!
//! Neighbours: [`super::scan`] finds, [`super::publish`] writes.

use super::scan::Found;
use crate::checkpoint::Checkpoint;
use crate::progress::Meter;
use quire_base::{BLOCK_SIZE, BlockNo};
use quire_device::{AlignedBuf, Device, IoClass};
use quire_format::key::{Key, KeyKind};
use quire_format::node::{Bounds, CHILDREN_MAX, NodePage, NodeRef, TREE_BOUNDS, TREES};
use quire_format::place::NO_TWIN;
use quire_format::region::{REGION_BLOCKS, RegionMap};
use quire_format::superblock::Superblock;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A node of the new tree.
pub(super) enum Node {
    /// On disk already, with all below it.
    Kept(NodeRef),
    /// To be written.
    New(NewNode),
}

/// A node to be written.
pub(super) struct NewNode {
    pub(super) level: u8,
    pub(super) bounds: Bounds,
    pub(super) content: Content,
}

pub(super) enum Content {
    Leaf(Vec<(Key, Vec<u8>)>),
    Inner(Vec<(Key, Node)>),
}

/// A node with the first key that it covers.
struct Part {
    low: Option<Key>,
    node: Node,
}

/// The entries of a node, with the first key that it covers.
type Covering<T> = (Option<Key>, Vec<(Key, T)>);

/// What is there and what is not.
pub(super) struct Remains {
    /// Of the space tree and the tree of names.
    pub(super) roots: [Node; TREES],
    /// Blocks of nodes that are kept.
    pub(super) used: BTreeSet<u64>,
    /// Blocks of nodes that a new one replaces: not to be written to before it is named.
    pub(super) replaced: BTreeSet<u64>,
    /// Ranges of keys that are lost, ascending.
    pub(super) lost: Vec<Bounds>,
    /// Ranges of keys that may be older than what was lost.
    pub(super) doubtful: Vec<Bounds>,
}

/// Where to begin.
pub(super) struct Start<'a> {
    pub(super) device: &'a Device,
    pub(super) superblock: &'a Superblock,
    /// The newest checkpoint with the pool's map, if that can be read.
    pub(super) map: Option<&'a Checkpoint>,
    pub(super) found: Vec<Found>,
    /// The superblock is of long ago: its tree is not looked at, only what was found.
    pub(super) without_root: bool,
}

/// Walks the tree and fills its gaps.
pub(super) fn gather(start: Start<'_>, meter: &mut Meter<'_>) -> Remains {
    let mut found = start.found;
    found.retain(|node| is_of_this_life(node, start.superblock));
    drop_dead_lives(&mut found);
    let mut newest: HashMap<u64, u64> = HashMap::new();
    for node in &found {
        for at in node.at.place().copies() {
            let generation = newest.entry(at.0).or_default();
            *generation = node.at.generation.max(*generation);
        }
    }
    let mut walk = Walk {
        device: start.device,
        superblock: start.superblock,
        map: start.map,
        found,
        newest,
        used: BTreeSet::new(),
        replaced: BTreeSet::new(),
        lost: Vec::new(),
        doubtful: Vec::new(),
        buffer: AlignedBuf::zeroed(BLOCK_SIZE),
        meter,
    };
    let roots = [0, 1].map(|tree: usize| {
        let (root, bounds) = (start.superblock.roots()[tree], TREE_BOUNDS[tree]);
        let (mut level, mut parts) = if start.without_root {
            let of_tree = walk.found.iter().filter(|node| contains(bounds, node.bounds));
            let level = of_tree.map(|node| node.at.level + 1).max().unwrap_or(0);
            (level, walk.missing(level, bounds, u64::MAX))
        } else {
            (root.level, walk.subtree(root, bounds))
        };
        while parts.len() > 1 {
            level += 1;
            parts = group(parts, level, bounds);
        }
        parts.pop().expect("a range of keys has a node").node
    });
    let Walk { used, replaced, lost, doubtful, .. } = walk;
    Remains { roots, used, replaced, lost: joined(lost), doubtful: joined(doubtful) }
}

/// Written by the checkpoint of the superblock or before it.
fn is_of_this_life(node: &Found, superblock: &Superblock) -> bool {
    node.at.generation <= superblock.checkpoint
        && node.incarnation <= superblock.incarnation
        && (node.at.twin != NO_TWIN) == (superblock.metadata_copies > 1)
        && node.at.place().copies().all(|at| at.0 < superblock.block_count)
}

/// Drops nodes of checkpoints that a crash cut off: a later life has begun at or before their number.
fn drop_dead_lives(found: &mut Vec<Found>) {
    found.sort_by_key(|node| std::cmp::Reverse((node.at.generation, node.incarnation)));
    // The lowest number of each life, from the newest life down.
    let mut starts: Vec<(u64, u64)> = Vec::new();
    let mut lives: Vec<(u64, u64)> =
        found.iter().map(|node| (node.incarnation, node.at.generation)).collect();
    lives.sort_unstable();
    lives.dedup_by_key(|life| life.0);
    let mut lowest = u64::MAX;
    for (incarnation, generation) in lives.into_iter().rev() {
        starts.push((incarnation, lowest));
        lowest = lowest.min(generation);
    }
    let limits: HashMap<u64, u64> = starts.into_iter().collect();
    found.retain(|node| limits.get(&node.incarnation).is_none_or(|limit| node.at.generation < *limit));
}

struct Walk<'a, 'm> {
    device: &'a Device,
    superblock: &'a Superblock,
    map: Option<&'a Checkpoint>,
    /// The newest first.
    found: Vec<Found>,
    /// By block: the newest checkpoint that wrote a node there.
    newest: HashMap<u64, u64>,
    used: BTreeSet<u64>,
    replaced: BTreeSet<u64>,
    lost: Vec<Bounds>,
    doubtful: Vec<Bounds>,
    buffer: AlignedBuf,
    meter: &'a mut Meter<'m>,
}

impl Walk<'_, '_> {
    /// The node at a reference with all below it, or what is left of it, at the same level.
    fn subtree(&mut self, at: NodeRef, bounds: Bounds) -> Vec<Part> {
        self.meter.advance(1);
        let Some(page) = self.read(&at, bounds) else {
            return self.missing(at.level, bounds, at.generation);
        };
        self.used.extend(at.place().copies().map(|block| block.0));
        if at.level == 0 {
            return vec![Part { low: bounds.low, node: Node::Kept(at) }];
        }
        let (mut parts, mut whole) = (Vec::with_capacity(page.count()), true);
        for entry in 0..page.count() {
            let child = page.child(entry);
            let low = if entry == 0 { bounds.low } else { Some(page.key(entry)) };
            let high = if entry + 1 < page.count() { Some(page.key(entry + 1)) } else { bounds.high };
            let below = self.subtree(child, Bounds { low, high });
            whole &= matches!(&below[..], [Part { node: Node::Kept(same), .. }] if *same == child);
            parts.extend(below);
        }
        if whole {
            return vec![Part { low: bounds.low, node: Node::Kept(at) }];
        }
        for block in at.place().copies() {
            self.used.remove(&block.0);
            self.replaced.insert(block.0);
        }
        group(parts, at.level, bounds)
    }

    /// A node that is what its parent says, from either copy.
    fn read(&mut self, at: &NodeRef, bounds: Bounds) -> Option<NodePage> {
        let copies = 1 + u32::from(at.twin != NO_TWIN);
        let superblock = self.superblock;
        let valid = copies == superblock.metadata_copies
            && at.place().copies().all(|block| may_hold_nodes(superblock, block) && !self.is_taken(block));
        let page = at.place().copies().filter(|_| valid).find_map(|block| {
            self.device.read(IoClass::Metadata, block, &mut self.buffer).ok()?;
            NodePage::decode(&self.buffer, superblock.volume_id(), at).ok()
        })?;
        let first = usize::from(page.level() > 0);
        let within = (first..page.count()).all(|entry| bounds.low.is_none_or(|low| page.key(entry) >= low))
            && (0..page.count()).all(|entry| bounds.high.is_none_or(|high| page.key(entry) < high));
        let fits = page.bounds() == bounds
            && page.incarnation() <= superblock.incarnation
            && page.birth() <= superblock.epoch
            && within;
        fits.then_some(page)
    }

    fn is_taken(&self, block: BlockNo) -> bool {
        self.used.contains(&block.0) || self.replaced.contains(&block.0)
    }

    /// What takes the place of a node that cannot be read, which was written by this checkpoint at the
    /// latest.
    fn missing(&mut self, level: u8, bounds: Bounds, generation: u64) -> Vec<Part> {
        let Some(below) = level.checked_sub(1) else {
            self.lost.push(bounds);
            return self.empty(bounds);
        };
        let mut parts = Vec::new();
        let mut at = Some(bounds.low);
        for node in self.choose(below, bounds, generation) {
            let Some(low) = at else { break };
            if node.bounds.low != low {
                let gap = Bounds { low, high: node.bounds.low };
                parts.extend(self.missing(below, gap, generation));
            }
            if self.map.is_none() {
                self.doubtful.push(node.bounds);
            }
            parts.extend(self.subtree(node.at, node.bounds));
            at = node.bounds.high.map(Some);
        }
        if let Some(low) = at
            && (low.is_none() || low != bounds.high)
        {
            parts.extend(self.missing(below, Bounds { low, high: bounds.high }, generation));
        }
        group(parts, level, bounds)
    }

    /// The nodes of a level that a lost parent with this range most likely named, ascending.
    fn choose(&self, level: u8, bounds: Bounds, generation: u64) -> Vec<Found> {
        // By the first key; they do not overlap.
        let mut chosen: BTreeMap<Option<Key>, Found> = BTreeMap::new();
        let candidates = self.found.iter().filter(|node| {
            node.at.level == level
                && node.at.generation <= generation
                && contains(bounds, node.bounds)
                && node.at.place().copies().all(|at| self.may_be_named(at))
                && !self.is_outdated(node)
        });
        for node in candidates {
            let before = chosen.range(..=node.bounds.low).next_back();
            let behind = chosen.range(node.bounds.low..).next();
            if ![before, behind].into_iter().flatten().any(|(_, other)| overlap(other.bounds, node.bounds)) {
                chosen.insert(node.bounds.low, *node);
            }
        }
        chosen.into_values().collect()
    }

    fn may_be_named(&self, block: BlockNo) -> bool {
        let marked = |map: &Checkpoint| {
            map.place(block).is_some_and(|(chunk, word, mask)| map.chunks[chunk].used[word] & mask != 0)
        };
        may_hold_nodes(self.superblock, block) && !self.is_taken(block) && self.map.is_none_or(marked)
    }

    /// Where one of the two places of a node holds another node by now, it was given up. And an inner node is
    /// written anew with each change below it; with a map this needs no look, since the map tells.
    fn is_outdated(&self, node: &Found) -> bool {
        let newer = |other: &Found| other.at.generation > node.at.generation;
        let given_up = node
            .at
            .place()
            .copies()
            .any(|at| self.newest.get(&at.0).is_some_and(|newest| *newest > node.at.generation));
        let below = |other: &Found| other.at.level < node.at.level && overlap(other.bounds, node.bounds);
        let inner = self.map.is_none() && node.at.level > 0;
        given_up || (inner && self.found.iter().take_while(|other| newer(other)).any(below))
    }

    /// Leaves for a range of which nothing is left.
    fn empty(&self, bounds: Bounds) -> Vec<Part> {
        let regions = self.superblock.block_count.div_ceil(REGION_BLOCKS);
        let first = match bounds.low {
            Some(low) if low > Key::region(0) => {
                if low.object == 0 && low.kind == KeyKind::FreeSpace {
                    low.offset
                } else {
                    regions
                }
            }
            _ => 0,
        };
        let end = match bounds.high {
            Some(high) if high.object == 0 && high.kind == KeyKind::FreeSpace => high.offset.min(regions),
            _ => regions,
        };
        let mut leaves: Vec<Covering<Vec<u8>>> = vec![(bounds.low, Vec::new())];
        let mut room = NodePage::new(0);
        for region in first..end {
            let Some(value) = all_used(self.superblock, region) else { continue };
            let key = Key::region(region);
            if !room.fits(value.len()) {
                room = NodePage::new(0);
                leaves.push((Some(key), Vec::new()));
            }
            room.insert(room.count(), key, &value);
            leaves.last_mut().expect("there is a leaf").1.push((key, value));
        }
        let highs: Vec<Option<Key>> = leaves.iter().skip(1).map(|leaf| leaf.0).chain([bounds.high]).collect();
        leaves
            .into_iter()
            .zip(highs)
            .map(|((low, entries), high)| {
                let bounds = Bounds { low, high };
                let leaf = NewNode { level: 0, bounds, content: Content::Leaf(entries) };
                Part { low, node: Node::New(leaf) }
            })
            .collect()
    }
}

/// A region whose blocks are all in use, as far as the volume reaches.
fn all_used(superblock: &Superblock, region: u64) -> Option<Vec<u8>> {
    let blocks = superblock.data_end.0.saturating_sub(region * REGION_BLOCKS).min(REGION_BLOCKS);
    let mut map = RegionMap::new();
    map.set_used(0, u32::try_from(blocks).ok().filter(|blocks| *blocks > 0)?).ok()?;
    map.encode()
}

/// Within the pool's first area, or where the pool may have grown to.
pub(super) fn may_hold_nodes(superblock: &Superblock, block: BlockNo) -> bool {
    let pool = superblock.pool_start.0..superblock.pool_start.0 + superblock.pool_blocks;
    pool.contains(&block.0) || superblock.data_space().contains(&block.0)
}

/// Inner nodes of a level over parts of the level below.
fn group(parts: Vec<Part>, level: u8, bounds: Bounds) -> Vec<Part> {
    let count = parts.len().div_ceil(CHILDREN_MAX).max(1);
    let each = parts.len().div_ceil(count);
    let mut groups: Vec<Covering<Node>> = Vec::with_capacity(count);
    for (nth, part) in parts.into_iter().enumerate() {
        if nth % each == 0 {
            groups.push((part.low, Vec::with_capacity(each)));
        }
        let key = part.low.unwrap_or(Key::MIN);
        groups.last_mut().expect("there is a group").1.push((key, part.node));
    }
    let highs: Vec<Option<Key>> = groups.iter().skip(1).map(|group| group.0).chain([bounds.high]).collect();
    groups
        .into_iter()
        .zip(highs)
        .map(|((low, children), high)| {
            let content = Content::Inner(children);
            Part { low, node: Node::New(NewNode { level, bounds: Bounds { low, high }, content }) }
        })
        .collect()
}

fn contains(outer: Bounds, inner: Bounds) -> bool {
    let low = outer.low.is_none() || inner.low.is_some_and(|low| outer.low <= Some(low));
    let high = outer.high.is_none_or(|end| inner.high.is_some_and(|high| high <= end));
    low && high
}

/// Whether two ranges have a key in common.
pub(super) fn overlap(one: Bounds, other: Bounds) -> bool {
    let before = |high: Option<Key>, low: Option<Key>| match (high, low) {
        (Some(high), Some(low)) => high <= low,
        _ => false,
    };
    !before(one.high, other.low) && !before(other.high, one.low)
}

/// Ranges in order, neighbours joined.
fn joined(mut ranges: Vec<Bounds>) -> Vec<Bounds> {
    ranges.sort_by_key(|range| range.low);
    let mut joined: Vec<Bounds> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.high.is_some() && last.high == range.low => last.high = range.high,
            _ => joined.push(range),
        }
    }
    joined
}
