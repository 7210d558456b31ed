//! loom's and shuttle's locks behind parking_lot's interface.

#[cfg(loom)]
use loom::sync as checked;
#[cfg(all(shuttle, not(loom)))]
use shuttle::sync as checked;

#[cfg(loom)]
pub use loom::hint::spin_loop;
#[cfg(all(shuttle, not(loom)))]
pub use shuttle::{hint::spin_loop, thread};
pub use std::sync::{Arc, Weak};

use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// Atomic types and fences.
pub mod atomic {
    pub use super::checked::atomic::*;
}

/// A mutual exclusion lock.
#[derive(Debug, Default)]
pub struct Mutex<T>(checked::Mutex<T>);

/// Holds a [`Mutex`].
pub struct MutexGuard<'a, T>(Option<checked::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    /// An unlocked lock around `value`.
    pub fn new(value: T) -> Mutex<T> {
        Mutex(checked::Mutex::new(value))
    }
    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap()))
    }
    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard)))
    }
    /// The value, without locking: the borrow proves that nobody else has it.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap()
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.as_ref().unwrap()
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().unwrap()
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub struct Condvar(checked::Condvar);

/// Whether a timed wait ended by its time.
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// True if the time ran out.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    /// A condition variable nobody waits on.
    pub fn new() -> Condvar {
        Condvar(checked::Condvar::new())
    }
    /// Lets go of the lock, waits for a notification, takes the lock again.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let inner = guard.0.take().unwrap();
        guard.0 = Some(self.0.wait(inner).unwrap());
    }
    /// As [`Condvar::wait`], with a limit (model checkers never let it run out).
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _limit: Duration) -> WaitTimeoutResult {
        self.wait(guard);
        WaitTimeoutResult(false)
    }
    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }
    /// Wakes every waiter.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A lock with shared and exclusive holders.
#[derive(Debug, Default)]
pub struct RwLock<T>(checked::RwLock<T>);

/// Holds a [`RwLock`] shared.
pub type RwLockReadGuard<'a, T> = checked::RwLockReadGuard<'a, T>;
/// Holds a [`RwLock`] exclusively.
pub type RwLockWriteGuard<'a, T> = checked::RwLockWriteGuard<'a, T>;

impl<T> RwLock<T> {
    /// An unlocked lock around `value`.
    pub fn new(value: T) -> RwLock<T> {
        RwLock(checked::RwLock::new(value))
    }
    /// Waits for shared access.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap()
    }
    /// Waits for exclusive access.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap()
    }
    /// Takes shared access if no writer is in.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.0.try_read().ok()
    }
    /// Takes exclusive access if nobody is in.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.0.try_write().ok()
    }
}

/// loom's threads; to sleep is to let others run.
#[cfg(loom)]
pub mod thread {
    pub use loom::thread::*;

    /// Lets another thread run.
    pub fn sleep(_: std::time::Duration) {
        yield_now();
    }
}
