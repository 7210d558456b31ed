//! How requests reach this process, and replies the kernel.
//!
//! A transport receives a request into memory of its own and makes an [`Exchange`] of it: the message, room
//! for the reply's body, and the duty to reply. The exchange owns its memory, so that it can be handed to
//! another thread as it is, without a copy, when answering it must wait. [`Handler`]s get exchanges and know
//! no transport.
//!
//! * [`buffer`]: the memory of requests.
//! * [`device`]: `/dev/fuse`, one message a system call, many threads, a cloned descriptor each.
//! * [`ring`]: FUSE over io_uring, a queue for each CPU, commits and requests in shared memory.
//!
//! Invariants: each exchange is replied to exactly once (one that is dropped replies `EIO`, so that no caller
//! hangs for a panic here). The room overlaps the message: what a message holds is read before the body is
//! written, which the borrows of [`Exchange::message`] and [`Exchange::room`] enforce.

pub mod buffer;
pub mod device;
pub mod ring;

use crossbeam_channel::{Receiver, Sender, unbounded};
use quire_base::sync::Arc;
use quire_base::{Error, ErrorKind, Result};

use crate::protocol::negotiate::Features;
use crate::protocol::request::Message;

/// Which transport a mount uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The ring where the kernel offers it, else `/dev/fuse`.
    #[default]
    Auto,
    /// The ring; mounting fails without it.
    Ring,
    /// `/dev/fuse`.
    Device,
}

/// Where serving threads say how they ended, so that one that fails ends the whole mount: requests of its
/// queue would wait for ever.
#[derive(Clone)]
pub struct Ends(Sender<Result<()>>);

impl Ends {
    /// With the receiver of what is said.
    pub fn new() -> (Ends, Receiver<Result<()>>) {
        let (sender, receiver) = unbounded();
        (Ends(sender), receiver)
    }

    /// Runs `serve` and says how it ended, a panic included.
    pub fn say(&self, serve: impl FnOnce() -> Result<()>) {
        struct Panicked<'a>(&'a Ends);
        impl Drop for Panicked<'_> {
            fn drop(&mut self) {
                let panicked = Error::new(ErrorKind::Io, "a thread of the mount panicked");
                let _ = self.0.0.send(Err(panicked));
            }
        }
        let guard = Panicked(self);
        let outcome = serve();
        std::mem::forget(guard);
        // Nobody listens once another thread has failed.
        let _ = self.0.send(outcome);
    }
}

/// What a reply says: the length of the body in the room, or an error number of the kernel's interface
/// (positive).
pub type Outcome = std::result::Result<usize, i32>;

/// A request that waits for its reply.
pub trait Exchange: Send + Sized + 'static {
    /// Whether the thread that received it may be held while it is answered, within limits.
    const MAY_WAIT: bool;
    /// The request.
    fn message(&self) -> Message<'_>;
    /// Where the reply's body goes: at least as long as the largest request, page-aligned.
    fn room(&mut self) -> &mut [u8];
    /// Replies.
    fn reply(self, outcome: Outcome);
    /// For requests that have no reply.
    fn no_reply(self);
}

/// What answers requests.
pub trait Handler: Send + Sync + 'static {
    /// What it wants of the protocol.
    fn features(&self) -> Features;
    /// The connection stands: here is a way to tell the kernel something unasked.
    fn connected(&self, _notifier: device::Notifier) {}
    /// Answers, now or later, on this thread or another.
    fn handle<E: Exchange>(self: &Arc<Self>, exchange: E);
}
