//! Counters of the cache: every slow path, and the totals that say how well it does.

use quire_base::metrics::Counter;

macro_rules! metrics {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a cache.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $($(#[$doc])* pub $name: Counter,)*
        }

        impl Metrics {
            /// Name and value of every counter, in the order of declaration.
            pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)*]
            }
        }
    };
}

metrics! {
    /// Reads served without a lock.
    reads_optimistic,
    /// Optimistic attempts that a writer disturbed.
    reads_disturbed,
    /// Reads with segments shared.
    reads_locked,
    /// Blocks read from the device (readahead included).
    fill_blocks,
    /// Read requests to the device.
    fill_ios,
    /// Blocks of these that were readahead.
    readahead_blocks,
    /// Blocks of holes and unwritten extents that were zeroed in memory.
    fill_zero_blocks,
    /// Write batches.
    writes,
    /// Write batches that had to begin again (edges, fills, memory).
    write_retries,
    /// Blocks written to the device.
    writeback_blocks,
    /// Write requests to the device.
    writeback_ios,
    /// Requests that became part of another's.
    writeback_joined,
    /// Runs placed and applied.
    writeback_runs,
    /// Runs that failed.
    writeback_errors,
    /// Segments that background writeback found busy.
    writeback_busy,
    /// Segments that a synchronous writeback queued for.
    writeback_queued,
    /// Folios made.
    folios_made,
    /// Folios reclaimed.
    folios_reclaimed,
    /// Large folios of which only the used parts were kept.
    folios_split,
    /// Headers that reclaim looked at.
    reclaim_looks,
    /// Times a thread had to reclaim for itself.
    reclaim_direct,
    /// Times a thread waited for memory.
    memory_waits,
    /// Times a writer was slowed.
    throttle_pauses,
    /// Nanoseconds that writers were slowed.
    throttle_nanos,
    /// Times a writer was stopped at the dirty limit.
    throttle_stops,
    /// Background steps that did something.
    flusher_steps,
    /// Dirty files that background steps looked at.
    flusher_looks,
}
