//! `memcpy`: one buffer of huge pages, copied out of and into without any lock. The limit of cached I/O.
//!
//! Readers and writers race, and a read may be torn: that is what a limit without promises means.

use crate::array::Array;
use crate::outcome::Outcome;
use crate::target::{Handle, How, Target};
use quire_base::Result;
use quire_base::sync::Arc;

/// A buffer of at least `bytes`.
pub fn set_up(bytes: u64) -> Outcome<Box<dyn Target>> {
    Ok(Box::new(Memory(Arc::new(Array::new(bytes as usize)?))))
}

struct Memory(Arc<Array>);

struct Open(Arc<Array>);

impl Handle for Open {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let range = self.0.range(offset, buffer.len())?;
        self.0.copy_out(range.start, buffer);
        Ok(buffer.len())
    }
    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let range = self.0.range(offset, data.len())?;
        self.0.copy_in(range.start, data);
        Ok(())
    }
    fn sync(&self, _data_only: bool) -> Result<()> {
        Ok(())
    }
}

impl Target for Memory {
    fn open(&self, _path: &str, _how: How) -> Result<Arc<dyn Handle>> {
        Ok(Arc::new(Open(self.0.clone())))
    }
}
