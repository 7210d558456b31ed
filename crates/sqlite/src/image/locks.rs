//! The locks of a database, and the shared memory of its write-ahead log, among the connections of a process.
//!
//! Both follow SQLite's documentation of `xLock`, `xUnlock`, `xShmMap` and `xShmLock`, and its VFS `unix` in
//! what that leaves open. Nobody waits here: SQLite calls again when its busy handler says so.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ffi;

/// Locks of the shared memory.
const SHM_LOCKS: usize = 8;

/// What the connections to a file share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    levels: Mutex<Levels>,
    memory: Mutex<Memory>,
}

/// Locks of a file.
#[derive(Debug, Default)]
struct Levels {
    /// The highest level that a connection has.
    highest: c_int,
    /// Connections that have any.
    holders: usize,
}

/// Shared memory of a write-ahead log.
#[derive(Debug, Default)]
struct Memory {
    regions: Vec<Box<[AtomicU64]>>,
    /// Connections that have mapped it. The memory starts anew when the last has gone.
    users: usize,
    /// Shared holders of each lock; -1 for an exclusive one.
    locks: [i32; SHM_LOCKS],
}

/// What one connection holds.
#[derive(Debug, Default)]
pub(super) struct Held {
    level: c_int,
    mapped: bool,
    shared: u8,
    exclusive: u8,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Raises a connection's lock to `level`, or says busy.
    pub(super) fn lock(&self, held: &mut Held, level: c_int) -> c_int {
        if held.level >= level {
            return ffi::OK;
        }
        let mut levels = locked(&self.levels);
        // Somebody else changes the file, or waits to: nobody comes in, and there is one of them.
        if held.level != levels.highest && (levels.highest >= ffi::LOCK_PENDING || level > ffi::LOCK_SHARED) {
            return ffi::BUSY;
        }
        if held.level == ffi::LOCK_NONE {
            levels.holders += 1;
            levels.highest = levels.highest.max(ffi::LOCK_SHARED);
            held.level = ffi::LOCK_SHARED;
        }
        let (reached, done) = match level {
            ffi::LOCK_SHARED => return ffi::OK,
            // Readers that are there may finish; new ones stay out.
            ffi::LOCK_EXCLUSIVE if levels.holders > 1 => (ffi::LOCK_PENDING, ffi::BUSY),
            level => (level, ffi::OK),
        };
        held.level = reached;
        levels.highest = reached;
        done
    }

    /// Lowers a connection's lock.
    pub(super) fn unlock(&self, held: &mut Held, level: c_int) {
        if held.level <= level {
            return;
        }
        let mut levels = locked(&self.levels);
        if held.level > ffi::LOCK_SHARED {
            levels.highest = ffi::LOCK_SHARED;
        }
        if level == ffi::LOCK_NONE {
            levels.holders -= 1;
            if levels.holders == 0 {
                levels.highest = ffi::LOCK_NONE;
            }
        }
        held.level = level;
    }

    /// Whether a connection is about to change the file.
    pub(super) fn is_reserved(&self) -> bool {
        locked(&self.levels).highest > ffi::LOCK_SHARED
    }

    /// A region of the shared memory, made of zeros if there is none and `extend` says so. It stays where it
    /// is until the last connection unmaps.
    pub(super) fn map(
        &self,
        held: &mut Held,
        region: usize,
        bytes: usize,
        extend: bool,
    ) -> Option<*const AtomicU64> {
        let mut memory = locked(&self.memory);
        if !held.mapped {
            held.mapped = true;
            memory.users += 1;
        }
        while extend && memory.regions.len() <= region {
            memory.regions.push((0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect());
        }
        memory.regions.get(region).map(|words| words.as_ptr())
    }

    /// Takes or gives `count` locks of the shared memory from `first` on.
    pub(super) fn lock_memory(&self, held: &mut Held, first: usize, count: usize, flags: c_int) -> c_int {
        if first + count > SHM_LOCKS {
            return ffi::IOERR_SHMLOCK;
        }
        let mask = (((1_u16 << count) - 1) << first) as u8;
        let mut memory = locked(&self.memory);
        let locks = &mut memory.locks[first..first + count];
        if flags & ffi::SHM_UNLOCK != 0 {
            for (lock, bit) in locks.iter_mut().zip(first..) {
                if held.exclusive & 1 << bit != 0 {
                    *lock = 0;
                } else if held.shared & 1 << bit != 0 {
                    *lock -= 1;
                }
            }
            held.exclusive &= !mask;
            held.shared &= !mask;
        } else if flags & ffi::SHM_SHARED != 0 {
            if held.shared & mask == mask {
                return ffi::OK;
            }
            if locks.iter().any(|&lock| lock < 0) {
                return ffi::BUSY;
            }
            locks.iter_mut().for_each(|lock| *lock += 1);
            held.shared |= mask;
        } else {
            let ours = |bit: usize| held.exclusive & 1 << bit != 0;
            if locks.iter().zip(first..).any(|(&lock, bit)| lock != 0 && !ours(bit)) {
                return ffi::BUSY;
            }
            locks.fill(-1);
            held.exclusive |= mask;
        }
        ffi::OK
    }

    /// Orders what a connection has written to the shared memory before what it reads next.
    pub(super) fn barrier(&self) {
        fence(Ordering::SeqCst);
        drop(locked(&self.memory));
    }

    /// A connection uses the shared memory no more.
    pub(super) fn unmap(&self, held: &mut Held) {
        if held.shared | held.exclusive != 0 {
            self.lock_memory(held, 0, SHM_LOCKS, ffi::SHM_UNLOCK);
        }
        if std::mem::take(&mut held.mapped) {
            let mut memory = locked(&self.memory);
            memory.users -= 1;
            if memory.users == 0 {
                memory.regions.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::{
        BUSY, LOCK_EXCLUSIVE, LOCK_NONE, LOCK_PENDING, LOCK_RESERVED, LOCK_SHARED, OK, SHM_EXCLUSIVE,
        SHM_LOCK, SHM_SHARED, SHM_UNLOCK,
    };

    #[test]
    fn readers_finish_and_no_new_ones_come_while_a_writer_waits() {
        let shared = Shared::default();
        let [mut writer, mut reader, mut late] = <[Held; 3]>::default();
        assert_eq!(shared.lock(&mut reader, LOCK_SHARED), OK);
        assert_eq!(shared.lock(&mut writer, LOCK_SHARED), OK);
        assert!(!shared.is_reserved());
        assert_eq!(shared.lock(&mut writer, LOCK_RESERVED), OK);
        assert!(shared.is_reserved());
        // One writer; readers still come.
        assert_eq!(shared.lock(&mut reader, LOCK_RESERVED), BUSY);
        assert_eq!(shared.lock(&mut late, LOCK_SHARED), OK);
        shared.unlock(&mut late, LOCK_NONE);
        assert_eq!(shared.lock(&mut writer, LOCK_EXCLUSIVE), BUSY);
        assert_eq!(writer.level, LOCK_PENDING);
        assert_eq!(shared.lock(&mut late, LOCK_SHARED), BUSY);
        shared.unlock(&mut reader, LOCK_NONE);
        assert_eq!(shared.lock(&mut writer, LOCK_EXCLUSIVE), OK);
        assert_eq!(shared.lock(&mut reader, LOCK_SHARED), BUSY);
        shared.unlock(&mut writer, LOCK_SHARED);
        assert_eq!(shared.lock(&mut reader, LOCK_SHARED), OK);
        shared.unlock(&mut writer, LOCK_NONE);
        shared.unlock(&mut reader, LOCK_NONE);
        assert_eq!(locked(&shared.levels).holders, 0);
        // A hot journal is rolled back from SHARED alone.
        assert_eq!(shared.lock(&mut late, LOCK_SHARED), OK);
        assert_eq!(shared.lock(&mut late, LOCK_EXCLUSIVE), OK);
        shared.unlock(&mut late, LOCK_NONE);
        assert_eq!(shared.lock(&mut reader, LOCK_SHARED), OK);
    }

    #[test]
    fn locks_of_the_shared_memory_exclude_each_other() {
        let shared = Shared::default();
        let [mut one, mut two] = <[Held; 2]>::default();
        assert!(shared.map(&mut one, 0, 32768, false).is_none());
        let first = shared.map(&mut one, 0, 32768, true).unwrap();
        assert_eq!(shared.map(&mut two, 0, 32768, false), Some(first));
        let (taken, both) = (SHM_LOCK | SHM_EXCLUSIVE, SHM_LOCK | SHM_SHARED);
        assert_eq!(shared.lock_memory(&mut one, 3, 1, both), OK);
        assert_eq!(shared.lock_memory(&mut two, 3, 1, both), OK);
        assert_eq!(shared.lock_memory(&mut one, 3, 1, SHM_UNLOCK | SHM_SHARED), OK);
        assert_eq!(shared.lock_memory(&mut one, 2, 3, taken), BUSY);
        assert_eq!(shared.lock_memory(&mut two, 3, 1, SHM_UNLOCK | SHM_SHARED), OK);
        assert_eq!(shared.lock_memory(&mut one, 2, 3, taken), OK);
        assert_eq!(shared.lock_memory(&mut two, 4, 1, both), BUSY);
        assert_eq!(shared.lock_memory(&mut two, 1, 1, taken), OK);
        shared.unmap(&mut one);
        assert_eq!(shared.lock_memory(&mut two, 4, 1, both), OK);
        shared.unmap(&mut two);
        assert_eq!(locked(&shared.memory).locks, [0; SHM_LOCKS]);
        assert!(locked(&shared.memory).regions.is_empty());
    }
}
