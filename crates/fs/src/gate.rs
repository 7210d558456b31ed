//! The gate of an inode: which kind of I/O may run on it now.
//!
//! Three shared states (*buffered*, *direct*, *none*) with any number of holders in one of them, and one
//! *exclusive* holder for truncate, every fallocate and oversize writes.
//!
//! Protocol. One word holds the state, the number of holders and a bit that says "somebody waits". While that
//! bit is clear, entering a compatible state and leaving are one atomic operation each. Once an entry has to
//! wait it joins a first-in-first-out queue and sets the bit; newcomers then queue behind it, whatever they
//! want, so that no state starves another. The last holder to leave hands the gate to the head of the queue and
//! to those directly behind it that want the same shared state.
//!
//! Invariants: holders are always of one state; exclusive has one; with the bit clear the queue is empty; a
//! waiter is granted its place by the one who leaves or by its own entry, never lost between the two, because
//! the bit is set before the holders are counted and a leaver looks at the bit in the same operation in which it
//! gives up its count.
//!
//! A permit belongs to the operation, not to a thread: it may be dropped by whoever completes the I/O. No
//! operation enters one gate twice; two gates are entered in inode order. Shared lines: the word, by every
//! holder.
//!
//! Neighbours: `file/*` enter it; `lock_order` says what may be taken under it.

use quire_base::sync::atomic::{AtomicU64, Ordering};
use quire_base::sync::{Condvar, Mutex};
use std::collections::VecDeque;

/// What a permit allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum GateState {
    /// Reads and writes through the cache.
    Buffered = 1,
    /// Reads and writes past the cache.
    Direct = 2,
    /// No change of contents: oversize reads.
    None = 3,
    /// Alone.
    Exclusive = 4,
}

const STATE_MASK: u64 = 0b111;
const ONE_HOLDER: u64 = 1 << 3;
const COUNT_MASK: u64 = !(STATE_MASK | WAITERS);
const WAITERS: u64 = 1 << 63;

#[derive(Default)]
struct Queue {
    /// Waiting entries in the order of their arrival.
    waiting: VecDeque<(u64, GateState)>,
    next_ticket: u64,
    /// Every ticket below it has been granted.
    granted_below: u64,
}

/// See the module's documentation.
pub struct Gate {
    word: AtomicU64,
    queue: Mutex<Queue>,
    granted: Condvar,
}

/// The right to do one kind of I/O until dropped.
#[must_use]
pub struct Permit<'a> {
    gate: &'a Gate,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate::new()
    }
}

impl Gate {
    /// An open gate.
    pub fn new() -> Gate {
        Gate { word: AtomicU64::new(0), queue: Mutex::new(Queue::default()), granted: Condvar::new() }
    }

    /// Enters, waiting for its turn.
    pub fn enter(&self, state: GateState) -> Permit<'_> {
        if !self.enter_at_once(state) {
            self.enter_in_turn(state);
        }
        Permit { gate: self }
    }

    /// Enters if that needs no waiting.
    pub fn try_enter(&self, state: GateState) -> Option<Permit<'_>> {
        self.enter_at_once(state).then(|| Permit { gate: self })
    }

    fn enter_at_once(&self, state: GateState) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let free = word & COUNT_MASK == 0;
            let same = word & STATE_MASK == state as u64 && state != GateState::Exclusive;
            if word & WAITERS != 0 || !(free || same) {
                return false;
            }
            let entered = (word & COUNT_MASK) + ONE_HOLDER + state as u64;
            match self.word.compare_exchange_weak(word, entered, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    #[cold]
    fn enter_in_turn(&self, state: GateState) {
        let mut queue = self.queue.lock();
        let ticket = queue.next_ticket;
        queue.next_ticket += 1;
        queue.waiting.push_back((ticket, state));
        // From here on nobody enters past the queue, and whoever leaves last sees the bit.
        self.word.fetch_or(WAITERS, Ordering::AcqRel);
        self.hand_over(&mut queue);
        while queue.granted_below <= ticket {
            self.granted.wait(&mut queue);
        }
    }

    /// Gives a gate without holders to the head of the queue. The queue's lock is held, so the bit cannot be
    /// set meanwhile, and with it set nobody else enters: the word changes here only.
    fn hand_over(&self, queue: &mut Queue) {
        if self.word.load(Ordering::Acquire) & COUNT_MASK != 0 {
            return;
        }
        let Some(&(_, state)) = queue.waiting.front() else {
            return;
        };
        let mut holders = 0;
        while let Some(&(ticket, next)) = queue.waiting.front() {
            if next != state || (state == GateState::Exclusive && holders == 1) {
                break;
            }
            queue.waiting.pop_front();
            queue.granted_below = ticket + 1;
            holders += 1;
        }
        let waiters = if queue.waiting.is_empty() { 0 } else { WAITERS };
        self.word.store(state as u64 | (holders * ONE_HOLDER) | waiters, Ordering::Release);
        self.granted.notify_all();
    }

    fn leave(&self) {
        let before = self.word.fetch_sub(ONE_HOLDER, Ordering::Release);
        if before & COUNT_MASK == ONE_HOLDER && before & WAITERS != 0 {
            self.hand_over(&mut self.queue.lock());
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.gate.leave();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicI64;

    #[test]
    fn states_share_only_with_themselves() {
        let gate = Gate::new();
        let a = gate.enter(GateState::Buffered);
        let b = gate.try_enter(GateState::Buffered).expect("buffered shares with buffered");
        assert!(gate.try_enter(GateState::Direct).is_none());
        assert!(gate.try_enter(GateState::Exclusive).is_none());
        drop((a, b));
        let alone = gate.try_enter(GateState::Exclusive).expect("free");
        assert!(gate.try_enter(GateState::Exclusive).is_none());
        drop(alone);
        assert!(gate.try_enter(GateState::None).is_some());
    }

    #[test]
    fn threads_of_different_states_never_overlap() {
        let gate = Arc::new(Gate::new());
        // Buffered counts up from zero, direct down; exclusive must see zero.
        let holders = Arc::new(AtomicI64::new(0));
        let threads: Vec<_> = (0..6)
            .map(|n| {
                let (gate, holders) = (gate.clone(), holders.clone());
                std::thread::spawn(move || {
                    for _ in 0..2000 {
                        match n % 3 {
                            0 => {
                                let _permit = gate.enter(GateState::Buffered);
                                assert!(holders.fetch_add(1, Ordering::SeqCst) >= 0);
                                holders.fetch_sub(1, Ordering::SeqCst);
                            }
                            1 => {
                                let _permit = gate.enter(GateState::Direct);
                                assert!(holders.fetch_sub(1, Ordering::SeqCst) <= 0);
                                holders.fetch_add(1, Ordering::SeqCst);
                            }
                            _ => {
                                let _permit = gate.enter(GateState::Exclusive);
                                assert_eq!(holders.load(Ordering::SeqCst), 0);
                            }
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(gate.try_enter(GateState::Exclusive).is_some());
    }
}
