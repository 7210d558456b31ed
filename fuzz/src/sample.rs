//! The volumes that fuzzed images start from: small, with a bit of everything, made anew in each process and
//! the same every time.
//!
//! Neighbours: [`crate::edits`] changes them; [`crate::journal_records`] adds to a journal.

use quire::inodes::{Caller, Create, FallocateMode, InodeRef, IoFlags, XattrFlags};
use quire::{Clock, FileType, FormatOptions, RenameFlags, Timestamp, Volume, VolumeOptions};
use quire_base::{BLOCK_SIZE, BlockNo};
use quire_device::SimulatedBackend;
use quire_device::simulated::{CrashPolicy, Image};
use quire_format::superblock::{JOURNAL_START, SLOT_BLOCKS, Superblock};
use quire_format::{journal, node, orphan, pool};
use std::sync::{Arc, OnceLock};

/// Blocks of the volumes: 16 MiB.
pub const BLOCKS: u64 = 4096;
/// How many there are.
pub const SAMPLES: usize = 4;
/// The closed one; its journal is empty.
pub const CLOSED: usize = 1;
/// The one with snapshots, closed too.
pub const SNAPSHOTS: usize = 3;

/// A volume's image, and which of its blocks mean something to the engine.
pub struct Sample {
    /// The device's contents.
    pub image: Image,
    /// Blocks of superblocks, journal, tree, manifest and orphans that hold something.
    pub metadata: Vec<BlockNo>,
}

/// Options for a volume that is used by one thread and whose run repeats.
pub fn options(read_only: bool) -> VolumeOptions {
    VolumeOptions::new().threads(false).cache_bytes(6 << 20).clock(clock()).read_only(read_only)
}

fn clock() -> Clock {
    Clock::simulated(Timestamp(1_000_000_000))
}

/// A device that holds `image` and keeps no history.
pub fn device(image: &Image) -> Arc<SimulatedBackend> {
    let device = SimulatedBackend::from_image(image.clone());
    device.stop_recording();
    Arc::new(device)
}

/// A new volume on a new device.
pub fn format(blocks: u64) -> Arc<SimulatedBackend> {
    let device = Arc::new(SimulatedBackend::new(blocks));
    device.stop_recording();
    let format = FormatOptions::new().seed(1).clock(clock());
    format.format_backend(device.clone()).expect("a volume can be made");
    device
}

/// The sample of a number: 0 was cut off with a long journal, 1 was closed, 2 was cut off behind a long
/// truncate, with one torn superblock, 3 has snapshots, one of which is being deleted.
pub fn sample(number: usize) -> &'static Sample {
    static ALL: [OnceLock<Sample>; SAMPLES] = [const { OnceLock::new() }; SAMPLES];
    ALL[number % SAMPLES].get_or_init(|| {
        let image = match number % SAMPLES {
            0 => cut_off(),
            1 => closed(),
            2 => torn(),
            _ => with_snapshots(),
        };
        let metadata = metadata(&image);
        Sample { image, metadata }
    })
}

fn create(volume: &Volume, directory: &InodeRef, name: &str, kind: FileType) -> InodeRef {
    let rdev = if kind.is_device() { 0x103 } else { 0 };
    let caller = Caller { uid: 1000, gid: 1000 };
    let create = Create { kind, umask: 0o022, rdev, caller, ..Create::file(0o755) };
    volume.inodes().create(directory, name.as_bytes(), &create).expect("a name can be made")
}

/// Every kind of inode, name, attribute and extent. What is unlinked while open is given back, to stay open.
fn populate(volume: &Volume, first: u32) -> Vec<InodeRef> {
    let root = volume.inodes().root();
    let folder = create(volume, &root, &format!("folder{first}"), FileType::Directory);
    let below = create(volume, &folder, "below", FileType::Directory);
    let none = IoFlags::empty();
    for number in first..first + 16 {
        let name = format!("file-with-a-longer-name-{number}");
        let file = create(volume, &folder, &name, FileType::Regular);
        volume
            .inodes()
            .write_at(&file, name.repeat(150).as_bytes(), u64::from(number) * 1500, none)
            .expect("written");
        if number % 5 == 0 {
            volume
                .inodes()
                .set_xattr(&file, b"user.note", &[number as u8; 2000], XattrFlags::empty())
                .expect("set");
        }
    }
    volume.inodes().set_xattr(&below, b"trusted.directory", b"v", XattrFlags::empty()).expect("set");
    for (name, kind) in [
        ("pipe", FileType::Fifo),
        ("socket", FileType::Socket),
        ("disk", FileType::BlockDevice),
        ("tty", FileType::CharDevice),
    ] {
        create(volume, &below, name, kind);
    }
    volume.inodes().symlink(&below, b"short", b"../file", Caller::default()).expect("linked");
    volume.inodes().symlink(&below, b"long", &[b'x'; 2600], Caller::default()).expect("linked");
    let sparse = create(volume, &below, "sparse", FileType::Regular);
    for at in 0..10u64 {
        volume
            .inodes()
            .write_at(&sparse, &[at as u8; 4096], at * 3 * BLOCK_SIZE as u64 + 100, none)
            .expect("written");
    }
    volume.inodes().hard_link(&sparse, &root, format!("linked{first}").as_bytes()).expect("linked");
    let holes = create(volume, &below, "holes", FileType::Regular);
    volume.inodes().write_at(&holes, &[7; 100_000], 0, none).expect("written");
    volume.inodes().fsync(&holes, false).expect("durable");
    volume.inodes().allocate(&holes, FallocateMode::PunchHole, 20_000, 40_000).expect("punched");
    volume.inodes().allocate(&holes, FallocateMode::KeepSize, 90_000, 200_000).expect("allocated");
    let unlinked = create(volume, &below, "unlinked", FileType::Regular);
    volume.inodes().write_at(&unlinked, &[1; 30_000], 0, none).expect("written");
    volume.inodes().fsync(&unlinked, false).expect("durable");
    volume.inodes().remove_file(&below, b"unlinked").expect("unlinked");
    let unnamed = volume.inodes().tmpfile(&below, &Create::file(0o600)).expect("made");
    volume.inodes().write_at(&unnamed, &[2; 5000], 0, none).expect("written");
    volume.inodes().rename(&below, b"holes", &folder, b"moved", RenameFlags::empty()).expect("renamed");
    volume.sync().expect("durable");
    vec![unlinked, unnamed]
}

fn open(device: &Arc<SimulatedBackend>) -> Volume {
    options(false).open_backend(device.clone()).expect("the volume opens")
}

fn cut_off() -> Image {
    let device = format(BLOCKS);
    let volume = open(&device);
    let mut orphans = populate(&volume, 0);
    volume.checkpoint().expect("written");
    orphans.extend(populate(&volume, 100));
    let image = device.crash(CrashPolicy::KeepAll);
    drop(orphans);
    image
}

fn closed() -> Image {
    let device = format(BLOCKS);
    let volume = open(&device);
    drop(populate(&volume, 0));
    volume.drain_orphans();
    volume.close().expect("closed");
    device.visible()
}

fn with_snapshots() -> Image {
    let device = format(BLOCKS);
    let volume = open(&device);
    drop(populate(&volume, 0));
    volume.take_snapshot("first").expect("taken");
    for number in [1, 2, 3, 4] {
        let path = format!("folder0/file-with-a-longer-name-{number}");
        volume.write(&path, vec![number; 9000]).expect("written");
    }
    volume.sync().expect("durable");
    volume.take_snapshot("second").expect("taken");
    volume.remove_file("folder0/file-with-a-longer-name-5").expect("removed");
    drop(populate(&volume, 50));
    volume.delete_snapshot_later("first").expect("marked");
    volume.drain_orphans();
    volume.close().expect("closed");
    device.visible()
}

fn torn() -> Image {
    let device = format(BLOCKS);
    let volume = open(&device);
    let mut orphans = populate(&volume, 0);
    volume.checkpoint().expect("written");
    orphans.extend(populate(&volume, 50));
    // More extents than one transaction frees: the journal has a logged operation with its cursor.
    let long = create(&volume, &volume.inodes().root(), "long", FileType::Regular);
    for at in 0..150u64 {
        volume
            .inodes()
            .write_at(&long, &[at as u8; 4096], at * 2 * BLOCK_SIZE as u64, IoFlags::empty())
            .expect("written");
    }
    volume.inodes().fsync(&long, false).expect("durable");
    volume.checkpoint().expect("written");
    volume.inodes().set_len(&long, 4096).expect("cut");
    volume.sync().expect("durable");
    let mut image = device.crash(CrashPolicy::KeepAll);
    let older = usize::from(
        Superblock::decode(&block(&image, SLOT_BLOCKS[0])).expect("sound").checkpoint
            > Superblock::decode(&block(&image, SLOT_BLOCKS[1])).expect("sound").checkpoint,
    );
    // The older slot is torn, as by a crash while it was written.
    image.edit(SLOT_BLOCKS[older], |bytes| bytes[600..].fill(0xee));
    drop(orphans);
    image
}

/// The bytes of a block.
pub fn block(image: &Image, at: BlockNo) -> [u8; BLOCK_SIZE] {
    let mut bytes = [0; BLOCK_SIZE];
    image.read(at, &mut bytes);
    bytes
}

fn metadata(image: &Image) -> Vec<BlockNo> {
    let mut all = Vec::new();
    image.for_each(&mut |at, bytes| {
        let magic = u32::from_le_bytes(bytes[..4].try_into().expect("4 bytes"));
        let orphans = bytes[orphan::SLOTS * 8..][..4] == orphan::MAGIC.to_le_bytes();
        let journaled = at >= JOURNAL_START && journal::BlockHeader::decode(&bytes[..]).is_ok();
        if SLOT_BLOCKS.contains(&at) || journaled || orphans || [node::MAGIC, pool::MAGIC].contains(&magic) {
            all.push(at);
        }
    });
    all
}
