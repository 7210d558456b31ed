//! The journal's bytes: blocks of a ring that carry one endless stream of records.
//!
//! The stream is cut into pieces of [`PAYLOAD_BYTES`]; the piece at position p lies in ring block (p / 4032)
//! mod J, behind a header of [`HEADER_BYTES`]:
//!
//! | offset | bytes | field |
//! | ---: | ---: | --- |
//! | 0 | 4 | magic `QJnl` |
//! | 4 | 4 | crc: CRC-32C over the block with this field zero |
//! | 8 | 8 | volume id |
//! | 16 | 8 | incarnation |
//! | 24 | 8 | position of the first payload byte in the stream |
//! | 32 | 8 | durable: the stream was durable up to here when the block was submitted |
//! | 40 | 8 | checkpoint: where replay from the newest superblock durable at that time starts |
//! | 48 | 2 | offset in the payload of the first record that starts in this block, 0xffff if none does |
//! | 50 | 14 | zeros |
//!
//! A record is a header of 8 bytes (payload length u32, kind u32) and its payload, padded with zeros to a
//! multiple of 8; so a record's header never straddles blocks, its payload may. A record of the kind
//! *padding* fills its block with zeros to the end.
//!
//! Invariants: durable <= position; neither it nor the checkpoint ever exceeds what a crash leaves readable,
//! so a block that checks but promises more than a replay finds shows that the journal is damaged, not merely
//! torn.
//!
//! Neighbours: the journal crate writes and replays these; [`crate::record`] is what the payloads mean.

use crate::superblock::crc32c_without;
use quire_base::{BLOCK_SIZE, Error, Result, Seq};

/// Bytes of a block's header.
pub const HEADER_BYTES: usize = 64;
/// Bytes of the record stream in one journal block.
pub const PAYLOAD_BYTES: usize = BLOCK_SIZE - HEADER_BYTES;
/// The largest stream position; at 10 GB/s a volume reaches it after three years of nothing but journal.
pub const POSITION_MAX: u64 = (1 << 60) / PAYLOAD_BYTES as u64 * PAYLOAD_BYTES as u64;
/// Bytes of a record's header.
pub const RECORD_HEADER_BYTES: usize = 8;
/// Records start at multiples of this.
pub const RECORD_ALIGN: usize = 8;
/// The longest payload of a record in bytes, whatever the size of the ring.
pub const RECORD_PAYLOAD_MAX: usize = 64 << 20;

const MAGIC: u32 = u32::from_le_bytes(*b"QJnl");
const CRC_AT: usize = 4;
const NO_RECORD: u16 = u16::MAX;

const _: () = assert!(PAYLOAD_BYTES.is_multiple_of(RECORD_ALIGN) && RECORD_HEADER_BYTES == RECORD_ALIGN);

/// The start of the block that holds position `at`.
pub const fn block_floor(at: u64) -> u64 {
    at - at % PAYLOAD_BYTES as u64
}

/// The first start of a block at or behind position `at` (at most [`POSITION_MAX`]).
pub const fn block_ceil(at: u64) -> u64 {
    at.next_multiple_of(PAYLOAD_BYTES as u64)
}

/// Bytes of the stream that a record with a payload of `payload` bytes takes.
pub const fn record_bytes(payload: usize) -> usize {
    RECORD_HEADER_BYTES + payload.next_multiple_of(RECORD_ALIGN)
}

/// The header of a journal block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// Whose it is; see [`crate::superblock::Superblock::volume_id`].
    pub volume: u64,
    /// The life of the journal it belongs to.
    pub incarnation: u64,
    /// Stream position of the first payload byte.
    pub position: u64,
    /// Known durable when the block was submitted.
    pub durable: Seq,
    /// The newest durable superblock's replay position when the block was submitted.
    pub checkpoint: Seq,
    /// Offset in the payload of the first record that starts here.
    pub first_record: Option<u16>,
}

impl BlockHeader {
    /// Writes the header in front of the payload that `block` holds already, checksum included.
    pub fn seal(&self, block: &mut [u8; BLOCK_SIZE]) {
        block[..4].copy_from_slice(&MAGIC.to_le_bytes());
        block[CRC_AT..8].fill(0);
        block[8..16].copy_from_slice(&self.volume.to_le_bytes());
        block[16..24].copy_from_slice(&self.incarnation.to_le_bytes());
        block[24..32].copy_from_slice(&self.position.to_le_bytes());
        block[32..40].copy_from_slice(&self.durable.0.to_le_bytes());
        block[40..48].copy_from_slice(&self.checkpoint.0.to_le_bytes());
        block[48..50].copy_from_slice(&self.first_record.unwrap_or(NO_RECORD).to_le_bytes());
        block[50..HEADER_BYTES].fill(0);
        let crc = crc32c::crc32c(block);
        block[CRC_AT..8].copy_from_slice(&crc.to_le_bytes());
    }

    /// The header of a block that checks as a journal block of any volume, incarnation and position
    /// (`Corrupt` otherwise: not a journal block, torn, or damaged).
    pub fn decode(block: &[u8]) -> Result<BlockHeader> {
        if block.len() != BLOCK_SIZE || block[..4] != MAGIC.to_le_bytes() {
            return Err(Error::corrupt("not a journal block"));
        }
        let u64_at = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("8 bytes"));
        let crc = u32::from_le_bytes(block[CRC_AT..8].try_into().expect("4 bytes"));
        if crc32c_without(block, CRC_AT) != crc {
            return Err(Error::corrupt("journal block: wrong checksum"));
        }
        let first = u16::from_le_bytes([block[48], block[49]]);
        let header = BlockHeader {
            volume: u64_at(8),
            incarnation: u64_at(16),
            position: u64_at(24),
            durable: Seq(u64_at(32)),
            checkpoint: Seq(u64_at(40)),
            first_record: (first != NO_RECORD).then_some(first),
        };
        let sound = header.position.is_multiple_of(PAYLOAD_BYTES as u64)
            && header.position <= POSITION_MAX
            && header.durable.0 <= header.position
            && header.checkpoint.0 <= POSITION_MAX
            && (first == NO_RECORD
                || (usize::from(first) < PAYLOAD_BYTES && usize::from(first).is_multiple_of(RECORD_ALIGN)));
        if !sound {
            return Err(Error::corrupt(format!("journal block contradicts itself: {header:?}")));
        }
        Ok(header)
    }
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// A transaction.
    Transaction,
    /// Nothing: the rest of the block is zeros.
    Padding,
}

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Bytes of payload, alignment not included.
    pub payload: u32,
    /// What it is.
    pub kind: RecordKind,
}

impl RecordHeader {
    /// The header that closes a block.
    pub const PADDING: RecordHeader = RecordHeader { payload: 0, kind: RecordKind::Padding };

    /// The bytes.
    pub fn encode(self) -> [u8; RECORD_HEADER_BYTES] {
        let kind: u32 = match self.kind {
            RecordKind::Transaction => 1,
            RecordKind::Padding => 2,
        };
        let mut bytes = [0; RECORD_HEADER_BYTES];
        bytes[..4].copy_from_slice(&self.payload.to_le_bytes());
        bytes[4..].copy_from_slice(&kind.to_le_bytes());
        bytes
    }

    /// Reads and checks a header (`Corrupt`: unknown kind, padding with a payload, a payload over
    /// [`RECORD_PAYLOAD_MAX`]).
    pub fn decode(bytes: [u8; RECORD_HEADER_BYTES]) -> Result<RecordHeader> {
        let payload = u32::from_le_bytes(bytes[..4].try_into().expect("4 bytes"));
        let kind = match u32::from_le_bytes(bytes[4..].try_into().expect("4 bytes")) {
            1 if payload as usize <= RECORD_PAYLOAD_MAX => RecordKind::Transaction,
            2 if payload == 0 => RecordKind::Padding,
            kind => {
                return Err(Error::corrupt(format!(
                    "journal record of kind {kind} with {payload} bytes of payload"
                )));
            }
        };
        Ok(RecordHeader { payload, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> BlockHeader {
        BlockHeader {
            volume: 0x0102_0304_0506_0708,
            incarnation: 9,
            position: 4032 * 7,
            durable: Seq(4032 * 6),
            checkpoint: Seq(4032 * 2),
            first_record: Some(16),
        }
    }

    /// The bytes of a known block: a change here is a change of the format.
    #[test]
    fn golden_bytes() {
        let mut block = [0xaa; BLOCK_SIZE];
        sample().seal(&mut block);
        assert_eq!(&block[..4], b"QJnl");
        assert_eq!(block[4..8], 0x0488_813fu32.to_le_bytes());
        assert_eq!(block[8..16], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(block[16..24], [9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(block[24..32], [0x40, 0x6e, 0, 0, 0, 0, 0, 0]);
        assert_eq!(block[32..40], [0x80, 0x5e, 0, 0, 0, 0, 0, 0]);
        assert_eq!(block[40..48], [0x80, 0x1f, 0, 0, 0, 0, 0, 0]);
        assert_eq!(block[48..50], [16, 0]);
        assert!(block[50..64].iter().all(|byte| *byte == 0));
        assert!(block[64..].iter().all(|byte| *byte == 0xaa));
        assert_eq!(BlockHeader::decode(&block).unwrap(), sample());

        assert_eq!(RecordHeader::PADDING.encode(), [0, 0, 0, 0, 2, 0, 0, 0]);
        let record = RecordHeader { payload: 0x102, kind: RecordKind::Transaction };
        assert_eq!(record.encode(), [2, 1, 0, 0, 1, 0, 0, 0]);
        assert_eq!(RecordHeader::decode(record.encode()).unwrap(), record);
    }

    #[test]
    fn what_does_not_check_is_refused() {
        let mut block = [0; BLOCK_SIZE];
        assert!(BlockHeader::decode(&block).is_err());
        assert!(BlockHeader::decode(&block[..100]).is_err());
        sample().seal(&mut block);
        for at in [0, 5, 50, 64, 4095] {
            let mut bad = block;
            bad[at] ^= 4;
            assert!(BlockHeader::decode(&bad).is_err(), "a flipped bit in byte {at}");
        }
        for bad in [
            BlockHeader { position: 5, ..sample() },
            BlockHeader { durable: Seq(4032 * 8), ..sample() },
            BlockHeader { first_record: Some(4032), ..sample() },
            BlockHeader { first_record: Some(12), ..sample() },
            BlockHeader { position: u64::MAX / 4032 * 4032, ..sample() },
        ] {
            bad.seal(&mut block);
            assert!(BlockHeader::decode(&block).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn positions() {
        assert_eq!((block_floor(0), block_ceil(0)), (0, 0));
        assert_eq!((block_floor(1), block_ceil(1)), (0, 4032));
        assert_eq!((block_floor(4032), block_ceil(4032)), (4032, 4032));
        assert_eq!(block_ceil(POSITION_MAX), POSITION_MAX);
        assert_eq!((record_bytes(0), record_bytes(1), record_bytes(8), record_bytes(9)), (8, 16, 16, 24));
    }

    proptest! {
        #[test]
        fn record_headers_never_panic(bytes: [u8; RECORD_HEADER_BYTES]) {
            if let Ok(header) = RecordHeader::decode(bytes) {
                prop_assert_eq!(header.encode(), bytes);
            }
        }
    }
}
