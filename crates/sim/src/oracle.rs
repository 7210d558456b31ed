//! The durability contract, word for word, as a question to a recovered crash image.
//!
//! A crash at device event `e` is right iff some configuration `c` ([`crate::configurations`])
//!
//! * holds only operations that were called before `e`, and all that a force covers which returned before
//!   `e`;
//! * has exactly the names, links, kinds, modes, owners, attributes and link targets that were found;
//! * has for each file the found size: the explicit one, or one that growth by writing earned: a write's end
//!   or a block boundary in it, no smaller than what was forced, and no growth that returned before that
//!   write was called is missing below it (J6), unless a force of the file was under way: until that returns,
//!   growth may be zeros;
//! * allows each byte of each file ([`crate::data`]);
//! * allows each unit of each untorn file ([`crate::units`]).
//!
//! A group is a record: it is there, with all its bytes and the sizes that it made, if and only if it is in
//! `c`.
//!
//! What a force covers: syncfs and unmount everything that returned before they were called; fsync and O_SYNC
//! the operations on the inode (of a directory, its entries); fdatasync and O_DSYNC the data, and what
//! reading it back needs: that the file exists, and its size; a checkpoint every record, but no data. What a
//! force covers takes everything before it along, but for data written in place: that has no record (J3).
//!
//! Neighbours: [`crate::levels`] asks; [`crate::image`] recovered.

use crate::configurations::{Configuration, Configurations, hash_of};
use crate::data::{Change, Effect, Question, changes};
use crate::image::{Found, Snapshot};
use crate::model::{BLOCK, FileState, Growth};
use crate::operation::{Many, OpId, Operation, Record};
use crate::units;
use quire::FileType;
use quire::inodes::IoFlags;
use std::collections::{BTreeMap, BTreeSet};

/// Which data a force makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Everything,
    Inode(u64),
    /// A write's own.
    Itself,
    /// Records only.
    Nothing,
}

/// Thread, and place among its operations.
type Place = (usize, usize);

/// A call that makes things durable.
struct Force<'a> {
    record: &'a Record,
    scope: Scope,
    /// Operations of each thread that it covers, up to the last one.
    covered: Vec<usize>,
}

/// The history of one level, ready for questions.
pub struct Oracle<'a> {
    base: &'a Snapshot,
    threads: &'a [Vec<Record>],
    configurations: &'a Configurations,
    forces: Vec<Force<'a>>,
    /// By inode: calls that force what they or others wrote to it, those that failed included.
    forcing: BTreeMap<u64, Vec<&'a Record>>,
    /// By inode, in order of calls.
    changes: BTreeMap<u64, Vec<Change<'a>>>,
    /// By inode: operations that failed and may have left a part.
    failed: BTreeMap<u64, Vec<&'a Record>>,
    /// By inode: truncates to nothing, with their places.
    emptied: BTreeMap<u64, Vec<(Place, &'a Record)>>,
    /// By file: changes of its unit, with their places.
    units: BTreeMap<u64, Vec<(Place, &'a Record)>>,
}

impl<'a> Oracle<'a> {
    /// For a level that began as `base`.
    pub fn new(
        base: &'a Snapshot,
        threads: &'a [Vec<Record>],
        configurations: &'a Configurations,
    ) -> Oracle<'a> {
        let mut oracle = Oracle {
            base,
            threads,
            configurations,
            forces: Vec::new(),
            forcing: BTreeMap::new(),
            changes: BTreeMap::new(),
            failed: BTreeMap::new(),
            emptied: BTreeMap::new(),
            units: BTreeMap::new(),
        };
        for record in threads.iter().flatten() {
            for (scope, inode, _) in forced(record).into_iter().chain(begun(record)) {
                if matches!(scope, Scope::Inode(_) | Scope::Itself) {
                    oracle.forcing.entry(inode).or_default().push(record);
                }
            }
        }
        for (thread, records) in threads.iter().enumerate() {
            for (at, record) in records.iter().enumerate() {
                if let Some(inode) = record.left_a_part() {
                    oracle.failed.entry(inode).or_default().push(record);
                }
                if let Operation::Truncate { inode, size: 0 } = record.operation
                    && record.succeeded()
                {
                    oracle.emptied.entry(inode).or_default().push(((thread, at), record));
                }
                let inodes = match &record.operation {
                    Operation::Write { inode, .. }
                    | Operation::Truncate { inode, .. }
                    | Operation::Allocate { inode, .. } => vec![*inode],
                    Operation::Group { writes, .. } => {
                        let mut inodes: Vec<u64> = writes.iter().map(|write| write.inode).collect();
                        inodes.sort_unstable();
                        inodes.dedup();
                        inodes
                    }
                    Operation::SetUntorn { inode, file: true, .. }
                        if record.succeeded() && oracle.touches((thread, at), *inode) =>
                    {
                        oracle.units.entry(*inode).or_default().push(((thread, at), record));
                        continue;
                    }
                    _ => continue,
                };
                for inode in inodes {
                    let changes = changes(record, (thread, at), inode);
                    oracle.changes.entry(inode).or_default().extend(changes);
                    if matches!(record.operation, Operation::Group { .. }) {
                        // It writes back what the file has grown by before.
                        oracle.forcing.entry(inode).or_default().push(record);
                    }
                }
            }
        }
        for (thread, records) in threads.iter().enumerate() {
            for (at, record) in records.iter().enumerate().filter(|(_, record)| record.succeeded()) {
                if let Operation::SetUntorn { inode, .. } = record.operation
                    && !oracle.touches((thread, at), inode)
                {
                    // It was so already, and nothing was done.
                    continue;
                }
                for (scope, inode, datasync) in forced(record) {
                    let covered = oracle.covered(record, scope, inode, datasync);
                    oracle.forces.push(Force { record, scope, covered });
                }
            }
        }
        oracle.changes.values_mut().for_each(|changes| changes.sort_by_key(|change| change.record.ticks.0));
        oracle
    }

    fn touches(&self, place: Place, inode: u64) -> bool {
        self.configurations.touched.get(&place).is_some_and(|touched| touched.contains(&inode))
    }

    /// How many operations of each thread a force covers, with those before them.
    fn covered(&self, force: &Record, scope: Scope, inode: u64, datasync: bool) -> Vec<usize> {
        let is_covered = |place: (usize, usize), record: &Record| match scope {
            Scope::Everything | Scope::Nothing => true,
            Scope::Inode(_) | Scope::Itself => {
                record.succeeded() && self.concerns(place, record, inode, datasync)
            }
        };
        let of_thread = |(thread, records): (usize, &Vec<Record>)| {
            let last = records.iter().enumerate().rposition(|(at, record)| {
                // A write that is durable when it returns takes other writes along only as far as it covers
                // them.
                let is_other_write =
                    scope == Scope::Itself && matches!(record.operation, Operation::Write { .. });
                let is_meant = record.id == force.id || (record.is_before(force) && !is_other_write);
                is_meant && is_covered((thread, at), record)
            });
            last.map_or(0, |at| at + 1)
        };
        self.threads.iter().enumerate().map(of_thread).collect()
    }

    /// Whether an fsync of an inode (or, with `datasync`, fdatasync) must make an operation durable.
    fn concerns(&self, place: (usize, usize), record: &Record, inode: u64, datasync: bool) -> bool {
        if datasync && !is_birth(&record.operation) {
            return self.configurations.sized.get(&place).is_some_and(|sized| sized.contains(&inode))
                && !self.may_have_grown_before(record, inode);
        }
        self.touches(place, inode)
    }

    /// Whether the file may have had the size that a write brought it already: one that failed before may
    /// have left it.
    fn may_have_grown_before(&self, record: &Record, inode: u64) -> bool {
        let failed = self.failed.get(&inode).map_or(&[][..], Vec::as_slice);
        !matches!(record.operation, Operation::Truncate { .. })
            && failed.iter().any(|failed| failed.ticks.0 < record.ticks.1)
    }

    /// Judges what a crash after the first `event` events left.
    pub fn judge(&self, event: usize, found: &Snapshot) -> Result<(), String> {
        let called: Vec<usize> = self
            .threads
            .iter()
            .map(|records| records.partition_point(|record| record.events.0 <= event))
            .collect();
        let mut forced = vec![0; self.threads.len()];
        for force in self.forces.iter().filter(|force| force.record.events.1 <= event) {
            for (forced, covered) in forced.iter_mut().zip(&force.covered) {
                *forced = (*forced).max(*covered);
            }
        }
        let possible = |configuration: &&Configuration| {
            let done = &configuration.done;
            (0..done.len()).all(|thread| forced[thread] <= done[thread] && done[thread] <= called[thread])
        };
        let shapes = found.shapes();
        let hash = hash_of(&shapes);
        let mut reasons = Vec::new();
        // The latest first: most often it is the right one.
        for configuration in self.configurations.all.iter().rev().filter(possible) {
            if configuration.shapes_hash != hash || configuration.model.shapes() != shapes {
                continue;
            }
            match self.judge_files(configuration, event, found) {
                Ok(()) => return Ok(()),
                Err(reason) => reasons.push((configuration.done.clone(), reason)),
            }
        }
        if reasons.is_empty() {
            return Err(self.no_shapes(&forced, &called, found, &possible));
        }
        let mut text = format!(
            "names fit {} configurations between {forced:?} and {called:?}, contents none",
            reasons.len()
        );
        // One configuration for each reason.
        let mut told = BTreeSet::new();
        for (done, reason) in reasons {
            if told.len() < 4 && told.insert(reason.clone()) {
                text += &format!("; with {done:?} done: {reason}");
            }
        }
        Err(text)
    }

    fn no_shapes(
        &self,
        forced: &[usize],
        called: &[usize],
        found: &Snapshot,
        possible: &dyn Fn(&&Configuration) -> bool,
    ) -> String {
        let mut text = format!("names are those of no configuration between {forced:?} and {called:?}");
        if let Some(nearest) = self.configurations.all.iter().rev().find(possible) {
            let (model, shapes) = (nearest.model.shapes(), found.shapes());
            for number in model.keys().chain(shapes.keys()) {
                if model.get(number) != shapes.get(number) {
                    text += &format!(
                        "; inode {number}: found {:?}, the last has {:?}",
                        shapes.get(number),
                        model.get(number)
                    );
                    break;
                }
            }
        }
        let elsewhere = self
            .configurations
            .all
            .iter()
            .find(|configuration| configuration.model.shapes() == found.shapes());
        if let Some(elsewhere) = elsewhere {
            text += &format!("; they are those of {:?}", elsewhere.done);
        }
        text
    }

    fn judge_files(
        &self,
        configuration: &Configuration,
        event: usize,
        found: &Snapshot,
    ) -> Result<(), String> {
        for (number, found) in &found.inodes {
            let Some(inode) = configuration.model.inode(*number) else { continue };
            if found.shape.kind != FileType::Regular || self.is_vague(configuration, event, *number) {
                continue;
            }
            self.judge_file(configuration, event, *number, found, &inode.file)
                .map_err(|reason| format!("inode {number}: {reason}"))?;
        }
        Ok(())
    }

    /// A write that failed had been called and may have left any part of itself, and no emptying of the file
    /// is in the configuration that came after it.
    fn is_vague(&self, configuration: &Configuration, event: usize, inode: u64) -> bool {
        let (failed, emptied) = match (self.failed.get(&inode), self.emptied.get(&inode)) {
            (None, _) => return false,
            (Some(failed), emptied) => (failed, emptied.map_or(&[][..], Vec::as_slice)),
        };
        let is_in = |place: &(usize, usize)| place.1 < configuration.done[place.0];
        failed
            .iter()
            .filter(|write| write.events.0 <= event)
            .any(|write| !emptied.iter().any(|(place, emptying)| is_in(place) && write.is_before(emptying)))
    }

    fn judge_file(
        &self,
        configuration: &Configuration,
        event: usize,
        number: u64,
        found: &Found,
        file: &FileState,
    ) -> Result<(), String> {
        let all = self.changes.get(&number).map_or(&[][..], Vec::as_slice);
        let called = all.iter().filter(|change| change.record.events.0 <= event);
        let unit = self.largest_unit(number, found.shape.untorn);
        let changes: Vec<Change<'_>> = called.cloned().map(|change| change.with_units(unit)).collect();
        let is_durable = |change: &Change<'_>| self.is_durable(change, number, event);
        let is_in = |change: &Change<'_>| change.place.1 < configuration.done[change.place.0];
        let grown_by = judge_size(found.size, file, &|op| {
            changes.iter().find(|change| change.record.id == op).is_some_and(is_durable)
        })?;
        let finished = match self.is_being_forced(number, event) {
            true => Vec::new(),
            false => finished_growth(&changes, file, grown_by),
        };
        let base = self.base.inodes.get(&number).map_or(&[][..], |found| &found.contents[..]);
        let question = Question {
            changes: &changes,
            shifts: &file.shifts,
            base,
            is_durable: &is_durable,
            is_in: &is_in,
            finished: &finished,
        };
        question.judge(&found.contents)?;
        match found.shape.untorn {
            0 => Ok(()),
            unit => self.judge_units(configuration, number, unit, &question, &found.contents),
        }
    }

    /// The largest unit that a file had at any moment of the level, as far as that is known; at least 1.
    fn largest_unit(&self, number: u64, now: u64) -> u64 {
        let first = self.base.inodes.get(&number).map_or(0, |found| found.shape.untorn);
        let set = self.threads.iter().flatten().filter_map(|record| match record.operation {
            // A directory's goes to what is created in it.
            Operation::SetUntorn { inode, unit, file } if inode == number || !file => Some(unit),
            _ => None,
        });
        let inherited = self.base.inodes.values().filter(|found| found.shape.kind == FileType::Directory);
        let inherited = inherited.map(|found| found.shape.untorn);
        set.chain(inherited).chain([first, now, 1]).max().unwrap_or(1)
    }

    /// Each unit below the first shift holds a value that it had, and none from before what is certain.
    fn judge_units(
        &self,
        configuration: &Configuration,
        number: u64,
        unit: u64,
        question: &Question<'_>,
        found: &[u8],
    ) -> Result<(), String> {
        let is_in = |place: Place| place.1 < configuration.done[place.0];
        let set: Vec<&Record> = self.units.get(&number).map_or(Vec::new(), |all| {
            all.iter().filter(|(place, _)| is_in(*place)).map(|(_, record)| *record).collect()
        });
        let below = question.changes.iter().filter(|change| change.moves()).map(|change| change.start);
        let below = below.min().unwrap_or(u64::MAX);
        let changes: Vec<&Change<'_>> = question
            .changes
            .iter()
            .filter(|change| !change.moves() && (!change.is_group() || is_in(change.place)))
            .collect();
        let is_certain = |change: &Change<'_>, start: u64, end: u64| {
            let recorded = match change.effect {
                Effect::Zero { record } => is_in(change.place) && record.0 < end && start < record.1,
                Effect::Write { group, .. } => group && is_in(change.place),
                _ => false,
            };
            let whole = match change.effect {
                // The edges of a punch are writes of their units, and no part of its record.
                Effect::Zero { record } if record.1 != u64::MAX && !change.is_group() => {
                    record.0 <= start && end <= record.1
                }
                _ => true,
            };
            (recorded && whole)
                || (question.is_durable)(change)
                || set.iter().any(|set| change.record.is_before(set))
        };
        units::judge(&changes, unit, below, question.base, found, &is_certain)
    }

    /// Whether a force of the inode's data was under way, or has failed: its record may be there without its
    /// data, which reads as zeros then.
    fn is_being_forced(&self, inode: u64, event: usize) -> bool {
        let is_open = |record: &&Record| {
            let ends = record.succeeded() && begun(record).is_empty();
            record.events.0 <= event && (event < record.events.1 || !ends)
        };
        self.forcing.get(&inode).is_some_and(|records| records.iter().any(is_open))
    }

    fn is_durable(&self, change: &Change<'_>, inode: u64, event: usize) -> bool {
        self.forces.iter().filter(|force| force.record.events.1 <= event).any(|force| match force.scope {
            Scope::Everything => change.record.is_before(force.record),
            Scope::Inode(of) => of == inode && change.record.is_before(force.record),
            Scope::Itself => change.record.id == force.record.id,
            Scope::Nothing => false,
        })
    }
}

/// What a call forces: data, the inode whose records it covers, and whether only what reading back needs.
fn forced(record: &Record) -> Vec<(Scope, u64, bool)> {
    match &record.operation {
        Operation::Group { writes, end } if end.is_force() => {
            writes.iter().map(|write| (Scope::Itself, write.inode, false)).collect()
        }
        Operation::SetUntorn { inode, file: true, .. } => vec![(Scope::Inode(*inode), *inode, false)],
        Operation::Sync | Operation::Remount => vec![(Scope::Everything, 0, false)],
        Operation::Checkpoint => vec![(Scope::Nothing, 0, false)],
        Operation::Fsync { inode, datasync, .. } => vec![(Scope::Inode(*inode), *inode, *datasync)],
        Operation::FsyncMany { inodes, datasync, how } if !matches!(how, Many::Withdrawn(_)) => {
            inodes.iter().map(|inode| (Scope::Inode(*inode), *inode, *datasync)).collect()
        }
        Operation::Write { inode, flags, .. } if flags.intersects(IoFlags::SYNC | IoFlags::DATASYNC) => {
            vec![(Scope::Itself, *inode, !flags.contains(IoFlags::SYNC))]
        }
        _ => Vec::new(),
    }
}

/// As [`forced`], of a call that withdraws what it began: how far that comes, and when it ends, nobody hears.
fn begun(record: &Record) -> Vec<(Scope, u64, bool)> {
    match &record.operation {
        Operation::FsyncMany { inodes, datasync, how: Many::Withdrawn(_) } => {
            inodes.iter().map(|inode| (Scope::Inode(*inode), *inode, *datasync)).collect()
        }
        _ => Vec::new(),
    }
}

/// A file that is not there cannot be read back. (One without a name cannot anyway.)
fn is_birth(operation: &Operation) -> bool {
    matches!(operation, Operation::Create { .. })
}

/// Judges a size; gives the writes that can have brought it, if it is more than the explicit one.
fn judge_size<'f>(
    size: u64,
    file: &'f FileState,
    is_durable: &dyn Fn(OpId) -> bool,
) -> Result<Vec<&'f Growth>, String> {
    let least = file
        .growth
        .iter()
        .filter(|growth| growth.whole || is_durable(growth.op))
        .map(|growth| growth.to)
        .fold(file.explicit, u64::max);
    if size < least {
        return Err(format!("size {size}, but {least} was forced"));
    }
    if size == file.explicit {
        return Ok(Vec::new());
    }
    let earned = |growth: &&Growth| {
        size == growth.to
            || (!growth.whole && growth.from < size && size < growth.to && size.is_multiple_of(BLOCK))
    };
    let by: Vec<_> = file.growth.iter().filter(earned).collect();
    if by.is_empty() {
        return Err(format!(
            "size {size} was never earned: explicitly {}, growth {:?}",
            file.explicit, file.growth
        ));
    }
    Ok(by)
}

/// The growth that must be complete below the found size, with the byte from which each write was growth.
fn finished_growth(changes: &[Change<'_>], file: &FileState, grown_by: Vec<&Growth>) -> Vec<(OpId, u64)> {
    let change_of = |op: OpId| changes.iter().find(|change| change.record.id == op);
    let earliest =
        grown_by.iter().filter_map(|growth| change_of(growth.op)).min_by_key(|change| change.record.ticks.0);
    let Some(earliest) = earliest else { return Vec::new() };
    file.growth
        .iter()
        .filter(|growth| change_of(growth.op).is_some_and(|change| change.record.is_before(earliest.record)))
        .map(|growth| (growth.op, growth.from.max(file.explicit)))
        .collect()
}
