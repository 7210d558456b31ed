//! Growing a volume in use: every crash of it, and of the writes behind it, with several fates of the
//! unflushed writes.
//!
//! The volume is full and has a snapshot, so what is written behind the growth lies in the new space alone.
//! Whatever a crash leaves is the volume with its old size or the new one, clean for fsck before and after
//! recovery, from either superblock slot alone as well; no space is lost, and what was synced is there.

use crate::images::{newest, on};
use quire::inodes::{Create, FallocateMode, InodeRef, IoFlags};
use quire::{ErrorKind, FormatOptions, Volume};
use quire_base::BLOCK_SIZE;
use quire_base::simulation::mistakes;
use quire_device::SimulatedBackend;
use quire_device::simulated::{CrashPolicy, Image};
use sim::image::{self, State, Thoroughness};
use std::collections::BTreeMap;
use std::sync::Arc;

const OLD_BLOCKS: u64 = 8192;
const NEW_BLOCKS: u64 = 2 * OLD_BLOCKS;
/// Blocks of each file that is written behind the growth.
const FILE_BLOCKS: usize = 40;
const FILES: u8 = 3;

fn file(volume: &Volume, name: &str) -> InodeRef {
    volume.inodes().create(&volume.inodes().root(), name.as_bytes(), &Create::file(0o644)).unwrap()
}

fn written(volume: &Volume, name: &str, byte: u8) {
    let inode = file(volume, name);
    volume.inodes().write_at(&inode, &vec![byte; FILE_BLOCKS * BLOCK_SIZE], 0, IoFlags::empty()).unwrap();
    volume.inodes().fsync(&inode, false).unwrap();
}

/// A full volume on a device with room for a larger one.
fn full() -> (Arc<SimulatedBackend>, Volume) {
    let small = Arc::new(SimulatedBackend::new(OLD_BLOCKS));
    FormatOptions::new().seed(3).clock(image::clock()).format_backend(small.clone()).unwrap();
    let mut image = Image::new(NEW_BLOCKS);
    small.visible().for_each(&mut |at, block| image.set(at, Some(block.clone())));
    let device = on(&image);
    let volume = image::options().open_backend(device.clone()).unwrap();
    written(&volume, "n0", 7);
    volume.take_snapshot("before").unwrap();
    // Pieces that become smaller until none fits any more.
    let filler = file(&volume, "n1");
    let (mut at, mut piece) = (0, 1024 * BLOCK_SIZE as u64);
    while piece >= BLOCK_SIZE as u64 {
        match volume.inodes().allocate(&filler, FallocateMode::KeepSize, at, piece) {
            Ok(()) => at += piece,
            Err(error) if error.kind() == ErrorKind::NoSpace => piece /= 2,
            Err(error) => panic!("{error}"),
        }
    }
    volume.sync().unwrap();
    let inode = file(&volume, "n2");
    let more = vec![1; FILE_BLOCKS * BLOCK_SIZE];
    assert!(volume.inodes().write_at(&inode, &more, 0, IoFlags::empty()).is_err(), "it is not full");
    volume.sync().unwrap();
    (device, volume)
}

/// Goes through the crashes; gives how many images had each size, or the first that is wrong.
fn crashes() -> Result<BTreeMap<u64, u64>, String> {
    let (device, volume) = full();
    let thoroughness =
        Thoroughness { fsck_before: true, again: true, either_slot: true, ..Thoroughness::default() };
    let from = device.event_count();
    let expected = image::recover(&device.visible(), thoroughness)?;
    volume.grow_whole().unwrap();
    let grown = device.event_count();
    // By when each file had been synced.
    let mut synced = Vec::new();
    for number in 1..=FILES {
        written(&volume, &format!("n{}", 10 + number), number);
        synced.push(device.event_count());
    }
    let space = |found: &State| found.free_blocks + found.pool_blocks;
    let mut sizes = BTreeMap::new();
    for event in from..=device.event_count() {
        let seed = event as u64;
        let writes = device.unsafe_writes_at(event).unwrap_or(0);
        let power =
            (0..if writes > 0 { 3 } else { 0 }).map(|fate| CrashPolicy::Power { seed: 100 * seed + fate });
        let others = [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::Killed { seed }];
        for policy in others.into_iter().chain(power) {
            let Some(crashed) = device.crash_at(event, policy) else { continue };
            let wrong = |what: String| format!("event {event} ({from}, {grown}), {policy:?}: {what}");
            let found = image::recover(&crashed, thoroughness).map_err(wrong)?;
            let blocks = newest(&crashed).block_count;
            if event <= grown {
                if let Some(difference) = expected.difference(&found) {
                    return Err(wrong(difference));
                }
                let (expected, found) = (space(&expected) + blocks - OLD_BLOCKS, space(&found));
                if found != expected {
                    return Err(wrong(format!("{found} blocks instead of {expected}")));
                }
            } else if blocks != NEW_BLOCKS {
                return Err(wrong(format!("{blocks} blocks after the growth")));
            }
            let volume = image::options().read_only(true).open_backend(on(&crashed)).unwrap();
            let is_there = |name: &str, byte: u8| {
                volume.read(name).is_ok_and(|bytes| bytes == vec![byte; FILE_BLOCKS * BLOCK_SIZE])
            };
            let lost = synced
                .iter()
                .zip(1..)
                .find(|(end, number)| **end <= event && !is_there(&format!("n{}", 10 + number), *number));
            if let Some((_, number)) = lost {
                return Err(wrong(format!("n{} is lost", 10 + number)));
            }
            let before = image::options().read_only(true).snapshot("before").open_backend(on(&crashed));
            let before =
                before.and_then(|before| before.read("n0")).map_err(|error| wrong(error.to_string()))?;
            if !is_there("n0", 7) || before != vec![7; FILE_BLOCKS * BLOCK_SIZE] {
                return Err(wrong("an old file is another one".into()));
            }
            *sizes.entry(blocks).or_default() += 1;
        }
    }
    Ok(sizes)
}

#[test]
fn a_crash_leaves_the_old_size_or_the_new_one() {
    mistakes::with(None, || {
        let sizes = crashes().unwrap_or_else(|wrong| panic!("{wrong}"));
        println!("{sizes:?}");
        assert_eq!(sizes.keys().copied().collect::<Vec<_>>(), [OLD_BLOCKS, NEW_BLOCKS]);
        assert!(sizes.values().all(|images| *images > 20), "{sizes:?}");
    });
}
