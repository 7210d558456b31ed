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
//! | 20 | 400 | the superblock's first bytes, in which all of its fields lie |
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
                "{name:?} cannot be the name of a snapshot: 1 to {NAME_BYTES_MAX} bytes without a slash"
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
