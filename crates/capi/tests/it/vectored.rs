//! Requests of a queue with several buffers.

use libc::iovec;
use quire_capi::file::{quire_close, quire_open};
use quire_capi::queue::vectored::quire_submit_preadv;
use quire_capi::queue::{Completion, quire_queue_free, quire_queue_new, quire_queue_wait};
use quire_capi::volume::{quire_volume_close, quire_volume_open};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// The buffer for a direct read ended where the file did when the request was submitted. A write that made
/// the file longer in between was read in part.
#[test]
fn direct_reads_that_reach_the_end_are_not_torn() {
    const HALF: usize = 32768;
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    quire::FormatOptions::new().size(32 << 20).format(&image).unwrap();
    let path = CString::new(image.as_os_str().as_bytes()).unwrap();
    let (mut volume, mut direct, mut other, mut queue) =
        (ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    // SAFETY: texts and places that are there, and handles that are open.
    unsafe {
        assert_eq!(quire_volume_open(path.as_ptr(), ptr::null(), &raw mut volume), 0);
        let flags = libc::O_RDWR | libc::O_CREAT;
        assert_eq!(quire_open(volume, c"file".as_ptr(), flags, 0o644, &raw mut other), 0);
        assert_eq!(quire_open(volume, c"file".as_ptr(), flags | libc::O_DIRECT, 0o644, &raw mut direct), 0);
        assert_eq!(quire_queue_new(1, &raw mut queue), 0);
    }
    let ended = AtomicBool::new(false);
    let writer = Writer(other);
    let mut torn = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                writer.write();
            }
        });
        let mut bytes = vec![0u8; 2 * HALF];
        for _ in 0..5000 {
            let mut completion = Completion { user_data: ptr::null_mut(), result: 0 };
            let (first, second) = bytes.split_at_mut(HALF);
            let parts =
                [first, second].map(|part| iovec { iov_base: part.as_mut_ptr().cast(), iov_len: HALF });
            // SAFETY: handles that are open, and buffers that stay until the request has been reaped.
            unsafe {
                assert_eq!(quire_submit_preadv(queue, direct, parts.as_ptr(), 2, 0, ptr::null_mut()), 0);
                assert_eq!(quire_queue_wait(queue, &raw mut completion, 1, 1, -1), 1);
            }
            let count = usize::try_from(completion.result).unwrap();
            torn += usize::from(count == 4096 && bytes[0] == b'B');
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert_eq!(torn, 0, "reads had a part of a write");
    // SAFETY: handles that are open, each of which is closed once.
    unsafe {
        quire_queue_free(queue);
        quire_close(direct);
        quire_close(other);
        assert_eq!(quire_volume_close(volume), 0);
    }
}

/// A file that a thread writes.
struct Writer(*mut quire_capi::file::File);

// SAFETY: any thread may use the handle.
unsafe impl Sync for Writer {}

impl Writer {
    /// Makes the file empty, then 4096 bytes long, then longer.
    fn write(&self) {
        let put = |byte: u8, length: usize| {
            let data = vec![byte; length];
            // SAFETY: the handle is open, and the buffer is of that length.
            let count = unsafe { quire_capi::file::quire_pwrite(self.0, data.as_ptr().cast(), length, 0) };
            assert_eq!(count, length as i64);
        };
        // SAFETY: the handle is open.
        assert_eq!(unsafe { quire_capi::file::quire_ftruncate(self.0, 0) }, 0);
        put(b'A', 4096);
        put(b'B', 12288);
    }
}
