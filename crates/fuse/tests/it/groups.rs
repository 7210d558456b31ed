//! Groups on a real mount: writes through one descriptor that take effect together, or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use quire_fuse::CacheMode;
use quire_fuse::operations::ioctl::{
    ABORT, COMMIT, COMMIT_ORDERED, FEATURE_ATOMIC_WRITE, GET_FEATURES, START,
};
use rustix::fs::FallocateFlags;

use super::mounted::{Map, Mounted, TRANSPORTS, code, create, on_all};

fn control(file: &File, command: u32) -> io::Result<()> {
    // SAFETY: the request carries no argument.
    match unsafe { libc::ioctl(file.as_raw_fd(), command as _, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn features(file: &File) -> io::Result<u32> {
    let mut features = u32::MAX;
    // SAFETY: the request writes one 32-bit number behind the pointer, which is a live local.
    match unsafe { libc::ioctl(file.as_raw_fd(), GET_FEATURES as _, &raw mut features) } {
        0 => Ok(features),
        _ => Err(io::Error::last_os_error()),
    }
}

fn with_groups(test: impl Fn(&Mounted)) {
    for transport in TRANSPORTS {
        let Some(mounted) = Mounted::new(CacheMode::Engine, transport) else { return };
        test(&mounted);
    }
}

fn start(path: &Path) -> File {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    control(&file, START).unwrap();
    file
}

fn read(file: &File, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let count = file.read_at(&mut bytes, offset).unwrap();
    bytes.truncate(count);
    bytes
}

/// The kernel passes the last close on without waiting.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn nobody_else_sees_a_group_before_its_commit() {
    with_groups(|mounted| {
        for commit in [COMMIT, COMMIT_ORDERED] {
            let path = mounted.path("file");
            fs::write(&path, [b'a'; 20_000]).unwrap();
            let other = File::open(&path).unwrap();
            let file = start(&path);
            file.write_all_at(b"one", 5000).unwrap();
            file.write_all_at(&[b'z'; 9000], 15_000).unwrap();
            assert_eq!(read(&file, 4999, 5), b"aonea");
            assert_eq!(read(&file, 19_990, 100_000), [b'z'; 4010], "beyond the end that others see");
            assert_eq!(read(&other, 4999, 5), b"aaaaa");
            assert_eq!(read(&other, 0, 100_000).len(), 20_000);
            assert_eq!(fs::metadata(&path).unwrap().len(), 20_000);
            // What is made durable is the file.
            file.sync_all().unwrap();
            assert_eq!(read(&other, 4999, 5), b"aaaaa");
            control(&file, commit).unwrap();
            assert_eq!(read(&other, 4999, 5), b"aonea");
            assert_eq!(read(&other, 14_999, 2), b"az");
            assert_eq!(fs::metadata(&path).unwrap().len(), 24_000);
            // The group is over.
            file.write_all_at(b"two", 5000).unwrap();
            assert_eq!(read(&other, 5000, 3), b"two");
        }
    });
}

#[test]
fn an_aborted_group_leaves_no_trace() {
    with_groups(|mounted| {
        let path = mounted.path("file");
        fs::write(&path, b"before").unwrap();
        let file = start(&path);
        file.write_all_at(b"nothing of this", 0).unwrap();
        file.write_all_at(b"x", 1 << 20).unwrap();
        control(&file, ABORT).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"before");
        assert_eq!(file.metadata().unwrap().len(), 6);
        control(&file, ABORT).unwrap();
        control(&file, START).unwrap();
        file.set_len(3).unwrap();
        assert_eq!(read(&file, 0, 100), b"bef");
        assert_eq!(fs::metadata(&path).unwrap().len(), 6);
        control(&file, COMMIT).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"bef");
    });
}

#[test]
fn a_group_ends_with_the_last_copy_of_its_descriptor() {
    with_groups(|mounted| {
        let path = mounted.path("file");
        fs::write(&path, b"before").unwrap();
        let file = start(&path);
        let copy = file.try_clone().unwrap();
        file.write_all_at(b"AFTER and more", 0).unwrap();
        drop(file);
        assert_eq!(read(&copy, 0, 100), b"AFTER and more", "a copy of the descriptor keeps it");
        control(&copy, COMMIT).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"AFTER and more");
        let file = start(&path);
        file.write_all_at(&[b'x'; 10_000], 0).unwrap();
        drop(file);
        eventually("the size that the kernel had guessed", || fs::metadata(&path).unwrap().len() == 14);
        assert_eq!(fs::read(&path).unwrap(), b"AFTER and more");
    });
}

#[test]
fn a_killed_process_leaves_no_trace() {
    with_groups(|mounted| {
        let path = mounted.path("file");
        fs::write(&path, b"before").unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let (ready, told) = io::pipe().unwrap();
        let number = file.as_raw_fd();
        // SAFETY: the child makes system calls only, and never returns from here.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: descriptors that the parent opened, buffers that live for ever.
            unsafe {
                let text = b"killed in the middle";
                let started = libc::ioctl(number, START as _, 0) == 0;
                let written =
                    libc::pwrite(number, text.as_ptr().cast(), text.len(), 0) == text.len() as isize;
                let word: &[u8] = if started && written { b"y" } else { b"n" };
                libc::write(told.as_raw_fd(), word.as_ptr().cast(), 1);
                loop {
                    libc::pause();
                }
            }
        }
        drop(told);
        let mut word = [0];
        io::Read::read_exact(&mut &ready, &mut word).unwrap();
        assert_eq!(&word, b"y");
        // The child's is the last copy.
        assert_eq!(read(&file, 0, 6), b"killed", "the same open file");
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"before");
        let mut status = 0;
        // SAFETY: the child of the fork above.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, &raw mut status, 0);
        }
        eventually("the size", || fs::metadata(&path).unwrap().len() == 6);
        assert_eq!(fs::read(&path).unwrap(), b"before");
    });
}

#[test]
fn groups_are_refused_where_they_cannot_be() {
    on_all(|mounted| {
        let path = mounted.path("file");
        let file = create(&path);
        file.write_all_at(b"text", 0).unwrap();
        if control(&file, START).is_err() {
            // The kernel caches files of this mount.
            assert_eq!(features(&file).unwrap(), 0);
            assert_eq!(code(control(&file, START)), libc::ENOTTY);
            return;
        }
        assert_eq!(features(&file).unwrap(), FEATURE_ATOMIC_WRITE);
        assert_eq!(code(control(&file, START)), libc::EBUSY, "one at a time");
        control(&file, COMMIT).unwrap();
        assert_eq!(code(control(&file, COMMIT)), libc::EINVAL, "none was started");
        let reader = File::open(&path).unwrap();
        assert_eq!(features(&reader).unwrap(), 0, "not open for writing");
        assert_eq!(code(control(&reader, START)), libc::EBADF);
        let directory = File::open(mounted.path("")).unwrap();
        assert_eq!(features(&directory).unwrap(), 0);
        assert_eq!(code(control(&directory, START)), libc::EBADF);
        assert_eq!(code(control(&file, 0xf503)), libc::ENOTTY, "volatile writes are no part of this");
    });
}

/// A write beyond the end, in a group, raises the size in the kernel, which works out from it where an append
/// goes: an append of another process landed behind bytes that the file did not have.
#[test]
fn appends_of_others_go_to_the_end_of_the_file() {
    with_groups(|mounted| {
        let path = mounted.path("log");
        fs::write(&path, b"one,").unwrap();
        let mut log = OpenOptions::new().append(true).open(&path).unwrap();
        let file = start(&path);
        file.write_all_at(b"xxxx", 50_000).unwrap();
        log.write_all(b"two,").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one,two,");
        control(&file, ABORT).unwrap();
        log.write_all(b"three,").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one,two,three,");
        let mut fresh = OpenOptions::new().append(true).open(&path).unwrap();
        fresh.write_all(b"four,").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one,two,three,four,");
    });
}

#[test]
fn appends_of_a_group_go_to_the_end_that_it_sees() {
    with_groups(|mounted| {
        let path = mounted.path("log");
        fs::write(&path, b"one,").unwrap();
        let mut log = OpenOptions::new().read(true).append(true).open(&path).unwrap();
        control(&log, START).unwrap();
        log.write_all(b"two,").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 4, "and the kernel believes it");
        log.write_all(b"three,").unwrap();
        log.set_len(5).unwrap();
        log.write_all(b"!").unwrap();
        control(&log, COMMIT).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one,t!");
    });
}

/// Pages of a mapping belong to all who map the file. They neither hold what a group has not committed nor,
/// once it has, what was before.
#[test]
fn mappings_show_a_group_from_its_commit_on() {
    with_groups(|mounted| {
        let path = mounted.path("file");
        fs::write(&path, [b'a'; 8192]).unwrap();
        let file = start(&path);
        file.write_all_at(&[b'b'; 8192], 0).unwrap();
        // Faulted in through the descriptor that has the group.
        let map = Map::new(&file, 8192, libc::MAP_SHARED);
        assert_eq!(map.get(0, 1)[0], b'a');
        assert_eq!(map.get(8191, 1)[0], b'a');
        control(&file, COMMIT).unwrap();
        assert_eq!(map.get(0, 1)[0], b'b');
        assert_eq!(map.get(8191, 1)[0], b'b');
        control(&file, START).unwrap();
        file.write_all_at(&[b'c'; 8192], 0).unwrap();
        control(&file, ABORT).unwrap();
        assert_eq!(map.get(0, 1)[0], b'b');
    });
}

#[test]
fn what_a_group_cannot_hold_is_refused_or_written() {
    with_groups(|mounted| {
        let (path, from) = (mounted.path("file"), mounted.path("from"));
        fs::write(&path, [b'a'; 8192]).unwrap();
        fs::write(&from, [b'f'; 8192]).unwrap();
        let (file, from) = (start(&path), File::open(&from).unwrap());
        let allocated = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 1 << 20);
        assert_eq!(allocated.unwrap_err(), rustix::io::Errno::OPNOTSUPP);
        let copied = rustix::fs::copy_file_range(&from, Some(&mut 0), &file, Some(&mut 4096), 4096).unwrap();
        assert_eq!(copied, 4096, "the kernel reads and writes instead");
        assert_eq!(fs::read(&path).unwrap(), [b'a'; 8192]);
        control(&file, COMMIT).unwrap();
        assert_eq!(fs::read(&path).unwrap(), [[b'a'; 4096], [b'f'; 4096]].concat());
    });
}

#[test]
fn the_time_and_the_set_id_bits_follow_the_commit() {
    with_groups(|mounted| {
        let path = mounted.path("file");
        let options = OpenOptions::new().write(true).create(true).mode(0o644).clone();
        let file = options.open(&path).unwrap();
        file.write_all_at(b"before", 0).unwrap();
        let before = fs::metadata(&path).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        control(&file, START).unwrap();
        file.write_all_at(b"after!", 0).unwrap();
        control(&file, COMMIT).unwrap();
        let after = fs::metadata(&path).unwrap();
        let time = |of: &fs::Metadata| (of.mtime(), of.mtime_nsec());
        assert!(time(&after) > time(&before));
    });
}

#[test]
fn a_group_that_grows_too_large_is_refused_and_stays() {
    with_groups(|mounted| {
        let path = mounted.path("file");
        fs::write(&path, b"before").unwrap();
        let file = start(&path);
        file.write_all_at(b"after!", 0).unwrap();
        file.write_all_at(&vec![b'x'; 3 << 20], 4096).unwrap();
        // More places than a group of this size has. SQLite goes on with a journal after this error.
        let write = |number: u64| file.write_all_at(b"x", (8 << 20) + number * 8192);
        let refused = (0..600).map(write).find(Result::is_err).expect("a limit");
        assert_eq!(code(refused), libc::EIO);
        control(&file, ABORT).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"before");
    });
}

#[test]
fn a_group_larger_than_a_record_is_committed() {
    with_groups(|mounted| {
        let path = mounted.path("file");
        fs::write(&path, b"before").unwrap();
        let file = start(&path);
        let bytes: Vec<u8> = (0..5 << 20).map(|at: u32| (at / 4099) as u8).collect();
        file.write_all_at(&bytes, 3).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"before");
        control(&file, COMMIT).unwrap();
        assert!(fs::read(&path).unwrap() == [b"bef", &bytes[..]].concat());
    });
}
