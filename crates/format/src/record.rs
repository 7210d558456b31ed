//! A transaction: the list of logical changes that one journal record carries.
//!
//! ```text
//! change   = tag u8, then by tag:
//!  1 put           key, value length, value
//!  2 delete        key
//!  3 extents       inode, number removed, number inserted, removed extents, inserted extents
//!  4 orphan set    slot, inode
//!  5 orphan clear  slot, inode
//!  6 pool grow     start block, blocks
//!  7 pool shrink   start block, blocks
//!  8 data          start block, blocks, the blocks' content
//!  9 reclaim       start block, blocks
//! key      = kind u8, object, offset (8 bytes for hashed kinds, else a varint)
//! extent   = blocks since the end of the one before in the file,
//!            signed distance (zigzag) from its end on disk, len << 2 | born << 1 | unwritten, birth if born (not 0)
//! ```
//!
//! Numbers are varints (see `cursor`) unless said otherwise. The encoding is canonical: what decodes, encodes
//! to the same bytes. Applying [`Change::Extents`] *is* allocating and freeing data space
//! (`extent::subtract`): free-space keys, dead-block keys and extent keys are never put or deleted by
//! themselves, and such a record is refused.
//!
//! [`Change::Data`] says what blocks hold: replay writes it there, unless a later record gives the block
//! other content, frees it, or makes it read as zeros ([`no_longer_written`]).
//!
//! Neighbours: `journal` carries the bytes; `quire` makes and applies changes, live and in replay.

pub(crate) mod cursor;

use crate::dirent;
use crate::extent::{self, DISK_BLOCKS_MAX, Extent, Run};
use crate::key::{Key, KeyKind, VALUE_MAX};
use cursor::{Cursor, put_varint};
use quire_base::{BLOCK_SIZE, BlockNo, Error, InodeNo, Result};
use std::sync::Arc;

/// The most bytes a put adds beyond its value (a delete: in all).
pub const PUT_OVERHEAD_MAX: usize = 1 + KEY_MAX + 2;
/// The most bytes an extents change takes beyond its extents.
pub const EXTENTS_OVERHEAD_MAX: usize = 1 + 10 + 5 + 5;
/// The most bytes one extent takes in an extents change.
pub const EXTENT_MAX: usize = 8 + 8 + 3 + 5;
/// The most bytes a data change takes beyond its blocks.
pub const DATA_OVERHEAD_MAX: usize = 1 + 10 + 5;
/// The most bytes an orphan or pool change takes.
pub const SMALL_CHANGE_MAX: usize = 1 + 10 + 10;

const KEY_MAX: usize = 1 + 10 + 10;
/// The fewest bytes an extent takes: bounds what a count may ask to allocate.
const EXTENT_MIN: usize = 3;

const PUT: u8 = 1;
const DELETE: u8 = 2;
const EXTENTS: u8 = 3;
const ORPHAN_SET: u8 = 4;
const ORPHAN_CLEAR: u8 = 5;
const POOL_GROW: u8 = 6;
const POOL_SHRINK: u8 = 7;
const DATA: u8 = 8;
const RECLAIM: u8 = 9;

/// One logical change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Sets a key's value.
    Put {
        /// The key.
        key: Key,
        /// The value, at most [`VALUE_MAX`] bytes.
        value: Vec<u8>,
    },
    /// Removes a key.
    Delete {
        /// The key.
        key: Key,
    },
    /// Replaces extents of an inode. Blocks in `removed` alone are freed, in `inserted` alone allocated.
    Extents {
        /// Whose.
        inode: InodeNo,
        /// The extents as they are, whole; a list.
        removed: Vec<Extent>,
        /// The extents that take their place; a list.
        inserted: Vec<Extent>,
    },
    /// An inode takes an orphan slot.
    OrphanSet {
        /// The slot's number.
        slot: u32,
        /// The orphan.
        inode: InodeNo,
    },
    /// An inode leaves its orphan slot.
    OrphanClear {
        /// The slot's number.
        slot: u32,
        /// The orphan.
        inode: InodeNo,
    },
    /// Data space becomes metadata pool.
    PoolGrow {
        /// First block of the chunk.
        start: BlockNo,
        /// Its blocks.
        blocks: u32,
    },
    /// A chunk of the metadata pool becomes data space.
    PoolShrink {
        /// First block of the chunk.
        start: BlockNo,
        /// Its blocks.
        blocks: u32,
    },
    /// Blocks of a file get new content; they are its own, written, after the changes before this one.
    Data {
        /// The first of them.
        start: BlockNo,
        /// What they hold; whole blocks, at least one.
        bytes: Arc<[u8]>,
    },
    /// Blocks that only snapshots used become free.
    Reclaim {
        /// The first of them.
        start: BlockNo,
        /// How many.
        blocks: u32,
    },
}

impl Change {
    /// One line for a person.
    pub fn describe(&self) -> String {
        match self {
            Change::Put { key, value } => format!("put {} ({} bytes)", describe_key(key), value.len()),
            Change::Delete { key } => format!("delete {}", describe_key(key)),
            Change::Extents { inode, removed, inserted } => {
                format!(
                    "extents of inode {inode}: -[{}] +[{}]",
                    describe_extents(removed),
                    describe_extents(inserted)
                )
            }
            Change::OrphanSet { slot, inode } => format!("orphan slot {slot} = inode {inode}"),
            Change::OrphanClear { slot, inode } => format!("orphan slot {slot} cleared of inode {inode}"),
            Change::PoolGrow { start, blocks } => format!("pool grows by blocks {start}+{blocks}"),
            Change::PoolShrink { start, blocks } => format!("pool shrinks by blocks {start}+{blocks}"),
            Change::Data { start, bytes } => {
                format!("data of blocks {start}+{}", bytes.len() / BLOCK_SIZE)
            }
            Change::Reclaim { start, blocks } => format!("reclaim blocks {start}+{blocks}"),
        }
    }
}

fn describe_key(key: &Key) -> String {
    let Key { object, kind, offset } = *key;
    match kind {
        KeyKind::FreeSpace => format!("free space of region {offset}"),
        KeyKind::Dead => format!("dead blocks of region {offset}"),
        KeyKind::Snapshot => format!("snapshot {offset}"),
        KeyKind::Receive if offset == 0 => "unfinished receive".into(),
        KeyKind::Receive => format!("origin of snapshot {offset}"),
        KeyKind::LoggedOp => format!("logged operation {offset}"),
        KeyKind::OrphanKey => format!("orphan key of inode {offset}"),
        KeyKind::Inode => format!("inode {object}"),
        KeyKind::Symlink => format!("inode {object} link target piece {offset}"),
        KeyKind::Xattr => format!("inode {object} xattr {offset:#018x}"),
        KeyKind::Entry => format!("directory {object} entry {offset:#018x}"),
        KeyKind::Extent => format!("inode {object} extent at {offset}"),
    }
}

fn describe_extents(extents: &[Extent]) -> String {
    let one = |e: &Extent| {
        let state = if e.unwritten { " unwritten" } else { "" };
        format!("{}+{} at {}{state}", e.file_block, e.len, e.disk_block)
    };
    extents.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Builds a transaction's bytes. Changes must be valid: what the decoder would refuse is a bug of the caller,
/// found by debug assertions here.
#[derive(Clone, Debug, Default)]
pub struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    /// A transaction without changes.
    pub fn new() -> Encoder {
        Encoder::default()
    }

    /// One with room for `bytes`, so that adding to it allocates nothing.
    pub fn with_capacity(bytes: usize) -> Encoder {
        Encoder { bytes: Vec::with_capacity(bytes) }
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was added; such a transaction must not be appended.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }

    /// Forgets all changes, keeping the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Adds any change.
    pub fn push(&mut self, change: &Change) {
        match change {
            Change::Put { key, value } => self.put(*key, value),
            Change::Delete { key } => self.delete(*key),
            Change::Extents { inode, removed, inserted } => self.extents(*inode, removed, inserted),
            Change::OrphanSet { slot, inode } => self.orphan_set(*slot, *inode),
            Change::OrphanClear { slot, inode } => self.orphan_clear(*slot, *inode),
            Change::PoolGrow { start, blocks } => self.pool_grow(*start, *blocks),
            Change::PoolShrink { start, blocks } => self.pool_shrink(*start, *blocks),
            Change::Data { start, bytes } => self.data(*start, bytes),
            Change::Reclaim { start, blocks } => self.reclaim(*start, *blocks),
        }
    }

    /// Adds [`Change::Put`].
    pub fn put(&mut self, key: Key, value: &[u8]) {
        debug_assert!(value.len() <= VALUE_MAX);
        self.bytes.push(PUT);
        self.key(key);
        put_varint(&mut self.bytes, value.len() as u64);
        self.bytes.extend_from_slice(value);
    }

    /// Adds [`Change::Delete`].
    pub fn delete(&mut self, key: Key) {
        self.bytes.push(DELETE);
        self.key(key);
    }

    /// Adds [`Change::Extents`].
    pub fn extents(&mut self, inode: InodeNo, removed: &[Extent], inserted: &[Extent]) {
        debug_assert!(inode.0 != 0 && !(removed.is_empty() && inserted.is_empty()));
        self.bytes.push(EXTENTS);
        put_varint(&mut self.bytes, inode.0);
        put_varint(&mut self.bytes, removed.len() as u64);
        put_varint(&mut self.bytes, inserted.len() as u64);
        self.extent_list(removed);
        self.extent_list(inserted);
    }

    /// Adds [`Change::OrphanSet`].
    pub fn orphan_set(&mut self, slot: u32, inode: InodeNo) {
        self.small(ORPHAN_SET, slot.into(), inode.0);
    }

    /// Adds [`Change::OrphanClear`].
    pub fn orphan_clear(&mut self, slot: u32, inode: InodeNo) {
        self.small(ORPHAN_CLEAR, slot.into(), inode.0);
    }

    /// Adds [`Change::PoolGrow`].
    pub fn pool_grow(&mut self, start: BlockNo, blocks: u32) {
        self.small(POOL_GROW, start.0, blocks.into());
    }

    /// Adds [`Change::Reclaim`].
    pub fn reclaim(&mut self, start: BlockNo, blocks: u32) {
        self.small(RECLAIM, start.0, blocks.into());
    }

    /// Adds [`Change::PoolShrink`].
    pub fn pool_shrink(&mut self, start: BlockNo, blocks: u32) {
        self.small(POOL_SHRINK, start.0, blocks.into());
    }

    /// Adds [`Change::Data`].
    pub fn data(&mut self, start: BlockNo, bytes: &[u8]) {
        debug_assert!(!bytes.is_empty() && bytes.len().is_multiple_of(BLOCK_SIZE));
        self.small(DATA, start.0, (bytes.len() / BLOCK_SIZE) as u64);
        self.bytes.extend_from_slice(bytes);
    }

    fn small(&mut self, tag: u8, first: u64, second: u64) {
        debug_assert!(second != 0);
        self.bytes.push(tag);
        put_varint(&mut self.bytes, first);
        put_varint(&mut self.bytes, second);
    }

    fn key(&mut self, key: Key) {
        debug_assert!(check_key(&key).is_ok(), "a record with {key:?}");
        self.bytes.push(key.kind as u8);
        put_varint(&mut self.bytes, key.object);
        if offset_is_hash(key.kind) {
            self.bytes.extend_from_slice(&key.offset.to_le_bytes());
        } else {
            put_varint(&mut self.bytes, key.offset);
        }
    }

    fn extent_list(&mut self, extents: &[Extent]) {
        debug_assert!(extent::check_list(extents).is_ok(), "a record with {extents:?}");
        let (mut file, mut disk) = (0, 0);
        for extent in extents {
            put_varint(&mut self.bytes, extent.file_block - file);
            put_varint(&mut self.bytes, zigzag(extent.disk_block.0 as i64 - disk));
            let born = extent.birth != 0;
            let state = u64::from(born) << 1 | u64::from(extent.unwritten);
            put_varint(&mut self.bytes, u64::from(extent.len) << 2 | state);
            if born {
                put_varint(&mut self.bytes, extent.birth.into());
            }
            file = extent.file_end();
            disk = extent.disk_end().0 as i64;
        }
    }
}

/// Checks a whole transaction and gives its changes: at least one, nothing left over, nothing that could not
/// be applied. A change is made when it is asked for: all of them at once can take thirty times the memory of
/// `bytes`.
pub fn changes(bytes: &[u8]) -> Result<impl Iterator<Item = Change>> {
    if bytes.is_empty() {
        return Err(Error::corrupt("transaction without changes"));
    }
    let one_by_one = || {
        let mut cursor = Cursor::new(bytes, "transaction");
        std::iter::from_fn(move || (cursor.remaining() > 0).then(|| decode_change(&mut cursor)))
    };
    for change in one_by_one() {
        change?;
    }
    // The same bytes decode to the same changes.
    Ok(one_by_one().map_while(Result::ok))
}

/// As [`changes`], all of them at once: for small transactions.
pub fn decode(bytes: &[u8]) -> Result<Vec<Change>> {
    Ok(changes(bytes)?.collect())
}

fn decode_change(cursor: &mut Cursor<'_>) -> Result<Change> {
    Ok(match cursor.u8()? {
        PUT => {
            let key = decode_key(cursor)?;
            let len = cursor.varint_u32()? as usize;
            if len > VALUE_MAX {
                return Err(Error::corrupt(format!("transaction: a value of {len} bytes")));
            }
            Change::Put { key, value: cursor.bytes(len)?.to_vec() }
        }
        DELETE => Change::Delete { key: decode_key(cursor)? },
        EXTENTS => {
            let inode = decode_inode(cursor)?;
            let removed = cursor.varint()?;
            let inserted = cursor.varint()?;
            if removed == 0 && inserted == 0 {
                return Err(Error::corrupt("transaction: an extents change without extents"));
            }
            let removed = decode_extents(cursor, removed)?;
            let inserted = decode_extents(cursor, inserted)?;
            Change::Extents { inode, removed, inserted }
        }
        ORPHAN_SET => Change::OrphanSet { slot: cursor.varint_u32()?, inode: decode_inode(cursor)? },
        ORPHAN_CLEAR => Change::OrphanClear { slot: cursor.varint_u32()?, inode: decode_inode(cursor)? },
        POOL_GROW => {
            let (start, blocks) = decode_chunk(cursor)?;
            Change::PoolGrow { start, blocks }
        }
        POOL_SHRINK => {
            let (start, blocks) = decode_chunk(cursor)?;
            Change::PoolShrink { start, blocks }
        }
        DATA => {
            let (start, blocks) = decode_chunk(cursor)?;
            let bytes = cursor.bytes((blocks as usize).saturating_mul(BLOCK_SIZE))?;
            Change::Data { start, bytes: bytes.into() }
        }
        RECLAIM => {
            let (start, blocks) = decode_chunk(cursor)?;
            Change::Reclaim { start, blocks }
        }
        tag => return Err(Error::corrupt(format!("transaction: unknown change {tag}"))),
    })
}

fn decode_inode(cursor: &mut Cursor<'_>) -> Result<InodeNo> {
    match cursor.varint()? {
        0 => Err(Error::corrupt("transaction: a change of inode 0")),
        number => Ok(InodeNo(number)),
    }
}

fn decode_chunk(cursor: &mut Cursor<'_>) -> Result<(BlockNo, u32)> {
    let start = cursor.varint()?;
    let blocks = cursor.varint_u32()?;
    if start == 0 || blocks == 0 || start > DISK_BLOCKS_MAX - u64::from(blocks) {
        return Err(Error::corrupt(format!("transaction: blocks {start}+{blocks}")));
    }
    Ok((BlockNo(start), blocks))
}

fn decode_key(cursor: &mut Cursor<'_>) -> Result<Key> {
    let kind = KeyKind::from_byte(cursor.u8()?)?;
    let object = cursor.varint()?;
    let offset = if offset_is_hash(kind) { cursor.u64()? } else { cursor.varint()? };
    let key = Key::new(object, kind, offset);
    check_key(&key)?;
    Ok(key)
}

/// Errors unless a record may put or delete this key.
fn check_key(key: &Key) -> Result<()> {
    let Key { object, kind, offset } = *key;
    let fits = match kind {
        KeyKind::FreeSpace | KeyKind::Dead | KeyKind::Extent => false,
        KeyKind::Snapshot => object == 0 && (1..=u64::from(u32::MAX)).contains(&offset),
        KeyKind::Receive => object == 0 && offset <= u64::from(u32::MAX),
        KeyKind::LoggedOp => object == 0,
        KeyKind::OrphanKey => object == 0 && offset != 0,
        KeyKind::Inode => object != 0 && offset == 0,
        KeyKind::Symlink | KeyKind::Xattr => object != 0,
        KeyKind::Entry => object != 0 && dirent::check_cookie(offset).is_ok(),
    };
    if fits { Ok(()) } else { Err(Error::corrupt(format!("transaction: a change of {}", describe_key(key)))) }
}

/// Whether a kind's offsets are spread over all 64 bits, so that a varint would be longer.
fn offset_is_hash(kind: KeyKind) -> bool {
    matches!(kind, KeyKind::Entry | KeyKind::Xattr)
}

fn decode_extents(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<Extent>> {
    let odd = || Error::corrupt("transaction: an extent out of range");
    if count > (cursor.remaining() / EXTENT_MIN) as u64 {
        return Err(Error::corrupt(format!("transaction: {count} extents in {} bytes", cursor.remaining())));
    }
    let mut extents = Vec::with_capacity(count as usize);
    let (mut file, mut disk) = (0u64, 0i64);
    for _ in 0..count {
        let file_block = file.checked_add(cursor.varint()?).ok_or_else(odd)?;
        let disk_block = disk.checked_add(unzigzag(cursor.varint()?)).ok_or_else(odd)?;
        let word = cursor.varint()?;
        let born = word & 2 != 0;
        let birth = if born { cursor.varint_u32()? } else { 0 };
        if born && birth == 0 {
            return Err(odd());
        }
        let extent = Extent {
            file_block,
            disk_block: BlockNo(u64::try_from(disk_block).map_err(|_| odd())?),
            len: u32::try_from(word >> 2).map_err(|_| odd())?,
            unwritten: word & 1 != 0,
            birth,
        };
        extent.check()?;
        file = extent.file_end();
        disk = extent.disk_end().0 as i64;
        extents.push(extent);
    }
    Ok(extents)
}

/// Small numbers of either sign as small unsigned ones: 0, -1, 1, -2 become 0, 1, 2, 3.
fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// The disk blocks that hold data before an extents change and not after it: freed, or unwritten from now on.
/// Recorded content of theirs is void.
pub fn no_longer_written(removed: &[Extent], inserted: &[Extent]) -> Result<Vec<Run>> {
    let written = |extent: &&Extent| !extent.unwritten;
    Ok(extent::subtract(removed.iter().filter(written), inserted.iter().filter(written))?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(file_block: u64, disk_block: u64, len: u32) -> Extent {
        Extent { file_block, disk_block: BlockNo(disk_block), len, unwritten: false, birth: 0 }
    }

    fn raw(change: &Change) -> Vec<u8> {
        let mut encoder = Encoder::new();
        encoder.push(change);
        encoder.finish()
    }

    #[test]
    fn refuses_what_cannot_be() {
        let bad: [(&str, &[u8]); 16] = [
            ("empty", &[]),
            ("unknown tag", &[0]),
            ("unknown kind", &[DELETE, 9, 1, 0]),
            ("free space by itself", &[DELETE, 1, 0, 3]),
            ("extent by itself", &[DELETE, 20, 7, 3]),
            ("inode with an offset", &[DELETE, 16, 7, 3]),
            ("inode 0", &[DELETE, 16, 0, 0]),
            ("value too long", &[PUT, 16, 7, 0, 0xff, 0x7f]),
            ("value cut off", &[PUT, 16, 7, 0, 3, 1, 2]),
            ("no extents", &[EXTENTS, 7, 0, 0]),
            ("more extents than bytes", &[EXTENTS, 7, 0xff, 0xff, 0xff, 0x7f, 0, 1, 2, 2]),
            ("negative disk block", &[EXTENTS, 7, 1, 0, 0, 1, 2]),
            ("chunk without blocks", &[POOL_GROW, 7, 0]),
            ("data of no blocks", &[DATA, 7, 0]),
            ("data of block 0", &[DATA, 0, 1]),
            ("data cut off", &[DATA, 7, 0xff, 0xff, 0xff, 0x7f, 1, 2, 3]),
        ];
        for (what, bytes) in bad {
            assert!(decode(bytes).is_err(), "{what}");
        }
        let mut over = raw(&Change::OrphanClear { slot: 7, inode: InodeNo(8) });
        assert!(decode(&over).is_ok());
        over.push(0);
        assert!(decode(&over).is_err());
    }

    #[test]
    fn size_limits_hold_at_the_extremes() {
        let key = Key::xattr(InodeNo(u64::MAX), u32::MAX, u16::MAX, u16::MAX);
        assert!(raw(&Change::Put { key, value: vec![0; VALUE_MAX] }).len() <= PUT_OVERHEAD_MAX + VALUE_MAX);
        let key = Key::symlink(InodeNo(u64::MAX), u64::MAX);
        assert!(raw(&Change::Delete { key }).len() <= PUT_OVERHEAD_MAX);
        let far = extent(extent::FILE_BLOCKS_MAX - 32768, DISK_BLOCKS_MAX - 32768, 32768);
        let change = Change::Extents {
            inode: InodeNo(u64::MAX),
            removed: vec![extent(0, 9, 1), far],
            inserted: vec![],
        };
        assert!(raw(&change).len() <= EXTENTS_OVERHEAD_MAX + 2 * EXTENT_MAX);
        assert_eq!(decode(&raw(&change)).unwrap(), [change]);
        assert!(
            raw(&Change::OrphanSet { slot: u32::MAX, inode: InodeNo(u64::MAX) }).len() <= SMALL_CHANGE_MAX
        );
    }

    #[test]
    fn blocks_that_stay_written_keep_their_content() {
        let merged = no_longer_written(&[extent(0, 100, 4)], &[extent(0, 100, 9)]).unwrap();
        assert_eq!(merged, []);
        let moved = no_longer_written(&[extent(0, 100, 4)], &[extent(7, 100, 4)]).unwrap();
        assert_eq!(moved, []);
        let zeroed = Extent { unwritten: true, ..extent(1, 101, 2) };
        let after = [extent(0, 100, 1), zeroed, extent(3, 103, 1)];
        let gone = no_longer_written(&[extent(0, 100, 5)], &after).unwrap();
        assert_eq!(gone, [Run::new(BlockNo(101), 2), Run::new(BlockNo(104), 1)]);
    }

    #[test]
    fn data_goes_there_and_back() {
        let bytes: Arc<[u8]> = (0..2 * BLOCK_SIZE).map(|n| n as u8).collect();
        let change = Change::Data { start: BlockNo(u64::from(u32::MAX)), bytes };
        let encoded = raw(&change);
        assert!(encoded.len() <= 2 * BLOCK_SIZE + DATA_OVERHEAD_MAX);
        assert_eq!(decode(&encoded).unwrap(), std::slice::from_ref(&change));
        assert_eq!(change.describe(), "data of blocks 4294967295+2");
        assert!(decode(&encoded[..encoded.len() - 1]).is_err());
    }

    #[test]
    fn describes_itself() {
        let change =
            Change::Extents { inode: InodeNo(5), removed: vec![], inserted: vec![extent(3, 100, 10)] };
        assert_eq!(change.describe(), "extents of inode 5: -[] +[3+10 at 100]");
        assert_eq!(Change::Delete { key: Key::inode(InodeNo(4)) }.describe(), "delete inode 4");
    }
}
