//! Writeback of units: all dirty blocks of an aligned unit go into one record of the journal, so that a crash
//! leaves no unit in part.
//!
//! Protocol. The backing names the unit ([`Backing::unit_blocks`]). A gathering takes whole units. It shares
//! *all* segments of the unit's listed folios, in ascending order, and then looks at the list again: if it
//! has changed, it releases them and starts the unit over. From then on no write that touches what it has
//! claimed can have taken effect in part: such a write needs a segment that is held, and one that came before
//! has left its folios in the list. Then it claims the dirty blocks, and the backing journals their content
//! ([`Backing::journal`]), with the shares held: so records come in the order of the contents. To the rest of
//! the cache that is a write that has completed.
//!
//! One gathering of units at a time works on a file ([`Mapping::journaling`]). Else two could take parts of
//! one unit, in different folios, and the later part could get the lower `Seq`.
//!
//! Blocks of other files come here as well, if a record in the journal has content of theirs that a replay
//! would put back ([`Backing::goes_through_journal`]): [`journal_run`], which knows no units.
//!
//! Invariants: a forced gathering that queues for a segment holds only lower segments of the same unit, and
//! nothing that is at the device. A backing that has no room for a record refuses; then everything goes back
//! to dirty, and the thread waits with nothing held.
//!
//! Neighbours: [`crate::writeback`] for files without units; [`crate::finish`] for what follows.

use crate::backing::Backing;
use crate::bits::{masks, runs};
use crate::finish;
use crate::folio::FolioPin;
use crate::mapping::Mapping;
use crate::outbox::Outbox;
use crate::span::{Contents, Span};
use crate::writeback::{Effort, Gathered};
use quire_base::sync::Arc;
use quire_base::{Error, ErrorKind, Result};

/// Blocks that one record has at most, unless a unit is larger.
pub const RECORD_BLOCKS: u64 = 32;
/// A record's blocks lie within an aligned window of the file, at least this large: what a look at its
/// extents finds is bounded.
const WINDOW_BLOCKS: u64 = 256;
/// Refusals in a row by a backing that then says there is room, before that counts as an error.
const REFUSALS_MAX: u32 = 10_000;
/// Units that changed their folios in a row while they were looked at, before the thread lets others go on.
const CHANGES_MAX: u32 = 64;

/// Journals a run of a file without units, in pieces that a record takes; gives back what the backing refused
/// for want of room.
pub(crate) fn journal_run(mapping: &Arc<Mapping>, backing: &dyn Backing, mut spans: Vec<Span>) -> Vec<Span> {
    while !spans.is_empty() {
        let mut blocks = 0;
        let fits = spans.iter().take_while(|span| {
            blocks += u64::from(span.count);
            blocks <= RECORD_BLOCKS
        });
        let rest = spans.split_off(fits.count().max(1));
        match backing.journal(&Contents::of(&spans)) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                spans.extend(rest);
                return spans;
            }
            outcome => finish::end_run(mapping, &spans, outcome),
        }
        spans = rest;
    }
    spans
}

/// What came of an attempt to take a unit.
enum Taken {
    /// Its dirty blocks are claimed.
    All,
    /// Somebody holds one of its segments: nothing of it is claimed.
    Busy,
    /// Folios came into it meanwhile.
    Changed,
}

/// A pass over the units of a mapping.
struct Units<'a> {
    mapping: &'a Arc<Mapping>,
    backing: &'a dyn Backing,
    effort: Effort<'a>,
    unit: u64,
    /// Claimed, and not yet in a record.
    spans: Vec<Span>,
    blocks: u64,
    /// Units that were passed over.
    busy: Vec<(u64, u64)>,
    started: u64,
    /// Blocks of the record that was refused last.
    refused_blocks: u64,
}

/// As [`Mapping::gather`], for a file with units of `unit` blocks; `start` and `end` are multiples of it.
pub(crate) fn gather(
    mapping: &Arc<Mapping>,
    backing: &dyn Backing,
    outbox: &mut Outbox,
    (start, end): (u64, u64),
    unit: u64,
    effort: Effort<'_>,
    blocks_max: u64,
) -> Result<Gathered> {
    outbox.hand_over();
    let (spans, busy) = (Vec::new(), Vec::new());
    let mut units =
        Units { mapping, backing, effort, unit, spans, blocks: 0, busy, started: 0, refused_blocks: 0 };
    let mut at = start;
    let mut refusals = 0;
    loop {
        let journaling = match effort {
            Effort::Background => mapping.journaling.try_lock(),
            Effort::Forced { .. } => Some(mapping.journaling.lock()),
        };
        // Somebody else is at it.
        let Some(journaling) = journaling else { break };
        match units.run(at, end, blocks_max) {
            Ok(next) => {
                at = next;
                break;
            }
            Err(refused_at) => {
                drop(journaling);
                refusals += 1;
                if refusals > REFUSALS_MAX {
                    return Err(Error::new(
                        ErrorKind::Busy,
                        format!("journaling data of inode {}: there is never room for it", mapping.inode),
                    ));
                }
                backing.wait_for_room(units.refused_blocks)?;
                at = refused_at;
            }
        }
    }
    let next = if at >= end { end } else { at };
    Ok(Gathered { started: units.started, next, busy: units.busy, is_held: false })
}

impl Units<'_> {
    /// Journals the units of `[at, end)` until there are about `blocks_max` blocks; gives where it stopped.
    /// An error is the block at which the backing refused.
    fn run(&mut self, mut at: u64, end: u64, blocks_max: u64) -> Result<u64, u64> {
        let mut changes = 0;
        while self.started < blocks_max
            && let Some(unit) = self.next_unit(at, end)
        {
            if self.spans.first().is_some_and(|first| {
                let window = self.unit.max(WINDOW_BLOCKS);
                self.blocks + self.unit > RECORD_BLOCKS.max(self.unit)
                    || first.file_block() / window != unit / window
            }) {
                self.journal()?;
            }
            match self.take(unit, false) {
                Taken::All => {}
                Taken::Busy => match self.effort {
                    Effort::Background | Effort::Forced { passing: true, .. } => {
                        self.mapping.core.metrics.writeback_busy.add(1);
                        self.busy.push((unit, unit + self.unit));
                    }
                    Effort::Forced { passing: false, .. } => {
                        // Hold nothing that does not end by itself.
                        self.journal()?;
                        self.mapping.core.metrics.writeback_queued.add(1);
                        if matches!(self.take(unit, true), Taken::Changed) {
                            continue;
                        }
                    }
                },
                Taken::Changed => {
                    changes += 1;
                    if changes > CHANGES_MAX {
                        changes = 0;
                        self.journal()?;
                        quire_base::sync::thread::yield_now();
                    }
                    continue;
                }
            }
            at = unit + self.unit;
        }
        let is_over = self.started < blocks_max;
        self.journal()?;
        Ok(if is_over { end } else { at })
    }

    /// The first unit from `at` on with a dirty block that is wanted.
    fn next_unit(&self, mut at: u64, end: u64) -> Option<u64> {
        let mut pins = Vec::new();
        while at < end {
            self.mapping.pin_listed(at, end, 1, &mut pins);
            let pin = pins.pop()?;
            let (from, to) = pin.clip(at, end);
            for (word, mask) in masks(from, to) {
                let base = pin.start() + word as u64 * 64;
                let mut bits = pin.dirty().word(word).load(quire_base::sync::atomic::Ordering::SeqCst) & mask;
                if let Effort::Forced { blocks, .. } = self.effort {
                    bits &= blocks.bits_from(base);
                }
                if bits != 0 {
                    let block = base + u64::from(bits.trailing_zeros());
                    return Some(block / self.unit * self.unit);
                }
            }
            at = pin.end_block();
        }
        None
    }

    /// Claims the dirty blocks of a unit; `queues`: it waits for busy segments.
    fn take(&mut self, unit: u64, queues: bool) -> Taken {
        let end = unit + self.unit;
        let parking = &self.mapping.core.parking;
        let mut pins: Vec<FolioPin> = Vec::new();
        self.mapping.pin_listed(unit, end, usize::MAX, &mut pins);
        let mut shared: Vec<(usize, u32)> = Vec::new();
        let mut is_busy = false;
        'all: for (nth, pin) in pins.iter().enumerate() {
            let (mut from, to) = pin.clip(unit, end);
            while from < to {
                let number = pin.segment_number(from);
                let stop = pin.segment_blocks(number).1.min(to);
                let segment = pin.segment(number);
                if queues {
                    segment.share(parking);
                } else if !segment.try_share() {
                    is_busy = true;
                    break 'all;
                }
                shared.push((nth, number));
                from = stop;
            }
        }
        let mut again: Vec<FolioPin> = Vec::new();
        self.mapping.pin_listed(unit, end, usize::MAX, &mut again);
        // A folio that left the list is clean.
        let is_new = |pin: &FolioPin| pins.iter().all(|old| old.folio() != pin.folio());
        let changed = !is_busy && again.iter().any(is_new);
        if !is_busy && !changed {
            for pin in &pins {
                self.claim(pin, unit, end);
            }
        }
        for (nth, number) in shared {
            pins[nth].segment(number).unshare(parking);
        }
        match (is_busy, changed) {
            (true, _) => Taken::Busy,
            (_, true) => Taken::Changed,
            _ => Taken::All,
        }
    }

    /// Claims the dirty blocks of `[unit, end)` in a folio; each span gets a share of its own.
    fn claim(&mut self, pin: &FolioPin, unit: u64, end: u64) {
        let (mut from, to) = pin.clip(unit, end);
        while from < to {
            let number = pin.segment_number(from);
            let stop = pin.segment_blocks(number).1.min(to);
            let (word, mask) = masks(from, stop).next().expect("the range has a block");
            for (first, count) in runs(word, self.mapping.claim_dirty(pin, word, mask)) {
                pin.segment(number).share_again();
                self.blocks += u64::from(count);
                self.spans.push(Span { pin: pin.clone(), first, count });
            }
            from = stop;
        }
    }

    /// Journals what is claimed. An error is its first block: the backing refused, and all is dirty again.
    fn journal(&mut self) -> Result<(), u64> {
        let spans = std::mem::take(&mut self.spans);
        let blocks = std::mem::take(&mut self.blocks);
        let Some(first) = spans.first().map(Span::file_block) else { return Ok(()) };
        match self.backing.journal(&Contents::of(&spans)) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.mapping.put_back(&spans);
                spans.iter().for_each(|span| span.unshare(&self.mapping.core.parking));
                self.refused_blocks = blocks;
                Err(first / self.unit * self.unit)
            }
            outcome => {
                self.started += blocks;
                self.mapping.core.metrics.writeback_runs.add(1);
                self.mapping.core.metrics.writeback_blocks.add(blocks);
                finish::end_run(self.mapping, &spans, outcome);
                Ok(())
            }
        }
    }
}
