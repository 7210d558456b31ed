//! Groups of a mount, through the descriptor of a database.
//!
//! A mount of Quire says in F2FS's words that a descriptor can have groups (`F2FS_IOC_GET_FEATURES`), on a
//! file system of type FUSE. Elsewhere the extension does nothing.

use std::io;
use std::os::fd::RawFd;

use crate::overlay::{Overlay, Sink};

const START: libc::c_ulong = 0xf501;
const COMMIT: libc::c_ulong = 0xf502;
const ABORT: libc::c_ulong = 0xf505;
const GET_FEATURES: libc::c_ulong = 0x8004_f50c;
const FEATURE_ATOMIC_WRITE: u32 = 4;
/// Quire's own: as COMMIT, and does not wait for the device.
const COMMIT_ORDERED: libc::c_ulong = 0x5104;
/// The type of FUSE file systems, in `statfs`.
const FUSE: u64 = 0x6573_5546;

fn control(descriptor: RawFd, request: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the requests passed here carry no argument.
    match unsafe { libc::ioctl(descriptor, request as _, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether writes through a descriptor can be made a group.
pub(crate) fn can_group(descriptor: RawFd) -> bool {
    // SAFETY: zeros are a valid `statfs`, and the call fills it.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a live local behind the pointer.
    if unsafe { libc::fstatfs(descriptor, &raw mut about) } != 0 || about.f_type as u64 != FUSE {
        return false;
    }
    let mut features = 0_u32;
    // SAFETY: the request writes one 32-bit number behind the pointer, which is a live local.
    let asked = unsafe { libc::ioctl(descriptor, GET_FEATURES as _, &raw mut features) };
    asked == 0 && features & FEATURE_ATOMIC_WRITE != 0
}

/// What became of a group that was not committed.
pub(crate) enum Failed {
    /// The file is as it was, and may be written in another way.
    Dropped,
    /// The group may still be there, and later writes would go to it.
    Open,
}

/// Commits what an overlay changes as one group, ordered with a later fsync.
pub(crate) fn commit(descriptor: RawFd, overlay: &Overlay) -> Result<(), Failed> {
    control(descriptor, START).map_err(|_| Failed::Dropped)?;
    let done = write(descriptor, overlay).and_then(|()| match control(descriptor, COMMIT_ORDERED) {
        // A server that has F2FS's requests alone.
        Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => control(descriptor, COMMIT),
        done => done,
    });
    // A commit that failed has ended the group already; then ABORT does nothing.
    done.map_err(|_| control(descriptor, ABORT).map_or(Failed::Open, |()| Failed::Dropped))
}

/// Writes what an overlay changes.
pub(crate) fn write(descriptor: RawFd, overlay: &Overlay) -> io::Result<()> {
    overlay.apply(&mut Descriptor(descriptor))
}

struct Descriptor(RawFd);

impl Sink for Descriptor {
    type Error = io::Error;

    fn write_at(&mut self, data: &[u8], offset: u64) -> io::Result<()> {
        write_at(self.0, data, offset)
    }

    fn set_len(&mut self, size: u64) -> io::Result<()> {
        truncate(self.0, size)
    }
}

fn write_at(descriptor: RawFd, mut data: &[u8], mut offset: u64) -> io::Result<()> {
    while !data.is_empty() {
        // SAFETY: the buffer is live and of that length.
        let count = unsafe { libc::pwrite(descriptor, data.as_ptr().cast(), data.len(), offset as i64) };
        match usize::try_from(count) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                data = &data[count..];
                offset += count as u64;
            }
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

fn truncate(descriptor: RawFd, size: u64) -> io::Result<()> {
    // SAFETY: plain numbers.
    match unsafe { libc::ftruncate(descriptor, size as i64) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
