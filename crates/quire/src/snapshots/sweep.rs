//! Deleting snapshots, beside whatever else goes on.
//!
//! Deleting snapshot n:
//! 1. Journal that it is being deleted. From then on it shares nothing.
//! 2. Region by region, free what is dead, was in use in n, and neither in the snapshot before it nor in the
//!    one behind it. A block is used without a break from its first to its last snapshot, so these two tell
//!    of all others. Not so if the one behind was taken after step 1: a block that had left its file in
//!    between was free, and any later snapshot may have it again. Then all snapshots behind n are asked.
//!    Which blocks a snapshot used, its own space tree says. Each transaction moves the cursor in the
//!    snapshot's value past its region: a block that was freed, used and shared again is not looked at twice.
//!    Where n cannot be read, any dead block may be its own, so all other snapshots are asked. One of those
//!    asked that cannot be read may need every block, and nothing is freed there: deleting that one frees it.
//! 3. Delete the key. Two checkpoints later the snapshot's nodes are free.
//!
//! Several may be marked; one at a time is swept, to its end. A cursor that has moved says which, after a
//! crash too; one that has not moved has freed nothing, so another may come first. A thread that waits for a
//! deletion does the steps itself; else the reaper does them, one at a time between its other work. Where
//! others flush meanwhile, the thread rests after each step for [`REST`] times as long as the step took. What
//! is left when the volume is closed is for the next mount.
//!
//! Invariants: the snapshot before the one that is swept does not go meanwhile, nor the one behind it, but
//! others may be taken between two steps: a step that finds a higher epoch looks for the neighbours anew. A
//! step holds [`frees`](crate::store::Store::frees) shared, so within it no snapshot is taken.
//!
//! Neighbours: [`super::deletion`] is the one under way; [`super::taking`] takes them; [`crate::reaper`] has
//! the thread.

use super::deletion::Sweep;
use super::table::{Space, dead, find, table};
use crate::engine::Engine;
use crate::store::transaction::{Cost, Depends};
use quire_base::sync::time::{Duration, Instant};
use quire_base::{BlockNo, Error, ErrorKind, Result};
use quire_format::extent::Run;
use quire_format::key::{Key, VALUE_MAX};
use quire_format::record::SMALL_CHANGE_MAX;
use quire_format::region::{REGION_BLOCKS, RegionMap};
use quire_format::snapshot::Snapshot;
use std::ops::ControlFlow;

/// Rest after a step, as a multiple of its time, while others use the volume: a deletion costs them less than
/// a fifth.
const REST: u32 = 6;
/// A step that had to wait for something is no measure.
const REST_MAX: Duration = Duration::from_millis(50);

/// What is left of deletions after a step.
pub(super) enum Left {
    Nothing,
    /// More steps, after a rest.
    More(Duration),
}

/// Times that a snapshot's space is read before it counts as unreadable: what a deletion leaves because of it
/// is free after a repair only.
const ATTEMPTS: usize = 3;

/// What is read of a snapshot's space; `None` where that cannot be.
fn if_readable<T>(read: impl Fn() -> Result<T>) -> Result<Option<T>> {
    let mut left = ATTEMPTS;
    loop {
        match read() {
            Ok(read) => return Ok(Some(read)),
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io) => {
                left -= 1;
                if left == 0 {
                    tracing::warn!(%error, "what a snapshot needs cannot be read; a deletion goes on without it");
                    return Ok(None);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// The blocks of a region that a snapshot uses, if it can be read.
fn used(space: Option<&Space>, region: u64) -> Result<Option<RegionMap>> {
    space.map_or(Ok(None), |space| if_readable(|| space.used(region)))
}

impl Engine {
    /// Step 1 of a deletion; gives the snapshot's number.
    pub(super) fn mark_deleted(&self, name: &str) -> Result<u32> {
        let _change = self.begin_change()?;
        let _unread = self.readers.keep_out(name)?;
        // Of two threads that delete the same, one finds it.
        let sweep = self.sweep.lock();
        let (number, mut snapshot) = find(&self.store.tree, name)?;
        snapshot.deleting = Some(0);
        let mut transaction = self.store.begin(Cost::new(1, VALUE_MAX).critical())?;
        transaction.put(Key::snapshot(number), &snapshot.encode());
        let seq = transaction.commit_alone(Depends::Nothing)?;
        drop(sweep);
        self.store.force(seq)?;
        Ok(number)
    }

    /// One step of background work on deletions, if there are any; gives the rest before the next.
    pub(crate) fn sweep_behind(&self) -> Duration {
        if !self.reaper.take_sweep() {
            return Duration::ZERO;
        }
        match self.sweep_step() {
            Ok(Left::More(rest)) => {
                self.reaper.want_sweep();
                return rest;
            }
            Ok(Left::Nothing) => {}
            Err(error) => {
                tracing::warn!(%error, "a snapshot could not be deleted yet; the next periodic commit goes on")
            }
        }
        Duration::ZERO
    }

    /// Goes on with deletions that have begun, to their ends.
    pub(crate) fn finish_snapshot_deletions(&self) -> Result<()> {
        while let Left::More(_) = self.sweep_step()? {}
        Ok(())
    }

    /// One step of the deletion that is under way: a region, or step 3.
    pub(super) fn sweep_step(&self) -> Result<Left> {
        let started = Instant::now();
        let mut place = self.sweep.lock();
        let _frees = self.store.frees.shared();
        let mut sweep = match place.take() {
            Some(sweep) if sweep.epoch == self.store.snapshots.epoch() => sweep,
            before => match self.look_for_sweep(before)? {
                Some(sweep) => sweep,
                None => return Ok(Left::Nothing),
            },
        };
        match self.next_dead_region(sweep.next)? {
            Some(region) => {
                self.sweep_region(&mut sweep, region)?;
                let flushes = self.store.device.stats().flush_requests;
                let alone = std::mem::replace(&mut sweep.flushes, flushes) == flushes;
                *place = Some(sweep);
                let rest = (REST * started.elapsed()).min(REST_MAX);
                Ok(Left::More(if alone { Duration::ZERO } else { rest }))
            }
            None => {
                let mut transaction = self.store.begin(Cost::new(2, 0).critical())?;
                transaction.delete(Key::snapshot(sweep.number));
                transaction.delete(Key::received(sweep.number));
                transaction.commit_alone(Depends::Nothing)?;
                let state = self.store.checkpoint.lock();
                self.store.tree.let_go(sweep.number, state.next());
                Ok(Left::More(Duration::ZERO))
            }
        }
    }

    /// The deletion to go on with: the one `before`, with its neighbours of now; one that has freed
    /// something; or the oldest snapshot.
    fn look_for_sweep(&self, before: Option<Sweep>) -> Result<Option<Sweep>> {
        let all = table(&self.store.tree)?;
        let last = before.as_ref().map(|sweep| sweep.number);
        let cursor = |at: &usize| all[*at].1.deleting;
        let marked = || (0..all.len()).filter(|at| cursor(at).is_some());
        let chosen = marked()
            .find(|at| Some(all[*at].0) == last)
            .or_else(|| marked().find(|at| cursor(at) > Some(0)))
            .or_else(|| marked().next());
        let Some(at) = chosen else { return Ok(None) };
        let (number, snapshot) = all[at].clone();
        let own = if_readable(|| Space::open(&self.store.device, &snapshot))?;
        let around = self.spaces_around(&all, at, own.is_none())?;
        let done = snapshot.deleting.unwrap_or(0);
        let next = before.filter(|sweep| sweep.number == number).map_or(done, |sweep| sweep.next);
        let flushes = self.store.device.stats().flush_requests;
        Ok(Some(Sweep { number, snapshot, own, around, epoch: self.store.snapshots.epoch(), next, flushes }))
    }

    /// The space of those that are asked: of all others, or of those that tell of all others.
    fn spaces_around(&self, all: &[(u32, Snapshot)], at: usize, of_all: bool) -> Result<Vec<Option<Space>>> {
        let since = self.store.snapshots.deleted_since(all[at].0);
        let (older, newer) = (&all[..at], &all[at + 1..]);
        // After an opening that is all of the newer ones.
        let behind = match newer.first() {
            Some((next, _)) if of_all || *next > since => newer.len(),
            other => usize::from(other.is_some()),
        };
        let before = if of_all { older.len() } else { 1 };
        let around: Vec<_> = older.iter().rev().take(before).chain(&newer[..behind]).collect();
        let open = |snapshot| Space::open_beside(&self.store.device, snapshot, around.len());
        around.iter().map(|(_, snapshot)| if_readable(|| open(snapshot))).collect()
    }

    /// Step 2, for one region.
    fn sweep_region(&self, sweep: &mut Sweep, region: u64) -> Result<()> {
        let next = region + 1;
        let mut free = dead(&self.store.tree, region)?;
        match used(sweep.own.as_ref(), region)? {
            Some(used) => free = free.both(&used),
            None if sweep.own.is_some() => self.ask_all(sweep)?,
            None => {}
        }
        for neighbour in &sweep.around {
            free = used(neighbour.as_ref(), region)?.map_or_else(RegionMap::new, |used| free.without(&used));
        }
        let first = BlockNo(region * REGION_BLOCKS);
        let runs: Vec<Run> = free
            .runs()
            .map(|(start, blocks)| Run::new(first.offset(u64::from(start)), blocks.into()))
            .collect();
        if !runs.is_empty() {
            let cost = Cost::new(3, VALUE_MAX + runs.len() * SMALL_CHANGE_MAX).critical();
            let mut transaction = self.store.begin(cost)?;
            runs.iter().for_each(|run| transaction.reclaim(*run));
            sweep.snapshot.deleting = Some(next);
            transaction.put(Key::snapshot(sweep.number), &sweep.snapshot.encode());
            transaction.commit(Depends::Nothing)?;
        }
        sweep.next = next;
        Ok(())
    }

    /// Goes on as if the snapshot could need any block.
    fn ask_all(&self, sweep: &mut Sweep) -> Result<()> {
        let all = table(&self.store.tree)?;
        let at = all.iter().position(|(number, _)| *number == sweep.number);
        let at = at.ok_or_else(|| Error::corrupt("a snapshot that is being deleted is no more"))?;
        (sweep.own, sweep.around) = (None, self.spaces_around(&all, at, true)?);
        Ok(())
    }

    /// The first region from `from` on that has dead blocks.
    fn next_dead_region(&self, from: u64) -> Result<Option<u64>> {
        let mut found = None;
        self.store.tree.scan(Key::dead(from), Key::dead(u64::MAX), &mut |key, _| {
            found = Some(key.offset);
            ControlFlow::Break(())
        })?;
        Ok(found)
    }
}
