//! Units of untorn files beside changes of the file's shape.

use crate::common::{BLOCK, file, new_volume};
use crate::groups::{after_crash, read, write};
use crate::groups_over_growth::set_unit;
use quire::Volume;
use quire::inodes::{FallocateMode, InodeRef};
use quire_device::SimulatedBackend;
use quire_device::simulated::CrashPolicy;
use std::sync::Arc;

/// Blocks of a unit.
const UNIT: usize = 4;

/// A volume with a file in units, which holds ones in so many blocks on disk.
fn with_ones(blocks: usize) -> (Arc<SimulatedBackend>, Volume, InodeRef) {
    let (device, volume) = new_volume(8192);
    let a = file(&volume, "a");
    set_unit(&volume, &a, UNIT);
    write(&volume, &a, &vec![1; blocks * BLOCK], 0);
    volume.sync().unwrap();
    (device, volume, a)
}

/// An insertion or a collapse inside a unit wrote back what is behind its point, and not the rest of the
/// unit. A crash showed the moved blocks beside blocks without a write that came before: a unit that the
/// cache never held.
#[test]
fn a_shift_inside_a_unit_takes_earlier_writes_along() {
    for mode in [FallocateMode::Insert, FallocateMode::Collapse] {
        let (device, volume, a) = with_ones(12);
        write(&volume, &a, &[3; BLOCK], 6 * BLOCK);
        volume.sync().unwrap();
        write(&volume, &a, &[2; BLOCK], 4 * BLOCK);
        volume.inodes().allocate(&a, mode, 5 * BLOCK as u64, BLOCK as u64).unwrap();
        let live = read(&volume, &a);
        let seen = after_crash(device.crash(CrashPolicy::LoseAll), &["a"]);
        assert!(seen[0].as_ref() == Some(&live), "{mode:?}: moved, and without the write before");
    }
}
