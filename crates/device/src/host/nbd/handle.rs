//! A connection's handle in libnbd: made, connected within a time, asked what the export is.
//!
//! libnbd takes a lock of the handle's own in every call, so a handle may be used by several threads.

use super::address::NbdAddress;
use super::library::{Library, RawHandle, SIZE_MAXIMUM, SIZE_MINIMUM};
use quire_base::sync::time::{Duration, Instant};
use quire_base::{BLOCK_SIZE, Error, ErrorKind, Result};
use std::ffi::CString;

/// Longest request, of a server that names no limit (the protocol's own word).
const REQUEST_BYTES_DEFAULT: u64 = 32 << 20;

/// Closed when dropped.
pub(super) struct Handle {
    pub(super) library: &'static Library,
    pub(super) raw: *mut RawHandle,
}

// SAFETY: libnbd's handles are thread-safe (see the module's documentation).
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is valid, and nobody uses it after this.
        unsafe { (self.library.close)(self.raw) }
    }
}

/// What the server exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Export {
    pub(super) bytes: u64,
    pub(super) is_read_only: bool,
    pub(super) can_flush: bool,
    pub(super) can_trim: bool,
    pub(super) can_zero: bool,
    /// A flush over one connection covers what was answered on all.
    pub(super) can_multi_conn: bool,
    /// Longest read or write, a multiple of the block size.
    pub(super) request_bytes_max: usize,
}

impl Handle {
    /// Connects, or gives up within about `limit`; a host's name is resolved within the resolver's own
    /// limits.
    pub(super) fn connect(address: &NbdAddress, limit: Duration) -> Result<Handle> {
        let library = Library::get()?;
        let connecting = || format!("connecting to {}", address.text());
        let uri = CString::new(address.uri()).map_err(|_| Error::invalid(connecting()))?;
        let start = Instant::now();
        // SAFETY: no preconditions.
        let raw = unsafe { (library.create)() };
        if raw.is_null() {
            return Err(library.error(connecting()));
        }
        let handle = Handle { library, raw };
        // SAFETY: the handle is valid as long as `handle`; `uri` is a string.
        unsafe {
            if (library.supports_uri)(raw) != 1 {
                let text = format!("{}: this libnbd was built without addresses", connecting());
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
            // Certificates and keys that the address names.
            (library.set_uri_allow_local_file)(raw, true);
            if (library.aio_connect_uri)(raw, uri.as_ptr()) == -1 {
                return Err(library.error(connecting()));
            }
        }
        while !handle.is_ready() {
            if start.elapsed() >= limit {
                let text = format!("{}: no answer within {} s", connecting(), limit.as_secs());
                return Err(Error::new(ErrorKind::Io, text));
            }
            // SAFETY: the handle is valid.
            if unsafe { (library.poll)(raw, 100) } == -1 {
                let error = library.error(connecting());
                // Where the server hung up before the first poll, libnbd reads too early, and says EINVAL.
                let is_broken = error.kind() == ErrorKind::Invalid;
                return Err(if is_broken { error.with_kind(ErrorKind::Io) } else { error });
            }
            if handle.is_over() {
                let text = format!("{}: the server closed the connection", connecting());
                return Err(Error::new(ErrorKind::Io, text));
            }
        }
        Ok(handle)
    }

    fn is_ready(&self) -> bool {
        // SAFETY: the handle is valid.
        unsafe { (self.library.aio_is_ready)(self.raw) == 1 }
    }

    /// Whether the connection has ended.
    pub(super) fn is_over(&self) -> bool {
        // SAFETY: the handle is valid.
        unsafe { (self.library.aio_is_dead)(self.raw) == 1 || (self.library.aio_is_closed)(self.raw) == 1 }
    }

    /// The properties of the export. Fails if it cannot serve as a device.
    pub(super) fn export(&self, name: &str) -> Result<Export> {
        let (library, raw) = (self.library, self.raw);
        let asking = || format!("asking {name} for its properties");
        // SAFETY: the handle is valid.
        let (bytes, smallest, largest) = unsafe {
            (
                (library.get_size)(raw),
                (library.get_block_size)(raw, SIZE_MINIMUM),
                (library.get_block_size)(raw, SIZE_MAXIMUM),
            )
        };
        let bytes = u64::try_from(bytes).map_err(|_| library.error(asking()))?;
        let is = |function: unsafe extern "C" fn(*mut _) -> _| {
            // SAFETY: the handle is valid.
            match unsafe { function(raw) } {
                -1 => Err(library.error(asking())),
                answer => Ok(answer == 1),
            }
        };
        if smallest > BLOCK_SIZE as i64 {
            let text = format!("{name} takes no requests smaller than {smallest} bytes; Quire needs 4096");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let largest = u64::try_from(largest).ok().filter(|bytes| *bytes > 0).unwrap_or(REQUEST_BYTES_DEFAULT);
        let largest = largest.min(REQUEST_BYTES_DEFAULT) / BLOCK_SIZE as u64 * BLOCK_SIZE as u64;
        if largest == 0 {
            let text = format!("{name} takes no requests of 4096 bytes");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        Ok(Export {
            bytes,
            is_read_only: is(library.is_read_only)?,
            can_flush: is(library.can_flush)?,
            can_trim: is(library.can_trim)?,
            can_zero: is(library.can_zero)?,
            can_multi_conn: is(library.can_multi_conn)?,
            request_bytes_max: largest as usize,
        })
    }
}
