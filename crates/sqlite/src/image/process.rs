//! The number of this process, without a system call each time.
//!
//! The number is kept in a page of its own, which the kernel clears in a child (`MADV_WIPEONFORK`). So a
//! child asks the kernel again, however it was forked off. Handlers of `pthread_atfork` would miss a bare
//! `clone`.

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
pub(super) fn id() -> u32 {
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
