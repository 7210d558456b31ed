//! A block device in memory: sparse, concurrent, gone with the process.
//!
//! Layout: the device is cut into chunks of 16 blocks; chunk `c` lives in shard `c % SHARDS`, in a map that
//! holds only chunks ever written, so a sparse 1 TiB device costs what was written to it. A shard's lock
//! protects its chunks' bytes: a read sees each chunk's part of a write entirely or not at all.
//!
//! Neighbours: [`crate::simulated`] is the one that forgets; this one keeps everything, and `flush` does
//! nothing.

use crate::backend::{self, Backend, Io, IoClass, IoOp, Segment};
use quire_base::sync::RwLock;
use quire_base::{BLOCK_SIZE, BlockNo, Result};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

const CHUNK_BLOCKS: u64 = 16;
const CHUNK_BYTES: usize = CHUNK_BLOCKS as usize * BLOCK_SIZE;
#[cfg(not(any(loom, shuttle)))]
const SHARDS: usize = 64;
#[cfg(any(loom, shuttle))]
const SHARDS: usize = 2;

type Chunks = HashMap<u64, Box<[u8]>>;

/// See the module's documentation.
pub struct MemoryBackend {
    blocks: AtomicU64,
    shards: [RwLock<Chunks>; SHARDS],
}

/// A piece of a transfer that lies within one chunk.
struct Piece {
    chunk: u64,
    /// Byte within the chunk.
    start: usize,
    ptr: *mut u8,
    len: usize,
}

impl MemoryBackend {
    /// A device of `blocks` blocks of zero.
    pub fn new(blocks: u64) -> MemoryBackend {
        MemoryBackend {
            blocks: AtomicU64::new(blocks),
            shards: std::array::from_fn(|_| RwLock::new(Chunks::new())),
        }
    }

    /// Bytes of memory that its contents take.
    pub fn resident_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| (shard.read().len() * CHUNK_BYTES) as u64).sum()
    }

    fn shard(&self, chunk: u64) -> &RwLock<Chunks> {
        &self.shards[(chunk % SHARDS as u64) as usize]
    }

    /// # Safety
    /// The segments' memory is valid, for reads writable, until this returns.
    unsafe fn transfer(&self, op: IoOp, at: BlockNo, segments: &[Segment]) -> Result<()> {
        let bytes = segments.iter().map(|segment| segment.len() as u64).sum();
        backend::check_range("memory", self.blocks(), op.doing(), at, bytes)?;
        let mut offset = at.byte_offset();
        for segment in segments {
            let mut done = 0;
            while done < segment.len() {
                let start = (offset % CHUNK_BYTES as u64) as usize;
                let len = (segment.len() - done).min(CHUNK_BYTES - start);
                // SAFETY: `done < segment.len()`, so the pointer stays within the segment.
                let ptr = unsafe { segment.ptr().add(done) };
                let piece = Piece { chunk: offset / CHUNK_BYTES as u64, start, ptr, len };
                // SAFETY: the caller's promise, for a part of the segment.
                unsafe { self.transfer_piece(op, &piece) };
                done += len;
                offset += len as u64;
            }
        }
        Ok(())
    }

    /// # Safety
    /// As for `transfer`; `piece` lies within its chunk.
    unsafe fn transfer_piece(&self, op: IoOp, piece: &Piece) {
        match op {
            IoOp::Read => {
                let chunks = self.shard(piece.chunk).read();
                match chunks.get(&piece.chunk) {
                    Some(chunk) => {
                        let from = chunk[piece.start..piece.start + piece.len].as_ptr();
                        // SAFETY: both sides have `len` bytes; a caller's buffer is not part of a chunk.
                        unsafe { std::ptr::copy_nonoverlapping(from, piece.ptr, piece.len) }
                    }
                    // SAFETY: the caller's memory has `len` bytes.
                    None => unsafe { std::ptr::write_bytes(piece.ptr, 0, piece.len) },
                }
            }
            IoOp::Write => {
                let mut chunks = self.shard(piece.chunk).write();
                let chunk =
                    chunks.entry(piece.chunk).or_insert_with(|| vec![0; CHUNK_BYTES].into_boxed_slice());
                let to = chunk[piece.start..piece.start + piece.len].as_mut_ptr();
                // SAFETY: as for reads, the other way.
                unsafe { std::ptr::copy_nonoverlapping(piece.ptr.cast_const(), to, piece.len) }
            }
        }
    }
}

impl Backend for MemoryBackend {
    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    fn grow(&self, blocks: u64) -> Result<()> {
        self.blocks.fetch_max(blocks, Ordering::AcqRel);
        Ok(())
    }

    fn name(&self) -> String {
        "memory".into()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, _class: IoClass, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        // SAFETY: `buf` is borrowed exclusively until the transfer returns.
        unsafe { self.transfer(IoOp::Read, at, &[Segment::new(buf.as_mut_ptr(), buf.len())]) }
    }

    fn read_scattered(&self, _class: IoClass, at: BlockNo, segments: &[Segment]) -> Result<()> {
        // SAFETY: the makers of the segments keep them valid, and their bytes to us, until this returns.
        unsafe { self.transfer(IoOp::Read, at, segments) }
    }

    fn write(&self, _class: IoClass, at: BlockNo, buf: &[u8]) -> Result<()> {
        // SAFETY: `buf` is borrowed until the transfer returns, and a write only reads it.
        unsafe { self.transfer(IoOp::Write, at, &[Segment::new(buf.as_ptr().cast_mut(), buf.len())]) }
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        let bytes = count.saturating_mul(BLOCK_SIZE as u64);
        backend::check_range("memory", self.blocks(), "discarding", at, bytes)?;
        let (first, end) = (at.0 / CHUNK_BLOCKS, (at.0 + count).div_ceil(CHUNK_BLOCKS));
        if end - first > 4096 {
            // A long range: look at the chunks there are rather than at the chunks there could be.
            for shard in &self.shards {
                shard.write().retain(|chunk, bytes| !clear(*chunk, bytes, at.0, count));
            }
            return Ok(());
        }
        for chunk in first..end {
            let mut chunks = self.shard(chunk).write();
            if chunks.get_mut(&chunk).is_some_and(|bytes| clear(chunk, bytes, at.0, count)) {
                chunks.remove(&chunk);
            }
        }
        Ok(())
    }

    fn submit(&self, _class: IoClass, ios: Vec<Io>) {
        for io in ios {
            // SAFETY: the maker of the segments keeps them valid until `done` runs, which is below.
            let outcome = unsafe { self.transfer(io.op, io.at, &io.segments) };
            (io.done)(outcome);
        }
    }
}

/// Zeroes what `start..start + count` (blocks) covers of a chunk; true if that is all of it, so it can go.
fn clear(chunk: u64, bytes: &mut [u8], start: u64, count: u64) -> bool {
    let base = chunk * CHUNK_BLOCKS;
    let from = start.saturating_sub(base).min(CHUNK_BLOCKS);
    let to = (start + count).saturating_sub(base).min(CHUNK_BLOCKS);
    if from < to {
        bytes[from as usize * BLOCK_SIZE..to as usize * BLOCK_SIZE].fill(0);
    }
    from == 0 && to == CHUNK_BLOCKS
}
