//! What a superblock remembers of the volume's last scrub, so that one that was interrupted goes on where it
//! was.
//!
//! Numbers are little-endian. A volume that was never scrubbed, or that a version without this field has
//! written to since, has zeros here.
//!
//! ```text
//! offset size field
//!      0    4 state: 0 none, 1 unfinished, 2 stopped, 3 finished
//!      4    4 flags: 1 with data, 2 at the data
//!      8    8 bytes a second at most, 0 for any
//!     16    8 started
//!     24    8 ended, or last heard of
//!     32    8 position: object of a key (in the metadata), or inode (at the data)
//!     40    8 position: offset of a key, or byte
//!     48    4 position: kind of a key, or 0
//!     52    4 zero
//!     56    8 bytes of metadata read
//!     64    8 bytes of data read
//!     72    8 files read
//!     80    8 pieces of metadata with a bad copy
//!     88    8 of these, written anew
//!     96    8 pieces of metadata lost
//!    104    8 parts of files that cannot be read
//!    112    8 milliseconds spent
//! ```
//!
//! Nothing relies on it: bytes that mean nothing are read as no scrub.

use crate::key::{Key, KeyKind};
use quire_base::{InodeNo, Timestamp};

/// Where it lies in a superblock.
pub const SCRUB_AT: usize = 1024;
/// Its bytes.
pub const SCRUB_BYTES: usize = 120;

const WITH_DATA: u32 = 1;
const AT_DATA: u32 = 2;

/// How a scrub ended, if it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubState {
    /// It was running when this was written.
    Unfinished = 1,
    /// It was stopped on request.
    Stopped = 2,
    /// It has read everything.
    Finished = 3,
}

/// What a scrub reads next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubPosition {
    /// Nodes from this key on.
    Metadata(Key),
    /// Data from this byte of this inode on.
    Data(InodeNo, u64),
}

/// The last scrub of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastScrub {
    /// Whether it goes on.
    pub state: ScrubState,
    /// Whether data is read as well.
    pub data: bool,
    /// Bytes read in a second at most; 0 for any.
    pub bytes_per_second: u64,
    /// When it was started first.
    pub started: Timestamp,
    /// When it ended, or was last heard of.
    pub ended: Timestamp,
    /// Everything before it has been read.
    pub position: ScrubPosition,
    /// Bytes of metadata read, all copies counted.
    pub metadata_bytes: u64,
    /// Bytes of files read.
    pub data_bytes: u64,
    /// Files whose data was read.
    pub files: u64,
    /// Pieces of metadata with a bad copy.
    pub damaged: u64,
    /// Of these, pieces that were written anew.
    pub healed: u64,
    /// Pieces of metadata without a good copy.
    pub lost: u64,
    /// Parts of files that cannot be read.
    pub unreadable: u64,
    /// Milliseconds spent.
    pub milliseconds: u64,
}

impl LastScrub {
    /// The bytes; zeros if there was none.
    pub fn encode(scrub: Option<&LastScrub>) -> [u8; SCRUB_BYTES] {
        let mut bytes = [0; SCRUB_BYTES];
        let Some(scrub) = scrub else { return bytes };
        let (object, offset, kind, at_data) = match scrub.position {
            ScrubPosition::Metadata(key) => (key.object, key.offset, key.kind as u32, 0),
            ScrubPosition::Data(inode, offset) => (inode.0, offset, 0, AT_DATA),
        };
        let flags = if scrub.data { WITH_DATA } else { 0 } | at_data;
        let words = [
            scrub.state as u64 | u64::from(flags) << 32,
            scrub.bytes_per_second,
            scrub.started.0 as u64,
            scrub.ended.0 as u64,
            object,
            offset,
            u64::from(kind),
            scrub.metadata_bytes,
            scrub.data_bytes,
            scrub.files,
            scrub.damaged,
            scrub.healed,
            scrub.lost,
            scrub.unreadable,
            scrub.milliseconds,
        ];
        for (into, word) in bytes.chunks_exact_mut(8).zip(words) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads it; `None` where there is none, or nothing that makes sense.
    pub fn decode(bytes: &[u8; SCRUB_BYTES]) -> Option<LastScrub> {
        let word = |index: usize| {
            u64::from_le_bytes(bytes[index * 8..][..8].try_into().expect("a slice of 8 bytes"))
        };
        let state = match word(0) as u32 {
            1 => ScrubState::Unfinished,
            2 => ScrubState::Stopped,
            3 => ScrubState::Finished,
            _ => return None,
        };
        let flags = (word(0) >> 32) as u32;
        let position = if flags & AT_DATA != 0 {
            ScrubPosition::Data(InodeNo(word(4)), word(5))
        } else {
            let kind = KeyKind::from_byte(u8::try_from(word(6)).ok()?).ok()?;
            ScrubPosition::Metadata(Key::new(word(4), kind, word(5)))
        };
        let scrub = LastScrub {
            state,
            data: flags & WITH_DATA != 0,
            bytes_per_second: word(1),
            started: Timestamp(word(2) as i64),
            ended: Timestamp(word(3) as i64),
            position,
            metadata_bytes: word(7),
            data_bytes: word(8),
            files: word(9),
            damaged: word(10),
            healed: word(11),
            lost: word(12),
            unreadable: word(13),
            milliseconds: word(14),
        };
        (LastScrub::encode(Some(&scrub)) == *bytes).then_some(scrub)
    }
}

const _: () = assert!(SCRUB_BYTES == 15 * 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nonsense_is_no_scrub() {
        let scrub = LastScrub {
            state: ScrubState::Unfinished,
            data: true,
            bytes_per_second: 50 << 20,
            started: Timestamp(-7),
            ended: Timestamp(1_700_000_000_000_000_000),
            position: ScrubPosition::Metadata(Key::extent(InodeNo(77), 9)),
            metadata_bytes: 1,
            data_bytes: 2,
            files: 3,
            damaged: 4,
            healed: 5,
            lost: 6,
            unreadable: 7,
            milliseconds: 8,
        };
        let at_data = LastScrub { position: ScrubPosition::Data(InodeNo(5), 1 << 40), ..scrub.clone() };
        for scrub in [scrub.clone(), at_data] {
            assert_eq!(LastScrub::decode(&LastScrub::encode(Some(&scrub))), Some(scrub));
        }
        assert_eq!(LastScrub::decode(&LastScrub::encode(None)), None);
        let bytes = LastScrub::encode(Some(&scrub));
        for (at, byte) in [(0, 4), (4, 4), (48, 200), (53, 1)] {
            let mut wrong = bytes;
            wrong[at] = byte;
            assert_eq!(LastScrub::decode(&wrong), None, "byte {at}");
        }
    }
}
