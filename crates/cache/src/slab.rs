//! Headers of folios: made once, recycled for ever, and the ring that reclaim's hand goes round.
//!
//! Invariants: a header's address and order never change; a header on the free list belongs to nobody and has
//! every segment locked. The byte limit is charged for a header when it is made, not when it is used.
//!
//! Neighbours: [`crate::folio`] says what a header is, [`crate::reclaim`] walks [`Slab::visit`].

use crate::folio::{Folio, FolioRef, ORDER_MAX, Order};
use quire_base::sync::{Mutex, RwLock};

/// All headers of a cache.
pub struct Slab {
    headers: RwLock<Vec<Box<Folio>>>,
    free: [Mutex<Vec<FolioRef>>; ORDER_MAX as usize + 1],
}

impl Default for Slab {
    fn default() -> Slab {
        Slab { headers: RwLock::new(Vec::new()), free: std::array::from_fn(|_| Mutex::new(Vec::new())) }
    }
}

impl Slab {
    /// A header between lives, if one of this order was used before.
    pub fn recycle(&self, order: Order) -> Option<FolioRef> {
        self.free[order as usize].lock().pop()
    }

    /// A new header, for which the caller has charged the byte limit.
    pub fn create(&self, order: Order) -> FolioRef {
        let mut headers = self.headers.write();
        let header = Folio::boxed(order);
        let folio = FolioRef::new(&header);
        headers.push(header);
        folio
    }

    /// Takes a header back whose life has ended.
    pub fn give_back(&self, folio: FolioRef) {
        debug_assert!(folio.owner().is_none());
        self.free[folio.order() as usize].lock().push(folio);
    }

    /// Headers there are.
    pub fn len(&self) -> usize {
        self.headers.read().len()
    }

    /// Appends the headers of slots `from .. from + count` (as many as there are) to `out`.
    pub fn visit(&self, from: usize, count: usize, out: &mut impl Extend<FolioRef>) {
        let headers = self.headers.read();
        let end = headers.len().min(from.saturating_add(count));
        out.extend(headers[from.min(end)..end].iter().map(|header| FolioRef::new(header)));
    }
}
