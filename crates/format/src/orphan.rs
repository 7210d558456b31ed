//! Orphan blocks: slots that name inodes without a name.
//!
//! Layout (little-endian); the crc is CRC-32C over the whole block with its own field zero:
//!
//! ```text
//! 0 slots, 510 inode numbers u64 (0: free)   4080 magic u32   4084 crc u32   4088 index u64
//! ```
//!
//! Neighbours: [`crate::pool`] says where each block lies; `fs` owns the slots in memory.

use crate::superblock::crc32c_without;
use quire_base::{BLOCK_SIZE, Error, Result};

/// Slots in a block.
pub const SLOTS: usize = 510;
/// Marks the tail of an orphan block.
pub const MAGIC: u32 = u32::from_le_bytes(*b"QOrp");

const TAIL: usize = SLOTS * 8;
const CRC_AT: usize = TAIL + 4;
const INDEX_AT: usize = TAIL + 8;
const _: () = assert!(INDEX_AT + 8 == BLOCK_SIZE);

/// The bytes of the orphan block with number `index`.
pub fn encode(index: u64, slots: &[u64; SLOTS]) -> Box<[u8; BLOCK_SIZE]> {
    let mut block = Box::new([0; BLOCK_SIZE]);
    for (bytes, slot) in block.chunks_exact_mut(8).zip(slots) {
        bytes.copy_from_slice(&slot.to_le_bytes());
    }
    block[TAIL..CRC_AT].copy_from_slice(&MAGIC.to_le_bytes());
    block[INDEX_AT..].copy_from_slice(&index.to_le_bytes());
    let crc = crc32c::crc32c(&block[..]);
    block[CRC_AT..INDEX_AT].copy_from_slice(&crc.to_le_bytes());
    block
}

/// Reads and checks the orphan block that must have number `index` (`Corrupt`).
pub fn decode(index: u64, bytes: &[u8]) -> Result<[u64; SLOTS]> {
    let bad = |what: &str| Err(Error::corrupt(format!("orphan block {index}: {what}")));
    let Some(bytes) = bytes.get(..BLOCK_SIZE) else { return bad("too short") };
    if bytes[TAIL..CRC_AT] != MAGIC.to_le_bytes() {
        return bad("its magic is missing");
    }
    if bytes[CRC_AT..INDEX_AT] != crc32c_without(bytes, CRC_AT).to_le_bytes() {
        return bad("its checksum does not fit its bytes");
    }
    if bytes[INDEX_AT..] != index.to_le_bytes() {
        return bad("it is another orphan block");
    }
    let mut slots = [0; SLOTS];
    for (slot, bytes) in slots.iter_mut().zip(bytes.chunks_exact(8)) {
        *slot = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    }
    Ok(slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_damage_is_seen() {
        let mut slots = [0; SLOTS];
        slots[0] = 7;
        slots[SLOTS - 1] = u64::MAX;
        let block = encode(3, &slots);
        assert_eq!(decode(3, &block[..]).unwrap(), slots);
        assert!(decode(2, &block[..]).is_err());
        assert!(decode(3, &block[..100]).is_err());
        for at in [0, 17, TAIL, CRC_AT, INDEX_AT, BLOCK_SIZE - 1] {
            let mut damaged = block.clone();
            damaged[at] ^= 0x10;
            assert!(decode(3, &damaged[..]).is_err(), "byte {at}");
        }
    }
}
