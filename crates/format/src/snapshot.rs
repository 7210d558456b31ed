//! Snapshots: checkpoints that a volume keeps.
//!
//! A snapshot is the superblock of a checkpoint, kept under a key of the space tree. What that checkpoint
//! names (trees, orphan blocks, manifest) and what its files hold stays as it is while the key is there.
//! Snapshots are numbered from 1, and the superblock's *epoch* is the number of the last one ever taken. So
//! snapshot n has the extents whose birth is below n, as far as they were in use then.
//!
//! Layout of the value (little-endian); the number is the key's offset:
//!
//! | offset | bytes | field |
//! | ---: | ---: | --- |
//! | 0 | 8 | created: time |
//! | 8 | 8 | cursor: while it is being deleted, the region up to which its blocks are free |
//! | 16 | 1 | state: 0 kept, 1 being deleted |
//! | 17 | 1 | bytes of the name, 1 to 255 |
//! | 18 | 2 | zero |
//! | 20 | 400 | the superblock's first bytes; it has neither a changed uuid nor a last scrub |
//! | 420 | | the name |
//!
//! A name is a file name in UTF-8, since a mount shows it as one.
//!
//! Neighbours: the value of [`crate::key::KeyKind::Snapshot`]; [`crate::superblock`].

use crate::record::cursor::Cursor;
use crate::superblock::{FIELDS_BYTES, Superblock};
use quire_base::{BLOCK_SIZE, Error, Result, Timestamp};

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

const NAME_AT: usize = 20 + FIELDS_BYTES;
const _: () = assert!(NAME_AT + NAME_BYTES_MAX <= crate::key::VALUE_MAX);

/// A snapshot, as the table of snapshots has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name.
    pub name: String,
    /// When it was taken.
    pub created: Timestamp,
    /// While it is being deleted: regions below this one are done.
    pub deleting: Option<u64>,
    /// The checkpoint that it keeps.
    pub superblock: Superblock,
}

impl Snapshot {
    /// Errors (`Invalid`) unless this can be the name of a snapshot.
    pub fn check_name(name: &str) -> Result<()> {
        let odd = name.is_empty()
            || name.len() > NAME_BYTES_MAX
            || name == "."
            || name == ".."
            || name.contains(['/', '\0']);
        if odd {
            return Err(Error::invalid(format!(
                "{name:?} cannot be the name of a snapshot: 1 to {NAME_BYTES_MAX} bytes without a slash, and neither \
                 . nor .."
            )));
        }
        Ok(())
    }

    /// As [`Snapshot::check_name`] for one that is to be taken. People read such names, and commands pass
    /// them on: they have no control characters, and no space at their ends.
    pub fn check_new_name(name: &str) -> Result<()> {
        Snapshot::check_name(name)?;
        if name.trim() != name || name.contains(char::is_control) {
            return Err(Error::invalid(format!(
                "{name:?} cannot be the name of a snapshot: no control characters, and no space at its ends"
            )));
        }
        Ok(())
    }

    /// The value's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(NAME_AT + self.name.len());
        out.extend((self.created.0 as u64).to_le_bytes());
        out.extend(self.deleting.unwrap_or(0).to_le_bytes());
        out.extend([u8::from(self.deleting.is_some()), self.name.len() as u8, 0, 0]);
        out.extend_from_slice(&self.superblock.encode()[..FIELDS_BYTES]);
        out.extend_from_slice(self.name.as_bytes());
        out
    }

    /// Reads and checks a value.
    pub fn decode(bytes: &[u8]) -> Result<Snapshot> {
        let odd = |what: &str| Error::corrupt(format!("snapshot: {what}"));
        let mut cursor = Cursor::new(bytes, "snapshot");
        let created = Timestamp(cursor.i64()?);
        let region = cursor.u64()?;
        let (state, len) = (cursor.u8()?, cursor.u8()?);
        if cursor.u16()? != 0 || state > 1 || (state == 0 && region != 0) {
            return Err(odd("an unknown state"));
        }
        let mut block = [0; BLOCK_SIZE];
        block[..FIELDS_BYTES].copy_from_slice(cursor.bytes(FIELDS_BYTES)?);
        let superblock = Superblock::decode(&block)?;
        let name = std::str::from_utf8(cursor.bytes(len.into())?).map_err(|_| odd("its name is not text"))?;
        cursor.end()?;
        Snapshot::check_name(name).map_err(|error| odd(&error.to_string()))?;
        Ok(Snapshot { name: name.into(), created, deleting: (state == 1).then_some(region), superblock })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::VALUE_MAX;
    use crate::superblock::tests::sample;
    use quire_base::ErrorKind;

    fn snapshot(name: &str, deleting: Option<u64>) -> Snapshot {
        let superblock = Superblock { epoch: 6, ..sample() };
        Snapshot { name: name.into(), created: Timestamp(-5), deleting, superblock }
    }

    #[test]
    fn what_is_written_is_read() {
        let longest = "é".repeat(NAME_BYTES_MAX / 2) + "n";
        for name in ["n", "before the move", "...", longest.as_str()] {
            for deleting in [None, Some(0), Some(7), Some(u64::MAX)] {
                let snapshot = snapshot(name, deleting);
                let bytes = snapshot.encode();
                assert_eq!(bytes.len(), NAME_AT + name.len());
                assert!(bytes.len() <= VALUE_MAX);
                assert_eq!(Snapshot::decode(&bytes).unwrap(), snapshot);
            }
        }
    }

    /// The bytes of a known snapshot: a change here is a change of the format.
    #[test]
    fn golden_bytes() {
        let deleted = snapshot("name", Some(0x0102));
        let bytes = deleted.encode();
        assert_eq!(bytes[..8], (-5i64).to_le_bytes());
        assert_eq!(bytes[8..20], [2, 1, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0]);
        assert_eq!(bytes[20..420], deleted.superblock.encode()[..400]);
        assert_eq!(bytes[420..], *b"name");
        assert_eq!(snapshot("name", None).encode()[8..20], [0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0]);
    }

    #[test]
    fn refuses_what_cannot_be() {
        /// A part of the message, and what makes bytes bad.
        type Case = (&'static str, fn(&mut Vec<u8>));
        let bad: [Case; 14] = [
            ("unknown state", |b| b[16] = 2),
            ("unknown state", |b| b[8] = 1),
            ("unknown state", |b| b[15] = 1),
            ("unknown state", |b| b[18] = 1),
            ("unknown state", |b| b[19] = 1),
            ("superblock", |b| b[20 + 100] ^= 1),
            ("superblock", |b| b[NAME_AT - 1] ^= 1),
            ("4 bytes where 5 are needed", |b| b[17] = 5),
            ("1 bytes too many", |b| b[17] = 3),
            ("1 bytes too many", |b| b.push(0)),
            ("not text", |b| b[NAME_AT] = 0xff),
            ("cannot be the name", |b| b[NAME_AT + 1] = b'/'),
            ("cannot be the name", |b| b[NAME_AT + 3] = 0),
            ("cannot be the name", |b| {
                b[17] = 0;
                b.truncate(NAME_AT);
            }),
        ];
        let good = snapshot("name", None).encode();
        for (number, (what, spoil)) in bad.iter().enumerate() {
            let mut bytes = good.clone();
            spoil(&mut bytes);
            let error = Snapshot::decode(&bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "case {number}: {error}");
            assert!(error.to_string().contains(what), "case {number}: {error}");
        }
        for cut in 0..good.len() {
            let error = Snapshot::decode(&good[..cut]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{cut} bytes: {error}");
        }
        for name in [".", ".."] {
            let error = Snapshot::decode(&snapshot(name, None).encode()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
        }
    }

    #[test]
    fn names() {
        let longest = "n".repeat(NAME_BYTES_MAX);
        for good in ["n", "...", ".n", "a name", "a\nb", longest.as_str()] {
            Snapshot::check_name(good).unwrap();
        }
        let too_long = longest + "n";
        for bad in ["", ".", "..", "/", "a/b", "a\0", too_long.as_str()] {
            let error = Snapshot::check_name(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bad:?}");
            assert!(error.to_string().contains("cannot be the name of a snapshot"), "{error}");
        }
    }
}
