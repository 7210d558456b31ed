//! A device with one superblock slot out of sight and nothing to be written: what the volume would be without
//! it.

use quire_base::sync::Arc;
use quire_base::{BLOCK_SIZE, BlockNo, Error, ErrorKind, Result};
use quire_device::{Backend, Io, IoClass, IoOp};
use quire_format::superblock::{SLOT_BLOCKS, far_slots};

pub(crate) struct Masked {
    inner: Arc<dyn Backend>,
    /// Both copies of the slot.
    hidden: [BlockNo; 2],
}

impl Masked {
    /// Hides a slot of a volume of so many blocks.
    pub(crate) fn new(inner: Arc<dyn Backend>, slot: usize, block_count: u64) -> Masked {
        Masked { inner, hidden: [SLOT_BLOCKS[slot], far_slots(block_count)[slot]] }
    }

    fn refuse(&self) -> Error {
        Error::new(ErrorKind::ReadOnly, format!("{} is only looked at", self.inner.name()))
    }
}

impl Backend for Masked {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn read(&self, class: IoClass, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        self.inner.read(class, at, buf)?;
        for offset in self.hidden.iter().filter_map(|hidden| hidden.0.checked_sub(at.0)) {
            let from = (offset as usize).saturating_mul(BLOCK_SIZE);
            if let Some(hidden) = buf.get_mut(from..from.saturating_add(BLOCK_SIZE)) {
                hidden.fill(0);
            }
        }
        Ok(())
    }

    fn write(&self, _class: IoClass, _at: BlockNo, _buf: &[u8]) -> Result<()> {
        Err(self.refuse())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _at: BlockNo, _count: u64) -> Result<()> {
        Err(self.refuse())
    }

    fn submit(&self, class: IoClass, ios: Vec<Io>) {
        // Superblocks are read by `read` alone, so reads of other blocks pass as they are.
        let (reads, writes): (Vec<Io>, Vec<Io>) = ios.into_iter().partition(|io| io.op == IoOp::Read);
        for io in writes {
            (io.done)(Err(self.refuse()));
        }
        if !reads.is_empty() {
            self.inner.submit(class, reads);
        }
    }
}
