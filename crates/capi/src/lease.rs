//! Leases of a file's layout: where its blocks are on the device, and the promise that they stay there.
//!
//! Neighbours: [`crate::file`] has the open files; `quire::LayoutLease` does the work; `docs/leases.md` has
//! the contract.

use crate::error::{count, number, quietly, status};
use crate::file::{File, file};
use crate::handle::{borrow, give, take};
use crate::volume::give_out;
use quire::{Error, ErrorKind, LayoutExtent, LayoutLease, Place, Result};
use quire_base::sync::time::Duration;
use std::ffi::c_int;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Of an extent: on the device, at `device`.
pub const QUIRE_EXTENT_WRITTEN: u32 = 1;
/// Of an extent: it has blocks, and reads as zeros whatever they hold.
pub const QUIRE_EXTENT_UNWRITTEN: u32 = 2;
/// Of an extent: it has no blocks, and reads as zeros.
pub const QUIRE_EXTENT_HOLE: u32 = 3;

/// Of a lease: what was read from the device up to now does not count.
pub const QUIRE_LEASE_REVOKED: c_int = 0;
/// Of a lease: what was read from the device up to now counts.
pub const QUIRE_LEASE_VALID: c_int = 1;
/// Of a lease: what was read from the device up to now counts, and somebody waits for its return.
pub const QUIRE_LEASE_RECALLED: c_int = 2;

/// A part of a file, whole blocks of 4096 bytes. What lies behind the end of the file in the last one means
/// nothing.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Extent {
    /// In the file, in bytes.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// On the device or in the image, in bytes; 0 unless it is written.
    pub device: u64,
    /// QUIRE_EXTENT_WRITTEN, QUIRE_EXTENT_UNWRITTEN or QUIRE_EXTENT_HOLE.
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
}

/// A lease of a file's layout.
pub struct Lease(LayoutLease);

/// The lease behind a handle.
///
/// # Safety
/// As for [`borrow`].
unsafe fn lease<'a>(handle: *const Lease) -> Result<&'a LayoutLease> {
    // SAFETY: the caller's promise.
    unsafe { borrow(handle, "lease") }.map(|lease| &lease.0)
}

fn extent(extent: &LayoutExtent) -> Extent {
    let (device, kind) = match extent.place {
        Place::Device(at) => (at, QUIRE_EXTENT_WRITTEN),
        Place::Unwritten => (0, QUIRE_EXTENT_UNWRITTEN),
        _ => (0, QUIRE_EXTENT_HOLE),
    };
    Extent { offset: extent.offset, length: extent.len, device, kind, reserved: 0 }
}

/// Makes bytes `[start, end)` of a file durable, as far as the file goes, and leases their layout: where they
/// are on the device, and the promise that they stay there. What would move them recalls the lease, waits for
/// its return a bounded time, and revokes it then: what was read from the device counts only if
/// quire_lease_state says so afterwards. A lease has a bounded number of extents; quire_lease_end says
/// where it ends, and another lease goes on from there. The file was opened for reading; its handle may be
/// closed before the lease is returned. Closing the volume revokes it.
///
/// Returns: 0 and a handle in `*lease`, which the caller gives to quire_lease_return; -EBUSY while an
/// operation that moves blocks of the range is under way, and if the volume has 4096 leases; or another
/// negative error number. On an error `*lease` is NULL.
/// Threads: any.
///
/// # Safety
/// `file` is open; a pointer may be written to `lease`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_lease_take(
    file: *const File,
    start: u64,
    end: u64,
    lease: *mut *mut Lease,
) -> c_int {
    // SAFETY: the caller's promise.
    let take = || Ok(give(Lease(unsafe { self::file(file) }?.file.lease_layout(start..end)?)));
    // SAFETY: the caller's promise.
    unsafe { give_out(lease, "lease", take) }
}

/// Where the range of a lease is: extents in the order of the file, holes included, without gaps. At most
/// `room` of them are written to `extents`.
///
/// Returns: how many there are, which may be more than `room`; or a negative error number.
/// Threads: any.
///
/// # Safety
/// `lease` is held; `room` extents may be written to `extents`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_lease_extents(lease: *const Lease, extents: *mut Extent, room: usize) -> i64 {
    count(|| {
        // SAFETY: the caller's promise.
        let lease = unsafe { self::lease(lease) }?;
        if extents.is_null() && room > 0 {
            return Err(Error::invalid("the place for the extents is NULL"));
        }
        for (at, from) in lease.extents().iter().enumerate().take(room) {
            // SAFETY: the caller's promise: `room` extents may be written, and this is one of them.
            unsafe { extents.add(at).write(extent(from)) };
        }
        Ok(lease.extents().len() as u64)
    })
}

/// The end of the range that a lease covers, in bytes: another lease goes on there.
///
/// Returns: that offset, or a negative error number.
/// Threads: any.
///
/// # Safety
/// `lease` is held.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_lease_end(lease: *const Lease) -> i64 {
    // SAFETY: the caller's promise.
    count(|| Ok(unsafe { self::lease(lease) }?.range().end))
}

/// Whether what was read from the device up to now counts.
///
/// Returns: QUIRE_LEASE_VALID, QUIRE_LEASE_RECALLED or QUIRE_LEASE_REVOKED, or a negative error number.
/// Threads: any. It waits for nothing.
///
/// # Safety
/// `lease` is held.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_lease_state(lease: *const Lease) -> c_int {
    // SAFETY: the caller's promise.
    number(|| unsafe { self::lease(lease) }.map(state_of))
}

fn state_of(lease: &LayoutLease) -> c_int {
    // In this order: one that is recalled in between is still valid.
    let is_recalled = lease.is_recalled();
    match lease.is_valid() {
        false => QUIRE_LEASE_REVOKED,
        true if is_recalled => QUIRE_LEASE_RECALLED,
        true => QUIRE_LEASE_VALID,
    }
}

/// Waits until a lease is recalled or revoked, at most so many milliseconds.
///
/// Returns: as quire_lease_state.
/// Threads: any.
///
/// # Safety
/// `lease` is held.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_lease_wait(lease: *const Lease, milliseconds: u64) -> c_int {
    number(|| {
        // SAFETY: the caller's promise.
        let lease = unsafe { self::lease(lease) }?;
        lease.wait_recalled(Duration::from_millis(milliseconds));
        Ok(state_of(lease))
    })
}

/// Makes an eventfd readable when a lease is recalled or revoked, at once if it was: 1 is added to it. The
/// library uses a duplicate of the descriptor, so the caller may close its own.
///
/// Returns: 0; -EBADF for a descriptor that is not open, -EINVAL for one that is no eventfd; or another
/// negative error number.
/// Threads: any.
///
/// # Safety
/// `lease` is held; `eventfd` is an open descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_lease_notify(lease: *const Lease, eventfd: c_int) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let lease = unsafe { self::lease(lease) }?;
        check_eventfd(eventfd)?;
        // SAFETY: the caller's promise.
        let eventfd: OwnedFd = unsafe { BorrowedFd::borrow_raw(eventfd) }
            .try_clone_to_owned()
            .map_err(|error| Error::os("duplicating the eventfd", &error))?;
        lease.on_recall(move || {
            // It fails only where the counter is full: then it is readable.
            let _ = rustix::io::write(&eventfd, &1u64.to_ne_bytes());
        });
        Ok(())
    })
}

/// What is written to another descriptor would land in a file.
fn check_eventfd(descriptor: c_int) -> Result<()> {
    // SAFETY: any number may be asked about.
    if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1 {
        return Err(Error::new(ErrorKind::BadHandle, format!("the descriptor {descriptor} is not open")));
    }
    match std::fs::read_link(format!("/proc/self/fd/{descriptor}")) {
        Ok(target) if target.as_os_str() != "anon_inode:[eventfd]" => {
            Err(Error::invalid(format!("{} is no eventfd", target.display())))
        }
        // Without /proc nobody can tell.
        _ => Ok(()),
    }
}

/// Returns a lease. NULL is fine.
///
/// Threads: any; no other call uses this lease then or later.
///
/// # Safety
/// `lease` is NULL, or held and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_lease_return(lease: *mut Lease) {
    // SAFETY: the caller's promise.
    quietly(|| drop(unsafe { take(lease) }));
}
