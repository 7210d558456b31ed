//! Extended attributes, of open files and of what paths lead to, with the conventions of `getxattr(2)`.
//!
//! Neighbours: [`crate::attributes`].

use crate::arguments::{bytes, bytes_mut, path, text};
use crate::error::{count, status};
use crate::file::{File, file};
use crate::volume::{Volume, volume};
use quire::inodes::{InodeRef, XattrFlags};
use quire::{Error, ErrorKind, Result};
use std::ffi::{c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;

/// What an attribute belongs to.
struct Owner<'a> {
    volume: &'a quire::Volume,
    inode: InodeRef,
}

impl Owner<'_> {
    /// # Safety
    /// `volume` is an open volume; `path` is a text.
    unsafe fn at<'a>(volume: *const Volume, path: *const c_char) -> Result<Owner<'a>> {
        // SAFETY: the caller's promise.
        let (volume, path) = unsafe { (self::volume(volume)?, self::path(path)?) };
        Ok(Owner { volume, inode: volume.resolve(path)? })
    }

    /// # Safety
    /// `file` is an open file.
    unsafe fn of<'a>(file: *const File) -> Result<Owner<'a>> {
        // SAFETY: the caller's promise.
        let file = unsafe { self::file(file) }?;
        Ok(Owner { volume: &file.volume, inode: file.file.inode().clone() })
    }

    /// # Safety
    /// `name` is a text; `length` bytes may be written to `value`.
    unsafe fn get(&self, name: *const c_char, value: *mut c_void, length: usize) -> Result<u64> {
        // SAFETY: the caller's promise.
        let (name, value) = unsafe { (text(name, "name")?, bytes_mut(value.cast(), length)?) };
        fill(value, &self.volume.inodes().get_xattr(&self.inode, name.as_bytes())?)
    }

    /// # Safety
    /// `name` is a text; `length` bytes may be read from `value`.
    unsafe fn set(
        &self,
        name: *const c_char,
        value: *const c_void,
        length: usize,
        flags: c_int,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        let (name, value) = unsafe { (text(name, "name")?, bytes(value.cast(), length)?) };
        let flags = match flags {
            0 => XattrFlags::empty(),
            libc::XATTR_CREATE => XattrFlags::CREATE,
            libc::XATTR_REPLACE => XattrFlags::REPLACE,
            _ => return Err(Error::invalid(format!("setting an attribute has no flags {flags:#x}"))),
        };
        self.volume.inodes().set_xattr(&self.inode, name.as_bytes(), value, flags)
    }

    /// # Safety
    /// `length` bytes may be written to `names`.
    unsafe fn list(&self, names: *mut c_char, length: usize) -> Result<u64> {
        let mut all = Vec::new();
        for name in self.volume.inodes().list_xattrs(&self.inode)? {
            all.extend_from_slice(&name);
            all.push(0);
        }
        // SAFETY: the caller's promise.
        fill(unsafe { bytes_mut(names.cast(), length) }?, &all)
    }

    /// # Safety
    /// `name` is a text.
    unsafe fn remove(&self, name: *const c_char) -> Result<()> {
        // SAFETY: the caller's promise.
        let name = unsafe { text(name, "name") }?;
        self.volume.inodes().remove_xattr(&self.inode, name.as_bytes())
    }
}

/// Gives the bytes if they fit; a length of 0 only asks how many there are.
fn fill(place: &mut [u8], bytes: &[u8]) -> Result<u64> {
    if !place.is_empty() {
        let (length, room) = (bytes.len(), place.len());
        let place = place.get_mut(..length).ok_or_else(|| {
            Error::new(ErrorKind::Range, format!("{length} bytes do not fit into a buffer of {room}"))
        })?;
        place.copy_from_slice(bytes);
    }
    Ok(bytes.len() as u64)
}

/// Reads an extended attribute of what a path leads to. With a length of 0 it only says how long it is.
///
/// Returns: the bytes of the value; -ENODATA if there is no such attribute, -ERANGE if the buffer is too
/// small; or another negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `path` and `name` are texts; `length` bytes may be written to `value`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_getxattr(
    volume: *const Volume,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    length: usize,
) -> i64 {
    // SAFETY: the caller's promise.
    count(|| unsafe { Owner::at(volume, path)?.get(name, value, length) })
}

/// As quire_getxattr, of an open file.
///
/// Returns: as quire_getxattr.
/// Threads: any.
///
/// # Safety
/// `file` is an open file; `name` is a text; `length` bytes may be written to `value`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_fgetxattr(
    file: *const File,
    name: *const c_char,
    value: *mut c_void,
    length: usize,
) -> i64 {
    // SAFETY: the caller's promise.
    count(|| unsafe { Owner::of(file)?.get(name, value, length) })
}

/// Sets an extended attribute of what a path leads to, at most 64 KiB. Names begin with "user.", "trusted."
/// or "security.". `flags` are 0, XATTR_CREATE (-EEXIST if it exists) or XATTR_REPLACE (-ENODATA if not).
///
/// Returns: 0 or a negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `path` and `name` are texts; `length` bytes may be read from `value`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_setxattr(
    volume: *const Volume,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    length: usize,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { Owner::at(volume, path)?.set(name, value, length, flags) })
}

/// As quire_setxattr, of an open file.
///
/// Returns: as quire_setxattr.
/// Threads: any.
///
/// # Safety
/// `file` is an open file; `name` is a text; `length` bytes may be read from `value`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_fsetxattr(
    file: *const File,
    name: *const c_char,
    value: *const c_void,
    length: usize,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { Owner::of(file)?.set(name, value, length, flags) })
}

/// The names of the extended attributes of what a path leads to, each ended by a zero byte. With a length of
/// 0 it only says how long they are.
///
/// Returns: the bytes of the names; -ERANGE if the buffer is too small; or another negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `path` is a text; `length` bytes may be written to `names`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_listxattr(
    volume: *const Volume,
    path: *const c_char,
    names: *mut c_char,
    length: usize,
) -> i64 {
    // SAFETY: the caller's promise.
    count(|| unsafe { Owner::at(volume, path)?.list(names, length) })
}

/// As quire_listxattr, of an open file.
///
/// Returns: as quire_listxattr.
/// Threads: any.
///
/// # Safety
/// `file` is an open file; `length` bytes may be written to `names`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_flistxattr(file: *const File, names: *mut c_char, length: usize) -> i64 {
    // SAFETY: the caller's promise.
    count(|| unsafe { Owner::of(file)?.list(names, length) })
}

/// Removes an extended attribute of what a path leads to.
///
/// Returns: 0; -ENODATA if there is none; or another negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `path` and `name` are texts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_removexattr(
    volume: *const Volume,
    path: *const c_char,
    name: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { Owner::at(volume, path)?.remove(name) })
}

/// As quire_removexattr, of an open file.
///
/// Returns: as quire_removexattr.
/// Threads: any.
///
/// # Safety
/// `file` is an open file; `name` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_fremovexattr(file: *const File, name: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { Owner::of(file)?.remove(name) })
}
