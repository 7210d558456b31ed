//! Super-journals: each has the names of the journals of a transaction over several databases.
//!
//! A transaction over databases in images and others would be no unit. SQLite, when it recovers one of the
//! databases, looks for the files that the super-journal and the journals name, and takes a name that leads
//! to nothing for a transaction that has ended. SQLite without the extension finds no file of the other kind.
//!
//! SQLite writes the names of all journals before it writes a page for the commit. A name of the other kind
//! fails the write, so SQLite rolls the transaction back.

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

use crate::ffi::{self, File, IoMethods};
use crate::image;

/// Methods of the VFS below, and those with [`write`] instead of its own.
struct Methods {
    below: &'static IoMethods,
    watched: IoMethods,
}

/// Of super-journals of the host, and of those in images.
static METHODS: [OnceLock<Methods>; 2] = [const { OnceLock::new() }; 2];

/// Watches the names that are written to a super-journal.
///
/// # Safety
///
/// `file` is an open super-journal of the VFS below that has images (`in_image`), or of the other one.
pub(crate) unsafe fn watch(file: *mut File, in_image: bool) {
    // SAFETY: the caller's promise; methods are constant, and one VFS has the same for all super-journals.
    unsafe {
        let methods = METHODS[usize::from(in_image)].get_or_init(|| {
            let below = &*(*file).methods;
            let write = if in_image { write::<true> } else { write::<false> };
            Methods { below, watched: IoMethods { write, ..*below } }
        });
        debug_assert!(std::ptr::eq(methods.below, (*file).methods));
        (*file).methods = &raw const methods.watched;
    }
}

unsafe extern "C" fn write<const IN_IMAGE: bool>(
    file: *mut File,
    buffer: *const c_void,
    count: c_int,
    offset: i64,
) -> c_int {
    // SAFETY: SQLite writes one name, with the zero byte at its end, to a file that `watch` has seen.
    unsafe {
        let name = CStr::from_ptr(buffer.cast());
        if image::is_in_image(name) != IN_IMAGE {
            let why = "a transaction cannot change databases in an image and others";
            return image::told(ffi::IOERR_WRITE, &format!("{}: {why}", name.to_string_lossy()));
        }
        match METHODS[usize::from(IN_IMAGE)].get() {
            Some(methods) => (methods.below.write)(file, buffer, count, offset),
            None => ffi::IOERR_WRITE,
        }
    }
}
