//! Images of volumes with bytes changed anywhere: opening, walking, reading, changing, checking and repairing
//! give results or errors, and end.
//!
//! Input: byte 0 chooses the sample and what is done with it (see [`chosen`]), bytes 1 to 8 are a seed for
//! the changes, then come edits (see [`crate::edits`]).
//!
//! Promises that are checked beside "no panic, no hang, no out-of-memory":
//! * a check without repair writes nothing;
//! * an image that the check finds nothing wrong with opens, and neither a walk nor changes meet damage, in
//!   its snapshots either;
//!   afterwards it is still clean;
//! * an image of which a repair says that all is mended is clean, and opens; so is one of which a repair that
//!   may lose data says so. A dry run of it, and a salvage, write nothing to the image.

use crate::edits::edited;
use crate::explore::{change, walk};
use crate::sample::{SAMPLES, SNAPSHOTS, device, options, sample};
use crate::seal::word;
use quire_device::SimulatedBackend;
use quire_device::simulated::Image;
use quire_fsck::{Options, Report, check_backend};
use std::sync::Arc;

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((head, edits)) = input.split_at_checked(9) else { return };
    let (number, how) = chosen(head[0]);
    examine(&edited(sample(number), edits), how, word(head, 1));
}

/// The sample that a byte chooses, and what [`examine`] does with it: 192 to 223 choose the one with
/// snapshots.
pub fn chosen(byte: u8) -> (usize, usize) {
    let others = SAMPLES - 1;
    match usize::from(byte) {
        byte @ 192..224 => (SNAPSHOTS, byte),
        byte => (byte % others, byte / others),
    }
}

/// Does to an image what `how` (modulo 4) says: 0, mount it read-only and walk; 1, check and use it; 2, check
/// and repair it; 3, use it. Shared with [`crate::journal_records`].
pub fn examine(image: &Image, how: usize, seed: u64) {
    match how % 4 {
        0 => {
            let device = Arc::new(SimulatedBackend::from_image(image.clone()));
            if let Ok(volume) = options(true).open_backend(device.clone()) {
                walk(&volume);
            }
            assert_eq!(device.event_count(), 0, "a read-only mount writes nothing");
        }
        1 => {
            let sound = check(image).is_some_and(|report| report.is_clean());
            use_volume(image, seed, sound);
        }
        2 => {
            if check(image).is_some_and(|report| !report.is_clean()) {
                repair(image, seed, Options { repair: true, lossy: seed % 2 == 1, ..Options::default() });
                if seed % 8 == 3 {
                    salvage(image);
                }
            }
        }
        _ => use_volume(image, seed, false),
    }
}

/// Walks, changes and closes the volume. One that is `sound` behaves and stays so.
fn use_volume(image: &Image, seed: u64, sound: bool) {
    let device = device(image);
    let volume = match options(false).open_backend(device.clone()) {
        Ok(volume) => volume,
        // A change has made a receive unfinished.
        Err(error) if error.kind() == quire::ErrorKind::Busy => return,
        Err(error) => {
            assert!(!sound, "the check found nothing, but the volume does not open: {error}");
            return;
        }
    };
    let found = walk(&volume);
    assert!(!sound || found.damage.is_none(), "the check found nothing, a walk {:?}", found.damage);
    let damage = change(&volume, &found, seed);
    assert!(!sound || damage.is_none(), "the check found nothing, changes {damage:?}");
    drop(found);
    let closed = volume.close();
    if sound {
        closed.expect("a sound volume closes");
        assert_clean(&device.visible(), "after changes of a sound volume");
    }
}

fn check(image: &Image) -> Option<Report> {
    let device = Arc::new(SimulatedBackend::from_image(image.clone()));
    let report = check_backend(device.clone(), &Options::default());
    assert_eq!(device.event_count(), 0, "a check without repair writes nothing");
    report.ok()
}

fn assert_clean(image: &Image, when: &str) {
    match check(image) {
        Some(report) => assert!(report.is_clean(), "{when}: {:#?}", report.issues),
        None => panic!("{when}: the check could not run"),
    }
}

fn repair(image: &Image, seed: u64, options: Options<'_>) {
    let device = device(image);
    let Ok(report) = check_backend(device.clone(), &options) else { return };
    if report.exit_code() != 1 {
        return;
    }
    assert_clean(&device.visible(), "after a repair that said that all is mended");
    use_volume(&device.visible(), seed, true);
}

/// Copies what can be read to the host, and removes it again.
fn salvage(image: &Image) {
    let device = Arc::new(SimulatedBackend::from_image(image.clone()));
    let dry = Options { repair: true, lossy: true, dry_run: true, ..Options::default() };
    let _ = check_backend(device.clone(), &dry);
    let directory = std::env::temp_dir().join(format!("quire-fuzz-salvage-{}", std::process::id()));
    let _ = quire_fsck::salvage_backend(device.clone(), &directory, None);
    let _ = std::fs::remove_dir_all(&directory);
    assert_eq!(device.event_count(), 0, "a dry run and a salvage write nothing to the image");
}
