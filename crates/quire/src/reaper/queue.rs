//! Inodes that wait to be freed: without a name, and without a user.
//!
//! Each shard queues by itself, so that threads that unlink at the same time do not meet; the reaper goes
//! round. It is woken only when it sleeps: it says so in a word, looks once more, and then waits; who queues
//! looks at the word afterwards. Of the two, at least one sees the other (both fence in between).
//!
//! Invariants: what is queued or in a reaper's hands counts as waiting until it is freed or put aside.
//!
//! Shared lines: the sleep word, written when the reaper falls asleep or wakes; a shard's queue, by its
//! threads and the reaper.
//!
//! Neighbours: [`super::waiting`].

use quire_base::InodeNo;
use quire_base::shard::{self, SHARDS};
use quire_base::sync::Mutex;
use quire_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::collections::VecDeque;

#[repr(align(128))]
#[derive(Default)]
struct Line<T>(T);

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Queue {
    shards: [Line<Mutex<VecDeque<InodeNo>>>; SHARDS],
    asleep: Line<AtomicBool>,
    /// Inodes in reapers' hands.
    reaping: Line<AtomicUsize>,
    /// The shard that was last found with something in it.
    cursor: AtomicUsize,
}

/// An inode in a reaper's hands, until dropped.
pub(crate) struct Reaping<'a> {
    queue: &'a Queue,
    /// Whose turn it is.
    pub(crate) number: InodeNo,
}

impl Queue {
    fn own(&self) -> &Mutex<VecDeque<InodeNo>> {
        &self.shards[shard::current() % SHARDS].0
    }

    /// Queues an inode; true if the reaper is to be woken.
    pub(crate) fn push(&self, number: InodeNo) -> bool {
        self.own().lock().push_back(number);
        fence(Ordering::SeqCst);
        self.asleep.0.load(Ordering::Relaxed)
    }

    /// The next inode of any shard.
    pub(crate) fn take(&self) -> Option<Reaping<'_>> {
        let start = self.cursor.load(Ordering::Relaxed);
        for step in 0..SHARDS {
            let at = (start + step) % SHARDS;
            let mut shard = self.shards[at].0.lock();
            if let Some(number) = shard.pop_front() {
                // With the shard locked, and for what was found alone: a look that finds nothing must not
                // make another reaper believe that something is left.
                self.reaping.0.fetch_add(1, Ordering::AcqRel);
                drop(shard);
                if step > 0 {
                    self.cursor.store(at, Ordering::Relaxed);
                }
                return Some(Reaping { queue: self, number });
            }
        }
        None
    }

    /// The next inode of the current thread's shard, if more than `most` wait there.
    pub(crate) fn take_excess(&self, most: usize) -> Option<Reaping<'_>> {
        let mut own = self.own().lock();
        if own.len() <= most {
            return None;
        }
        self.reaping.0.fetch_add(1, Ordering::AcqRel);
        let number = own.pop_front().expect("more than none");
        Some(Reaping { queue: self, number })
    }

    /// Nothing waits in a queue.
    pub(crate) fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.0.lock().is_empty())
    }

    /// Nothing waits, and nothing is being freed.
    pub(crate) fn is_idle(&self) -> bool {
        // In this order: what is taken counts as being freed before it leaves its queue.
        self.is_empty() && self.reaping.0.load(Ordering::SeqCst) == 0 && self.is_empty()
    }

    /// Tells that the reaper will sleep; false if it must not, since something waits.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.asleep.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.is_empty()
    }

    /// The reaper is awake.
    pub(crate) fn wake(&self) {
        self.asleep.0.store(false, Ordering::Relaxed);
    }
}

impl Drop for Reaping<'_> {
    fn drop(&mut self) {
        self.queue.reaping.0.fetch_sub(1, Ordering::SeqCst);
    }
}
