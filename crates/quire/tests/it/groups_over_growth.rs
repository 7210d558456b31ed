//! Groups in files whose growth by plain writes is not on disk yet.

use crate::common::{BLOCK, clock, file, options};
use crate::groups::{after_crash, read, write};
use quire::{Commit, FormatOptions, Properties, Unit, Volume};
use quire_device::SimulatedBackend;
use quire_device::simulated::CrashPolicy;
use std::sync::Arc;

/// A volume whose groups go to fresh blocks, or into records.
fn new_volume(exchanges: bool) -> (Arc<SimulatedBackend>, Volume) {
    let device = Arc::new(SimulatedBackend::new(4096));
    let format = FormatOptions::new().seed(1).journal_bytes(1 << 20).clock(clock());
    format.format_backend(device.clone()).unwrap();
    let options = if exchanges { options().group_record_bytes(0) } else { options() };
    (device.clone(), options.open_backend(device).unwrap())
}

/// A group inside such growth put the size on disk at its own end, which the file never had: a crash hid
/// bytes of a plain write that it left in part, and cut a unit in two.
#[test]
fn a_group_earns_whole_blocks_and_units_of_what_it_lies_in() {
    for exchanges in [false, true] {
        for unit in [1, 4] {
            let (device, volume) = new_volume(exchanges);
            let a = file(&volume, "a");
            if unit > 1 {
                let untorn = Some(Unit::from_bytes((unit * BLOCK) as u64).unwrap());
                let properties = Properties { untorn, ..Properties::default() };
                volume.inodes().set_properties(&a, properties).unwrap();
            }
            volume.sync().unwrap();
            for (end, at) in [(50_000, 6000), (90_000, 50_010), (90_010, 90_005)] {
                let before = read(&volume, &a).len();
                write(&volume, &a, &vec![1; end - before], before);
                let mut group = volume.inodes().atomic();
                group.write_at(&a, &[2; 3], at as u64).unwrap();
                group.commit(Commit::Now).unwrap();
                let live = read(&volume, &a);
                assert_eq!(live.len(), end);
                let seen = after_crash(device.crash(CrashPolicy::LoseAll), &["a"]);
                let seen = seen[0].as_ref().unwrap();
                let case = format!("exchanges {exchanges}, unit {unit}, group at {at}");
                assert!(seen.len() >= at + 3, "{case}: {} bytes", seen.len());
                let is_whole = seen.len() == end || seen.len().is_multiple_of(unit * BLOCK);
                assert!(is_whole, "{case}: the file never had {} bytes", seen.len());
                assert!(seen[..] == live[..seen.len()], "{case}");
            }
        }
    }
}
