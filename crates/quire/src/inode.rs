//! An inode in memory, and the references that keep it there.
//!
//! Each lock protects some state:
//! * `meta`: the record as journaled plus what is still only in memory. Its lock is also the lock of the
//!   inode's extent map: a thread that changes extents or the record holds it from before the `Seq` until it
//!   is applied.
//! * `seen`: the end of file that readers and writers see ([`crate::size_sequence`]). Grows under
//!   `size_lock`, shrinks with the gate held exclusively; `meta.record.size` is the size on disk and follows
//!   it (J6).
//! * `extent_sequence`: odd while extents change in the tree, so that a look-up without the lock can tell.
//! * `commit_seq`, `datasync_seq`: the journal must be durable this far for fsync, for fdatasync (J5).
//! * `data_mark`: the device must have flushed this far for what was written back (J5).
//! * write and access times go through atomics and are folded into the record when it is read or journaled,
//!   so that writers of one file share no lock for a timestamp.
//!
//! An [`InodeRef`] counts users: open files, the kernel's look-ups, operations under way. An inode without a
//! name lives until its last user leaves; then the reaper frees it.
//!
//! Shared cache lines: `size` and the sequences (read by all, written by size changes); `gate`; the times.
//!
//! Neighbours: [`crate::inode_table`] finds inodes, `file/*` does I/O on them, `namespace/*` names them.

use crate::dirty_inodes::{DirtyMark, Owes};
use crate::engine::{Engine, EngineHandle};
use crate::file::range_lock::RangeLock;
use crate::gate::Gate;
use crate::lease::marks::Marks;
use crate::size_sequence::SizeSequence;
use crate::store::orphan_slots::OrphanState;
use crate::store::pool_promise::Delayed;
use crate::store::transaction::Depends;
use quire_base::patience;
use quire_base::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use quire_base::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock};
use quire_base::{BLOCK_SIZE, Error, ErrorKind, InodeNo, Result, Seq, Timestamp};
use quire_cache::Mapping;
use quire_format::inode::{FileType, InodeRecord, MODE_PERMISSION_MASK};
use quire_format::properties::{Properties, Unit};

/// Buckets of a directory's names, each a byte: so many that a few threads that change different names seldom
/// meet on one.
const BUCKETS: usize = 256;
/// As many where they do meet.
const BUCKETS_WIDE: usize = 8192;
/// Waits for a bucket after which a directory gets the wide table.
const WAITS_MAX: u32 = 64;

/// The part of an inode that its lock protects.
pub(crate) struct Meta {
    /// As journaled, but for times that are still to be written; `size` is the size on disk.
    pub(crate) record: InodeRecord,
    pub(crate) orphan: OrphanState,
    /// Something in `record` is newer than the tree (times only).
    pub(crate) dirty: bool,
    /// Freed: nothing may use it any more.
    pub(crate) freed: bool,
    /// All bytes up to here have been written since the last cut, as an fsync has seen: the size on disk may
    /// go so far.
    pub(crate) earned: u64,
    /// Times that the file became shorter.
    pub(crate) cuts: u64,
    /// Truncated to zero and not closed since: the close writes it back (`auto_da_alloc`).
    pub(crate) emptied: bool,
}

/// Holds an inode's attributes and extent map. In debug builds a thread that would wait under it panics.
pub(crate) struct MetaGuard<'a> {
    meta: MutexGuard<'a, Meta>,
    _forbidden: patience::Forbidden,
}

impl std::ops::Deref for MetaGuard<'_> {
    type Target = Meta;
    fn deref(&self) -> &Meta {
        &self.meta
    }
}

impl std::ops::DerefMut for MetaGuard<'_> {
    fn deref_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }
}

/// What only directories have.
pub(crate) struct Names {
    /// True once the directory is removed. Shared by creates and unlinks, exclusive for rmdir and for a
    /// rename over it.
    pub(crate) dead: RwLock<bool>,
    /// Changes that found their bucket held.
    waits: AtomicU32,
    /// In place of `buckets`, once there is one; made under `dead`, exclusively.
    wide: OnceLock<Box<[Mutex<()>]>>,
    /// A name's bucket orders the changes of its entry.
    buckets: [Mutex<()>; BUCKETS],
}

impl Names {
    fn new(dead: bool) -> Box<Names> {
        Box::new(Names {
            dead: RwLock::new(dead),
            waits: AtomicU32::new(0),
            wide: OnceLock::new(),
            buckets: std::array::from_fn(|_| Mutex::new(())),
        })
    }

    /// The table of buckets. It stays the same one while the caller holds `dead`.
    pub(crate) fn table(&self) -> &[Mutex<()>] {
        self.wide.get().map_or(&self.buckets[..], |wide| &wide[..])
    }

    /// Counts a change that found its bucket held.
    pub(crate) fn note_wait(&self) {
        self.waits.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether changes of different names wait for one another, and may be helped: with 32 threads and 256
    /// buckets one in eight finds its own held by another, who may not even be running.
    pub(crate) fn is_crowded(&self) -> bool {
        self.waits.load(Ordering::Relaxed) >= WAITS_MAX && self.wide.get().is_none()
    }

    /// Makes the wide table. The caller holds nothing of this directory; its changes end first.
    pub(crate) fn widen(&self) {
        let _nobody = self.dead.write();
        self.wide.get_or_init(|| (0..BUCKETS_WIDE).map(|_| Mutex::new(())).collect());
    }
}

/// See the module's documentation.
pub struct Inode {
    pub(crate) engine: Arc<EngineHandle>,
    pub(crate) number: InodeNo,
    pub(crate) generation: u64,
    pub(crate) kind: FileType,

    pub(crate) size_sequence: SizeSequence,
    pub(crate) extent_sequence: AtomicU64,

    pub(crate) gate: Gate,
    pub(crate) size_lock: Mutex<()>,
    pub(crate) ranges: RangeLock,
    pub(crate) mapping: OnceLock<Arc<Mapping>>,
    pub(crate) names: Option<Box<Names>>,
    /// Where the next block of the file should go: (file block, disk block).
    pub(crate) placement_hint: Mutex<(u64, u64)>,

    meta: Mutex<Meta>,
    /// The record's permission bits, to see a setuid bit without the lock.
    pub(crate) mode: AtomicU32,
    /// Whether the record tells of extended attributes, the same way.
    has_xattrs: AtomicBool,
    /// A look at them has found no capabilities, and none were set since. Changes under `meta`.
    lacks_capabilities: AtomicBool,
    /// Blocks of an untorn unit, 0 if there is none. Of a file it changes with the gate held exclusively.
    unit_blocks: AtomicU32,
    /// The record's property `cache=drop`, without the lock; and whether there are leases.
    pub(crate) marks: Marks,
    write_time: Noted,
    access_time: Noted,

    /// What is promised to dirty data without a home.
    pub(crate) delayed: Delayed,
    /// A thread has waited for room for a record of its data, and has yet to use it
    /// ([`crate::store::Store::try_begin`]).
    pub(crate) has_queued: AtomicBool,
    /// New extents of a record of its data for which there was no room, until a thread waits for it.
    pub(crate) refused_extents: AtomicU64,

    pub(crate) commit_seq: AtomicU64,
    pub(crate) datasync_seq: AtomicU64,
    pub(crate) data_mark: AtomicU64,

    /// Its place in the list of inodes that owe something to the journal.
    pub(crate) dirty: DirtyMark,

    pub(crate) users: AtomicU64,
    /// Looked up since the table last considered throwing it out.
    pub(crate) referenced: AtomicBool,
}

/// No time recorded since the last fold.
const NO_TIME: i64 = i64::MIN;

/// A time that I/O leaves for the record, and whether somebody has looked at it since: the next change then
/// notes its own, so that it can be told apart.
struct Noted {
    time: AtomicI64,
    seen: AtomicBool,
}

impl Default for Noted {
    fn default() -> Noted {
        Noted { time: AtomicI64::new(NO_TIME), seen: AtomicBool::new(false) }
    }
}

impl Noted {
    fn get(&self) -> i64 {
        self.time.load(Ordering::Relaxed)
    }

    fn is_seen(&self) -> bool {
        self.seen.load(Ordering::Relaxed)
    }

    /// The time, for one who shows it.
    fn look(&self) -> i64 {
        // In this order, and `note` in the other: who sees a new time sees its mark cleared, and sets it.
        let time = self.time.load(Ordering::Acquire);
        if time != NO_TIME && !self.is_seen() {
            self.seen.store(true, Ordering::Relaxed);
        }
        time
    }

    /// Notes `now`, unless what is noted is hardly older and nobody has seen it; true if it did.
    fn note(&self, now: i64) -> bool {
        let before = self.get();
        let seen = self.is_seen();
        let is_new = before == NO_TIME || seen || now.wrapping_sub(before) > TIME_GRAIN_NANOS || now < before;
        if is_new {
            if seen {
                self.seen.store(false, Ordering::Relaxed);
            }
            self.time.store(now, Ordering::Release);
        }
        is_new
    }
}

/// Write and access times move at most this often, as in the kernel's coarse clock.
const TIME_GRAIN_NANOS: i64 = 1_000_000;

impl Inode {
    pub(crate) fn new(
        engine: &Arc<Engine>,
        number: InodeNo,
        record: InodeRecord,
        orphan: OrphanState,
    ) -> Inode {
        let kind = record.file_type();
        // Loading has refused a record whose properties are invalid.
        let properties = Properties::of_flags(record.flags).unwrap_or_default();
        let marks = Marks::default();
        marks.set_drops_cache(properties.cache_drop);
        let names = (kind == FileType::Directory).then(|| Names::new(record.nlink == 0));
        Inode {
            engine: engine.inodes.engine_handle(engine),
            number,
            generation: record.generation,
            kind,
            size_sequence: SizeSequence::new(record.size),
            extent_sequence: AtomicU64::new(0),
            gate: Gate::new(),
            size_lock: Mutex::new(()),
            ranges: RangeLock::new(),
            mapping: OnceLock::new(),
            names,
            placement_hint: Mutex::new((0, 0)),
            mode: AtomicU32::new(record.mode),
            has_xattrs: AtomicBool::new(record.xattr_bytes != 0),
            lacks_capabilities: AtomicBool::new(false),
            unit_blocks: AtomicU32::new(blocks_of(properties.untorn)),
            marks,
            meta: Mutex::new(Meta {
                record,
                orphan,
                dirty: false,
                freed: false,
                earned: 0,
                cuts: 0,
                emptied: false,
            }),
            write_time: Noted::default(),
            access_time: Noted::default(),
            delayed: Delayed::default(),
            has_queued: AtomicBool::new(false),
            refused_extents: AtomicU64::new(0),
            commit_seq: AtomicU64::new(0),
            datasync_seq: AtomicU64::new(0),
            data_mark: AtomicU64::new(0),
            dirty: DirtyMark::default(),
            users: AtomicU64::new(0),
            referenced: AtomicBool::new(true),
        }
    }

    /// Locks the attributes and the extent map. Order: inode number ascending where two are taken.
    pub(crate) fn meta(&self) -> MetaGuard<'_> {
        MetaGuard { meta: self.meta.lock(), _forbidden: patience::forbid() }
    }

    /// The names of a directory.
    pub(crate) fn names(&self) -> Result<&Names> {
        self.names.as_deref().ok_or_else(|| {
            Error::new(ErrorKind::NotDirectory, format!("inode {} is not a directory", self.number))
        })
    }

    /// The end of file in bytes, as it is this moment: what a holder of the gate goes by. Code that tells
    /// callers asks [`InodeRef::size`].
    pub(crate) fn size(&self) -> u64 {
        self.size_sequence.size()
    }

    /// Sets the size, in an exclusive operation whose record is in the journal.
    pub(crate) fn set_size(&self, meta: &mut Meta, size: u64) {
        if size < self.size() {
            meta.cuts += 1;
            meta.earned = 0;
        }
        self.size_sequence.set_size(size);
    }

    /// Notes that contents changed now.
    pub(crate) fn touch_written(&self) {
        if self.write_time.note(self.engine.store.options.clock.now().0) {
            self.mark_dirty(self.engine.level_of_times());
        }
    }

    /// Puts the inode into the list of those that owe something to the journal, after the change that it
    /// owes.
    pub(crate) fn mark_dirty(&self, level: Owes) {
        self.engine.inodes.dirty.mark(self.number, &self.dirty, level);
    }

    /// Raises the size to `end`; see [`SizeSequence::raise_size`]. The size on disk follows.
    pub(crate) fn raise_size(&self, end: u64) {
        if end > self.size() {
            self.size_sequence.raise_size(end);
            self.mark_dirty(Owes::Due);
        }
    }

    /// Notes that contents were read now, as the volume's rule for access times has it.
    pub(crate) fn touch_read(&self) {
        use crate::options::AccessTimes;
        let keeps = || self.engine.store.keeps_access_times.load(Ordering::Relaxed);
        let noted = match self.engine.store.options.access_times {
            AccessTimes::Never => false,
            _ if self.engine.store.read_only || keeps() => false,
            AccessTimes::Strict => self.access_time.note(self.engine.store.options.clock.now().0),
            AccessTimes::Relative => {
                // One look a read; the rule itself is applied when the time is folded.
                let read = self.access_time.get();
                (read == NO_TIME || (self.access_time.is_seen() && read <= self.write_time.get()))
                    && self.access_time.note(self.engine.store.options.clock.now().0)
            }
        };
        if noted {
            self.mark_dirty(self.engine.level_of_times());
        }
    }

    /// Takes the times that I/O left into the record.
    pub(crate) fn fold_times(&self, meta: &mut Meta) {
        let left = (
            self.write_time.time.swap(NO_TIME, Ordering::Relaxed),
            self.access_time.time.swap(NO_TIME, Ordering::Relaxed),
        );
        meta.dirty |= self.put_times(left, &mut meta.record);
    }

    /// The record as [`Inode::fold_times`] would leave it. The first look after a change leaves a mark and
    /// further ones write nothing, so that they do not disturb I/O.
    pub(crate) fn record_now(&self, meta: &Meta) -> InodeRecord {
        let mut record = meta.record.clone();
        let left = (self.write_time.look(), self.access_time.look());
        self.put_times(left, &mut record);
        record
    }

    /// Puts the times of the last write and the last read into a record; whether that changes it.
    fn put_times(&self, (written, read): (i64, i64), record: &mut InodeRecord) -> bool {
        use crate::options::AccessTimes;
        const DAY: i64 = 86_400_000_000_000;
        let mut changed = false;
        if written != NO_TIME {
            // An explicit change of times folds first, so the times found here are newer.
            (record.mtime, record.ctime) = (Timestamp(written), Timestamp(written));
            changed = true;
        }
        if read != NO_TIME {
            let stale = record.atime <= record.mtime
                || record.atime <= record.ctime
                || read.saturating_sub(record.atime.0) >= DAY;
            if stale || self.engine.store.options.access_times == AccessTimes::Strict {
                record.atime = Timestamp(read);
                changed = true;
            }
        }
        changed
    }

    /// True if times wait to be journaled.
    pub(crate) fn has_times(&self) -> bool {
        self.write_time.get() != NO_TIME || self.access_time.get() != NO_TIME
    }

    /// A transaction that this inode's fsync must cover. The names of a directory are its data.
    pub(crate) fn committed(&self, seq: Seq) {
        if self.kind == FileType::Directory {
            self.datasync_seq.fetch_max(seq.0, Ordering::AcqRel);
        }
        self.commit_seq.fetch_max(seq.0, Ordering::AcqRel);
    }

    /// A transaction that this inode's fdatasync must cover: extents, size.
    pub(crate) fn committed_data(&self, seq: Seq) {
        self.datasync_seq.fetch_max(seq.0, Ordering::AcqRel);
        self.commit_seq.fetch_max(seq.0, Ordering::AcqRel);
    }

    /// Blocks of a unit that a crash leaves whole; none if the file has no such property.
    pub(crate) fn unit_blocks(&self) -> Option<u64> {
        let blocks = self.unit_blocks.load(Ordering::Acquire);
        (blocks > 0).then_some(u64::from(blocks))
    }

    /// Keeps the copies of what is read without the lock.
    pub(crate) fn publish(&self, record: &InodeRecord) {
        self.mode.store(record.mode, Ordering::Release);
        self.has_xattrs.store(record.xattr_bytes != 0, Ordering::Release);
        let properties = Properties::of_flags(record.flags).unwrap_or_default();
        self.marks.set_drops_cache(properties.cache_drop);
        if self.kind != FileType::Regular {
            self.set_unit(properties.untorn);
        }
    }

    /// Keeps what a holder of `meta` has found, or is about to set.
    pub(crate) fn note_capabilities(&self, there: bool) {
        self.lacks_capabilities.store(!there, Ordering::Release);
    }

    /// All of its data that has been written so far, for a record to depend on.
    pub(crate) fn written(&self) -> Depends {
        Depends::Written(self.data_mark.load(Ordering::Acquire))
    }

    /// Its properties, without a lock.
    pub(crate) fn properties(&self) -> Properties {
        let bytes = u64::from(self.unit_blocks.load(Ordering::Acquire)) * BLOCK_SIZE as u64;
        Properties { untorn: Unit::from_bytes(bytes).ok(), cache_drop: self.marks.now().drops_cache() }
    }

    /// Says what an untorn unit is from now on. Of a file, the caller holds the gate exclusively, everything
    /// is in its home, and the record with the new property is durable.
    pub(crate) fn set_unit(&self, unit: Option<Unit>) {
        self.unit_blocks.store(blocks_of(unit), Ordering::Release);
    }

    /// An error if the inode cannot take file data.
    pub(crate) fn check_regular(&self) -> Result<()> {
        match self.kind {
            FileType::Regular => Ok(()),
            FileType::Directory => {
                Err(Error::new(ErrorKind::IsDirectory, format!("inode {} is a directory", self.number)))
            }
            kind => Err(Error::invalid(format!("inode {} is a {kind:?}, not a regular file", self.number))),
        }
    }
}

fn blocks_of(unit: Option<Unit>) -> u32 {
    unit.map_or(0, |unit| unit.blocks() as u32)
}

impl Drop for Inode {
    fn drop(&mut self) {
        if self.delayed.blocks() > 0 {
            self.engine.store.end_delayed(&self.delayed);
        }
    }
}

/// A counted reference to an inode: while one lives, an unlinked inode lives.
pub struct InodeRef(Arc<Inode>);

impl InodeRef {
    /// Takes over a count that the table has already added.
    pub(crate) fn counted(inode: Arc<Inode>) -> InodeRef {
        InodeRef(inode)
    }

    /// The inode's number.
    pub fn number(&self) -> InodeNo {
        self.0.number
    }

    /// An error of kind `CrossDevice` for the inode of another volume: operations would take its number for
    /// one of theirs.
    pub(crate) fn check_volume(&self, engine: &Engine) -> Result<()> {
        if std::ptr::eq(&***self.0.engine, engine) {
            return Ok(());
        }
        let text = format!("inode {} is on another volume", self.number());
        Err(Error::new(ErrorKind::CrossDevice, text))
    }

    /// What it is.
    pub fn kind(&self) -> FileType {
        self.0.kind
    }

    /// Distinguishes inodes that have had the same number.
    pub fn generation(&self) -> u64 {
        self.0.generation
    }

    /// The permission bits, without a lock.
    pub fn mode(&self) -> u32 {
        self.0.mode.load(Ordering::Acquire) & MODE_PERMISSION_MASK
    }

    /// Whether it has extended attributes, without a lock.
    pub fn has_xattrs(&self) -> bool {
        self.0.has_xattrs.load(Ordering::Acquire)
    }

    /// Whether there may be capabilities among them, without a lock. False once somebody has looked in vain.
    pub fn may_have_capabilities(&self) -> bool {
        self.has_xattrs() && !self.0.lacks_capabilities.load(Ordering::Acquire)
    }

    /// End of file in bytes. A change of it that is under way counts as a whole or not at all.
    pub fn size(&self) -> u64 {
        self.0.size_sequence.settled_size()
    }

    #[doc(hidden)]
    /// Brings the gate into the state that many threads of cached I/O bring it into. For conflict reports.
    pub fn assume_contended(&self) {
        let _permit = self.0.gate.enter(crate::gate::GateState::Buffered);
        self.0.gate.spread();
    }

    pub(crate) fn arc(&self) -> &Arc<Inode> {
        &self.0
    }
}

#[doc(hidden)]
impl std::ops::Deref for InodeRef {
    type Target = Arc<Inode>;
    fn deref(&self) -> &Arc<Inode> {
        &self.0
    }
}

impl Clone for InodeRef {
    fn clone(&self) -> InodeRef {
        self.0.users.fetch_add(1, Ordering::Relaxed);
        InodeRef(self.0.clone())
    }
}

impl Drop for InodeRef {
    fn drop(&mut self) {
        if self.0.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.engine.last_user_left(&self.0);
        }
    }
}

impl std::fmt::Debug for InodeRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "inode {} ({:?})", self.0.number, self.0.kind)
    }
}
