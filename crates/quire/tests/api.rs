//! The library as a program meets it: what is promised of its types, and what std's traits expect.
#![cfg(not(any(loom, shuttle)))]

use quire::backend::MemoryBackend;
use quire::inodes::{InodeRef, Inodes};
use quire::{
    AlignedBuf, Cursor, DirEntry, DirectIo, ErrorKind, File, FileTimes, FormatOptions, Metadata, Metrics,
    OpenOptions, ReadDir, RenameFlags, SyncOptions, Syncing, Volume, VolumeOptions,
};
use std::io::{self, ErrorKind as Io, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, UNIX_EPOCH};

fn volume() -> Volume {
    let backend = Arc::new(MemoryBackend::new(16384));
    FormatOptions::new().format_backend(backend.clone()).unwrap();
    VolumeOptions::new().cache_bytes(16 << 20).open_backend(backend).unwrap()
}

fn writable() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true)
}

/// Types that a program keeps in its own structures and hands from thread to thread.
#[test]
fn types_are_send_sync_and_static() {
    fn check<T: Send + Sync + 'static>() {}
    check::<Volume>();
    check::<File>();
    check::<Cursor<File>>();
    check::<Cursor<Arc<File>>>();
    check::<Inodes>();
    check::<InodeRef>();
    check::<ReadDir>();
    check::<DirEntry>();
    check::<Metadata>();
    check::<Metrics>();
    check::<OpenOptions>();
    check::<FormatOptions>();
    check::<VolumeOptions>();
    check::<SyncOptions>();
    check::<Syncing>();
    check::<DirectIo>();
    check::<AlignedBuf>();
    check::<quire::Error>();
    fn is_error<T: std::error::Error>() {}
    is_error::<quire::Error>();
}

#[test]
fn a_cursor_keeps_std_io_s_rules() {
    let volume = volume();
    let file = writable().open(&volume, "f").unwrap();
    let mut cursor = file.cursor();
    cursor.write_all(b"hello world").unwrap();
    assert_eq!(cursor.seek(SeekFrom::End(-5)).unwrap(), 6);
    let mut text = String::new();
    cursor.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), cursor.position()), ("world", 11));
    assert_eq!(cursor.seek(SeekFrom::Current(-100)).unwrap_err().kind(), Io::InvalidInput);
    assert_eq!(cursor.position(), 11, "a refused seek changes nothing");
    cursor.seek(SeekFrom::Start(9)).unwrap();
    assert_eq!(cursor.read_exact(&mut [0; 5]).unwrap_err().kind(), Io::UnexpectedEof);
    cursor.set_position(20);
    assert_eq!(cursor.write_vectored(&[IoSlice::new(b"a"), IoSlice::new(b"bc")]).unwrap(), 3);
    assert_eq!((cursor.position(), file.metadata().len()), (23, 23));

    let appender = OpenOptions::new().read(true).append(true).open(&volume, "f").unwrap();
    let mut cursor = Cursor::new(Arc::new(appender));
    cursor.write_all(b"end").unwrap();
    assert_eq!(cursor.position(), 26, "an append leaves the position behind what it wrote");
    assert_eq!(cursor.write_vectored(&[IoSlice::new(b"1"), IoSlice::new(b"2")]).unwrap(), 2);
    cursor.rewind().unwrap();
    assert_eq!(io::copy(&mut cursor, &mut io::sink()).unwrap(), 28);
}

#[test]
fn errors_become_std_s_with_their_text() {
    let volume = volume();
    volume.write("f", "12345").unwrap();
    let as_io = |error: quire::Error| -> io::Error { error.into() };
    let error = as_io(volume.open_file("nowhere/f").unwrap_err());
    assert_eq!(error.kind(), Io::NotFound);
    assert!(error.to_string().starts_with("opening nowhere/f: "), "{error}");
    let file = volume.open_file("f").unwrap();
    let error = file.read_exact_at(&mut [0; 10], 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    assert_eq!(as_io(error).kind(), Io::UnexpectedEof);
    let error = as_io(file.write_at(b"x", 0).unwrap_err());
    let inside = error.get_ref().unwrap().downcast_ref::<quire::Error>().unwrap();
    assert_eq!(
        (inside.kind(), inside.errno()),
        (ErrorKind::BadHandle, rustix::io::Errno::BADF.raw_os_error())
    );
    assert_eq!(as_io(volume.remove_dir_all("f").unwrap_err()).kind(), Io::NotADirectory);
    assert_eq!(as_io(volume.open_file("f/").unwrap_err()).kind(), Io::NotADirectory);
    assert_eq!(as_io(volume.create_file("f/").unwrap_err()).kind(), Io::IsADirectory);
}

#[test]
fn trees_are_listed_and_removed() {
    let volume = volume();
    volume.create_dir_all("a/b/c").unwrap();
    for number in 0..300 {
        volume.write(format!("a/b/f{number}"), number.to_string()).unwrap();
    }
    volume.write("kept", "k").unwrap();
    volume.symlink("/kept", "a/link").unwrap();
    let entries: Vec<DirEntry> = volume.read_dir("a/b").unwrap().map(Result::unwrap).collect();
    assert_eq!(entries.len(), 301);
    let bytes: u64 = entries
        .iter()
        .filter(|entry| entry.file_type().is_file())
        .map(|entry| entry.metadata().unwrap().len())
        .sum();
    assert_eq!(bytes, 10 + 90 * 2 + 200 * 3);
    let one = entries.iter().find(|entry| entry.file_name() == "f7").unwrap();
    assert_eq!(one.path(), Path::new("a/b/f7"));
    assert_eq!(volume.metadata(one.path()).unwrap().ino(), one.ino());
    volume.remove_file("a/b/f7").unwrap();
    volume.drain_orphans();
    assert_eq!(one.metadata().unwrap_err().kind(), ErrorKind::NotFound);
    volume.remove_dir_all("a").unwrap();
    assert!(!volume.exists("a").unwrap() && volume.exists("kept").unwrap());
    let deep = "d/".repeat(500);
    volume.create_dir_all(&deep).unwrap();
    volume.remove_dir_all("d").unwrap();
    assert_eq!(volume.read_dir("").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(volume.read_dir("/").unwrap().count(), 1);
}

#[test]
fn files_are_copied_with_holes_and_permissions() {
    let volume = volume();
    let file = writable().mode(0o750).open(&volume, "from").unwrap();
    file.write_all_at(&[7; 5000], 1 << 20).unwrap();
    file.set_len(8 << 20).unwrap();
    file.sync_all().unwrap();
    volume.write("to", vec![1; 100_000]).unwrap();
    assert_eq!(volume.copy("from", "to").unwrap(), 8 << 20);
    let (from, to) = (volume.metadata("from").unwrap(), volume.metadata("to").unwrap());
    assert_eq!((to.len(), to.mode(), to.blocks()), (from.len(), 0o100750, from.blocks()));
    assert!(volume.read("from").unwrap() == volume.read("to").unwrap());
    volume.hard_link("to", "too").unwrap();
    assert_eq!(volume.copy("to", "too").unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(volume.metadata("to").unwrap().len(), 8 << 20, "a file is not copied onto itself");
    let to = volume.open_file("to").unwrap();
    assert_eq!((to.seek_data(0).unwrap(), to.seek_hole(0).unwrap()), (Some(1 << 20), Some(0)));
    assert_eq!((to.seek_data(2 << 20).unwrap(), to.seek_hole(9 << 20).unwrap()), (None, None));
}

#[test]
fn attributes_by_path_and_by_file() {
    let volume = volume();
    let file = volume.create_file("f").unwrap();
    volume.set_permissions("f", std::fs::Permissions::from_mode(0o600)).unwrap();
    volume.chown("f", Some(3), None).unwrap();
    let then = UNIX_EPOCH - Duration::from_nanos(5);
    file.set_times(FileTimes::new().set_modified(then)).unwrap();
    volume.set_times("f", FileTimes::new().set_accessed(UNIX_EPOCH)).unwrap();
    let found = file.metadata();
    assert_eq!((found.permissions().mode() & 0o777, found.uid(), found.gid()), (0o600, 3, 0));
    assert_eq!((found.modified(), found.accessed()), (then, UNIX_EPOCH));
    assert_eq!((found.mtime(), found.mtime_nsec()), (-1, 999_999_995));
    assert_eq!(volume.get_xattr("f", "user.a").unwrap(), None);
    volume.set_xattr("f", "user.a", "one").unwrap();
    assert_eq!(file.get_xattr("user.a").unwrap().as_deref(), Some(&b"one"[..]));
    assert_eq!(file.list_xattrs().unwrap(), ["user.a"]);
    file.remove_xattr("user.a").unwrap();
    assert_eq!(volume.remove_xattr("f", "user.a").unwrap_err().kind(), ErrorKind::NoAttribute);
    volume.write("g", "g").unwrap();
    let flags = RenameFlags::NOREPLACE;
    assert_eq!(volume.rename_with("f", "g", flags).unwrap_err().kind(), ErrorKind::Exists);
    volume.rename("f", "g").unwrap();
    assert_eq!(volume.read_link("g").unwrap_err().kind(), ErrorKind::Invalid);
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn futures_end_on_any_executor_and_give_buffers_back() {
    let volume = volume();
    let file = writable().open(&volume, "f").unwrap();
    let buffer = AlignedBuf::copy_of(&[9; 8192]);
    let memory = buffer.as_ptr();
    let (written, buffer) = block_on(file.write_direct_async(buffer, 0));
    assert_eq!((written.unwrap(), buffer.as_ptr()), (8192, memory));
    block_on(file.sync_data_async()).unwrap();
    let files: Vec<File> =
        (0..100).map(|number| writable().open(&volume, format!("f{number}")).unwrap()).collect();
    files.iter().for_each(|file| file.write_all_at(b"x", 0).unwrap());
    block_on(volume.sync_files_async(&files, &SyncOptions::new().data_only(true))).unwrap();
    let reader = volume.open_file("f").unwrap();
    let (read, buffer) = reader.read_direct_async(AlignedBuf::zeroed(4096), 4096).wait();
    assert_eq!((read.unwrap(), buffer[4095]), (4096, 9));
    let (refused, buffer) = block_on(reader.write_direct_async(buffer, 0));
    assert_eq!((refused.unwrap_err().kind(), buffer.len()), (ErrorKind::BadHandle, 4096));
    drop(reader.read_direct_async(buffer, 0));
    let clone = file.try_clone().unwrap();
    drop(file);
    clone.write_all_at(b"y", 0).unwrap();
}

/// A volume that was asked to sync another volume's file wrote that file's record over an inode of its own
/// with the same number, and the file was not durable.
#[test]
fn a_volume_syncs_its_own_files_alone() {
    let (own, other) = (volume(), volume());
    own.write("own", "own content").unwrap();
    let foreign = writable().open(&other, "foreign").unwrap();
    foreign.write_all_at(&[1; 5000], 0).unwrap();
    assert_eq!(foreign.inode().number(), own.resolve("own").unwrap().number());
    let refused =
        |outcome: quire::Result<()>| assert_eq!(outcome.unwrap_err().kind(), ErrorKind::CrossDevice);
    refused(block_on(own.sync_files_async([&foreign], &SyncOptions::new())));
    refused(block_on(own.inodes().fsync_async(foreign.inode(), &SyncOptions::new())));
    let (told, outcome) = std::sync::mpsc::channel();
    let done = Box::new(move |outcome| told.send(outcome).unwrap());
    own.inodes().fsync_then(foreign.inode(), &SyncOptions::new(), done);
    refused(outcome.recv().unwrap());
    own.sync().unwrap();
    assert_eq!(own.read("own").unwrap(), b"own content");
    assert_eq!(own.metadata("own").unwrap().len(), 11);
}

/// Copying a directory over a file emptied the file, and failed then.
#[test]
fn a_copy_that_cannot_be_leaves_the_target_alone() {
    let volume = volume();
    volume.create_dir("photos").unwrap();
    volume.write("notes", "kept").unwrap();
    assert_eq!(volume.copy("photos", "notes").unwrap_err().kind(), ErrorKind::IsDirectory);
    assert_eq!(volume.copy("photos", "new").unwrap_err().kind(), ErrorKind::IsDirectory);
    assert_eq!(volume.read("notes").unwrap(), b"kept");
    assert!(!volume.exists("new").unwrap());
}

/// A `.` at the end of a path meant nothing, and a slash behind a new name neither: `remove_file("f/.")`
/// removed the file, and a file could be renamed to `archive/`.
#[test]
fn the_end_of_a_path_may_ask_for_a_directory() {
    let volume = volume();
    volume.write("f", "content").unwrap();
    volume.create_dir("d").unwrap();
    volume.symlink("d", "link").unwrap();
    volume.symlink("f/.", "odd").unwrap();
    let kind = |outcome: quire::Result<()>| outcome.unwrap_err().kind();
    for path in ["f/.", "f/", "f/./", "odd"] {
        assert_eq!(kind(volume.read(path).map(drop)), ErrorKind::NotDirectory, "{path}");
        assert_eq!(kind(volume.metadata(path).map(drop)), ErrorKind::NotDirectory, "{path}");
    }
    for path in ["f/.", "f/"] {
        assert_eq!(kind(volume.remove_file(path)), ErrorKind::NotDirectory, "{path}");
        assert_eq!(kind(volume.rename(path, "g")), ErrorKind::NotDirectory, "{path}");
    }
    for path in ["d/.", "."] {
        assert!(volume.symlink_metadata(path).unwrap().is_dir());
        assert_eq!(kind(volume.remove_dir(path)), ErrorKind::Invalid, "{path}");
        assert_eq!(kind(volume.rename(path, "e")), ErrorKind::Busy, "{path}");
        assert_eq!(kind(volume.create_dir(path)), ErrorKind::Exists, "{path}");
    }
    assert!(volume.symlink_metadata("link/.").unwrap().is_dir());
    assert!(volume.symlink_metadata("link").unwrap().is_symlink());
    assert_eq!(kind(volume.create_file("new/.").map(drop)), ErrorKind::NotFound);
    assert_eq!(kind(volume.create_dir("new/.")), ErrorKind::NotFound);
    assert_eq!(kind(volume.rename("f", "new/")), ErrorKind::NotDirectory);
    assert_eq!(kind(volume.symlink("f", "new/")), ErrorKind::NotFound);
    assert_eq!(kind(volume.hard_link("f", "new/")), ErrorKind::NotFound);
    assert!(!volume.exists("new").unwrap());
    volume.rename("d", "moved/").unwrap();
    volume.create_dir("made/").unwrap();
    volume.create_dir_all("deep/down/.").unwrap();
    assert!(volume.metadata("deep/down/").unwrap().is_dir());
    assert_eq!(volume.read("f").unwrap(), b"content");
}

/// It said that the directory was there, where a link led nowhere.
#[test]
fn create_dir_all_makes_a_directory_or_fails() {
    let volume = volume();
    volume.symlink("nowhere", "link").unwrap();
    assert_eq!(volume.create_dir_all("link").unwrap_err().kind(), ErrorKind::Exists);
    volume.create_dir_all("a/b").unwrap();
    volume.create_dir_all("a/b").unwrap();
    volume.symlink("a", "good").unwrap();
    volume.create_dir_all("good/b/c").unwrap();
    assert!(volume.metadata("a/b/c").unwrap().is_dir());
}

/// An empty append moved the cursor to the start, and a copy wrote into the midst of a file that was opened
/// to append.
#[test]
fn files_opened_to_append() {
    let volume = volume();
    volume.write("source", [7; 100]).unwrap();
    volume.write("log", [1; 100]).unwrap();
    let log = OpenOptions::new().read(true).append(true).open(&volume, "log").unwrap();
    assert_eq!(log.append(b"").unwrap(), 100);
    let mut cursor = log.cursor();
    cursor.seek(SeekFrom::Start(50)).unwrap();
    assert_eq!(cursor.write(b"").unwrap(), 0);
    assert_eq!(cursor.write_vectored(&[]).unwrap(), 0);
    assert_eq!(cursor.stream_position().unwrap(), 50);
    assert_eq!(cursor.write(b"more").unwrap(), 4);
    assert_eq!(cursor.stream_position().unwrap(), 104);
    let source = volume.open_file("source").unwrap();
    assert_eq!(source.copy_range_to(0, &log, 0, 100).unwrap_err().kind(), ErrorKind::BadHandle);
    assert_eq!(volume.read("log").unwrap()[..100], [1; 100]);
}

/// A vectored read took a buffer for as much as the file had when the read began. A write that made the file
/// longer at that moment was then seen in part: its first block and not its second.
#[test]
fn a_vectored_read_sees_a_write_that_grows_the_file_as_a_whole() {
    const ROUNDS: u8 = 250;
    let volume = volume();
    let file = writable().open(&volume, "f").unwrap();
    let writing = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..40 * u64::from(ROUNDS) {
                let byte = (round % u64::from(ROUNDS)) as u8;
                file.write_all_at(&[byte; 8192], 0).unwrap();
                file.set_len(100).unwrap();
            }
            writing.store(false, Ordering::Relaxed);
        });
        while writing.load(Ordering::Relaxed) {
            let (mut one, mut two) = ([0; 4096], [0; 4096]);
            let mut buffers = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
            let count = file.read_vectored_at(&mut buffers, 0).unwrap();
            assert!([0, 100, 8192].contains(&count), "{count} bytes are a part of a write");
            let bytes = [one, two].concat();
            assert!(bytes[..count].iter().all(|&byte| byte == bytes[0]), "two writes in one read");
        }
    });
}
