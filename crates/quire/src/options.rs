//! Choices of callers that make or open a volume.
//!
//! Neighbours: [`crate::opening`] does what they say.

use quire_base::{BLOCK_SHIFT, Clock, Error, Result};
use quire_cache::CacheConfig;
use quire_format::superblock::LABEL_BYTES;
use std::time::Duration;

/// How a volume is made.
///
/// ```
/// use quire::{FormatOptions, Volume};
///
/// # fn main() -> quire::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let image = directory.path().join("data.img");
/// let info = FormatOptions::new().size(64 << 20).label("backup").format(&image)?;
/// assert_eq!((info.label.as_str(), info.blocks), ("backup", 16384));
/// Volume::open(&image)?.close()
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct FormatOptions {
    pub(crate) size: Option<u64>,
    pub(crate) label: String,
    pub(crate) journal_bytes: Option<u64>,
    pub(crate) metadata_copies: Option<u32>,
    pub(crate) force: bool,
    pub(crate) clock: Clock,
    pub(crate) seed: Option<u64>,
}

impl FormatOptions {
    /// The whole device or the existing file, no label, a journal chosen by the size.
    pub fn new() -> FormatOptions {
        FormatOptions::default()
    }

    /// Bytes of the volume. An image file that does not exist needs them.
    #[must_use]
    pub fn size(mut self, bytes: u64) -> FormatOptions {
        self.size = Some(bytes);
        self
    }

    /// A name for people, at most 64 bytes.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> FormatOptions {
        self.label = label.into();
        self
    }

    /// Bytes of the journal; else 1 to 64 MiB, by the volume's size.
    #[must_use]
    pub fn journal_bytes(mut self, bytes: u64) -> FormatOptions {
        self.journal_bytes = Some(bytes);
        self
    }

    /// Copies of each piece of metadata, 1 or 2, far apart on the device; else 2 on volumes from 64 MiB on.
    /// With two, the volume survives any one bad block of metadata.
    #[must_use]
    pub fn metadata_copies(mut self, copies: u32) -> FormatOptions {
        self.metadata_copies = Some(copies);
        self
    }

    /// Overwrite what is there, whatever it is.
    #[must_use]
    pub fn force(mut self, force: bool) -> FormatOptions {
        self.force = force;
        self
    }

    /// Where timestamps come from.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> FormatOptions {
        self.clock = clock;
        self
    }

    /// Fixes the volume's identity and hash seed, for runs that must repeat.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> FormatOptions {
        self.seed = Some(seed);
        self
    }
}

/// What an opening changes of the volume's shape.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reshape {
    /// Blocks of the volume; none: as many as it has.
    pub(crate) blocks: Option<u64>,
    /// Bytes of the journal.
    pub(crate) journal_bytes: Option<u64>,
    /// The label, padded.
    pub(crate) label: Option<[u8; LABEL_BYTES]>,
    /// The uuid that is shown; that of blocks stays.
    pub(crate) uuid: Option<[u8; 16]>,
    /// The key of the hash of names; of volumes without a name only.
    pub(crate) hash_seed: Option<[u64; 2]>,
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

/// How a volume is opened.
///
/// ```
/// use quire::{AccessTimes, FormatOptions, VolumeOptions};
///
/// # fn main() -> quire::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let image = directory.path().join("data.img");
/// # FormatOptions::new().size(64 << 20).format(&image)?;
/// let options = VolumeOptions::new().cache_bytes(64 << 20).access_times(AccessTimes::Never);
/// let volume = options.open(&image)?;
/// volume.create_dir("inbox")?;
/// volume.close()?;
/// let volume = options.read_only(true).open(&image)?;
/// assert!(volume.exists("inbox")? && volume.create_dir("outbox").is_err());
/// # volume.close()
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct VolumeOptions {
    pub(crate) read_only: bool,
    pub(crate) cache_bytes: Option<u64>,
    pub(crate) node_cache_bytes: Option<u64>,
    pub(crate) discard: bool,
    pub(crate) access_times: AccessTimes,
    pub(crate) lazy_times: bool,
    pub(crate) auto_da_alloc: bool,
    pub(crate) commit_seconds: u32,
    pub(crate) threads: bool,
    pub(crate) clock: Clock,
    pub(crate) folio_bytes: Option<u64>,
    pub(crate) group_record_bytes: Option<u64>,
    pub(crate) lease_recall_time: Duration,
    /// What opening changes of the volume's shape.
    pub(crate) reshape: Option<Reshape>,
    /// The snapshot that opening rolls the volume back to.
    pub(crate) roll_back: Option<String>,
    /// The snapshot that is opened.
    pub(crate) snapshot: Option<String>,
    /// Whether a receive opens the volume, to go on.
    pub(crate) receiving: bool,
    /// Whether a damaged journal is replayed as far as it can be read; only for reading.
    pub(crate) remains: bool,
}

impl VolumeOptions {
    /// For reading and writing, with a quarter of the memory that the process may use as cache.
    pub fn new() -> VolumeOptions {
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
            group_record_bytes: None,
            lease_recall_time: Duration::from_secs(5),
            reshape: None,
            roll_back: None,
            snapshot: None,
            receiving: false,
            remains: false,
        }
    }

    /// Take no changes; a journal is replayed in memory only.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> VolumeOptions {
        self.read_only = read_only;
        self
    }

    /// Limit of the page cache in bytes (data, headers, index, I/O buffers, inodes); else a quarter of
    /// the machine's memory or of the lowest limit of the process's control groups, whichever is less.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> VolumeOptions {
        self.cache_bytes = Some(bytes);
        self
    }

    /// Limit of the tree's node cache in bytes, apart from the page cache; else an eighth of that one's, at
    /// least 64 MiB (or as much as a smaller page cache has by default) and at most 1 GiB.
    #[must_use]
    pub fn node_cache_bytes(mut self, bytes: u64) -> VolumeOptions {
        self.node_cache_bytes = Some(bytes);
        self
    }

    /// Tell the device about freed blocks (off at first).
    #[must_use]
    pub fn discard(mut self, discard: bool) -> VolumeOptions {
        self.discard = discard;
        self
    }

    /// When reads update access times.
    #[must_use]
    pub fn access_times(mut self, when: AccessTimes) -> VolumeOptions {
        self.access_times = when;
        self
    }

    /// Keep changes that are only times in memory until something else is written (off at first).
    #[must_use]
    pub fn lazy_times(mut self, lazy: bool) -> VolumeOptions {
        self.lazy_times = lazy;
        self
    }

    /// Write data back before a rename over an existing file and at the close of a truncated, rewritten one
    /// (on at first).
    #[must_use]
    pub fn auto_da_alloc(mut self, auto: bool) -> VolumeOptions {
        self.auto_da_alloc = auto;
        self
    }

    /// Seconds after which unsynced changes are made durable anyway (5 at first).
    #[must_use]
    pub fn commit_seconds(mut self, seconds: u32) -> VolumeOptions {
        self.commit_seconds = seconds;
        self
    }

    /// Run background threads (on at first); without, the caller drives
    /// [`Volume::background_step`](crate::Volume::background_step).
    #[must_use]
    pub fn threads(mut self, threads: bool) -> VolumeOptions {
        self.threads = threads;
        self
    }

    /// Opens a snapshot instead of the volume as it is now; for reading only ([`VolumeOptions::read_only`]).
    #[must_use]
    pub fn snapshot(mut self, name: &str) -> VolumeOptions {
        self.snapshot = Some(name.to_owned());
        self
    }

    /// Where timestamps come from.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> VolumeOptions {
        self.clock = clock;
        self
    }

    /// Bytes of a folio of the page cache, a power of two from 4 KiB to 2 MiB; else chosen by the I/O.
    #[must_use]
    pub fn folio_bytes(mut self, bytes: u64) -> VolumeOptions {
        self.folio_bytes = Some(bytes);
        self
    }

    /// Bytes of blocks up to which a group of writes goes through the journal: one flush, and each block is
    /// written twice. A larger group goes to fresh blocks: two flushes, and each block is written once. At
    /// most, and at first, what one record of the journal takes, 2 MiB.
    #[must_use]
    pub fn group_record_bytes(mut self, bytes: u64) -> VolumeOptions {
        self.group_record_bytes = Some(bytes);
        self
    }

    /// How long an operation that moves or frees blocks waits for the return of a lease
    /// ([`File::lease_layout`](crate::File::lease_layout)) before the lease is revoked; 5 seconds at first,
    /// an hour at most.
    #[must_use]
    pub fn lease_recall_time(mut self, time: Duration) -> VolumeOptions {
        self.lease_recall_time = time.min(Duration::from_secs(3600));
        self
    }
}

impl Default for VolumeOptions {
    fn default() -> VolumeOptions {
        VolumeOptions::new()
    }
}

/// Bounds of a node cache whose size nobody has chosen.
const NODE_CACHE_BYTES: std::ops::RangeInclusive<u64> = 64 << 20..=1 << 30;

impl VolumeOptions {
    /// The node cache that they ask for.
    pub(crate) fn node_cache_limit(&self, default_bytes: impl FnOnce() -> u64) -> u64 {
        self.node_cache_bytes.unwrap_or_else(|| {
            let least = *NODE_CACHE_BYTES.start();
            // A page cache whose size nobody chose says how little memory there is.
            let (page_cache, least) = match self.cache_bytes {
                Some(bytes) => (bytes, least),
                None => {
                    let bytes = default_bytes();
                    (bytes, least.min(bytes))
                }
            };
            (page_cache / 8).clamp(least, *NODE_CACHE_BYTES.end())
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
        Ok(config)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_node_cache_grows_with_the_page_cache() {
        let node_cache = |cache_bytes, memory_share| {
            let options = VolumeOptions { cache_bytes, ..VolumeOptions::new() };
            options.node_cache_limit(|| memory_share) >> 20
        };
        assert_eq!(node_cache(None, 256 << 20), 64);
        assert_eq!(node_cache(None, 32 << 20), 32, "a small control group");
        assert_eq!(node_cache(Some(32 << 20), 32 << 20), 64);
        assert_eq!(node_cache(None, 4 << 30), 512);
        assert_eq!(node_cache(None, 64 << 30), 1024);
        assert_eq!(node_cache(Some(1 << 30), 64 << 30), 128);
        let options = VolumeOptions::new().node_cache_bytes(8 << 20);
        assert_eq!(options.node_cache_limit(|| 4 << 30), 8 << 20);
    }
}
