//! What a failing device does to a volume: an error of journal, tree or flush ends changes and says why; one
//! of data makes fsync fail until the data is written; bits that rot are told, never shown, where a checksum
//! covers them.

use quire::inodes::{Create, InodeRef, IoFlags};
use quire::{ErrorKind, FormatOptions, Volume};
use quire_base::random::Random;
use quire_base::simulation;
use quire_base::sync::thread;
use quire_device::simulated::{CrashPolicy, Fault, FaultOp, Hold, Image};
use quire_device::{IoClass, SimulatedBackend};
use sim::image::{self, State, Thoroughness, options};
use std::sync::Arc;
use std::time::Duration;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 8192;

fn fresh() -> (Arc<SimulatedBackend>, Volume) {
    let device = Arc::new(SimulatedBackend::new(BLOCKS));
    let format = FormatOptions::new().seed(1).clock(sim::image::clock());
    format.format_backend(device.clone()).unwrap();
    let volume = options().open_backend(device.clone()).unwrap();
    (device, volume)
}

fn create(volume: &Volume, name: &str) -> quire::Result<InodeRef> {
    volume.inodes().create(&volume.inodes().root(), name.as_bytes(), &Create::file(0o644))
}

fn write(volume: &Volume, file: &InodeRef, byte: u8) -> quire::Result<usize> {
    volume.inodes().write_at(file, &[byte; 2 * BLOCK], 0, IoFlags::empty())
}

fn read(volume: &Volume, file: &InodeRef) -> Vec<u8> {
    let mut bytes = vec![0; file.size() as usize];
    let read = volume.inodes().read_at(file, &mut bytes, 0, IoFlags::empty()).unwrap();
    assert_eq!(read, bytes.len());
    bytes
}

fn opened(image: Image) -> Volume {
    options().open_backend(Arc::new(SimulatedBackend::from_image(image))).unwrap()
}

/// The file `n0` as a power cut now leaves it.
fn after_power_cut(device: &SimulatedBackend) -> Vec<u8> {
    after_power_cut_of(device, "n0")
}

fn after_power_cut_of(device: &SimulatedBackend, name: &str) -> Vec<u8> {
    let volume = opened(device.crash(CrashPolicy::LoseAll));
    let file = volume.inodes().lookup(&volume.inodes().root(), name.as_bytes()).unwrap();
    read(&volume, &file)
}

/// A volume with a synced file `n0` of ones.
fn with_file() -> (Arc<SimulatedBackend>, Volume, InodeRef) {
    let (device, volume) = fresh();
    let file = create(&volume, "n0").unwrap();
    write(&volume, &file, 1).unwrap();
    volume.sync().unwrap();
    (device, volume, file)
}

/// No more changes, each with the reason; reads go on; what was synced is there after a crash.
fn assert_shut_down(device: &SimulatedBackend, volume: &Volume, file: &InodeRef, what: &str) {
    let reason = volume.failure().unwrap_or_else(|| panic!("{what}: the volume goes on")).to_string();
    assert!(reason.contains("simulated"), "{what}: {reason} does not say why");
    device.clear_faults();
    let changes = [
        create(volume, "later").map(drop),
        write(volume, file, 3).map(drop),
        volume.inodes().set_len(file, 0),
        volume.inodes().remove_file(&volume.inodes().root(), b"n0"),
        volume.inodes().set_xattr(file, b"user.x", b"x", quire::inodes::XattrFlags::empty()),
    ];
    for change in changes {
        let error = change.expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Shutdown, "{what}: {error}");
        assert!(error.to_string().contains("simulated"), "{what}: {error} does not say why");
    }
    volume.inodes().fsync(file, false).expect_err(what);
    volume.sync().expect_err(what);
    assert!(matches!(read(volume, file)[0], 1 | 2), "{what}: reads go on");
    let image = device.crash(CrashPolicy::LoseAll);
    let thoroughness =
        Thoroughness { fsck_before: true, again: true, either_slot: true, ..Thoroughness::default() };
    let found = image::recover(&image, thoroughness).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(found.inodes.len(), 2, "{what}");
    assert_eq!(after_power_cut(device), [1; 2 * BLOCK], "{what}");
}

#[test]
fn an_error_in_the_journal_ends_changes() {
    let (device, volume, file) = with_file();
    write(&volume, &file, 2).unwrap();
    volume.inodes().set_xattr(&file, b"user.x", b"lost", quire::inodes::XattrFlags::empty()).unwrap();
    device.inject(Fault::on(FaultOp::Write).class(IoClass::Journal));
    create(&volume, "n1").and_then(|made| volume.inodes().fsync(&made, false)).unwrap_err();
    assert_shut_down(&device, &volume, &file, "journal write");
}

#[test]
fn an_error_in_the_tree_ends_changes() {
    for after in 0..2 {
        let (device, volume, file) = with_file();
        create(&volume, "n1").unwrap();
        volume.inodes().remove_file(&volume.inodes().root(), b"n1").unwrap();
        device.inject(Fault::on(FaultOp::Write).class(IoClass::Metadata).after(after));
        volume.checkpoint().unwrap_err();
        assert_shut_down(&device, &volume, &file, "tree write");
    }
}

#[test]
fn a_failed_flush_ends_changes() {
    for after in 0..3 {
        let (device, volume, file) = with_file();
        write(&volume, &file, 2).unwrap();
        device.inject(Fault::on(FaultOp::Flush).after(after));
        let synced = volume.sync().and_then(|()| volume.checkpoint());
        synced.unwrap_err();
        let reason = volume.failure().expect("the volume has shut down").to_string();
        assert!(reason.contains("simulated"), "{reason}");
        device.clear_faults();
        assert_eq!(create(&volume, "later").unwrap_err().kind(), ErrorKind::Shutdown);
        volume.inodes().fsync(&file, false).unwrap_err();
        assert_eq!(read(&volume, &file), [2; 2 * BLOCK], "reads go on");
        // What the flush lost is unknowable: either value, but no other.
        assert!(matches!(after_power_cut(&device)[0], 1 | 2));
    }
}

#[test]
fn fsync_fails_until_the_data_is_written() {
    for kind in [ErrorKind::Io, ErrorKind::NoSpace] {
        let (device, volume, file) = with_file();
        write(&volume, &file, 2).unwrap();
        device.inject(Fault::on(FaultOp::Write).class(IoClass::Data).times(3).kind(kind));
        for _ in 0..3 {
            assert_eq!(volume.inodes().fsync(&file, true).unwrap_err().kind(), kind);
            assert!(volume.failure().is_none(), "other files go on");
            assert_eq!(read(&volume, &file), [2; 2 * BLOCK], "the data is not lost");
            assert_eq!(after_power_cut(&device), [1; 2 * BLOCK], "nothing was clean");
            let other = create(&volume, "other").unwrap();
            volume.inodes().fsync(&other, false).unwrap();
            volume.inodes().remove_file(&volume.inodes().root(), b"other").unwrap();
        }
        volume.inodes().fsync(&file, true).unwrap();
        assert_eq!(after_power_cut(&device), [2; 2 * BLOCK]);
    }
}

#[test]
fn a_full_host_fails_growth_until_it_has_room() {
    let (device, volume, file) = with_file();
    volume.checkpoint().unwrap();
    let fault = Fault::on(FaultOp::Write).class(IoClass::Data);
    device.inject(fault.times(u64::MAX).kind(ErrorKind::NoSpace));
    let new = create(&volume, "new").unwrap();
    write(&volume, &new, 2).unwrap();
    volume.inodes().fsync(&new, true).expect("the journal has its space already");
    assert_eq!(volume.checkpoint().unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(volume.failure().is_none(), "nothing is lost");
    assert_eq!(after_power_cut_of(&device, "new"), [2; 2 * BLOCK]);
    let more = create(&volume, "more").unwrap();
    write(&volume, &more, 3).unwrap();
    assert_eq!(volume.inodes().fsync(&more, true).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(read(&volume, &file), [1; 2 * BLOCK]);
    device.clear_faults();
    volume.inodes().fsync(&more, true).unwrap();
    volume.checkpoint().unwrap();
    assert_eq!(after_power_cut_of(&device, "new"), [2; 2 * BLOCK]);
    assert_eq!(after_power_cut_of(&device, "more"), [3; 2 * BLOCK]);
}

#[test]
fn closing_tells_what_it_could_not_write_and_the_volume_opens_again() {
    let (device, volume, file) = with_file();
    write(&volume, &file, 2).unwrap();
    drop(file);
    device.inject(Fault::on(FaultOp::Write).class(IoClass::Data).times(u64::MAX));
    assert_eq!(volume.close().unwrap_err().kind(), ErrorKind::Io);
    device.clear_faults();
    let volume = options().open_backend(device.clone()).unwrap();
    let file = volume.inodes().lookup(&volume.inodes().root(), b"n0").unwrap();
    assert_eq!(read(&volume, &file), [1; 2 * BLOCK]);
}

#[test]
fn a_failed_read_is_told_and_ends_nothing() {
    let (device, volume, file) = with_file();
    drop((file, volume));
    let volume = options().open_backend(device.clone()).unwrap();
    let file = volume.inodes().lookup(&volume.inodes().root(), b"n0").unwrap();
    // Once with what is read ahead, once without it.
    device.inject(Fault::on(FaultOp::Read).class(IoClass::Data).times(2));
    let mut bytes = [0; BLOCK];
    assert_eq!(
        volume.inodes().read_at(&file, &mut bytes, 0, IoFlags::empty()).unwrap_err().kind(),
        ErrorKind::Io
    );
    assert_eq!(read(&volume, &file), [1; 2 * BLOCK]);
    write(&volume, &file, 2).unwrap();
    volume.inodes().fsync(&file, false).unwrap();
    assert_eq!(after_power_cut(&device), [2; 2 * BLOCK]);
}

#[test]
fn slow_writes_are_waited_for() {
    let (device, volume, file) = with_file();
    write(&volume, &file, 2).unwrap();
    device.set_hold(Hold::Everything);
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| volume.inodes().fsync(&file, true));
        let mut random = Random::seeded(1);
        while !sync.is_finished() {
            std::thread::sleep(Duration::from_millis(20));
            let was_over = sync.is_finished();
            let left = after_power_cut(&device);
            assert!(!was_over || left == [2; 2 * BLOCK], "fsync returned before its write was safe");
            device.release_one(&mut random);
        }
        sync.join().unwrap().unwrap();
    });
    device.set_hold(Hold::Nothing);
    assert_eq!(after_power_cut(&device), [2; 2 * BLOCK]);
}

/// Bits rot in journal, tree and superblocks: the volume is what it was, or an earlier state that recovery
/// may fall back to, or it is not opened, or reading says that something is damaged. It never shows anything
/// else.
#[test]
fn bits_that_rot_under_a_checksum_are_never_shown() {
    let (device, volume) = fresh();
    let mut states: Vec<State> = vec![State::take(&volume).unwrap()];
    for number in 0..30 {
        let file = create(&volume, &format!("n{number}")).unwrap();
        volume
            .inodes()
            .write_at(
                &file,
                &sim::contents::pattern(sim::operation::OpId(number), 0, 5000),
                0,
                IoFlags::empty(),
            )
            .unwrap();
        volume.inodes().fsync(&file, false).unwrap();
        if number % 10 == 9 {
            volume.checkpoint().unwrap();
        }
        states.push(State::take(&volume).unwrap());
    }
    let info = volume.info();
    let image = device.crash(CrashPolicy::KeepAll);
    device.cut_power(CrashPolicy::LoseAll);
    drop(volume);
    let data = quire::internals::inspect::superblocks(Arc::new(SimulatedBackend::from_image(image.clone())))
        .into_iter()
        .find_map(|slot| slot.newest().ok())
        .unwrap()
        .data_start;
    let (mut refused, mut told, mut shown) = (0, 0, 0);
    for seed in 0..400 {
        let device = Arc::new(SimulatedBackend::from_image(image.clone()));
        let region = match seed % 4 {
            0 => 0..1,
            1 => 8..9,
            2 => 16..16 + info.journal_blocks,
            _ => 16 + info.journal_blocks..data.0,
        };
        device.rot(region, 1 + (seed % 3) as usize, seed);
        let Ok(volume) = options().open_backend(device) else {
            refused += 1;
            continue;
        };
        match State::take(&volume) {
            Ok(found) => {
                let known = states.iter().any(|state| state.difference(&found).is_none());
                assert!(known, "seed {seed}: a state that never was");
                shown += 1;
            }
            Err(_) => told += 1,
        }
    }
    println!("{refused} refused, {told} told, {shown} shown as they were");
    assert!(refused + told > 20 && shown > 20, "{refused} refused, {told} told, {shown} shown");
}

/// A volume that shut down before it had freed what a crash had left without a name: the reaper looked for
/// more to do for ever, on a CPU of its own, since there was something and it could not have it.
#[test]
fn the_reaper_of_a_failed_volume_sleeps() {
    let (device, volume) = fresh();
    let files: Vec<InodeRef> =
        (0..24).map(|number| create(&volume, &format!("n{number}")).unwrap()).collect();
    for number in 0..files.len() {
        volume.inodes().remove_file(&volume.inodes().root(), format!("n{number}").as_bytes()).unwrap();
    }
    volume.sync().unwrap();
    let left = device.crash(CrashPolicy::LoseAll);
    drop((files, volume));
    let mut not_freed = 0;
    for seed in 0..40 {
        let left = left.clone();
        let body = move || {
            let device = Arc::new(SimulatedBackend::from_image(left));
            let with_threads = options().threads(true);
            let volume = with_threads.open_backend(device.clone()).unwrap();
            device.inject(Fault::on(FaultOp::Write).class(IoClass::Journal).times(u64::MAX));
            volume
                .sync()
                .and_then(|()| create(&volume, "n").map(drop))
                .and_then(|()| volume.sync())
                .unwrap_err();
            // Where somebody goes on and on this time does not come.
            thread::sleep(Duration::from_secs(1000));
            let image = device.crash(CrashPolicy::LoseAll);
            drop(volume.close());
            image
        };
        let image = simulation::run(&simulation::Options { seed, step_limit: 1_000_000 }, body).unwrap();
        let thoroughness = Thoroughness { fsck_before: true, ..Thoroughness::default() };
        not_freed += u64::from(image::recover(&image, thoroughness).unwrap().waiting.orphans > 0);
    }
    assert!(not_freed > 20, "only {not_freed} volumes failed before everything was freed");
}
