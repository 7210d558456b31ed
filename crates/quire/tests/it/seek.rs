//! Data and holes, where extents and dirty blocks lie between one another.

use crate::common::{BLOCK, file, new_volume};
use crate::groups::write;
use quire_base::random::Random;

/// What SEEK_DATA and SEEK_HOLE find from every block on.
#[test]
fn data_is_what_is_on_disk_or_dirty() {
    const BLOCKS: usize = 96;
    for seed in 0..20 {
        let (_, volume) = new_volume(4096);
        let inode = file(&volume, "f");
        let mut random = Random::seeded(seed);
        let mut has_data = [false; BLOCKS];
        volume.inodes().set_len(&inode, (BLOCKS * BLOCK) as u64).unwrap();
        volume.inodes().allocate(&inode, quire::inodes::FallocateMode::Allocate, 40 << 12, 20 << 12).unwrap();
        for round in 0..2 {
            for _ in 0..10 {
                let first = random.below(BLOCKS as u64 - 5) as usize;
                let count = 1 + random.below(5) as usize;
                write(&volume, &inode, &vec![1; count * BLOCK], first * BLOCK);
                has_data[first..first + count].fill(true);
            }
            if round == 0 {
                volume.sync().unwrap();
            }
        }
        for from in 0..BLOCKS {
            let next = |data| (from..BLOCKS).find(|block| has_data[*block] == data);
            let at = (from * BLOCK) as u64;
            let data = volume.inodes().seek_data(&inode, at).ok().map(|at| at as usize / BLOCK);
            assert_eq!(data, next(true), "seed {seed}: data from block {from} on");
            let hole = volume.inodes().seek_hole(&inode, at).unwrap() as usize / BLOCK;
            assert_eq!(hole, next(false).unwrap_or(BLOCKS), "seed {seed}: a hole from block {from} on");
        }
    }
}
