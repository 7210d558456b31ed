//! What the crash images of a run reached: counters that say whether a run without a finding means anything.
//!
//! Neighbours: [`crate::levels`] counts; the tests ask for a minimum of each.

use crate::operation::{GroupWrite, OpId, Operation, Outcome, Record, group_patterns};
use crate::run::Worked;
use quire::ErrorKind;
use quire::inodes::FallocateMode;
use quire_base::random::Random;
use quire_device::IoClass;
use quire_device::simulated::Event;
use quire_format::superblock::SLOT_BLOCKS;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Events of the device behind the call that deletes a snapshot, in which crashes are looked for.
const AFTER_DELETION: usize = 60;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal,)*) => {
        /// Images examined, and how many of them were of each kind.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Coverage { $($(#[doc = $doc])* pub $name: u64,)* }

        impl Coverage {
            /// Each counter with its name.
            pub fn counts(&self) -> Vec<(&'static str, u64)> {
                vec![$(($text, self.$name),)*]
            }

            /// Adds another run's.
            pub fn add(&mut self, other: &Coverage) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Crash images examined.
    images = "crash images",
    /// Operations done.
    operations = "operations",
    /// Configurations that operations could have been in.
    configurations = "configurations",
    /// Runs that ended early: more went on at once than can be judged.
    undecided = "runs too wide to be judged",
    /// Untorn units whose values had too many orders to be judged.
    undecided_units = "units too wide to be judged",
    /// The journal had begun again at its start.
    journal_wrapped = "journal wrapped",
    /// A checkpoint was being written.
    in_checkpoint = "crash in a checkpoint",
    /// The volume was being recovered (or opened).
    in_recovery = "crash in recovery",
    /// Blocks of one file had been written for another (or at another place).
    blocks_reused = "freed blocks reused",
    /// Several journal writes were in flight.
    journal_writes_in_flight = "several journal writes in flight",
    /// An operation had failed for want of space.
    volume_full = "full volume",
    /// Several threads had operations under way.
    threads_in_flight = "several threads in flight",
    /// The second level or deeper.
    deep = "second level or deeper",
    /// The fourth level or deeper.
    very_deep = "fourth level or deeper",
    /// Inodes without a name were in the image (of those that fsck looked at).
    orphans = "orphans at the crash",
    /// Operations of many transactions were half done in the image (of those that fsck looked at).
    half_done = "half a long operation",
    /// One copy of much of the metadata was damaged, and healed.
    healed = "damaged copies healed",
    /// Connections to a simulated server that broke.
    broken_connections = "broken connections",
    /// Times that such a server lost what was not flushed.
    server_losses = "losses of a server",
    /// Writes so large that the engine cuts them into pieces.
    writes_in_pieces = "writes in pieces",
    /// Direct writes that were submitted, and awaited by a callback.
    writes_submitted = "submitted direct writes",
    /// Snapshots that were taken.
    snapshots_taken = "snapshots taken",
    /// Snapshots that were read by the run itself.
    snapshots_read = "snapshots read",
    /// Deletions of snapshots that began.
    snapshots_deleted = "snapshots deleted",
    /// A snapshot was being taken.
    in_taking = "crash while a snapshot is taken",
    /// Snapshots that could be opened, in all images.
    snapshots_judged = "snapshots of crash images",
    /// A write of data had failed behind a group.
    groups_beside_failures = "groups before failed writes",
    /// A write of data had failed behind the taking of a snapshot.
    snapshots_beside_failures = "snapshots before failed writes",
    /// A snapshot was half deleted in the image.
    in_deletion = "half a deletion of a snapshot",
    /// Volumes that were rolled back between two levels.
    rolled_back = "rollbacks",
    /// Images of a crash in a rollback.
    in_rollback = "crash in a rollback",
    /// Power cuts in or after the recovery of a killed volume whose drive had not been flushed.
    after_kill = "power cuts behind a kill",
    /// Writes were in flight or not flushed.
    unsafe_writes = "unsafe writes at the crash",
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in self.counts() {
            writeln!(f, "{count:>10} {name}")?;
        }
        Ok(())
    }
}

fn one_of<T: Copy>(all: &[T], random: &mut Random) -> Option<T> {
    all.get(random.below(all.len().max(1) as u64) as usize).copied()
}

/// Where the operations of a level wrote.
struct Places<'a> {
    records: BTreeMap<OpId, &'a Record>,
    /// Files whose blocks were moved: a block there is at another place without having been written for it.
    moved: BTreeSet<u64>,
}

impl<'a> Places<'a> {
    fn of(threads: &'a [Vec<Record>]) -> Places<'a> {
        let all = || threads.iter().flatten();
        let moved = all().filter_map(|record| match record.operation {
            Operation::Allocate { inode, mode: FallocateMode::Collapse | FallocateMode::Insert, .. } => {
                Some(inode)
            }
            _ => None,
        });
        Places { records: all().map(|record| (record.id, record)).collect(), moved: moved.collect() }
    }

    /// The file and the offset in it that a word was written for, which is so far from its operation's start.
    /// `None`: it is of no write of this level.
    fn of_word(&self, op: OpId, at: u64) -> Option<(u64, u64)> {
        let record = self.records.get(&op)?;
        let (inode, offset) = match (&record.operation, &record.outcome) {
            (Operation::Write { inode, .. }, Outcome::Written { at: start, .. }) => (*inode, start + at),
            (Operation::Write { inode, offset, .. }, _) => (*inode, offset + at),
            (Operation::Group { writes, .. }, _) => {
                let of = |(from, write): &(u64, &GroupWrite)| (*from..from + write.length).contains(&at);
                let (from, write) = group_patterns(writes).find(of)?;
                (write.inode, write.offset + (at - from))
            }
            _ => return None,
        };
        Some((inode, if self.moved.contains(&inode) { 0 } else { offset }))
    }
}

/// What is known of every moment of a level.
pub struct Moments {
    wrapped_from: usize,
    reused_from: usize,
    full_from: usize,
    checkpoints: Vec<(usize, usize)>,
    journal_writes: Vec<(usize, usize)>,
    busy: Vec<Vec<(usize, usize)>>,
    forces: Vec<(usize, usize)>,
    failures: Vec<usize>,
    /// Calls that take a snapshot.
    takings: Vec<(usize, usize)>,
    /// When the first group of all returned.
    group_from: usize,
    /// From the calls that delete a snapshot on, for some time.
    deletions: Vec<(usize, usize)>,
    opened: usize,
    events: usize,
}

impl Moments {
    /// Goes through a level's events.
    pub fn of(worked: &Worked) -> Moments {
        let mut moments = Moments {
            wrapped_from: usize::MAX,
            reused_from: usize::MAX,
            full_from: usize::MAX,
            checkpoints: Vec::new(),
            journal_writes: Vec::new(),
            busy: Vec::new(),
            forces: Vec::new(),
            failures: Vec::new(),
            takings: Vec::new(),
            group_from: usize::MAX,
            deletions: Vec::new(),
            opened: worked.opened,
            events: worked.ended,
        };
        let places = Places::of(&worked.threads);
        moments.look_at_device(&worked.device.events(0..usize::MAX), &places);
        for records in &worked.threads {
            let forces = records.iter().filter(|record| record.succeeded() && record.operation.is_force());
            moments.forces.extend(forces.map(|record| record.events));
            for record in records.iter().filter(|record| record.succeeded()) {
                match record.operation {
                    Operation::TakeSnapshot { .. } => moments.takings.push(record.events),
                    Operation::Group { .. } => moments.group_from = moments.group_from.min(record.events.1),
                    Operation::DeleteSnapshot { .. } => {
                        let (from, to) = record.events;
                        moments.deletions.push((from, (to + AFTER_DELETION).min(worked.ended)));
                    }
                    _ => {}
                }
            }
            moments.busy.push(records.iter().map(|record| record.events).collect());
            let full = records
                .iter()
                .find(|record| record.outcome == Outcome::Error(ErrorKind::NoSpace))
                .map_or(usize::MAX, |record| record.events.1);
            moments.full_from = moments.full_from.min(full);
        }
        moments
    }

    fn look_at_device(&mut self, events: &[Event], places: &Places<'_>) {
        let mut journal_at = 0;
        let mut checkpoint_from = None;
        let mut superblock_writes = Vec::new();
        let mut in_flight: BTreeMap<u64, usize> = BTreeMap::new();
        let mut held: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (index, event) in events.iter().enumerate() {
            match event {
                Event::WriteSubmitted { id, class: Some(IoClass::Journal), at, .. } => {
                    if at.0 < journal_at {
                        self.wrapped_from = self.wrapped_from.min(index);
                    }
                    journal_at = at.0;
                    in_flight.insert(*id, index);
                }
                Event::WriteSubmitted { id, class: Some(IoClass::Metadata), at, .. } => {
                    checkpoint_from.get_or_insert(index);
                    if SLOT_BLOCKS.contains(at) {
                        superblock_writes.push(*id);
                    }
                }
                Event::WriteSubmitted { class: Some(IoClass::Data), at, contents, .. } => {
                    for (block, bytes) in contents.iter().enumerate() {
                        let Some(bytes) = bytes else { continue };
                        let word = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
                        let origin = crate::contents::origin(word);
                        let Some(place) = origin.and_then(|(op, at)| places.of_word(op, at)) else {
                            continue;
                        };
                        let before = held.insert(at.0 + block as u64, place);
                        if before.is_some_and(|before| before != place) {
                            self.reused_from = self.reused_from.min(index);
                        }
                    }
                }
                Event::WriteCompleted { id } | Event::WriteFailed { id } => {
                    if matches!(event, Event::WriteFailed { .. }) {
                        self.failures.push(index);
                    }
                    if let Some(from) = in_flight.remove(id) {
                        self.journal_writes.push((from, index));
                    }
                    if superblock_writes.contains(id)
                        && let Some(from) = checkpoint_from.take()
                    {
                        self.checkpoints.push((from, index));
                    }
                }
                _ => {}
            }
        }
        self.journal_writes.extend(in_flight.into_values().map(|from| (from, usize::MAX)));
    }

    /// A moment within a checkpoint behind the opening, or between its superblock and the flush behind that.
    pub fn in_checkpoint(&self, random: &mut Random) -> Option<usize> {
        let behind = self.checkpoints.iter().filter(|(from, _)| *from >= self.opened);
        let (from, to) = one_of(&behind.copied().collect::<Vec<_>>(), random)?;
        let to = (to + 2).min(self.events);
        // Most of it is nodes: the last moments have their share.
        let first = if random.one_in(2) { from + 1 } else { to.saturating_sub(4).max(from + 1) };
        Some(first + random.below((to + 1 - first) as u64) as usize)
    }

    /// A moment when several journal writes are in flight.
    pub fn in_journal_writes(&self, random: &mut Random) -> Option<usize> {
        let starts = self.journal_writes.iter().map(|(from, _)| *from);
        let overlaps: Vec<(usize, usize)> = starts
            .filter_map(|start| {
                let others = self.journal_writes.iter().filter(|(from, to)| *from < start && start < *to);
                let end = others.map(|(_, to)| *to).max()?;
                let own = self.journal_writes.iter().find(|(from, _)| *from == start)?.1;
                Some((start, end.min(own)))
            })
            .filter(|(_, end)| *end != usize::MAX)
            .collect();
        let (from, to) = one_of(&overlaps, random)?;
        Some(from + 1 + random.below((to - from) as u64) as usize)
    }

    /// A moment when a journal write is in flight or has just ended.
    pub fn in_journal_write(&self, random: &mut Random) -> Option<usize> {
        let ended = |(_, to): &&(usize, usize)| *to != usize::MAX;
        let writes: Vec<_> = self.journal_writes.iter().filter(ended).copied().collect();
        let (from, to) = one_of(&writes, random)?;
        Some((from + 1 + random.below((to + 1 - from) as u64) as usize).min(self.events))
    }

    /// The moment when a journal write has just ended, and is not flushed.
    pub fn behind_journal_write(&self, random: &mut Random) -> Option<usize> {
        let ended = |(_, to): &&(usize, usize)| *to != usize::MAX;
        let writes: Vec<_> = self.journal_writes.iter().filter(ended).copied().collect();
        one_of(&writes, random).map(|(_, to)| (to + 1).min(self.events))
    }

    /// The moment when a force returns.
    pub fn at_force(&self, random: &mut Random) -> Option<usize> {
        one_of(&self.forces, random).map(|(_, to)| to)
    }

    /// The moment when a force returns for which the device did nothing: there must have been nothing to do.
    pub fn at_quiet_force(&self, random: &mut Random) -> Option<usize> {
        let forces: Vec<_> = self.forces.iter().filter(|(from, to)| from == to).copied().collect();
        one_of(&forces, random).map(|(_, to)| to)
    }

    /// The moment when a force returns that has succeeded although a write failed meanwhile.
    pub fn at_force_beside_failure(&self, random: &mut Random) -> Option<usize> {
        let beside = |(from, to): &&(usize, usize)| {
            self.failures.iter().any(|failure| from <= failure && failure < to)
        };
        let forces: Vec<_> = self.forces.iter().filter(beside).copied().collect();
        one_of(&forces, random).map(|(_, to)| to)
    }

    /// A moment while a snapshot is taken, or when that returns, or while one is deleted; if there are any.
    pub fn at_snapshot(&self, random: &mut Random) -> Option<usize> {
        let (takings, deletions) = (&self.takings, &self.deletions);
        let both = takings.iter().chain(deletions).copied().collect::<Vec<_>>();
        let (from, to) = one_of(&both, random)?;
        Some(if random.one_in(4) { to } else { from + random.below((to + 1 - from) as u64) as usize })
    }

    /// Whether a checkpoint is under way, or its superblock not yet flushed.
    pub fn is_in_checkpoint(&self, event: usize) -> bool {
        self.checkpoints.iter().any(|(from, to)| *from < event && event <= to + 2)
    }

    /// Counts an image of a crash after the first `event` events.
    pub fn count(&self, event: usize, level: usize, unsafe_writes: usize, coverage: &mut Coverage) {
        let within = |ranges: &[(usize, usize)]| {
            ranges.iter().filter(|(from, to)| *from < event && event <= *to).count()
        };
        let busy = self.busy.iter().filter(|ranges| within(ranges) > 0).count();
        coverage.images += 1;
        coverage.journal_wrapped += u64::from(self.wrapped_from < event);
        coverage.in_recovery += u64::from(event < self.opened);
        coverage.in_checkpoint += u64::from(event >= self.opened && within(&self.checkpoints) > 0);
        coverage.blocks_reused += u64::from(self.reused_from < event);
        coverage.journal_writes_in_flight += u64::from(within(&self.journal_writes) > 1);
        coverage.volume_full += u64::from(self.full_from <= event);
        coverage.threads_in_flight += u64::from(busy > 1);
        coverage.deep += u64::from(level >= 1);
        coverage.very_deep += u64::from(level >= 3);
        coverage.in_taking += u64::from(within(&self.takings) > 0);
        let failed_behind = |from: usize| self.failures.iter().any(|failure| (from..event).contains(failure));
        let taken_from = self.takings.iter().map(|(_, to)| *to).min().unwrap_or(usize::MAX);
        coverage.groups_beside_failures += u64::from(failed_behind(self.group_from));
        coverage.snapshots_beside_failures += u64::from(failed_behind(taken_from));
        coverage.unsafe_writes += u64::from(unsafe_writes > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire::inodes::IoFlags;

    /// Places were compared by their distance from the starts of the writes: an ordinary overwrite looked
    /// like a block that had been freed and written for something else.
    #[test]
    fn an_overwrite_has_the_same_place() {
        let write = |id, inode, offset, length| Record {
            id: OpId(id),
            operation: Operation::Write { inode, offset, length, flags: IoFlags::empty() },
            outcome: Outcome::Written { at: offset, count: length },
            ticks: (id, id),
            events: (0, 0),
        };
        let threads = [vec![write(1, 7, 8192, 4096), write(2, 7, 4096, 8192), write(3, 8, 8192, 4096)]];
        let places = Places::of(&threads);
        assert_eq!(places.of_word(OpId(1), 0), Some((7, 8192)));
        assert_eq!(places.of_word(OpId(2), 4096), Some((7, 8192)));
        assert_eq!(places.of_word(OpId(3), 0), Some((8, 8192)));
        assert_eq!(places.of_word(OpId(4), 0), None);
    }
}
