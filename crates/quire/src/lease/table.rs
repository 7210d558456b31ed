//! The leases of all files: the protocol of asking, granting, recalling, revoking and returning them, without
//! the file system.
//!
//! States of a lease
//!
//! ```text
//!  asked ──► granted ──► recalled ──► revoked
//!    │          │            │
//!    └──────────┴────────────┴──────► returned (out of the table)
//! ```
//!
//! A *mover* is an operation that moves or frees blocks. It puts up a *bar* for the blocks. That recalls the
//! leases of those blocks, and while the bar is there no new one is given ([`LeaseTable::ask`] is refused).
//! The mover then waits until the leases are returned, a bounded time ([`Bar::await_returned`]). What is left
//! is revoked. A mover that holds what a lease's holder may need does not wait: it revokes
//! ([`LeaseTable::revoke`]).
//!
//! Why a read of the device that finds its lease valid *afterwards* counts: a lease is revoked, or returned,
//! before the blocks change hands, and whatever is written to them then comes behind a release fence. So a
//! reader that saw a byte of the new owner sees, behind its acquire fence, that the lease is revoked.
//!
//! Why no mover overlooks a lease: the mark of the file is set when a lease is asked for, before the layout
//! is looked at. A mover looks at the mark with the file's gate held exclusively. The thread that asks enters
//! and leaves that gate after it has set the mark. So the mover either sees the mark, or has ended before the
//! layout is looked at.
//!
//! Invariants: the mark is set while the table has a lease of the file. A lease never becomes granted behind
//! a recall. States change under the table's lock only; who is told, is told without it.
//!
//! Shared lines: the mark, see [`super::marks`]. Files without leases touch nothing else.
//!
//! Neighbours: [`super::grant`] asks; [`super::moving`] has the movers.

use super::marks::Marks;
use quire_base::patience;
use quire_base::sync::atomic::{AtomicU8, Ordering, fence};
use quire_base::sync::time::{Duration, Instant};
use quire_base::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::ops::Range;
use std::task::Waker;

/// Leases that a volume has at most.
pub const LEASES_MAX: usize = 4096;

const ASKED: u8 = 0;
const GRANTED: u8 = 1;
const RECALLED: u8 = 2;
const REVOKED: u8 = 3;

/// A call that tells of a recall.
pub type OnRecall = Box<dyn FnOnce() + Send>;

/// A lease, as its holder and the table share it.
pub struct Lease {
    file: u64,
    state: AtomicU8,
    listeners: Mutex<Listeners>,
    told: Condvar,
}

#[derive(Default)]
struct Listeners {
    /// The recall has come; nobody is added any more.
    closed: bool,
    calls: Vec<OnRecall>,
    /// By the number of the future that waits.
    wakers: BTreeMap<u64, Waker>,
    /// Futures that have got a number.
    futures: u64,
}

impl Lease {
    fn new(file: u64) -> Lease {
        Lease { file, state: AtomicU8::new(ASKED), listeners: Mutex::default(), told: Condvar::new() }
    }

    /// Whether everything that was read from the device up to now counts.
    pub fn is_valid(&self) -> bool {
        // Pairs with the fence behind a revocation: see the module's documentation.
        fence(Ordering::Acquire);
        matches!(self.state.load(Ordering::Relaxed), GRANTED | RECALLED)
    }

    /// Whether somebody waits for it, or has taken it back.
    pub fn is_recalled(&self) -> bool {
        self.state.load(Ordering::Acquire) >= RECALLED
    }

    fn set(&self, state: u8) {
        self.state.store(state, Ordering::Release);
    }

    fn get(&self) -> u8 {
        self.state.load(Ordering::Relaxed)
    }

    /// Calls `call` when the lease is recalled or revoked, at once if it is.
    pub fn on_recall(&self, call: OnRecall) {
        let mut listeners = self.listeners.lock();
        if !listeners.closed {
            return listeners.calls.push(call);
        }
        drop(listeners);
        call();
    }

    /// True if the lease is recalled; else the waker is woken when it is. `future` is the number of the one
    /// that asks, which gets it here: it keeps one waker, until [`Lease::forget_waker`].
    pub fn poll_recalled(&self, future: &mut Option<u64>, waker: &Waker) -> bool {
        // Wakers are programs' code: the one that goes is dropped without the lock.
        let _former;
        let mut listeners = self.listeners.lock();
        if !listeners.closed {
            let number = *future.get_or_insert_with(|| {
                listeners.futures += 1;
                listeners.futures
            });
            _former = listeners.wakers.insert(number, waker.clone());
        }
        listeners.closed
    }

    /// Nobody awaits that future any more.
    pub fn forget_waker(&self, future: u64) {
        let former = self.listeners.lock().wakers.remove(&future);
        drop(former);
    }

    /// Waits for a recall, at most this long; whether it has come.
    pub fn wait_recalled(&self, limit: Duration) -> bool {
        let began = Instant::now();
        let mut listeners = self.listeners.lock();
        while !listeners.closed {
            let left = limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                return false;
            }
            self.told.wait_for(&mut listeners, left);
        }
        true
    }

    /// Wakes whoever awaits a recall: the lease is returned, and none will come. Calls are dropped.
    fn end(&self) {
        let calls = std::mem::take(&mut self.listeners.lock().calls);
        // They are programs' code.
        drop(calls);
        self.tell();
    }

    /// Tells whoever listens. The table is not locked.
    fn tell(&self) {
        let mut listeners = self.listeners.lock();
        listeners.closed = true;
        let (calls, wakers) = (std::mem::take(&mut listeners.calls), std::mem::take(&mut listeners.wakers));
        drop(listeners);
        self.told.notify_all();
        calls.into_iter().for_each(|call| call());
        wakers.into_values().for_each(Waker::wake);
    }
}

/// Why a lease is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A mover has the blocks, or waits for them.
    Barred,
    /// The volume has as many leases as it takes.
    TooMany,
    /// The volume is being closed.
    Closed,
}

/// What the table has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseCounts {
    /// Leases that are held.
    pub held: u64,
    /// Leases that were given.
    pub grants: u64,
    /// Leases that were recalled.
    pub recalls: u64,
    /// Leases that were revoked, after a recall that was not answered or without one.
    pub revocations: u64,
}

/// The leases and bars of a volume.
#[derive(Default)]
pub struct LeaseTable {
    all: Mutex<All>,
    returned: Condvar,
}

#[derive(Default)]
struct All {
    files: BTreeMap<u64, OneFile>,
    next_bar: u64,
    closed: bool,
    counts: LeaseCounts,
}

#[derive(Default)]
struct OneFile {
    leases: Vec<(Range<u64>, Arc<Lease>)>,
    bars: Vec<(u64, Range<u64>)>,
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start.max(other.start) < one.end.min(other.end)
}

impl OneFile {
    fn leases_of<'a>(&'a self, blocks: &'a Range<u64>) -> impl Iterator<Item = &'a Arc<Lease>> {
        self.leases.iter().filter(move |(leased, _)| overlap(leased, blocks)).map(|(_, lease)| lease)
    }
}

impl All {
    /// Takes leases out, and what there is of the file if that was all.
    fn remove(
        &mut self,
        file: u64,
        marks: &Marks,
        mut which: impl FnMut(&Range<u64>, &Lease) -> bool,
    ) -> Vec<Arc<Lease>> {
        let Some(one) = self.files.get_mut(&file) else { return Vec::new() };
        let (gone, left) =
            std::mem::take(&mut one.leases).into_iter().partition(|(range, lease)| which(range, lease));
        one.leases = left;
        if one.leases.is_empty() {
            marks.set_leased(false);
            if one.bars.is_empty() {
                self.files.remove(&file);
            }
        }
        let gone: Vec<(Range<u64>, Arc<Lease>)> = gone;
        self.counts.held -= gone.len() as u64;
        gone.into_iter().map(|(_, lease)| lease).collect()
    }
}

impl LeaseTable {
    /// Asks for a lease of blocks, and marks the file. The caller then waits for the movers that have not
    /// seen the mark, looks at the layout, and comes back with [`LeaseTable::grant`].
    pub fn ask(&self, file: u64, marks: &Marks, blocks: Range<u64>) -> Result<Arc<Lease>, Refused> {
        let mut all = self.all.lock();
        if all.closed {
            return Err(Refused::Closed);
        }
        if all.counts.held as usize >= LEASES_MAX {
            return Err(Refused::TooMany);
        }
        let one = all.files.entry(file).or_default();
        if one.bars.iter().any(|(_, barred)| overlap(barred, &blocks)) {
            return Err(Refused::Barred);
        }
        let lease = Arc::new(Lease::new(file));
        one.leases.push((blocks, lease.clone()));
        marks.set_leased(true);
        all.counts.held += 1;
        Ok(lease)
    }

    /// Grants what was asked for, for the first of the blocks, up to `end`. False if a mover came first. The
    /// caller holds what orders changes of the layout, and has just looked at it.
    pub fn grant(&self, lease: &Arc<Lease>, end: u64) -> bool {
        let mut all = self.all.lock();
        if lease.get() != ASKED {
            return false;
        }
        let one = all.files.get_mut(&lease.file).expect("a lease that was asked for is in the table");
        for (range, _) in one.leases.iter_mut().filter(|(_, known)| Arc::ptr_eq(known, lease)) {
            range.end = range.end.min(end);
        }
        lease.set(GRANTED);
        all.counts.grants += 1;
        true
    }

    /// The holder returns a lease, or no longer asks for it.
    pub fn give_back(&self, lease: &Arc<Lease>, marks: &Marks) {
        let gone = {
            let mut all = self.all.lock();
            let gone = all.remove(lease.file, marks, |_, known| std::ptr::eq(known, &**lease));
            // Nobody finds it valid any more: its blocks may be moved now.
            lease.set(REVOKED);
            gone
        };
        fence(Ordering::Release);
        if !gone.is_empty() {
            self.returned.notify_all();
        }
        lease.end();
    }

    /// Whether there are leases of any of these blocks, or somebody asks for one.
    pub fn has(&self, file: u64, blocks: &Range<u64>) -> bool {
        self.all.lock().files.get(&file).is_some_and(|one| one.leases_of(blocks).next().is_some())
    }

    /// Recalls the leases of these blocks, and gives no new ones until the bar is dropped.
    pub fn bar(&self, file: u64, blocks: Range<u64>) -> Bar<'_> {
        let mut recalled = Vec::new();
        let number = {
            let mut all = self.all.lock();
            all.next_bar += 1;
            let number = all.next_bar;
            let one = all.files.entry(file).or_default();
            one.bars.push((number, blocks.clone()));
            for lease in one.leases_of(&blocks).filter(|lease| lease.get() < RECALLED) {
                lease.set(RECALLED);
                recalled.push(lease.clone());
            }
            all.counts.recalls += recalled.len() as u64;
            number
        };
        recalled.iter().for_each(|lease| lease.tell());
        Bar { table: self, file, blocks, number }
    }

    /// Takes the leases of these blocks back at once.
    pub fn revoke(&self, file: u64, marks: &Marks, blocks: &[Range<u64>]) {
        if blocks.is_empty() {
            return;
        }
        let all = self.all.lock();
        self.revoke_locked(all, file, marks, |leased| blocks.iter().any(|moved| overlap(leased, moved)));
    }

    fn revoke_locked(
        &self,
        mut all: MutexGuard<'_, All>,
        file: u64,
        marks: &Marks,
        which: impl Fn(&Range<u64>) -> bool,
    ) {
        // One that is only asked for has seen nothing yet; its layout is looked at under the caller's lock.
        let gone = all.remove(file, marks, |range, lease| lease.get() != ASKED && which(range));
        gone.iter().for_each(|lease| lease.set(REVOKED));
        all.counts.revocations += gone.len() as u64;
        drop(all);
        // What is written to the blocks comes behind this: see the module's documentation.
        fence(Ordering::Release);
        if !gone.is_empty() {
            self.returned.notify_all();
            gone.iter().for_each(|lease| lease.tell());
        }
    }

    /// Takes all leases back, and gives no more.
    pub fn close(&self) {
        let gone: Vec<_> = {
            let mut all = self.all.lock();
            all.closed = true;
            let gone: Vec<_> =
                all.files.values_mut().flat_map(|one| std::mem::take(&mut one.leases)).collect();
            gone.iter().for_each(|(_, lease)| lease.set(REVOKED));
            all.counts.held = 0;
            all.counts.revocations += gone.len() as u64;
            gone
        };
        fence(Ordering::Release);
        self.returned.notify_all();
        gone.iter().for_each(|(_, lease)| lease.tell());
    }

    /// What was counted so far.
    pub fn counts(&self) -> LeaseCounts {
        self.all.lock().counts
    }
}

/// Blocks that are about to move: there is no lease of them, once [`Bar::await_returned`] has returned.
pub struct Bar<'a> {
    table: &'a LeaseTable,
    file: u64,
    blocks: Range<u64>,
    number: u64,
}

impl Bar<'_> {
    /// Waits until the leases are returned. At `until` those that are left are revoked.
    pub fn await_returned(&self, marks: &Marks, until: Instant) {
        let _holders = patience::for_a_program();
        let mut all = self.table.all.lock();
        loop {
            let is_leased =
                all.files.get(&self.file).is_some_and(|one| one.leases_of(&self.blocks).next().is_some());
            if !is_leased {
                return;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.table.returned.wait_for(&mut all, left);
        }
        // Those that are only asked for, too: they find that they were recalled.
        let gone = all.remove(self.file, marks, |leased, _| overlap(leased, &self.blocks));
        gone.iter().for_each(|lease| lease.set(REVOKED));
        all.counts.revocations += gone.len() as u64;
        drop(all);
        fence(Ordering::Release);
        self.table.returned.notify_all();
    }
}

impl Drop for Bar<'_> {
    fn drop(&mut self) {
        let mut all = self.table.all.lock();
        let Some(one) = all.files.get_mut(&self.file) else { return };
        one.bars.retain(|(number, _)| *number != self.number);
        if one.bars.is_empty() && one.leases.is_empty() {
            all.files.remove(&self.file);
        }
    }
}
