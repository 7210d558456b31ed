//! Images that are no volume, not a whole one, from a newer program, or damaged.

use std::path::Path;
use std::process::Command;

use quire_base::BLOCK_SIZE;
use quire_format::journal::{BlockHeader, PAYLOAD_BYTES};
use quire_format::superblock::{FORMAT_MAJOR, SLOT_BLOCKS, Superblock, far_slots};
use rustix::io::Errno;

use super::support::*;
use crate::common::{Volume, can_mount, has, pattern, run, text};

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
    expect(&mount(&volume, "", &dir, &dir), MISSING, &["is a directory"]);
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
        refused(&volume, DAMAGED, &["volume.img", "truncated", "restore it from a backup"]);
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

/// A superblock of the next version, and one with a feature that nobody knows: the change, and the word that
/// names it.
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

/// One slot is enough: a newer program was here, and may have been in the midst of something. To take the
/// other slot would overwrite what it did.
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
    // First copies that are damaged do not matter, as long as the second ones are there.
    let first = SLOT_BLOCKS.map(|block| flip(&image, block.0));
    keeping(&image, || expect(&call!["info", image], 0, &["damaged"]));
    for (block, bytes) in SLOT_BLOCKS.iter().zip(first) {
        write_block(&image, block.0, &bytes);
    }
    let blocks = superblock(&image, 0).block_count;
    let copies = [SLOT_BLOCKS, far_slots(blocks)].concat();
    let good: Vec<_> = copies.iter().map(|block| flip(&image, block.0)).collect();
    refused(&volume, DAMAGED, &["volume.img", "both superblocks", "checksum"]);
    keeping(&image, || {
        expect(&call!["info", image], DAMAGED, &["both superblocks"]);
        expect(&call!["fsck", image], FSCK_LEFT, &["superblock A", "superblock B"]);
        expect(&call!["fsck", "--repair", image], FSCK_LEFT, &["superblock A", "left"]);
    });
    // Also overwritten as a whole it is known for what it was, by its journal.
    if is_there(&image) {
        for block in &copies {
            write_block(&image, block.0, &[0x55; BLOCK_SIZE]);
        }
        refused(&volume, DAMAGED, &["both superblocks"]);
    }
    for (block, bytes) in copies.iter().zip(good) {
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
