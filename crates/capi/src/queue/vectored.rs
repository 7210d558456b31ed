//! Requests of a queue with several buffers.
//!
//! The vector is copied when a request is submitted; the buffers belong to the request until it has been
//! reaped. With `O_DIRECT` they are gathered into one aligned buffer, or spread from it, so that the device
//! does these requests, too, without a thread that waits.
//!
//! Neighbours: [`super`] has requests with one buffer.

use super::{Memory, Queue, Tag, Way};
use crate::arguments::{buffers, buffers_mut, bytes, bytes_mut};
use crate::error::status;
use crate::file::File;
use crate::handle::{borrow, share};
use libc::iovec;
use quire::{AlignedBuf, Error, Result};
use quire_base::BLOCK_SIZE;
use std::ffi::{c_int, c_void};
use std::io::{IoSlice, IoSliceMut};

/// The buffers of a request.
struct Buffers(Vec<Memory>);

impl Buffers {
    fn length(&self) -> Result<usize> {
        let mut lengths = self.0.iter().map(|memory| memory.length);
        let sum = lengths.try_fold(0usize, usize::checked_add).filter(|&sum| isize::try_from(sum).is_ok());
        sum.ok_or_else(|| Error::invalid("the buffers are longer than memory"))
    }

    /// One buffer for all, if none reaches beyond the file's last block. Larger ones may be larger than
    /// memory, and a buffer of what the file has would end in the middle of a write that makes it longer.
    fn for_direct_read(&self, file: &File, offset: u64) -> Result<Option<AlignedBuf>> {
        let there = file.file.metadata().len().saturating_sub(offset).next_multiple_of(BLOCK_SIZE as u64);
        let length = self.length()?;
        (length as u64 <= there).then(|| AlignedBuf::try_zeroed(length)).transpose()
    }

    /// Fills one buffer from all.
    ///
    /// # Safety
    /// The contract of submitting.
    unsafe fn gather(&self, into: &mut [u8]) -> Result<()> {
        let mut rest = into;
        for memory in &self.0 {
            let (now, later) = rest.split_at_mut(memory.length);
            // SAFETY: the caller's promise.
            now.copy_from_slice(unsafe { bytes(memory.start, memory.length) }?);
            rest = later;
        }
        Ok(())
    }

    /// Spreads what was read.
    ///
    /// # Safety
    /// The contract of submitting.
    unsafe fn spread(&self, read: &[u8]) -> Result<()> {
        let mut rest = read;
        for memory in &self.0 {
            let (now, later) = rest.split_at(memory.length.min(rest.len()));
            // SAFETY: the caller's promise.
            unsafe { bytes_mut(memory.start, now.len()) }?.copy_from_slice(now);
            rest = later;
        }
        Ok(())
    }

    /// # Safety
    /// The contract of submitting.
    unsafe fn read(&self, file: &File, offset: u64) -> Result<u64> {
        // SAFETY: the caller's promise.
        let one = |memory: &Memory| unsafe { bytes_mut(memory.start, memory.length) }.map(IoSliceMut::new);
        let mut all = self.0.iter().map(one).collect::<Result<Vec<_>>>()?;
        file.file.read_vectored_at(&mut all, offset).map(|count| count as u64)
    }

    /// # Safety
    /// The contract of submitting.
    unsafe fn write(&self, file: &File, offset: u64) -> Result<u64> {
        // SAFETY: the caller's promise.
        let one = |memory: &Memory| unsafe { bytes(memory.start, memory.length) }.map(IoSlice::new);
        let all = self.0.iter().map(one).collect::<Result<Vec<_>>>()?;
        file.file.write_vectored_at(&all, offset).map(|count| count as u64)
    }
}

/// Submits what quire_preadv does. With O_DIRECT, inside the file, and with offset and length on boundaries
/// of 4096 bytes, no thread waits for it; else a worker does it. The vector may change when this returns.
///
/// Returns: 0: its completion will come, with the same `user_data`; or a negative error number: it will not.
/// Threads: as quire_submit_pread. The buffers belong to the request until its completion has been reaped.
///
/// # Safety
/// `queue` and `file` are open; `count` buffers at `vector` may be written, as said, and do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_submit_preadv(
    queue: *const Queue,
    file: *const File,
    vector: *const iovec,
    count: usize,
    offset: u64,
    user_data: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (queue, file) = unsafe { (borrow(queue, "queue")?, share(file, "file")?) };
        // SAFETY: the caller's promise.
        let mut given = unsafe { buffers_mut(vector, count) }?;
        let memory = |part: &mut IoSliceMut<'_>| Memory { start: part.as_mut_ptr(), length: part.len() };
        let memory = Buffers(given.iter_mut().map(memory).collect());
        let direct = match file.is_direct() && file.reads() {
            true => memory.for_direct_read(&file, offset)?,
            false => None,
        };
        queue.submit(Tag(user_data), file.kept(), |begun| match direct {
            Some(whole) => {
                let spread = move |whole: &AlignedBuf, count: usize| {
                    // SAFETY: the caller's promise, until the request has been reaped.
                    unsafe { memory.spread(&whole[..count.min(whole.len())]) }
                };
                queue.direct(begun, (file, Way::Read), whole, offset, spread);
            }
            // SAFETY: the caller's promise, until the request has been reaped.
            None => queue.work(begun, move || unsafe { memory.read(&file, offset) }),
        })
    })
}

/// Submits what quire_pwritev does. With O_DIRECT, inside the file, and with offset and length on boundaries
/// of 4096 bytes, no thread waits for it; else a worker does it. The vector may change when this returns.
/// With O_SYNC or O_DSYNC it is durable when it completes.
///
/// Returns: 0: its completion will come, with the same `user_data`; or a negative error number: it will not.
/// Threads: as quire_submit_preadv.
///
/// # Safety
/// `queue` and `file` are open; `count` buffers at `vector` may be read, as said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_submit_pwritev(
    queue: *const Queue,
    file: *const File,
    vector: *const iovec,
    count: usize,
    offset: u64,
    user_data: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (queue, file) = unsafe { (borrow(queue, "queue")?, share(file, "file")?) };
        // SAFETY: the caller's promise.
        let given = unsafe { buffers(vector, count) }?;
        let memory = |part: &IoSlice<'_>| Memory { start: part.as_ptr().cast_mut(), length: part.len() };
        let memory = Buffers(given.iter().map(memory).collect());
        let gather = || {
            let mut whole = AlignedBuf::try_zeroed(memory.length()?)?;
            // SAFETY: the caller's promise.
            unsafe { memory.gather(&mut whole) }.map(|()| whole)
        };
        let direct = (file.is_direct() && file.writes()).then(gather).transpose()?;
        queue.submit(Tag(user_data), file.kept(), |begun| match direct {
            Some(whole) => queue.direct(begun, (file, Way::Write), whole, offset, |_, _| Ok(())),
            // SAFETY: the caller's promise, until the request has been reaped.
            None => queue.work(begun, move || unsafe { memory.write(&file, offset) }),
        })
    })
}
