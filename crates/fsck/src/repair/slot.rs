//! Superblock slots written by themselves: one block, flushed, so each change is all or nothing.

use quire::internals::inspect;
use quire_base::sync::Arc;
use quire_base::{BLOCK_SIZE, Result};
use quire_device::{AlignedBuf, Backend, IoClass};
use quire_format::superblock::{FLAG_ERRORS, SLOT_BLOCKS, Superblock, far_slots};

/// Writes a superblock into a slot and makes it durable; then its second copy.
pub(super) fn publish(backend: &dyn Backend, superblock: &Superblock, slot: usize) -> Result<()> {
    let superblock = Superblock { slot: slot as u32, ..superblock.clone() };
    let block = AlignedBuf::copy_of(&superblock.encode());
    for at in [SLOT_BLOCKS[slot], far_slots(superblock.block_count)[slot]] {
        backend.write(IoClass::Metadata, at, &block)?;
        backend.flush()?;
    }
    Ok(())
}

/// Puts the superblock that serves in the place of a newer one whose checkpoint is damaged. The journal from
/// its position leads past the newer one, so nothing is lost.
pub(super) fn abandon(backend: &dyn Backend, serves: &Superblock, slot: usize) -> Result<()> {
    publish(backend, serves, slot)
}

/// Puts the second copies of the superblocks in the place of first ones that are gone.
pub(super) fn restore(backend: &Arc<dyn Backend>) -> Result<()> {
    for (slot, copies) in inspect::superblocks(backend.clone()).into_iter().enumerate() {
        if let (Err(_), Ok(far)) = (copies.near, copies.far) {
            publish(&**backend, &far, slot)?;
        }
    }
    Ok(())
}

/// Takes the mark of an error away, once the volume has been looked into.
pub(super) fn clear_error_flags(backend: &dyn Backend) -> Result<()> {
    for (slot, at) in SLOT_BLOCKS.into_iter().enumerate() {
        let mut block = AlignedBuf::zeroed(BLOCK_SIZE);
        backend.read(IoClass::Metadata, at, &mut block)?;
        let mut superblock = Superblock::decode(&block)?;
        if superblock.flags & FLAG_ERRORS != 0 {
            superblock.flags &= !FLAG_ERRORS;
            publish(backend, &superblock, slot)?;
        }
    }
    Ok(())
}
