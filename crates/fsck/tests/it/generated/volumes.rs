//! The volumes that are damaged: one closed in order, with every structure in every form; one that a power
//! cut left in use, its journal full of records.

use crate::common::*;
use quire::Volume;
use quire::inodes::{Create, FallocateMode, InodeRef, IoFlags, XattrFlags};
use quire::internals::orphan::Slot;
use quire::internals::repair::Session;
use quire_base::InodeNo;
use quire_device::simulated::{CrashPolicy, Image};
use quire_format::extent::FILE_BLOCKS_MAX;
use quire_format::key::Key;
use quire_format::logged::{LoggedKind, LoggedOp};

/// 48 MiB: three regions.
const BLOCKS: u64 = 12288;

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at as u64 + 7).wrapping_mul(seed * 2 + 1) >> 3) as u8 | 1).collect()
}

/// A file with a block in every second place, so that its extents cannot join.
fn fragmented(volume: &Volume, directory: &InodeRef, name: &str, blocks: u64) -> InodeRef {
    let file = volume.inodes().create(directory, name.as_bytes(), &Create::file(0o600)).unwrap();
    volume.inodes().write_at(&file, &bytes(blocks, blocks as usize * 4096), 0, IoFlags::empty()).unwrap();
    volume.inodes().fsync(&file, false).unwrap();
    for at in (1..blocks).step_by(2) {
        volume.inodes().allocate(&file, FallocateMode::PunchHole, at * 4096, 4096).unwrap();
    }
    file
}

/// Everything that [`populate`] makes and more: deep directories, a region in each of its forms, files for
/// each kind of logged operation.
fn rich(volume: &Volume) -> Vec<InodeRef> {
    let mut open = populate(volume);
    let root = volume.inodes().root();
    let directory = |parent: &InodeRef, name: &str| {
        volume.inodes().create(parent, name.as_bytes(), &Create::directory(0o755)).unwrap()
    };
    let mut deep = directory(&root, "deep");
    for level in 0..24 {
        deep = directory(&deep, &format!("level-{level}"));
        let file = volume.inodes().create(&deep, b"file", &Create::file(0o644)).unwrap();
        volume
            .inodes()
            .write_at(&file, &bytes(level, 100 + level as usize * 300), 0, IoFlags::empty())
            .unwrap();
    }
    let work = directory(&root, "work");
    for kind in ["truncate", "collapse", "insert", "punch", "zero"] {
        fragmented(volume, &work, kind, 24);
    }
    let unnamed = volume.inodes().create(&work, b"free", &Create::file(0o600)).unwrap();
    volume.inodes().write_at(&unnamed, &bytes(99, 30_000), 0, IoFlags::empty()).unwrap();
    volume.inodes().fsync(&unnamed, false).unwrap();
    volume.inodes().remove_file(&work, b"free").unwrap();
    open.push(unnamed);
    for name in ["user.one", "user.two", "trusted.three"] {
        volume.inodes().set_xattr(&work, name.as_bytes(), &bytes(3, 40), XattrFlags::empty()).unwrap();
    }
    volume.inodes().set_xattr(&deep, b"user.long", &bytes(4, 20_000), XattrFlags::empty()).unwrap();
    // One file leaves holes all over a region, another fills one.
    fragmented(volume, &root, "scattered", 700);
    let large = volume.inodes().create(&root, b"large", &Create::file(0o600)).unwrap();
    volume.inodes().write_at(&large, &bytes(5, 500_000), 0, IoFlags::empty()).unwrap();
    volume.inodes().fsync(&large, false).unwrap();
    volume.inodes().allocate(&large, FallocateMode::KeepSize, 0, 28 << 20).unwrap();
    volume.sync().unwrap();
    open
}

/// Puts an orphan under a key instead of its slot, and logged operations of all kinds where a crash could
/// have cut them off.
fn add_unfinished(session: &mut Session, work: &[(LoggedKind, InodeNo)]) {
    let (slot, inode): (Slot, InodeNo) = session.orphans()[0];
    session.orphan_clear(slot);
    session.put(Key::orphan(inode), &[]);
    for (id, &(kind, inode)) in work.iter().enumerate() {
        let value = session.tree().get(Key::inode(inode)).unwrap().unwrap();
        let record = quire_format::inode::InodeRecord::decode(&value).unwrap();
        let file_end = record.size.div_ceil(4096);
        let (start, end, cursor, size) = match kind {
            LoggedKind::Truncate => (file_end, FILE_BLOCKS_MAX, FILE_BLOCKS_MAX, record.size),
            LoggedKind::Free => (0, FILE_BLOCKS_MAX, FILE_BLOCKS_MAX, 0),
            LoggedKind::Collapse => (4, 6, 6, record.size - 2 * 4096),
            LoggedKind::Insert => (8, 10, FILE_BLOCKS_MAX, record.size + 2 * 4096),
            LoggedKind::Punch | LoggedKind::Zero => (3, 9, 9, record.size),
        };
        let operation = LoggedOp { kind, inode, generation: record.generation, start, end, cursor, size };
        session.put(Key::logged(id as u64), &operation.encode());
    }
    session.commit().unwrap();
}

/// Closed in order, with orphans in slots and under a key, and a logged operation of each kind.
pub fn closed() -> Image {
    let backend = device(&format_of(BLOCKS));
    let volume = options().open_backend(backend.clone()).unwrap();
    let open = rich(&volume);
    let work = volume.inodes().lookup(&volume.inodes().root(), b"work").unwrap();
    let named = |name: &str| volume.inodes().lookup(&work, name.as_bytes()).unwrap().number();
    let operations = [
        (LoggedKind::Truncate, named("truncate")),
        (LoggedKind::Collapse, named("collapse")),
        (LoggedKind::Insert, named("insert")),
        (LoggedKind::Punch, named("punch")),
        (LoggedKind::Zero, named("zero")),
        (LoggedKind::Free, open.last().unwrap().number()),
    ];
    let image = backend.crash(CrashPolicy::KeepAll);
    drop(open);
    let backend = device(&image);
    let mut session = Session::open(backend.clone()).unwrap();
    assert_eq!(session.orphans().len(), 4);
    add_unfinished(&mut session, &operations);
    session.close().unwrap();
    backend.visible()
}

/// In use, as a power cut leaves it: one tree in both slots, and a journal with records of every kind behind
/// it.
pub fn in_use() -> Image {
    let backend = device(&closed());
    let volume = options().open_backend(backend.clone()).unwrap();
    let root = volume.inodes().root();
    let late = volume.inodes().create(&root, b"late", &Create::directory(0o755)).unwrap();
    for number in 0..40u64 {
        let name = format!("file-{number}");
        let file = volume.inodes().create(&late, name.as_bytes(), &Create::file(0o600)).unwrap();
        volume.inodes().write_at(&file, &bytes(number, 9000), number * 5000, IoFlags::empty()).unwrap();
        match number % 4 {
            0 => volume.inodes().fsync(&file, false).unwrap(),
            1 => volume
                .inodes()
                .set_xattr(&file, b"user.a", &bytes(number, 1500), XattrFlags::empty())
                .unwrap(),
            2 => volume.inodes().hard_link(&file, &root, format!("link-{number}").as_bytes()).unwrap(),
            _ => volume.inodes().remove_file(&late, name.as_bytes()).unwrap(),
        }
    }
    volume.sync().unwrap();
    let large = volume.inodes().lookup(&root, b"large").unwrap();
    volume.inodes().set_len(&large, 1 << 20).unwrap();
    let held = volume.inodes().create(&late, b"held", &Create::file(0o600)).unwrap();
    volume.inodes().write_at(&held, &bytes(1, 20_000), 0, IoFlags::empty()).unwrap();
    volume.inodes().remove_file(&late, b"held").unwrap();
    volume
        .inodes()
        .symlink(&late, b"link", &bytes(1, 1500), quire::inodes::Caller { uid: 1, gid: 1 })
        .unwrap();
    volume.sync().unwrap();
    let image = backend.crash(CrashPolicy::KeepAll);
    drop(held);
    image
}
