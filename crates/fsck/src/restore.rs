//! Names that their hash knows better: a key has the hash of the name in its value, so where one byte of a
//! name was damaged, the right one is found by trying. A hash of 47 or 32 bits that fits by chance is no more
//! likely than one in sixty thousand, and one where the key is what was damaged no likelier.
//!
//! Neighbours: [`crate::names`] and [`crate::contents`] ask; `repair` puts the values.

use quire::internals::inspect::is_attribute_name;
use quire_format::dirent::{self, Entry};
use quire_format::xattr::{self, Head};

/// Names that one look tries to restore, each at the cost of up to 65,025 hashes. Where more are wrong, it is
/// not one byte in each.
pub(crate) const TRIES_MAX: u32 = 128;

/// Where the name begins in an entry's value.
const ENTRY_NAME: usize = 17;
/// Where the name begins in an attribute's first piece.
const XATTR_NAME: usize = 5;

/// The value with one byte of `name` changed so that `fits`; `None` if nothing or more than one does.
fn one_byte(value: &[u8], name: std::ops::Range<usize>, fits: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    let mut tried = value.to_vec();
    let mut found = None;
    for at in name {
        let was = tried[at];
        for byte in (0..=u8::MAX).filter(|byte| *byte != was) {
            tried[at] = byte;
            if fits(&tried) && found.replace(tried.clone()).is_some() {
                return None;
            }
        }
        tried[at] = was;
    }
    found
}

/// An entry's value with the name that its cookie's hash is of.
pub(crate) fn entry(seed: [u64; 2], cookie: u64, value: &[u8]) -> Option<Vec<u8>> {
    dirent::check_cookie(cookie).ok()?;
    if value.len() > ENTRY_NAME + dirent::NAME_MAX {
        return None;
    }
    let (hash, _) = dirent::split_cookie(cookie);
    let fits =
        |value: &[u8]| dirent::name_hash(seed, &value[ENTRY_NAME..]) == hash && Entry::decode(value).is_ok();
    one_byte(value, ENTRY_NAME..value.len(), fits)
}

/// An attribute's first piece with the name that its key's hash is of.
pub(crate) fn attribute(seed: [u64; 2], hash: u32, piece: &[u8]) -> Option<Vec<u8>> {
    let end = XATTR_NAME + usize::from(*piece.get(XATTR_NAME - 1)?);
    if end > piece.len() {
        return None;
    }
    let fits = |piece: &[u8]| {
        let name = &piece[XATTR_NAME..end];
        xattr::name_hash(seed, name) == hash && is_attribute_name(name) && Head::decode(piece).is_ok()
    };
    one_byte(piece, XATTR_NAME..end, fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_base::InodeNo;
    use quire_format::inode::FileType;

    #[test]
    fn one_wrong_byte_is_found_and_two_are_not() {
        let seed = [3, 4];
        let whole = Entry { inode: InodeNo(5), generation: 1, file_type: FileType::Fifo, name: b"some name" }
            .encode();
        let cookie = dirent::cookie(dirent::name_hash(seed, b"some name"), 0);
        for (at, byte) in [(17, b'S'), (25, 0), (20, b'/')] {
            let mut damaged = whole.clone();
            damaged[at] = byte;
            assert_eq!(entry(seed, cookie, &damaged), Some(whole.clone()));
            damaged[18] ^= 1;
            assert_eq!(entry(seed, cookie, &damaged), None);
        }
        let piece = xattr::encode(b"user.name", b"value").unwrap().remove(0);
        let hash = xattr::name_hash(seed, b"user.name");
        let mut damaged = piece.clone();
        damaged[6] = 0;
        assert_eq!(attribute(seed, hash, &damaged), Some(piece));
        assert_eq!(attribute(seed, hash ^ 1, &damaged), None);
        assert_eq!(attribute(seed, hash, &[1, 2, 3]), None);
    }
}
