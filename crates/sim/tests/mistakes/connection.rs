//! Volumes behind a server whose connections break: what was fsynced is there, and when no connection comes
//! back, everything that waits ends.

use quire::inodes::{Create, IoFlags};
use quire::{FormatOptions, Volume};
use quire_base::simulation::mistakes::{self, Mistake};
use quire_base::simulation::{self, Options};
use quire_base::sync::thread;
use quire_base::{BlockNo, Uptime};
use quire_device::reconnecting::Ownership;
use quire_device::simulated::Image;
use quire_device::simulated::exporter::{Breaks, Exporter};
use quire_device::{Backend, IoClass, SimulatedBackend};
use quire_format::owner::{OWNER_BLOCK, OwnerMark};
use sim::image;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: usize = 4096;
/// Threads, each with a file of its own.
const THREADS: usize = 3;
/// Writes of each, each followed by an fsync.
const ROUNDS: usize = 12;
/// Bytes of each: every other one is more than goes through the journal.
const fn bytes_of(round: usize) -> usize {
    if round.is_multiple_of(2) { BLOCK } else { 40 * BLOCK }
}
/// Where each begins.
const STRIDE: usize = 40 * BLOCK;
/// Runs of a test.
const SEEDS: std::ops::Range<u64> = 0..12;
/// Points that the scheduler may pass in a run; a run that waits for ever, in virtual time too, comes there.
const STEPS_MAX: u64 = 3_000_000;

/// What a run left.
struct Left {
    /// Writes of each thread that an fsync has confirmed.
    confirmed: Vec<usize>,
    breaks: u32,
    failed: bool,
    /// What survives whatever happens next.
    safe: Image,
}

fn contents(thread: usize, round: usize) -> Vec<u8> {
    vec![(1 + thread * ROUNDS + round) as u8; bytes_of(round)]
}

/// Writes and fsyncs until it is done or something fails; gives the rounds that were confirmed.
fn rounds(volume: &Volume, thread: usize) -> usize {
    let inodes = volume.inodes();
    let name = format!("f{thread}");
    let Ok(file) = inodes.create(&inodes.root(), name.as_bytes(), &Create::file(0o644)) else { return 0 };
    for round in 0..ROUNDS {
        let bytes = contents(thread, round);
        let written = inodes.write_at(&file, &bytes, (round * STRIDE) as u64, IoFlags::empty());
        if written.is_err() || inodes.fsync(&file, round % 3 == 0).is_err() {
            return round;
        }
    }
    ROUNDS
}

fn work(seed: u64, breaks: Breaks, patience: Option<Duration>) -> Left {
    let run = move || {
        let device = Arc::new(SimulatedBackend::new(4096));
        FormatOptions::new().seed(1).clock(image::clock()).format_backend(device.clone()).unwrap();
        device.stop_recording();
        let exporter = Exporter::start(device.clone(), breaks);
        let client = exporter.client(patience).unwrap();
        let mut left = Left { confirmed: vec![0; THREADS], breaks: 0, failed: false, safe: device.safe() };
        if let Ok(volume) = image::options().threads(true).commit_seconds(1).open_backend(client) {
            let workers: Vec<_> = (0..THREADS)
                .map(|number| {
                    let volume = volume.clone();
                    thread::Builder::new().spawn(move || rounds(&volume, number)).unwrap()
                })
                .collect();
            left.confirmed = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
            left.failed = volume.failure().is_some();
            // A volume that failed says so once more.
            let _ = volume.close();
        }
        left.breaks = exporter.breaks();
        drop(exporter);
        left.safe = device.safe();
        left
    };
    let left = simulation::run(&Options { seed, step_limit: STEPS_MAX }, run);
    left.unwrap_or_else(|failure| panic!("seed {seed}: {failure:?}"))
}

/// Whether something is missing that an fsync has confirmed.
fn something_is_lost(left: &Left) -> bool {
    let device = Arc::new(SimulatedBackend::from_image(left.safe.clone()));
    let Ok(volume) = image::options().open_backend(device) else { return true };
    let inodes = volume.inodes();
    left.confirmed.iter().enumerate().any(|(thread, confirmed)| {
        (0..*confirmed).any(|round| {
            let expected = contents(thread, round);
            let mut bytes = vec![0; expected.len()];
            let at = (round * STRIDE) as u64;
            let read = inodes
                .lookup(&inodes.root(), format!("f{thread}").as_bytes())
                .and_then(|file| inodes.read_at(&file, &mut bytes, at, IoFlags::empty()));
            read.ok() != Some(expected.len()) || bytes != expected
        })
    })
}

fn often(seed: u64) -> Breaks {
    Breaks { seed, count: 6, one_in: 12, loses_one_in: 1 }
}

const PATIENCE: Duration = Duration::from_secs(200);

#[test]
fn what_was_fsynced_survives_broken_connections() {
    mistakes::with(None, || {
        let mut breaks = 0;
        for seed in SEEDS {
            let left = work(seed, often(seed), Some(PATIENCE));
            breaks += left.breaks;
            assert!(!left.failed && left.confirmed == [ROUNDS; THREADS], "seed {seed}: {:?}", left.confirmed);
            assert!(!something_is_lost(&left), "seed {seed} lost something");
        }
        assert!(breaks > 20, "{breaks} breaks");
    });
}

#[test]
fn a_volume_that_lost_its_server_ends_every_wait() {
    mistakes::with(None, || {
        let mut failed = 0;
        for seed in SEEDS {
            let left = work(seed, Breaks { count: 1, loses_one_in: 0, ..often(seed) }, None);
            failed += u32::from(left.failed || left.breaks > 0);
            assert!(!something_is_lost(&left), "seed {seed} lost something");
        }
        assert!(failed > 6, "only {failed} volumes lost their server");
    });
}

#[test]
#[ignore = "scripts/mistakes runs it"]
fn a_connection_that_forgets_what_was_not_flushed_is_caught() {
    mistakes::with(Some(Mistake::UnflushedNotWrittenAgain), || {
        let caught = |seed| something_is_lost(&work(seed, often(seed), Some(PATIENCE)));
        // Few breaks lie between a write and its flush.
        let seeds = SEEDS.start..8 * SEEDS.end;
        assert!(seeds.into_iter().any(caught), "unflushed writes that are not written again are not caught");
    });
}

/// An owner is superseded between a write and the break of its connection, and goes on as long as it can.
/// Says whether the connection broke only then, and whether the new owner's data is overwritten.
fn superseded(seed: u64) -> (bool, bool) {
    const AT: BlockNo = BlockNo(100);
    let run = move || {
        let device = Arc::new(SimulatedBackend::new(4096));
        let mark = |owner| OwnerMark { owner, beat: 1, ..OwnerMark::default() };
        let put = |at, bytes: &[u8; BLOCK]| device.write(IoClass::Metadata, at, bytes).unwrap();
        put(BlockNo(OWNER_BLOCK), &mark(1).encode());
        let breaks = Breaks { seed, count: 1, one_in: 4, loses_one_in: 0 };
        let exporter = Exporter::start(device.clone(), breaks);
        let ownership =
            Ownership { mark: mark(1), written: Uptime::now(), interval: PATIENCE, sure: 10 * PATIENCE };
        let client = exporter.owner(Some(PATIENCE), Some(ownership)).unwrap();
        client.write(IoClass::Data, AT, &[1; BLOCK]).unwrap();
        let is_late = exporter.breaks() == 0;
        put(BlockNo(OWNER_BLOCK), &mark(2).encode());
        put(AT, &[2; BLOCK]);
        for _ in 0..64 {
            let _ = client.read(IoClass::Data, BlockNo(200), &mut [0; BLOCK]);
        }
        drop(client);
        drop(exporter);
        let mut found = [0; BLOCK];
        device.read(IoClass::Data, AT, &mut found).unwrap();
        (is_late, found != [2; BLOCK])
    };
    let outcome = simulation::run(&Options { seed, step_limit: STEPS_MAX }, run);
    outcome.unwrap_or_else(|failure| panic!("seed {seed}: {failure:?}"))
}

#[test]
fn a_superseded_owner_overwrites_nothing() {
    mistakes::with(None, || {
        let outcomes: Vec<_> = SEEDS.map(superseded).collect();
        assert!(outcomes.iter().filter(|(is_late, _)| *is_late).count() > 3, "{outcomes:?}");
        assert!(outcomes.iter().all(|(_, overwritten)| !overwritten), "{outcomes:?}");
    });
}

#[test]
#[ignore = "scripts/mistakes runs it"]
fn an_owner_that_does_not_look_whose_the_device_is_is_caught() {
    mistakes::with(Some(Mistake::OwnerNotLookedAt), || {
        assert!(
            SEEDS.into_iter().any(|seed| superseded(seed).1),
            "a superseded owner's writes are not caught"
        );
    });
}
