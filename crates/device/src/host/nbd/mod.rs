//! Devices that a server exports by NBD, the network block device protocol.
//!
//! * `address`: [`NbdAddress`], how such a device is named.
//! * `library`: libnbd, which speaks the protocol (TLS included), loaded when it is first needed.
//! * `handle`: a connection: made, and asked what the export is.
//! * `session`: its requests and answers.
//! * `several`: several connections as one session, where the server can serve that.
//!
//! Up to 256 requests are under way at a time. Writes are made durable by flushes; FUA would make each write
//! wait for the medium, which the engine never wants of a single one.
//!
//! A volume on an export has an owner's mark, which stands for a lock (`super::owner`).
//!
//! Neighbours: [`crate::reconnecting`] above keeps what a lost connection may take.

mod address;
mod handle;
mod library;
mod session;
mod several;

pub use address::NbdAddress;

use super::mode::OpenMode;
use super::owner::{self, Verdict, Watch};
use crate::aligned::AlignedBuf;
use crate::backend::{Backend, IoClass};
use crate::reconnecting::ownership::{mark_in, read_mark, write_mark};
use crate::reconnecting::{
    Connector, Failure, Ownership, Properties, ReconnectingBackend, Request, Session, ask_session,
};
use handle::{Export, Handle};
use quire_base::sync::atomic::{AtomicU64, Ordering};
use quire_base::sync::time::{Duration, Instant};
use quire_base::sync::{Arc, thread};
use quire_base::{BLOCK_SIZE, Error, ErrorKind, Result};
use quire_format::superblock::{MAGIC, SLOT_BLOCKS};
use session::NbdSession;
use several::Several;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How long the first connection may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(15);
/// How long a server that turns it away is asked again.
const SETTLE_LIMIT: Duration = Duration::from_secs(1);

/// Opens the export that `address` names.
///
/// Errors: `Unsupported` without libnbd, or if the server offers no flush or takes no requests of 4096 bytes;
/// `ReadOnly` if the export is read-only and is to be written; otherwise what the connection met.
pub(super) fn open(address: NbdAddress, mode: OpenMode) -> Result<Arc<dyn Backend>> {
    let (session, export) = start(&address, mode)?;
    let (session, ownership, _claiming) = match mode {
        OpenMode::Look => (session, None, None),
        _ if export.bytes < VOLUME_BYTES_MIN => (session, None, None),
        OpenMode::ReadOnly | OpenMode::ReadWrite => claim(&address, mode, session)?,
    };
    let properties = Properties {
        name: address.text().into(),
        blocks: export.bytes / BLOCK_SIZE as u64,
        is_read_only: mode != OpenMode::ReadWrite,
        patience: address.reconnect,
        ownership,
    };
    let connector =
        NbdConnector { address, bytes: AtomicU64::new(export.bytes), can_flush: export.can_flush };
    Ok(Arc::new(ReconnectingBackend::new(properties, Box::new(connector), session)?))
}

/// A first session with the export.
fn start(address: &NbdAddress, mode: OpenMode) -> Result<(Arc<dyn Session>, Export)> {
    let start = Instant::now();
    let handle = connect(address)?;
    let export = handle.export(address.text())?;
    if mode == OpenMode::ReadWrite {
        let refuse = |kind, text: &str| Err(Error::new(kind, format!("{}: {text}", address.text())));
        if export.is_read_only {
            return refuse(ErrorKind::ReadOnly, "the export is read-only");
        }
        if !export.can_flush {
            let text =
                "the server offers no flush, so nothing could be made durable; only reading is possible";
            return refuse(ErrorKind::Unsupported, text);
        }
    }
    let limit = CONNECT_LIMIT.min(address.answer).saturating_sub(start.elapsed());
    let count = if mode == OpenMode::Look { 1 } else { address.connections };
    Ok((session_of(address, count, handle, export, limit)?, export))
}

/// A session over a first connection and more like it, `count` in all if the server can serve several, and as
/// many as are made within `limit`.
fn session_of(
    address: &NbdAddress,
    count: usize,
    first: Handle,
    export: Export,
    limit: Duration,
) -> Result<Arc<dyn Session>> {
    let name = address.text();
    let mut sessions = vec![NbdSession::start(name, first, export, address.answer)?];
    let more = if export.can_multi_conn { count - 1 } else { 0 };
    let start = Instant::now();
    for _ in 0..more {
        // A server may admit fewer than it could serve.
        let Ok(handle) = Handle::connect(address, limit.saturating_sub(start.elapsed())) else { break };
        if handle.export(name)? != export {
            let text = format!("{name} has changed while it was connected to");
            return Err(Error::new(ErrorKind::Io, text));
        }
        sessions.push(NbdSession::start(name, handle, export, address.answer)?);
    }
    tracing::debug!(device = name, connections = sessions.len(), "connected");
    Ok(Arc::new(Several::new(sessions)))
}

/// Held from the look at a mark to the start of the beat: of two threads that open a volume at the same
/// moment, the second finds the first.
static CLAIMING: Mutex<()> = Mutex::new(());

/// The session to go on with, what was written to the export, and the lock of the claim.
type Claimed = (Arc<dyn Session>, Option<Ownership>, Option<MutexGuard<'static, ()>>);

/// Respects the mark of another owner, and writes one of this process, if the export holds a volume and is to
/// be written. Between two looks there is no connection: the owner may be without one, and is to have it
/// back.
fn claim(address: &NbdAddress, mode: OpenMode, mut session: Arc<dyn Session>) -> Result<Claimed> {
    let name = address.text();
    let ask = |session: &Arc<dyn Session>, request: Request| {
        ask_session(session, request, address.answer).map_err(|failure| match failure {
            Failure::Refused(error) | Failure::Broken(error) => {
                error.context(format!("looking whether {name} has an owner"))
            }
        })
    };
    let mut watch = Watch::new(name, address.takes_over);
    let (was_owned, claiming) = loop {
        let claiming = CLAIMING.lock().unwrap_or_else(PoisonError::into_inner);
        let found = mark_in(ask(&session, read_mark())?.as_ref());
        let was_owned = !matches!(found, Ok(None));
        match watch.judge(found)? {
            Verdict::Free => break (was_owned, claiming),
            Verdict::Wait => {
                drop(claiming);
                session.close();
                thread::sleep(owner::INTERVAL);
                (session, _) = start(address, mode).map_err(|error| {
                    error.context(
                        "while waiting to see whether the volume's owner lives, which may have come back",
                    )
                })?;
            }
        }
    };
    if mode != OpenMode::ReadWrite || !(was_owned || holds_volume(&session, &ask)?) {
        return Ok((session, None, None));
    }
    let ownership = owner::ownership_of_this_process(address.answer, address.reconnect);
    ask(&session, write_mark(Some(&ownership.mark)))?;
    ask(&session, Request::Flush)?;
    // Of two processes that open it at the same moment, one may find the other's here; else at its first
    // beat.
    let found = mark_in(ask(&session, read_mark())?.as_ref());
    if found.as_ref().ok().and_then(Option::as_ref) != Some(&ownership.mark) {
        let text = format!("{name} was opened by another process at the same moment");
        return Err(Error::new(ErrorKind::Busy, text));
    }
    Ok((session, Some(ownership), Some(claiming)))
}

/// Sends a request over a session and waits for the answer.
type Ask<'a> = &'a dyn Fn(&Arc<dyn Session>, Request) -> Result<Option<AlignedBuf>>;

/// Whether one of the superblocks is there; other data has no room for a mark.
fn holds_volume(session: &Arc<dyn Session>, ask: Ask<'_>) -> Result<bool> {
    for block in SLOT_BLOCKS {
        let offset = block.byte_offset();
        let bytes = ask(session, Request::Read { class: IoClass::Metadata, offset, length: BLOCK_SIZE })?;
        if bytes.is_some_and(|bytes| bytes.starts_with(&MAGIC)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes a first connection. A server that admits one at a time may not yet have noticed that the last one is
/// over (a mount looks at the superblocks through one of its own): so it is asked for a second.
fn connect(address: &NbdAddress) -> Result<Handle> {
    let start = Instant::now();
    loop {
        match Handle::connect(address, CONNECT_LIMIT.min(address.answer)) {
            Err(error) if error.kind() == ErrorKind::Io && start.elapsed() < SETTLE_LIMIT => {
                thread::sleep(Duration::from_millis(50));
            }
            connected => return connected,
        }
    }
}

/// Smaller exports hold no volume.
const VOLUME_BYTES_MIN: u64 = 16 * BLOCK_SIZE as u64;

struct NbdConnector {
    address: NbdAddress,
    /// Most bytes that the export had so far: it may grow, and a smaller one is not the same device.
    bytes: AtomicU64,
    /// Whether the first connection offered flush.
    can_flush: bool,
}

impl Connector for NbdConnector {
    fn connect(&self, limit: Duration) -> Result<Arc<dyn Session>> {
        let name = self.address.text();
        let limit = limit.min(self.address.answer);
        let start = Instant::now();
        let handle = Handle::connect(&self.address, limit)?;
        let export = handle.export(name)?;
        let bytes = self.bytes.load(Ordering::Acquire);
        if export.bytes < bytes || (self.can_flush && !export.can_flush) {
            return Err(Error::new(
                ErrorKind::Io,
                format!("{name} is another export than before ({export:?}; it had {bytes} bytes)"),
            ));
        }
        let left = limit.saturating_sub(start.elapsed());
        let session = session_of(&self.address, self.address.connections, handle, export, left)?;
        self.bytes.fetch_max(export.bytes, Ordering::AcqRel);
        Ok(session)
    }
}
