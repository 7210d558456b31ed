//! `FITRIM`, the request of `fstrim`: tells the device which space is free.
//!
//! The range is one of bytes of the volume, `minlen` has no effect. Space that was freed a moment ago is free
//! once its freeing is durable. As on other file systems, only root may ask.
//!
//! Neighbours: [`quire::Volume::trim`] does it, in pieces beside whatever else goes on.

use super::Operations;
use super::properties::{Asker, is_owner_or_root};
use quire_base::{Error, ErrorKind, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The owner who may trim besides root: nobody.
const ROOT: u32 = 0;

/// `struct fstrim_range` of the kernel.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct TrimRange {
    start: u64,
    /// In: bytes; out: bytes that were discarded.
    len: u64,
    minlen: u64,
}

impl Operations {
    /// Discards free space; the answer says how much.
    pub(super) fn trim(&self, asker: Asker, input: &[u8]) -> Result<Vec<u8>> {
        let mut range = TrimRange::read_from_bytes(input)
            .map_err(|_| Error::invalid("a trim needs a start, a length and a least length"))?;
        if !is_owner_or_root(&self.volume.inodes().root(), ROOT, asker) {
            return Err(Error::new(ErrorKind::NotPermitted, "only root may trim a volume"));
        }
        let info = self.volume.info();
        if range.start >= info.blocks * u64::from(info.block_size) {
            return Err(Error::invalid("a trim that begins behind the end of the volume"));
        }
        range.len = self.volume.trim(range.start..range.start.saturating_add(range.len))?;
        Ok(range.as_bytes().to_vec())
    }
}
