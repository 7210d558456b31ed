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
//! Inodes without a name are not sent. The volume is open read-only, so no snapshot goes meanwhile.
//!
//! Neighbours: [`changes`] makes the items; [`crate::receive`] is the other end; `docs/streams.md`.

mod changes;

use crate::engine::Engine;
use crate::receive::identity;
use crate::snapshots::{find, pool_of, table};
use crate::volume::Volume;
use changes::{Side, send_changes};
use quire_base::sync::Arc;
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

    /// Writes the stream of a snapshot of a volume that is open read-only.
    ///
    /// Errors: `NotFound`; `Invalid` if the older snapshot is not older; `Unsupported` on a volume that is
    /// open for writing; `Io`, also of writing the stream.
    pub fn send(
        &self,
        volume: &Volume,
        snapshot: &str,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(StreamProgress),
    ) -> Result<Sent> {
        let engine = checked(volume)?;
        let newer = find(&engine.tree, snapshot)?;
        let older = self.from.as_ref().map(|name| find(&engine.tree, name)).transpose()?;
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
        let engine = checked(volume)?;
        let token: Token = token.parse()?;
        let newer = by_id(engine, &token.id)?;
        let older = token.parent.map(|id| by_id(engine, &id)).transpose()?;
        send(engine, older, newer, Some(token), out, progress)
    }
}

fn checked(volume: &Volume) -> Result<&Arc<Engine>> {
    let engine = volume.engine();
    if !engine.read_only {
        let why = "a snapshot is sent from a volume that is open read-only";
        return Err(Error::new(ErrorKind::Unsupported, why));
    }
    Ok(engine)
}

fn by_id(engine: &Engine, id: &SnapshotId) -> Result<(u32, Snapshot)> {
    for (number, snapshot) in table(&engine.tree)? {
        let same = identity(&engine.tree, &engine.superblock, number, &snapshot)? == *id;
        if same && snapshot.deleting.is_none() {
            return Ok((number, snapshot));
        }
    }
    Err(Error::new(ErrorKind::NotFound, format!("the volume does not have {id}")))
}

fn send(
    engine: &Engine,
    older: Option<(u32, Snapshot)>,
    (number, newer): (u32, Snapshot),
    token: Option<Token>,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(StreamProgress),
) -> Result<Sent> {
    if let Some((_, older)) = older.as_ref().filter(|(older, _)| *older >= number) {
        return Err(Error::invalid(format!(
            "the snapshot {:?} is not older than {:?}",
            older.name, newer.name
        )));
    }
    let id =
        |(number, snapshot): (u32, &Snapshot)| identity(&engine.tree, &engine.superblock, number, snapshot);
    let sides =
        [older.as_ref().map(|(_, older)| side(engine, older)).transpose()?, Some(side(engine, &newer)?)];
    let [old_side, Some(new_side)] = &sides else { unreachable!("there is a newer one") };
    let mut counted = StreamWriter::counting();
    send_changes(&engine.device, old_side.as_ref(), new_side, &mut counted, &mut |_| ())?;
    counted.end(newer.superblock.next_inode)?;

    let header = Header {
        id: id((number, &newer))?,
        parent: older.as_ref().map(|(number, older)| id((*number, older))).transpose()?,
        resumed: token.map(|token| token.position),
        hash_seed: newer.superblock.hash_seed,
        blocks: counted.blocks(),
        bytes: counted.position().bytes,
        name: newer.name.clone(),
    };
    if header.position().items >= counted.position().items {
        return Err(Error::invalid("the token does not fit this snapshot"));
    }
    let mut writer = StreamWriter::new(out, &header)?;
    let mut tell = |bytes| progress(StreamProgress { bytes, total: header.bytes });
    send_changes(&engine.device, old_side.as_ref(), new_side, &mut writer, &mut tell)?;
    writer.end(newer.superblock.next_inode)?;
    tell(writer.position().bytes);
    Ok(Sent { name: newer.name, bytes: writer.position().bytes, items: writer.position().items })
}

fn side(engine: &Engine, snapshot: &Snapshot) -> Result<Side> {
    let superblock = &snapshot.superblock;
    let limits = TreeLimits::with_cache_bytes(LOOKUP_CACHE_BYTES);
    let pool = pool_of(&engine.device, snapshot)?;
    let tree = Tree::open(engine.device.clone(), superblock.volume_id(), superblock.roots(), pool, limits)
        .context(format_args!("snapshot {:?}", snapshot.name))?;
    Ok(Side { tree, root: superblock.root, volume: superblock.volume_id() })
}
