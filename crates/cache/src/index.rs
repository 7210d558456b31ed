//! A file's index of folios: which folio holds a block. Looked up without a lock.
//!
//! A radix tree with 64 slots a node. A folio of order `o` stands in the level whose slots span 64^(o/6) blocks, in
//! as many neighbouring slots as it spans there; the lowest of them is its *home*. A lone folio at block 0 stands in
//! the root word itself, so that small files have no node.
//!
//! ```text
//!  slot word:  0 | pointer to a node, low bits 16 + level | pointer to a header, low bits order + 1 (+ 32: leaving)
//! ```
//!
//! Protocol
//! * Changes are made under the index's mutex. A slot is published with release, loaded with acquire.
//! * Nodes and headers are type-stable: a reader that was overtaken may walk through a node that serves another
//!   mapping by now, and finds valid words there. A word that does not fit the level tells it at once; an empty one
//!   tells the truth, as the node was empty when it left here; a header is believed only after a check.
//! * The optimistic reader ([`Index::look_up`]) takes no pin; it checks owner and start of each header after it has
//!   taken the segments' versions.
//! * Pinning: raise the pin count, fence, look at the home again. Removing: mark the home as leaving, fence, look at
//!   the pin count; then clear the slots or take the mark off. Of the two at least one sees the other; who finds the
//!   mark waits on the mutex and looks again. So a pin is exact: a folio that stays is never missed, which
//!   truncation relies on.
//!
//! Invariants: folios do not overlap; a folio's home holds it exactly during its life; a node that is linked has an
//! occupied slot. Shared lines: none is written by looking up; a pin writes the header's line.
//!
//! Neighbours: [`crate::mapping`] is the only user. The mutex is a leaf but for segment locks that are only tried.

use crate::budget::Budget;
use crate::folio::{FolioPin, FolioRef, Order};
use crate::nodes::{FANOUT, Node, NodeSlab, SHIFT};
use quire_base::sync::Mutex;
use quire_base::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};
use smallvec::SmallVec;
use std::ptr::{NonNull, null_mut};

/// Bytes that an entry costs, as the byte limit counts them; nodes are counted when they are made.
pub const ENTRY_BYTES: u64 = 8;

/// Folios of an operation, ascending.
pub type Pins = SmallVec<[FolioPin; 4]>;

/// Low bits of a word that points to a header: order + 1; to a node: its level above this.
const KIND_MASK: usize = 31;
const NODE: usize = 16;
/// Set while a remover decides.
const LEAVING: usize = 32;
const TAG_MASK: usize = KIND_MASK | LEAVING;
/// Times a pin is tried before the mutex decides.
const TRIES: u32 = 8;

/// What a word says.
enum Word {
    Empty,
    /// A node whose slots span 2^`shift` blocks.
    Node(NonNull<Node>, u32),
    Folio(NonNull<()>, Order),
}

fn read_word(word: *mut ()) -> Word {
    let kind = word.addr() & KIND_MASK;
    match NonNull::new(word.map_addr(|address| address & !TAG_MASK)) {
        None => Word::Empty,
        Some(node) if kind >= NODE => Word::Node(node.cast(), (kind - NODE) as u32 * SHIFT),
        Some(header) => Word::Folio(header, (kind - 1) as Order),
    }
}

fn folio_word(folio: FolioRef) -> *mut () {
    folio.thin().as_ptr().map_addr(|address| address | (usize::from(folio.order()) + 1))
}

fn node_word(node: &Node, shift: u32) -> *mut () {
    let kind = NODE + (shift / SHIFT) as usize;
    std::ptr::from_ref(node).cast_mut().cast::<()>().map_addr(|address| address | kind)
}

/// Where a look-up ended.
enum Found<'a> {
    /// No folio from the block up to this one.
    Nothing { until: u64 },
    /// A folio, the block where it would start, the slot that is its home.
    Folio { folio: FolioRef, start: u64, home: &'a AtomicPtr<()>, leaving: bool },
    /// Changes came in between; look again.
    Overtaken,
}

/// See the module's documentation.
pub struct Index {
    root: AtomicPtr<()>,
    count: AtomicU64,
    change: Mutex<()>,
}

impl Default for Index {
    fn default() -> Index {
        Index { root: AtomicPtr::new(null_mut()), count: AtomicU64::new(0), change: Mutex::new(()) }
    }
}

/// The level's shift in which a folio of `order` stands.
fn level_of(order: Order) -> u32 {
    u32::from(order) / SHIFT * SHIFT
}

/// Whether a node whose slots span 2^`shift` blocks covers `block`.
fn covers(shift: u32, block: u64) -> bool {
    shift + SHIFT >= 64 || block >> (shift + SHIFT) == 0
}

fn slot_of(block: u64, shift: u32) -> usize {
    (block >> shift) as usize % FANOUT
}

/// Puts a folio into the slots of its node, its home first.
fn fill(node: &Node, shift: u32, folio: FolioRef, start: u64) {
    let first = slot_of(start, shift);
    let slots = 1 << (u32::from(folio.order()) - shift);
    for slot in &node.slots[first..first + slots] {
        slot.store(folio_word(folio), Ordering::Release);
    }
    node.used.fetch_add(slots as u32, Ordering::Relaxed);
}

impl Index {
    /// The folio that holds `block`, as far as the walk can tell.
    fn find(&self, block: u64) -> Found<'_> {
        // The slot in hand; what it spans, as a shift; the node that it is in.
        let mut word = self.root.load(Ordering::Acquire);
        let mut span: Option<u32> = None;
        let mut node: Option<&Node> = None;
        loop {
            match read_word(word) {
                Word::Empty => {
                    let until = span.map_or(u64::MAX, |shift| ((block >> shift) + 1) << shift);
                    return Found::Nothing { until };
                }
                Word::Folio(header, order) => {
                    // SAFETY: such words point to headers of that order, which live as long as the cache.
                    let folio = unsafe { FolioRef::from_thin(header, order) };
                    let blocks = 1u64 << order;
                    let start = block & !(blocks - 1);
                    let home = match (node, span) {
                        (Some(node), Some(shift)) if shift == level_of(order) => {
                            &node.slots[slot_of(start, shift)]
                        }
                        (Some(_), _) => return Found::Overtaken,
                        (None, _) if start > 0 => return Found::Nothing { until: u64::MAX },
                        (None, _) => &self.root,
                    };
                    let leaving = home.load(Ordering::Relaxed).addr() & LEAVING != 0;
                    return Found::Folio { folio, start, home, leaving };
                }
                Word::Node(below, shift) => {
                    match span {
                        None if !covers(shift, block) => return Found::Nothing { until: u64::MAX },
                        Some(above) if shift + SHIFT != above => return Found::Overtaken,
                        _ => {}
                    }
                    // SAFETY: nodes live as long as the cache, and are changed through atomics only.
                    let below: &Node = unsafe { &*below.as_ptr() };
                    word = below.slots[slot_of(block, shift)].load(Ordering::Acquire);
                    span = Some(shift);
                    node = Some(below);
                }
            }
        }
    }

    /// Pins the folio that holds `block`; else the block up to which there is none. Exact; `locked` says that the
    /// caller holds the mutex.
    fn pin_one(&self, owner: u64, block: u64, locked: bool) -> Result<FolioPin, u64> {
        for _ in 0..TRIES {
            let (folio, start, home, leaving) = match self.find(block) {
                Found::Nothing { until } => return Err(until),
                Found::Overtaken => continue,
                Found::Folio { folio, start, home, leaving } => (folio, start, home, leaving),
            };
            if leaving {
                break;
            }
            let pin = FolioPin::new(folio);
            fence(Ordering::SeqCst);
            if home.load(Ordering::Acquire) == folio_word(folio) && folio.is(owner, start) {
                return Ok(pin);
            }
        }
        assert!(!locked, "an index changes only under its mutex");
        // A remover is deciding, or changes came in between: behind the mutex nothing moves.
        let _change = self.change.lock();
        self.pin_one(owner, block, true)
    }

    /// Pins the folios that overlap blocks `[first, end)`, and returns the blocks of the range that none covers.
    pub fn pin(&self, owner: u64, first: u64, end: u64, pins: &mut Pins) -> u64 {
        self.pin_some(owner, first, end, usize::MAX, pins)
    }

    /// Pins at most `count` folios that overlap `[first, end)`; returns the blocks passed that none covers.
    pub fn pin_some(&self, owner: u64, first: u64, end: u64, count: usize, pins: &mut Pins) -> u64 {
        let mut missing = 0;
        let mut block = first;
        let mut left = count;
        while block < end && left > 0 {
            match self.pin_one(owner, block, false) {
                Ok(pin) => {
                    block = pin.end_block();
                    pins.push(pin);
                    left -= 1;
                }
                Err(until) => {
                    missing += until.min(end) - block;
                    block = until;
                }
            }
        }
        missing
    }

    /// The blocks of `[first, end)` that no folio covers; a hint.
    pub fn missing(&self, first: u64, end: u64) -> u64 {
        let mut missing = 0;
        let mut block = first;
        while block < end {
            block = match self.find(block) {
                Found::Nothing { until } => {
                    missing += until.min(end) - block;
                    until
                }
                Found::Overtaken => continue,
                Found::Folio { folio, start, .. } => start + u64::from(folio.blocks()),
            };
        }
        missing
    }

    /// The folio that covers `block` and where it starts, without a pin, as for [`Index::look_up`].
    pub fn look_up_one(&self, block: u64) -> Option<(u64, FolioRef)> {
        match self.find(block) {
            Found::Folio { folio, start, leaving: false, .. } => Some((start, folio)),
            _ => None,
        }
    }

    /// The folios that cover all of `[first, end)`, without pins: they may die at once, or be another's already.
    /// False if a block has none.
    pub fn look_up(&self, first: u64, end: u64, found: &mut SmallVec<[(u64, FolioRef); 4]>) -> bool {
        let mut block = first;
        while block < end {
            match self.find(block) {
                Found::Folio { folio, start, leaving: false, .. } => {
                    found.push((start, folio));
                    block = start + u64::from(folio.blocks());
                }
                _ => return false,
            }
        }
        true
    }

    /// Adds a folio and pins it, unless another overlaps it. New nodes are charged to `budget`, over its limit if
    /// need be.
    pub fn insert(&self, folio: FolioRef, nodes: &NodeSlab, budget: &Budget) -> Option<FolioPin> {
        let _change = self.change.lock();
        let (start, end) = (folio.start(), folio.end_block());
        if !self.is_free(start, end) {
            return None;
        }
        let pin = FolioPin::new(folio);
        self.count.fetch_add(1, Ordering::Relaxed);
        let word = folio_word(folio);
        if start == 0 && self.root.load(Ordering::Relaxed).is_null() {
            self.root.store(word, Ordering::Release);
            return Some(pin);
        }
        let level = level_of(folio.order());
        let (mut node, mut shift) = self.root_for(end - 1, level, nodes, budget);
        while shift != level {
            let slot = &node.slots[slot_of(start, shift)];
            shift -= SHIFT;
            node = match read_word(slot.load(Ordering::Relaxed)) {
                // SAFETY: as in `find`.
                Word::Node(below, _) => unsafe { &*below.as_ptr() },
                Word::Empty => {
                    let below = nodes.take(budget);
                    slot.store(node_word(below, shift), Ordering::Release);
                    node.used.fetch_add(1, Ordering::Relaxed);
                    below
                }
                Word::Folio(..) => unreachable!("the place was found free"),
            };
        }
        fill(node, shift, folio, start);
        Some(pin)
    }

    /// The root node, made so high that it covers `last` and has folios of `level` at or below it, with its shift.
    fn root_for<'a>(&self, last: u64, level: u32, nodes: &'a NodeSlab, budget: &Budget) -> (&'a Node, u32) {
        let (mut root, mut shift) = match read_word(self.root.load(Ordering::Relaxed)) {
            // SAFETY: as in `find`.
            Word::Node(node, shift) => (unsafe { &*node.as_ptr() }, shift),
            Word::Empty => {
                let mut shift = level;
                while !covers(shift, last) {
                    shift += SHIFT;
                }
                let node = nodes.take(budget);
                self.root.store(node_word(node, shift), Ordering::Release);
                return (node, shift);
            }
            Word::Folio(header, order) => {
                // SAFETY: as in `find`.
                let lone = unsafe { FolioRef::from_thin(header, order) };
                let node = nodes.take(budget);
                fill(node, level_of(order), lone, 0);
                self.root.store(node_word(node, level_of(order)), Ordering::Release);
                (node, level_of(order))
            }
        };
        while !covers(shift, last) || shift < level {
            let above = nodes.take(budget);
            above.slots[0].store(node_word(root, shift), Ordering::Relaxed);
            above.used.store(1, Ordering::Relaxed);
            (root, shift) = (above, shift + SHIFT);
            self.root.store(node_word(root, shift), Ordering::Release);
        }
        (root, shift)
    }

    /// Removes `folio` if it is here, at `start`, and `may_leave` holds: it is asked when nobody can take a pin
    /// any more without having been counted.
    pub fn remove_if(
        &self,
        start: u64,
        folio: FolioRef,
        nodes: &NodeSlab,
        may_leave: impl FnOnce() -> bool,
    ) -> bool {
        let _change = self.change.lock();
        let Found::Folio { folio: found, start: at, home, .. } = self.find(start) else { return false };
        if found != folio || at != start {
            return false;
        }
        let word = folio_word(folio);
        home.store(word.map_addr(|address| address | LEAVING), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !may_leave() {
            home.store(word, Ordering::Release);
            return false;
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.clear(start, folio, nodes);
        true
    }

    /// Clears a folio's slots and takes nodes out that are empty then.
    fn clear(&self, start: u64, folio: FolioRef, nodes: &NodeSlab) {
        let mut path: SmallVec<[(&Node, usize); 8]> = SmallVec::new();
        let mut word = self.root.load(Ordering::Relaxed);
        let mut level = 0;
        while let Word::Node(node, shift) = read_word(word) {
            // SAFETY: as in `find`.
            let node: &Node = unsafe { &*node.as_ptr() };
            let slot = slot_of(start, shift);
            path.push((node, slot));
            level = shift;
            word = node.slots[slot].load(Ordering::Relaxed);
        }
        let Some((node, first)) = path.pop() else {
            self.root.store(null_mut(), Ordering::Release);
            return;
        };
        let slots = 1 << (u32::from(folio.order()) - level);
        node.slots[first..first + slots].iter().for_each(|slot| slot.store(null_mut(), Ordering::Release));
        let mut left = node.used.fetch_sub(slots as u32, Ordering::Relaxed) - slots as u32;
        let mut empty = node;
        while left == 0 {
            match path.pop() {
                Some((above, slot)) => {
                    above.slots[slot].store(null_mut(), Ordering::Release);
                    left = above.used.fetch_sub(1, Ordering::Relaxed) - 1;
                    nodes.give_back(empty);
                    empty = above;
                }
                None => {
                    self.root.store(null_mut(), Ordering::Release);
                    nodes.give_back(empty);
                    return;
                }
            }
        }
    }

    /// Whether no folio overlaps `[first, end)`; a hint without the mutex.
    pub fn is_free(&self, first: u64, end: u64) -> bool {
        let mut block = first;
        while block < end {
            match self.find(block) {
                Found::Nothing { until } => block = until,
                Found::Overtaken => {}
                Found::Folio { .. } => return false,
            }
        }
        true
    }

    /// Folios in the index.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed) as usize
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

#[cfg(all(test, loom))]
mod loom_model;
