//! Exit codes, calls of the program, and images: looked at, kept, damaged.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use quire_base::BLOCK_SIZE;
use quire_format::journal::BlockHeader;
use quire_format::superblock::{SLOT_BLOCKS, Superblock};

use crate::common::{Volume, is_mounted, pattern, run, text};

// Exit codes, as `quire --help` documents them.
pub const USAGE: i32 = 1;
pub const FAILED: i32 = 32;
pub const NOT_A_VOLUME: i32 = 33;
pub const NEWER_FORMAT: i32 = 34;
pub const DAMAGED: i32 = 35;
pub const IN_USE: i32 = 36;
pub const MISSING: i32 = 37;
pub const NOT_PERMITTED: i32 = 38;
pub const NO_SPACE: i32 = 39;
pub const FSCK_REPAIRED: i32 = 1;
pub const FSCK_LEFT: i32 = 4;
pub const FSCK_COULD_NOT_RUN: i32 = 8;
pub const FSCK_USAGE: i32 = 16;

/// One test at a time; `serial.rs` says why.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls the program with words of any kind.
macro_rules! call {
    ($($word:expr),+ $(,)?) => { $crate::common::quire(&[$(std::ffi::OsString::from(&$word)),+]) };
}

#[track_caller]
pub fn expect(output: &Output, code: i32, words: &[&str]) {
    let text = text(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    for word in words {
        assert!(text.contains(word), "'{word}' is missing in: {text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

/// All there is to an image: two that are equal were not written between.
#[derive(Debug, PartialEq, Eq)]
pub struct Snapshot {
    length: u64,
    modified: SystemTime,
    checksum: u32,
}

pub fn snapshot(image: &Path) -> Snapshot {
    let metadata = std::fs::metadata(image).unwrap();
    let bytes = std::fs::read(image).unwrap();
    Snapshot {
        length: metadata.len(),
        modified: metadata.modified().unwrap(),
        checksum: crc32c::crc32c(&bytes),
    }
}

/// Does something that must not change the image.
#[track_caller]
pub fn keeping<T>(image: &Path, act: impl FnOnce() -> T) -> T {
    let before = snapshot(image);
    let result = act();
    assert_eq!(snapshot(image), before, "{} was written", image.display());
    result
}

/// Mounts in the background with `image` and `dir` of one's own.
pub fn mount(volume: &Volume, options: &str, image: &Path, dir: &Path) -> Output {
    let log = format!("log={}", volume.image().with_file_name("server.log").display());
    call!["mount", "-o", format!("{log},{options}"), image, dir]
}

/// Mounts the volume where it belongs.
pub fn mount_here(volume: &Volume, options: &str) -> Output {
    mount(volume, options, &volume.image(), &volume.mountpoint())
}

#[track_caller]
pub fn unmount(dir: &Path) {
    expect(&call!["umount", dir], 0, &[]);
    assert!(!is_mounted(dir));
}

/// A mount is refused, and leaves neither a mount nor a trace.
#[track_caller]
pub fn refused(volume: &Volume, code: i32, words: &[&str]) {
    keeping(&volume.image(), || {
        expect(&mount_here(volume, ""), code, words);
        assert!(!is_mounted(&volume.mountpoint()));
    });
}

pub fn file_bytes(number: u64) -> Vec<u8> {
    pattern(number, 3000 + number as usize * 5000)
}

/// Writes files and makes each durable by itself, so that each has journal blocks of its own.
pub fn write_files(dir: &Path, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let mut file = std::fs::File::create(dir.join(format!("file{number}"))).unwrap();
        file.write_all(&file_bytes(number)).unwrap();
        file.sync_all().unwrap();
    }
}

#[track_caller]
pub fn holds_files(dir: &Path, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let found = std::fs::read(dir.join(format!("file{number}")))
            .unwrap_or_else(|error| panic!("file{number} was fsynced: {error}"));
        assert!(found == file_bytes(number), "file{number} has other bytes");
    }
}

/// An unmounted volume with some files.
pub fn filled() -> Volume {
    let mut volume = Volume::new("64M");
    volume.mount();
    write_files(&volume.mountpoint(), 0..8);
    volume.unmount();
    volume
}

/// A volume whose server was killed: eight files are in the journal only.
pub fn crashed() -> Volume {
    let mut volume = Volume::new("64M").with_options("commit=3600");
    volume.mount();
    write_files(&volume.mountpoint(), 0..8);
    volume.kill();
    assert!(live_journal(&volume.image()).len() >= 8, "this volume needs no replay");
    volume
}

pub fn read_block(image: &Path, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_SIZE];
    std::fs::File::open(image).unwrap().read_exact_at(&mut bytes, block * BLOCK_SIZE as u64).unwrap();
    bytes
}

pub fn write_block(image: &Path, block: u64, bytes: &[u8]) {
    let file = std::fs::File::options().write(true).open(image).unwrap();
    file.write_all_at(bytes, block * BLOCK_SIZE as u64).unwrap();
}

/// Flips some bits in the middle of a block; gives what it was.
pub fn flip(image: &Path, block: u64) -> Vec<u8> {
    let good = read_block(image, block);
    let mut bad = good.clone();
    for at in [100, 300] {
        bad[at] ^= 0x24;
    }
    write_block(image, block, &bad);
    good
}

pub fn superblock(image: &Path, slot: usize) -> Superblock {
    Superblock::decode(&read_block(image, SLOT_BLOCKS[slot].0)).unwrap()
}

/// Changes superblocks, with good checksums.
pub fn patch(image: &Path, slots: &[usize], change: impl Fn(&mut Superblock)) {
    for &slot in slots {
        let mut superblock = superblock(image, slot);
        change(&mut superblock);
        write_block(image, SLOT_BLOCKS[slot].0, &superblock.encode());
    }
}

/// The journal blocks that a mount would replay, in order: where each is, and its header.
pub fn live_journal(image: &Path) -> Vec<(u64, BlockHeader)> {
    let newest = [0, 1].map(|slot| superblock(image, slot)).into_iter().max_by_key(|s| s.checkpoint).unwrap();
    let mut blocks: Vec<(u64, BlockHeader)> = (0..newest.journal_blocks)
        .map(|at| newest.journal_start.0 + at)
        .filter_map(|block| Some((block, BlockHeader::decode(&read_block(image, block)).ok()?)))
        .filter(|(_, header)| {
            header.volume == newest.volume_id()
                && header.incarnation == newest.incarnation
                && header.position >= newest.sequence.0
        })
        .collect();
    blocks.sort_by_key(|(_, header)| header.position);
    blocks
}

/// A mount or a loop device that goes away at the end.
pub enum Attached {
    Mount(PathBuf),
    Loop(PathBuf),
}

impl Attached {
    pub fn mount(source: &Path, dir: &Path, words: &[&str]) -> Attached {
        run(Command::new("mount").args(words).arg(source).arg(dir));
        Attached::Mount(dir.to_owned())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        match self {
            Attached::Mount(dir) => {
                let _ = rustix::mount::unmount(&*dir, rustix::mount::UnmountFlags::DETACH);
            }
            Attached::Loop(device) => {
                let _ = Command::new("losetup").arg("-d").arg(device).status();
            }
        }
    }
}
