//! The operations that a conflict report traces, and the state that all of them begin in.
//!
//! Each pair commutes: whatever the order, both give the same answers and leave the same volume. By the
//! scalable commutativity rule there is then an implementation in which they share no line that either
//! writes.
//!
//! The state is a volume in memory, without threads of its own, on which both shards have done everything
//! once: what a shard makes at first use is there, and no checkpoint has come since: the first change of a
//! node after one is counted by the volume, and is rare. Gates of shared files are in the state that
//! contention brings them into. Reads that miss have another volume, whose cache is full; so many are one
//! operation that what is done once for several is in it.
//!
//! Neighbours: [`super::trace`] runs an operation, [`super`] compares.

use super::arena;
use quire::backend::MemoryBackend;
use quire::inodes::{Create, InodeRef, IoFlags};
use quire::{Advice, Clock, FormatOptions, RenameFlags, Timestamp, Volume, VolumeOptions};
use quire_base::sync::Arc;
use quire_base::{BLOCK_SIZE, Result, shard};

/// Files that each directory begins with: enough that names are spread over leaves.
const FILES: usize = 300;
/// Bytes of the files that are read and written.
const FILE_BYTES: u64 = 8 << 20;
/// Where the second side reads and writes: another folio, whatever their size.
const FAR: u64 = 4 << 20;
const BLOCK: usize = BLOCK_SIZE;
/// Reads that miss in one operation, the blocks between two of them, and the cache that is full before.
const MISSES: u64 = 20;
const MISS_STRIDE: u64 = 7;
const FULL_BYTES: u64 = 32 << 20;
/// So many that files made apart lie in allocation groups of their own.
const VOLUME_BLOCKS: u64 = 1 << 20;

/// What operations act on.
pub struct State {
    volume: Volume,
    /// A directory that both sides use.
    shared: InodeRef,
    /// A directory of each side.
    own: [InodeRef; 2],
    /// A cached file that both sides use.
    file: InodeRef,
    /// A cached file of each side, clean.
    own_file: [InodeRef; 2],
    /// A file of each side with one dirty block in place.
    dirty_file: [InodeRef; 2],
    /// A file of each side that a truncate shortens.
    long_file: [InodeRef; 2],
    /// A name for each side that the shared directory does not have; their entries go to different leaves.
    new_names: [String; 2],
    /// A file of each side that the operation unlinks while it is in use, one directory for both.
    open_file: [InodeRef; 2],
    /// A volume whose cache is full, and files of it that are larger than the cache.
    full: Volume,
    large_file: [InodeRef; 2],
}

/// One of two sides: 0 or 1.
pub type Side = usize;
type Act = fn(&State, Side) -> Result<()>;

/// What one side does.
#[derive(Clone, Copy)]
pub struct Operation {
    /// As in the report.
    pub name: &'static str,
    /// Does it.
    pub act: Act,
}

/// Two operations that commute.
#[derive(Clone, Copy)]
pub struct Pair {
    /// What differs: other files, other folios, other names.
    pub apart: &'static str,
    /// Both sides' operations.
    pub sides: [Operation; 2],
}

const fn operation(name: &'static str, act: Act) -> Operation {
    Operation { name, act }
}

const fn both(name: &'static str, apart: &'static str, act: Act) -> Pair {
    Pair { apart, sides: [operation(name, act), operation(name, act)] }
}

const fn mixed(one: (&'static str, Act), other: (&'static str, Act), apart: &'static str) -> Pair {
    Pair { apart, sides: [operation(one.0, one.1), operation(other.0, other.1)] }
}

/// All pairs of the report.
pub const PAIRS: [Pair; 31] = [
    both("read", "the same folio", |state, _| read(state, &state.file, 0)),
    both("read", "different folios", |state, side| read(state, &state.file, place(side))),
    both("20 reads that miss", "different folios", |state, side| {
        read_missing(state, &state.large_file[0], side)
    }),
    both("20 reads that miss", "different files", |state, side| {
        read_missing(state, &state.large_file[side], side)
    }),
    mixed(("read", read_own_place), ("write", write_own_place), "different folios"),
    both("write", "different folios", write_own_place),
    both("write", "different files", |state, side| write(state, &state.own_file[side], 0)),
    both("append", "different files", |state, side| {
        state.volume.inodes().append(&state.own_file[side], &[7; BLOCK], IoFlags::empty()).map(drop)
    }),
    mixed(("stat", stat_file), ("read", read_own_place), "the same file"),
    both("stat", "the same file", stat_file),
    mixed(("stat", stat_file), ("write", write_own_place), "different files' blocks"),
    mixed(("stat", stat_file), ("create", create_own), "another file"),
    mixed(("stat", stat_file), ("unlink", unlink_own), "another file"),
    mixed(("stat", stat_file), ("fsync", fsync_own), "another file"),
    both("lookup", "the same name", |state, _| look_up(state, &state.shared, "s100")),
    both("lookup", "different names", |state, side| look_up(state, &state.shared, ["s100", "s200"][side])),
    both("lookup of nothing", "the same name", |state, _| {
        match state.volume.inodes().lookup(&state.shared, b"nothing") {
            Err(error) if error.kind() == quire::ErrorKind::NotFound => Ok(()),
            other => other.map(drop),
        }
    }),
    mixed(
        // A name in another leaf than the new one.
        ("lookup", |state, _| look_up(state, &state.shared, "s200")),
        ("create", create_shared),
        "different names of one directory",
    ),
    both("create", "different names of one directory", create_shared),
    both("create", "different directories", create_own),
    both("unlink", "different names of one directory", |state, side| {
        state.volume.inodes().remove_file(&state.shared, [b"s010", b"s290"][side])
    }),
    both("unlink", "different directories", unlink_own),
    mixed(("create", create_own), ("unlink", unlink_own), "different directories"),
    both("rename", "different directories", |state, side| {
        let own = &state.own[side];
        state.volume.inodes().rename(own, b"f020", own, b"renamed", RenameFlags::empty())
    }),
    both("link", "different directories", |state, side| {
        state.volume.inodes().hard_link(&state.own_file[side], &state.own[side], b"linked")
    }),
    both("chmod", "different files", |state, side| {
        let set = quire::inodes::SetAttributes { mode: Some(0o600), ..Default::default() };
        state.volume.inodes().set_attributes(&state.own_file[side], &set).map(drop)
    }),
    both("truncate, freeing a block", "different files", |state, side| {
        let file = &state.long_file[side];
        state.volume.inodes().set_len(file, file.size() - BLOCK as u64)
    }),
    both("orphan add", "different directories", |state, side| {
        state.volume.inodes().remove_file(&state.own[side], b"open")
    }),
    both("orphan add and last close", "different directories", |state, side| {
        state.volume.inodes().remove_file(&state.own[side], b"f030")
    }),
    both("fsync", "different files", fsync_own),
    both("statfs", "the same volume", |state, _| {
        std::hint::black_box(state.volume.statfs());
        Ok(())
    }),
];

/// Where a side reads and writes in the shared file.
fn place(side: Side) -> u64 {
    side as u64 * FAR
}

fn read(state: &State, file: &InodeRef, at: u64) -> Result<()> {
    state.volume.inodes().read_at(file, &mut [0; BLOCK], at, IoFlags::empty()).map(drop)
}

/// Reads blocks that are not cached, for each side others.
fn read_missing(state: &State, file: &InodeRef, side: Side) -> Result<()> {
    (0..MISSES).try_for_each(|n| {
        let at = place(side) + n * MISS_STRIDE * BLOCK as u64;
        state.full.inodes().read_at(file, &mut [0; BLOCK], at, IoFlags::empty()).map(drop)
    })
}

fn write(state: &State, file: &InodeRef, at: u64) -> Result<()> {
    state.volume.inodes().write_at(file, &[9; BLOCK], at, IoFlags::empty()).map(drop)
}

fn read_own_place(state: &State, side: Side) -> Result<()> {
    read(state, &state.file, place(side))
}

fn write_own_place(state: &State, side: Side) -> Result<()> {
    write(state, &state.file, place(side))
}

fn stat_file(state: &State, _: Side) -> Result<()> {
    std::hint::black_box(state.volume.inodes().metadata(&state.file));
    Ok(())
}

fn look_up(state: &State, directory: &InodeRef, name: &str) -> Result<()> {
    state.volume.inodes().lookup(directory, name.as_bytes()).map(drop)
}

fn create_own(state: &State, side: Side) -> Result<()> {
    state.volume.inodes().create(&state.own[side], b"new", &Create::file(0o644)).map(drop)
}

fn create_shared(state: &State, side: Side) -> Result<()> {
    state
        .volume
        .inodes()
        .create(&state.shared, state.new_names[side].as_bytes(), &Create::file(0o644))
        .map(drop)
}

fn unlink_own(state: &State, side: Side) -> Result<()> {
    state.volume.inodes().remove_file(&state.own[side], b"f010")
}

fn fsync_own(state: &State, side: Side) -> Result<()> {
    state.volume.inodes().fsync(&state.dirty_file[side], false)
}

/// A file whose bytes are on the device and in the cache.
fn whole_file(volume: &Volume, directory: &InodeRef, name: &str, bytes: u64) -> Result<InodeRef> {
    const PIECE: usize = 1 << 20;
    let file = volume.inodes().create(directory, name.as_bytes(), &Create::file(0o644))?;
    let piece = vec![1; PIECE.min(bytes as usize)];
    for at in (0..bytes).step_by(PIECE) {
        volume.inodes().write_at(&file, &piece, at, IoFlags::empty())?;
    }
    volume.inodes().fsync(&file, false)?;
    volume.inodes().read_at(&file, &mut [0; BLOCK], 0, IoFlags::empty())?;
    Ok(file)
}

/// A volume whose cache is full of single blocks of two files. Both sides read all of both, but what will be
/// read.
fn full_volume(clock: &Clock) -> Result<(Volume, [InodeRef; 2])> {
    let backend = Arc::new(MemoryBackend::new(VOLUME_BLOCKS / 16));
    FormatOptions::new().seed(2).clock(clock.clone()).format_backend(backend.clone())?;
    let options = VolumeOptions::new().cache_bytes(FULL_BYTES).threads(false).clock(clock.clone());
    let volume = options.open_backend(backend)?;
    let root = volume.inodes().root();
    let make = |name| whole_file(&volume, &root, name, 2 * FULL_BYTES);
    let files = [make("a")?, make("b")?];
    for file in &files {
        volume.inodes().advise(file, 0, 0, Advice::DontNeed)?;
    }
    for at in (0..FULL_BYTES).step_by(2 * BLOCK) {
        for side in 0..2 {
            shard::set(side);
            // Not in the order of the file.
            let at = 2 * FAR + at * 1019 % FULL_BYTES;
            files.iter().try_for_each(|file| {
                let at = at + (side * BLOCK) as u64;
                volume.inodes().read_at(file, &mut [0; BLOCK], at, IoFlags::empty()).map(drop)
            })?;
        }
    }
    Ok((volume, files))
}

/// Two names that a directory does not have, far from one another in its order.
fn names_apart(volume: &Volume, directory: &InodeRef) -> Result<[String; 2]> {
    const CANDIDATES: usize = 20;
    let name = |n: usize| format!("new{n}");
    for n in 0..CANDIDATES {
        volume.inodes().create(directory, name(n).as_bytes(), &Create::file(0o644))?;
    }
    let mut order = Vec::new();
    volume.inodes().read_dir(directory, 0, &mut |entry| {
        order.extend(
            std::str::from_utf8(entry.name).ok().filter(|name| name.starts_with("new")).map(String::from),
        );
        true
    })?;
    for n in 0..CANDIDATES {
        volume.inodes().remove_file(directory, name(n).as_bytes())?;
    }
    let last = order.pop().unwrap_or_default();
    Ok([order.swap_remove(0), last])
}

impl State {
    /// Makes the volume.
    pub fn new() -> Result<State> {
        let clock = arena::alone(0, || Clock::simulated(Timestamp(1_700_000_000_000_000_000)));
        let backend = Arc::new(MemoryBackend::new(VOLUME_BLOCKS));
        let format = FormatOptions::new().seed(1).clock(clock.clone());
        format.format_backend(backend.clone())?;
        let options = VolumeOptions::new().cache_bytes(256 << 20).threads(false).clock(clock.clone());
        let volume = options.open_backend(backend)?;
        let (full, large_file) = full_volume(&clock)?;
        shard::set(0);
        let root = volume.inodes().root();
        let directory =
            |name: &str| volume.inodes().create(&root, name.as_bytes(), &Create::directory(0o755));
        let (shared, own) = (directory("shared")?, [directory("a")?, directory("b")?]);
        let fill = |directory: &InodeRef, letter: char| -> Result<()> {
            for n in 0..FILES {
                volume.inodes().create(
                    directory,
                    format!("{letter}{n:03}").as_bytes(),
                    &Create::file(0o644),
                )?;
            }
            Ok(())
        };
        fill(&shared, 's')?;
        fill(&own[0], 'f')?;
        fill(&own[1], 'f')?;
        let of_each = |name: &str, bytes: u64| -> Result<[InodeRef; 2]> {
            // In the sides' own places: their records are not neighbours, nor are their blocks.
            let make = |side: Side| {
                shard::set(side);
                let made = whole_file(&volume, &own[side], name, bytes);
                for n in 0..64 {
                    let name = format!("{name}-filler-{n}");
                    volume.inodes().create(&own[side], name.as_bytes(), &Create::file(0o644))?;
                }
                made
            };
            Ok([make(0)?, make(1)?])
        };
        let state = State {
            file: whole_file(&volume, &shared, "file", FILE_BYTES)?,
            own_file: of_each("own", FILE_BYTES)?,
            dirty_file: of_each("dirty", FILE_BYTES)?,
            long_file: of_each("long", FILE_BYTES)?,
            open_file: of_each("open", 0)?,
            new_names: names_apart(&volume, &shared)?,
            shared,
            own,
            volume,
            full,
            large_file,
        };
        for round in 0..3 {
            for side in 0..2 {
                shard::set(side);
                state.practise(side, round)?;
            }
        }
        state.volume.sync()?;
        state.volume.background_step()?;
        for side in 0..2 {
            shard::set(side);
            state.settle(side)?;
        }
        for file in [&state.file, &state.large_file[0], &state.large_file[1]] {
            file.assume_contended();
        }
        Ok(state)
    }

    /// Everything once, on names that nobody needs.
    fn practise(&self, side: Side, round: u32) -> Result<()> {
        let (volume, own) = (&self.volume, &self.own[side]);
        for directory in [own, &self.shared] {
            let name = format!("practice-{side}-{round}");
            let (name, other) = (name.as_bytes(), format!("practised-{side}-{round}"));
            let file = volume.inodes().create(directory, name, &Create::file(0o644))?;
            volume.inodes().append(&file, &[3; 3 * BLOCK], IoFlags::empty())?;
            volume.inodes().fsync(&file, false)?;
            volume.inodes().set_len(&file, BLOCK as u64)?;
            volume.inodes().rename(directory, name, directory, other.as_bytes(), RenameFlags::empty())?;
            volume.inodes().remove_file(directory, other.as_bytes())?;
            drop(file);
        }
        volume.inodes().set_len(&self.long_file[side], FILE_BYTES - u64::from(round + 1) * BLOCK as u64)?;
        volume.background_step()
    }

    /// The newest thing that each side did, before operations are traced.
    fn settle(&self, side: Side) -> Result<()> {
        let (volume, own) = (&self.volume, &self.own[side]);
        for file in [&self.file, &self.own_file[side]] {
            let at = if std::ptr::eq(file, &self.file) { place(side) } else { 0 };
            volume.inodes().metadata(file);
            write(self, file, at)?;
            read(self, file, at)?;
        }
        for directory in [own, &self.shared] {
            let name = format!("last-{side}");
            volume.inodes().create(directory, name.as_bytes(), &Create::file(0o644))?;
            volume.inodes().remove_file(directory, name.as_bytes())?;
            volume
                .inodes()
                .lookup(directory, if std::ptr::eq(directory, own) { b"f100" } else { b"s100" })?;
        }
        for name in [&b"f010"[..], b"f020", b"f030", b"open", b"own"] {
            volume.inodes().lookup(own, name)?;
        }
        write(self, &self.dirty_file[side], 0)?;
        volume.inodes().metadata(&self.open_file[side]);
        Ok(())
    }
}
