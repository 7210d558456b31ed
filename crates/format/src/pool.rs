//! The manifest of the metadata pool: its chunks, which of their blocks one checkpoint needs, and where the
//! orphan blocks are.
//!
//! A manifest is a chain of pages. The superblock names the first with its checksum and their count; each
//! page names the next with its checksum. Layout of a page (little-endian), the same bytes in both of its
//! copies; the crc is CRC-32C over the whole page with its own field zero:
//!
//! ```text
//! 0 magic u32   4 crc u32   8 volume u64   16 generation u64   24 block u64 (itself)   32 twin u64 (or 0)
//! 40 incarnation u64   48 index u32   52 count u32   56 next block u64   64 next twin u64   72 next crc u32
//! 76 chunks u16   78 orphan blocks u16   80 zeros up to 96
//! 96 chunks, 144 bytes each: 0 start u64   8 blocks u32   12 used u32   16 bitmap, 1024 bits
//!    orphan blocks, 24 bytes each: 0 index u32   4 crc u32   8 block u64   16 twin u64 (or 0)
//!    zeros
//! ```
//!
//! Invariants: a chunk has 1 to 1024 blocks; bits behind its end are zero; `used` is the number of set bits.
//! Set are the blocks of the checkpoint's tree, of its orphan blocks and of its manifest itself.
//!
//! Neighbours: [`crate::superblock`] names the first page; the tree crate's pool joins and checks the chain.

use crate::place::{NO_TWIN, Place};
use crate::superblock::crc32c_without;
use quire_base::{BLOCK_SIZE, BlockNo, Error, Result};

/// First bytes of a page.
pub const MAGIC: u32 = u32::from_le_bytes(*b"QPol");
/// The most blocks a chunk has.
pub const CHUNK_BLOCKS_MAX: u32 = 1024;
/// 64-bit words of a chunk's bitmap.
pub const BITMAP_WORDS: usize = CHUNK_BLOCKS_MAX as usize / 64;
/// Bytes of a page behind its header.
pub const BODY_BYTES: usize = BLOCK_SIZE - HEADER_BYTES;
/// Bytes of a chunk's entry.
pub const CHUNK_BYTES: usize = 16 + BITMAP_WORDS * 8;
/// Bytes of an orphan block's entry.
pub const ORPHAN_BYTES: usize = 24;
/// Bytes before the entries.
pub const HEADER_BYTES: usize = 96;

const CRC_AT: usize = 4;

/// Where a checkpoint's manifest begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestRef {
    /// The first page.
    pub block: BlockNo,
    /// Its second copy; [`crate::place::NO_TWIN`] if there is none.
    pub twin: BlockNo,
    /// Its checksum.
    pub crc: u32,
    /// Pages in the chain.
    pub count: u32,
}

impl ManifestRef {
    /// Where the first page lies.
    pub const fn place(&self) -> Place {
        Place { block: self.block, twin: self.twin }
    }
}

/// A chunk and its blocks in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkEntry {
    /// The first block.
    pub start: BlockNo,
    /// How many.
    pub blocks: u32,
    /// Bit n % 64 of word n / 64: block n of the chunk is in use.
    pub used: [u64; BITMAP_WORDS],
}

/// Where an orphan block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrphanRef {
    /// Its number.
    pub index: u32,
    /// CRC-32C over all of its bytes.
    pub crc: u32,
    /// Its place.
    pub block: BlockNo,
    /// Its second copy; [`crate::place::NO_TWIN`] if there is none.
    pub twin: BlockNo,
}

impl OrphanRef {
    /// Both places.
    pub const fn place(&self) -> Place {
        Place { block: self.block, twin: self.twin }
    }
}

/// What a page says of the one behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextPage {
    /// Where it lies.
    pub place: Place,
    /// Its checksum.
    pub crc: u32,
}

/// One page of a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManifestPage {
    /// The next page; None in the last.
    pub next: Option<NextPage>,
    /// Chunks, ascending.
    pub chunks: Vec<ChunkEntry>,
    /// Orphan blocks, ascending by number.
    pub orphans: Vec<OrphanRef>,
}

/// What a page must say of itself.
#[derive(Clone, Copy, Debug)]
pub struct PageIdentity {
    /// The volume's number.
    pub volume: u64,
    /// The page's own place.
    pub place: Place,
    /// Position in the chain.
    pub index: u32,
    /// Pages in the chain.
    pub count: u32,
}

/// When a page was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageStamp {
    /// By which checkpoint.
    pub generation: u64,
    /// In which incarnation of the volume.
    pub incarnation: u64,
}

impl ManifestPage {
    /// Bytes that the entries take; at most [`BODY_BYTES`].
    pub fn body_bytes(&self) -> usize {
        self.chunks.len() * CHUNK_BYTES + self.orphans.len() * ORPHAN_BYTES
    }

    /// Writes the page into `out` (one block) and gives its checksum.
    pub fn encode(&self, identity: &PageIdentity, stamp: PageStamp, out: &mut [u8]) -> u32 {
        debug_assert!(self.body_bytes() <= BODY_BYTES);
        let out = &mut out[..BLOCK_SIZE];
        out.fill(0);
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&MAGIC.to_le_bytes());
        put(&[0; 4]);
        put(&identity.volume.to_le_bytes());
        put(&stamp.generation.to_le_bytes());
        put(&identity.place.block.0.to_le_bytes());
        put(&identity.place.twin.0.to_le_bytes());
        put(&stamp.incarnation.to_le_bytes());
        put(&identity.index.to_le_bytes());
        put(&identity.count.to_le_bytes());
        let next = self.next.unwrap_or(NextPage { place: Place::single(NO_TWIN), crc: 0 });
        put(&next.place.block.0.to_le_bytes());
        put(&next.place.twin.0.to_le_bytes());
        put(&next.crc.to_le_bytes());
        put(&(self.chunks.len() as u16).to_le_bytes());
        put(&(self.orphans.len() as u16).to_le_bytes());
        put(&[0; 16]);
        for chunk in &self.chunks {
            put(&chunk.start.0.to_le_bytes());
            put(&chunk.blocks.to_le_bytes());
            put(&used_count(&chunk.used).to_le_bytes());
            for word in &chunk.used {
                put(&word.to_le_bytes());
            }
        }
        for orphan in &self.orphans {
            put(&orphan.index.to_le_bytes());
            put(&orphan.crc.to_le_bytes());
            put(&orphan.block.0.to_le_bytes());
            put(&orphan.twin.0.to_le_bytes());
        }
        let crc = crc32c::crc32c(out);
        out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        crc
    }

    /// Reads the page that must have this identity and this checksum, with its stamp (`Corrupt`).
    pub fn decode(bytes: &[u8], identity: &PageIdentity, crc: u32) -> Result<(PageStamp, ManifestPage)> {
        let bad = |what: String| {
            Err(Error::corrupt(format!(
                "pool manifest page {} at block {}: {what}",
                identity.index, identity.place.block
            )))
        };
        let Some(bytes) = bytes.get(..BLOCK_SIZE) else { return bad(format!("only {} bytes", bytes.len())) };
        let u16_at = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if u32_at(0) != MAGIC {
            return bad("its magic is missing".into());
        }
        let found = crc32c_without(bytes, CRC_AT);
        if u32_at(CRC_AT) != found || found != crc {
            return bad(format!(
                "checksum is {:#010x}, its bytes give {found:#010x}, {crc:#010x} was named",
                u32_at(4)
            ));
        }
        if u64_at(8) != identity.volume {
            return bad("it belongs to another volume".into());
        }
        let place = Place { block: BlockNo(u64_at(24)), twin: BlockNo(u64_at(32)) };
        if (place, u32_at(48), u32_at(52)) != (identity.place, identity.index, identity.count) {
            return bad(format!(
                "it says page {} of {} at blocks {} and {}",
                u32_at(48),
                u32_at(52),
                place.block,
                place.twin
            ));
        }
        let next = NextPage {
            place: Place { block: BlockNo(u64_at(56)), twin: BlockNo(u64_at(64)) },
            crc: u32_at(72),
        };
        let last = identity.index.checked_add(1) == Some(identity.count);
        if last && next != (NextPage { place: Place::single(NO_TWIN), crc: 0 }) {
            return bad("it is the last page and names another".into());
        }
        let (chunk_count, orphan_count) = (u16_at(76), u16_at(78));
        if chunk_count * CHUNK_BYTES + orphan_count * ORPHAN_BYTES > BODY_BYTES {
            return bad(format!("{chunk_count} chunks and {orphan_count} orphan blocks do not fit a page"));
        }
        let mut page = ManifestPage {
            next: (!last).then_some(next),
            chunks: Vec::with_capacity(chunk_count),
            orphans: Vec::with_capacity(orphan_count),
        };
        let mut at = HEADER_BYTES;
        for _ in 0..chunk_count {
            let (start, blocks) = (BlockNo(u64_at(at)), u32_at(at + 8));
            let mut used = [0; BITMAP_WORDS];
            for (n, word) in used.iter_mut().enumerate() {
                *word = u64_at(at + 16 + n * 8);
            }
            if !(1..=CHUNK_BLOCKS_MAX).contains(&blocks) || start.0.checked_add(u64::from(blocks)).is_none() {
                return bad(format!("a chunk of {blocks} blocks at block {start}"));
            }
            let behind = (blocks..CHUNK_BLOCKS_MAX).any(|n| used[n as usize / 64] >> (n % 64) & 1 == 1);
            if behind || used_count(&used) != u32_at(at + 12) {
                return bad(format!("the chunk at block {start} and its bitmap disagree"));
            }
            page.chunks.push(ChunkEntry { start, blocks, used });
            at += CHUNK_BYTES;
        }
        for _ in 0..orphan_count {
            page.orphans.push(OrphanRef {
                index: u32_at(at),
                crc: u32_at(at + 4),
                block: BlockNo(u64_at(at + 8)),
                twin: BlockNo(u64_at(at + 16)),
            });
            at += ORPHAN_BYTES;
        }
        Ok((PageStamp { generation: u64_at(16), incarnation: u64_at(40) }, page))
    }
}

/// Set bits of a bitmap.
pub fn used_count(bitmap: &[u64; BITMAP_WORDS]) -> u32 {
    bitmap.iter().map(|word| word.count_ones()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IDENTITY: PageIdentity = PageIdentity { volume: 9, place: PLACE, index: 1, count: 3 };
    const PLACE: Place = Place { block: BlockNo(77), twin: BlockNo(1077) };
    const STAMP: PageStamp = PageStamp { generation: 12, incarnation: 4 };

    fn sample() -> ManifestPage {
        let mut used = [0; BITMAP_WORDS];
        used[0] = 0b1011;
        used[1] = 1 << 35;
        ManifestPage {
            next: Some(NextPage { place: Place { block: BlockNo(78), twin: BlockNo(1078) }, crc: 0xabcd }),
            chunks: vec![
                ChunkEntry { start: BlockNo(64), blocks: 100, used },
                ChunkEntry { start: BlockNo(4096), blocks: 1024, used: [u64::MAX; BITMAP_WORDS] },
            ],
            orphans: vec![OrphanRef { index: 0, crc: 5, block: BlockNo(65), twin: BlockNo(4097) }],
        }
    }

    #[test]
    fn what_is_written_is_read_and_identity_is_checked() {
        let mut block = [7; BLOCK_SIZE];
        let crc = sample().encode(&IDENTITY, STAMP, &mut block);
        assert_eq!(ManifestPage::decode(&block, &IDENTITY, crc).unwrap(), (STAMP, sample()));
        assert!(ManifestPage::decode(&block, &IDENTITY, crc ^ 1).is_err());
        assert!(ManifestPage::decode(&block[..4000], &IDENTITY, crc).is_err());
        for other in [
            PageIdentity { volume: 8, ..IDENTITY },
            PageIdentity { place: Place { block: BlockNo(78), ..PLACE }, ..IDENTITY },
            PageIdentity { place: Place { twin: BlockNo(78), ..PLACE }, ..IDENTITY },
            PageIdentity { index: 0, ..IDENTITY },
            PageIdentity { count: 4, ..IDENTITY },
        ] {
            assert!(ManifestPage::decode(&block, &other, crc).is_err());
        }
        let mut beyond = sample();
        beyond.chunks[0].used[1] |= 1 << 36;
        let crc = beyond.encode(&IDENTITY, STAMP, &mut block);
        assert!(ManifestPage::decode(&block, &IDENTITY, crc).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes(changes in proptest::collection::vec((0usize..BLOCK_SIZE, any::<u8>()), 0..20)) {
            let mut block = [0; BLOCK_SIZE];
            sample().encode(&IDENTITY, STAMP, &mut block);
            for (at, byte) in changes {
                block[at] = byte;
            }
            let crc = crc32c_without(&block, CRC_AT);
            block[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
            let _ = ManifestPage::decode(&block, &IDENTITY, crc);
        }
    }
}
