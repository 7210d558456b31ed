//! What a run itself read: files, directories and snapshots.
//!
//! With one thread the model gives the exact answers. With several, reads and listings take some time: a
//! sector holds what somebody wrote there by then and nobody had overwritten before the read was called, and
//! a name that was there all the time is listed. Where a write failed or bytes were moved, what was
//! overwritten may be there, too.
//!
//! Neighbours: [`crate::oracle`] judges what crashes left.

use crate::configurations::Configuration;
use crate::data::{self, Change, Question};
use crate::operation::{Name, Operation, Outcome, Record};
use crate::oracle::Oracle;
use std::collections::{BTreeMap, BTreeSet};

impl Oracle<'_> {
    /// Judges what the run itself read; gives how many snapshots it read.
    pub fn judge_reads(&self) -> Result<u64, String> {
        let mut count = 0;
        for record in self.threads.iter().flatten() {
            let judged = match (&record.operation, &record.outcome) {
                (Operation::Read { inode, offset, .. }, Outcome::Bytes(bytes)) => self
                    .judge_read(record, *inode, *offset, bytes)
                    .map_err(|what| format!("reads inode {inode}: {what}")),
                (Operation::ReadDirectory { directory }, Outcome::Entries(entries)) => {
                    self.judge_listing(record, *directory, entries)
                }
                (_, Outcome::Kept(number, kept)) => {
                    count += 1;
                    self.judge_kept(*number, kept).map_err(|what| format!("reads snapshot {number}: {what}"))
                }
                _ => Ok(()),
            };
            judged.map_err(|what| format!("{:?} {what}", record.id))?;
        }
        Ok(count)
    }

    /// Each sector holds what nothing had replaced that returned before the read was called.
    fn judge_read(&self, read: &Record, inode: u64, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let is_called = |other: &Record| other.ticks.0 <= read.ticks.1;
        let base = self.base_contents(inode);
        let all = self.changes.get(&inode).map_or(&[][..], Vec::as_slice);
        let changes: Vec<Change<'_>> =
            all.iter().filter(|change| is_called(change.record)).cloned().collect();
        let has_failed = self.failed.get(&inode).is_some_and(|failed| failed.iter().any(|it| is_called(it)));
        if has_failed || changes.iter().any(Change::moves) {
            let called = self.threads.iter().flatten().filter(|other| is_called(other));
            return data::judge_parts(called, inode, base, offset, bytes);
        }
        let had_returned = |change: &Change<'_>| change.record.is_before(read);
        let question = Question {
            changes: &changes,
            shifts: &[],
            base,
            is_durable: &had_returned,
            is_in: &had_returned,
            finished: &[],
        };
        question.judge(offset, bytes)
    }

    /// How many operations of each thread had returned before an operation was called, and had been called
    /// before it returned.
    pub(crate) fn around(&self, record: &Record) -> (Vec<usize>, Vec<usize>) {
        let count = |wanted: &dyn Fn(&Record) -> bool| -> Vec<usize> {
            self.threads.iter().map(|records| records.partition_point(wanted)).collect()
        };
        (count(&|other| other.is_before(record)), count(&|other| other.ticks.0 <= record.ticks.1))
    }

    /// A name that was there all the time is listed, and none that never was.
    fn judge_listing(
        &self,
        record: &Record,
        directory: u64,
        listed: &BTreeMap<Name, u64>,
    ) -> Result<(), String> {
        let mut always: Option<BTreeMap<Name, u64>> = None;
        let mut ever = BTreeSet::new();
        let (returned, called) = self.around(record);
        let fits = |configuration: &&Configuration| {
            let done = &configuration.done;
            (0..done.len()).all(|thread| returned[thread] <= done[thread] && done[thread] <= called[thread])
        };
        for configuration in self.configurations.all.iter().filter(fits) {
            let here = configuration.model.inode(directory).map(|inode| &inode.shape.entries);
            let here = here.cloned().unwrap_or_default();
            ever.extend(here.iter().map(|(name, inode)| (*name, *inode)));
            match &mut always {
                Some(always) => always.retain(|name, inode| here.get(name) == Some(inode)),
                None => always = Some(here),
            }
        }
        let is_listed = |(name, inode): &(&Name, &u64)| listed.get(name) == Some(inode);
        if let Some((name, inode)) = always.iter().flatten().find(|entry| !is_listed(entry)) {
            return Err(format!(
                "lists {listed:?} of {directory} without {name:?} = {inode}, which was there"
            ));
        }
        match listed.iter().find(|(name, inode)| !ever.contains(&(**name, **inode))) {
            Some((name, inode)) => {
                Err(format!("lists {name:?} = {inode} of {directory}, which was never there"))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configurations::explore;
    use crate::image::State;
    use crate::model::{Model, ROOT};
    use crate::operation::OpId;
    use quire::FileType;
    use quire::inodes::IoFlags;

    fn record(id: u64, operation: Operation, outcome: Outcome, ticks: (u64, u64)) -> Record {
        Record { id: OpId(id), operation, outcome, ticks, events: (0, 0) }
    }

    fn create(id: u64, ticks: (u64, u64)) -> Record {
        let (kind, mode) = (FileType::Regular, 0o600);
        let operation = Operation::Create { directory: ROOT, name: Name(id as u16), kind, mode };
        record(id, operation, Outcome::Inode(2 + id), ticks)
    }

    fn judge(threads: &[Vec<Record>]) -> Result<u64, String> {
        let configurations = explore(Model::new(false), threads).unwrap_or_else(|what| panic!("{what}"));
        let base = State::default();
        Oracle::new(&base, threads, &configurations).judge_reads()
    }

    /// With several threads every listing was right: one without a file, and one with a name of nobody.
    #[test]
    fn a_listing_beside_others_has_what_was_there_all_the_time() {
        let judge = |listed: &[u64]| {
            let entries = listed.iter().map(|id| (Name(*id as u16), 2 + id)).collect();
            let list = Operation::ReadDirectory { directory: ROOT };
            let list = record(9, list, Outcome::Entries(entries), (2, 5));
            judge(&[vec![create(0, (0, 1)), list], vec![create(1, (3, 4))]])
        };
        assert_eq!(judge(&[0]), Ok(0));
        assert_eq!(judge(&[0, 1]), Ok(0));
        assert!(judge(&[1]).unwrap_err().contains("without"));
        assert!(judge(&[0, 1, 7]).unwrap_err().contains("never"));
    }

    /// A withdrawn fsync excused zeros in all growth of its file until the level ended, whatever was forced
    /// later.
    #[test]
    fn a_later_force_ends_what_a_withdrawn_one_excused() {
        let (inode, datasync) = (2, false);
        let withdrawn =
            Operation::FsyncMany { inodes: vec![inode], datasync, how: crate::operation::Many::Withdrawn(0) };
        let fsync = Operation::Fsync { inode, datasync, anew: false };
        let at = |operation, id, events| Record {
            events,
            ..record(id, operation, Outcome::Done, (2 * id, 2 * id + 1))
        };
        let threads = [vec![create(0, (0, 1)), at(withdrawn, 1, (1, 2)), at(fsync, 2, (3, 5))]];
        let configurations = explore(Model::new(false), &threads).unwrap_or_else(|what| panic!("{what}"));
        let base = State::default();
        let oracle = Oracle::new(&base, &threads, &configurations);
        assert!(oracle.is_being_forced(inode, 2), "withdrawn");
        assert!(oracle.is_being_forced(inode, 4), "the later one is under way");
        assert!(!oracle.is_being_forced(inode, 5));
    }

    /// With several threads a read could have what had been overwritten before it was called, or zeros.
    #[test]
    fn a_read_beside_others_has_nothing_that_was_replaced() {
        let judge = |bytes: Vec<u8>, called: u64| {
            let write = |id, from, ticks| {
                let operation =
                    Operation::Write { inode: 2, offset: from, length: 1024, flags: IoFlags::empty() };
                record(id, operation, Outcome::Written { at: from, count: 1024 }, ticks)
            };
            let read = Operation::Read { inode: 2, offset: 512, length: 2048, flags: IoFlags::empty() };
            let read = record(4, read, Outcome::Bytes(bytes), (called, 20));
            let punch = Operation::Allocate {
                inode: 2,
                mode: quire::inodes::FallocateMode::PunchHole,
                offset: 1024,
                length: 100,
            };
            let punch = record(3, punch, Outcome::Done, (11, 12));
            let first = [create(0, (0, 1)), write(1, 0, (2, 3)), write(2, 512, (4, 6)), punch];
            judge(&[first.to_vec(), vec![read]])
        };
        let pattern = crate::contents::pattern;
        let new = pattern(OpId(2), 0, 1024);
        let old = [pattern(OpId(1), 512, 1024), pattern(OpId(2), 512, 1024)].concat();
        let mut punched = new.clone();
        punched[512..612].fill(0);
        assert_eq!(judge(new.clone(), 5), Ok(0));
        assert_eq!(judge(old.clone(), 5), Ok(0), "the second write is under way");
        assert!(judge(old, 7).unwrap_err().contains("512..1024"));
        let zeros = [vec![0; 512], pattern(OpId(2), 512, 1024)].concat();
        assert!(judge(zeros, 7).is_err());
        assert_eq!(judge(new.clone(), 7), Ok(0));
        assert_eq!(judge(punched.clone(), 7), Ok(0), "the punch is under way");
        assert_eq!(judge(punched, 13), Ok(0));
        assert!(judge(new, 13).unwrap_err().contains("1024..1124"));
    }

    /// With several threads every read was right, also one of what was written to another file.
    #[test]
    fn a_read_beside_others_has_what_somebody_wrote_there() {
        let judge = |bytes: Vec<u8>| {
            let write =
                |inode, length| Operation::Write { inode, offset: 0, length, flags: IoFlags::empty() };
            let written = |count| Outcome::Written { at: 0, count };
            let read = Operation::Read { inode: 2, offset: 512, length: 1024, flags: IoFlags::empty() };
            let read = record(4, read, Outcome::Bytes(bytes), (6, 9));
            let first = [create(0, (0, 1)), record(2, write(2, 2048), written(2048), (4, 5)), read];
            let second = [create(1, (2, 3)), record(3, write(3, 1024), written(1024), (7, 8))];
            judge(&[first.to_vec(), second.to_vec()])
        };
        let pattern = |op| crate::contents::pattern(OpId(op), 512, 1536);
        assert_eq!(judge(pattern(2)), Ok(0));
        assert!(judge(pattern(3)).unwrap_err().contains("operation 3 wrote"));
    }
}
