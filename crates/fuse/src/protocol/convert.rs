//! The engine's values in the kernel's structures, and back.

use std::time::Duration;

use quire::inodes::SetTime;
use quire::{FileType, Metadata, Statfs};
use quire_base::Timestamp;

use super::abi::{self, setattr};
use crate::operations::attributes::Change;
use crate::operations::data::Opened;
use crate::operations::{CACHE_TIME, Entry, snapshots};

/// The kernel's 32-bit device numbers (20 bits minor around 12 bits major).
pub fn device_from_kernel(number: u32) -> u64 {
    let (major, minor) = ((number >> 8) & 0xfff, (number & 0xff) | ((number >> 12) & 0xf_ff00));
    libc::makedev(major, minor)
}

/// The other way round.
pub fn device_to_kernel(number: u64) -> u32 {
    let (major, minor) = (libc::major(number), libc::minor(number));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The type in an entry of a directory (`DT_...`).
pub fn directory_type(kind: FileType) -> u32 {
    kind.to_byte().into()
}

/// Attributes as in GETATTR and LOOKUP.
pub fn attr(from: &Metadata) -> abi::Attr {
    abi::Attr {
        node: from.ino().0,
        size: from.size(),
        blocks: from.blocks(),
        atime: from.atime(),
        mtime: from.mtime(),
        ctime: from.ctime(),
        atime_nanos: from.atime_nsec() as u32,
        mtime_nanos: from.mtime_nsec() as u32,
        ctime_nanos: from.ctime_nsec() as u32,
        mode: from.mode(),
        links: from.nlink(),
        uid: from.uid(),
        gid: from.gid(),
        rdev: device_to_kernel(from.rdev()),
        block_size: 4096,
        flags: 0,
    }
}

/// How long the kernel may answer from these attributes.
///
/// Not at all if a write can take set-id bits away. The kernel leaves that to the server, and after a write
/// it asks anew for size and times only: it would go on showing the old mode. The bits of a directory are
/// never taken away. Nor for `.snapshots`, which follows the volume's snapshots.
fn attribute_time(from: &Metadata) -> Duration {
    let has_set_id = from.is_file() && from.mode() & (libc::S_ISUID | libc::S_ISGID) != 0;
    let may_change = has_set_id && !snapshots::is_node(from.ino().0) || from.ino().0 == snapshots::DIRECTORY;
    if may_change { Duration::ZERO } else { CACHE_TIME }
}

/// GETATTR's answer for an inode.
pub fn attributes(from: &Metadata) -> abi::AttrOut {
    attr_out(attr(from), attribute_time(from))
}

/// GETATTR's answer, kept for `time`.
pub fn attr_out(attr: abi::Attr, time: Duration) -> abi::AttrOut {
    abi::AttrOut {
        attr_valid: time.as_secs(),
        attr_valid_nanos: time.subsec_nanos(),
        attr,
        ..Default::default()
    }
}

/// LOOKUP's answer, kept for `time`.
pub fn entry_out(attr: abi::Attr, generation: u64, time: Duration) -> abi::EntryOut {
    abi::EntryOut {
        node: attr.node,
        generation,
        entry_valid: time.as_secs(),
        attr_valid: time.as_secs(),
        entry_valid_nanos: time.subsec_nanos(),
        attr_valid_nanos: time.subsec_nanos(),
        attr,
    }
}

/// LOOKUP's answer for an inode.
pub fn entry(from: &Entry) -> abi::EntryOut {
    let time = attribute_time(&from.attributes);
    abi::EntryOut {
        attr_valid: time.as_secs(),
        attr_valid_nanos: time.subsec_nanos(),
        ..entry_out(attr(&from.attributes), from.generation, from.name_time)
    }
}

/// "No such name", to be remembered: node zero.
pub fn no_entry() -> abi::EntryOut {
    entry_out(abi::Attr::default(), 0, CACHE_TIME)
}

fn statx_time(seconds: i64, nanos: i64) -> abi::StatxTime {
    abi::StatxTime { seconds, nanos: nanos as u32, ..Default::default() }
}

/// STATX's answer: all basic fields and the birth time.
pub fn statx_out(from: &Metadata) -> abi::StatxOut {
    abi::StatxOut {
        attr_valid: attribute_time(from).as_secs(),
        stat: abi::Statx {
            mask: libc::STATX_BASIC_STATS | libc::STATX_BTIME,
            block_size: 4096,
            links: from.nlink(),
            uid: from.uid(),
            gid: from.gid(),
            mode: from.mode() as u16,
            inode: from.ino().0,
            size: from.size(),
            blocks: from.blocks(),
            atime: statx_time(from.atime(), from.atime_nsec()),
            btime: statx_time(from.btime(), from.btime_nsec()),
            ctime: statx_time(from.ctime(), from.ctime_nsec()),
            mtime: statx_time(from.mtime(), from.mtime_nsec()),
            rdev_major: libc::major(from.rdev()),
            rdev_minor: libc::minor(from.rdev()),
            ..Default::default()
        },
        ..Default::default()
    }
}

/// STATFS's answer.
pub fn statfs_out(from: &Statfs) -> abi::StatfsOut {
    abi::StatfsOut {
        blocks: from.blocks,
        free: from.free,
        available: from.available,
        files: from.inodes,
        free_files: from.free_inodes,
        block_size: from.block_size,
        name_max: from.name_max,
        fragment_size: from.block_size,
        ..Default::default()
    }
}

/// OPEN's answer.
pub fn open_out(opened: Opened) -> abi::OpenOut {
    use abi::open_out::{DIRECT_IO, KEEP_CACHE, NOFLUSH, PARALLEL_DIRECT_WRITES};
    // Nothing is written at close, so the kernel need not ask; errors of writeback show at fsync, as in ext4.
    // (A kernel that keeps what programs write takes no notice of that flag.)
    let common = KEEP_CACHE | NOFLUSH;
    let direct = if opened.direct { DIRECT_IO | PARALLEL_DIRECT_WRITES } else { 0 };
    abi::OpenOut { handle: opened.handle, open_flags: common | direct, backing: 0 }
}

/// What a SETATTR changes.
pub fn change(from: &abi::SetattrIn) -> Change {
    let has = |bit: u32| from.valid & bit != 0;
    let at = |seconds: i64, nanos: u32| Timestamp::from_parts(seconds, nanos.min(999_999_999));
    let time = |now: u32, set: u32, seconds: i64, nanos: u32| match (has(now), has(set)) {
        (true, _) => Some(SetTime::Now),
        (false, true) => Some(SetTime::At(at(seconds, nanos))),
        (false, false) => None,
    };
    Change {
        mode: has(setattr::MODE).then_some(from.mode),
        uid: has(setattr::UID).then_some(from.uid),
        gid: has(setattr::GID).then_some(from.gid),
        size: has(setattr::SIZE).then_some(from.size),
        atime: time(setattr::ATIME_NOW, setattr::ATIME, from.atime, from.atime_nanos),
        mtime: time(setattr::MTIME_NOW, setattr::MTIME, from.mtime, from.mtime_nanos),
        ctime: has(setattr::CTIME).then(|| at(from.ctime, from.ctime_nanos)),
        kill_set_id: has(setattr::KILL_SUIDGID),
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
        // -1.25 s, as the kernel keeps it.
        let from = abi::SetattrIn {
            valid: setattr::ATIME | setattr::MTIME,
            atime: -2,
            atime_nanos: 750_000_000,
            mtime: 3,
            mtime_nanos: u32::MAX,
            ..Default::default()
        };
        let change = change(&from);
        assert_eq!(change.atime, Some(SetTime::At(Timestamp(-1_250_000_000))));
        assert_eq!(
            change.mtime,
            Some(SetTime::At(Timestamp(3_999_999_999))),
            "no more than a second's nanoseconds"
        );
        assert!(change.size.is_none() && change.mode.is_none() && !change.kill_set_id);
    }

    #[test]
    fn engine_mode_reads_past_the_kernels_cache() {
        use abi::open_out::{DIRECT_IO, PARALLEL_DIRECT_WRITES};
        let both = DIRECT_IO | PARALLEL_DIRECT_WRITES;
        assert_eq!(open_out(Opened { handle: 1, direct: true }).open_flags & both, both);
        assert_eq!(open_out(Opened { handle: 1, direct: false }).open_flags & both, 0);
    }
}
