//! The locks of a directory: liveness, buckets, and the word that tells look-ups of a rename.
//!
//! Protocol. A thread that changes an entry holds the directory's liveness shared and the bucket of the
//! entry's name. A thread that removes a directory holds its liveness exclusively, after the liveness and the
//! bucket of its name in its parent. A thread that changes what a directory hands down to what is created in
//! it (properties, set-gid and group, default access list) holds the liveness exclusively too, and nothing
//! else. Directories are entered one after the other, each with all of its buckets, ancestors first: so a
//! thread that holds a bucket of a directory and waits for the liveness of one below never meets a thread
//! that holds that below and waits for the bucket.
//!
//! A rename changes two entries in one transaction. For as long as it applies it counts itself in the
//! directory's *moving* word (low half: renames under way, high half: renames done). A look-up without locks
//! reads the word, the entry, the word again; if a rename was under way or ended meanwhile it takes the
//! bucket instead. So nobody sees a file under both names, or under neither.
//!
//! Where changes of different names keep meeting on a bucket, the directory gets a table of more, once: with
//! the liveness held exclusively, so that nobody holds a bucket of the old one.
//!
//! Invariants: buckets of one directory are taken in ascending order, none twice, and only with its liveness
//! held.
//!
//! Neighbours: [`super::entry`] reads entries under these locks.

use crate::inode::{Inode, InodeRef, Names};
use quire_base::patience;
use quire_base::sync::atomic::{AtomicU64, Ordering, fence};
use quire_base::sync::{Mutex, MutexGuard, RwLockReadGuard, RwLockWriteGuard};
use quire_base::{Error, ErrorKind, Result};
use quire_format::inode::FileType;

/// A living directory whose names of certain hashes are held.
pub(crate) struct Entered<'a> {
    _buckets: [Option<MutexGuard<'a, ()>>; 2],
    _live: RwLockReadGuard<'a, bool>,
}

/// The place of a hash in a table of buckets.
fn place(table: &[Mutex<()>], hash: u64) -> usize {
    (hash % table.len() as u64) as usize
}

fn gone(directory: &Inode) -> Error {
    Error::new(ErrorKind::NotFound, format!("directory {} has been removed", directory.number))
}

/// A bucket, which may be held by one who waits for the device.
fn hold<'a>(names: &Names, bucket: &'a Mutex<()>) -> Result<MutexGuard<'a, ()>> {
    if let Some(held) = bucket.try_lock() {
        return Ok(held);
    }
    names.note_wait();
    if patience::may_wait() {
        return Ok(bucket.lock());
    }
    Err(Error::new(ErrorKind::WouldBlock, "a name's bucket is held"))
}

/// The liveness of a directory, shared, whatever it is.
fn share(names: &Names) -> Result<RwLockReadGuard<'_, bool>> {
    if patience::may_wait() {
        return Ok(names.dead.read());
    }
    let removing = || Error::new(ErrorKind::WouldBlock, "the directory is being looked at to be removed");
    names.dead.try_read().ok_or_else(removing)
}

/// The liveness of a directory that is not removed, shared.
pub(crate) fn enter_live(directory: &Inode) -> Result<RwLockReadGuard<'_, bool>> {
    let live = share(directory.names()?)?;
    if *live {
        return Err(gone(directory));
    }
    Ok(live)
}

/// As [`enter_live`], before buckets are held: gives a directory whose changes wait for one another more of
/// them.
fn enter_wide(directory: &Inode) -> Result<(RwLockReadGuard<'_, bool>, &Names)> {
    let names = directory.names()?;
    if names.is_crowded() && patience::may_wait() {
        names.widen();
    }
    Ok((enter_live(directory)?, names))
}

/// Holds the entries of a name's hash.
pub(crate) fn enter(directory: &Inode, hash: u64) -> Result<Entered<'_>> {
    let (live, names) = enter_wide(directory)?;
    let table = names.table();
    Ok(Entered { _buckets: [Some(hold(names, &table[place(table, hash)])?), None], _live: live })
}

/// Holds the entries of two hashes of one directory.
pub(crate) fn enter_two(directory: &Inode, one: u64, other: u64) -> Result<Entered<'_>> {
    let (live, names) = enter_wide(directory)?;
    let table = names.table();
    let (one, other) = (place(table, one), place(table, other));
    let (first, second) = (one.min(other), one.max(other));
    let lower = hold(names, &table[first])?;
    let upper = if second > first { Some(hold(names, &table[second])?) } else { None };
    Ok(Entered { _buckets: [Some(lower), upper], _live: live })
}

/// Holds one bucket of a directory, which may be a removed one, to read an entry that nobody changes
/// meanwhile.
pub(crate) fn hold_bucket(directory: &Inode, hash: u64) -> Result<Entered<'_>> {
    let names = directory.names()?;
    let live = share(names)?;
    let table = names.table();
    Ok(Entered { _buckets: [Some(hold(names, &table[place(table, hash)])?), None], _live: live })
}

/// The liveness of a directory, exclusively: nobody else changes its entries. It may be removed.
fn hold_alone(directory: &Inode) -> Result<RwLockWriteGuard<'_, bool>> {
    let dead = &directory.names()?.dead;
    if patience::may_wait() {
        return Ok(dead.write());
    }
    dead.try_write().ok_or_else(|| Error::new(ErrorKind::WouldBlock, "the directory is in use"))
}

/// Keeps creates out of a directory, if it is one, while the caller changes what it hands down: a create has
/// the old attributes and is journaled before the change, or has the new ones and is journaled behind it.
pub(crate) fn hold_creates(inode: &Inode) -> Result<Option<RwLockWriteGuard<'_, bool>>> {
    (inode.kind == FileType::Directory).then(|| hold_alone(inode)).transpose()
}

/// A directory that is about to be removed: nobody else changes its entries.
pub(crate) struct Doomed<'a>(RwLockWriteGuard<'a, bool>);

impl<'a> Doomed<'a> {
    /// Holds the liveness exclusively. The caller holds the directory's entry in its parent.
    pub(crate) fn hold(directory: &'a InodeRef) -> Result<Doomed<'a>> {
        let guard = hold_alone(directory)?;
        if *guard {
            return Err(gone(directory));
        }
        Ok(Doomed(guard))
    }

    /// The directory is removed.
    pub(crate) fn removed(mut self) {
        *self.0 = true;
    }
}

const ONE_DONE: u64 = 1 << 32;

/// The word of a directory; directories have no extents, so their extent sequence is free for it.
fn moving_word(directory: &Inode) -> &AtomicU64 {
    debug_assert!(directory.names.is_some());
    &directory.extent_sequence
}

/// A rename under way in a directory, until dropped.
pub(crate) struct Moving<'a>(&'a AtomicU64);

impl<'a> Moving<'a> {
    /// Announces a rename. The caller holds the buckets of its names.
    pub(crate) fn announce(directory: &'a Inode) -> Moving<'a> {
        Moving::in_word(moving_word(directory))
    }

    fn in_word(word: &'a AtomicU64) -> Moving<'a> {
        // A reader of an entry that was changed has passed a latch after us, and so sees this too.
        word.fetch_add(1, Ordering::AcqRel);
        Moving(word)
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(ONE_DONE - 1, Ordering::AcqRel);
    }
}

/// What a look-up remembers of the moving word.
pub(crate) struct Glance<'a> {
    word: &'a AtomicU64,
    seen: u64,
}

impl<'a> Glance<'a> {
    /// Before the entry is read.
    pub(crate) fn at(directory: &'a Inode) -> Glance<'a> {
        Glance::at_word(moving_word(directory))
    }

    fn at_word(word: &'a AtomicU64) -> Glance<'a> {
        Glance { word, seen: word.load(Ordering::Acquire) }
    }

    /// After it was read: true if no rename could have been seen in half.
    pub(crate) fn held_still(&self) -> bool {
        fence(Ordering::Acquire);
        self.seen as u32 == 0 && self.word.load(Ordering::Relaxed) == self.seen
    }
}

/// Explored by loom: `RUSTFLAGS="--cfg loom" cargo test -p quire-fs --lib --release moving`.
#[cfg(all(test, loom))]
mod moving_model {
    use super::*;
    use quire_base::sync::{Arc, Mutex, thread};

    /// One directory: the word, the bucket of both names, and an entry each behind a latch of its own.
    struct Model {
        word: AtomicU64,
        bucket: Mutex<()>,
        entries: [Mutex<bool>; 2],
    }

    impl Model {
        fn rename(&self, from: usize, to: usize) {
            let _bucket = self.bucket.lock();
            let _moving = Moving::in_word(&self.word);
            *self.entries[to].lock() = true;
            *self.entries[from].lock() = false;
        }

        fn look_up(&self, name: usize) -> bool {
            let glance = Glance::at_word(&self.word);
            let found = *self.entries[name].lock();
            if glance.held_still() {
                return found;
            }
            let _bucket = self.bucket.lock();
            *self.entries[name].lock()
        }
    }

    fn model() -> Arc<Model> {
        let entries = [Mutex::new(true), Mutex::new(false)];
        Arc::new(Model { word: AtomicU64::new(0), bucket: Mutex::new(()), entries })
    }

    #[test]
    fn moving_once_is_seen_whole() {
        loom::model(|| {
            let model = model();
            let renamer = thread::spawn({
                let model = model.clone();
                move || model.rename(0, 1)
            });
            if model.look_up(1) {
                assert!(!model.look_up(0), "found under both names");
            }
            if !model.look_up(0) {
                assert!(model.look_up(1), "found under neither name");
            }
            renamer.join().unwrap();
        });
    }

    #[test]
    fn moving_there_and_back_is_seen_whole() {
        loom::model(|| {
            let model = model();
            let renamer = thread::spawn({
                let model = model.clone();
                move || {
                    model.rename(0, 1);
                    model.rename(1, 0);
                }
            });
            // Moved and moved back: a reader that has not found it at first can only find it there again.
            if !model.look_up(0) && !model.look_up(1) {
                assert!(model.look_up(0), "nowhere");
            }
            renamer.join().unwrap();
        });
    }
}
