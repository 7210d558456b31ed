//! Streams that the server of a mount sends ([`crate::frames`]).
//!
//! Each stream has a thread of its own, which ends when the command goes away. Other long answers have
//! threads, too. A reader that stands still holds up nobody else: neither other requests, nor an unmount,
//! which ends the server and the stream.
//!
//! Neighbours: [`super::listener`] hears the request, [`crate::commands::stream`] makes it.

use std::io::{self, BufWriter, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use quire::Volume;
use quire_base::sync::thread;

use crate::exit::{self, Failure, Outcome};
use crate::frames::{FAILED, FRAME_MAX, Frames, PROGRESS, Request, WHOLE, frame};

/// Streams that a server gives at a time, and other answers that take a while.
const ANSWERS_MAX: usize = 8;

/// The streams of a server, or its other answers that take a while: each kind has a count of its own.
#[derive(Clone, Default)]
pub struct Sending(Arc<AtomicUsize>);

impl Sending {
    /// Answers what follows `send` in a request, on a thread that takes the connection over.
    pub fn start(&self, line: &str, volume: &Volume, connection: UnixStream) -> Outcome {
        let request = Request::parse(line)
            .ok_or_else(|| Failure::usage("the server does not know this request for a stream"))?;
        let volume = volume.clone();
        self.run(move || {
            if let Err(error) = answer(&request, &volume, &connection) {
                tracing::info!("a stream was not sent to its end: {error}");
            }
        })
    }

    /// Runs what answers a connection on a thread of its own.
    pub fn run(&self, body: impl FnOnce() + Send + 'static) -> Outcome {
        if self.0.fetch_add(1, Ordering::Relaxed) >= ANSWERS_MAX {
            self.0.fetch_sub(1, Ordering::Relaxed);
            return Err(Failure::new(
                exit::BUSY,
                format!("the server gives {ANSWERS_MAX} long answers already: try again later"),
            ));
        }
        let streams = self.0.clone();
        let run = move || {
            body();
            streams.fetch_sub(1, Ordering::Relaxed);
        };
        thread::Builder::new().name("quire-send".into()).spawn(run).map(drop).map_err(|error| {
            self.0.fetch_sub(1, Ordering::Relaxed);
            Failure::system("starting a thread", &error)
        })
    }
}

/// The frames of a stream.
fn answer(request: &Request, volume: &Volume, connection: &UnixStream) -> io::Result<()> {
    // A pipe behind the command may stand still for as long as its reader likes.
    connection.set_write_timeout(None)?;
    (&*connection).write_all(b"ok\n")?;
    let mut out = BufWriter::with_capacity(FRAME_MAX, Frames(connection));
    let mut shown = 0;
    let sent = request.send(volume, &mut out, &mut |at| {
        if at.bytes >= shown + FRAME_MAX as u64 || at.bytes == at.total {
            shown = at.bytes;
            let payload = [at.bytes.to_le_bytes(), at.total.to_le_bytes()].concat();
            // If the other side is gone, the stream's next write says so.
            let _ = frame(connection, PROGRESS, &payload);
        }
    });
    let flushed = out.flush();
    match sent {
        Ok(()) => flushed.and_then(|()| frame(connection, WHOLE, &[])),
        Err(error) => {
            let failure = Failure::from(error);
            let why = format!("{} {}", failure.code, failure.message);
            frame(connection, FAILED, &why.as_bytes()[..why.len().min(FRAME_MAX)])?;
            Err(io::Error::other(failure.message))
        }
    }
}
