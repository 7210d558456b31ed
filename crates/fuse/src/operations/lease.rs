//! Layout leases of open files.
//!
//! A lease belongs to an open file description, as a group does: whatever becomes of its holder, the last
//! close returns it. As `fcntl` asks for its leases, only the owner of the file and root may take one, since
//! it holds up others. Taking one waits for the device; asking and returning wait for nothing, so that no
//! request that waits for a lease keeps its return back.
//!
//! Neighbours: [`crate::lease`] has the structures.

use super::Operations;
use super::properties::{Asker, is_owner_or_root};
use crate::lease::{EXTENTS_MAX, Extent, Lease, LeaseState, RECALLED, REVOKED, UNWRITTEN, VALID, WRITTEN};
use quire::{LayoutLease, Place};
use quire_base::sync::Mutex;
use quire_base::{Error, ErrorKind, Result};
use zerocopy::{FromBytes, IntoBytes};

/// Leases that an open file has at most.
const LEASES_MAX: usize = 256;

/// The leases of an open file.
#[derive(Default)]
pub(super) struct HandleLeases(Mutex<Held>);

#[derive(Default)]
struct Held {
    last: u64,
    closed: bool,
    leases: Vec<(u64, LayoutLease)>,
}

fn argument<T: FromBytes>(input: &[u8]) -> Result<T> {
    T::read_from_bytes(input)
        .map_err(|_| Error::invalid("a control request with an argument of another size"))
}

impl Operations {
    /// Takes a lease for a user, who must own the file or be root.
    pub(super) fn take_lease(&self, handle: u64, asker: Asker, input: &[u8]) -> Result<Vec<u8>> {
        let file = self.files.get(handle)?;
        let mut answer: Lease = argument(input)?;
        if answer.flags != 0 {
            return Err(Error::invalid(format!("flags {:#x} of a lease are not known", answer.flags)));
        }
        let inodes = self.inodes_of(&file);
        if !is_owner_or_root(&file.inode, inodes.metadata(&file.inode).uid(), asker) {
            return Err(Error::new(
                ErrorKind::AccessDenied,
                "only the owner of a file and root may lease its layout",
            ));
        }
        let lease = inodes.lease_layout(&file.inode, answer.start..answer.end, EXTENTS_MAX)?;
        let extents = lease.extents().iter().filter_map(|extent| {
            let (device, kind) = match extent.place {
                Place::Device(at) => (at, WRITTEN),
                Place::Unwritten => (0, UNWRITTEN),
                _ => return None,
            };
            Some(Extent { offset: extent.offset, len: extent.len, device, kind, reserved: 0 })
        });
        answer.count = 0;
        for (to, extent) in answer.extents.iter_mut().zip(extents) {
            *to = extent;
            answer.count += 1;
        }
        (answer.start, answer.end) = (lease.range().start, lease.range().end);
        answer.size = file.inode.size();
        let mut held = file.leases.0.lock();
        if held.closed {
            return Err(Error::new(ErrorKind::BadHandle, "the file was closed meanwhile"));
        }
        if held.leases.len() >= LEASES_MAX {
            return Err(Error::new(ErrorKind::Busy, format!("an open file has {LEASES_MAX} leases at most")));
        }
        held.last += 1;
        answer.id = held.last;
        let id = held.last;
        held.leases.push((id, lease));
        Ok(answer.as_bytes().to_vec())
    }

    /// How a lease is.
    pub(super) fn lease_state(&self, handle: u64, input: &[u8]) -> Result<Vec<u8>> {
        let file = self.files.get(handle)?;
        let mut answer: LeaseState = argument(input)?;
        let held = file.leases.0.lock();
        let (_, lease) = held.leases.iter().find(|(id, _)| *id == answer.id).ok_or_else(unknown)?;
        // In this order: one that is recalled in between is still valid.
        let is_recalled = lease.is_recalled();
        answer.state = match lease.is_valid() {
            false => REVOKED,
            true if is_recalled => RECALLED,
            true => VALID,
        };
        Ok(answer.as_bytes().to_vec())
    }

    /// Returns a lease.
    pub(super) fn return_lease(&self, handle: u64, input: &[u8]) -> Result<()> {
        let file = self.files.get(handle)?;
        let id = argument::<LeaseState>(input)?.id;
        let mut held = file.leases.0.lock();
        let at = held.leases.iter().position(|(known, _)| *known == id).ok_or_else(unknown)?;
        let lease = held.leases.swap_remove(at);
        drop(held);
        drop(lease);
        Ok(())
    }

    /// Returns all leases of an open file, before its last close is answered or even begun.
    pub fn end_leases(&self, handle: u64) {
        if let Ok(file) = self.files.get(handle) {
            let mut held = file.leases.0.lock();
            held.closed = true;
            let leases = std::mem::take(&mut held.leases);
            drop(held);
            drop(leases);
        }
    }
}

fn unknown() -> Error {
    Error::invalid("the open file has no lease of this number; it may have been returned")
}
