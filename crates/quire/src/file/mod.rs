//! File data: one module per kind of I/O.
//!
//! | module | what |
//! | --- | --- |
//! | [`backing`] | what the cache asks of a file: extents, space, placement, completion |
//! | [`buffered`] | reads and writes through the cache, appends, size growth |
//! | [`journaled`] | data that goes through the journal |
//! | [`direct`] | reads and writes past the cache |
//! | [`direct_async`] | those that hold no thread |
//! | [`exclusive`] | having a file to oneself, as those below do |
//! | [`prepared`] | what the next three have ready before they change anything |
//! | [`truncate`] | explicit size changes |
//! | [`fallocate`] | allocate, punch, zero |
//! | [`shift`] | collapse and insert range, by logged operations |
//! | [`fsync`] | durability: who asks for it and who does it |
//! | [`file_sync`] | the steps of making one file durable, or all |
//! | [`syncing`] | an fsync under way, as a future |
//! | [`sync_queue`] | those that wait for a syncer, or for a force that others make |
//! | [`full`] | what an operation that finds no space does |
//! | [`seek`] | data and holes |
//! | [`copy`] | copying between files |
//! | [`range_lock`] | the lock of direct I/O on byte ranges |
//!
//! Every entry checks its arguments first, then enters the gate, then takes the locks that `lock_order`
//! names.
//!
//! Neighbours: [`crate::volume`] calls in; the cache, the extent map and transactions lie below.

pub(crate) mod advice;
pub(crate) mod backing;
pub(crate) mod buffered;
pub(crate) mod copy;
pub(crate) mod direct;
pub(crate) mod direct_async;
pub(crate) mod dropping;
pub(crate) mod exclusive;
pub(crate) mod fallocate;
pub(crate) mod file_sync;
pub(crate) mod fsync;
pub(crate) mod full;
pub(crate) mod journaled;
pub(crate) mod prepared;
pub mod range_lock;
pub(crate) mod released;
pub(crate) mod seek;
pub(crate) mod shift;
pub mod sync_queue;
pub mod syncing;
pub(crate) mod truncate;

use quire_base::{Error, ErrorKind, Result};
use quire_format::inode::FILE_SIZE_MAX;

bitflags::bitflags! {
    /// How one read or write is done; a property of the call, never of an open file.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct IoFlags: u32 {
        /// Past the cache (O_DIRECT); unaligned requests go through it and are written through.
        const DIRECT = 1;
        /// Durable with all attributes before it returns (O_SYNC).
        const SYNC = 2;
        /// Durable as far as reading it back needs before it returns (O_DSYNC).
        const DATASYNC = 4;
        /// At the end of the file, whatever the offset given (O_APPEND).
        const APPEND = 8;
        /// The caller has seen to capabilities, and to setuid and setgid bits, itself; or it may keep the
        /// bits (CAP_FSETID).
        const KEEP_PRIVILEGES = 16;
        /// Through the cache, but not kept there: a write goes to the device at once, without being waited
        /// for, and its blocks leave when they are written; what a read brought leaves behind it
        /// (RWF_DONTCACHE). What is used often stays.
        const UNCACHED = 32;
        /// At the device before it returns, though not durable there: write-through.
        const THROUGH = 64;
        /// The access time stays as it is (O_NOATIME).
        const KEEP_ACCESS_TIME = 128;
        /// A write leaves the times as they are: for a front end whose kernel keeps times, and sets them.
        const KEEP_WRITE_TIMES = 256;
    }
}

/// Bytes that one cached batch covers at most; larger operations hold the gate for their whole length.
pub(crate) const BATCH_BYTES: usize = 1 << 20;

/// The end of a range, if it stays below the largest file size.
pub(crate) fn range_end(offset: u64, len: u64) -> Result<u64> {
    offset.checked_add(len).filter(|&end| end <= FILE_SIZE_MAX).ok_or_else(|| {
        Error::new(
            ErrorKind::FileTooBig,
            format!("{len} bytes at offset {offset} reach past the largest file size, 2^63 - 1 bytes"),
        )
    })
}
