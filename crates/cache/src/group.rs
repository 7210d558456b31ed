//! A group of writes to one or several files that takes effect at once, for readers and in the journal.
//!
//! Protocol
//! 1. A folio for every block, pinned; homes are asked for; blocks that the group covers in part are read in.
//! 2. All segments are locked, ascending by file and block, and 1 is checked again (else: unlock, from 1).
//! 3. Space is reserved for blocks without a home. Dirty blocks are claimed: the group's record has their
//!    content as well, and cleans them.
//! 4. The caller journals what the blocks are to hold ([`Composed`]): the last thing that can fail. No reader
//!    has seen anything yet.
//! 5. Copy; `uptodate`, `mapped`; the caller publishes larger sizes; writeback bits of claimed blocks are
//!    cleared; unlock.
//!
//! Invariants: as those of [`crate::write`]; and after a failure nothing has changed. The blocks of a group
//! are clean afterwards: their content is in the journal.
//!
//! Neighbours: [`crate::write`] has the same steps for one write; the volume collects groups.

use crate::backing::Backing;
use crate::bits::{masks, runs};
use crate::budget::Room;
use crate::core::MemoryWait;
use crate::finish;
use crate::index::BLOCKS_END;
use crate::index::Pins;
use crate::mapping::Mapping;
use crate::reclaim::touch;
use crate::segment::{self, SegmentLock};
use crate::span::Span;
use crate::write::{Source, homeless, store};
use quire_base::patience;
use quire_base::sync::Arc;
use quire_base::units::blocks_for;
use quire_base::{BLOCK_SIZE, Result};

/// The group's bytes for one file.
pub struct GroupPart<'a> {
    /// The file.
    pub mapping: &'a Arc<Mapping>,
    /// Offsets and bytes: ascending, none empty, none overlapping another.
    pub ranges: Vec<(u64, &'a [u8])>,
    /// Blocks of a unit that no crash may leave in part, or 1. The group takes whole units.
    pub unit: u64,
    /// Blocks of the file before the group. A unit ends there, if it is the last; nobody changes that
    /// meanwhile, if `unit` is not 1.
    pub blocks: u64,
}

/// What the blocks of a group's part are to hold; see the module's step 4.
pub struct Composed<'a> {
    part: &'a GroupPart<'a>,
    locked: &'a Locked,
}

/// Runs of blocks of one part, with their folios.
#[derive(Default)]
struct Locked {
    runs: Vec<(u64, u64, Pins)>,
}

impl GroupPart<'_> {
    /// The runs of blocks that the ranges touch, with the rest of their units: first block and end,
    /// ascending, apart.
    pub fn runs(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (offset, bytes) in &self.ranges {
            let touched = blocks_for(offset + bytes.len() as u64);
            let first = offset / BLOCK_SIZE as u64 / self.unit * self.unit;
            let end = touched.next_multiple_of(self.unit).min(self.blocks.max(touched));
            match runs.last_mut() {
                Some((_, last)) if *last >= first => *last = end.max(*last),
                _ => runs.push((first, end)),
            }
        }
        runs
    }

    /// Blocks of the runs that the ranges do not cover entirely.
    fn edges(&self) -> Vec<u64> {
        // What is covered without a gap.
        let mut covered: Vec<(u64, u64)> = Vec::new();
        for (offset, bytes) in &self.ranges {
            let end = offset + bytes.len() as u64;
            match covered.last_mut() {
                Some((_, last)) if *last == *offset => *last = end,
                _ => covered.push((*offset, end)),
            }
        }
        let mut edges = Vec::new();
        for (first, end) in self.runs() {
            let mut at = first;
            while at < end {
                let (start, stop) = (at * BLOCK_SIZE as u64, (at + 1) * BLOCK_SIZE as u64);
                let part = covered.partition_point(|(_, end)| *end < stop);
                match covered.get(part) {
                    Some((from, to)) if *from <= start => at = (to / BLOCK_SIZE as u64).min(end),
                    _ => {
                        edges.push(at);
                        at += 1;
                    }
                }
            }
        }
        edges
    }

    /// The ranges that end behind `start`.
    fn ranges_from(&self, start: u64) -> &[(u64, &[u8])] {
        let from = self.ranges.partition_point(|(offset, bytes)| offset + bytes.len() as u64 <= start);
        &self.ranges[from..]
    }

    /// Whether the ranges leave nothing of `[start, end)` out.
    pub fn covers(&self, start: u64, end: u64) -> bool {
        let mut at = start;
        for (offset, bytes) in self.ranges_from(start) {
            if at >= end || *offset > at {
                break;
            }
            at = offset + bytes.len() as u64;
        }
        at >= end
    }

    /// Lays the ranges over what the file has from `start` on.
    pub fn overlay(&self, start: u64, out: &mut [u8]) {
        let end = start + out.len() as u64;
        for (offset, bytes) in self.ranges_from(start).iter().take_while(|(offset, _)| *offset < end) {
            let (low, high) = ((*offset).max(start), (offset + bytes.len() as u64).min(end));
            let part = &bytes[(low - offset) as usize..(high - offset) as usize];
            out[(low - start) as usize..(high - start) as usize].copy_from_slice(part);
        }
    }

    fn lock_all(&self, locked: &Locked) {
        segment::lock_all(self.segments(locked), &self.mapping.core.parking);
    }

    /// The segments of all runs, ascending. In a large folio a segment has many blocks: it may belong to
    /// several runs, and comes once all the same.
    fn segments<'a>(&'a self, locked: &'a Locked) -> impl Iterator<Item = &'a SegmentLock> {
        let mut last: *const SegmentLock = std::ptr::null();
        locked
            .runs
            .iter()
            .flat_map(|(first, end, pins)| self.mapping.segments(pins, *first, *end))
            .filter(move |segment| !std::ptr::eq(std::mem::replace(&mut last, *segment), *segment))
    }

    fn unlock_unchanged(&self, locked: &Locked) {
        let parking = &self.mapping.core.parking;
        self.segments(locked).for_each(|segment| segment.unlock_unchanged(parking));
    }

    /// Pins a folio for every block and reads in what the group covers in part.
    fn load(&self, edges: &[u64], room: &mut Room<'_>, wait: &mut MemoryWait) -> Result<Locked> {
        let core = &self.mapping.core;
        let mut locked = Locked::default();
        for (first, end) in self.runs() {
            let mut pins = Pins::new();
            while let Err(short) = self.mapping.pin_or_make(first, end, BLOCKS_END, &mut pins, room) {
                core.refill_room(room, short.0, wait)?;
            }
            self.mapping.learn_homes(&pins, first, end)?;
            for edge in edges.iter().filter(|edge| (first..end).contains(edge)) {
                self.mapping.fill_edge(&pins, *edge)?;
            }
            pins.iter().try_for_each(|pin| self.mapping.pass_filled(pin, first, end))?;
            locked.runs.push((first, end, pins));
        }
        Ok(locked)
    }

    /// Under the locks: what `load` has seen to still holds.
    fn is_loaded(&self, edges: &[u64], locked: &Locked) -> bool {
        locked.runs.iter().all(|(first, end, pins)| {
            self.mapping.may_copy(pins, *first, *end, None, None)
                && edges
                    .iter()
                    .filter(|edge| (*first..*end).contains(edge))
                    .all(|edge| self.mapping.may_copy(pins, *edge, edge + 1, Some(*edge), None))
        })
    }

    /// Claims the dirty blocks, under the locks.
    fn claim(&self, locked: &Locked) -> Vec<Span> {
        let mut spans = Vec::new();
        for (first, end, pins) in &locked.runs {
            for pin in pins {
                let (from, to) = pin.clip(*first, *end);
                for (word, mask) in masks(from, to) {
                    let claimed = runs(word, self.mapping.claim_dirty(pin, word, mask));
                    spans.extend(claimed.map(|(first, count)| Span { pin: pin.clone(), first, count }));
                }
            }
        }
        spans
    }
}

impl Composed<'_> {
    /// Runs of blocks of the file: first block and count, ascending.
    pub fn runs(&self) -> impl Iterator<Item = (u64, u64)> {
        self.locked.runs.iter().map(|(first, end, _)| (*first, end - first))
    }

    /// What the blocks from `first` on, of one run, are to hold.
    pub fn copy(&self, first: u64, out: &mut [u8]) {
        let start = first * BLOCK_SIZE as u64;
        let last = first + (out.len() / BLOCK_SIZE) as u64;
        for (_, _, pins) in &self.locked.runs {
            for pin in pins {
                let (from, to) = pin.clip(first, last);
                for block in (from..to).filter(|block| pin.uptodate().get(*block)) {
                    let at = (pin.start() + u64::from(block) - first) as usize * BLOCK_SIZE;
                    let offset = start + at as u64;
                    // Nothing of it would stay.
                    if self.part.covers(offset, offset + BLOCK_SIZE as u64) {
                        continue;
                    }
                    let memory = pin.memory(block).cast_const();
                    // SAFETY: arena memory of a pinned folio, whose segments are locked.
                    let source = unsafe { std::slice::from_raw_parts(memory, BLOCK_SIZE) };
                    out[at..at + BLOCK_SIZE].copy_from_slice(source);
                }
            }
        }
        self.part.overlay(start, out);
    }
}

/// What a group's parts need in memory; it stays there while this lives.
pub struct Loaded {
    _locked: Vec<Locked>,
}

/// Loads what [`write_group`] is to need, for a caller that is to keep writeback off the files meanwhile:
/// memory is not waited for then, since it may be dirty data of these files that has it.
pub fn load_group(parts: &[GroupPart<'_>]) -> Result<Loaded> {
    let mut wait = MemoryWait::default();
    let load = |part: &GroupPart<'_>| {
        let mut room = Room::empty(&part.mapping.core.budget);
        part.load(&part.edges(), &mut room, &mut wait)
    };
    Ok(Loaded { _locked: parts.iter().map(load).collect::<Result<_>>()? })
}

/// Writes all parts at once; they are of different files, ascending by inode. `journal` gets what the blocks
/// are to hold, part by part, with everything locked; it waits for nothing, and if it fails nothing has
/// changed. `publish` runs when the content is in place and still locked. The caller holds the gates of the
/// files buffered, or exclusively.
pub fn write_group(
    parts: &[GroupPart<'_>],
    journal: &mut dyn FnMut(&[Composed<'_>]) -> Result<()>,
    publish: &mut dyn FnMut(),
) -> Result<()> {
    let edges: Vec<Vec<u64>> = parts.iter().map(GroupPart::edges).collect();
    let mut wait = MemoryWait::default();
    let mut rooms: Vec<Room<'_>> = parts.iter().map(|part| Room::empty(&part.mapping.core.budget)).collect();
    loop {
        let mut locked = Vec::with_capacity(parts.len());
        for ((part, edges), room) in parts.iter().zip(&edges).zip(&mut rooms) {
            locked.push(part.load(edges, room, &mut wait)?);
        }
        let all = || parts.iter().zip(&locked);
        all().for_each(|(part, locked)| part.lock_all(locked));
        if !all().zip(&edges).all(|((part, locked), edges)| part.is_loaded(edges, locked)) {
            all().for_each(|(part, locked)| part.unlock_unchanged(locked));
            continue;
        }
        return change(parts, &locked, journal, publish);
    }
}

/// Steps 3 to 5. All segments are locked; unlocks them.
fn change(
    parts: &[GroupPart<'_>],
    locked: &[Locked],
    journal: &mut dyn FnMut(&[Composed<'_>]) -> Result<()>,
    publish: &mut dyn FnMut(),
) -> Result<()> {
    let mut reserved: Vec<(Arc<dyn Backing>, u64)> = Vec::new();
    let mut reserve = || -> Result<()> {
        for (part, locked) in parts.iter().zip(locked) {
            let blocks = locked.runs.iter().map(|(first, end, pins)| homeless(pins, *first, *end)).sum();
            let backing = part.mapping.backing()?;
            if blocks > 0 {
                patience::at_once(|| backing.reserve(blocks))?;
                reserved.push((backing, blocks));
            }
        }
        Ok(())
    };
    let ready = reserve();
    let claimed: Vec<Vec<Span>> = match &ready {
        Ok(()) => parts.iter().zip(locked).map(|(part, locked)| part.claim(locked)).collect(),
        Err(_) => Vec::new(),
    };
    let outcome = ready.and_then(|()| {
        let composed: Vec<Composed<'_>> =
            parts.iter().zip(locked).map(|(part, locked)| Composed { part, locked }).collect();
        journal(&composed)
    });
    if let Err(error) = outcome {
        for (backing, blocks) in reserved {
            backing.unreserve(blocks);
        }
        for (part, spans) in parts.iter().zip(&claimed) {
            part.mapping.put_back(spans);
        }
        parts.iter().zip(locked).for_each(|(part, locked)| part.unlock_unchanged(locked));
        return Err(error);
    }
    for (part, locked) in parts.iter().zip(locked) {
        let core = &part.mapping.core;
        for (first, end, pins) in &locked.runs {
            for pin in pins {
                for (offset, bytes) in part.ranges_from(pin.start() * BLOCK_SIZE as u64) {
                    if *offset >= pin.end_block() * BLOCK_SIZE as u64 {
                        break;
                    }
                    store(pin, *offset, offset + bytes.len() as u64, Source::Bytes(bytes));
                }
                let (from, to) = pin.clip(*first, *end);
                pin.uptodate().set(from, to);
                pin.mapped().set(from, to);
                touch(core, pin, from, to);
            }
        }
    }
    publish();
    let mut ended = Vec::with_capacity(claimed.len());
    for (part, spans) in parts.iter().zip(&claimed) {
        spans.iter().for_each(|span| part.mapping.errors.clear(span.file_block(), span.end_block()));
        ended.push(part.mapping.clear_writeback(spans));
    }
    for (part, locked) in parts.iter().zip(locked) {
        let core = &part.mapping.core;
        part.segments(locked).for_each(|segment| segment.unlock(&core.parking));
        core.metrics.writes.add(1);
    }
    for ((part, spans), waits) in parts.iter().zip(&claimed).zip(ended) {
        let cleaned = spans.iter().map(|span| u64::from(span.count)).sum();
        finish::settle(part.mapping, spans, cleaned, waits, |_| ());
    }
    Ok(())
}
