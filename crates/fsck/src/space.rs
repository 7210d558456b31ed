//! Free space: the blocks that regions call used must be exactly those of the fixed areas, of the metadata
//! pool's chunks and of the extents.
//!
//! Memory: the sorted list of extents and one region at a time.
//!
//! Neighbours: [`crate::inodes`] made the list; [`crate::repair`] writes regions from the same comparison.

use crate::fix::{Relocation, blocks};
use crate::inodes::Owned;
use crate::issue::IssueKind;
use crate::report::{Findings, Place};
use crate::view::View;
use quire_base::{BlockNo, Result};
use quire_format::extent::{EXTENT_BLOCKS_MAX, Run};
use quire_format::key::{Key, KeyKind};
use quire_format::region::{REGION_BLOCKS, RegionMap};
use std::collections::VecDeque;
use std::ops::ControlFlow;

const WORDS: usize = REGION_BLOCKS as usize / 64;
type Bits = [u64; WORDS];

/// What one region says and what it should say.
pub(crate) struct Comparison {
    pub(crate) region: u64,
    /// While a snapshot cannot be read, all that is marked: it may need that.
    pub(crate) used: Bits,
    /// Those of them that only snapshots use.
    pub(crate) dead: Bits,
    /// What the volume says; an error where that does not decode.
    pub(crate) marked: Result<Bits>,
    /// What it says of blocks that only snapshots use.
    pub(crate) marked_dead: Result<Bits>,
}

/// Sorts the extents and reports those that share disk blocks, with each other or with the pool.
pub(crate) fn check_sharing(view: &View<'_>, extents: &mut [Owned], findings: &mut Findings) {
    extents.sort_unstable();
    let mut chunks = view.chunks.iter().filter(|run| run.start >= view.superblock.data_start).peekable();
    let mut last: Option<Owned> = None;
    for &extent in extents.iter() {
        while chunks.next_if(|chunk| chunk.end().0 <= extent.start).is_some() {}
        let mut ahead = chunks.clone();
        while let Some(chunk) = ahead.next_if(|chunk| chunk.start.0 < extent.end()) {
            let (from, to) = (extent.start.max(chunk.start.0), extent.end().min(chunk.end().0));
            match view.pool_holds {
                Some(held) if held.get(held.partition_point(|at| *at < from)).is_none_or(|at| *at >= to) => {
                    overlapped(&extent, Run::new(BlockNo(from), to - from), findings);
                }
                _ => shared(&extent, from, to, None, findings),
            }
        }
        if let Some(before) = last.filter(|before| before.end() > extent.start) {
            // The inode that counts its blocks right keeps them; else the older inode, which has the lower
            // number; within one, the lower file block.
            let claim = |owner: &Owned| (owner.doubtful, owner.inode, owner.file_block);
            let (keeper, loser) =
                if claim(&before) <= claim(&extent) { (before, extent) } else { (extent, before) };
            shared(&loser, extent.start, before.end().min(extent.end()), Some(&keeper), findings);
        }
        if last.is_none_or(|before| extent.end() > before.end()) {
            last = Some(extent);
        }
    }
}

/// A chunk of the pool covers blocks of a file, but nothing of the pool is there.
fn overlapped(extent: &Owned, run: Run, findings: &mut Findings) {
    findings.add(
        IssueKind::PoolChunkOverlap,
        Place { inode: Some(extent.inode), block: Some(run.start.0) },
        format!(
            "inode {}: {} belong to the metadata pool, too, which has nothing there: repair leaves them to the file",
            extent.inode,
            blocks(run)
        ),
    );
    findings.fixes.release.push(run);
    findings.fixes.pool = true;
}

fn shared(loser: &Owned, from: u64, to: u64, keeper: Option<&Owned>, findings: &mut Findings) {
    let run = Run::new(BlockNo(from), to - from);
    let file_block = loser.file_block + (from - loser.start);
    // What was never written reads as zeros, with blocks and without; and who counts fewer blocks has too
    // many.
    let copy = keeper.is_some_and(|keeper| keeper.doubtful || !loser.doubtful) && !loser.unwritten;
    let other = keeper.map_or("the metadata pool".into(), |keeper| format!("inode {}", keeper.inode));
    let remedy = if copy {
        "copies them: one of the files may have the wrong data"
    } else {
        "drops them: the file reads as zeros there"
    };
    findings.add(
        IssueKind::ExtentShared,
        Place { inode: Some(loser.inode), block: Some(from) },
        format!(
            "inode {}: {}, at file block {file_block}, also belong to {other}: repair {remedy}",
            loser.inode,
            blocks(run)
        ),
    );
    if copy {
        let relocation = Relocation { inode: loser.inode, file_block, blocks: run.blocks, disk_block: from };
        findings.fixes.relocate.push(relocation);
    } else {
        findings.fixes.punch.push((loser.inode, file_block, run.blocks));
    }
}

/// Reports what regions have too much or too little; gives the free blocks of the data space.
pub(crate) fn check_regions(view: &View<'_>, extents: &[Owned], findings: &mut Findings) -> Result<u64> {
    let mut used_blocks = 0;
    let data_start = view.superblock.data_start.0;
    compare(view, extents, &mut |comparison| {
        let base = comparison.region * REGION_BLOCKS;
        let mut data = comparison.used;
        clear_below(&mut data, data_start.saturating_sub(base));
        used_blocks += data.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        report(view, extents, comparison, findings);
        Ok(())
    })?;
    let space = view.superblock.data_end.0 - data_start;
    findings.summary.used_blocks = used_blocks;
    findings.summary.free_blocks = space.saturating_sub(used_blocks);
    Ok(findings.summary.free_blocks)
}

fn report(view: &View<'_>, extents: &[Owned], comparison: &Comparison, findings: &mut Findings) {
    let base = comparison.region * REGION_BLOCKS;
    if comparison.marked_dead.as_ref().ok() != Some(&comparison.dead) {
        findings.add(
            IssueKind::DeadBlocksWrong,
            Place::block(base),
            format!(
                "region {}: {} blocks are used by snapshots alone, others are marked as such: repair marks them",
                comparison.region,
                comparison.dead.iter().map(|word| word.count_ones()).sum::<u32>()
            ),
        );
        findings.fixes.mark_used = true;
    }
    let marked = match &comparison.marked {
        Ok(marked) => marked,
        Err(error) => {
            findings.add(
                IssueKind::RegionDamaged,
                Place::block(base),
                format!("region {}: {error}; repair writes it anew from what is in use", comparison.region),
            );
            findings.fixes.mark_used = true;
            return;
        }
    };
    if marked == &comparison.used {
        return;
    }
    let run = |(start, len): (u64, u64)| Run::new(BlockNo(base + start), len);
    for run in runs(&minus(&comparison.used, marked)).map(run) {
        findings.add(
            IssueKind::BlockUnmarked,
            Place::block(run.start.0),
            format!("{} in use but marked free", are(run)),
        );
        findings.fixes.mark_used = true;
        drop_doubtful(run, extents, findings);
    }
    for run in runs(&minus(marked, &comparison.used)).map(run) {
        findings.fixes.free_leaked = true;
        if run.end() > view.superblock.data_end {
            findings.add(
                IssueKind::RegionOutOfRange,
                Place::block(run.start.0),
                format!("{} marked used, the data space ends at {}", are(run), view.superblock.data_end),
            );
        } else {
            findings.add(
                IssueKind::BlockLeaked,
                Place::block(run.start.0),
                format!("{} marked used but nothing uses them: repair frees them", are(run)),
            );
        }
    }
}

/// Blocks that are marked free, and whose owner counts fewer than it has: by both accounts they are not its
/// own.
fn drop_doubtful(run: Run, extents: &[Owned], findings: &mut Findings) {
    let reach = u64::from(EXTENT_BLOCKS_MAX);
    let first = extents.partition_point(|extent| extent.start + reach <= run.start.0);
    for extent in extents[first..].iter().take_while(|extent| extent.start < run.end().0) {
        let (from, to) = (extent.start.max(run.start.0), extent.end().min(run.end().0));
        if extent.doubtful && from < to {
            findings.fixes.punch.push((extent.inode, extent.file_block + (from - extent.start), to - from));
        }
    }
}

fn are(run: Run) -> String {
    let verb = if run.blocks == 1 { "is" } else { "are" };
    format!("{} {verb}", blocks(run))
}

fn minus(from: &Bits, take: &Bits) -> Bits {
    std::array::from_fn(|word| from[word] & !take[word])
}

/// Sets bits `from..to`.
fn set(bits: &mut Bits, from: u64, to: u64) {
    let mut at = from;
    while at < to {
        let count = (64 - at % 64).min(to - at);
        bits[at as usize / 64] |= u64::MAX >> (64 - count) << (at % 64);
        at += count;
    }
}

fn clear_below(bits: &mut Bits, below: u64) {
    let mut low = [0; WORDS];
    set(&mut low, 0, below.min(REGION_BLOCKS));
    *bits = minus(bits, &low);
}

/// The maximal runs of set bits: start, length.
pub(crate) fn runs(bits: &Bits) -> impl Iterator<Item = (u64, u64)> + '_ {
    let next = |from: u64, set: bool| {
        (from..REGION_BLOCKS).find(|&bit| (bits[bit as usize / 64] >> (bit % 64) & 1 == 1) == set)
    };
    let mut at = 0;
    std::iter::from_fn(move || {
        // Words without any set bit are passed at once.
        while at < REGION_BLOCKS && at % 64 == 0 && bits[at as usize / 64] == 0 {
            at += 64;
        }
        let start = next(at, true)?;
        let end = next(start, false).unwrap_or(REGION_BLOCKS);
        at = end;
        Some((start, end - start))
    })
}

/// The map whose used blocks are these.
pub(crate) fn map_of(bits: &Bits) -> Result<RegionMap> {
    let mut map = RegionMap::new();
    for (start, len) in runs(bits) {
        map.set_used(start as u32, len as u32)?;
    }
    Ok(map)
}

/// Calls `visit` with every region that has used or marked blocks, ascending. `extents` are sorted.
pub(crate) fn compare<'a>(
    view: &'a View<'a>,
    extents: &'a [Owned],
    visit: &mut dyn FnMut(&Comparison) -> Result<()>,
) -> Result<()> {
    let mut users = Users::new(view, extents);
    let mut outcome = Ok(());
    let regions = view.superblock.block_count.div_ceil(REGION_BLOCKS);
    let last = Key::new(0, KeyKind::FreeSpace, regions.saturating_sub(1));
    view.tree.scan(Key::region(0), last, &mut |key, value| {
        outcome = (|| {
            while let Some(region) = users.next_region().filter(|region| *region < key.offset) {
                visit(&users.compare(region, Ok([0; WORDS]))?)?;
            }
            let marked = RegionMap::decode(value).map(|map| *map.words());
            visit(&users.compare(key.offset, marked)?)
        })();
        if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    outcome?;
    while let Some(region) = users.next_region() {
        visit(&users.compare(region, Ok([0; WORDS]))?)?;
    }
    Ok(())
}

/// All runs in use, ascending by start: fixed areas, journal, chunks, extents. They may overlap.
struct Users<'a> {
    view: &'a View<'a>,
    chunks: &'a [Run],
    extents: &'a [Owned],
    /// Regions in which snapshots need blocks, ascending.
    held: VecDeque<u64>,
    /// Runs that reach into later regions, and the journal until its region has come.
    rest: Vec<Run>,
}

impl<'a> Users<'a> {
    fn new(view: &'a View<'a>, extents: &'a [Owned]) -> Users<'a> {
        let fixed = Run::new(BlockNo(0), view.superblock.data_start.0);
        Users {
            view,
            held: view.held.blocks.keys().copied().collect(),
            chunks: view.chunks,
            extents,
            rest: vec![fixed, view.superblock.journal()],
        }
    }

    fn next_region(&self) -> Option<u64> {
        let starts = [
            self.rest.iter().map(|run| run.start.0).min(),
            self.chunks.first().map(|run| run.start.0),
            self.extents.first().map(|extent| extent.start),
        ];
        let first = starts.into_iter().flatten().min().map(|block| block / REGION_BLOCKS);
        first.into_iter().chain(self.held.front().copied()).min()
    }

    /// A region as it is and as it should be; those before it are passed over.
    fn compare(&mut self, region: u64, marked: Result<Bits>) -> Result<Comparison> {
        let live = self.take(region);
        while self.held.pop_front_if(|held| *held <= region).is_some() {}
        let held = self.view.held.blocks.get(&region).map_or([0; WORDS], |held| *held.words());
        let dead = minus(&held, &live);
        let mut used = std::array::from_fn(|word| live[word] | dead[word]);
        if !self.view.held.unknown.is_empty() {
            let mut data = [0; WORDS];
            let data_end = self.view.superblock.data_end.0;
            set(&mut data, 0, data_end.saturating_sub(region * REGION_BLOCKS).min(REGION_BLOCKS));
            let perhaps = marked.as_ref().unwrap_or(&data);
            used = std::array::from_fn(|word| used[word] | data[word] & perhaps[word]);
        }
        let marked_dead = match self.view.tree.get_with(Key::dead(region), RegionMap::decode)? {
            Some(marked) => marked.map(|map| *map.words()),
            None => Ok([0; WORDS]),
        };
        Ok(Comparison { region, used, dead, marked, marked_dead })
    }

    /// The used blocks of a region; those of regions before it are passed over.
    fn take(&mut self, region: u64) -> Bits {
        let end = (region + 1) * REGION_BLOCKS;
        while let Some((first, others)) = self.chunks.split_first().filter(|(first, _)| first.start.0 < end) {
            self.rest.push(*first);
            self.chunks = others;
        }
        while let Some((first, others)) = self.extents.split_first().filter(|(first, _)| first.start < end) {
            self.rest.push(Run::new(BlockNo(first.start), first.len.into()));
            self.extents = others;
        }
        let mut bits = [0; WORDS];
        self.rest.retain_mut(|run| {
            let (from, to) = (run.start.0.max(end - REGION_BLOCKS), run.end().0.min(end));
            if from < to {
                set(&mut bits, from + REGION_BLOCKS - end, to + REGION_BLOCKS - end);
            }
            let start = run.start.0.max(end).min(run.end().0);
            *run = Run::new(BlockNo(start), run.end().0 - start);
            run.blocks > 0
        });
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_are_those_of_the_bits(set in proptest::collection::vec((0u64..4096, 1u64..200), 0..40)) {
            let mut bits = [0; WORDS];
            for (start, len) in set {
                super::set(&mut bits, start, (start + len).min(REGION_BLOCKS));
            }
            let map = map_of(&bits).unwrap();
            prop_assert_eq!(map.words(), &bits);
            prop_assert!(runs(&bits).eq(map.runs().map(|(start, len)| (u64::from(start), u64::from(len)))));
        }
    }
}
