//! Durability of single operations: what must be there after a power cut right behind a sync.

use crate::common::{BLOCK, file, new_volume, options};
use quire::inodes::{CAPABILITIES, FallocateMode, InodeRef, IoFlags, SetAttributes, XattrFlags};
use quire::{
    AlignedBuf, Clock, Commit, FormatOptions, OpenOptions, Result, Timestamp, Volume, VolumeOptions,
};
use quire_device::simulated::{CrashPolicy, Event, Hold};
use quire_device::{IoClass, SimulatedBackend};
use std::sync::Arc;
use std::time::Duration;

/// The volume as a power cut now leaves it, everything unsafe lost.
fn after_power_cut(device: &SimulatedBackend) -> Volume {
    let image = device.crash(CrashPolicy::LoseAll);
    options().open_backend(Arc::new(SimulatedBackend::from_image(image))).unwrap()
}

/// SQLite in rollback mode commits by unlinking its journal and then calls fdatasync, not fsync, on the
/// directory. A directory's fdatasync waited for nothing, since only the sequence that fsync looks at was
/// raised by names; after a crash the journal was back and the committed transaction was rolled back.
#[test]
fn fdatasync_of_a_directory_makes_an_unlink_durable() {
    let (device, volume) = new_volume(16384);
    file(&volume, "journal");
    volume.sync().unwrap();
    volume.inodes().remove_file(&volume.inodes().root(), b"journal").unwrap();
    volume.inodes().fsync(&volume.inodes().root(), true).unwrap();
    assert!(
        after_power_cut(&device)
            .inodes()
            .lookup(&after_power_cut(&device).inodes().root(), b"journal")
            .is_err()
    );
}

#[test]
fn fdatasync_of_a_new_empty_file_makes_it_durable() {
    let (device, volume) = new_volume(16384);
    let new = file(&volume, "new");
    volume.inodes().fsync(&new, true).unwrap();
    let after = after_power_cut(&device);
    assert_eq!(after.inodes().lookup(&after.inodes().root(), b"new").unwrap().number(), new.number());
}

/// The flags of the target were dropped, and its copy was lost; so was an allocation.
#[test]
fn copies_and_allocations_in_a_file_opened_with_data_sync_are_durable_when_they_return() {
    let (device, volume) = new_volume(16384);
    volume.write("from", [7; 9000]).unwrap();
    let from = volume.open_file("from").unwrap();
    for (name, options) in
        [("sync", OpenOptions::new().sync(true)), ("data", OpenOptions::new().data_sync(true))]
    {
        let to = options.write(true).create(true).open(&volume, name).unwrap();
        assert_eq!(from.copy_range_to(0, &to, 0, 9000).unwrap(), 9000);
        assert_eq!(after_power_cut(&device).read(name).unwrap(), [7; 9000]);
        to.allocate(9000, 1000).unwrap();
        assert_eq!(after_power_cut(&device).metadata(name).unwrap().len(), 10_000);
    }
}

#[test]
fn o_dsync_writes_are_durable_when_they_return() {
    let (device, volume) = new_volume(16384);
    let log = file(&volume, "log");
    for round in 0..20u8 {
        volume.inodes().write_at(&log, &[round; 700], 0, IoFlags::APPEND | IoFlags::DATASYNC).unwrap();
        let after = after_power_cut(&device);
        let found = after.inodes().lookup(&after.inodes().root(), b"log").unwrap();
        assert_eq!(found.size(), (u64::from(round) + 1) * 700);
        let mut last = [0; 700];
        after.inodes().read_at(&found, &mut last, u64::from(round) * 700, IoFlags::empty()).unwrap();
        assert_eq!(last, [round; 700]);
    }
}

#[test]
fn nothing_is_written_to_sync_a_clean_file() {
    let (device, volume) = new_volume(16384);
    let clean = file(&volume, "clean");
    volume.inodes().write_at(&clean, b"contents", 0, IoFlags::empty()).unwrap();
    volume.inodes().fsync(&clean, false).unwrap();
    let before = device.event_count();
    volume.inodes().fsync(&clean, false).unwrap();
    volume.inodes().fsync(&clean, true).unwrap();
    assert_eq!(device.event_count(), before, "fsync of a clean file is no I/O at all");
}

#[test]
fn an_overwrite_in_place_is_data_and_one_flush() {
    let (device, volume) = new_volume(16384);
    let table = file(&volume, "table");
    volume.inodes().write_at(&table, &[1; 65536], 0, IoFlags::empty()).unwrap();
    volume.inodes().fsync(&table, false).unwrap();
    volume.inodes().write_at(&table, &[2; 4096], 4096, IoFlags::empty()).unwrap();
    let before = device.event_count();
    volume.inodes().fsync(&table, true).unwrap();
    // Submission and completion of one write and of one flush.
    assert_eq!(device.event_count() - before, 4, "{:?}", device.events(before..device.event_count()));
}

/// While the background wrote data back, every force that carried a name or an attribute took two flushes:
/// each record waited for all data that had been written, of whatever file.
#[test]
fn names_attributes_and_frees_wait_for_no_data() {
    use quire::RenameFlags;
    use quire::inodes::{Create, SetAttributes, XattrFlags};
    type Step = fn(&Volume) -> quire::Result<()>;
    let steps: [(&str, Step); 9] = [
        ("create", |volume| {
            volume.inodes().create(&volume.inodes().root(), b"new", &Create::file(0o644)).map(drop)
        }),
        ("mkdir", |volume| {
            volume.inodes().create(&volume.inodes().root(), b"dir", &Create::directory(0o755)).map(drop)
        }),
        ("link", |volume| {
            let old = volume.inodes().lookup(&volume.inodes().root(), b"old")?;
            volume.inodes().hard_link(&old, &volume.inodes().root(), b"link")
        }),
        ("rename", |volume| {
            volume.inodes().rename(
                &volume.inodes().root(),
                b"link",
                &volume.inodes().root(),
                b"moved",
                RenameFlags::empty(),
            )
        }),
        ("chmod", |volume| {
            let old = volume.inodes().lookup(&volume.inodes().root(), b"old")?;
            volume
                .inodes()
                .set_attributes(&old, &SetAttributes { mode: Some(0o600), ..SetAttributes::default() })
                .map(drop)
        }),
        ("setxattr", |volume| {
            let old = volume.inodes().lookup(&volume.inodes().root(), b"old")?;
            volume.inodes().set_xattr(&old, b"user.a", b"b", XattrFlags::empty())
        }),
        ("truncate", |volume| {
            volume.inodes().set_len(&volume.inodes().lookup(&volume.inodes().root(), b"old")?, 5000)
        }),
        ("unlink", |volume| volume.inodes().remove_file(&volume.inodes().root(), b"old")),
        ("free", |volume| {
            volume.inodes().remove_file(&volume.inodes().root(), b"moved")?;
            volume.drain_orphans();
            Ok(())
        }),
    ];
    let (device, volume) = new_volume(16384);
    let table = file(&volume, "table");
    volume.inodes().write_at(&table, &[1; 65536], 0, IoFlags::empty()).unwrap();
    volume.inodes().write_at(&file(&volume, "old"), &[2; 65536], 0, IoFlags::empty()).unwrap();
    volume.sync().unwrap();
    for (what, step) in steps {
        // Overwritten in place and written back, not flushed.
        volume.inodes().write_at(&table, &[3; 8192], 4096, IoFlags::THROUGH).unwrap();
        step(&volume).unwrap();
        // A force covers all records before its own.
        volume
            .inodes()
            .create(&volume.inodes().root(), format!("after {what}").as_bytes(), &Create::file(0o644))
            .unwrap();
        let before = device.event_count();
        volume.inodes().fsync(&volume.inodes().root(), false).unwrap();
        let events = device.events(before..device.event_count());
        let flushes = events.iter().filter(|event| matches!(event, Event::FlushCompleted { .. })).count();
        assert_eq!(flushes, 1, "{what}");
    }
}

/// The record of a rename over a file waits for the data of the new one: data written over data has no record
/// of its own that would.
#[test]
fn a_rename_over_a_file_waits_for_its_data() {
    let (device, volume) = new_volume(16384);
    let root = volume.inodes().root();
    for name in ["t", "tmp"] {
        volume.inodes().write_at(&file(&volume, name), &[1; 8192], 0, IoFlags::empty()).unwrap();
    }
    volume.sync().unwrap();
    let tmp = volume.inodes().lookup(&root, b"tmp").unwrap();
    volume.inodes().write_at(&tmp, &[2; 8192], 0, IoFlags::empty()).unwrap();
    volume.inodes().rename(&root, b"tmp", &root, b"t", quire::RenameFlags::empty()).unwrap();
    let before = device.event_count();
    volume.inodes().fsync(&root, false).unwrap();
    let events = device.events(before..device.event_count());
    let is_flush = |event: &Event| matches!(event, Event::FlushCompleted { .. });
    let is_journal =
        |event: &Event| matches!(event, Event::WriteSubmitted { class: Some(IoClass::Journal), .. });
    let flush = events.iter().position(is_flush).unwrap();
    assert!(flush < events.iter().position(is_journal).unwrap(), "{events:?}");
}

/// A device that fails a data write must not make fsync lie, not even the second time.
#[test]
fn fsync_fails_until_the_data_is_written() {
    // Not in the journal.
    const MORE: usize = 160 << 10;
    use quire_device::IoClass;
    use quire_device::simulated::{Fault, FaultOp};
    let (device, volume) = new_volume(16384);
    let table = file(&volume, "table");
    volume.inodes().write_at(&table, &[1; MORE], 0, IoFlags::empty()).unwrap();
    device.inject(Fault::on(FaultOp::Write).class(IoClass::Data).times(3));
    assert!(volume.inodes().fsync(&table, false).is_err());
    assert!(volume.inodes().fsync(&table, false).is_err(), "a second fsync must not say clean");
    device.clear_faults();
    volume.inodes().fsync(&table, false).unwrap();
    let after = after_power_cut(&device);
    let found = after.inodes().lookup(&after.inodes().root(), b"table").unwrap();
    let mut contents = [0; MORE];
    assert_eq!(after.inodes().read_at(&found, &mut contents, 0, IoFlags::empty()).unwrap(), MORE);
    assert_eq!(contents, [1; MORE]);
}

/// An error in the journal ends changes for good; reads go on.
#[test]
fn a_journal_error_shuts_the_volume_down() {
    use quire_device::IoClass;
    use quire_device::simulated::{Fault, FaultOp};
    let (device, volume) = new_volume(16384);
    let table = file(&volume, "table");
    volume.inodes().write_at(&table, b"before", 0, IoFlags::empty()).unwrap();
    volume.sync().unwrap();
    device.inject(Fault::on(FaultOp::Write).class(IoClass::Journal).times(1));
    file(&volume, "lost");
    assert!(volume.sync().is_err());
    let refused = volume.inodes().write_at(&table, b"after", 0, IoFlags::empty()).unwrap_err();
    assert_eq!(refused.kind(), quire::ErrorKind::Shutdown, "{refused}");
    assert!(volume.inodes().fsync(&table, false).is_err());
    let mut contents = [0; 6];
    volume.inodes().read_at(&table, &mut contents, 0, IoFlags::empty()).unwrap();
    assert_eq!(&contents, b"before");
}

/// A shrink whose zeroed tail was still in the cache, growth over it by writing, then an explicit growth:
/// only the block at the end in memory was put on disk before the new size was journaled. After a crash the
/// bytes that the shrink had cut off were back, in the middle of the file.
#[test]
fn what_a_truncate_cut_off_does_not_come_back() {
    let (device, volume) = new_volume(16384);
    let table = file(&volume, "table");
    volume.inodes().write_at(&table, &[7; 4096], 0, IoFlags::empty()).unwrap();
    volume.inodes().fsync(&table, false).unwrap();
    volume.inodes().set_len(&table, 100).unwrap();
    volume.inodes().write_at(&table, &[8; 4900], 0, IoFlags::APPEND).unwrap();
    volume.inodes().set_len(&table, 10_000).unwrap();
    // Anything that forces the journal.
    volume.inodes().fsync(&file(&volume, "other"), false).unwrap();
    let after = after_power_cut(&device);
    let found = after.inodes().lookup(&after.inodes().root(), b"table").unwrap();
    let mut contents = vec![0; found.size() as usize];
    after.inodes().read_at(&found, &mut contents, 0, IoFlags::empty()).unwrap();
    let cut = contents.iter().skip(100).position(|&byte| byte == 7);
    assert_eq!(cut, None, "bytes cut off by the truncate are back in a file of {} bytes", contents.len());
}

/// Several runs of one file that finish in any order, blocks dirtied again between them: whatever order that
/// was, the size on disk must cover what an fsync has promised when it returns.
#[test]
fn fsync_covers_its_own_growth_among_appenders() {
    let device = Arc::new(SimulatedBackend::new(32768));
    device.stop_recording();
    FormatOptions::new().seed(1).format_backend(device.clone()).unwrap();
    let with_threads = VolumeOptions::new().threads(true).cache_bytes(8 << 20);
    let volume = with_threads.open_backend(device.clone()).unwrap();
    let log = file(&volume, "log");
    std::thread::scope(|scope| {
        for thread in 0..3u8 {
            let (volume, log, device) = (&volume, &log, &device);
            scope.spawn(move || {
                for _ in 0..60 {
                    let (at, len) =
                        volume.inodes().append(log, &vec![thread + 1; 2500], IoFlags::empty()).unwrap();
                    volume.inodes().fsync(log, true).unwrap();
                    let image = device.crash(CrashPolicy::LoseAll);
                    let backend = Arc::new(SimulatedBackend::from_image(image));
                    let after = options().read_only(true).open_backend(backend).unwrap();
                    let found = after.inodes().lookup(&after.inodes().root(), b"log").unwrap();
                    let mut contents = vec![0; len];
                    let read = after.inodes().read_at(&found, &mut contents, at, IoFlags::empty()).unwrap();
                    assert_eq!(
                        read,
                        len,
                        "the size after a crash is {}, the append reached {}",
                        found.size(),
                        at + 2500
                    );
                    assert!(contents.iter().all(|&byte| byte == thread + 1));
                }
            });
        }
    });
    drop(log);
    volume.close().unwrap();
}

/// A crash in the middle of a collapse leaves a logged operation and a file of which half has moved. A
/// read-only mount replayed the journal in memory and showed that half-moved file, since it could not journal
/// the rest; now it finishes the operation over a copy in memory.
#[test]
fn a_read_only_mount_shows_no_half_moved_file() {
    use quire::inodes::FallocateMode;
    let (device, volume) = new_volume(16384);
    let moved = file(&volume, "moved");
    // Many extents, so that the move takes several transactions.
    for block in 0..1500u64 {
        volume.inodes().write_at(&moved, &[block as u8; 4096], 2 * block * 4096, IoFlags::empty()).unwrap();
        if block % 64 == 0 {
            volume.inodes().fsync(&moved, false).unwrap();
        }
    }
    volume.sync().unwrap();
    let begun = device.event_count();
    volume.inodes().allocate(&moved, FallocateMode::Collapse, 4096, 3 * 4096).unwrap();
    let ended = device.event_count();
    let contents = |backend: Arc<dyn quire_device::Backend>, read_only: bool| {
        let volume = options().read_only(read_only).open_backend(backend).unwrap();
        let found = volume.inodes().lookup(&volume.inodes().root(), b"moved").unwrap();
        let mut bytes = vec![0; found.size() as usize];
        assert_eq!(volume.inodes().read_at(&found, &mut bytes, 0, IoFlags::empty()).unwrap(), bytes.len());
        drop(found);
        bytes
    };
    // The records are one journal write of several blocks: the power tears it between them.
    for (event, seed) in (begun..=ended).flat_map(|event| (0..24).map(move |seed| (event, seed))) {
        let image = device.crash_at(event, CrashPolicy::Power { seed }).unwrap();
        let looked_at = Arc::new(SimulatedBackend::from_image(image.clone()));
        let seen = contents(looked_at.clone(), true);
        assert_eq!(looked_at.event_count(), 0, "a read-only mount wrote");
        let settled = contents(Arc::new(SimulatedBackend::from_image(image)), false);
        assert!(seen == settled, "event {event}, seed {seed}");
    }
}

/// syncfs looked at a file's size once, after its data was written. Of two runs the later one finished first,
/// and its block was written again before the other run was done: the size stayed at the gap between them,
/// although everything up to the old end had been written. (Found by `sim`.)
#[test]
fn syncfs_covers_growth_whose_last_block_is_written_again_meanwhile() {
    let (device, volume) = new_volume(16384);
    drop(volume);
    // With threads: what has been written is finished behind the waiters' backs. A cache so large that
    // nothing is written before the sync asks for it.
    let finishing = options().threads(true).commit_seconds(1000).cache_bytes(128 << 20);
    let volume = finishing.open_backend(device.clone()).unwrap();
    let log = file(&volume, "log");
    volume.sync().unwrap();
    // More than one write takes.
    let end = (4 << 20) + 100;
    volume.inodes().write_at(&log, &vec![1; end as usize], 0, IoFlags::empty()).unwrap();
    device.set_hold(Hold::Submitted);
    let size = std::thread::scope(|scope| {
        let sync = scope.spawn(|| volume.sync().map(|()| device.crash(CrashPolicy::LoseAll)));
        while device.held() < 2 {
            assert!(!sync.is_finished(), "several writes were to be held");
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(50));
        // Waits until the last block is out of writeback: the newest write, on a machine that was quick
        // enough.
        let rewrite = scope.spawn(|| volume.inodes().write_at(&log, &[2; 50], end, IoFlags::empty()));
        while !rewrite.is_finished() {
            device.release(device.held().saturating_sub(1));
            std::thread::sleep(Duration::from_millis(10));
        }
        rewrite.join().unwrap().unwrap();
        while !sync.is_finished() {
            device.release(0);
            std::thread::yield_now();
        }
        let image = sync.join().unwrap().unwrap();
        device.set_hold(Hold::Nothing);
        let after = options().open_backend(Arc::new(SimulatedBackend::from_image(image))).unwrap();
        after.inodes().lookup(&after.inodes().root(), b"log").unwrap().size()
    });
    assert!(size >= end, "size {size} after a sync");
}

/// While an operation has a file to itself the size on disk stays where it is, whatever is written back. An
/// fallocate that writes back what has no place yet left a clean file whose size on disk was that from before
/// the data: the rename over another file found nothing to write back, and a crash behind the rename left an
/// empty file.
#[test]
fn a_rename_over_a_file_finds_the_size_that_an_fallocate_kept_back() {
    use quire::RenameFlags;
    use quire::inodes::FallocateMode;
    let keep = [
        FallocateMode::KeepSize,
        FallocateMode::Allocate,
        FallocateMode::ZeroRange { keep_size: true },
        FallocateMode::ZeroRange { keep_size: false },
    ];
    for mode in keep {
        let (device, volume) = new_volume(16384);
        let root = volume.inodes().root();
        volume.inodes().write_at(&file(&volume, "t"), &[1; 5000], 0, IoFlags::empty()).unwrap();
        volume.sync().unwrap();
        let new = file(&volume, "tmp");
        volume.inodes().write_at(&new, &[2; 65_536], 0, IoFlags::empty()).unwrap();
        volume.inodes().allocate(&new, mode, 0, 65_536).unwrap();
        volume.inodes().rename(&root, b"tmp", &root, b"t", RenameFlags::empty()).unwrap();
        volume.inodes().fsync(&root, false).unwrap();
        let after = after_power_cut(&device);
        let found = after.inodes().lookup(&after.inodes().root(), b"t").unwrap();
        let mut contents = vec![9; 65_536];
        assert_eq!(
            after.inodes().read_at(&found, &mut contents, 0, IoFlags::empty()).unwrap(),
            65_536,
            "{mode:?}"
        );
        let zeroed = matches!(mode, FallocateMode::ZeroRange { .. });
        assert!(contents.iter().all(|&byte| byte == if zeroed { 0 } else { 2 }), "{mode:?}");
    }
}

/// The size on disk follows what was written back meanwhile when an operation that had the file to itself is
/// over: it need not wait for somebody to ask for it.
#[test]
fn an_fallocate_does_not_keep_the_size_back_when_it_is_over() {
    use quire::inodes::FallocateMode;
    let (device, volume) = new_volume(16384);
    let grown = file(&volume, "grown");
    volume.inodes().write_at(&grown, &[2; 65_536], 0, IoFlags::empty()).unwrap();
    volume.inodes().allocate(&grown, FallocateMode::KeepSize, 0, 65_536).unwrap();
    // Anything that forces the journal.
    volume.inodes().fsync(&file(&volume, "other"), false).unwrap();
    let after = after_power_cut(&device);
    assert_eq!(after.inodes().lookup(&after.inodes().root(), b"grown").unwrap().size(), 65_536);
}

/// A write that goes to the device at once failed when that did, though the cache had it already: a caller
/// who tried again appended the same twice. The write has succeeded; the next fsync has the error.
#[test]
fn a_write_stands_whose_way_to_the_device_fails() {
    use quire::ErrorKind;
    use quire_device::simulated::{Fault, FaultOp};
    // More than goes through the journal.
    const MORE: usize = 160 << 10;
    for (flags, len) in [(IoFlags::THROUGH, MORE), (IoFlags::UNCACHED, MORE), (IoFlags::DIRECT, MORE + 700)] {
        let (device, volume) = new_volume(16384);
        let log = file(&volume, "log");
        volume.inodes().write_at(&log, &[1; 700], 0, IoFlags::empty()).unwrap();
        volume.inodes().fsync(&log, false).unwrap();
        device.inject(Fault::on(FaultOp::Write).class(IoClass::Data).times(u64::MAX));
        let data = vec![2; len];
        let written = volume.inodes().write_at(&log, &data, 0, flags | IoFlags::APPEND);
        assert_eq!(written.unwrap(), len, "{flags:?}");
        assert_eq!(log.size(), 700 + len as u64);
        let mut read = vec![0; len];
        assert_eq!(volume.inodes().read_at(&log, &mut read, 700, IoFlags::empty()).unwrap(), len);
        assert_eq!(read, data);
        let refused = volume.inodes().fsync(&log, true).expect_err(&format!("{flags:?}"));
        assert_eq!(refused.kind(), ErrorKind::Io, "{flags:?}");
        device.clear_faults();
        volume.inodes().fsync(&log, true).unwrap();
        let after = after_power_cut(&device);
        assert_eq!(after.inodes().lookup(&after.inodes().root(), b"log").unwrap().size(), 700 + len as u64);
    }
}

/// A volume, opened anew, whose file `table` has an extent for every other of its 800 blocks, in several tree
/// leaves, and 700 bytes in its last block that no sync has covered.
fn scattered() -> (Arc<SimulatedBackend>, Volume, quire::inodes::InodeRef) {
    let (device, volume) = new_volume(16384);
    let table = file(&volume, "table");
    for block in 0..400 {
        volume.inodes().write_at(&table, &[1; 4096], 2 * block * 4096, IoFlags::empty()).unwrap();
    }
    volume.close().unwrap();
    drop(table);
    let volume = options().open_backend(device.clone()).unwrap();
    let table = volume.inodes().lookup(&volume.inodes().root(), b"table").unwrap();
    volume.inodes().write_at(&table, &[2; 700], 798 * 4096 + 100, IoFlags::empty()).unwrap();
    (device, volume, table)
}

fn assert_unsynced_data_is_there(volume: &Volume, table: &quire::inodes::InodeRef, what: &str) {
    let mut block = [0; 4096];
    assert_eq!(
        volume.inodes().read_at(table, &mut block, 798 * 4096, IoFlags::empty()).unwrap(),
        4096,
        "{what}"
    );
    assert!(block[100..800].iter().all(|byte| *byte == 2), "{what}: unsynced data is gone");
    assert!(block[800..].iter().all(|byte| *byte == 1), "{what}");
}

/// Truncate, punch and zero dropped dirty blocks from the cache before they had read the tree leaves that
/// they needed. When that failed, the call failed as well, but the unsynced data was lost, and the next fsync
/// said that all was well.
#[test]
fn a_truncate_or_a_punch_that_cannot_read_keeps_unsynced_data() {
    use quire::inodes::FallocateMode;
    use quire_device::simulated::{Fault, FaultOp};
    type Operation = fn(&Volume, &quire::inodes::InodeRef) -> quire::Result<()>;
    let operations: [(&str, Operation); 4] = [
        ("truncate", |volume, table| volume.inodes().set_len(table, 676 * 4096)),
        ("punch", |volume, table| {
            volume.inodes().allocate(table, FallocateMode::PunchHole, 676 * 4096, 123 * 4096)
        }),
        ("zero", |volume, table| {
            volume.inodes().allocate(
                table,
                FallocateMode::ZeroRange { keep_size: true },
                700 * 4096 + 1,
                99 * 4096,
            )
        }),
        ("zero of many", |volume, table| {
            volume.inodes().allocate(table, FallocateMode::ZeroRange { keep_size: true }, 9, 799 * 4096 - 9)
        }),
    ];
    for (name, operation) in operations {
        for skip in 0.. {
            let what = format!("{name}, read {skip} fails");
            let (device, volume, table) = scattered();
            device.inject(Fault::on(FaultOp::Read).after(skip).times(u64::MAX));
            let outcome = operation(&volume, &table);
            device.clear_faults();
            if outcome.is_ok() {
                assert!(skip > 0, "{name} reads something");
                break;
            }
            if volume.failure().is_some() {
                // The operation is logged, and the next mount finishes it.
                continue;
            }
            assert_unsynced_data_is_there(&volume, &table, &what);
            assert_eq!(table.size(), 799 * 4096, "{what}");
            volume.inodes().fsync(&table, false).unwrap();
            let after = after_power_cut(&device);
            let found = after.inodes().lookup(&after.inodes().root(), b"table").unwrap();
            assert_unsynced_data_is_there(&after, &found, &what);
            for block in [0, 675, 676, 677, 700] {
                let mut now = [0; 4096];
                after.inodes().read_at(&found, &mut now, block * 4096, IoFlags::empty()).unwrap();
                assert!(now.iter().all(|byte| *byte == 1 - (block % 2) as u8), "{what}: block {block}");
            }
        }
    }
}

/// A write took a program's set-id bits and capabilities away in memory: a crash brought them back, on what
/// the writer had put there.
#[test]
fn no_crash_gives_rights_back_to_what_was_written_since() {
    let (device, volume) = new_volume(4096);
    let program = file(&volume, "program");
    let inodes = volume.inodes();
    inodes.write_at(&program, &[1; BLOCK], 0, IoFlags::empty()).unwrap();
    let make_set_id = SetAttributes { mode: Some(0o4777), ..SetAttributes::default() };
    for kills in [false, true] {
        inodes.set_attributes(&program, &make_set_id).unwrap();
        inodes.set_xattr(&program, CAPABILITIES, &[1; 20], XattrFlags::empty()).unwrap();
        volume.sync().unwrap();
        inodes.remove_xattr(&program, CAPABILITIES).unwrap();
        if kills {
            // As a front end does before a write that it knows to be of somebody else.
            let kill = SetAttributes { kill_suid_sgid: true, ..SetAttributes::default() };
            inodes.set_attributes(&program, &kill).unwrap();
        }
        inodes.write_at(&program, &[2; BLOCK], 0, IoFlags::DATASYNC).unwrap();
        let image = Arc::new(SimulatedBackend::from_image(device.crash(CrashPolicy::LoseAll)));
        let after = options().open_backend(image).unwrap();
        assert_eq!(after.read("program").unwrap(), [2; BLOCK]);
        let found = after.inodes().lookup(&after.inodes().root(), b"program").unwrap();
        assert_eq!(after.inodes().metadata(&found).mode() & 0o7777, 0o777);
        assert!(after.inodes().get_xattr(&found, CAPABILITIES).is_err());
    }
}

/// Only a mount's front end took a program's capabilities away. They stayed for whatever a program that links
/// the library had written, truncated, or given to another owner.
#[test]
fn what_changes_a_program_ends_its_capabilities_for_good() {
    type Change = fn(&Volume, &InodeRef);
    let changes: [(&str, Change); 8] = [
        ("write", |volume, program| {
            volume.inodes().write_at(program, &[2; BLOCK], 0, IoFlags::DATASYNC).unwrap();
        }),
        ("past the cache", |volume, program| {
            let (buffer, done) = (
                AlignedBuf::zeroed(BLOCK),
                Box::new(|_, outcome: Result<usize>| {
                    outcome.unwrap();
                }),
            );
            volume.inodes().write_direct_then(program, buffer, 0, IoFlags::DATASYNC, done);
        }),
        ("truncate", |volume, program| volume.inodes().set_len(program, 10).unwrap()),
        ("punch", |volume, program| {
            volume.inodes().allocate(program, FallocateMode::PunchHole, 0, 10).unwrap();
        }),
        ("group", |volume, program| {
            let mut group = volume.inodes().atomic();
            group.write_at(program, &[2; BLOCK], 0).unwrap();
            group.commit(Commit::Ordered).unwrap();
        }),
        ("size", |volume, program| {
            let set = SetAttributes { size: Some(10), ..SetAttributes::default() };
            volume.inodes().set_attributes(program, &set).unwrap();
        }),
        ("owner", |volume, program| {
            let set = SetAttributes { uid: Some(7), ..SetAttributes::default() };
            volume.inodes().set_attributes(program, &set).unwrap();
        }),
        ("group of the owner", |volume, program| {
            let set = SetAttributes { gid: Some(7), mode: Some(0o755), ..SetAttributes::default() };
            volume.inodes().set_attributes(program, &set).unwrap();
        }),
    ];
    for (name, change) in changes {
        let (device, volume) = new_volume(4096);
        let program = file(&volume, "program");
        let inodes = volume.inodes();
        inodes.write_at(&program, &[1; BLOCK], 0, IoFlags::empty()).unwrap();
        inodes.set_xattr(&program, b"user.note", b"stays", XattrFlags::empty()).unwrap();
        // The second time it is known that there are none.
        for _ in 0..2 {
            change(&volume, &program);
            inodes.set_xattr(&program, CAPABILITIES, &[1; 20], XattrFlags::empty()).unwrap();
            volume.sync().unwrap();
            change(&volume, &program);
            assert!(inodes.get_xattr(&program, CAPABILITIES).is_err(), "{name}");
            let image = Arc::new(SimulatedBackend::from_image(device.crash(CrashPolicy::LoseAll)));
            let after = options().open_backend(image).unwrap();
            let found = after.inodes().lookup(&after.inodes().root(), b"program").unwrap();
            assert!(after.inodes().get_xattr(&found, CAPABILITIES).is_err(), "{name}, after a crash");
            assert_eq!(after.inodes().get_xattr(&found, b"user.note").unwrap(), b"stays");
        }
    }
    // A directory's owner says nothing about what is in it, and a mode leaves capabilities, as Linux does.
    let (_device, volume) = new_volume(4096);
    let (root, program) = (volume.inodes().root(), file(&volume, "program"));
    let keeps = [
        (&root, SetAttributes { uid: Some(7), ..SetAttributes::default() }),
        (&program, SetAttributes { mode: Some(0o700), ..SetAttributes::default() }),
    ];
    for (inode, set) in keeps {
        volume.inodes().set_xattr(inode, CAPABILITIES, &[1; 20], XattrFlags::empty()).unwrap();
        volume.inodes().set_attributes(inode, &set).unwrap();
        assert_eq!(volume.inodes().get_xattr(inode, CAPABILITIES).unwrap(), [1; 20]);
    }
}

/// Programs replace a file's contents without an fsync. What was cut off and written anew leaves with the
/// close.
#[test]
fn a_file_that_was_cut_off_and_rewritten_is_written_back_at_its_close() {
    for auto in [true, false] {
        let (device, volume) = new_volume(16384);
        volume.close().unwrap();
        let volume = options().auto_da_alloc(auto).open_backend(device.clone()).unwrap();
        let blocks_of = |byte: u8| {
            let mut count = 0;
            device.visible().for_each(&mut |_, block| count += usize::from(block[..] == [byte; BLOCK]));
            count
        };
        volume.write("config", [1; 3 * BLOCK]).unwrap();
        volume.sync().unwrap();
        volume.write("fresh", [2; 3 * BLOCK]).unwrap();
        volume.write("config", [3; 3 * BLOCK]).unwrap();
        assert_eq!(blocks_of(2), 0, "a new file waits");
        assert_eq!(blocks_of(3), if auto { 3 } else { 0 });
    }
}

/// A program that has fsynced a file will do so again, and on a mount the kernel keeps others out of it
/// meanwhile. What the engine writes back for its own purposes, and `sync`, are no sign of that.
#[test]
fn only_files_that_programs_fsync_are_written_early() {
    let (device, volume) = new_volume(16384);
    volume.close().unwrap();
    let clock = Clock::simulated(Timestamp(1_000_000_000));
    let volume = options().clock(clock.clone()).open_backend(device).unwrap();
    let opened =
        |name: &str| OpenOptions::new().read(true).write(true).create(true).open(&volume, name).unwrap();
    let (forced, synced, rewritten) = (opened("forced"), opened("synced"), opened("rewritten"));
    for file in [&forced, &synced, &rewritten] {
        file.write_at(&[1; 128 * BLOCK], 0).unwrap();
    }
    forced.sync_data().unwrap();
    volume.sync().unwrap();
    // Its close writes it back.
    volume.write("rewritten", [2; 128 * BLOCK]).unwrap();
    for file in [&forced, &synced, &rewritten] {
        file.write_at(&[3; BLOCK], 0).unwrap();
    }
    let dirty = || volume.metrics()["cache_dirty_bytes"];
    assert_eq!(dirty(), 3 * BLOCK as u64);
    clock.advance(1_000_000_000);
    volume.background_step().unwrap();
    assert_eq!(dirty(), 2 * BLOCK as u64);
    clock.advance(30_000_000_000);
    volume.background_step().unwrap();
    assert_eq!(dirty(), 0);
}
