//! A backend that counts what passes: bytes by class, journal writes, flushes.

use crate::target::Counters;
use quire_base::sync::Arc;
use quire_base::sync::atomic::{AtomicU64, Ordering};
use quire_base::{BlockNo, Result};
use quire_device::{Backend, Io, IoClass, IoOp};

/// The totals, shared with their readers.
#[derive(Default)]
pub struct Totals {
    bytes: [AtomicU64; IoClass::ALL.len()],
    journal_writes: AtomicU64,
    flushes: AtomicU64,
}

impl Totals {
    fn wrote(&self, class: IoClass, bytes: u64) {
        self.bytes[class.index()].fetch_add(bytes, Ordering::Relaxed);
        if class == IoClass::Journal {
            self.journal_writes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A reading.
    pub fn read(&self) -> Counters {
        let bytes = |class: IoClass| self.bytes[class.index()].load(Ordering::Relaxed);
        Counters {
            device_bytes_written: Some(IoClass::ALL.iter().map(|&class| bytes(class)).sum()),
            data_bytes_written: Some(bytes(IoClass::Data)),
            device_flushes: Some(self.flushes.load(Ordering::Relaxed)),
            log_forces: Some(self.journal_writes.load(Ordering::Relaxed)),
            orphan_claims: None,
            snapshot_hold_us: None,
        }
    }
}

/// The backend in front of another.
pub struct Counted {
    inner: Arc<dyn Backend>,
    totals: Arc<Totals>,
}

impl Counted {
    /// Counts into `totals`.
    pub fn new(inner: Arc<dyn Backend>, totals: Arc<Totals>) -> Counted {
        Counted { inner, totals }
    }
}

impl Backend for Counted {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }
    fn name(&self) -> String {
        self.inner.name()
    }
    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }
    fn read(&self, class: IoClass, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        self.inner.read(class, at, buf)
    }
    fn write(&self, class: IoClass, at: BlockNo, buf: &[u8]) -> Result<()> {
        self.totals.wrote(class, buf.len() as u64);
        self.inner.write(class, at, buf)
    }
    fn flush(&self) -> Result<()> {
        self.totals.flushes.fetch_add(1, Ordering::Relaxed);
        self.inner.flush()
    }
    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        self.inner.discard(at, count)
    }
    fn submit(&self, class: IoClass, ios: Vec<Io>) {
        for io in ios.iter().filter(|io| io.op == IoOp::Write) {
            self.totals.wrote(class, io.bytes());
        }
        self.inner.submit(class, ios);
    }
}
