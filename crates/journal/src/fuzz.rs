//! A way in for fuzzers: any bytes become the image of a journal ring, which is replayed.
//!
//! Neighbours: [`crate::replay`](mod@crate::replay). Nothing of the engine uses this.

use crate::replay::{ReplayConfig, ReplayEnd, Ring, replay_ring};
use quire_base::{BLOCK_SIZE, BlockNo, Result, Seq};
use quire_format::journal::{BlockHeader, HEADER_BYTES, PAYLOAD_BYTES};

/// Blocks of the ring that a fuzzer fills at most.
const RING_BLOCKS_MAX: usize = 32;
const VOLUME: u64 = 1;
const INCARNATION: u64 = 1;

struct Image(Vec<[u8; BLOCK_SIZE]>);

impl Ring for Image {
    fn read(&self, index: u64, buf: &mut [u8]) -> Result<()> {
        for (nth, block) in buf.chunks_exact_mut(BLOCK_SIZE).enumerate() {
            block.copy_from_slice(&self.0[index as usize + nth]);
        }
        Ok(())
    }
}

/// Replays a ring made from `bytes`. Never panics, unless replay breaks one of its promises.
///
/// Byte 0 chooses the block at which replay starts. The rest is blocks, each behind a control byte: odd, and
/// the block gets a correct header and checksum for its place, with the first record's offset and the
/// promises (in blocks) taken from the next three bytes, since no fuzzer guesses a checksum; even, and it
/// stays as it is. Short blocks are filled up with zeros.
pub fn fuzz_replay(bytes: &[u8]) -> Result<ReplayEnd> {
    let (start, rest) = bytes.split_first().map_or((0, bytes), |(first, rest)| (u64::from(*first), rest));
    let chunks: Vec<&[u8]> = rest.chunks(1 + BLOCK_SIZE).take(RING_BLOCKS_MAX).collect();
    let ring = chunks.len().max(1) as u64;
    let from = start * PAYLOAD_BYTES as u64;
    let mut image = vec![[0; BLOCK_SIZE]; ring as usize];
    for (index, chunk) in chunks.iter().enumerate() {
        let number = start + (index as u64 + ring - start % ring) % ring;
        let block = &mut image[index];
        block[..chunk.len() - 1].copy_from_slice(&chunk[1..]);
        if chunk[0] & 1 == 1 {
            let position = number * PAYLOAD_BYTES as u64;
            let first = u16::from(block[0]) * 16 % PAYLOAD_BYTES as u16;
            let promise = |byte: u8| Seq(u64::from(byte) * PAYLOAD_BYTES as u64);
            let header = BlockHeader {
                volume: VOLUME,
                incarnation: INCARNATION,
                position,
                durable: promise(block[1]).min(Seq(position)),
                checkpoint: promise(block[2]),
                first_record: (block[0] != u8::MAX).then_some(first),
            };
            header.seal(block);
        }
    }
    let config = ReplayConfig {
        start: BlockNo(0),
        blocks: ring,
        volume: VOLUME,
        incarnation: INCARNATION,
        from: Seq(from),
        closed: false,
    };
    let (mut last, mut total) = (from, 0);
    let end = replay_ring(&Image(image), &config, &mut |seq, payload| {
        assert!(seq.0 > last && seq.0.is_multiple_of(8));
        last = seq.0;
        total += payload.len() as u64;
        Ok(())
    })?;
    assert!(end.end.0.is_multiple_of(PAYLOAD_BYTES as u64) && end.blocks <= ring);
    assert!(end.last.0 == last && end.last <= end.end && end.payload_bytes == total);
    assert!(total <= ring * (BLOCK_SIZE - HEADER_BYTES) as u64);
    Ok(end)
}
