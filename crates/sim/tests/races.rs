//! Races between calls that once lost data, each under many schedules.

use quire::{Clock, Create, FormatOptions, IoFlags, Timestamp, Volume, VolumeOptions};
use quire_base::simulation::{self, Options};
use quire_base::sync::thread;
use quire_device::SimulatedBackend;
use quire_device::simulated::CrashPolicy;
use std::sync::Arc;

const BLOCK: usize = 4096;

fn options(threads: bool) -> VolumeOptions {
    VolumeOptions {
        threads,
        cache_bytes: Some(6 << 20),
        clock: Clock::simulated(Timestamp(1_000_000_000)),
        ..VolumeOptions::default()
    }
}

/// A truncate drops dirty blocks from memory before its record is in the journal. An fsync that looked in between found
/// a clean file, waited for nothing and returned; a crash then gave back what the blocks had held before, neither what
/// was fsynced nor the truncate. (Found by `sim`.)
#[test]
fn fsync_beside_a_truncate_covers_one_or_the_other() {
    for seed in 0..200 {
        let body = || {
            let device = Arc::new(SimulatedBackend::new(8192));
            let format =
                FormatOptions { seed: Some(1), clock: options(true).clock, ..FormatOptions::default() };
            Volume::format_backend(device.clone(), &format).unwrap();
            let volume = Volume::open_backend(device.clone(), options(true)).unwrap();
            let file = volume.create(&volume.root(), b"f", &Create::file(0o644)).unwrap();
            volume.write(&file, 0, &[1; 2 * BLOCK], IoFlags::empty()).unwrap();
            volume.fsync(&file, false).unwrap();
            volume.write(&file, 0, &[2; 2 * BLOCK], IoFlags::empty()).unwrap();
            let truncate = {
                let (volume, file) = (volume.clone(), file.clone());
                thread::Builder::new().spawn(move || volume.truncate(&file, 0).unwrap()).unwrap()
            };
            volume.fsync(&file, true).unwrap();
            let image = device.crash(CrashPolicy::LoseAll);
            truncate.join().unwrap();
            device.cut_power(CrashPolicy::LoseAll);
            image
        };
        let image = simulation::run(&Options { seed, step_limit: 1_000_000 }, body).unwrap();
        let volume =
            Volume::open_backend(Arc::new(SimulatedBackend::from_image(image)), options(false)).unwrap();
        let file = volume.lookup(&volume.root(), b"f").unwrap();
        let mut bytes = vec![0; file.size() as usize];
        volume.read(&file, 0, &mut bytes, IoFlags::empty()).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 2), "seed {seed}: an old block is back");
    }
}
