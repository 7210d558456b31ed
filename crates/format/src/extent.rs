//! Extents: which disk blocks hold a run of a file's blocks, and the arithmetic on lists of them.
//!
//! Layout of the value (16 bytes, little-endian); the first file block is the key's offset:
//!
//! ```text
//! 0 disk_block u64   8 birth u32   12 len u16   14 flags u16 (bit 0: unwritten)
//! ```
//!
//! The *birth* is the volume's epoch when the blocks were allocated: the number of snapshots taken by then.
//! Extents of different births do not merge.
//!
//! A *list* of extents is sorted by file block and its extents do not overlap in the file.
//!
//! Neighbours: [`crate::record`] journals changes of extents; [`crate::region`] keeps the blocks they use;
//! `fs` and replay derive allocation and freeing from [`subtract`].

use crate::record::cursor::Cursor;
use quire_base::{BlockNo, Error, Result};

/// The most blocks one extent covers: 128 MiB.
pub const EXTENT_BLOCKS_MAX: u32 = 32768;
/// Bytes of an encoded extent value.
pub const EXTENT_BYTES: usize = 16;
/// Blocks in the largest file (8 EiB - 1 bytes).
pub const FILE_BLOCKS_MAX: u64 = 1 << 51;
/// One behind the largest disk block number that any volume can have.
pub const DISK_BLOCKS_MAX: u64 = 1 << 52;

const UNWRITTEN: u16 = 1;

const _: () = assert!(EXTENT_BLOCKS_MAX <= u16::MAX as u32);

/// A run of consecutive disk blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// The first block.
    pub start: BlockNo,
    /// How many.
    pub blocks: u64,
}

impl Run {
    /// The run of `blocks` from `start`.
    pub const fn new(start: BlockNo, blocks: u64) -> Run {
        Run { start, blocks }
    }
    /// One behind the last block.
    pub const fn end(self) -> BlockNo {
        BlockNo(self.start.0 + self.blocks)
    }
    /// Whether a block is one of the run's.
    pub const fn contains(self, block: BlockNo) -> bool {
        self.start.0 <= block.0 && block.0 < self.end().0
    }
}

/// Blocks in a list of runs.
pub fn total_blocks(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.blocks).sum()
}

/// A run of file blocks and the disk blocks that hold them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// The first file block.
    pub file_block: u64,
    /// The first disk block.
    pub disk_block: BlockNo,
    /// Blocks, 1 to [`EXTENT_BLOCKS_MAX`].
    pub len: u32,
    /// Allocated but never written: reads as zero.
    pub unwritten: bool,
    /// The volume's epoch when the blocks were allocated.
    pub birth: u32,
}

impl Extent {
    /// One behind the last file block.
    pub const fn file_end(&self) -> u64 {
        self.file_block + self.len as u64
    }

    /// One behind the last disk block.
    pub const fn disk_end(&self) -> BlockNo {
        BlockNo(self.disk_block.0 + self.len as u64)
    }

    /// The disk blocks.
    pub const fn run(&self) -> Run {
        Run { start: self.disk_block, blocks: self.len as u64 }
    }

    /// Whether the extent covers a file block.
    pub const fn contains(&self, file_block: u64) -> bool {
        self.file_block <= file_block && file_block < self.file_end()
    }

    /// The disk block of a file block, if the extent covers it.
    pub fn disk_block_of(&self, file_block: u64) -> Option<BlockNo> {
        self.contains(file_block).then(|| self.disk_block.offset(file_block - self.file_block))
    }

    /// The part within file blocks `start..end`, if any.
    pub fn clip(&self, start: u64, end: u64) -> Option<Extent> {
        let from = self.file_block.max(start);
        let to = self.file_end().min(end);
        (from < to).then(|| Extent {
            file_block: from,
            disk_block: self.disk_block.offset(from - self.file_block),
            len: (to - from) as u32,
            ..*self
        })
    }

    /// Both extents as one, if `next` continues this one in the file, on disk, in state and in birth, within
    /// the limit.
    pub fn merged(&self, next: &Extent) -> Option<Extent> {
        let fits = self.len.checked_add(next.len).is_some_and(|len| len <= EXTENT_BLOCKS_MAX);
        (fits
            && self.file_end() == next.file_block
            && self.disk_end() == next.disk_block
            && (self.unwritten, self.birth) == (next.unwritten, next.birth))
            .then(|| Extent { len: self.len + next.len, ..*self })
    }

    /// The value's bytes.
    pub fn encode(&self) -> [u8; EXTENT_BYTES] {
        let mut out = [0; EXTENT_BYTES];
        out[..8].copy_from_slice(&self.disk_block.0.to_le_bytes());
        out[8..12].copy_from_slice(&self.birth.to_le_bytes());
        out[12..14].copy_from_slice(&(self.len as u16).to_le_bytes());
        out[14..].copy_from_slice(&if self.unwritten { UNWRITTEN } else { 0 }.to_le_bytes());
        out
    }

    /// Reads and checks the value under the key whose offset is `file_block`. Whether the blocks lie within
    /// the volume is the caller's to check.
    pub fn decode(file_block: u64, bytes: &[u8]) -> Result<Extent> {
        let mut cursor = Cursor::new(bytes, "extent");
        let disk_block = BlockNo(cursor.u64()?);
        let birth = cursor.u32()?;
        let (len, flags) = (u32::from(cursor.u16()?), cursor.u16()?);
        cursor.end()?;
        if flags & !UNWRITTEN != 0 {
            return Err(Error::corrupt(format!(
                "extent at file block {file_block}: unknown flags {flags:#x}"
            )));
        }
        let extent = Extent { file_block, disk_block, len, unwritten: flags & UNWRITTEN != 0, birth };
        extent.check()?;
        Ok(extent)
    }

    /// Errors unless the length is within its limit and both ends are within any file and any volume.
    pub fn check(&self) -> Result<()> {
        let fits = |start: u64, max: u64| start <= max && max - start >= u64::from(self.len);
        if self.len == 0 || self.len > EXTENT_BLOCKS_MAX {
            return Err(Error::corrupt(format!(
                "extent at file block {}: {} blocks",
                self.file_block, self.len
            )));
        }
        if !fits(self.file_block, FILE_BLOCKS_MAX) {
            return Err(Error::corrupt(format!("extent at file block {} is past any file", self.file_block)));
        }
        if self.disk_block.0 == 0 || !fits(self.disk_block.0, DISK_BLOCKS_MAX) {
            return Err(Error::corrupt(format!(
                "extent at file block {}: disk block {} is past any volume",
                self.file_block, self.disk_block
            )));
        }
        Ok(())
    }
}

/// Errors unless every extent is valid and the list is sorted and free of overlaps in the file.
pub fn check_list(extents: &[Extent]) -> Result<()> {
    let mut end = 0;
    for extent in extents {
        extent.check()?;
        if extent.file_block < end {
            return Err(Error::corrupt(format!(
                "extents overlap or are out of order at {}",
                extent.file_block
            )));
        }
        end = extent.file_end();
    }
    Ok(())
}

/// Merges neighbours of a list where [`Extent::merged`] allows.
pub fn merge_list(extents: &mut Vec<Extent>) {
    extents.dedup_by(|next, last| match last.merged(next) {
        Some(merged) => {
            *last = merged;
            true
        }
        None => false,
    });
}

/// Cuts a run of disk blocks that holds the file from `file_block` on into extents within the length limit.
pub fn extents_of_run(
    file_block: u64,
    run: Run,
    unwritten: bool,
    birth: u32,
) -> impl Iterator<Item = Extent> {
    (0..run.blocks).step_by(EXTENT_BLOCKS_MAX as usize).map(move |at| Extent {
        file_block: file_block + at,
        disk_block: run.start.offset(at),
        len: (run.blocks - at).min(u64::from(EXTENT_BLOCKS_MAX)) as u32,
        unwritten,
        birth,
    })
}

/// What is left of a list without file blocks `start..end`.
pub fn carve(extents: &[Extent], start: u64, end: u64) -> Vec<Extent> {
    let mut left = Vec::with_capacity(extents.len() + 1);
    for extent in extents {
        left.extend(extent.clip(0, start));
        left.extend(extent.clip(end, u64::MAX));
    }
    left
}

/// A list with `new` (a list as well) laid over it: `new` wins where both cover a file block. Neighbours are
/// merged.
pub fn overlay(extents: &[Extent], new: &[Extent]) -> Vec<Extent> {
    let mut out = Vec::with_capacity(extents.len() + 2 * new.len());
    let mut covered = new.iter().peekable();
    for extent in extents {
        let mut at = extent.file_block;
        while let Some(over) = covered.peek().filter(|over| over.file_block < extent.file_end()) {
            out.extend(extent.clip(at, over.file_block));
            at = at.max(over.file_end());
            if over.file_end() > extent.file_end() {
                break;
            }
            covered.next();
        }
        out.extend(extent.clip(at, u64::MAX));
    }
    out.extend_from_slice(new);
    out.sort_unstable_by_key(|extent| extent.file_block);
    merge_list(&mut out);
    out
}

/// The disk blocks that replacing `removed` by `inserted` frees and allocates: blocks of `removed` alone, and
/// blocks of `inserted` alone. Both results are sorted and their neighbours merged.
///
/// Errors (kind `Corrupt`) if two extents of one side share a disk block.
pub fn subtract<'a>(
    removed: impl IntoIterator<Item = &'a Extent>,
    inserted: impl IntoIterator<Item = &'a Extent>,
) -> Result<(Vec<Run>, Vec<Run>)> {
    let removed = disk_runs(removed).map_err(|error| error.context("removed extents"))?;
    let inserted = disk_runs(inserted).map_err(|error| error.context("inserted extents"))?;
    Ok((difference(&removed, &inserted), difference(&inserted, &removed)))
}

/// The disk blocks of extents in order, neighbours merged.
fn disk_runs<'a>(extents: impl IntoIterator<Item = &'a Extent>) -> Result<Vec<Run>> {
    let mut runs: Vec<Run> = extents.into_iter().map(Extent::run).collect();
    runs.sort_unstable();
    if let Some(pair) = runs.windows(2).find(|pair| pair[0].end() > pair[1].start) {
        return Err(Error::corrupt(format!("two extents share disk block {}", pair[1].start)));
    }
    runs.dedup_by(|next, last| {
        let adjacent = last.end() == next.start;
        if adjacent {
            last.blocks += next.blocks;
        }
        adjacent
    });
    Ok(runs)
}

/// Blocks of `from` not in `take`; both sorted, merged, free of overlaps.
fn difference(from: &[Run], take: &[Run]) -> Vec<Run> {
    let mut out = Vec::new();
    let mut takes = take.iter().peekable();
    for run in from {
        let mut at = run.start;
        while let Some(taken) = takes.peek().filter(|taken| taken.start < run.end()) {
            if taken.start > at {
                out.push(Run::new(at, taken.start.0 - at.0));
            }
            at = at.max(taken.end());
            if taken.end() > run.end() {
                break;
            }
            takes.next();
        }
        if at < run.end() {
            out.push(Run::new(at, run.end().0 - at.0));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn extent(file_block: u64, disk_block: u64, len: u32, unwritten: bool) -> Extent {
        Extent { file_block, disk_block: BlockNo(disk_block), len, unwritten, birth: 0 }
    }

    /// A list with gaps, its disk blocks apart from those of other lists by `base`.
    fn list(base: u64) -> impl Strategy<Value = Vec<Extent>> {
        prop::collection::vec((0u64..4, 0u64..3, 1u32..6, any::<bool>()), 0..12).prop_map(move |parts| {
            let (mut file, mut disk) = (0, base);
            let mut out = Vec::new();
            for (hole, gap, len, unwritten) in parts {
                file += hole;
                disk += gap;
                out.push(extent(file, disk, len, unwritten));
                file += u64::from(len);
                disk += u64::from(len);
            }
            out
        })
    }

    fn blocks(extents: &[Extent]) -> BTreeMap<u64, (u64, bool)> {
        extents
            .iter()
            .flat_map(|e| {
                (0..u64::from(e.len)).map(|i| (e.file_block + i, (e.disk_block.0 + i, e.unwritten)))
            })
            .collect()
    }

    fn run_blocks(runs: &[Run]) -> BTreeSet<u64> {
        runs.iter().flat_map(|run| run.start.0..run.end().0).collect()
    }

    #[test]
    fn refuses_what_cannot_be() {
        let good = extent(5, 9, 3, true);
        assert_eq!(Extent::decode(5, &good.encode()).unwrap(), good);
        assert!(Extent::decode(FILE_BLOCKS_MAX - 2, &good.encode()).is_err());
        for bad in [
            extent(0, 0, 1, false),
            extent(0, 9, 0, false),
            extent(0, 9, 32769, false),
            extent(0, u64::MAX, 1, false),
        ] {
            assert!(Extent::decode(0, &bad.encode()).is_err(), "{bad:?}");
        }
        let mut flags = good.encode();
        flags[14] = 3;
        assert!(Extent::decode(5, &flags).is_err());
        assert!(Extent::decode(5, &good.encode()[1..]).is_err());
    }

    #[test]
    fn merging_stops_at_the_limit() {
        let half = EXTENT_BLOCKS_MAX / 2;
        let a = extent(0, 100, half, false);
        let b = extent(half.into(), 100 + u64::from(half), half, false);
        assert_eq!(a.merged(&b).unwrap().len, EXTENT_BLOCKS_MAX);
        assert!(a.merged(&Extent { len: half + 1, ..b }).is_none());
        assert!(a.merged(&Extent { unwritten: true, ..b }).is_none());
        assert!(a.merged(&Extent { disk_block: BlockNo(7), ..b }).is_none());
        assert!(a.merged(&Extent { birth: 1, ..b }).is_none());
    }

    #[test]
    fn cutting_a_run() {
        let parts: Vec<_> = extents_of_run(10, Run::new(BlockNo(1000), 70000), true, 0).collect();
        assert_eq!(parts.len(), 3);
        assert_eq!(parts.iter().map(|e| u64::from(e.len)).sum::<u64>(), 70000);
        check_list(&parts).unwrap();
        assert_eq!(parts[2].disk_end(), BlockNo(71000));
    }

    #[test]
    fn subtract_refuses_shared_blocks() {
        let twice = [extent(0, 10, 4, false), extent(9, 13, 2, false)];
        assert!(subtract(&twice, &[]).is_err());
        assert!(subtract(&[], &twice).is_err());
    }

    proptest! {
        #[test]
        fn carve_is_set_difference(extents in list(50), start in 0u64..40, len in 0u64..40) {
            let left = carve(&extents, start, start + len);
            check_list(&left).unwrap();
            let mut expected = blocks(&extents);
            expected.retain(|block, _| !(start..start + len).contains(block));
            prop_assert_eq!(blocks(&left), expected);
        }

        #[test]
        fn overlay_prefers_the_new(old in list(50), new in list(500)) {
            let both = overlay(&old, &new);
            check_list(&both).unwrap();
            let mut expected = blocks(&old);
            expected.extend(blocks(&new));
            prop_assert_eq!(blocks(&both), expected);
        }

        #[test]
        fn merging_changes_no_block(extents in list(50)) {
            let mut merged = extents.clone();
            merge_list(&mut merged);
            prop_assert_eq!(blocks(&merged), blocks(&extents));
            prop_assert!(merged.windows(2).all(|pair| pair[0].merged(&pair[1]).is_none()));
        }

        #[test]
        fn subtract_is_set_difference(removed in list(50), inserted in list(52)) {
            let (freed, allocated) = subtract(&removed, &inserted).unwrap();
            let disk = |list: &[Extent]| run_blocks(&list.iter().map(Extent::run).collect::<Vec<_>>());
            prop_assert_eq!(run_blocks(&freed), &disk(&removed) - &disk(&inserted));
            prop_assert_eq!(run_blocks(&allocated), &disk(&inserted) - &disk(&removed));
            for runs in [freed, allocated] {
                prop_assert!(runs.windows(2).all(|pair| pair[0].end() < pair[1].start));
            }
        }
    }
}
