//! `quire replicate`: keeps a copy of a volume on another volume, by snapshots.
//!
//! A round takes a snapshot of the source, sends what has changed since the newest snapshot that both sides
//! have, and deletes those of its own snapshots that are no longer needed. It is made of `quire snapshot`,
//! `quire send` and `quire receive`, each a process of its own, on this machine or behind `ssh` ([`ends`]).
//! So a copy needs no protocol: a receive is all or nothing, one that broke goes on by its token, and locks
//! keep two replications of one target apart.
//!
//! State. There is none but the snapshots: `PREFIX-NUMBER`, numbers ascending. One that both sides have, of
//! the same name and taken at the same time, is what the next stream begins at.
//!
//! Invariants: snapshots without the prefix are never touched, and none while the sides have none in common.
//! The newest snapshot that both sides have is never deleted. A snapshot is deleted on the source only when
//! the target has a newer one, or when the target has refused it, says that it lacks it, and has begun
//! nothing: so refusals leave no snapshots, however many they are. What the target has received of a stream
//! is given up only when the source says that it lacks a snapshot which the rest needs.
//!
//! Neighbours: [`report`] says how far behind the copy is; docs/streams.md, "A standby".

mod ends;
mod report;

use std::time::{Duration, Instant};

use ends::{End, Snapshot};
use quire::internals::snapshots::BASE_NAME;
use quire_format::receive::Token;
use report::Report;

use crate::arguments::Replicate;
use crate::exit::{self, Failure, Outcome};
use crate::logging;

/// Rests between rounds that fail: the first, and the longest.
const RESTS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Runs until it is ended, or once.
pub fn run(arguments: &Replicate) -> Outcome {
    logging::to_terminal();
    let replication = Replication::new(arguments)?;
    let ends = [replication.source.name(), replication.target.name()];
    let mut report = Report::new(arguments.metrics.clone(), ends)?;
    let mut rest = RESTS.0;
    loop {
        let began = Instant::now();
        let outcome = replication.round(&mut report);
        report.write(outcome.as_ref().err());
        let wait = match outcome {
            Ok(()) if arguments.once => return Ok(()),
            Ok(()) => {
                rest = RESTS.0;
                arguments.every.saturating_sub(began.elapsed())
            }
            Err(failure) if arguments.once => return Err(failure),
            Err(failure) => {
                tracing::warn!("{failure}; the next try is in {} s", rest.as_secs());
                let now = rest;
                rest = (2 * rest).min(RESTS.1);
                now
            }
        };
        std::thread::sleep(wait);
    }
}

struct Replication {
    source: End,
    target: End,
    prefix: String,
    keep: usize,
}

impl Replication {
    fn new(arguments: &Replicate) -> Outcome<Replication> {
        let prefix = arguments.prefix.clone();
        if prefix.is_empty() || prefix.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control()) {
            return Err(Failure::usage(format!("--prefix {prefix:?}: a word without slashes is needed")));
        }
        let source = End::here(&arguments.source)?;
        let target = End::parse(&arguments.target, &arguments.rsh, &arguments.remote_program)?;
        Ok(Replication { source, target, prefix, keep: arguments.keep })
    }

    fn round(&self, report: &mut Report) -> Outcome {
        if self.source.is(&self.target) {
            let (source, target) = (self.source.name(), self.target.name());
            return Err(Failure::usage(format!(
                "{source} and {target} are one volume: its copy is kept on another one"
            )));
        }
        self.finish_broken_stream(report)?;
        let (there, here) = (self.target.snapshots()?, self.source.snapshots()?);
        let (mine_there, mine_here) = (self.mine(&there), self.mine(&here));
        let is_here = |copy: &Snapshot| mine_here.iter().any(|(_, one)| one.is(copy));
        let common = mine_there.iter().rev().find(|(_, copy)| is_here(copy));
        // A receive that was given up, and cut off in that, leaves one that the next receive deletes.
        if common.is_none() && there.iter().any(|snapshot| snapshot.name != BASE_NAME) {
            if here.is_empty() && self.source.is_mounted_read_only() {
                return Err(Failure::new(
                    exit::FAILED,
                    format!(
                        "the mount of {} takes no changes, and shows no snapshots as it is that of one (-o snapshot=): mount the \
                         volume itself",
                        self.source.name()
                    ),
                ));
            }
            return Err(Failure::new(
                exit::FAILED,
                format!(
                    "{} has no snapshot {}-NUMBER in common with {}: make it anew with `quire mkfs --force`, \
                     then everything is sent once",
                    self.target.name(),
                    self.prefix,
                    self.source.name()
                ),
            ));
        }
        if let Some((sent, _)) = common {
            // What no stream has carried to its end, nor ever will: the target has begun nothing.
            let unsent = mine_here.iter().filter(|(number, _)| number > sent);
            unsent.for_each(|(_, unsent)| self.give_up(&unsent.name));
        }
        // A name is taken until its snapshot is deleted altogether.
        let last = there.iter().chain(&here).filter_map(|snapshot| self.number(snapshot)).max().unwrap_or(0);
        let name = self.name(last + 1);
        self.source.run(&["snapshot", "create", self.source.volume(), &name])?;
        let taken = self.source.snapshots()?.into_iter().find(|snapshot| snapshot.name == name);
        let taken = taken.ok_or_else(|| {
            Failure::new(exit::MISSING, format!("{name} has disappeared from {}", self.source.name()))
        })?;
        let from = common.map(|(number, _)| self.name(*number));
        let began = Instant::now();
        let sent = ends::pipe(&self.source, &self.send(&name, from.as_deref()), &self.target, report);
        let bytes = sent.or_else(|failure| self.settle(&taken, failure))?;
        tracing::info!("{name} is on {}: {bytes} bytes in {:.1?}", self.target.name(), began.elapsed());
        report.succeeded(taken.created);
        // Each by itself: one that fails keeps nothing at the other end.
        let (source, target) = (self.prune(&self.source), self.prune(&self.target));
        source.and(target)
    }

    /// After a stream that failed. The target may have the snapshot all the same: a connection may break
    /// before it carries the receiver's success.
    fn settle(&self, sent: &Snapshot, failure: Failure) -> Outcome<u64> {
        let Ok(there) = self.target.snapshots() else { return Err(failure) };
        if there.iter().any(|copy| copy.is(sent)) {
            tracing::warn!("{failure}; the target has {} all the same", sent.name);
            return Ok(0);
        }
        if matches!(self.target.resume_token(), Ok(None)) {
            self.give_up(&sent.name);
        }
        Err(failure)
    }

    /// Deletes a snapshot of the source that the target has refused. Where somebody reads it, it stays.
    fn give_up(&self, name: &str) {
        if let Err(failure) = self.source.run(&["snapshot", "delete", self.source.volume(), name]) {
            tracing::warn!("{failure}: the snapshot stays for now");
        }
    }

    /// Goes on with what the last stream has left at the target, or gives it up.
    fn finish_broken_stream(&self, report: &mut Report) -> Outcome {
        let Some(token) = self.target.resume_token()? else { return Ok(()) };
        tracing::info!("going on with the stream that broke");
        let rest = ["send", "--quiet", "--resume", &token, self.source.volume()].map(str::to_owned);
        match ends::pipe(&self.source, &rest, &self.target, report) {
            Ok(_) => Ok(()),
            Err(failure) if failure.code == exit::MISSING && self.is_gone(&token) => {
                tracing::warn!("{failure}: what had been received is given up");
                self.target.run(&["receive", "--abort", self.target.volume()]).map(drop)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Whether the source says that it has a snapshot no more which the rest of a stream needs. It says
    /// nothing while it is not mounted, or not there.
    fn is_gone(&self, token: &str) -> bool {
        let (Ok(token), Ok(here)) = (token.parse::<Token>(), self.source.snapshots()) else { return false };
        let has = |created| here.iter().any(|snapshot| !snapshot.deleting && snapshot.created == created);
        !std::iter::once(token.id).chain(token.parent).all(|id| has(id.created.0))
    }

    fn send(&self, name: &str, from: Option<&str>) -> Vec<String> {
        let mut words = vec!["send", "--quiet"];
        if let Some(from) = from {
            words.extend(["--from", from]);
        }
        words.extend([self.source.volume(), name]);
        words.into_iter().map(str::to_owned).collect()
    }

    fn name(&self, number: u64) -> String {
        format!("{}-{number:08}", self.prefix)
    }

    /// The number in the name of one of this replication's snapshots.
    fn number(&self, snapshot: &Snapshot) -> Option<u64> {
        let number = snapshot.name.strip_prefix(&self.prefix)?.strip_prefix('-')?.parse().ok()?;
        (snapshot.name == self.name(number)).then_some(number)
    }

    /// This replication's snapshots with their numbers, the oldest first, without those being deleted.
    fn mine<'a>(&self, all: &'a [Snapshot]) -> Vec<(u64, &'a Snapshot)> {
        let alive = all.iter().filter(|snapshot| !snapshot.deleting);
        let mut mine: Vec<_> = alive.filter_map(|one| Some((self.number(one)?, one))).collect();
        mine.sort_by_key(|(number, _)| *number);
        mine
    }

    /// Deletes the oldest of this replication's snapshots. The newest is what both sides have. One that
    /// somebody reads stays for a while.
    fn prune(&self, end: &End) -> Outcome {
        let all = end.snapshots()?;
        let mine = self.mine(&all);
        let mut outcome = Ok(());
        for (_, snapshot) in &mine[..mine.len().saturating_sub(self.keep.max(1))] {
            match end.run(&["snapshot", "delete", end.volume(), &snapshot.name]) {
                Err(failure) if failure.code == exit::BUSY => {
                    tracing::warn!("{failure}: the snapshot stays for now");
                }
                deleted => outcome = outcome.and(deleted.map(drop)),
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_snapshots_count() {
        let end = || End::parse("image", "ssh", "quire").unwrap();
        let replication = Replication { source: end(), target: end(), prefix: "copy".into(), keep: 2 };
        let snapshot = |name: &str| Snapshot { name: name.into(), created: 0, deleting: false };
        let all =
            ["copy-00000010", "copy-9", "copy-x", "other-00000001", "copy-00000002", "copy"].map(snapshot);
        let numbers: Vec<u64> = replication.mine(&all).iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [2, 10]);
    }
}
