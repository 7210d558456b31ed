//! A frozen volume: its device stays as it is, changes wait, reads go on, a copy is a whole volume.

use crate::common::{BLOCK, file, new_volume, options};
use quire::backend::MemoryBackend;
use quire::inodes::IoFlags;
use quire::{ErrorKind, FormatOptions, OpenOptions, Volume, VolumeOptions};
use quire_base::random::Random;
use quire_base::{BlockNo, patience};
use quire_device::simulated::Hold;
use quire_device::{Backend, IoClass};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BLOCKS: u64 = 16384;
const WRITERS: usize = 4;

fn content(device: &dyn Backend) -> Vec<u8> {
    let mut bytes = vec![0; device.blocks() as usize * BLOCK];
    device.read(IoClass::Data, BlockNo(0), &mut bytes).unwrap();
    bytes
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Writes ever larger numbers, in every way, and notes what has been made durable.
fn write(volume: &Volume, writer: usize, durable: &AtomicU64, stop: &AtomicBool) {
    let name = format!("writer {writer}");
    let log = OpenOptions::new().append(true).create(true).open(volume, format!("{name}.log")).unwrap();
    let open = OpenOptions::new().read(true).write(true).create(true).direct(writer % 2 == 1);
    let place = open.open(volume, &name).unwrap();
    for number in 1.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let mut block = quire::AlignedBuf::zeroed(BLOCK);
        block[..8].copy_from_slice(&u64::to_le_bytes(number));
        place.write_all_at(&block, 0).unwrap();
        log.write_at(&[1; 100], 0).unwrap();
        let short = format!("{name}.{}", number % 7);
        volume.write(&short, number.to_string()).unwrap();
        if number % 3 == 0 {
            volume.remove_file(&short).unwrap();
        }
        place.sync_data().unwrap();
        durable.store(number, Ordering::Release);
    }
}

fn number(volume: &Volume, writer: usize) -> u64 {
    let bytes = volume.read(format!("writer {writer}")).unwrap();
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

#[test]
fn a_frozen_volume_can_be_copied() {
    let device = Arc::new(MemoryBackend::new(BLOCKS));
    FormatOptions::new().format_backend(device.clone()).unwrap();
    let volume = VolumeOptions::new().open_backend(device.clone()).unwrap();
    let durable: Arc<[AtomicU64; WRITERS]> = Arc::default();
    let (stop, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut threads = Vec::new();
    for writer in 0..WRITERS {
        let (volume, durable, stop) = (volume.clone(), durable.clone(), stop.clone());
        threads.push(std::thread::spawn(move || write(&volume, writer, &durable[writer], &stop)));
    }
    wait_until("every writer has begun", || durable.iter().all(|number| number.load(Ordering::Acquire) > 0));
    {
        let (volume, reads, stop) = (volume.clone(), reads.clone(), stop.clone());
        threads.push(std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for writer in 0..WRITERS {
                    number(&volume, writer);
                }
                reads.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    for round in 0..6 {
        let before: Vec<u64> = durable.iter().map(|number| number.load(Ordering::Acquire)).collect();
        let frozen = volume.freeze().unwrap();
        assert_eq!(volume.freeze().unwrap_err().kind(), ErrorKind::Busy);
        let copy = content(&*device);
        let read = reads.load(Ordering::Relaxed);
        wait_until("a reader waits for the thaw", || reads.load(Ordering::Relaxed) >= read + 50);
        assert!(content(&*device) == copy, "round {round}: the device has changed");
        let during: Vec<u64> = durable.iter().map(|number| number.load(Ordering::Acquire)).collect();
        drop(frozen);
        wait_until("a writer still waits", || {
            durable.iter().zip(&during).all(|(now, then)| now.load(Ordering::Acquire) > then + 2)
        });

        let copied = Arc::new(MemoryBackend::new(BLOCKS));
        copied.write(IoClass::Data, BlockNo(0), &copy).unwrap();
        let copied = VolumeOptions::new().open_backend(copied).unwrap();
        assert_eq!(copied.recovery().records, 0, "a checkpoint was written");
        for (writer, (before, during)) in before.iter().zip(&during).enumerate() {
            let found = number(&copied, writer);
            // The last one may have been written, and not yet said to be durable.
            assert!(
                (*before..=during + 1).contains(&found),
                "writer {writer}: {found}, {before} to {during}"
            );
        }
        copied.close().unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    volume.close().unwrap();
}

/// Without this, the thread that takes a mount's requests would wait for the thaw, and nobody could read.
#[test]
fn a_change_of_a_thread_that_may_not_wait_fails() {
    let (_device, volume) = new_volume(4096);
    let inode = file(&volume, "f");
    let frozen = volume.freeze().unwrap();
    let outcome = patience::at_once(|| volume.inodes().write_at(&inode, b"x", 0, IoFlags::empty()));
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(frozen);
    volume.inodes().write_at(&inode, b"x", 0, IoFlags::empty()).unwrap();
    drop(inode);
    volume.close().unwrap();
}

/// A write that is only tried waited for the thaw, and so did the thread that takes a mount's requests.
#[test]
fn a_tried_write_is_refused_at_once() {
    let (_device, volume) = new_volume(4096);
    let inode = file(&volume, "f");
    volume.inodes().write_at(&inode, &[1; BLOCK], 0, IoFlags::empty()).unwrap();
    let frozen = volume.freeze().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let tried = {
        let (volume, inode) = (volume.clone(), inode.clone());
        std::thread::spawn(move || {
            tell.send(volume.inodes().try_write_at(&inode, &[2; 10], 0, IoFlags::empty()))
        })
    };
    let outcome = told.recv_timeout(Duration::from_secs(10));
    drop(frozen);
    tried.join().unwrap().unwrap();
    assert_eq!(outcome, Ok(false), "a tried write waits for the thaw, or changes a frozen volume");
    assert!(volume.inodes().try_write_at(&inode, &[2; 10], 0, IoFlags::empty()));
    drop(inode);
    volume.close().unwrap();
}

#[test]
fn closing_ends_a_freeze() {
    let (device, volume) = new_volume(4096);
    let inode = file(&volume, "f");
    let frozen = volume.freeze().unwrap();
    let waits = {
        let volume = volume.clone();
        std::thread::spawn(move || volume.inodes().write_at(&inode, b"x", 0, IoFlags::empty()).map(drop))
    };
    std::thread::sleep(Duration::from_millis(20));
    volume.clone().close().unwrap();
    assert_eq!(waits.join().unwrap().unwrap_err().kind(), ErrorKind::Shutdown);
    assert_eq!(volume.freeze().unwrap_err().kind(), ErrorKind::Shutdown);
    drop((frozen, volume));
    let volume = options().open_backend(device).unwrap();
    assert!(volume.read("f").unwrap().is_empty());
    volume.close().unwrap();
}

/// It waited for the thaw. A mount's server trims on the thread that hears of thaws, too, so nothing thawed
/// it before the freeze's time was over.
#[test]
fn a_trim_of_a_frozen_volume_fails_at_once() {
    let (_device, volume) = new_volume(4096);
    let frozen = volume.freeze().unwrap();
    let trim = {
        let volume = volume.clone();
        std::thread::spawn(move || volume.trim(0..u64::MAX))
    };
    wait_until("the trim waits for the thaw", || trim.is_finished());
    assert_eq!(trim.join().unwrap().unwrap_err().kind(), ErrorKind::Busy);
    drop(frozen);
    assert!(volume.trim(0..u64::MAX).unwrap() > 0);
    volume.close().unwrap();
}

/// The front end had ended the first freeze. Dropping its guard later ended the second one, while a copy of
/// the volume was being made.
#[test]
fn a_late_thaw_ends_no_later_freeze() {
    let (_device, volume) = new_volume(BLOCKS);
    let first = volume.freeze().unwrap();
    volume.inodes().thaw();
    let second = volume.freeze().unwrap();
    drop(first);
    assert_eq!(volume.take_snapshot("now").unwrap_err().kind(), ErrorKind::Busy);
    drop(second);
    volume.take_snapshot("now").unwrap();
}

/// A freeze kept changes back and then freed all that waited to be freed, wrote all that was dirty, and wrote
/// a checkpoint: after a crash with many orphans nothing could be changed for minutes.
#[test]
fn changes_go_on_while_a_freeze_writes() {
    let (device, volume) = new_volume(16384);
    volume.write("large", vec![1; 8 << 20]).unwrap();
    device.set_hold(Hold::Everything);
    let freezing = {
        let volume = volume.clone();
        std::thread::spawn(move || volume.freeze().map(drop))
    };
    wait_until("the freeze writes", || device.held() > 0);
    let making = {
        let volume = volume.clone();
        std::thread::spawn(move || volume.create_dir_all("made"))
    };
    let start = Instant::now();
    while !making.is_finished() && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let went_on = making.is_finished();
    device.set_hold(Hold::Nothing);
    device.release_all(&mut Random::seeded(1));
    making.join().unwrap().unwrap();
    freezing.join().unwrap().unwrap();
    assert!(went_on, "a change waits for what the freeze writes");
    volume.close().unwrap();
}

/// What waits to be freed need not be gone: the copy frees it.
#[test]
fn a_copy_frees_what_waited_to_be_freed() {
    let device = Arc::new(MemoryBackend::new(BLOCKS));
    FormatOptions::new().format_backend(device.clone()).unwrap();
    let volume = options().open_backend(device.clone()).unwrap();
    let free = volume.statfs().free;
    volume.write("gone", vec![1; 8 << 20]).unwrap();
    volume.sync().unwrap();
    volume.remove_file("gone").unwrap();
    let frozen = volume.freeze().unwrap();
    let copied = Arc::new(MemoryBackend::new(BLOCKS));
    copied.write(IoClass::Data, BlockNo(0), &content(&*device)).unwrap();
    drop(frozen);
    volume.close().unwrap();
    let copied = options().open_backend(copied).unwrap();
    assert_eq!(copied.recovery().records, 0);
    copied.drain_orphans();
    copied.sync().unwrap();
    // The metadata may take some more.
    assert!(free - copied.statfs().free < 2048, "the file's 2048 blocks are not free");
    copied.close().unwrap();
}

/// While a snapshot was taken a trim said that the volume was frozen, and was to be thawed first.
#[test]
fn a_trim_waits_for_a_snapshot() {
    let (device, volume) = new_volume(16384);
    volume.write("file", vec![1; 1 << 20]).unwrap();
    device.set_hold(Hold::Everything);
    let taking = {
        let volume = volume.clone();
        std::thread::spawn(move || volume.take_snapshot("s").map(drop))
    };
    let stop = Arc::new(AtomicBool::new(false));
    // What is changed between the snapshot's sync and its checkpoint is written while changes are kept back.
    let [trimming, changing] = [true, false].map(|trims| {
        let (volume, stop) = (volume.clone(), stop.clone());
        std::thread::spawn(move || {
            for number in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                match trims {
                    true => volume.trim(0..u64::MAX).map(drop)?,
                    false => volume.create_dir_all(number.to_string())?,
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            Ok::<(), quire::Error>(())
        })
    });
    let start = Instant::now();
    while !taking.is_finished() && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(2));
        device.release(0);
    }
    stop.store(true, Ordering::Relaxed);
    device.set_hold(Hold::Nothing);
    device.release_all(&mut Random::seeded(1));
    taking.join().unwrap().unwrap();
    changing.join().unwrap().unwrap();
    trimming.join().unwrap().unwrap();
    volume.close().unwrap();
}
