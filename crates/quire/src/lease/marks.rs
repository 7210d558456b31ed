//! What every write of a file asks about it first, in one byte: whether it drops what is cached, and whether
//! somebody has a lease of its layout.
//!
//! Shared line: it lies with the other fields of an inode that are read by all and hardly ever written.

use quire_base::sync::atomic::{AtomicU8, Ordering};

const DROPS_CACHE: u8 = 1;
const LEASED: u8 = 2;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Marks(AtomicU8);

/// The marks as they were at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct MarksNow(u8);

impl MarksNow {
    /// The property `cache=drop`.
    #[inline]
    pub fn drops_cache(self) -> bool {
        self.0 & DROPS_CACHE != 0
    }

    /// There are leases, or somebody asks for one.
    #[inline]
    pub fn is_leased(self) -> bool {
        self.0 & LEASED != 0
    }
}

impl Marks {
    /// One relaxed load.
    #[inline]
    pub fn now(&self) -> MarksNow {
        MarksNow(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, bit: u8, on: bool) {
        match on {
            true => self.0.fetch_or(bit, Ordering::AcqRel),
            false => self.0.fetch_and(!bit, Ordering::AcqRel),
        };
    }

    /// Sets the property `cache=drop`.
    pub fn set_drops_cache(&self, on: bool) {
        self.set(DROPS_CACHE, on);
    }

    /// Says whether there are leases; the table's lock is held.
    pub(super) fn set_leased(&self, on: bool) {
        self.set(LEASED, on);
    }
}
