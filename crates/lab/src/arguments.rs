//! The command lines of the program `lab`.

use clap::Args;
use quire_bench::arguments::{operations, seconds, threads};
use quire_bench::size::parse;
use std::path::PathBuf;

/// `lab locks`.
#[derive(Clone, Debug, Args)]
pub struct Locks {
    /// Time of each scheme, in seconds
    #[arg(long, default_value = "2", value_parser = seconds)]
    pub seconds: f64,
    /// Threads that read
    #[arg(long, default_value = "8", value_parser = threads)]
    pub readers: usize,
    /// Threads that write
    #[arg(long, default_value = "8", value_parser = threads)]
    pub writers: usize,
    /// Bytes of one read or write
    #[arg(long, default_value = "4k", value_parser = parse)]
    pub bs: u64,
    /// Bytes of the array
    #[arg(long, default_value = "256m", value_parser = parse)]
    pub size: u64,
    /// Schemes to run, separated by commas [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub schemes: Vec<String>,
    /// Seed of all chance
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write the results as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// `lab conflicts`.
#[derive(Clone, Debug, Args)]
pub struct Conflicts {
    /// Only pairs whose name contains this
    #[arg(long, default_value = "")]
    pub only: String,
    /// Fail where a pair has more conflicting lines than this file says
    #[arg(long, value_name = "FILE")]
    pub check: Option<PathBuf>,
    /// Write what --check reads
    #[arg(long, value_name = "FILE")]
    pub keep: Option<PathBuf>,
}

/// `lab cores`.
#[derive(Clone, Debug, Args)]
pub struct Cores {
    /// Time of each measurement, in seconds
    #[arg(long, default_value = "1", value_parser = seconds)]
    pub seconds: f64,
    /// Nanoseconds that a cache line takes from one core to another [default: measured here]
    #[arg(long)]
    pub transfer: Option<f64>,
    /// Seed of all chance
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// `lab unlink`.
#[derive(Clone, Debug, Args)]
pub struct Unlink {
    /// Small files
    #[arg(long, default_value = "1000000", value_parser = operations)]
    pub files: u64,
    /// Extents of the file of 1 TiB
    #[arg(long, default_value = "200000", value_parser = operations)]
    pub extents: u64,
}
