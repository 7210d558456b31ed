//! Crashes of everything that makes an orphan or frees one: files unlinked while they are open, truncates of
//! many transactions, and the freeing itself, after a crash as well, several crashes deep.
//!
//! Each device event of a short history is a crash, under several policies. [`image::recover`] finishes what
//! the crash cut off and has fsck look: no inode leaked, none left over, no block with two owners. Here it is
//! added up, besides: what is free, what the pool has and what the files that are left have is always the
//! same number of blocks, so nothing was freed twice and nothing lost.

use quire::inodes::{Create, InodeRef, IoFlags, SetAttributes};
use quire::internals::repair::Session;
use quire::{FormatOptions, Volume};
use quire_base::simulation::{self, Options};
use quire_base::sync::atomic::{AtomicBool, Ordering};
use quire_base::sync::thread;
use quire_device::SimulatedBackend;
use quire_device::simulated::{CrashPolicy, Image};
use sim::image::{self, State, Thoroughness, options};
use std::sync::Arc;

const BLOCK: u64 = 4096;
const VOLUME_BLOCKS: u64 = 4096;
/// Files that one crash leaves without a name.
const ORPHANS: u64 = 24;

/// A volume in use.
struct Live {
    device: Arc<SimulatedBackend>,
    volume: Volume,
}

impl Live {
    fn on(image: Image) -> Live {
        let device = Arc::new(SimulatedBackend::from_image(image));
        let volume = options().open_backend(device.clone()).unwrap();
        Live { device, volume }
    }

    fn formatted() -> Live {
        let device = Arc::new(SimulatedBackend::new(VOLUME_BLOCKS));
        let format = FormatOptions::new().seed(5).clock(sim::image::clock());
        format.format_backend(device.clone()).unwrap();
        Live::on(device.visible())
    }

    /// A file of so many blocks, each an extent of its own, durable.
    fn file(&self, name: &str, blocks: u64) -> InodeRef {
        let file = self
            .volume
            .inodes()
            .create(&self.volume.inodes().root(), name.as_bytes(), &Create::file(0o600))
            .unwrap();
        for block in 0..blocks {
            let byte = [block as u8 | 1; BLOCK as usize];
            self.volume.inodes().write_at(&file, &byte, 2 * block * BLOCK, IoFlags::empty()).unwrap();
        }
        self.volume.inodes().fsync(&file, false).unwrap();
        file
    }

    fn unlink(&self, name: &str) {
        self.volume.inodes().remove_file(&self.volume.inodes().root(), name.as_bytes()).unwrap();
    }
}

/// The blocks of a file, all of which hold something.
fn blocks_of(contents: &[u8]) -> u64 {
    contents.chunks(BLOCK as usize).filter(|block| block.iter().any(|&byte| byte != 0)).count() as u64
}

/// What every state of one volume has in common.
fn sum(found: &State) -> u64 {
    let files: u64 = found.inodes.values().map(|inode| blocks_of(&inode.contents)).sum();
    found.free_blocks + found.pool_blocks + files
}

fn recovered(image: &Image) -> State {
    let thoroughness = Thoroughness { fsck_before: true, again: true, ..Thoroughness::default() };
    image::recover(image, thoroughness).unwrap_or_else(|what| panic!("{what}"))
}

/// Crashes after each `step`th event from `first` on, under each policy and of a power cut with several
/// fates; gives the image and what is recovered from it.
fn each_crash(
    device: &SimulatedBackend,
    (first, step): (usize, usize),
    fates: u64,
    visit: &mut dyn FnMut(&Image, &State),
) {
    for event in (first..=device.event_count()).step_by(step) {
        let seed = event as u64;
        let power = (0..fates).map(|fate| CrashPolicy::Power { seed: 100 * seed + fate });
        let others = [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::Killed { seed }];
        for policy in others.into_iter().chain(power) {
            let image = device.crash_at(event, policy).expect("an event of the history");
            let found = recovered(&image);
            visit(&image, &found);
        }
    }
}

/// The file that [`beside_forces`] changes.
const FORCED: &str = "n100";

/// Does `work` on a volume while another thread forces the journal again and again, under a seed's schedule:
/// so parts of it are durable at different times.
fn beside_forces(image: &Image, seed: u64, work: impl FnOnce(&Volume) + Send) -> Arc<SimulatedBackend> {
    let body = || {
        let Live { device, volume } = Live::on(image.clone());
        let done = Arc::new(AtomicBool::new(false));
        let forcer = {
            let (volume, done) = (volume.clone(), done.clone());
            let forces = move || {
                let file = volume.inodes().lookup(&volume.inodes().root(), FORCED.as_bytes()).unwrap();
                for mode in (0..).take_while(|_| !done.load(Ordering::Acquire)) {
                    let set = SetAttributes { mode: Some(mode & 0o777), ..SetAttributes::default() };
                    volume.inodes().set_attributes(&file, &set).unwrap();
                    volume.inodes().fsync(&file, false).unwrap();
                }
            };
            thread::Builder::new().spawn(forces).unwrap()
        };
        work(&volume);
        done.store(true, Ordering::Release);
        forcer.join().unwrap();
        volume.sync().unwrap();
        device
    };
    simulation::run(&Options { seed, step_limit: 10_000_000 }, body).unwrap()
}

#[test]
fn files_unlinked_while_they_are_open() {
    let live = Live::formatted();
    live.volume.sync().unwrap();
    let begun = live.device.event_count();
    let whole = sum(&recovered(&live.device.crash(CrashPolicy::KeepAll)));
    let held: Vec<InodeRef> = (0..4).map(|n| live.file(&format!("n{n}"), 5 + 40 * n)).collect();
    live.volume.sync().unwrap();
    for n in 0..4 {
        live.unlink(&format!("n{n}"));
    }
    let unnamed = live.volume.inodes().tmpfile(&live.volume.inodes().root(), &Create::file(0o600)).unwrap();
    live.volume.inodes().write_at(&unnamed, &[7; 3 * BLOCK as usize], 0, IoFlags::empty()).unwrap();
    live.volume.inodes().fsync(&unnamed, false).unwrap();
    // In use still: it takes writes, and loses some again.
    live.volume.inodes().write_at(&held[3], &[9; 2 * BLOCK as usize], 1, IoFlags::empty()).unwrap();
    live.volume.inodes().set_len(&held[3], 3 * BLOCK).unwrap();
    live.volume.sync().unwrap();
    live.volume.checkpoint().unwrap();
    drop((held, unnamed));
    live.volume.drain_orphans();
    live.volume.sync().unwrap();

    let (mut orphans_most, mut gone) = (0, 0);
    each_crash(&live.device, (begun, 1), 1, &mut |_, found| {
        assert_eq!(sum(found), whole);
        orphans_most = orphans_most.max(found.waiting.orphans);
        gone += u64::from(found.inodes.len() == 1);
    });
    assert!(orphans_most >= 4 && gone > 0, "{orphans_most} orphans at most, {gone} images without a file");
    assert_eq!(live.volume.info().inodes, 1);
}

/// A truncate of more extents than one transaction takes: it is finished wherever a crash cuts it, if it has
/// begun.
#[test]
fn truncates_cut_in_half() {
    let live = Live::formatted();
    let number = live.file("n0", 400).number().0;
    drop(live.file(FORCED, 0));
    live.volume.sync().unwrap();
    let image = live.device.crash(CrashPolicy::LoseAll);
    let before = recovered(&image);
    let contents = before.inodes[&number].contents.clone();
    assert_eq!(blocks_of(&contents), 400);

    let (mut halves, mut sizes) = (0, std::collections::BTreeSet::new());
    for seed in 0..3 {
        let device = beside_forces(&image, seed, |volume| {
            let file = volume.inodes().lookup(&volume.inodes().root(), b"n0").unwrap();
            volume.inodes().set_len(&file, 100 * 2 * BLOCK).unwrap();
            volume.inodes().set_len(&file, 0).unwrap();
        });
        // Together they have crashes at each kind of event.
        each_crash(&device, (seed as usize, 3), 1, &mut |_, found| {
            let left = &found.inodes[&number];
            assert!(left.contents[..] == contents[..left.size as usize], "a file of {} bytes", left.size);
            assert_eq!(sum(found), sum(&before));
            halves += found.waiting.operations;
            sizes.insert(left.size);
        });
    }
    println!("{halves} images with half a truncate, sizes {sizes:?}");
    assert!(halves > 0 && sizes.len() == 3);
}

/// A crash while the orphans of a crash are freed, and another one while those that are left are: in slots
/// and under keys, one of them with a truncate under way.
#[test]
fn crashes_while_orphans_of_crashes_are_freed() {
    let live = Live::formatted();
    let whole = sum(&recovered(&live.device.crash(CrashPolicy::KeepAll)));
    let held: Vec<InodeRef> = (0..ORPHANS).map(|n| live.file(&format!("n{n}"), 10 + 25 * (n % 3))).collect();
    for n in 0..ORPHANS {
        live.unlink(&format!("n{n}"));
    }
    live.volume.inodes().set_len(&held[5], BLOCK).unwrap();
    drop(live.file(FORCED, 0));
    live.volume.sync().unwrap();
    let device = Arc::new(SimulatedBackend::from_image(live.device.crash(CrashPolicy::LoseAll)));
    drop(held);
    // As if there had been no slots for two of them.
    let mut session = Session::open(device.clone()).unwrap();
    for (slot, inode) in session.orphans().into_iter().take(2) {
        session.orphan_clear(slot);
        session.put(quire_format::key::Key::orphan(inode), &[]);
    }
    session.close().unwrap();

    let mut level = vec![device.visible()];
    for depth in 0..3 {
        let (mut some_left, mut next) = (0, Vec::new());
        for (number, image) in level.iter().enumerate() {
            let device = beside_forces(image, number as u64, Volume::drain_orphans);
            // Fewer of each at further levels, which have several volumes.
            let (step, fates) = if depth == 0 { (5, 3) } else { (19, 2) };
            each_crash(&device, (number % step, step), fates, &mut |image, found| {
                assert_eq!((found.inodes.len(), sum(found)), (2, whole));
                let orphans = found.waiting.orphans;
                some_left += u64::from(orphans > 0);
                if orphans > 0 && orphans < ORPHANS {
                    next.push(image.clone());
                }
            });
        }
        println!(
            "level {depth}: {} volumes, {some_left} images with orphans, {} with some",
            level.len(),
            next.len()
        );
        assert!(some_left > 0 && !next.is_empty(), "no crash left some of the orphans");
        let every = (next.len() / 4).max(1);
        level = next.into_iter().step_by(every).take(4).collect();
    }
}
