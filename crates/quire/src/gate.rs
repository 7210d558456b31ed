//! The gate of an inode: which kind of I/O may run on it now.
//!
//! Three shared states (*buffered*, *direct*, *none*) with any number of holders in one of them, and one
//! *exclusive* holder for truncate, every fallocate and oversize writes.
//!
//! Protocol. One word holds the state, the number of holders and a bit that says "an operation waits". While
//! that bit is clear, entering a compatible state and leaving are one atomic operation each. Once an entry
//! has to wait it joins a first-in-first-out queue and sets the bit; newcomers then queue behind it, whatever
//! they want, so that no state starves another. The last holder to leave hands the gate to the head of the
//! queue and to those directly behind it that want the same shared state.
//!
//! Under contention a shared state is *sharded*: newcomers count themselves in a line of their own instead of
//! the word. They count, fence, and look at the word again; if the state is still theirs and nobody waits
//! they are in, else they take their count back and queue. Leaving is the same: take the count off, fence,
//! look whether an operation waits. A thread that waits has set the bit and fenced before it looks at the
//! shards, so of the two at least one sees the other. The gate is free when the word counts nobody and every
//! shard is zero; handing it over ends the sharding. A permit remembers where it is counted.
//!
//! Invariants: holders are always of one state; exclusive has one and is never sharded; with the bit clear
//! the queue is empty; a waiter is granted its place by the one who leaves or by its own entry, never lost
//! between the two.
//!
//! A permit belongs to the operation, not to a thread: the thread that completes the I/O may drop it. No
//! operation enters one gate twice; two gates are entered in inode order. Shared lines: the word, by every
//! holder, until contention shards it; then it is only read.
//!
//! Neighbours: `file/*` enter it; `lock_order` says what may be taken under it.

use quire_base::shard;
use quire_base::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use quire_base::sync::{Arc, Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::OnceLock;

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
const COUNT_MASK: u64 = !(STATE_MASK | SHARDED | WAITERS);
/// Holders of the present state count themselves in shards.
const SHARDED: u64 = 1 << 62;
const WAITERS: u64 = 1 << 63;

/// Disturbed entries after which a gate is sharded.
#[cfg(not(any(loom, shuttle)))]
const PATIENCE: u32 = 16;
#[cfg(any(loom, shuttle))]
const PATIENCE: u32 = 1;

/// Lines of a sharded gate: few under a model checker, which explores each.
#[cfg(not(any(loom, shuttle)))]
const SHARDS: usize = shard::SHARDS;
#[cfg(any(loom, shuttle))]
const SHARDS: usize = 2;

/// Where a permit is counted if not in a shard.
const IN_WORD: u32 = u32::MAX;

/// A shard's count, on a line of its own.
#[repr(align(64))]
struct Line(AtomicU64);

#[derive(Default)]
struct Queue {
    /// Waiting entries in the order of their arrival.
    waiting: VecDeque<Waiting>,
    next_ticket: u64,
    /// Every ticket below it has been granted.
    granted_below: u64,
}

/// An entry that waits.
struct Waiting {
    ticket: u64,
    state: GateState,
    /// Its own: a hand-over wakes those that it lets in, and nobody else.
    granted: Arc<Condvar>,
}

/// See the module's documentation.
#[repr(align(64))]
pub struct Gate {
    word: AtomicU64,
    /// Entries that met another on the word.
    disturbed: AtomicU32,
    /// Made when the gate is first sharded.
    shards: OnceLock<Box<[Line; SHARDS]>>,
    queue: Mutex<Queue>,
}

/// The right to do one kind of I/O until dropped.
#[must_use]
pub struct Permit<'a> {
    gate: &'a Gate,
    /// [`IN_WORD`], or the shard that counts it.
    counted: u32,
}

/// A permit in the hands of an operation that outlives its call: [`Permit::into_counted`], [`Gate::resume`].
#[derive(Clone, Copy, Debug)]
pub struct Counted(u32);

impl Permit<'_> {
    /// Keeps the place in the gate; the end of the operation gives it back through [`Gate::resume`], once.
    pub fn into_counted(self) -> Counted {
        Counted(std::mem::ManuallyDrop::new(self).counted)
    }
}

impl Default for Gate {
    fn default() -> Gate {
        Gate::new()
    }
}

impl Gate {
    /// An open gate.
    pub fn new() -> Gate {
        Gate {
            word: AtomicU64::new(0),
            disturbed: AtomicU32::new(0),
            shards: OnceLock::new(),
            queue: Mutex::new(Queue::default()),
        }
    }

    /// Enters, waiting for its turn.
    #[inline]
    pub fn enter(&self, state: GateState) -> Permit<'_> {
        let counted = self.enter_at_once(state).unwrap_or_else(|| {
            self.enter_in_turn(state);
            IN_WORD
        });
        Permit { gate: self, counted }
    }

    /// The permit that [`Permit::into_counted`] turned into a number.
    pub fn resume(&self, counted: Counted) -> Permit<'_> {
        Permit { gate: self, counted: counted.0 }
    }

    /// Enters if that needs no waiting.
    pub fn try_enter(&self, state: GateState) -> Option<Permit<'_>> {
        let counted = self
            .enter_at_once(state)
            .or_else(|| (self.is_sharded() && self.close_shards(state)).then_some(IN_WORD));
        counted.map(|counted| Permit { gate: self, counted })
    }

    /// Enters a gate that is sharded for another state and has no holder.
    #[cold]
    fn close_shards(&self, state: GateState) -> bool {
        let queue = self.queue.lock();
        if !queue.waiting.is_empty() {
            return false;
        }
        // As a thread that waits, but for no longer than a look. A thread that queues meanwhile waits for the
        // queue's lock.
        let before = self.word.fetch_or(WAITERS, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        if before & SHARDED != 0 && before & COUNT_MASK == 0 && self.shards_are_empty() {
            self.word.store(state as u64 | ONE_HOLDER, Ordering::Release);
            return true;
        }
        self.word.fetch_and(!WAITERS, Ordering::AcqRel);
        false
    }

    /// Where the entry is counted; None if it has to wait.
    #[inline]
    fn enter_at_once(&self, state: GateState) -> Option<u32> {
        let word = self.word.load(Ordering::Relaxed);
        let free = word & !STATE_MASK == 0;
        let same = word & (STATE_MASK | SHARDED | WAITERS) == state as u64 && state != GateState::Exclusive;
        if free || same {
            let entered = (word & COUNT_MASK) + ONE_HOLDER + state as u64;
            if self.word.compare_exchange(word, entered, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Some(IN_WORD);
            }
        }
        self.enter_disturbed(state)
    }

    /// The entry that met others: again, by a shard, or not at once.
    #[cold]
    fn enter_disturbed(&self, state: GateState) -> Option<u32> {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if word & WAITERS != 0 {
                return None;
            }
            if word & SHARDED != 0 {
                return if word & STATE_MASK == state as u64 { self.enter_shard(state) } else { None };
            }
            let free = word & COUNT_MASK == 0;
            let same = word & STATE_MASK == state as u64 && state != GateState::Exclusive;
            if !(free || same) {
                return None;
            }
            let entered = (word & COUNT_MASK) + ONE_HOLDER + state as u64;
            match self.word.compare_exchange(word, entered, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => {
                    if same && self.disturbed.fetch_add(1, Ordering::Relaxed) + 1 >= PATIENCE {
                        self.spread();
                    }
                    return Some(IN_WORD);
                }
                Err(now) => word = now,
            }
        }
    }

    /// Shards the present state, if it is shared and nobody waits. The gate goes back to one word when it is
    /// handed over to another state.
    #[cold]
    pub fn spread(&self) {
        self.shards.get_or_init(|| Box::new(std::array::from_fn(|_| Line(AtomicU64::new(0)))));
        self.disturbed.store(0, Ordering::Relaxed);
        let _ = self.word.fetch_update(Ordering::Release, Ordering::Relaxed, |word| {
            let shared = word & COUNT_MASK != 0 && word & STATE_MASK != GateState::Exclusive as u64;
            (shared && word & WAITERS == 0).then_some(word | SHARDED)
        });
    }

    fn is_sharded(&self) -> bool {
        self.word.load(Ordering::Relaxed) & SHARDED != 0
    }

    fn shard_count(&self, number: u32) -> &AtomicU64 {
        &self.shards.get().expect("a gate is sharded after its shards were made")[number as usize].0
    }

    /// The caller has acquired the word sharded, so the shards are there.
    fn enter_shard(&self, state: GateState) -> Option<u32> {
        let number = (shard::current() % SHARDS) as u32;
        let count = self.shard_count(number);
        count.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let word = self.word.load(Ordering::Acquire);
        if word & (STATE_MASK | SHARDED | WAITERS) == state as u64 | SHARDED {
            return Some(number);
        }
        self.leave_shard(number);
        None
    }

    fn leave_shard(&self, number: u32) {
        self.shard_count(number).fetch_sub(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.word.load(Ordering::Relaxed) & WAITERS != 0 {
            self.hand_over(&mut self.queue.lock());
        }
    }

    /// Whether no shard counts anybody. The caller has acquired the word sharded and with waiters, and
    /// fenced.
    fn shards_are_empty(&self) -> bool {
        self.shards.get().is_none_or(|shards| shards.iter().all(|line| line.0.load(Ordering::Acquire) == 0))
    }

    #[cold]
    fn enter_in_turn(&self, state: GateState) {
        let granted = Arc::new(Condvar::new());
        let mut queue = self.queue.lock();
        let ticket = queue.next_ticket;
        queue.next_ticket += 1;
        queue.waiting.push_back(Waiting { ticket, state, granted: granted.clone() });
        // From here on nobody enters past the queue, and the last to leave sees the bit.
        self.word.fetch_or(WAITERS, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        self.hand_over(&mut queue);
        while queue.granted_below <= ticket {
            granted.wait(&mut queue);
        }
    }

    /// Gives a gate without holders to the head of the queue. The queue's lock is held, so the bit cannot be
    /// set meanwhile, and with it set nobody else enters: the word changes here only.
    fn hand_over(&self, queue: &mut Queue) {
        let word = self.word.load(Ordering::Acquire);
        if word & COUNT_MASK != 0 || (word & SHARDED != 0 && !self.shards_are_empty()) {
            return;
        }
        let Some(state) = queue.waiting.front().map(|head| head.state) else {
            return;
        };
        let most = if state == GateState::Exclusive { 1 } else { usize::MAX };
        let holders = queue.waiting.iter().take(most).take_while(|next| next.state == state).count();
        let waiters = if queue.waiting.len() == holders { 0 } else { WAITERS };
        self.word.store(state as u64 | (holders as u64 * ONE_HOLDER) | waiters, Ordering::Release);
        for granted in queue.waiting.drain(..holders) {
            queue.granted_below = granted.ticket + 1;
            granted.granted.notify_one();
        }
    }

    #[inline]
    fn leave(&self) {
        let before = self.word.fetch_sub(ONE_HOLDER, Ordering::Release);
        if before & WAITERS != 0 && before & COUNT_MASK == ONE_HOLDER {
            self.leave_to_others();
        }
    }

    #[cold]
    fn leave_to_others(&self) {
        fence(Ordering::SeqCst);
        self.hand_over(&mut self.queue.lock());
    }
}

impl Drop for Permit<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.counted == IN_WORD { self.gate.leave() } else { self.gate.leave_shard(self.counted) }
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
    fn a_sharded_gate_opens_and_closes() {
        let gate = Gate::new();
        let first = gate.enter(GateState::Buffered);
        gate.spread();
        let second = gate.try_enter(GateState::Buffered).expect("a shard lets it in");
        assert_ne!(second.counted, IN_WORD);
        drop(first);
        assert!(gate.try_enter(GateState::Direct).is_none());
        std::thread::scope(|scope| {
            let closer = scope.spawn(|| drop(gate.enter(GateState::Exclusive)));
            while gate.word.load(Ordering::Relaxed) & WAITERS == 0 {
                std::thread::yield_now();
            }
            assert!(gate.try_enter(GateState::Buffered).is_none(), "somebody waits");
            drop(second);
            closer.join().unwrap();
        });
        let third = gate.try_enter(GateState::Direct).expect("open again");
        assert_eq!(third.counted, IN_WORD);
        gate.spread();
        drop(third);
        drop(gate.try_enter(GateState::Exclusive).expect("sharded for another state, but empty"));
    }

    #[test]
    fn threads_of_different_states_never_overlap() {
        overlap(false);
        overlap(true);
    }

    fn overlap(spread: bool) {
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
                                if spread {
                                    gate.spread();
                                }
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
