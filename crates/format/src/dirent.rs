//! Directory entries, their names, and the cookies that order them.
//!
//! Layout of the value (18 to 272 bytes, little-endian): `inode u64 | generation u64 | file type u8 | name`.
//!
//! A directory's entries are ordered by *cookie*: `name hash (47 bits) << 16 | disambiguator (16 bits)`. The
//! disambiguator is stored, in the key, for good: an entry keeps its cookie while it lives, so a directory
//! can be read on from a cookie whatever was created or removed meanwhile. Cookies 0, 1 and 2 mean start, "."
//! and ".."; a hash is never 0, so no entry has a cookie below 65536, and no cookie reaches `i64::MAX`.
//!
//! Neighbours: the value of [`crate::key::KeyKind::Entry`]; `fs` locks buckets by the same hash.

use crate::inode::FileType;
use crate::record::cursor::Cursor;
use quire_base::{Error, ErrorKind, InodeNo, Result};
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// The longest name in bytes.
pub const NAME_MAX: usize = 255;
/// Bits of a name's hash in a cookie.
pub const NAME_HASH_BITS: u32 = 47;
/// The largest disambiguator. One below what its bits hold, so that a cookie plus one is still a valid
/// offset.
pub const DISAMBIGUATOR_MAX: u16 = u16::MAX - 1;
/// Where reading a directory starts.
pub const COOKIE_START: u64 = 0;
/// The cookie of ".".
pub const COOKIE_DOT: u64 = 1;
/// The cookie of "..".
pub const COOKIE_DOT_DOT: u64 = 2;

const DISAMBIGUATOR_BITS: u32 = 16;

/// A directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// What the name stands for.
    pub inode: InodeNo,
    /// That inode's generation when the name was made.
    pub generation: u64,
    /// Its type.
    pub file_type: FileType,
    /// The name.
    pub name: &'a [u8],
}

impl<'a> Entry<'a> {
    /// The value's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(17 + self.name.len());
        out.extend(self.inode.0.to_le_bytes());
        out.extend(self.generation.to_le_bytes());
        out.push(self.file_type.to_byte());
        out.extend(self.name);
        out
    }

    /// Reads and checks a value: inode not 0, known type, valid name.
    pub fn decode(bytes: &'a [u8]) -> Result<Entry<'a>> {
        let mut cursor = Cursor::new(bytes, "directory entry");
        let entry = Entry {
            inode: InodeNo(cursor.u64()?),
            generation: cursor.u64()?,
            file_type: FileType::from_byte(cursor.u8()?)?,
            name: cursor.rest(),
        };
        if entry.inode.0 == 0 {
            return Err(Error::corrupt("directory entry for inode 0"));
        }
        check_name(entry.name)
            .map_err(|error| error.with_kind(ErrorKind::Corrupt).context("directory entry"))?;
        Ok(entry)
    }
}

/// Errors unless `name` may name an entry: 1 to 255 bytes, no NUL, no '/', neither "." nor "..".
///
/// Kinds: `NameTooLong`, otherwise `Invalid`.
pub fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Error::new(
            ErrorKind::NameTooLong,
            format!("a name of {} bytes; 255 are allowed", name.len()),
        ));
    }
    let shown = || String::from_utf8_lossy(name);
    match name {
        b"" => Err(Error::invalid("an empty name")),
        b"." | b".." => Err(Error::invalid(format!("the name {:?} is reserved", shown()))),
        _ if name.contains(&0) => Err(Error::invalid(format!("the name {:?} contains a NUL byte", shown()))),
        _ if name.contains(&b'/') => Err(Error::invalid(format!("the name {:?} contains a slash", shown()))),
        _ => Ok(()),
    }
}

/// The hash of a name: the top 47 bits of SipHash-1-3 under the volume's hash seed, and never 0.
pub fn name_hash(seed: [u64; 2], name: &[u8]) -> u64 {
    (siphash(seed, name) >> (64 - NAME_HASH_BITS)).max(1)
}

/// SipHash-1-3 (Aumasson, Bernstein, 2012) of plain bytes.
pub(crate) fn siphash(seed: [u64; 2], bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(seed[0], seed[1]);
    hasher.write(bytes);
    hasher.finish()
}

/// The cookie of an entry; `hash` as from [`name_hash`], `disambiguator` at most [`DISAMBIGUATOR_MAX`].
pub const fn cookie(hash: u64, disambiguator: u16) -> u64 {
    hash << DISAMBIGUATOR_BITS | disambiguator as u64
}

/// The first and last cookie that names with this hash can have.
pub const fn cookies_of_hash(hash: u64) -> (u64, u64) {
    (cookie(hash, 0), cookie(hash, DISAMBIGUATOR_MAX))
}

/// A cookie's hash and disambiguator.
pub const fn split_cookie(cookie: u64) -> (u64, u16) {
    (cookie >> DISAMBIGUATOR_BITS, cookie as u16)
}

/// Errors unless an entry's key may have this offset.
pub fn check_cookie(cookie: u64) -> Result<()> {
    let (hash, disambiguator) = split_cookie(cookie);
    if hash == 0 || hash >> NAME_HASH_BITS != 0 || disambiguator > DISAMBIGUATOR_MAX {
        return Err(Error::corrupt(format!("directory entry with the cookie {cookie:#x}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in [&b"a"[..], b"...", b".a", b"\xff\xfe", &[b'x'; 255]] {
            check_name(good).unwrap();
        }
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            assert_eq!(check_name(bad).unwrap_err().kind(), ErrorKind::Invalid);
        }
        assert_eq!(check_name(&[b'x'; 256]).unwrap_err().kind(), ErrorKind::NameTooLong);
    }

    #[test]
    fn cookies_are_apart_from_the_reserved_ones() {
        for name in [&b"a"[..], b"b", b"some name"] {
            let hash = name_hash([1, 2], name);
            let (first, last) = cookies_of_hash(hash);
            assert!(first > COOKIE_DOT_DOT && last < i64::MAX as u64);
            assert_eq!(split_cookie(last), (hash, DISAMBIGUATOR_MAX));
            check_cookie(first).unwrap();
            check_cookie(last).unwrap();
        }
        assert!(cookie((1 << NAME_HASH_BITS) - 1, DISAMBIGUATOR_MAX) < i64::MAX as u64);
        for bad in [0, 1, 2, 65535, 1 << 63, u64::MAX, cookie(5, u16::MAX)] {
            assert!(check_cookie(bad).is_err(), "{bad:#x}");
        }
        assert_ne!(name_hash([1, 2], b"a"), name_hash([2, 1], b"a"));
    }

    #[test]
    fn refuses_what_cannot_be() {
        let good = Entry { inode: InodeNo(9), generation: 3, file_type: FileType::Socket, name: b"n" };
        assert_eq!(Entry::decode(&good.encode()).unwrap(), good);
        let bad = [
            Entry { inode: InodeNo(0), ..good }.encode(),
            Entry { name: b"..", ..good }.encode(),
            Entry { name: b"", ..good }.encode(),
            Entry { name: &[b'x'; 256], ..good }.encode(),
            [0; 16].to_vec(),
            [1; 18].iter().map(|b| b * 3).collect(),
        ];
        for bytes in bad {
            assert_eq!(Entry::decode(&bytes).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}
