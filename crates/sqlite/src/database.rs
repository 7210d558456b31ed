//! A database file on a mount of Quire, or in a volume that the process has open itself.
//!
//! ```text
//!   a write by SQLite ----> journal in memory, or kept and not durable?
//!                                  |      no: to the file, as without the extension (hot journals, checkpoints)
//!                                  | yes
//!                                  v
//!                             the overlay   -- read back over the file; larger than GROUP_MAX --+
//!                                  |                                                            |
//!   FCNTL_SYNC -------------> one group: START, the pages, COMMIT                               v
//!                                  |   fails, or there is a super-journal: ----> the journal is kept (a file,
//!   xSync ------------------> fsync: durable                                     durable), then the pages go to
//!   unlock without either --> the overlay is dropped                             the file directly
//! ```
//!
//! A commit may end with a cut of the file, behind its sync and with the journal still open:
//! FCNTL_COMMIT_PHASETWO ends the transaction, and writes that.
//!
//! So SQLite's own order holds in every case: either nothing of a transaction is in the file before all of it
//! is, or the file is changed behind a durable rollback journal. `synchronous=OFF` sends FCNTL_SYNC and no
//! sync: the transaction is a group all the same, durable some time later. Behind a kept journal FCNTL_SYNC
//! syncs the file in any case, since the end of the journal is next, and is durable at once.
//!
//! A transaction over several attached databases has a super-journal, which ties the journals of all of them
//! together. Such a transaction keeps its journals: it is atomic over all files, and as slow as on any other
//! file system.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::{Arc, OnceLock};

use quire_base::size;

use crate::ffi::{self, Api, File, IoMethods};
use crate::image;
use crate::journal::Journal;
use crate::mount::{self, Failed};
use crate::overlay::Overlay;
use crate::vfs;

/// Bytes of changed pages that a group holds at most; the variable `QUIRE_SQLITE_GROUP_MAX` sets another
/// number.
const GROUP_MAX: usize = 16 << 20;

/// That number, read once. SQLite does not load an extension that finds an error here.
pub(crate) fn group_max() -> Result<usize, String> {
    static MAX: OnceLock<Result<usize, String>> = OnceLock::new();
    let read = || match std::env::var("QUIRE_SQLITE_GROUP_MAX") {
        Ok(text) => match size::parse(&text) {
            Ok(bytes) => Ok(usize::try_from(bytes).unwrap_or(usize::MAX)),
            Err(why) => Err(format!("the variable QUIRE_SQLITE_GROUP_MAX: {why}")),
        },
        Err(_) => Ok(GROUP_MAX),
    };
    MAX.get_or_init(read).clone()
}

/// How groups are made for a database.
pub(crate) enum Way {
    /// Through the descriptor of a file on a mount.
    Mount(RawFd),
    /// In a volume of this process.
    Image(Arc<image::Handle>),
}

impl Way {
    /// Commits what an overlay changes as one group, ordered with a later sync.
    fn commit(&self, overlay: &Overlay) -> Result<(), Failed> {
        match self {
            Way::Mount(descriptor) => mount::commit(*descriptor, overlay),
            Way::Image(handle) => handle.commit(overlay).map_err(|_| Failed::Dropped),
        }
    }

    /// Writes what an overlay changes to the file itself. An error is SQLite's number.
    fn write(&self, overlay: &Overlay) -> Result<(), c_int> {
        let full = match self {
            Way::Mount(descriptor) => {
                mount::write(*descriptor, overlay).map_err(|error| error.raw_os_error() == Some(libc::ENOSPC))
            }
            Way::Image(handle) => {
                handle.write(overlay).map_err(|error| error.kind() == quire::ErrorKind::NoSpace)
            }
        };
        full.map_err(|full| if full { ffi::FULL } else { ffi::IOERR_WRITE })
    }
}

/// An open database file.
pub(crate) struct Database {
    /// The file of the VFS below.
    file: *mut File,
    api: Api,
    /// How groups are made, if they can be.
    way: Option<Way>,
    /// The journal that is open in memory, or was kept; else null.
    pub(crate) journal: *mut Journal,
    /// Memory for the next journal, empty.
    pub(crate) spare: Vec<u8>,
    /// What the transaction has changed so far.
    overlay: Option<Overlay>,
    /// A group could neither be committed nor dropped: nothing may be written to the file any more.
    broken: bool,
    /// Transactions that were committed as a group.
    groups: u64,
    /// Transactions that were written behind a journal.
    journaled: u64,
}

impl Database {
    /// Takes a file that the VFS below has opened.
    ///
    /// # Safety
    ///
    /// `room` is a file of the extension's VFS whose file below is open, and `way` leads to that file.
    pub(crate) unsafe fn open(room: *mut File, api: Api, way: Option<Way>) {
        // SAFETY: the caller's promise.
        unsafe {
            let database = Box::into_raw(Box::new(Database {
                file: vfs::below(room),
                api,
                way,
                journal: ptr::null_mut(),
                spare: Vec::new(),
                overlay: None,
                broken: false,
                groups: 0,
                journaled: 0,
            }));
            vfs::put(room, &METHODS, database.cast());
        }
    }

    /// The state of an open database, if `file` is one of this VFS that can have its journal in memory now.
    ///
    /// # Safety
    ///
    /// `file` is an open file of any VFS, or null.
    pub(crate) unsafe fn for_journal(file: *mut File) -> Option<*mut Database> {
        // SAFETY: the caller's promise; the state is of this type if the methods are these.
        unsafe {
            if file.is_null() || !ptr::eq((*file).methods, &METHODS) {
                return None;
            }
            let database = vfs::state(file).cast::<Database>();
            ((*database).way.is_some() && (*database).journal.is_null()).then_some(database)
        }
    }

    fn below(&self) -> &'static IoMethods {
        // SAFETY: the file below is open as long as this one, and its methods are constant.
        unsafe { &*(*self.file).methods }
    }

    /// The journal, if it is open.
    fn journal(&self) -> Option<&Journal> {
        // SAFETY: a journal that is open, else null: it takes itself out when it is closed.
        unsafe { self.journal.as_ref() }
    }

    /// Whether the transaction is written behind a journal that was kept.
    fn has_kept_journal(&self) -> bool {
        self.journal().is_some_and(|journal| !journal.is_in_memory())
    }

    /// Whether a change stays in the overlay.
    fn is_collecting(&self) -> bool {
        self.journal().is_some_and(|journal| journal.comes_first() || self.overlay.is_some())
    }

    /// The overlay, begun if there is none.
    fn overlay(&mut self) -> Result<&mut Overlay, c_int> {
        if self.overlay.is_none() {
            let mut size = 0;
            // SAFETY: the open file below.
            match unsafe { (self.below().file_size)(self.file, &raw mut size) } {
                ffi::OK => self.overlay = Some(Overlay::new(size as u64)),
                failed => return Err(failed),
            }
        }
        self.overlay.as_mut().ok_or(ffi::NOMEM)
    }

    /// Keeps the journal, or makes a kept one durable, and writes what was collected; later changes go to the
    /// file as soon as all of the journal is durable.
    pub(crate) fn write_directly(&mut self) -> c_int {
        // SAFETY: see `journal`.
        let Some(journal) = (unsafe { self.journal.as_mut() }) else { return ffi::OK };
        let is_new = journal.is_in_memory();
        match if is_new { journal.keep() } else { journal.force() } {
            ffi::OK => self.journaled += u64::from(is_new),
            failed => return failed,
        }
        let Some(overlay) = self.overlay.take() else { return ffi::OK };
        let Some(way) = &self.way else { return ffi::OK };
        match way.write(&overlay) {
            Ok(()) => self.written(&overlay),
            Err(failed) => failed,
        }
    }

    /// Tells the VFS below of a size that it must know: it has the file mapped, perhaps.
    fn written(&self, overlay: &Overlay) -> c_int {
        match overlay.cut() {
            // SAFETY: the open file below.
            Some(_) => unsafe { (self.below().truncate)(self.file, overlay.size() as i64) },
            None => ffi::OK,
        }
    }

    /// Commits what was collected, so that a sync makes it durable.
    fn commit(&mut self, super_journal: bool) -> c_int {
        if !self.is_collecting() {
            return ffi::OK;
        }
        let (Some(overlay), Some(way)) = (&self.overlay, &self.way) else { return ffi::OK };
        if super_journal || self.has_kept_journal() {
            return self.write_directly();
        }
        if !overlay.is_empty() {
            match way.commit(overlay) {
                Ok(()) => self.groups += 1,
                Err(Failed::Dropped) => return self.write_directly(),
                Err(Failed::Open) => {
                    self.broken = true;
                    return ffi::IOERR_WRITE;
                }
            }
        }
        match self.overlay.take() {
            Some(overlay) => self.written(&overlay),
            None => ffi::OK,
        }
    }

    /// Commits what was collected, so that the end of the journal may become durable next.
    fn commit_before_end(&mut self, super_journal: bool) -> c_int {
        match self.commit(super_journal) {
            // SAFETY: the open file below.
            ffi::OK if self.has_kept_journal() => unsafe { (self.below().sync)(self.file, ffi::SYNC_FULL) },
            done => done,
        }
    }

    /// Ends a commit: SQLite has cut the file behind it, and the journal may still be open.
    fn end_commit(&mut self) -> c_int {
        let (Some(overlay), Some(way)) = (self.overlay.take(), &self.way) else { return ffi::OK };
        match way.write(&overlay) {
            Ok(()) => self.written(&overlay),
            Err(failed) => failed,
        }
    }

    /// `PRAGMA quire_groups`: what the extension does for the connection.
    fn report(&self) -> String {
        match self.way {
            Some(_) => format!("groups: {} transactions; journals: {}", self.groups, self.journaled),
            None => {
                "no groups: the database is not on a mount of Quire, or has no descriptor of its own".into()
            }
        }
    }
}

static METHODS: IoMethods = IoMethods {
    version: 3,
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
    fetch: Some(fetch),
    unfetch: Some(unfetch),
};

/// # Safety
///
/// `file` was opened by [`Database::open`], and no other reference to its state is in use.
unsafe fn database<'a>(file: *mut File) -> &'a mut Database {
    // SAFETY: the caller's promise; SQLite uses a file from one thread at a time.
    unsafe { &mut *vfs::state(file).cast::<Database>() }
}

// SAFETY, for all functions below: SQLite calls them with a file that `Database::open` took, and buffers of
// the length that it passes.

unsafe extern "C" fn close(file: *mut File) -> c_int {
    // SAFETY: see above; the state is freed once, since SQLite closes once.
    unsafe {
        let database = Box::from_raw(vfs::state(file).cast::<Database>());
        if let Some(journal) = database.journal.as_mut() {
            journal.database = ptr::null_mut();
        }
        (database.below().close)(database.file)
    }
}

unsafe extern "C" fn read(file: *mut File, buffer: *mut c_void, count: c_int, offset: i64) -> c_int {
    // SAFETY: see above.
    unsafe {
        let database = database(file);
        let below = database.below();
        let Some(overlay) = &database.overlay else {
            return (below.read)(database.file, buffer, count, offset);
        };
        let out = std::slice::from_raw_parts_mut(buffer.cast::<u8>(), count as usize);
        let from_file = overlay.file_size().saturating_sub(offset as u64).min(out.len() as u64) as usize;
        if from_file > 0 {
            match (below.read)(database.file, buffer, from_file as c_int, offset) {
                ffi::OK => {}
                // The file was cut behind the lock's back.
                ffi::IOERR_SHORT_READ => return ffi::IOERR_READ,
                failed => return failed,
            }
        }
        let read = overlay.read(offset as u64, out, from_file);
        out[read..].fill(0);
        if read < out.len() { ffi::IOERR_SHORT_READ } else { ffi::OK }
    }
}

unsafe extern "C" fn write(file: *mut File, buffer: *const c_void, count: c_int, offset: i64) -> c_int {
    // SAFETY: see above.
    unsafe {
        let database = database(file);
        if database.broken {
            return ffi::IOERR_WRITE;
        }
        if !database.is_collecting() {
            return (database.below().write)(database.file, buffer, count, offset);
        }
        let overlay = match database.overlay() {
            Ok(overlay) => overlay,
            Err(failed) => return failed,
        };
        overlay.write(offset as u64, std::slice::from_raw_parts(buffer.cast::<u8>(), count as usize));
        let is_too_large = group_max().is_ok_and(|most| overlay.bytes() > most);
        if is_too_large { database.write_directly() } else { ffi::OK }
    }
}

unsafe extern "C" fn truncate(file: *mut File, size: i64) -> c_int {
    // SAFETY: see above.
    unsafe {
        let database = database(file);
        if database.broken {
            return ffi::IOERR_WRITE;
        }
        if !database.is_collecting() {
            return (database.below().truncate)(database.file, size);
        }
        match database.overlay() {
            Ok(overlay) => {
                overlay.truncate(size as u64);
                ffi::OK
            }
            Err(failed) => failed,
        }
    }
}

unsafe extern "C" fn sync(file: *mut File, flags: c_int) -> c_int {
    // SAFETY: see above.
    unsafe {
        let database = database(file);
        if database.broken {
            return ffi::IOERR_WRITE;
        }
        // SQLite commits before it syncs; a caller that does not gets no less.
        match database.commit(false) {
            ffi::OK => (database.below().sync)(database.file, flags),
            failed => failed,
        }
    }
}

unsafe extern "C" fn file_size(file: *mut File, size: *mut i64) -> c_int {
    // SAFETY: see above.
    unsafe {
        let database = database(file);
        match &database.overlay {
            Some(overlay) => {
                *size = overlay.size() as i64;
                ffi::OK
            }
            None => (database.below().file_size)(database.file, size),
        }
    }
}

unsafe extern "C" fn lock(file: *mut File, level: c_int) -> c_int {
    // SAFETY: see above.
    unsafe {
        let database = database(file);
        (database.below().lock)(database.file, level)
    }
}

unsafe extern "C" fn unlock(file: *mut File, level: c_int) -> c_int {
    // SAFETY: see above.
    unsafe {
        let database = database(file);
        if level <= ffi::LOCK_SHARED {
            // A transaction that was neither committed nor rolled back: an error ended it.
            database.overlay = None;
        }
        (database.below().unlock)(database.file, level)
    }
}

unsafe extern "C" fn check_reserved_lock(file: *mut File, out: *mut c_int) -> c_int {
    // SAFETY: see above.
    unsafe {
        let database = database(file);
        (database.below().check_reserved_lock)(database.file, out)
    }
}

unsafe extern "C" fn file_control(file: *mut File, operation: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: see above.
    unsafe {
        let database = database(file);
        match operation {
            ffi::FCNTL_SYNC => match database.commit_before_end(!argument.is_null()) {
                ffi::OK => {}
                failed => return failed,
            },
            ffi::FCNTL_COMMIT_PHASETWO => match database.end_commit() {
                ffi::OK => {}
                failed => return failed,
            },
            // The file grows with the group.
            ffi::FCNTL_SIZE_HINT if database.is_collecting() => return ffi::OK,
            ffi::FCNTL_PRAGMA => {
                let words = argument.cast::<*mut c_char>();
                if CStr::from_ptr(*words.add(1)).to_bytes().eq_ignore_ascii_case(b"quire_groups") {
                    *words = database.api.text(&database.report());
                    return ffi::OK;
                }
            }
            _ => {}
        }
        (database.below().file_control)(database.file, operation, argument)
    }
}

unsafe extern "C" fn sector_size(file: *mut File) -> c_int {
    // SAFETY: see above.
    unsafe {
        let database = database(file);
        (database.below().sector_size)(database.file)
    }
}

unsafe extern "C" fn device_characteristics(file: *mut File) -> c_int {
    // SAFETY: see above.
    unsafe {
        let database = database(file);
        let all = (database.below().device_characteristics)(database.file);
        // A SQLite that could make groups itself leaves that to the extension.
        if database.way.is_some() { all & !ffi::IOCAP_BATCH_ATOMIC } else { all }
    }
}

unsafe extern "C" fn shm_map(
    file: *mut File,
    page: c_int,
    size: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: see above.
    unsafe {
        let database = database(file);
        database.below().shm_map.map_or(ffi::ERROR, |map| map(database.file, page, size, extend, out))
    }
}

unsafe extern "C" fn shm_lock(file: *mut File, offset: c_int, count: c_int, flags: c_int) -> c_int {
    // SAFETY: see above.
    unsafe {
        let database = database(file);
        database.below().shm_lock.map_or(ffi::ERROR, |lock| lock(database.file, offset, count, flags))
    }
}

unsafe extern "C" fn shm_barrier(file: *mut File) {
    // SAFETY: see above.
    unsafe {
        let database = database(file);
        if let Some(barrier) = database.below().shm_barrier {
            barrier(database.file);
        }
    }
}

unsafe extern "C" fn shm_unmap(file: *mut File, delete: c_int) -> c_int {
    // SAFETY: see above.
    unsafe {
        let database = database(file);
        database.below().shm_unmap.map_or(ffi::OK, |unmap| unmap(database.file, delete))
    }
}

unsafe extern "C" fn fetch(file: *mut File, offset: i64, count: c_int, out: *mut *mut c_void) -> c_int {
    // SAFETY: see above.
    unsafe {
        let database = database(file);
        match database.below().fetch {
            // A mapping shows the file, without what was collected.
            Some(fetch) if database.overlay.is_none() => fetch(database.file, offset, count, out),
            _ => {
                *out = ptr::null_mut();
                ffi::OK
            }
        }
    }
}

unsafe extern "C" fn unfetch(file: *mut File, offset: i64, page: *mut c_void) -> c_int {
    // SAFETY: see above.
    unsafe {
        let database = database(file);
        database.below().unfetch.map_or(ffi::OK, |unfetch| unfetch(database.file, offset, page))
    }
}
