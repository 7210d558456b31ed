//! What C hands over: texts, memory, structures that may be of another version.
//!
//! Neighbours: every function of the border.

use quire::{Error, ErrorKind, Result};
use std::ffi::{CStr, OsStr, c_char};
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The most buffers of one vectored call, as the kernel has it.
const IOV_MAX: usize = 1024;

/// A text that C owns.
///
/// # Safety
/// `text` is NULL, or ends with a zero byte and stays as it is while the borrow lasts.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a OsStr> {
    if text.is_null() {
        return Err(Error::invalid(format!("the {what} is NULL")));
    }
    // SAFETY: the caller's promise.
    Ok(OsStr::from_bytes(unsafe { CStr::from_ptr(text) }.to_bytes()))
}

/// A path that C owns.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn path<'a>(path: *const c_char) -> Result<&'a Path> {
    // SAFETY: the caller's promise.
    unsafe { text(path, "path") }.map(Path::new)
}

fn check(pointer: *const u8, len: usize) -> Result<()> {
    if pointer.is_null() && len > 0 {
        return Err(Error::invalid(format!("the buffer of {len} bytes is NULL")));
    }
    if isize::try_from(len).is_err() {
        return Err(Error::invalid(format!("no buffer has {len} bytes")));
    }
    Ok(())
}

/// Memory to be read.
///
/// # Safety
/// `len` bytes at `pointer` may be read, and nobody writes them while the borrow lasts.
pub(crate) unsafe fn bytes<'a>(pointer: *const u8, len: usize) -> Result<&'a [u8]> {
    check(pointer, len)?;
    match len {
        0 => Ok(&[]),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts(pointer, len) }),
    }
}

/// Memory to be filled.
///
/// # Safety
/// `len` bytes at `pointer` may be written, and nobody else uses them while the borrow lasts.
pub(crate) unsafe fn bytes_mut<'a>(pointer: *mut u8, len: usize) -> Result<&'a mut [u8]> {
    check(pointer, len)?;
    match len {
        0 => Ok(&mut []),
        // SAFETY: the caller's promise. Memory of C has values of bytes, whatever they are: nothing here
        // reads them.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(pointer, len) }),
    }
}

/// # Safety
/// `count` elements at `vector` may be read while the borrow lasts.
unsafe fn vector<'a>(vector: *const libc::iovec, count: usize) -> Result<&'a [libc::iovec]> {
    if count > IOV_MAX {
        return Err(Error::invalid(format!("{count} buffers in one call: at most {IOV_MAX}")));
    }
    match count {
        0 => Ok(&[]),
        _ if vector.is_null() => Err(Error::invalid("the vector of buffers is NULL")),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts(vector, count) }),
    }
}

/// Buffers to be read.
///
/// # Safety
/// As for [`bytes`], for each of `count` buffers.
pub(crate) unsafe fn buffers<'a>(first: *const libc::iovec, count: usize) -> Result<Vec<IoSlice<'a>>> {
    // SAFETY: the caller's promise.
    let vector = unsafe { vector(first, count) }?;
    // SAFETY: the caller's promise.
    let one = |buffer: &libc::iovec| unsafe { bytes(buffer.iov_base.cast(), buffer.iov_len) };
    vector.iter().map(|buffer| one(buffer).map(IoSlice::new)).collect()
}

/// Buffers to be filled.
///
/// # Safety
/// As for [`bytes_mut`], for each of `count` buffers, which do not overlap.
pub(crate) unsafe fn buffers_mut<'a>(first: *const libc::iovec, count: usize) -> Result<Vec<IoSliceMut<'a>>> {
    // SAFETY: the caller's promise.
    let vector = unsafe { vector(first, count) }?;
    // SAFETY: the caller's promise.
    let one = |buffer: &libc::iovec| unsafe { bytes_mut(buffer.iov_base.cast(), buffer.iov_len) };
    vector.iter().map(|buffer| one(buffer).map(IoSliceMut::new)).collect()
}

/// A structure that C fills and that begins with its size in bytes, as the C program's header has it. Later
/// versions append fields for which zero means what was before.
///
/// # Safety
/// Plain words, all of whose values are valid; the first field is a `u32`, the size.
pub(crate) unsafe trait Sized32: Copy {
    /// All fields zero.
    const ZERO: Self;
}

/// The options that C gives; all zero for NULL.
///
/// # Safety
/// `given` is NULL, or leads to a structure of as many bytes as its first field says.
pub(crate) unsafe fn options<T: Sized32>(given: *const T, what: &str) -> Result<T> {
    let mut options = T::ZERO;
    if given.is_null() {
        return Ok(options);
    }
    // SAFETY: the structure begins with its size (the trait's promise and the caller's).
    let size = unsafe { given.cast::<u32>().read() } as usize;
    if size < size_of::<u32>() {
        return Err(Error::invalid(format!(
            "the {what} do not say their size: set the field to their sizeof"
        )));
    }
    let known = size.min(size_of::<T>());
    // SAFETY: `size` bytes may be read (the caller's promise), and any bytes are a value (the trait's).
    unsafe { std::ptr::copy_nonoverlapping(given.cast::<u8>(), (&raw mut options).cast(), known) };
    // SAFETY: the rest of those `size` bytes.
    let unknown = unsafe { bytes(given.cast::<u8>().wrapping_add(known), size - known) }?;
    if unknown.iter().any(|&byte| byte != 0) {
        return Err(newer(what));
    }
    Ok(options)
}

fn newer(what: &str) -> Error {
    let message = format!("the {what} are of a newer header, and ask for what this library does not know");
    Error::new(ErrorKind::TooLarge, message)
}

/// Errors unless words that later versions may give a meaning are zero.
pub(crate) fn check_spare(spare: &[u64], what: &str) -> Result<()> {
    if spare.iter().any(|&word| word != 0) { Err(newer(what)) } else { Ok(()) }
}

/// Puts a result where C wants it.
///
/// # Safety
/// `place` is NULL, or a `T` may be written there.
pub(crate) unsafe fn put<T>(place: *mut T, what: &str, value: impl FnOnce() -> Result<T>) -> Result<()> {
    if place.is_null() {
        return Err(Error::invalid(format!("the place for the {what} is NULL")));
    }
    let value = value()?;
    // SAFETY: the caller's promise. What was there is C's, and has no destructor.
    unsafe { place.write(value) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    #[repr(C)]
    struct Two {
        size: u32,
        first: u32,
    }
    // SAFETY: words, and the size is the first.
    unsafe impl Sized32 for Two {
        const ZERO: Two = Two { size: 0, first: 0 };
    }

    fn of(words: &[u32]) -> Result<Two> {
        // SAFETY: no case says that it is larger than `words`.
        unsafe { options(words.as_ptr().cast::<Two>(), "options") }
    }

    #[test]
    fn structures_of_older_and_newer_headers_are_understood() {
        // SAFETY: NULL.
        assert_eq!(unsafe { options(std::ptr::null::<Two>(), "options") }.expect("no options").first, 0);
        assert_eq!(of(&[4, 9]).expect("an older one").first, 0);
        assert_eq!(of(&[8, 9]).expect("ours").first, 9);
        assert_eq!(of(&[12, 9, 0]).expect("a newer one that asks for nothing new").first, 9);
        assert_eq!(of(&[12, 9, 1]).expect_err("a newer wish").kind(), ErrorKind::TooLarge);
        assert_eq!(of(&[0, 9]).expect_err("no size").kind(), ErrorKind::Invalid);
    }
}
