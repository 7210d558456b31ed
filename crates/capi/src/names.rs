//! Names: directories and their entries, links, renames, removal.
//!
//! Paths start at the root of the volume, with a slash or without. Each function that changes names is one
//! transaction, except `quire_mkdir_all` and `quire_remove_all`.
//!
//! Neighbours: [`crate::attributes`] for what the names lead to.

use crate::arguments::{path, put};
use crate::error::{count, number, quietly, status};
use crate::handle::{borrow, give, take};
use crate::volume::{Volume, give_out, volume};
use quire::inodes::Create;
use quire::{Error, ErrorKind, ReadDir, RenameFlags, Result};
use std::ffi::{CString, OsStr, c_char, c_int};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Mutex;

/// A directory that is being listed.
pub struct Directory {
    state: Mutex<Listing>,
}

struct Listing {
    entries: ReadDir,
    /// Of the entry that C was given last.
    name: CString,
}

/// An entry of a directory.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct DirectoryEntry {
    /// Number of the inode.
    pub ino: u64,
    /// DT_REG, DT_DIR, DT_LNK and so on, as readdir(3) has them.
    pub kind: u32,
    /// Bytes of the name, without the zero byte.
    pub name_length: u32,
    /// The name, ended by a zero byte. Belongs to the directory's handle, until the next call with it.
    pub name: *const c_char,
}

/// Creates a directory with the permission bits `mode`, owner and group 0.
///
/// Returns: 0; -EEXIST if the name is taken; or another negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `path` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_mkdir(volume: *const Volume, path: *const c_char, mode: u32) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path) = unsafe { (self::volume(volume)?, self::path(path)?) };
        make_directory(volume, path, mode)
            .map_err(|error| error.context(format_args!("creating directory {}", path.display())))
    })
}

fn make_directory(volume: &quire::Volume, path: &Path, mode: u32) -> Result<()> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, "the path is empty"));
    }
    let end = bytes.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let start = bytes[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let (above, name) = (&bytes[..start], &bytes[start..end]);
    if matches!(name, b"" | b"." | b"..") {
        // What these mean is there, if the way to it is.
        volume.resolve(path)?;
        return Err(Error::new(ErrorKind::Exists, "it is there"));
    }
    let directory = match above {
        b"" => volume.inodes().root(),
        above => volume.resolve(Path::new(OsStr::from_bytes(above)))?,
    };
    volume.inodes().create(&directory, name, &Create::directory(mode & 0o7777)).map(drop)
}

/// Creates a directory and those above it that are missing, with mode 0755. Fine if it is there.
///
/// Returns: 0 or a negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `path` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_mkdir_all(volume: *const Volume, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { self::volume(volume)?.create_dir_all(self::path(path)?) })
}

/// Removes an empty directory.
///
/// Returns: 0; -ENOTEMPTY if it has entries; or another negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `path` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_rmdir(volume: *const Volume, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { self::volume(volume)?.remove_dir(self::path(path)?) })
}

/// Removes a directory and everything below it. Symbolic links are removed, not followed.
///
/// Returns: 0 or a negative error number; then a part of it may be gone.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `path` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_remove_all(volume: *const Volume, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { self::volume(volume)?.remove_dir_all(self::path(path)?) })
}

/// Removes a name of a file or a link. The file is freed with its last name and its last handle.
///
/// Returns: 0; -EISDIR for a directory; or another negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `path` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_unlink(volume: *const Volume, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { self::volume(volume)?.remove_file(self::path(path)?) })
}

/// Renames, atomically, over what has the new name if that may be replaced. `flags` are those of
/// renameat2(2): 0, or RENAME_EXCHANGE (2), or RENAME_NOREPLACE (1) and RENAME_WHITEOUT (4) or one of these.
///
/// Returns: 0 or a negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `from` and `to` are texts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_rename(
    volume: *const Volume,
    from: *const c_char,
    to: *const c_char,
    flags: u32,
) -> c_int {
    status(|| {
        let flags = RenameFlags::from_bits(flags)
            .ok_or_else(|| Error::invalid(format!("quire_rename has no flags {flags:#x}")))?;
        // SAFETY: the caller's promise.
        unsafe { self::volume(volume)?.rename_with(path(from)?, path(to)?, flags) }
    })
}

/// Gives a file another name. A symbolic link at the end of `original` is not followed.
///
/// Returns: 0 or a negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `original` and `link` are texts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_link(
    volume: *const Volume,
    original: *const c_char,
    link: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { self::volume(volume)?.hard_link(path(original)?, path(link)?) })
}

/// Creates a symbolic link at `link` that leads to `target`.
///
/// Returns: 0 or a negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `target` and `link` are texts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_symlink(
    volume: *const Volume,
    target: *const c_char,
    link: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { self::volume(volume)?.symlink(path(target)?, path(link)?) })
}

/// Reads where a symbolic link leads: up to `length` bytes, without a zero byte at the end.
///
/// Returns: the bytes of the whole target, which may be more than `length`; or a negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `path` is a text; `length` bytes may be written to `buffer`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_readlink(
    volume: *const Volume,
    path: *const c_char,
    buffer: *mut c_char,
    length: usize,
) -> i64 {
    count(|| {
        // SAFETY: the caller's promise.
        let (volume, path) = unsafe { (self::volume(volume)?, self::path(path)?) };
        let target = volume.read_link(path)?;
        let bytes = target.as_os_str().as_bytes();
        // SAFETY: the caller's promise.
        let buffer = unsafe { crate::arguments::bytes_mut(buffer.cast(), length) }?;
        let known = bytes.len().min(buffer.len());
        buffer[..known].copy_from_slice(&bytes[..known]);
        Ok(bytes.len() as u64)
    })
}

/// Begins to list a directory, removed or not while that lasts.
///
/// Returns: 0 and a handle in `*directory`, which the caller gives to quire_closedir; or a negative error
/// number, and `*directory` is NULL.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `path` is a text; a pointer may be written to `directory`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_opendir(
    volume: *const Volume,
    path: *const c_char,
    directory: *mut *mut Directory,
) -> c_int {
    let open = || {
        // SAFETY: the caller's promise.
        let (volume, path) = unsafe { (self::volume(volume)?, self::path(path)?) };
        let listing = Listing { entries: volume.read_dir(path)?, name: CString::default() };
        Ok(give(Directory { state: Mutex::new(listing) }))
    };
    // SAFETY: the caller's promise.
    unsafe { give_out(directory, "directory", open) }
}

/// The next entry, in the directory's own order, without "." and "..". Entries that come and go meanwhile are
/// listed or not, all others once.
///
/// Returns: 1 and an entry, 0 at the end; or a negative error number.
/// Threads: one at a time for each handle, since the name is valid until the next call with it.
///
/// # Safety
/// `directory` is being listed; a structure may be written to `entry`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_readdir(directory: *const Directory, entry: *mut DirectoryEntry) -> c_int {
    number(|| {
        // SAFETY: the caller's promise.
        let directory = unsafe { borrow(directory, "directory") }?;
        let mut listing = directory.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(next) = listing.entries.next().transpose()? else { return Ok(0) };
        listing.name = CString::new(next.file_name().into_vec())
            .map_err(|_| Error::new(ErrorKind::Corrupt, "a name has a zero byte"))?;
        let found = DirectoryEntry {
            ino: next.ino().0,
            kind: next.file_type() as u32,
            name_length: listing.name.as_bytes().len() as u32,
            name: listing.name.as_ptr(),
        };
        // SAFETY: the caller's promise.
        unsafe { put(entry, "entry", || Ok(found)) }?;
        Ok(1)
    })
}

/// Ends a listing and frees the handle. NULL is fine.
///
/// Threads: any; no other call uses this handle then or later.
///
/// # Safety
/// `directory` is NULL or a handle that has not been closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_closedir(directory: *mut Directory) {
    // SAFETY: the caller's promise.
    quietly(|| drop(unsafe { take(directory) }));
}
