//! One connection with the kernel: negotiated, then served by threads until the mount is gone.
//!
//! The ring's threads, io_urings and first memory are made before the kernel is told that the ring will be
//! used; if they cannot be, or if the kernel refuses a queue, everything goes through `/dev/fuse`, whose
//! threads are there in any case: beside the ring one, for what never comes through it.

use std::os::fd::OwnedFd;

use crossbeam_channel::Receiver;
use quire_base::sync::{Arc, thread};
use quire_base::{Error, ErrorKind, Result};

use crate::protocol::negotiate::{Agreed, Features};
use crate::transport::buffer::Buffers;
use crate::transport::device::{self, Channel, Notifier, Pace};
use crate::transport::ring::{self, Prepared};
use crate::transport::{Choice, Ends, Handler};

/// See the module's documentation.
pub(crate) struct Connection<H> {
    channel: Arc<Channel>,
    handler: Arc<H>,
    threads: usize,
    agreed: Agreed,
    /// Queues of the ring, none without it; each has its thread already.
    queues: usize,
    ends: Ends,
    ended: Receiver<Result<()>>,
    transport: String,
}

impl<H: Handler> Connection<H> {
    /// Over a descriptor from [`crate::mount::mount`]: answers the kernel's INIT. `threads` receive from the
    /// device if the ring is not used.
    pub(crate) fn open(
        device: OwnedFd,
        handler: Arc<H>,
        threads: usize,
        choice: Choice,
    ) -> Result<Connection<H>> {
        let channel = Arc::new(Channel::new(device));
        handler.connected(Notifier::new(&channel));
        let mut prepared = None;
        let mut why_not = String::new();
        let (ends, ended) = Ends::new();
        let agreed = channel
            .negotiate(|offered, request_max| {
                match (choice, offered) {
                    (Choice::Device, _) => why_not = "asked for".into(),
                    (_, false) => why_not = ring::why_not_offered().into(),
                    (_, true) => match Prepared::new(&channel, &handler, &ends, request_max) {
                        Ok(ready) => prepared = Some(ready),
                        Err(error) => why_not = error.to_string(),
                    },
                }
                Features { ring: prepared.is_some(), ..handler.features() }
            })
            .map_err(|error| error.context("starting the FUSE protocol with the kernel"))?;
        let queues = match prepared.filter(|_| agreed.ring).map(Prepared::start) {
            Some(Ok(queues)) => queues,
            Some(Err(error)) => {
                why_not = error.to_string();
                0
            }
            None => 0,
        };
        if queues == 0 && choice == Choice::Ring {
            return Err(Error::new(ErrorKind::Unsupported, format!("no ring transport: {why_not}")));
        }
        let (transport, threads) = match queues {
            0 => (format!("dev ({why_not})"), threads.max(1)),
            _ => ("ring".into(), 1),
        };
        Ok(Connection { channel, handler, threads, agreed, queues, ends, ended, transport })
    }

    /// `ring`, or `dev` with the reason.
    pub(crate) fn transport(&self) -> &str {
        &self.transport
    }

    /// The kernel's minor version of the protocol.
    pub(crate) fn minor(&self) -> u32 {
        self.agreed.minor
    }

    /// Serves until the mount is gone, or a thread fails.
    pub(crate) fn run(self) -> Result<()> {
        let buffers = Buffers::new(self.agreed.request_max as usize);
        let mut serving = self.queues;
        let pace = if self.queues > 0 { Pace::Leisurely } else { Pace::Eager };
        for number in 0..self.threads {
            let channel = if number == 0 { self.channel.clone() } else { self.another() };
            let (buffers, handler, ends) = (buffers.clone(), self.handler.clone(), self.ends.clone());
            let thread = thread::Builder::new()
                .name(format!("quire-fuse-{number}"))
                .spawn(move || ends.say(|| device::serve(&channel, &buffers, &handler, pace)));
            match thread {
                Ok(_) => serving += 1,
                Err(error) if number > 0 => {
                    tracing::warn!("only {number} threads receive requests: {error}");
                    break;
                }
                Err(error) => return Err(Error::os("starting a thread that receives requests", &error)),
            }
        }
        for _ in 0..serving {
            let silent = |_| Err(Error::new(ErrorKind::Io, "the threads of the mount are gone"));
            self.ended.recv().unwrap_or_else(silent)?;
        }
        Ok(())
    }

    /// A descriptor of its own where that may be had.
    fn another(&self) -> Arc<Channel> {
        match self.channel.another() {
            Ok(channel) => Arc::new(channel),
            Err(error) => {
                tracing::debug!("{error}; the descriptor is shared");
                self.channel.clone()
            }
        }
    }
}
