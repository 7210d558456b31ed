//! Streams: a snapshot as a sequence of bytes, whole or as what has changed since an older one.
//!
//! A stream is a header and items; the last item is [`Item::End`]. An item sets or removes one key of the
//! tree of names, or gives file blocks content. What an item says does not depend on where blocks lie on the
//! device. `docs/streams.md` has the bytes.
//!
//! Each item carries its number and the CRC-32C of all bytes of the stream up to it, other items' checksums
//! left out (a CRC over a message and its own CRC says nothing of the message). So a flipped bit, a missing
//! item, two that have changed places and one of another stream are all found at the item's end. The checksum
//! of a stream that goes on after a break goes on from that of the part before; its header stands outside.
//!
//! Invariants: what the reader gives has been checked, item by item: the checksum, lengths, numbers, and
//! values. Whether the items make a sound tree, only the sender knows. The reader holds one item in memory.
//!
//! Neighbours: [`reader`] and [`writer`]; [`crate::receive`] has positions and identities.

pub mod reader;
pub mod writer;

use crate::dirent;
use crate::extent::FILE_BLOCKS_MAX;
use crate::inode::{INODE_BYTES, InodeRecord, SYMLINK_PIECE_MAX};
use crate::key::{Key, KeyKind, VALUE_MAX};
use crate::receive::{Position, SnapshotId};
use crate::record::cursor::Cursor;
use crate::snapshot::{NAME_BYTES_MAX, Snapshot};
use crate::superblock::COUNTER_MAX;
use crate::xattr;
use quire_base::{BLOCK_SIZE, Error, ErrorKind, InodeNo, Result};

pub use reader::StreamReader;
pub use writer::StreamWriter;

/// A stream's first bytes.
pub const MAGIC: [u8; 8] = *b"QuireStr";
/// The version that this build writes, and the only one that it reads.
pub const VERSION: u32 = 1;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 512;
/// Bytes before an item's payload.
pub const ITEM_HEADER_BYTES: usize = 16;
/// Bytes that an item has besides its payload.
pub const ITEM_OVERHEAD: usize = ITEM_HEADER_BYTES + 4;
/// The most bytes of content that one item carries.
pub const DATA_BYTES_MAX: usize = 1 << 20;
/// Bytes of the longest payload.
pub const PAYLOAD_BYTES_MAX: usize = DATA_BYTES_MAX + 16;

const INCREMENTAL: u32 = 1;
const RESUMED: u32 = 2;
const CRC_AT: usize = HEADER_BYTES - 4;

/// What a stream says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The snapshot that is sent.
    pub id: SnapshotId,
    /// The one that the receiver must have; none: it begins with nothing.
    pub parent: Option<SnapshotId>,
    /// Where the stream goes on; none: it is at its beginning.
    pub resumed: Option<Position>,
    /// Key of the hash of names: the items' keys have been made with it.
    pub hash_seed: [u64; 2],
    /// Blocks that the items of the whole stream give homes.
    pub blocks: u64,
    /// Bytes of the whole stream.
    pub bytes: u64,
    /// The snapshot's name.
    pub name: String,
}

impl Header {
    /// The bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        let flags = if self.parent.is_some() { INCREMENTAL } else { 0 }
            | if self.resumed.is_some() { RESUMED } else { 0 };
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend(flags.to_le_bytes());
        out.extend(self.id.encode());
        out.extend(self.parent.unwrap_or_default().encode());
        let position = self.resumed.unwrap_or_default();
        let words =
            [position.items, position.bytes, self.hash_seed[0], self.hash_seed[1], self.blocks, self.bytes];
        words.iter().for_each(|word| out.extend(word.to_le_bytes()));
        out.extend(position.checksum.to_le_bytes());
        out.push(self.name.len() as u8);
        out.extend_from_slice(self.name.as_bytes());
        let mut block = [0; HEADER_BYTES];
        block[..out.len()].copy_from_slice(&out);
        let crc = crc32c::crc32c(&block[..CRC_AT]);
        block[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// Reads and checks a header.
    ///
    /// Errors: `Invalid` if this is no stream; `UnknownFormat` for another version; `Corrupt`.
    pub fn decode(block: &[u8; HEADER_BYTES]) -> Result<Header> {
        let odd = |what: &str| Error::corrupt(format!("the header of the stream: {what}"));
        let mut cursor = Cursor::new(&block[..CRC_AT], "header of a stream");
        if cursor.bytes(8)? != MAGIC {
            return Err(Error::invalid("this is not a stream of `quire send`"));
        }
        let version = cursor.u32()?;
        if version != VERSION {
            return Err(Error::new(
                ErrorKind::UnknownFormat,
                format!(
                    "the stream has version {version}, this build reads version {VERSION}: use a matching build"
                ),
            ));
        }
        if block[CRC_AT..] != crc32c::crc32c(&block[..CRC_AT]).to_le_bytes() {
            return Err(odd("its checksum is wrong"));
        }
        let flags = cursor.u32()?;
        if flags & !(INCREMENTAL | RESUMED) != 0 {
            return Err(Error::new(
                ErrorKind::UnknownFormat,
                format!("the stream has unknown flags {flags:#x}"),
            ));
        }
        let id = SnapshotId::read(&mut cursor)?;
        let parent = SnapshotId::read_optional(&mut cursor)?;
        let (items, bytes) = (cursor.u64()?, cursor.u64()?);
        let hash_seed = [cursor.u64()?, cursor.u64()?];
        let (blocks, total) = (cursor.u64()?, cursor.u64()?);
        let position = Position { items, bytes, checksum: cursor.u32()? }.check()?;
        let len = cursor.u8()?;
        let name = std::str::from_utf8(cursor.bytes(len.into())?).map_err(|_| odd("the name is not text"))?;
        Snapshot::check_name(name).map_err(|error| odd(&error.to_string()))?;
        let resumed = flags & RESUMED != 0;
        if id.number == 0
            || parent.is_some() != (flags & INCREMENTAL != 0)
            || (!resumed && position != Position::default())
            || cursor.rest().iter().any(|byte| *byte != 0)
        {
            return Err(odd("its fields contradict one another"));
        }
        let resumed = resumed.then_some(position);
        Ok(Header { id, parent, resumed, hash_seed, blocks, bytes: total, name: name.into() })
    }

    /// Where the first item behind the header stands, and from which checksum its own goes on.
    pub fn position(&self) -> Position {
        self.resumed.unwrap_or_else(|| Position {
            items: 0,
            bytes: HEADER_BYTES as u64,
            checksum: crc32c::crc32c(&self.encode()[..CRC_AT]),
        })
    }
}

const _: () = assert!(16 + 56 + 48 + 4 + 1 + NAME_BYTES_MAX <= CRC_AT);

/// What the items of a stream come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Items before the end.
    pub items: u64,
    /// Blocks that were given homes.
    pub blocks: u64,
    /// The number that the next inode gets.
    pub next_inode: u64,
}

/// One item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// An inode is there, with this record.
    Inode(InodeNo, InodeRecord),
    /// An inode is no more, nor is anything of it.
    Gone(InodeNo),
    /// A name, a piece of an attribute, or a piece of a link's target.
    Value(Key, &'a [u8]),
    /// One of these is no more.
    NoValue(Key),
    /// The content of file blocks.
    Data {
        /// The file.
        inode: InodeNo,
        /// The first block of the file.
        file_block: u64,
        /// Whole blocks, 1 to 256 of them.
        bytes: &'a [u8],
    },
    /// File blocks have homes and read as zeros.
    Unwritten(InodeNo, Blocks),
    /// File blocks have no homes.
    Hole(InodeNo, Blocks),
    /// The stream is whole.
    End(Totals),
}

/// A run of file blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// The first.
    pub start: u64,
    /// How many; not 0.
    pub count: u64,
}

impl Blocks {
    /// One behind the last.
    pub const fn end(self) -> u64 {
        self.start + self.count
    }

    fn check(self) -> Result<Blocks> {
        let fits =
            self.count > 0 && self.start <= FILE_BLOCKS_MAX && self.count <= FILE_BLOCKS_MAX - self.start;
        if fits {
            Ok(self)
        } else {
            Err(Error::corrupt(format!("file blocks {}+{}", self.start, self.count)))
        }
    }
}

impl Item<'_> {
    /// Its byte in the stream.
    pub fn kind(&self) -> u8 {
        match self {
            Item::Inode(..) => 1,
            Item::Gone(_) => 2,
            Item::Value(..) => 3,
            Item::NoValue(_) => 4,
            Item::Data { .. } => 5,
            Item::Unwritten(..) => 6,
            Item::Hole(..) => 7,
            Item::End(_) => 8,
        }
    }

    /// Blocks that the item gives homes.
    pub fn blocks(&self) -> u64 {
        match self {
            Item::Data { bytes, .. } => (bytes.len() / BLOCK_SIZE) as u64,
            Item::Unwritten(_, blocks) => blocks.count,
            _ => 0,
        }
    }

    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut words = |words: &[u64]| words.iter().for_each(|word| out.extend(word.to_le_bytes()));
        match self {
            Item::Inode(inode, record) => {
                words(&[inode.0]);
                out.extend(record.encode());
            }
            Item::Gone(inode) => words(&[inode.0]),
            Item::Value(key, value) => {
                words(&[key.object, key.kind as u64, key.offset]);
                out.extend_from_slice(value);
            }
            Item::NoValue(key) => words(&[key.object, key.kind as u64, key.offset]),
            Item::Data { inode, file_block, bytes } => {
                words(&[inode.0, *file_block]);
                out.extend_from_slice(bytes);
            }
            Item::Unwritten(inode, blocks) | Item::Hole(inode, blocks) => {
                words(&[inode.0, blocks.start, blocks.count]);
            }
            Item::End(totals) => words(&[totals.items, totals.blocks, totals.next_inode]),
        }
    }

    /// Reads and checks a payload.
    pub fn decode(kind: u8, payload: &[u8]) -> Result<Item<'_>> {
        let mut cursor = Cursor::new(payload, "item of a stream");
        let item = match kind {
            1 => {
                let inode = inode(&mut cursor)?;
                Item::Inode(inode, InodeRecord::decode(cursor.rest())?)
            }
            2 => Item::Gone(inode(&mut cursor)?),
            3 => {
                let key = key(&mut cursor)?;
                Item::Value(key, check_value(&key, cursor.rest())?)
            }
            4 => Item::NoValue(key(&mut cursor)?),
            5 => {
                let (inode, file_block, bytes) = (inode(&mut cursor)?, cursor.u64()?, cursor.rest());
                if !bytes.len().is_multiple_of(BLOCK_SIZE) || bytes.len() > DATA_BYTES_MAX {
                    return Err(Error::corrupt(format!("content of {} bytes", bytes.len())));
                }
                Blocks { start: file_block, count: (bytes.len() / BLOCK_SIZE) as u64 }.check()?;
                Item::Data { inode, file_block, bytes }
            }
            6 => Item::Unwritten(inode(&mut cursor)?, blocks(&mut cursor)?),
            7 => Item::Hole(inode(&mut cursor)?, blocks(&mut cursor)?),
            8 => {
                let (items, blocks) = (cursor.u64()?, cursor.u64()?);
                Item::End(Totals { items, blocks, next_inode: inode(&mut cursor)?.0 })
            }
            other => return Err(Error::corrupt(format!("an item of the unknown kind {other}"))),
        };
        cursor.end()?;
        Ok(item)
    }
}

/// Bytes that payloads of a kind have at most; none: there is no such kind.
fn payload_bytes_max(kind: u8) -> Option<usize> {
    Some(match kind {
        1 => 8 + INODE_BYTES,
        2 => 8,
        3 => 24 + VALUE_MAX,
        4 | 6..=8 => 24,
        5 => PAYLOAD_BYTES_MAX,
        _ => return None,
    })
}

fn inode(cursor: &mut Cursor<'_>) -> Result<InodeNo> {
    match cursor.u64()? {
        number if number == 0 || number >= COUNTER_MAX => {
            Err(Error::corrupt(format!("an item of inode {number}")))
        }
        number => Ok(InodeNo(number)),
    }
}

fn blocks(cursor: &mut Cursor<'_>) -> Result<Blocks> {
    Blocks { start: cursor.u64()?, count: cursor.u64()? }.check()
}

fn key(cursor: &mut Cursor<'_>) -> Result<Key> {
    let (object, kind, offset) = (inode(cursor)?.0, cursor.u64()?, cursor.u64()?);
    let kind = u8::try_from(kind).map_err(|_| Error::corrupt("an unknown kind of keys"))?;
    let key = Key::new(object, KeyKind::from_byte(kind)?, offset);
    match key.kind {
        KeyKind::Symlink | KeyKind::Xattr => {}
        KeyKind::Entry => dirent::check_cookie(offset)?,
        other => return Err(Error::corrupt(format!("a key of kind {other:?}"))),
    }
    Ok(key)
}

fn check_value<'a>(key: &Key, value: &'a [u8]) -> Result<&'a [u8]> {
    let bytes = value.len();
    match key.kind {
        KeyKind::Entry => drop(dirent::Entry::decode(value)?),
        KeyKind::Xattr if xattr::split_offset(key.offset).2 == 0 => drop(xattr::Head::decode(value)?),
        KeyKind::Xattr if (1..=xattr::PIECE_BYTES_MAX).contains(&bytes) => {}
        KeyKind::Symlink if (1..=SYMLINK_PIECE_MAX).contains(&bytes) => {}
        kind => return Err(Error::corrupt(format!("{bytes} bytes under a key of kind {kind:?}"))),
    }
    Ok(value)
}

#[cfg(test)]
mod tests;
