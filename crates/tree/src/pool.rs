//! The metadata pool: which blocks hold the tree, its maps and the orphan blocks.
//!
//! The pool is a set of chunks. Per chunk there are two bitmaps in memory: `current`, the blocks that the
//! newest checkpoint (the one being written, while one is) needs; and `busy`, those and the blocks that it
//! freed but a superblock slot may still need. Only blocks that are not busy are handed out.
//!
//! Protocol: a block freed while checkpoint n is written leaves `current` at once and `busy` when n + 1 is
//! published: only then has the slot of n - 1 been overwritten. What is written on disk as map n is `current`
//! at the end of writing n, so it includes its own pages.
//!
//! Where metadata has two copies, first copies come from the lower half of the pool's blocks and second ones
//! from the upper half, so that they lie far apart. When one half is full the other serves for both.
//!
//! A checkpoint may be *kept*, for a snapshot. What it needs stays `busy`, whether the newest one needs it or
//! not; the map on disk lists only what the newest one needs, since each kept checkpoint has its own map.
//!
//! Invariants: `current` is a subset of `busy`; a chunk added in an epoch is handed out and listed only by
//! checkpoints of that epoch and later ones, since an earlier one's replay adds it again; a chunk removed in
//! an epoch is still listed, empty, by checkpoints of earlier ones. No device I/O happens under the pool's
//! lock.
//!
//! A chunk that is to be removed is *retired* first: nothing more is put there, and it does not count as
//! room. What it holds moves as it is written anew, and two checkpoints later the chunk is empty.
//!
//! Neighbours: [`crate::manifest`] reads and writes the chain on disk; `checkpoint` is the only one who
//! allocates.

mod alone;

pub use alone::alone;

use crate::manifest::Manifest;
use quire_base::{BlockNo, Error, ErrorKind, Result};
use quire_format::extent::Run;
use quire_format::place::{NO_TWIN, Place};
use quire_format::pool::{BITMAP_WORDS, CHUNK_BLOCKS_MAX, ChunkEntry, OrphanRef, used_count};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

type Bitmap = [u64; BITMAP_WORDS];

/// A chunk in memory.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    start: BlockNo,
    blocks: u32,
    current: Bitmap,
    busy: Bitmap,
    /// Blocks that a kept checkpoint needs.
    held: Bitmap,
    /// The epoch whose changes added it.
    added: u64,
    /// Nothing more is put there, since it is about to be removed.
    retired: bool,
}

/// Blocks that a checkpoint freed.
#[derive(Clone, Debug)]
struct Freed {
    checkpoint: u64,
    blocks: Vec<BlockNo>,
    /// A kept checkpoint alone needed them, which is let go: they are no part of what a checkpoint frees of
    /// the one before.
    was_kept: bool,
}

/// What a kept checkpoint needs.
#[derive(Clone, Debug)]
struct Kept {
    checkpoint: u64,
    entries: Vec<ChunkEntry>,
}

/// The pool of a volume, as loaded or newly made; becomes part of a [`crate::Tree`].
#[derive(Clone, Debug, Default)]
pub struct PoolState {
    /// Ascending by start.
    chunks: Vec<Chunk>,
    /// Unused chunks with the epoch that removed them: checkpoints of earlier epochs still list them.
    removed: Vec<(u64, Chunk)>,
    pub(crate) manifest: Option<Manifest>,
    pub(crate) orphans: Vec<OrphanRef>,
    /// Freed blocks that are still busy, ascending by checkpoint.
    freed: VecDeque<Freed>,
    /// What kept checkpoints need, by the number that each is kept under.
    kept: BTreeMap<u32, Kept>,
    /// Whether everything has two copies.
    mirrored: bool,
    /// Whether a page of the manifest, or an orphan block, was read from its second copy.
    pub(crate) damaged: bool,
    /// Where the last first copy, and the last second copy, was put.
    cursors: [BlockNo; 2],
}

impl PoolState {
    /// An empty pool of these chunks, for one or two copies of everything; longer runs are cut into chunks.
    pub fn new(runs: &[Run], copies: u32) -> PoolState {
        let mut pool = PoolState { mirrored: copies > 1, ..PoolState::default() };
        for run in runs {
            for at in (0..run.blocks).step_by(CHUNK_BLOCKS_MAX as usize) {
                let blocks = (run.blocks - at).min(u64::from(CHUNK_BLOCKS_MAX)) as u32;
                pool.chunks.push(Chunk::new(run.start.offset(at), blocks, 0));
            }
        }
        pool.chunks.sort_by_key(|chunk| chunk.start);
        pool
    }

    /// A pool as a checkpoint left it: what its map does not name is free.
    pub(crate) fn from_parts(
        chunks: &[ChunkEntry],
        manifest: Manifest,
        orphans: Vec<OrphanRef>,
    ) -> PoolState {
        let chunks = chunks
            .iter()
            .map(|entry| Chunk {
                current: entry.used,
                busy: entry.used,
                ..Chunk::new(entry.start, entry.blocks, 0)
            })
            .collect();
        let mirrored = manifest.at.twin != NO_TWIN;
        PoolState { chunks, manifest: Some(manifest), orphans, mirrored, ..PoolState::default() }
    }

    /// Blocks that each node takes.
    pub fn copies(&self) -> u64 {
        1 + u64::from(self.mirrored)
    }

    /// Whether a copy of the manifest or of an orphan block was found bad: to be mended, all orphan blocks
    /// are given to the next checkpoint, which writes the manifest with them.
    pub fn is_damaged(&self) -> bool {
        self.damaged
    }

    /// Chunks as runs, ascending.
    pub fn chunks(&self) -> Vec<Run> {
        self.chunks.iter().map(Chunk::run).collect()
    }

    /// Blocks of all chunks.
    pub fn blocks(&self) -> u64 {
        self.chunks.iter().map(|chunk| u64::from(chunk.blocks)).sum()
    }

    /// Blocks of the chunks that are not about to be removed.
    pub(crate) fn room(&self) -> u64 {
        self.chunks.iter().filter(|chunk| !chunk.retired).map(|chunk| u64::from(chunk.blocks)).sum()
    }

    /// Blocks that the newest checkpoint needs.
    pub fn used_blocks(&self) -> u64 {
        self.chunks.iter().map(|chunk| u64::from(used_count(&chunk.current))).sum()
    }

    /// Blocks that nobody needs.
    pub fn free_blocks(&self) -> u64 {
        self.chunks.iter().map(|chunk| u64::from(chunk.blocks - used_count(&chunk.busy))).sum()
    }

    /// Whether the newest checkpoint needs a block of the pool.
    pub fn is_used(&self, block: BlockNo) -> bool {
        self.find(block).is_some_and(|(chunk, bit)| get(&self.chunks[chunk].current, bit))
    }

    /// Pages of the manifest that describes this pool.
    pub(crate) fn manifest_pages(&self) -> u64 {
        crate::manifest::page_count(self.chunks.len(), self.orphans.len()) as u64
    }

    /// Blocks beside nodes that three checkpoints can need.
    pub(crate) fn overhead(&self) -> u64 {
        let let_go: usize =
            self.freed.iter().filter(|freed| freed.was_kept).map(|freed| freed.blocks.len()).sum();
        let pages = 3 * self.copies() * (self.manifest_pages() + 1 + self.orphans.len() as u64);
        pages + self.only_kept_blocks() + let_go as u64
    }

    /// Whether the next checkpoints free blocks that a kept checkpoint needed, which is let go.
    pub(crate) fn frees_kept(&self) -> bool {
        self.freed.iter().any(|freed| freed.was_kept && !freed.blocks.is_empty())
    }

    /// Freed blocks that are still busy.
    pub(crate) fn freed_blocks(&self) -> u64 {
        self.freed.iter().map(|freed| freed.blocks.len() as u64).sum()
    }

    /// Blocks that kept checkpoints need, and the newest one does not.
    pub fn only_kept_blocks(&self) -> u64 {
        self.count_held(|held, now| held & !now)
    }

    /// Blocks that kept checkpoints need, and the newest one too.
    pub(crate) fn shared_blocks(&self) -> u64 {
        self.count_held(|held, now| held & now)
    }

    fn count_held(&self, of: fn(u64, u64) -> u64) -> u64 {
        let words = self.chunks.iter().flat_map(|chunk| chunk.held.iter().zip(&chunk.current));
        words.map(|(held, now)| u64::from(of(*held, *now).count_ones())).sum()
    }

    /// What the newest checkpoint needs, by chunk. No checkpoint is being written.
    pub fn newest_entries(&self) -> Vec<ChunkEntry> {
        self.entries(u64::MAX)
    }

    /// Keeps what a checkpoint needs.
    ///
    /// Errors: `Corrupt` if it needs what is not the pool's.
    pub(crate) fn keep(&mut self, number: u32, checkpoint: u64, entries: Vec<ChunkEntry>) -> Result<()> {
        self.hold(&entries).map_err(|block| {
            Error::corrupt(format!(
                "snapshot {number} has metadata at block {block}, outside of the metadata pool"
            ))
        })?;
        self.kept.insert(number, Kept { checkpoint, entries });
        Ok(())
    }

    /// Marks what a kept checkpoint needs. Fails with the first block that is not the pool's.
    fn hold(&mut self, entries: &[ChunkEntry]) -> Result<(), BlockNo> {
        for entry in entries {
            if let Ok(at) = self.chunks.binary_search_by_key(&entry.start, |chunk| chunk.start)
                && self.chunks[at].blocks == entry.blocks
            {
                self.chunks[at].hold(&entry.used);
                continue;
            }
            // Chunks have come and gone since.
            for block in blocks_of(entry) {
                let (chunk, bit) = self.find(block).ok_or(block)?;
                set(&mut self.chunks[chunk].held, bit);
                set(&mut self.chunks[chunk].busy, bit);
            }
        }
        Ok(())
    }

    /// The newest kept checkpoint; 0 if there is none.
    pub(crate) fn kept_newest(&self) -> u64 {
        self.kept.values().map(|kept| kept.checkpoint).max().unwrap_or(0)
    }

    /// Whether a checkpoint is kept under this number.
    pub(crate) fn keeps(&self, number: u32) -> bool {
        self.kept.contains_key(&number)
    }

    /// Whether a kept checkpoint needs a block.
    pub(crate) fn is_kept(&self, block: BlockNo) -> bool {
        self.find(block).is_some_and(|(chunk, bit)| get(&self.chunks[chunk].held, bit))
    }

    /// The next checkpoint needs these blocks, which are kept.
    pub(crate) fn use_kept(&mut self, blocks: impl Iterator<Item = BlockNo>) {
        for block in blocks {
            if let Some((chunk, bit)) = self.find(block) {
                set(&mut self.chunks[chunk].current, bit);
            }
        }
    }

    /// Keeps a checkpoint no longer: what it alone needed is free once checkpoint `checkpoint`, the next one,
    /// is in both slots.
    pub(crate) fn let_go(&mut self, number: u32, checkpoint: u64) {
        if self.kept.remove(&number).is_none() {
            return;
        }
        let none = [0; BITMAP_WORDS];
        let before: Vec<Bitmap> =
            self.chunks.iter_mut().map(|chunk| std::mem::replace(&mut chunk.held, none)).collect();
        let kept = std::mem::take(&mut self.kept);
        let held = kept.values().try_for_each(|kept| self.hold(&kept.entries));
        debug_assert_eq!(held, Ok(()), "a chunk with blocks of a kept checkpoint stays");
        self.kept = kept;
        // Ascending, as the chunks do.
        let mut blocks = Vec::new();
        for (chunk, mut free) in self.chunks.iter().zip(before) {
            for (word, free) in free.iter_mut().enumerate() {
                *free &= !chunk.held[word] & !chunk.current[word];
            }
            blocks.extend(bits_of(&free).map(|bit| chunk.start.offset(bit.into())));
        }
        // Some were freed by a checkpoint whose successor is not there yet: they wait for the later one.
        for freed in &mut self.freed {
            freed.blocks.retain(|block| blocks.binary_search(block).is_err());
        }
        self.list(Freed { checkpoint, blocks, was_kept: true });
    }

    /// Notes what is free later. A kept checkpoint may have been let go for the checkpoint after the one that
    /// is being written.
    fn list(&mut self, freed: Freed) {
        if !freed.blocks.is_empty() {
            let at = self.freed.partition_point(|other| other.checkpoint <= freed.checkpoint);
            self.freed.insert(at, freed);
        }
    }

    /// Entries for the map of the checkpoint of `epoch`.
    pub(crate) fn entries(&self, epoch: u64) -> Vec<ChunkEntry> {
        let removed_later =
            self.removed.iter().filter(|(removed, _)| *removed > epoch).map(|(_, chunk)| chunk);
        let mut entries: Vec<ChunkEntry> = self
            .chunks
            .iter()
            .chain(removed_later)
            .filter(|chunk| chunk.added <= epoch)
            .map(|chunk| ChunkEntry { start: chunk.start, blocks: chunk.blocks, used: chunk.current })
            .collect();
        entries.sort_by_key(|entry| entry.start);
        entries
    }

    /// Adds a chunk in `epoch`.
    pub(crate) fn grow(&mut self, start: BlockNo, blocks: u32, epoch: u64) -> Result<()> {
        let end = start.0.checked_add(u64::from(blocks));
        if !(1..=CHUNK_BLOCKS_MAX).contains(&blocks) || end.is_none() {
            return Err(Error::corrupt(format!("a pool chunk of {blocks} blocks at block {start}")));
        }
        let overlaps = |chunk: &Chunk| chunk.start.0 < start.0 + u64::from(blocks) && start < chunk.end();
        if let Some(chunk) = self.chunks.iter().find(|chunk| overlaps(chunk)) {
            return Err(Error::corrupt(format!(
                "the metadata pool cannot grow at block {start}: it has a chunk at block {}",
                chunk.start
            )));
        }
        let at = self.chunks.partition_point(|chunk| chunk.start < start);
        self.chunks.insert(at, Chunk::new(start, blocks, epoch));
        Ok(())
    }

    /// Removes a chunk in `epoch`; nobody may need a block of it.
    pub(crate) fn shrink(&mut self, start: BlockNo, blocks: u32, epoch: u64) -> Result<()> {
        let same = |chunk: &Chunk| chunk.start == start && chunk.blocks == blocks;
        let Some(at) = self.chunks.iter().position(same) else {
            return Err(Error::corrupt(format!(
                "the metadata pool has no chunk of {blocks} blocks at block {start}"
            )));
        };
        if used_count(&self.chunks[at].busy) > 0 {
            return Err(Error::corrupt(format!(
                "the pool chunk at block {start} is in use, it cannot be removed"
            )));
        }
        let chunk = self.chunks.remove(at);
        self.removed.push((epoch, chunk));
        Ok(())
    }

    /// Retires the chunk that needs the least, of those that `may_go`, that no kept checkpoint needs, and
    /// without which the room is enough.
    pub(crate) fn retire(
        &mut self,
        may_go: &dyn Fn(Run) -> bool,
        is_enough: &dyn Fn(u64) -> bool,
    ) -> Option<Run> {
        let room = self.room();
        let fits = |chunk: &&mut Chunk| {
            let is_free = !chunk.retired && used_count(&chunk.held) == 0;
            is_free && may_go(chunk.run()) && is_enough(room - u64::from(chunk.blocks))
        };
        let chunk = self.chunks.iter_mut().filter(fits).min_by_key(|chunk| used_count(&chunk.busy))?;
        chunk.retired = true;
        Some(chunk.run())
    }

    /// Takes back [`PoolState::retire`].
    pub(crate) fn unretire(&mut self, start: BlockNo) {
        for chunk in self.chunks.iter_mut().filter(|chunk| chunk.start == start) {
            chunk.retired = false;
        }
    }

    /// Whether no checkpoint needs a block of a chunk.
    pub(crate) fn is_unused(&self, start: BlockNo) -> bool {
        self.chunks.iter().any(|chunk| chunk.start == start && used_count(&chunk.busy) == 0)
    }

    /// Forgets chunks that the checkpoint of `epoch` does not list any more.
    pub(crate) fn forget_removed(&mut self, epoch: u64) {
        self.removed.retain(|(removed, _)| *removed > epoch);
    }

    /// True if chunks were added or removed in `epoch`.
    pub(crate) fn changed_in(&self, epoch: u64) -> bool {
        let added =
            self.chunks.iter().chain(self.removed.iter().map(|(_, chunk)| chunk)).any(|c| c.added == epoch);
        added || self.removed.iter().any(|(removed, _)| *removed == epoch)
    }

    /// Takes `count` places of free blocks for the checkpoint of `epoch`, in runs that ascend from where the
    /// last ended.
    pub(crate) fn allocate(&mut self, count: usize, epoch: u64) -> Result<Vec<Place>> {
        if !self.mirrored {
            let blocks = self.take(0..u64::MAX, 0, count, epoch);
            return self
                .all_or_none(blocks, count)
                .map(|blocks| blocks.into_iter().map(Place::single).collect());
        }
        let middle = self.middle();
        let mut first = self.take(0..middle, 0, count, epoch);
        let mut second = self.take(middle..u64::MAX, 1, count, epoch);
        // Either half may be short of blocks, not both: then the other one has more.
        let lacking = 2 * count - first.len() - second.len();
        let (half, side) = if first.len() < count { (middle..u64::MAX, 1) } else { (0..middle, 0) };
        let mut more = self.take(half, side, lacking, epoch);
        let first_lacks = (count - first.len()).min(more.len());
        second.extend(more.split_off(first_lacks));
        first.append(&mut more);
        let firsts = first.len();
        first.append(&mut second);
        let mut blocks = self.all_or_none(first, 2 * count)?;
        let twins = blocks.split_off(firsts);
        Ok(blocks.into_iter().zip(twins).map(|(block, twin)| Place { block, twin }).collect())
    }

    /// These blocks, if there are `wanted`; else gives them back.
    fn all_or_none(&mut self, blocks: Vec<BlockNo>, wanted: usize) -> Result<Vec<BlockNo>> {
        if blocks.len() == wanted {
            return Ok(blocks);
        }
        let had = blocks.len();
        self.give_back(blocks);
        Err(Error::new(
            ErrorKind::NoSpace,
            format!("the metadata pool has only {had} of {wanted} blocks that a checkpoint needs"),
        ))
    }

    /// The block below which half of the pool's blocks lie.
    fn middle(&self) -> u64 {
        let mut below = self.blocks() / 2;
        for chunk in &self.chunks {
            match below.checked_sub(chunk.blocks.into()) {
                Some(rest) if rest > 0 => below = rest,
                _ => return chunk.start.0 + below,
            }
        }
        0
    }

    /// Takes at most `count` free blocks among those of `half`, on from where that side's last one was.
    fn take(&mut self, half: Range<u64>, side: usize, count: usize, epoch: u64) -> Vec<BlockNo> {
        let mut blocks = Vec::with_capacity(count);
        let cursor = self.cursors[side].0.clamp(half.start, half.end);
        for range in [cursor..half.end, half.start..cursor] {
            let first = self.chunks.partition_point(|chunk| chunk.end().0 <= range.start);
            for chunk in &mut self.chunks[first..] {
                if blocks.len() == count || chunk.start.0 >= range.end {
                    break;
                }
                if chunk.added > epoch || chunk.retired {
                    continue;
                }
                let from = range.start.saturating_sub(chunk.start.0) as u32;
                let to = (range.end - chunk.start.0).min(chunk.blocks.into()) as u32;
                chunk.take(from..to, count, &mut blocks);
            }
        }
        if let Some(last) = blocks.last() {
            self.cursors[side] = last.offset(1);
        }
        blocks
    }

    /// Returns blocks of [`PoolState::allocate`] that nothing was written to.
    pub(crate) fn give_back(&mut self, blocks: impl IntoIterator<Item = BlockNo>) {
        let middle = if self.mirrored { self.middle() } else { u64::MAX };
        for block in blocks {
            if let Some((chunk, bit)) = self.find(block) {
                clear(&mut self.chunks[chunk].current, bit);
                clear(&mut self.chunks[chunk].busy, bit);
            }
            let cursor = &mut self.cursors[usize::from(block.0 >= middle)];
            *cursor = block.min(*cursor);
        }
    }

    /// Checkpoint `checkpoint` no longer needs these blocks.
    pub(crate) fn free(&mut self, blocks: Vec<BlockNo>, checkpoint: u64) -> Result<()> {
        for &block in &blocks {
            let found = self.find(block).filter(|&(chunk, bit)| get(&self.chunks[chunk].current, bit));
            let Some((chunk, bit)) = found else {
                return Err(Error::corrupt(format!(
                    "block {block} held metadata, but the pool's map calls it free"
                )));
            };
            clear(&mut self.chunks[chunk].current, bit);
        }
        self.list(Freed { checkpoint, blocks, was_kept: false });
        Ok(())
    }

    /// Blocks that checkpoints up to `checkpoint` freed can be used again.
    pub(crate) fn release(&mut self, checkpoint: u64) {
        while self.freed.front().is_some_and(|freed| freed.checkpoint <= checkpoint) {
            let freed = self.freed.pop_front().expect("the front was looked at");
            for block in freed.blocks {
                if let Some((chunk, bit)) = self.find(block)
                    && !get(&self.chunks[chunk].held, bit)
                {
                    clear(&mut self.chunks[chunk].busy, bit);
                }
            }
        }
    }

    fn find(&self, block: BlockNo) -> Option<(usize, u32)> {
        let at = self.chunks.partition_point(|chunk| chunk.end() <= block);
        let chunk = self.chunks.get(at)?;
        (chunk.start <= block).then(|| (at, (block.0 - chunk.start.0) as u32))
    }
}

/// The blocks that an entry calls used.
fn blocks_of(entry: &ChunkEntry) -> impl Iterator<Item = BlockNo> {
    let start = entry.start;
    bits_of(&entry.used).map(move |bit| start.offset(bit.into()))
}

fn bits_of(bitmap: &Bitmap) -> impl Iterator<Item = u32> {
    let bitmap = *bitmap;
    (0..CHUNK_BLOCKS_MAX).filter(move |bit| get(&bitmap, *bit))
}

impl Chunk {
    fn new(start: BlockNo, blocks: u32, added: u64) -> Chunk {
        let none = [0; BITMAP_WORDS];
        Chunk { start, blocks, current: none, busy: none, held: none, added, retired: false }
    }

    fn end(&self) -> BlockNo {
        self.start.offset(u64::from(self.blocks))
    }

    /// A kept checkpoint needs these blocks.
    fn hold(&mut self, used: &Bitmap) {
        for (word, used) in used.iter().enumerate() {
            self.held[word] |= used;
            self.busy[word] |= used;
        }
    }

    fn run(&self) -> Run {
        Run::new(self.start, u64::from(self.blocks))
    }

    /// Takes free blocks among `bits` until `out` has `count`.
    fn take(&mut self, bits: Range<u32>, count: usize, out: &mut Vec<BlockNo>) {
        let mut bit = bits.start;
        while bit < bits.end && out.len() < count {
            let word = self.busy[bit as usize / 64] >> (bit % 64);
            if word == u64::MAX >> (bit % 64) {
                bit = (bit / 64 + 1) * 64;
                continue;
            }
            bit += word.trailing_ones();
            if bit >= bits.end {
                break;
            }
            set(&mut self.busy, bit);
            set(&mut self.current, bit);
            out.push(self.start.offset(u64::from(bit)));
            bit += 1;
        }
    }
}

fn get(map: &Bitmap, bit: u32) -> bool {
    map[bit as usize / 64] >> (bit % 64) & 1 == 1
}

fn set(map: &mut Bitmap, bit: u32) {
    map[bit as usize / 64] |= 1 << (bit % 64);
}

fn clear(map: &mut Bitmap, bit: u32) {
    map[bit as usize / 64] &= !(1 << (bit % 64));
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
