//! Memory for requests: page-aligned, taken from the system once and used again.
//!
//! ```text
//!   | ................ header, arguments | names, data, or the reply's body ... |
//!   0                                   HEAD                              HEAD + size
//! ```
//!
//! A message is received so that the data of a WRITE starts at `HEAD`, on a page; a reply's header stands
//! right before `HEAD` and its body behind. Pages that were never touched take no memory.

use std::ptr::NonNull;

use quire_base::sync::{Arc, Mutex};
use quire_base::{Error, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Where data and bodies start, in bytes.
pub const HEAD: usize = 4096;
/// Bytes of the buffers that wait for use at most; more are given back to the system.
const SPARE_BYTES_MAX: usize = 16 << 20;

/// One buffer.
pub struct Buffer {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: a buffer is the only owner of its mapping, which belongs to no thread.
unsafe impl Send for Buffer {}
// SAFETY: through a shared reference the memory is only read.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Zeroed, `HEAD + size` bytes, rounded up to pages.
    pub fn new(size: usize) -> Result<Buffer> {
        let length = (HEAD + size).next_multiple_of(4096);
        // SAFETY: a new private mapping at an address of the kernel's choice; nothing else refers to it.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(|error| Error::os("taking memory for requests", &error.into()))?;
        let start = NonNull::new(start.cast()).ok_or_else(|| Error::invalid("a mapping at address zero"))?;
        Ok(Buffer { start, length })
    }

    /// As [`Buffer::new`], on huge pages as far as the system has them.
    pub fn huge(size: usize) -> Result<Buffer> {
        let buffer = Buffer::new(size)?;
        // SAFETY: the range is the mapping made just now, whole. It is only advice, so a refusal does not
        // matter.
        let _ = unsafe { madvise(buffer.start.as_ptr().cast(), buffer.length, Advice::LinuxHugepage) };
        Ok(buffer)
    }

    /// Gives the memory from `at` on back to the system, whole pages; it reads as zeros.
    pub fn give_back(&mut self, at: usize) {
        let at = at.next_multiple_of(rustix::param::page_size());
        if at < self.length {
            // SAFETY: the range is the tail of the mapping made in `new`; self is borrowed exclusively, and
            // the pages stay mapped, zeroed. A refusal changes nothing.
            let _ = unsafe {
                madvise(self.start.as_ptr().add(at).cast(), self.length - at, Advice::LinuxDontNeed)
            };
        }
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is `length` bytes of initialised (zeroed) memory that live as long as self.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// All of it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; self is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, whole; no reference outlives self.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// Buffers of one size that wait for use.
#[derive(Clone)]
pub struct Buffers {
    size: usize,
    spare: Arc<Mutex<Vec<Buffer>>>,
}

impl Buffers {
    /// For data and bodies of up to `size` bytes.
    pub fn new(size: usize) -> Buffers {
        Buffers { size, spare: Arc::default() }
    }

    /// A spare one, or a new one. Its contents are what was there before.
    pub fn take(&self) -> Result<Buffer> {
        let spare = self.spare.lock().pop();
        spare.map_or_else(|| Buffer::new(self.size), Ok)
    }

    /// Gives one back.
    pub fn put(&self, buffer: Buffer) {
        let mut spare = self.spare.lock();
        if (spare.len() + 1) * buffer.length <= SPARE_BYTES_MAX {
            spare.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_come_back() {
        let buffers = Buffers::new(10_000);
        let mut buffer = buffers.take().unwrap();
        assert!(buffer.bytes().len() >= HEAD + 10_000);
        assert_eq!(buffer.bytes()[HEAD..].as_ptr() as usize % 4096, 0);
        buffer.bytes_mut()[HEAD] = 7;
        let start = buffer.bytes().as_ptr();
        buffers.put(buffer);
        assert_eq!(buffers.take().unwrap().bytes().as_ptr(), start);
    }

    /// A burst of large requests on `/dev/fuse` left 128 buffers of a mebibyte each behind, until the end of
    /// the mount.
    #[test]
    fn a_burst_leaves_little_memory_behind() {
        let buffers = Buffers::new(1 << 20);
        let burst: Vec<Buffer> = (0..100).map(|_| buffers.take().unwrap()).collect();
        burst.into_iter().for_each(|buffer| buffers.put(buffer));
        let spare: usize = buffers.spare.lock().iter().map(|buffer| buffer.length).sum();
        assert!(spare > SPARE_BYTES_MAX / 2 && spare <= SPARE_BYTES_MAX, "{spare}");
    }

    #[test]
    fn what_is_given_back_is_zero() {
        let page = rustix::param::page_size();
        let mut buffer = Buffer::new(8 * page).unwrap();
        buffer.bytes_mut().fill(7);
        buffer.give_back(2 * page - 5);
        assert!(buffer.bytes()[..2 * page].iter().all(|byte| *byte == 7));
        assert!(buffer.bytes()[2 * page..].iter().all(|byte| *byte == 0));
        let length = buffer.bytes().len();
        buffer.give_back(length);
    }
}
