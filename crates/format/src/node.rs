//! Nodes of the tree: 4 KiB pages of sorted slots, with the values in a heap that grows down.
//!
//! Layout (little-endian); the crc is CRC-32C over the whole page with its own field zero:
//!
//! ```text
//! 0 magic u32   4 crc u32   8 volume u64   16 generation u64 (checkpoint that wrote it)   24 block u64 (itself)
//! 32 twin u64 (the second copy, or 0)   40 incarnation u64   48 birth u32 (the volume's epoch)   52 level u8
//! 53 bounds u8 (bit 0: low, bit 1: high)   54 count u16   56 heap_start u16   58 low kind u8   59 high kind u8
//! 60 zeros   64 low object u64   72 low offset u64   80 high object u64   88 high offset u64
//! 96 slots, 24 bytes each, ascending by key:
//!      0 object u64   8 offset u64   16 kind u8   17 zero   18 value offset u16   20 value bytes u16   22 zeros
//!    ... zeros ...
//! heap_start .. 4096 values
//! ```
//!
//! A leaf (level 0) holds any values of up to `VALUE_MAX` bytes. In an inner node each value is a [`NodeRef`]
//! of 32 bytes: block u64, twin u64, generation u64, crc u32, level u8, zeros. Entry i of an inner node
//! covers the keys from its own to that of entry i + 1; entry 0 covers everything below as well.
//!
//! Both copies of a node have the same bytes. What a header says beyond what the parent says of it
//! (incarnation, and the keys from *low* on and below *high* that the node is responsible for) is for a
//! repair that finds nodes without their parents.
//!
//! Invariants: a [`NodePage`] is either built here or went through [`NodePage::decode`] once, which checks
//! the checksum, the identity, the order of the keys and that the values tile the heap without overlap; all
//! other methods trust the page. In memory the heap may have dead bytes; on disk it has none.
//!
//! Neighbours: [`crate::key`]; the tree crate keeps leaves in this form and builds inner nodes from its own.

use crate::key::{Key, KeyKind, VALUE_MAX};
use crate::place::Place;
use crate::superblock::{TREE_LEVEL_MAX, crc32c_without};
use quire_base::{BLOCK_SIZE, BlockNo, Error, Result};
use std::fmt;

/// First bytes of a node.
pub const MAGIC: u32 = u32::from_le_bytes(*b"QNod");
/// Bytes before the slots.
pub const HEADER_BYTES: usize = 96;
/// Bytes of a slot.
pub const SLOT_BYTES: usize = 24;
/// Bytes for slots and values.
pub const BODY_BYTES: usize = BLOCK_SIZE - HEADER_BYTES;
/// Bytes of an encoded [`NodeRef`].
pub const REF_BYTES: usize = 32;
/// Children that an inner node holds at most.
pub const CHILDREN_MAX: usize = BODY_BYTES / (SLOT_BYTES + REF_BYTES);

// Two nodes always suffice for what overflows one: half of it and one largest entry fit a node.
const _: () = assert!((BODY_BYTES + VALUE_MAX + SLOT_BYTES) / 2 + VALUE_MAX + SLOT_BYTES <= BODY_BYTES);

const CRC_AT: usize = 4;
const TWIN_AT: usize = 32;
const INCARNATION_AT: usize = 40;
const BIRTH_AT: usize = 48;
const LEVEL_AT: usize = 52;
const BOUNDS_AT: usize = 53;
const COUNT_AT: usize = 54;
const HEAP_AT: usize = 56;
/// Of each bound: its flag, its kind, its object and behind that its offset.
const LOW: (u8, usize, usize) = (1, 58, 64);
const HIGH: (u8, usize, usize) = (2, 59, 80);

/// What a parent knows of its child: where it is and how to tell that it is the one meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeRef {
    /// Where the node lies.
    pub block: BlockNo,
    /// Where its second copy lies; [`crate::place::NO_TWIN`] if there is none.
    pub twin: BlockNo,
    /// The checkpoint that wrote it.
    pub generation: u64,
    /// Its checksum.
    pub crc: u32,
    /// Its height; 0 is a leaf.
    pub level: u8,
}

impl NodeRef {
    /// Both places.
    pub const fn place(&self) -> Place {
        Place { block: self.block, twin: self.twin }
    }

    /// The value's bytes.
    pub fn encode(&self) -> [u8; REF_BYTES] {
        let mut out = [0; REF_BYTES];
        out[..8].copy_from_slice(&self.block.0.to_le_bytes());
        out[8..16].copy_from_slice(&self.twin.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.generation.to_le_bytes());
        out[24..28].copy_from_slice(&self.crc.to_le_bytes());
        out[28] = self.level;
        out
    }

    /// Reads what [`NodeRef::encode`] wrote.
    fn decode(bytes: &[u8]) -> NodeRef {
        NodeRef {
            block: BlockNo(u64_at(bytes, 0)),
            twin: BlockNo(u64_at(bytes, 8)),
            generation: u64_at(bytes, 16),
            crc: u32_at(bytes, 24),
            level: bytes[28],
        }
    }
}

/// The keys that a node is responsible for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Keys from here on; None: from the lowest.
    pub low: Option<Key>,
    /// Keys below this; None: up to the highest.
    pub high: Option<Key>,
}

impl Bounds {
    /// All keys.
    pub const ALL: Bounds = Bounds { low: None, high: None };
}

/// Trees of a volume, each with a root of its own.
pub const TREES: usize = 2;
/// The keys of each tree, ascending: first the space tree, then the tree of names.
pub const TREE_BOUNDS: [Bounds; TREES] =
    [Bounds { low: None, high: Some(Key::NAMES) }, Bounds { low: Some(Key::NAMES), high: None }];

/// The roots of a volume's trees, in the order of [`TREE_BOUNDS`].
pub type Roots = [NodeRef; TREES];

/// What a node says of itself on disk, beside its entries.
#[derive(Clone, Copy, Debug)]
pub struct NodeIdentity {
    /// The volume's number.
    pub volume: u64,
    /// The checkpoint that writes it.
    pub generation: u64,
    /// The volume's incarnation.
    pub incarnation: u64,
    /// The volume's epoch.
    pub birth: u32,
    /// Where its copies lie.
    pub place: Place,
    /// The keys that it is responsible for.
    pub bounds: Bounds,
}

#[repr(C, align(64))]
#[derive(Clone)]
struct Bytes([u8; BLOCK_SIZE]);

/// A node's page; see the module's documentation.
#[derive(Clone)]
pub struct NodePage {
    bytes: Box<Bytes>,
    /// Bytes of the heap that no slot names.
    dead: u16,
}

impl NodePage {
    /// A node without entries.
    pub fn new(level: u8) -> NodePage {
        let mut bytes = Box::new(Bytes([0; BLOCK_SIZE]));
        bytes.0[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes.0[LEVEL_AT] = level;
        bytes.0[HEAP_AT..HEAP_AT + 2].copy_from_slice(&(BLOCK_SIZE as u16).to_le_bytes());
        NodePage { bytes, dead: 0 }
    }

    /// Height; 0 is a leaf.
    pub fn level(&self) -> u8 {
        self.bytes.0[LEVEL_AT]
    }

    /// Entries.
    pub fn count(&self) -> usize {
        self.u16_at(COUNT_AT)
    }

    /// The checkpoint that wrote the page (0: none yet).
    pub fn generation(&self) -> u64 {
        u64_at(&self.bytes.0, 16)
    }

    /// Where the page was written.
    pub fn block(&self) -> BlockNo {
        BlockNo(u64_at(&self.bytes.0, 24))
    }

    /// Where both copies of the page were written.
    pub fn place(&self) -> Place {
        Place { block: self.block(), twin: BlockNo(u64_at(&self.bytes.0, TWIN_AT)) }
    }

    /// The incarnation in which the page was written.
    pub fn incarnation(&self) -> u64 {
        u64_at(&self.bytes.0, INCARNATION_AT)
    }

    /// The volume's epoch when the page was written.
    pub fn birth(&self) -> u32 {
        u32_at(&self.bytes.0, BIRTH_AT)
    }

    /// The keys that the page was responsible for when it was written.
    pub fn bounds(&self) -> Bounds {
        let bound = |(flag, kind, object): (u8, usize, usize)| {
            (self.bytes.0[BOUNDS_AT] & flag != 0).then(|| Key {
                object: u64_at(&self.bytes.0, object),
                kind: KeyKind::from_byte(self.bytes.0[kind]).expect("checked when the page was decoded"),
                offset: u64_at(&self.bytes.0, object + 8),
            })
        };
        Bounds { low: bound(LOW), high: bound(HIGH) }
    }

    /// Key of an entry.
    pub fn key(&self, at: usize) -> Key {
        let slot = self.slot(at);
        let kind = KeyKind::from_byte(slot[16]).expect("kinds were checked when the page was decoded");
        Key { object: u64_at(slot, 0), kind, offset: u64_at(slot, 8) }
    }

    /// Value of an entry.
    pub fn value(&self, at: usize) -> &[u8] {
        let (start, len) = value_place(self.slot(at));
        &self.bytes.0[start..start + len]
    }

    /// Child of an entry of an inner node.
    pub fn child(&self, at: usize) -> NodeRef {
        NodeRef::decode(self.value(at))
    }

    /// The entry of a key, or where it would go.
    #[inline]
    pub fn search(&self, key: &Key) -> Result<usize, usize> {
        let slots = &self.bytes.0[HEADER_BYTES..];
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = (low + high) / 2;
            let slot: &[u8; SLOT_BYTES] =
                slots[middle * SLOT_BYTES..][..SLOT_BYTES].try_into().expect("a slot's bytes");
            let ordering = u64_at(slot, 0)
                .cmp(&key.object)
                .then_with(|| slot[16].cmp(&(key.kind as u8)))
                .then_with(|| u64_at(slot, 8).cmp(&key.offset));
            match ordering {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Bytes that slots and values take.
    pub fn used_bytes(&self) -> usize {
        self.count() * SLOT_BYTES + (BLOCK_SIZE - self.heap_start()) - usize::from(self.dead)
    }

    /// Whether another entry with a value of `len` bytes fits.
    pub fn fits(&self, len: usize) -> bool {
        self.used_bytes() + SLOT_BYTES + len <= BODY_BYTES
    }

    /// Whether the value of an entry can be replaced by one of `len` bytes.
    pub fn fits_instead(&self, at: usize, len: usize) -> bool {
        self.used_bytes() - self.value(at).len() + len <= BODY_BYTES
    }

    /// Adds an entry before the one at `at`. The caller has asked [`NodePage::fits`] and keeps the order.
    pub fn insert(&mut self, at: usize, key: Key, value: &[u8]) {
        debug_assert!(self.fits(value.len()));
        let count = self.count();
        let start = self.take_heap(value.len(), SLOT_BYTES);
        self.bytes.0[start..start + value.len()].copy_from_slice(value);
        let slot_at = HEADER_BYTES + at * SLOT_BYTES;
        let slots_end = HEADER_BYTES + count * SLOT_BYTES;
        self.bytes.0.copy_within(slot_at..slots_end, slot_at + SLOT_BYTES);
        let mut slot = [0; SLOT_BYTES];
        slot[..8].copy_from_slice(&key.object.to_le_bytes());
        slot[8..16].copy_from_slice(&key.offset.to_le_bytes());
        slot[16] = key.kind as u8;
        put_value_place(&mut slot, start, value.len());
        self.bytes.0[slot_at..slot_at + SLOT_BYTES].copy_from_slice(&slot);
        self.set_u16(COUNT_AT, count + 1);
    }

    /// Changes the value of an entry. The caller has asked [`NodePage::fits_instead`].
    pub fn replace(&mut self, at: usize, value: &[u8]) {
        debug_assert!(self.fits_instead(at, value.len()));
        let slot_at = HEADER_BYTES + at * SLOT_BYTES;
        let (old_start, old_len) = value_place(self.slot(at));
        let start = if value.len() <= old_len {
            self.dead += (old_len - value.len()) as u16;
            old_start
        } else {
            // Without a value the entry does not stand in the way of compaction.
            self.dead += old_len as u16;
            put_value_place(&mut self.bytes.0[slot_at..slot_at + SLOT_BYTES], BLOCK_SIZE, 0);
            self.take_heap(value.len(), 0)
        };
        self.bytes.0[start..start + value.len()].copy_from_slice(value);
        put_value_place(&mut self.bytes.0[slot_at..slot_at + SLOT_BYTES], start, value.len());
    }

    /// Takes an entry away.
    pub fn remove(&mut self, at: usize) {
        let count = self.count();
        let (start, len) = value_place(self.slot(at));
        if start == self.heap_start() {
            self.set_u16(HEAP_AT, start + len);
        } else {
            self.dead += len as u16;
        }
        let slot_at = HEADER_BYTES + at * SLOT_BYTES;
        let slots_end = HEADER_BYTES + count * SLOT_BYTES;
        self.bytes.0.copy_within(slot_at + SLOT_BYTES..slots_end, slot_at);
        self.set_u16(COUNT_AT, count - 1);
        if count == 1 {
            self.set_u16(HEAP_AT, BLOCK_SIZE);
            self.dead = 0;
        }
    }

    /// Moves the entries from `at` on into a node of their own.
    pub fn split_off(&mut self, at: usize) -> NodePage {
        let mut right = NodePage::new(self.level());
        right.append(self, at);
        let mut left = NodePage::new(self.level());
        left.append_range(self, 0, at);
        *self = left;
        right
    }

    /// Adds the entries of `other` from `from` on behind the own ones. Their keys are higher, and they fit.
    pub fn append(&mut self, other: &NodePage, from: usize) {
        self.append_range(other, from, other.count());
    }

    fn append_range(&mut self, other: &NodePage, from: usize, to: usize) {
        for at in from..to {
            self.insert(self.count(), other.key(at), other.value(at));
        }
    }

    /// Adds a child behind the others of an inner node; at most [`CHILDREN_MAX`].
    pub fn push_child(&mut self, key: Key, child: &NodeRef) {
        self.insert(self.count(), key, &child.encode());
    }

    /// Writes the page as it belongs on disk, in both of its copies, into `out`, and gives the reference to
    /// it.
    pub fn seal(&self, identity: &NodeIdentity, out: &mut [u8]) -> NodeRef {
        let out = &mut out[..BLOCK_SIZE];
        let slots_end = HEADER_BYTES + self.count() * SLOT_BYTES;
        out[..slots_end].copy_from_slice(&self.bytes.0[..slots_end]);
        let heap_start = if self.dead == 0 {
            let heap_start = self.heap_start();
            out[heap_start..].copy_from_slice(&self.bytes.0[heap_start..]);
            heap_start
        } else {
            pack_heap(&self.bytes.0, self.count(), out)
        };
        out[slots_end..heap_start].fill(0);
        let Place { block, twin } = identity.place;
        out[CRC_AT..CRC_AT + 4].fill(0);
        out[8..16].copy_from_slice(&identity.volume.to_le_bytes());
        out[16..24].copy_from_slice(&identity.generation.to_le_bytes());
        out[24..32].copy_from_slice(&block.0.to_le_bytes());
        out[TWIN_AT..TWIN_AT + 8].copy_from_slice(&twin.0.to_le_bytes());
        out[INCARNATION_AT..INCARNATION_AT + 8].copy_from_slice(&identity.incarnation.to_le_bytes());
        out[BIRTH_AT..BIRTH_AT + 4].copy_from_slice(&identity.birth.to_le_bytes());
        out[HEAP_AT..HEAP_AT + 2].copy_from_slice(&(heap_start as u16).to_le_bytes());
        out[BOUNDS_AT] = 0;
        out[LOW.1..HEADER_BYTES].fill(0);
        for (bound, (flag, kind, object)) in [(identity.bounds.low, LOW), (identity.bounds.high, HIGH)] {
            if let Some(key) = bound {
                out[BOUNDS_AT] |= flag;
                out[kind] = key.kind as u8;
                out[object..object + 8].copy_from_slice(&key.object.to_le_bytes());
                out[object + 8..object + 16].copy_from_slice(&key.offset.to_le_bytes());
            }
        }
        let crc = crc32c::crc32c(out);
        out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        NodeRef { block, twin, generation: identity.generation, crc, level: self.level() }
    }

    /// Reads a copy of a node that must be the one `expected` names, and checks it whole (`Corrupt`).
    pub fn decode(bytes: &[u8], volume: u64, expected: &NodeRef) -> Result<NodePage> {
        let bad = |what: String| Error::corrupt(format!("tree node at block {}: {what}", expected.block));
        let page = NodePage::check_bytes(bytes, volume).map_err(bad)?;
        let stored = u32_at(bytes, CRC_AT);
        if stored != expected.crc {
            return Err(bad(format!("checksum is {stored:#010x}, its parent says {:#010x}", expected.crc)));
        }
        if page.generation() != expected.generation
            || page.place() != expected.place()
            || page.level() != expected.level
        {
            return Err(bad(format!(
                "it says blocks {} and {}, checkpoint {}, level {}, its parent says blocks {} and {}, checkpoint {}, \
                 level {}",
                page.place().block,
                page.place().twin,
                page.generation(),
                page.level(),
                expected.block,
                expected.twin,
                expected.generation,
                expected.level
            )));
        }
        page.check_entries().map_err(bad)?;
        Ok(page)
    }

    /// Reads whatever node of a volume a block holds, with the reference that would name it, and checks it
    /// whole. `None` if there is none, or one that does not say that it lies at this block.
    pub fn recognise(bytes: &[u8], volume: u64, at: BlockNo) -> Option<(NodeRef, NodePage)> {
        let page = NodePage::check_bytes(bytes, volume).ok()?;
        let place = page.place();
        (place.contains(at) && page.check_entries().is_ok()).then(|| {
            let reference = NodeRef {
                block: place.block,
                twin: place.twin,
                generation: page.generation(),
                crc: u32_at(bytes, CRC_AT),
                level: page.level(),
            };
            (reference, page)
        })
    }

    /// Magic, checksum and volume.
    fn check_bytes(bytes: &[u8], volume: u64) -> Result<NodePage, String> {
        let Some(bytes) = bytes.get(..BLOCK_SIZE) else {
            return Err(format!("only {} bytes", bytes.len()));
        };
        if bytes[..4] != MAGIC.to_le_bytes() {
            return Err("its magic is missing".into());
        }
        let (stored, found) = (u32_at(bytes, CRC_AT), crc32c_without(bytes, CRC_AT));
        if stored != found {
            return Err(format!("checksum is {stored:#010x}, its bytes give {found:#010x}"));
        }
        if u64_at(bytes, 8) != volume {
            return Err("it belongs to another volume".into());
        }
        let mut page = NodePage { bytes: Box::new(Bytes([0; BLOCK_SIZE])), dead: 0 };
        page.bytes.0.copy_from_slice(bytes);
        Ok(page)
    }

    /// The bounds name keys, in order.
    fn check_bounds(&self) -> Result<(), String> {
        let flags = self.bytes.0[BOUNDS_AT];
        if flags & !(LOW.0 | HIGH.0) != 0 {
            return Err(format!("unknown flags of its bounds: {flags:#x}"));
        }
        for (flag, kind, object) in [LOW, HIGH] {
            if flags & flag != 0 {
                KeyKind::from_byte(self.bytes.0[kind]).map_err(|error| error.to_string())?;
            } else if self.bytes.0[kind] != 0 || self.bytes.0[object..object + 16] != [0; 16] {
                return Err("a bound that it does not have".into());
            }
        }
        match self.bounds() {
            Bounds { low: Some(low), high: Some(high) } if low >= high => {
                Err(format!("it is responsible for no key: from {low:?} to below {high:?}"))
            }
            _ => Ok(()),
        }
    }

    /// Everything that the other methods rely on; what is wrong, if something is.
    fn check_entries(&self) -> Result<(), String> {
        let (count, heap_start, level) = (self.count(), self.heap_start(), self.level());
        let slots_end = HEADER_BYTES + count * SLOT_BYTES;
        self.check_bounds()?;
        if level > TREE_LEVEL_MAX {
            return Err(format!("level {level}"));
        }
        if slots_end > heap_start || heap_start > BLOCK_SIZE {
            return Err(format!("{count} slots and a heap from {heap_start}"));
        }
        if level > 0 && count == 0 {
            return Err("an inner node without children".into());
        }
        let mut places = Vec::with_capacity(count);
        let mut last: Option<Key> = None;
        for at in 0..count {
            let slot = self.slot(at);
            let kind = KeyKind::from_byte(slot[16]).map_err(|error| error.to_string())?;
            let key = Key { object: u64_at(slot, 0), kind, offset: u64_at(slot, 8) };
            if last.is_some_and(|last| last >= key) {
                return Err(format!("entry {at} is not above the one before it"));
            }
            last = Some(key);
            let (start, len) = value_place(slot);
            if start < heap_start
                || start + len > BLOCK_SIZE
                || len > VALUE_MAX
                || (len == 0 && start != BLOCK_SIZE)
            {
                return Err(format!("entry {at} has {len} bytes at {start}"));
            }
            // Empty values lie outside of the heap and tile nothing.
            if len > 0 {
                places.push((start, len));
            }
            if level > 0 {
                if len != REF_BYTES {
                    return Err(format!("entry {at} has {len} bytes instead of a reference"));
                }
                let child = self.child(at);
                if child.level != level - 1 {
                    return Err(format!(
                        "entry {at} of level {level} names a child of level {}",
                        child.level
                    ));
                }
                if child.generation > self.generation() {
                    return Err(format!("entry {at} names a child of a later checkpoint"));
                }
            }
        }
        places.sort_unstable();
        let mut end = heap_start;
        for (start, len) in places {
            if start != end {
                return Err(format!("values overlap or leave a gap at {end}"));
            }
            end = start + len;
        }
        if end != BLOCK_SIZE {
            return Err(format!("values end at {end}"));
        }
        Ok(())
    }

    fn slot(&self, at: usize) -> &[u8; SLOT_BYTES] {
        self.bytes.0[HEADER_BYTES + at * SLOT_BYTES..][..SLOT_BYTES].try_into().expect("a slot's bytes")
    }

    fn heap_start(&self) -> usize {
        self.u16_at(HEAP_AT)
    }

    /// Room for `len` bytes at the low end of the heap, leaving `slot_bytes` more for slots.
    fn take_heap(&mut self, len: usize, slot_bytes: usize) -> usize {
        let slots_end = HEADER_BYTES + self.count() * SLOT_BYTES + slot_bytes;
        if self.heap_start() < slots_end + len {
            let mut packed = [0; BLOCK_SIZE];
            let count = self.count();
            packed[..HEADER_BYTES + count * SLOT_BYTES]
                .copy_from_slice(&self.bytes.0[..HEADER_BYTES + count * SLOT_BYTES]);
            let heap_start = pack_heap(&self.bytes.0, count, &mut packed);
            self.bytes.0 = packed;
            self.dead = 0;
            self.set_u16(HEAP_AT, heap_start);
        }
        let start = self.heap_start() - len;
        self.set_u16(HEAP_AT, start);
        start
    }

    fn u16_at(&self, at: usize) -> usize {
        usize::from(u16::from_le_bytes([self.bytes.0[at], self.bytes.0[at + 1]]))
    }

    fn set_u16(&mut self, at: usize, value: usize) {
        self.bytes.0[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
    }
}

/// Copies the values that the first `count` slots name to the end of `out`, without gaps, and points the
/// slots of `out` (a copy of those of `from`) at them. Gives the start of the heap.
fn pack_heap(from: &[u8; BLOCK_SIZE], count: usize, out: &mut [u8]) -> usize {
    let mut end = BLOCK_SIZE;
    for at in 0..count {
        let slot = HEADER_BYTES + at * SLOT_BYTES;
        let (start, len) = value_place(&from[slot..slot + SLOT_BYTES]);
        end -= len;
        out[end..end + len].copy_from_slice(&from[start..start + len]);
        put_value_place(&mut out[slot..slot + SLOT_BYTES], end, len);
    }
    end
}

fn value_place(slot: &[u8]) -> (usize, usize) {
    let half = |at: usize| usize::from(u16::from_le_bytes([slot[at], slot[at + 1]]));
    (half(18), half(20))
}

/// An empty value lies at the end of the page, where no change of the heap's start can leave it outside.
fn put_value_place(slot: &mut [u8], start: usize, len: usize) {
    let start = if len == 0 { BLOCK_SIZE } else { start };
    slot[18..20].copy_from_slice(&(start as u16).to_le_bytes());
    slot[20..22].copy_from_slice(&(len as u16).to_le_bytes());
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

impl fmt::Debug for NodePage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node at block {}, level {}, {} entries", self.block(), self.level(), self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_base::InodeNo;

    const IDENTITY: NodeIdentity = NodeIdentity {
        volume: 0x1122_3344_5566_7788,
        generation: 9,
        incarnation: 0x0a0b,
        birth: 0,
        place: Place { block: BlockNo(0x4321), twin: BlockNo(0x8765) },
        bounds: Bounds { low: Some(Key::MIN), high: Some(Key::extent(InodeNo(5), 0x0908)) },
    };

    fn sample() -> (Vec<u8>, NodeRef) {
        let mut page = NodePage::new(0);
        page.insert(0, Key::inode(InodeNo(5)), b"five");
        page.insert(0, Key::region(3), b"");
        page.insert(2, Key::extent(InodeNo(5), 0x0102), b"extent");
        let mut block = vec![0xee; BLOCK_SIZE];
        let at = page.seal(&IDENTITY, &mut block);
        (block, at)
    }

    /// The bytes of a known node: a change here is a change of the format.
    #[test]
    fn golden_bytes() {
        let (block, at) = sample();
        let golden: &[(usize, &[u8])] = &[
            (0, b"QNod"),
            (8, &[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 9, 0, 0, 0, 0, 0, 0, 0]),
            (24, &[0x21, 0x43, 0, 0, 0, 0, 0, 0, 0x65, 0x87, 0, 0, 0, 0, 0, 0]),
            (40, &[0x0b, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 3, 0, 0xf6, 0x0f, 1, 20, 0, 0, 0, 0]),
            (64, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            (80, &[5, 0, 0, 0, 0, 0, 0, 0, 8, 9, 0, 0, 0, 0, 0, 0]),
            (96, &[0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 16, 0, 0, 0, 0]),
            (120, &[5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0xfc, 0x0f, 4, 0, 0, 0]),
            (144, &[5, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 20, 0, 0xf6, 0x0f, 6, 0, 0, 0]),
            (4086, b"extentfive"),
        ];
        for (offset, bytes) in golden {
            assert_eq!(&block[*offset..*offset + bytes.len()], *bytes, "at offset {offset}");
        }
        assert!(block[168..4086].iter().all(|byte| *byte == 0));
        let Place { block: first, twin } = IDENTITY.place;
        assert_eq!(at, NodeRef { block: first, twin, generation: 9, crc: at.crc, level: 0 });
        assert_eq!(NodePage::decode(&block, IDENTITY.volume, &at).unwrap().bounds(), IDENTITY.bounds);
        let recognised =
            |at: u64| NodePage::recognise(&block, IDENTITY.volume, BlockNo(at)).map(|found| found.0);
        assert_eq!((recognised(0x4321), recognised(0x8765), recognised(0x4322)), (Some(at), Some(at), None));
        assert_eq!(u32::from_le_bytes(block[4..8].try_into().unwrap()), at.crc);
    }

    /// An empty value, which lies at the end of the page, hid a gap in the heap behind it: such a page was
    /// taken for whole, and what was changed in it and written back could not be read any more. (Found by the
    /// fuzz target `blocks`.)
    #[test]
    fn an_empty_value_hides_no_gap() {
        let mut page = NodePage::new(0);
        page.insert(0, Key::region(3), b"");
        let mut block = vec![0; BLOCK_SIZE];
        let identity = NodeIdentity {
            volume: 1,
            generation: 2,
            place: Place::single(BlockNo(3)),
            bounds: Bounds::ALL,
            ..IDENTITY
        };
        let sealed = page.seal(&identity, &mut block);
        block[HEAP_AT..HEAP_AT + 2].copy_from_slice(&1791u16.to_le_bytes());
        let crc = crc32c_without(&block, CRC_AT);
        block[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        let at = NodeRef { crc, ..sealed };
        let error = NodePage::decode(&block, 1, &at).unwrap_err();
        assert!(error.to_string().contains("values end at 1791"), "{error}");
    }

    #[test]
    fn identity_and_damage_are_checked() {
        let (block, at) = sample();
        let volume = 0x1122_3344_5566_7788;
        let page = NodePage::decode(&block, volume, &at).unwrap();
        assert_eq!(page.value(page.search(&Key::inode(InodeNo(5))).unwrap()), b"five");
        for wrong in [
            NodeRef { block: BlockNo(1), ..at },
            NodeRef { twin: BlockNo(1), ..at },
            NodeRef { generation: 8, ..at },
            NodeRef { crc: !at.crc, ..at },
            NodeRef { level: 1, ..at },
        ] {
            assert!(NodePage::decode(&block, volume, &wrong).is_err());
        }
        assert!(NodePage::decode(&block, 1, &at).is_err());
        assert!(NodePage::decode(&block[..4095], volume, &at).is_err());
        for bit in (0..BLOCK_SIZE * 8).step_by(331) {
            let mut damaged = block.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(NodePage::decode(&damaged, volume, &at).is_err(), "bit {bit}");
        }
    }

    /// An empty value keeps no place in the heap: it once stayed behind when the heap's start moved up, and
    /// the node was refused when it was read again.
    #[test]
    fn empty_values_survive_a_shrinking_heap() {
        let mut page = NodePage::new(0);
        page.insert(0, Key::region(1), &[1; 50]);
        page.insert(1, Key::region(2), b"");
        page.insert(2, Key::region(3), &[3; 50]);
        page.replace(2, b"");
        page.remove(0);
        let mut block = vec![0; BLOCK_SIZE];
        let at = page.seal(&IDENTITY, &mut block);
        let read = NodePage::decode(&block, IDENTITY.volume, &at).unwrap();
        assert_eq!((read.count(), read.value(0), read.value(1)), (2, &b""[..], &b""[..]));
    }
}
