//! Sectors of the journal that go bad while nobody has the volume open: what was forced is there, or the
//! volume is refused.

use quire::FormatOptions;
use quire_base::simulation::mistakes::{self, Mistake};
use quire_device::SimulatedBackend;
use quire_device::simulated::{CrashPolicy, Fault, FaultOp, Image};
use quire_format::superblock::{SLOT_BLOCKS, Superblock};
use sim::image;
use std::sync::Arc;

const FILES: usize = 30;

/// A volume that was never closed: each file was forced by itself.
fn unclosed() -> Image {
    let device = Arc::new(SimulatedBackend::new(8192));
    FormatOptions::new().seed(6).format_backend(device.clone()).unwrap();
    let volume = image::options().open_backend(device.clone()).unwrap();
    for number in 0..FILES {
        volume.write(format!("file-{number}"), vec![number as u8; number * 300]).unwrap();
        volume.sync().unwrap();
    }
    device.cut_power(CrashPolicy::LoseAll)
}

/// Opens the volume with each block of its journal unreadable in turn; says what is missing then, if
/// something is, and how often the volume was refused.
fn with_bad_sectors(image: &Image) -> (Option<String>, usize) {
    let mut block = [0; quire_base::BLOCK_SIZE];
    image.read(SLOT_BLOCKS[0], &mut block);
    let superblock = Superblock::decode(&block).unwrap();
    let mut refused = 0;
    for at in superblock.journal_start.0..superblock.journal_end().0 {
        let device = Arc::new(SimulatedBackend::from_image(image.clone()));
        device.inject(Fault::on(FaultOp::Read).region(at..at + 1).times(u64::MAX));
        let Ok(volume) = image::options().open_backend(device.clone()) else {
            refused += 1;
            continue;
        };
        for number in 0..FILES {
            let found = volume.read(format!("file-{number}"));
            if !found.is_ok_and(|bytes| bytes == vec![number as u8; number * 300]) {
                return (Some(format!("without block {at} file {number} is not what was forced")), refused);
            }
        }
        device.cut_power(CrashPolicy::LoseAll);
    }
    (None, refused)
}

#[test]
fn what_was_forced_is_there_or_the_volume_is_refused() {
    let (wrong, refused) = mistakes::with(None, || with_bad_sectors(&unclosed()));
    assert_eq!(wrong, None);
    // The blocks of the forces, and the one behind them.
    assert!((FILES..FILES + 9).contains(&refused), "refused {refused} times");
}

#[test]
#[ignore = "scripts/mistakes runs it"]
fn an_unreadable_block_that_ends_the_journal_is_noticed() {
    let mistake = Some(Mistake::UnreadableBlockEndsJournal);
    let (wrong, _) = mistakes::with(mistake, || with_bad_sectors(&unclosed()));
    assert!(wrong.is_some(), "the mistake went unnoticed");
}
