//! Extended attributes, stored as pieces of at most 1024 bytes under consecutive keys.
//!
//! An attribute is the byte string `value length u32 | name length u8 | name | value`, cut into pieces; every
//! piece but the last is full. The first piece so holds the whole name, and tells how many pieces there are.
//! The key's offset is `name hash (32 bits) << 32 | disambiguator (16) << 16 | piece (16)`.
//!
//! Names are complete, prefix included ("user.colour"), and stored as given.
//!
//! Neighbours: the values of [`crate::key::KeyKind::Xattr`]; `fs` decides which names are allowed to whom.

use crate::dirent::siphash;
use crate::record::cursor::Cursor;
use quire_base::{Error, ErrorKind, Result};

/// The most bytes of one piece.
pub const PIECE_BYTES_MAX: usize = 1024;
/// The longest name in bytes, prefix included.
pub const NAME_MAX: usize = 255;
/// The largest value in bytes.
pub const VALUE_BYTES_MAX: usize = 65536;
/// The most pieces of one attribute.
pub const PIECES_MAX: usize = (HEADER_BYTES + NAME_MAX + VALUE_BYTES_MAX).div_ceil(PIECE_BYTES_MAX);

const HEADER_BYTES: usize = 5;

/// Pieces of an attribute with a name and a value of these lengths.
pub const fn piece_count(name_bytes: usize, value_bytes: usize) -> usize {
    (HEADER_BYTES + name_bytes + value_bytes).div_ceil(PIECE_BYTES_MAX)
}

/// The hash of a name in its key: the top 32 bits of SipHash-1-3 under the volume's hash seed.
pub fn name_hash(seed: [u64; 2], name: &[u8]) -> u32 {
    (siphash(seed, name) >> 32) as u32
}

/// A key's offset as (hash, disambiguator, piece).
pub const fn split_offset(offset: u64) -> (u32, u16, u16) {
    ((offset >> 32) as u32, (offset >> 16) as u16, offset as u16)
}

/// Errors unless an attribute may have this name: 1 to 255 bytes without NUL. Kind `Range`, or `Invalid` for
/// the NUL.
pub fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Error::new(
            ErrorKind::Range,
            format!("an attribute name of {} bytes; 1 to 255 are allowed", name.len()),
        ));
    }
    if name.contains(&0) {
        return Err(Error::invalid("an attribute name with a NUL byte"));
    }
    Ok(())
}

/// The pieces of an attribute. Errors if the name is not valid, or (kind `TooLarge`) the value is over 64
/// KiB.
pub fn encode(name: &[u8], value: &[u8]) -> Result<Vec<Vec<u8>>> {
    check_name(name)?;
    if value.len() > VALUE_BYTES_MAX {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!("an attribute value of {} bytes; {VALUE_BYTES_MAX} are allowed", value.len()),
        ));
    }
    let mut whole = Vec::with_capacity(HEADER_BYTES + name.len() + value.len());
    whole.extend((value.len() as u32).to_le_bytes());
    whole.push(name.len() as u8);
    whole.extend(name);
    whole.extend(value);
    Ok(whole.chunks(PIECE_BYTES_MAX).map(<[u8]>::to_vec).collect())
}

/// The first piece, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head<'a> {
    /// The name.
    pub name: &'a [u8],
    /// Bytes of the whole value.
    pub value_bytes: usize,
    /// The part of the value in this piece.
    pub value_start: &'a [u8],
}

impl<'a> Head<'a> {
    /// Reads and checks a first piece.
    pub fn decode(piece: &'a [u8]) -> Result<Head<'a>> {
        let mut cursor = Cursor::new(piece, "extended attribute");
        let value_bytes = cursor.u32()? as usize;
        let name_bytes = cursor.u8()?;
        let name = cursor.bytes(name_bytes.into())?;
        check_name(name).map_err(|error| error.with_kind(ErrorKind::Corrupt))?;
        if value_bytes > VALUE_BYTES_MAX {
            return Err(Error::corrupt(format!("extended attribute with a value of {value_bytes} bytes")));
        }
        let expected = PIECE_BYTES_MAX.min(HEADER_BYTES + name.len() + value_bytes);
        if piece.len() != expected {
            return Err(Error::corrupt(format!(
                "extended attribute: first piece of {} bytes, not {expected}",
                piece.len()
            )));
        }
        Ok(Head { name, value_bytes, value_start: cursor.rest() })
    }

    /// Pieces of the attribute, this one included.
    pub const fn pieces(&self) -> usize {
        piece_count(self.name.len(), self.value_bytes)
    }
}

/// Puts an attribute together from all of its pieces in order, giving (name, value). Errors (kind `Corrupt`)
/// if a piece is missing, one too many, or of the wrong length. Reads no more pieces than the first one
/// announces, and one.
pub fn assemble<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<(&'a [u8], Vec<u8>)> {
    let mut pieces = pieces.into_iter();
    let first = pieces.next().ok_or_else(|| Error::corrupt("extended attribute without pieces"))?;
    let head = Head::decode(first)?;
    let mut value = Vec::with_capacity(head.value_bytes);
    value.extend(head.value_start);
    for number in 1..head.pieces() {
        let expected = PIECE_BYTES_MAX.min(head.value_bytes - value.len());
        match pieces.next() {
            Some(piece) if piece.len() == expected => value.extend(piece),
            Some(piece) => {
                let found = piece.len();
                return Err(Error::corrupt(format!(
                    "extended attribute: piece {number} of {found} bytes, not {expected}"
                )));
            }
            None => return Err(Error::corrupt(format!("extended attribute: piece {number} is missing"))),
        }
    }
    if pieces.next().is_some() {
        return Err(Error::corrupt("extended attribute: a piece too many"));
    }
    Ok((head.name, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Key, VALUE_MAX};
    use proptest::prelude::*;
    use quire_base::InodeNo;

    const _: () = assert!(PIECE_BYTES_MAX <= VALUE_MAX && PIECES_MAX <= u16::MAX as usize);

    #[test]
    fn limits() {
        encode(&[b'n'; 255], &[1; VALUE_BYTES_MAX]).unwrap();
        assert_eq!(encode(b"", b"").unwrap_err().kind(), ErrorKind::Range);
        assert_eq!(encode(&[b'n'; 256], b"").unwrap_err().kind(), ErrorKind::Range);
        assert_eq!(encode(b"n", &[1; VALUE_BYTES_MAX + 1]).unwrap_err().kind(), ErrorKind::TooLarge);
        let key = Key::xattr(InodeNo(3), 0xdead_beef, 0x1234, 0x5678);
        assert_eq!(split_offset(key.offset), (0xdead_beef, 0x1234, 0x5678));
    }

    #[test]
    fn missing_short_and_extra_pieces_are_found() {
        let pieces = encode(b"user.a", &[7; 3000]).unwrap();
        let refs: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        assert!(assemble(refs[..2].iter().copied()).is_err());
        assert!(assemble(refs.iter().copied().chain([&b"x"[..]])).is_err());
        assert!(assemble([refs[0], &refs[1][1..], refs[2]]).is_err());
        assert!(assemble([&refs[0][..1000], refs[1], refs[2]]).is_err());
        assert!(assemble([]).is_err());
    }

    proptest! {
        #[test]
        fn round_trip(name in prop::collection::vec(1u8.., 1..=255), value in prop::collection::vec(any::<u8>(), 0..5000)) {
            let pieces = encode(&name, &value).unwrap();
            prop_assert_eq!(pieces.len(), piece_count(name.len(), value.len()));
            prop_assert!(pieces.iter().all(|piece| piece.len() <= PIECE_BYTES_MAX));
            let (read_name, read_value) = assemble(pieces.iter().map(Vec::as_slice)).unwrap();
            prop_assert_eq!((read_name, read_value), (&name[..], value));
            prop_assert_eq!(Head::decode(&pieces[0]).unwrap().pieces(), pieces.len());
        }
    }
}
