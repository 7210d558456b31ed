//! Headers of folios: made once, recycled for ever, and the ring that reclaim's hand goes round.
//!
//! Invariants: a header's address and order never change; a header on the free list belongs to nobody and has
//! every segment locked. The byte limit is charged for a header when it is made, not when it is used.
//!
//! Neighbours: [`crate::folio`] says what a header is, [`crate::reclaim`] walks [`Slab::visit`].

use crate::folio::{Folio, FolioRef, ORDER_MAX, Order};
use crate::marks::{MARKS, Mark, Marks};
use quire_base::sync::{Mutex, RwLock};
use std::sync::Arc;

/// All headers of a cache.
#[derive(Default)]
pub struct Slab {
    headers: RwLock<Headers>,
    free: [Mutex<Vec<FolioRef>>; ORDER_MAX as usize + 1],
}

#[derive(Default)]
struct Headers {
    all: Vec<Box<Folio>>,
    /// Of [`MARKS`] headers each.
    marks: Vec<Arc<Marks>>,
}

impl Slab {
    /// A header between lives, if one of this order was used before.
    pub fn recycle(&self, order: Order) -> Option<FolioRef> {
        let folio = self.free[order as usize].lock().pop()?;
        folio.set_vacant(false);
        Some(folio)
    }

    /// A new header, for which the caller has charged the byte limit.
    pub fn create(&self, order: Order) -> FolioRef {
        let mut headers = self.headers.write();
        let slot = headers.all.len();
        if slot.is_multiple_of(MARKS) {
            headers.marks.push(Arc::default());
        }
        let mark = Mark { marks: headers.marks[slot / MARKS].clone(), number: (slot % MARKS) as u16 };
        let header = Folio::boxed(order, mark);
        let folio = FolioRef::new(&header);
        headers.all.push(header);
        folio
    }

    /// Takes a header back whose life has ended.
    pub fn give_back(&self, folio: FolioRef) {
        debug_assert!(folio.owner().is_none());
        folio.set_vacant(true);
        self.free[folio.order() as usize].lock().push(folio);
    }

    /// Headers there are.
    pub fn len(&self) -> usize {
        self.headers.read().all.len()
    }

    /// Appends `count` headers from slot `from` on to `out` that are not vacant, fewer where the slots end;
    /// with `unproven` only those of folios that are not proven. Returns the slot where to go on.
    pub fn visit(&self, from: usize, count: usize, unproven: bool, out: &mut impl Extend<FolioRef>) -> usize {
        let headers = self.headers.read();
        let mut slot = from;
        let mut left = count;
        while slot < headers.all.len() && left > 0 {
            let first = slot - slot % MARKS;
            let Some(number) = headers.marks[slot / MARKS].next(slot % MARKS, unproven) else {
                slot = first + MARKS;
                continue;
            };
            // The marks go on where the headers end.
            slot = first + number;
            if let Some(header) = headers.all.get(slot) {
                out.extend([FolioRef::new(header)]);
                slot += 1;
                left -= 1;
            }
        }
        slot.min(headers.all.len())
    }
}
