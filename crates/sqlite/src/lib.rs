//! SQLite in volumes of Quire without a rollback journal: a loadable extension.
//!
//! `sqlite3_load_extension` calls [`sqlite3_extension_init`], which registers a VFS over the default one and
//! makes it the default: connections opened from then on use it. A database on a mount of Quire commits each
//! transaction as one atomic group; so does a database in a volume that the process opens itself
//! (`file:data.db?image=/srv/data.img`). Anywhere else nothing changes.
//!
//! * `vfs`: which files are special.
//! * `database`: what a transaction changes is collected, and committed.
//! * `journal`: the rollback journal, in memory for as long as nobody could need it.
//! * `overlay`: what was collected, over the file.
//! * `super_journal`: no transaction is over databases in images and others.
//! * `image`: files in a volume that no server has mounted.
//! * `mount`: the mount's control requests. `capture`: the descriptor for them. `ffi`: SQLite's C interface.
//!
//! Neighbours: `quire` opens the volumes of `image`. A mount is talked to through system calls alone
//! (`quire-fuse` answers them).

mod capture;
mod database;
mod ffi;
mod image;
mod journal;
mod mount;
mod overlay;
mod super_journal;
mod vfs;

use std::ffi::{c_char, c_int, c_void};

/// The entry point that SQLite looks for.
///
/// # Safety
///
/// Called by `sqlite3_load_extension`, with what its documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_extension_init(
    _connection: *mut c_void,
    message: *mut *mut c_char,
    api: *const c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let api = unsafe { ffi::Api::new(api.cast()) };
    match vfs::register(api) {
        Ok(()) => ffi::OK_LOAD_PERMANENTLY,
        Err(why) => {
            if !message.is_null() {
                // SAFETY: SQLite's place for a text that it frees.
                unsafe { *message = api.text(&format!("quire: {why}")) };
            }
            ffi::ERROR
        }
    }
}
