//! Inodes in memory: a fixed number without users was kept whatever the cache's limit, apart from it; beyond
//! that the cached data of a file went with its inode, and whole shards were searched under their lock. Work
//! is counted here, not timed.

use crate::common::{BLOCK, file, new_volume, options};
use quire::Volume;
use quire::inodes::IoFlags;

fn measure(volume: &Volume, name: &str) -> u64 {
    volume.metrics()[name]
}

/// So many empty files, durable, with nobody who uses them.
fn empty_files(volume: &Volume, prefix: &str, count: usize) {
    for n in 0..count {
        file(volume, &format!("{prefix}{n}"));
        if n % 500 == 0 {
            volume.sync().unwrap();
        }
    }
    volume.sync().unwrap();
}

#[test]
fn inodes_nobody_uses_leave_and_the_work_is_bounded() {
    let (device, volume) = new_volume(16384);
    volume.close().unwrap();
    let roomy = options().cache_bytes(64 << 20);
    let volume = roomy.open_backend(device).unwrap();
    let before = measure(&volume, "cache_used_bytes");
    empty_files(&volume, "f", 9000);
    let (cached, looks) = (measure(&volume, "inodes_cached"), measure(&volume, "inode_looks_total"));
    assert!(cached < 5000, "{cached} of 9000 inodes stay in memory");
    assert!(looks <= 16 * 9001, "{looks} looks while 9000 inodes came");
    // They count against the limit.
    assert!(measure(&volume, "cache_used_bytes") - before > 2 << 20);
    for n in (0..9000).step_by(7) {
        assert_eq!(
            volume.inodes().lookup(&volume.inodes().root(), format!("f{n}").as_bytes()).unwrap().size(),
            0
        );
    }
    volume.close().unwrap();
}

#[test]
fn files_with_cached_data_stay_longer() {
    let (_device, volume) = new_volume(16384);
    for n in 0..100 {
        volume
            .inodes()
            .write_at(&file(&volume, &format!("data{n}")), &[n as u8; BLOCK], 0, IoFlags::empty())
            .unwrap();
    }
    volume.sync().unwrap();
    empty_files(&volume, "f", 4000);
    let before = measure(&volume, "cache_fill_blocks_total");
    for n in 0..100u8 {
        let file = volume.inodes().lookup(&volume.inodes().root(), format!("data{n}").as_bytes()).unwrap();
        let mut read = [0; BLOCK];
        volume.inodes().read_at(&file, &mut read, 0, IoFlags::empty()).unwrap();
        assert_eq!(read, [n; BLOCK]);
    }
    assert_eq!(measure(&volume, "cache_fill_blocks_total"), before, "nothing was read from the device again");
}

/// With lazy times no inode that was ever touched left memory.
#[test]
fn lazy_times_do_not_keep_inodes_in_memory() {
    let (device, volume) = new_volume(16384);
    for n in 0..6000 {
        volume.inodes().write_at(&file(&volume, &format!("f{n}")), &[1], 0, IoFlags::empty()).unwrap();
    }
    volume.close().unwrap();
    let lazy = options().lazy_times(true).threads(true).commit_seconds(1);
    let volume = lazy.open_backend(device).unwrap();
    let mut waits = 0;
    for n in 0..6000 {
        let file = volume.inodes().lookup(&volume.inodes().root(), format!("f{n}").as_bytes()).unwrap();
        let mut read = [0; 1];
        // Leaves the time of the read in memory, and nothing else.
        volume.inodes().read_at(&file, &mut read, 0, IoFlags::empty()).unwrap();
        drop(file);
        // The periodic commit has as long as it takes.
        while measure(&volume, "inodes_cached") > 3000 && waits < 600 {
            std::thread::sleep(std::time::Duration::from_millis(100));
            volume.inodes().lookup(&volume.inodes().root(), format!("f{}", waits % 100).as_bytes()).unwrap();
            volume
                .inodes()
                .create(
                    &volume.inodes().root(),
                    format!("g{waits}").as_bytes(),
                    &quire::inodes::Create::file(0o644),
                )
                .unwrap();
            waits += 1;
        }
    }
    assert!(measure(&volume, "inodes_cached") <= 3100, "{} inodes", measure(&volume, "inodes_cached"));
    volume.close().unwrap();
}
