//! One connection with the kernel: negotiated, then served by threads until the mount is gone.
//!
//! The ring's threads and io_urings are made before the kernel is told that the ring will be used; if they cannot be,
//! or if the kernel refuses a queue, everything goes through `/dev/fuse`, whose threads are there in any case: beside
//! the ring one, for what never comes through it.

use std::os::fd::OwnedFd;

use quire_base::sync::{Arc, thread};
use quire_base::{Error, ErrorKind, Result};

use crate::protocol::negotiate::{Agreed, Wishes};
use crate::transport::buffer::Buffers;
use crate::transport::device::{self, Channel};
use crate::transport::ring::{self, Prepared, Running};
use crate::transport::{Choice, Handler};

/// See the module's documentation.
pub(crate) struct Connection<H> {
    channel: Arc<Channel>,
    handler: Arc<H>,
    threads: usize,
    agreed: Agreed,
    ring: Option<Running>,
    transport: String,
}

impl<H: Handler> Connection<H> {
    /// Over a descriptor from [`crate::mount::mount`]: answers the kernel's INIT. `threads` receive from the device if
    /// the ring is not used.
    pub(crate) fn open(
        device: OwnedFd,
        handler: Arc<H>,
        threads: usize,
        choice: Choice,
    ) -> Result<Connection<H>> {
        let channel = Arc::new(Channel::new(device));
        let mut prepared = None;
        let mut why_not = String::new();
        let agreed = channel
            .negotiate(|offered| {
                match (choice, offered) {
                    (Choice::Device, _) => why_not = "asked for".into(),
                    (_, false) => why_not = ring::why_not_offered().into(),
                    (_, true) => match Prepared::new(&channel, &handler) {
                        Ok(ready) => prepared = Some(ready),
                        Err(error) => why_not = error.to_string(),
                    },
                }
                Wishes { ring: prepared.is_some(), ..handler.wishes() }
            })
            .map_err(|error| error.context("starting the FUSE protocol with the kernel"))?;
        let running = match prepared.filter(|_| agreed.ring).map(|ready| ready.start(agreed.request_max)) {
            Some(Ok(running)) => Some(running),
            Some(Err(error)) => {
                why_not = error.to_string();
                None
            }
            None => None,
        };
        if running.is_none() && choice == Choice::Ring {
            return Err(Error::new(ErrorKind::Unsupported, format!("no ring transport: {why_not}")));
        }
        let transport = match &running {
            Some(_) => "ring".into(),
            None => format!("dev ({why_not})"),
        };
        let threads = if running.is_some() { 1 } else { threads.max(1) };
        Ok(Connection { channel, handler, threads, agreed, ring: running, transport })
    }

    /// `ring`, or `dev` with the reason.
    pub(crate) fn transport(&self) -> &str {
        &self.transport
    }

    /// Serves until the mount is gone.
    pub(crate) fn run(self) -> Result<()> {
        let buffers = Buffers::new(self.agreed.request_max as usize);
        let mut started = Vec::with_capacity(self.threads);
        for number in 0..self.threads {
            let channel = if number == 0 { self.channel.clone() } else { self.another() };
            let (buffers, handler) = (buffers.clone(), self.handler.clone());
            let thread = thread::Builder::new()
                .name(format!("quire-fuse-{number}"))
                .spawn(move || device::serve(&channel, &buffers, &handler));
            match thread {
                Ok(thread) => started.push(thread),
                Err(error) if number > 0 => {
                    tracing::warn!("only {number} threads receive requests: {error}");
                    break;
                }
                Err(error) => return Err(Error::os("starting a thread that receives requests", &error)),
            }
        }
        let mut outcome = Ok(());
        for thread in started {
            let ended = thread
                .join()
                .unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, "a thread of the mount panicked")));
            outcome = outcome.and(ended);
        }
        outcome.and(self.ring.map_or(Ok(()), Running::join))
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
