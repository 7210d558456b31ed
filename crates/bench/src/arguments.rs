//! The command lines of `quire bench` and `quire probe`, and parsers of their values, which the lab uses too.

use crate::size;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `quire bench`.
#[derive(Debug, Args)]
pub struct Bench {
    /// What to measure
    #[command(subcommand)]
    pub workload: Workload,
}

/// Options of every workload.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// Engines, separated by commas: quire, mount, xfs, ext4, btrfs, dir:PATH, memcpy, raw, fuse-null, each
    /// with options behind @ (quire@cache=256m, mount@untorn=8k, xfs@atomic); variants of one engine
    /// alternate
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "quire")]
    pub engines: Vec<String>,
    /// Directory for the image file and mount points [default: the current one]
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Measured time of each engine in seconds [default: 10 where the workload has no number of operations]
    #[arg(long, value_parser = seconds)]
    pub seconds: Option<f64>,
    /// Times that the list is gone through; figures are of all rounds together [default: 1, and 4 where
    /// variants of one engine alternate]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// Seed of all chance
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write the results as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the results
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

/// The workloads.
#[derive(Clone, Debug, Subcommand)]
pub enum Workload {
    /// Readers and writers at random offsets of one cached file
    Mixed {
        /// Options of every workload.
        #[command(flatten)]
        common: Common,
        /// Options of this one.
        #[command(flatten)]
        options: Mixed,
    },
    /// Random overwrites, each made durable; bytes counted at the device
    Dirty {
        /// Options of every workload.
        #[command(flatten)]
        common: Common,
        /// Options of this one.
        #[command(flatten)]
        options: Dirty,
    },
    /// Many small files written, then made durable in a pass of their own
    Fsync {
        /// Options of every workload.
        #[command(flatten)]
        common: Common,
        /// Options of this one.
        #[command(flatten)]
        options: Fsync,
    },
    /// Durable appends to, or overwrites of, one log file
    Append {
        /// Options of every workload.
        #[command(flatten)]
        common: Common,
        /// Options of this one.
        #[command(flatten)]
        options: Append,
    },
    /// Shrinking files step by step, or unlinking them while open
    Orphan {
        /// Options of every workload.
        #[command(flatten)]
        common: Common,
        /// Options of this one.
        #[command(flatten)]
        options: Orphan,
    },
    /// Create, close, unlink
    Creat {
        /// Options of every workload.
        #[command(flatten)]
        common: Common,
        /// Options of this one.
        #[command(flatten)]
        options: Creat,
    },
    /// What a small durable overwrite takes, idle and beside others; --seconds holds for each of the two
    Tail {
        /// Options of every workload.
        #[command(flatten)]
        common: Common,
        /// Options of this one.
        #[command(flatten)]
        options: Tail,
    },
    /// Random overwrites, each durable and whole over a crash, of files with the property untorn
    /// (quire@untorn=8k, mount@untorn=8k), beside those of kernels (xfs@atomic) and plain ones
    Untorn {
        /// Options of every workload.
        #[command(flatten)]
        common: Common,
        /// Options of this one.
        #[command(flatten)]
        options: Untorn,
    },
    /// Transactions of several random 4k overwrites of one file, durable as a whole: groups, beside the
    /// rollback journal of a database
    Group {
        /// Options of every workload.
        #[command(flatten)]
        common: Common,
        /// Options of this one.
        #[command(flatten)]
        options: Group,
    },
    /// Random overwrites, each made durable, before, while and after snapshots are taken, and while they are
    /// deleted; --seconds holds for each of the four phases
    Snapshot {
        /// Options of every workload.
        #[command(flatten)]
        common: Common,
        /// Options of this one.
        #[command(flatten)]
        options: SnapshotWork,
    },
    /// Many small files created, looked at and deleted with bounded memory; runs to its end whatever
    /// --seconds says
    Scale {
        /// Options of every workload.
        #[command(flatten)]
        common: Common,
        /// Options of this one.
        #[command(flatten)]
        options: Scale,
    },
}

impl Workload {
    /// Options of every workload.
    pub fn common(&self) -> &Common {
        match self {
            Workload::Mixed { common, .. }
            | Workload::Dirty { common, .. }
            | Workload::Fsync { common, .. }
            | Workload::Append { common, .. }
            | Workload::Orphan { common, .. }
            | Workload::Creat { common, .. }
            | Workload::Tail { common, .. }
            | Workload::Untorn { common, .. }
            | Workload::Group { common, .. }
            | Workload::Snapshot { common, .. }
            | Workload::Scale { common, .. } => common,
        }
    }
}

/// Parses a number of threads, possibly none; the most is what one process sensibly starts.
pub fn threads(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| *count <= 1024)
        .ok_or_else(|| format!("'{text}' is not a number of threads up to 1024"))
}

fn some_threads(text: &str) -> Result<usize, String> {
    threads(text).and_then(|count| if count == 0 { Err("at least one thread".into()) } else { Ok(count) })
}

/// Parses a number of operations, files or extents, at least one.
pub fn operations(text: &str) -> Result<u64, String> {
    text.parse()
        .ok()
        .filter(|count| (1..=1_000_000_000).contains(count))
        .ok_or_else(|| format!("'{text}' is not a number from 1 to 1000000000"))
}

/// Parses a time in seconds.
pub fn seconds(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|seconds: &f64| (0.01..=86_400.0).contains(seconds))
        .ok_or_else(|| format!("'{text}' is not a number of seconds from 0.01 to 86400"))
}

/// `mixed`.
#[derive(Clone, Debug, Args)]
#[group(skip)]
pub struct Mixed {
    /// Threads that read
    #[arg(long, default_value = "8", value_parser = threads)]
    pub readers: usize,
    /// Threads that write
    #[arg(long, default_value = "8", value_parser = threads)]
    pub writers: usize,
    /// Bytes of one read or write
    #[arg(long, default_value = "4k", value_parser = size::parse)]
    pub bs: u64,
    /// Bytes of the file
    #[arg(long, default_value = "1g", value_parser = size::parse)]
    pub size: u64,
}

/// When `dirty` makes data durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SyncEvery {
    /// fdatasync after every write.
    Every,
    /// Once, at the end.
    None,
}

/// What Quire's writeback writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Track {
    /// Whole folios, for comparison.
    Folio,
}

/// `dirty`.
#[derive(Clone, Debug, Args)]
#[group(skip)]
pub struct Dirty {
    /// Threads
    #[arg(long, default_value = "8", value_parser = some_threads)]
    pub jobs: usize,
    /// Bytes of one write
    #[arg(long, default_value = "4k", value_parser = size::parse)]
    pub bs: u64,
    /// Bytes of each thread's file
    #[arg(long, default_value = "256m", value_parser = size::parse)]
    pub size: u64,
    /// When to fdatasync
    #[arg(long, value_enum, default_value = "every")]
    pub sync: SyncEvery,
    /// All threads write one file
    #[arg(long)]
    pub one_file: bool,
    /// Folio size of the engine quire (short for quire@folio=SIZE)
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub folio: Option<u64>,
    /// What quire's writeback writes (short for quire@track=folio)
    #[arg(long, value_enum)]
    pub track: Option<Track>,
}

/// How `fsync` waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FsyncMode {
    /// Open, fsync, close, one file after the other.
    Serial,
    /// Many under way at a time.
    Async,
}

/// `fsync`.
#[derive(Clone, Debug, Args)]
#[group(skip)]
pub struct Fsync {
    /// Threads
    #[arg(long, default_value = "1", value_parser = some_threads)]
    pub threads: usize,
    /// Files of each thread
    #[arg(long, default_value = "10000", value_parser = operations)]
    pub files: u64,
    /// Bytes of each file
    #[arg(long, default_value = "4k", value_parser = size::parse)]
    pub file_size: u64,
    /// How to wait
    #[arg(long, value_enum, default_value = "serial")]
    pub mode: FsyncMode,
    /// The passes run in the background of one thread that fsyncs a file of its own, whose latency is
    /// measured
    #[arg(long)]
    pub background: bool,
}

/// `append`.
#[derive(Clone, Debug, Args)]
#[group(skip)]
pub struct Append {
    /// Threads
    #[arg(long, default_value = "1", value_parser = some_threads)]
    pub threads: usize,
    /// Bytes of one write
    #[arg(long, default_value = "4k", value_parser = size::parse)]
    pub bs: u64,
    /// Overwrite what is there instead of appending
    #[arg(long)]
    pub overwrite: bool,
}

/// How Quire tracks orphans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Orphans {
    /// Slots claimed without a lock.
    Lockless,
    /// Behind one lock; for measuring.
    Locked,
    /// Not at all; for measuring.
    None,
}

impl Orphans {
    /// As in `quire@orphans=`.
    pub fn name(self) -> &'static str {
        match self {
            Orphans::Lockless => "lockless",
            Orphans::Locked => "locked",
            Orphans::None => "none",
        }
    }
}

/// `orphan`.
#[derive(Clone, Debug, Args)]
#[group(skip)]
pub struct Orphan {
    /// Threads
    #[arg(long, default_value = "1", value_parser = some_threads)]
    pub threads: usize,
    /// Operations of each thread; --seconds wins
    #[arg(long, default_value = "20000", value_parser = operations)]
    pub ops: u64,
    /// Bytes that one operation takes off the file
    #[arg(long, default_value = "4096", value_parser = size::parse)]
    pub step: u64,
    /// Create, unlink while open, close, instead of shrinking
    #[arg(long)]
    pub unlink_open: bool,
    /// How quire tracks orphans (short for quire@orphans=)
    #[arg(long, value_enum)]
    pub orphans: Option<Orphans>,
}

/// `creat`.
#[derive(Clone, Debug, Args)]
#[group(skip)]
pub struct Creat {
    /// Threads
    #[arg(long, default_value = "1", value_parser = some_threads)]
    pub threads: usize,
    /// Operations of each thread; --seconds wins
    #[arg(long, default_value = "20000", value_parser = operations)]
    pub ops: u64,
    /// A directory for each thread
    #[arg(long)]
    pub private_dirs: bool,
}

/// What runs beside the measured threads of `tail`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Disturber {
    /// Two threads that write large files and make them durable.
    Bulk,
    /// One thread that appends to a file that another makes durable ten times a second.
    Append,
    /// One thread that unlinks large files.
    Delete,
    /// Two threads that create and unlink.
    Create,
}

impl Disturber {
    /// As in `--with`.
    pub fn name(self) -> &'static str {
        match self {
            Disturber::Bulk => "bulk",
            Disturber::Append => "append",
            Disturber::Delete => "delete",
            Disturber::Create => "create",
        }
    }
}

/// `tail`.
#[derive(Clone, Debug, Args)]
#[group(skip)]
pub struct Tail {
    /// Threads that are measured
    #[arg(long, default_value = "1", value_parser = some_threads)]
    pub threads: usize,
    /// What runs beside them in the second phase, separated by commas
    #[arg(
        long,
        value_enum,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "bulk,append,delete,create"
    )]
    pub with: Vec<Disturber>,
    /// Bytes of each file of bulk and delete
    #[arg(long, default_value = "1g", value_parser = size::parse)]
    pub size: u64,
    /// Files that delete unlinks, evenly over the time
    #[arg(long, default_value = "8", value_parser = operations)]
    pub files: u64,
}

/// `snapshot`.
#[derive(Clone, Debug, Args)]
#[group(skip)]
pub struct SnapshotWork {
    /// Threads that overwrite, each its own file
    #[arg(long, default_value = "4", value_parser = some_threads)]
    pub jobs: usize,
    /// Bytes of each thread's file
    #[arg(long, default_value = "256m", value_parser = size::parse)]
    pub size: u64,
    /// Small files that the volume holds besides
    #[arg(long, default_value = "100000", value_parser = operations)]
    pub files: u64,
    /// Snapshots that are taken, at even distances
    #[arg(long, default_value = "5", value_parser = operations)]
    pub snapshots: u64,
}

/// `untorn`.
#[derive(Clone, Debug, Args)]
#[group(skip)]
pub struct Untorn {
    /// Threads
    #[arg(long, default_value = "1", value_parser = some_threads)]
    pub jobs: usize,
    /// Bytes of one write
    #[arg(long, default_value = "8k", value_parser = size::parse)]
    pub bs: u64,
    /// Bytes of each thread's file
    #[arg(long, default_value = "256m", value_parser = size::parse)]
    pub size: u64,
}

/// `group`.
#[derive(Clone, Debug, Args)]
#[group(skip)]
pub struct Group {
    /// Threads, each with the file opened by itself
    #[arg(long, default_value = "1", value_parser = some_threads)]
    pub threads: usize,
    /// Overwrites of 4k in one transaction, at most 1024
    #[arg(long, default_value = "4", value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub writes: u64,
    /// Bytes of the file
    #[arg(long, default_value = "256m", value_parser = size::parse)]
    pub size: u64,
}

/// `scale`.
#[derive(Clone, Debug, Args)]
#[group(skip)]
pub struct Scale {
    /// Files
    #[arg(long, default_value = "10000000", value_parser = operations)]
    pub files: u64,
    /// Bytes of Quire's cache (quire and mount; an option of the engine wins)
    #[arg(long, default_value = "1g", value_parser = size::parse)]
    pub cache: u64,
}

/// `quire probe`.
#[derive(Debug, Args)]
pub struct Probe {
    /// Time of each race, in seconds
    #[arg(long, default_value = "1", value_parser = seconds)]
    pub seconds: f64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Keep asynchronous direct I/O going on the file in the races for torn reads and for stale reads
    #[arg(long)]
    pub direct_load: bool,
    /// Seed of all chance
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A directory on the file system in question
    pub dir: PathBuf,
}
