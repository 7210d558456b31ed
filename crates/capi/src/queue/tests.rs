//! What submitting promises, where a program in C cannot bring it about.

use super::*;
use crate::file::{quire_close, quire_open};
use std::ffi::CString;
use std::sync::mpsc;

fn queue_of(workers: c_uint) -> *mut Queue {
    let mut queue = std::ptr::null_mut();
    // SAFETY: the place is there.
    assert_eq!(unsafe { quire_queue_new(workers, &raw mut queue) }, 0);
    queue
}

/// The result of the next completion.
fn reaped(queue: *const Queue, timeout_ms: c_int) -> Option<i64> {
    let mut completion = Completion { user_data: std::ptr::null_mut(), result: 0 };
    // SAFETY: an open queue, and room for one.
    let count = unsafe { quire_queue_wait(queue, &raw mut completion, 1, 1, timeout_ms) };
    (count == 1).then_some(completion.result)
}

/// A direct write that grew its file, filled a hole or met a frozen volume was done by the thread that
/// submitted it, though the queue had workers: an event loop stood still until the volume thawed.
#[test]
fn who_submits_a_direct_write_that_cannot_be_sent_off_does_not_wait_for_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("image");
    quire::FormatOptions::new().size(32 << 20).format(&image).expect("a volume");
    let volume = quire::Volume::open(&image).expect("opening it");
    let handle = give(Volume { volume: volume.clone() });
    let name = CString::new("file").expect("a name");
    let mut file = std::ptr::null_mut();
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_DIRECT;
    // SAFETY: an open volume, a text and a place.
    assert_eq!(unsafe { quire_open(handle, name.as_ptr(), flags, 0o644, &raw mut file) }, 0);
    let queue = queue_of(1);
    let data = AlignedBuf::copy_of(&[7; 8192]);
    let write = |offset| {
        // SAFETY: open handles; the memory outlives the queue.
        let outcome = unsafe {
            quire_submit_pwrite(queue, file, data.as_ptr().cast(), 8192, offset, std::ptr::null_mut())
        };
        assert_eq!(outcome, 0);
    };
    // In the midst of the file it would go to the device, but for the freeze.
    for offset in [0, 8192, 0] {
        let frozen = volume.freeze().expect("a frozen volume");
        let (returned, submission) = mpsc::channel();
        let thaw = thread::spawn(move || {
            let in_time = submission.recv_timeout(Duration::from_secs(10)).is_ok();
            drop(frozen);
            in_time
        });
        write(offset);
        assert_eq!(reaped(queue, 0), None, "a frozen volume took a write");
        let _ = returned.send(());
        assert!(thaw.join().expect("the thaw"), "the submission waited for the thaw");
        assert_eq!(reaped(queue, 60_000), Some(8192));
    }
    // SAFETY: open handles, used no more.
    unsafe {
        quire_queue_free(queue);
        quire_close(file);
        drop(take(handle));
    }
    assert_eq!(volume.read("file").expect("the file"), [7; 16384]);
}

/// A panic after a request had begun was returned from the submission as an error, "its completion will not
/// come", and came as a completion too: the program freed the request twice.
#[test]
fn a_request_that_panics_as_it_starts_ends_once() {
    for workers in [0, 1] {
        let queue = queue_of(workers);
        // SAFETY: an open queue.
        let open = unsafe { borrow(queue, "queue") }.expect("a queue");
        let outcome =
            status(|| open.submit(Tag(std::ptr::null_mut()), Arc::new(()), |_begun| panic!("early")));
        assert_eq!(outcome, 0);
        assert_eq!(reaped(queue, 60_000), Some(i64::from(-libc::ENOTRECOVERABLE)));
        let late = |begun: Begun| {
            open.run(move || {
                let _begun = begun;
                panic!("late");
            });
        };
        assert_eq!(status(|| open.submit(Tag(std::ptr::null_mut()), Arc::new(()), late)), 0);
        assert_eq!(reaped(queue, 60_000), Some(i64::from(-libc::ENOTRECOVERABLE)));
        // SAFETY: an open queue, used no more.
        unsafe { quire_queue_free(queue) };
    }
}
