//! Layout leases: a punch recalls them first, and nothing that a holder believes is another file's.

use quire::{File, LayoutLease, OpenOptions, Place, Volume};
use quire_base::simulation::mistakes::{self, Mistake};
use quire_base::{BLOCK_SIZE, BlockNo};
use quire_device::SimulatedBackend;
use sim::image;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const VOLUME_BLOCKS: u64 = 8192;
/// Blocks of the file that is leased.
const BLOCKS: usize = 1024;
const OWN: u8 = 0x11;
const FOREIGN: u8 = 0xee;

fn volume(patience: Duration) -> (Arc<SimulatedBackend>, Volume) {
    let device = Arc::new(SimulatedBackend::new(VOLUME_BLOCKS));
    quire::FormatOptions::new().seed(1).clock(image::clock()).format_backend(device.clone()).unwrap();
    let volume = image::options().lease_recall_time(patience).open_backend(device.clone()).unwrap();
    (device, volume)
}

fn leased(volume: &Volume) -> (File, LayoutLease) {
    let file = OpenOptions::new().read(true).write(true).create(true).open(volume, "file").unwrap();
    file.write_all_at(&vec![OWN; BLOCKS * BLOCK_SIZE], 0).unwrap();
    let lease = file.lease_layout(..).unwrap();
    (file, lease)
}

/// A holder returns its lease as soon as it is recalled: it was valid until then.
fn answering() -> Result<(), String> {
    let (_, volume) = volume(Duration::from_secs(3600));
    let (file, lease) = leased(&volume);
    let lease = Arc::new(Mutex::new(Some(lease)));
    let was_valid = Arc::new(Mutex::new(None));
    let (held, noted) = (lease.clone(), was_valid.clone());
    let on_recall = move || {
        let lease = held.lock().unwrap().take();
        *noted.lock().unwrap() = lease.map(|lease| lease.is_valid());
    };
    lease.lock().unwrap().as_ref().expect("it is held").on_recall(on_recall);
    file.punch_hole(0, (BLOCKS * BLOCK_SIZE) as u64).unwrap();
    let was_valid = *was_valid.lock().unwrap();
    match was_valid {
        Some(true) => Ok(()),
        Some(false) => Err("a lease is revoked without a recall".into()),
        None => Err("a punch recalls no lease".into()),
    }
}

/// A holder does not answer, and goes on reading.
fn ignoring() -> Result<(), String> {
    let (device, volume) = volume(Duration::ZERO);
    let (file, lease) = leased(&volume);
    file.punch_hole(0, (BLOCKS * BLOCK_SIZE) as u64).unwrap();
    volume.sync().unwrap();
    volume.checkpoint().unwrap();
    // Somebody else takes all the space that there is.
    let other = OpenOptions::new().write(true).create(true).open(&volume, "other").unwrap();
    while other.append(&[FOREIGN; 16 * BLOCK_SIZE]).is_ok() {}
    volume.sync().unwrap();
    let image = device.visible();
    for extent in lease.extents() {
        let Place::Device(at) = extent.place else { continue };
        for n in 0..extent.len / BLOCK_SIZE as u64 {
            let mut block = [0; BLOCK_SIZE];
            image.read(BlockNo(at / BLOCK_SIZE as u64 + n), &mut block);
            if lease.is_valid() && block.contains(&FOREIGN) {
                return Err(format!("a valid lease shows another file's content at byte {at}"));
            }
        }
    }
    Ok(())
}

#[test]
fn a_lease_is_recalled_and_then_ends() {
    mistakes::with(None, || answering().and_then(|()| ignoring()).unwrap_or_else(|wrong| panic!("{wrong}")));
}

#[test]
#[ignore = "scripts/mistakes runs it"]
fn each_mistake_is_found_by_its_case() {
    for (mistake, case) in [
        (Mistake::PunchWithoutRecall, answering as fn() -> Result<(), String>),
        (Mistake::MovedUnderLease, ignoring),
    ] {
        let found = mistakes::with(Some(mistake), case);
        println!("{mistake:?}: {found:?}");
        assert!(found.is_err(), "{mistake:?} is not found");
    }
}
