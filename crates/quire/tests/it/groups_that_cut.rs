//! Groups that set sizes, beside others that write.

use crate::common::{BLOCK, file};
use crate::groups::{after_crash, read, read_direct, write};
use crate::groups_over_growth::{new_volume, set_unit};
use quire::Commit;
use quire_device::simulated::CrashPolicy;

/// A group that cut a file and made it longer again overwrote with zeros what the file held at that time.
/// What others wrote beyond the cut before the commit stayed.
#[test]
fn what_others_write_beyond_a_cut_is_gone() {
    for exchanges in [false, true] {
        for unit in [1, 4] {
            for (cut, writes) in [(100, true), (2 * BLOCK, true), (BLOCK + 7, false)] {
                let (device, volume) = new_volume(exchanges);
                let a = file(&volume, "a");
                set_unit(&volume, &a, unit);
                write(&volume, &a, &[1; 3 * BLOCK], 0);
                volume.sync().unwrap();
                let mut group = volume.inodes().atomic();
                group.set_len(&a, cut as u64).unwrap();
                let end = 9 * BLOCK + 20;
                let mut wanted = vec![1; cut];
                wanted.resize(end, 0);
                match writes {
                    true => {
                        for (at, byte) in [(4 * BLOCK + 10, 2), (end - 10, 3)] {
                            group.write_at(&a, &[byte; 10], at as u64).unwrap();
                            wanted[at..at + 10].fill(byte);
                        }
                    }
                    false => group.set_len(&a, end as u64).unwrap(),
                }
                let case = format!("exchanges {exchanges}, unit {unit}, cut at {cut}");
                for other in [4 * BLOCK, 12 * BLOCK] {
                    // Some of it is on disk, and some is not.
                    write(&volume, &a, &vec![9; other], 0);
                    write(&volume, &a, &vec![1; cut], 0);
                    volume.inodes().fsync(&a, false).unwrap();
                }
                write(&volume, &a, &[8; BLOCK], 5 * BLOCK);
                let mut seen = vec![7; end];
                assert_eq!(group.read_at(&a, &mut seen, 0).unwrap(), end, "{case}");
                assert!(seen == wanted, "{case}: in the group");
                group.commit(Commit::Now).unwrap();
                assert!(read(&volume, &a) == wanted, "{case}: cached");
                assert!(read_direct(&volume, &a) == wanted, "{case}: direct");
                let seen = after_crash(device.crash(CrashPolicy::LoseAll), &["a"]);
                assert!(seen[0].as_ref() == Some(&wanted), "{case}: after a crash");
            }
        }
    }
}

/// A group that only cut a file, on a block inside a unit, left the unit without the writes before the group.
#[test]
fn a_group_that_cuts_a_unit_takes_earlier_writes_along() {
    for exchanges in [false, true] {
        let (device, volume) = new_volume(exchanges);
        let a = file(&volume, "a");
        set_unit(&volume, &a, 4);
        write(&volume, &a, &[1; 8 * BLOCK], 0);
        volume.sync().unwrap();
        write(&volume, &a, &[2; 8 * BLOCK], 0);
        let mut group = volume.inodes().atomic();
        group.set_len(&a, 6 * BLOCK as u64).unwrap();
        group.commit(Commit::Now).unwrap();
        let seen = after_crash(device.crash(CrashPolicy::LoseAll), &["a"]);
        let seen = seen[0].as_ref().unwrap();
        assert!(seen.len() == 6 * BLOCK && seen[4 * BLOCK..] == [2; 2 * BLOCK], "a unit of two times");
    }
}

/// A group that cuts what is in more pieces than a record takes, and makes the file longer again.
#[test]
fn a_cut_of_many_pieces_is_exchanged() {
    let (device, volume) = new_volume(false);
    let (a, b) = (file(&volume, "a"), file(&volume, "b"));
    for block in 0..200 {
        for inode in [&a, &b] {
            write(&volume, inode, &[1; BLOCK], block * BLOCK);
            volume.inodes().fsync(inode, false).unwrap();
        }
    }
    for end in [150 * BLOCK + 5, 199 * BLOCK] {
        let mut group = volume.inodes().atomic();
        group.set_len(&a, 10).unwrap();
        group.write_at(&a, &[3; 5], (end - 5) as u64).unwrap();
        group.commit(Commit::Now).unwrap();
        let mut wanted = vec![0; end];
        wanted[..10].fill(1);
        wanted[end - 5..].fill(3);
        assert!(read(&volume, &a) == wanted, "end {end}");
        let seen = after_crash(device.crash(CrashPolicy::LoseAll), &["a"]);
        assert!(seen[0].as_ref() == Some(&wanted), "end {end}: after a crash");
    }
}

/// A block that a group leaves out of a unit, beyond its cut, is written with the unit. With blocks on disk
/// that the group had written, it was written with what the file had held there.
#[test]
fn what_a_streamed_unit_is_filled_up_with_is_cut() {
    for unit in [4, 8] {
        for (cut, first) in [(BLOCK, 9), (2 * BLOCK + 100, 10), (8 * BLOCK, 9)] {
            let (device, volume) = new_volume(true);
            let a = file(&volume, "a");
            set_unit(&volume, &a, unit);
            write(&volume, &a, &[9; 16 * BLOCK], 0);
            volume.sync().unwrap();
            let mut group = volume.inodes().atomic();
            group.set_len(&a, cut as u64).unwrap();
            group.write_at(&a, &[2; BLOCK], (first * BLOCK) as u64).unwrap();
            group.set_len(&a, 12 * BLOCK as u64).unwrap();
            let mut wanted = vec![9; cut];
            wanted.resize(12 * BLOCK, 0);
            wanted[first * BLOCK..][..BLOCK].fill(2);
            group.commit(Commit::Now).unwrap();
            let case = format!("unit {unit}, cut at {cut}, block {first}");
            assert!(read(&volume, &a) == wanted, "{case}: cached");
            assert!(read_direct(&volume, &a) == wanted, "{case}: direct");
            let seen = after_crash(device.crash(CrashPolicy::LoseAll), &["a"]);
            assert!(seen[0].as_ref() == Some(&wanted), "{case}: after a crash");
        }
    }
}
