//! Volumes that are full: what was accepted is written, and what is deleted comes back.

use crate::common::{BLOCK, file, options};
use quire::inodes::{FallocateMode, IoFlags};
use quire::{ErrorKind, FormatOptions, OpenOptions, Volume};
use quire_base::BlockNo;
use quire_device::{Backend, Io, IoClass, IoOp, MemoryBackend};
use std::io::{IoSlice, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

fn new_volume(blocks: u64) -> Volume {
    let device = Arc::new(MemoryBackend::new(blocks));
    FormatOptions::new().seed(1).format_backend(device.clone()).unwrap();
    // All of it fits into memory, so that nothing gets a home before the volume is full.
    let options = options().cache_bytes(3 * blocks * 4096);
    options.open_backend(device).unwrap()
}

/// Delayed allocation promised data blocks to dirty data, but no tree nodes. A volume filled to its last
/// block by writes that each need an extent of their own had no block left for the metadata pool when they
/// were written back: accepted data stayed dirty, and every fsync failed. The same came of a pool that shrank
/// and grew again on a full volume: each time it took a chunk from what was kept for that data.
#[test]
fn what_was_accepted_can_be_written_however_scattered() {
    for (blocks, files, stride) in [(16384, 1, 2), (16384, 50, 2), (8192, 3, 3), (65536, 7, 2)] {
        let volume = new_volume(blocks);
        let inodes: Vec<_> = (0..files).map(|n| file(&volume, &format!("f{n}"))).collect();
        let mut written = Vec::new();
        'full: for round in 0.. {
            for (n, inode) in inodes.iter().enumerate() {
                let at = round * stride * 4096;
                let tag = [(n as u8) ^ (round as u8).wrapping_mul(31) | 1; 4096];
                match volume.inodes().write_at(inode, &tag, at, IoFlags::empty()) {
                    Ok(_) => written.push((n, at, tag[0])),
                    Err(error) if error.kind() == ErrorKind::NoSpace => break 'full,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        assert!(written.len() as u64 > blocks / 2, "only {} blocks were accepted", written.len());
        volume.sync().unwrap_or_else(|error| panic!("{blocks} blocks, {files} files: {error}"));
        for (n, at, tag) in &written {
            let mut block = [0; 4096];
            assert_eq!(volume.inodes().read_at(&inodes[*n], &mut block, *at, IoFlags::DIRECT).unwrap(), 4096);
            assert!(block.iter().all(|byte| byte == tag));
        }
        for (n, _) in inodes.iter().enumerate() {
            volume.inodes().remove_file(&volume.inodes().root(), format!("f{n}").as_bytes()).unwrap();
        }
    }
}

/// The pool bounded how much metadata could be dirty whatever the size of the node cache: with more memory
/// there were as many checkpoints. It grows now while there is space, and not for ever.
#[test]
fn the_pool_grows_with_the_node_cache_up_to_a_part_of_the_volume() {
    let blocks = 2 << 20;
    let device = Arc::new(MemoryBackend::new(blocks));
    let format = FormatOptions::new().seed(1).journal_bytes(1 << 20);
    format.format_backend(device.clone()).unwrap();
    let pool_blocks = |volume: &Volume| volume.metrics()["tree_pool_blocks"];
    let mut widened = 0;
    for (node_cache_bytes, part) in [(16 << 20, 32 << 10), (1 << 30, 64 << 10)] {
        let options = options().node_cache_bytes(node_cache_bytes);
        let volume = options.open_backend(device.clone()).unwrap();
        let before = volume.metrics()["checkpoints_total"];
        for n in 0.. {
            file(&volume, &format!("{node_cache_bytes}-{n}"));
            volume.background_step().unwrap();
            if volume.metrics()["checkpoints_total"] >= before + 3 {
                break;
            }
        }
        // Beside what the tree has, in two copies.
        widened = pool_blocks(&volume);
        assert!((part..=part + 2 * volume.metrics()["tree_nodes"]).contains(&widened), "{widened} blocks");
        volume.close().unwrap();
    }
    let volume = options().open_backend(device).unwrap();
    assert_eq!(pool_blocks(&volume), widened);
}

/// A reshaping of a few blocks reserves for many extents. The pool was made larger for that, chunk by chunk,
/// until the reservation fitted: on a small volume with two copies of its metadata and a snapshot, that took
/// all space there was, and nothing could be written any more.
#[test]
fn a_small_volume_keeps_its_space_for_data() {
    let blocks = 8192;
    let device = Arc::new(MemoryBackend::new(blocks));
    let format = FormatOptions::new().seed(1).journal_bytes(1 << 20).metadata_copies(2);
    format.format_backend(device.clone()).unwrap();
    let volume = options().open_backend(device).unwrap();
    let inode = file(&volume, "f");
    volume.inodes().write_at(&inode, &[7; 40 << 12], 0, IoFlags::SYNC).unwrap();
    volume.take_snapshot("s").unwrap();
    for mode in [
        FallocateMode::ZeroRange { keep_size: true },
        FallocateMode::PunchHole,
        FallocateMode::Allocate,
        FallocateMode::Insert,
        FallocateMode::Collapse,
    ] {
        volume.inodes().allocate(&inode, mode, 8 << 12, 4 << 12).unwrap();
        let pool = volume.metrics()["tree_pool_blocks"];
        assert!(pool <= blocks / 4, "{mode:?}: {pool} blocks of {blocks} are the metadata pool's");
    }
    volume.inodes().set_len(&inode, 5000).unwrap();
    volume.inodes().remove_file(&volume.inodes().root(), b"f").unwrap();
    drop(inode);
    volume.drain_orphans();
    let pool = volume.metrics()["tree_pool_blocks"];
    assert!(pool <= blocks / 4, "{pool} blocks of {blocks} are the metadata pool's");
}

/// Zeroing a range zeroed the partial blocks at its edges first and then asked for room for its transaction;
/// where that failed the edges were lost, though the call had said that there was no space.
#[test]
fn a_zeroing_without_room_leaves_the_edges_as_they_were() {
    let volume = new_volume(4096);
    let inode = file(&volume, "f");
    let front = [7; 3 * 4096];
    volume.inodes().write_at(&inode, &front, 0, IoFlags::empty()).unwrap();
    volume.sync().unwrap();
    // Names take all room for metadata that ordinary transactions get.
    for n in 0.. {
        match volume.inodes().create(
            &volume.inodes().root(),
            format!("{n:0200}").as_bytes(),
            &quire::inodes::Create::file(0o644),
        ) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NoSpace => break,
            Err(error) => panic!("{error}"),
        }
    }
    let mode = FallocateMode::ZeroRange { keep_size: true };
    let error =
        volume.inodes().allocate(&inode, mode, 100, 3 * 4096 - 200).expect_err("no room for metadata");
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    let mut now = [0; 3 * 4096];
    volume.inodes().read_at(&inode, &mut now, 0, IoFlags::empty()).unwrap();
    assert!(now == front, "an operation that failed has changed the file");
    // Giving space back works all the same.
    volume.inodes().allocate(&inode, FallocateMode::PunchHole, 100, 3 * 4096 - 200).unwrap();
    volume.inodes().read_at(&inode, &mut now, 0, IoFlags::empty()).unwrap();
    assert!(now[100..3 * 4096 - 100].iter().all(|byte| *byte == 0));
}

/// An append that ran out of space midway failed as if the device had failed, and a [`Cursor`] that wrote
/// several buffers did so, too, instead of giving the count: who tried again had the beginning twice.
///
/// [`Cursor`]: quire::Cursor
#[test]
fn an_append_without_room_says_so_and_a_cursor_gives_the_count() {
    let volume = new_volume(4096);
    let log = OpenOptions::new().read(true).append(true).create(true).open(&volume, "log").unwrap();
    let record: Vec<u8> = (0..32 << 20).map(|n| (n / 4096 % 251) as u8).collect();
    let error = log.append(&record).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    let kept = log.metadata().len();
    assert!(kept >= 1 << 20 && error.to_string().contains(&format!("only {kept} of")), "{error}");
    log.set_len(0).unwrap();
    let mut cursor = log.cursor();
    let parts = [IoSlice::new(&record[..5000]), IoSlice::new(&record[5000..])];
    let count = cursor.write_vectored(&parts).unwrap();
    assert!((1 << 20..record.len()).contains(&count));
    assert_eq!((cursor.position(), log.metadata().len()), (count as u64, count as u64));
    let mut all = vec![0; count];
    log.read_exact_at(&mut all, 0).unwrap();
    assert!(all == record[..count]);
    // What was cut off may have come back meanwhile.
    let error = (0..10).find_map(|_| cursor.write_vectored(&parts).err()).unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
}

/// A request for more blocks than the volume has data space could not succeed whatever became free; all the
/// same, everything was written back and forced for it, up to four times, before it was refused.
#[test]
fn what_no_volume_of_its_size_can_hold_is_refused_at_once() {
    let blocks = 4096;
    let volume = new_volume(blocks);
    let (inode, other) = (file(&volume, "f"), file(&volume, "g"));
    volume.inodes().write_at(&other, &[7; 10 << 12], 0, IoFlags::empty()).unwrap();
    let before = volume.metrics();
    let zero = FallocateMode::ZeroRange { keep_size: true };
    for mode in [FallocateMode::Allocate, FallocateMode::KeepSize, zero] {
        for len in [blocks * 4096, 1 << 62] {
            let error = volume.inodes().allocate(&inode, mode, 5 << 12, len).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        }
    }
    let after = volume.metrics();
    for name in ["cache_dirty_bytes", "device_flushes_total", "checkpoints_total"] {
        assert_eq!(after[name], before[name], "{name}");
    }
    // A hole takes no space, however large.
    volume.inodes().allocate(&inode, FallocateMode::PunchHole, 0, 1 << 62).unwrap();
}

/// A device whose reads can be held up.
struct SlowReads {
    memory: MemoryBackend,
    /// Reads that may pass.
    left: Mutex<u64>,
    opened: Condvar,
    waiting: AtomicUsize,
}

impl SlowReads {
    fn pass(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        *self.opened.wait_while(self.left.lock().unwrap(), |left| *left == 0).unwrap() -= 1;
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    fn new(blocks: u64) -> Arc<SlowReads> {
        Arc::new(SlowReads {
            memory: MemoryBackend::new(blocks),
            left: Mutex::new(u64::MAX),
            opened: Condvar::new(),
            waiting: AtomicUsize::new(0),
        })
    }

    fn let_pass(&self, reads: u64) {
        *self.left.lock().unwrap() = reads;
        self.opened.notify_all();
    }
}

impl Backend for SlowReads {
    fn blocks(&self) -> u64 {
        self.memory.blocks()
    }
    fn name(&self) -> String {
        "slow".to_string()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read(&self, class: IoClass, at: BlockNo, buf: &mut [u8]) -> quire::Result<()> {
        self.pass();
        self.memory.read(class, at, buf)
    }
    fn write(&self, class: IoClass, at: BlockNo, buf: &[u8]) -> quire::Result<()> {
        self.memory.write(class, at, buf)
    }
    fn flush(&self) -> quire::Result<()> {
        self.memory.flush()
    }
    fn discard(&self, at: BlockNo, count: u64) -> quire::Result<()> {
        self.memory.discard(at, count)
    }
    fn submit(&self, class: IoClass, ios: Vec<Io>) {
        if ios.iter().any(|io| io.op == IoOp::Read) {
            self.pass();
        }
        self.memory.submit(class, ios);
    }
}

/// While a thread with a large reservation waited for a slow device, those that found no room yielded a
/// hundred thousand times, wrote a checkpoint in every 64th round, and then said that the volume was full.
/// Now they sleep until the reservation comes back.
#[test]
fn room_that_others_have_reserved_is_waited_for() {
    let device = SlowReads::new(32768);
    FormatOptions::new().seed(1).format_backend(device.clone()).unwrap();
    // All of the tree's nodes fit into memory, half of them may be dirty.
    let options = options().node_cache_bytes(512 * 4416);
    let volume = options.open_backend(device.clone()).unwrap();
    let large = file(&volume, "large");
    for block in 0..4000 {
        volume.inodes().write_at(&large, &[1; 4096], 2 * block * 4096, IoFlags::empty()).unwrap();
    }
    drop(large);
    for n in 0..1500 {
        file(&volume, &format!("{n:0200}"));
    }
    volume.close().unwrap();
    let volume = options.open_backend(device.clone()).unwrap();
    // What the last of these loads the create below needs as well.
    for n in 0..1500 {
        volume.inodes().lookup(&volume.inodes().root(), format!("{n:0200}").as_bytes()).unwrap();
    }
    file(&volume, "first");
    volume.inodes().remove_file(&volume.inodes().root(), b"large").unwrap();
    let before = volume.metrics();

    device.let_pass(0);
    std::thread::scope(|scope| {
        let reaper = scope.spawn(|| volume.drain_orphans());
        while device.waiting.load(Ordering::SeqCst) == 0 && !reaper.is_finished() {
            std::thread::yield_now();
        }
        let creator = scope.spawn(|| {
            volume
                .inodes()
                .create(&volume.inodes().root(), b"second", &quire::inodes::Create::file(0o644))
                .map(drop)
        });
        let waits = || volume.metrics()["room_waits_total"] > before["room_waits_total"];
        while !waits() && !creator.is_finished() && device.waiting.load(Ordering::SeqCst) == 1 {
            std::thread::yield_now();
        }
        let waited = waits();
        // Far longer than a thread kept trying that did not sleep.
        (0..20_000).for_each(|_| std::thread::yield_now());
        let checkpoints = volume.metrics()["checkpoint_waits_total"] - before["checkpoint_waits_total"];
        device.let_pass(u64::MAX);
        assert!(checkpoints <= 4, "{checkpoints} checkpoints were written, which make no room");
        assert!(waited, "the reservation of the reaper leaves no room");
        creator.join().unwrap().expect("there is room once the reaper is done");
        reaper.join().unwrap();
    });
    volume.close().unwrap();
}

/// While extents were freed the file's attributes were locked across reads of tree leaves: on a slow device a
/// stat waited as long.
#[test]
fn a_stat_does_not_wait_for_the_leaves_of_a_punch() {
    let device = SlowReads::new(16384);
    FormatOptions::new().seed(1).format_backend(device.clone()).unwrap();
    let volume = options().open_backend(device.clone()).unwrap();
    let large = file(&volume, "large");
    for block in 0..1000 {
        volume.inodes().write_at(&large, &[1; 4096], 2 * block * 4096, IoFlags::empty()).unwrap();
    }
    drop(large);
    volume.close().unwrap();
    for passing in 0.. {
        // Each time from the start, with one read more before the device stops.
        let copy = SlowReads::new(16384);
        let mut block = [0; 4096];
        for at in 0..16384 {
            device.memory.read(IoClass::Data, BlockNo(at), &mut block).unwrap();
            copy.memory.write(IoClass::Data, BlockNo(at), &block).unwrap();
        }
        let volume = options().open_backend(copy.clone()).unwrap();
        let large = volume.inodes().lookup(&volume.inodes().root(), b"large").unwrap();
        copy.let_pass(passing);
        let was_over = std::thread::scope(|scope| {
            let punch =
                scope.spawn(|| volume.inodes().allocate(&large, FallocateMode::PunchHole, 0, 2000 * 4096));
            while copy.waiting.load(Ordering::SeqCst) == 0 && !punch.is_finished() {
                std::thread::yield_now();
            }
            let was_over = punch.is_finished();
            let stat = scope.spawn(|| volume.inodes().metadata(&large));
            // A stat that waits for the read would do so for ever.
            let mut yields = 0;
            while !stat.is_finished() && yields < 200_000 {
                std::thread::yield_now();
                yields += 1;
            }
            let told = stat.is_finished();
            copy.let_pass(u64::MAX);
            stat.join().unwrap();
            punch.join().unwrap().unwrap();
            assert!(told, "a stat waited for read {passing} of a punch");
            was_over
        });
        if was_over {
            assert!(passing > 2, "a punch reads several leaves");
            break;
        }
    }
}

/// A small file has three blocks promised while its data is dirty, and takes one. So a volume was full for a
/// program that wrote many, and forced none, when a third of it was in use.
#[test]
fn many_small_files_fill_the_volume_though_nobody_forces_them() {
    for threads in [false, true] {
        let device = Arc::new(MemoryBackend::new(16384));
        FormatOptions::new().seed(1).format_backend(device.clone()).unwrap();
        let volume = options().threads(threads).cache_bytes(256 << 20).open_backend(device).unwrap();
        let free = volume.statfs().available;
        let mut files = 0;
        let error = loop {
            match volume.write(format!("f{files}"), "data") {
                Ok(()) => files += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(files > free * 3 / 4, "{files} files in {free} blocks: {error}");
        volume.sync().unwrap();
        assert!(volume.statfs().available < 64, "{:?}", volume.statfs());
        (0..files).step_by(97).for_each(|n| assert_eq!(volume.read(format!("f{n}")).unwrap(), b"data"));
        volume.close().unwrap();
    }
}

/// The metadata pool could not grow where dirty data had nearly all space promised: names and attributes were
/// refused on a volume of which a third was in use.
#[test]
fn names_and_attributes_have_room_while_dirty_data_has_it_promised() {
    let volume = new_volume(16384);
    let mut files = 0;
    while volume.statfs().available >= 16 {
        volume.write(format!("f{files}"), "data").unwrap();
        files += 1;
    }
    for n in 0..3000 {
        volume.set_xattr(format!("f{n}"), "user.a", [1; 1000]).unwrap_or_else(|error| panic!("{n}: {error}"));
    }
    for n in 0..3000 {
        volume.hard_link("f0", format!("link{n}")).unwrap_or_else(|error| panic!("{n}: {error}"));
        volume.create_dir(format!("d{n}")).unwrap_or_else(|error| panic!("{n}: {error}"));
    }
    volume.sync().unwrap();
    volume.close().unwrap();
}

/// The same for renames, which settled nothing first: `mv` was refused where `touch` succeeded.
#[test]
fn renames_have_room_while_dirty_data_has_it_promised() {
    let volume = new_volume(16384);
    let mut files = 0;
    while volume.statfs().available >= 16 {
        volume.write(format!("f{files}"), "data").unwrap();
        files += 1;
    }
    for n in 0..files {
        let to = format!("{n:0200}");
        volume.rename(format!("f{n}"), to).unwrap_or_else(|error| panic!("{n} of {files}: {error}"));
    }
    volume.sync().unwrap();
    volume.close().unwrap();
}

/// The metadata of many empty files, since removed, kept nearly all of the volume for some ten seconds, until
/// periodic commits had given it back in steps: no data could be written, whatever the program called.
#[test]
fn data_has_room_as_soon_as_many_empty_files_are_gone() {
    let volume = new_volume(8192);
    let mut names = Vec::new();
    while volume.write(format!("f{}", names.len()), "").is_ok() {
        names.push(format!("f{}", names.len()));
    }
    names.iter().for_each(|name| volume.remove_file(name).unwrap());
    assert!(volume.statfs().available < 2048, "{:?}", volume.statfs());
    let contents = vec![7; 16 << 20];
    volume.write("large", &contents).unwrap();
    volume.sync().unwrap();
    assert_eq!(volume.read("large").unwrap(), contents);
}

/// A volume where every second small file had been deleted had no room for names and attributes, though half
/// of it was free: the metadata pool took runs of 64 blocks or more.
#[test]
fn metadata_takes_scattered_space() {
    let device = Arc::new(MemoryBackend::new(16 << 10));
    FormatOptions::new().seed(1).metadata_copies(1).format_backend(device.clone()).unwrap();
    let volume = options().open_backend(device).unwrap();
    let mut files = 0;
    while volume.write(format!("{files}"), [1; BLOCK]).and_then(|()| volume.sync()).is_ok() {
        files += 1;
    }
    (0..files).step_by(2).for_each(|file| volume.remove_file(format!("{file}")).unwrap());
    volume.sync().unwrap();
    volume.drain_orphans();
    let free = volume.statfs().available;
    assert!(free > 4000, "{free} blocks are free");
    for file in (1..files).step_by(2) {
        volume.set_xattr(format!("{file}"), "user.x", [1; 1000]).unwrap();
    }
    assert!(volume.statfs().available < free - 1000, "they take space of files");
    volume.close().unwrap();
}
