//! A device of which some sectors cannot be read until they are written again, and which can be killed after
//! so many writes.

use quire_base::sync::Arc;
use quire_base::sync::atomic::{AtomicI64, Ordering};
use quire_base::{BLOCK_SIZE, BlockNo, Error, ErrorKind, Result};
use quire_device::simulated::SimulatedBackend;
use quire_device::{Backend, Io, IoClass, IoOp, Segment};
use std::collections::BTreeSet;
use std::sync::Mutex;

pub struct Sectors {
    pub inner: Arc<SimulatedBackend>,
    bad: Mutex<BTreeSet<u64>>,
    /// Writes and flushes that are still carried out.
    left: AtomicI64,
}

impl Sectors {
    pub fn new(inner: Arc<SimulatedBackend>, bad: BTreeSet<u64>) -> Sectors {
        Sectors { inner, bad: Mutex::new(bad), left: AtomicI64::new(i64::MAX) }
    }

    /// From the n-th write on, nothing reaches the device.
    pub fn die_after(&self, writes: i64) {
        self.left.store(writes, Ordering::Relaxed);
    }

    /// Writes and flushes since [`Sectors::die_after`] was told the largest number.
    pub fn carried_out(&self) -> i64 {
        i64::MAX - self.left.load(Ordering::Relaxed)
    }

    /// A sector goes bad while the device is in use.
    pub fn go_bad(&self, at: u64) {
        self.bad.lock().unwrap().insert(at);
    }

    pub fn bad(&self) -> BTreeSet<u64> {
        self.bad.lock().unwrap().clone()
    }

    fn alive(&self) -> Result<()> {
        if self.left.fetch_sub(1, Ordering::Relaxed) <= 0 {
            return Err(Error::new(ErrorKind::Io, "the process was killed"));
        }
        Ok(())
    }
}

impl Backend for Sectors {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn name(&self) -> String {
        "a bad disk".into()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, class: IoClass, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        let end = at.0 + (buf.len() / BLOCK_SIZE) as u64;
        if let Some(bad) = self.bad.lock().unwrap().range(at.0..end).next() {
            return Err(Error::new(ErrorKind::Io, format!("block {bad} cannot be read")));
        }
        self.inner.read(class, at, buf)
    }

    fn write(&self, class: IoClass, at: BlockNo, buf: &[u8]) -> Result<()> {
        self.alive()?;
        let end = at.0 + (buf.len() / BLOCK_SIZE) as u64;
        self.bad.lock().unwrap().retain(|bad| !(at.0..end).contains(bad));
        self.inner.write(class, at, buf)
    }

    fn flush(&self) -> Result<()> {
        self.alive()?;
        self.inner.flush()
    }

    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        self.inner.discard(at, count)
    }

    fn submit(&self, class: IoClass, ios: Vec<Io>) {
        for io in ios {
            let mut at = io.at;
            let mut one = |segment: &Segment| {
                let start = at;
                at = at.offset((segment.len() / BLOCK_SIZE) as u64);
                let mut copy = vec![0; segment.len()];
                // SAFETY: the segment's memory is valid until `done` runs; for a read it is ours to fill.
                unsafe {
                    match io.op {
                        IoOp::Read => {
                            self.read(class, start, &mut copy)?;
                            std::ptr::copy_nonoverlapping(copy.as_ptr(), segment.ptr(), copy.len());
                        }
                        IoOp::Write => {
                            std::ptr::copy_nonoverlapping(
                                segment.ptr().cast_const(),
                                copy.as_mut_ptr(),
                                segment.len(),
                            );
                            self.write(class, start, &copy)?;
                        }
                    }
                }
                Ok(())
            };
            let outcome = io.segments.iter().try_for_each(&mut one);
            (io.done)(outcome);
        }
    }
}
