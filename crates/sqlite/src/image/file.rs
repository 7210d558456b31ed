//! A file of a volume, as SQLite uses it: databases, journals, write-ahead logs.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quire::{Commit, Error, ErrorKind, Group};
use quire_base::process::OfProcess;

use super::locks::{Held, Shared};
use super::volumes::User;
use crate::ffi::{self, File, IoMethods};
use crate::overlay::{Overlay, Sink};
use crate::vfs;

/// An open file. A process that was forked off has the memory of it and may not use it: SQLite asks for no
/// lock where it holds one already, so each call has to ask.
#[derive(Debug)]
pub(crate) struct Handle {
    open: OfProcess<Open>,
    writable: bool,
}

/// What only the process that opened the file uses.
#[derive(Debug)]
struct Open {
    // Dropped before `user`, which closes the volume, perhaps.
    file: quire::File,
    shared: Arc<Shared>,
    held: Mutex<Held>,
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
        let open = Open { file, shared, held: Mutex::default(), unnamed, doomed, user };
        Handle { open: OfProcess::new(open), writable }
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Commits what an overlay changes as one group, ordered with a later sync. After an error the file is as
    /// it was.
    pub(crate) fn commit(&self, overlay: &Overlay) -> quire::Result<()> {
        let open = self.open.get()?;
        let mut group = open.user.volume().atomic();
        overlay.apply(&mut Grouped { group: &mut group, file: &open.file })?;
        group.commit(Commit::Ordered)
    }

    /// Writes what an overlay changes to the file.
    pub(crate) fn write(&self, overlay: &Overlay) -> quire::Result<()> {
        overlay.apply(&mut Direct(&self.open.get()?.file))
    }
}

impl Open {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
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

/// What is behind a file. An error in a process that was forked off from the one that opened it.
///
/// # Safety
///
/// `file` was made by [`put`] and is open.
unsafe fn of<'a>(file: *mut File) -> quire::Result<&'a Open> {
    // SAFETY: the caller's promise.
    unsafe { &*vfs::state(file).cast::<Handle>() }.open.get()
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
    result.map_or_else(|error| code(&error, otherwise), |()| ffi::OK)
}

/// Does something with an open file. `otherwise` is the number of an error.
///
/// # Safety
///
/// `file` was made by [`put`] and is open.
unsafe fn with(file: *mut File, otherwise: c_int, act: impl FnOnce(&Open) -> c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { of(file) }.map_or_else(|error| code(&error, otherwise), act)
}

// SAFETY, for all functions below: SQLite calls them with a file that `put` made, and buffers of the length
// that it passes.

unsafe extern "C" fn close(file: *mut File) -> c_int {
    // SAFETY: see above; SQLite closes once. In a process that was forked off nothing is dropped: all of it
    // is the parent's.
    let handle = unsafe { Arc::from_raw(vfs::state(file).cast::<Handle>().cast_const()) };
    let Ok(open) = handle.open.get() else { return ffi::OK };
    open.shared.unmap(&mut open.held());
    open.shared.unlock(&mut open.held(), ffi::LOCK_NONE);
    if let Some(path) = &open.doomed {
        // Another may have removed it.
        let _ = open.user.volume().remove_file(path);
    }
    ffi::OK
}

unsafe extern "C" fn read(file: *mut File, buffer: *mut c_void, count: c_int, offset: i64) -> c_int {
    // SAFETY: see above.
    let out = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), count as usize) };
    let read = |open: &Open| {
        let mut got = 0;
        while got < out.len() {
            match open.file.read_at(&mut out[got..], offset as u64 + got as u64) {
                Ok(0) => {
                    out[got..].fill(0);
                    return ffi::IOERR_SHORT_READ;
                }
                Ok(count) => got += count,
                Err(error) => return code(&error, ffi::IOERR_READ),
            }
        }
        ffi::OK
    };
    // SAFETY: see above.
    unsafe { with(file, ffi::IOERR_READ, read) }
}

unsafe extern "C" fn write(file: *mut File, buffer: *const c_void, count: c_int, offset: i64) -> c_int {
    // SAFETY: see above.
    unsafe {
        let data = std::slice::from_raw_parts(buffer.cast::<u8>(), count as usize);
        done(of(file).and_then(|open| open.file.write_all_at(data, offset as u64)), ffi::IOERR_WRITE)
    }
}

unsafe extern "C" fn truncate(file: *mut File, size: i64) -> c_int {
    // SAFETY: see above.
    done(unsafe { of(file) }.and_then(|open| open.file.set_len(size as u64)), ffi::IOERR_TRUNCATE)
}

unsafe extern "C" fn sync(file: *mut File, _flags: c_int) -> c_int {
    let sync = |open: &Open| {
        // As SQLite's own VFS: fdatasync. Times alone would cost a second flush at each commit.
        match open.unnamed.load(Ordering::Relaxed) {
            true => open.file.sync_all()?,
            false => open.file.sync_data()?,
        }
        open.unnamed.store(false, Ordering::Relaxed);
        Ok(())
    };
    // SAFETY: see above.
    done(unsafe { of(file) }.and_then(sync), ffi::IOERR_FSYNC)
}

unsafe extern "C" fn file_size(file: *mut File, size: *mut i64) -> c_int {
    // SAFETY: see above.
    unsafe { done(of(file).map(|open| *size = open.file.metadata().len() as i64), ffi::IOERR_FSTAT) }
}

unsafe extern "C" fn lock(file: *mut File, level: c_int) -> c_int {
    // SAFETY: see above.
    unsafe { with(file, ffi::IOERR_LOCK, |open| open.shared.lock(&mut open.held(), level)) }
}

unsafe extern "C" fn unlock(file: *mut File, level: c_int) -> c_int {
    // SAFETY: see above.
    done(unsafe { of(file) }.map(|open| open.shared.unlock(&mut open.held(), level)), ffi::IOERR_UNLOCK)
}

unsafe extern "C" fn check_reserved_lock(file: *mut File, out: *mut c_int) -> c_int {
    // SAFETY: see above.
    unsafe {
        let reserved = of(file).map(|open| *out = c_int::from(open.shared.is_reserved()));
        done(reserved, ffi::IOERR_CHECKRESERVEDLOCK)
    }
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
        *out = ptr::null_mut();
        let map = |open: &Open| {
            let mapped = open.shared.map(&mut open.held(), region as usize, bytes as usize, extend != 0);
            *out = mapped.map_or(ptr::null_mut(), |words| words.cast_mut().cast());
            ffi::OK
        };
        with(file, ffi::IOERR_SHMMAP, map)
    }
}

unsafe extern "C" fn shm_lock(file: *mut File, first: c_int, count: c_int, flags: c_int) -> c_int {
    let lock = |open: &Open| open.shared.lock_memory(&mut open.held(), first as usize, count as usize, flags);
    // SAFETY: see above.
    unsafe { with(file, ffi::IOERR_SHMLOCK, lock) }
}

unsafe extern "C" fn shm_barrier(file: *mut File) {
    // SAFETY: see above.
    if let Ok(open) = unsafe { of(file) } {
        open.shared.barrier();
    }
}

unsafe extern "C" fn shm_unmap(file: *mut File, _delete: c_int) -> c_int {
    // SAFETY: see above.
    if let Ok(open) = unsafe { of(file) } {
        open.shared.unmap(&mut open.held());
    }
    ffi::OK
}
