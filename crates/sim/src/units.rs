//! What a unit of an untorn file may hold after a crash: one of the values that it had.
//!
//! A *value* of a unit is what it held after some of the changes that touch it: a set that is closed under
//! real time, done in an order that fits real time. A crash must leave a value whose set has every change
//! that is certain to be there. Bytes behind the end of the file count as zeros, so growth that is there in
//! part is seen as well.
//!
//! With one thread the values are those after each of its changes; with several, the sets and orders are
//! searched. A search that would be too wide says nothing, and is counted.
//!
//! Neighbours: [`crate::oracle`] asks, and says what is certain; [`crate::data`] judges each byte by itself.

use crate::data::{Change, Effect, is_pattern};
use crate::image::shown;
use std::collections::HashSet;

/// States of a search that are followed.
const STATES_MAX: usize = 20_000;
const SECTOR: u64 = 512;

/// What a range of a unit shows: the base, or a change by its number.
type Origin = Option<usize>;

/// Judges each unit of a file that ends below `below`: `changes` (no shifts) are those that may be there.
/// Gives the number of units that could not be judged.
pub fn judge(
    changes: &[&Change<'_>],
    unit: u64,
    below: u64,
    base: &[u8],
    found: &[u8],
    is_certain: &dyn Fn(&Change<'_>, u64, u64) -> bool,
) -> Result<u64, String> {
    let (mut start, mut undecided) = (0, 0);
    while start < found.len() as u64 && start + unit <= below {
        let end = start + unit;
        let touching: Vec<&Change<'_>> =
            changes.iter().copied().filter(|change| change.start < end && start < change.end).collect();
        if !touching.is_empty() {
            let certain = touching.iter().map(|change| is_certain(change, start, end)).collect();
            let unit = Unit { start, end, changes: touching, certain, base, found };
            undecided += u64::from(!unit.judge()?);
        }
        start = end;
    }
    Ok(undecided)
}

struct Unit<'a> {
    start: u64,
    end: u64,
    /// Those that touch it, by the time of their calls.
    changes: Vec<&'a Change<'a>>,
    certain: Vec<bool>,
    base: &'a [u8],
    found: &'a [u8],
}

/// A range that each change covers entirely or not at all.
struct Atom {
    start: u64,
    covered_by: Vec<bool>,
    /// By change, and last the base: whether what was found may be its.
    fits: Vec<bool>,
}

impl Unit<'_> {
    /// Whether it could be judged.
    fn judge(&self) -> Result<bool, String> {
        let atoms = self.atoms();
        let count = self.changes.len();
        let mut origins: Vec<Origin> = vec![None; atoms.len()];
        let mut done = vec![false; count];
        let is_value = |done: &[bool], origins: &[Origin]| {
            let all_certain = self.certain.iter().zip(done).all(|(certain, done)| *done || !certain);
            all_certain && atoms.iter().zip(origins).all(|(atom, origin)| atom.fits[origin.unwrap_or(count)])
        };
        // In the order of the calls: with one thread, all there is.
        if is_value(&done, &origins) {
            return Ok(true);
        }
        for number in 0..count {
            self.apply(number, &atoms, &mut origins);
            done[number] = true;
            if is_value(&done, &origins) {
                return Ok(true);
            }
        }
        let is_total = self.changes.windows(2).all(|pair| pair[0].is_before(pair[1]) || same(pair));
        match if is_total { Some(false) } else { self.search(&atoms, &is_value) } {
            Some(true) => Ok(true),
            Some(false) => Err(self.describe(&atoms)),
            None => Ok(false),
        }
    }

    fn apply(&self, number: usize, atoms: &[Atom], origins: &mut [Origin]) {
        for (atom, origin) in atoms.iter().zip(origins) {
            if atom.covered_by[number] {
                *origin = Some(number);
            }
        }
    }

    /// Whether some order gives what was found; `None` if there are too many to tell.
    fn search(&self, atoms: &[Atom], is_value: &dyn Fn(&[bool], &[Origin]) -> bool) -> Option<bool> {
        let count = self.changes.len();
        let mut open = vec![(vec![false; count], vec![None; atoms.len()])];
        let mut met: HashSet<(Vec<bool>, Vec<Origin>)> = open.iter().cloned().collect();
        while let Some((done, origins)) = open.pop() {
            if is_value(&done, &origins) {
                return Some(true);
            }
            for number in (0..count).filter(|number| !done[*number]) {
                let waits = (0..count).any(|other| {
                    !done[other] && other != number && self.changes[other].is_before(self.changes[number])
                });
                // Of a group all or nothing: the first brings the others.
                let record = self.changes[number].record.id;
                if waits || (0..number).any(|other| self.changes[other].record.id == record) {
                    continue;
                }
                let (mut done, mut origins) = (done.clone(), origins.clone());
                for other in (number..count).filter(|other| self.changes[*other].record.id == record) {
                    self.apply(other, atoms, &mut origins);
                    done[other] = true;
                }
                if met.insert((done.clone(), origins.clone())) {
                    open.push((done, origins));
                }
            }
            if met.len() > STATES_MAX {
                return None;
            }
        }
        Some(false)
    }

    fn atoms(&self) -> Vec<Atom> {
        let edges = self.changes.iter().flat_map(|change| [change.start, change.end]);
        let edges = edges.chain([self.base.len() as u64, self.found.len() as u64]);
        let mut cuts: Vec<u64> = edges.chain((self.start..=self.end).step_by(SECTOR as usize)).collect();
        cuts.retain(|cut| (self.start..=self.end).contains(cut));
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2).map(|range| self.atom(range[0], range[1])).collect()
    }

    fn atom(&self, start: u64, end: u64) -> Atom {
        let zeros = vec![0; (end - start) as usize];
        let bytes = self.found.get(start as usize..end as usize).unwrap_or(&zeros);
        let covered_by: Vec<bool> =
            self.changes.iter().map(|change| change.start <= start && end <= change.end).collect();
        let mut fits: Vec<bool> = self
            .changes
            .iter()
            .zip(&covered_by)
            .map(|(change, covers)| {
                *covers
                    && match change.effect {
                        Effect::Write { from, .. } => {
                            is_pattern(bytes, change.record.id, from + start - change.start)
                        }
                        _ => bytes == zeros,
                    }
            })
            .collect();
        fits.push(bytes == self.base.get(start as usize..end as usize).unwrap_or(&zeros));
        Atom { start, covered_by, fits }
    }

    fn describe(&self, atoms: &[Atom]) -> String {
        let mut parts: Vec<String> = Vec::new();
        for atom in atoms {
            let what = match atom.start < self.found.len() as u64 {
                true => shown(self.found, atom.start as usize),
                false => "nothing".to_owned(),
            };
            let what = what.split(" bytes from").next().unwrap_or_default();
            let what = what.rsplit_once(" wrote ").map_or(what, |(what, _)| what).to_owned();
            if parts.last().is_none_or(|last| !last.ends_with(&what)) {
                parts.push(format!("from {} on {what}", atom.start));
            }
        }
        let ids = |certain: bool| {
            let all = self.changes.iter().zip(&self.certain);
            all.filter(|(_, is)| **is || !certain).map(|(change, _)| change.record.id.0).collect::<Vec<_>>()
        };
        format!(
            "the unit {}..{} holds no value that it had: {}; changes {:?}, certain {:?}",
            self.start,
            self.end,
            parts.join(", "),
            ids(false),
            ids(true)
        )
    }
}

/// Changes of one group.
fn same(pair: &[&Change<'_>]) -> bool {
    pair[0].record.id == pair[1].record.id
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{OpId, Operation, Outcome, Record};
    use quire::inodes::IoFlags;

    /// A search that gave up counted as one that had found the value right.
    #[test]
    fn what_is_too_wide_is_told() {
        let unit = 16 * SECTOR;
        let write = |at: u64| Record {
            id: OpId(at),
            operation: Operation::Write {
                inode: 2,
                offset: at * SECTOR,
                length: SECTOR,
                flags: IoFlags::empty(),
            },
            outcome: Outcome::Written { at: at * SECTOR, count: SECTOR },
            ticks: (at, 100 + at),
            events: (0, 0),
        };
        let records: Vec<Record> = (0..16).map(write).collect();
        let base = vec![0; unit as usize];
        let nobodys = vec![0xF7; unit as usize];
        let judged = |count: usize, found: &[u8]| {
            let all = records[..count].iter().enumerate();
            let changes: Vec<Change<'_>> =
                all.flat_map(|(at, record)| crate::data::changes(record, (at, 0), 2)).collect();
            judge(&changes.iter().collect::<Vec<_>>(), unit, unit, &base, found, &|_, _, _| false)
        };
        assert_eq!(judged(4, &base), Ok(0));
        assert!(judged(4, &nobodys).is_err());
        assert_eq!(judged(16, &nobodys), Ok(1));
    }
}
