//! parking_lot's locks, which on simulated threads ask the scheduler first.
//!
//! Protocol: the real lock underneath is only ever tried by a simulated thread; whether it waits, and for
//! whom, is the scheduler's affair. Of a condition variable only the scheduler knows its simulated waiters.
//! Other threads use the real ones. Inside and outside must not contend for one lock, nor wait for each
//! other.
//!
//! Neighbours: [`crate::scheduler`] decides; without the feature `simulation` parking_lot's own types have
//! these names.

use crate::scheduler::{Kind, Mode, Wait, me};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::time::Duration;

fn address<T: ?Sized>(of: &T) -> usize {
    std::ptr::from_ref(of).addr()
}

/// A mutual exclusion lock.
#[derive(Default)]
pub struct Mutex<T: ?Sized>(parking_lot::Mutex<T>);

/// Holds a [`Mutex`].
#[must_use]
pub struct MutexGuard<'a, T: ?Sized> {
    lock: &'a Mutex<T>,
    /// None while its owner waits on a condition variable.
    guard: Option<parking_lot::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// An unlocked lock around `value`.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(parking_lot::Mutex::new(value))
    }
    /// The value.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let guard = match me() {
            Some(me) => me.acquire(address(self), Mode::Mutex, Location::caller(), || self.0.try_lock()),
            None => self.0.lock(),
        };
        MutexGuard { lock: self, guard: Some(guard) }
    }
    /// Takes the lock if it is free.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = match me() {
            Some(me) => me.try_acquire(address(self), Mode::Mutex, Location::caller(), || self.0.try_lock()),
            None => self.0.try_lock(),
        };
        guard.map(|guard| MutexGuard { lock: self, guard: Some(guard) })
    }
    /// Whether somebody holds it now.
    pub fn is_locked(&self) -> bool {
        self.0.is_locked()
    }
    /// The value, without locking: the borrow proves that nobody else has it.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Mutex<T> {
        Mutex::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.guard.as_ref().expect("the lock is held but while its owner waits")
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("the lock is held but while its owner waits")
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        if self.guard.take().is_some()
            && let Some(me) = me()
        {
            me.release(address(self.lock), Mode::Mutex, true);
        }
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

/// Whether a timed wait ended by its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// True if the time ran out.
    pub fn timed_out(self) -> bool {
        self.0
    }
}

impl Condvar {
    /// A condition variable nobody waits on.
    pub const fn new() -> Condvar {
        Condvar(parking_lot::Condvar::new())
    }
    /// Lets go of the lock, waits for a notification, takes the lock again.
    #[track_caller]
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        if self.wait_simulated(guard, None).is_none() {
            self.0.wait(guard.guard.as_mut().expect("who waits holds the lock"));
        }
    }
    /// As [`Condvar::wait`], at most for `limit`.
    #[track_caller]
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, limit: Duration) -> WaitTimeoutResult {
        let timed_out = self.wait_simulated(guard, Some(limit)).unwrap_or_else(|| {
            let real = guard.guard.as_mut().expect("who waits holds the lock");
            self.0.wait_for(real, limit).timed_out()
        });
        WaitTimeoutResult(timed_out)
    }
    /// Whether the time ran out; None on a thread that is not simulated, which has not waited then.
    #[track_caller]
    fn wait_simulated<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        limit: Option<Duration>,
    ) -> Option<bool> {
        let me = me()?;
        let (lock, location) = (guard.lock, Location::caller());
        // Nobody else runs between the release and the wait.
        guard.guard = None;
        me.release(address(lock), Mode::Mutex, false);
        let timed_out = me.block(Kind::Wait, Wait::Condvar(address(self)), limit, location);
        let mut attempt = || lock.0.try_lock();
        guard.guard = Some(me.reacquire(address(lock), Mode::Mutex, location, &mut attempt));
        Some(timed_out)
    }
    /// Wakes one waiter, if there is one; says whether there was.
    #[track_caller]
    pub fn notify_one(&self) -> bool {
        match me() {
            Some(me) => me.notify(address(self), false, Location::caller()) > 0,
            None => self.0.notify_one(),
        }
    }
    /// Wakes every waiter; returns how many.
    #[track_caller]
    pub fn notify_all(&self) -> usize {
        match me() {
            Some(me) => me.notify(address(self), true, Location::caller()),
            None => self.0.notify_all(),
        }
    }
}

/// A lock with shared and exclusive holders. As in parking_lot, readers do not pass a writer that waits.
#[derive(Default)]
pub struct RwLock<T: ?Sized>(parking_lot::RwLock<T>);

/// Holds a [`RwLock`] shared.
#[must_use]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    guard: Option<parking_lot::RwLockReadGuard<'a, T>>,
}

/// Holds a [`RwLock`] exclusively.
#[must_use]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    guard: Option<parking_lot::RwLockWriteGuard<'a, T>>,
}

impl<T> RwLock<T> {
    /// An unlocked lock around `value`.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(parking_lot::RwLock::new(value))
    }
    /// The value.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits for shared access.
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let guard = match me() {
            Some(me) => me.acquire(address(self), Mode::Read, Location::caller(), || self.0.try_read()),
            None => self.0.read(),
        };
        RwLockReadGuard { lock: self, guard: Some(guard) }
    }
    /// Waits for exclusive access.
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let guard = match me() {
            Some(me) => me.acquire(address(self), Mode::Write, Location::caller(), || self.0.try_write()),
            None => self.0.write(),
        };
        RwLockWriteGuard { lock: self, guard: Some(guard) }
    }
    /// Takes shared access if no writer is in or waits.
    #[track_caller]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let guard = match me() {
            Some(me) => me.try_acquire(address(self), Mode::Read, Location::caller(), || self.0.try_read()),
            None => self.0.try_read(),
        };
        guard.map(|guard| RwLockReadGuard { lock: self, guard: Some(guard) })
    }
    /// Takes exclusive access if nobody is in.
    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let guard = match me() {
            Some(me) => me.try_acquire(address(self), Mode::Write, Location::caller(), || self.0.try_write()),
            None => self.0.try_write(),
        };
        guard.map(|guard| RwLockWriteGuard { lock: self, guard: Some(guard) })
    }
    /// The value, without locking: the borrow proves that nobody else has it.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T> From<T> for RwLock<T> {
    fn from(value: T) -> RwLock<T> {
        RwLock::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.guard.as_ref().expect("the lock is held until the guard goes")
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.guard.as_ref().expect("the lock is held until the guard goes")
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("the lock is held until the guard goes")
    }
}

impl<T: ?Sized> Drop for RwLockReadGuard<'_, T> {
    fn drop(&mut self) {
        self.guard = None;
        if let Some(me) = me() {
            me.release(address(self.lock), Mode::Read, true);
        }
    }
}

impl<T: ?Sized> Drop for RwLockWriteGuard<'_, T> {
    fn drop(&mut self) {
        self.guard = None;
        if let Some(me) = me() {
            me.release(address(self.lock), Mode::Write, true);
        }
    }
}

/// A cell that is written once. A thread that finds another one filling it waits.
pub struct OnceLock<T> {
    cell: std::sync::OnceLock<T>,
    filling: Mutex<()>,
}

impl<T> Default for OnceLock<T> {
    fn default() -> OnceLock<T> {
        OnceLock::new()
    }
}

impl<T> OnceLock<T> {
    /// An empty cell.
    pub const fn new() -> OnceLock<T> {
        OnceLock { cell: std::sync::OnceLock::new(), filling: Mutex::new(()) }
    }
    /// The value, if there is one.
    pub fn get(&self) -> Option<&T> {
        self.cell.get()
    }
    /// Sets the value, unless there is one: then the argument comes back.
    #[track_caller]
    pub fn set(&self, value: T) -> Result<(), T> {
        let _filling = self.filling.lock();
        self.cell.set(value)
    }
    /// The value, made by `f` if there is none.
    #[track_caller]
    pub fn get_or_init(&self, f: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.cell.get() {
            return value;
        }
        let _filling = self.filling.lock();
        if let Some(value) = self.cell.get() {
            return value;
        }
        let value = f();
        self.cell.get_or_init(|| value)
    }
}
