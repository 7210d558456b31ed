//! Opening, locking and creating volumes on the host.

use quire_base::{BLOCK_SIZE, BlockNo, ErrorKind, Result};
use quire_device::{AlignedBuf, Backend, FileBackend, IoClass, OpenMode, create_image, open_image};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

const MIB: u64 = 1 << 20;

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn kind(opened: Result<Arc<dyn Backend>>) -> ErrorKind {
    opened.err().expect("it opened").kind()
}

fn open(path: &Path) -> Result<Arc<dyn Backend>> {
    open_image(path, OpenMode::ReadWrite)
}

#[test]
fn creates_opens_and_keeps() {
    let directory = directory();
    let path = directory.path().join("v.img");
    let backend = create_image(&path, 3 * MIB + 5, false).unwrap();
    assert_eq!((backend.blocks(), backend.name()), (768, path.display().to_string()));
    let mut data = AlignedBuf::blocks(2);
    data.fill(9);
    backend.write(IoClass::Data, BlockNo(766), &data).unwrap();
    backend.flush().unwrap();
    drop(backend);
    let backend = open(&path).unwrap();
    let mut back = AlignedBuf::blocks(2);
    backend.read(IoClass::Data, BlockNo(766), &mut back).unwrap();
    assert_eq!(&*back, &*data);
}

/// Images that a program made through the library could be read by everybody, and so could all files in them,
/// whatever their modes: only the program `quire` made them with mode 0600.
#[test]
fn a_new_image_is_for_its_owner_alone() {
    let directory = directory();
    let path = directory.path().join("v.img");
    drop(create_image(&path, MIB, false).unwrap());
    let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600);
    // What was there before keeps the mode that somebody gave it.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    drop(create_image(&path, MIB, true).unwrap());
    assert_eq!(mode(), 0o640);
}

/// An image that was truncated while a volume was open there: what lay behind the new end was gone, later
/// writes made the file long again, and every flush said that all was well.
#[test]
fn a_flush_notices_an_image_that_has_become_shorter() {
    let directory = directory();
    let path = directory.path().join("v.img");
    let backend = create_image(&path, 3 * MIB, false).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(2 * MIB).unwrap();
    // Not to the old end.
    backend.write(IoClass::Data, BlockNo(600), &AlignedBuf::blocks(1)).unwrap();
    let refused = backend.flush().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Io);
    assert!(refused.to_string().contains("truncated while open"), "{refused}");
    // Longer than the volume is all right.
    file.set_len(4 * MIB).unwrap();
    backend.flush().unwrap();
}

#[test]
fn one_writer_or_many_readers() {
    let directory = directory();
    let path = directory.path().join("v.img");
    let writer = create_image(&path, MIB, false).unwrap();
    for mode in [OpenMode::ReadWrite, OpenMode::ReadOnly] {
        let error = open_image(&path, mode).err().expect("it opened twice");
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(
            error
                .to_string()
                .ends_with("v.img is already open, perhaps by this program; close or unmount it there first")
        );
    }
    assert_eq!(kind(create_image(&path, MIB, true)), ErrorKind::Busy);
    drop(writer);
    let readers =
        [open_image(&path, OpenMode::ReadOnly).unwrap(), open_image(&path, OpenMode::ReadOnly).unwrap()];
    assert_eq!(kind(open(&path)), ErrorKind::Busy);
    drop(readers);
    open(&path).unwrap();
}

#[test]
fn read_only_refuses_changes() {
    let directory = directory();
    let path = directory.path().join("v.img");
    drop(create_image(&path, MIB, false).unwrap());
    let backend = open_image(&path, OpenMode::ReadOnly).unwrap();
    let mut buf = AlignedBuf::blocks(1);
    assert!(backend.is_read_only());
    backend.read(IoClass::Data, BlockNo(0), &mut buf).unwrap();
    assert_eq!(backend.write(IoClass::Data, BlockNo(0), &buf).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(backend.flush().unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(backend.discard(BlockNo(0), 1).unwrap_err().kind(), ErrorKind::ReadOnly);
}

#[test]
fn creating_never_destroys_unasked() {
    let directory = directory();
    let path = directory.path().join("v.img");
    std::fs::write(&path, b"precious").unwrap();
    assert_eq!(kind(create_image(&path, MIB, false)), ErrorKind::Exists);
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    let backend = create_image(&path, MIB, true).unwrap();
    assert_eq!(backend.blocks(), 256);
    let mut buf = AlignedBuf::blocks(1);
    backend.read(IoClass::Data, BlockNo(0), &mut buf).unwrap();
    assert!(buf.iter().all(|byte| *byte == 0));
    assert_eq!(kind(create_image(&directory.path().join("none.img"), 100, false)), ErrorKind::Invalid);
    assert!(!directory.path().join("none.img").exists());
    let empty = directory.path().join("empty.img");
    std::fs::write(&empty, b"").unwrap();
    assert_eq!(create_image(&empty, MIB, false).unwrap().blocks(), 256);
    // Larger than any file of the host: refused, and nothing is left behind.
    let huge = directory.path().join("huge.img");
    assert!(create_image(&huge, u64::MAX, false).is_err());
    assert!(!huge.exists());
}

#[test]
fn what_is_not_a_volume_says_so() {
    let directory = directory();
    assert_eq!(kind(open(&directory.path().join("none"))), ErrorKind::NotFound);
    assert_eq!(kind(open(directory.path())), ErrorKind::IsDirectory);
    assert_eq!(kind(open_image(directory.path(), OpenMode::ReadOnly)), ErrorKind::IsDirectory);
    assert_eq!(kind(open(Path::new("/dev/null"))), ErrorKind::NotAVolume);
    let short = directory.path().join("short");
    std::fs::write(&short, [1; 100]).unwrap();
    assert_eq!(open(&short).unwrap().blocks(), 0);
}

/// A file system that refuses O_DIRECT; unmounted when dropped.
struct RamFs(tempfile::TempDir);

impl RamFs {
    /// None where the test may not mount.
    fn mount() -> Option<RamFs> {
        let directory = directory();
        let made = Command::new("mount").args(["-t", "ramfs", "none"]).arg(directory.path()).output().ok()?;
        made.status.success().then_some(RamFs(directory))
    }
}

impl Drop for RamFs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

/// Collects what is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn falls_back_with_one_line_where_direct_io_is_refused() {
    let Some(ram) = RamFs::mount() else {
        eprintln!("skipped: no file system may be mounted here");
        return;
    };
    let path = ram.0.path().join("v.img");
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
    let backend = tracing::subscriber::with_default(subscriber, || create_image(&path, MIB, false).unwrap());
    let logged = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert_eq!(logged.lines().count(), 1, "{logged}");
    assert!(logged.contains("falling back to ordinary file I/O") && logged.contains("v.img"), "{logged}");
    let odd = vec![5; BLOCK_SIZE + 1];
    backend.write(IoClass::Data, BlockNo(3), &odd[1..]).unwrap();
    backend.flush().unwrap();
    assert_eq!(backend.discard(BlockNo(7), 1).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(kind(open(&path)), ErrorKind::Busy);
    drop(backend);
    let ordinary = FileBackend::open(&path, OpenMode::ReadOnly).unwrap();
    let mut back = vec![0; BLOCK_SIZE];
    ordinary.read(IoClass::Data, BlockNo(3), &mut back).unwrap();
    assert_eq!(back, odd[1..]);
}

/// A loop device over an image; detached when dropped.
struct Loop(PathBuf);

impl Loop {
    /// None where the test may not make one.
    fn attach(image: &Path) -> Option<Loop> {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(image).output().ok()?;
        made.status.success().then(|| Loop(String::from_utf8_lossy(&made.stdout).trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn block_devices_are_measured_claimed_and_discarded() {
    let directory = directory();
    let image = directory.path().join("disk.img");
    std::fs::File::create(&image).unwrap().set_len(8 * MIB).unwrap();
    let Some(device) = Loop::attach(&image) else {
        eprintln!("skipped: no loop device may be made here");
        return;
    };
    let backend = open(&device.0).unwrap();
    assert_eq!(backend.blocks(), 2048);
    assert_eq!(kind(open(&device.0)), ErrorKind::Busy);
    assert_eq!(kind(open_image(&device.0, OpenMode::ReadOnly)), ErrorKind::Busy);
    let data = vec![7; 4 * BLOCK_SIZE];
    backend.write(IoClass::Data, BlockNo(100), &data).unwrap();
    backend.flush().unwrap();
    backend.discard(BlockNo(101), 2).unwrap();
    let mut back = vec![0; 4 * BLOCK_SIZE];
    backend.read(IoClass::Data, BlockNo(100), &mut back).unwrap();
    assert_eq!((back[0], back[3 * BLOCK_SIZE]), (7, 7));
    assert!(backend.read(IoClass::Data, BlockNo(2048), &mut back).is_err());
    drop(backend);
    assert_eq!(kind(create_image(&device.0, 9 * MIB, true)), ErrorKind::Invalid);
    assert_eq!(create_image(&device.0, MIB, false).unwrap().blocks(), 2048);
}

/// An image and a loop device over it were locked each by itself: a volume could be mounted twice, and each
/// of the two servers wrote over what the other had made durable.
#[test]
fn a_loop_device_and_the_file_behind_it_are_one_volume() {
    let directory = directory();
    let image = directory.path().join("disk image");
    std::fs::File::create(&image).unwrap().set_len(8 * MIB).unwrap();
    let (Some(device), Some(other)) = (Loop::attach(&image), Loop::attach(&image)) else {
        eprintln!("skipped: no loop device may be made here");
        return;
    };
    for (first, second) in [(&device.0, &image), (&image, &device.0), (&device.0, &other.0)] {
        let backend = open(first).unwrap();
        assert_eq!(kind(open(second)), ErrorKind::Busy);
        assert_eq!(kind(create_image(second, MIB, true)), ErrorKind::Busy);
        assert_eq!(kind(open_image(second, OpenMode::ReadOnly)), ErrorKind::Busy);
        drop(backend);
        drop(open(second).unwrap());
    }
    let readers = [&device.0, &image].map(|path| open_image(path, OpenMode::ReadOnly).unwrap());
    assert_eq!(kind(open(&other.0)), ErrorKind::Busy);
    drop(readers);
}
