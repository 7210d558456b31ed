//! What the bytes of a file may be after a crash.
//!
//! For a crash at event `e` that shows configuration `c`, every byte of a file has an *origin*: what the file
//! held when the level began, or a write, or the zeros of a truncate, punch, zeroing or hole. An origin D may
//! be found if it was called before `e` and no other change of that byte, which was called after D had
//! returned, is *certain* to be there: because a force that returned before `e` covers it, or because it is
//! in `c` and goes with a record (a truncate, or the whole blocks of a punch or zeroing). Everything else is
//! stale or foreign.
//!
//! Collapse and insert move bytes. Those in `c` cut the file's life into *epochs*; a byte found at a position
//! after the last one is traced back through them, and a change counts where it can have been: not before a
//! shift that returned before it was called, not after one that was called after it returned. What was called
//! after a shift returned that is not in `c` cannot be there at all: a shift is durable before the next write
//! may follow it.
//!
//! A group is one record: its writes are there if it is in `c`, and only then.
//!
//! A read of the live volume is the same question. Certain is then what had returned before the read was
//! called.
//!
//! Neighbours: [`crate::oracle`] says which `c` are possible, and judges the size; [`crate::reads`] asks
//! about reads.

use crate::contents::{pattern, word_at};
use crate::image::shown;
use crate::model::BLOCK;
use crate::operation::{GroupEnd, OpId, Operation, Outcome, Record, group_patterns, group_pieces};
use quire::inodes::{FallocateMode, IoFlags};
use std::collections::BTreeSet;

/// Bytes that a device writes as a whole.
const SECTOR: u64 = 512;

/// What a change does to the bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Its pattern, at `start..end`, from byte `from` of the pattern on.
    Write {
        /// In bytes.
        from: u64,
        /// It is a group's: a record has it, with all other changes of the group.
        group: bool,
    },
    /// Zeros at `start..end`; those at `record` go with a record.
    Zero {
        /// Start and end in bytes.
        record: (u64, u64),
    },
    /// `start..end` is cut out.
    Collapse,
    /// `start..end` is opened.
    Insert,
}

/// One operation that changes a file's bytes.
#[derive(Clone, Debug)]
pub struct Change<'a> {
    /// When it was.
    pub record: &'a Record,
    /// The thread, and the place among its operations.
    pub place: (usize, usize),
    /// First byte.
    pub start: u64,
    /// Behind the last byte.
    pub end: u64,
    /// What it does there.
    pub effect: Effect,
}

impl Change<'_> {
    fn is_shift(&self) -> bool {
        matches!(self.effect, Effect::Collapse | Effect::Insert)
    }

    fn covers(&self, at: u64) -> bool {
        self.start <= at && at < self.end
    }

    /// As a file with such units has it: where a zeroing cuts a unit, it is a write of that.
    pub(crate) fn with_units(mut self, unit: u64) -> Self {
        let is_group = self.is_group();
        if let Effect::Zero { record } = &mut self.effect
            && record.1 != u64::MAX
            && unit > BLOCK
            && !is_group
        {
            *record = (record.0.next_multiple_of(unit), record.1 / unit * unit);
        }
        self
    }

    /// Whether it belongs to a group.
    pub fn is_group(&self) -> bool {
        matches!(self.record.operation, Operation::Group { .. })
    }

    /// Whether it moves bytes.
    pub(crate) fn moves(&self) -> bool {
        self.is_shift()
    }

    /// Whether it returned before the other was called.
    pub(crate) fn is_before(&self, other: &Change<'_>) -> bool {
        self.record.is_before(other.record)
    }
}

/// The changes that an operation makes to the bytes of `inode`.
pub fn changes<'a>(record: &'a Record, place: (usize, usize), inode: u64) -> Vec<Change<'a>> {
    match (&record.operation, &record.outcome) {
        (Operation::Group { writes, end }, Outcome::Done) if *end != GroupEnd::Dropped => {
            group_pieces(writes)
                .into_iter()
                .filter(|piece| piece.inode == inode)
                .map(|piece| Change {
                    record,
                    place,
                    start: piece.start,
                    end: piece.end,
                    effect: match piece.from {
                        Some(from) => Effect::Write { from, group: true },
                        None => Effect::Zero { record: (piece.start, piece.end) },
                    },
                })
                .collect()
        }
        _ => change(record, place, inode).into_iter().collect(),
    }
}

fn change<'a>(record: &'a Record, place: (usize, usize), inode: u64) -> Option<Change<'a>> {
    let make = |start, end, effect| Some(Change { record, place, start, end, effect });
    match (&record.operation, &record.outcome) {
        (Operation::Write { inode: of, .. }, Outcome::Written { at, count }) if *of == inode => {
            make(*at, at + count, Effect::Write { from: 0, group: false })
        }
        (Operation::Truncate { inode: of, size }, Outcome::Done) if *of == inode => {
            make(*size, u64::MAX, Effect::Zero { record: (*size, u64::MAX) })
        }
        (Operation::Allocate { inode: of, mode, offset, length }, Outcome::Done) if *of == inode => {
            let end = offset + length;
            match mode {
                FallocateMode::Allocate | FallocateMode::KeepSize => None,
                FallocateMode::PunchHole | FallocateMode::ZeroRange { .. } => {
                    let whole = (offset.next_multiple_of(BLOCK), end / BLOCK * BLOCK);
                    make(*offset, end, Effect::Zero { record: whole })
                }
                FallocateMode::Collapse => make(*offset, end, Effect::Collapse),
                FallocateMode::Insert => make(*offset, end, Effect::Insert),
            }
        }
        _ => None,
    }
}

/// What one crash, or one read, knows about one file.
pub struct Question<'a> {
    /// Every change of the file that may be there: it was called before the crash, and is in the
    /// configuration if it is a group's.
    pub changes: &'a [Change<'a>],
    /// Shifts in the configuration, in order.
    pub shifts: &'a [OpId],
    /// What the file held when the level began.
    pub base: &'a [u8],
    /// Whether a force that returned before the crash covers a change.
    pub is_durable: &'a dyn Fn(&Change<'_>) -> bool,
    /// Whether a change is in the configuration.
    pub is_in: &'a dyn Fn(&Change<'_>) -> bool,
    /// Writes that the size says were finished, and from which byte on.
    pub finished: &'a [(OpId, u64)],
}

/// A range of the found file whose bytes have one history.
#[derive(Clone, Debug)]
struct Stretch {
    start: u64,
    end: u64,
    /// The epoch in which the range begins to exist: after this many shifts.
    born: usize,
    /// Position of `start` in each epoch from `born` on.
    positions: Vec<u64>,
}

impl Stretch {
    fn position(&self, epoch: usize) -> Option<u64> {
        epoch.checked_sub(self.born).and_then(|index| self.positions.get(index)).copied()
    }
}

/// A change, with the epochs that it can have been in.
struct Placed<'a> {
    change: &'a Change<'a>,
    epochs: std::ops::RangeInclusive<usize>,
}

impl Question<'_> {
    /// Judges what was found, the file's bytes from `from` on; an error names the byte.
    pub fn judge(&self, from: u64, found: &[u8]) -> Result<(), String> {
        let found_end = from + found.len() as u64;
        let shifts: Vec<&Change<'_>> = self
            .shifts
            .iter()
            .filter_map(|id| self.changes.iter().find(|change| change.record.id == *id))
            .collect();
        let placed = self.place(&shifts);
        for stretch in stretches(found_end, &shifts) {
            let mut cuts = vec![stretch.start.max(from), stretch.end];
            for Placed { change, epochs } in &placed {
                let edges = match change.effect {
                    Effect::Zero { record } => vec![change.start, change.end, record.0, record.1],
                    _ => vec![change.start, change.end],
                };
                for at in epochs.clone().filter_map(|epoch| stretch.position(epoch)) {
                    let inside =
                        edges.iter().filter(|&&edge| edge > at && edge - at < stretch.end - stretch.start);
                    cuts.extend(inside.map(|edge| stretch.start + (edge - at)));
                }
            }
            cuts.extend(self.finished.iter().map(|(_, growth)| *growth));
            if let Some(base_at) = stretch.position(0) {
                let end = self.base.len() as u64;
                if end > base_at {
                    cuts.push(stretch.start + (end - base_at));
                }
            }
            cuts.retain(|cut| stretch.start.max(from) <= *cut && *cut <= stretch.end);
            cuts.sort_unstable();
            cuts.dedup();
            for range in cuts.windows(2) {
                let bytes = &found[(range[0] - from) as usize..(range[1] - from) as usize];
                self.judge_range(bytes, &stretch, &placed, range[0], range[1])?;
            }
        }
        Ok(())
    }

    fn place<'b>(&'b self, shifts: &[&Change<'_>]) -> Vec<Placed<'b>> {
        let missing: Vec<_> = self
            .changes
            .iter()
            .filter(|change| change.is_shift() && !self.shifts.contains(&change.record.id))
            .collect();
        let could_be =
            |change: &&Change<'_>| !change.is_shift() && !missing.iter().any(|shift| shift.is_before(change));
        let epochs = |change: &Change<'_>| {
            let first = shifts.iter().rposition(|shift| shift.is_before(change)).map_or(0, |at| at + 1);
            let last = shifts.iter().position(|shift| change.is_before(shift)).unwrap_or(shifts.len());
            first..=last
        };
        let placed = self.changes.iter().filter(could_be);
        placed.map(|change| Placed { change, epochs: epochs(change) }).collect()
    }

    fn judge_range(
        &self,
        found: &[u8],
        stretch: &Stretch,
        placed: &[Placed<'_>],
        start: u64,
        end: u64,
    ) -> Result<(), String> {
        let into = start - stretch.start;
        let touching: Vec<&Placed<'_>> = placed
            .iter()
            .filter(|placed| {
                placed
                    .epochs
                    .clone()
                    .any(|epoch| stretch.position(epoch).is_some_and(|at| placed.change.covers(at + into)))
            })
            .collect();
        let certain: Vec<&Change<'_>> = touching
            .iter()
            .filter(|placed| self.is_certain(placed, stretch, into, start))
            .map(|placed| placed.change)
            .collect();
        let survives = |change: &Change<'_>| !certain.iter().any(|later| change.is_before(later));

        // The first origin: what was there when the level began, or the hole that an insert opened.
        let is_first = certain.is_empty();
        let mut zeros = is_first && stretch.born > 0;
        let mut written = Vec::new();
        for Placed { change, epochs } in touching.iter().copied().filter(|placed| survives(placed.change)) {
            match change.effect {
                Effect::Write { from, .. } => {
                    for epoch in epochs.clone() {
                        if let Some(at) = stretch.position(epoch)
                            && change.covers(at + into)
                        {
                            written.push((change.record.id, from + at + into - change.start));
                        }
                    }
                }
                _ => zeros = true,
            }
        }
        let base = match stretch.position(0) {
            Some(at) if is_first => {
                let at = at + into;
                zeros |= at >= self.base.len() as u64;
                self.base.get(at as usize..(at + end - start) as usize)
            }
            _ => None,
        };
        let mut at = start;
        while at < end {
            let stop = ((at / SECTOR + 1) * SECTOR).min(end);
            let bytes = &found[(at - start) as usize..(stop - start) as usize];
            let fits = (zeros && bytes.iter().all(|byte| *byte == 0))
                || base.is_some_and(|base| &base[(at - start) as usize..(stop - start) as usize] == bytes)
                || written.iter().any(|&(op, from)| is_pattern(bytes, op, from + (at - start)));
            if !fits {
                return Err(format!(
                    "bytes {at}..{stop} hold {}; there may be {}{}{:?}; certain are {:?}, all changes {:?}",
                    shown(found, (at - start) as usize),
                    if zeros { "zeros, " } else { "" },
                    if base.is_some() { "what was there at first, " } else { "" },
                    written.iter().map(|(op, _)| op.0).collect::<Vec<_>>(),
                    certain.iter().map(|change| change.record.id.0).collect::<Vec<_>>(),
                    touching.iter().map(|placed| placed.change.record.id.0).collect::<Vec<_>>(),
                ));
            }
            at = stop;
        }
        Ok(())
    }

    /// Whether a change is sure to have reached this byte.
    fn is_certain(&self, placed: &Placed<'_>, stretch: &Stretch, into: u64, found_at: u64) -> bool {
        let Placed { change, epochs } = placed;
        let everywhere = |covers: &dyn Fn(u64) -> bool| {
            epochs.clone().all(|epoch| stretch.position(epoch).is_some_and(|at| covers(at + into)))
        };
        if !everywhere(&|at| change.covers(at)) {
            return false;
        }
        let recorded = match change.effect {
            Effect::Zero { record } => {
                (self.is_in)(change) && everywhere(&|at| record.0 <= at && at < record.1)
            }
            Effect::Write { group: true, .. } => (self.is_in)(change),
            _ => false,
        };
        let finished = || self.finished.iter().any(|(op, from)| *op == change.record.id && found_at >= *from);
        recorded || (self.is_durable)(change) || finished()
    }
}

/// What can be said of bytes from `offset` on that were read beside writes, or of a file in which an
/// operation failed midway: each sector holds zeros, what was there when the level began, or what an
/// operation wrote there, one that failed included. `records` are those that were called by then. Nothing is
/// said where bytes were moved, or where an append failed: nobody knows where.
pub fn judge_parts<'a>(
    records: impl Iterator<Item = &'a Record>,
    inode: u64,
    base: &[u8],
    offset: u64,
    found: &[u8],
) -> Result<(), String> {
    let end = offset + found.len() as u64;
    let sectors = (offset / SECTOR * SECTOR..end).step_by(SECTOR as usize);
    let mut cuts: BTreeSet<u64> = sectors.chain([offset, end, base.len() as u64]).collect();
    // Start, end, operation, and the place of the start in its pattern.
    let mut written: Vec<(u64, u64, OpId, u64)> = Vec::new();
    for record in records {
        match (&record.operation, &record.outcome) {
            (Operation::Write { inode: of, length, .. }, Outcome::Written { at, count }) if *of == inode => {
                written.push((*at, at + length, record.id, 0));
                cuts.insert(at + count);
            }
            (Operation::Write { inode: of, flags, .. }, _)
                if *of == inode && flags.contains(IoFlags::APPEND) =>
            {
                return Ok(());
            }
            (Operation::Write { inode: of, offset, length, .. }, _) if *of == inode => {
                written.push((*offset, offset + length, record.id, 0));
            }
            (Operation::Group { writes, end }, _) if *end != GroupEnd::Dropped => {
                for (from, write) in group_patterns(writes).filter(|(_, write)| write.inode == inode) {
                    written.push((write.offset, write.offset + write.length, record.id, from));
                }
            }
            (Operation::Truncate { inode: of, size }, _) if *of == inode => drop(cuts.insert(*size)),
            (
                Operation::Allocate {
                    inode: of, mode: FallocateMode::Collapse | FallocateMode::Insert, ..
                },
                _,
            ) if *of == inode => return Ok(()),
            (Operation::Allocate { inode: of, offset, length, .. }, _) if *of == inode => {
                cuts.extend([*offset, offset + length]);
            }
            _ => {}
        }
    }
    cuts.extend(written.iter().flat_map(|(start, end, ..)| [*start, *end]));
    let cuts: Vec<u64> = cuts.into_iter().filter(|cut| (offset..=end).contains(cut)).collect();
    for range in cuts.windows(2) {
        let (at, end) = (range[0], range[1]);
        let bytes = &found[(at - offset) as usize..(end - offset) as usize];
        let fits = bytes.iter().all(|byte| *byte == 0)
            || base.get(at as usize..end as usize) == Some(bytes)
            || written.iter().any(|&(start, stop, op, from)| {
                start <= at && end <= stop && is_pattern(bytes, op, from + (at - start))
            });
        if !fits {
            return Err(format!(
                "bytes {at}..{end} hold {}, which nobody wrote there",
                shown(found, (at - offset) as usize)
            ));
        }
    }
    Ok(())
}

/// Traces the bytes of a file of this size back through the shifts.
fn stretches(size: u64, shifts: &[&Change<'_>]) -> Vec<Stretch> {
    let whole = Stretch { start: 0, end: size, born: shifts.len(), positions: vec![0] };
    let mut done = Vec::new();
    let mut open = vec![whole];
    for (epoch, shift) in shifts.iter().enumerate().rev() {
        let mut next = Vec::new();
        for stretch in open {
            for part in split(&stretch, shift) {
                match before(part.positions[0], shift) {
                    Some(at) => {
                        let mut part = part;
                        part.born = epoch;
                        part.positions.insert(0, at);
                        next.push(part);
                    }
                    None => done.push(part),
                }
            }
        }
        open = next;
    }
    done.extend(open);
    done.retain(|stretch| stretch.start < stretch.end);
    done
}

/// Cuts a stretch where a shift treats its bytes differently.
fn split(stretch: &Stretch, shift: &Change<'_>) -> Vec<Stretch> {
    let edges = match shift.effect {
        Effect::Collapse => vec![shift.start],
        _ => vec![shift.start, shift.end],
    };
    let first = stretch.positions[0];
    let mut parts = Vec::new();
    let mut from = stretch.start;
    for edge in edges.into_iter().filter(|&edge| edge > first).map(|edge| stretch.start + (edge - first)) {
        let to = edge.min(stretch.end);
        if from < to {
            parts.push((from, to));
            from = to;
        }
    }
    parts.push((from, stretch.end));
    let part = |(start, end): (u64, u64)| Stretch {
        start,
        end,
        born: stretch.born,
        positions: stretch.positions.iter().map(|at| at + (start - stretch.start)).collect(),
    };
    parts.into_iter().filter(|(start, end)| start < end).map(part).collect()
}

/// Where a byte was before a shift; `None` if the shift made it.
fn before(at: u64, shift: &Change<'_>) -> Option<u64> {
    let length = shift.end - shift.start;
    match shift.effect {
        Effect::Collapse if at >= shift.start => Some(at + length),
        Effect::Insert if at >= shift.end => Some(at - length),
        Effect::Insert if at >= shift.start => None,
        _ => Some(at),
    }
}

/// Whether the bytes are those that `op` wrote so far from its start.
pub(crate) fn is_pattern(bytes: &[u8], op: OpId, at: u64) -> bool {
    if bytes.len() >= 8 && at.is_multiple_of(8) {
        let first = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        if first != word_at(op, at) {
            return false;
        }
    }
    pattern(op, at, at + bytes.len() as u64) == bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire::ErrorKind;

    /// A file with one failed write was not looked at any more: it could show what another file had held.
    #[test]
    fn a_file_with_a_failed_write_shows_nothing_foreign() {
        const FILE: u64 = 7;
        let record = |id, offset, length, outcome| Record {
            id: OpId(id),
            operation: Operation::Write { inode: FILE, offset, length, flags: IoFlags::empty() },
            outcome,
            ticks: (id, id),
            events: (0, 0),
        };
        let failed = record(1, 1024, 2000, Outcome::Error(ErrorKind::Io));
        let done = record(2, 700, 100, Outcome::Written { at: 700, count: 100 });
        let records = [failed, done];
        let base = pattern(OpId(0), 0, 2000);
        let judge = |found: &[u8]| judge_parts(records.iter(), FILE, &base, 0, found);
        let mut found = base.clone();
        found.resize(3072, 0);
        found[700..800].copy_from_slice(&pattern(OpId(2), 0, 100));
        assert_eq!(judge(&found), Ok(()));
        found[1536..3024].copy_from_slice(&pattern(OpId(1), 512, 2000));
        assert_eq!(judge(&found), Ok(()), "a part of it");
        let mut foreign = found.clone();
        foreign[2048..2560].copy_from_slice(&pattern(OpId(3), 0, 512));
        assert!(judge(&foreign).unwrap_err().contains("2048..2560"));
        let mut elsewhere = found.clone();
        elsewhere[0..512].copy_from_slice(&pattern(OpId(1), 0, 512));
        assert!(judge(&elsewhere).is_err());
    }
}
