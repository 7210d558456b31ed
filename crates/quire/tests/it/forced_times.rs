//! Times of inodes after a power cut right behind the force that covers them.

use crate::common::{file, options};
use quire::inodes::{Create, FallocateMode, InodeRef, IoFlags, SetAttributes};
use quire::{Clock, Commit, FormatOptions, SyncOptions, Timestamp, Volume, VolumeOptions};
use quire_base::random::Random;
use quire_device::SimulatedBackend;
use quire_device::simulated::CrashPolicy;
use std::sync::Arc;

/// What stat shows of an inode's times.
fn times(volume: &Volume, inode: &InodeRef) -> [i64; 4] {
    let found = volume.inodes().metadata(inode);
    [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()]
}

/// A power cut now leaves the times that the volume shows of an inode.
fn assert_kept(
    volume: &Volume,
    device: &SimulatedBackend,
    options: &VolumeOptions,
    inode: &InodeRef,
    of: &str,
) {
    let image = Arc::new(SimulatedBackend::from_image(device.crash(CrashPolicy::LoseAll)));
    let after = options.clone().read_only(true).open_backend(image).unwrap();
    let found = after.inodes().get(inode.number()).unwrap();
    assert_eq!(times(&after, &found), times(volume, inode), "{of}, inode {}", inode.number());
}

/// No test asked whether the times of a file that was fsynced survive a crash: an fsync that left them in
/// memory would have passed.
#[test]
fn forced_times_survive_a_power_cut() {
    for seed in 0..150 {
        let random = &mut Random::seeded(seed);
        let device = Arc::new(SimulatedBackend::new(8192));
        let clock = Clock::simulated(Timestamp(2_000_000_000));
        FormatOptions::new().seed(1).clock(clock.clone()).format_backend(device.clone()).unwrap();
        let options = options().clock(clock.clone()).lazy_times(seed % 3 == 0);
        let volume = options.open_backend(device.clone()).unwrap();
        let inodes = volume.inodes();
        let files = [file(&volume, "a"), file(&volume, "b")];
        let directory = inodes.create(&inodes.root(), b"d", &Create::directory(0o755)).unwrap();
        for step in 0..12 {
            clock.advance(1_000_000_000 + random.below(1000) as i64);
            let one = &files[random.below(2) as usize];
            let flags = [IoFlags::empty(), IoFlags::DIRECT, IoFlags::SYNC][random.below(3) as usize];
            let work = random.below(12);
            match work {
                0 => drop(inodes.write_at(one, &[1; 4096], random.below(4) * 4096, flags).unwrap()),
                1 => drop(inodes.write_at(one, &[2; 100], 0, flags | IoFlags::APPEND).unwrap()),
                2 => inodes.set_len(one, random.below(9000)).unwrap(),
                3 => inodes.allocate(one, FallocateMode::PunchHole, 0, 4096).unwrap(),
                4 => {
                    let mode = Some(0o600 + step);
                    let set = SetAttributes { mode, ..SetAttributes::default() };
                    inodes.set_attributes(one, &set).map(drop).unwrap()
                }
                5 => {
                    let mut group = inodes.atomic();
                    group.write_at(one, &[3; 50], 10).unwrap();
                    group.commit(Commit::Ordered).unwrap();
                }
                6 => {
                    let name = format!("n{step}");
                    drop(inodes.create(&directory, name.as_bytes(), &Create::file(0o600)).unwrap())
                }
                7 => inodes.fsync(one, true).unwrap(),
                8 => inodes.fsync(&directory, false).unwrap(),
                9 => inodes.fsync_many_async(std::slice::from_ref(one), &SyncOptions::new()).wait().unwrap(),
                10 => volume.sync().unwrap(),
                _ => inodes.fsync(one, false).unwrap(),
            }
            let forced = match work {
                0 | 1 if flags == IoFlags::SYNC => vec![one],
                8 => vec![&directory],
                9 | 11 => vec![one],
                10 => files.iter().chain([&directory]).collect(),
                _ => Vec::new(),
            };
            for inode in forced {
                assert_kept(&volume, &device, &options, inode, &format!("seed {seed}, step {step}: {work}"));
            }
        }
        device.cut_power(CrashPolicy::LoseAll);
    }
}
