//! Bytes in huge pages that several threads copy out of and into at once.
//!
//! There is never a reference to the bytes, only raw copies by the C library: racing copies may mix old and
//! new bytes, and it is the users' business to prevent that or not.

use quire_base::{Error, ErrorKind, Result};
use std::ops::Range;
use std::ptr::NonNull;

const HUGE: usize = 2 << 20;

/// The array.
pub struct Array {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is reached only through raw copies, never through references; bytes have no invalid
// values.
unsafe impl Send for Array {}
// SAFETY: as above; that racing copies mix bytes is documented.
unsafe impl Sync for Array {}

impl Array {
    /// At least `bytes`, zero.
    pub fn new(bytes: usize) -> Result<Array> {
        let bytes = bytes.next_multiple_of(HUGE);
        let doing = || format!("mapping {bytes} bytes");
        // SAFETY: a fresh private anonymous mapping; no existing memory is touched.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(Error::os(doing(), &std::io::Error::last_os_error()));
        }
        let start =
            NonNull::new(start.cast::<u8>()).ok_or_else(|| Error::new(ErrorKind::NoMemory, doing()))?;
        // SAFETY: the range is the mapping just made. Without huge pages it is only slower.
        unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        Ok(Array { start, bytes })
    }

    /// A range of it, checked.
    pub fn range(&self, offset: u64, len: usize) -> Result<Range<usize>> {
        usize::try_from(offset)
            .ok()
            .and_then(|start| Some(start..start.checked_add(len)?))
            .filter(|range| range.end <= self.bytes)
            .ok_or_else(|| Error::new(ErrorKind::NoSpace, "past the end of the array"))
    }

    /// Copies `start..start + out.len()` out.
    pub fn copy_out(&self, start: usize, out: &mut [u8]) {
        assert!(start.checked_add(out.len()).is_some_and(|end| end <= self.bytes), "inside the array");
        // SAFETY: the range is inside the mapping, and `out` is memory of the caller's own.
        unsafe { libc::memcpy(out.as_mut_ptr().cast(), self.start.as_ptr().add(start).cast(), out.len()) };
    }

    /// Copies `data` in at `start`.
    pub fn copy_in(&self, start: usize, data: &[u8]) {
        assert!(start.checked_add(data.len()).is_some_and(|end| end <= self.bytes), "inside the array");
        // SAFETY: as for `copy_out`, the other way.
        unsafe { libc::memcpy(self.start.as_ptr().add(start).cast(), data.as_ptr().cast(), data.len()) };
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new` and nobody uses it after the last owner.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
