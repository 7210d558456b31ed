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
//! A snapshot is there iff its taking is in `c` and its deletion is not. It holds what all that had returned
//! before the call has made, nothing that was called after it returned, and of what went on beside it each
//! operation whole or not at all: exactly a configuration, whatever a crash might take away from that. It
//! holds the same for ever.
//!
//! A group is a record: it is there, with all its bytes and the sizes that it made, if and only if it is in
//! `c`.
//!
//! What a force covers: syncfs and unmount everything that returned before they were called; fsync and O_SYNC
//! the operations on the inode (of a directory, its entries); fdatasync and O_DSYNC the data, and what
//! reading it back needs: that the file exists, and its size; taking a snapshot the same as syncfs; a
//! checkpoint, and the deletion of a snapshot, every record, but no data. What a
//! force covers takes everything before it along, but for data written in place: that has no record (J3).
//!
//! Neighbours: [`crate::levels`] asks; [`crate::image`] recovered.

use crate::configurations::{Configuration, Configurations, hash_of};
use crate::data::{self, Change, Effect, Question, changes};
use crate::image::{Found, Kept, State};
use crate::model::{BLOCK, FileState, Growth, Model};
use crate::operation::{Many, OpId, Operation, Outcome, Record, Shape, snapshot_text};
use crate::units;
use quire::FileType;
use quire::inodes::IoFlags;
use std::cell::{Cell, RefCell};
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

/// Where what is judged comes from.
#[derive(Clone, Copy)]
enum View {
    /// A crash after so many events.
    Crash(usize),
    /// A snapshot that a call took which had returned by so many events.
    Snapshot(usize),
}

impl View {
    fn event(self) -> usize {
        match self {
            View::Crash(event) | View::Snapshot(event) => event,
        }
    }
}

/// A call that makes things durable.
struct Force<'a> {
    record: &'a Record,
    scope: Scope,
    /// Operations of each thread that it covers, up to the last one.
    covered: Vec<usize>,
}

/// The history of one level, ready for questions.
pub struct Oracle<'a> {
    base: &'a State,
    pub(crate) threads: &'a [Vec<Record>],
    pub(crate) configurations: &'a Configurations,
    forces: Vec<Force<'a>>,
    /// By inode: calls that force what they or others wrote to it, those that failed included.
    forcing: BTreeMap<u64, Vec<&'a Record>>,
    /// By inode, in order of calls.
    pub(crate) changes: BTreeMap<u64, Vec<Change<'a>>>,
    /// By inode: operations that failed and may have left a part.
    pub(crate) failed: BTreeMap<u64, Vec<&'a Record>>,
    /// By inode: truncates to nothing, with their places.
    emptied: BTreeMap<u64, Vec<(Place, &'a Record)>>,
    /// By file: changes of its unit, with their places.
    units: BTreeMap<u64, Vec<(Place, &'a Record)>>,
    /// By number, what snapshots held when they were first judged.
    kept: RefCell<BTreeMap<u32, Kept>>,
    undecided_units: Cell<u64>,
}

impl<'a> Oracle<'a> {
    /// For a level that began as `base`.
    pub fn new(
        base: &'a State,
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
            kept: RefCell::new(base.kept.clone()),
            undecided_units: Cell::new(0),
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

    /// A snapshot holds what it held when it was first judged, or a configuration of the time of its taking.
    /// What a write has left there that failed before, another crash may show otherwise.
    pub(crate) fn judge_kept(&self, number: u32, kept: &Kept) -> Result<(), String> {
        let mut all = self.threads.iter().flatten().rev();
        let taken = all.find(|record| record.outcome == Outcome::Taken(number));
        let vague = taken.map(|taken| self.failed_before(taken)).unwrap_or_default();
        if let Some(known) = self.kept.borrow().get(&number) {
            if let Some(what) = known.difference_beside(kept, &vague) {
                return Err(format!("it has changed: {what}"));
            }
            if vague.is_empty() {
                return Ok(());
            }
        }
        let taken = taken.ok_or("nobody took it")?;
        if taken.operation != (Operation::TakeSnapshot { name: kept.name[1..].parse().unwrap_or(u8::MAX) }) {
            return Err(format!("{:?} is not its name", kept.name));
        }
        self.judge_taken(taken, kept)?;
        self.kept.borrow_mut().insert(number, kept.clone());
        Ok(())
    }

    /// Files that an operation may have changed in part which failed and had been called before `taken`
    /// returned.
    fn failed_before(&self, taken: &Record) -> BTreeSet<u64> {
        let is_before = |record: &&Record| record.ticks.0 < taken.ticks.1;
        let failed = self.failed.iter().filter(|(_, failed)| failed.iter().any(is_before));
        failed.map(|(inode, _)| *inode).collect()
    }

    fn judge_taken(&self, taken: &Record, kept: &Kept) -> Result<(), String> {
        let (returned, called) = self.around(taken);
        let shapes: BTreeMap<_, _> =
            kept.inodes.iter().map(|(number, found)| (*number, &found.shape)).collect();
        let fits = |configuration: &&Configuration| {
            let done = &configuration.done;
            (0..done.len()).all(|thread| returned[thread] <= done[thread] && done[thread] <= called[thread])
        };
        let mut reasons = BTreeSet::new();
        for configuration in self.configurations.all.iter().rev().filter(fits) {
            if configuration.model.shapes() != shapes {
                continue;
            }
            match self.judge_files(configuration, View::Snapshot(taken.events.1), &kept.inodes) {
                Ok(()) => return Ok(()),
                Err(reason) => drop(reasons.insert(reason)),
            }
        }
        if reasons.is_empty() {
            let what = self.no_shapes(&returned, &called, &shapes, &fits);
            return Err(format!("taken by {:?}: {what}", taken.id));
        }
        let reasons: Vec<String> = reasons.into_iter().take(4).collect();
        Err(format!("taken by {:?} between {returned:?} and {called:?}: {}", taken.id, reasons.join("; ")))
    }

    /// Units of untorn files that had too many orders to be judged, so far.
    pub fn undecided_units(&self) -> u64 {
        self.undecided_units.get()
    }

    /// Judges what a crash after the first `event` events left.
    pub fn judge(&self, event: usize, found: &State) -> Result<(), String> {
        for (number, kept) in &found.kept {
            self.judge_kept(*number, kept).map_err(|what| format!("snapshot {number}: {what}"))?;
        }
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
            if !has_snapshots(&configuration.model, found) {
                let has = found.kept.keys();
                let reason = format!("snapshots {has:?}, the model has {:?}", configuration.model.snapshots);
                reasons.push((configuration.done.clone(), reason));
                continue;
            }
            match self.judge_files(configuration, View::Crash(event), &found.inodes) {
                Ok(()) => return Ok(()),
                Err(reason) => reasons.push((configuration.done.clone(), reason)),
            }
        }
        if reasons.is_empty() {
            return Err(self.no_shapes(&forced, &called, &shapes, &possible));
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
        shapes: &BTreeMap<u64, &Shape>,
        possible: &dyn Fn(&&Configuration) -> bool,
    ) -> String {
        let mut text = format!("names are those of no configuration between {forced:?} and {called:?}");
        if let Some(nearest) = self.configurations.all.iter().rev().find(possible) {
            let model = nearest.model.shapes();
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
        let elsewhere =
            self.configurations.all.iter().find(|configuration| configuration.model.shapes() == *shapes);
        if let Some(elsewhere) = elsewhere {
            text += &format!("; they are those of {:?}", elsewhere.done);
        }
        text
    }

    fn judge_files(
        &self,
        configuration: &Configuration,
        view: View,
        inodes: &BTreeMap<u64, Found>,
    ) -> Result<(), String> {
        for (number, found) in inodes {
            let Some(inode) = configuration.model.inode(*number) else { continue };
            if found.shape.kind != FileType::Regular {
                continue;
            }
            let judged = match self.is_vague(configuration, view.event(), *number) {
                true => self.judge_parts(view.event(), *number, found),
                false => self.judge_file(configuration, view, *number, found, &inode.file),
            };
            judged.map_err(|reason| format!("inode {number}: {reason}"))?;
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

    /// What a file held when the level began.
    pub(crate) fn base_contents(&self, inode: u64) -> &[u8] {
        self.base.inodes.get(&inode).map_or(&[][..], |found| &found.contents[..])
    }

    fn judge_parts(&self, event: usize, number: u64, found: &Found) -> Result<(), String> {
        let called = self.threads.iter().flatten().filter(|record| record.events.0 <= event);
        data::judge_parts(called, number, self.base_contents(number), 0, &found.contents)
    }

    fn judge_file(
        &self,
        configuration: &Configuration,
        view: View,
        number: u64,
        found: &Found,
        file: &FileState,
    ) -> Result<(), String> {
        let all = self.changes.get(&number).map_or(&[][..], Vec::as_slice);
        let is_in = |change: &Change<'_>| change.place.1 < configuration.done[change.place.0];
        let may_show = |change: &&Change<'_>| match view {
            View::Crash(event) => change.record.events.0 <= event && (!change.is_group() || is_in(change)),
            View::Snapshot(_) => is_in(change),
        };
        let unit = self.largest_unit(number, found.shape.untorn);
        let changes: Vec<Change<'_>> =
            all.iter().filter(may_show).cloned().map(|change| change.with_units(unit)).collect();
        let is_durable = |change: &Change<'_>| match view {
            View::Crash(event) => self.is_durable(change, number, event),
            View::Snapshot(_) => true,
        };
        let finished = match view {
            View::Snapshot(_) if found.size != file.size => {
                return Err(format!("size {}, but it was {}", found.size, file.size));
            }
            View::Snapshot(_) => Vec::new(),
            View::Crash(event) => {
                let grown_by = judge_size(found.size, file, &|op| {
                    changes.iter().find(|change| change.record.id == op).is_some_and(is_durable)
                })?;
                match self.is_being_forced(number, event) {
                    true => Vec::new(),
                    false => finished_growth(&changes, file, grown_by),
                }
            }
        };
        let base = self.base_contents(number);
        let question = Question {
            changes: &changes,
            shifts: &file.shifts,
            base,
            is_durable: &is_durable,
            is_in: &is_in,
            finished: &finished,
        };
        question.judge(0, &found.contents)?;
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
        let changes: Vec<&Change<'_>> = question.changes.iter().filter(|change| !change.moves()).collect();
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
        let undecided = units::judge(&changes, unit, below, question.base, found, &is_certain)?;
        self.undecided_units.set(self.undecided_units.get() + undecided);
        Ok(())
    }

    /// Whether a force of the inode's data was under way, or has failed: its record may be there without its
    /// data, which reads as zeros then. A force of the data that was called later and has returned ends that.
    pub(crate) fn is_being_forced(&self, inode: u64, event: usize) -> bool {
        let is_open = |record: &Record| {
            let ends = record.succeeded() && begun(record).is_empty();
            record.events.0 <= event && (event < record.events.1 || !ends)
        };
        let is_ended = |record: &Record| {
            let covers = |scope| matches!(scope, Scope::Everything) || scope == Scope::Inode(inode);
            let mut later = self.forces.iter().filter(|force| record.is_before(force.record));
            later.any(|force| force.record.events.1 <= event && covers(force.scope))
        };
        let mut forcing = self.forcing.get(&inode).into_iter().flatten();
        forcing.any(|record| is_open(record) && !is_ended(record))
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

/// Whether snapshots are there as the model has them.
fn has_snapshots(model: &Model, found: &State) -> bool {
    let wanted = model.snapshots.iter().filter(|(_, known)| !known.deleting);
    let is_deleted = |number: &u32| model.snapshots.get(number).is_some_and(|known| known.deleting);
    wanted
        .map(|(number, known)| (*number, snapshot_text(known.name)))
        .eq(found.kept.iter().map(|(number, kept)| (*number, kept.name.clone())))
        && found.deleting.keys().all(is_deleted)
}

/// What a call forces: data, the inode whose records it covers, and whether only what reading back needs.
fn forced(record: &Record) -> Vec<(Scope, u64, bool)> {
    match &record.operation {
        Operation::Group { writes, end } if end.is_force() => {
            writes.iter().map(|write| (Scope::Itself, write.inode, false)).collect()
        }
        Operation::SetUntorn { inode, file: true, .. } => vec![(Scope::Inode(*inode), *inode, false)],
        Operation::Sync | Operation::Remount | Operation::TakeSnapshot { .. } => {
            vec![(Scope::Everything, 0, false)]
        }
        Operation::Checkpoint | Operation::DeleteSnapshot { .. } => vec![(Scope::Nothing, 0, false)],
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
