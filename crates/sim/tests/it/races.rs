//! Races between calls that once lost data, each under many schedules.

use quire::inodes::{Create, FallocateMode, InodeRef, IoFlags, SetAttributes, XattrFlags};
use quire::{AlignedBuf, Commit, FormatOptions, RenameFlags, SyncOptions, Volume, VolumeOptions};
use quire_base::random::Random;
use quire_base::simulation::{self, Options};
use quire_base::sync::{Condvar, Mutex, thread};
use quire_device::SimulatedBackend;
use quire_device::simulated::{CrashPolicy, Hold, Image};
use sim::image;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: usize = 4096;

/// Runs `body` on a fresh volume under the schedule of `seed`. Gives what it tells, and the volume as it
/// comes back from the image that it cuts.
fn crashed<T: Send + 'static>(
    seed: u64,
    body: impl FnOnce(&Volume, &SimulatedBackend) -> (T, Image) + Send + 'static,
) -> (T, Volume) {
    crashed_with(seed, image::options(), body)
}

/// As [`crashed`], with these options but for threads and the time between commits.
fn crashed_with<T: Send + 'static>(
    seed: u64,
    options: VolumeOptions,
    body: impl FnOnce(&Volume, &SimulatedBackend) -> (T, Image) + Send + 'static,
) -> (T, Volume) {
    let run = move || {
        let options = options.threads(true).commit_seconds(1);
        let device = Arc::new(SimulatedBackend::new(8192));
        let format = FormatOptions::new().seed(1).clock(sim::image::clock());
        format.format_backend(device.clone()).unwrap();
        let volume = options.open_backend(device.clone()).unwrap();
        let cut = body(&volume, &device);
        device.cut_power(CrashPolicy::LoseAll);
        cut
    };
    let (told, image) = simulation::run(&Options { seed, step_limit: 1_000_000 }, run).unwrap();
    let device = Arc::new(SimulatedBackend::from_image(image));
    (told, image::options().open_backend(device).unwrap())
}

/// What the file `f` holds.
fn contents(volume: &Volume) -> Vec<u8> {
    let file = volume.inodes().lookup(&volume.inodes().root(), b"f").unwrap();
    let mut bytes = vec![0; file.size() as usize];
    volume.inodes().read_at(&file, &mut bytes, 0, IoFlags::empty()).unwrap();
    bytes
}

/// A truncate drops dirty blocks from memory before its record is in the journal. An fsync that looked in
/// between found a clean file, waited for nothing and returned; a crash then gave back what the blocks had
/// held before, neither what was fsynced nor the truncate. (Found by `sim`.)
#[test]
fn fsync_beside_a_truncate_covers_one_or_the_other() {
    for seed in 0..200 {
        let body = |volume: &Volume, device: &SimulatedBackend| {
            let file = volume.inodes().create(&volume.inodes().root(), b"f", &Create::file(0o644)).unwrap();
            volume.inodes().write_at(&file, &[1; 2 * BLOCK], 0, IoFlags::empty()).unwrap();
            volume.inodes().fsync(&file, false).unwrap();
            volume.inodes().write_at(&file, &[2; 2 * BLOCK], 0, IoFlags::empty()).unwrap();
            let truncate = {
                let (volume, file) = (volume.clone(), file.clone());
                thread::Builder::new().spawn(move || volume.inodes().set_len(&file, 0).unwrap()).unwrap()
            };
            volume.inodes().fsync(&file, true).unwrap();
            let image = device.crash(CrashPolicy::LoseAll);
            truncate.join().unwrap();
            ((), image)
        };
        let bytes = contents(&crashed(seed, body).1);
        assert!(bytes.iter().all(|byte| *byte == 2), "seed {seed}: an old block is back");
    }
}

/// The same race with a sync of the whole volume, which goes by the list of dirty inodes: the periodic commit
/// had journaled the write's times and taken the inode off that list, so only the truncate can have put it
/// there again.
#[test]
fn sync_beside_a_truncate_covers_one_or_the_other() {
    for seed in 0..400 {
        let body = |volume: &Volume, device: &SimulatedBackend| {
            let file = volume.inodes().create(&volume.inodes().root(), b"f", &Create::file(0o644)).unwrap();
            volume.inodes().write_at(&file, &[1; 2 * BLOCK], 0, IoFlags::empty()).unwrap();
            volume.sync().unwrap();
            volume.inodes().write_at(&file, &[2; 2 * BLOCK], 0, IoFlags::empty()).unwrap();
            thread::sleep(Duration::from_secs(3));
            let truncate = {
                let (volume, file) = (volume.clone(), file.clone());
                thread::Builder::new().spawn(move || volume.inodes().set_len(&file, 0).unwrap()).unwrap()
            };
            volume.sync().unwrap();
            let image = device.crash(CrashPolicy::LoseAll);
            truncate.join().unwrap();
            ((), image)
        };
        let bytes = contents(&crashed(seed, body).1);
        assert!(bytes.iter().all(|byte| *byte == 2), "seed {seed}: an old block is back");
    }
}

/// The record of a truncate, collapse or insert is in the journal before the operation is over, and another
/// caller's force may take it to the disk. A stat that came after a later unlink had returned still told the
/// old size; a crash then showed the new size, and the unlinked name: no order of the three explains both.
/// (Found by `sim`.)
#[test]
fn a_size_is_told_in_the_order_of_the_journal() {
    type Shrink = fn(&Volume, &InodeRef);
    let shrinks: [Shrink; 2] = [
        |volume, file| volume.inodes().set_len(file, BLOCK as u64).unwrap(),
        |volume, file| volume.inodes().allocate(file, FallocateMode::Collapse, 0, BLOCK as u64).unwrap(),
    ];
    let mut told_old = 0;
    for (shrink, seed) in shrinks.into_iter().flat_map(|shrink| (0..200).map(move |seed| (shrink, seed))) {
        let body = move |volume: &Volume, device: &SimulatedBackend| {
            let root = volume.inodes().root();
            let file = volume.inodes().create(&root, b"f", &Create::file(0o644)).unwrap();
            let other = volume.inodes().create(&root, b"other", &Create::file(0o644)).unwrap();
            volume.inodes().create(&root, b"goes", &Create::file(0o644)).unwrap();
            volume.inodes().write_at(&file, &[1; 2 * BLOCK], 0, IoFlags::empty()).unwrap();
            volume.sync().unwrap();
            let shrinks = {
                let (volume, file) = (volume.clone(), file.clone());
                thread::Builder::new().spawn(move || shrink(&volume, &file)).unwrap()
            };
            volume
                .inodes()
                .set_attributes(&other, &SetAttributes { mode: Some(0o600), ..Default::default() })
                .unwrap();
            volume.inodes().fsync(&other, false).unwrap();
            volume.inodes().remove_file(&root, b"goes").unwrap();
            let told = volume.inodes().metadata(&file).size();
            let image = device.crash(CrashPolicy::KeepAll);
            shrinks.join().unwrap();
            (told, image)
        };
        let (told, volume) = crashed(seed, body);
        let size = volume.inodes().lookup(&volume.inodes().root(), b"f").unwrap().size();
        let is_unlinked = volume.inodes().lookup(&volume.inodes().root(), b"goes").is_err();
        told_old += u64::from(told == 2 * BLOCK as u64);
        assert!(
            size >= told || is_unlinked,
            "seed {seed}: {told} was told after the unlink, {size} is there without it"
        );
    }
    assert!((20..380).contains(&told_old), "old sizes were told {told_old} times: the race is none");
}

/// A truncate zeroed the tail of a block that a later write then grew past; the size on disk waited for that
/// block, as it must. Another truncate dropped the block from memory; before its record was in the journal
/// the periodic commit found nothing dirty and raised the size. A crash showed, in the middle of the file,
/// the bytes that the first truncate had cut off. (Found by `sim`.)
#[test]
fn a_dropped_block_does_not_let_the_size_pass() {
    let cut = BLOCK + 100;
    let mut shown = [0; 2];
    for seed in 0..400 {
        let body = move |volume: &Volume, device: &SimulatedBackend| {
            let file = volume.inodes().create(&volume.inodes().root(), b"f", &Create::file(0o644)).unwrap();
            volume.inodes().write_at(&file, &[1; 2 * BLOCK], 0, IoFlags::empty()).unwrap();
            volume.sync().unwrap();
            volume.inodes().set_len(&file, cut as u64).unwrap();
            let other =
                volume.inodes().create(&volume.inodes().root(), b"other", &Create::file(0o644)).unwrap();
            volume.inodes().fsync(&other, false).unwrap();
            volume.inodes().write_at(&file, &[2; BLOCK], 2 * BLOCK as u64, IoFlags::DIRECT).unwrap();
            let truncate = {
                let (volume, file) = (volume.clone(), file.clone());
                let cuts_again = move || {
                    thread::sleep(Duration::from_millis(1000));
                    volume.inodes().set_len(&file, 0).unwrap();
                };
                thread::Builder::new().spawn(cuts_again).unwrap()
            };
            thread::sleep(Duration::from_millis(1000));
            (0..seed % 20).for_each(|_| thread::yield_now());
            let image = device.crash(CrashPolicy::KeepAll);
            truncate.join().unwrap();
            ((), image)
        };
        let bytes = contents(&crashed(seed, body).1);
        shown[usize::from(bytes.is_empty())] += 1;
        if bytes.len() > cut {
            let old = bytes[cut..].iter().take_while(|byte| **byte == 1).count();
            assert_eq!(old, 0, "seed {seed}: of {} bytes, {old} are back", bytes.len());
        }
    }
    assert!(shown.iter().all(|times| *times > 20), "before and after the truncate: {shown:?}");
}

/// An fallocate that has a file to itself writes back what has no place yet, and the size on disk stays
/// behind until it is over; of several runs the last one to finish may find another not quite done. A rename
/// over another file found nothing to write back then, and a crash behind the rename showed an empty file.
#[test]
fn a_rename_over_a_file_shows_all_of_the_new_one() {
    // Each other block, so that each is a run of its own.
    let end = 7 * BLOCK;
    for seed in 0..200 {
        let body = move |volume: &Volume, device: &SimulatedBackend| {
            let root = volume.inodes().root();
            let old = volume.inodes().create(&root, b"f", &Create::file(0o644)).unwrap();
            volume.inodes().write_at(&old, &[1; BLOCK], 0, IoFlags::empty()).unwrap();
            volume.sync().unwrap();
            let file = volume.inodes().create(&root, b"new", &Create::file(0o644)).unwrap();
            for at in (0..end).step_by(2 * BLOCK) {
                volume.inodes().write_at(&file, &[2; BLOCK], at as u64, IoFlags::empty()).unwrap();
            }
            let allocates = {
                let (volume, file) = (volume.clone(), file.clone());
                let allocate =
                    move || volume.inodes().allocate(&file, FallocateMode::KeepSize, 0, end as u64).unwrap();
                thread::Builder::new().spawn(allocate).unwrap()
            };
            volume.inodes().rename(&root, b"new", &root, b"f", RenameFlags::empty()).unwrap();
            volume.inodes().fsync(&root, false).unwrap();
            let image = device.crash(CrashPolicy::LoseAll);
            allocates.join().unwrap();
            ((), image)
        };
        let bytes = contents(&crashed(seed, body).1);
        assert_eq!(bytes.len(), end, "seed {seed}");
        assert!(bytes.iter().step_by(2 * BLOCK).all(|byte| *byte == 2), "seed {seed}: data is missing");
    }
}

/// An asynchronous direct write that is to be durable holds the gate until a syncer has served it. Syncers
/// that found an exclusive operation queued in the gate, behind such a write; when it had its
/// turn, and was done, it waited for one of them, and nothing ended any more.
#[test]
fn syncers_do_not_wait_behind_a_direct_write_that_waits_for_them() {
    for seed in 0..300 {
        let body = move |volume: &Volume, device: &SimulatedBackend| {
            let file = volume.inodes().create(&volume.inodes().root(), b"f", &Create::file(0o644)).unwrap();
            volume.inodes().write_at(&file, &[1; 8 * BLOCK], 0, IoFlags::empty()).unwrap();
            volume.sync().unwrap();
            let alone = {
                let (volume, file) = (volume.clone(), file.clone());
                let shrink = move || {
                    volume
                        .inodes()
                        .allocate(&file, FallocateMode::Collapse, 4 * BLOCK as u64, BLOCK as u64)
                        .unwrap()
                };
                thread::Builder::new().spawn(shrink).unwrap()
            };
            let told = Arc::new((Mutex::new(false), Condvar::new()));
            let direct = {
                let (volume, file, told) = (volume.clone(), file.clone(), told.clone());
                let write = move || {
                    let done = Box::new(move |_: AlignedBuf, outcome: quire::Result<usize>| {
                        assert_eq!(outcome.unwrap(), BLOCK);
                        *told.0.lock() = true;
                        told.1.notify_all();
                    });
                    volume.inodes().write_direct_then(
                        &file,
                        AlignedBuf::blocks(1),
                        0,
                        IoFlags::DATASYNC,
                        done,
                    );
                };
                thread::Builder::new().spawn(write).unwrap()
            };
            let first = volume.inodes().fsync_async(&file, &SyncOptions::new());
            (0..seed % 50).for_each(|_| thread::yield_now());
            let second = volume.inodes().fsync_async(&file, &SyncOptions::new());
            first.wait().unwrap();
            second.wait().unwrap();
            alone.join().unwrap();
            direct.join().unwrap();
            let mut is_told = told.0.lock();
            while !*is_told {
                told.1.wait(&mut is_told);
            }
            ((), device.crash(CrashPolicy::LoseAll))
        };
        assert_eq!(contents(&crashed(seed, body).1).len(), 7 * BLOCK, "seed {seed}");
    }
}

/// Two runs of a file were written back side by side, and each left the size on disk to the other. With lazy
/// times the periodic commit passed over the inode, so the file stayed short on disk until something else
/// changed it: a crash hours later lost a tail that had long been written.
#[test]
fn the_periodic_commit_journals_sizes_with_lazy_times_too() {
    for seed in 0..200 {
        let body = |volume: &Volume, device: &SimulatedBackend| {
            let file = volume.inodes().create(&volume.inodes().root(), b"f", &Create::file(0o644)).unwrap();
            for (offset, byte) in [(0, 1), (2 * BLOCK as u64, 2)] {
                volume.inodes().write_at(&file, &[byte; BLOCK], offset, IoFlags::UNCACHED).unwrap();
            }
            thread::sleep(Duration::from_secs(4));
            ((), device.crash(CrashPolicy::LoseAll))
        };
        let options = image::options().lazy_times(true);
        let bytes = contents(&crashed_with(seed, options, body).1);
        assert_eq!(bytes.len(), 3 * BLOCK, "seed {seed}: the tail is lost");
    }
}

/// A sync of the volume returned too early. It looked at every file, and then once more at the first one that
/// it had to wait for. If the data of that file had been written just then, the sync made its force and
/// returned, while the data of other files was still on its way.
#[test]
fn a_sync_waits_for_every_file() {
    const FILES: usize = 6;
    for seed in 0..300 {
        let body = move |volume: &Volume, device: &SimulatedBackend| {
            let create = |name: String| {
                let file = volume
                    .inodes()
                    .create(&volume.inodes().root(), name.as_bytes(), &Create::file(0o644))
                    .unwrap();
                volume.inodes().write_at(&file, &[1; BLOCK], 0, IoFlags::empty()).unwrap();
                file
            };
            // Every second one is written, so each is a request of its own.
            let all: Vec<InodeRef> = (0..2 * FILES).map(|number| create(format!("n{number}"))).collect();
            volume.sync().unwrap();
            let files: Vec<&InodeRef> = all.iter().step_by(2).collect();
            for file in &files {
                volume.inodes().write_at(file, &[2; BLOCK], 0, IoFlags::empty()).unwrap();
            }
            device.set_hold(Hold::Everything);
            let syncing = {
                let volume = volume.clone();
                let sync = move || {
                    if seed % 2 == 0 { volume.sync().unwrap() } else { volume.sync_async().wait().unwrap() }
                };
                thread::Builder::new().spawn(sync).unwrap()
            };
            while !syncing.is_finished() {
                if !device.release(0) {
                    thread::sleep(Duration::from_micros(100));
                }
                (0..seed / 2 % 4).for_each(|_| thread::yield_now());
            }
            syncing.join().unwrap();
            device.set_hold(Hold::Nothing);
            let image = device.crash(CrashPolicy::LoseAll);
            device.release_all(&mut Random::seeded(seed));
            ((), image)
        };
        let volume = crashed(seed, body).1;
        for number in (0..2 * FILES).step_by(2) {
            let file =
                volume.inodes().lookup(&volume.inodes().root(), format!("n{number}").as_bytes()).unwrap();
            let mut bytes = [0; BLOCK];
            volume.inodes().read_at(&file, &mut bytes, 0, IoFlags::empty()).unwrap();
            assert_eq!(bytes[0], 2, "seed {seed}: n{number} is not durable");
        }
    }
}

/// Properties were compared with what memory held, and memory took a new `untorn` only when the locks were
/// given back. Of two changes of a directory, memory kept one and the journal the other. And a change of
/// `cache` that came while the `untorn` of a file was on its way to the device wrote the old unit into the
/// record again: after a mount the promise was gone. (Found by `sim`.)
#[test]
fn properties_set_at_once_are_in_memory_as_on_disk() {
    const UNTORN: &[u8] = b"user.quire.untorn";
    for (is_directory, seed) in
        [true, false].into_iter().flat_map(|is_directory| (0..300).map(move |seed| (is_directory, seed)))
    {
        let body = move |volume: &Volume, device: &SimulatedBackend| {
            let inodes = volume.inodes();
            let (create, other): (_, (&[u8], &[u8])) = match is_directory {
                true => (Create::directory(0o755), (UNTORN, b"64k")),
                false => (Create::file(0o644), (b"user.quire.cache", b"drop")),
            };
            let inode = inodes.create(&inodes.root(), b"f", &create).unwrap();
            let set = {
                let (volume, inode) = (volume.clone(), inode.clone());
                let set =
                    move || volume.inodes().set_xattr(&inode, other.0, other.1, XattrFlags::empty()).unwrap();
                thread::Builder::new().spawn(set).unwrap()
            };
            inodes.set_xattr(&inode, UNTORN, b"16k", XattrFlags::empty()).unwrap();
            set.join().unwrap();
            volume.sync().unwrap();
            (inodes.properties(&inode), device.crash(CrashPolicy::LoseAll))
        };
        let (told, volume) = crashed(seed, body);
        let inode = volume.inodes().lookup(&volume.inodes().root(), b"f").unwrap();
        assert_eq!(volume.inodes().properties(&inode), told, "seed {seed}: the disk has other ones");
        assert!(
            told.untorn.is_some() && (is_directory || told.cache_drop),
            "seed {seed}: one is lost: {told:?}"
        );
    }
}

/// A change of a directory's names could be seen before the directory knew that its fsync has to cover it: an
/// fsync by whoever had seen the change found nothing to do, and a crash took the change back.
#[test]
fn who_sees_a_change_of_names_can_make_it_durable() {
    for seed in 0..400 {
        let there =
            move |volume: &Volume, name: &[u8]| volume.inodes().lookup(&volume.inodes().root(), name).is_ok();
        // What shows the change: a name that comes, or one that goes.
        let change = seed % 5;
        let shows =
            move |volume: &Volume| if change == 4 { !there(volume, b"f") } else { there(volume, b"new") };
        let body = move |volume: &Volume, device: &SimulatedBackend| {
            let root = volume.inodes().root();
            let file = volume.inodes().create(&root, b"f", &Create::file(0o644)).unwrap();
            volume.sync().unwrap();
            let changer = {
                let (volume, root) = (volume.clone(), root.clone());
                let body = move || match change {
                    0 | 1 => drop(volume.inodes().create(&root, b"new", &Create::file(0o644)).unwrap()),
                    2 => volume.inodes().hard_link(&file, &root, b"new").unwrap(),
                    3 => volume.inodes().rename(&root, b"f", &root, b"new", RenameFlags::empty()).unwrap(),
                    _ => volume.inodes().remove_file(&root, b"f").unwrap(),
                };
                thread::Builder::new().spawn(body).unwrap()
            };
            while !shows(volume) {
                thread::yield_now();
            }
            match change {
                // A new file is nothing without its name.
                1 => {
                    let new = volume.inodes().lookup(&root, b"new").unwrap();
                    volume.inodes().fsync(&new, true).unwrap();
                }
                _ => volume.inodes().fsync(&root, seed % 2 == 0).unwrap(),
            }
            let image = device.crash(CrashPolicy::LoseAll);
            changer.join().unwrap();
            ((), image)
        };
        assert!(shows(&crashed(seed, body).1), "seed {seed}: change {change} is gone");
    }
}

/// An insertion split the extent at its point, and then moved the extents behind it. A writeback of the
/// blocks before the point came in between, merged the two halves again, and the insertion left both where
/// they were: the size was that of the longer file, and its contents were not. (Found by `sim`.)
#[test]
fn an_insertion_moves_what_a_writeback_merges_meanwhile() {
    const AT: u64 = 32 * BLOCK as u64;
    for seed in 0..200 {
        let body = |volume: &Volume, device: &SimulatedBackend| {
            let file = volume.inodes().create(&volume.inodes().root(), b"f", &Create::file(0o644)).unwrap();
            // One run of blocks, of which only the second half is written.
            volume.inodes().allocate(&file, FallocateMode::Allocate, 0, 2 * AT).unwrap();
            volume.inodes().write_at(&file, &[2; AT as usize], AT, IoFlags::empty()).unwrap();
            volume.inodes().fsync(&file, false).unwrap();
            volume.inodes().write_at(&file, &[1; AT as usize], 0, IoFlags::empty()).unwrap();
            let insert = {
                let (volume, file) = (volume.clone(), file.clone());
                let insert = move || {
                    volume.inodes().allocate(&file, FallocateMode::Insert, AT, 4 * BLOCK as u64).unwrap();
                };
                thread::Builder::new().spawn(insert).unwrap()
            };
            volume.inodes().fsync(&file, false).unwrap();
            insert.join().unwrap();
            volume.inodes().fsync(&file, false).unwrap();
            ((), device.crash(CrashPolicy::LoseAll))
        };
        let bytes = contents(&crashed(seed, body).1);
        let expected = [vec![1; AT as usize], vec![0; 4 * BLOCK], vec![2; AT as usize]].concat();
        assert!(bytes == expected, "seed {seed}: the blocks behind the point have not moved");
    }
}

/// A group that cuts one file has all of its files to itself. A file that only grew told its old size until
/// the whole commit was over, and the cut one told the new size from its record on: a stat of both showed
/// half of a group for as long as it took to free the extents beyond the cut. Without a cut, the sizes rose
/// one after the other.
#[test]
fn the_sizes_of_a_group_are_told_at_once() {
    let cases = [(true, true), (true, false), (false, true), (false, false)];
    let mut waited = 0;
    for (is_cut, a_is_first, seed) in
        cases.into_iter().flat_map(|(is_cut, first)| (0..100).map(move |seed| (is_cut, first, seed)))
    {
        let body = move |volume: &Volume, device: &SimulatedBackend| {
            let inodes = volume.inodes();
            let create = || inodes.create(&inodes.root(), b"f", &Create::file(0o644));
            let first = create().unwrap();
            inodes.rename(&inodes.root(), b"f", &inodes.root(), b"g", RenameFlags::empty()).unwrap();
            let second = create().unwrap();
            let (a, b) = if a_is_first { (first, second) } else { (second, first) };
            inodes.write_at(&a, &[1; BLOCK], 0, IoFlags::empty()).unwrap();
            // More extents than one transaction frees.
            for block in (0..140).step_by(2) {
                inodes.write_at(&b, &[1; BLOCK], (block * BLOCK) as u64, IoFlags::empty()).unwrap();
            }
            volume.sync().unwrap();
            let old = (a.size(), b.size());
            let mut group = inodes.atomic();
            group.write_at(&a, &[2; 100], old.0).unwrap();
            match is_cut {
                true => group.set_len(&b, BLOCK as u64).unwrap(),
                false => group.write_at(&b, &[2; 100], old.1).unwrap(),
            }
            let commits = thread::Builder::new().spawn(move || group.commit(Commit::Ordered).unwrap());
            let mut looks = 0;
            while inodes.metadata(&b).size() == old.1 {
                looks += 1;
                thread::yield_now();
            }
            let told = inodes.metadata(&a).size();
            let read = inodes.read_at(&a, &mut [0; 100], old.0, IoFlags::empty()).unwrap();
            commits.unwrap().join().unwrap();
            ((looks, told - old.0, read), device.crash(CrashPolicy::KeepAll))
        };
        let (looks, told, read) = crashed(seed, body).0;
        waited += u32::from(looks > 0);
        assert_eq!((told, read), (100, 100), "seed {seed}, a cut: {is_cut}, grows first: {a_is_first}");
    }
    assert!(waited > 100, "the other thread looked before the commit {waited} times: the race is none");
}
