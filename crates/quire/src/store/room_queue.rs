//! The queue of threads that wait for room: journal bytes or tree nodes that other transactions have
//! reserved.
//!
//! Protocol. A thread that finds no room joins the queue. The first in the queue alone tries again, and
//! sleeps between its tries; the others sleep until they are first. A try may succeed when something has come
//! back, so a thread that gives a reservation back, ends a checkpoint or shuts the volume down says so
//! ([`RoomQueue::notify`]), which wakes the first. A thread that leaves the queue, with room or with an
//! error, wakes the one that is first now: so every thread that fits continues at once when a shortage ends,
//! one after the other and never all together.
//!
//! Two classes. Critical threads (they free space, or finish what was promised) come before all others: what
//! the others wait for may be what only those can give. A newcomer queues behind waiting threads of its class
//! and of the higher one, so that it does not take what they wait for.
//!
//! No wake-up is lost. A waiting thread counts itself before it tries; a thread that gives something back
//! does that before it looks at the count; both fence in between. So either the try finds what has come back,
//! or the count is seen, and the event number moves. A thread goes to sleep only if the event number is still
//! the one from before its try. A try that fails may have held some of the room for a moment. The first need
//! not be told of its own; a thread that was overtaken during its try tells the one that overtook it.
//!
//! Shared line: the count of waiting threads, read by every transaction, written only when a thread waits.
//!
//! Neighbours: [`super::reservation`] tries and gives back; [`super::transaction`] decides what to do about a
//! shortage.

use quire_base::sync::atomic::{AtomicU64, Ordering, fence};
use quire_base::sync::{Arc, Condvar, Mutex, MutexGuard};
use quire_tree::Class;
use std::collections::VecDeque;

/// Waiting threads of a class, in the one word that counts them: normal ones below.
const CRITICAL_ONE: u64 = 1 << 32;

/// See the module's documentation.
#[derive(Default)]
pub struct RoomQueue {
    waiting: AtomicU64,
    lines: Mutex<Lines>,
}

#[derive(Default)]
struct Lines {
    critical: VecDeque<Arc<Condvar>>,
    normal: VecDeque<Arc<Condvar>>,
    /// Counts what may have made room.
    events: u64,
}

impl Lines {
    fn first(&self) -> Option<&Arc<Condvar>> {
        self.critical.front().or_else(|| self.normal.front())
    }

    fn line(&mut self, class: Class) -> &mut VecDeque<Arc<Condvar>> {
        match class {
            Class::Critical => &mut self.critical,
            Class::Normal => &mut self.normal,
        }
    }
}

/// A waiting thread's place in the queue; it leaves when this is dropped.
pub struct Place<'a> {
    queue: &'a RoomQueue,
    class: Class,
    wake: Arc<Condvar>,
    /// It has tried since it last told the first in the queue.
    has_tried: bool,
}

/// The number of events at a moment: see [`Place::await_turn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(u64);

impl RoomQueue {
    /// Whether a newcomer of this class has to join.
    pub fn is_ahead_of(&self, class: Class) -> bool {
        let waiting = self.waiting.load(Ordering::Relaxed);
        match class {
            Class::Critical => waiting >= CRITICAL_ONE,
            Class::Normal => waiting > 0,
        }
    }

    /// Threads that wait.
    pub fn len(&self) -> usize {
        let waiting = self.waiting.load(Ordering::Relaxed);
        (waiting / CRITICAL_ONE + waiting % CRITICAL_ONE) as usize
    }

    /// True if nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Joins as the last of its class.
    pub fn join(&self, class: Class) -> Place<'_> {
        let wake = Arc::new(Condvar::new());
        let mut lines = self.lines.lock();
        lines.line(class).push_back(wake.clone());
        self.waiting.fetch_add(one(class), Ordering::SeqCst);
        drop(lines);
        // Pairs with the fence in `notify`: who gives something back after our next try sees the count.
        fence(Ordering::SeqCst);
        Place { queue: self, class, wake, has_tried: false }
    }

    /// There may be room: the caller has given something back.
    #[inline]
    pub fn notify(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.wake_first(&mut self.lines.lock());
        }
    }

    fn wake_first(&self, lines: &mut MutexGuard<'_, Lines>) {
        lines.events += 1;
        if let Some(first) = lines.first() {
            first.notify_one();
        }
    }
}

fn one(class: Class) -> u64 {
    match class {
        Class::Critical => CRITICAL_ONE,
        Class::Normal => 1,
    }
}

impl Place<'_> {
    /// Sleeps until this thread is the first in the queue and, if the moment of its last try is given,
    /// something has happened since. Gives the moment of the next try.
    pub fn await_turn(&mut self, mut tried: Option<Moment>) -> Moment {
        let mut lines = self.queue.lines.lock();
        loop {
            let is_first = lines.first().is_some_and(|first| Arc::ptr_eq(first, &self.wake));
            if is_first && tried != Some(Moment(lines.events)) {
                self.has_tried = true;
                return Moment(lines.events);
            }
            if !is_first && std::mem::take(&mut self.has_tried) {
                tried = None;
                self.queue.wake_first(&mut lines);
            }
            self.wake.wait(&mut lines);
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut lines = self.queue.lines.lock();
        lines.line(self.class).retain(|wake| !Arc::ptr_eq(wake, &self.wake));
        self.queue.waiting.fetch_sub(one(self.class), Ordering::SeqCst);
        self.queue.wake_first(&mut lines);
    }
}
