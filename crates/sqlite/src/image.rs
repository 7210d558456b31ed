//! Databases in a volume that no server has mounted: `file:data.db?vfs=quire&image=/srv/data.img`.
//!
//! The process opens the volume itself, once for all of its connections, and closes it with the last of
//! them. SQLite sees a second VFS, which is not registered: the VFS `quire` passes the files of volumes to
//! it, so that commits are groups here as on a mount.
//!
//! * A file's full path is `quire://IMAGE//PATH`. SQLite derives the names of journals from it, so each of
//!   them tells its volume, too. IMAGE is absolute, and PATH has no two slashes in a row.
//! * Locks and shared memory (of the write-ahead log) are memory of the process ([`locks`]): no other process
//!   can have the volume open.
//! * A process that was forked off gets errors. The threads of its parent's volume do not exist in it.
//!
//! * `names`: the full path. `volumes`: volumes and files that connections share. `locks`: who may do what.
//!   `file`: SQLite's methods of a file.

mod file;
mod locks;
mod names;
mod volumes;

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::sync::Arc;

use quire::{ErrorKind, OpenOptions};

use crate::ffi::{self, Api, File, Vfs};
pub(crate) use file::Handle;
pub(crate) use names::is_in_image;
use volumes::Settings;

/// What an open file of a volume is, for groups.
///
/// # Safety
///
/// `file` is an open file, of any VFS.
pub(crate) unsafe fn handle(file: *mut File) -> Option<Arc<Handle>> {
    // SAFETY: the caller's promise.
    unsafe { file::handle(file) }
}

/// The VFS of files in volumes: `base`, except for what concerns files.
///
/// # Safety
///
/// `base` is a registered VFS.
pub(crate) unsafe fn vfs(base: *mut Vfs) -> *mut Vfs {
    // SAFETY: the caller's promise; the structure has words only.
    let copy = unsafe { ptr::read(base) };
    Box::leak(Box::new(Vfs {
        name: c"quire-image".as_ptr(),
        next: ptr::null_mut(),
        open,
        delete,
        access,
        ..copy
    }))
}

/// The full path of a file that a URI places in a volume (`image=`), or that is named by a full path
/// already. `None` for all other names.
///
/// # Safety
///
/// `name` is a name that SQLite passes to `xFullPathname`.
pub(crate) unsafe fn full_path(api: Api, name: *const c_char) -> Option<Result<CString, String>> {
    // SAFETY: the caller's promise.
    let (image, path) = unsafe { (api.parameter(name, c"image"), CStr::from_ptr(name)) };
    let full = match image {
        Some(image) => names::full_path(image, path),
        None if is_in_image(path) => names::split(path).and_then(|(image, path)| names::joined(image, path)),
        None => return None,
    };
    Some(full.and_then(|full| CString::new(full).map_err(|error| error.to_string())))
}

/// Tells SQLite's log what failed.
pub(crate) fn told(code: c_int, why: &str) -> c_int {
    if let Some(api) = Api::known() {
        api.log(code, &format!("quire: {why}"));
    }
    code
}

// SAFETY, for all functions below: SQLite calls them with arguments as its documentation says, and with full
// paths that `full_path` made, or that SQLite made of one by adding to its end.

unsafe extern "C" fn open(
    _: *mut Vfs,
    name: *const c_char,
    room: *mut File,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: see above.
    unsafe {
        (*room).methods = ptr::null();
        let opened = open_file(name, flags);
        match opened {
            Ok(handle) => {
                if !out_flags.is_null() {
                    *out_flags = match handle.is_writable() {
                        true => flags,
                        false => flags & !(ffi::OPEN_READWRITE | ffi::OPEN_CREATE) | ffi::OPEN_READONLY,
                    };
                }
                file::put(room, handle);
                ffi::OK
            }
            Err(why) => told(ffi::CANTOPEN, &format!("{}: {why}", CStr::from_ptr(name).to_string_lossy())),
        }
    }
}

/// # Safety
///
/// `name` is a full path that SQLite passes to `xOpen`.
unsafe fn open_file(name: *const c_char, flags: c_int) -> Result<Handle, String> {
    let has = |wanted: c_int| flags & wanted != 0;
    // SAFETY: the caller's promise.
    let (image, path) = names::split(unsafe { CStr::from_ptr(name) })?;
    let settings = match Api::known() {
        // Only the names of databases carry the URI's parameters in every version of SQLite.
        // SAFETY: the caller's promise.
        Some(api) if has(ffi::OPEN_MAIN_DB) => unsafe { Settings::of(api, name, has(ffi::OPEN_CREATE)) }?,
        _ => Settings::default(),
    };
    let user = volumes::open(image, &settings)?;
    let volume = user.volume();
    if has(ffi::OPEN_MAIN_DB) {
        refuse_links(volume, path)?;
    }
    let writable = has(ffi::OPEN_READWRITE) && !volume.is_read_only();
    let creates = has(ffi::OPEN_CREATE) && writable;
    if creates && let Some((parent, _)) = path.rsplit_once('/') {
        volume.create_dir_all(parent).map_err(|error| error.to_string())?;
    }
    let file = OpenOptions::new()
        .read(true)
        .write(writable)
        .create(creates)
        .create_new(creates && has(ffi::OPEN_EXCLUSIVE))
        .mode(0o644)
        .open(volume, path)
        .map_err(|error| error.to_string())?;
    Ok(Handle::new(user, file, writable, creates, has(ffi::OPEN_DELETEONCLOSE).then(|| path.to_owned())))
}

/// SQLite derives the names of journals and logs from a database's name, so a database may have one only: a
/// path through a symbolic link is refused.
fn refuse_links(volume: &quire::Volume, path: &str) -> Result<(), String> {
    let parents = path.match_indices('/').skip(1).map(|(end, _)| end);
    for end in parents.chain([path.len()]) {
        let name = &path[..end];
        match volume.symlink_metadata(name) {
            Ok(about) if about.is_symlink() => {
                let target = volume.read_link(name).map_err(|error| error.to_string())?;
                let target = target.display();
                return Err(format!("name the file itself: {name} is a symbolic link to {target}"));
            }
            Ok(_) => {}
            // The rest of the path is to be made.
            Err(error) if error.kind() == ErrorKind::NotFound => break,
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}

unsafe extern "C" fn delete(_: *mut Vfs, name: *const c_char, sync_directory: c_int) -> c_int {
    // SAFETY: see above.
    let name = unsafe { CStr::from_ptr(name) };
    let deleted = names::split(name).and_then(|(image, path)| {
        let user = volumes::open(image, &Settings::default())?;
        // The journal of a group is in memory, and SQLite deletes it at each commit.
        if !user.volume().exists(path).map_err(|error| error.to_string())? {
            return Ok(ffi::IOERR_DELETE_NOENT);
        }
        let removed = match user.volume().remove_file(path) {
            Ok(()) if sync_directory != 0 => sync_parent(user.volume(), path),
            done => done,
        };
        match removed {
            Ok(()) => Ok(ffi::OK),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(ffi::IOERR_DELETE_NOENT),
            Err(error) => Err(error.to_string()),
        }
    });
    deleted.unwrap_or_else(|why| told(ffi::IOERR_DELETE, &format!("{}: {why}", name.to_string_lossy())))
}

/// Makes the removal of a name durable.
fn sync_parent(volume: &quire::Volume, path: &str) -> quire::Result<()> {
    let parent =
        path.rsplit_once('/').map_or("/", |(parent, _)| if parent.is_empty() { "/" } else { parent });
    OpenOptions::new().read(true).open(volume, parent)?.sync_all()
}

unsafe extern "C" fn access(_: *mut Vfs, name: *const c_char, _: c_int, out: *mut c_int) -> c_int {
    // SAFETY: see above.
    let name = unsafe { CStr::from_ptr(name) };
    let found = names::split(name).and_then(|(image, path)| {
        let user = volumes::open(image, &Settings::default())?;
        // SQLite asks for journals and logs in each transaction, and mostly there are none.
        if !user.volume().exists(path).map_err(|error| error.to_string())? {
            return Ok(false);
        }
        match user.volume().metadata(path) {
            // As SQLite's own VFS has it: an empty file is none.
            Ok(about) => Ok(!about.is_file() || about.len() > 0),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    });
    match found {
        Ok(found) => {
            // SAFETY: see above.
            unsafe { *out = c_int::from(found) };
            ffi::OK
        }
        Err(why) => told(ffi::IOERR_ACCESS, &format!("{}: {why}", name.to_string_lossy())),
    }
}
