//! Power cuts at every kind of moment: a seeded workload runs on a simulated device that remembers which
//! writes were safe; crash images of many moments are recovered, checked and compared with what the
//! durability contract allows.
//!
//! The oracle, for a crash at device event `e`:
//! * names, links, modes and attributes equal the model after some operation `k`, where `k` is not before the
//!   last operation that forced the journal and had returned before `e`, and not after the last one begun
//!   before `e`;
//! * each sector of a file holds what it held when the file was last fsynced, or what a later operation put
//!   there;
//! * a file that nothing touched since its fsync has exactly its size and contents.

use crate::common::{clock, options};
use quire::inodes::{Caller, Create, FallocateMode, InodeRef, IoFlags, XattrFlags};
use quire::{FileType, FormatOptions, InodeNo, RenameFlags, Volume};
use quire_base::random::Random;
use quire_device::SimulatedBackend;
use quire_device::simulated::CrashPolicy;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const SECTOR: u64 = 512;
const VOLUME_BLOCKS: u64 = 16384;

/// The names of the model: path of at most two parts to inode number.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Names {
    entries: BTreeMap<String, u64>,
    directories: BTreeSet<u64>,
    modes: BTreeMap<u64, u32>,
    xattrs: BTreeMap<u64, Vec<u8>>,
}

/// What happened to one sector of a file.
#[derive(Clone, Copy)]
struct SectorChange {
    operation: usize,
    value: u64,
}

#[derive(Clone, Default)]
struct FileHistory {
    sectors: BTreeMap<u64, Vec<SectorChange>>,
    /// (operation, size) after each change of size.
    sizes: Vec<(usize, u64)>,
    size: u64,
    /// Operations after which everything so far was durable.
    synced: Vec<usize>,
    touched: Vec<usize>,
}

impl FileHistory {
    fn put(&mut self, operation: usize, sector: u64, value: u64) {
        self.sectors.entry(sector).or_default().push(SectorChange { operation, value });
    }
    fn value(&self, sector: u64) -> u64 {
        self.sectors.get(&sector).and_then(|changes| changes.last()).map_or(0, |change| change.value)
    }
}

struct Step {
    begun: usize,
    ended: usize,
    /// The operation that is durable, with all before it, once this one has returned.
    durable: Option<usize>,
    names: Names,
    what: String,
}

struct Workload {
    device: Arc<SimulatedBackend>,
    volume: Volume,
    random: Random,
    names: Names,
    files: BTreeMap<u64, FileHistory>,
    steps: Vec<Step>,
    next_name: u64,
    /// The last operation that journaled something about an inode's name or attributes.
    named: BTreeMap<u64, usize>,
}

fn root_caller() -> Caller {
    Caller { uid: 0, gid: 0 }
}

fn fill(value: u64) -> [u8; SECTOR as usize] {
    let mut sector = [0; SECTOR as usize];
    sector.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&value.to_le_bytes()));
    sector
}

impl Workload {
    fn new(seed: u64) -> Workload {
        let device = Arc::new(SimulatedBackend::new(VOLUME_BLOCKS));
        let format = FormatOptions::new().seed(seed).clock(clock()).metadata_copies(1 + (seed % 2) as u32);
        format.format_backend(device.clone()).unwrap();
        let volume = options().open_backend(device.clone()).unwrap();
        let mut names = Names::default();
        names.directories.insert(1);
        names.modes.insert(1, 0o755);
        let mut workload = Workload {
            device,
            volume,
            random: Random::seeded(seed),
            names,
            files: BTreeMap::new(),
            steps: Vec::new(),
            next_name: 0,
            named: BTreeMap::new(),
        };
        workload.step("start", |_, number| Some(number));
        workload
    }

    /// Runs one operation; it says what is durable when it returns.
    fn step(&mut self, what: &str, run: impl FnOnce(&mut Workload, usize) -> Option<usize>) {
        let begun = self.device.event_count();
        let number = self.steps.len();
        let durable = run(self, number);
        let ended = self.device.event_count();
        self.steps.push(Step { begun, ended, durable, names: self.names.clone(), what: what.to_owned() });
    }

    fn some_path(&mut self) -> Option<(String, u64)> {
        let files: Vec<_> = self
            .names
            .entries
            .iter()
            .filter(|(_, inode)| !self.names.directories.contains(inode))
            .map(|(path, inode)| (path.clone(), *inode))
            .collect();
        if files.is_empty() {
            None
        } else {
            Some(files[self.random.below(files.len() as u64) as usize].clone())
        }
    }

    fn some_directory(&mut self) -> (String, u64) {
        let directories: Vec<_> = std::iter::once((String::new(), 1))
            .chain(
                self.names
                    .entries
                    .iter()
                    .filter(|(_, inode)| self.names.directories.contains(inode))
                    .map(|(path, inode)| (path.clone(), *inode)),
            )
            .collect();
        directories[self.random.below(directories.len() as u64) as usize].clone()
    }

    fn new_path(&mut self, directory: &str) -> (String, String) {
        self.next_name += 1;
        let name = format!("n{}", self.next_name);
        let path = if directory.is_empty() { name.clone() } else { format!("{directory}/{name}") };
        (path, name)
    }

    fn inode(&self, number: u64) -> InodeRef {
        self.volume.inodes().get(InodeNo(number)).unwrap()
    }

    fn parent(&self, path: &str) -> (InodeRef, String) {
        match path.rsplit_once('/') {
            None => (self.volume.inodes().root(), path.to_owned()),
            Some((directory, name)) => (self.inode(self.names.entries[directory]), name.to_owned()),
        }
    }

    fn one(&mut self) {
        match self.random.below(100) {
            0..=13 => self.step("create", |w, number| {
                let (path, directory) = w.some_directory();
                let (full, name) = w.new_path(&path);
                let create = Create { caller: root_caller(), ..Create::file(0o644) };
                let inode = w
                    .volume
                    .inodes()
                    .create(&w.inode(directory), name.as_bytes(), &create)
                    .unwrap()
                    .number()
                    .0;
                w.names.entries.insert(full, inode);
                w.names.modes.insert(inode, 0o644);
                w.files.insert(inode, FileHistory::default());
                w.named.insert(inode, number);
                None
            }),
            14..=16 => self.step("mkdir", |w, _| {
                let (full, name) = w.new_path("");
                let create = Create { caller: root_caller(), ..Create::directory(0o755) };
                let inode = w
                    .volume
                    .inodes()
                    .create(&w.volume.inodes().root(), name.as_bytes(), &create)
                    .unwrap()
                    .number()
                    .0;
                w.names.entries.insert(full, inode);
                w.names.directories.insert(inode);
                w.names.modes.insert(inode, 0o755);
                None
            }),
            17..=45 => self.write(false),
            46..=52 => self.write(true),
            53..=59 => {
                let Some((_, inode)) = self.some_path() else { return };
                self.step("truncate", |w, number| {
                    let sectors = w.random.below(80);
                    w.volume.inodes().set_len(&w.inode(inode), sectors * SECTOR).unwrap();
                    w.cut(number, inode, sectors);
                    None
                });
            }
            60..=63 => {
                let Some((_, inode)) = self.some_path() else { return };
                self.step("punch", |w, number| {
                    let start = w.random.below(64);
                    let len = 1 + w.random.below(40);
                    w.volume
                        .inodes()
                        .allocate(&w.inode(inode), FallocateMode::PunchHole, start * SECTOR, len * SECTOR)
                        .unwrap();
                    let file = w.files.get_mut(&inode).unwrap();
                    for sector in start..(start + len).min(file.size / SECTOR) {
                        file.put(number, sector, 0);
                    }
                    file.touched.push(number);
                    None
                });
            }
            64..=66 => {
                let Some((_, inode)) = self.some_path() else { return };
                self.step("allocate", |w, number| {
                    let start = w.random.below(64);
                    let len = 1 + w.random.below(64);
                    w.volume
                        .inodes()
                        .allocate(&w.inode(inode), FallocateMode::Allocate, start * SECTOR, len * SECTOR)
                        .unwrap();
                    let file = w.files.get_mut(&inode).unwrap();
                    file.size = file.size.max((start + len) * SECTOR);
                    file.sizes.push((number, file.size));
                    file.touched.push(number);
                    None
                });
            }
            67..=72 => {
                let Some((path, inode)) = self.some_path() else { return };
                self.step("unlink", |w, number| {
                    let (parent, name) = w.parent(&path);
                    w.volume.inodes().remove_file(&parent, name.as_bytes()).unwrap();
                    w.names.entries.remove(&path);
                    if !w.names.entries.values().any(|other| *other == inode) {
                        w.names.modes.remove(&inode);
                        w.names.xattrs.remove(&inode);
                    }
                    w.named.insert(inode, number);
                    None
                });
            }
            73..=78 => {
                let Some((path, inode)) = self.some_path() else { return };
                self.step("rename", |w, number| {
                    let (to_directory, to_parent) = w.some_directory();
                    let over = if w.random.one_in(3) { w.some_path() } else { None };
                    let (to_path, to_name, to_parent) = match over {
                        Some((other, _)) => {
                            let (parent, name) = w.parent(&other);
                            (other, name, parent)
                        }
                        None => {
                            let (full, name) = w.new_path(&to_directory);
                            (full, name, w.inode(to_parent))
                        }
                    };
                    let (parent, name) = w.parent(&path);
                    w.volume
                        .inodes()
                        .rename(
                            &parent,
                            name.as_bytes(),
                            &to_parent,
                            to_name.as_bytes(),
                            RenameFlags::empty(),
                        )
                        .unwrap();
                    let replaced = w.names.entries.get(&to_path).copied();
                    if replaced == Some(inode) {
                        return None;
                    }
                    w.named.insert(inode, number);
                    w.names.entries.remove(&path);
                    w.names.entries.insert(to_path, inode);
                    if let Some(gone) = replaced
                        && !w.names.entries.values().any(|other| *other == gone)
                    {
                        w.names.modes.remove(&gone);
                        w.names.xattrs.remove(&gone);
                    }
                    None
                });
            }
            79..=81 => {
                let Some((_, inode)) = self.some_path() else { return };
                self.step("link", |w, number| {
                    let (directory, parent) = w.some_directory();
                    let (full, name) = w.new_path(&directory);
                    w.volume.inodes().hard_link(&w.inode(inode), &w.inode(parent), name.as_bytes()).unwrap();
                    w.names.entries.insert(full, inode);
                    w.named.insert(inode, number);
                    None
                });
            }
            82..=83 => {
                let Some((_, inode)) = self.some_path() else { return };
                self.step("xattr", |w, number| {
                    let value = format!("value {number}").into_bytes();
                    w.volume
                        .inodes()
                        .set_xattr(&w.inode(inode), b"user.note", &value, XattrFlags::empty())
                        .unwrap();
                    w.names.xattrs.insert(inode, value);
                    w.named.insert(inode, number);
                    None
                });
            }
            84..=90 => {
                let Some((_, inode)) = self.some_path() else { return };
                self.step("fsync", |w, number| {
                    let datasync = w.random.one_in(2);
                    w.volume.inodes().fsync(&w.inode(inode), datasync).unwrap();
                    w.files.get_mut(&inode).unwrap().synced.push(number);
                    // Everything up to the file's own last transaction; fdatasync may leave names out.
                    w.named.get(&inode).copied().filter(|_| !datasync)
                });
            }
            91..=92 => self.step("sync", |w, number| {
                w.volume.sync().unwrap();
                for file in w.files.values_mut() {
                    file.synced.push(number);
                }
                Some(number)
            }),
            93..=94 => self.step("checkpoint", |w, number| {
                w.volume.checkpoint().unwrap();
                // A checkpoint publishes everything applied.
                Some(number)
            }),
            _ => self.step("background", |w, _| {
                w.volume.background_step().unwrap();
                None
            }),
        }
    }

    fn write(&mut self, direct: bool) {
        let Some((_, inode)) = self.some_path() else { return };
        self.step(if direct { "write direct" } else { "write" }, |w, number| {
            let append = w.random.one_in(4);
            let size = w.files[&inode].size / SECTOR;
            let (start, len) = if direct && w.random.one_in(2) {
                (w.random.below(8) * 8, (1 + w.random.below(4)) * 8)
            } else {
                (w.random.below(64), 1 + w.random.below(24))
            };
            let start = if append { size } else { start };
            let mut data = Vec::new();
            for sector in 0..len {
                data.extend_from_slice(&fill(((number as u64) << 16) | (sector + 1)));
            }
            let mut flags = if direct { IoFlags::DIRECT } else { IoFlags::empty() };
            flags |= if append { IoFlags::APPEND } else { IoFlags::empty() };
            let written = w.volume.inodes().write_at(&w.inode(inode), &data, start * SECTOR, flags).unwrap();
            assert_eq!(written, data.len());
            let file = w.files.get_mut(&inode).unwrap();
            for sector in 0..len {
                file.put(number, start + sector, ((number as u64) << 16) | (sector + 1));
            }
            file.size = file.size.max((start + len) * SECTOR);
            file.sizes.push((number, file.size));
            file.touched.push(number);
            None
        });
    }

    fn cut(&mut self, number: usize, inode: u64, sectors: u64) {
        let file = self.files.get_mut(&inode).unwrap();
        let gone: Vec<u64> = file.sectors.range(sectors..).map(|(sector, _)| *sector).collect();
        for sector in gone {
            file.put(number, sector, 0);
        }
        file.size = sectors * SECTOR;
        file.sizes.push((number, file.size));
        file.touched.push(number);
    }

    /// The live state must be the model's at the end, or the oracle is worth nothing.
    fn check_live(&self) {
        for (path, inode) in &self.names.entries {
            if self.names.directories.contains(inode) {
                continue;
            }
            let file = &self.files[inode];
            let found = self.inode(*inode);
            assert_eq!(found.size(), file.size, "{path}");
            let contents = read_all(&self.volume, &found);
            for (sector, bytes) in contents.chunks(SECTOR as usize).enumerate() {
                let value = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                assert_eq!(value, file.value(sector as u64), "{path} sector {sector}");
            }
        }
    }

    /// Recovers one crash image and holds it against the oracle.
    fn check_crash(&self, event: usize, policy: CrashPolicy, seed: u64) {
        let image = self.device.crash_at(event, policy).expect("an event of the run");
        let device = Arc::new(SimulatedBackend::from_image(image));
        let context = format!("seed {seed}, crash at event {event}, {policy:?}");
        let volume =
            options().open_backend(device.clone()).unwrap_or_else(|error| panic!("{context}: {error}"));
        volume.drain_orphans();
        let found = listing(&volume);

        let done = self.steps.iter().filter(|step| step.ended <= event);
        let low = done.filter_map(|step| step.durable).max().unwrap_or(0);
        let high = self.steps.iter().rposition(|step| step.begun < event).unwrap_or(0).max(low);
        let matching = (low..=high).rev().find(|&at| self.steps[at].names == found);
        if matching.is_none() {
            let nearest = &self.steps[high].names;
            panic!(
                "{context}: names are those of no operation from {low} to {high} ({} .. {})\nfound {found:#?}\nlast {nearest:#?}",
                self.steps[low].what, self.steps[high].what
            );
        }
        for inode in found.entries.values().filter(|inode| !found.directories.contains(inode)) {
            self.check_file(&volume, *inode, event, high, &context);
        }
        drop(volume);
        let image = quire::internals::inspect::Image::load(device)
            .unwrap_or_else(|error| panic!("{context}: second look: {error}"));
        assert!(image.orphans().is_empty(), "{context}: orphans left after a clean close");
    }

    fn check_file(&self, volume: &Volume, inode: u64, event: usize, high: usize, context: &str) {
        let history = &self.files[&inode];
        let found = volume.inodes().get(InodeNo(inode)).unwrap();
        let contents = read_all(volume, &found);
        let synced = history.synced.iter().rev().copied().find(|&at| self.steps[at].ended <= event);
        for (sector, bytes) in contents.chunks(SECTOR as usize).enumerate() {
            let value = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert!(
                bytes.chunks(8).all(|word| word == &bytes[..8]),
                "{context}: inode {inode} sector {sector} is mixed"
            );
            let changes = history.sectors.get(&(sector as u64)).map_or(&[][..], |changes| &changes[..]);
            let last_synced =
                synced.and_then(|at| changes.iter().rev().find(|change| change.operation <= at));
            let allowed = changes
                .iter()
                .filter(|change| change.operation <= high && synced.is_none_or(|at| change.operation > at))
                .chain(last_synced)
                .any(|change| change.value == value)
                || (value == 0 && last_synced.is_none());
            assert!(
                allowed,
                "{context}: inode {inode} sector {sector} holds {value:#x} (operation {}), synced at {synced:?}, history {:?}",
                value >> 16,
                changes.iter().map(|change| (change.operation, change.value)).collect::<Vec<_>>()
            );
        }
        if let Some(at) = synced {
            let later = history.touched.iter().any(|&operation| operation > at && operation <= high);
            if !later {
                let size = history
                    .sizes
                    .iter()
                    .rev()
                    .find(|(operation, _)| *operation <= at)
                    .map_or(0, |(_, size)| *size);
                assert_eq!(found.size(), size, "{context}: inode {inode}, untouched since its fsync at {at}");
            }
        }
    }
}

fn read_all(volume: &Volume, inode: &InodeRef) -> Vec<u8> {
    let mut contents = vec![0; inode.size() as usize];
    let read = volume.inodes().read_at(inode, &mut contents, 0, IoFlags::empty()).unwrap();
    assert_eq!(read, contents.len());
    contents
}

fn listing(volume: &Volume) -> Names {
    let mut names = Names::default();
    names.directories.insert(1);
    names.modes.insert(1, 0o755);
    let mut directories = vec![(String::new(), volume.inodes().root())];
    while let Some((path, directory)) = directories.pop() {
        let mut entries = Vec::new();
        volume
            .inodes()
            .read_dir(&directory, 0, &mut |entry| {
                if entry.name != b"." && entry.name != b".." {
                    entries.push(String::from_utf8(entry.name.to_vec()).unwrap());
                }
                true
            })
            .unwrap();
        for name in entries {
            let inode = volume.inodes().lookup(&directory, name.as_bytes()).unwrap();
            let full = if path.is_empty() { name } else { format!("{path}/{name}") };
            let number = inode.number().0;
            names.entries.insert(full.clone(), number);
            names.modes.insert(number, inode.mode());
            if inode.kind() == FileType::Directory {
                names.directories.insert(number);
                directories.push((full, inode));
            } else if let Ok(value) = volume.inodes().get_xattr(&inode, b"user.note") {
                names.xattrs.insert(number, value);
            }
        }
    }
    names
}

fn run(seed: u64, operations: usize, crashes: u64) {
    let mut workload = Workload::new(seed);
    for _ in 0..operations {
        workload.one();
    }
    workload.check_live();
    let events = workload.device.event_count() as u64;
    let first = workload.steps[0].ended as u64;
    let mut random = Random::seeded(seed ^ 0x5eed);
    for _ in 0..crashes {
        let event = first + random.below(events - first);
        let policy = match random.below(4) {
            0 => CrashPolicy::LoseAll,
            1 => CrashPolicy::Killed { seed: random.next_u64() },
            _ => CrashPolicy::Power { seed: random.next_u64() },
        };
        workload.check_crash(event as usize, policy, seed);
    }
}

#[test]
fn power_cuts_leave_what_the_contract_allows() {
    // More seeds, or one of them again: QUIRE_CRASH_SEEDS=0..200 (a range of seeds).
    let seeds = std::env::var("QUIRE_CRASH_SEEDS").unwrap_or_else(|_| "0..40".to_owned());
    let (from, to) = seeds.split_once("..").expect("a range like 0..40");
    for seed in from.parse().unwrap()..to.parse().unwrap() {
        run(seed, 250, 40);
    }
}
