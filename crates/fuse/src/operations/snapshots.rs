//! `.snapshots`: the volume's snapshots, each a directory, in the root of a mount.
//!
//! A node in a snapshot has a number that says which snapshot and which inode:
//!
//! | bits | content |
//! | ---: | --- |
//! | 62 | 1; no inode of the live volume has a number this large |
//! | 50 to 61 | the *slot* of the snapshot, from 1 on; 0 in [`DIRECTORY`], the number of `.snapshots` itself |
//! | 0 to 49 | the inode's number in the snapshot |
//!
//! So a node needs no memory here, and programs see numbers that differ from those of the live files: `cp`
//! and `diff` take two files with one number for the same file. A snapshot has the same slot as long as it
//! exists, and with up to 4095 snapshots numbered in a row the same one on every mount.
//!
//! A snapshot is opened by the first request for a node in it, and closed after [`IDLE`] without one. The
//! kernel may keep its nodes: the next request opens the snapshot again. It is closed at once when the volume
//! is about to delete it, unless a file in it is open. Nothing in a snapshot changes, so the kernel keeps
//! names, attributes and pages of it. Of `.snapshots` itself it keeps nothing, and of the names in there
//! little ([`NAME_TIME`]).
//!
//! Every change fails with `ReadOnly`: [`Operations::inode`](super::Operations) refuses the nodes of
//! snapshots, and a file that is open here has the volume of its snapshot.
//!
//! Neighbours: the rest of [`super`] calls in for nodes of snapshots ([`is_node`]).

use std::collections::BTreeMap;
use std::ops::Deref;
use std::time::{Duration, Instant};

use quire::inodes::{InodeRef, Inodes};
use quire::{FileType, SnapshotInfo, Volume};
use quire_base::sync::{Arc, Mutex, Weak, thread};
use quire_base::{Error, ErrorKind, InodeNo, Result, Timestamp};

use super::names::Name;
use super::{CACHE_TIME, Entry};

/// The name of the directory.
pub const NAME: &[u8] = b".snapshots";
/// Its node.
pub const DIRECTORY: u64 = 1 << 62;
/// Behind `..` in a listing of the root, and before all names of files.
const COOKIE: u64 = 3;
/// In a listing of `.snapshots`, snapshot n has the cookie n and this.
const COOKIE_FIRST: u64 = 2;
const INODE_BITS: u32 = 50;
const SLOTS: u64 = 1 << 12;
/// How long the kernel may believe that a snapshot is there.
const NAME_TIME: Duration = Duration::from_secs(1);
/// How long a snapshot stays open that nobody uses.
const IDLE: Duration = Duration::from_secs(30);
/// How often that is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Whether a mount has the directory `.snapshots`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShowSnapshots {
    /// It is there, and listings of the root have it.
    List,
    /// It is there for those who name it.
    #[default]
    Hide,
    /// It is not there.
    Off,
}

/// Whether a node is `.snapshots`, or in it.
pub fn is_node(node: u64) -> bool {
    node & DIRECTORY != 0
}

/// See the module's documentation.
pub(super) struct Snapshots {
    volume: Volume,
    show: ShowSnapshots,
    slots: Arc<Slots>,
}

#[derive(Default)]
struct Slots(Mutex<State>);

#[derive(Default)]
struct State {
    slots: BTreeMap<u64, Slot>,
    /// A thread closes those that nobody uses.
    is_watched: bool,
    /// When what `.snapshots` lists last changed, and what that was.
    changed: Option<(Timestamp, Vec<u32>)>,
}

struct Slot {
    number: u32,
    name: String,
    /// The snapshot, while it is open. Whoever uses it has it, too.
    volume: Option<Arc<Volume>>,
    used: Instant,
}

/// The volume that a node is of: the live one or a snapshot.
pub(super) enum Of<'a> {
    Live(&'a Volume),
    Snapshot(Arc<Volume>),
}

impl Deref for Of<'_> {
    type Target = Inodes;
    fn deref(&self) -> &Inodes {
        match self {
            Of::Live(volume) => volume.inodes(),
            Of::Snapshot(volume) => volume.inodes(),
        }
    }
}

impl Snapshots {
    pub(super) fn new(volume: &Volume, show: ShowSnapshots) -> Snapshots {
        let mut show = if volume.is_snapshot() { ShowSnapshots::Off } else { show };
        if show != ShowSnapshots::Off && volume.inodes().lookup(&volume.inodes().root(), NAME).is_ok() {
            tracing::warn!(
                "the volume has a file .snapshots in its root, so the mount does not show snapshots under that \
                 name; rename the file and mount again, or mount with snapshots=off"
            );
            show = ShowSnapshots::Off;
        }
        let slots = Arc::new(Slots::default());
        if show != ShowSnapshots::Off {
            let slots = Arc::downgrade(&slots);
            volume.before_deleting_snapshots(move |name| {
                if let Some(slots) = slots.upgrade() {
                    slots.close(|slot| slot.name == name);
                }
            });
        }
        Snapshots { volume: volume.clone(), show, slots }
    }

    /// Closes all, at the end.
    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut self.slots.0.lock().slots);
        drop(all);
    }

    /// Whether a name in a directory is that of `.snapshots`.
    pub(super) fn is_name(&self, parent: u64, name: &[u8]) -> bool {
        parent == InodeNo::ROOT.0 && name == NAME && self.show != ShowSnapshots::Off
    }

    /// An error if a name is not to be made or removed.
    pub(super) fn check_name(&self, parent: u64, name: &[u8]) -> Result<()> {
        match self.is_name(parent, name) {
            true => Err(Error::new(ErrorKind::ReadOnly, ".snapshots shows the snapshots of the volume")),
            false => Ok(()),
        }
    }

    /// The directory `.snapshots`.
    pub(super) fn directory(&self) -> Result<Entry> {
        let numbers: Vec<u32> = self.all()?.into_iter().map(|info| info.number).collect();
        let links = 2 + numbers.len() as u32;
        let mut state = self.slots.0.lock();
        let changed = match &state.changed {
            Some((changed, then)) if *then == numbers => *changed,
            _ => {
                let now = Timestamp::from(std::time::SystemTime::now());
                state.changed = Some((now, numbers));
                now
            }
        };
        drop(state);
        let root = self.volume.inodes().metadata(&self.volume.inodes().root());
        let attributes = root.shown_below(InodeNo(DIRECTORY), links, changed);
        Ok(Entry { generation: 0, attributes, name_time: Duration::ZERO })
    }

    /// A name in `.snapshots`, or in a directory of a snapshot; not `..` of `.snapshots`.
    pub(super) fn lookup(&self, parent: u64, name: &[u8]) -> Result<Entry> {
        let root_of_snapshot = parent & ((1 << INODE_BITS) - 1) == InodeNo::ROOT.0;
        match name {
            b"." => self.entry(parent),
            b".." if root_of_snapshot => self.directory(),
            _ if parent == DIRECTORY => {
                let missing = || Error::new(ErrorKind::NotFound, "the volume has no snapshot of this name");
                let all = self.all()?;
                let info = all.iter().find(|info| info.name.as_bytes() == name).ok_or_else(missing)?;
                let slot = self.slot_of(info, &all)?;
                self.entry(node_of(slot, InodeNo::ROOT)?)
            }
            _ => {
                let (volume, directory) = self.inode(parent)?;
                let inode = volume.inodes().lookup(&directory, name)?;
                entry_of(&volume, &inode, parent)
            }
        }
    }

    /// What a look-up of a node gives.
    pub(super) fn entry(&self, node: u64) -> Result<Entry> {
        if node == DIRECTORY {
            return self.directory();
        }
        let (volume, inode) = self.inode(node)?;
        entry_of(&volume, &inode, node)
    }

    /// The inode of a node in a snapshot, and the snapshot.
    pub(super) fn inode(&self, node: u64) -> Result<(Arc<Volume>, InodeRef)> {
        if node == DIRECTORY {
            return Err(Error::invalid(".snapshots is no file"));
        }
        let volume = self.open(slot_in(node))?;
        let inode = volume.inodes().get(InodeNo(node & ((1 << INODE_BITS) - 1)))?;
        Ok((volume, inode))
    }

    /// Lists `.snapshots`, or a directory in a snapshot.
    pub(super) fn list(&self, node: u64, after: u64, mut take: impl FnMut(&Name) -> bool) -> Result<()> {
        let mut entry = Name { name: Vec::new(), node: 0, kind: FileType::Directory, cookie: 0 };
        let mut set = |name: &[u8], node: u64, kind: FileType, cookie: u64| {
            entry.name.clear();
            entry.name.extend_from_slice(name);
            (entry.node, entry.kind, entry.cookie) = (node, kind, cookie);
            cookie <= after || take(&entry)
        };
        if node == DIRECTORY {
            let directory = FileType::Directory;
            let mut more =
                set(b".", DIRECTORY, directory, 1) && set(b"..", InodeNo::ROOT.0, directory, COOKIE_FIRST);
            let all = self.all()?;
            for info in &all {
                let cookie = COOKIE_FIRST + u64::from(info.number);
                if !more {
                    break;
                }
                if cookie > after {
                    let node = node_of(self.slot_of(info, &all)?, InodeNo::ROOT)?;
                    more = set(info.name.as_bytes(), node, directory, cookie);
                }
            }
            return Ok(());
        }
        let (volume, directory) = self.inode(node)?;
        let is_root = directory.number() == InodeNo::ROOT;
        let mut outcome = Ok(());
        volume.inodes().read_dir(&directory, after, &mut |found| {
            let node = match is_root && found.name == b".." {
                true => Ok(DIRECTORY),
                false => node_of(slot_in(node), found.inode),
            };
            match node {
                Ok(node) => set(found.name, node, found.kind, found.cookie),
                Err(error) => {
                    outcome = Err(error);
                    false
                }
            }
        })?;
        outcome
    }

    /// Adds `.snapshots` to a listing of the root, if that has it: between `..` and the first name.
    pub(super) fn listed_in_root<'a>(
        &'a self,
        after: u64,
        mut take: impl FnMut(&Name) -> bool + 'a,
    ) -> impl FnMut(Option<&Name>) -> bool + 'a {
        let mut due = self.show == ShowSnapshots::List && after < COOKIE;
        move |name| {
            if due && name.is_none_or(|name| name.cookie > COOKIE) {
                due = false;
                let own =
                    Name { name: NAME.to_vec(), node: DIRECTORY, kind: FileType::Directory, cookie: COOKIE };
                if !take(&own) {
                    return false;
                }
            }
            name.is_some_and(&mut take)
        }
    }

    /// The snapshots that can be opened.
    fn all(&self) -> Result<Vec<SnapshotInfo>> {
        let mut all = self.volume.snapshots()?;
        all.retain(|info| !info.deleting);
        Ok(all)
    }

    /// The slot of a snapshot, one of `all`. It gets one if it has none yet: the slot of its number, else the
    /// next one behind that no other snapshot has.
    fn slot_of(&self, info: &SnapshotInfo, all: &[SnapshotInfo]) -> Result<u64> {
        let mut state = self.slots.0.lock();
        let wanted = (u64::from(info.number) - 1) % (SLOTS - 1);
        // Most have the one that they want.
        let mut has = state.slots.range(1 + wanted..).chain(state.slots.range(..1 + wanted));
        if let Some((slot, _)) = has.find(|(_, slot)| slot.number == info.number) {
            return Ok(*slot);
        }
        let is_free = |slot: &u64| {
            let has = state.slots.get(slot);
            has.is_none_or(|has| all.iter().all(|other| other.number != has.number))
        };
        let all_slots = (0..SLOTS - 1).map(|step| 1 + (wanted + step) % (SLOTS - 1));
        let slot = all_slots.into_iter().find(is_free).ok_or_else(|| {
            let why = format!("a mount shows {} snapshots; delete some", SLOTS - 1);
            Error::new(ErrorKind::TooLarge, why)
        })?;
        let new = Slot { number: info.number, name: info.name.clone(), volume: None, used: Instant::now() };
        let old = state.slots.insert(slot, new);
        drop(state);
        drop(old);
        Ok(slot)
    }

    /// The snapshot of a slot, opened if it is not.
    fn open(&self, slot: u64) -> Result<Arc<Volume>> {
        let gone = || Error::new(ErrorKind::Stale, "the snapshot has been deleted");
        let (name, number) = {
            let mut state = self.slots.0.lock();
            let slot = state.slots.get_mut(&slot).ok_or_else(gone)?;
            slot.used = Instant::now();
            if let Some(volume) = &slot.volume {
                return Ok(volume.clone());
            }
            (slot.name.clone(), slot.number)
        };
        let opened = match self.volume.open_snapshot(&name) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(gone()),
            opened => Arc::new(opened?),
        };
        // While it is open it stays. But a younger one may have got the name before.
        if !self.all()?.iter().any(|info| info.number == number && info.name == name) {
            return Err(gone());
        }
        let mut state = self.slots.0.lock();
        if !state.is_watched {
            state.is_watched = watch(Arc::downgrade(&self.slots))?;
        }
        let slot = state.slots.get_mut(&slot).filter(|slot| slot.number == number).ok_or_else(gone)?;
        Ok(slot.volume.get_or_insert(opened).clone())
    }
}

impl Slots {
    /// Closes those that no request and no open file uses, if `which` says so.
    fn close(&self, which: impl Fn(&Slot) -> bool) {
        let mut state = self.0.lock();
        let unused = |slot: &&mut Slot| {
            slot.volume.as_ref().is_some_and(|volume| Arc::strong_count(volume) == 1) && which(slot)
        };
        let closed: Vec<_> =
            state.slots.values_mut().filter(unused).filter_map(|slot| slot.volume.take()).collect();
        drop(state);
        drop(closed);
    }
}

/// Starts the thread that closes snapshots that nobody uses. It ends when none is open.
fn watch(slots: Weak<Slots>) -> Result<bool> {
    let body = move || {
        loop {
            thread::sleep(LOOK);
            let Some(slots) = slots.upgrade() else { return };
            slots.close(|slot| slot.used.elapsed() >= IDLE);
            let mut state = slots.0.lock();
            if state.slots.values().all(|slot| slot.volume.is_none()) {
                state.is_watched = false;
                return;
            }
        }
    };
    let spawned = thread::Builder::new().name("quire-snapshots".into()).spawn(body);
    spawned.map(|_| true).map_err(|error| Error::os("starting the thread that closes snapshots", &error))
}

fn slot_in(node: u64) -> u64 {
    (node & !DIRECTORY) >> INODE_BITS
}

/// The node of an inode in the snapshot of a slot.
fn node_of(slot: u64, inode: InodeNo) -> Result<u64> {
    if inode.0 >> INODE_BITS != 0 {
        let why = format!("inode {inode} has a number too large to be shown in .snapshots");
        return Err(Error::new(ErrorKind::TooLarge, why));
    }
    Ok(DIRECTORY | slot << INODE_BITS | inode.0)
}

/// What a look-up of an inode gives, in the snapshot in which `beside` is a node.
fn entry_of(volume: &Volume, inode: &InodeRef, beside: u64) -> Result<Entry> {
    let node = node_of(slot_in(beside), inode.number())?;
    let attributes = volume.inodes().metadata(inode).with_ino(InodeNo(node));
    let name_time = if inode.number() == InodeNo::ROOT { NAME_TIME } else { CACHE_TIME };
    // A slot is used again, after thousands of snapshots. The kernel must not take an inode for that of
    // another snapshot, of which it may have pages; it compares 32 bits.
    let salt = (volume.inodes().checkpoint() as u32).wrapping_mul(0x9e37_79b1);
    Ok(Entry { generation: inode.generation() ^ u64::from(salt), attributes, name_time })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each part of a listing looked for the slots of all snapshots: `ls` of thousands of them took minutes.
    #[test]
    fn a_listing_looks_only_at_what_it_lists() {
        let memory = std::sync::Arc::new(quire::backend::MemoryBackend::new(16384));
        quire::FormatOptions::new().format_backend(memory.clone()).unwrap();
        let volume = quire::VolumeOptions::new().cache_bytes(16 << 20).open_backend(memory).unwrap();
        for number in 1..=6 {
            volume.take_snapshot(&format!("s{number}")).unwrap();
        }
        let snapshots = Snapshots::new(&volume, ShowSnapshots::List);
        let mut listed = Vec::new();
        let two = |name: &Name| {
            listed.push(String::from_utf8(name.name.clone()).unwrap());
            listed.len() < 2
        };
        snapshots.list(DIRECTORY, COOKIE_FIRST + 2, two).unwrap();
        assert_eq!(listed, ["s3", "s4"]);
        assert_eq!(snapshots.slots.0.lock().slots.len(), 2);
        drop(snapshots);
        volume.close().unwrap();
    }

    #[test]
    fn nodes_tell_snapshot_and_inode() {
        assert!(!is_node(InodeNo::ROOT.0) && !is_node((1 << INODE_BITS) - 1) && is_node(DIRECTORY));
        let node = node_of(SLOTS - 1, InodeNo((1 << INODE_BITS) - 1)).unwrap();
        assert!(is_node(node) && node >> 63 == 0, "no program takes it for negative");
        assert_eq!((slot_in(node), slot_in(DIRECTORY)), (SLOTS - 1, 0));
        assert_eq!(node_of(1, InodeNo(1 << INODE_BITS)).unwrap_err().kind(), ErrorKind::TooLarge);
    }
}
