//! Layout leases over a mount: the control requests, for the server and for programs.
//!
//! A lease belongs to an open file description, and ends with its last close at the latest. The structures
//! are those of the machine's C compiler; their sizes are in the requests' numbers, as the kernel demands of
//! requests that it passes on.
//!
//! Neighbours: [`crate::operations::lease`] answers; `docs/leases.md` has the C declarations.

use quire_base::{Error, ErrorKind, Result};
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Extents that one lease has at most.
pub const EXTENTS_MAX: usize = 256;

/// `_IOWR('Q', 16, struct quire_lease)`: takes a lease.
pub const LEASE: u32 = number(3, 16, size_of::<Lease>());
/// `_IOWR('Q', 17, struct quire_lease_state)`: how a lease is.
pub const LEASE_STATE: u32 = number(3, 17, size_of::<LeaseState>());
/// `_IOW('Q', 18, struct quire_lease_state)`: returns a lease.
pub const LEASE_RETURN: u32 = number(1, 18, size_of::<LeaseState>());

const fn number(direction: u32, request: u32, size: usize) -> u32 {
    assert!(size < 1 << 14, "the kernel passes no larger structure on");
    direction << 30 | (size as u32) << 16 | (b'Q' as u32) << 8 | request
}

/// [`Extent::kind`]: on the device.
pub const WRITTEN: u32 = 1;
/// [`Extent::kind`]: it has blocks, and reads as zeros whatever they hold.
pub const UNWRITTEN: u32 = 2;

/// [`LeaseState::state`]: what was read up to now does not count any more.
pub const REVOKED: u32 = 0;
/// [`LeaseState::state`]: the lease is as it was.
pub const VALID: u32 = 1;
/// [`LeaseState::state`]: what was read up to now counts, and somebody waits for the lease.
pub const RECALLED: u32 = 2;

/// A part of a file, whole blocks. What lies between extents is a hole.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Extent {
    /// In the file, in bytes.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// In the image, or on the device, in bytes; 0 if it is unwritten.
    pub device: u64,
    /// [`WRITTEN`] or [`UNWRITTEN`].
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
}

/// The argument of [`LEASE`].
#[repr(C)]
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Lease {
    /// The first byte of the range. In the answer: of the blocks that the lease covers.
    pub start: u64,
    /// One behind the last. In the answer: where another lease goes on.
    pub end: u64,
    /// Out: names the lease of this open file.
    pub id: u64,
    /// Out: the file's size in bytes.
    pub size: u64,
    /// Out: how many extents there are.
    pub count: u32,
    /// Zero.
    pub flags: u32,
    /// Out: where the range is, ascending.
    pub extents: [Extent; EXTENTS_MAX],
}

/// The argument of [`LEASE_STATE`] and [`LEASE_RETURN`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct LeaseState {
    /// Names the lease of this open file.
    pub id: u64,
    /// Out: [`VALID`], [`RECALLED`] or [`REVOKED`].
    pub state: u32,
    /// Zero.
    pub reserved: u32,
}

impl Lease {
    /// A request for a range of bytes.
    pub fn request(range: Range<u64>) -> Lease {
        let extents = [Extent::default(); EXTENTS_MAX];
        Lease { start: range.start, end: range.end, id: 0, size: 0, count: 0, flags: 0, extents }
    }
}

/// A lease that a program holds of a file on a mount; dropping it returns it.
#[derive(Debug)]
pub struct HeldLease<'a> {
    file: &'a File,
    answer: Box<Lease>,
}

impl<'a> HeldLease<'a> {
    /// Takes a lease of a range of bytes, as far as one lease goes. What mappings and the kernel's cache have
    /// is written first.
    pub fn take(file: &'a File, range: Range<u64>) -> Result<HeldLease<'a>> {
        match file.sync_data() {
            // Not on a mount of Quire's, as the request finds out.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            synced => synced.map_err(|error| Error::os("making the file durable", &error))?,
        }
        let mut answer = Box::new(Lease::request(range));
        control(file, LEASE, &mut *answer)?;
        Ok(HeldLease { file, answer })
    }

    /// The bytes that it covers.
    pub fn range(&self) -> Range<u64> {
        self.answer.start..self.answer.end
    }

    /// The file's size in bytes, when the lease was taken.
    pub fn file_size(&self) -> u64 {
        self.answer.size
    }

    /// Where they are.
    pub fn extents(&self) -> &[Extent] {
        &self.answer.extents[..(self.answer.count as usize).min(EXTENTS_MAX)]
    }

    /// How it is now: [`VALID`], [`RECALLED`] or [`REVOKED`].
    pub fn state(&self) -> Result<u32> {
        let mut state = LeaseState { id: self.answer.id, ..LeaseState::default() };
        control(self.file, LEASE_STATE, &mut state)?;
        Ok(state.state)
    }

    /// Whether what was read from the device up to now counts.
    pub fn is_valid(&self) -> Result<bool> {
        Ok(self.state()? != REVOKED)
    }
}

impl Drop for HeldLease<'_> {
    fn drop(&mut self) {
        // The close returns it otherwise.
        let _ =
            control(self.file, LEASE_RETURN, &mut LeaseState { id: self.answer.id, ..LeaseState::default() });
    }
}

fn control<T: FromBytes + IntoBytes>(file: &File, command: u32, argument: &mut T) -> Result<()> {
    debug_assert_eq!(size_of::<T>(), (command >> 16 & 0x3fff) as usize);
    // SAFETY: the kernel reads and writes as many bytes as the command's number says, which the argument has;
    // any bytes are a value of its type.
    if unsafe { libc::ioctl(file.as_raw_fd(), u64::from(command) as _, std::ptr::from_mut(argument)) } == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(match error.raw_os_error() {
        Some(libc::ENOTTY) => Error::new(
            ErrorKind::Unsupported,
            "a lease of a file's layout: the file is not on a mount of Quire's",
        ),
        Some(libc::EBUSY) => Error::new(
            ErrorKind::Busy,
            "a lease of a file's layout: the layout is about to change, or there are too many leases; try again",
        ),
        _ => Error::os("a lease of a file's layout", &error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They are part of the interface.
    #[test]
    fn the_numbers() {
        assert_eq!((LEASE, LEASE_STATE, LEASE_RETURN), (0xe028_5110, 0xc010_5111, 0x4010_5112));
    }
}
