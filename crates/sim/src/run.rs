//! Doing the operations of one level on a volume, and keeping record of them.
//!
//! A level begins with an image (a fresh volume, or what a crash left), which is opened (and so recovered),
//! worked on, and abandoned: its device remembers every event, and crash images are cut from that memory.
//!
//! With one thread the volume runs without background threads, and one round of background work is an
//! operation as any other. With several, everything runs under the seeded scheduler, with the engine's
//! threads and one more that completes the device's operations in an order of its own. In one of six such
//! runs a simulated server stands between volume and device: its connections break, and it may lose what was
//! not flushed.
//!
//! Neighbours: [`crate::generate`] says what to do; [`crate::levels`] goes from level to level.

use crate::generate::{Profile, Step, World};
use crate::image;
use crate::model::ROOT;
use crate::operation::{
    GroupEnd, GroupWrite, Many, OpId, Operation, Outcome, Record, Shape, group_patterns, link_target,
    snapshot_text, xattr_value,
};
use quire::inodes::{Caller, Create, InodeRef, IoFlags, SetAttributes};
use quire::{
    AlignedBuf, Clock, Commit, Durability, ErrorKind, FormatOptions, InodeNo, Properties, SyncOptions,
    Timestamp, Unit, Volume, VolumeOptions,
};
use quire_base::random::Random;
use quire_base::simulation;
use quire_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quire_base::sync::{Condvar, Mutex, thread};
use quire_device::simulated::exporter::{Breaks, Exporter};
use quire_device::simulated::{Fault, FaultOp, Hold, Image};
use quire_device::{Backend, IoClass, SimulatedBackend};
use std::sync::Arc;
use std::time::Duration;

/// What a level's work left behind.
pub struct Worked {
    /// Remembers every event.
    pub device: Arc<SimulatedBackend>,
    /// Events until the volume was open.
    pub opened: usize,
    /// Events until the last operation had returned.
    pub ended: usize,
    /// By thread, in order.
    pub threads: Vec<Vec<Record>>,
    /// Connections to the device's server that broke, if it had one.
    pub breaks: u32,
    /// How often the server lost what was not flushed.
    pub server_losses: u32,
}

/// What nobody has written.
pub const FOREIGN: u8 = 0xF7;

/// A device that has held something else: what is shown without having been written is seen.
fn used_device(blocks: u64) -> SimulatedBackend {
    let mut image = Image::new(blocks);
    let foreign = Arc::new([FOREIGN; quire_base::BLOCK_SIZE]);
    (0..blocks).for_each(|at| image.set(quire_base::BlockNo(at), Some(foreign.clone())));
    SimulatedBackend::from_image(image)
}

/// In how many places a seed's volume keeps its metadata. [`Profile::of`] and the number of threads go by
/// other bits of the seed.
pub fn metadata_copies(seed: u64) -> u32 {
    1 + (seed % 2) as u32
}

/// A fresh volume of a profile.
pub fn format(profile: &Profile, seed: u64) -> Result<Image, String> {
    let device = Arc::new(used_device(profile.blocks));
    let options = FormatOptions::new()
        .seed(seed)
        .journal_bytes(1 << 20)
        .metadata_copies(metadata_copies(seed))
        .force(true)
        .clock(Clock::simulated(Timestamp(1_000_000_000)));
    options.format_backend(device.clone()).map_err(|error| format!("mkfs: {error}"))?;
    Ok(device.visible())
}

fn options(profile: &Profile, threads: bool, clock: Clock) -> VolumeOptions {
    let options = VolumeOptions::new();
    let options = match profile.group_record_bytes {
        Some(bytes) => options.group_record_bytes(bytes),
        None => options,
    };
    options
        .threads(threads)
        .cache_bytes(profile.cache_bytes)
        .node_cache_bytes(profile.node_cache_bytes)
        .discard(profile.discard)
        .clock(clock)
}

/// A volume at work.
pub struct Bench {
    /// The volume; there is none while it is opened again.
    volume: Mutex<Option<Volume>>,
    device: Arc<SimulatedBackend>,
    /// What the volume is given: the device, or a client of the server before it.
    backend: Arc<dyn Backend>,
    options: VolumeOptions,
    clock: Clock,
    threads: bool,
    world: Mutex<World>,
    tick: AtomicU64,
    next_op: AtomicU64,
}

impl Bench {
    /// Opens an image; numbers operations from `first_op` on.
    pub fn open(
        device: Arc<SimulatedBackend>,
        profile: &Profile,
        threads: bool,
        first_op: u64,
    ) -> Result<Bench, String> {
        Bench::open_behind(device.clone(), device, profile, threads, first_op)
    }

    /// As [`Bench::open`], through `backend`, behind which the device is.
    fn open_behind(
        backend: Arc<dyn Backend>,
        device: Arc<SimulatedBackend>,
        profile: &Profile,
        threads: bool,
        first_op: u64,
    ) -> Result<Bench, String> {
        device.set_discard_pattern(profile.discarded);
        let clock = Clock::simulated(Timestamp(2_000_000_000));
        let options = options(profile, threads, clock.clone());
        let volume = options.open_backend(backend.clone()).map_err(|error| format!("opening: {error}"))?;
        let bench = Bench {
            volume: Mutex::new(Some(volume)),
            device,
            backend,
            options,
            clock,
            threads,
            world: Mutex::new(World::default()),
            tick: AtomicU64::new(1),
            next_op: AtomicU64::new(first_op),
        };
        bench.explore()?;
        Ok(bench)
    }

    /// The volume.
    pub fn volume(&self) -> Volume {
        self.volume.lock().clone().expect("a volume is open between operations")
    }

    /// Takes handles of all that names lead to.
    fn explore(&self) -> Result<(), String> {
        let volume = self.volume();
        let mut world = World::default();
        let mut ahead = vec![volume.inodes().root()];
        while let Some(inode) = ahead.pop() {
            let number = inode.number().0;
            if inode.kind() == quire::FileType::Directory {
                for (name, child) in image::list(&volume, &inode).map_err(|error| error.to_string())?.0 {
                    world.names.insert((number, name), child);
                    if !world.handles.contains_key(&child) {
                        ahead.push(volume.inodes().get(InodeNo(child)).map_err(|error| error.to_string())?);
                    }
                }
            }
            world.handles.insert(number, inode);
        }
        let snapshots = volume.snapshots().map_err(|error| error.to_string())?;
        let names = snapshots.iter().filter(|info| !info.deleting).map(|info| info.name[1..].parse());
        world.snapshots = names.filter_map(Result::ok).collect();
        *self.world.lock() = world;
        Ok(())
    }

    /// Does one step; the record says what and when.
    pub fn step(&self, step: Step, profile: &Profile, single: bool) -> Record {
        let operation = self.world.lock().resolve(step, profile, single);
        self.perform(operation)
    }

    /// Does one operation.
    pub fn perform(&self, operation: Operation) -> Record {
        let id = OpId(self.next_op.fetch_add(1, Ordering::Relaxed));
        let called = (self.tick.fetch_add(1, Ordering::Relaxed), self.device.event_count());
        let outcome = match self.attempt(id, &operation) {
            Ok(outcome) => outcome,
            Err(error) => Outcome::Error(error.kind()),
        };
        let returned = (self.tick.fetch_add(1, Ordering::Relaxed), self.device.event_count());
        self.remember(&operation, &outcome);
        Record { id, operation, outcome, ticks: (called.0, returned.0), events: (called.1, returned.1) }
    }

    fn handle(&self, inode: u64) -> quire::Result<InodeRef> {
        let known = self.world.lock().handles.get(&inode).cloned();
        match known {
            Some(handle) => Ok(handle),
            None => self.volume().inodes().get(InodeNo(inode)),
        }
    }

    fn keep(&self, handle: InodeRef) -> Outcome {
        let number = handle.number().0;
        let before = self.world.lock().handles.insert(number, handle);
        drop(before);
        Outcome::Inode(number)
    }

    fn attempt(&self, id: OpId, operation: &Operation) -> quire::Result<Outcome> {
        let volume = &self.volume();
        let done = |()| Outcome::Done;
        match operation {
            Operation::Create { directory, name, kind, mode } => {
                let create = Create { kind: *kind, ..Create::file(*mode) };
                volume
                    .inodes()
                    .create(&self.handle(*directory)?, &name.text(), &create)
                    .map(|made| self.keep(made))
            }
            Operation::Symlink { directory, name, length } => {
                let target = link_target(id, *length);
                volume
                    .inodes()
                    .symlink(&self.handle(*directory)?, &name.text(), &target, Caller::default())
                    .map(|made| self.keep(made))
            }
            Operation::TemporaryFile { directory, mode } => volume
                .inodes()
                .tmpfile(&self.handle(*directory)?, &Create::file(*mode))
                .map(|made| self.keep(made)),
            Operation::Link { inode, directory, name } => volume
                .inodes()
                .hard_link(&self.handle(*inode)?, &self.handle(*directory)?, &name.text())
                .map(done),
            Operation::Unlink { directory, name } => {
                volume.inodes().remove_file(&self.handle(*directory)?, &name.text()).map(done)
            }
            Operation::RemoveDirectory { directory, name } => {
                volume.inodes().remove_dir(&self.handle(*directory)?, &name.text()).map(done)
            }
            Operation::Rename { from, name, to, to_name, flags } => volume
                .inodes()
                .rename(&self.handle(*from)?, &name.text(), &self.handle(*to)?, &to_name.text(), *flags)
                .map(done),
            Operation::ChangeMode { inode, mode } => {
                let set = SetAttributes { mode: Some(*mode), ..SetAttributes::default() };
                volume.inodes().set_attributes(&self.handle(*inode)?, &set).map(|_| Outcome::Done)
            }
            Operation::ChangeOwner { inode, uid, gid } => {
                let set = SetAttributes { uid: Some(*uid), gid: Some(*gid), ..SetAttributes::default() };
                volume.inodes().set_attributes(&self.handle(*inode)?, &set).map(|_| Outcome::Done)
            }
            Operation::SetXattr { inode, name, length, flags } => volume
                .inodes()
                .set_xattr(&self.handle(*inode)?, &xattr_name(*name), &xattr_value(id, *length), *flags)
                .map(done),
            Operation::RemoveXattr { inode, name } => {
                volume.inodes().remove_xattr(&self.handle(*inode)?, &xattr_name(*name)).map(done)
            }
            Operation::Lookup { directory, name } => {
                volume.inodes().lookup(&self.handle(*directory)?, &name.text()).map(|found| self.keep(found))
            }
            Operation::ReadDirectory { directory } => {
                image::list(volume, &self.handle(*directory)?).map(|(entries, _)| Outcome::Entries(entries))
            }
            Operation::Attributes { inode } => {
                let found = volume.inodes().metadata(&self.handle(*inode)?);
                let mut shape = Shape::new(found.file_type(), found.permission_bits());
                (shape.uid, shape.gid, shape.links) = (found.uid(), found.gid(), found.nlink());
                if !self.threads {
                    // Not read at one moment with the rest.
                    let properties = volume.inodes().properties(&self.handle(*inode)?);
                    shape.untorn = properties.untorn.map_or(0, Unit::bytes);
                }
                let size = if found.file_type() == quire::FileType::Regular { found.size() } else { 0 };
                Ok(Outcome::Attributes(shape, size))
            }
            Operation::Read { inode, offset, length, flags } => {
                let mut bytes = vec![image::UNREAD; *length as usize];
                let read = volume.inodes().read_at(&self.handle(*inode)?, &mut bytes, *offset, *flags)?;
                bytes.truncate(read);
                Ok(Outcome::Bytes(bytes))
            }
            Operation::Write { inode, offset, length, flags } if operation.is_submitted() => {
                self.write_submitted(id, *inode, *offset, *length, *flags)
            }
            Operation::Write { inode, offset, length, flags } => {
                self.write(id, *inode, *offset, *length, *flags)
            }
            Operation::Group { writes, end } => self.group(id, writes, *end).map(done),
            Operation::SetUntorn { inode, unit, .. } => {
                let untorn = match unit {
                    0 => None,
                    bytes => Some(Unit::from_bytes(*bytes)?),
                };
                let properties = Properties { untorn, ..Properties::default() };
                volume.inodes().set_properties(&self.handle(*inode)?, properties).map(done)
            }
            Operation::Truncate { inode, size } => {
                volume.inodes().set_len(&self.handle(*inode)?, *size).map(done)
            }
            Operation::Allocate { inode, mode, offset, length } => {
                volume.inodes().allocate(&self.handle(*inode)?, *mode, *offset, *length).map(done)
            }
            Operation::Fsync { inode, datasync, anew } => {
                if *anew {
                    let gone = self.world.lock().handles.remove(inode);
                    drop(gone);
                }
                let handle = self.handle(*inode)?;
                let synced = volume.inodes().fsync(&handle, *datasync).map(done);
                self.keep(handle);
                synced
            }
            Operation::FsyncMany { inodes, datasync, how } => {
                self.fsync_many(inodes, *datasync, *how).map(done)
            }
            Operation::Sync => volume.sync().map(done),
            Operation::Checkpoint => volume.checkpoint().map(done),
            Operation::Wait => self.wait(id).map(done),
            Operation::Forget { inode } => {
                if *inode != ROOT {
                    let gone = self.world.lock().handles.remove(inode);
                    drop(gone);
                }
                Ok(Outcome::Done)
            }
            Operation::Remount => self.remount().map(done),
            Operation::TakeSnapshot { name } => {
                volume.take_snapshot(&snapshot_text(*name)).map(|taken| Outcome::Taken(taken.number))
            }
            Operation::ReadSnapshot { name } => image::read_snapshot(volume, &snapshot_text(*name))
                .map(|(number, kept)| Outcome::Kept(number, kept)),
            Operation::DeleteSnapshot { name, later: true } => {
                volume.delete_snapshot_later(&snapshot_text(*name)).map(done)
            }
            Operation::DeleteSnapshot { name, later: false } => {
                volume.delete_snapshot(&snapshot_text(*name)).map(done)
            }
        }
    }

    fn write(
        &self,
        id: OpId,
        inode: u64,
        offset: u64,
        length: u64,
        flags: IoFlags,
    ) -> quire::Result<Outcome> {
        let handle = self.handle(inode)?;
        let data = crate::contents::pattern(id, 0, length);
        let volume = self.volume();
        if flags.contains(IoFlags::APPEND) {
            let (at, count) = volume.inodes().append(&handle, &data, flags)?;
            Ok(Outcome::Written { at, count: count as u64 })
        } else {
            let count = volume.inodes().write_at(&handle, &data, offset, flags)? as u64;
            Ok(Outcome::Written { at: offset, count })
        }
    }

    fn write_submitted(
        &self,
        id: OpId,
        inode: u64,
        offset: u64,
        length: u64,
        flags: IoFlags,
    ) -> quire::Result<Outcome> {
        let outcome = Arc::new((Mutex::new(None), Condvar::new()));
        let done = {
            let outcome = outcome.clone();
            move |_: AlignedBuf, written: quire::Result<usize>| {
                *outcome.0.lock() = Some(written);
                outcome.1.notify_all();
            }
        };
        let data = AlignedBuf::copy_of(&crate::contents::pattern(id, 0, length));
        self.volume().inodes().write_direct_then(&self.handle(inode)?, data, offset, flags, Box::new(done));
        let mut state = outcome.0.lock();
        let written = loop {
            match state.take() {
                Some(written) => break written?,
                None => outcome.1.wait(&mut state),
            }
        };
        Ok(Outcome::Written { at: offset, count: written as u64 })
    }

    fn group(&self, id: OpId, writes: &[GroupWrite], end: GroupEnd) -> quire::Result<()> {
        let volume = self.volume();
        let mut group = volume.inodes().atomic();
        for (from, write) in group_patterns(writes) {
            let handle = self.handle(write.inode)?;
            if write.truncates() {
                group.set_len(&handle, write.offset)?;
                continue;
            }
            let data = crate::contents::pattern(id, from, from + write.length);
            group.write_at(&handle, &data, write.offset)?;
        }
        match end {
            GroupEnd::Now => group.commit(Commit::Now),
            GroupEnd::Lazy(millis) => group.commit(Commit::Lazy(Duration::from_millis(millis))),
            GroupEnd::Ordered => group.commit(Commit::Ordered),
            GroupEnd::Dropped => {
                drop(group);
                Ok(())
            }
        }
    }

    fn fsync_many(&self, inodes: &[u64], datasync: bool, how: Many) -> quire::Result<()> {
        let options = SyncOptions::new().data_only(datasync);
        let future = |durability: Durability| -> quire::Result<quire::Syncing> {
            let handles =
                inodes.iter().map(|inode| self.handle(*inode)).collect::<quire::Result<Vec<_>>>()?;
            Ok(self.volume().inodes().fsync_many_async(&handles, &options.clone().durability(durability)))
        };
        match how {
            Many::Completions => self.fsync_many_by_completions(inodes, &options),
            Many::Future => future(Durability::Now)?.wait(),
            Many::Lazy(millis) => future(Durability::Lazy(Duration::from_millis(millis)))?.wait(),
            Many::Withdrawn(turns) => {
                let future = future(if turns > 6 { LAZY } else { Durability::Now })?;
                (0..turns).for_each(|_| thread::yield_now());
                drop(future);
                Ok(())
            }
        }
    }

    fn fsync_many_by_completions(&self, inodes: &[u64], options: &SyncOptions) -> quire::Result<()> {
        let outcome = Arc::new((Mutex::new((0, Ok(()))), Condvar::new()));
        let volume = self.volume();
        for inode in inodes {
            let outcome = outcome.clone();
            let done = Box::new(move |result: quire::Result<()>| {
                let mut state = outcome.0.lock();
                state.0 += 1;
                if result.is_err() {
                    state.1 = result;
                }
                outcome.1.notify_all();
            });
            volume.inodes().fsync_then(&self.handle(*inode)?, options, done);
        }
        let mut state = outcome.0.lock();
        while state.0 < inodes.len() {
            outcome.1.wait(&mut state);
        }
        state.1.clone()
    }

    /// Long enough for data to be written back because of its age.
    fn wait(&self, id: OpId) -> quire::Result<()> {
        self.clock.advance(40_000_000_000);
        if self.threads {
            thread::sleep(Duration::from_millis(500 + id.0 % 10 * 1000));
            return Ok(());
        }
        self.volume().background_step()
    }

    /// Everything is on the device before the volume is closed: what close cannot write it reports, and it is
    /// gone.
    fn remount(&self) -> quire::Result<()> {
        let volume = self.volume();
        for _ in 0..SYNCS_MAX {
            // A close fails that cannot bring journaled data home, and so does the next open.
            match volume.sync().and_then(|()| volume.checkpoint()) {
                Err(error) if error.kind() == ErrorKind::Io => {}
                synced => {
                    synced?;
                    break;
                }
            }
        }
        drop(volume);
        *self.world.lock() = World::default();
        if let Some(volume) = self.volume.lock().take() {
            volume.close()?;
        }
        let volume = self.options.open_backend(self.backend.clone())?;
        *self.volume.lock() = Some(volume);
        self.explore().map_err(quire::Error::corrupt)
    }

    /// Keeps what the world believes near to the truth.
    fn remember(&self, operation: &Operation, outcome: &Outcome) {
        let world = &mut *self.world.lock();
        if let (Some(inode), false) = (operation.changes(), matches!(outcome, Outcome::Error(_))) {
            world.touch(inode);
        }
        let names = &mut world.names;
        match (operation, outcome) {
            (
                Operation::Create { directory, name, .. }
                | Operation::Symlink { directory, name, .. }
                | Operation::Lookup { directory, name },
                Outcome::Inode(inode),
            ) => {
                names.insert((*directory, *name), *inode);
            }
            (Operation::Link { inode, directory, name }, Outcome::Done) => {
                names.insert((*directory, *name), *inode);
            }
            (
                Operation::Unlink { directory, name } | Operation::RemoveDirectory { directory, name },
                Outcome::Done,
            ) => {
                names.remove(&(*directory, *name));
            }
            (Operation::TakeSnapshot { name }, Outcome::Taken(_)) => {
                world.snapshots.insert(*name);
            }
            (Operation::DeleteSnapshot { name, .. }, Outcome::Done) => {
                world.snapshots.remove(name);
            }
            (Operation::Rename { from, name, to, to_name, flags }, Outcome::Done) => {
                let moved = names.remove(&(*from, *name));
                let replaced = match moved {
                    Some(moved) => names.insert((*to, *to_name), moved),
                    None => None,
                };
                if let (true, Some(other)) = (flags.contains(quire::RenameFlags::EXCHANGE), replaced) {
                    names.insert((*from, *name), other);
                }
            }
            _ => {}
        }
    }

    /// Whether an inode without a name is held.
    pub fn nameless(&self) -> bool {
        let volume = self.volume();
        self.world.lock().handles.values().any(|inode| volume.inodes().metadata(inode).nlink() == 0)
    }

    /// Lets go of everything; a volume that is still open is closed.
    pub fn abandon(&self) {
        *self.world.lock() = World::default();
        drop(self.volume.lock().take());
    }
}

fn xattr_name(name: u8) -> Vec<u8> {
    format!("user.x{name}").into_bytes()
}

/// How soon an fsync that will be withdrawn while it waits for others is due.
const LAZY: Durability = Durability::Lazy(Duration::from_secs(100));

/// Failing writes that a sync may meet one after the other.
const SYNCS_MAX: usize = 20;

/// Makes some of the coming writes of data fail.
fn inject(device: &SimulatedBackend, profile: &Profile, seed: u64) {
    let mut random = Random::seeded(seed ^ 0xfa_017);
    if profile.faults {
        for _ in 0..6 {
            let fault = Fault::on(FaultOp::Write).class(IoClass::Data).after(random.below(60));
            device.inject(fault.times(1 + random.below(3)));
        }
    }
}

/// Works on an image with one thread and no background threads.
pub fn work_alone(image: &Image, profile: &Profile, steps: &[Step], first_op: u64) -> Result<Worked, String> {
    let step = |bench: &Bench, step: &Step| bench.step(*step, profile, true);
    alone(image, profile, first_op, steps, &step)
}

/// As [`work_alone`], with operations that are given.
pub fn perform_alone(
    image: &Image,
    profile: &Profile,
    operations: &[Operation],
    first_op: u64,
) -> Result<Worked, String> {
    let perform = |bench: &Bench, operation: &Operation| bench.perform(operation.clone());
    alone(image, profile, first_op, operations, &perform)
}

fn alone<S>(
    image: &Image,
    profile: &Profile,
    first_op: u64,
    steps: &[S],
    step: &dyn Fn(&Bench, &S) -> Record,
) -> Result<Worked, String> {
    let device = Arc::new(SimulatedBackend::from_image(image.clone()));
    let bench = Bench::open(device.clone(), profile, false, first_op)?;
    inject(&device, profile, first_op);
    let opened = device.event_count();
    let mut records = Vec::new();
    for one in steps {
        records.push(step(&bench, one));
        if bench.volume.lock().is_none() {
            return Err(format!("the volume could not be opened again: {:?}", records.last()));
        }
        if let Some(error) = bench.volume().failure() {
            return Err(format!("the volume shut down: {error}"));
        }
    }
    let ended = device.event_count();
    device.cut_power(quire_device::simulated::CrashPolicy::LoseAll);
    bench.abandon();
    Ok(Worked { device, opened, ended, threads: vec![records], breaks: 0, server_losses: 0 })
}

/// How long a volume waits for its server, in virtual time: longer than that stays away.
const PATIENCE: Duration = Duration::from_secs(200);

/// One of so many runs with several threads has a server before its device.
const EXPORTED_ONE_IN: u64 = 6;

/// The server before the device, if this run has one. None where writes of data fail by order: one of those
/// that are written again would be the end of the volume.
fn exporter(device: &Arc<SimulatedBackend>, profile: &Profile, schedule: u64) -> Option<Exporter> {
    let mut random = Random::seeded(schedule ^ 0x0e0b_0c01);
    if profile.faults || !random.one_in(EXPORTED_ONE_IN) {
        return None;
    }
    let one_in = 10 + random.below(100);
    let breaks = Breaks { seed: random.next_u64(), count: 8, one_in, loses_one_in: 1 + random.below(3) };
    Some(Exporter::start(device.clone(), breaks))
}

/// Points that the scheduler may pass in one level.
const STEPS_MAX: u64 = 5_000_000;

/// Works on an image with several threads, and the engine's own, in the order that the seed `schedule` gives.
pub fn work_together(
    image: &Image,
    profile: &Profile,
    steps: &[Vec<Step>],
    first_op: u64,
    schedule: u64,
) -> Result<Worked, String> {
    let options = simulation::Options { seed: schedule, step_limit: STEPS_MAX };
    let body = || simulated(image, profile, steps, first_op, schedule);
    simulation::run(&options, body).map_err(|failure| format!("{failure:?}"))?
}

fn simulated(
    image: &Image,
    profile: &Profile,
    steps: &[Vec<Step>],
    first_op: u64,
    schedule: u64,
) -> Result<Worked, String> {
    let mut random = Random::seeded(schedule);
    let device = Arc::new(SimulatedBackend::from_image(image.clone()));
    let stop = Arc::new(AtomicBool::new(false));
    let completer = spawn("device", {
        let (device, stop, random) = (device.clone(), stop.clone(), Random::seeded(random.next_u64()));
        move || complete(&device, &stop, random)
    });
    device.set_hold(if random.one_in(3) { Hold::Submitted } else { Hold::Everything });
    let exporter = exporter(&device, profile, schedule);
    let opened = match &exporter {
        Some(exporter) => exporter
            .client(Some(PATIENCE))
            .map_err(|error| format!("connecting: {error}"))
            .and_then(|client| Bench::open_behind(client, device.clone(), profile, true, first_op)),
        None => Bench::open(device.clone(), profile, true, first_op),
    };
    let worked = opened.and_then(|bench| {
        let bench = Arc::new(bench);
        inject(&device, profile, schedule);
        let opened = device.event_count();
        let workers: Vec<_> = steps
            .iter()
            .enumerate()
            .map(|(number, steps)| {
                let (bench, steps, profile) = (bench.clone(), steps.clone(), *profile);
                spawn(&format!("worker {number}"), move || {
                    steps.iter().map(|step| bench.step(*step, &profile, false)).collect::<Vec<_>>()
                })
            })
            .collect();
        let mut threads = Vec::new();
        for worker in workers {
            threads.push(worker.join().map_err(|_| "a worker panicked".to_owned())?);
        }
        let ended = device.event_count();
        let failure = bench.volume().failure();
        device.cut_power(quire_device::simulated::CrashPolicy::LoseAll);
        bench.abandon();
        match failure {
            Some(error) => Err(format!("the volume shut down: {error}")),
            None => {
                let (breaks, server_losses) =
                    exporter.as_ref().map_or((0, 0), |server| (server.breaks(), server.power_losses()));
                Ok(Worked { device: device.clone(), opened, ended, threads, breaks, server_losses })
            }
        }
    });
    drop(exporter);
    device.set_hold(Hold::Nothing);
    stop.store(true, Ordering::Relaxed);
    completer.join().map_err(|_| "the device's thread panicked".to_owned())?;
    worked
}

fn spawn<T: Send + 'static>(name: &str, body: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    thread::Builder::new().name(name.to_owned()).spawn(body).expect("a thread")
}

/// The device's own time: completes what is held, now soon, now late, in any order. A slow device mostly
/// waits until nobody else can go on, so that much is in flight; one that likes the newest overtakes the old
/// ones for long.
fn complete(device: &SimulatedBackend, stop: &AtomicBool, mut random: Random) {
    let slow = !random.one_in(3);
    let newest = random.one_in(2);
    let release = |random: &mut Random| {
        if newest && !random.one_in(6) {
            device.release(device.held().saturating_sub(1))
        } else {
            device.release_one(random)
        }
    };
    while !stop.load(Ordering::Relaxed) {
        if device.held() > 0 && if slow { random.one_in(8) } else { !random.one_in(4) } {
            release(&mut random);
            continue;
        }
        let long = if random.one_in(50) { 20_000 } else { 200 };
        thread::sleep(Duration::from_micros(1 + random.below(long)));
        if slow {
            release(&mut random);
        }
    }
    device.release_all(&mut random);
}
