//! What a group has collected for one file.
//!
//! Bytes by offset, and the runs of blocks that they touch, whole units: of these the group's limits are
//! made, so they are counted as the writes come.
//!
//! Invariant: `runs` and `blocks` follow from `ranges` and the file's unit. The unit may change before the
//! commit, which therefore counts again ([`GroupPart::runs`]).
//!
//! Neighbours: [`super`] collects; [`super::commit`] and [`super::exchange`] write.

use crate::inode::InodeRef;
use quire_base::BLOCK_SIZE;
use quire_base::units::blocks_for;
use quire_cache::GroupPart;
use rangemap::RangeSet;
use std::collections::BTreeMap;
use std::ops::Range;

/// A range grows by what is written behind it up to so many bytes, so that its memory is not moved again
/// and again.
const RANGE_BYTES: usize = 1 << 20;

/// A group's bytes for one file.
pub(super) struct Collected {
    pub(super) inode: InodeRef,
    /// By offset; none overlaps another.
    pub(super) ranges: BTreeMap<u64, Vec<u8>>,
    /// The size, if the group has set one; nothing lies beyond it.
    pub(super) size: Option<u64>,
    /// The blocks of all ranges.
    runs: RangeSet<u64>,
    blocks: u64,
}

impl Collected {
    pub(super) fn new(inode: &InodeRef) -> Collected {
        Collected {
            inode: inode.clone(),
            ranges: BTreeMap::new(),
            size: None,
            runs: RangeSet::new(),
            blocks: 0,
        }
    }

    /// The end of the last byte written, or the size that was set.
    pub(super) fn end(&self) -> u64 {
        let written = self.ranges.last_key_value().map_or(0, |(at, bytes)| at + bytes.len() as u64);
        self.size.unwrap_or(written)
    }

    /// Whether the size on disk has to rise for a crash to leave all of the group. It never falls while the
    /// gate's permit is held.
    pub(super) fn grows_on_disk(&self) -> bool {
        self.end() > self.inode.meta().record.size
    }

    /// The size as the group's owner sees it.
    pub(super) fn seen_size(&self) -> u64 {
        self.size.unwrap_or(self.inode.size().max(self.end()))
    }

    /// Takes out what lies beyond `size`.
    fn cut(&mut self, size: u64) {
        self.ranges.split_off(&size);
        if let Some((at, bytes)) = self.ranges.iter_mut().next_back() {
            bytes.truncate((size - at) as usize);
        }
        let runs = self.ranges.iter().map(|(at, bytes)| self.blocks_of(*at, at + bytes.len() as u64));
        self.runs = runs.collect();
        self.blocks = self.runs.iter().map(|run| run.end - run.start).sum();
    }

    /// The blocks of a range of bytes, whole units.
    fn blocks_of(&self, start: u64, end: u64) -> Range<u64> {
        let unit = unit_of(&self.inode);
        start / BLOCK_SIZE as u64 / unit * unit..blocks_for(end).next_multiple_of(unit)
    }

    /// Blocks that it writes, whole units, if it writes `[start, end)` as well.
    pub(super) fn blocks_with(&self, start: u64, end: u64) -> u64 {
        let blocks = self.blocks_of(start, end);
        let new: u64 = match blocks.is_empty() {
            true => 0,
            false => self.runs.gaps(&blocks).map(|gap| gap.end - gap.start).sum(),
        };
        self.blocks + new
    }

    /// Blocks that it writes, and the runs that they make.
    pub(super) fn counts(&self) -> (u64, usize) {
        (self.blocks, self.runs.len())
    }

    /// Writes zeros to a gap, and bytes.
    pub(super) fn write(&mut self, gap: Option<Range<u64>>, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        self.fill(gap);
        self.insert(offset, data);
        self.size = self.size.map(|size| size.max(end));
    }

    /// Writes zeros to a gap, and sets the size.
    pub(super) fn resize(&mut self, gap: Option<Range<u64>>, size: u64) {
        self.fill(gap);
        self.cut(size);
        self.size = Some(size);
    }

    fn fill(&mut self, gap: Option<Range<u64>>) {
        if let Some(gap) = gap {
            self.insert(gap.start, &vec![0; (gap.end - gap.start) as usize]);
        }
    }

    /// Puts bytes over what is there.
    fn insert(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        let blocks = self.blocks_of(offset, end);
        self.blocks = self.blocks_with(offset, end);
        self.runs.insert(blocks);
        let before = self.ranges.range(..=offset).next_back().map(|(at, bytes)| (*at, bytes.len() as u64));
        if let Some((at, len)) = before
            && (at + len > offset || at + len == offset && (len as usize) < RANGE_BYTES)
        {
            // Overlaps or touches: it grows, or is written over.
            let bytes = self.ranges.get_mut(&at).expect("it was found");
            let from = (offset - at) as usize;
            let over = (bytes.len() - from).min(data.len());
            bytes[from..from + over].copy_from_slice(&data[..over]);
            bytes.extend_from_slice(&data[over..]);
            self.cut_behind(at, end.max(at + len));
        } else {
            self.cut_behind(offset, end);
            self.ranges.insert(offset, data.to_vec());
        }
    }

    /// Takes what `[start, end)` covers out of the ranges that begin behind `start`.
    fn cut_behind(&mut self, start: u64, end: u64) {
        let covered: Vec<u64> = self.ranges.range(start + 1..end).map(|(at, _)| *at).collect();
        for at in covered {
            let bytes = self.ranges.remove(&at).expect("it was found");
            let rest = end - at;
            if (bytes.len() as u64) > rest {
                self.ranges.insert(end, bytes[rest as usize..].to_vec());
            }
        }
    }

    /// Zeros for the rest of the block in which the file ends from now on.
    pub(super) fn tail(&self) -> Option<(u64, Vec<u8>)> {
        let size = self.size.filter(|size| *size < self.inode.size())?;
        let len = size.next_multiple_of(BLOCK_SIZE as u64) - size;
        (len > 0).then(|| (size, vec![0; len as usize]))
    }

    /// Lays what the group has over what a read from `offset` gave.
    pub(super) fn overlay(&self, offset: u64, out: &mut [u8]) {
        let end = offset + out.len() as u64;
        let before = self.ranges.range(..offset).next_back();
        for (at, bytes) in before.into_iter().chain(self.ranges.range(offset..end)) {
            let (low, high) = ((*at).max(offset), (at + bytes.len() as u64).min(end));
            if low < high {
                let part = &bytes[(low - at) as usize..(high - at) as usize];
                out[(low - offset) as usize..(high - offset) as usize].copy_from_slice(part);
            }
        }
    }

    /// As the cache takes it; `tail` is [`Collected::tail`].
    pub(super) fn part<'a>(&'a self, tail: &'a Option<(u64, Vec<u8>)>) -> GroupPart<'a> {
        GroupPart {
            mapping: self.inode.mapping(),
            ranges: self
                .ranges
                .iter()
                .map(|(at, bytes)| (*at, &bytes[..]))
                .chain(tail.iter().map(|(at, bytes)| (*at, &bytes[..])))
                .collect(),
            unit: unit_of(&self.inode),
            blocks: blocks_for(self.inode.size().min(self.size.unwrap_or(u64::MAX))),
        }
    }
}

/// Blocks of the file's unit, or 1.
fn unit_of(inode: &InodeRef) -> u64 {
    inode.unit_blocks().unwrap_or(1)
}
