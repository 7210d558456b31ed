//! A file of a volume, as SQLite uses it: databases, journals, write-ahead logs.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quire::{Commit, Error, ErrorKind, Group};

use super::locks::{Held, Shared};
use super::volumes::User;
use crate::ffi::{self, File, IoMethods};
use crate::overlay::{Overlay, Sink};
use crate::vfs;

/// An open file.
#[derive(Debug)]
pub(crate) struct Handle {
    // Dropped before `user`, which closes the volume, perhaps.
    file: quire::File,
    shared: Arc<Shared>,
    held: Mutex<Held>,
    writable: bool,
    /// The file was created by this handle, perhaps, and its name is to become durable with the first sync.
    unnamed: AtomicBool,
    /// The path, if the file is to be removed when it is closed.
    doomed: Option<String>,
    user: User,
}

impl Handle {
    pub(super) fn new(
        user: User,
        file: quire::File,
        writable: bool,
        created: bool,
        doomed: Option<String>,
    ) -> Handle {
        let shared = user.shared(file.inode().number().0);
        let unnamed = AtomicBool::new(created);
        Handle { file, shared, held: Mutex::default(), writable, unnamed, doomed, user }
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits what an overlay changes as one group, ordered with a later sync. After an error the file is as
    /// it was.
    pub(crate) fn commit(&self, overlay: &Overlay) -> quire::Result<()> {
        let mut group = self.user.volume().atomic();
        overlay.apply(&mut Grouped { group: &mut group, file: &self.file })?;
        group.commit(Commit::Ordered)
    }

    /// Writes what an overlay changes to the file.
    pub(crate) fn write(&self, overlay: &Overlay) -> quire::Result<()> {
        overlay.apply(&mut Direct(&self.file))
    }
}

struct Grouped<'a> {
    group: &'a mut Group,
    file: &'a quire::File,
}

impl Sink for Grouped<'_> {
    type Error = Error;

    fn write_at(&mut self, data: &[u8], offset: u64) -> quire::Result<()> {
        self.group.write_at(self.file, data, offset)
    }

    fn set_len(&mut self, size: u64) -> quire::Result<()> {
        self.group.set_len(self.file, size)
    }
}

struct Direct<'a>(&'a quire::File);

impl Sink for Direct<'_> {
    type Error = Error;

    fn write_at(&mut self, data: &[u8], offset: u64) -> quire::Result<()> {
        self.0.write_all_at(data, offset)
    }

    fn set_len(&mut self, size: u64) -> quire::Result<()> {
        self.0.set_len(size)
    }
}

static METHODS: IoMethods = IoMethods {
    version: 2,
    close,
    read,
    write,
    truncate,
    sync,
    file_size,
    lock,
    unlock,
    check_reserved_lock,
    file_control,
    sector_size,
    device_characteristics,
    shm_map: Some(shm_map),
    shm_lock: Some(shm_lock),
    shm_barrier: Some(shm_barrier),
    shm_unmap: Some(shm_unmap),
    fetch: None,
    unfetch: None,
};

/// Makes a file of SQLite's.
///
/// # Safety
///
/// `room` has room for a file of the extension's VFS, or of the one below it.
pub(super) unsafe fn put(room: *mut File, handle: Handle) {
    // SAFETY: the caller's promise.
    unsafe { vfs::put(room, &METHODS, Arc::into_raw(Arc::new(handle)).cast_mut().cast()) }
}

/// The handle of an open file, if it is in a volume.
///
/// # Safety
///
/// `file` is an open file, of any VFS.
pub(super) unsafe fn handle(file: *mut File) -> Option<Arc<Handle>> {
    // SAFETY: the caller's promise; the state is of this type if the methods are these.
    unsafe {
        if !ptr::eq((*file).methods, &METHODS) {
            return None;
        }
        let raw = vfs::state(file).cast::<Handle>().cast_const();
        Arc::increment_strong_count(raw);
        Some(Arc::from_raw(raw))
    }
}

/// # Safety
///
/// `file` was made by [`put`] and is open.
unsafe fn of<'a>(file: *mut File) -> &'a Handle {
    // SAFETY: the caller's promise.
    unsafe { &*vfs::state(file).cast::<Handle>() }
}

/// SQLite's number for an error.
fn code(error: &Error, otherwise: c_int) -> c_int {
    match error.kind() {
        ErrorKind::NoSpace => ffi::FULL,
        ErrorKind::NoMemory => ffi::NOMEM,
        ErrorKind::Corrupt => super::told(ffi::IOERR_DATA, &error.to_string()),
        _ => super::told(otherwise, &error.to_string()),
    }
}

fn done(result: quire::Result<()>, otherwise: c_int) -> c_int {
    match result {
        Ok(()) => ffi::OK,
        Err(error) => code(&error, otherwise),
    }
}

// SAFETY, for all functions below: SQLite calls them with a file that `put` made, and buffers of the length
// that it passes.

unsafe extern "C" fn close(file: *mut File) -> c_int {
    // SAFETY: see above; SQLite closes once.
    let handle = unsafe { Arc::from_raw(vfs::state(file).cast::<Handle>().cast_const()) };
    if !handle.user.is_of_this_process() {
        // All of it is the parent's.
        std::mem::forget(handle);
        return ffi::OK;
    }
    handle.shared.unmap(&mut handle.held());
    handle.shared.unlock(&mut handle.held(), ffi::LOCK_NONE);
    if let Some(path) = &handle.doomed {
        // Another may have removed it.
        let _ = handle.user.volume().remove_file(path);
    }
    ffi::OK
}

unsafe extern "C" fn read(file: *mut File, buffer: *mut c_void, count: c_int, offset: i64) -> c_int {
    // SAFETY: see above.
    let (handle, out) =
        unsafe { (of(file), std::slice::from_raw_parts_mut(buffer.cast::<u8>(), count as usize)) };
    let mut got = 0;
    while got < out.len() {
        match handle.file.read_at(&mut out[got..], offset as u64 + got as u64) {
            Ok(0) => {
                out[got..].fill(0);
                return ffi::IOERR_SHORT_READ;
            }
            Ok(count) => got += count,
            Err(error) => return code(&error, ffi::IOERR_READ),
        }
    }
    ffi::OK
}

unsafe extern "C" fn write(file: *mut File, buffer: *const c_void, count: c_int, offset: i64) -> c_int {
    // SAFETY: see above.
    let (handle, data) =
        unsafe { (of(file), std::slice::from_raw_parts(buffer.cast::<u8>(), count as usize)) };
    done(handle.file.write_all_at(data, offset as u64), ffi::IOERR_WRITE)
}

unsafe extern "C" fn truncate(file: *mut File, size: i64) -> c_int {
    // SAFETY: see above.
    done(unsafe { of(file) }.file.set_len(size as u64), ffi::IOERR_TRUNCATE)
}

unsafe extern "C" fn sync(file: *mut File, _flags: c_int) -> c_int {
    // SAFETY: see above.
    let handle = unsafe { of(file) };
    // As SQLite's own VFS: fdatasync. Times alone would cost a second flush at each commit.
    let synced = match handle.unnamed.load(Ordering::Relaxed) {
        true => handle.file.sync_all(),
        false => handle.file.sync_data(),
    };
    if synced.is_ok() {
        handle.unnamed.store(false, Ordering::Relaxed);
    }
    done(synced, ffi::IOERR_FSYNC)
}

unsafe extern "C" fn file_size(file: *mut File, size: *mut i64) -> c_int {
    // SAFETY: see above.
    unsafe { *size = of(file).file.metadata().len() as i64 };
    ffi::OK
}

unsafe extern "C" fn lock(file: *mut File, level: c_int) -> c_int {
    // SAFETY: see above.
    let handle = unsafe { of(file) };
    if !handle.user.is_of_this_process() {
        return super::told(ffi::IOERR_LOCK, "the volume was opened before this process was forked off");
    }
    handle.shared.lock(&mut handle.held(), level)
}

unsafe extern "C" fn unlock(file: *mut File, level: c_int) -> c_int {
    // SAFETY: see above.
    let handle = unsafe { of(file) };
    handle.shared.unlock(&mut handle.held(), level);
    ffi::OK
}

unsafe extern "C" fn check_reserved_lock(file: *mut File, out: *mut c_int) -> c_int {
    // SAFETY: see above.
    unsafe { *out = c_int::from(of(file).shared.is_reserved()) };
    ffi::OK
}

unsafe extern "C" fn file_control(_: *mut File, _: c_int, _: *mut c_void) -> c_int {
    ffi::NOTFOUND
}

unsafe extern "C" fn sector_size(_: *mut File) -> c_int {
    4096
}

unsafe extern "C" fn device_characteristics(_: *mut File) -> c_int {
    ffi::IOCAP_POWERSAFE_OVERWRITE
}

unsafe extern "C" fn shm_map(
    file: *mut File,
    region: c_int,
    bytes: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: see above.
    unsafe {
        let handle = of(file);
        let mapped = handle.shared.map(&mut handle.held(), region as usize, bytes as usize, extend != 0);
        *out = mapped.map_or(ptr::null_mut(), |words| words.cast_mut().cast());
    }
    ffi::OK
}

unsafe extern "C" fn shm_lock(file: *mut File, first: c_int, count: c_int, flags: c_int) -> c_int {
    // SAFETY: see above.
    let handle = unsafe { of(file) };
    handle.shared.lock_memory(&mut handle.held(), first as usize, count as usize, flags)
}

unsafe extern "C" fn shm_barrier(file: *mut File) {
    // SAFETY: see above.
    unsafe { of(file) }.shared.barrier();
}

unsafe extern "C" fn shm_unmap(file: *mut File, _delete: c_int) -> c_int {
    // SAFETY: see above.
    let handle = unsafe { of(file) };
    handle.shared.unmap(&mut handle.held());
    ffi::OK
}
