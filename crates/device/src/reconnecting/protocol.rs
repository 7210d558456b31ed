//! What the reconnecting layer asks of a connection to a device elsewhere.
//!
//! Neighbours: `host::nbd` speaks NBD behind these traits, [`crate::simulated::exporter`] simulates a server.

use crate::aligned::AlignedBuf;
use crate::backend::IoClass;
use quire_base::Error;
use quire_base::sync::Arc;
use quire_base::sync::time::Duration;

/// A request to the server. Offsets and lengths are bytes, multiples of the block size.
#[derive(Clone, Debug)]
pub enum Request {
    /// Asks for bytes.
    Read {
        /// What they are for.
        class: IoClass,
        /// First byte.
        offset: u64,
        /// How many.
        length: usize,
    },
    /// Overwrites bytes.
    Write {
        /// What they are for.
        class: IoClass,
        /// First byte.
        offset: u64,
        /// The new bytes.
        data: Arc<AlignedBuf>,
    },
    /// Overwrites bytes with zeros, and keeps their space.
    Zeroes {
        /// What they are for.
        class: IoClass,
        /// First byte.
        offset: u64,
        /// How many.
        length: usize,
    },
    /// Makes durable what was answered before this request.
    Flush,
    /// Says that the bytes are worth nothing. A server that cannot trim succeeds.
    Trim {
        /// First byte.
        offset: u64,
        /// How many.
        length: u64,
    },
}

impl Request {
    /// The bytes that it overwrites, from the first to behind the last.
    pub(super) fn overwrites(&self) -> Option<(u64, u64)> {
        match self {
            Request::Write { offset, data, .. } => Some((*offset, offset + data.len() as u64)),
            Request::Zeroes { offset, length, .. } => Some((*offset, offset + *length as u64)),
            Request::Read { .. } | Request::Flush | Request::Trim { .. } => None,
        }
    }

    /// Bytes of memory that it holds.
    pub(super) fn memory(&self) -> usize {
        match self {
            Request::Write { data, .. } => data.len(),
            Request::Read { length, .. } => *length,
            Request::Zeroes { .. } | Request::Flush | Request::Trim { .. } => 0,
        }
    }
}

/// Why a request has no answer.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The server has answered with an error; the connection lives.
    Refused(Error),
    /// The connection broke. Whether the request was carried out is not known.
    Broken(Error),
}

/// What came of a request; a read has the bytes.
pub type Answer = Result<Option<AlignedBuf>, Failure>;

/// Takes an answer.
pub type Answered = Box<dyn FnOnce(Answer) + Send>;

/// A connection to a server.
pub trait Session: Send + Sync {
    /// Starts a request. `answered` runs exactly once and within bounded time, on any thread, this one
    /// included: so the caller holds no lock that it takes. Requests are carried out in any order.
    fn submit(&self, request: Request, answered: Answered);

    /// Size of the device in blocks, as the server said when the connection was made.
    fn blocks(&self) -> u64;

    /// Ends the connection. When this returns, requests without an answer have been answered with
    /// [`Failure::Broken`], and nothing is sent any more. Takes bounded time.
    fn close(&self);
}

/// Makes connections to one server.
pub trait Connector: Send + Sync {
    /// Makes a connection, or gives up within about `limit`. All earlier sessions have been closed. A device
    /// that is smaller than before is refused.
    fn connect(&self, limit: Duration) -> quire_base::Result<Arc<dyn Session>>;
}
