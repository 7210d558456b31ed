//! The engine's values in the types of the `fuser` crate, and back.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FopenFlags, INodeNo, TimeOrNow};
use quire::{Attributes, FileType, SetTime};
use quire_base::Timestamp;

use crate::operations::data::Opened;

/// The kernel's 32-bit device numbers (20 bits minor around 12 bits major).
pub(super) fn device_from_kernel(number: u32) -> u64 {
    let (major, minor) = ((number >> 8) & 0xfff, (number & 0xff) | ((number >> 12) & 0xf_ff00));
    libc::makedev(major, minor)
}

pub(super) fn device_to_kernel(number: u64) -> u32 {
    let (major, minor) = (libc::major(number), libc::minor(number));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

pub(super) fn system_time(time: Timestamp) -> SystemTime {
    let size = Duration::from_nanos(time.0.unsigned_abs());
    if time.0 >= 0 { UNIX_EPOCH + size } else { UNIX_EPOCH - size }
}

/// Undoes the transport's reading of times before 1970: it takes (seconds, nanoseconds) as
/// `-(|seconds| + nanoseconds)` where `seconds + nanoseconds` is meant.
pub(super) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => {
            Timestamp::from_parts(i64::try_from(after.as_secs()).unwrap_or(i64::MAX), after.subsec_nanos())
        }
        Err(before) => {
            let before = before.duration();
            let seconds = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
            Timestamp::from_parts(-seconds, before.subsec_nanos())
        }
    }
}

pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::SpecificTime(time) => SetTime::At(timestamp(time)),
        TimeOrNow::Now => SetTime::Now,
    }
}

pub(super) fn kind(kind: FileType) -> fuser::FileType {
    match kind {
        FileType::Regular => fuser::FileType::RegularFile,
        FileType::Directory => fuser::FileType::Directory,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
        FileType::CharDevice => fuser::FileType::CharDevice,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
    }
}

pub(super) fn attributes(from: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(from.inode.0),
        size: from.size,
        blocks: from.blocks,
        atime: system_time(from.atime),
        mtime: system_time(from.mtime),
        ctime: system_time(from.ctime),
        crtime: system_time(from.btime),
        kind: kind(from.kind),
        perm: (from.mode & 0o7777) as u16,
        nlink: from.links,
        uid: from.uid,
        gid: from.gid,
        rdev: device_to_kernel(from.rdev),
        blksize: 4096,
        flags: 0,
    }
}

pub(super) fn open_flags(opened: Opened) -> FopenFlags {
    // Nothing is written at close, so the kernel need not ask; errors of writeback show at fsync, as in ext4.
    let common = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH;
    if opened.direct {
        common | FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
    } else {
        common
    }
}

/// The attributes of "no such name".
pub(super) fn no_attributes() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: fuser::FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_the_kernels_packing() {
        for (major, minor) in [(1, 3), (8, 17), (259, 1 << 19), (4095, 0xf_ffff), (0, 0)] {
            let number = libc::makedev(major, minor);
            assert_eq!(device_from_kernel(device_to_kernel(number)), number, "{major}:{minor}");
        }
        assert_eq!(device_to_kernel(libc::makedev(8, 1)), 0x801);
    }

    #[test]
    fn times_before_1970() {
        // The transport hands over -1.25 s, kept by the kernel as (-2, 750_000_000), as this:
        let odd = UNIX_EPOCH - Duration::new(2, 750_000_000);
        assert_eq!(timestamp(odd), Timestamp(-1_250_000_000));
        assert_eq!(system_time(Timestamp(-1_250_000_000)), UNIX_EPOCH - Duration::from_millis(1250));
        assert_eq!(timestamp(UNIX_EPOCH + Duration::new(3, 5)), Timestamp(3_000_000_005));
        assert_eq!(timestamp(UNIX_EPOCH), Timestamp(0));
    }

    #[test]
    fn engine_mode_reads_past_the_kernels_cache() {
        let flags = open_flags(Opened { handle: 1, direct: true });
        assert!(flags.contains(FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES));
        let flags = open_flags(Opened { handle: 1, direct: false });
        assert!(!flags.contains(FopenFlags::FOPEN_DIRECT_IO));
    }
}
