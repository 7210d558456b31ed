//! Bad copies of metadata, overwritten with the good ones.
//!
//! Both copies of a block have the same bytes, and the reference that names them fixes these bytes by their
//! checksum. So a repair that is cut off here leaves some copies mended and the others as they were.

use quire_base::{BLOCK_SIZE, BlockNo, Result};
use quire_device::{AlignedBuf, Backend, IoClass};
use std::collections::BTreeSet;

/// Writes each good copy over its bad one: (good, bad).
pub(super) fn mend(backend: &dyn Backend, copies: &BTreeSet<(BlockNo, BlockNo)>) -> Result<()> {
    let mut block = AlignedBuf::zeroed(BLOCK_SIZE);
    for &(good, bad) in copies {
        backend.read(IoClass::Metadata, good, &mut block)?;
        backend.write(IoClass::Metadata, bad, &block)?;
    }
    if copies.is_empty() { Ok(()) } else { backend.flush() }
}
