//! Resizing a volume: every crash of it, with several fates of the unflushed writes.
//!
//! The volume was not closed, so its old ring holds records that recovery needs until the new one is
//! published. Where the new ring will lie, the blocks hold what an enlarged journal could take for its own:
//! blocks of this volume's journal, of the life that begins. (A file held a copy of the volume, which had
//! lived on.)
//!
//! Whatever a crash leaves is the volume as it was, with the old shape or the new one, clean for fsck before
//! and after recovery; and free blocks, pool and ring are as many blocks as before, so no space is lost.

use crate::images::{newest, on};
use quire::inodes::{Create, IoFlags, SetAttributes, XattrFlags};
use quire::internals::inspect;
use quire::{FormatOptions, ResizeOptions};
use quire_base::simulation::mistakes::{self, Mistake};
use quire_base::{BLOCK_SIZE, BlockNo, Seq};
use quire_device::SimulatedBackend;
use quire_device::simulated::{CrashPolicy, Image};
use quire_format::journal::{BlockHeader, PAYLOAD_BYTES};
use quire_format::superblock::Superblock;
use sim::image::{self, State, Thoroughness};
use sim::operation::{OpId, xattr_value};
use std::collections::BTreeMap;
use std::sync::Arc;

const VOLUME_BLOCKS: u64 = 8192;
const JOURNAL_BYTES: u64 = 4 << 20;

/// A volume that was never closed, with records in its journal.
fn unclosed(copies: u32) -> Image {
    let device = Arc::new(SimulatedBackend::new(VOLUME_BLOCKS));
    let format = FormatOptions::new().seed(3).clock(image::clock()).metadata_copies(copies);
    format.format_backend(device.clone()).unwrap();
    let volume = image::options().open_backend(device.clone()).unwrap();
    let inodes = volume.inodes();
    for name in ["n0", "n1", "n2"] {
        let file = inodes.create(&inodes.root(), name.as_bytes(), &Create::file(0o644)).unwrap();
        inodes.write_at(&file, &vec![name.as_bytes()[1]; 30 * BLOCK_SIZE], 0, IoFlags::empty()).unwrap();
        inodes.fsync(&file, false).unwrap();
        if name == "n0" {
            volume.checkpoint().unwrap();
        }
    }
    device.cut_power(CrashPolicy::LoseAll)
}

fn resized(image: &Image, options: &ResizeOptions) -> Arc<SimulatedBackend> {
    let device = on(image);
    options.resize_backend(device.clone()).unwrap();
    device
}

/// Fills the blocks that become the ring with what could be taken for its records: all but the first say that
/// more was durable.
fn with_stale_records(image: &Image, options: &ResizeOptions) -> Image {
    let ring = newest(&resized(image, options).visible()).journal();
    let end = inspect::Image::load(on(image)).unwrap().end;
    let superblock = newest(image);
    let mut image = image.clone();
    for piece in 1..ring.blocks {
        let position = end.0 + piece * PAYLOAD_BYTES as u64;
        let header = BlockHeader {
            volume: superblock.volume_id(),
            incarnation: superblock.incarnation + 1,
            position,
            durable: Seq(position),
            checkpoint: end,
            first_record: None,
        };
        let mut block = [0; BLOCK_SIZE];
        header.seal(&mut block);
        let at = ring.start.0 + position / PAYLOAD_BYTES as u64 % ring.blocks;
        image.write(BlockNo(at), &block);
    }
    image
}

/// Blocks that are free or belong to the pool or the ring: of a volume of one size always the same.
fn sum(found: &State, shape: &Superblock) -> u64 {
    found.free_blocks + found.pool_blocks + shape.journal_blocks
}

/// Goes through the crashes of a resize; gives how many images had each shape (blocks of the volume, of the
/// journal), or the first that is wrong.
fn crashes(
    image: &Image,
    options: &ResizeOptions,
    either_slot: bool,
) -> Result<BTreeMap<(u64, u64), u64>, String> {
    let thoroughness =
        Thoroughness { fsck_before: true, again: true, either_slot, ..Thoroughness::default() };
    let before = newest(image);
    let expected = image::recover(image, thoroughness).expect("the volume is whole before");
    let device = resized(image, options);
    let shape_of = |image: &Image| {
        let superblock = newest(image);
        (superblock.block_count, superblock.journal_blocks)
    };
    let new_shape = shape_of(&device.visible());
    let mut shapes = BTreeMap::new();
    for event in 0..=device.event_count() {
        let seed = event as u64;
        let writes = device.unsafe_writes_at(event).unwrap_or(0);
        let power =
            (0..if writes > 0 { 4 } else { 0 }).map(|fate| CrashPolicy::Power { seed: 100 * seed + fate });
        let others = [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::Killed { seed }];
        for policy in others.into_iter().chain(power) {
            let Some(crashed) = device.crash_at(event, policy) else { continue };
            let what = format!("event {event} of {}, {policy:?}", device.event_count());
            let found = image::recover(&crashed, thoroughness).map_err(|wrong| format!("{what}: {wrong}"))?;
            if let Some(difference) = expected.difference(&found) {
                return Err(format!("{what}: {difference}"));
            }
            let shape = newest(&crashed);
            let grown = shape.block_count - before.block_count;
            let (expected, found) = (sum(&expected, &before) + grown, sum(&found, &shape));
            if found != expected {
                return Err(format!("{what}: {found} blocks instead of {expected}"));
            }
            if event == device.event_count() && shape_of(&crashed) != new_shape {
                return Err(format!("{what}: a resize that had ended is lost"));
            }
            *shapes.entry(shape_of(&crashed)).or_default() += 1;
        }
    }
    Ok(shapes)
}

fn larger_journal() -> ResizeOptions {
    ResizeOptions::new().journal_bytes(JOURNAL_BYTES).clock(image::clock())
}

#[test]
fn a_crash_leaves_the_old_ring_or_the_new_one() {
    mistakes::with(None, || {
        for copies in [1, 2] {
            let options = larger_journal();
            let image = with_stale_records(&unclosed(copies), &options);
            let shapes = crashes(&image, &options, true).unwrap_or_else(|wrong| panic!("{wrong}"));
            println!("{shapes:?}");
            let new = (VOLUME_BLOCKS, JOURNAL_BYTES / BLOCK_SIZE as u64);
            assert_eq!(shapes.keys().copied().collect::<Vec<_>>(), [(VOLUME_BLOCKS, 256), new]);
            assert!(shapes.values().all(|images| *images > 20), "{shapes:?}");
            // Once more, from a ring that has moved already.
            let image = resized(&image, &options).visible();
            let options = larger_journal().journal_bytes(JOURNAL_BYTES + (1 << 20));
            let shapes = crashes(&image, &options, true).unwrap_or_else(|wrong| panic!("{wrong}"));
            assert_eq!(shapes.len(), 2, "{shapes:?}");
        }
    });
}

/// A ring in the data space is recovered from as any other, laps later.
#[test]
fn a_moved_ring_is_replayed() {
    mistakes::with(None, || {
        let options = larger_journal().journal_bytes(2 << 20);
        let device = resized(&with_stale_records(&unclosed(2), &options), &options);
        let volume = image::options().open_backend(device.clone()).unwrap();
        let inodes = volume.inodes();
        let file = inodes.create(&inodes.root(), b"n3", &Create::file(0o644)).unwrap();
        let thoroughness =
            Thoroughness { fsck_before: true, again: true, either_slot: true, ..Thoroughness::default() };
        for round in 1..=120u8 {
            let mode = SetAttributes { mode: Some(u32::from(round)), ..SetAttributes::default() };
            inodes.set_attributes(&file, &mode).unwrap();
            inodes
                .set_xattr(
                    &file,
                    b"user.x1",
                    &xattr_value(OpId(u64::from(round)), 60_000),
                    XattrFlags::empty(),
                )
                .unwrap();
            inodes.fsync(&file, false).unwrap();
            if round % 10 == 0 {
                let crashed = device.crash(CrashPolicy::Power { seed: u64::from(round) });
                let found = image::recover(&crashed, thoroughness).unwrap_or_else(|wrong| panic!("{wrong}"));
                assert_eq!(found.inodes[&file.number().0].shape.mode, u32::from(round));
            }
        }
        // More than two laps.
        let sequence = newest(&device.visible()).sequence;
        assert!(sequence.0 > 2 * (2 << 20), "{sequence}");
        device.cut_power(CrashPolicy::LoseAll);
    });
}

#[test]
fn a_crash_leaves_the_old_size_or_the_new_one() {
    mistakes::with(None, || {
        let small = unclosed(2);
        let mut image = Image::new(2 * VOLUME_BLOCKS);
        small.for_each(&mut |at, block| image.set(at, Some(block.clone())));
        let options = larger_journal().whole();
        let shapes = crashes(&image, &options, false).unwrap_or_else(|wrong| panic!("{wrong}"));
        println!("{shapes:?}");
        let new = (2 * VOLUME_BLOCKS, JOURNAL_BYTES / BLOCK_SIZE as u64);
        assert_eq!(shapes.keys().copied().collect::<Vec<_>>(), [(VOLUME_BLOCKS, 256), new]);
    });
}

#[test]
#[ignore = "scripts/mistakes runs it"]
fn each_mistake_is_found_by_its_case() {
    let options = larger_journal();
    let image = mistakes::with(None, || with_stale_records(&unclosed(2), &options));
    for mistake in [Mistake::OldRingReleasedEarly, Mistake::NewRingWrittenLate] {
        let found = mistakes::with(Some(mistake), || crashes(&image, &options, true));
        println!("{mistake:?}: {found:?}");
        assert!(found.is_err(), "{mistake:?} is not found");
    }
}
