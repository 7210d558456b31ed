//! What belongs to one process.
//!
//! A volume has threads, and `fork` takes its memory without them. In a child a call could wait for ever, and
//! what it wrote to the image would destroy what its parent writes there. So front ends keep what they hand
//! out in an [`OfProcess`]: a child is refused, and never drops what it inherited.
//!
//! [`id`] is the number of this process, without a system call each time: it is kept in a page of its own,
//! which the kernel clears in a child (`MADV_WIPEONFORK`). So a child asks the kernel again, however it was
//! forked off. Handlers of `pthread_atfork` would miss a bare `clone`.
//!
//! Shared cache lines: that page is written once in a process.

use crate::{Error, ErrorKind, Result};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Zero until this process has asked for its number. `None` where the kernel does not clear pages.
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

/// As [`std::process::id`].
pub fn id() -> u32 {
    let Some(kept) = *KEPT else { return std::process::id() };
    match kept.load(Ordering::Relaxed) {
        0 => {
            let id = std::process::id();
            kept.store(id, Ordering::Relaxed);
            id
        }
        id => id,
    }
}

/// A value that only the process that made it may use and drop. It lies where the whole lies, so that a
/// pointer to one is a pointer to the other.
#[derive(Debug)]
#[repr(C)]
pub struct OfProcess<T> {
    value: ManuallyDrop<T>,
    process: u32,
}

impl<T> OfProcess<T> {
    /// A value of this process.
    pub fn new(value: T) -> OfProcess<T> {
        OfProcess { value: ManuallyDrop::new(value), process: id() }
    }

    /// The value.
    ///
    /// Errors: [`ErrorKind::NotPermitted`] in a process that was forked off from the one that made it.
    pub fn get(&self) -> Result<&T> {
        if self.is_here() { Ok(&self.value) } else { Err(self.refused()) }
    }

    /// The value, which is nobody else's any more; `None` in a process that was forked off.
    pub fn into_inner(self) -> Option<T> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the value is taken once: `this`, whose only access this is, is not dropped.
        this.is_here().then(|| unsafe { ManuallyDrop::take(&mut this.value) })
    }

    /// Whether this is the process that made the value.
    pub fn is_here(&self) -> bool {
        self.process == id()
    }

    #[cold]
    fn refused(&self) -> Error {
        Error::new(
            ErrorKind::NotPermitted,
            format!(
                "the volume belongs to process {}, from which this one was forked: open it after the fork, in one \
                 process",
                self.process
            ),
        )
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

    #[test]
    fn a_child_has_its_own_number() {
        assert!(KEPT.is_some());
        assert_eq!((id(), id()), (std::process::id(), std::process::id()));
        // SAFETY: the child calls nothing but `getpid` and `_exit`.
        let child = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(i32::from(id() != libc::getpid() as u32));
            }
            child
        };
        let mut status = -1;
        // SAFETY: a live local behind the pointer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
