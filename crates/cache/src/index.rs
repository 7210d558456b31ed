//! A file's index of folios: which folio holds a block. Looked up without a lock.
//!
//! A radix tree. A node has 64 slots, but 8 in the second level, so that slots span 1, 64, 512, 32768, ...
//! blocks. A folio stands in the highest level whose slots are not larger than itself, in as many
//! neighbouring slots as it spans there; the lowest of them is its *home*. A folio of 2 MiB has one slot: the
//! index of a large file that is cached in such folios is dense, and its nodes also say where the data is, so
//! that a block's memory is asked for before the header is there. A lone folio at block 0 stands in the root
//! word itself, so that small files have no node.
//!
//! ```text
//!  slot word:  0 | pointer to a node, low bits 16 + level | pointer to a header, low bits order + 1 (+ 32: leaving)
//! ```
//!
//! Protocol
//! * Changes are made under the index's mutex. A slot is published with release, loaded with acquire.
//! * Nodes and headers are type-stable: a reader that was overtaken may walk through a node that serves
//!   another mapping by now, and finds valid words there. A word that does not fit the level tells it at
//!   once; an empty one tells the truth, as the node was empty when it left here; a header is believed only
//!   after a check.
//! * The optimistic reader ([`Index::look_up`]) takes no pin; it checks owner and start of each header after
//!   it has taken the segments' versions.
//! * Pinning: raise the pin count, fence, look at the home again. Removing: mark the home as leaving, fence,
//!   look at the pin count; then clear the slots or take the mark off. Of the two at least one sees the
//!   other; who finds the mark waits on the mutex and looks again. So a pin is exact: a folio that stays is
//!   never missed, which truncation relies on.
//! * Splitting ([`Index::replace`]) is a removal whose slots are not cleared: each is stored once, with a
//!   node that has the parts already. So no block of a part is ever found to have no folio.
//!
//! Invariants: folios do not overlap; a folio's home holds it exactly during its life; a node that is linked
//! has an occupied slot. Shared lines: none is written by looking up; a pin writes the header's line.
//!
//! Neighbours: [`crate::mapping`] is the only user. The mutex is a leaf but for segment locks that are only
//! tried.

use crate::budget::Budget;
use crate::copy;
use crate::folio::{FolioPin, FolioRef, ORDER_MAX, Order, header_bytes};
use crate::nodes::{Node, NodeSlab, slots_of};
use quire_base::BLOCK_SIZE;
use quire_base::sync::Mutex;
use quire_base::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};
use smallvec::SmallVec;
use std::ptr::{NonNull, null_mut};

/// One past the last block that a file can have: 8 EiB of bytes.
pub const BLOCKS_END: u64 = 1 << 51;

/// Bytes that an entry costs, as the byte limit counts them; nodes are counted when they are made.
pub const ENTRY_BYTES: u64 = 8;
/// Bytes that one block costs at worst: a folio of its own.
pub(crate) const BLOCK_COST: u64 = BLOCK_SIZE as u64 + header_bytes(0) + ENTRY_BYTES;

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

/// log2 of the blocks that a slot spans, level by level; the last entry is what the highest level spans as a
/// whole, which is every block that a file can have.
const SHIFTS: [u32; 10] = shifts();

const fn shifts() -> [u32; 10] {
    let mut shifts = [0; 10];
    let mut level = 0;
    while level < 9 {
        shifts[level + 1] = shifts[level] + slots_of(level).ilog2();
        level += 1;
    }
    assert!(1 << shifts[9] == BLOCKS_END);
    shifts
}

/// What a word says.
enum Word {
    Empty,
    /// A node of a level.
    Node(NonNull<()>, usize),
    Folio(NonNull<()>, Order),
}

fn read_word(word: *mut ()) -> Word {
    let kind = word.addr() & KIND_MASK;
    match NonNull::new(word.map_addr(|address| address & !TAG_MASK)) {
        None => Word::Empty,
        Some(node) if kind >= NODE => Word::Node(node, kind - NODE),
        Some(header) => Word::Folio(header, (kind - 1) as Order),
    }
}

fn folio_word(folio: FolioRef) -> *mut () {
    folio.thin().as_ptr().map_addr(|address| address | (usize::from(folio.order()) + 1))
}

fn node_word(node: &Node, level: usize) -> *mut () {
    std::ptr::from_ref(node).cast_mut().cast::<()>().map_addr(|address| address | (NODE + level))
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

/// The level in which a folio of `order` stands.
fn level_of(order: Order) -> usize {
    match u32::from(order) {
        order if order >= SHIFTS[2] => 2,
        order if order >= SHIFTS[1] => 1,
        _ => 0,
    }
}

/// Whether a node of `level` covers `block`.
fn covers(level: usize, block: u64) -> bool {
    block >> SHIFTS[level + 1] == 0
}

/// The slot for `block` in its node of `level`.
fn slot_of(block: u64, level: usize) -> usize {
    (block >> SHIFTS[level]) as usize % slots_of(level)
}

/// Slots that a folio takes in its level.
fn slots_taken(folio: FolioRef) -> usize {
    1 << (u32::from(folio.order()) - SHIFTS[level_of(folio.order())])
}

/// Puts a folio into the slots of its node, its home first.
fn fill(node: &Node, folio: FolioRef, start: u64) {
    let first = slot_of(start, level_of(folio.order()));
    let slots = slots_taken(folio);
    for slot in &node.words[first..first + slots] {
        slot.store(folio_word(folio), Ordering::Release);
    }
    if let Some(hint) = node.hint(first) {
        hint.store(folio.memory(0).cast(), Ordering::Relaxed);
    }
    node.used.fetch_add(slots as u32, Ordering::Relaxed);
}

impl Index {
    /// The folio that holds `block`, as far as the walk can tell.
    fn find(&self, block: u64) -> Found<'_> {
        // The word in hand, the level and node that it is in.
        let mut word = self.root.load(Ordering::Acquire);
        let mut at: Option<usize> = None;
        let mut node: Option<&Node> = None;
        loop {
            match read_word(word) {
                Word::Empty => {
                    let until = at.map_or(u64::MAX, |level| ((block >> SHIFTS[level]) + 1) << SHIFTS[level]);
                    return Found::Nothing { until };
                }
                Word::Folio(header, order) => {
                    // SAFETY: such words point to headers of that order, which live as long as the cache.
                    let folio = unsafe { FolioRef::from_thin(header, order) };
                    let blocks = 1u64 << order;
                    let start = block & !(blocks - 1);
                    let home = match (node, at) {
                        (Some(node), Some(level)) if level == level_of(order) => {
                            &node.words[slot_of(start, level)]
                        }
                        (Some(_), _) => return Found::Overtaken,
                        (None, _) if start > 0 => return Found::Nothing { until: u64::MAX },
                        (None, _) => &self.root,
                    };
                    let leaving = home.load(Ordering::Relaxed).addr() & LEAVING != 0;
                    return Found::Folio { folio, start, home, leaving };
                }
                Word::Node(below, level) => {
                    match at {
                        None if !covers(level, block) => return Found::Nothing { until: u64::MAX },
                        Some(above) if level + 1 != above => return Found::Overtaken,
                        _ => {}
                    }
                    // SAFETY: such words point to nodes of that level, which live as long as the cache.
                    let below = unsafe { Node::at(below, level) };
                    let slot = slot_of(block, level);
                    word = below.words[slot].load(Ordering::Acquire);
                    if let Some(hint) = below.hint(slot) {
                        // A look-up of a block precedes its use: its lines travel while the header's do.
                        let within = (block % (1 << ORDER_MAX)) as usize * BLOCK_SIZE;
                        let memory = hint.load(Ordering::Relaxed).cast::<u8>().wrapping_add(within);
                        copy::prefetch(memory, BLOCK_SIZE);
                    }
                    at = Some(level);
                    node = Some(below);
                }
            }
        }
    }

    /// Pins the folio that holds `block`; else the block up to which there is none. Exact; `locked` says that
    /// the caller holds the mutex.
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

    /// Pins the folios that overlap blocks `[first, end)`, and returns the blocks of the range that none
    /// covers.
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

    /// The folios that cover all of `[first, end)`, without pins: they may die at once, or be another's
    /// already. False if a block has none.
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

    /// Adds a folio and pins it, unless another overlaps it. New nodes are charged to `budget`, over its
    /// limit if need be.
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
        let wanted = level_of(folio.order());
        let (mut node, mut level) = self.root_for(end - 1, wanted, nodes, budget);
        while level != wanted {
            let slot = &node.words[slot_of(start, level)];
            level -= 1;
            node = match read_word(slot.load(Ordering::Relaxed)) {
                // SAFETY: as in `find`.
                Word::Node(below, level) => unsafe { Node::at(below, level) },
                Word::Empty => {
                    let below = nodes.take(level, budget);
                    slot.store(node_word(below, level), Ordering::Release);
                    node.used.fetch_add(1, Ordering::Relaxed);
                    below
                }
                Word::Folio(..) => unreachable!("the place was found free"),
            };
        }
        fill(node, folio, start);
        Some(pin)
    }

    /// The root node, made so high that it covers `last` and has folios of level `wanted` at or below it,
    /// with its level.
    fn root_for<'a>(
        &self,
        last: u64,
        wanted: usize,
        nodes: &'a NodeSlab,
        budget: &Budget,
    ) -> (&'a Node, usize) {
        let (mut root, mut level) = match read_word(self.root.load(Ordering::Relaxed)) {
            // SAFETY: as in `find`.
            Word::Node(node, level) => (unsafe { Node::at(node, level) }, level),
            Word::Empty => {
                let level =
                    (wanted..).find(|level| covers(*level, last)).expect("a level covers every block");
                let node = nodes.take(level, budget);
                self.root.store(node_word(node, level), Ordering::Release);
                return (node, level);
            }
            Word::Folio(header, order) => {
                // SAFETY: as in `find`.
                let lone = unsafe { FolioRef::from_thin(header, order) };
                let level = level_of(order);
                let node = nodes.take(level, budget);
                fill(node, lone, 0);
                self.root.store(node_word(node, level), Ordering::Release);
                (node, level)
            }
        };
        while !covers(level, last) || level < wanted {
            let above = nodes.take(level + 1, budget);
            above.words[0].store(node_word(root, level), Ordering::Relaxed);
            above.used.store(1, Ordering::Relaxed);
            (root, level) = (above, level + 1);
            self.root.store(node_word(root, level), Ordering::Release);
        }
        (root, level)
    }

    /// Removes `folio` if it is here, at `start`, and `may_leave` holds: it is asked when nobody can take a
    /// pin any more without having been counted.
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

    /// Puts `parts`, which are folios of at most 32 blocks with start and state of theirs, in the place of
    /// `folio`, of at least 64, if it is here, at `start`, and `may_leave` holds. A look-up finds the folio
    /// or a part of it, and where there is neither any more the block has left.
    pub fn replace(
        &self,
        start: u64,
        folio: FolioRef,
        parts: &[FolioRef],
        nodes: &NodeSlab,
        budget: &Budget,
        may_leave: impl FnOnce() -> bool,
    ) -> bool {
        let _change = self.change.lock();
        let Found::Folio { folio: found, start: at, home, .. } = self.find(start) else { return false };
        if found != folio || at != start {
            return false;
        }
        debug_assert!(level_of(folio.order()) > 0 && !parts.is_empty());
        let word = folio_word(folio);
        home.store(word.map_addr(|address| address | LEAVING), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !may_leave() {
            home.store(word, Ordering::Release);
            return false;
        }
        self.count.fetch_add(parts.len() as u64 - 1, Ordering::Relaxed);
        // Everything below the folio's place is built before it is linked.
        let leaf = |first: u64| {
            let within = parts.iter().filter(|part| part.start() >> SHIFTS[1] == first >> SHIFTS[1]);
            let mut node = None;
            for part in within {
                fill(node.get_or_insert_with(|| nodes.take(0, budget)), *part, part.start());
            }
            node.map_or(null_mut(), |node| node_word(node, 0))
        };
        let groups = (0..u64::from(folio.blocks()) >> SHIFTS[1]).map(|group| start + (group << SHIFTS[1]));
        if std::ptr::eq(home, &raw const self.root) || level_of(folio.order()) == 2 {
            let middle = nodes.take(1, budget);
            for first in groups {
                let word = leaf(first);
                middle.words[slot_of(first, 1)].store(word, Ordering::Relaxed);
                middle.used.fetch_add(u32::from(!word.is_null()), Ordering::Relaxed);
            }
            home.store(node_word(middle, 1), Ordering::Release);
            return true;
        }
        let node = self.node_of(start, 1);
        for first in groups {
            let word = leaf(first);
            node.words[slot_of(first, 1)].store(word, Ordering::Release);
            node.used.fetch_sub(u32::from(word.is_null()), Ordering::Relaxed);
        }
        true
    }

    /// The node of `level` that has a slot for `block`; it is linked, and the caller holds the mutex.
    fn node_of(&self, block: u64, level: usize) -> &Node {
        let mut word = self.root.load(Ordering::Relaxed);
        loop {
            let Word::Node(node, at) = read_word(word) else { unreachable!("a folio stands in such a node") };
            // SAFETY: as in `find`.
            let node = unsafe { Node::at(node, at) };
            if at == level {
                return node;
            }
            word = node.words[slot_of(block, at)].load(Ordering::Relaxed);
        }
    }

    /// Clears a folio's slots and takes nodes out that are empty then.
    fn clear(&self, start: u64, folio: FolioRef, nodes: &NodeSlab) {
        let mut path: SmallVec<[(&Node, usize); 8]> = SmallVec::new();
        let mut word = self.root.load(Ordering::Relaxed);
        while let Word::Node(node, level) = read_word(word) {
            // SAFETY: as in `find`.
            let node = unsafe { Node::at(node, level) };
            let slot = slot_of(start, level);
            path.push((node, slot));
            word = node.words[slot].load(Ordering::Relaxed);
        }
        let Some((node, first)) = path.pop() else {
            self.root.store(null_mut(), Ordering::Release);
            return;
        };
        let slots = slots_taken(folio);
        node.words[first..first + slots].iter().for_each(|slot| slot.store(null_mut(), Ordering::Release));
        let mut left = node.used.fetch_sub(slots as u32, Ordering::Relaxed) - slots as u32;
        let (mut empty, mut level) = (node, level_of(folio.order()));
        while left == 0 {
            match path.pop() {
                Some((above, slot)) => {
                    above.words[slot].store(null_mut(), Ordering::Release);
                    left = above.used.fetch_sub(1, Ordering::Relaxed) - 1;
                    nodes.give_back(empty, level);
                    (empty, level) = (above, level + 1);
                }
                None => {
                    self.root.store(null_mut(), Ordering::Release);
                    nodes.give_back(empty, level);
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
