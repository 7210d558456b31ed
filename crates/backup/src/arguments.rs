//! What people write.

use std::path::PathBuf;

use chrono::TimeDelta;
use clap::{Args, Parser, Subcommand};
use quire_base::size;

use crate::manifest::{PART_BYTES_MAX, PART_BYTES_MIN};
use crate::retention::parse_span;

/// Incremental backups of Quire volumes in a bucket or directory
#[derive(Debug, Parser)]
#[command(name = "quire backup", bin_name = "quire backup", version, after_help = HELP)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const HELP: &str = "\
URL is a directory, file:///DIRECTORY or s3://BUCKET/PREFIX. For S3 the variables AWS_ACCESS_KEY_ID, \
AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL, AWS_ALLOW_HTTP and AWS_TIMEOUT apply. The variable QUIRE names the program \
quire.

Exit codes: 0 done; 1 wrong usage; 32 failed; 35 a backup is damaged; 37 something is missing; others are those of quire.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Back a volume up: what has changed since its newest backup, or all
    ///
    /// Takes the snapshot backup-NAME of a volume, mounted or not, and stores its stream. The snapshot
    /// stays for the next backup; those of older backups are deleted. After an interruption, the same command
    /// with the same NAME goes on.
    Create(Create),
    /// List finished backups
    List(List),
    /// Make a volume what a backup says
    ///
    /// After an interruption, the same command goes on.
    Restore(Restore),
    /// Read backups and check sizes, checksums, and that nothing is missing
    Verify(Verify),
    /// Delete old backups
    ///
    /// A kept backup keeps those that it goes on from. If one of them cannot be restored, nothing is deleted.
    /// Parts that unfinished backups have left are deleted after a day.
    Prune(Prune),
}

/// `quire backup create`.
#[derive(Debug, Args)]
pub struct Create {
    /// Name of the backup [default: the time and the volume, such as 20261124T131500Z-3f2a]
    #[arg(long)]
    pub name: Option<String>,
    /// Store everything, not what has changed
    #[arg(long)]
    pub full: bool,
    /// Size of the objects; up to four are in memory, and three more where a create goes on
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = part_size)]
    pub part_size: u64,
    /// Mount point, image file or block device
    pub volume: PathBuf,
    /// Directory or s3://BUCKET/PREFIX
    pub url: String,
}

/// `quire backup list`.
#[derive(Debug, Args)]
pub struct List {
    /// For programs
    #[arg(long)]
    pub json: bool,
    /// Directory or s3://BUCKET/PREFIX
    pub url: String,
}

/// `quire backup restore`.
#[derive(Debug, Args)]
pub struct Restore {
    /// Size of a new volume, for example 10G [default: that of the volume that was backed up]
    #[arg(long, value_parser = size::parse)]
    pub size: Option<u64>,
    /// Directory or s3://BUCKET/PREFIX
    pub url: String,
    /// Name of the backup
    pub name: String,
    /// Image file, block device or nbd:// address: a new or blank one, an empty volume, or one with an older backup
    /// of the chain
    pub target: PathBuf,
}

/// `quire backup verify`.
#[derive(Debug, Args)]
pub struct Verify {
    /// Directory or s3://BUCKET/PREFIX
    pub url: String,
    /// This backup and those that it goes on from [default: all]
    pub name: Option<String>,
}

/// `quire backup prune`.
#[derive(Debug, Args)]
pub struct Prune {
    /// Keep the newest N backups of each volume
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub keep_last: usize,
    /// Keep those whose snapshot was taken within this time, too: 12h, 30d, 8w
    #[arg(long, value_name = "DURATION", value_parser = parse_span)]
    pub keep_within: Option<TimeDelta>,
    /// Only say what would be deleted
    #[arg(long)]
    pub dry_run: bool,
    /// Directory or s3://BUCKET/PREFIX
    pub url: String,
}

fn part_size(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    if (PART_BYTES_MIN..=PART_BYTES_MAX).contains(&bytes) {
        return Ok(bytes);
    }
    Err(format!("from {} to {}", size::show(PART_BYTES_MIN), size::show(PART_BYTES_MAX)))
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count >= 1).ok_or_else(|| "a number from 1 on".into())
}
