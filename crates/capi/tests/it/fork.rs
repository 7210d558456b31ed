//! A child that was forked off, and the handles of its parent.

use quire_capi::file::{quire_close, quire_fsync, quire_open, quire_pread};
use quire_capi::group::{quire_group_begin, quire_group_commit, quire_group_free, quire_group_pwrite};
use quire_capi::queue::{quire_queue_free, quire_queue_new, quire_submit_fsync, quire_submit_pwrite};
use quire_capi::volume::{quire_volume_close, quire_volume_open};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::ptr;

/// A child's calls said that all was durable. Its commits took the place of its parent's, so that the next
/// opening found the child's; a close panicked, and the end of a queue waited for ever. It happened to
/// programs that never meant to use the handles, when C++ closed them at the child's end. With a volume of
/// its own a child hung in one case of thirty.
#[test]
fn a_child_is_refused_and_ends_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    quire::FormatOptions::new().size(32 << 20).format(&image).unwrap();
    let path = CString::new(image.as_os_str().as_bytes()).unwrap();
    let second = directory.path().join("second");
    quire::FormatOptions::new().size(32 << 20).format(&second).unwrap();
    let second = CString::new(second.as_os_str().as_bytes()).unwrap();
    let flags = libc::O_RDWR | libc::O_CREAT;
    let (mut volume, mut file, mut queue) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    let mut group = ptr::null_mut();
    // SAFETY: texts and places that are there, and handles that are open.
    unsafe {
        assert_eq!(quire_volume_open(path.as_ptr(), ptr::null(), &raw mut volume), 0);
        assert_eq!(quire_open(volume, c"file".as_ptr(), flags, 0o644, &raw mut file), 0);
        assert_eq!(quire_queue_new(1, &raw mut queue), 0);
        assert_eq!(quire_group_begin(volume, &raw mut group), 0);
        assert_eq!(quire_group_pwrite(group, file, b"parent".as_ptr().cast(), 6, 0), 6);
    }
    // SAFETY: the child calls the library, which refuses it before it takes a lock, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let (mut byte, mut other) = (0u8, ptr::null_mut());
        // SAFETY: as above. A child has the memory of its parent.
        unsafe {
            libc::alarm(60);
            let refused = [
                i64::from(quire_fsync(file)),
                quire_pread(file, (&raw mut byte).cast(), 1, 0),
                i64::from(quire_open(volume, c"file".as_ptr(), flags, 0o644, &raw mut other)),
                quire_group_pwrite(group, file, b"child!".as_ptr().cast(), 6, 0),
                i64::from(quire_group_commit(group, 0, 0)),
                i64::from(quire_submit_fsync(queue, file, ptr::null(), ptr::null_mut())),
                i64::from(quire_volume_close(volume)),
                i64::from(quire_volume_open(second.as_ptr(), ptr::null(), &raw mut volume)),
            ];
            quire_group_free(group);
            quire_close(file);
            quire_queue_free(queue);
            libc::_exit(i32::from(refused.iter().any(|result| *result != i64::from(-libc::EPERM))));
        }
    }
    let mut status = -1;
    // SAFETY: a place for the status; then handles that are still open, each of which is closed once.
    unsafe {
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert_eq!(status, 0, "the child was not refused");
        assert_eq!(quire_group_commit(group, 0, 0), 0);
        assert_eq!(quire_submit_fsync(queue, file, ptr::null(), ptr::null_mut()), 0);
        quire_queue_free(queue);
        quire_close(file);
        assert_eq!(quire_volume_close(volume), 0);
    }
    let volume = quire::Volume::open(&image).unwrap();
    assert_eq!(volume.read("file").unwrap(), b"parent");
}

/// A program without a standard error had the image as its descriptor 2, and printed a warning over the
/// superblock.
#[test]
fn an_image_is_none_of_the_standard_streams() {
    const IMAGE: &str = "QUIRE_TEST_IMAGE";
    if let Some(image) = std::env::var_os(IMAGE) {
        let path = CString::new(image.as_bytes()).unwrap();
        let mut volume = ptr::null_mut();
        // SAFETY: a text, and a place for a handle. Nothing else of this process needs the descriptor.
        unsafe {
            libc::close(2);
            let opened = quire_volume_open(path.as_ptr(), ptr::null(), &raw mut volume);
            let is_image =
                std::fs::read_link("/proc/self/fd/2").is_ok_and(|found| found.as_os_str() == image);
            libc::_exit(i32::from(opened != 0 || is_image));
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    quire::FormatOptions::new().size(32 << 20).format(&image).unwrap();
    // This test alone, in a process of its own.
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "fork::an_image_is_none_of_the_standard_streams"]).env(IMAGE, &image);
    assert!(again.status().unwrap().success());
    quire::Volume::open(&image).unwrap().close().unwrap();
}

/// A thread of the library took a signal that the program keeps for a thread of its own, and the program died
/// of it: it had blocked the signal after it had opened a volume.
#[test]
fn threads_of_the_library_take_no_signals() {
    const IMAGE: &str = "QUIRE_TEST_SIGNALS";
    let Some(image) = std::env::var_os(IMAGE) else {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        quire::FormatOptions::new().size(32 << 20).format(&image).unwrap();
        // This test alone, in a process of its own.
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "fork::threads_of_the_library_take_no_signals"]).env(IMAGE, &image);
        assert!(again.status().unwrap().success());
        return;
    };
    // A child of a fork has one thread, and those of the library.
    // SAFETY: no other thread of this process is at work.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let path = CString::new(image.as_bytes()).unwrap();
        let (mut volume, mut file, mut queue) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let mut signal = 0;
        // SAFETY: texts and places that are there, handles that are open, and a set that is filled.
        unsafe {
            libc::alarm(60);
            let mut done = quire_volume_open(path.as_ptr(), ptr::null(), &raw mut volume) == 0
                && quire_open(volume, c"file".as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o644, &raw mut file) == 0
                && quire_queue_new(1, &raw mut queue) == 0
                // A worker does this.
                && quire_submit_pwrite(queue, file, b"data".as_ptr().cast(), 4, 0, ptr::null_mut()) == 0;
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            done &= libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) == 0
                && libc::kill(libc::getpid(), libc::SIGTERM) == 0
                && libc::sigwait(&raw const set, &raw mut signal) == 0
                && signal == libc::SIGTERM;
            libc::_exit(i32::from(!done));
        }
    }
    let mut status = -1;
    // SAFETY: a place for the status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child was refused something, or killed");
}
