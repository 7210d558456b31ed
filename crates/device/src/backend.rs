//! What a block device must be able to do, and the requests that travel to it.
//!
//! The contract of every backend is with [`Backend`].
//!
//! Neighbours: [`crate::Device`] is the only caller in the engine.

use crate::aligned::AlignedBuf;
use quire_base::{BLOCK_SIZE, BlockNo, Error, Result};
use std::fmt;

/// What a transfer is for: the unit of accounting, of the error latch, and of fault injection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IoClass {
    /// Contents of files.
    Data,
    /// The journal ring.
    Journal,
    /// Superblocks, tree nodes, maps and orphan blocks.
    Metadata,
}

impl IoClass {
    /// All classes, in the order of [`IoClass::index`].
    pub const ALL: [IoClass; 3] = [IoClass::Data, IoClass::Journal, IoClass::Metadata];

    /// A small number for arrays indexed by class.
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for IoClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IoClass::Data => "data",
            IoClass::Journal => "journal",
            IoClass::Metadata => "metadata",
        })
    }
}

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IoOp {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
}

impl IoOp {
    /// "reading" or "writing", for messages.
    pub(crate) const fn doing(self) -> &'static str {
        match self {
            IoOp::Read => "reading",
            IoOp::Write => "writing",
        }
    }
}

/// Memory of one part of a request: 4096-aligned, a positive multiple of 4096 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: a segment is an address; its maker promised (`Segment::new`) that any thread may use the
// memory behind it until the request is done.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// `len` bytes at `ptr`.
    ///
    /// # Safety
    /// Until the `done` of the request that carries it has run, or the call that it is given to returns, the
    /// memory stays allocated, and for a read nobody else relies on its bytes, for a write nobody changes
    /// them (else what reaches the medium is torn).
    pub const unsafe fn new(ptr: *mut u8, len: usize) -> Segment {
        Segment { ptr, len }
    }

    /// Start of the memory.
    pub const fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes, which no backend accepts.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// What runs when a request has completed.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// One asynchronous transfer between consecutive blocks and scattered memory.
pub struct Io {
    /// Direction.
    pub op: IoOp,
    /// First block.
    pub at: BlockNo,
    /// Memory, in device order.
    pub segments: Vec<Segment>,
    /// Runs once; [`Backend`] says where.
    pub done: Done,
}

impl Io {
    /// Bytes to transfer.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.len as u64).sum()
    }

    /// Blocks to transfer.
    pub fn blocks(&self) -> u64 {
        self.bytes() / BLOCK_SIZE as u64
    }
}

impl fmt::Debug for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} blocks at {} in {} segments", self.op, self.blocks(), self.at, self.segments.len())
    }
}

/// A block device.
///
/// Contract:
///
/// * Addresses and lengths are whole blocks within [`Backend::blocks`]; anything else is an error, not a
///   panic.
/// * A write that has returned (or whose `done` ran with `Ok`) is visible to later reads, and survives the
///   process; it survives a power cut only if a [`Backend::flush`] called after that returns `Ok`.
/// * `submit` starts requests in any order and runs each `done` exactly once: on the backend's completion
///   thread, or on the submitting thread before `submit` returns. So the submitter holds no lock that a
///   `done` takes, and a `done` never waits for other I/O.
/// * A failed write leaves old, new or mixed bytes in its blocks.
pub trait Backend: Send + Sync {
    /// Size in blocks.
    fn blocks(&self) -> u64;
    /// Looks at the size again, and enlarges a medium that can be enlarged from here (an image file) to
    /// `blocks` if it is smaller. The new size is durable when this returns. Never makes anything smaller;
    /// whether the medium is large enough afterwards, [`Backend::blocks`] says.
    fn grow(&self, blocks: u64) -> Result<()> {
        let _ = blocks;
        Ok(())
    }
    /// What to call it in messages: a path, or a word.
    fn name(&self) -> String;
    /// Whether writes, flushes and discards are refused.
    fn is_read_only(&self) -> bool;
    /// Fills `buf` from `at`.
    fn read(&self, class: IoClass, at: BlockNo, buf: &mut [u8]) -> Result<()>;
    /// Fills scattered memory from `at`, in device order. By default all but a single segment is copied from
    /// a buffer.
    fn read_scattered(&self, class: IoClass, at: BlockNo, segments: &[Segment]) -> Result<()> {
        if let [segment] = segments {
            // SAFETY: the maker of the segment keeps it valid, and its bytes to us, until this returns.
            let bytes = unsafe { std::slice::from_raw_parts_mut(segment.ptr, segment.len) };
            return self.read(class, at, bytes);
        }
        let mut buf = AlignedBuf::try_zeroed(segments.iter().map(Segment::len).sum())?;
        self.read(class, at, &mut buf)?;
        let mut rest = &buf[..];
        for segment in segments {
            let (bytes, more) = rest.split_at(segment.len);
            // SAFETY: as above; `bytes` are as many.
            unsafe { segment.ptr.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            rest = more;
        }
        Ok(())
    }
    /// Writes `buf` to `at`.
    fn write(&self, class: IoClass, at: BlockNo, buf: &[u8]) -> Result<()>;
    /// Makes every write that completed before this call durable.
    fn flush(&self) -> Result<()>;
    /// Tells the medium that the blocks hold nothing of value; afterwards they read as anything.
    /// `Unsupported` where the medium does not discard.
    fn discard(&self, at: BlockNo, count: u64) -> Result<()>;
    /// Starts the requests; [`Backend`] says when and where each `done` runs.
    fn submit(&self, class: IoClass, ios: Vec<Io>);
}

/// Checks a transfer of `bytes` at `at` against a device of `blocks`.
pub(crate) fn check_range(name: &str, blocks: u64, doing: &str, at: BlockNo, bytes: u64) -> Result<()> {
    if bytes == 0 || !bytes.is_multiple_of(BLOCK_SIZE as u64) {
        return Err(Error::invalid(format!("{doing} {bytes} bytes of {name}: not a whole number of blocks")));
    }
    let count = bytes / BLOCK_SIZE as u64;
    if at.0.checked_add(count).is_none_or(|end| end > blocks) {
        return Err(Error::corrupt(format!(
            "{doing} {count} blocks at block {at} of {name}: past its end, it has {blocks} blocks"
        )));
    }
    Ok(())
}

/// Checks a whole request: range, and the size of every segment.
pub(crate) fn check_io(name: &str, blocks: u64, io: &Io) -> Result<()> {
    if io.segments.iter().any(|segment| segment.is_empty() || !segment.len.is_multiple_of(BLOCK_SIZE)) {
        return Err(Error::invalid(format!("{} {name}: a segment is not whole blocks", io.op.doing())));
    }
    check_range(name, blocks, io.op.doing(), io.at, io.bytes())
}

/// The error for a change to a read-only device.
#[cfg(not(any(loom, shuttle)))]
pub(crate) fn read_only(name: &str, doing: &str) -> Error {
    Error::new(quire_base::ErrorKind::ReadOnly, format!("{doing} {name}: it is open read-only"))
}
