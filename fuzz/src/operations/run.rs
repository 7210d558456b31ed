//! One operation after the other, on the volume and on the model.

use super::history::{History, Made, describe};
use super::model::{Inode, Model, Outcome, ROOT};
use super::{Bytes, Name, Operation};
use crate::sample::{device, options};
use arbitrary::Unstructured;
use quire::inodes::{Caller, Create, FallocateMode, InodeRef, IoFlags, SetAttributes, XattrFlags};
use quire::{ErrorKind, FileType, InodeNo, RenameFlags, Result, Volume};
use quire_device::SimulatedBackend;
use quire_device::simulated::{CrashPolicy, Image};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

const BLOCKS: u64 = 4096;
const OPERATIONS_MAX: usize = 100;
const FILE_BYTES_MAX: usize = 1 << 20;

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut source = Unstructured::new(input);
    let mut run = Run::new();
    for _ in 0..OPERATIONS_MAX {
        if source.is_empty() || run.over {
            break;
        }
        let Ok(operation) = source.arbitrary::<Operation>() else { break };
        run.step(&operation);
    }
    if run.over {
        return;
    }
    run.compare();
    let sum = crc32c::crc32c(input);
    run.cut(sum as u16, (sum >> 16) as u8, (sum >> 24) as u16);
    run.compare();
    run.close();
}

fn formatted() -> &'static Image {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    IMAGE.get_or_init(|| crate::sample::format(BLOCKS).visible())
}

fn open(device: &Arc<SimulatedBackend>) -> Volume {
    options(false).open_backend(device.clone()).expect("the volume opens")
}

/// Whether to print what is done, to understand a finding (`QUIRE_FUZZ_SHOW=1`).
fn shows_operations() -> bool {
    static SHOWS: OnceLock<bool> = OnceLock::new();
    *SHOWS.get_or_init(|| std::env::var_os("QUIRE_FUZZ_SHOW").is_some())
}

fn assert_clean(image: &Image, when: &str) {
    let report = quire_fsck::check_backend(device(image), &quire_fsck::Options::default());
    let report = report.unwrap_or_else(|error| panic!("{when}: the check could not run: {error}"));
    assert!(report.is_clean(), "{when}: {:#?}", report.issues);
}

fn name(number: u8) -> Vec<u8> {
    match number % 9 {
        8 => vec![b'n'; 255],
        number => vec![b'a' + number],
    }
}

fn attribute_name(number: u8) -> Vec<u8> {
    format!("user.{}", number % 5).into_bytes()
}

struct Run {
    device: Arc<SimulatedBackend>,
    /// None only while it is being opened again.
    volume: Option<Volume>,
    model: Model,
    history: History,
    /// Inodes kept open.
    open: BTreeMap<u64, InodeRef>,
    /// An operation ran out of space half done: nothing more can be said.
    over: bool,
    /// The volume has been without room since it was opened, so that it may fail where it promises nothing.
    was_full: bool,
}

impl Run {
    fn new() -> Run {
        let device = Arc::new(SimulatedBackend::from_image(formatted().clone()));
        let volume = open(&device);
        let model = Model::new();
        let history = History::new(model.clone(), device.event_count());
        Run {
            device,
            volume: Some(volume),
            model,
            history,
            open: BTreeMap::new(),
            over: false,
            was_full: false,
        }
    }

    fn volume(&self) -> &Volume {
        self.volume.as_ref().expect("the volume is open")
    }

    fn step(&mut self, operation: &Operation) {
        let begun = self.device.event_count();
        if shows_operations() {
            eprintln!("event {begun}: {operation:?}");
        }
        match operation {
            Operation::Remount => return self.remount(),
            Operation::Compare => return self.compare(),
            Operation::Cut { when, policy, seed } => return self.cut(*when, *policy, *seed),
            _ => {}
        }
        let made = self.apply(operation);
        if self.over {
            return;
        }
        if let Some(error) = self.volume().failure() {
            // What a full volume leaves half done ends it; the next mount goes on.
            let is_full = error.kind() == ErrorKind::NoSpace;
            assert!(self.was_full && is_full, "the volume shut down: {error}");
            self.over = true;
            return;
        }
        let ended = self.device.event_count();
        self.history.push(&self.model, begun, ended, &made);
    }

    /// Whether the operation was done, as the model says it had to be. One that found no room was not.
    fn agree<T, U>(&mut self, what: &Operation, found: &Result<T>, said: &Outcome<U>) -> bool {
        match (found, said) {
            (Ok(_), Ok(_)) => true,
            (Err(error), Err(kind)) if error.kind() == *kind => false,
            // Room is looked for before some other things are.
            (Err(error), _) if error.kind() == ErrorKind::NoSpace && self.may_take_space(what) => {
                self.was_full = true;
                false
            }
            (Ok(_), Err(kind)) => panic!("{what:?} succeeded instead of {kind:?}"),
            (Err(error), Ok(_)) => panic!("{what:?}: {error}"),
            (Err(error), Err(kind)) => panic!("{what:?} instead of {kind:?}: {error}"),
        }
    }

    /// Whether a full volume may refuse it.
    fn may_take_space(&self, operation: &Operation) -> bool {
        match operation {
            Operation::Truncate { file, size } => {
                self.file(*file).is_some_and(|file| size.get() > self.model.get(file).data.len())
            }
            Operation::Unlink { .. } | Operation::RemoveDirectory { .. } | Operation::Look { .. } => false,
            _ => true,
        }
    }

    fn pick(&self, number: u8, wanted: impl Fn(&Inode) -> bool) -> Option<u64> {
        let all: Vec<u64> =
            self.model.inodes.iter().filter(|(_, inode)| wanted(inode)).map(|(number, _)| *number).collect();
        (!all.is_empty()).then(|| all[usize::from(number) % all.len()])
    }

    fn directory(&self, number: u8) -> u64 {
        self.pick(number, Inode::is_directory).expect("there is a root")
    }

    fn file(&self, number: u8) -> Option<u64> {
        self.pick(number, |inode| inode.kind == FileType::Regular)
    }

    fn inode(&self, number: u8) -> u64 {
        self.pick(number, |_| true).expect("there is a root")
    }

    fn reference(&self, inode: u64) -> InodeRef {
        match self.open.get(&inode) {
            Some(open) => open.clone(),
            None => self.volume().inodes().get(InodeNo(inode)).expect("a linked inode can be opened"),
        }
    }

    /// Keeps what lost its last name open, if it is; else it is gone.
    fn forget_if_unused(&mut self, inode: u64) {
        if self.model.get(inode).links == 0 && !self.open.contains_key(&inode) {
            self.model.inodes.remove(&inode);
        }
    }

    fn apply(&mut self, operation: &Operation) -> Made {
        match operation {
            Operation::Create { .. } | Operation::Symlink { .. } | Operation::Unnamed { .. } => {
                self.create(operation)
            }
            Operation::Link { .. }
            | Operation::Unlink { .. }
            | Operation::RemoveDirectory { .. }
            | Operation::Rename { .. }
            | Operation::Look { .. } => self.names(operation),
            Operation::SetAttribute { .. }
            | Operation::RemoveAttribute { .. }
            | Operation::SetMode { .. } => self.attributes(operation),
            Operation::Write { .. }
            | Operation::Append { .. }
            | Operation::Read { .. }
            | Operation::Truncate { .. }
            | Operation::Allocate { .. }
            | Operation::Occupy { .. }
            | Operation::Copy { .. } => self.data(operation).unwrap_or_default(),
            _ => self.durability(operation),
        }
    }

    fn create(&mut self, operation: &Operation) -> Made {
        let (directory, name, inode) = match operation {
            Operation::Create { at, kind, mode } => {
                const KINDS: [FileType; 6] = [
                    FileType::Regular,
                    FileType::Directory,
                    FileType::Regular,
                    FileType::Directory,
                    FileType::Fifo,
                    FileType::Socket,
                ];
                let kind = KINDS[usize::from(*kind) % KINDS.len()];
                (self.directory(at.directory), name(at.name), Inode::new(kind, u32::from(mode & 0o777)))
            }
            Operation::Symlink { at, len } => {
                let mut inode = Inode::new(FileType::Symlink, 0o777);
                inode.target = vec![b't'; usize::from(*len) % 4095 + 1];
                (self.directory(at.directory), name(at.name), inode)
            }
            Operation::Unnamed { directory } => return self.unnamed(operation, self.directory(*directory)),
            _ => unreachable!("the caller chose"),
        };
        let parent = self.reference(directory);
        let found = match inode.kind {
            FileType::Symlink => {
                self.volume().inodes().symlink(&parent, &name, &inode.target, Caller::default())
            }
            kind => {
                let create = Create { kind, ..Create::file(inode.mode) };
                self.volume().inodes().create(&parent, &name, &create)
            }
        };
        let said = self.model.may_create(directory, &name);
        if !self.agree(operation, &found, &said) {
            return Made::default();
        }
        let made = found.expect("they agree");
        let number = made.number().0;
        self.model.create(directory, &name, number, inode);
        self.open.insert(number, made);
        Made { named: vec![directory, number], ..Made::default() }
    }

    fn unnamed(&mut self, operation: &Operation, directory: u64) -> Made {
        let parent = self.reference(directory);
        let found = self.volume().inodes().tmpfile(&parent, &Create::file(0o600));
        let said = if self.model.get(directory).links == 0 { Err(ErrorKind::NotFound) } else { Ok(()) };
        if self.agree(operation, &found, &said) {
            let made = found.expect("they agree");
            let inode = Inode { links: 0, never_named: true, ..Inode::new(FileType::Regular, 0o600) };
            self.model.inodes.insert(made.number().0, Rc::new(inode));
            self.open.insert(made.number().0, made);
        }
        Made::default()
    }

    fn names(&mut self, operation: &Operation) -> Made {
        let place = |run: &Run, at: &Name| (run.directory(at.directory), name(at.name));
        let mut changed = self.model.clone();
        let (found, said) = match operation {
            Operation::Link { inode, at } => {
                let (inode, (directory, name)) = (self.inode(*inode), place(self, at));
                let (one, parent) = (self.reference(inode), self.reference(directory));
                let found = self.volume().inodes().hard_link(&one, &parent, &name);
                (found, changed.link(inode, directory, &name).map(|()| vec![inode, directory]))
            }
            Operation::Unlink { at } => {
                let (directory, name) = place(self, at);
                let found = self.volume().inodes().remove_file(&self.reference(directory), &name);
                (found, changed.unlink(directory, &name).map(|inode| vec![inode, directory]))
            }
            Operation::RemoveDirectory { at } => {
                let (directory, name) = place(self, at);
                let found = self.volume().inodes().remove_dir(&self.reference(directory), &name);
                (found, changed.rmdir(directory, &name).map(|inode| vec![inode, directory]))
            }
            Operation::Rename { from, to, flags } => {
                let ((from, name), (to, to_name)) = (place(self, from), place(self, to));
                let flags =
                    RenameFlags::from_bits_truncate(if *flags < 128 { 0 } else { u32::from(*flags & 3) });
                let (one, other) = (self.reference(from), self.reference(to));
                let found = self.volume().inodes().rename(&one, &name, &other, &to_name, flags);
                (found, changed.rename((from, &name), (to, &to_name), flags))
            }
            Operation::Look { at } => {
                let (directory, name) = place(self, at);
                let found = self.volume().inodes().lookup(&self.reference(directory), &name);
                let said = self.model.lookup(directory, &name);
                if self.agree(operation, &found, &said) {
                    assert_eq!(found.expect("they agree").number().0, said.expect("they agree"));
                }
                return Made::default();
            }
            _ => unreachable!("the caller chose"),
        };
        if !self.agree(operation, &found, &said) {
            return Made::default();
        }
        self.model = changed;
        let named = said.expect("they agree");
        for inode in &named {
            if self.model.inodes.contains_key(inode) {
                self.forget_if_unused(*inode);
            }
        }
        Made { named, ..Made::default() }
    }

    fn attributes(&mut self, operation: &Operation) -> Made {
        let mut changed = self.model.clone();
        let (inode, found, said) = match operation {
            Operation::SetAttribute { inode, name, len, flags } => {
                let inode = self.inode(*inode);
                let len = if *len == u16::MAX { 65_537 } else { usize::from(*len) % 5000 };
                let (name, value) = (attribute_name(*name), vec![*flags; len]);
                let flags =
                    XattrFlags::from_bits_truncate(if *flags < 128 { 0 } else { u32::from(*flags & 3) });
                let found = self.volume().inodes().set_xattr(&self.reference(inode), &name, &value, flags);
                (inode, found, changed.set_xattr(inode, &name, &value, flags))
            }
            Operation::RemoveAttribute { inode, name } => {
                let (inode, name) = (self.inode(*inode), attribute_name(*name));
                let found = self.volume().inodes().remove_xattr(&self.reference(inode), &name);
                (inode, found, changed.remove_xattr(inode, &name))
            }
            Operation::SetMode { inode, mode } => {
                let Some(inode) = self.pick(*inode, |inode| inode.kind != FileType::Symlink) else {
                    return Made::default();
                };
                let mode = u32::from(*mode) & 0o777;
                let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
                let found = self.volume().inodes().set_attributes(&self.reference(inode), &set).map(|_| ());
                changed.edit(inode).mode = mode;
                (inode, found, Ok(()))
            }
            _ => unreachable!("the caller chose"),
        };
        if !self.agree(operation, &found, &said) {
            return Made::default();
        }
        self.model = changed;
        Made { named: vec![inode], ..Made::default() }
    }

    /// None without files.
    fn data(&mut self, operation: &Operation) -> Option<Made> {
        let io = |flags: u8| match flags % 8 {
            0 => IoFlags::DIRECT,
            1 => IoFlags::SYNC,
            2 => IoFlags::DATASYNC,
            _ => IoFlags::empty(),
        };
        match operation {
            Operation::Write { file, offset, len, fill, flags } => {
                let (file, offset) = (self.file(*file)?, offset.get());
                let bytes = pattern(*fill, len.get());
                let found =
                    self.volume().inodes().write_at(&self.reference(file), &bytes, offset as u64, io(*flags));
                if self.agree(operation, &found, &Ok(())) {
                    let written = found.expect("they agree");
                    self.written(operation, written, bytes.len());
                    self.model.write(file, offset, &bytes[..written]);
                    return Some(self.made_by_write(file, offset, written, io(*flags)));
                }
            }
            Operation::Append { file, len, fill, flags } => {
                let file = self.file(*file)?;
                let size = self.model.get(file).data.len();
                let bytes = pattern(*fill, len.get());
                if size + bytes.len() > FILE_BYTES_MAX {
                    return None;
                }
                let found = self.volume().inodes().append(&self.reference(file), &bytes, io(*flags));
                if self.agree(operation, &found, &Ok(())) {
                    let (at, written) = found.expect("they agree");
                    assert!(at == size as u64 || bytes.is_empty(), "an append at {at} of {size} bytes");
                    self.written(operation, written, bytes.len());
                    self.model.write(file, size, &bytes[..written]);
                    return Some(self.made_by_write(file, size, written, io(*flags)));
                }
            }
            Operation::Read { file, offset, len, direct } => {
                let file = self.file(*file)?;
                let flags = if *direct { IoFlags::DIRECT } else { IoFlags::empty() };
                self.compare_data(file, offset.get(), len.get(), flags);
            }
            Operation::Truncate { file, size } => {
                let (file, size) = (self.file(*file)?, size.get());
                let found = self.volume().inodes().set_len(&self.reference(file), size as u64);
                if self.agree(operation, &found, &Ok(())) {
                    self.model.truncate(file, size);
                }
            }
            Operation::Allocate { file, mode, offset, len } => {
                return self.allocate(operation, *file, *mode, *offset, *len);
            }
            Operation::Occupy { file, offset, kilobytes } => {
                let file = self.file(*file)?;
                let len = (u64::from(*kilobytes) % 8192 + 1) << 10;
                let at = offset.get() as u64;
                let found =
                    self.volume().inodes().allocate(&self.reference(file), FallocateMode::KeepSize, at, len);
                self.agree(operation, &found, &Ok(()));
            }
            Operation::Copy { from, offset, to, to_offset, len } => {
                self.copy(operation, (*from, *offset), (*to, *to_offset), len.get())?;
            }
            _ => unreachable!("the caller chose"),
        }
        Some(Made::default())
    }

    /// What a write made durable: one that is synchronous, itself. Only where that is all of the file, more
    /// is known than of single sectors.
    fn made_by_write(&self, file: u64, offset: usize, written: usize, flags: IoFlags) -> Made {
        let is_forced = flags.intersects(IoFlags::SYNC | IoFlags::DATASYNC);
        let is_all = offset == 0 && written > 0 && written == self.model.get(file).data.len();
        let forced = (is_forced && is_all).then_some((file, flags.contains(IoFlags::SYNC)));
        Made { file: forced, ..Made::default() }
    }

    /// A short count is what a volume without room gives.
    fn written(&mut self, operation: &Operation, written: usize, asked: usize) {
        assert!(written <= asked && (written > 0 || asked == 0), "{operation:?} wrote {written} of {asked}");
        self.was_full |= written < asked;
    }

    fn allocate(
        &mut self,
        operation: &Operation,
        file: u8,
        mode: u8,
        offset: Bytes,
        len: Bytes,
    ) -> Option<Made> {
        const MODES: [FallocateMode; 7] = [
            FallocateMode::Allocate,
            FallocateMode::KeepSize,
            FallocateMode::PunchHole,
            FallocateMode::ZeroRange { keep_size: true },
            FallocateMode::ZeroRange { keep_size: false },
            FallocateMode::Collapse,
            FallocateMode::Insert,
        ];
        let (file, mode) = (self.file(file)?, MODES[usize::from(mode) % MODES.len()]);
        let (offset, len) = (offset.get(), len.get());
        if mode == FallocateMode::Insert && self.model.get(file).data.len() + len > FILE_BYTES_MAX {
            return None;
        }
        let mut changed = self.model.clone();
        let found = self.volume().inodes().allocate(&self.reference(file), mode, offset as u64, len as u64);
        let said = changed.allocate(file, mode, offset, len);
        let done = self.agree(operation, &found, &said);
        if done {
            self.model = changed;
        } else if said.is_ok() && mode != FallocateMode::Allocate && mode != FallocateMode::KeepSize {
            // Without room some of the range may be zeros already.
            self.over = true;
        }
        let moved = done && matches!(mode, FallocateMode::Collapse | FallocateMode::Insert);
        Some(Made { names: moved, ..Made::default() })
    }

    fn copy(
        &mut self,
        operation: &Operation,
        (from, offset): (u8, Bytes),
        (to, to_offset): (u8, Bytes),
        len: usize,
    ) -> Option<()> {
        let (from, to) = (self.file(from)?, self.file(to)?);
        let (offset, to_offset) = (offset.get(), to_offset.get());
        let data = self.model.get(from).data.clone();
        let len = len.min(data.len().saturating_sub(offset));
        let overlaps = from == to && offset < to_offset + len && to_offset < offset + len;
        let (one, other) = (self.reference(from), self.reference(to));
        let found =
            self.volume().inodes().copy_range(&one, offset as u64, &other, to_offset as u64, len as u64);
        let said = if overlaps { Err(ErrorKind::Invalid) } else { Ok(()) };
        if self.agree(operation, &found, &said) {
            let copied = found.expect("they agree") as usize;
            self.written(operation, copied, len);
            self.model.write(to, to_offset, &data[offset.min(data.len())..][..copied]);
        }
        Some(())
    }

    fn durability(&mut self, operation: &Operation) -> Made {
        let full = |error: &quire::Error| error.kind() == ErrorKind::NoSpace;
        match operation {
            Operation::Sync { inode, data_only } => {
                let inode = self.inode(*inode);
                match self.volume().inodes().fsync(&self.reference(inode), *data_only) {
                    Ok(()) => return Made { file: Some((inode, !data_only)), ..Made::default() },
                    Err(error) => assert!(full(&error), "{operation:?}: {error}"),
                }
                self.was_full = true;
            }
            Operation::SyncAll => {
                match self.volume().sync() {
                    Ok(()) => return Made { all: true, ..Made::default() },
                    Err(error) => assert!(full(&error), "{operation:?}: {error}"),
                }
                self.was_full = true;
            }
            Operation::Checkpoint => {
                self.volume().checkpoint().expect("a checkpoint can be written");
                return Made { names: true, ..Made::default() };
            }
            Operation::Background => {
                if let Err(error) = self.volume().background_step() {
                    assert!(full(&error), "{operation:?}: {error}");
                    self.was_full = true;
                }
            }
            Operation::Close { inode } => {
                let kept: Vec<u64> = self.open.keys().copied().collect();
                if !kept.is_empty() {
                    let inode = kept[usize::from(*inode) % kept.len()];
                    self.open.remove(&inode);
                    self.forget_if_unused(inode);
                }
            }
            _ => unreachable!("the caller chose"),
        }
        Made::default()
    }

    /// Lets every inode go; those without a name go for good.
    fn release(&mut self) {
        self.open.clear();
        self.model = self.model.without_orphans();
    }

    fn remount(&mut self) {
        self.close();
        if !self.over {
            self.reopen(self.device.visible());
            self.history = History::new(self.model.clone(), self.device.event_count());
        }
    }

    /// Opens an image on a device of its own, whose events begin anew.
    fn reopen(&mut self, image: Image) {
        self.device = Arc::new(SimulatedBackend::from_image(image));
        self.volume = Some(open(&self.device));
        self.was_full = false;
    }

    fn close(&mut self) {
        self.release();
        let volume = self.volume.take().expect("the volume is open");
        match volume.close() {
            Ok(()) => assert_clean(&self.device.visible(), "closed"),
            Err(error) => {
                assert!(self.was_full && error.kind() == ErrorKind::NoSpace, "closing: {error}");
                self.over = true;
            }
        }
    }

    /// Cuts the power at some event since the volume was opened, and goes on with what is recovered.
    fn cut(&mut self, when: u16, policy: u8, seed: u16) {
        let seed = u64::from(seed);
        let policy = match policy % 8 {
            0 => CrashPolicy::LoseAll,
            1 => CrashPolicy::KeepAll,
            2 => CrashPolicy::Killed { seed },
            _ => CrashPolicy::Power { seed },
        };
        let events = self.device.event_count();
        // The latest moments see the most.
        let event = if when & 3 == 0 { events * usize::from(when) / 65_536 } else { events };
        let image = self.device.crash_at(event, policy).expect("events are recorded");
        let _ = self.device.cut_power(CrashPolicy::LoseAll);
        self.open.clear();
        drop(self.volume.take());

        assert_clean(&image, "after a power cut");
        self.reopen(image);
        let found = self.look();
        if let Err(what) = self.history.check(&found, event) {
            panic!("after a power cut ({policy:?}) at event {event} of {events}: {what}");
        }
        self.model = found;
        self.history = History::new(self.model.clone(), self.device.event_count());
    }

    /// Everything that names lead to.
    fn look(&self) -> Model {
        let volume = self.volume();
        let mut model = Model { inodes: BTreeMap::new() };
        let mut waiting = vec![(ROOT, ROOT)];
        while let Some((number, parent)) = waiting.pop() {
            if let Some(known) = model.inodes.get(&number) {
                assert!(!known.is_directory(), "directory {number} has two names");
                continue;
            }
            let inode = self
                .look_at(&volume.inodes().get(InodeNo(number)).expect("a name leads to an inode"), parent);
            waiting.extend(inode.entries.values().map(|child| (*child, number)));
            model.inodes.insert(number, Rc::new(inode));
        }
        model
    }

    fn look_at(&self, inode: &InodeRef, parent: u64) -> Inode {
        let volume = self.volume();
        let attributes = volume.inodes().metadata(inode);
        let mut found = Inode::new(attributes.file_type(), attributes.permission_bits());
        found.links = attributes.nlink();
        found.parent = parent;
        for name in volume.inodes().list_xattrs(inode).expect("attributes are listed") {
            let value = volume.inodes().get_xattr(inode, &name).expect("a listed attribute is there");
            found.xattrs.insert(name, value);
        }
        match found.kind {
            FileType::Directory => {
                let listed = volume.inodes().read_dir(inode, 0, &mut |entry| {
                    if !matches!(entry.name, b"." | b"..") {
                        let twice = found.entries.insert(entry.name.to_vec(), entry.inode.0);
                        assert!(twice.is_none(), "a name is listed twice");
                    }
                    true
                });
                listed.expect("a directory can be read");
                for (name, number) in &found.entries {
                    let looked_up = volume.inodes().lookup(inode, name).expect("a listed name is there");
                    assert_eq!(looked_up.number().0, *number);
                }
                let above = volume.inodes().lookup(inode, b"..").expect("a directory has a parent");
                assert_eq!(above.number().0, parent, "the parent of directory {}", inode.number());
            }
            FileType::Symlink => {
                found.target = volume.inodes().read_link(inode).expect("a link has a target")
            }
            FileType::Regular => {
                let mut data = vec![0xee; attributes.len() as usize];
                let read = volume
                    .inodes()
                    .read_at(inode, &mut data, 0, IoFlags::empty())
                    .expect("a file can be read");
                assert_eq!(read, data.len());
                found.data = Rc::new(data);
            }
            _ => {}
        }
        found
    }

    fn compare_data(&self, file: u64, offset: usize, len: usize, flags: IoFlags) {
        let data = &self.model.get(file).data;
        let mut found = vec![0xee; len];
        let read = self.volume().inodes().read_at(&self.reference(file), &mut found, offset as u64, flags);
        let read = read.unwrap_or_else(|error| panic!("reading file {file} at {offset}: {error}"));
        let said = &data[offset.min(data.len())..(offset + len).min(data.len())];
        assert_eq!(read, said.len(), "bytes of file {file} at {offset}");
        if let Some(at) = (0..read).find(|at| found[*at] != said[*at]) {
            panic!("file {file} at {}: {:#x} instead of {:#x}", offset + at, found[at], said[at]);
        }
    }

    /// Compares the whole volume with the model.
    fn compare(&mut self) {
        let (found, said) = (self.look(), self.model.without_orphans());
        assert!(said.same_names(&found), "found {}, expected {}", describe(&found), describe(&said));
        for (number, inode) in &self.model.inodes {
            if inode.kind == FileType::Regular {
                self.compare_data(*number, 0, inode.data.len() + 10, IoFlags::empty());
            }
        }
    }
}

/// Bytes that differ from block to block and from fill to fill.
fn pattern(fill: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| fill.wrapping_add((at / 512) as u8) | 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    const AT: Name = Name { directory: 0, name: 0 };

    /// A run with one file, of so many bytes, written with these flags.
    fn with_file(bytes: u16, flags: u8) -> Run {
        let mut run = Run::new();
        run.step(&Operation::Create { at: AT, kind: 0, mode: 0o600 });
        let len = Bytes(bytes / 4096 * 2);
        run.step(&Operation::Write { file: 0, offset: Bytes(0), len, fill: 7, flags });
        run
    }

    /// A volume was excused whatever it refused for want of room, also what takes none.
    #[test]
    fn room_is_no_excuse_for_what_takes_none() {
        let mut run = with_file(8192, 3);
        let full: Result<()> = Err(quire::Error::new(ErrorKind::NoSpace, "no room"));
        let mut is_excused = |operation: &Operation| {
            catch_unwind(AssertUnwindSafe(|| run.agree(operation, &full, &Ok::<_, ErrorKind>(())))).is_ok()
        };
        let truncate = |size| Operation::Truncate { file: 0, size: Bytes(size) };
        for takes_none in [Operation::Unlink { at: AT }, Operation::Look { at: AT }, truncate(2), truncate(4)]
        {
            assert!(!is_excused(&takes_none), "{takes_none:?}");
        }
        for takes_some in [Operation::Unnamed { directory: 0 }, truncate(6)] {
            assert!(is_excused(&takes_some), "{takes_some:?}");
        }
    }

    /// What a synchronous write had written was allowed to be gone after a power cut.
    #[test]
    fn a_synchronous_write_of_all_of_a_file_is_there() {
        for (flags, is_kept) in [(1, true), (2, true), (3, false)] {
            let run = with_file(8192, flags);
            let mut without = run.model.clone();
            let file = run.file(0).expect("it was made");
            without.edit(file).data = Rc::default();
            let checked = run.history.check(&without, run.device.event_count());
            assert_eq!(checked.is_err(), is_kept, "flags {flags}: {checked:?}");
        }
    }
}
