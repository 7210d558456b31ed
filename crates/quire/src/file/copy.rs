//! Copying between files (copy_file_range): through the cache, in batches.

use super::{BATCH_BYTES, IoFlags, range_end};
use crate::engine::Engine;
use crate::inode::InodeRef;
use quire_base::sync::Arc;
use quire_base::{Error, Result};

impl Engine {
    /// Copies up to `len` bytes; fewer at the end of the source. Overlapping ranges of one file are refused.
    pub(crate) fn copy_range(
        self: &Arc<Engine>,
        from: &InodeRef,
        from_offset: u64,
        to: &InodeRef,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        self.store.check_writable()?;
        from.check_regular()?;
        to.check_regular()?;
        let len = len.min(from.size().saturating_sub(from_offset));
        let (from_end, to_end) = (range_end(from_offset, len)?, range_end(to_offset, len)?);
        if from.number() == to.number() && from_offset < to_end && to_offset < from_end {
            return Err(Error::invalid("source and target of the copy overlap"));
        }
        let mut buffer = vec![0; BATCH_BYTES.min(len as usize)];
        let mut done = 0;
        while done < len {
            let want = (len - done).min(BATCH_BYTES as u64) as usize;
            let copied =
                self.read(from, from_offset + done, &mut buffer[..want], IoFlags::empty()).and_then(|read| {
                    if read == 0 {
                        return Ok(0);
                    }
                    self.write(to, to_offset + done, &buffer[..read], IoFlags::empty())
                        .map(|(_, written)| written)
                });
            match copied {
                Ok(0) => break,
                Ok(count) => done += count as u64,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }
}
