//! Names, sizes and counts past the limits of a mount.

use std::ffi::OsStr;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use quire_base::BLOCK_SIZE;
use rustix::io::Errno;

use super::support::*;
use crate::common::{Volume, can_mount};

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Errno {
    Errno::from_io_error(&result.unwrap_err()).expect("an error of the system")
}

#[test]
fn names_past_the_limit() {
    let _turn = turn();
    if !can_mount("names_past_the_limit") {
        return;
    }
    let mut volume = Volume::new("64M");
    volume.mount();
    let long = "n".repeat(256);
    let fits = ["a", "b", "c", "d", "e", "f"].map(|letter| letter.repeat(255));
    // 255 bytes, not characters.
    let wide = "\u{e9}".repeat(127) + "x";
    let (file, directory) = (volume.path(&fits[0]), volume.path(&fits[1]));
    std::fs::write(&file, "kept").unwrap();
    std::fs::create_dir(&directory).unwrap();
    std::os::unix::fs::symlink("nowhere", volume.path(&fits[2])).unwrap();
    std::fs::hard_link(&file, volume.path(&fits[3])).unwrap();
    std::fs::write(volume.path(&fits[4]), "moved").unwrap();
    std::fs::rename(volume.path(&fits[4]), directory.join(&fits[5])).unwrap();
    std::fs::write(volume.path(&wide), "wide").unwrap();

    for name in [long, "\u{e9}".repeat(128)] {
        let path = volume.path(&name);
        assert_eq!(errno(std::fs::write(&path, "x")), Errno::NAMETOOLONG);
        assert_eq!(errno(std::fs::create_dir(&path)), Errno::NAMETOOLONG);
        assert_eq!(errno(std::os::unix::fs::symlink("x", &path)), Errno::NAMETOOLONG);
        assert_eq!(errno(std::fs::hard_link(&file, &path)), Errno::NAMETOOLONG);
        assert_eq!(errno(std::fs::rename(&file, &path)), Errno::NAMETOOLONG);
        assert_eq!(errno(std::fs::metadata(&path)), Errno::NAMETOOLONG);
        assert_eq!(errno(std::fs::remove_file(&path)), Errno::NAMETOOLONG);
    }
    let target = "t".repeat(4095);
    std::os::unix::fs::symlink(&target, volume.path("far")).unwrap();
    assert_eq!(errno(std::os::unix::fs::symlink("t".repeat(4096), volume.path("x"))), Errno::NAMETOOLONG);

    volume.unmount();
    volume.check();
    volume.mount();
    assert_eq!(std::fs::read(&file).unwrap(), b"kept");
    assert_eq!(std::fs::read(volume.path(&fits[3])).unwrap(), b"kept");
    assert_eq!(std::fs::read(directory.join(&fits[5])).unwrap(), b"moved");
    assert_eq!(std::fs::read(volume.path(&wide)).unwrap(), b"wide");
    assert_eq!(std::fs::read_link(volume.path("far")).unwrap().as_os_str(), OsStr::new(&target));
    assert_eq!(std::fs::read_dir(volume.mountpoint()).unwrap().count(), 6);
    volume.unmount();
}

#[test]
fn sizes_past_the_limit() {
    let _turn = turn();
    if !can_mount("sizes_past_the_limit") {
        return;
    }
    const LAST: u64 = i64::MAX as u64;
    let mut volume = Volume::new("64M");
    volume.mount();
    let path = volume.path("file");
    let options = || {
        let mut options = std::fs::File::options();
        options.read(true).write(true).create(true).truncate(false);
        options
    };
    let file = options().open(&path).unwrap();
    file.write_all_at(b"head", 0).unwrap();
    let too_large = [Errno::FBIG, Errno::INVAL, Errno::OVERFLOW];
    let unchanged = |what: &str, error: Errno, size: u64| {
        assert!(too_large.contains(&error), "{what}: {error}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), size, "{what}");
    };
    let mut size = 4;
    for longest in [false, true] {
        unchanged("truncate to 2^63", rustix::fs::ftruncate(&file, 1 << 63).unwrap_err(), size);
        unchanged("write at 8 EiB - 1", rustix::io::pwrite(&file, b"x", LAST).unwrap_err(), size);
        unchanged("write at 2^63", rustix::io::pwrite(&file, b"x", 1 << 63).unwrap_err(), size);
        let flags = rustix::fs::FallocateFlags::empty();
        let error = rustix::fs::fallocate(&file, flags, LAST - 10, 4096).unwrap_err();
        unchanged("fallocate over the end", error, size);
        unchanged("a long write", rustix::io::pwrite(&file, &[0; 8192], LAST).unwrap_err(), size);
        if !longest {
            // The very last byte that a file can have.
            file.write_all_at(b"!", LAST - 1).unwrap();
            size = LAST;
        }
    }
    // A write that begins below the limit and would end above is cut there, or fails; it never grows past it.
    match rustix::io::pwrite(&file, b"1234567890", LAST - 4) {
        Ok(written) => assert!(written <= 4),
        Err(error) => assert!(too_large.contains(&error), "{error}"),
    }
    file.write_all_at(b"!", LAST - 1).unwrap();
    let direct = {
        use std::os::unix::fs::OpenOptionsExt;
        options().custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32).open(&path).unwrap()
    };
    let buffer = vec![0u8; 3 * BLOCK_SIZE];
    let aligned = buffer.as_ptr().align_offset(BLOCK_SIZE);
    let error = rustix::io::pwrite(&direct, &buffer[aligned..aligned + BLOCK_SIZE], 1 << 63).unwrap_err();
    assert!(too_large.contains(&error), "{error}");
    file.sync_all().unwrap();
    drop((file, direct));

    let whole = volume.path("truncated");
    let file = options().open(&whole).unwrap();
    file.set_len(LAST).unwrap();
    drop(file);
    volume.unmount();
    let started = Instant::now();
    volume.check();
    assert!(started.elapsed() < Duration::from_secs(20), "a check does not walk through holes");
    volume.mount();
    let file = options().open(&path).unwrap();
    let mut ends = [[0u8; 4], [0u8; 4]];
    file.read_exact_at(&mut ends[0], 0).unwrap();
    file.read_exact_at(&mut ends[1][..1], LAST - 1).unwrap();
    assert_eq!(ends, [*b"head", *b"!\0\0\0"]);
    assert_eq!(file.metadata().unwrap().len(), LAST);
    assert!(file.metadata().unwrap().blocks() <= 4 * 8);
    assert_eq!(std::fs::metadata(&whole).unwrap().len(), LAST);
    file.set_len(4).unwrap();
    std::fs::remove_file(&whole).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"head");
    drop(file);
    volume.unmount();
    volume.check();
}
