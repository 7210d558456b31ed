//! Bad input: each mistake and each damage has its own clear message and exit code, and changes nothing.
//!
//! "Nothing" is taken literally where nobody has the image open: its length, its time of change and a checksum of all
//! its bytes are the same before and after.

mod common;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use common::{QUIRE, Volume, can_mount, has, is_mounted, pattern, quire, run, text};
use quire_base::BLOCK_SIZE;
use quire_format::journal::{BlockHeader, PAYLOAD_BYTES};
use quire_format::superblock::{FORMAT_MAJOR, SLOT_BLOCKS, Superblock};
use rustix::io::Errno;

// Exit codes, as `quire --help` documents them.
const USAGE: i32 = 1;
const FAILED: i32 = 32;
const NOT_A_VOLUME: i32 = 33;
const NEWER_FORMAT: i32 = 34;
const DAMAGED: i32 = 35;
const IN_USE: i32 = 36;
const MISSING: i32 = 37;
const NOT_PERMITTED: i32 = 38;
const NO_SPACE: i32 = 39;
const FSCK_REPAIRED: i32 = 1;
const FSCK_LEFT: i32 = 4;
const FSCK_COULD_NOT_RUN: i32 = 8;
const FSCK_USAGE: i32 = 16;

/// One test at a time. A program that another thread starts has, until its exec, a copy of every file that is open
/// here: a mount would be in use although everything on it is closed.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls the program with words of any kind.
macro_rules! call {
    ($($word:expr),+ $(,)?) => { quire(&[$(OsString::from(&$word)),+]) };
}

#[track_caller]
fn expect(output: &Output, code: i32, words: &[&str]) {
    let text = text(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    for word in words {
        assert!(text.contains(word), "'{word}' is missing in: {text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

/// All there is to an image: two that are equal were not written between.
#[derive(Debug, PartialEq, Eq)]
struct Snapshot {
    length: u64,
    modified: SystemTime,
    checksum: u32,
}

fn snapshot(image: &Path) -> Snapshot {
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
fn keeping<T>(image: &Path, act: impl FnOnce() -> T) -> T {
    let before = snapshot(image);
    let result = act();
    assert_eq!(snapshot(image), before, "{} was written", image.display());
    result
}

/// Mounts in the background with `image` and `dir` of one's own.
fn mount(volume: &Volume, options: &str, image: &Path, dir: &Path) -> Output {
    let log = format!("log={}", volume.image().with_file_name("server.log").display());
    call!["mount", "-o", format!("{log},{options}"), image, dir]
}

/// Mounts the volume where it belongs.
fn mount_here(volume: &Volume, options: &str) -> Output {
    mount(volume, options, &volume.image(), &volume.mountpoint())
}

#[track_caller]
fn unmount(dir: &Path) {
    expect(&call!["umount", dir], 0, &[]);
    assert!(!is_mounted(dir));
}

/// A mount is refused, and leaves neither a mount nor a trace.
#[track_caller]
fn refused(volume: &Volume, code: i32, words: &[&str]) {
    keeping(&volume.image(), || {
        expect(&mount_here(volume, ""), code, words);
        assert!(!is_mounted(&volume.mountpoint()));
    });
}

fn file_bytes(number: u64) -> Vec<u8> {
    pattern(number, 3000 + number as usize * 5000)
}

/// Writes files and makes each durable by itself, so that each has journal blocks of its own.
fn write_files(dir: &Path, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let mut file = std::fs::File::create(dir.join(format!("file{number}"))).unwrap();
        file.write_all(&file_bytes(number)).unwrap();
        file.sync_all().unwrap();
    }
}

#[track_caller]
fn holds_files(dir: &Path, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let found = std::fs::read(dir.join(format!("file{number}")))
            .unwrap_or_else(|error| panic!("file{number} was fsynced: {error}"));
        assert!(found == file_bytes(number), "file{number} has other bytes");
    }
}

/// An unmounted volume with some files.
fn filled() -> Volume {
    let mut volume = Volume::new("64M");
    volume.mount();
    write_files(&volume.mountpoint(), 0..8);
    volume.unmount();
    volume
}

/// A volume whose server was killed: eight files are in the journal only.
fn crashed() -> Volume {
    let mut volume = Volume::new("64M").with_options("commit=3600");
    volume.mount();
    write_files(&volume.mountpoint(), 0..8);
    volume.kill();
    assert!(live_journal(&volume.image()).len() >= 8, "this volume needs no replay");
    volume
}

fn read_block(image: &Path, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_SIZE];
    std::fs::File::open(image).unwrap().read_exact_at(&mut bytes, block * BLOCK_SIZE as u64).unwrap();
    bytes
}

fn write_block(image: &Path, block: u64, bytes: &[u8]) {
    let file = std::fs::File::options().write(true).open(image).unwrap();
    file.write_all_at(bytes, block * BLOCK_SIZE as u64).unwrap();
}

/// Flips some bits in the middle of a block; gives what it was.
fn flip(image: &Path, block: u64) -> Vec<u8> {
    let good = read_block(image, block);
    let mut bad = good.clone();
    for at in [100, 300] {
        bad[at] ^= 0x24;
    }
    write_block(image, block, &bad);
    good
}

fn superblock(image: &Path, slot: usize) -> Superblock {
    Superblock::decode(&read_block(image, SLOT_BLOCKS[slot].0)).unwrap()
}

/// Changes superblocks, with good checksums.
fn patch(image: &Path, slots: &[usize], change: impl Fn(&mut Superblock)) {
    for &slot in slots {
        let mut superblock = superblock(image, slot);
        change(&mut superblock);
        write_block(image, SLOT_BLOCKS[slot].0, &superblock.encode());
    }
}

/// The journal blocks that a mount would replay, in order: where each is, and its header.
fn live_journal(image: &Path) -> Vec<(u64, BlockHeader)> {
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

#[test]
fn what_is_not_a_volume() {
    let _turn = turn();
    let volume = Volume::new("64M");
    let (image, dir) = (volume.image(), volume.mountpoint());
    let ext4 = image.with_file_name("ext4.img");
    let mut kinds: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", Vec::new()),
        ("text", b"this is a letter\n".repeat(4000)),
        ("zeros", vec![0; 4 << 20]),
        ("noise", pattern(1, 4 << 20)),
    ];
    if has("mkfs.ext4", "what_is_not_a_volume (its ext4 part)") {
        std::fs::File::create(&ext4).unwrap().set_len(16 << 20).unwrap();
        run(Command::new("mkfs.ext4").arg("-q").arg(&ext4));
        kinds.push(("ext4", std::fs::read(&ext4).unwrap()));
    }
    for (kind, bytes) in kinds {
        eprintln!("{kind}");
        std::fs::write(&image, bytes).unwrap();
        refused(&volume, NOT_A_VOLUME, &["volume.img", "holds no Quire volume", "quire mkfs"]);
        keeping(&image, || {
            expect(&call!["info", image], NOT_A_VOLUME, &["holds no Quire volume"]);
            expect(&call!["dump", image, "tree"], NOT_A_VOLUME, &["volume.img"]);
            expect(&call!["fsck", image], FSCK_COULD_NOT_RUN, &["Quire volume"]);
            expect(&call!["fsck", "--repair", image], FSCK_COULD_NOT_RUN, &["Quire volume"]);
        });
    }
    std::fs::remove_file(&image).unwrap();
    expect(&mount(&volume, "", &image, &dir), MISSING, &["volume.img does not exist", "quire mkfs"]);
    expect(&mount(&volume, "", &dir, &dir), MISSING, &["is a folder"]);
    assert!(!image.exists(), "a mount makes no volume");
}

#[test]
fn a_truncated_image() {
    let _turn = turn();
    let volume = if can_mount("a_truncated_image (with files)") { filled() } else { Volume::new("64M") };
    let image = volume.image();
    let whole = std::fs::read(&image).unwrap();
    // In the data, inside a block, in the metadata pool, in the journal, between the superblocks.
    for length in [48 << 20, (48 << 20) + 777, 3 << 20, 1 << 20, 8 * BLOCK_SIZE, BLOCK_SIZE] {
        eprintln!("{length} bytes");
        std::fs::write(&image, &whole[..length]).unwrap();
        refused(&volume, DAMAGED, &["volume.img", "truncated", "restore it from a copy"]);
        keeping(&image, || {
            expect(&call!["fsck", image], FSCK_LEFT, &["volume-truncated"]);
            expect(&call!["fsck", "--repair", image], FSCK_LEFT, &["volume-truncated", "left"]);
        });
    }
    std::fs::write(&image, &whole).unwrap();
    volume.check();
}

/// What becomes of a superblock.
type Change = fn(&mut Superblock);

/// A superblock of the next version, and one with a feature that nobody knows: the change, and the word that names it.
fn from_the_future() -> [(String, Change); 2] {
    [
        (format!("format {}.3", FORMAT_MAJOR + 1), |superblock| superblock.version = (FORMAT_MAJOR + 1, 3)),
        ("bit 7".into(), |superblock| superblock.feature_incompat = 1 << 7),
    ]
}

#[test]
fn a_newer_format() {
    let _turn = turn();
    let volume = if can_mount("a_newer_format (with files)") { filled() } else { Volume::new("64M") };
    let image = volume.image();
    let original = SLOT_BLOCKS.map(|block| read_block(&image, block.0));
    for (word, change) in from_the_future() {
        patch(&image, &[0, 1], change);
        refused(&volume, NEWER_FORMAT, &["volume.img", &word]);
        keeping(&image, || {
            expect(&call!["info", image], NEWER_FORMAT, &[&word]);
            expect(&call!["fsck", image], FSCK_COULD_NOT_RUN, &[&word]);
            expect(&call!["fsck", "--repair", image], FSCK_COULD_NOT_RUN, &[&word]);
        });
        for (block, bytes) in SLOT_BLOCKS.iter().zip(&original) {
            write_block(&image, block.0, bytes);
        }
    }
    // A newer minor version is one that this program can read.
    patch(&image, &[0, 1], |superblock| superblock.version.1 += 9);
    expect(&call!["info", image], 0, &[]);
}

/// One slot is enough: a newer program was here, and may have been in the midst of something. To take the other slot
/// would overwrite what it did.
#[test]
fn a_newer_format_in_one_slot() {
    let _turn = turn();
    let volume =
        if can_mount("a_newer_format_in_one_slot (with files)") { filled() } else { Volume::new("64M") };
    let image = volume.image();
    for (word, change) in from_the_future() {
        for slot in [0, 1] {
            let original = read_block(&image, SLOT_BLOCKS[slot].0);
            patch(&image, &[slot], change);
            keeping(&image, || {
                expect(&call!["fsck", "--repair", image], FSCK_COULD_NOT_RUN, &[&word]);
            });
            refused(&volume, NEWER_FORMAT, &["volume.img", &word]);
            write_block(&image, SLOT_BLOCKS[slot].0, &original);
        }
    }
}

#[test]
fn an_unknown_feature_that_permits_reading() {
    let _turn = turn();
    if !can_mount("an_unknown_feature_that_permits_reading") {
        return;
    }
    for volume in [filled(), crashed()] {
        let (image, dir) = (volume.image(), volume.mountpoint());
        patch(&image, &[0, 1], |superblock| superblock.feature_ro_compat = 1 << 3);
        keeping(&image, || {
            expect(&mount_here(&volume, ""), 0, &["mounted read-only"]);
            holds_files(&dir, 0..8);
            let error = std::fs::write(dir.join("new"), "x").unwrap_err();
            assert_eq!(error.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
            unmount(&dir);
            let repair = call!["fsck", "--repair", image];
            assert_ne!(repair.status.code(), Some(FSCK_REPAIRED), "{}", text(&repair));
        });
    }
}

#[test]
fn a_read_only_mount_says_which_feature_asks_for_it() {
    let _turn = turn();
    if !can_mount("a_read_only_mount_says_which_feature_asks_for_it") {
        return;
    }
    let volume = Volume::new("64M");
    patch(&volume.image(), &[0, 1], |superblock| superblock.feature_ro_compat = 1 << 3);
    expect(&mount_here(&volume, ""), 0, &["mounted read-only", "bit 3"]);
    unmount(&volume.mountpoint());
}

#[test]
fn one_damaged_superblock_heals() {
    let _turn = turn();
    if !can_mount("one_damaged_superblock_heals") {
        return;
    }
    for (slot, name) in [(0, "A"), (1, "B")] {
        for after_crash in [false, true] {
            let volume = if after_crash { crashed() } else { filled() };
            let (image, dir) = (volume.image(), volume.mountpoint());
            flip(&image, SLOT_BLOCKS[slot].0);
            keeping(&image, || {
                let block = format!("superblock {name} (block {})", SLOT_BLOCKS[slot].0);
                expect(&call!["fsck", image], FSCK_LEFT, &[&block, "--repair"]);
                expect(&call!["info", image], 0, &["damaged"]);
            });
            expect(&mount_here(&volume, ""), 0, &["superblock", "not good", &format!("superblock {name}")]);
            holds_files(&dir, 0..8);
            std::fs::write(dir.join("more"), "more").unwrap();
            unmount(&dir);
            for slot in [0, 1] {
                superblock(&image, slot);
            }
            volume.check();
            expect(&mount_here(&volume, ""), 0, &[]);
            holds_files(&dir, 0..8);
            assert_eq!(std::fs::read(dir.join("more")).unwrap(), b"more");
            unmount(&dir);
        }
    }
}

#[test]
fn both_superblocks_damaged() {
    let _turn = turn();
    let volume =
        if can_mount("both_superblocks_damaged (with files)") { filled() } else { Volume::new("64M") };
    let image = volume.image();
    let good = SLOT_BLOCKS.map(|block| flip(&image, block.0));
    refused(&volume, DAMAGED, &["volume.img", "both superblocks", "checksum"]);
    keeping(&image, || {
        expect(&call!["info", image], DAMAGED, &["both superblocks"]);
        expect(&call!["fsck", image], FSCK_LEFT, &["superblock A", "superblock B"]);
        expect(&call!["fsck", "--repair", image], FSCK_LEFT, &["superblock A", "left"]);
    });
    // Also overwritten as a whole it is known for what it was, by its journal.
    if is_there(&image) {
        for block in SLOT_BLOCKS {
            write_block(&image, block.0, &[0x55; BLOCK_SIZE]);
        }
        refused(&volume, DAMAGED, &["both superblocks"]);
    }
    for (block, bytes) in SLOT_BLOCKS.iter().zip(good) {
        write_block(&image, block.0, &bytes);
    }
    volume.check();
}

/// Whether the journal's first block was ever written.
fn is_there(image: &Path) -> bool {
    BlockHeader::decode(&read_block(image, 16)).is_ok()
}

#[test]
fn a_damaged_journal_is_refused() {
    let _turn = turn();
    if !can_mount("a_damaged_journal_is_refused") {
        return;
    }
    let volume = crashed();
    let image = volume.image();
    let live = live_journal(&image);
    let promised = live.iter().map(|(_, header)| header.durable.0).max().unwrap();
    let durable: Vec<u64> = live
        .iter()
        .filter(|(_, header)| header.position + PAYLOAD_BYTES as u64 <= promised)
        .map(|(block, _)| *block)
        .collect();
    assert!(durable.len() >= 4, "{live:?}");
    for block in [durable[0], durable[durable.len() / 2], durable[durable.len() - 1]] {
        let good = flip(&image, block);
        refused(&volume, DAMAGED, &["volume.img", "the journal is damaged", "durable", "quire fsck"]);
        keeping(&image, || {
            expect(&mount_here(&volume, "ro"), DAMAGED, &["the journal is damaged"]);
            expect(&call!["fsck", image], FSCK_LEFT, &["journal"]);
        });
        write_block(&image, block, &good);
    }
    expect(&mount_here(&volume, ""), 0, &["recovered"]);
    holds_files(&volume.mountpoint(), 0..8);
    unmount(&volume.mountpoint());
    volume.check();
}

#[test]
fn a_torn_journal_is_not_damaged() {
    let _turn = turn();
    if !can_mount("a_torn_journal_is_not_damaged") {
        return;
    }
    let mut volume = Volume::new("64M").with_options("commit=3600");
    volume.mount();
    write_files(&volume.mountpoint(), 0..8);
    let before = live_journal(&volume.image()).last().unwrap().1.position;
    std::fs::create_dir(volume.path("last")).unwrap();
    std::fs::File::open(volume.path("last")).unwrap().sync_all().unwrap();
    volume.kill();
    let (last, header) = *live_journal(&volume.image()).last().unwrap();
    assert!(header.position > before, "the last fsync wrote a block of its own");
    flip(&volume.image(), last);
    volume.check();
    expect(&mount_here(&volume, ""), 0, &["recovered"]);
    holds_files(&volume.mountpoint(), 0..8);
    unmount(&volume.mountpoint());
    volume.check();
}

#[test]
fn a_volume_that_is_open_already() {
    let _turn = turn();
    if !can_mount("a_volume_that_is_open_already") {
        return;
    }
    let volume = filled();
    let (image, dir) = (volume.image(), volume.mountpoint());
    let second = image.with_file_name("second");
    std::fs::create_dir(&second).unwrap();
    expect(&mount_here(&volume, ""), 0, &[]);
    let mounted_at = format!("mounted at {}", dir.display());
    for options in ["", "ro"] {
        expect(&mount(&volume, options, &image, &second), IN_USE, &["already open", &mounted_at]);
        expect(&mount(&volume, options, &image, &dir), IN_USE, &["already mounted at", "quire umount"]);
    }
    expect(&call!["fsck", image], FSCK_COULD_NOT_RUN, &["already open"]);
    expect(&call!["fsck", "--repair", image], FSCK_COULD_NOT_RUN, &["already open"]);
    expect(&call!["mkfs", "--force", image], IN_USE, &["already open"]);
    let plain = call!["mkfs", image];
    assert!([IN_USE, MISSING].map(Some).contains(&plain.status.code()), "{}", text(&plain));
    assert!(!is_mounted(&second));
    // The one that has it goes on.
    holds_files(&dir, 0..8);
    write_files(&dir, 8..10);
    unmount(&dir);
    volume.check();

    // Readers stand one another, not a writer.
    expect(&mount_here(&volume, "ro"), 0, &[]);
    expect(&mount(&volume, "ro", &image, &second), 0, &[]);
    holds_files(&second, 0..10);
    unmount(&second);
    expect(&mount(&volume, "", &image, &second), IN_USE, &["already open", &mounted_at]);
    expect(&call!["fsck", image], 0, &["clean"]);
    unmount(&dir);
}

#[test]
fn mkfs_leaves_an_open_image_its_length() {
    let _turn = turn();
    if !can_mount("mkfs_leaves_an_open_image_its_length") {
        return;
    }
    let volume = filled();
    let (image, dir) = (volume.image(), volume.mountpoint());
    expect(&mount_here(&volume, ""), 0, &[]);
    for size in ["32M", "64M", "128M"] {
        expect(&call!["mkfs", "--force", format!("--size={size}"), image], IN_USE, &["already open"]);
        assert_eq!(std::fs::metadata(&image).unwrap().len(), 64 << 20, "after --size={size}");
    }
    holds_files(&dir, 0..8);
    unmount(&dir);
    volume.check();
}

#[test]
fn paths_through_a_file() {
    let _turn = turn();
    let volume = Volume::new("64M");
    let below = volume.image().join("below");
    keeping(&volume.image(), || {
        expect(&mount(&volume, "", &volume.image(), &below), MISSING, &["mount point", "below"]);
        expect(&mount(&volume, "", &below, &volume.mountpoint()), MISSING, &["volume", "below"]);
        expect(&call!["mkfs", "--size=64M", below], MISSING, &["below"]);
        expect(&call!["umount", below], MISSING, &["below"]);
    });
}

#[test]
fn mount_points_that_are_none() {
    let _turn = turn();
    let volume = Volume::new("64M");
    let image = volume.image();
    let at = |dir: &Path| keeping(&image, || mount(&volume, "", &image, dir));
    expect(&at(&volume.path("missing")), MISSING, &["mount point", "missing"]);
    let file = image.with_file_name("a file");
    std::fs::write(&file, "x").unwrap();
    expect(&at(&file), MISSING, &["mount point", "a file", "not a folder"]);
    expect(&at(Path::new("/proc")), IN_USE, &["already mounted at /proc", "another folder"]);
    expect(&call!["umount", volume.mountpoint()], MISSING, &["nothing is mounted at", "mnt"]);
    expect(&call!["umount", "--lazy", volume.mountpoint()], MISSING, &["nothing is mounted at"]);
    expect(&call!["umount", volume.path("missing")], MISSING, &["missing"]);
    expect(&call!["umount", "/proc"], MISSING, &["type proc"]);
    if !can_mount("mount_points_that_are_none (its second half)") {
        return;
    }
    let other = Volume::new("64M");
    expect(&mount_here(&other, ""), 0, &[]);
    expect(&at(&other.mountpoint()), IN_USE, &["already mounted at"]);
    // A mount that somebody works in stays, and says how to find out who.
    let user = std::fs::File::create(other.path("open")).unwrap();
    expect(&call!["umount", other.mountpoint()], IN_USE, &["in use", "--lazy"]);
    assert!(is_mounted(&other.mountpoint()));
    drop(user);
    unmount(&other.mountpoint());
    other.check();
}

/// A mount or a loop device that goes away at the end.
enum Attached {
    Mount(PathBuf),
    Loop(PathBuf),
}

impl Attached {
    fn mount(source: &Path, dir: &Path, words: &[&str]) -> Attached {
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

/// Mounts `source`, which leads to a crashed volume's image but not to write it; reads, and changes nothing.
fn serves_read_only(volume: &Volume, options: &str, source: &Path, words: &[&str]) {
    let dir = volume.mountpoint();
    keeping(&volume.image(), || {
        expect(&mount(volume, options, source, &dir), 0, words);
        holds_files(&dir, 0..8);
        let denied = Some(Errno::ROFS.raw_os_error());
        assert_eq!(std::fs::write(dir.join("new"), "x").unwrap_err().raw_os_error(), denied);
        assert_eq!(std::fs::remove_file(dir.join("file1")).unwrap_err().raw_os_error(), denied);
        assert_eq!(std::fs::create_dir(dir.join("folder")).unwrap_err().raw_os_error(), denied);
        unmount(&dir);
        expect(&call!["fsck", source], 0, &["clean"]);
        assert!(live_journal(&volume.image()).len() >= 8, "it still has to be replayed");
    });
}

#[test]
fn a_read_only_image_is_replayed_in_memory() {
    let _turn = turn();
    if !can_mount("a_read_only_image_is_replayed_in_memory") {
        return;
    }
    let volume = crashed();
    let image = volume.image();
    serves_read_only(&volume, "ro", &image, &[]);

    let folder = image.with_file_name("read-only");
    std::fs::create_dir(&folder).unwrap();
    {
        let _bound = Attached::mount(image.parent().unwrap(), &folder, &["--bind"]);
        run(Command::new("mount").args(["-o", "remount,bind,ro"]).arg(&folder));
        let bound = folder.join("volume.img");
        serves_read_only(&volume, "", &bound, &["may not be written", "mounted read-only"]);
        keeping(&image, || expect(&call!["mkfs", "--force", bound], FAILED, &["volume.img", "ead-only"]));
    }
    // Nothing was lost by all the looking.
    expect(&mount_here(&volume, ""), 0, &["recovered"]);
    holds_files(&volume.mountpoint(), 0..8);
    unmount(&volume.mountpoint());
    volume.check();
}

#[test]
fn a_read_only_device_is_replayed_in_memory() {
    let _turn = turn();
    let name = "a_read_only_device_is_replayed_in_memory";
    if !can_mount(name) || !has("losetup", name) {
        return;
    }
    let volume = crashed();
    let image = volume.image();
    let device = run(Command::new("losetup").args(["--read-only", "--find", "--show"]).arg(&image));
    let device = PathBuf::from(device.trim());
    let _attached = Attached::Loop(device.clone());
    serves_read_only(&volume, "ro", &device, &[]);
    serves_read_only(&volume, "", &device, &["may not be written", "mounted read-only"]);
    keeping(&image, || expect(&call!["mkfs", "--force", device], FAILED, &["ead-only"]));
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Kill,
    Unmount,
}

fn holds_big(volume: &Volume, numbers: &[u64]) {
    for &number in numbers {
        let found = std::fs::read(volume.path(&format!("big{number}")))
            .unwrap_or_else(|error| panic!("big{number} was fsynced: {error}"));
        assert!(found == pattern(number, 256 << 10), "big{number} has other bytes");
    }
}

/// A sparse image on a host file system that fills up: writes fail, what was fsynced is there when there is space again.
fn on_a_full_host(kind: &str, ending: Ending) {
    eprintln!("{kind}, {ending:?}");
    let place = tempfile::Builder::new().prefix("quire-host-").tempdir().unwrap();
    let host_dir = place.path().join("host");
    std::fs::create_dir(&host_dir).unwrap();
    let disk = place.path().join("disk.img");
    let _host = if kind == "tmpfs" {
        Attached::mount(Path::new("none"), &host_dir, &["-t", "tmpfs", "-o", "size=96M"])
    } else {
        std::fs::File::create(&disk).unwrap().set_len(96 << 20).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&disk));
        Attached::mount(&disk, &host_dir, &["-o", "loop"])
    };
    let ballast = host_dir.join("ballast");
    std::fs::write(&ballast, pattern(9, 40 << 20)).unwrap();

    let mut volume = Volume::new("16M");
    let real = host_dir.join("volume.img");
    std::fs::remove_file(volume.image()).unwrap();
    expect(&call!["mkfs", "--quiet", "--size=512M", real], 0, &[]);
    std::os::unix::fs::symlink(&real, volume.image()).unwrap();

    match ending {
        Ending::Kill => drop(volume.mount()),
        Ending::Unmount => expect(&mount_here(&volume, ""), 0, &[]),
    }
    let write = |number: u64, bytes: &[u8]| -> std::io::Result<()> {
        let mut file = std::fs::File::create(volume.path(&format!("big{number}")))?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    let (mut durable, mut failures) = (Vec::new(), 0);
    for number in 0..400 {
        match write(number, &pattern(number, 256 << 10)) {
            Ok(()) => durable.push(number),
            Err(error) => {
                let errno = Errno::from_io_error(&error).expect("an error of the system");
                let fits =
                    [Errno::NOSPC, Errno::IO].contains(&errno) || (failures > 0 && errno == Errno::ROFS);
                assert!(fits, "{error}");
                failures += 1;
                if failures == 5 {
                    break;
                }
            }
        }
    }
    assert!(failures > 0, "400 files of 256 KiB do not fit");
    assert!(durable.len() > 20, "only {} files fitted", durable.len());
    // It still serves what it has.
    holds_big(&volume, &durable);
    match ending {
        Ending::Unmount => {
            let output = call!["umount", volume.mountpoint()];
            assert!([0, FAILED, NO_SPACE].map(Some).contains(&output.status.code()), "{}", text(&output));
            assert!(!is_mounted(&volume.mountpoint()));
        }
        Ending::Kill => volume.kill(),
    }
    std::fs::remove_file(&ballast).unwrap();
    volume.check();
    volume.mount();
    holds_big(&volume, &durable);
    write_files(&volume.mountpoint(), 0..8);
    holds_files(&volume.mountpoint(), 0..8);
    volume.unmount();
    volume.check();
}

#[test]
fn a_full_host_disk_loses_nothing_that_was_fsynced() {
    let _turn = turn();
    let name = "a_full_host_disk_loses_nothing_that_was_fsynced";
    if !can_mount(name) {
        return;
    }
    for ending in [Ending::Kill, Ending::Unmount] {
        on_a_full_host("tmpfs", ending);
        if has("mkfs.ext4", name) {
            on_a_full_host("ext4", ending);
        }
    }
}

#[test]
fn mkfs_on_a_full_host_disk() {
    let _turn = turn();
    if !can_mount("mkfs_on_a_full_host_disk") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let _host = Attached::mount(Path::new("none"), place.path(), &["-t", "tmpfs", "-o", "size=1M"]);
    let image = place.path().join("a.img");
    expect(&call!["mkfs", "--size=64M", "--journal-size=2M", image], NO_SPACE, &["a.img", "space"]);
    // A half-made volume is no volume.
    if image.exists() {
        expect(&call!["info", image], NOT_A_VOLUME, &["holds no Quire volume"]);
    }
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Errno {
    Errno::from_io_error(&result.unwrap_err()).expect("an error of the system")
}

#[test]
fn names_past_the_limit() {
    let _turn = turn();
    if !can_mount("names_past_the_limit") {
        return;
    }
    let mut volume = Volume::new("64M");
    volume.mount();
    let long = "n".repeat(256);
    let fits = ["a", "b", "c", "d", "e", "f"].map(|letter| letter.repeat(255));
    // 255 bytes, not characters.
    let wide = "\u{e9}".repeat(127) + "x";
    let (file, folder) = (volume.path(&fits[0]), volume.path(&fits[1]));
    std::fs::write(&file, "kept").unwrap();
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink("nowhere", volume.path(&fits[2])).unwrap();
    std::fs::hard_link(&file, volume.path(&fits[3])).unwrap();
    std::fs::write(volume.path(&fits[4]), "moved").unwrap();
    std::fs::rename(volume.path(&fits[4]), folder.join(&fits[5])).unwrap();
    std::fs::write(volume.path(&wide), "wide").unwrap();

    for name in [long, "\u{e9}".repeat(128)] {
        let path = volume.path(&name);
        assert_eq!(errno(std::fs::write(&path, "x")), Errno::NAMETOOLONG);
        assert_eq!(errno(std::fs::create_dir(&path)), Errno::NAMETOOLONG);
        assert_eq!(errno(std::os::unix::fs::symlink("x", &path)), Errno::NAMETOOLONG);
        assert_eq!(errno(std::fs::hard_link(&file, &path)), Errno::NAMETOOLONG);
        assert_eq!(errno(std::fs::rename(&file, &path)), Errno::NAMETOOLONG);
        assert_eq!(errno(std::fs::metadata(&path)), Errno::NAMETOOLONG);
        assert_eq!(errno(std::fs::remove_file(&path)), Errno::NAMETOOLONG);
    }
    let target = "t".repeat(4095);
    std::os::unix::fs::symlink(&target, volume.path("far")).unwrap();
    assert_eq!(errno(std::os::unix::fs::symlink("t".repeat(4096), volume.path("x"))), Errno::NAMETOOLONG);

    volume.unmount();
    volume.check();
    volume.mount();
    assert_eq!(std::fs::read(&file).unwrap(), b"kept");
    assert_eq!(std::fs::read(volume.path(&fits[3])).unwrap(), b"kept");
    assert_eq!(std::fs::read(folder.join(&fits[5])).unwrap(), b"moved");
    assert_eq!(std::fs::read(volume.path(&wide)).unwrap(), b"wide");
    assert_eq!(std::fs::read_link(volume.path("far")).unwrap().as_os_str(), OsStr::new(&target));
    assert_eq!(std::fs::read_dir(volume.mountpoint()).unwrap().count(), 6);
    volume.unmount();
}

#[test]
fn sizes_past_the_limit() {
    let _turn = turn();
    if !can_mount("sizes_past_the_limit") {
        return;
    }
    const LAST: u64 = i64::MAX as u64;
    let mut volume = Volume::new("64M");
    volume.mount();
    let path = volume.path("file");
    let options = || {
        let mut options = std::fs::File::options();
        options.read(true).write(true).create(true).truncate(false);
        options
    };
    let file = options().open(&path).unwrap();
    file.write_all_at(b"head", 0).unwrap();
    let too_large = [Errno::FBIG, Errno::INVAL, Errno::OVERFLOW];
    let unchanged = |what: &str, error: Errno, size: u64| {
        assert!(too_large.contains(&error), "{what}: {error}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), size, "{what}");
    };
    let mut size = 4;
    for longest in [false, true] {
        unchanged("truncate to 2^63", rustix::fs::ftruncate(&file, 1 << 63).unwrap_err(), size);
        unchanged("write at 8 EiB - 1", rustix::io::pwrite(&file, b"x", LAST).unwrap_err(), size);
        unchanged("write at 2^63", rustix::io::pwrite(&file, b"x", 1 << 63).unwrap_err(), size);
        let flags = rustix::fs::FallocateFlags::empty();
        let error = rustix::fs::fallocate(&file, flags, LAST - 10, 4096).unwrap_err();
        unchanged("fallocate over the end", error, size);
        unchanged("a long write", rustix::io::pwrite(&file, &[0; 8192], LAST).unwrap_err(), size);
        if !longest {
            // The very last byte that a file can have.
            file.write_all_at(b"!", LAST - 1).unwrap();
            size = LAST;
        }
    }
    // A write that begins below the limit and would end above is cut there, or fails; it never grows past it.
    match rustix::io::pwrite(&file, b"1234567890", LAST - 4) {
        Ok(written) => assert!(written <= 4),
        Err(error) => assert!(too_large.contains(&error), "{error}"),
    }
    file.write_all_at(b"!", LAST - 1).unwrap();
    let direct = {
        use std::os::unix::fs::OpenOptionsExt;
        options().custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32).open(&path).unwrap()
    };
    let buffer = vec![0u8; 3 * BLOCK_SIZE];
    let aligned = buffer.as_ptr().align_offset(BLOCK_SIZE);
    let error = rustix::io::pwrite(&direct, &buffer[aligned..aligned + BLOCK_SIZE], 1 << 63).unwrap_err();
    assert!(too_large.contains(&error), "{error}");
    file.sync_all().unwrap();
    drop((file, direct));

    let whole = volume.path("truncated");
    let file = options().open(&whole).unwrap();
    file.set_len(LAST).unwrap();
    drop(file);
    volume.unmount();
    let started = Instant::now();
    volume.check();
    assert!(started.elapsed() < Duration::from_secs(20), "a check does not walk through holes");
    volume.mount();
    let file = options().open(&path).unwrap();
    let mut ends = [[0u8; 4], [0u8; 4]];
    file.read_exact_at(&mut ends[0], 0).unwrap();
    file.read_exact_at(&mut ends[1][..1], LAST - 1).unwrap();
    assert_eq!(ends, [*b"head", *b"!\0\0\0"]);
    assert_eq!(file.metadata().unwrap().len(), LAST);
    assert!(file.metadata().unwrap().blocks() <= 4 * 8);
    assert_eq!(std::fs::metadata(&whole).unwrap().len(), LAST);
    file.set_len(4).unwrap();
    std::fs::remove_file(&whole).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"head");
    drop(file);
    volume.unmount();
    volume.check();
}

#[test]
fn mkfs_refuses() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("a.img");
    let mkfs = |words: &[&str]| Command::new(QUIRE).arg("mkfs").args(words).arg(&image).output().unwrap();
    let long = format!("--label={}", "l".repeat(65));
    let wide = format!("--label={}", "\u{e9}".repeat(33));
    #[rustfmt::skip]
    let wrong: [(&[&str], i32, &[&str]); 15] = [
        (&[], MISSING, &["a.img does not exist", "size"]),
        (&["--size=1M"], USAGE, &["at least 16 MiB"]),
        (&["--size=0"], USAGE, &["at least 16 MiB"]),
        (&["--size=lots"], USAGE, &["'lots' is not a size", "10G"]),
        (&["--size=-1"], USAGE, &["'-1' is not a size"]),
        (&["--size=1.5G"], USAGE, &["'1.5G' is not a size"]),
        (&["--size=16E"], USAGE, &["larger than"]),
        (&["--size=7E"], USAGE, &["a volume has at most"]),
        (&["--size=64M", "--journal-size=4K"], USAGE, &["journal", "1 MiB", "4096"]),
        (&["--size=64M", "--journal-size=32M"], USAGE, &["journal", "a quarter"]),
        (&["--size=64M", "--journal-size=big"], USAGE, &["'big' is not a size"]),
        (&["--size=1T", "--journal-size=5G"], USAGE, &["journal", "at most 4 GiB"]),
        (&["--size=64M", &long], USAGE, &["label of 65 bytes", "at most 64"]),
        (&["--size=64M", &wide], USAGE, &["label of 66 bytes"]),
        (&["--size=64M", "--frobnicate"], USAGE, &["--frobnicate"]),
    ];
    for (words, code, says) in wrong {
        eprintln!("{words:?}");
        expect(&mkfs(words), code, says);
        assert!(!image.exists(), "a refused mkfs leaves no file");
    }
    expect(&call!["mkfs", "--size=64M", folder.path().join("no/a.img")], MISSING, &["no/a.img"]);
    expect(&call!["mkfs", "--size=64M", folder.path()], MISSING, &["directory"]);
    expect(&call!["mkfs", "--size=64M", "/dev/null"], NOT_A_VOLUME, &["neither an image file nor"]);
    expect(&call!["mkfs", "--size=64M"], USAGE, &["<VOLUME>"]);

    let label = "--label=first";
    expect(&mkfs(&["--size=64M", label]), 0, &["64 MiB", "first"]);
    let sizes: [&[&str]; 4] = [&[], &["--size=64M"], &["--size=32M"], &["--size=128M"]];
    let kept = |sizes: &[&[&str]], what: &str| {
        for words in sizes {
            keeping(&image, || expect(&mkfs(words), MISSING, &[what, "nothing was changed", "--force"]));
        }
    };
    let words = [long.as_str(), "--journal-size=4K", "--size=1M"];
    for word in words {
        keeping(&image, || expect(&mkfs(&["--force", word]), USAGE, &[]));
    }
    kept(&sizes, "");
    keeping(&image, || expect(&mkfs(&[]), MISSING, &["already holds a Quire volume"]));
    expect(&mkfs(&["--force", "--label=second"]), 0, &["64 MiB", "second"]);
    expect(&call!["fsck", image], 0, &["clean"]);

    std::fs::write(&image, "a letter").unwrap();
    kept(&sizes[1..], "a.img is not empty");
    keeping(&image, || expect(&mkfs(&[]), USAGE, &["at least 16 MiB"]));
    if has("mkfs.ext4", "mkfs_refuses (its ext4 part)") {
        std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        run(Command::new("mkfs.ext4").arg("-q").arg(&image));
        kept(&sizes, "");
        keeping(&image, || expect(&mkfs(&[]), MISSING, &["already holds an ext2, ext3 or ext4 file system"]));
        expect(&mkfs(&["--force"]), 0, &["64 MiB"]);
        expect(&call!["fsck", image], 0, &["clean"]);
    }
}

#[test]
fn mount_options_that_are_none() {
    let _turn = turn();
    let volume = Volume::new("64M");
    let (image, dir) = (volume.image(), volume.mountpoint());
    let helper = image.with_file_name("mount.quire");
    std::os::unix::fs::symlink(QUIRE, &helper).unwrap();
    for (options, words) in [
        ("fastplease", ["unknown mount option", "'fastplease'"]),
        ("rw,noatime,wings=2", ["unknown mount option", "'wings'"]),
        ("cache=fast", ["cache=fast", "cache=engine"]),
        ("cache_size=lots", ["cache_size", "not a size"]),
        ("cache_size=4K", ["cache_size=4K", "at least 8 MiB"]),
        ("commit=0", ["commit=0", "from 1 to 3600"]),
        ("threads=", ["threads=", "from 1 to 1024"]),
        ("remount", ["remount", "unmount and mount"]),
    ] {
        keeping(&image, || {
            expect(&mount_here(&volume, options), USAGE, &words);
            let output = Command::new(&helper).args([&image, &dir]).args(["-o", options]).output().unwrap();
            expect(&output, USAGE, &words);
        });
        assert!(!is_mounted(&dir));
    }
}

#[test]
fn exit_codes_of_fsck() {
    let _turn = turn();
    let volume = Volume::new("64M");
    let image = volume.image();
    keeping(&image, || expect(&call!["fsck", image], 0, &["clean"]));
    expect(&call!["fsck", "--repair", image], 0, &["clean"]);

    flip(&image, SLOT_BLOCKS[1].0);
    keeping(&image, || {
        expect(&call!["fsck", image], FSCK_LEFT, &["superblock-damaged", "superblock B", "--repair"]);
        expect(&call!["fsck", "-n", image], FSCK_LEFT, &["superblock-damaged"]);
        let output = call!["fsck", "--json", image];
        expect(&output, FSCK_LEFT, &[]);
        let report: serde_json::Value =
            serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
        assert_eq!(report["issues"].as_array().unwrap().len(), 1);
        assert_eq!(report["issues"][0]["repaired"], false);
    });
    expect(&call!["fsck", "--repair", image], FSCK_REPAIRED, &["repaired"]);
    keeping(&image, || expect(&call!["fsck", image], 0, &["clean"]));

    expect(
        &call!["fsck", volume.path("missing.img")],
        FSCK_COULD_NOT_RUN,
        &["missing.img", "does not exist"],
    );
    expect(&call!["fsck", volume.mountpoint()], FSCK_COULD_NOT_RUN, &["is a directory"]);
    expect(&call!["fsck", "/dev/null"], FSCK_COULD_NOT_RUN, &["neither an image file nor"]);
    expect(&call!["fsck"], FSCK_USAGE, &["<VOLUME>"]);
    expect(&call!["fsck", "--frobnicate", image], FSCK_USAGE, &["--frobnicate"]);
    expect(&call!["fsck", "-n", "--repair", image], FSCK_USAGE, &["cannot be used with"]);
    expect(&call!["fsck", image, image], FSCK_USAGE, &["unexpected"]);
}

const NOBODY: u32 = 65534;

/// A mount namespace of its own, in which `/dev/fuse` is open to everybody and fuse.conf allows nothing. It ends, with
/// every mount in it, when this is dropped.
struct UserWorld {
    folder: tempfile::TempDir,
    holder: Child,
}

impl UserWorld {
    fn new(test: &str) -> Option<UserWorld> {
        let programs = ["unshare", "nsenter", "setpriv", "fusermount3", "mknod"];
        if !can_mount(test) || !programs.iter().all(|program| has(program, test)) {
            return None;
        }
        let folder = tempfile::Builder::new().prefix("quire-user-").tempdir().unwrap();
        let at = folder.path();
        std::fs::set_permissions(at, PermissionsExt::from_mode(0o755)).unwrap();
        for name in ["dev", "home", "home/mnt", "rootdir"] {
            std::fs::create_dir(at.join(name)).unwrap();
        }
        std::fs::write(at.join("fuse.conf"), "").unwrap();
        // Where the program was built may be closed to others.
        std::fs::copy(QUIRE, at.join("quire")).unwrap();
        for name in ["home", "home/mnt"] {
            std::os::unix::fs::chown(at.join(name), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        // Other mounts that were copied into the namespace would outlive their unmount outside.
        let script = "awk '$3 == \"fuse.quire\" { print $2 }' /proc/mounts | xargs --no-run-if-empty umount --lazy; \
                      mount -t tmpfs -o mode=755 none dev && mknod -m 666 dev/fuse c 10 229 \
                      && mount --bind dev/fuse /dev/fuse \
                      && { test ! -e /etc/fuse.conf || mount --bind fuse.conf /etc/fuse.conf; } \
                      && echo ready && exec cat";
        let mut holder = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", script])
            .current_dir(at)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(holder.stdout.as_mut().unwrap()), &mut line)
            .unwrap();
        let world = UserWorld { folder, holder };
        if line != "ready\n" {
            eprintln!("\n*** SKIPPED {test}: no mount namespace of its own here ***\n");
            return None;
        }
        Some(world)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn in_it(&self, user: u32, words: &[&str]) -> Output {
        let id = user.to_string();
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id()));
        command.arg(format!("--wdns={}", self.folder.path().display()));
        command.args(["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups", "--"]).args(words);
        command.env("HOME", self.path("home")).env_remove("XDG_STATE_HOME");
        command.stdin(Stdio::null()).output().unwrap()
    }

    fn nobody(&self, words: &[&str]) -> Output {
        self.in_it(NOBODY, words)
    }

    fn root(&self, words: &[&str]) -> Output {
        self.in_it(0, words)
    }
}

impl Drop for UserWorld {
    fn drop(&mut self) {
        for dir in ["home/mnt", "rootdir"] {
            // Servers end with their mounts.
            let _ = self.root(&["umount", "--lazy", "--quiet", dir]);
        }
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

#[test]
fn an_ordinary_user_mounts_through_fusermount3() {
    let _turn = turn();
    let Some(world) = UserWorld::new("an_ordinary_user_mounts_through_fusermount3") else { return };
    expect(&world.nobody(&["./quire", "mkfs", "--size=64M", "home/a.img"]), 0, &["64 MiB"]);
    expect(&world.nobody(&["./quire", "umount", "home/mnt"]), MISSING, &["nothing is mounted at"]);
    for round in 0..2 {
        expect(&world.nobody(&["./quire", "mount", "home/a.img", "home/mnt"]), 0, &[]);
        if round == 1 {
            expect(&world.nobody(&["cat", "home/mnt/folder/file"]), 0, &["kept"]);
            expect(&world.nobody(&["stat", "-c", "%u %a", "home/mnt/folder/file"]), 0, &["65534 640"]);
        } else {
            expect(&world.nobody(&["mkdir", "home/mnt/folder"]), 0, &[]);
            let write = "echo kept > home/mnt/folder/file && chmod 640 home/mnt/folder/file && sync home/mnt/folder/file";
            expect(&world.nobody(&["sh", "-c", write]), 0, &[]);
        }
        let table = world.nobody(&["grep", "home/mnt", "/proc/mounts"]);
        expect(&table, 0, &["fuse.quire", "a.img", "user_id=65534", "nosuid", "nodev"]);
        // It is his alone.
        assert_ne!(world.root(&["ls", "home/mnt"]).status.code(), Some(0));
        expect(&world.nobody(&["./quire", "mount", "home/a.img", "home/mnt"]), IN_USE, &["already mounted"]);
        expect(&world.nobody(&["./quire", "umount", "home/mnt"]), 0, &[]);
        assert_ne!(world.nobody(&["grep", "home/mnt", "/proc/mounts"]).status.code(), Some(0));
        expect(&world.nobody(&["./quire", "fsck", "home/a.img"]), 0, &["clean"]);
    }
}

#[test]
fn what_an_ordinary_user_may_not() {
    let _turn = turn();
    let Some(world) = UserWorld::new("what_an_ordinary_user_may_not") else { return };
    expect(&world.nobody(&["./quire", "mkfs", "--quiet", "--size=64M", "home/a.img"]), 0, &[]);
    let image = world.path("home/a.img");
    let mount_at = |options: &str, source: &str, dir: &str| {
        keeping(&world.path(source), || {
            world.nobody(&["./quire", "mount", "-o", &format!("log=home/log,{options}"), source, dir])
        })
    };
    let refused = |output: &Output, words: &[&str]| {
        expect(output, NOT_PERMITTED, words);
        for dir in ["home/mnt", "rootdir"] {
            assert_ne!(world.root(&["grep", dir, "/proc/mounts"]).status.code(), Some(0), "{dir} is mounted");
        }
    };
    // Only where he may write.
    let elsewhere = world.nobody(&["./quire", "mount", "-o", "log=home/log", "home/a.img", "rootdir"]);
    refused(&elsewhere, &["rootdir", "fusermount3"]);
    let others =
        world.nobody(&["./quire", "mount", "-o", "log=home/log,allow_other", "home/a.img", "home/mnt"]);
    refused(&others, &["allow_other", "user_allow_other", "/etc/fuse.conf"]);
    expect(&world.nobody(&["./quire", "fsck", "home/a.img"]), 0, &["clean"]);

    // Not another's volume; one that he may only read, he reads.
    std::os::unix::fs::chown(&image, Some(0), Some(0)).unwrap();
    std::fs::set_permissions(&image, PermissionsExt::from_mode(0o600)).unwrap();
    refused(&mount_at("", "home/a.img", "home/mnt"), &["a.img", "ermission denied"]);
    keeping(&image, || {
        let fsck = world.nobody(&["./quire", "fsck", "home/a.img"]);
        expect(&fsck, FSCK_COULD_NOT_RUN, &["a.img", "ermission denied"]);
        let mkfs = world.nobody(&["./quire", "mkfs", "--force", "home/a.img"]);
        expect(&mkfs, NOT_PERMITTED, &["a.img", "ermission denied"]);
    });
    std::fs::set_permissions(&image, PermissionsExt::from_mode(0o644)).unwrap();
    keeping(&image, || {
        expect(&mount_at("", "home/a.img", "home/mnt"), 0, &["may not be written", "mounted read-only"]);
        assert_ne!(world.nobody(&["touch", "home/mnt/x"]).status.code(), Some(0));
        expect(&world.nobody(&["./quire", "umount", "home/mnt"]), 0, &[]);
    });

    // Not where the device is closed to him, and it says what would help.
    std::os::unix::fs::chown(&image, Some(NOBODY), Some(NOBODY)).unwrap();
    expect(&world.root(&["chmod", "600", "/dev/fuse"]), 0, &[]);
    let closed = world.nobody(&["./quire", "mount", "-o", "log=home/log", "home/a.img", "home/mnt"]);
    refused(&closed, &["/dev/fuse", "chmod 666 /dev/fuse"]);
    expect(&world.nobody(&["./quire", "fsck", "home/a.img"]), 0, &["clean"]);
}

#[test]
fn an_ordinary_user_may_not_unmount_for_others() {
    let _turn = turn();
    let Some(world) = UserWorld::new("an_ordinary_user_may_not_unmount_for_others") else { return };
    expect(&world.root(&["./quire", "mkfs", "--quiet", "--size=64M", "a.img"]), 0, &[]);
    expect(&world.root(&["./quire", "mount", "-o", "log=rootlog", "a.img", "rootdir"]), 0, &[]);
    let output = world.nobody(&["./quire", "umount", "rootdir"]);
    expect(&world.root(&["./quire", "umount", "rootdir"]), 0, &[]);
    expect(&output, NOT_PERMITTED, &["rootdir"]);
}
