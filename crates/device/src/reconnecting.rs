//! A device at the other end of a connection that may break.
//!
//! Knows no protocol: a [`Connector`] makes [`Session`]s, which carry requests and answers. This layer adds
//! what a file system needs of a device whose connection breaks:
//!
//! * Requests own their memory, so that a broken session never touches that of a caller.
//! * A write that has completed is not durable. A server that was cut off, killed or restarted may have lost
//!   it. So each completed write is *kept* until a flush that was submitted after its completion has
//!   succeeded; at most 64 MiB, then the layer flushes by itself, and submitters wait.
//! * When the connection breaks and the address asks for it, another is made within a bounded time, what is
//!   kept is written again, a flush makes it durable, and only then does anything else go on. Callers see no
//!   more than a pause.
//! * Otherwise, or when the time is over, every request fails at once: the volume shuts down (J7), and what
//!   it has in its cache can still be read.
//!
//! Writing again is safe only if the server has ended, or dropped, the requests of the old connection before
//! it serves the new one: a late old write would overwrite a new one. No client can see whether it does. So
//! reconnecting is off unless the address asks for it.
//!
//! * [`protocol`]: the traits and the requests.
//! * `link`: what happens to requests while the connection is up, broken, or gone.
//! * `kept`: writes that no flush has covered.
//! * `recovery`: the link's thread, which reconnects.
//! * [`ownership`]: the mark that says who has the device open.
//!
//! Neighbours: a [`Backend`] like the others; `host::nbd` and [`crate::simulated::exporter`] are at the other
//! side of the traits.

mod kept;
mod link;
pub mod ownership;
pub mod protocol;
mod recovery;

pub use ownership::Ownership;
pub use protocol::{Answer, Answered, Connector, Failure, Request, Session};
pub use recovery::ask_session;

use crate::aligned::AlignedBuf;
use crate::backend::{self, Backend, Io, IoClass, IoOp, Segment};
use link::{MEMORY_MAX, Outcome, Pending, Shared};
use ownership::Heart;
use quire_base::sync::time::Duration;
use quire_base::sync::{Arc, thread};
use quire_base::{BLOCK_SIZE, BlockNo, Error, ErrorKind, Result, size};
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes of zeros from this length on travel without them.
const ZEROES_MIN: usize = 64 << 10;

/// What is known of the device before there is a backend.
#[derive(Clone, Debug)]
pub struct Properties {
    /// What to call it in messages.
    pub name: String,
    /// Size in blocks, at first.
    pub blocks: u64,
    /// Whether changes are refused.
    pub is_read_only: bool,
    /// How long a reconnection may take; without, the first break is the end.
    pub patience: Option<Duration>,
    /// The mark that has been written to the device, if it takes one.
    pub ownership: Option<Ownership>,
}

/// See the module's documentation.
pub struct ReconnectingBackend {
    properties: Properties,
    /// Size in blocks.
    blocks: AtomicU64,
    shared: Arc<Shared>,
    link: Option<thread::JoinHandle<()>>,
    heart: Option<Heart>,
}

impl ReconnectingBackend {
    /// Takes over a first session, and what makes others.
    pub fn new(
        properties: Properties,
        connector: Box<dyn Connector>,
        session: Arc<dyn Session>,
    ) -> Result<ReconnectingBackend> {
        let shared = Arc::new(Shared::new(&properties, connector, session));
        let runner = shared.clone();
        let link = thread::Builder::new()
            .name("quire-link".into())
            .spawn(move || recovery::run(&runner))
            .map_err(|error| Error::os("starting the thread of a connection", &error))?;
        let blocks = AtomicU64::new(properties.blocks);
        let mut backend = ReconnectingBackend { properties, blocks, shared, link: Some(link), heart: None };
        if let Some(ownership) = backend.properties.ownership.clone() {
            backend.heart = Some(Heart::start(backend.shared.clone(), ownership)?);
        }
        Ok(backend)
    }

    fn check(&self, doing: &str, at: BlockNo, bytes: u64, changes: bool) -> Result<()> {
        if changes && self.properties.is_read_only {
            let text = format!("{doing} {}: it is open read-only", self.properties.name);
            return Err(Error::new(ErrorKind::ReadOnly, text));
        }
        backend::check_range(&self.properties.name, self.blocks(), doing, at, bytes)
    }

    /// Starts one transfer whose memory the caller keeps valid until its `done` runs.
    fn start(&self, class: IoClass, io: Io) {
        let doing = io.op.doing();
        let checked = self
            .check(doing, io.at, io.bytes(), io.op == IoOp::Write)
            .and_then(|()| backend::check_io(&self.properties.name, self.blocks(), &io));
        let Io { op, at, segments, done } = io;
        let request = checked.and_then(|()| match op {
            // SAFETY: the caller's promise.
            IoOp::Write => unsafe { write_request(class, at, &segments) },
            IoOp::Read => {
                let length = segments.iter().map(Segment::len).sum();
                Ok(Request::Read { class, offset: at.byte_offset(), length })
            }
        });
        let request = match request {
            Ok(request) => request,
            Err(error) => return done(Err(error)),
        };
        let finish: Outcome = match op {
            IoOp::Write => Box::new(move |outcome| done(outcome.map(drop))),
            IoOp::Read => Box::new(move |outcome| {
                // SAFETY: `done` has not run, so the segments are valid.
                done(outcome.and_then(|bytes| unsafe { scatter(bytes, &segments) }));
            }),
        };
        self.shared.start(Pending::new(request, finish));
    }
}

/// The request for a write of what the segments hold.
///
/// # Safety
/// The segments' memory is valid.
unsafe fn write_request(class: IoClass, at: BlockNo, segments: &[Segment]) -> Result<Request> {
    let length = segments.iter().map(Segment::len).sum();
    let mut data = AlignedBuf::try_zeroed(length)?;
    let mut rest: &mut [u8] = &mut data;
    for segment in segments {
        let (part, behind) = rest.split_at_mut(segment.len());
        // SAFETY: the segment is valid (the caller's promise), and `part` is as long as it.
        unsafe { std::ptr::copy_nonoverlapping(segment.ptr(), part.as_mut_ptr(), part.len()) }
        rest = behind;
    }
    let offset = at.byte_offset();
    if length >= ZEROES_MIN && data.iter().all(|byte| *byte == 0) {
        return Ok(Request::Zeroes { class, offset, length });
    }
    Ok(Request::Write { class, offset, data: Arc::new(data) })
}

/// Copies the bytes of a read to where they are wanted.
///
/// # Safety
/// The segments' memory is valid and nobody else uses it.
unsafe fn scatter(bytes: Option<AlignedBuf>, segments: &[Segment]) -> Result<()> {
    let wanted: usize = segments.iter().map(Segment::len).sum();
    let bytes = bytes.filter(|bytes| bytes.len() == wanted).ok_or_else(wrong_length)?;
    let mut rest: &[u8] = &bytes;
    for segment in segments {
        let (part, behind) = rest.split_at(segment.len());
        // SAFETY: the segment is valid (the caller's promise), and as long as `part`.
        unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), segment.ptr(), part.len()) }
        rest = behind;
    }
    Ok(())
}

fn wrong_length() -> Error {
    Error::new(ErrorKind::Io, "a read was answered with another number of bytes")
}

impl Backend for ReconnectingBackend {
    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    /// A server tells the size when a connection is made, so this makes another one.
    fn grow(&self, blocks: u64) -> Result<()> {
        let name = &self.properties.name;
        if self.properties.patience.is_none() {
            let text = format!(
                "{name}: the server tells the size of the export to new connections only, and the address does not ask \
                 for reconnecting (reconnect=SECONDS): unmount, and mount again"
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        if !self.properties.is_read_only {
            self.flush()?;
        }
        let session = self.shared.connect_anew(Error::new(ErrorKind::Io, "its size is looked at again"))?;
        self.blocks.fetch_max(session.blocks(), Ordering::AcqRel);
        if self.blocks() < blocks {
            let reported = size::show(session.blocks() * BLOCK_SIZE as u64);
            return Err(Error::invalid(format!(
                "{name}: the server reports {reported} to a new connection: enlarge the export; if it is larger, unmount \
                 the volume, restart the server, and mount again"
            )));
        }
        Ok(())
    }

    fn name(&self) -> String {
        self.properties.name.clone()
    }

    fn is_read_only(&self) -> bool {
        self.properties.is_read_only
    }

    fn read(&self, class: IoClass, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        self.check("reading", at, buf.len() as u64, false)?;
        // Pieces, so that a read of any length finds memory.
        for (index, piece) in buf.chunks_mut(MEMORY_MAX / 8).enumerate() {
            let offset = at.byte_offset() + (index * (MEMORY_MAX / 8)) as u64;
            let bytes = self.shared.ask(Request::Read { class, offset, length: piece.len() })?;
            let bytes = bytes.filter(|bytes| bytes.len() == piece.len()).ok_or_else(wrong_length)?;
            piece.copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn write(&self, class: IoClass, at: BlockNo, buf: &[u8]) -> Result<()> {
        self.check("writing", at, buf.len() as u64, true)?;
        for (index, piece) in buf.chunks(MEMORY_MAX / 8).enumerate() {
            let at = at.offset((index * (MEMORY_MAX / 8 / BLOCK_SIZE)) as u64);
            // SAFETY: `piece` is borrowed for the length of this call, and is only read.
            let request =
                unsafe { write_request(class, at, &[Segment::new(piece.as_ptr().cast_mut(), piece.len())]) }?;
            self.shared.ask(request)?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        if self.properties.is_read_only {
            let text = format!("flushing {}: it is open read-only", self.properties.name);
            return Err(Error::new(ErrorKind::ReadOnly, text));
        }
        self.shared.ask(Request::Flush).map(drop)
    }

    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        let length = count.saturating_mul(BLOCK_SIZE as u64);
        self.check("discarding", at, length, true)?;
        self.shared.ask(Request::Trim { offset: at.byte_offset(), length }).map(drop)
    }

    fn submit(&self, class: IoClass, ios: Vec<Io>) {
        for io in ios {
            self.start(class, io);
        }
    }
}

impl Drop for ReconnectingBackend {
    /// Requests under way end first, each within bounded time. A `done` that is the last owner does not wait:
    /// the link's thread then ends when it can.
    fn drop(&mut self) {
        match self.heart.take() {
            // It has the link stop when the mark is away.
            Some(heart) => drop(heart),
            None => self.shared.stop(),
        }
        if let Some(link) = self.link.take()
            && link::may_wait()
            && link.join().is_err()
        {
            tracing::error!("the thread of a connection panicked");
        }
    }
}
