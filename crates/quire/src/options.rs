//! What callers choose when they make or open a volume.

use quire_base::{BLOCK_SHIFT, Clock, Error, Result};
use quire_cache::CacheConfig;

/// How a volume is made.
#[derive(Clone, Debug, Default)]
pub struct FormatOptions {
    /// Bytes; `None` takes the whole device or the existing file.
    pub size: Option<u64>,
    /// At most 64 bytes of UTF-8.
    pub label: String,
    /// Bytes of the journal; `None` chooses by the volume's size (1 to 64 MiB).
    pub journal_bytes: Option<u64>,
    /// Overwrite what is there, whatever it is.
    pub force: bool,
    /// Where timestamps come from.
    pub clock: Clock,
    /// Fixes the volume's identity and hash seed, for runs that must repeat.
    pub seed: Option<u64>,
}

/// When a read updates a file's access time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTimes {
    /// When it is older than the last change, or older than a day.
    #[default]
    Relative,
    /// Never.
    Never,
    /// At every read.
    Strict,
}

/// How a running volume keeps inodes that have lost their names. Anything but the default is for measurements only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OrphanTracking {
    /// In slots that are claimed without a lock.
    #[default]
    Lockless,
    /// In the same slots, behind one lock of the volume, held from the claim until its record is applied.
    Locked,
    /// Not at all: after a crash such inodes take their space until fsck finds them.
    None,
}

/// How a volume is opened.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// Take no changes; a journal is replayed in memory only.
    pub read_only: bool,
    /// Limit of the page cache in bytes (data, headers, index, I/O buffers, inodes); `None`: a quarter of memory.
    pub cache_bytes: Option<u64>,
    /// Limit of the tree's node cache in bytes, apart from `cache_bytes`; `None`: an eighth of the page cache's, at
    /// least 64 MiB and at most 1 GiB.
    pub node_cache_bytes: Option<u64>,
    /// Tell the device about freed blocks.
    pub discard: bool,
    /// When reads update access times.
    pub access_times: AccessTimes,
    /// Keep changes that are only times in memory until something else is written.
    pub lazy_times: bool,
    /// Write data back before a rename over an existing file and at the close of a truncated, rewritten one.
    pub auto_da_alloc: bool,
    /// Seconds after which unsynced changes are made durable anyway.
    pub commit_seconds: u32,
    /// Run background threads; without, the caller drives [`crate::Volume::background_step`].
    pub threads: bool,
    /// Where timestamps come from.
    pub clock: Clock,
    /// Bytes of a folio of the page cache, a power of two from 4 KiB to 2 MiB; `None` chooses by the I/O.
    pub folio_bytes: Option<u64>,
    /// For measurements only: a write makes its whole folios dirty.
    pub dirties_whole_folios: bool,
    /// For measurements only: how orphans are tracked.
    pub orphan_tracking: OrphanTracking,
}

/// Bounds of a node cache whose size nobody has chosen.
const NODE_CACHE_BYTES: std::ops::RangeInclusive<u64> = 64 << 20..=1 << 30;

impl VolumeOptions {
    /// The node cache that they ask for.
    pub(crate) fn node_cache_bytes(&self, default_bytes: impl FnOnce() -> u64) -> u64 {
        self.node_cache_bytes.unwrap_or_else(|| {
            let page_cache = self.cache_bytes.unwrap_or_else(default_bytes);
            (page_cache / 8).clamp(*NODE_CACHE_BYTES.start(), *NODE_CACHE_BYTES.end())
        })
    }

    /// The page cache that they ask for.
    pub(crate) fn cache_config(&self, default_bytes: impl FnOnce() -> u64) -> Result<CacheConfig> {
        let mut config = CacheConfig::new(self.cache_bytes.unwrap_or_else(default_bytes));
        if let Some(bytes) = self.folio_bytes {
            if !bytes.is_power_of_two() || !(1 << BLOCK_SHIFT..=2 << 20).contains(&bytes) {
                return Err(Error::invalid(format!(
                    "{bytes} bytes are no size of a folio: a power of two from 4096 to 2097152 is"
                )));
            }
            (config.order_max, config.order_fixed) = ((bytes >> BLOCK_SHIFT).ilog2() as u8, true);
        }
        config.dirties_whole_folios = self.dirties_whole_folios;
        Ok(config)
    }
}

impl Default for VolumeOptions {
    fn default() -> VolumeOptions {
        VolumeOptions {
            read_only: false,
            cache_bytes: None,
            node_cache_bytes: None,
            discard: false,
            access_times: AccessTimes::Relative,
            lazy_times: false,
            auto_da_alloc: true,
            commit_seconds: 5,
            threads: true,
            clock: Clock::System,
            folio_bytes: None,
            dirties_whole_folios: false,
            orphan_tracking: OrphanTracking::Lockless,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_node_cache_grows_with_the_page_cache() {
        let node_cache = |cache_bytes, memory_share| {
            let options = VolumeOptions { cache_bytes, ..VolumeOptions::default() };
            options.node_cache_bytes(|| memory_share) >> 20
        };
        assert_eq!(node_cache(None, 256 << 20), 64);
        assert_eq!(node_cache(None, 4 << 30), 512);
        assert_eq!(node_cache(None, 64 << 30), 1024);
        assert_eq!(node_cache(Some(1 << 30), 64 << 30), 128);
        let options = VolumeOptions { node_cache_bytes: Some(8 << 20), ..VolumeOptions::default() };
        assert_eq!(options.node_cache_bytes(|| 4 << 30), 8 << 20);
    }
}
