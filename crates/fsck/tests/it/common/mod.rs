//! Volumes to check, and an editor that damages them and makes the checksums right again.

pub mod editor;

use quire::inodes::{Caller, Create, FallocateMode, IoFlags, XattrFlags};
use quire::internals::repair::Session;
use quire::{FileType, FormatOptions, InodeNo, RenameFlags, Volume, VolumeOptions};
use quire_base::sync::Arc;
use quire_device::simulated::{CrashPolicy, Image, SimulatedBackend};
use quire_format::extent::FILE_BLOCKS_MAX;
use quire_format::key::Key;
use quire_format::logged::{LoggedKind, LoggedOp};
use quire_fsck::{Options, Report, check_backend};

/// Blocks of the volumes: 32 MiB.
pub const BLOCKS: u64 = 8192;

pub fn options() -> VolumeOptions {
    VolumeOptions::new().threads(false).cache_bytes(32 << 20)
}

pub fn format() -> Image {
    format_of(BLOCKS)
}

/// A new volume of so many blocks.
pub fn format_of(blocks: u64) -> Image {
    let backend = Arc::new(SimulatedBackend::new(blocks));
    let options = FormatOptions::new().seed(7).label("test");
    options.format_backend(backend.clone()).unwrap();
    backend.visible()
}

pub fn device(image: &Image) -> Arc<SimulatedBackend> {
    let backend = SimulatedBackend::from_image(image.clone());
    backend.stop_recording();
    Arc::new(backend)
}

/// Checks without repair; nothing may be written.
pub fn check(image: &Image) -> quire_base::Result<Report> {
    let backend = SimulatedBackend::from_image(image.clone());
    let backend = Arc::new(backend);
    let report = check_backend(backend.clone(), &Options::default());
    assert_eq!(backend.event_count(), 0, "a check without repair writes nothing");
    report
}

/// Checks with repair; gives the report and the image afterwards.
pub fn repair(image: &Image) -> (Report, Image) {
    let backend = device(image);
    let report = check_backend(backend.clone(), &Options { repair: true, ..Options::default() }).unwrap();
    (report, backend.visible())
}

pub fn assert_clean(image: &Image, when: &str) {
    let report = check(image).unwrap();
    assert!(report.is_clean(), "{when}: {:#?}", report.issues);
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u64).wrapping_mul(seed * 2 + 1).to_le_bytes()[1]).collect()
}

/// Every kind of inode, name, attribute and extent. What is unlinked while open is given back, to stay open.
pub fn populate(volume: &Volume) -> Vec<quire::inodes::InodeRef> {
    let root = volume.inodes().root();
    let caller = Caller { uid: 1000, gid: 1000 };
    let make = |directory: &quire::inodes::InodeRef, name: &str, kind: FileType| {
        let rdev = if kind.is_device() { 0x103 } else { 0 };
        let create = Create { kind, umask: 0o022, rdev, caller, ..Create::file(0o644) };
        volume.inodes().create(directory, name.as_bytes(), &create).unwrap()
    };
    let a = make(&root, "a", FileType::Directory);
    let b = make(&a, "b", FileType::Directory);
    let c = make(&b, "c", FileType::Directory);
    make(&root, "empty", FileType::Directory);
    for number in 0..150 {
        let file = make(&c, &format!("file-{number:03}-with-a-name-of-some-length"), FileType::Regular);
        if number % 3 == 0 {
            volume
                .inodes()
                .write_at(&file, &bytes(number, 3000 + number as usize * 40), 0, IoFlags::empty())
                .unwrap();
        }
    }
    for (name, kind) in [
        ("pipe", FileType::Fifo),
        ("socket", FileType::Socket),
        ("disk", FileType::BlockDevice),
        ("tty", FileType::CharDevice),
    ] {
        make(&a, name, kind);
    }
    volume.inodes().symlink(&a, b"short", b"b/c", caller).unwrap();
    volume.inodes().symlink(&a, b"long", &[b'x'; 2600], caller).unwrap();
    let linked = make(&a, "linked", FileType::Regular);
    volume.inodes().write_at(&linked, &bytes(3, 100_000), 0, IoFlags::empty()).unwrap();
    volume.inodes().hard_link(&linked, &b, b"other-name").unwrap();
    volume.inodes().hard_link(&linked, &root, b"third-name").unwrap();
    volume.inodes().set_xattr(&linked, b"user.small", b"value", XattrFlags::empty()).unwrap();
    volume.inodes().set_xattr(&linked, b"user.large", &bytes(9, 5000), XattrFlags::empty()).unwrap();
    volume.inodes().set_xattr(&a, b"trusted.on-a-directory", b"v", XattrFlags::empty()).unwrap();

    let sparse = make(&b, "sparse", FileType::Regular);
    for at in 0..40u64 {
        volume.inodes().write_at(&sparse, &bytes(at, 4096), at * 5 * 4096 + 100, IoFlags::empty()).unwrap();
    }
    volume.inodes().fsync(&sparse, false).unwrap();
    let holes = make(&b, "holes", FileType::Regular);
    volume.inodes().write_at(&holes, &bytes(5, 200_000), 0, IoFlags::empty()).unwrap();
    volume.inodes().fsync(&holes, false).unwrap();
    volume.inodes().allocate(&holes, FallocateMode::PunchHole, 20_000, 60_000).unwrap();
    let reserved = make(&b, "reserved", FileType::Regular);
    volume.inodes().allocate(&reserved, FallocateMode::KeepSize, 0, 300_000).unwrap();

    let moved = make(&root, "moved", FileType::Directory);
    make(&moved, "inside", FileType::Regular);
    volume.inodes().rename(&root, b"moved", &b, b"here", RenameFlags::empty()).unwrap();
    for number in 0..30 {
        let name = format!("gone-{number}");
        let gone = make(&a, &name, FileType::Regular);
        volume.inodes().write_at(&gone, &bytes(number, 9000), 0, IoFlags::empty()).unwrap();
        volume.inodes().remove_file(&a, name.as_bytes()).unwrap();
    }
    volume.drain_orphans();
    volume.sync().unwrap();

    let open = make(&a, "unlinked", FileType::Regular);
    volume.inodes().write_at(&open, &bytes(1, 50_000), 0, IoFlags::empty()).unwrap();
    volume.inodes().fsync(&open, false).unwrap();
    volume.inodes().remove_file(&a, b"unlinked").unwrap();
    let unnamed = volume.inodes().tmpfile(&a, &Create::file(0o600)).unwrap();
    volume.inodes().write_at(&unnamed, &bytes(2, 5000), 0, IoFlags::empty()).unwrap();
    let removed = make(&a, "removed", FileType::Directory);
    volume.inodes().remove_dir(&a, b"removed").unwrap();
    volume.sync().unwrap();
    vec![open, unnamed, removed]
}

/// A volume in use, its journal full of records, as a power cut leaves it.
pub fn crashed() -> Image {
    let backend = device(&format());
    let volume = options().open_backend(backend.clone()).unwrap();
    let open = populate(&volume);
    let image = backend.crash(CrashPolicy::KeepAll);
    drop(open);
    image
}

/// A volume closed in order, with orphans in slots and under a key, and an operation that a crash cut off.
pub fn closed() -> Image {
    let backend = device(&crashed());
    let mut session = Session::open(backend.clone()).unwrap();
    let orphans = session.orphans();
    assert_eq!(orphans.len(), 3);
    session.orphan_clear(orphans[0].0);
    session.put(Key::orphan(orphans[0].1), &[]);
    let (number, record) = regular(&session);
    let operation = LoggedOp {
        kind: LoggedKind::Truncate,
        inode: number,
        generation: record.generation,
        start: record.size.div_ceil(4096),
        end: FILE_BLOCKS_MAX,
        cursor: FILE_BLOCKS_MAX,
        size: record.size,
    };
    session.put(Key::logged(0), &operation.encode());
    session.close().unwrap();
    backend.visible()
}

/// Some regular file with a name.
fn regular(session: &Session) -> (InodeNo, quire_format::inode::InodeRecord) {
    let mut found = None;
    session
        .tree()
        .scan(Key::MIN, Key::MAX, &mut |key, value| {
            if key.kind == quire_format::key::KeyKind::Inode {
                let record = quire_format::inode::InodeRecord::decode(value).unwrap();
                if record.file_type() == FileType::Regular && record.nlink == 1 && record.size > 5000 {
                    found = Some((InodeNo(key.object), record));
                    return std::ops::ControlFlow::Break(());
                }
            }
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    found.unwrap()
}
