//! Sending a snapshot as a stream, whole or as what has changed since an older one.
//!
//! The trees of names of both snapshots are compared ([`quire_tree::compare`]); what differs becomes items
//! ([`quire_format::stream`]), in the order of keys. Two passes: the first counts, so that the header has the
//! size and a person sees how far it is; the second reads and writes content. A stream that goes on after a
//! break is made from its beginning, and what the receiver has is neither read nor written.
//!
//! Content. Extents that differ are laid beside one another. Where both have a block of the file at the same
//! place on the device, its content is the same: a block that a snapshot has is not overwritten, nor given
//! to another file.
//!
//! Invariants: both passes, and those of a later process, give the same items, since snapshots do not change.
//! Inodes without a name are not sent. A volume in use can be sent from like any other: what a snapshot names
//! stays as it is, and [`Kept`] keeps the snapshot.
//!
//! Neighbours: [`changes`] makes the items; [`crate::snapshots::readers`] counts who reads a snapshot;
//! [`crate::receive`] is the other end; `docs/streams.md`.

pub(crate) mod changes;

use crate::engine::Engine;
use crate::snapshots::readers::Reading;
use crate::snapshots::table::{find, identity, pool_of, table};
use crate::volume::Volume;
use changes::{Side, send_changes};
use quire_base::{Context, Error, ErrorKind, Result};
use quire_format::receive::{SnapshotId, Token};
use quire_format::snapshot::Snapshot;
use quire_format::stream::{Header, StreamWriter};
use quire_tree::{Tree, TreeLimits};
use std::io::Write;

/// Memory for nodes of one tree that inodes are looked up in.
const LOOKUP_CACHE_BYTES: u64 = 8 << 20;

/// How far a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamProgress {
    /// Bytes that were sent, or received and applied; with those before a break.
    pub bytes: u64,
    /// Bytes of the whole stream.
    pub total: u64,
}

impl StreamProgress {
    /// So many bytes of a stream.
    pub fn new(bytes: u64, total: u64) -> StreamProgress {
        StreamProgress { bytes, total }
    }
}

/// What was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sent {
    /// The snapshot's name.
    pub name: String,
    /// Bytes of the whole stream.
    pub bytes: u64,
    /// Items of the whole stream.
    pub items: u64,
}

/// How a snapshot is sent.
///
/// ```
/// # use quire::{FormatOptions, SendOptions, VolumeOptions, backend::MemoryBackend};
/// # fn main() -> quire::Result<()> {
/// # let device = std::sync::Arc::new(MemoryBackend::new(16384));
/// # FormatOptions::new().format_backend(device.clone())?;
/// # quire::take_snapshot_backend(device.clone(), "monday")?;
/// let volume = VolumeOptions::new().read_only(true).open_backend(device)?;
/// let mut stream = Vec::new();
/// SendOptions::new().send(&volume, "monday", &mut stream, &mut |_| ())?;
/// # volume.close()
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct SendOptions {
    from: Option<String>,
}

impl SendOptions {
    /// A whole snapshot.
    pub fn new() -> SendOptions {
        SendOptions::default()
    }

    /// Only what has changed since this snapshot, which the receiver must have.
    #[must_use]
    pub fn from(mut self, snapshot: impl Into<String>) -> SendOptions {
        self.from = Some(snapshot.into());
        self
    }

    /// Writes the stream of a snapshot. Others may use the volume meanwhile, and close it; the snapshots that
    /// are sent cannot be deleted before this returns.
    ///
    /// Errors: `NotFound`; `Invalid` if the older snapshot is not older; `Unsupported` if `volume` is itself
    /// a snapshot; `Io`, also of writing the stream.
    pub fn send(
        &self,
        volume: &Volume,
        snapshot: &str,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(StreamProgress),
    ) -> Result<Sent> {
        let engine = volume.engine();
        engine.may_have_snapshots()?;
        let newer = Kept::new(engine, snapshot)?;
        let older = self.from.as_ref().map(|name| Kept::new(engine, name)).transpose()?;
        send(engine, older, newer, None, out, progress)
    }

    /// Goes on with a stream that broke: `token` is what the receiver says
    /// ([`crate::UnfinishedReceive::token`]). It names the snapshots.
    ///
    /// Errors: `Invalid` for what is no token; `NotFound` if the volume does not have these snapshots; those
    /// of [`SendOptions::send`].
    pub fn resume(
        volume: &Volume,
        token: &str,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(StreamProgress),
    ) -> Result<Sent> {
        let engine = volume.engine();
        engine.may_have_snapshots()?;
        let token: Token = token.parse()?;
        let newer = Kept::by_id(engine, &token.id)?;
        let older = token.parent.map(|id| Kept::by_id(engine, &id)).transpose()?;
        send(engine, older, newer, Some(token), out, progress)
    }
}

/// A snapshot that is not deleted while this lives.
struct Kept {
    number: u32,
    snapshot: Snapshot,
    _reading: Reading,
}

impl Kept {
    fn new(engine: &Engine, name: &str) -> Result<Kept> {
        let reading = engine.readers.enter(name);
        let (number, snapshot) = find(&engine.store.tree, name)?;
        Ok(Kept { number, snapshot, _reading: reading })
    }

    fn by_id(engine: &Engine, id: &SnapshotId) -> Result<Kept> {
        let missing = || Error::new(ErrorKind::NotFound, format!("the volume does not have {id}"));
        for (number, snapshot) in table(&engine.store.tree)? {
            if identity(&engine.store.tree, &engine.store.superblock, number, &snapshot)? == *id {
                // Another one may have got its name by now.
                let kept = Kept::new(engine, &snapshot.name)?;
                return if kept.number == number { Ok(kept) } else { Err(missing()) };
            }
        }
        Err(missing())
    }

    fn id(&self, engine: &Engine) -> Result<SnapshotId> {
        identity(&engine.store.tree, &engine.store.superblock, self.number, &self.snapshot)
    }
}

fn send(
    engine: &Engine,
    older: Option<Kept>,
    newer: Kept,
    token: Option<Token>,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(StreamProgress),
) -> Result<Sent> {
    if let Some(older) = older.as_ref().filter(|older| older.number >= newer.number) {
        return Err(Error::invalid(format!(
            "the snapshot {:?} is not older than {:?}",
            older.snapshot.name, newer.snapshot.name
        )));
    }
    let Snapshot { superblock, name, .. } = &newer.snapshot;
    let old_root = older.as_ref().map(|older| older.snapshot.superblock.root);
    let new_side = side(engine, &newer.snapshot)?;
    let mut counted = StreamWriter::counting();
    send_changes(&engine.store.device, old_root, &new_side, &mut counted, &mut |_| ())?;
    counted.end(superblock.next_inode)?;

    let header = Header {
        id: newer.id(engine)?,
        parent: older.as_ref().map(|older| older.id(engine)).transpose()?,
        resumed: token.map(|token| token.position),
        hash_seed: superblock.hash_seed,
        blocks: counted.blocks(),
        bytes: counted.position().bytes,
        name: name.clone(),
    };
    if header.position().items >= counted.position().items {
        return Err(Error::invalid("the token does not fit this snapshot"));
    }
    let mut writer = StreamWriter::new(out, &header)?;
    let mut tell = |bytes| progress(StreamProgress { bytes, total: header.bytes });
    send_changes(&engine.store.device, old_root, &new_side, &mut writer, &mut tell)?;
    writer.end(superblock.next_inode)?;
    tell(writer.position().bytes);
    Ok(Sent { name: name.clone(), bytes: writer.position().bytes, items: writer.position().items })
}

fn side(engine: &Engine, snapshot: &Snapshot) -> Result<Side> {
    let superblock = &snapshot.superblock;
    let limits = TreeLimits::with_cache_bytes(LOOKUP_CACHE_BYTES);
    let pool = pool_of(&engine.store.device, snapshot)?;
    let tree =
        Tree::open(engine.store.device.clone(), superblock.volume_id(), superblock.roots(), pool, limits)
            .context(format_args!("snapshot {:?}", snapshot.name))?;
    Ok(Side { tree, root: superblock.root, volume: superblock.volume_id() })
}
