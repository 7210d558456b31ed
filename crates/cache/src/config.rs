//! The cache's limits, each in one place, with the reason for its value.

use crate::folio::{ORDER_MAX, Order};
use quire_base::{BLOCK_SIZE, Error, Result};

/// Limits of a cache. Start from [`CacheConfig::new`].
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// Bytes of data, headers, index and buffers.
    pub limit_bytes: u64,
    /// Largest write or read that is one batch, in bytes. Locked folios cannot be reclaimed, so this bounds
    /// what each thread holds.
    pub batch_bytes: usize,
    /// Largest folio, log2 of its blocks.
    pub order_max: Order,
    /// Every folio is of the largest order where there is room for it, instead of as large as its I/O
    /// suggests.
    pub order_fixed: bool,
    /// Dirty bytes above which background writeback runs whatever the age.
    pub dirty_background_bytes: u64,
    /// Dirty bytes above which writers wait. Between half way from the background threshold and here they are
    /// slowed.
    pub dirty_limit_bytes: u64,
    /// Age at which dirty data is written in the background, nanoseconds; by default what Linux has. That of
    /// files which programs make durable is written after a second at most.
    pub dirty_age_nanos: i64,
    /// Most bytes read ahead of a sequential reader.
    pub readahead_bytes: u64,
    /// Most blocks in one device request.
    pub io_blocks_max: u32,
    /// Most blocks that are placed and applied together.
    pub run_blocks_max: u32,
    /// Most requests of background writeback at the device at a time: a small fdatasync waits behind them
    /// all.
    pub inflight_max: u32,
    /// Most blocks of these requests.
    pub inflight_blocks_max: u64,
    /// Threads that write in the background.
    pub flushers: usize,
    /// Threads that apply completed writeback.
    pub finishers: usize,
}

/// The part of a cache that one folio may be at most: many folios are what reclaim chooses among.
const FOLIO_SHARE: u64 = 64;
/// Folios of 64 KiB serve even the smallest caches.
const ORDER_MAX_LEAST: Order = 4;

fn order_max(limit_bytes: u64) -> Order {
    let blocks = limit_bytes / BLOCK_SIZE as u64 / FOLIO_SHARE;
    (blocks.max(1).ilog2() as Order).clamp(ORDER_MAX_LEAST, ORDER_MAX)
}

impl CacheConfig {
    /// The defaults for a byte limit.
    pub fn new(limit_bytes: u64) -> CacheConfig {
        CacheConfig {
            limit_bytes,
            batch_bytes: 1 << 20,
            order_max: order_max(limit_bytes),
            order_fixed: false,
            dirty_background_bytes: limit_bytes / 10,
            dirty_limit_bytes: limit_bytes / 5 * 2,
            dirty_age_nanos: 30_000_000_000,
            readahead_bytes: 512 << 10,
            io_blocks_max: 256,
            run_blocks_max: 1024,
            inflight_max: 64,
            inflight_blocks_max: 4096,
            flushers: 2,
            finishers: 2,
        }
    }

    /// The least byte limit for this batch size: four batches must fit with their overhead.
    pub fn limit_bytes_min(&self) -> u64 {
        5 * self.batch_bytes as u64
    }

    /// Whether the limits fit together.
    pub fn check(&self) -> Result<()> {
        if !self.batch_bytes.is_multiple_of(BLOCK_SIZE) || self.batch_bytes < 4 * BLOCK_SIZE {
            return Err(Error::invalid("the batch size is not a multiple of 4096 of at least 16384 bytes"));
        }
        if self.limit_bytes < self.limit_bytes_min() {
            return Err(Error::invalid(format!(
                "a cache of {} bytes is too small: it needs at least {}",
                self.limit_bytes,
                self.limit_bytes_min()
            )));
        }
        if self.order_max > ORDER_MAX
            || self.io_blocks_max == 0
            || self.run_blocks_max == 0
            || self.inflight_max == 0
            || self.inflight_blocks_max == 0
            || self.flushers == 0
            || self.finishers == 0
        {
            return Err(Error::invalid("a limit of the cache is zero or out of range"));
        }
        if self.dirty_limit_bytes > self.limit_bytes / 2
            || self.dirty_background_bytes > self.dirty_limit_bytes
            || self.dirty_limit_bytes < self.batch_bytes as u64
        {
            return Err(Error::invalid(
                "the dirty limit must be between one batch and half of the cache, and not below its background threshold",
            ));
        }
        Ok(())
    }
}
