//! Looking at a volume from outside: a [`State`] is everything that names lead to, in it and in its
//! snapshots.
//!
//! Crash images are mounted without threads, in the order of the calls below and nothing else, so that the
//! same image always gives the same answer.
//!
//! Neighbours: [`crate::oracle`] judges states; [`crate::levels`] cuts the images.

use crate::configurations::hash_of;
use crate::contents::origin;
use crate::damage;
use crate::operation::{Name, OpId, Shape, xattr_value};
use quire::inodes::{InodeRef, IoFlags};
use quire::{Clock, FileType, InodeNo, ScrubOptions, Timestamp, Volume, VolumeOptions};
use quire_device::simulated::Image;
use quire_device::{Backend, SimulatedBackend};
use quire_format::superblock::{SLOT_BLOCKS, far_slots};
use quire_fsck::Severity;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Bytes of a file that a snapshot reads at most; larger ones are no part of any run.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// What fills a buffer before a read: bytes that the read leaves alone show.
pub const UNREAD: u8 = 0xDB;

/// One inode that a name leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// All but the size.
    pub shape: Shape,
    /// Bytes of a file.
    pub size: u64,
    /// What a file holds.
    pub contents: Arc<Vec<u8>>,
}

/// A snapshot of the volume that can be opened.
#[derive(Clone, PartialEq, Eq)]
pub struct Kept {
    /// Its name.
    pub name: String,
    /// All that it holds, by number.
    pub inodes: Arc<BTreeMap<u64, Found>>,
}

impl fmt::Debug for Kept {
    /// What it holds as a hash, which is the same for the same content.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<_> = self.inodes.iter().map(|(at, found)| (at, &found.shape, &found.contents)).collect();
        write!(f, "{:?} with {} inodes, {:x}", self.name, self.inodes.len(), hash_of(&all))
    }
}

impl Kept {
    /// The first thing in which two differ.
    pub fn difference(&self, other: &Kept) -> Option<String> {
        self.difference_beside(other, &BTreeSet::new())
    }

    /// As [`Kept::difference`]; the contents of `vague` files may differ.
    pub fn difference_beside(&self, other: &Kept, vague: &BTreeSet<u64>) -> Option<String> {
        if self.name != other.name {
            return Some(format!("the name {:?} against {:?}", self.name, other.name));
        }
        let (one, two) = (&self.inodes, &other.inodes);
        difference_of_names(one, two).or_else(|| difference_of_contents(one, two, vague))
    }
}

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// By number.
    pub inodes: BTreeMap<u64, Found>,
    /// The snapshots, by number, without those that are being deleted.
    pub kept: BTreeMap<u32, Kept>,
    /// The names of the others, by number.
    pub deleting: BTreeMap<u32, String>,
    /// Free blocks of the data space.
    pub free_blocks: u64,
    /// Blocks of the metadata pool, which takes free ones when it must; known of recovered volumes only.
    pub pool_blocks: u64,
    /// What waited in the image to be finished: of recovered volumes that fsck had looked at before.
    pub waiting: Waiting,
    /// Blocks that were damaged in a copy of the image, which was healed.
    pub damaged: u64,
    /// What a superblock slot alone leads to, where files hold something else then. Names, attributes and
    /// sizes are the same. Contents that no force covers need not be; each is judged by itself.
    pub by_slot: Vec<State>,
}

/// What a crash left half done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Inodes without a name.
    pub orphans: u64,
    /// Operations of many transactions.
    pub operations: u64,
}

/// A clock that stands until it is moved.
pub fn clock() -> Clock {
    Clock::simulated(Timestamp(1_000_000_000))
}

/// Options of a volume that one thread drives.
pub fn options() -> VolumeOptions {
    VolumeOptions::new().threads(false).cache_bytes(6 << 20).clock(clock())
}

impl State {
    /// Walks a volume and each of its snapshots from the root.
    pub fn take(volume: &Volume) -> Result<State, String> {
        let (mut kept, mut deleting) = (BTreeMap::new(), BTreeMap::new());
        for info in volume.snapshots().map_err(|error| error.to_string())? {
            if info.deleting {
                deleting.insert(info.number, info.name);
            } else {
                let (number, found) = read_snapshot(volume, &info.name).map_err(|error| error.to_string())?;
                kept.insert(number, found);
            }
        }
        Ok(State {
            inodes: walk(volume)?,
            kept,
            deleting,
            free_blocks: volume.info().free_blocks,
            pool_blocks: 0,
            waiting: Waiting::default(),
            damaged: 0,
            by_slot: Vec::new(),
        })
    }

    /// As the model has it.
    pub fn shapes(&self) -> BTreeMap<u64, &Shape> {
        self.inodes.iter().map(|(number, found)| (*number, &found.shape)).collect()
    }

    /// This one, and those of single slots that differ from it: a crash must leave each of them right.
    pub fn each(&self) -> impl Iterator<Item = &State> {
        std::iter::once(self).chain(&self.by_slot)
    }

    /// The first thing in which two states differ, their snapshots included; free space apart, and how far
    /// deletions are.
    pub fn difference(&self, other: &State) -> Option<String> {
        let contents = || difference_of_contents(&self.inodes, &other.inodes, &BTreeSet::new());
        self.difference_of_names(other).or_else(contents)
    }

    /// The first difference in names, attributes and sizes, and in snapshots.
    fn difference_of_names(&self, other: &State) -> Option<String> {
        difference_of_names(&self.inodes, &other.inodes).or_else(|| self.difference_of_snapshots(other))
    }

    fn difference_of_snapshots(&self, other: &State) -> Option<String> {
        let keys = |state: &State| state.kept.keys().copied().collect::<Vec<_>>();
        if keys(self) != keys(other) {
            return Some(format!("snapshots {:?} against {:?}", keys(self), keys(other)));
        }
        self.kept.iter().find_map(|(number, one)| {
            let difference = one.difference(&other.kept[number])?;
            Some(format!("snapshot {number} ({:?}): {difference}", one.name))
        })
    }

    /// The volume as it is when it has been rolled back to a snapshot.
    pub fn rolled_back(&self, number: u32) -> State {
        State { inodes: (*self.kept[&number].inodes).clone(), by_slot: Vec::new(), ..self.clone() }
    }

    /// The snapshot that the volume can be rolled back to: the newest, unless that is being deleted.
    pub fn newest_snapshot(&self) -> Option<(u32, &Kept)> {
        let (number, kept) = self.kept.last_key_value()?;
        (self.deleting.keys().last() < Some(number)).then_some((*number, kept))
    }
}

type Inodes = BTreeMap<u64, Found>;

/// The first difference in names, attributes and sizes.
fn difference_of_names(these: &Inodes, others: &Inodes) -> Option<String> {
    let keys = |inodes: &Inodes| inodes.keys().copied().collect::<Vec<_>>();
    if keys(these) != keys(others) {
        return Some(format!("inodes {:?} against {:?}", keys(these), keys(others)));
    }
    for (number, one) in these {
        let two = &others[number];
        if one.shape != two.shape {
            return Some(format!("inode {number}: {:?} against {:?}", one.shape, two.shape));
        }
        if one.size != two.size {
            return Some(format!("inode {number}: size {} against {}", one.size, two.size));
        }
    }
    None
}

/// The first byte in which files differ that both have, without the `vague` ones.
fn difference_of_contents(these: &Inodes, others: &Inodes, vague: &BTreeSet<u64>) -> Option<String> {
    for (number, one) in these.iter().filter(|(number, _)| !vague.contains(number)) {
        let two = others.get(number)?;
        if let Some(at) = one.contents.iter().zip(two.contents.iter()).position(|(a, b)| a != b) {
            return Some(format!(
                "inode {number} byte {at}: {} against {}",
                shown(&one.contents, at),
                shown(&two.contents, at)
            ));
        }
    }
    None
}

/// Opens a snapshot of a volume and reads all of it; also gives its number.
pub fn read_snapshot(volume: &Volume, name: &str) -> quire::Result<(u32, Kept)> {
    let reader = volume.open_snapshot(name)?;
    // It cannot go while it is open.
    let number = volume.snapshots()?.into_iter().find(|info| info.name == name && !info.deleting);
    let number = number.ok_or_else(|| quire::Error::corrupt("an open snapshot is not listed"))?.number;
    let inodes = walk(&reader).map_err(|what| quire::Error::corrupt(format!("snapshot {name:?}: {what}")))?;
    reader.close()?;
    Ok((number, Kept { name: name.to_owned(), inodes: Arc::new(inodes) }))
}

/// Everything that names lead to.
fn walk(volume: &Volume) -> Result<Inodes, String> {
    let mut inodes = BTreeMap::new();
    let root = volume.inodes().root().number().0;
    let mut ahead = vec![(root, root)];
    while let Some((number, parent)) = ahead.pop() {
        if inodes.contains_key(&number) {
            continue;
        }
        let found = look_at(volume, number, parent).map_err(|error| format!("inode {number}: {error}"))?;
        ahead.extend(found.shape.entries.values().map(|child| (*child, number)));
        inodes.insert(number, found);
    }
    Ok(inodes)
}

/// The snapshots that are being deleted in an image: their names, by number.
fn deleting(image: &Image) -> Result<BTreeMap<u32, String>, String> {
    let device = Arc::new(SimulatedBackend::from_image(image.clone()));
    let table = quire::internals::inspect::Image::load(device)
        .and_then(|opened| quire::internals::snapshots::table(&opened.tree))
        .map_err(|error| format!("looking for snapshots: {error}"))?;
    let deleted = table.into_iter().filter(|(_, snapshot)| snapshot.deleting.is_some());
    Ok(deleted.map(|(number, snapshot)| (number, snapshot.name)).collect())
}

/// Steps that the deletion of all snapshots of a run's volume takes at most.
const DELETION_STEPS_MAX: usize = 500;

/// Goes on with deletions of snapshots to their ends.
pub fn finish_deletions(volume: &Volume) -> Result<(), String> {
    let text = |error: quire::Error| error.to_string();
    for _ in 0..DELETION_STEPS_MAX {
        if !volume.snapshots().map_err(text)?.iter().any(|info| info.deleting) {
            return Ok(());
        }
        volume.background_step().map_err(text)?;
    }
    Err("the deletion of a snapshot does not end".to_owned())
}

/// What the word around a byte says of its origin.
pub fn shown(bytes: &[u8], at: usize) -> String {
    let start = at / 8 * 8;
    let mut word = [0; 8];
    let there = &bytes[start..bytes.len().min(start + 8)];
    word[..there.len()].copy_from_slice(there);
    match (u64::from_le_bytes(word), origin(u64::from_le_bytes(word))) {
        (0, _) => "zeros".to_owned(),
        (_, Some((op, at))) => format!("what operation {} wrote {at} bytes from its start", op.0),
        (word, None) => format!("{word:#018x}"),
    }
}

/// A directory's entries, and its parent. Of some directories the listing is stopped after a few entries and
/// goes on behind the last cookie.
pub fn list(volume: &Volume, directory: &InodeRef) -> quire::Result<(BTreeMap<Name, u64>, u64)> {
    let number = directory.number().0;
    let at_a_time = [1, 3, usize::MAX, usize::MAX][number as usize % 4];
    let (mut entries, mut parent, mut wrong) = (BTreeMap::new(), None, None);
    let mut after = 0;
    loop {
        let mut given = 0;
        volume.inodes().read_dir(directory, after, &mut |entry| {
            let is_new = match entry.name {
                b"." => entry.inode.0 == number && after == 0,
                b".." => parent.replace(entry.inode.0).is_none(),
                name => {
                    Name::from_text(name).is_some_and(|name| entries.insert(name, entry.inode.0).is_none())
                }
            };
            if !is_new || entry.cookie <= after {
                wrong.get_or_insert_with(|| format!("{:?}", entry.name.escape_ascii().to_string()));
            }
            after = entry.cookie;
            given += 1;
            given < at_a_time
        })?;
        if let Some(name) = wrong {
            let what = format!("{name} is listed twice, out of order or though nobody gave that name");
            return Err(quire::Error::corrupt(what));
        }
        if given < at_a_time {
            break;
        }
    }
    Ok((entries, parent.ok_or_else(|| quire::Error::corrupt("a listing without \"..\""))?))
}

fn look_at(volume: &Volume, number: u64, parent: u64) -> Result<Found, String> {
    let text = |error: quire::Error| error.to_string();
    let inode = volume.inodes().get(InodeNo(number)).map_err(text)?;
    let attributes = volume.inodes().metadata(&inode);
    let mut shape = Shape::new(attributes.file_type(), attributes.permission_bits());
    (shape.uid, shape.gid, shape.links) = (attributes.uid(), attributes.gid(), attributes.nlink());
    shape.untorn = volume.inodes().properties(&inode).untorn.map_or(0, quire::Unit::bytes);
    for name in volume.inodes().list_xattrs(&inode).map_err(text)? {
        if name == b"user.quire.untorn" {
            continue;
        }
        let value = volume.inodes().get_xattr(&inode, &name).map_err(text)?;
        let number = name.strip_prefix(b"user.x").and_then(|digits| digits.first()).copied();
        let number = number.ok_or_else(|| format!("an attribute {:?}", String::from_utf8_lossy(&name)))?;
        shape.xattrs.insert(number - b'0', (xattr_origin(&value), value.len() as u64));
    }
    let (mut size, mut contents) = (0, Vec::new());
    match attributes.file_type() {
        FileType::Directory => {
            let (entries, up) = list(volume, &inode).map_err(text)?;
            if up != parent {
                return Err(format!("\"..\" is inode {up}, and the directory is in {parent}"));
            }
            shape.entries = entries;
            for (name, number) in &shape.entries {
                let found = volume.inodes().lookup(&inode, &name.text()).map_err(text)?;
                if found.number().0 != *number {
                    return Err(format!(
                        "{name:?} is listed as inode {number} but found as {}",
                        found.number()
                    ));
                }
            }
        }
        FileType::Regular => {
            size = attributes.size();
            if size > FILE_BYTES_MAX {
                return Err(format!("a file of {size} bytes"));
            }
            contents = vec![UNREAD; size as usize];
            let read = volume.inodes().read_at(&inode, &mut contents, 0, IoFlags::empty()).map_err(text)?;
            if read != contents.len() {
                return Err(format!("{read} of {size} bytes could be read"));
            }
        }
        FileType::Symlink => shape.target = volume.inodes().read_link(&inode).map_err(text)?,
        _ => {}
    }
    Ok(Found { shape, size, contents: Arc::new(contents) })
}

/// The operation that set an attribute's value, if the value is wholly from it.
fn xattr_origin(value: &[u8]) -> OpId {
    let mut word = [0; 8];
    let there = value.len().min(8);
    word[..there].copy_from_slice(&value[..there]);
    match origin(u64::from_le_bytes(word)) {
        Some((op, 0)) if xattr_value(op, value.len() as u64) == value => op,
        _ => OpId(u64::MAX),
    }
}

/// How thoroughly an image is looked at, besides recovering it once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thoroughness {
    /// fsck before recovery.
    pub fsck_before: bool,
    /// Recover it a second time, and once in memory only.
    pub again: bool,
    /// Recover it from each superblock slot alone.
    pub either_slot: bool,
    /// Delete its snapshots, once it is recovered.
    pub delete_all: bool,
    /// Recover it with one copy of its metadata damaged, as the seed says, and have it healed.
    pub damaged: Option<u64>,
}

/// Recovers a crash image and checks all that needs no history: fsck before and after, free space, the same
/// volume every time, no orphans left. An error says what is wrong.
pub fn recover(image: &Image, thoroughness: Thoroughness) -> Result<State, String> {
    let mut waiting = Waiting::default();
    if thoroughness.fsck_before {
        let summary = fsck(image, "fsck of the crash image")?;
        waiting = Waiting { orphans: summary.orphans, operations: summary.logged_operations };
    }
    let device = Arc::new(SimulatedBackend::from_image(image.clone()));
    let volume = options().open_backend(device.clone()).map_err(|error| format!("recovery: {error}"))?;
    volume.drain_orphans();
    let mut state = State::take(&volume).map_err(|what| format!("after recovery: {what}"))?;
    // Opening without threads has ended deletions.
    state.deleting = deleting(image)?;
    volume.sync().map_err(|error| format!("sync after recovery: {error}"))?;
    if let Some(error) = volume.failure() {
        return Err(format!("the recovered volume shut down: {error}"));
    }
    let mut summary = fsck(&device.visible(), "fsck after recovery")?;
    if summary.orphans != 0 || summary.logged_operations != 0 {
        return Err(format!(
            "recovery left {} orphans, {} logged operations",
            summary.orphans, summary.logged_operations
        ));
    }
    if !state.deleting.is_empty() {
        summary = without_deleted(&volume, &device, &state)?;
    }
    (state.free_blocks, state.pool_blocks) = (summary.free_blocks, summary.pool_blocks);
    state.waiting = waiting;
    if summary.free_blocks != volume.info().free_blocks {
        return Err(format!(
            "{} free blocks, fsck counts {}",
            volume.info().free_blocks,
            summary.free_blocks
        ));
    }
    if thoroughness.delete_all {
        delete_all(&volume, &device, &state)?;
    }
    no_violations(&device)?;
    device.cut_power(quire_device::simulated::CrashPolicy::LoseAll);
    drop(volume);
    let mut looks: Vec<(&str, Image, VolumeOptions, bool)> = Vec::new();
    if thoroughness.again {
        looks.push(("recovered again", image.clone(), options(), false));
        looks.push(("recovered in memory", image.clone(), options().read_only(true), false));
    }
    let device = Arc::new(SimulatedBackend::from_image(image.clone()));
    let device_blocks = device.blocks();
    let slots = quire::internals::inspect::superblocks(device);
    // In the midst of a growth, or before one, second copies lie elsewhere.
    let sizes = slots.iter().filter_map(|slot| slot.newest().ok()).map(|superblock| superblock.block_count);
    let sizes: BTreeSet<u64> = sizes.chain([device_blocks]).collect();
    if thoroughness.either_slot && slots.iter().all(|slot| slot.newest().is_ok()) {
        for (slot, how) in ["without slot 0", "without slot 1"].into_iter().enumerate() {
            let mut image = image.clone();
            image.set(SLOT_BLOCKS[slot], None);
            for blocks in &sizes {
                image.set(far_slots(*blocks)[slot], None);
            }
            looks.push((how, image, options(), true));
        }
    }
    if let Some(seed) = thoroughness.damaged
        && let Some((image, blocks)) = damage::at_rest(image, seed)?
    {
        state.damaged = blocks;
        heal(&image, &state).map_err(|what| format!("with damaged copies (seed {seed}): {what}"))?;
    }
    for (how, image, options, is_slot) in looks {
        let device = Arc::new(SimulatedBackend::from_image(image));
        let volume = options.open_backend(device.clone()).map_err(|error| format!("{how}: {error}"))?;
        volume.drain_orphans();
        let second = State::take(&volume).map_err(|what| format!("{how}: {what}"))?;
        no_violations(&device).map_err(|what| format!("{how}: {what}"))?;
        device.cut_power(quire_device::simulated::CrashPolicy::LoseAll);
        match state.difference(&second) {
            None => {}
            Some(_) if is_slot && state.difference_of_names(&second).is_none() => {
                state.by_slot.push(second);
            }
            Some(difference) => return Err(format!("{how} the volume is another one: {difference}")),
        }
    }
    Ok(state)
}

/// Opens and so recovers a volume for good, until its orphans are freed and all is durable; then its device's
/// power goes. Gives the events until it was open, and until then.
pub fn recover_on(device: &Arc<SimulatedBackend>) -> quire::Result<(usize, usize)> {
    let volume = options().open_backend(device.clone())?;
    let opened = device.event_count();
    volume.drain_orphans();
    volume.sync()?;
    let ended = device.event_count();
    device.cut_power(quire_device::simulated::CrashPolicy::LoseAll);
    Ok((opened, ended))
}

/// Ends deletions that the crash has cut off: nothing else changes, and their space is free.
fn without_deleted(
    volume: &Volume,
    device: &SimulatedBackend,
    state: &State,
) -> Result<quire_fsck::Summary, String> {
    finish_deletions(volume)?;
    unchanged(volume, device, state, "once deletions have ended")
}

/// Deletes the snapshots, one by one: nothing else changes, and their space is free.
fn delete_all(volume: &Volume, device: &SimulatedBackend, state: &State) -> Result<(), String> {
    let mut left = state.clone();
    while let Some((number, kept)) = match left.kept.len() % 2 {
        0 => left.kept.pop_first(),
        _ => left.kept.pop_last(),
    } {
        volume.delete_snapshot(&kept.name).map_err(|error| format!("deleting snapshot {number}: {error}"))?;
        unchanged(volume, device, &left, &format!("after snapshot {number} was deleted"))?;
    }
    Ok(())
}

/// The volume is as expected, and so is its space.
fn unchanged(
    volume: &Volume,
    device: &SimulatedBackend,
    state: &State,
    when: &str,
) -> Result<quire_fsck::Summary, String> {
    let found = State::take(volume).map_err(|what| format!("{when}: {what}"))?;
    if let Some(difference) = state.difference(&found) {
        return Err(format!("{when} the volume is another one: {difference}"));
    }
    volume.sync().map_err(|error| format!("sync {when}: {error}"))?;
    let summary = fsck(&device.visible(), &format!("fsck {when}"))?;
    let free = volume.info().free_blocks;
    if summary.free_blocks != free {
        return Err(format!("{when} {free} blocks are free, fsck counts {}", summary.free_blocks));
    }
    Ok(summary)
}

/// Whether the device saw only what it may.
pub fn no_violations(device: &SimulatedBackend) -> Result<(), String> {
    device.violations().first().map_or(Ok(()), |violation| Err(format!("device: {violation}")))
}

/// Rolls a volume back to its newest snapshot.
pub fn roll_back(device: &Arc<SimulatedBackend>, name: &str) -> quire::Result<()> {
    quire::internals::snapshots::roll_back_with(device.clone(), name, &options()).map(drop)
}

/// Recovers an image of which some metadata has one good copy only: it is the same volume, and a scrub makes
/// it whole.
fn heal(image: &Image, expected: &State) -> Result<(), String> {
    let text = |error: quire::Error| error.to_string();
    let device = Arc::new(SimulatedBackend::from_image(image.clone()));
    let volume = options().open_backend(device.clone()).map_err(text)?;
    volume.drain_orphans();
    let found = State::take(&volume)?;
    if let Some(difference) = expected.difference(&found) {
        return Err(format!("the volume is another one: {difference}"));
    }
    let scrub = ScrubOptions::new();
    let report = volume.scrub(&scrub, &mut |_| ControlFlow::Continue(())).map_err(text)?;
    if let Some(why) = report.lost.first() {
        return Err(format!("lost: {why}"));
    }
    // Both slots lead to what is whole.
    volume.checkpoint().and_then(|()| volume.checkpoint()).map_err(text)?;
    fsck(&device.visible(), "fsck after a scrub")?;
    no_violations(&device)?;
    device.cut_power(quire_device::simulated::CrashPolicy::LoseAll);
    Ok(())
}

/// fsck; any issue above *info* is an error.
pub fn fsck(image: &Image, what: &str) -> Result<quire_fsck::Summary, String> {
    let device = Arc::new(SimulatedBackend::from_image(image.clone()));
    let report = quire_fsck::check_backend(device, &quire_fsck::Options::default())
        .map_err(|error| format!("{what}: {error}"))?;
    match report.issues.iter().find(|issue| issue.severity > Severity::Info) {
        Some(issue) => Err(format!("{what}: {issue} ({} issues)", report.issues.len())),
        None => Ok(report.summary),
    }
}
