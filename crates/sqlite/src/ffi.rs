//! The part of SQLite's C interface that the extension uses: `sqlite3.h` and `sqlite3ext.h`, version 3.32 and
//! later.
//!
//! An extension gets SQLite's functions in a table, whose order is fixed for ever; new functions are added at
//! its end. Only a few of them are needed here, so the table is an array and [`Api`] knows their places.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

pub(crate) const OK: c_int = 0;
pub(crate) const ERROR: c_int = 1;
pub(crate) const BUSY: c_int = 5;
pub(crate) const NOMEM: c_int = 7;
pub(crate) const FULL: c_int = 13;
pub(crate) const NOTFOUND: c_int = 12;
pub(crate) const CANTOPEN: c_int = 14;
/// The extension stays loaded when the connection that loaded it is closed.
pub(crate) const OK_LOAD_PERMANENTLY: c_int = 1 << 8;
pub(crate) const IOERR_READ: c_int = 10 | 1 << 8;
pub(crate) const IOERR_SHORT_READ: c_int = 10 | 2 << 8;
pub(crate) const IOERR_WRITE: c_int = 10 | 3 << 8;
pub(crate) const IOERR_FSYNC: c_int = 10 | 4 << 8;
pub(crate) const IOERR_TRUNCATE: c_int = 10 | 6 << 8;
pub(crate) const IOERR_FSTAT: c_int = 10 | 7 << 8;
pub(crate) const IOERR_UNLOCK: c_int = 10 | 8 << 8;
pub(crate) const IOERR_DELETE: c_int = 10 | 10 << 8;
pub(crate) const IOERR_ACCESS: c_int = 10 | 13 << 8;
pub(crate) const IOERR_CHECKRESERVEDLOCK: c_int = 10 | 14 << 8;
pub(crate) const IOERR_LOCK: c_int = 10 | 15 << 8;
pub(crate) const IOERR_CLOSE: c_int = 10 | 16 << 8;
pub(crate) const IOERR_SHMLOCK: c_int = 10 | 20 << 8;
pub(crate) const IOERR_SHMMAP: c_int = 10 | 21 << 8;
pub(crate) const IOERR_DELETE_NOENT: c_int = 10 | 23 << 8;
pub(crate) const IOERR_DATA: c_int = 10 | 32 << 8;

pub(crate) const OPEN_READONLY: c_int = 0x1;
pub(crate) const OPEN_READWRITE: c_int = 0x2;
pub(crate) const OPEN_CREATE: c_int = 0x4;
pub(crate) const OPEN_DELETEONCLOSE: c_int = 0x8;
pub(crate) const OPEN_EXCLUSIVE: c_int = 0x10;
pub(crate) const OPEN_MAIN_DB: c_int = 0x100;
pub(crate) const OPEN_MAIN_JOURNAL: c_int = 0x800;
pub(crate) const OPEN_SUPER_JOURNAL: c_int = 0x4000;

pub(crate) const FCNTL_SIZE_HINT: c_int = 5;
pub(crate) const FCNTL_PRAGMA: c_int = 14;
pub(crate) const FCNTL_SYNC: c_int = 21;
pub(crate) const FCNTL_COMMIT_PHASETWO: c_int = 22;

pub(crate) const SYNC_FULL: c_int = 0x3;
pub(crate) const LOCK_NONE: c_int = 0;
pub(crate) const LOCK_SHARED: c_int = 1;
#[cfg(test)]
pub(crate) const LOCK_RESERVED: c_int = 2;
pub(crate) const LOCK_PENDING: c_int = 3;
pub(crate) const LOCK_EXCLUSIVE: c_int = 4;
pub(crate) const SHM_UNLOCK: c_int = 1;
pub(crate) const SHM_SHARED: c_int = 4;
#[cfg(test)]
pub(crate) const SHM_LOCK: c_int = 2;
#[cfg(test)]
pub(crate) const SHM_EXCLUSIVE: c_int = 8;
pub(crate) const IOCAP_POWERSAFE_OVERWRITE: c_int = 0x1000;
pub(crate) const IOCAP_BATCH_ATOMIC: c_int = 0x4000;

/// The oldest SQLite that has all that is needed.
pub(crate) const VERSION_MIN: c_int = 3_032_000;

/// What every open file starts with.
#[repr(C)]
pub(crate) struct File {
    pub(crate) methods: *const IoMethods,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IoMethods {
    pub(crate) version: c_int,
    pub(crate) close: unsafe extern "C" fn(*mut File) -> c_int,
    pub(crate) read: unsafe extern "C" fn(*mut File, *mut c_void, c_int, i64) -> c_int,
    pub(crate) write: unsafe extern "C" fn(*mut File, *const c_void, c_int, i64) -> c_int,
    pub(crate) truncate: unsafe extern "C" fn(*mut File, i64) -> c_int,
    pub(crate) sync: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub(crate) file_size: unsafe extern "C" fn(*mut File, *mut i64) -> c_int,
    pub(crate) lock: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub(crate) unlock: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub(crate) check_reserved_lock: unsafe extern "C" fn(*mut File, *mut c_int) -> c_int,
    pub(crate) file_control: unsafe extern "C" fn(*mut File, c_int, *mut c_void) -> c_int,
    pub(crate) sector_size: unsafe extern "C" fn(*mut File) -> c_int,
    pub(crate) device_characteristics: unsafe extern "C" fn(*mut File) -> c_int,
    // Version 2.
    pub(crate) shm_map:
        Option<unsafe extern "C" fn(*mut File, c_int, c_int, c_int, *mut *mut c_void) -> c_int>,
    pub(crate) shm_lock: Option<unsafe extern "C" fn(*mut File, c_int, c_int, c_int) -> c_int>,
    pub(crate) shm_barrier: Option<unsafe extern "C" fn(*mut File)>,
    pub(crate) shm_unmap: Option<unsafe extern "C" fn(*mut File, c_int) -> c_int>,
    // Version 3.
    pub(crate) fetch: Option<unsafe extern "C" fn(*mut File, i64, c_int, *mut *mut c_void) -> c_int>,
    pub(crate) unfetch: Option<unsafe extern "C" fn(*mut File, i64, *mut c_void) -> c_int>,
}

/// A function of the system that a VFS calls.
pub(crate) type SystemCall = Option<unsafe extern "C" fn()>;

type DynamicSymbol = Option<unsafe extern "C" fn(*mut Vfs, *mut c_void, *const c_char) -> SystemCall>;

#[repr(C)]
pub(crate) struct Vfs {
    pub(crate) version: c_int,
    pub(crate) file_size: c_int,
    pub(crate) path_max: c_int,
    pub(crate) next: *mut Vfs,
    pub(crate) name: *const c_char,
    pub(crate) data: *mut c_void,
    pub(crate) open: unsafe extern "C" fn(*mut Vfs, *const c_char, *mut File, c_int, *mut c_int) -> c_int,
    pub(crate) delete: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int) -> c_int,
    pub(crate) access: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_int) -> c_int,
    pub(crate) full_path: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_char) -> c_int,
    pub(crate) dl_open: Option<unsafe extern "C" fn(*mut Vfs, *const c_char) -> *mut c_void>,
    pub(crate) dl_error: Option<unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char)>,
    pub(crate) dl_sym: DynamicSymbol,
    pub(crate) dl_close: Option<unsafe extern "C" fn(*mut Vfs, *mut c_void)>,
    pub(crate) randomness: unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char) -> c_int,
    pub(crate) sleep: unsafe extern "C" fn(*mut Vfs, c_int) -> c_int,
    pub(crate) current_time: unsafe extern "C" fn(*mut Vfs, *mut f64) -> c_int,
    pub(crate) last_error: Option<unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char) -> c_int>,
    // Version 2.
    pub(crate) current_time_int64: Option<unsafe extern "C" fn(*mut Vfs, *mut i64) -> c_int>,
    // Version 3.
    pub(crate) set_system_call: Option<unsafe extern "C" fn(*mut Vfs, *const c_char, SystemCall) -> c_int>,
    pub(crate) get_system_call: Option<unsafe extern "C" fn(*mut Vfs, *const c_char) -> SystemCall>,
    pub(crate) next_system_call: Option<unsafe extern "C" fn(*mut Vfs, *const c_char) -> *const c_char>,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Vfs>() == 168 && size_of::<IoMethods>() == 152);

/// SQLite's table of functions.
#[derive(Clone, Copy)]
pub(crate) struct Api(*const *const c_void);

// SAFETY: the table is constant and lives as long as the library; its functions may be called from any
// thread.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

static KNOWN: OnceLock<Api> = OnceLock::new();

impl Api {
    const LIBVERSION_NUMBER: usize = 67;
    const MALLOC: usize = 68;
    const VFS_FIND: usize = 141;
    const VFS_REGISTER: usize = 142;
    const LOG: usize = 167;
    const URI_PARAMETER: usize = 189;
    const DATABASE_FILE_OBJECT: usize = 251;

    /// # Safety
    ///
    /// `table` is what SQLite gives to an extension.
    pub(crate) unsafe fn new(table: *const *const c_void) -> Api {
        Api(table)
    }

    /// # Safety
    ///
    /// `F` is the type of the function at `place`, and this version of SQLite has it.
    unsafe fn function<F: Copy>(self, place: usize) -> F {
        const { assert!(size_of::<F>() == size_of::<*const c_void>()) };
        // SAFETY: the caller's promise; the table has that many entries in every version that has the
        // function.
        unsafe { std::mem::transmute_copy(&*self.0.add(place)) }
    }

    pub(crate) fn version(self) -> c_int {
        // SAFETY: `int sqlite3_libversion_number(void)`.
        unsafe { self.function::<unsafe extern "C" fn() -> c_int>(Api::LIBVERSION_NUMBER)() }
    }

    /// The default VFS.
    pub(crate) fn default_vfs(self) -> *mut Vfs {
        // SAFETY: `sqlite3_vfs *sqlite3_vfs_find(const char*)`; a null name asks for the default.
        unsafe {
            self.function::<unsafe extern "C" fn(*const c_char) -> *mut Vfs>(Api::VFS_FIND)(std::ptr::null())
        }
    }

    /// The VFS of a name, or null.
    ///
    /// # Safety
    ///
    /// `name` ends with a zero byte.
    pub(crate) unsafe fn find_vfs(self, name: *const c_char) -> *mut Vfs {
        // SAFETY: as above.
        unsafe { self.function::<unsafe extern "C" fn(*const c_char) -> *mut Vfs>(Api::VFS_FIND)(name) }
    }

    /// # Safety
    ///
    /// `vfs` lives for ever.
    pub(crate) unsafe fn register(self, vfs: *mut Vfs, make_default: bool) -> c_int {
        // SAFETY: `int sqlite3_vfs_register(sqlite3_vfs*, int)`.
        unsafe {
            self.function::<unsafe extern "C" fn(*mut Vfs, c_int) -> c_int>(Api::VFS_REGISTER)(
                vfs,
                c_int::from(make_default),
            )
        }
    }

    /// The open database file that a journal belongs to.
    ///
    /// # Safety
    ///
    /// `journal` is a name that SQLite passed when it had a main journal opened.
    pub(crate) unsafe fn database_of(self, journal: *const c_char) -> *mut File {
        type Function = unsafe extern "C" fn(*const c_char) -> *mut File;
        // SAFETY: `sqlite3_file *sqlite3_database_file_object(const char*)`, since 3.32.
        unsafe { self.function::<Function>(Api::DATABASE_FILE_OBJECT)(journal) }
    }

    /// The table that the process uses, once the VFS is registered.
    pub(crate) fn known() -> Option<Api> {
        KNOWN.get().copied()
    }

    /// Makes the table the one of the process.
    pub(crate) fn keep(self) {
        KNOWN.get_or_init(|| self);
    }

    /// A parameter of the URI that a database was opened with, if it is UTF-8.
    ///
    /// # Safety
    ///
    /// `name` is a database's that SQLite passes to a VFS, and stays as it is while the result is in use.
    pub(crate) unsafe fn parameter<'a>(self, name: *const c_char, key: &CStr) -> Option<&'a str> {
        type Function = unsafe extern "C" fn(*const c_char, *const c_char) -> *const c_char;
        // SAFETY: `const char *sqlite3_uri_parameter(const char*, const char*)`, and the caller's promise.
        unsafe {
            let found = self.function::<Function>(Api::URI_PARAMETER)(name, key.as_ptr());
            if found.is_null() { None } else { CStr::from_ptr(found).to_str().ok() }
        }
    }

    /// Writes to SQLite's log.
    pub(crate) fn log(self, code: c_int, text: &str) {
        type Function = unsafe extern "C" fn(c_int, *const c_char, ...);
        let Ok(text) = CString::new(text) else { return };
        // SAFETY: `void sqlite3_log(int, const char*, ...)`, with a format that takes one text.
        unsafe { self.function::<Function>(Api::LOG)(code, c"%s".as_ptr(), text.as_ptr()) }
    }

    /// A copy of `text` that SQLite frees; null without memory.
    pub(crate) fn text(self, text: &str) -> *mut c_char {
        // SAFETY: `void *sqlite3_malloc(int)`.
        let copy = unsafe {
            self.function::<unsafe extern "C" fn(c_int) -> *mut c_void>(Api::MALLOC)(text.len() as c_int + 1)
        }
        .cast::<u8>();
        if !copy.is_null() {
            // SAFETY: fresh memory of that size.
            unsafe {
                copy.copy_from_nonoverlapping(text.as_ptr(), text.len());
                copy.add(text.len()).write(0);
            }
        }
        copy.cast()
    }
}
