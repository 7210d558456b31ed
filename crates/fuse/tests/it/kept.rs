//! Files whose pages the kernel keeps (`cache=auto`): whoever reads after a write has returned sees it.
//!
//! The races run for a short time; `QUIRE_KEPT_SECONDS=150 cargo test -p quire-fuse kept` runs them longer.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quire_fuse::{CacheMode, TransportChoice, meters};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};

use crate::mounted::{Map, Mounted, program_file, run_program};

const BLOCK: usize = 4096;
const BLOCKS: usize = 4;
const LENGTH: usize = BLOCKS * BLOCK;

/// Makes a file look as if nobody had written it for long.
fn age(path: &Path) {
    let then = Timespec { tv_sec: 1, tv_nsec: 0 };
    let times = Timestamps { last_access: then, last_modification: then };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
}

/// A file of zeros of which the kernel keeps pages for the reader that comes back.
fn kept_file(mounted: &Mounted) -> File {
    let path = mounted.path("file");
    fs::write(&path, [0; LENGTH]).unwrap();
    // The kernel passes the last close on without waiting.
    let start = Instant::now();
    loop {
        age(&path);
        let reader = File::open(&path).unwrap();
        let writer = OpenOptions::new().write(true).open(&path).unwrap();
        if meters().serialised_files() > 0 {
            drop(writer);
            return reader;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "no pages are kept of a file that nobody writes");
        drop((reader, writer));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A page's worth of aligned memory for direct I/O.
#[repr(align(4096))]
struct Aligned([u8; BLOCK]);

fn stamped(value: u64) -> Box<Aligned> {
    let mut bytes = Box::new(Aligned([0; BLOCK]));
    bytes.0.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&value.to_ne_bytes()));
    bytes
}

/// How blocks are written.
#[derive(Clone, Copy, Debug)]
enum How {
    Plain,
    Direct,
    Asynchronous,
}

fn writer(path: &Path, how: How) -> impl FnMut(u64, u64) + use<> {
    let flags = if matches!(how, How::Plain) { 0 } else { libc::O_DIRECT };
    let file = OpenOptions::new().write(true).custom_flags(flags).open(path).unwrap();
    let mut ring = io_uring::IoUring::new(4).unwrap();
    move |block, value| {
        let bytes = stamped(value);
        let offset = block * BLOCK as u64;
        if !matches!(how, How::Asynchronous) {
            return file.write_all_at(&bytes.0, offset).unwrap();
        }
        let descriptor = io_uring::types::Fd(file.as_raw_fd());
        let entry = io_uring::opcode::Write::new(descriptor, bytes.0.as_ptr(), BLOCK as u32).offset(offset);
        // SAFETY: the bytes live until the completion, which is waited for here.
        unsafe { ring.submission().push(&entry.build()).unwrap() };
        ring.submit_and_wait(1).unwrap();
        assert_eq!(ring.completion().next().unwrap().result(), BLOCK as i32);
    }
}

/// One thread writes each block, several read pages that the kernel keeps; some by a mapping.
fn race(path: &Path, how: How, time: Duration) {
    let reader = File::open(path).unwrap();
    let returned: [AtomicU64; BLOCKS] = Default::default();
    let stop = AtomicBool::new(false);
    let deadline = Instant::now() + time;
    std::thread::scope(|scope| {
        for block in 0..2 {
            let (returned, stop) = (&returned, &stop);
            let mut write = writer(path, how);
            scope.spawn(move || {
                for value in 1u64.. {
                    for block in [block, block + 2] {
                        write(block, value);
                        returned[block as usize].store(value, Ordering::SeqCst);
                    }
                    if Instant::now() > deadline {
                        break;
                    }
                }
                stop.store(true, Ordering::SeqCst);
            });
        }
        for number in 0..2 {
            let (returned, stop, reader) = (&returned, &stop, &reader);
            scope.spawn(move || {
                let map = Map::new(reader, LENGTH, libc::MAP_PRIVATE);
                let mut word = [0; 8];
                while !stop.load(Ordering::SeqCst) {
                    for (block, floor) in returned.iter().enumerate() {
                        let at_least = floor.load(Ordering::SeqCst);
                        if number == 0 {
                            reader.read_exact_at(&mut word, (block * BLOCK) as u64 + 64).unwrap();
                        } else {
                            word.copy_from_slice(&map.get(block * BLOCK + 64, 8));
                        }
                        let seen = u64::from_ne_bytes(word);
                        assert!(seen >= at_least, "{how:?}, block {block}: {seen} after {at_least}");
                    }
                }
            });
        }
    });
}

fn seconds() -> Duration {
    let all = std::env::var("QUIRE_KEPT_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    Duration::from_secs(all) / 3
}

#[test]
fn kept_pages_never_show_what_was_there_before_a_write_that_returned() {
    for race in ["program_of_plain_writers", "program_of_direct_writers", "program_of_asynchronous_writers"] {
        let Some(mounted) = Mounted::new(CacheMode::Auto, TransportChoice::Device) else { return };
        let reader = kept_file(&mounted);
        run_program(&format!("kept::{race}"), &mounted.path("file"));
        drop(reader);
    }
}

#[test]
#[ignore = "a program that the test of kept pages starts"]
fn program_of_plain_writers() {
    race(&program_file(), How::Plain, seconds());
}

#[test]
#[ignore = "a program that the test of kept pages starts"]
fn program_of_direct_writers() {
    race(&program_file(), How::Direct, seconds());
}

#[test]
#[ignore = "a program that the test of kept pages starts"]
fn program_of_asynchronous_writers() {
    race(&program_file(), How::Asynchronous, seconds());
}

/// `cachestat` has this number on every architecture (Linux 6.5).
const SYS_CACHESTAT: libc::c_long = 451;

/// Pages of a file in the kernel's cache.
fn cached_pages(file: &File) -> u64 {
    let (range, mut found) = ([0u64, 0], [0u64; 5]);
    // SAFETY: both live through the call and have the kernel's layout.
    let done =
        unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), found.as_mut_ptr(), 0) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    found[0]
}

/// The open of a file's creator was counted before the file was known, that is nowhere: though it had the
/// file open for writing, the kernel kept pages for the next reader, who could see half of its writes.
#[test]
fn a_creator_that_still_writes_counts() {
    let Some(mounted) = Mounted::new(CacheMode::Auto, TransportChoice::Device) else { return };
    let path = mounted.path("file");
    let writer = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    writer.write_all_at(&[1; LENGTH], 0).unwrap();
    age(&path);
    let read = || {
        let reader = File::open(&path).unwrap();
        reader.read_exact_at(&mut [0; LENGTH], 0).unwrap();
        cached_pages(&reader)
    };
    assert_eq!(read(), 0);
    drop(writer);
    let start = Instant::now();
    while read() == 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "no pages are kept of a file that nobody writes");
    }
}

#[test]
fn pages_are_kept_again_when_the_writer_has_gone() {
    let Some(mounted) = Mounted::new(CacheMode::Auto, TransportChoice::Device) else { return };
    let path = mounted.path("file");
    drop(kept_file(&mounted));
    fs::write(&path, "new").unwrap();
    let reader = kept_file(&mounted);
    let mut bytes = [1; LENGTH];
    reader.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [0; LENGTH]);
    // Cut and grown through another name of the same file.
    fs::hard_link(&path, mounted.path("other")).unwrap();
    let writer = OpenOptions::new().write(true).open(mounted.path("other")).unwrap();
    writer.set_len(10).unwrap();
    writer.write_all_at(b"tail", 20).unwrap();
    let mut bytes = [1; 30];
    assert_eq!(reader.read_at(&mut bytes, 0).unwrap(), 24);
    assert_eq!(&bytes[..24], b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0tail");
}
