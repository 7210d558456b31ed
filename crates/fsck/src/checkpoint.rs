//! What one superblock names, as it lies on the disk: the pool's manifest, the orphan blocks, every node of
//! both trees.
//!
//! Two walks, one for each slot. Checkpoints share nearly all of their nodes: leaves that the first walk has
//! read are not read again by the second. A walk follows each block once, so it ends on any image.
//!
//! Bad copies that the newest checkpoint names, or a snapshot, may be mended in place, since these are sure
//! to own their blocks. A superblock of long ago names blocks that the pool has used again since.
//!
//! Memory: 16 bytes a node, and one bit a block of the pool.
//!
//! Neighbours: `format` has the bytes; [`crate::repair::pool`] writes a manifest from what was seen here.

use crate::issue::{IssueKind, Severity};
use crate::progress::Meter;
use crate::report::{Findings, Place as ReportPlace};
use crate::snapshots;
use crate::superblocks::SLOT_NAMES;
use quire_base::{BLOCK_SIZE, BlockNo, Error, Result};
use quire_device::{AlignedBuf, Device, IoClass};
use quire_format::extent::Run;
use quire_format::key::Key;
use quire_format::node::{Bounds, NodePage, NodeRef, TREE_BOUNDS};
use quire_format::orphan;
use quire_format::place::{NO_TWIN, Place};
use quire_format::pool::{
    BITMAP_WORDS, CHUNK_BLOCKS_MAX, ChunkEntry, ManifestPage, NextPage, OrphanRef, PageIdentity,
};
use quire_format::superblock::Superblock;
use std::collections::{BTreeSet, HashMap};

/// Nodes that a walk has read and found right, by block: generation and checksum, folded.
pub(crate) type Seen = HashMap<u64, u64>;

/// What a superblock names.
#[derive(Clone)]
pub(crate) struct Checkpoint {
    pub(crate) slot: usize,
    pub(crate) superblock: Superblock,
    /// Chunks with their blocks in use as the map says.
    pub(crate) chunks: Vec<ChunkEntry>,
    /// By chunk, the blocks that a node, a page of the manifest or an orphan block was found in.
    pub(crate) found: Vec<[u64; BITMAP_WORDS]>,
    pub(crate) manifest_blocks: Vec<BlockNo>,
    /// Orphan blocks that check.
    pub(crate) orphans: Vec<OrphanRef>,
    /// Blocks of those that do not.
    pub(crate) damaged_orphans: Vec<BlockNo>,
    pub(crate) nodes: u64,
    /// The snapshots that the volume had, if this is its newest checkpoint.
    pub(crate) snapshots: snapshots::Table,
    /// Bad copies that only the older checkpoint names: (the block of the good one, that of the bad one).
    /// They are mended only if the volume goes by that checkpoint.
    pub(crate) copies: BTreeSet<(BlockNo, BlockNo)>,
    /// A chunk of the pool lies where none may: a checkpoint could overwrite what is not the pool's.
    pub(crate) misplaced: bool,
    /// Nothing that the volume needs to be read is damaged. Of a snapshot: nothing is, but for second copies.
    pub(crate) whole: bool,
}

impl Checkpoint {
    pub(crate) fn chunk_runs(&self) -> Vec<Run> {
        self.chunks.iter().map(|chunk| Run::new(chunk.start, chunk.blocks.into())).collect()
    }

    pub(crate) fn place(&self, block: BlockNo) -> Option<(usize, usize, u64)> {
        let at = self.chunks.partition_point(|chunk| chunk.start <= block).checked_sub(1)?;
        let bit = block.0 - self.chunks[at].start.0;
        (bit < u64::from(self.chunks[at].blocks)).then(|| (at, bit as usize / 64, 1 << (bit % 64)))
    }

    /// The blocks that the walk found a use of.
    pub(crate) fn found_blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.chunks.iter().zip(&self.found).flat_map(|(chunk, found)| {
            let is_found = |bit: &u64| found[*bit as usize / 64] >> (bit % 64) & 1 == 1;
            (0..u64::from(chunk.blocks)).filter(is_found).map(|bit| chunk.start.0 + bit)
        })
    }

    /// Whether the walk found a use of the block.
    pub(crate) fn is_found(&self, block: BlockNo) -> bool {
        self.place(block).is_some_and(|(chunk, word, mask)| self.found[chunk][word] & mask != 0)
    }
}

/// What a checkpoint is to the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role<'a> {
    /// The volume lives from this one.
    Newest,
    /// Damage costs redundancy only.
    Older,
    /// A snapshot of this name.
    Snapshot(&'a str),
}

/// Looks at everything that a superblock names.
pub(crate) fn check(
    device: &Device,
    (slot, superblock): (usize, &Superblock),
    role: Role<'_>,
    seen: &mut Seen,
    findings: &mut Findings,
    meter: &mut Meter<'_>,
) -> Checkpoint {
    let mut walk = Walk {
        device,
        volume: superblock.volume_id(),
        newest: role == Role::Newest,
        role,
        seen,
        findings,
        checkpoint: Checkpoint {
            slot,
            superblock: superblock.clone(),
            chunks: Vec::new(),
            found: Vec::new(),
            manifest_blocks: Vec::new(),
            orphans: Vec::new(),
            damaged_orphans: Vec::new(),
            nodes: 0,
            snapshots: snapshots::Table::new(),
            copies: BTreeSet::new(),
            misplaced: false,
            whole: true,
        },
        buffer: AlignedBuf::zeroed(BLOCK_SIZE),
    };
    match walk.manifest() {
        Ok(orphans) => {
            walk.check_chunks();
            walk.orphan_blocks(orphans);
        }
        Err(error) => {
            let at = walk.checkpoint.superblock.manifest.block;
            walk.checkpoint.chunks.clear();
            walk.checkpoint.found.clear();
            walk.fatal(IssueKind::PoolManifestDamaged, at, format!("metadata pool: {error}"));
        }
    }
    walk.nodes(meter);
    if walk.checkpoint.whole {
        walk.compare_map();
    }
    walk.checkpoint
}

struct Walk<'a> {
    device: &'a Device,
    volume: u64,
    newest: bool,
    role: Role<'a>,
    seen: &'a mut Seen,
    findings: &'a mut Findings,
    checkpoint: Checkpoint,
    buffer: AlignedBuf,
}

/// What a check makes of a block's bytes.
type Decode<'f, T> = &'f dyn Fn(&[u8]) -> Result<T>;

/// A node to be looked at, and the keys that its parent gives it.
struct Step {
    at: NodeRef,
    low: Option<Key>,
    high: Option<Key>,
}

impl Walk<'_> {
    fn issue(&mut self, kind: IssueKind, at: BlockNo, message: String) {
        let name = SLOT_NAMES[self.checkpoint.slot];
        let number = self.checkpoint.superblock.checkpoint;
        if let Role::Snapshot(name) = self.role {
            let message = format!("snapshot {name:?}: {message}");
            let kind = if kind == IssueKind::CopyDamaged { kind } else { IssueKind::SnapshotDamaged };
            self.checkpoint.whole &= kind == IssueKind::CopyDamaged;
            self.findings.add(kind, ReportPlace::block(at.0), message);
        } else if self.newest {
            self.findings.add(kind, ReportPlace::block(at.0), message);
        } else {
            let message =
                format!("checkpoint {number} of superblock {name}: {message}; the newer one serves");
            self.findings.add_as(
                Severity::Warning,
                IssueKind::OlderCheckpointDamaged,
                ReportPlace::block(at.0),
                message,
            );
            self.findings.fixes.superblocks = true;
        }
    }

    fn fatal(&mut self, kind: IssueKind, at: BlockNo, message: String) {
        self.checkpoint.whole = false;
        self.issue(kind, at, message);
    }

    fn read(&mut self, at: BlockNo) -> Result<()> {
        if at.0 >= self.checkpoint.superblock.block_count {
            return Err(Error::corrupt(format!("block {at} is past the end of the volume")));
        }
        self.device.read(IoClass::Metadata, at, &mut self.buffer)
    }

    /// Reads both copies of a piece of metadata; one that checks is enough, the other one is reported.
    /// Errors: the first copy's, where neither does.
    fn read_copies<T>(&mut self, what: &str, place: Place, decode: Decode<'_, T>) -> Result<T> {
        let copies = 1 + u32::from(place.twin != NO_TWIN);
        if copies != self.checkpoint.superblock.metadata_copies {
            return Err(Error::corrupt(format!(
                "{what} at block {} has {copies} copies, the volume keeps {}",
                place.block, self.checkpoint.superblock.metadata_copies
            )));
        }
        let mut good: Option<(BlockNo, T)> = None;
        let mut bad: Vec<(BlockNo, Error)> = Vec::new();
        for at in place.copies() {
            match self.read(at).and_then(|()| decode(&self.buffer)) {
                Ok(value) => drop(good.get_or_insert((at, value))),
                Err(error) => bad.push((at, error)),
            }
        }
        let Some((serves, value)) = good else {
            return Err(bad.swap_remove(0).1);
        };
        for (at, error) in bad {
            // Both walks may come here.
            let known = &mut self.findings.fixes.copies;
            let new = if self.role != Role::Older {
                known.insert((serves, at))
            } else {
                !known.contains(&(serves, at)) && self.checkpoint.copies.insert((serves, at))
            };
            if new {
                let message =
                    format!("{what}: the copy at block {at} is bad ({error}); that at block {serves} serves");
                self.issue(IssueKind::CopyDamaged, at, message);
            }
        }
        Ok(value)
    }

    /// Reads the chain; gives the references to the orphan blocks.
    fn manifest(&mut self) -> Result<Vec<OrphanRef>> {
        let superblock = &self.checkpoint.superblock;
        let (head, number) = (superblock.manifest, superblock.checkpoint);
        // A checkpoint with a new tree has a new map.
        let root_generation = superblock.roots().map(|root| root.generation).into_iter().max().unwrap_or(0);
        let incarnation = superblock.incarnation;
        let mut next = Some(NextPage { place: head.place(), crc: head.crc });
        let (mut orphans, mut first_stamp) = (Vec::new(), None);
        for index in 0..head.count {
            let Some(NextPage { place, crc }) = next else {
                return Err(Error::corrupt(format!("page {index} of the manifest is missing")));
            };
            let identity = PageIdentity { volume: self.volume, place, index, count: head.count };
            let what = format!("page {index} of the manifest");
            let (stamp, page) =
                self.read_copies(&what, place, &|bytes| ManifestPage::decode(bytes, &identity, crc))?;
            // A checkpoint that changed nothing goes on with the manifest of the one before.
            if !(root_generation..=number).contains(&stamp.generation)
                || stamp.incarnation > incarnation
                || *first_stamp.get_or_insert(stamp) != stamp
            {
                return Err(Error::corrupt(format!(
                    "page {index} of the manifest is of checkpoint {} and life {}, the superblock's is {number} of \
                     life {incarnation}, its tree's {root_generation}",
                    stamp.generation, stamp.incarnation
                )));
            }
            if page.chunks.is_empty() && page.orphans.is_empty() && head.count > 1 {
                return Err(Error::corrupt(format!("page {index} of the manifest is empty")));
            }
            self.checkpoint.manifest_blocks.extend(place.copies());
            self.checkpoint.chunks.extend(page.chunks);
            orphans.extend(page.orphans);
            next = page.next;
        }
        let chunks = &self.checkpoint.chunks;
        let in_order =
            chunks.windows(2).all(|pair| pair[0].start.0 + u64::from(pair[0].blocks) <= pair[1].start.0);
        if !in_order {
            return Err(Error::corrupt("the pool's chunks overlap or are out of order"));
        }
        self.add_missing_chunks();
        self.checkpoint.found = vec![[0; BITMAP_WORDS]; self.checkpoint.chunks.len()];
        for page in self.checkpoint.manifest_blocks.clone() {
            self.mark(page, "a page of the manifest");
        }
        Ok(orphans)
    }

    /// The areas that mkfs gave to the pool belong to it for ever: what no chunk covers is reported, and gets
    /// a chunk here, whose blocks are in use as the walk finds them.
    fn add_missing_chunks(&mut self) {
        let areas = self.checkpoint.superblock.pool_areas();
        let mut gaps = Vec::new();
        for area in areas {
            let mut at = area.start;
            for run in self.checkpoint.chunk_runs() {
                if at < run.start && at < area.end() {
                    gaps.push(Run::new(at, run.start.0.min(area.end().0) - at.0));
                }
                at = at.max(run.end());
            }
            if at < area.end() {
                gaps.push(Run::new(at, area.end().0 - at.0));
            }
        }
        for gap in gaps {
            let message = format!(
                "the metadata pool's map leaves out {}, which belong to the pool: repair adds them",
                crate::fix::blocks(gap)
            );
            self.issue(IssueKind::PoolChunkMissing, gap.start, message);
            self.findings.fixes.pool |= self.newest;
            let most = u64::from(CHUNK_BLOCKS_MAX);
            for from in (0..gap.blocks).step_by(CHUNK_BLOCKS_MAX as usize) {
                let blocks = (gap.blocks - from).min(most) as u32;
                let chunk = ChunkEntry { start: gap.start.offset(from), blocks, used: [0; BITMAP_WORDS] };
                self.checkpoint.chunks.push(chunk);
            }
        }
        self.checkpoint.chunks.sort_unstable_by_key(|chunk| chunk.start);
    }

    fn check_chunks(&mut self) {
        let superblock = &self.checkpoint.superblock;
        let (pool_start, data_start) = (superblock.pool_start.0, superblock.data_start.0);
        let (pool_end, end) = (pool_start + superblock.pool_blocks, superblock.data_end.0);
        let journal = superblock.journal();
        let wrong: Vec<Run> = self
            .checkpoint
            .chunk_runs()
            .into_iter()
            .filter(|run| {
                let within = |from: u64, to: u64| from <= run.start.0 && run.end().0 <= to;
                let in_journal = run.start < journal.end() && journal.start < run.end();
                in_journal || !within(pool_start, pool_end) && !within(data_start, end)
            })
            .collect();
        self.checkpoint.misplaced = !wrong.is_empty();
        for run in wrong {
            let message = format!(
                "the metadata pool has a chunk of {} blocks at block {} where none may be: repair does not write to the volume",
                run.blocks, run.start
            );
            self.issue(IssueKind::PoolChunkMisplaced, run.start, message);
        }
    }

    fn orphan_blocks(&mut self, named: Vec<OrphanRef>) {
        let count = self.checkpoint.superblock.orphan_blocks;
        let ascending = named.windows(2).all(|pair| pair[0].index < pair[1].index);
        if !ascending || named.last().is_some_and(|last| last.index >= count) {
            let at = self.checkpoint.superblock.manifest.block;
            let message = format!("the manifest's orphan blocks are out of order or more than {count}");
            self.issue(IssueKind::OrphanBlockDamaged, at, message);
            self.findings.fixes.pool |= self.newest;
        }
        for index in 0..count {
            let Some(&orphan) = named.iter().find(|orphan| orphan.index == index) else {
                let at = self.checkpoint.superblock.manifest.block;
                self.damaged_orphans(at, format!("the manifest does not name orphan block {index}"));
                continue;
            };
            let what = format!("orphan block {index}");
            let fresh = orphan.place().copies().map(|at| self.mark(at, &what)).min().unwrap_or(true);
            let read = self.read_copies(&what, orphan.place(), &|bytes| {
                if crc32c::crc32c(bytes) != orphan.crc {
                    return Err(Error::corrupt(format!(
                        "orphan block {index} is not the one that the manifest names"
                    )));
                }
                orphan::decode(index.into(), bytes)
            });
            match read {
                Ok(_) if fresh => self.checkpoint.orphans.push(orphan),
                Ok(_) => {
                    self.damaged_orphans(orphan.block, format!("orphan block {index} lies where it cannot"))
                }
                Err(error) => {
                    if fresh {
                        self.checkpoint.damaged_orphans.extend(orphan.place().copies());
                    }
                    self.damaged_orphans(orphan.block, error.to_string());
                }
            }
        }
    }

    fn damaged_orphans(&mut self, at: BlockNo, what: String) {
        self.issue(
            IssueKind::OrphanBlockDamaged,
            at,
            format!("{what}: unlinked inodes that it named are looked for, repair writes it anew"),
        );
        self.findings.fixes.pool |= self.newest;
    }

    /// Notes a block as used; false if it has another use or is not the pool's.
    fn mark(&mut self, block: BlockNo, what: &str) -> bool {
        let Some((chunk, word, mask)) = self.checkpoint.place(block) else {
            let message = format!("{what} lies at block {block}, outside of the metadata pool");
            self.fatal(IssueKind::NodeOutsidePool, block, message);
            return false;
        };
        let found = &mut self.checkpoint.found[chunk][word];
        if *found & mask != 0 {
            self.fatal(
                IssueKind::NodeShared,
                block,
                format!("{what} lies at block {block}, which has another use too"),
            );
            return false;
        }
        *found |= mask;
        true
    }

    fn nodes(&mut self, meter: &mut Meter<'_>) {
        let roots = self.checkpoint.superblock.roots().into_iter().zip(TREE_BOUNDS);
        let mut stack: Vec<Step> =
            roots.rev().map(|(at, Bounds { low, high })| Step { at, low, high }).collect();
        let mut followed = BTreeSet::new();
        while let Some(step) = stack.pop() {
            meter.advance(1);
            let at = step.at;
            // Without a pool to mark them in, nodes are still followed once: there may be more ways than
            // nodes.
            let mapped = !self.checkpoint.chunks.is_empty();
            let first = if mapped {
                at.place().copies().map(|block| self.mark(block, "a tree node")).min().unwrap_or(true)
            } else {
                followed.insert(at.block)
            };
            if !first {
                continue;
            }
            self.checkpoint.nodes += 1;
            let identity = at.generation ^ u64::from(at.crc) << 32;
            if (at.level == 0 || !mapped) && self.seen.get(&at.block.0) == Some(&identity) {
                continue;
            }
            let volume = self.volume;
            let page =
                self.read_copies("a tree node", at.place(), &|bytes| NodePage::decode(bytes, volume, &at));
            match page {
                Ok(page) => {
                    let is_kept = matches!(self.role, Role::Snapshot(_)) && page.level() == 0;
                    let superblock = &self.checkpoint.superblock;
                    let wrong = if is_kept { snapshots::wrong_values(superblock, &page) } else { Vec::new() };
                    // Each snapshot that has a wrong leaf is damaged, so each reads it.
                    if self.bounds(&page, &step) && wrong.is_empty() {
                        self.seen.insert(at.block.0, identity);
                    }
                    for wrong in wrong {
                        self.issue(IssueKind::SnapshotDamaged, at.block, wrong);
                    }
                    if page.level() > 0 {
                        push_children(&page, &step, &mut stack);
                    } else if self.newest {
                        snapshots::note(&page, &mut self.checkpoint.snapshots);
                    }
                }
                Err(error) => {
                    let keys = range(step.low, step.high);
                    self.fatal(
                        IssueKind::NodeDamaged,
                        at.block,
                        format!("{error}; it holds the keys {keys}"),
                    );
                }
            }
        }
    }

    /// Whether a node's keys lie among those that its parent gives it, and its header says the same.
    fn bounds(&mut self, page: &NodePage, step: &Step) -> bool {
        let superblock = &self.checkpoint.superblock;
        let says = page.bounds();
        let header = (says.low, says.high) == (step.low, step.high)
            && page.incarnation() <= superblock.incarnation
            && page.birth() <= superblock.epoch;
        if !header {
            let message = format!(
                "tree node at block {}: its header says life {}, epoch {}, keys {}; the volume is in life {} and epoch \
                 {}, its parent gives it {}",
                step.at.block,
                page.incarnation(),
                page.birth(),
                range(says.low, says.high),
                superblock.incarnation,
                superblock.epoch,
                range(step.low, step.high)
            );
            self.fatal(IssueKind::NodeOutOfOrder, step.at.block, message);
            return false;
        }
        // The first entry of an inner node covers everything below its key as well.
        let first = usize::from(page.level() > 0);
        let below = (first..page.count()).find(|&at| step.low.is_some_and(|low| page.key(at) < low));
        let above = (0..page.count()).find(|&at| step.high.is_some_and(|high| page.key(at) >= high));
        let wrong = below.or(above);
        if let Some(at) = wrong {
            let message = format!(
                "tree node at block {}: its key {:?} is not among {}",
                step.at.block,
                page.key(at),
                range(step.low, step.high)
            );
            self.fatal(IssueKind::NodeOutOfOrder, step.at.block, message);
        }
        wrong.is_none()
    }

    fn compare_map(&mut self) {
        let mut wrong = Vec::new();
        for (chunk, found) in self.checkpoint.chunks.iter().zip(&self.checkpoint.found) {
            for bit in 0..chunk.blocks as usize {
                let get = |map: &[u64; BITMAP_WORDS]| map[bit / 64] >> (bit % 64) & 1 == 1;
                let (marked, used) = (get(&chunk.used), get(found));
                if marked != used {
                    wrong.push((chunk.start.offset(bit as u64), used));
                }
            }
        }
        for (block, used) in wrong {
            self.findings.fixes.pool |= self.newest;
            let (kind, message) = if used {
                (
                    IssueKind::PoolBlockUnmarked,
                    format!("block {block} is in use, but the metadata pool's map calls it free"),
                )
            } else {
                (
                    IssueKind::PoolBlockLeaked,
                    format!("the metadata pool's map calls block {block} used, but nothing uses it"),
                )
            };
            self.issue(kind, block, message);
        }
    }
}

fn push_children(page: &NodePage, step: &Step, stack: &mut Vec<Step>) {
    for at in (0..page.count()).rev() {
        let low = if at == 0 { step.low } else { Some(page.key(at)) };
        let high = if at + 1 < page.count() { Some(page.key(at + 1)) } else { step.high };
        stack.push(Step { at: page.child(at), low, high });
    }
}

fn range(low: Option<Key>, high: Option<Key>) -> String {
    let show = |key: Option<Key>, end: &str| {
        key.map_or(end.to_string(), |key| format!("({} {:?} {})", key.object, key.kind, key.offset))
    };
    format!("from {} to {}", show(low, "the first"), show(high, "the last"))
}
