//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::exit;
use crate::mount_options;
use crate::server::freezing::LIMITS;
use crate::values::{self, Setting};
use quire_base::size;

/// A crash-safe, journaling file system in user space.
#[derive(Debug, Parser)]
#[command(name = "quire", version, arg_required_else_help = true, after_help = exit::HELP)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `quire` can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a volume in an image file or on a block device
    ///
    /// An image file is sparse but for the journal, which is written with zeros. What already holds a file
    /// system is refused, unless forced.
    Mkfs(Mkfs),
    /// Mount a volume on a directory
    ///
    /// Returns when the mount is usable; the server goes on in the background.
    #[command(after_help = mount_options::HELP)]
    Mount(Mount),
    /// Unmount, and return when the volume is closed, or is still mounted elsewhere
    Umount(Umount),
    /// Check a volume, and repair it if asked to
    ///
    /// Without --repair nothing is written: the journal is replayed in memory only.
    #[command(
        after_help = "Exit codes: 0 clean; 1 errors corrected; 4 errors left; 8 could not check; 16 wrong usage."
    )]
    Fsck(Fsck),
    /// Copy every readable file out of a volume that cannot be opened
    ///
    /// Never writes to the volume. Names, contents with their holes, links, modes, owners, times and extended
    /// attributes are copied into DIR, which is made or is empty; what has lost its name is in lost+found.
    /// What is lost or could not be read is told by path.
    Salvage(Salvage),
    /// Show what a volume is
    ///
    /// Reads the superblocks only; works beside a mount, and then shows the last checkpoint.
    Info(Info),
    /// Make a volume larger, or its journal
    ///
    /// The volume must not be mounted; one that was not closed in order is recovered first. The journal moves
    /// to free space, of which it needs as much in one piece as it is to have. A crash leaves the volume as
    /// it was, or resized. Nothing can be made smaller.
    Resize(Resize),
    /// Make a volume larger, also while it is mounted and in use
    ///
    /// Of a mounted volume its server does that, and goes on if this command is interrupted; programs go on
    /// meanwhile. A crash leaves the volume with its old size or the new one. Nothing can be made smaller.
    Grow(Grow),
    /// Take, list and delete snapshots of a volume, and roll it back
    ///
    /// A snapshot holds every file as it was, and costs the space of what has changed since. The volume may
    /// be mounted, and in use, except for `rollback`: then its server does the work, and goes on if this
    /// command is interrupted. `quire mount -o snapshot=NAME` shows a snapshot, for reading.
    Snapshot(Snapshot),
    /// Write a snapshot of a volume to the standard output, for `quire receive`
    ///
    /// With --from only what has changed since an older snapshot is sent, which the receiving volume must
    /// have. The volume may be mounted, and in use: then its server writes the stream.
    Send(Send),
    /// Make a volume what a stream on the standard input says
    ///
    /// The volume must not be mounted. A whole snapshot goes to an empty volume, changes go to one that has
    /// the older snapshot and was not changed since. All or nothing: until the stream has come to its end,
    /// the volume can be read as it was, and not be written. What a broken stream has brought stays for the
    /// rest of it.
    Receive(Receive),
    /// Keep a copy of a volume on another volume, a few seconds behind
    ///
    /// Takes snapshots of SOURCE, which may be mounted and in use, and sends what has changed to TARGET,
    /// which is not mounted; makes TARGET a whole copy if it is empty. A stream that breaks goes on where it
    /// was. Runs until it is ended.
    Replicate(Replicate),
    /// Incremental backups in a bucket or directory: create, list, restore, verify, prune
    ///
    /// Runs the program quire-backup, from the directory of this program or from PATH. `quire backup --help`
    /// shows its options.
    #[command(disable_help_flag = true)]
    Backup(Backup),
    /// Show the label of a volume, or change it while the volume is not mounted
    Label(Label),
    /// Show the uuid of a volume, or change it while the volume is not mounted
    ///
    /// A copy of an image has the uuid of its original; give it a new one before both are used on one
    /// machine.
    Uuid(Uuid),
    /// Show what is inside a volume, as of the end of its journal
    Dump(Dump),
    /// Try it out: make quire.img here if there is none, and mount it on ./quire-mnt
    Up(Up),
    /// Show what a running mount does, live
    ///
    /// Requests with their latencies, cache, writeback, journal, busiest files. Ends with q.
    Top(Top),
    /// Ask a running mount's server for something, or tell it something
    Ctl(Ctl),
    /// Read everything that a mounted volume needs, and write bad copies of metadata anew
    ///
    /// The volume stays in use meanwhile. Data of files has no checksums: with --data it is read, and what
    /// the device cannot read is told by path and offset. The scrub runs in the server of the mount; it goes
    /// on if this command is interrupted, and with the next mount if the server ends. One that was stopped
    /// goes on when it is started again.
    Scrub(Scrub),
    /// Tell the device of a mounted volume which space is free, as fstrim does
    ///
    /// A solid-state drive works better for it, a thin volume or image file gives the space back. The volume
    /// stays in use meanwhile. An interrupted trim leaves the rest.
    Trim(Trim),
    /// Keep the image or device of a mounted volume as it is, so that it can be copied from outside
    ///
    /// Everything is made durable first. Changes wait until the volume thaws. Reads go on, but for listings
    /// and new names in a directory where a change waits. The copy opens like a volume after a power cut.
    Freeze(Freeze),
    /// Let changes of a frozen volume go on
    ///
    /// Fails if the volume had thawed by itself: what was copied then may not be whole.
    Thaw(Thaw),
    /// Show the properties of files and directories on a mount, or require some
    Get(Get),
    /// Set properties of files and directories on a mount
    ///
    /// What is created in a directory gets its properties.
    Set(Set),
    /// Show where a file on a mount lies in the image, and keep it there for a while
    ///
    /// A program may read the blocks from the image itself, past the page cache (O_DIRECT); what it has read
    /// counts if the lease is valid afterwards. What would move the blocks recalls the lease, which this
    /// command then returns. Only the file's owner and root may take one.
    Lease(Lease),
    /// Measure Quire beside the kernel's file systems, with the same driver
    ///
    /// Each engine works on an image file that was written through once, in a directory that is removed at
    /// the end.
    Bench(quire_bench::arguments::Bench),
    /// Find out what the file system under a directory really promises, by racing it for a few seconds
    ///
    /// Also says what it promises over power loss: the property untorn of new files, and untorn direct
    /// writes.
    Probe(quire_bench::arguments::Probe),
    /// Write the manual pages to a directory
    Man {
        /// Where to.
        dir: PathBuf,
    },
    /// Write completions for a shell to the standard output
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Serve one file from memory, to measure what the transport alone can do
    #[command(hide = true)]
    BenchNull(BenchNull),
}

/// `quire mkfs`.
#[derive(Debug, Args)]
pub struct Mkfs {
    /// Size of the volume, for example 10G; needed for a new image file [default: the whole file or device]
    #[arg(long, short, value_parser = size::parse)]
    pub size: Option<u64>,
    /// A name for people, at most 64 bytes
    #[arg(long, short = 'L', default_value = "")]
    pub label: String,
    /// Size of the journal [default: by the size of the volume]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub journal_size: Option<u64>,
    /// Copies of each piece of metadata, far apart: 1 or 2 [default: 2 from 64M on]
    #[arg(long, value_name = "1|2", value_parser = clap::value_parser!(u32).range(1..=2))]
    pub metadata_copies: Option<u32>,
    /// Overwrite whatever is there
    #[arg(long, short)]
    pub force: bool,
    /// Say nothing unless it fails
    #[arg(long, short)]
    pub quiet: bool,
    /// Image file or block device
    pub volume: PathBuf,
}

/// `quire mount`.
#[derive(Debug, Args)]
pub struct Mount {
    /// Mount options, separated by commas
    #[arg(short = 'o', value_name = "OPTS")]
    pub options: Vec<String>,
    /// Stay in the foreground, with messages on the terminal; end with Ctrl-C
    #[arg(long, short)]
    pub foreground: bool,
    /// Start the server again if it dies: it recovers the volume and mounts it at the same place
    #[arg(long, conflicts_with = "foreground")]
    pub supervise: bool,
    /// Internal: watch over a server
    #[arg(long, hide = true)]
    pub watch: bool,
    /// Internal: serve, and report on the standard output when ready
    #[arg(long, hide = true)]
    pub report: bool,
    /// Image file or block device
    pub volume: PathBuf,
    /// Mount point
    pub dir: PathBuf,
}

/// `quire umount`.
#[derive(Debug, Args)]
pub struct Umount {
    /// Take the mount out of the tree at once and return; it is closed when its last user is done
    #[arg(long, short)]
    pub lazy: bool,
    /// Mount point
    pub dir: PathBuf,
}

/// `quire fsck`.
#[derive(Debug, Args)]
pub struct Fsck {
    /// Repair what can be repaired
    #[arg(long, short, visible_short_aliases = ['a', 'p', 'y'])]
    pub repair: bool,
    /// With --repair: give up what cannot be read, so that the volume is clean and opens afterwards
    ///
    /// Lists what is lost, by path. Try `quire salvage` or work on a copy first if the disk is failing.
    #[arg(long, requires = "repair")]
    pub lossy: bool,
    /// With --repair: repair in memory only, and tell what a repair would do
    #[arg(long, requires = "repair")]
    pub dry_run: bool,
    /// Repair nothing (the default)
    #[arg(short = 'n', long, conflicts_with = "repair")]
    pub no: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
    /// Check even if the volume was closed in order (always done; for fsck(8))
    #[arg(short = 'f', hide = true)]
    pub force: bool,
    /// Progress for fsck(8)
    #[arg(short = 'C', hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    pub progress: Option<String>,
    /// Open a volume on a server's export although its owner may live: the server keeps that one out
    #[arg(long)]
    pub take_over: bool,
    /// Image file or block device
    pub volume: PathBuf,
}

/// `quire salvage`.
#[derive(Debug, Args)]
pub struct Salvage {
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
    /// Image file or block device
    pub volume: PathBuf,
    /// Where the files are copied to
    pub dir: PathBuf,
}

/// `quire info`.
#[derive(Debug, Args)]
pub struct Info {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Ask the server of the volume mounted at this directory; shows how its requests travel, too
    #[arg(long, value_name = "DIR", conflicts_with = "volume")]
    pub mount: Option<PathBuf>,
    /// Image file, block device or mount point
    #[arg(required_unless_present = "mount")]
    pub volume: Option<PathBuf>,
}

/// A volume's new size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewSize {
    /// So many bytes.
    Bytes(u64),
    /// All that the file or device has.
    Max,
}

impl std::str::FromStr for NewSize {
    type Err = String;

    fn from_str(text: &str) -> Result<NewSize, String> {
        if text == "max" { Ok(NewSize::Max) } else { size::parse(text).map(NewSize::Bytes) }
    }
}

/// `quire resize`.
#[derive(Debug, Args)]
pub struct Resize {
    /// New size of the volume, for example 20G; max: the whole file or device. An image file grows with it
    #[arg(long, short, value_name = "SIZE|max", required_unless_present = "journal_size")]
    pub size: Option<NewSize>,
    /// New size of the journal: at most a quarter of the volume, and 4G
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub journal_size: Option<u64>,
    /// Say nothing unless it fails
    #[arg(long, short)]
    pub quiet: bool,
    /// Open a volume on a server's export although its owner may live: the server keeps that one out
    #[arg(long)]
    pub take_over: bool,
    /// Image file or block device
    pub volume: PathBuf,
}

/// `quire grow`.
#[derive(Debug, Args)]
pub struct Grow {
    /// New size of the volume, for example 20G: an image file grows with it. Default: the whole file or
    /// device
    #[arg(long, short, value_name = "SIZE|max")]
    pub size: Option<NewSize>,
    /// Say nothing unless it fails
    #[arg(long, short)]
    pub quiet: bool,
    /// Mount point, image file or block device
    pub volume: PathBuf,
}

/// `quire snapshot`.
#[derive(Debug, Args)]
pub struct Snapshot {
    /// What to do
    #[command(subcommand)]
    pub action: SnapshotAction,
}

/// What `quire snapshot` does.
#[derive(Debug, Subcommand)]
pub enum SnapshotAction {
    /// Take a snapshot
    ///
    /// It has everything that was written before. Writers wait for a moment.
    Create {
        /// Mount point, image file or block device
        volume: PathBuf,
        /// Name of the snapshot
        name: String,
    },
    /// List the snapshots of a volume, the oldest first
    List {
        /// Mount point, image file or block device
        volume: PathBuf,
        /// Without the space that they take, which takes a while to count
        #[arg(long)]
        no_space: bool,
        /// JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// Delete a snapshot
    ///
    /// Returns when its space is free. What the end of the mount interrupts, the next one goes on with.
    Delete {
        /// Mount point, image file or block device
        volume: PathBuf,
        /// Name of the snapshot
        name: String,
    },
    /// Make the volume what it was when its newest snapshot was taken
    ///
    /// Everything that was done since is lost. The snapshot stays.
    Rollback {
        /// Image file or block device
        volume: PathBuf,
        /// Name of the snapshot
        name: String,
    },
}

/// `quire send`.
#[derive(Debug, Args)]
pub struct Send {
    /// Send only what has changed since this snapshot
    #[arg(long, value_name = "OLD", conflicts_with = "resume")]
    pub from: Option<String>,
    /// Send the rest of a stream that broke: what `quire receive --resume-token` shows
    #[arg(long, value_name = "TOKEN")]
    pub resume: Option<String>,
    /// Show no progress
    #[arg(long, short)]
    pub quiet: bool,
    /// Mount point, image file or block device
    pub volume: PathBuf,
    /// Name of the snapshot
    #[arg(required_unless_present = "resume", conflicts_with = "resume")]
    pub name: Option<String>,
}

/// `quire receive`.
#[derive(Debug, Args)]
pub struct Receive {
    /// Give up what was changed since the snapshot that the stream begins at: rolls back to it first
    #[arg(long)]
    pub force: bool,
    /// Show the token of an unfinished receive, and how far it is on the standard error
    #[arg(long, conflicts_with_all = ["force", "abort"])]
    pub resume_token: bool,
    /// Give an unfinished receive up: the volume is what it was before
    #[arg(long, conflicts_with = "force")]
    pub abort: bool,
    /// Show no progress
    #[arg(long, short)]
    pub quiet: bool,
    /// Image file or block device
    pub volume: PathBuf,
}

/// `quire replicate`.
#[derive(Debug, Args)]
pub struct Replicate {
    /// Time between two snapshots: a number of seconds, or 5s, 2m, 1h
    #[arg(long, default_value = "5s", value_parser = values::seconds)]
    pub every: Duration,
    /// Bring the copy up to date once, and end; fail if that fails
    #[arg(long)]
    pub once: bool,
    /// Own snapshots that stay on each side, the newest included
    #[arg(long, default_value_t = 2, value_parser = values::at_least_one)]
    pub keep: usize,
    /// What the names of its snapshots begin with; each target of a source needs another one
    #[arg(long, default_value = "replica")]
    pub prefix: String,
    /// Program that runs a command on the host of TARGET
    #[arg(
        long,
        value_name = "COMMAND",
        default_value = "ssh -o ServerAliveInterval=15 -o ServerAliveCountMax=4"
    )]
    pub rsh: String,
    /// The program quire on the host of TARGET
    #[arg(long, value_name = "PROGRAM", default_value = "quire")]
    pub remote_program: String,
    /// Write how far behind the copy is to a file, for the node exporter of Prometheus
    #[arg(long, value_name = "FILE")]
    pub metrics: Option<PathBuf>,
    /// Mount point, image file or block device
    pub source: String,
    /// Image file, block device or address; HOST:PATH on another machine
    pub target: String,
}

/// `quire uuid`.
#[derive(Debug, Args)]
pub struct Uuid {
    /// Image file or block device
    pub volume: PathBuf,
    /// Another uuid, or `new` for a random one
    pub uuid: Option<String>,
}

/// `quire backup`.
#[derive(Debug, Args)]
pub struct Backup {
    /// What quire-backup gets
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
}

/// `quire label`.
#[derive(Debug, Args)]
pub struct Label {
    /// Image file or block device
    pub volume: PathBuf,
    /// The new label, at most 64 bytes; "" for none
    pub name: Option<String>,
}

/// Parts of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Both superblock slots
    Superblock,
    /// The journal's records that a mount would replay
    Journal,
    /// Every key and value
    Tree,
    /// One inode: record, attributes, entries, extents
    Inode,
}

/// `quire dump`.
#[derive(Debug, Args)]
pub struct Dump {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Image file or block device
    pub volume: PathBuf,
    /// What to show
    pub part: Part,
    /// The inode's number
    #[arg(required_if_eq("part", "inode"))]
    pub number: Option<u64>,
}

/// `quire up`.
#[derive(Debug, Args)]
pub struct Up {
    /// Mount point
    #[arg(default_value = "quire-mnt")]
    pub dir: PathBuf,
}

/// `quire top`.
#[derive(Debug, Args)]
pub struct Top {
    /// Seconds between two readings
    #[arg(long, short, default_value_t = 1.0)]
    pub interval: f64,
    /// Print one reading as text, and end
    #[arg(long)]
    pub once: bool,
    /// Mount point
    pub dir: PathBuf,
}

/// `quire ctl`.
#[derive(Debug, Args)]
pub struct Ctl {
    /// What it is about
    #[command(subcommand)]
    pub what: Control,
}

/// What a server can be asked or told.
#[derive(Debug, Subcommand)]
pub enum Control {
    /// Print all of its numbers, in Prometheus' text format
    Metrics {
        /// Mount point
        dir: PathBuf,
    },
    /// Make everything durable that was done on the mount, as syncfs does where it reaches the server
    Sync {
        /// Mount point
        dir: PathBuf,
    },
    /// Change the limit of its cache; what is over it leaves soon
    CacheSize {
        /// Mount point
        dir: PathBuf,
        /// The new limit, for example 512M
        #[arg(value_parser = size::parse)]
        size: u64,
    },
}

/// `quire scrub`.
#[derive(Debug, Args)]
pub struct Scrub {
    /// Read the data of all files as well
    #[arg(long)]
    pub data: bool,
    /// Read at most so much in a second, for example 50M
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub rate: Option<u64>,
    /// Begin at the beginning, even if the last scrub was stopped or interrupted
    #[arg(long)]
    pub restart: bool,
    /// Show how far the scrub is that runs, or what the last one found
    #[arg(long, conflicts_with_all = ["stop", "data", "rate", "restart"])]
    pub status: bool,
    /// Stop the scrub that runs; started again, it goes on from there
    #[arg(long, conflicts_with_all = ["data", "rate", "restart"])]
    pub stop: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Mount point
    pub dir: PathBuf,
}

/// `quire trim`.
#[derive(Debug, Args)]
pub struct Trim {
    /// Discard at most so much in a second, for example 500M
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub rate: Option<u64>,
    /// Mount point
    pub dir: PathBuf,
}

/// `quire freeze`.
#[derive(Debug, Args)]
pub struct Freeze {
    /// Seconds after which the volume thaws by itself
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(LIMITS))]
    pub limit: u64,
    /// Mount point
    pub dir: PathBuf,
}

/// `quire thaw`.
#[derive(Debug, Args)]
pub struct Thaw {
    /// Mount point
    pub dir: PathBuf,
}

/// `quire get`.
#[derive(Debug, Args)]
pub struct Get {
    /// Everything below directories, too
    #[arg(long, short)]
    pub recursive: bool,
    /// Show only what lacks this property, and fail if anything does; may be given several times
    #[arg(long, value_name = "PROPERTY=VALUE")]
    pub require: Vec<Setting>,
    /// Files and directories on a mount
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
}

/// `quire lease`.
#[derive(Debug, Args)]
pub struct Lease {
    /// Only these bytes: START-END, START- or -END, for example 0-64M
    #[arg(long, value_name = "RANGE", allow_hyphen_values = true, value_parser = values::range)]
    pub range: Option<std::ops::Range<u64>>,
    /// Seconds to hold the lease, at most; it is returned when it is recalled
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub hold: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// A file on a mount
    pub file: PathBuf,
}

/// `quire set`.
#[derive(Debug, Args)]
pub struct Set {
    /// Everything below directories, too
    #[arg(long, short)]
    pub recursive: bool,
    /// untorn=4k to untorn=1m or untorn=off; cache=drop or cache=keep; then files and directories on a mount
    #[arg(required = true, num_args = 2.., value_name = "PROPERTY=VALUE... PATH")]
    pub operands: Vec<PathBuf>,
}

/// `quire bench-null`.
#[derive(Debug, Args)]
pub struct BenchNull {
    /// Size of the file
    #[arg(long, default_value = "1G", value_parser = size::parse)]
    pub size: u64,
    /// Threads that receive requests [default: as for a volume]
    #[arg(long)]
    pub threads: Option<usize>,
    /// How requests travel: auto, ring or dev
    #[arg(long, default_value = "auto")]
    pub transport: String,
    /// Mount point
    pub dir: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_grammar_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_documented_calls() {
        for line in [
            "quire mkfs --size 10G --label backup --journal-size 64M --force a.img",
            "quire mount -o ro,noatime --foreground a.img mnt",
            "quire mount a.img mnt -o ro -o noatime",
            "quire umount mnt",
            "quire fsck --repair --json a.img",
            "quire fsck -a -C=0 a.img",
            "quire fsck --repair --lossy --dry-run a.img",
            "quire salvage --json a.img out",
            "quire info a.img",
            "quire resize --journal-size 512M a.img",
            "quire resize --size max --journal-size 512M a.img",
            "quire resize -s 20G a.img",
            "quire grow mnt",
            "quire grow --size 20G a.img",
            "quire label a.img",
            "quire trim --rate 500M mnt",
            "quire freeze --limit 600 mnt",
            "quire thaw mnt",
            "quire label a.img backup",
            "quire uuid a.img",
            "quire uuid a.img new",
            "quire dump a.img superblock",
            "quire dump --json a.img inode 5",
            "quire up",
            "quire up elsewhere",
            "quire top --once mnt",
            "quire ctl metrics mnt",
            "quire ctl cache-size mnt 512M",
            "quire get -r --require untorn=8k --require cache=drop mnt mnt/file",
            "quire set untorn=8k cache=drop mnt -r",
            "quire lease mnt/file",
            "quire lease --range 0-64M --hold 30 --json mnt/file",
            "quire man out",
            "quire completions bash",
            "quire bench-null mnt",
            "quire bench mixed --engines quire,mount,xfs,ext4,btrfs,memcpy --seconds 20",
            "quire bench dirty --folio 64k --track folio --json out.json --plot out.svg",
            "quire bench untorn --engines quire@untorn=8k,quire,mount@untorn=8k,xfs@atomic,xfs,ext4,raw --bs 8k",
            "quire bench group --engines quire,mount,xfs,ext4,btrfs --threads 4 --writes 4 --size 256m",
            "quire probe --json --seconds 2 mnt",
        ] {
            Cli::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        for line in [
            "quire mkfs",
            "quire mkfs --size lots a.img",
            "quire dump a.img inode",
            "quire mount a.img",
            "quire resize a.img",
            "quire resize --size most a.img",
            "quire grow --size most mnt",
            "quire get",
            "quire get --require torn=8k mnt",
            "quire set untorn=8k",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
