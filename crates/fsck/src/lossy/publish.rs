//! What remains of a tree, written as a checkpoint that is whole.
//!
//! New nodes, the pool's map and orphan blocks go to blocks that neither checkpoint needs; then a flush; then
//! one superblock names them, in the slot that the volume does not live from. So nothing is lost by a repair
//! that is killed here: the next one begins anew. That superblock has the mark of an error, which the repair
//! takes away when it has ended: until then the volume opens, and has holes.
//!
//! Neighbours: [`super::remains`] chose, [`crate::repair`]'s pool writes map and superblock.

use super::remains::{Content, NewNode, Node, Remains, may_hold_nodes};
use crate::checkpoint::Checkpoint;
use crate::repair::pool;
use quire_base::{BLOCK_SIZE, BlockNo, Result};
use quire_device::{AlignedBuf, Backend, IoClass};
use quire_format::extent::Run;
use quire_format::node::{NodeIdentity, NodePage, NodeRef};
use quire_format::place::Place;
use quire_format::pool::{BITMAP_WORDS, CHUNK_BLOCKS_MAX, ChunkEntry, OrphanRef};
use quire_format::superblock::{FLAG_ERRORS, Superblock};
use std::collections::{BTreeMap, BTreeSet};

/// What the new checkpoint starts from.
pub(super) struct Base<'a> {
    pub(super) slot: usize,
    pub(super) superblock: Superblock,
    /// The pool's chunks, with the blocks that the newest readable map calls used.
    pub(super) chunks: Vec<ChunkEntry>,
    /// Orphan blocks that can be read.
    pub(super) orphans: Vec<OrphanRef>,
    /// What the superblocks name, as far as it was found.
    pub(super) others: &'a [Checkpoint],
    /// Chunks that the journal takes from the pool.
    pub(super) shrunk: Vec<Run>,
}

/// Writes the checkpoint.
pub(super) fn publish(backend: &dyn Backend, base: Base<'_>, remains: Remains) -> Result<()> {
    let Base { slot, superblock, mut chunks, orphans, others, shrunk } = base;
    cover(&mut chunks, &remains.used, &superblock);
    let orphans: Vec<OrphanRef> = orphans
        .into_iter()
        .filter(|orphan| {
            orphan.place().copies().all(|at| {
                chunks.iter().any(|chunk| run_of(chunk).start <= at && at < run_of(chunk).end())
                    && !remains.used.contains(&at.0)
            })
        })
        .collect();
    let used: Vec<u64> = remains
        .used
        .iter()
        .copied()
        .chain(orphans.iter().flat_map(|orphan| orphan.place().copies()).map(|at| at.0))
        .collect();
    let found = chunks.iter().map(|_| [0; BITMAP_WORDS]).collect();
    let mut new = Checkpoint {
        slot,
        chunks,
        found,
        manifest_blocks: Vec::new(),
        orphans,
        damaged_orphans: Vec::new(),
        nodes: 0,
        snapshots: BTreeMap::new(),
        copies: BTreeSet::new(),
        misplaced: false,
        whole: true,
        superblock,
    };
    used.into_iter().for_each(|block| mark(&mut new, block));
    let avoid = |block: BlockNo| {
        remains.replaced.contains(&block.0)
            || shrunk.iter().any(|run| run.start <= block && block < run.end())
    };

    let all = with(&new, others);
    let number = all.iter().map(|other| other.superblock.checkpoint).max().unwrap_or(0) + 1;
    let copies = new.superblock.metadata_copies as usize;
    let mut places = Vec::new();
    let count = remains.roots.iter().map(count).sum::<usize>();
    if count > 0 {
        let fresh = pool::fresh_blocks(&with(&new, others), &new.chunk_runs(), count * copies, &avoid)?;
        fresh.iter().for_each(|block| mark(&mut new, block.0));
        places = pool::places(&fresh, copies);
    }
    let mut writer = Writer { backend, superblock: &new.superblock, number, places };
    let roots = [writer.write(&remains.roots[0])?, writer.write(&remains.roots[1])?];
    new.superblock.set_roots(roots);
    new.superblock.flags |= FLAG_ERRORS;
    pool::rewrite(backend, &with(&new, others), 0, &[], &avoid)
}

fn with<'a>(new: &'a Checkpoint, others: &'a [Checkpoint]) -> Vec<&'a Checkpoint> {
    std::iter::once(new).chain(others).collect()
}

fn run_of(chunk: &ChunkEntry) -> Run {
    Run::new(chunk.start, chunk.blocks.into())
}

fn mark(checkpoint: &mut Checkpoint, block: u64) {
    if let Some((chunk, word, mask)) = checkpoint.place(BlockNo(block)) {
        checkpoint.found[chunk][word] |= mask;
    }
}

/// Adds chunks for used blocks that no chunk has, and for what the pool always has.
fn cover(chunks: &mut Vec<ChunkEntry>, used: &BTreeSet<u64>, superblock: &Superblock) {
    let end = |chunk: &ChunkEntry| chunk.start.0 + u64::from(chunk.blocks);
    chunks.sort_by_key(|chunk| chunk.start);
    // What overlaps, or lies where none may, cannot be a chunk.
    let mut last = 0;
    chunks.retain(|chunk| {
        let first = chunk.start.0 >= last;
        let valid = first
            && may_hold_nodes(superblock, chunk.start)
            && may_hold_nodes(superblock, BlockNo(end(chunk) - 1))
            && !(chunk.start < superblock.data_start && end(chunk) > superblock.data_start.0);
        if valid {
            last = end(chunk);
        }
        valid
    });
    let areas = [
        (superblock.pool_start.0, superblock.pool_blocks),
        (superblock.mirror_start.0, superblock.mirror_blocks),
    ];
    let fixed = areas.into_iter().flat_map(|(start, blocks)| start..start + blocks);
    let wanted: BTreeSet<u64> = fixed.chain(used.iter().copied()).collect();
    let mut missing: Vec<ChunkEntry> = Vec::new();
    for block in wanted {
        let at = chunks.partition_point(|chunk| chunk.start.0 <= block);
        if at > 0 && block < end(&chunks[at - 1]) {
            continue;
        }
        match missing.last_mut() {
            Some(last)
                if end(last) == block
                    && last.blocks < CHUNK_BLOCKS_MAX
                    && block != superblock.data_start.0 =>
            {
                last.blocks += 1;
            }
            _ => missing.push(ChunkEntry { start: BlockNo(block), blocks: 1, used: [0; BITMAP_WORDS] }),
        }
    }
    chunks.extend(missing);
    chunks.sort_by_key(|chunk| chunk.start);
}

/// Nodes to be written.
fn count(node: &Node) -> usize {
    match node {
        Node::Kept(_) | Node::New(NewNode { content: Content::Leaf(_), .. }) => {
            usize::from(matches!(node, Node::New(_)))
        }
        Node::New(NewNode { content: Content::Inner(children), .. }) => {
            1 + children.iter().map(|(_, child)| count(child)).sum::<usize>()
        }
    }
}

struct Writer<'a> {
    backend: &'a dyn Backend,
    superblock: &'a Superblock,
    number: u64,
    places: Vec<Place>,
}

impl Writer<'_> {
    /// Writes a node behind those that it names.
    fn write(&mut self, node: &Node) -> Result<NodeRef> {
        let new = match node {
            Node::Kept(at) => return Ok(*at),
            Node::New(new) => new,
        };
        let mut page = NodePage::new(new.level);
        match &new.content {
            Content::Leaf(entries) => {
                entries.iter().for_each(|(key, value)| page.insert(page.count(), *key, value));
            }
            Content::Inner(children) => {
                for (key, child) in children {
                    let at = self.write(child)?;
                    page.push_child(*key, &at);
                }
            }
        }
        let place = self.places.pop().expect("nodes were counted");
        let identity = NodeIdentity {
            volume: self.superblock.volume_id(),
            generation: self.number,
            incarnation: self.superblock.incarnation,
            birth: self.superblock.epoch,
            place,
            bounds: new.bounds,
        };
        let mut bytes = AlignedBuf::zeroed(BLOCK_SIZE);
        let at = page.seal(&identity, &mut bytes);
        for block in place.copies() {
            self.backend.write(IoClass::Metadata, block, &bytes)?;
        }
        Ok(at)
    }
}
