//! What a receive leaves in a volume: which snapshot one of its snapshots is a copy of, and how far an
//! unfinished receive has come.
//!
//! Layout of the origin of a snapshot (28 bytes, little-endian): `uuid [16] | number u32 | created i64`.
//!
//! Layout of the unfinished receive:
//!
//! | offset | bytes | field |
//! | ---: | ---: | --- |
//! | 0 | 28 | the snapshot that is being received |
//! | 28 | 28 | the snapshot that the stream begins at; zeros if it begins at nothing |
//! | 56 | 20 | position: items u64, bytes u64, checksum u32 |
//! | 76 | 4 | number of the snapshot that has the volume as it was |
//! | 80 | 1 | 1: the receive took that snapshot itself |
//! | 81 | 1 | bytes of the name, 1 to 255 |
//! | 82 | | the name |
//!
//! A *token* is what a person carries from the receiver to the sender: the first 76 bytes and their checksum,
//! in hexadecimal digits.
//!
//! Neighbours: the values of [`crate::key::KeyKind::Receive`]; [`crate::stream`].

use crate::record::cursor::Cursor;
use crate::snapshot::Snapshot;
use crate::superblock::COUNTER_MAX;
use quire_base::{Error, Result, Timestamp};
use std::fmt;
use std::str::FromStr;

/// Bytes of an encoded [`SnapshotId`].
pub const ID_BYTES: usize = 28;
/// Bytes of an encoded [`Token`], without its checksum.
const TOKEN_BYTES: usize = 2 * ID_BYTES + 20;

/// Tells a snapshot from those of all volumes. Copies that were received have that of the original.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotId {
    /// The volume on which it was taken.
    pub volume: [u8; 16],
    /// Its number there.
    pub number: u32,
    /// When it was taken.
    pub created: Timestamp,
}

impl SnapshotId {
    /// The bytes.
    pub fn encode(&self) -> [u8; ID_BYTES] {
        let mut out = [0; ID_BYTES];
        out[..16].copy_from_slice(&self.volume);
        out[16..20].copy_from_slice(&self.number.to_le_bytes());
        out[20..].copy_from_slice(&self.created.0.to_le_bytes());
        out
    }

    /// Reads exactly one.
    pub fn decode(bytes: &[u8]) -> Result<SnapshotId> {
        let mut cursor = Cursor::new(bytes, "origin of a snapshot");
        let id = SnapshotId::read(&mut cursor)?;
        cursor.end()?;
        Ok(id)
    }

    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<SnapshotId> {
        let volume = cursor.bytes(16)?.try_into().expect("16 bytes");
        Ok(SnapshotId { volume, number: cursor.u32()?, created: Timestamp(cursor.i64()?) })
    }

    /// Reads one that may be missing: zeros, since no snapshot has the number 0.
    pub(crate) fn read_optional(cursor: &mut Cursor<'_>) -> Result<Option<SnapshotId>> {
        let id = SnapshotId::read(cursor)?;
        if id.number == 0 && id != SnapshotId::default() {
            return Err(Error::corrupt("a snapshot with the number 0"));
        }
        Ok((id.number != 0).then_some(id))
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "snapshot {} of volume ", self.number)?;
        self.volume.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A place between two items of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Items before it.
    pub items: u64,
    /// Bytes before it, as if the stream had never been broken.
    pub bytes: u64,
    /// The checksum of these bytes, from which the next item's goes on.
    pub checksum: u32,
}

impl Position {
    /// An error unless a stream can have come so far.
    pub(crate) fn check(self) -> Result<Position> {
        let Position { items, bytes, .. } = self;
        if items >= COUNTER_MAX || bytes >= COUNTER_MAX {
            return Err(Error::corrupt(format!("a stream goes on behind {items} items, {bytes} bytes")));
        }
        Ok(self)
    }
}

/// Which stream, and from where on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// The snapshot that is sent.
    pub id: SnapshotId,
    /// The one that the receiver has.
    pub parent: Option<SnapshotId>,
    /// Where the stream goes on.
    pub position: Position,
}

impl Token {
    fn encode(&self) -> [u8; TOKEN_BYTES] {
        let mut out = [0; TOKEN_BYTES];
        out[..28].copy_from_slice(&self.id.encode());
        out[28..56].copy_from_slice(&self.parent.unwrap_or_default().encode());
        out[56..64].copy_from_slice(&self.position.items.to_le_bytes());
        out[64..72].copy_from_slice(&self.position.bytes.to_le_bytes());
        out[72..].copy_from_slice(&self.position.checksum.to_le_bytes());
        out
    }

    fn read(cursor: &mut Cursor<'_>) -> Result<Token> {
        let id = SnapshotId::read(cursor)?;
        if id.number == 0 {
            return Err(Error::corrupt("a snapshot with the number 0"));
        }
        let parent = SnapshotId::read_optional(cursor)?;
        let position = Position { items: cursor.u64()?, bytes: cursor.u64()?, checksum: cursor.u32()? };
        Ok(Token { id, parent, position: position.check()? })
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.encode();
        let crc = crc32c::crc32c(&bytes).to_le_bytes();
        bytes.iter().chain(&crc).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Token> {
        let odd =
            || Error::invalid("this is not a token of `quire receive`: it has to be copied as it was shown");
        let text = text.trim();
        if text.len() != 2 * (TOKEN_BYTES + 4) || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(odd());
        }
        let bytes: Vec<u8> = (0..text.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| odd()))
            .collect::<Result<_>>()?;
        let (bytes, crc) = bytes.split_at(TOKEN_BYTES);
        if crc != crc32c::crc32c(bytes).to_le_bytes() {
            return Err(odd());
        }
        Token::read(&mut Cursor::new(bytes, "token")).map_err(|_| odd())
    }
}

/// A receive that has not come to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// The snapshot that is being received.
    pub id: SnapshotId,
    /// The one that the stream begins at.
    pub parent: Option<SnapshotId>,
    /// What has been applied.
    pub position: Position,
    /// Number of the snapshot that has the volume as it was.
    pub base: u32,
    /// Whether the receive took that one itself, so that it goes with the receive.
    pub own_base: bool,
    /// The name that the snapshot gets.
    pub name: String,
}

impl Unfinished {
    /// What a sender needs to go on.
    pub fn token(&self) -> Token {
        Token { id: self.id, parent: self.parent, position: self.position }
    }

    /// The value's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.token().encode().to_vec();
        out.extend(self.base.to_le_bytes());
        out.extend([u8::from(self.own_base), self.name.len() as u8]);
        out.extend_from_slice(self.name.as_bytes());
        out
    }

    /// Reads and checks a value.
    pub fn decode(bytes: &[u8]) -> Result<Unfinished> {
        let odd = |what: &str| Error::corrupt(format!("unfinished receive: {what}"));
        let mut cursor = Cursor::new(bytes, "unfinished receive");
        let Token { id, parent, position } = Token::read(&mut cursor)?;
        let base = cursor.u32()?;
        let own_base = match cursor.u8()? {
            0 => false,
            1 => true,
            _ => return Err(odd("an unknown state")),
        };
        let len = cursor.u8()?;
        let name = std::str::from_utf8(cursor.bytes(len.into())?).map_err(|_| odd("its name is not text"))?;
        cursor.end()?;
        Snapshot::check_name(name).map_err(|error| odd(&error.to_string()))?;
        if base == 0 {
            return Err(odd("no snapshot has the volume as it was"));
        }
        Ok(Unfinished { id, parent, position, base, own_base, name: name.into() })
    }
}

/// Bytes of the longest value.
pub const UNFINISHED_BYTES_MAX: usize = TOKEN_BYTES + 6 + crate::snapshot::NAME_BYTES_MAX;
const _: () = assert!(UNFINISHED_BYTES_MAX <= crate::key::VALUE_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    fn unfinished(parent: Option<SnapshotId>) -> Unfinished {
        let id = SnapshotId { volume: [7; 16], number: 3, created: Timestamp(-9) };
        let position = Position { items: 1, bytes: 0x0203, checksum: 4 };
        Unfinished { id, parent, position, base: 5, own_base: parent.is_none(), name: "né".into() }
    }

    /// The token of a position at the end of what a word counts was taken, and the next item had no number.
    #[test]
    fn no_position_is_so_far_that_counting_on_overflows() {
        for (items, bytes) in [(u64::MAX, 0), (0, COUNTER_MAX)] {
            let position = Position { items, bytes, checksum: 4 };
            let value = Unfinished { position, ..unfinished(None) };
            assert!(Unfinished::decode(&value.encode()).is_err());
            assert!(value.token().to_string().parse::<Token>().is_err());
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let parent = SnapshotId { volume: [8; 16], number: 2, created: Timestamp(6) };
        for parent in [None, Some(parent)] {
            let value = unfinished(parent);
            assert_eq!(Unfinished::decode(&value.encode()).unwrap(), value);
            assert_eq!(value.token().to_string().parse::<Token>().unwrap(), value.token());
            assert_eq!(SnapshotId::decode(&value.id.encode()).unwrap(), value.id);
        }
    }

    /// The bytes of a known value: a change here is a change of the format.
    #[test]
    fn golden_bytes() {
        let bytes = unfinished(None).encode();
        assert_eq!(bytes[..16], [7; 16]);
        assert_eq!(bytes[16..28], [3, 0, 0, 0, 0xf7, 255, 255, 255, 255, 255, 255, 255]);
        assert_eq!(bytes[28..56], [0; 28]);
        assert_eq!(bytes[56..76], [1, 0, 0, 0, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0]);
        assert_eq!(bytes[76..], [5, 0, 0, 0, 1, 3, b'n', 0xc3, 0xa9]);
    }

    #[test]
    fn refuses_what_cannot_be() {
        let good = unfinished(None).encode();
        for (at, value) in [(16, 0), (80, 2), (76, 0), (81, 2), (81, 4), (82, b'/'), (83, 0), (28, 1)] {
            let mut bytes = good.clone();
            bytes[at] = value;
            assert!(Unfinished::decode(&bytes).is_err(), "byte {at} as {value}");
        }
        for cut in 0..good.len() {
            assert!(Unfinished::decode(&good[..cut]).is_err());
        }
        let token = unfinished(None).token().to_string();
        for bad in [&token[1..], &token[..token.len() - 2], &token.replace('7', "6"), "", "é"] {
            assert!(bad.parse::<Token>().is_err(), "{bad}");
        }
    }
}
