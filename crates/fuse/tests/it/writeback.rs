//! Mounts on which the kernel keeps what programs write, and the sizes and times of files
//! (`cache=writeback`).

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use quire::backend::MemoryBackend;
use quire::{FormatOptions, VolumeOptions};
use quire_fuse::operations::ioctl::START;
use quire_fuse::{CacheMode, ServeOptions, TransportChoice};
use rustix::fs::{FallocateFlags, SeekFrom, XattrFlags};

use super::mounted::{Mounted, TRANSPORTS, code, create};

/// A volume in memory, mounted again and again.
fn mounts() -> impl Fn(CacheMode, TransportChoice) -> Option<Mounted> {
    let backend = Arc::new(MemoryBackend::new(16 << 10));
    FormatOptions::new().format_backend(backend.clone()).unwrap();
    move |cache, transport| {
        let volume = VolumeOptions::new().open_backend(backend.clone()).unwrap();
        Mounted::serve(volume, ServeOptions { cache, transport, ..ServeOptions::default() })
    }
}

/// All that a program, or `make`, or a backup goes by.
fn shown(path: &Path) -> (u64, i64, i64, i64, i64, Vec<u8>) {
    let now = fs::metadata(path).unwrap();
    (now.len(), now.mtime(), now.mtime_nsec(), now.ctime(), now.ctime_nsec(), fs::read(path).unwrap())
}

#[test]
fn files_are_the_same_after_a_new_mount() {
    for transport in TRANSPORTS {
        let mount = mounts();
        let Some(mounted) = mount(CacheMode::Writeback, transport) else { return };
        let (plain, renamed) = (mounted.path("plain"), mounted.path("renamed"));
        let mut file = File::options().append(true).create(true).open(&plain).unwrap();
        for number in 0..10_000u32 {
            file.write_all(&number.to_ne_bytes()).unwrap();
        }
        // What the server has not seen yet is read, too.
        assert_eq!(fs::metadata(&plain).unwrap().len(), 40_000);
        assert_eq!(fs::read(&plain).unwrap()[36..40], 9u32.to_ne_bytes());
        fs::write(mounted.path("old"), "content").unwrap();
        fs::rename(mounted.path("old"), &renamed).unwrap();
        let long_ago = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
        File::options().write(true).open(&renamed).unwrap().set_modified(long_ago).unwrap();
        let before = [shown(&plain), shown(&renamed)];
        drop(file);
        drop(mounted);
        let Some(mounted) = mount(CacheMode::Engine, transport) else { return };
        let after = [shown(&mounted.path("plain")), shown(&mounted.path("renamed"))];
        assert_eq!(after, before);
        assert_eq!(after[1].2, 123_456_789);
    }
}

/// The kernel sends the times of a file with the first change of its name or attributes, and its pages later:
/// these gave it the time of their arrival. And what was cut to the size that it had got a new time from the
/// server, and none from the kernel.
#[test]
fn times_do_not_move_when_pages_arrive() {
    for transport in TRANSPORTS {
        let mount = mounts();
        let Some(mounted) = mount(CacheMode::Writeback, transport) else { return };
        let names = ["renamed", "linked", "named", "allocated", "direct", "cut"];
        let files: Vec<File> = names.iter().map(|name| create(&mounted.path(name))).collect();
        for (file, name) in files.iter().zip(names) {
            file.write_all_at(b"content", 0).unwrap();
            let path = mounted.path(name);
            match name {
                "renamed" => {
                    fs::rename(&path, mounted.path("new")).unwrap();
                    fs::rename(mounted.path("new"), &path).unwrap();
                }
                "linked" => fs::hard_link(&path, mounted.path("link")).unwrap(),
                "named" => rustix::fs::setxattr(&path, c"user.x", b"y", XattrFlags::empty()).unwrap(),
                "allocated" => rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, 9999).unwrap(),
                "direct" => {
                    let mut options = File::options();
                    let direct = options.write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
                    let memory = vec![1; 8192];
                    let start = memory.as_ptr().align_offset(4096);
                    direct.write_all_at(&memory[start..][..4096], 0).unwrap();
                }
                _ => {
                    file.sync_all().unwrap();
                    std::thread::sleep(Duration::from_millis(20));
                    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
                    // SAFETY: the path ends with a zero byte.
                    assert_eq!(unsafe { libc::truncate(path.as_ptr(), 7) }, 0);
                }
            }
        }
        std::thread::sleep(Duration::from_millis(50));
        drop(files);
        let before = names.map(|name| shown(&mounted.path(name)));
        drop(mounted);
        let Some(mounted) = mount(CacheMode::Engine, transport) else { return };
        for (name, before) in names.iter().zip(before) {
            assert_eq!(shown(&mounted.path(name)), before, "{name}");
        }
    }
}

/// The server knows nothing of what the kernel keeps, and would have called it a hole: `cp` lost it.
#[test]
fn what_the_kernel_keeps_is_no_hole() {
    for transport in TRANSPORTS {
        let Some(mounted) = mounts()(CacheMode::Writeback, transport) else { return };
        let file = create(&mounted.path("file"));
        file.write_all_at(b"data", 100_000).unwrap();
        let seek = |from| rustix::fs::seek(&file, from);
        assert!(seek(SeekFrom::Data(0)).unwrap() <= 100_000);
        assert_eq!(seek(SeekFrom::Data(100_000)).unwrap(), 100_000);
        assert_eq!(seek(SeekFrom::Hole(100_001)).unwrap(), 100_004);
        assert_eq!(code(seek(SeekFrom::Data(100_004)).map_err(Into::into)), libc::ENXIO);
        // The kernel writes back what it has a server copy.
        let copy = create(&mounted.path("copy"));
        assert_eq!(rustix::fs::copy_file_range(&file, Some(&mut 0), &copy, None, 200_000).unwrap(), 100_004);
        assert!(fs::read(mounted.path("copy")).unwrap().ends_with(b"\0data"));
        file.set_len(100_002).unwrap();
        assert!(fs::read(mounted.path("file")).unwrap().ends_with(b"\0da"));
    }
}

/// A write has returned long before the volume is found full, so `fsync` and `close` say it.
#[test]
fn a_full_volume_is_told_by_fsync() {
    let Some(mounted) = mounts()(CacheMode::Writeback, TransportChoice::Device) else { return };
    let path = mounted.path("large");
    let mut file = create(&path);
    let piece = vec![7; 1 << 20];
    // Throttled writers may be told as well.
    let written = (0..100).try_for_each(|_| file.write_all(&piece));
    let synced = file.sync_all();
    let codes = [code(written), code(synced)];
    assert!(codes.contains(&libc::ENOSPC), "{codes:?}");
    drop(file);
    fs::remove_file(&path).unwrap();
    fs::write(&path, "there is room").unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"there is room");
}

/// Units would be cut, or the file keep its old time in the kernel: a backup by times would leave it out.
#[test]
fn files_with_units_are_read_only() {
    let mount = mounts();
    let Some(mounted) = mount(CacheMode::Engine, TransportChoice::Device) else { return };
    let directory = mounted.path("database");
    fs::create_dir(&directory).unwrap();
    rustix::fs::setxattr(&directory, c"user.quire.untorn", b"8k", XattrFlags::empty()).unwrap();
    fs::write(directory.join("table"), "pages").unwrap();
    drop(mounted);
    let Some(mounted) = mount(CacheMode::Writeback, TransportChoice::Device) else { return };
    let directory = mounted.path("database");
    assert_eq!(fs::read(directory.join("table")).unwrap(), b"pages");
    let writing = File::options().append(true).open(directory.join("table"));
    assert_eq!(code(writing), libc::EOPNOTSUPP);
    assert_eq!(code(fs::write(directory.join("new"), "")), libc::EOPNOTSUPP);
    assert!(!directory.join("new").exists());
    assert_eq!(code(tempfile::tempfile_in(&directory)), libc::EOPNOTSUPP);
    // A program that has a file open would go on writing.
    let file = create(&mounted.path("plain"));
    let set = |value: &[u8]| rustix::fs::fsetxattr(&file, c"user.quire.untorn", value, XattrFlags::empty());
    assert_eq!(code(set(b"8k").map_err(Into::into)), libc::EOPNOTSUPP);
    set(b"off").unwrap();
}

/// What is past the kernel's pages keeps its old time in the kernel.
#[test]
fn dropped_files_have_the_time_of_their_last_write() {
    let Some(mounted) = mounts()(CacheMode::Writeback, TransportChoice::Device) else { return };
    let path = mounted.path("log");
    let mut file = create(&path);
    rustix::fs::fsetxattr(&file, c"user.quire.cache", b"drop", XattrFlags::empty()).unwrap();
    drop(file);
    let before = fs::metadata(&path).unwrap().modified().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    file = File::options().append(true).open(&path).unwrap();
    file.write_all(b"line").unwrap();
    assert!(fs::metadata(&path).unwrap().modified().unwrap() > before);
}

/// The end of a group would change a file's size, which is the kernel's here.
#[test]
fn groups_are_refused() {
    let Some(mounted) = mounts()(CacheMode::Writeback, TransportChoice::Device) else { return };
    let file = create(&mounted.path("database"));
    // SAFETY: the request carries no argument.
    let refused = unsafe { libc::ioctl(file.as_raw_fd(), START as _, 0) };
    assert_eq!((refused, code::<()>(Err(std::io::Error::last_os_error()))), (-1, libc::ENOTTY));
}
