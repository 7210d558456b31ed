//! Snapshots of volumes that others use meanwhile: what they hold, what they leave when they fail, and
//! deletions behind the scenes. What crashes leave is in `crates/sim/tests/mistakes/snapshots.rs`.

use crate::common::{BLOCK, file, flushes, new_volume, options};
use quire::backend::MemoryBackend;
use quire::inodes::{Caller, Create, FallocateMode, IoFlags, SetAttributes, XattrFlags};
use quire::{
    AlignedBuf, Commit, ErrorKind, File, FormatOptions, OpenOptions, Properties, RenameFlags, Unit, Volume,
    VolumeOptions,
};
use quire_base::BlockNo;
use quire_base::random::Random;
use quire_device::simulated::{CrashPolicy, Fault, FaultOp};
use quire_device::{Backend, Io, IoClass, SimulatedBackend};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Blocks of a writer's file.
const FILE_BLOCKS: u64 = 24;

fn made(bytes: u64) -> Arc<MemoryBackend> {
    let device = Arc::new(MemoryBackend::new(bytes / BLOCK as u64));
    FormatOptions::new().format_backend(device.clone()).unwrap();
    device
}

fn open(device: &Arc<MemoryBackend>) -> Volume {
    VolumeOptions::new().cache_bytes(12 * MIB).open_backend(device.clone()).unwrap()
}

fn open_snapshot(device: &Arc<MemoryBackend>, name: &str) -> Volume {
    let options = VolumeOptions::new().cache_bytes(12 * MIB).read_only(true).snapshot(name);
    options.open_backend(device.clone()).unwrap()
}

type Contents = BTreeMap<String, Vec<u8>>;

fn contents(volume: &Volume) -> Contents {
    let names = volume.read_dir("/").unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.map(|name| (name.clone(), volume.read(&name).unwrap())).collect()
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// How a writer writes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Buffered,
    Direct,
    DirectAsync,
    Untorn,
    Group,
    LargeGroup,
    Unwritten,
}

const WAYS: [Way; 7] =
    [Way::Buffered, Way::Direct, Way::DirectAsync, Way::Untorn, Way::Group, Way::LargeGroup, Way::Unwritten];

/// What is known of a writer's numbers, which only grow.
#[derive(Default)]
struct Progress {
    begun: AtomicU64,
    durable: AtomicU64,
}

fn block(number: u64) -> AlignedBuf {
    let mut block = AlignedBuf::zeroed(BLOCK);
    block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&number.to_le_bytes()));
    block
}

/// Puts a number into each block, the first block last, or into all at once.
fn put(volume: &Volume, file: &File, way: Way, number: u64, random: &mut Random) {
    let content = block(number);
    if matches!(way, Way::Group | Way::LargeGroup) {
        let mut group = volume.atomic();
        for at in 0..FILE_BLOCKS {
            group.write_at(file, &content, at * BLOCK as u64).unwrap();
        }
        if way == Way::LargeGroup {
            // More than a record of the journal takes.
            let piece = vec![number as u8; MIB as usize];
            (1..4).for_each(|mib| group.write_at(file, &piece, mib * MIB).unwrap());
        }
        return group.commit(Commit::Now).unwrap();
    }
    if way == Way::Unwritten && number.is_multiple_of(5) {
        file.punch_hole(BLOCK as u64, (FILE_BLOCKS - 1) * BLOCK as u64).unwrap();
        file.allocate(0, FILE_BLOCKS * BLOCK as u64).unwrap();
    }
    for at in (0..FILE_BLOCKS).rev() {
        let offset = at * BLOCK as u64;
        match way {
            Way::DirectAsync => {
                let writing = file.write_direct_async(content.clone(), offset);
                futures::executor::block_on(writing).0.unwrap();
            }
            _ => file.write_all_at(&content, offset).unwrap(),
        }
        if random.below(FILE_BLOCKS) == 0 {
            file.sync_data().unwrap();
        }
    }
    file.sync_data().unwrap();
}

fn write(volume: &Volume, way: Way, progress: &Progress, stop: &AtomicBool) {
    let name = format!("{way:?}");
    let direct = matches!(way, Way::Direct | Way::DirectAsync);
    let unit = (way == Way::Untorn).then(|| Unit::from_bytes(4 * BLOCK as u64).unwrap());
    let options = OpenOptions::new().read(true).write(true).create(true).direct(direct);
    let file = options.properties(Properties { untorn: unit, ..Properties::default() }).open(volume, &name);
    let file = file.unwrap();
    let mut random = Random::seeded(way as u64);
    for number in 1.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        progress.begun.store(number, Ordering::Release);
        put(volume, &file, way, number, &mut random);
        // Names, and blocks that are freed.
        let short = format!("{name}.{}", number % 5);
        volume.write(&short, vec![number as u8; 3 * BLOCK + 5]).unwrap();
        if number % 3 == 0 {
            volume.remove_file(&short).unwrap();
        }
        progress.durable.store(number, Ordering::Release);
    }
}

/// Says whether what a writer's file has is a state that it was in, and not an older one than was durable.
fn check(way: Way, bytes: &[u8], durable: u64, begun: u64) {
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let numbers: Vec<u64> = (0..FILE_BLOCKS as usize).map(|at| number(at * BLOCK)).collect();
    let at = format!("{way:?}: {numbers:?}, {durable} were durable, {begun} had begun");
    let first = numbers[0];
    assert!((durable..=begun).contains(&first), "{at}");
    for (place, number) in numbers.iter().enumerate() {
        let block = &bytes[place * BLOCK..][..BLOCK];
        assert!(block.chunks_exact(8).all(|word| word == &number.to_le_bytes()[..]), "{at}: torn");
        let emptied = way == Way::Unwritten && *number == 0;
        assert!(emptied || (first..=first + 1).contains(number), "{at}");
    }
    match way {
        Way::Group | Way::LargeGroup => assert!(numbers.iter().all(|number| *number == first), "{at}: torn"),
        // Written from the end.
        _ if numbers.iter().all(|number| *number > 0) => assert!(numbers.is_sorted(), "{at}: out of order"),
        _ => {}
    }
    if way == Way::LargeGroup {
        assert!(bytes[MIB as usize..].iter().all(|byte| *byte == first as u8), "{at}: torn");
    }
}

/// Whatever writers do meanwhile, a snapshot is a state of the moment when it was taken, and stays.
#[test]
fn snapshots_of_a_busy_volume_hold_one_moment() {
    let device = made(256 * MIB);
    let volume = open(&device);
    let progress: Arc<[Progress; WAYS.len()]> = Arc::default();
    let stop = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    for (number, way) in WAYS.into_iter().enumerate() {
        let (volume, progress, stop) = (volume.clone(), progress.clone(), stop.clone());
        threads.push(std::thread::spawn(move || write(&volume, way, &progress[number], &stop)));
    }
    {
        let (volume, stop) = (volume.clone(), stop.clone());
        threads.push(std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for way in WAYS {
                    let _ = volume.read(format!("{way:?}"));
                }
            }
        }));
    }
    let durable = || progress.iter().map(|of| of.durable.load(Ordering::Acquire)).collect::<Vec<_>>();
    let begun = || progress.iter().map(|of| of.begun.load(Ordering::Acquire)).collect::<Vec<_>>();
    wait_until("every writer has begun", || durable().iter().all(|number| *number > 0));
    let mut kept: BTreeMap<String, Contents> = BTreeMap::new();
    for round in 0..12u64 {
        let name = format!("s{round}");
        let before = durable();
        assert_eq!(volume.take_snapshot(&name).unwrap().name, name);
        let after = begun();
        wait_until("a writer does not go on", || durable().iter().zip(&after).all(|(now, then)| now > then));
        if let Some(oldest) = kept.keys().nth(round as usize % 3).filter(|_| round % 3 > 0).cloned() {
            match round % 2 {
                0 => volume.delete_snapshot(&oldest).unwrap(),
                _ => volume.delete_snapshot_later(&oldest).unwrap(),
            }
            kept.remove(&oldest);
        }
        // A volume in use cannot be opened a second time while it changes.
        let frozen = volume.freeze().unwrap();
        let found = contents(&open_snapshot(&device, &name));
        for (at, way) in WAYS.into_iter().enumerate() {
            check(way, &found[&format!("{way:?}")], before[at], after[at]);
        }
        kept.insert(name, found);
        for (name, then) in &kept {
            assert!(contents(&open_snapshot(&device, name)) == *then, "round {round}: {name} has changed");
        }
        drop(frozen);
    }
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let now = contents(&volume);
    volume.close().unwrap();
    let volume = open(&device);
    assert!(contents(&volume) == now, "the volume has changed");
    for (name, then) in &kept {
        assert!(contents(&open_snapshot(&device, name)) == *then, "{name} has changed");
        volume.delete_snapshot(name).unwrap();
    }
    wait_until("a deletion does not end", || volume.snapshots().unwrap().is_empty());
    assert!(contents(&volume) == now);
    volume.close().unwrap();
}

/// What was written into space that `allocate` had set aside before the snapshot got a home that the snapshot
/// has, too, and the next write of it found no space reserved.
#[test]
fn allocated_space_is_written_twice_after_a_snapshot() {
    let device = made(64 * MIB);
    let volume = open(&device);
    let file = OpenOptions::new().read(true).write(true).create(true).open(&volume, "f").unwrap();
    file.allocate(0, 8 * BLOCK as u64).unwrap();
    volume.take_snapshot("s").unwrap();
    for round in 1..4u8 {
        file.write_all_at(&[round; 8 * BLOCK], 0).unwrap();
        file.sync_all().unwrap();
    }
    drop(file);
    assert_eq!(volume.read("f").unwrap(), [3; 8 * BLOCK]);
    volume.close().unwrap();
    assert_eq!(open_snapshot(&device, "s").read("f").unwrap(), [0; 8 * BLOCK]);
}

/// A device whose flushes stop at one of them.
struct StopsAtFlush {
    memory: MemoryBackend,
    /// Flushes until that one; then whether it has come.
    left: Mutex<(u64, bool)>,
    goes_on: Condvar,
}

impl StopsAtFlush {
    fn new(bytes: u64) -> Arc<StopsAtFlush> {
        let memory = MemoryBackend::new(bytes / BLOCK as u64);
        Arc::new(StopsAtFlush { memory, left: Mutex::new((u64::MAX, false)), goes_on: Condvar::new() })
    }

    /// Stops at the flush behind so many others.
    fn stop_behind(&self, others: u64) {
        *self.left.lock().unwrap() = (others, false);
    }

    fn has_stopped(&self) -> bool {
        self.left.lock().unwrap().1
    }

    fn go_on(&self) {
        self.stop_behind(u64::MAX);
        self.goes_on.notify_all();
    }
}

impl Backend for StopsAtFlush {
    fn blocks(&self) -> u64 {
        self.memory.blocks()
    }
    fn name(&self) -> String {
        "stops at a flush".to_string()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read(&self, class: IoClass, at: BlockNo, buf: &mut [u8]) -> quire::Result<()> {
        self.memory.read(class, at, buf)
    }
    fn write(&self, class: IoClass, at: BlockNo, buf: &[u8]) -> quire::Result<()> {
        self.memory.write(class, at, buf)
    }
    fn flush(&self) -> quire::Result<()> {
        let mut left = self.left.lock().unwrap();
        if left.0 == 0 {
            left.1 = true;
        } else {
            left.0 -= 1;
        }
        drop(self.goes_on.wait_while(left, |left| left.1).unwrap());
        self.memory.flush()
    }
    fn discard(&self, at: BlockNo, count: u64) -> quire::Result<()> {
        self.memory.discard(at, count)
    }
    fn submit(&self, class: IoClass, ios: Vec<Io>) {
        self.memory.submit(class, ios);
    }
}

/// Writers waited for two to three flushes while a snapshot was taken, which was the slowest of a thousand
/// overwrites on a device with slow flushes. Changes go on during every flush of a snapshot.
#[test]
fn changes_wait_for_no_flush_of_a_snapshot() {
    let device = StopsAtFlush::new(64 * MIB);
    FormatOptions::new().format_backend(device.clone()).unwrap();
    let options = VolumeOptions::new().cache_bytes(12 * MIB).commit_seconds(3600);
    let volume = options.open_backend(device.clone()).unwrap();
    let file = OpenOptions::new().write(true).create(true).open(&volume, "f").unwrap();
    let mut flushes = 0;
    for number in 0.. {
        // Small overwrites of what the snapshot before has, recorded in the journal; and dirty blocks.
        for at in 0..4 {
            file.write_all_at(&[number as u8; BLOCK], at * BLOCK as u64).unwrap();
            file.sync_data().unwrap();
        }
        file.write_all_at(&[number as u8; 3 * BLOCK], 8 * BLOCK as u64).unwrap();
        device.stop_behind(number);
        let stopped = std::thread::scope(|scope| {
            let taken = scope.spawn(|| volume.take_snapshot(&format!("s{number}")).unwrap());
            wait_until("the flush, or the end", || device.has_stopped() || taken.is_finished());
            let stopped = device.has_stopped();
            let change = scope.spawn(|| volume.create_dir(format!("d{number}")).unwrap());
            let start = Instant::now();
            while !change.is_finished() && start.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let changed = change.is_finished();
            device.go_on();
            assert!(changed, "a change waits for flush {number} of a snapshot");
            stopped
        });
        if !stopped {
            break;
        }
        flushes += 1;
    }
    assert!(flushes > 4, "{flushes}");
    assert_eq!(volume.metrics()["snapshot_holds_total"], flushes + 1);
    volume.close().unwrap();
}

/// A small durable overwrite of a block that a snapshot has took two flushes, the data's and the record's. So
/// threads that overwrote shared one flush of two at most, and a volume was ten times slower after a
/// snapshot.
#[test]
fn a_small_durable_overwrite_of_a_shared_block_is_one_flush() {
    let (device, volume) = new_volume(16_384);
    let data = file(&volume, "data");
    let write = |number: u64, byte: u8, flags| {
        volume.inodes().write_at(&data, &[byte; BLOCK], number * BLOCK as u64, flags).unwrap();
    };
    (0..64).for_each(|number| write(number, 1, IoFlags::empty()));
    volume.sync().unwrap();
    volume.take_snapshot("then").unwrap();
    for number in 0..8 {
        let before = device.events(0..usize::MAX).len();
        write(number, 2, IoFlags::DATASYNC);
        assert_eq!(flushes(&device, before), 1, "block {number}");
        let image = || Arc::new(SimulatedBackend::from_image(device.crash(CrashPolicy::LoseAll)));
        let after = options().open_backend(image()).unwrap().read("data").unwrap();
        let written = (number as usize + 1) * BLOCK;
        assert!(
            after[..written].iter().all(|byte| *byte == 2) && after[written..].iter().all(|byte| *byte == 1)
        );
        let then = options().read_only(true).snapshot("then").open_backend(image()).unwrap();
        assert_eq!(then.read("data").unwrap(), [1; 64 * BLOCK]);
    }
    // A great deal is written to its homes once, and not to the journal before.
    (8..64).for_each(|number| write(number, 3, IoFlags::empty()));
    let before = device.events(0..usize::MAX).len();
    volume.inodes().fsync(&data, true).unwrap();
    assert_eq!(flushes(&device, before), 2);
}

/// A block of a snapshot left its file while that snapshot was being deleted. It was free when the next one
/// was taken, and belonged to the one after that again. The deletion asked the next one alone, and freed the
/// block, though the later snapshot had it.
#[test]
fn a_deletion_spares_what_later_snapshots_have() {
    let device = made(32 * MIB);
    let options = VolumeOptions::new().threads(false).cache_bytes(12 * MIB);
    let volume = options.open_backend(device.clone()).unwrap();
    let fill = |name: &str, byte: u8| -> quire::Result<()> {
        let file = OpenOptions::new().write(true).create(true).open(&volume, name)?;
        (0..20 * MIB).step_by(MIB as usize).try_for_each(|at| {
            file.write_all_at(&[byte; MIB as usize], at)?;
            file.sync_all()
        })
    };
    let remove = |name: &str| {
        volume.remove_file(name).unwrap();
        volume.drain_orphans();
        volume.sync().unwrap();
    };
    fill("first", 1).unwrap();
    volume.take_snapshot("one").unwrap();
    volume.delete_snapshot_later("one").unwrap();
    remove("first");
    volume.take_snapshot("two").unwrap();
    fill("second", 2).unwrap();
    volume.take_snapshot("three").unwrap();
    remove("second");
    while volume.snapshots().unwrap().len() > 2 {
        volume.background_step().unwrap();
    }
    let space = fill("third", 3).map_err(|error| error.kind());
    assert_eq!(space, Err(ErrorKind::NoSpace), "the third snapshot has nearly all of it");
    let three = volume.open_snapshot("three").unwrap();
    assert!(three.read("second").unwrap().iter().all(|byte| *byte == 2));
}

#[test]
fn two_that_take_wait_for_one_another() {
    let device = made(64 * MIB);
    let volume = open(&device);
    let threads: Vec<_> = (0..4)
        .map(|number| {
            let volume = volume.clone();
            std::thread::spawn(move || {
                (0..5).for_each(|round| drop(volume.take_snapshot(&format!("{number}.{round}")).unwrap()));
                volume.take_snapshot("same").is_ok()
            })
        })
        .collect();
    let first = threads.into_iter().filter(|_| true).map(|thread| thread.join().unwrap());
    assert_eq!(first.filter(|taken| *taken).count(), 1);
    let all = volume.snapshots().unwrap();
    assert_eq!(all.len(), 21);
    assert!(all.iter().enumerate().all(|(at, info)| info.number as usize == at + 1));
    volume.close().unwrap();
}

#[test]
fn no_snapshot_is_taken_of_a_frozen_volume() {
    let device = made(64 * MIB);
    let volume = open(&device);
    let frozen = volume.freeze().unwrap();
    assert_eq!(volume.take_snapshot("s").unwrap_err().kind(), ErrorKind::Busy);
    drop(frozen);
    volume.take_snapshot("s").unwrap();
    assert_eq!(volume.take_snapshot("s").unwrap_err().kind(), ErrorKind::Exists);
    for name in ["a/b", "..", "line\nbreak", "\u{1b}[31m", " space", "space "] {
        assert_eq!(volume.take_snapshot(name).unwrap_err().kind(), ErrorKind::Invalid, "{name:?}");
    }
    volume.close().unwrap();
    let volume = VolumeOptions::new().read_only(true).open_backend(device.clone()).unwrap();
    assert_eq!(volume.take_snapshot("t").unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(volume.delete_snapshot("s").unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(volume.snapshots().unwrap().len(), 1);
}

/// On a full volume either a snapshot is taken or nothing is left of it, and deleting it works.
#[test]
fn a_full_volume_loses_its_snapshots_at_least() {
    let device = made(48 * MIB);
    let volume = open(&device);
    let file = OpenOptions::new().read(true).write(true).create(true).open(&volume, "f").unwrap();
    let piece = vec![1; MIB as usize];
    let mut size = 0;
    while file.write_all_at(&piece, size).is_ok() {
        size += MIB;
    }
    let mut small = 0;
    while volume.write(format!("small {small}"), [2; 100]).is_ok() {
        small += 1;
    }
    volume.sync().unwrap();
    let before = contents(&volume);
    let mut taken = 0u64;
    let refused = loop {
        match volume.take_snapshot(&format!("s{taken}")) {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
        assert!(taken < 10_000, "a full volume takes any number of snapshots");
        // Each costs what has changed since the last.
        let _ = file.write_all_at(&[taken as u8; 64], taken % 7 * BLOCK as u64);
        if volume.sync().is_err() || taken > 200 {
            break quire::Error::new(ErrorKind::NoSpace, "enough");
        }
    };
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    assert_eq!(volume.snapshots().unwrap().len(), taken as usize);
    assert_eq!(contents(&volume).len(), before.len());
    for number in 0..taken {
        volume.delete_snapshot(&format!("s{number}")).unwrap();
    }
    assert!(volume.snapshots().unwrap().is_empty());
    for number in 0..small {
        volume.remove_file(format!("small {number}")).unwrap();
    }
    volume.drain_orphans();
    volume.sync().unwrap();
    file.write_all_at(&[9; 5 * BLOCK], 0).unwrap();
    drop(file);
    volume.close().unwrap();
}

/// A snapshot that is taken between two steps of a deletion is its neighbour from then on.
#[test]
fn a_snapshot_is_taken_in_the_middle_of_a_deletion() {
    let device = made(256 * MIB);
    let volume =
        VolumeOptions::new().threads(false).cache_bytes(12 * MIB).open_backend(device.clone()).unwrap();
    let name = |at: u64| format!("f{at}");
    // Dead blocks in many regions.
    for at in 0..10 {
        volume.write(name(at), vec![at as u8; 8 << 20]).unwrap();
    }
    volume.sync().unwrap();
    volume.take_snapshot("a").unwrap();
    for at in 0..10 {
        let file = OpenOptions::new().write(true).open(&volume, name(at)).unwrap();
        file.write_all_at(&vec![0xA0; 2 << 20], 0).unwrap();
    }
    volume.sync().unwrap();
    let free = volume.statfs().free;
    volume.delete_snapshot_later("a").unwrap();
    assert_eq!(volume.take_snapshot("a").unwrap_err().kind(), ErrorKind::Exists);
    volume.background_step().unwrap();
    let found = volume.snapshots().unwrap();
    assert!(found.len() == 1 && found[0].deleting, "{found:?}");
    volume.take_snapshot("b").unwrap();
    let then = contents(&volume);
    for at in 0..10 {
        volume.remove_file(name(at)).unwrap();
    }
    volume.sync().unwrap();
    while volume.snapshots().unwrap().len() > 1 {
        volume.background_step().unwrap();
    }
    let now = volume.statfs().free;
    // The metadata pool may have grown.
    assert!(now + 2048 >= free + 10 * (2 << 20) / BLOCK as u64, "a's blocks are not free: {free}, now {now}");
    // Their blocks would be overwritten here.
    volume.write("more", vec![7; 40 << 20]).unwrap();
    volume.sync().unwrap();
    assert!(contents(&open_snapshot(&device, "b")) == then, "b has changed");
    volume.delete_snapshot("b").unwrap();
    volume.close().unwrap();
}

/// What the end of a mount leaves of a deletion, the next one does.
#[test]
fn the_next_mount_goes_on_with_deletions() {
    let device = made(64 * MIB);
    let volume =
        VolumeOptions::new().threads(false).cache_bytes(12 * MIB).open_backend(device.clone()).unwrap();
    volume.write("f", vec![1; 8 << 20]).unwrap();
    for name in ["a", "b", "c"] {
        volume.take_snapshot(name).unwrap();
        volume.write("f", vec![2; 8 << 20]).unwrap();
    }
    volume.sync().unwrap();
    let free = volume.statfs().free;
    for name in ["b", "a"] {
        volume.delete_snapshot_later(name).unwrap();
    }
    volume.close().unwrap();
    let read_only = VolumeOptions::new().read_only(true).open_backend(device.clone()).unwrap();
    assert_eq!(read_only.snapshots().unwrap().iter().filter(|info| info.deleting).count(), 2);
    read_only.close().unwrap();
    let volume = open(&device);
    wait_until("the deletions do not end", || volume.snapshots().unwrap().len() == 1);
    assert!(volume.statfs().free >= free + (16 << 20) / BLOCK as u64 - 64, "no space was freed");
    volume.close().unwrap();
}

/// One read that failed ended a deletion until the next mount, and the space stayed taken for as long.
#[test]
fn a_deletion_that_fails_once_goes_on() {
    let (device, volume) = new_volume(16384);
    volume.write("f", vec![1; 8 << 20]).unwrap();
    volume.take_snapshot("a").unwrap();
    volume.write("f", vec![2; 8 << 20]).unwrap();
    volume.close().unwrap();
    // No node is in memory now.
    let volume = options().open_backend(device.clone()).unwrap();
    volume.delete_snapshot_later("a").unwrap();
    device.inject(Fault::on(FaultOp::Read).times(u64::MAX));
    volume.background_step().unwrap();
    device.clear_faults();
    assert_eq!(volume.snapshots().unwrap().len(), 1, "nothing failed");
    for _ in 0..10 {
        volume.background_step().unwrap();
    }
    assert!(volume.snapshots().unwrap().is_empty(), "the deletion does not go on");
    volume.close().unwrap();
}

/// A rollback refused to pass a newer snapshot that was being deleted, and advised to delete it, which is
/// refused as well.
#[test]
fn a_rollback_behind_a_deletion_says_what_to_wait_for() {
    let device = made(64 * MIB);
    let volume =
        VolumeOptions::new().threads(false).cache_bytes(12 * MIB).open_backend(device.clone()).unwrap();
    for name in ["a", "b"] {
        volume.write("f", vec![1; 8 << 20]).unwrap();
        volume.take_snapshot(name).unwrap();
    }
    volume.delete_snapshot_later("b").unwrap();
    volume.close().unwrap();
    let refused = quire::roll_back_backend(device.clone(), "a").unwrap_err();
    assert!(refused.to_string().contains("is being deleted: mount"), "{refused}");
    let volume = open(&device);
    wait_until("the deletion does not end", || volume.snapshots().unwrap().len() == 1);
    volume.close().unwrap();
    quire::roll_back_backend(device, "a").unwrap();
}

/// Without this, the thread that takes a mount's requests would wait while a snapshot is taken.
#[test]
fn homes_are_asked_for_again_by_threads_that_may_wait() {
    let (_device, volume) = new_volume(8192);
    let inode = file(&volume, "f");
    volume.inodes().write_at(&inode, &[1; BLOCK], 0, IoFlags::empty()).unwrap();
    assert!(
        volume.inodes().try_write_at(&inode, &[2; BLOCK], 0, IoFlags::empty()),
        "its home is not known yet, but it is dirty"
    );
    volume.sync().unwrap();
    volume.take_snapshot("s").unwrap();
    assert!(
        !volume.inodes().try_write_at(&inode, &[3; BLOCK], 0, IoFlags::empty()),
        "written over the snapshot"
    );
    volume.inodes().write_at(&inode, &[3; BLOCK], 0, IoFlags::empty()).unwrap();
    assert!(volume.inodes().try_write_at(&inode, &[4; BLOCK], 0, IoFlags::empty()));
    drop(inode);
    volume.close().unwrap();
}

/// The writeback of blocks that a snapshot shares read the map of dead blocks, and that of the space where
/// they had been, only when it held the inode's lock: a debug build panics at that, and a thread that must
/// not wait was refused.
#[test]
fn maps_of_space_are_read_before_the_lock() {
    const REGIONS: u64 = 12;
    const REGION_BYTES: u64 = 4096 * BLOCK as u64;
    let backend = Arc::new(MemoryBackend::new(512 << 8));
    FormatOptions::new().format_backend(backend.clone()).unwrap();
    let volume = VolumeOptions::new().open_backend(backend.clone()).unwrap();
    let file = volume.create_file("file").unwrap();
    for region in 0..REGIONS {
        file.write_all_at(&vec![region as u8; REGION_BYTES as usize], region * REGION_BYTES).unwrap();
    }
    file.sync_data().unwrap();
    // Maps that fill leaves of their own.
    for block in (0..REGIONS * 4096).step_by(2) {
        file.punch_hole(block * BLOCK as u64, BLOCK as u64).unwrap();
    }
    volume.take_snapshot("s").unwrap();
    drop(file);
    volume.close().unwrap();
    // So few nodes stay in memory that hardly any read is spared.
    let volume = VolumeOptions::new().node_cache_bytes(0).open_backend(backend).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&volume, "file").unwrap();
    let mut random = Random::seeded(1);
    for _ in 0..400 {
        let block = 2 * random.below(REGIONS * 2048) + 1;
        file.write_all_at(&[77; BLOCK], block * BLOCK as u64).unwrap();
        file.sync_data().unwrap();
    }
    // The same where a truncate and a punch free them.
    file.punch_hole(5 * REGION_BYTES, REGION_BYTES).unwrap();
    file.set_len(REGION_BYTES).unwrap();
    volume.sync().unwrap();
    volume.close().unwrap();
}

/// An inode of a snapshot was taken for the volume's inode of that number: a change of its mode put the whole
/// record of the snapshot, old size and times included, into the live volume.
#[test]
fn inodes_of_another_volume_are_refused() {
    let (_device, volume) = new_volume(16384);
    volume.write("file", [1; 3 * BLOCK]).unwrap();
    volume.create_dir("directory").unwrap();
    volume.take_snapshot("s").unwrap();
    volume.write("file", [2; 5 * BLOCK]).unwrap();
    let snapshot = volume.open_snapshot("s").unwrap();
    let inodes = volume.inodes();
    let [file, foreign] = [&volume, &snapshot].map(|of| of.resolve("file").unwrap());
    let [directory, elsewhere] = [&volume, &snapshot].map(|of| of.resolve("directory").unwrap());
    let before = inodes.metadata(&file);
    let mode = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    let (done, outcome) = std::sync::mpsc::channel();
    let done = Box::new(move |_, result| done.send(result).unwrap());
    inodes.write_direct_then(&foreign, AlignedBuf::zeroed(BLOCK), 0, IoFlags::empty(), done);
    let none = RenameFlags::empty();
    let any = XattrFlags::empty();
    let refused = [
        ("direct write", outcome.recv().unwrap().map(drop)),
        ("attributes", inodes.set_attributes(&foreign, &mode).map(drop)),
        ("properties", inodes.set_properties(&foreign, Properties::default())),
        ("set_xattr", inodes.set_xattr(&foreign, b"user.a", b"b", any)),
        ("remove_xattr", inodes.remove_xattr(&foreign, b"user.a")),
        ("get_xattr", inodes.get_xattr(&foreign, b"user.a").map(drop)),
        ("list_xattrs", inodes.list_xattrs(&foreign).map(drop)),
        ("write", inodes.write_at(&foreign, &[3; 10], 0, IoFlags::empty()).map(drop)),
        ("append", inodes.append(&foreign, &[3; 10], IoFlags::empty()).map(drop)),
        ("set_len", inodes.set_len(&foreign, 1)),
        ("allocate", inodes.allocate(&foreign, FallocateMode::KeepSize, 0, 1 << 20)),
        ("copy from", inodes.copy_range(&foreign, 0, &file, 0, 10).map(drop)),
        ("copy to", inodes.copy_range(&file, 0, &foreign, 0, 10).map(drop)),
        ("lease", inodes.lease_layout(&foreign, 0..10, 1).map(drop)),
        ("fsync", inodes.fsync(&foreign, false)),
        ("create", inodes.create(&elsewhere, b"new", &Create::file(0o600)).map(drop)),
        ("tmpfile", inodes.tmpfile(&elsewhere, &Create::file(0o600)).map(drop)),
        ("symlink", inodes.symlink(&elsewhere, b"new", b"target", Caller::default()).map(drop)),
        ("link of", inodes.hard_link(&foreign, &directory, b"new")),
        ("link in", inodes.hard_link(&file, &elsewhere, b"new")),
        ("remove_file", inodes.remove_file(&snapshot.inodes().root(), b"file")),
        ("remove_dir", inodes.remove_dir(&snapshot.inodes().root(), b"directory")),
        ("rename from", inodes.rename(&snapshot.inodes().root(), b"file", &directory, b"new", none)),
        ("rename to", inodes.rename(&inodes.root(), b"file", &elsewhere, b"new", none)),
        ("lookup", inodes.lookup(&snapshot.inodes().root(), b"file").map(drop)),
        ("read_dir", inodes.read_dir(&elsewhere, 0, &mut |_| true)),
    ];
    for (name, outcome) in refused {
        assert_eq!(outcome.map_err(|error| error.kind()), Err(ErrorKind::CrossDevice), "{name}");
    }
    assert!(!inodes.try_write_at(&foreign, &[3; 10], 0, IoFlags::empty()));
    assert_eq!(inodes.metadata(&file), before);
    assert_eq!(volume.read("file").unwrap(), [2; 5 * BLOCK]);
    assert_eq!(volume.read_dir("directory").unwrap().count(), 0);
    assert_eq!(snapshot.read("file").unwrap(), [1; 3 * BLOCK]);
}
