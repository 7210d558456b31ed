//! libnbd, loaded when the first address is used, so that nobody needs it who has none.
//!
//! Invariants: the signatures are those of `libnbd.h` 1.0 (Debian 12 has 1.14), whose ABI is stable within
//! `libnbd.so.0`; the library stays loaded for ever.

use quire_base::{Error, ErrorKind, Result};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// `struct nbd_handle`, which only the library looks into.
#[repr(C)]
pub(super) struct RawHandle {
    _private: [u8; 0],
}

/// `nbd_completion_callback`.
#[repr(C)]
pub(super) struct Completion {
    pub(super) callback: unsafe extern "C" fn(user_data: *mut c_void, error: *mut c_int) -> c_int,
    pub(super) user_data: *mut c_void,
    pub(super) free: unsafe extern "C" fn(user_data: *mut c_void),
}

/// `LIBNBD_SIZE_MINIMUM` and `LIBNBD_SIZE_MAXIMUM`.
pub(super) const SIZE_MINIMUM: c_int = 0;
pub(super) const SIZE_MAXIMUM: c_int = 2;
/// `LIBNBD_AIO_DIRECTION_READ` and `_WRITE`.
pub(super) const DIRECTION_READ: c_uint = 1;
pub(super) const DIRECTION_WRITE: c_uint = 2;
/// `LIBNBD_CMD_FLAG_NO_HOLE`.
pub(super) const FLAG_NO_HOLE: u32 = 1 << 1;

macro_rules! library {
    ($($name:ident: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions that are used, by their names without `nbd_`.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
            _library: libloading::Library,
        }

        fn load() -> std::result::Result<Library, libloading::Error> {
            // SAFETY: libnbd has no initialiser that could go wrong here, and is a C library whose functions
            // have these signatures.
            unsafe {
                let library = libloading::Library::new("libnbd.so.0")?;
                Ok(Library {
                    $($name: *library.get(concat!("nbd_", stringify!($name), "\0").as_bytes())?,)*
                    _library: library,
                })
            }
        }
    };
}

library! {
    create: fn() -> *mut RawHandle;
    close: fn(*mut RawHandle) -> ();
    get_error: fn() -> *const c_char;
    get_errno: fn() -> c_int;
    supports_uri: fn(*mut RawHandle) -> c_int;
    set_uri_allow_local_file: fn(*mut RawHandle, bool) -> c_int;
    aio_connect_uri: fn(*mut RawHandle, *const c_char) -> c_int;
    poll: fn(*mut RawHandle, c_int) -> c_int;
    get_size: fn(*mut RawHandle) -> i64;
    get_block_size: fn(*mut RawHandle, c_int) -> i64;
    is_read_only: fn(*mut RawHandle) -> c_int;
    can_flush: fn(*mut RawHandle) -> c_int;
    can_trim: fn(*mut RawHandle) -> c_int;
    can_zero: fn(*mut RawHandle) -> c_int;
    can_multi_conn: fn(*mut RawHandle) -> c_int;
    aio_is_ready: fn(*mut RawHandle) -> c_int;
    aio_is_dead: fn(*mut RawHandle) -> c_int;
    aio_is_closed: fn(*mut RawHandle) -> c_int;
    aio_get_fd: fn(*mut RawHandle) -> c_int;
    aio_get_direction: fn(*mut RawHandle) -> c_uint;
    aio_notify_read: fn(*mut RawHandle) -> c_int;
    aio_notify_write: fn(*mut RawHandle) -> c_int;
    aio_disconnect: fn(*mut RawHandle, u32) -> c_int;
    aio_pread: fn(*mut RawHandle, *mut c_void, usize, u64, Completion, u32) -> i64;
    aio_pwrite: fn(*mut RawHandle, *const c_void, usize, u64, Completion, u32) -> i64;
    aio_flush: fn(*mut RawHandle, Completion, u32) -> i64;
    aio_trim: fn(*mut RawHandle, u64, u64, Completion, u32) -> i64;
    aio_zero: fn(*mut RawHandle, u64, u64, Completion, u32) -> i64;
}

impl Library {
    /// The library, loaded by the first call.
    pub(super) fn get() -> Result<&'static Library> {
        static LOADED: OnceLock<std::result::Result<Library, String>> = OnceLock::new();
        let loaded = LOADED.get_or_init(|| load().map_err(|error| error.to_string()));
        loaded.as_ref().map_err(|reason| {
            Error::new(
                ErrorKind::Unsupported,
                format!("volumes on NBD servers need the library libnbd.so.0: install libnbd0 ({reason})"),
            )
        })
    }

    /// What the library says about the last call of this thread that failed.
    pub(super) fn error(&self, doing: impl std::fmt::Display) -> Error {
        // SAFETY: the functions have no preconditions; the text is the library's until this thread's next
        // call.
        let (number, text) = unsafe {
            let text = (self.get_error)();
            let text = match text.is_null() {
                true => "no reason given".into(),
                false => CStr::from_ptr(text).to_string_lossy().into_owned(),
            };
            ((self.get_errno)(), text)
        };
        // libnbd's texts name its functions; the words behind the first colon are for people.
        let text = text.split_once(": ").map_or(text.as_str(), |(_, words)| words);
        let kind = match number {
            libc::EACCES | libc::EPERM => ErrorKind::AccessDenied,
            libc::ENOSPC => ErrorKind::NoSpace,
            libc::EINVAL => ErrorKind::Invalid,
            _ => ErrorKind::Io,
        };
        Error::new(kind, format!("{doing}: {text}"))
    }
}
