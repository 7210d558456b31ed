//! What a run will do, from a seed: a profile (how large, how full, what kind of work) and a list of steps
//! for each thread.
//!
//! A step is a seed of its own. What it does is drawn from it when its turn comes, against what is there by
//! then ([`World`]); so steps can be left out, to shrink a failing run, and the rest stays meaningful.
//!
//! Neighbours: [`crate::run`] performs the operations.

use crate::model::{BLOCK, PIECE, ROOT};
use crate::operation::{GroupEnd, GroupWrite, Many, Name, Operation};
use quire::inodes::{FallocateMode, InodeRef, IoFlags, XattrFlags};
use quire::{FileType, RenameFlags};
use quire_base::random::Random;
use std::collections::{BTreeMap, BTreeSet};

/// What kind of run it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A bit of everything.
    Mixed,
    /// Many small files and names, little data.
    Names,
    /// Few files, much data, overwritten in place.
    Data,
    /// As good as full: operations fail for want of space, and space is freed and taken again.
    Full,
    /// Large attributes: the journal goes round and round.
    Wrap,
    /// Truncates, punches, collapses and inserts.
    Reshape,
    /// Much that is journaled, and many fsyncs of it at once.
    Forces,
    /// Very few files, overwritten and fsynced by everyone.
    Shared,
    /// Few files that grow by small appends, mostly forced, and are cut inside a block now and then.
    Logs,
    /// Untorn files and groups of writes.
    Atomic,
    /// Snapshots, taken, read and deleted again and again while files are overwritten, reshaped and removed.
    Snapshots,
}

impl Style {
    /// Every style that a seed may have; [`Style::Shared`] is asked for by its name.
    pub const ALL: [Style; 10] = [
        Style::Mixed,
        Style::Names,
        Style::Data,
        Style::Full,
        Style::Wrap,
        Style::Reshape,
        Style::Forces,
        Style::Logs,
        Style::Atomic,
        Style::Snapshots,
    ];
}

/// See [`Style`]; the numbers that go with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// What kind of run it is.
    pub style: Style,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Bytes of the cache.
    pub cache_bytes: u64,
    /// Bytes of the tree's node cache.
    pub node_cache_bytes: u64,
    /// Names in a directory.
    pub names: u64,
    /// Inodes that the run keeps about.
    pub inodes: usize,
    /// Bytes of a file, more or less.
    pub file_bytes: u64,
    /// Freed blocks are discarded.
    pub discard: bool,
    /// What discarded blocks read as, over and over; `None`: zeros.
    pub discarded: Option<u8>,
    /// Some writes of data fail.
    pub faults: bool,
    /// Groups of more bytes of blocks go to fresh blocks, though a record would take them.
    pub group_record_bytes: Option<u64>,
    /// Names that snapshots have.
    pub snapshots: u64,
    /// One of so many steps is about snapshots; 0: none.
    pub snapshots_one_in: u64,
}

impl Profile {
    /// The profile of a seed; `style` overrides the seed's.
    pub fn of(seed: u64, style: Option<Style>) -> Profile {
        let mut random = Random::seeded(seed ^ 0x9f0f_11e5);
        let drawn = Style::ALL[random.below(Style::ALL.len() as u64) as usize];
        let style = style.unwrap_or(drawn);
        let file_bytes = match style {
            Style::Names => 16 << 10,
            Style::Wrap | Style::Forces | Style::Shared | Style::Logs => 32 << 10,
            Style::Mixed | Style::Reshape | Style::Atomic => 128 << 10,
            Style::Data => 512 << 10,
            Style::Full => 1 << 20,
            Style::Snapshots => 64 << 10,
        };
        Profile {
            style,
            // Nothing but full volumes are to be full: neither by large attributes nor by what the metadata
            // pool takes.
            blocks: match (style, 8192 << random.below(2)) {
                (Style::Full, _) => 4096,
                // Several regions, that deletions go through one by one; or some very large writes.
                (Style::Wrap | Style::Snapshots | Style::Data | Style::Mixed, _) => 16_384,
                (_, blocks) => blocks,
            },
            cache_bytes: [5 << 20, 8 << 20][random.below(2) as usize],
            node_cache_bytes: [1 << 20, 8 << 20][random.below(2) as usize],
            names: 4 + random.below(if style == Style::Names { 30 } else { 10 }),
            inodes: match style {
                Style::Names => 40,
                Style::Shared => 2,
                Style::Logs => 3,
                Style::Atomic | Style::Snapshots => 3 + random.below(3) as usize,
                _ => 4 + random.below(10) as usize,
            },
            file_bytes,
            discard: random.one_in(2),
            discarded: (seed / 8 % 2 == 1).then_some(crate::run::FOREIGN),
            faults: random.one_in(8),
            group_record_bytes: match random.below(4) {
                0 => Some(0),
                1 => Some(32 << 10),
                _ => None,
            },
            snapshots: match style {
                Style::Snapshots => 5,
                Style::Data => 1,
                _ => 2,
            },
            snapshots_one_in: if style == Style::Snapshots { 5 } else { 40 },
        }
    }
}

impl Profile {
    /// Whether an operation is to be one of groups or units.
    fn is_atomic(&self, random: &mut Random) -> bool {
        match self.style {
            Style::Atomic => random.one_in(2),
            Style::Mixed | Style::Full => random.one_in(8),
            Style::Snapshots => random.one_in(4),
            _ => false,
        }
    }
}

/// Inodes that are kept in mind as changed.
const RECENT: usize = 4;

/// One step of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step(pub u64);

/// The steps of a level, by thread.
pub fn steps(seed: u64, threads: usize, operations: usize) -> Vec<Vec<Step>> {
    let mut random = Random::seeded(seed);
    let each = operations.div_ceil(threads);
    (0..threads).map(|_| (0..each).map(|_| Step(random.next_u64())).collect()).collect()
}

/// What the threads of a run know: handles, and names as they were when somebody last looked.
#[derive(Default)]
pub struct World {
    /// Open handles, by inode.
    pub handles: BTreeMap<u64, InodeRef>,
    /// Names that were there.
    pub names: BTreeMap<(u64, Name), u64>,
    /// Inodes that were changed last, the latest at the end.
    pub recent: Vec<u64>,
    /// Names of snapshots that can be opened.
    pub snapshots: BTreeSet<u8>,
}

impl World {
    fn pick(&self, random: &mut Random, wanted: impl Fn(FileType) -> bool) -> Option<u64> {
        let fitting: Vec<u64> = self
            .handles
            .iter()
            .filter(|(_, inode)| wanted(inode.kind()))
            .map(|(number, _)| *number)
            .collect();
        (!fitting.is_empty()).then(|| fitting[random.below(fitting.len() as u64) as usize])
    }

    fn file(&self, random: &mut Random) -> Option<u64> {
        self.pick(random, |kind| kind == FileType::Regular)
    }

    /// A file; where few are shared, mostly the same one.
    fn busy_file(&self, random: &mut Random, profile: &Profile) -> Option<u64> {
        if profile.style != Style::Shared || random.one_in(4) {
            return self.file(random);
        }
        let regular = |inode: &InodeRef| inode.kind() == FileType::Regular;
        self.handles.iter().find(|(_, inode)| regular(inode)).map(|(number, _)| *number)
    }

    /// Keeps in mind that an inode was changed.
    pub fn touch(&mut self, inode: u64) {
        self.recent.retain(|known| *known != inode);
        self.recent.push(inode);
        if self.recent.len() > RECENT {
            self.recent.remove(0);
        }
    }

    /// Often one that was changed not long ago.
    fn changed(&self, random: &mut Random) -> Option<u64> {
        if random.one_in(3) || self.recent.is_empty() {
            return self.file(random);
        }
        let inode = self.recent[random.below(self.recent.len() as u64) as usize];
        self.handles.contains_key(&inode).then_some(inode)
    }

    fn directory(&self, random: &mut Random) -> u64 {
        if random.one_in(3) {
            return ROOT;
        }
        self.pick(random, |kind| kind == FileType::Directory).unwrap_or(ROOT)
    }

    /// Mostly a name that is there, now and then any.
    fn existing(&self, random: &mut Random, profile: &Profile) -> (u64, Name) {
        if self.names.is_empty() || random.one_in(8) {
            return (self.directory(random), name(random, profile));
        }
        let at = random.below(self.names.len() as u64) as usize;
        *self.names.keys().nth(at).expect("an index below the length")
    }

    fn size(&self, inode: u64) -> u64 {
        self.handles.get(&inode).map_or(0, InodeRef::size)
    }

    /// What a step does now.
    pub fn resolve(&self, step: Step, profile: &Profile, single: bool) -> Operation {
        if let Some(operation) = self.snapshot_operation(step, profile) {
            return operation;
        }
        let mut random = Random::seeded(step.0);
        let random = &mut random;
        let class = random.below(100);
        let weights = weights(profile.style);
        let mut sum = 0;
        let chosen = weights.iter().position(|weight| {
            sum += weight;
            class < sum
        });
        let operation = match chosen {
            Some(0) => self.names_operation(random, profile),
            Some(1) => self.data_operation(random, profile),
            Some(2) => self.shape_operation(random, profile),
            Some(3) => self.attribute_operation(random, profile),
            Some(4) => self.force_operation(random, profile, single),
            _ => self.look_operation(random, profile),
        };
        operation.unwrap_or_else(|| {
            let directory = self.directory(random);
            let name = name(random, profile);
            create(random, directory, name)
        })
    }

    /// Drawn apart, so that what the other steps do does not depend on it.
    fn snapshot_operation(&self, step: Step, profile: &Profile) -> Option<Operation> {
        if profile.snapshots_one_in == 0 {
            return None;
        }
        let random = &mut Random::seeded(step.0 ^ 0x54a9_5407);
        if !random.one_in(profile.snapshots_one_in) {
            return None;
        }
        let any = random.below(profile.snapshots) as u8;
        let (there, free): (Vec<u8>, Vec<u8>) =
            (0..profile.snapshots as u8).partition(|name| self.snapshots.contains(name));
        let one = |of: &[u8], random: &mut Random| match of.is_empty() || random.one_in(12) {
            true => any,
            false => of[random.below(of.len() as u64) as usize],
        };
        Some(match random.below(10) {
            0..=4 if !free.is_empty() => Operation::TakeSnapshot { name: one(&free, random) },
            0..=3 => Operation::ReadSnapshot { name: one(&there, random) },
            5 | 6 => Operation::ReadSnapshot { name: one(&there, random) },
            _ => Operation::DeleteSnapshot { name: one(&there, random), later: !random.one_in(3) },
        })
    }

    fn names_operation(&self, random: &mut Random, profile: &Profile) -> Option<Operation> {
        let crowded = self.names.len() >= profile.inodes;
        let directory = self.directory(random);
        let new = name(random, profile);
        Some(match random.below(20) {
            0..=6 if !crowded => create(random, directory, new),
            7 if !crowded => {
                Operation::Create { directory, name: new, kind: FileType::Directory, mode: 0o755 }
            }
            8 if !crowded => Operation::Symlink { directory, name: new, length: 16 + random.below(1200) },
            9 if !crowded => Operation::TemporaryFile { directory, mode: 0o600 },
            10 | 11 => Operation::Link { inode: self.pick(random, |_| true)?, directory, name: new },
            12..=15 => {
                let (from, name) = self.existing(random, profile);
                let (to, to_name) =
                    if random.one_in(2) { self.existing(random, profile) } else { (directory, new) };
                let flags = match random.below(5) {
                    0 => RenameFlags::NOREPLACE,
                    1 => RenameFlags::EXCHANGE,
                    _ => RenameFlags::empty(),
                };
                Operation::Rename { from, name, to, to_name, flags }
            }
            16 => {
                let (directory, name) = self.existing(random, profile);
                Operation::RemoveDirectory { directory, name }
            }
            _ => {
                let (directory, name) = self.existing(random, profile);
                let is_directory = self
                    .names
                    .get(&(directory, name))
                    .and_then(|inode| self.handles.get(inode))
                    .is_some_and(|inode| inode.kind() == FileType::Directory);
                if is_directory && !random.one_in(6) {
                    Operation::RemoveDirectory { directory, name }
                } else {
                    Operation::Unlink { directory, name }
                }
            }
        })
    }

    fn data_operation(&self, random: &mut Random, profile: &Profile) -> Option<Operation> {
        if profile.is_atomic(random) {
            return self.group(random, profile);
        }
        let inode = self.busy_file(random, profile)?;
        let size = self.size(inode);
        if profile.style == Style::Logs && !random.one_in(8) {
            return Some(if size == 0 { append(random, inode) } else { write_near_end(random, inode, size) });
        }
        let mut flags = IoFlags::empty();
        let shared = profile.style == Style::Shared;
        flags.set(IoFlags::DIRECT, !(shared && profile.faults) && random.one_in(if shared { 12 } else { 4 }));
        // What fails on its way through leaves a file of which nothing is known; where files are few, none
        // does.
        let through = if shared && profile.faults { u64::MAX } else { random.below(12) };
        match through {
            0 => flags |= IoFlags::SYNC,
            1 => flags |= IoFlags::DATASYNC,
            _ => {}
        }
        flags.set(IoFlags::APPEND, random.one_in(if shared { 20 } else { 5 }));
        let largest = match profile.style {
            Style::Full => 512 << 10,
            Style::Names | Style::Forces | Style::Shared => 12 << 10,
            _ => 64 << 10,
        };
        let (offset, length) = match random.below(8) {
            // Whole blocks.
            0..=3 => {
                let most = largest / BLOCK / if random.one_in(2) { 1 } else { 3 };
                let blocks = 1 + random.below(most);
                (random.below(profile.file_bytes / BLOCK) * BLOCK, blocks * BLOCK)
            }
            // Some bytes, as a store into a mapping changes them.
            4 | 5 => (random.below(size.max(1)), 1 + random.below(300)),
            // Unaligned.
            6 => (random.below(profile.file_bytes), 1 + random.below(largest / 2)),
            // At or past the end, leaving a gap.
            _ => (size + random.below(3) * random.below(20_000), 1 + random.below(largest / 2)),
        };
        let length = match profile.style {
            Style::Mixed | Style::Data if random.one_in(20) => in_pieces(random),
            _ => length,
        };
        Some(Operation::Write { inode, offset, length, flags })
    }

    /// Up to five writes and truncates of up to three files.
    fn group(&self, random: &mut Random, profile: &Profile) -> Option<Operation> {
        let files: Vec<u64> = (0..1 + random.below(3)).filter_map(|_| self.file(random)).collect();
        let writes = (0..1 + random.below(5)).map(|_| {
            let inode = *files.get(random.below(files.len().max(1) as u64) as usize)?;
            let size = self.size(inode);
            if random.one_in(8) {
                let size = match random.below(4) {
                    0 => random.below(profile.file_bytes / BLOCK) * BLOCK,
                    1 => random.below(profile.file_bytes),
                    _ => random.below(size + 1),
                };
                return Some(GroupWrite { inode, offset: size, length: 0 });
            }
            let (offset, length) = match random.below(6) {
                0..=2 => (random.below(profile.file_bytes / BLOCK) * BLOCK, (1 + random.below(4)) * BLOCK),
                3 => (random.below(size.max(1)), 1 + random.below(300)),
                4 if profile.group_record_bytes.is_some() => {
                    (random.below(profile.file_bytes), 1 + random.below(profile.file_bytes))
                }
                4 => (random.below(profile.file_bytes), 1 + random.below(16_000)),
                _ => (size + random.below(3) * random.below(9000), 1 + random.below(9000)),
            };
            Some(GroupWrite { inode, offset, length })
        });
        let writes = writes.collect::<Option<Vec<_>>>()?;
        let end = match random.below(12) {
            0..=3 => GroupEnd::Now,
            4 => GroupEnd::Lazy(random.below(3) * 20),
            5 => GroupEnd::Lazy(6000),
            6 => GroupEnd::Dropped,
            _ => GroupEnd::Ordered,
        };
        Some(Operation::Group { writes, end })
    }

    fn shape_operation(&self, random: &mut Random, profile: &Profile) -> Option<Operation> {
        let inode = self.file(random)?;
        let size = self.size(inode);
        let blocks = size / BLOCK;
        if profile.style == Style::Logs && !random.one_in(4) {
            // Inside the last block or the one before.
            return Some(Operation::Truncate { inode, size: size - random.below(size.min(BLOCK) + 1) });
        }
        let (offset, length) = if random.one_in(2) {
            (random.below(size.max(1)), 1 + random.below(profile.file_bytes / 2))
        } else {
            (random.below(blocks + 2) * BLOCK, (1 + random.below(8)) * BLOCK)
        };
        let mode = match random.below(12) {
            0..=3 => {
                let size = match random.below(4) {
                    0 => 0,
                    1 => random.below(profile.file_bytes),
                    2 => random.below(blocks + 1) * BLOCK,
                    _ => random.below(size + 1),
                };
                return Some(Operation::Truncate { inode, size });
            }
            4 | 5 => FallocateMode::PunchHole,
            6 => FallocateMode::ZeroRange { keep_size: random.one_in(2) },
            7 => FallocateMode::Allocate,
            8 => FallocateMode::KeepSize,
            shift => {
                let mode = if shift == 9 || size > 2 * profile.file_bytes {
                    FallocateMode::Collapse
                } else {
                    FallocateMode::Insert
                };
                let offset = random.below(blocks + 1) * BLOCK;
                let length = (1 + random.below(8)) * BLOCK;
                return Some(Operation::Allocate { inode, mode, offset, length });
            }
        };
        // Without a size, so that much space goes without many bytes to look at.
        let length = if mode == FallocateMode::KeepSize && profile.style == Style::Full {
            (1 + random.below(2048)) * BLOCK
        } else {
            length
        };
        Some(Operation::Allocate { inode, mode, offset, length })
    }

    fn attribute_operation(&self, random: &mut Random, profile: &Profile) -> Option<Operation> {
        if profile.is_atomic(random) {
            let inode = if random.one_in(3) { self.directory(random) } else { self.file(random)? };
            let file = self.handles.get(&inode).is_some_and(|handle| handle.kind() == FileType::Regular);
            let unit = [0, BLOCK, 2 * BLOCK, 4 * BLOCK, 8 * BLOCK, 16 * BLOCK][random.below(6) as usize];
            return Some(Operation::SetUntorn { inode, unit, file });
        }
        let inode = self.pick(random, |_| true)?;
        let name = random.below(4) as u8;
        Some(match random.below(8) {
            0 => Operation::ChangeMode { inode, mode: random.below(0o1000) as u32 },
            1 => Operation::ChangeOwner {
                inode,
                uid: random.below(1000) as u32,
                gid: random.below(1000) as u32,
            },
            2 => Operation::RemoveXattr { inode, name },
            _ => {
                let length = match profile.style {
                    Style::Wrap => 10_000 + random.below(50_000),
                    Style::Forces => 5000 + random.below(9000),
                    _ if random.one_in(4) => 8 + random.below(9000),
                    // Long enough to say who set it.
                    _ => 8 + random.below(100),
                };
                let flags = match random.below(6) {
                    0 => XattrFlags::CREATE,
                    1 => XattrFlags::REPLACE,
                    _ => XattrFlags::empty(),
                };
                Operation::SetXattr { inode, name, length, flags }
            }
        })
    }

    fn force_operation(&self, random: &mut Random, profile: &Profile, single: bool) -> Option<Operation> {
        let mut draw = random.below(16);
        if profile.style == Style::Shared && (6..=9).contains(&draw) {
            // More data that is written back behind everyone's back before the next fsync.
            draw = 3;
        }
        Some(match draw {
            0 => Operation::Sync,
            1 | 2 => Operation::Checkpoint,
            3 | 4 => Operation::Wait,
            5 if single => Operation::Remount,
            6 | 7 => {
                let count = 1 + random.below(4);
                let inodes: Vec<u64> = (0..count).filter_map(|_| self.changed(random)).collect();
                let how = Many::of(&inodes);
                Operation::FsyncMany { inodes, datasync: random.one_in(2), how }
            }
            8 | 9 => Operation::Fsync { inode: self.directory(random), datasync: false, anew: false },
            _ => {
                let inode = match profile.style {
                    Style::Shared => self.busy_file(random, profile)?,
                    _ => self.changed(random)?,
                };
                let anew = random.one_in(3) && self.names.values().any(|named| *named == inode);
                Operation::Fsync { inode, datasync: random.one_in(2), anew }
            }
        })
    }

    fn look_operation(&self, random: &mut Random, profile: &Profile) -> Option<Operation> {
        Some(match random.below(8) {
            0 => Operation::Forget { inode: self.pick(random, |_| true)? },
            1 => {
                let (directory, name) = self.existing(random, profile);
                Operation::Lookup { directory, name }
            }
            2 => Operation::ReadDirectory { directory: self.directory(random) },
            3 => Operation::Attributes { inode: self.pick(random, |_| true)? },
            _ => {
                let inode = self.file(random)?;
                let (offset, length) = match random.below(3) {
                    0 => (0, profile.file_bytes),
                    1 => (random.below(self.size(inode) + 1), 1 + random.below(20_000)),
                    _ => (random.below(16) * BLOCK, (1 + random.below(8)) * BLOCK),
                };
                let flags = if random.one_in(3) { IoFlags::DIRECT } else { IoFlags::empty() };
                Operation::Read { inode, offset, length, flags }
            }
        })
    }
}

/// Of 100 steps: names, data, reshaping, attributes, forces; the rest looks.
fn weights(style: Style) -> [u64; 5] {
    match style {
        Style::Mixed => [30, 30, 10, 8, 12],
        Style::Names => [60, 12, 3, 8, 10],
        Style::Data => [8, 55, 8, 2, 17],
        Style::Full => [25, 38, 16, 3, 10],
        Style::Wrap => [20, 10, 3, 50, 12],
        Style::Reshape => [10, 35, 32, 2, 13],
        Style::Forces => [12, 10, 2, 38, 34],
        Style::Shared => [6, 42, 1, 6, 42],
        Style::Logs => [4, 50, 34, 1, 6],
        Style::Atomic => [10, 50, 10, 8, 16],
        Style::Snapshots => [14, 42, 16, 6, 16],
    }
}

fn name(random: &mut Random, profile: &Profile) -> Name {
    let number = random.below(profile.names) as u16;
    Name(match random.below(40) {
        0 => 1000 + number,
        1 => 2000 + number,
        _ => number,
    })
}

/// The length of a write that is done in pieces.
fn in_pieces(random: &mut Random) -> u64 {
    let most = 3 << 20;
    match random.below(2) {
        0 => PIECE + BLOCK * (1 + random.below((most - PIECE) / BLOCK)),
        _ => PIECE + 1 + random.below(most - PIECE),
    }
}

/// An append, mostly of less than a block and mostly forced.
fn append(random: &mut Random, inode: u64) -> Operation {
    let length = match random.below(8) {
        0 => BLOCK + 24,
        1 => BLOCK,
        2 | 3 => 1 + random.below(3000),
        _ => 1 + random.below(200),
    };
    let forced = match random.below(4) {
        0 => IoFlags::empty(),
        1 => IoFlags::SYNC,
        _ => IoFlags::DATASYNC,
    };
    Operation::Write { inode, offset: 0, length, flags: IoFlags::APPEND | forced }
}

/// Mostly an append; else some bytes before the end, which are written through the cache but not flushed.
fn write_near_end(random: &mut Random, inode: u64, size: u64) -> Operation {
    if !random.one_in(4) {
        return append(random, inode);
    }
    let offset = size - 1 - random.below(size.min(100));
    Operation::Write { inode, offset, length: 1 + random.below(size - offset), flags: IoFlags::DIRECT }
}

fn create(random: &mut Random, directory: u64, name: Name) -> Operation {
    let kind = match random.below(12) {
        0 => FileType::Fifo,
        1 | 2 => FileType::Directory,
        _ => FileType::Regular,
    };
    Operation::Create { directory, name, kind, mode: 0o600 + random.below(0o100) as u32 }
}
