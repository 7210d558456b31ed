//! A snapshot of a mounted volume as a stream over the control socket: what the two sides say.
//!
//! The request is `send` and a line of JSON: `name` and perhaps `from`, or `resume` with a token. After the
//! `ok` of every answer come frames, each a byte that says what it is, the length of its payload as a `u32`
//! in little-endian order, and the payload:
//!
//! | byte | payload |
//! | --- | --- |
//! | `d` | a part of the stream |
//! | `p` | how far it is: bytes sent, bytes in all, both `u64` |
//! | `e` | it has failed: an exit code, a space, and why |
//! | `o` | it is whole; nothing follows |
//!
//! Neighbours: [`crate::server::sending`] writes the frames, [`crate::commands::stream`] reads them
//! ([`from_mount`]).

use std::io::{self, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use quire::{SendOptions, StreamProgress, Volume};
use serde_json::{Value, json};

use crate::control;
use crate::exit::{self, Failure, Outcome};

/// Bytes of a frame at most, and of a stream that are collected before they are sent.
pub const FRAME_MAX: usize = 1 << 20;

/// A part of the stream.
pub const DATA: u8 = b'd';
/// How far it is.
pub const PROGRESS: u8 = b'p';
/// It has failed.
pub const FAILED: u8 = b'e';
/// It is whole.
pub const WHOLE: u8 = b'o';

/// What is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A snapshot, whole or as what has changed since an older one.
    Snapshot {
        /// Its name.
        name: String,
        /// The older one.
        from: Option<String>,
    },
    /// The rest of a stream that broke.
    Rest {
        /// From the receiver.
        token: String,
    },
}

impl Request {
    fn to_line(&self) -> String {
        match self {
            Request::Snapshot { name, from } => json!({ "name": name, "from": from }).to_string(),
            Request::Rest { token } => json!({ "resume": token }).to_string(),
        }
    }

    /// Reads a request back; `None` if it is none.
    pub fn parse(line: &str) -> Option<Request> {
        let value: Value = serde_json::from_str(line).ok()?;
        let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        match text("resume") {
            Some(token) => Some(Request::Rest { token }),
            None => text("name").map(|name| Request::Snapshot { name, from: text("from") }),
        }
    }

    /// Writes the stream.
    pub fn send(
        &self,
        volume: &Volume,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(StreamProgress),
    ) -> quire::Result<()> {
        match self {
            Request::Rest { token } => SendOptions::resume(volume, token, out, progress),
            Request::Snapshot { name, from: None } => SendOptions::new().send(volume, name, out, progress),
            Request::Snapshot { name, from: Some(from) } => {
                SendOptions::new().from(from).send(volume, name, out, progress)
            }
        }
        .map(drop)
    }
}

/// Writes a frame.
pub fn frame(mut connection: &UnixStream, what: u8, payload: &[u8]) -> io::Result<()> {
    let [a, b, c, d] = (payload.len() as u32).to_le_bytes();
    connection.write_all(&[what, a, b, c, d])?;
    connection.write_all(payload)
}

/// What is written becomes frames of data.
pub struct Frames<'a>(pub &'a UnixStream);

impl Write for Frames<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = &bytes[..bytes.len().min(FRAME_MAX)];
        frame(self.0, DATA, bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Has the server of a mount write a stream.
pub fn from_mount(
    dir: &Path,
    request: &Request,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(StreamProgress),
) -> Outcome {
    let connection = control::open(dir, &format!("send {}", request.to_line()))?;
    let broken =
        |error: io::Error| Failure::system(format!("a stream of the server of {}", dir.display()), &error);
    connection.set_read_timeout(None).map_err(broken)?;
    let mut input = BufReader::with_capacity(FRAME_MAX, &connection);
    control::read_verdict(dir, &mut input)?;
    let mut payload = Vec::new();
    loop {
        let mut head = [0; 5];
        input.read_exact(&mut head).map_err(broken)?;
        let [what, length @ ..] = head;
        let length = u32::from_le_bytes(length) as usize;
        if length > FRAME_MAX {
            return Err(Failure::new(exit::FAILED, "the server of the mount sends what is no stream"));
        }
        payload.resize(length, 0);
        input.read_exact(&mut payload).map_err(broken)?;
        match (what, length) {
            (DATA, _) => {
                out.write_all(&payload).map_err(|error| Failure::system("writing the stream", &error))?;
            }
            (PROGRESS, 16) => {
                let number =
                    |at: usize| u64::from_le_bytes(payload[at..at + 8].try_into().expect("eight bytes"));
                progress(StreamProgress::new(number(0), number(8)));
            }
            (FAILED, _) => {
                let text = String::from_utf8_lossy(&payload).into_owned();
                let (code, message) = text.split_once(' ').unwrap_or_default();
                return Err(Failure::new(code.parse().unwrap_or(exit::FAILED), message));
            }
            (WHOLE, 0) => return out.flush().map_err(|error| Failure::system("writing the stream", &error)),
            _ => return Err(Failure::new(exit::FAILED, "the server of the mount sends what is no stream")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_say_what_they_mean() {
        let requests = [
            Request::Snapshot { name: "a \"b\"\n".into(), from: None },
            Request::Snapshot { name: "new".into(), from: Some("old one".into()) },
            Request::Rest { token: "1-2".into() },
        ];
        for request in requests {
            let line = request.to_line();
            assert!(!line.contains('\n'));
            assert_eq!(Request::parse(&line), Some(request));
        }
        assert_eq!(Request::parse("{}"), None);
        assert_eq!(Request::parse("name"), None);
    }
}
