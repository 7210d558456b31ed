//! The descriptor that the default VFS opens a database with.
//!
//! A second descriptor of the extension's own would do harm: as soon as it is closed, the process loses all
//! POSIX locks on the file, those of other connections too. So the VFS's call of `open` is replaced by one
//! that notes the descriptor ([`hook`]) while [`during`] runs, on the calling thread.
//!
//! A connection to a database that the process has open already may get a descriptor that was kept from an
//! earlier one. Then nothing is captured, and the connection makes no groups.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ffi::{self, SystemCall, Vfs};

type Open = unsafe extern "C" fn(*const c_char, c_int, c_int) -> c_int;

/// The function that was there before, as a number.
static ORIGINAL: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The path whose descriptor is wanted.
    static WANTED: RefCell<Option<CString>> = const { RefCell::new(None) };
    static CAPTURED: Cell<Option<RawFd>> = const { Cell::new(None) };
}

unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_int) -> c_int {
    // SAFETY: set before this function was installed, to a function of this type.
    let original = unsafe { std::mem::transmute::<usize, Open>(ORIGINAL.load(Ordering::Acquire)) };
    // SAFETY: the caller's arguments as they are.
    let descriptor = unsafe { original(path, flags, mode) };
    if descriptor >= 0 {
        // SAFETY: a path ends with a zero byte.
        let path = unsafe { CStr::from_ptr(path) };
        // What is opened while the thread ends is not wanted.
        let wanted = WANTED.try_with(|wanted| wanted.borrow().as_deref() == Some(path));
        if wanted == Ok(true) {
            CAPTURED.set(Some(descriptor));
        }
    }
    descriptor
}

/// Has `vfs` open files through this module. False if that cannot be.
///
/// # Safety
///
/// `vfs` is a registered VFS.
pub(crate) unsafe fn hook(vfs: *mut Vfs) -> bool {
    let name = c"open".as_ptr();
    // SAFETY: the caller's promise; a VFS of version 3 has these members, which may be null.
    unsafe {
        if (*vfs).version < 3 {
            return false;
        }
        let (Some(get), Some(set)) = ((*vfs).get_system_call, (*vfs).set_system_call) else { return false };
        let Some(before) = get(vfs, name) else { return false };
        let ours: unsafe extern "C" fn() = std::mem::transmute::<Open, unsafe extern "C" fn()>(open);
        if before as usize == ours as usize {
            return true;
        }
        ORIGINAL.store(before as usize, Ordering::Release);
        let new: SystemCall = Some(ours);
        set(vfs, name, new) == ffi::OK
    }
}

/// Runs `work`; returns the last descriptor that it opened `path` with, too.
pub(crate) fn during<T>(path: &CStr, work: impl FnOnce() -> T) -> (T, Option<RawFd>) {
    WANTED.set(Some(path.to_owned()));
    CAPTURED.set(None);
    let done = work();
    WANTED.set(None);
    (done, CAPTURED.take())
}
