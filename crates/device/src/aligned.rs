//! Owned memory that O_DIRECT accepts: its start is a multiple of the block size.
//!
//! Invariants: `ptr` comes from `alloc_zeroed` with `layout_of(len)` (or dangles when `len` is 0) and is
//! freed with the same layout, unless the memory is lent; every byte is initialised.

use quire_base::{BLOCK_SIZE, Error, ErrorKind, Result};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A byte buffer aligned to [`BLOCK_SIZE`]. Its length is any number of bytes; for device I/O it must be
/// whole blocks.
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    len: usize,
    /// The memory is somebody else's.
    lent: bool,
}

// SAFETY: the buffer owns its memory; access goes through `&self` and `&mut self` as with `Box<[u8]>`.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// `len` bytes of zero. Aborts as every allocation does when memory is out: for small buffers, and where
    /// nothing could be done without.
    pub fn zeroed(len: usize) -> AlignedBuf {
        AlignedBuf::allocate(len).unwrap_or_else(|| handle_alloc_error(layout_of(len)))
    }

    /// `len` bytes of zero. Fails with `NoMemory` when memory is out.
    pub fn try_zeroed(len: usize) -> Result<AlignedBuf> {
        let no_memory = || Error::new(ErrorKind::NoMemory, format!("no memory for a buffer of {len} bytes"));
        if Layout::from_size_align(len, BLOCK_SIZE).is_err() {
            return Err(no_memory());
        }
        AlignedBuf::allocate(len).ok_or_else(no_memory)
    }

    fn allocate(len: usize) -> Option<AlignedBuf> {
        if len == 0 {
            return Some(AlignedBuf { ptr: NonNull::dangling(), len, lent: false });
        }
        // SAFETY: the layout is not of size zero.
        let ptr = unsafe { alloc_zeroed(layout_of(len)) };
        NonNull::new(ptr).map(|ptr| AlignedBuf { ptr, len, lent: false })
    }

    /// `len` bytes that somebody else owns, for callers in other languages. `None` unless `ptr` is on a block
    /// boundary. Dropping it leaves the memory alone.
    ///
    /// # Safety
    /// Until it has been dropped, the memory stays allocated, may be read and written, and nobody else does
    /// that; its bytes are initialised, or memory of a language in which bytes always have a value.
    pub unsafe fn lent(ptr: NonNull<u8>, len: usize) -> Option<AlignedBuf> {
        is_aligned(ptr.as_ptr()).then_some(AlignedBuf { ptr, len, lent: true })
    }

    /// `count` blocks of zero.
    pub fn blocks(count: usize) -> AlignedBuf {
        AlignedBuf::zeroed(count * BLOCK_SIZE)
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> AlignedBuf {
        let mut buf = AlignedBuf::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// A copy of `bytes`. Fails with `NoMemory` when memory is out.
    pub fn try_copy_of(bytes: &[u8]) -> Result<AlignedBuf> {
        let mut buf = AlignedBuf::try_zeroed(bytes.len())?;
        buf.copy_from_slice(bytes);
        Ok(buf)
    }
}

fn layout_of(len: usize) -> Layout {
    Layout::from_size_align(len, BLOCK_SIZE).expect("a buffer is far smaller than the address space")
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.len > 0 && !self.lent {
            // SAFETY: allocated with this layout (type invariant), and nobody can use it after the drop.
            unsafe { dealloc(self.ptr.as_ptr(), layout_of(self.len)) }
        }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes that this value owns or was lent; dangling only when `len` is 0.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Clone for AlignedBuf {
    fn clone(&self) -> AlignedBuf {
        AlignedBuf::copy_of(self)
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

/// Whether direct I/O takes memory at `ptr` without a copy.
pub fn is_aligned(ptr: *const u8) -> bool {
    ptr.addr().is_multiple_of(BLOCK_SIZE)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn lent_memory_is_used_in_place_and_not_freed() {
        let mut owner = AlignedBuf::zeroed(8192);
        let start = NonNull::new(owner.as_mut_ptr()).expect("not NULL");
        // SAFETY: `owner` outlives the loans, and nobody uses it meanwhile.
        unsafe {
            assert!(AlignedBuf::lent(start.add(512), 4096).is_none(), "not on a block boundary");
            let mut lent = AlignedBuf::lent(start.add(4096), 4096).expect("on a block boundary");
            lent.fill(7);
        }
        assert_eq!((owner[4095], owner[4096], owner[8191]), (0, 7, 7));
    }

    #[test]
    fn is_aligned_zeroed_and_clones() {
        for len in [0, 1, 4096, 12288, 100_000] {
            let mut buf = AlignedBuf::zeroed(len);
            assert_eq!(buf.len(), len);
            assert!(buf.iter().all(|byte| *byte == 0));
            buf.fill(7);
            let copy = buf.clone();
            drop(buf);
            assert!(copy.iter().all(|byte| *byte == 7));
            assert!(len == 0 || is_aligned(copy.as_ptr()));
        }
    }
}
