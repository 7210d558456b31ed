//! The rollback journal of a database that commits in groups.
//!
//! SQLite writes it, reads it back for a `ROLLBACK` or a failed statement, and deletes it at the commit. As
//! long as the database file is not touched before the commit, nobody needs it after a crash, so it stays in
//! memory. Where the database is to be written directly after all, the journal is *kept* first
//! ([`Journal::keep`]): written to the file that SQLite named, and made durable. From then on it is a
//! rollback journal as any other, with two differences, since SQLite does not sync a journal with every
//! setting of `synchronous`: the database writes nothing before what the journal has got is durable
//! ([`Journal::comes_first`]), and the journal's end, which commits the transaction, is durable when SQLite
//! has written it.
//!
//! Invariant: the database file is never changed, but by a group, while its journal is in memory.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use crate::database::Database;
use crate::ffi::{self, File, IoMethods, Vfs};
use crate::vfs::{self, HEAD};

/// Bytes at the start of a journal that say whether it counts.
const HEADER: usize = 28;
/// Bytes that the VFS below is given at once: `unix` takes fewer than 128 KiB, and drops the rest silently.
const WRITE_MAX: usize = 64 << 10;
/// A journal larger than this is kept.
const MEMORY_MAX: usize = 64 << 20;

/// Memory of a journal that its database keeps for the next one, at most.
const SPARE_MAX: usize = 1 << 20;

/// Names of journals that were in memory when they were closed: SQLite deletes files that are not there.
static CLOSED: Mutex<BTreeSet<CString>> = Mutex::new(BTreeSet::new());

/// Names of journals that were files when they were closed.
static KEPT: Mutex<BTreeSet<CString>> = Mutex::new(BTreeSet::new());

/// An open journal.
pub(crate) struct Journal {
    /// Its bytes; `None` once it is a file.
    memory: Option<Vec<u8>>,
    /// The file of the VFS below; open only without `memory`.
    file: *mut File,
    /// Bytes of the file are not durable.
    is_dirty: bool,
    below: *mut Vfs,
    name: *const c_char,
    flags: c_int,
    /// Whose journal it is; null once the database is closed.
    pub(crate) database: *mut Database,
}

impl Journal {
    /// Opens a journal in memory, in the room that SQLite gives.
    ///
    /// # Safety
    ///
    /// `room` has room for a file of the extension's VFS, `name` stays as it is while the file is open, and
    /// `database` is open.
    pub(crate) unsafe fn open(
        room: *mut File,
        below: *mut Vfs,
        name: *const c_char,
        flags: c_int,
        database: *mut Database,
    ) {
        // SAFETY: the caller's promises.
        unsafe {
            let journal = Box::into_raw(Box::new(Journal {
                memory: Some(std::mem::take(&mut (*database).spare)),
                file: vfs::below(room),
                is_dirty: false,
                below,
                name,
                flags,
                database,
            }));
            (*database).journal = journal;
            vfs::put(room, &METHODS, journal.cast());
        }
    }

    /// Whether it is in memory.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// Whether the database file must not be touched yet: the journal is not durable.
    pub(crate) fn comes_first(&self) -> bool {
        self.is_in_memory() || self.is_dirty
    }

    /// Makes all of a kept journal durable, if it is not.
    pub(crate) fn force(&mut self) -> c_int {
        if self.is_in_memory() || !self.is_dirty {
            return ffi::OK;
        }
        // SAFETY: a journal that was kept is a file.
        let synced = unsafe { (below(self).sync)(self.file, ffi::SYNC_FULL) };
        self.is_dirty &= synced != ffi::OK;
        synced
    }

    /// Makes it a durable file. After an error it is in memory as before.
    ///
    /// The bytes that make the journal count come last, after all else is durable: SQLite checks a sample of
    /// each page only, and after a power cut must not take a page for whole that is not.
    pub(crate) fn keep(&mut self) -> c_int {
        let Some(memory) = &self.memory else { return ffi::OK };
        let mut flags = 0;
        // SAFETY: the VFS below and its room are as they were when the journal was opened; the file's methods
        // are set once it is open.
        unsafe {
            (*self.file).methods = ptr::null();
            let opened = ((*self.below).open)(self.below, self.name, self.file, self.flags, &raw mut flags);
            if opened != ffi::OK {
                return opened;
            }
            let methods = &*(*self.file).methods;
            let put = |bytes: &[u8], offset: usize| {
                let mut at = offset;
                for piece in bytes.chunks(WRITE_MAX) {
                    let length = piece.len();
                    match (methods.write)(self.file, piece.as_ptr().cast(), length as c_int, at as i64) {
                        ffi::OK => at += length,
                        failed => return failed,
                    }
                }
                ffi::OK
            };
            let header = memory.len().min(HEADER);
            let mut done = (methods.truncate)(self.file, 0);
            for step in 0..4 {
                if done == ffi::OK {
                    done = match step {
                        0 => put(&[0; HEADER][..header], 0),
                        1 => put(&memory[header..], header),
                        2 => put(&memory[..header], 0),
                        _ => ffi::OK,
                    };
                    if done == ffi::OK && step > 0 {
                        done = (methods.sync)(self.file, ffi::SYNC_FULL);
                    }
                }
            }
            if done != ffi::OK {
                (methods.close)(self.file);
                (*self.file).methods = ptr::null();
                ((*self.below).delete)(self.below, self.name, 0);
                return done;
            }
        }
        self.memory = None;
        ffi::OK
    }

    fn name(&self) -> &CStr {
        // SAFETY: SQLite keeps the name while the file is open.
        unsafe { CStr::from_ptr(self.name) }
    }
}

/// Whether a journal of this name was in memory when it was closed; asked once.
pub(crate) fn was_in_memory(name: &CStr) -> bool {
    CLOSED.lock().unwrap_or_else(PoisonError::into_inner).remove(name)
}

/// Whether a journal of this name was a file when it was closed; asked once. Its end commits a transaction,
/// so it is to be durable.
pub(crate) fn was_kept(name: &CStr) -> bool {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).remove(name)
}

static METHODS: IoMethods = IoMethods {
    version: 1,
    close,
    read,
    write,
    truncate,
    sync,
    file_size,
    lock,
    unlock: lock,
    check_reserved_lock,
    file_control,
    sector_size,
    device_characteristics,
    shm_map: None,
    shm_lock: None,
    shm_barrier: None,
    shm_unmap: None,
    fetch: None,
    unfetch: None,
};

/// # Safety
///
/// `file` was opened by [`Journal::open`], and no other reference to its state is in use.
unsafe fn journal<'a>(file: *mut File) -> &'a mut Journal {
    // SAFETY: the caller's promise; SQLite uses a file from one thread at a time.
    unsafe { &mut *vfs::state(file).cast::<Journal>() }
}

/// The methods of the file below.
///
/// # Safety
///
/// The journal is a file.
unsafe fn below<'a>(journal: &Journal) -> &'a IoMethods {
    // SAFETY: the caller's promise.
    unsafe { &*(*journal.file).methods }
}

// SAFETY, for all functions below: SQLite calls them with a file that `Journal::open` opened, and buffers of
// the length that it passes.

unsafe extern "C" fn close(file: *mut File) -> c_int {
    // SAFETY: see above; the state is freed once, since SQLite closes once.
    unsafe {
        let mut journal = Box::from_raw(vfs::state(file).cast::<Journal>());
        if !journal.database.is_null() {
            (*journal.database).journal = ptr::null_mut();
        }
        let mut closed = CLOSED.lock().unwrap_or_else(PoisonError::into_inner);
        match journal.memory.take() {
            Some(mut memory) => {
                closed.insert(journal.name().to_owned());
                if !journal.database.is_null() && memory.capacity() <= SPARE_MAX {
                    memory.clear();
                    (*journal.database).spare = memory;
                }
                ffi::OK
            }
            None => {
                closed.remove(journal.name());
                drop(closed);
                KEPT.lock().unwrap_or_else(PoisonError::into_inner).insert(journal.name().to_owned());
                (below(&journal).close)(journal.file)
            }
        }
    }
}

unsafe extern "C" fn read(file: *mut File, buffer: *mut c_void, count: c_int, offset: i64) -> c_int {
    // SAFETY: see above.
    unsafe {
        let journal = journal(file);
        let Some(memory) = &journal.memory else {
            return (below(journal).read)(journal.file, buffer, count, offset);
        };
        let out = std::slice::from_raw_parts_mut(buffer.cast::<u8>(), count as usize);
        let there = memory.get(offset as usize..).unwrap_or_default();
        let length = there.len().min(out.len());
        out[..length].copy_from_slice(&there[..length]);
        out[length..].fill(0);
        if length < out.len() { ffi::IOERR_SHORT_READ } else { ffi::OK }
    }
}

unsafe extern "C" fn write(file: *mut File, buffer: *const c_void, count: c_int, offset: i64) -> c_int {
    // SAFETY: see above.
    unsafe {
        let (start, data) =
            (offset as usize, std::slice::from_raw_parts(buffer.cast::<u8>(), count as usize));
        let end = start + data.len();
        if end > MEMORY_MAX && journal(file).is_in_memory() {
            let database = journal(file).database;
            // The database finds the journal by itself: no reference to it is in use here.
            let kept = if database.is_null() { journal(file).keep() } else { (*database).write_directly() };
            if kept != ffi::OK {
                return kept;
            }
        }
        let journal = journal(file);
        let Some(memory) = &mut journal.memory else {
            journal.is_dirty = true;
            // Zeros over the header end it.
            let ends = start == 0 && data == [0; HEADER];
            return match (below(journal).write)(journal.file, buffer, count, offset) {
                ffi::OK if ends => journal.force(),
                done => done,
            };
        };
        if memory.len() == start {
            memory.extend_from_slice(data);
            return ffi::OK;
        }
        if memory.len() < end {
            memory.resize(end, 0);
        }
        memory[start..end].copy_from_slice(data);
        ffi::OK
    }
}

unsafe extern "C" fn truncate(file: *mut File, size: i64) -> c_int {
    // SAFETY: see above.
    unsafe {
        let journal = journal(file);
        match &mut journal.memory {
            Some(memory) => {
                memory.resize(size as usize, 0);
                ffi::OK
            }
            None => {
                journal.is_dirty = true;
                match (below(journal).truncate)(journal.file, size) {
                    // That ends it.
                    ffi::OK if size == 0 => journal.force(),
                    done => done,
                }
            }
        }
    }
}

unsafe extern "C" fn sync(file: *mut File, flags: c_int) -> c_int {
    // SAFETY: see above.
    unsafe {
        let journal = journal(file);
        if journal.is_in_memory() {
            return ffi::OK;
        }
        let synced = (below(journal).sync)(journal.file, flags);
        journal.is_dirty &= synced != ffi::OK;
        synced
    }
}

unsafe extern "C" fn file_size(file: *mut File, size: *mut i64) -> c_int {
    // SAFETY: see above.
    unsafe {
        let journal = journal(file);
        match &journal.memory {
            Some(memory) => {
                *size = memory.len() as i64;
                ffi::OK
            }
            None => (below(journal).file_size)(journal.file, size),
        }
    }
}

unsafe extern "C" fn lock(_: *mut File, _: c_int) -> c_int {
    ffi::OK
}

unsafe extern "C" fn check_reserved_lock(_: *mut File, out: *mut c_int) -> c_int {
    // SAFETY: see above.
    unsafe { *out = 0 };
    ffi::OK
}

unsafe extern "C" fn file_control(file: *mut File, operation: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: see above.
    unsafe {
        let journal = journal(file);
        match journal.is_in_memory() {
            true => ffi::NOTFOUND,
            false => (below(journal).file_control)(journal.file, operation, argument),
        }
    }
}

unsafe extern "C" fn sector_size(_: *mut File) -> c_int {
    4096
}

unsafe extern "C" fn device_characteristics(_: *mut File) -> c_int {
    0
}

const _: () = assert!(HEAD >= size_of::<File>());
