//! Receiving a stream into a volume that nobody has open.
//!
//! Protocol:
//! 1. Check that the stream fits: its parent is the newest snapshot and nothing has changed since, or the
//!    volume is empty; there is space. Nothing has been written so far.
//! 2. Journal the key of the unfinished receive. It names the *base*, the newest snapshot, which has the
//!    volume as it is: the parent, or one that is taken for this. From here on the volume opens for reading
//!    as the base, and not for writing.
//! 3. Apply each item with the journal's ordinary transactions ([`apply`]). Each also moves the position in
//!    the key. Content goes to fresh blocks, as the base has the old ones, and is durable before its record.
//! 4. With the end item, and in one transaction: the tree becomes a snapshot, which says whose copy it is;
//!    the key goes, and a base that was taken for this is being deleted. The volume is what was sent.
//!
//! A stream that breaks leaves the key, and what was applied; so does a receiver that is killed, but for the
//! last [`FORCE_AFTER`]. A receive of the rest goes on at the position; [`ReceiveOptions::abort`] rolls back
//! to the base.
//!
//! Invariants: the base is the newest snapshot until step 4. A position and what it stands for change in one
//! transaction, or what stands behind the position is applied again and gives the same.
//!
//! Neighbours: [`crate::send`] is the other end; [`crate::recovery::unfinished`] says what a volume
//! opens as meanwhile;
//! [`crate::rollback`] gives a receive up; `docs/streams.md`.

mod apply;

use crate::engine::Engine;
use crate::options::Reshape;
use crate::options::VolumeOptions;
use crate::recovery;
use crate::recovery::unfinished::{base_of, is_unfinished, unfinished};
use crate::rollback::{roll_back_backend, roll_back_with};
use crate::send::StreamProgress;
use crate::send::changes::{Side, send_changes};
use crate::snapshots::table::{BASE_NAME, SnapshotInfo, identity, table};
use crate::store::transaction::{Cost, Depends, Transaction};
use crate::volume::Volume;
use apply::Applier;
use quire_base::sync::Arc;
use quire_base::sync::time::{Duration, Instant};
use quire_base::{BLOCK_SIZE, Error, ErrorKind, InodeNo, Result, size};
use quire_device::{Backend, Device};
use quire_format::inode::InodeRecord;
use quire_format::key::{Key, VALUE_MAX};
use quire_format::receive::{ID_BYTES, SnapshotId, UNFINISHED_BYTES_MAX, Unfinished};
use quire_format::snapshot::Snapshot;
use quire_format::stream::{Header, Item, StreamReader, StreamWriter, Totals};
use quire_format::superblock::Superblock;
use quire_tree::Tree;
use std::io::Read;
use std::ops::ControlFlow;

/// How long what was applied may wait for being durable, while more arrives.
const FORCE_AFTER: Duration = Duration::from_secs(1);

/// What a receive made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// The snapshot, with the name that it was sent with.
    pub snapshot: SnapshotInfo,
    /// Items of the whole stream.
    pub items: u64,
}

/// A receive that has not come to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnfinishedReceive {
    /// The name of the snapshot that is being received.
    pub name: String,
    /// Items that have been applied.
    pub items: u64,
    /// Bytes of the stream up to there.
    pub bytes: u64,
    /// What [`crate::SendOptions::resume`] needs to send the rest.
    pub token: String,
}

impl UnfinishedReceive {
    fn of(unfinished: &Unfinished) -> UnfinishedReceive {
        UnfinishedReceive {
            name: unfinished.name.clone(),
            items: unfinished.position.items,
            bytes: unfinished.position.bytes,
            token: unfinished.token().to_string(),
        }
    }
}

/// How a stream is received.
#[derive(Clone, Debug, Default)]
pub struct ReceiveOptions {
    force: bool,
}

impl ReceiveOptions {
    /// Changes of the target since the stream's parent are an error.
    pub fn new() -> ReceiveOptions {
        ReceiveOptions::default()
    }

    /// Gives up what was changed since the stream's parent: the volume is rolled back to it first, and stays
    /// so whatever becomes of the stream.
    #[must_use]
    pub fn force(mut self, force: bool) -> ReceiveOptions {
        self.force = force;
        self
    }

    /// Receives a stream, or its rest, into the volume in an image file or on a block device. Nobody may have
    /// it open. All or nothing: until the stream has come to its end, the volume can be read as it was, and
    /// not be opened for writing.
    ///
    /// Errors: `Invalid` where the stream does not fit the volume; `Exists`; `NoSpace`; `UnknownFormat`;
    /// `Busy`, also while another receive is unfinished. Nothing has changed then. Later: `Corrupt`,
    /// `UnexpectedEof`, `NoSpace` and `Io`; then [`ReceiveOptions::unfinished`] says how to go on. Later,
    /// too: `Invalid` for a file whose untorn units the volume's journal does not take;
    /// [`ReceiveOptions::abort`] is the way out.
    #[cfg(not(any(loom, shuttle)))]
    pub fn receive(
        &self,
        path: impl AsRef<std::path::Path>,
        input: &mut dyn Read,
        progress: &mut dyn FnMut(StreamProgress),
    ) -> Result<Received> {
        self.receive_backend(read_write(path.as_ref())?, input, progress)
    }

    /// As [`ReceiveOptions::receive`], for a volume on any backend.
    pub fn receive_backend(
        &self,
        backend: Arc<dyn Backend>,
        input: &mut dyn Read,
        progress: &mut dyn FnMut(StreamProgress),
    ) -> Result<Received> {
        let (header, mut reader) = StreamReader::open(input)?;
        let begun = match (unfinished_on(&backend)?, header.resumed) {
            (Some(there), Some(_)) => {
                check_rest(&there, &header)?;
                Some(there)
            }
            (Some(there), None) => return Err(is_unfinished(&there)),
            (None, Some(_)) => {
                return Err(Error::invalid(
                    "the stream is the rest of another one, and the volume has no unfinished receive: send it whole",
                ));
            }
            (None, None) => None,
        };
        if begun.is_none() {
            self.prepare(&backend, &header)?;
        }
        let volume = Volume::open_with(
            backend.clone(),
            &VolumeOptions { threads: false, receiving: true, ..VolumeOptions::new() },
        )?;
        let outcome = session(volume.engine(), begun, &header, &mut reader, progress);
        let closed = volume.close();
        match outcome {
            Ok(received) => closed.map(|()| received),
            Err(error) => {
                // Nothing of it is there: as if there had been no stream.
                if let Ok(Some(there)) = unfinished_on(&backend)
                    && there.position.items == 0
                    && let Err(kept) = ReceiveOptions::abort_backend(backend)
                {
                    tracing::warn!(error = %kept, "the receive stays unfinished");
                }
                Err(error)
            }
        }
    }

    /// The unfinished receive of the volume in an image file or on a block device.
    #[cfg(not(any(loom, shuttle)))]
    pub fn unfinished(path: impl AsRef<std::path::Path>) -> Result<Option<UnfinishedReceive>> {
        use quire_device::{OpenMode, open_image};
        ReceiveOptions::unfinished_backend(open_image(path.as_ref(), OpenMode::ReadOnly)?)
    }

    /// As [`ReceiveOptions::unfinished`], of a volume on any backend.
    pub fn unfinished_backend(backend: Arc<dyn Backend>) -> Result<Option<UnfinishedReceive>> {
        Ok(unfinished_on(&backend)?.as_ref().map(UnfinishedReceive::of))
    }

    /// Gives an unfinished receive up: the volume is as it was before. False if there is none.
    #[cfg(not(any(loom, shuttle)))]
    pub fn abort(path: impl AsRef<std::path::Path>) -> Result<bool> {
        ReceiveOptions::abort_backend(read_write(path.as_ref())?)
    }

    /// As [`ReceiveOptions::abort`], for a volume on any backend.
    pub fn abort_backend(backend: Arc<dyn Backend>) -> Result<bool> {
        let there = unfinished_on(&backend)?;
        if let Some(there) = &there {
            let (_, base) = base_of(&load(&backend)?.1, there)?;
            let options = VolumeOptions { receiving: true, ..VolumeOptions::new() };
            roll_back_with(backend.clone(), &base.name, &options)?;
        }
        delete_own_base(&backend)?;
        Ok(there.is_some())
    }

    /// Step 1 of the protocol.
    fn prepare(&self, backend: &Arc<dyn Backend>, header: &Header) -> Result<()> {
        delete_own_base(backend)?;
        let (superblock, tree) = load(backend)?;
        let all = table(&tree)?;
        if all.iter().any(|(_, other)| other.name == header.name) {
            return Err(Error::new(
                ErrorKind::Exists,
                format!("the volume has a snapshot {:?}", header.name),
            ));
        }
        match header.parent {
            Some(parent) => {
                let newest = check_parent(&superblock, &tree, &all, &parent, header)?;
                if is_changed(backend, &newest)? {
                    if !self.force {
                        return Err(Error::invalid(format!(
                            "the volume has been changed since its snapshot {:?}, at which the stream begins: roll it \
                             back, or receive with --force, which gives up these changes",
                            newest.name
                        )));
                    }
                    roll_back_backend(backend.clone(), &newest.name)?;
                }
            }
            None => check_empty(&superblock, &tree, &all)?,
        }
        // The snapshot that ends the receive has at least as much metadata as the volume has now.
        let (now, tree) = load(backend)?;
        let (free, metadata) = (now.free_blocks, tree.pool_state().used_blocks());
        if header.blocks.saturating_add(metadata) > free {
            let show = |blocks: u64| size::show(blocks.saturating_mul(BLOCK_SIZE as u64));
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!(
                    "the stream has {} of content, and its snapshot needs room for {} of metadata: the volume has {} free",
                    show(header.blocks),
                    show(metadata),
                    show(free)
                ),
            ));
        }
        if header.parent.is_none() && superblock.hash_seed != header.hash_seed {
            let reshape = Reshape { hash_seed: Some(header.hash_seed), ..Reshape::default() };
            let options = VolumeOptions { threads: false, reshape: Some(reshape), ..VolumeOptions::new() };
            Volume::open_with(backend.clone(), &options)?.close()?;
        }
        Ok(())
    }
}

/// Steps 2 to 4 of the protocol.
fn session(
    engine: &Arc<Engine>,
    begun: Option<Unfinished>,
    header: &Header,
    reader: &mut StreamReader<'_>,
    progress: &mut dyn FnMut(StreamProgress),
) -> Result<Received> {
    let unfinished = match begun {
        Some(unfinished) => unfinished,
        None => begin(engine, header)?,
    };
    let mut applier = Applier::new(engine, unfinished);
    let mut forced = Instant::now();
    let outcome = loop {
        let applied = match reader.next() {
            Ok(Some((Item::End(totals), _))) => break Ok(totals),
            Ok(Some((item, position))) => applier.apply(&item, position),
            Ok(None) => break Err(Error::corrupt("the stream has no end")),
            Err(error) => break Err(error),
        };
        if let Err(error) = applied {
            break Err(error);
        }
        if forced.elapsed() >= FORCE_AFTER {
            engine.store.force_all()?;
            forced = Instant::now();
        }
        progress(StreamProgress { bytes: applier.unfinished.position.bytes, total: header.bytes });
    };
    match outcome.and_then(|totals| finish(engine, &applier.unfinished, &totals)) {
        Ok(snapshot) => {
            progress(StreamProgress { bytes: header.bytes, total: header.bytes });
            // The snapshot is there, whatever becomes of this: the next opening goes on with it.
            if let Err(error) = engine.finish_snapshot_deletions() {
                tracing::warn!(%error, "deleting the snapshot that the receive began at failed");
            }
            Ok(Received { snapshot, items: applier.unfinished.position.items })
        }
        // What was applied stays.
        Err(error) => engine.store.force_all().and(Err(error)),
    }
}

/// Step 2 of the protocol.
fn begin(engine: &Arc<Engine>, header: &Header) -> Result<Unfinished> {
    let mut unfinished = Unfinished {
        id: header.id,
        parent: header.parent,
        position: header.position(),
        base: 0,
        own_base: header.parent.is_none(),
        name: header.name.clone(),
    };
    if header.parent.is_none() {
        let cost = Cost::new(1, UNFINISHED_BYTES_MAX);
        let now = engine.store.options.clock.now();
        let mut change = |number, transaction: &mut Transaction<'_>| {
            unfinished.base = number;
            transaction.put(Key::RECEIVING, &unfinished.encode());
        };
        engine.retry_without_space(|| engine.take_snapshot_and(BASE_NAME, now, cost, &mut change, None))?;
        return Ok(unfinished);
    }
    let newest = newest(&table(&engine.store.tree)?).map(|(number, _)| *number);
    unfinished.base = newest.ok_or_else(|| Error::corrupt("the stream's parent is no more"))?;
    let mut transaction = engine.store.begin(Cost::new(1, UNFINISHED_BYTES_MAX))?;
    transaction.put(Key::RECEIVING, &unfinished.encode());
    let seq = transaction.commit(Depends::Nothing)?;
    engine.store.force(seq)?;
    Ok(unfinished)
}

/// Step 4 of the protocol.
fn finish(engine: &Arc<Engine>, unfinished: &Unfinished, totals: &Totals) -> Result<SnapshotInfo> {
    let root = engine.store.tree.get_with(Key::inode(InodeNo::ROOT), InodeRecord::decode)?.transpose()?;
    if !root.is_some_and(|root| root.file_type().is_dir() && root.nlink > 0) {
        return Err(Error::corrupt("the stream has no root directory"));
    }
    engine.store.inode_numbers.pass(totals.next_inode);
    let base = table(&engine.store.tree)?.into_iter().find(|(number, _)| *number == unfinished.base);
    let (base, id) = (base.filter(|_| unfinished.own_base), unfinished.id);
    let cost = Cost::new(3, VALUE_MAX + ID_BYTES);
    let mut change = |number, transaction: &mut Transaction<'_>| {
        transaction.delete(Key::RECEIVING);
        transaction.put(Key::received(number), &id.encode());
        if let Some((base, snapshot)) = &base {
            let deleted = Snapshot { deleting: Some(0), ..snapshot.clone() };
            transaction.put(Key::snapshot(*base), &deleted.encode());
        }
    };
    let taken = engine.retry_without_space(|| {
        engine.take_snapshot_and(&unfinished.name, id.created, cost, &mut change, None)
    });
    taken.map_err(|error| match error.kind() {
        ErrorKind::NoSpace => Error::new(
            ErrorKind::NoSpace,
            format!(
                "{error}. An unfinished receive keeps changes out: give it up (quire receive --abort), make room, and \
                 receive again"
            ),
        ),
        _ => error,
    })
}

/// Errors (`Invalid`) unless a stream goes on where the receive stopped.
fn check_rest(there: &Unfinished, header: &Header) -> Result<()> {
    if (there.id, there.parent, Some(there.position)) == (header.id, header.parent, header.resumed) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the stream does not go on where the receive of {:?} stopped: quire send --resume {}",
        there.name,
        there.token()
    )))
}

fn newest(all: &[(u32, Snapshot)]) -> Option<&(u32, Snapshot)> {
    all.iter().rev().find(|(_, snapshot)| snapshot.deleting.is_none())
}

/// The volume as of the end of its journal, in memory.
fn load(backend: &Arc<dyn Backend>) -> Result<(Superblock, Arc<Tree>)> {
    let loaded = recovery::load(&Device::new(backend.clone()), &VolumeOptions::new())?;
    Ok((loaded.superblock, loaded.tree))
}

fn unfinished_on(backend: &Arc<dyn Backend>) -> Result<Option<Unfinished>> {
    unfinished(&load(backend)?.1)
}

/// Deletes a base that an interrupted abort has left. The opening finishes interrupted deletions, that of a
/// base among them.
fn delete_own_base(backend: &Arc<dyn Backend>) -> Result<()> {
    let all = table(&load(backend)?.1)?;
    if !all.iter().any(|(_, snapshot)| snapshot.name == BASE_NAME || snapshot.deleting.is_some()) {
        return Ok(());
    }
    let options = VolumeOptions { threads: false, ..VolumeOptions::new() };
    let volume = Volume::open_with(backend.clone(), &options)?;
    let deleted = match volume.delete_snapshot(BASE_NAME) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        deleted => deleted,
    };
    let closed = volume.close();
    deleted.and(closed)
}

/// The parent, if it is the newest snapshot.
fn check_parent(
    superblock: &Superblock,
    tree: &Tree,
    all: &[(u32, Snapshot)],
    parent: &SnapshotId,
    header: &Header,
) -> Result<Snapshot> {
    let mut found = None;
    for (number, snapshot) in all.iter().filter(|(_, snapshot)| snapshot.deleting.is_none()) {
        if identity(tree, superblock, *number, snapshot)? == *parent {
            found = Some((*number, snapshot));
        }
    }
    let Some((number, snapshot)) = found else {
        return Err(Error::invalid(format!("the stream begins at {parent}, which the volume does not have")));
    };
    match newest(all) {
        Some((newest, other)) if *newest != number => Err(Error::invalid(format!(
            "the stream begins at the snapshot {:?}, and {:?} is newer: delete it first",
            snapshot.name, other.name
        ))),
        _ if superblock.hash_seed != header.hash_seed => {
            Err(Error::invalid("the stream was made with another key of the hash of names"))
        }
        _ => Ok(snapshot.clone()),
    }
}

fn check_empty(superblock: &Superblock, tree: &Tree, all: &[(u32, Snapshot)]) -> Result<()> {
    let root = tree.get_with(Key::inode(InodeNo::ROOT), InodeRecord::decode)?.transpose()?;
    let plain = root.is_some_and(|root| root.xattr_bytes == 0);
    if superblock.inode_count == 1 && all.is_empty() && plain {
        return Ok(());
    }
    Err(Error::invalid(
        "the stream is a whole snapshot, and the volume is not empty: make one for it with quire mkfs, or send only \
         what has changed (quire send --from)",
    ))
}

/// Whether names or files differ from those of the newest snapshot.
fn is_changed(backend: &Arc<dyn Backend>, newest: &Snapshot) -> Result<bool> {
    let options = VolumeOptions { threads: false, ..VolumeOptions::new() };
    let volume = Volume::open_with(backend.clone(), &options)?;
    volume.close()?;
    let (superblock, tree) = load(backend)?;
    // An operation for whose end the opening found no room. A sender would refuse it.
    let mut is_half_done = false;
    tree.scan(Key::logged(0), Key::logged(u64::MAX), &mut |_, _| {
        is_half_done = true;
        ControlFlow::Break(())
    })?;
    if is_half_done {
        return Ok(true);
    }
    let now = Side { tree, root: superblock.root, volume: superblock.volume_id() };
    // As a sender sees it: inodes without a name, which the opening has freed, do not exist.
    let mut changes = StreamWriter::counting();
    let device = Device::new(backend.clone());
    send_changes(&device, Some(newest.superblock.root), &now, &mut changes, &mut |_| ())?;
    Ok(changes.position().items > 0)
}

#[cfg(not(any(loom, shuttle)))]
fn read_write(path: &std::path::Path) -> Result<Arc<dyn Backend>> {
    quire_device::open_image(path, quire_device::OpenMode::ReadWrite)
}
