//! What belongs to one process.
//!
//! A volume has threads, and `fork` takes its memory without them. In a child a call could wait for ever, and
//! what it wrote to the image would destroy what its parent writes there. So front ends keep what they hand
//! out in an [`OfProcess`]: a child is refused, and never drops what it inherited.
//!
//! Such a child cannot open volumes of its own either ([`AtWork`]): the locks of this library wait in tables
//! of the process, and its copy of them still has its parent's threads in it.
//!
//! [`generation`] tells a process from those that it was forked off from, without a system call. It is kept
//! in a page of its own, which the kernel clears in a child (`MADV_WIPEONFORK`): a child takes the next
//! number, however it was forked off. Handlers of `pthread_atfork` would miss a bare `clone`. The number of a
//! process would not do: the first one in a namespace of its own has its parent's, where that is 1.
//!
//! Shared cache lines: that page is written once in a process, [`AT_WORK`] when a volume is opened or closed.

use crate::{Error, ErrorKind, Result};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The last number that this process or one before it took.
static LAST: AtomicU32 = AtomicU32::new(0);

/// Zero until this process has taken its number. `None` where the kernel does not clear pages.
static KEPT: LazyLock<Option<&'static AtomicU32>> = LazyLock::new(page);

fn page() -> Option<&'static AtomicU32> {
    // Both calls round it up to a page.
    let length = size_of::<AtomicU32>();
    // SAFETY: a new mapping, which nobody else knows. It is never unmapped once it is handed out.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0);
        if page == libc::MAP_FAILED {
            return None;
        }
        // An emulator that accepts any advice, as qemu's user mode does, takes none.
        let takes_any = libc::madvise(page, length, -1) == 0;
        if takes_any || libc::madvise(page, length, libc::MADV_WIPEONFORK) != 0 {
            libc::munmap(page, length);
            return None;
        }
        Some(&*page.cast::<AtomicU32>())
    }
}

/// A number that no process has from which this one was forked off. Where the kernel does not clear pages, it
/// is [`std::process::id`].
pub fn generation() -> u32 {
    let Some(kept) = *KEPT else { return std::process::id() };
    match kept.load(Ordering::Relaxed) {
        0 => {
            let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
            // Another thread may have been first.
            kept.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed)
                .map_or_else(|first| first, |_| next)
        }
        generation => generation,
    }
}

/// A value that only the process that made it may use and drop. The value is at offset 0: a pointer to it is
/// a pointer to the whole.
#[derive(Debug)]
#[repr(C)]
pub struct OfProcess<T> {
    value: ManuallyDrop<T>,
    generation: u32,
}

impl<T> OfProcess<T> {
    /// A value of this process.
    pub fn new(value: T) -> OfProcess<T> {
        OfProcess { value: ManuallyDrop::new(value), generation: generation() }
    }

    /// The value.
    ///
    /// Errors: [`ErrorKind::NotPermitted`] in a process that was forked off from the one that made it.
    pub fn get(&self) -> Result<&T> {
        if self.is_here() { Ok(&self.value) } else { Err(refused()) }
    }

    /// The value, which is nobody else's any more; `None` in a process that was forked off.
    pub fn into_inner(self) -> Option<T> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the value is taken once: `this`, whose only access this is, is not dropped.
        this.is_here().then(|| unsafe { ManuallyDrop::take(&mut this.value) })
    }

    /// Whether this is the process that made the value.
    pub fn is_here(&self) -> bool {
        self.generation == generation()
    }
}

#[cold]
fn refused() -> Error {
    let why = "the volume belongs to the process from which this one was forked: open it after the fork, in one process";
    Error::new(ErrorKind::NotPermitted, why)
}

/// How many volumes are open, and above bit 32 the generation of the process that has them open.
static AT_WORK: AtomicU64 = AtomicU64::new(0);

/// A volume is open in this process, and has threads.
#[derive(Debug)]
pub struct AtWork(u32);

impl AtWork {
    /// Counts a volume that is being opened. Errors: those of [`AtWork::check`].
    pub fn begin() -> Result<AtWork> {
        let generation = generation();
        let more = |seen: u64| match (seen as u32, (seen >> 32) as u32 == generation) {
            (0, _) => Some(u64::from(generation) << 32 | 1),
            (_, true) => Some(seen + 1),
            (_, false) => None,
        };
        match AT_WORK.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
            Ok(_) => Ok(AtWork(generation)),
            Err(_) => Err(forked_at_work()),
        }
    }

    /// Whether this process may open a volume. It takes no lock, and starts no thread.
    ///
    /// Errors: [`ErrorKind::NotPermitted`] in a process that was forked off while a volume was open.
    pub fn check() -> Result<()> {
        let seen = AT_WORK.load(Ordering::Acquire);
        match seen as u32 {
            0 => Ok(()),
            _ if (seen >> 32) as u32 == generation() => Ok(()),
            _ => Err(forked_at_work()),
        }
    }
}

#[cold]
fn forked_at_work() -> Error {
    let why = "this process was forked off from one that had a volume open, and cannot open any itself: fork first, or \
               start a program (exec; the method \"spawn\" of Python's multiprocessing)";
    Error::new(ErrorKind::NotPermitted, why)
}

impl Drop for AtWork {
    fn drop(&mut self) {
        if self.0 == generation() {
            AT_WORK.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: the value is not used again: this is the end of its owner, which is the only access.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether it holds in a child, in which only `malloc` and system calls may be relied on.
    fn in_a_child(holds: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls nothing else but `_exit`.
        let child = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(i32::from(!holds()));
            }
            child
        };
        let mut status = -1;
        // SAFETY: a live local behind the pointer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        status == 0
    }

    #[test]
    fn a_child_has_its_own_number() {
        assert!(KEPT.is_some());
        let own = generation();
        assert_eq!(generation(), own);
        assert!(in_a_child(|| generation() > own));
    }

    /// A child of a process with an open volume opened another one, and hung in one case of thirty.
    #[test]
    fn a_child_of_a_process_at_work_begins_nothing() {
        let is_refused = || AtWork::begin().is_err_and(|error| error.kind() == ErrorKind::NotPermitted);
        let (one, two) = (AtWork::begin().unwrap(), AtWork::begin().unwrap());
        drop(one);
        assert!(in_a_child(is_refused));
        drop(two);
        assert!(in_a_child(|| !is_refused() && AtWork::begin().is_ok()));
    }
}
