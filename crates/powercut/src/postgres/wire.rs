//! The little of PostgreSQL's protocol (version 3.0) that a client over a local socket needs: start without a
//! password, simple queries, rows as text.
//!
//! Source: postgresql.org/docs/15/protocol-message-formats.html. Messages are a type byte, a big-endian
//! length that counts itself, and the body. A query has ended when ReadyForQuery (`Z`) arrives; a commit
//! counts only then.
//!
//! Neighbours: [`super::client`] commits with it, [`super`] checks with it.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Longest message taken, in bytes.
const MESSAGE_MAX: usize = 64 << 20;
const PROTOCOL: u32 = 196_608;

/// Why a query has no answer.
#[derive(Debug)]
pub enum QueryError {
    /// The server refused: SQLSTATE and text.
    Refused {
        /// Five characters.
        state: String,
        /// For people.
        message: String,
    },
    /// The connection is gone, or never was.
    Gone(io::Error),
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueryError::Refused { state, message } => write!(f, "{message} ({state})"),
            QueryError::Gone(error) => write!(f, "connection: {error}"),
        }
    }
}

impl From<io::Error> for QueryError {
    fn from(error: io::Error) -> QueryError {
        QueryError::Gone(error)
    }
}

/// Rows of text; None is NULL.
pub type Rows = Vec<Vec<Option<String>>>;

/// A session.
pub struct Connection {
    stream: UnixStream,
}

impl Connection {
    /// Connects as `user` to the database `postgres`. Nothing waits longer than `patience` for an answer.
    pub fn open(socket: &Path, user: &str, patience: Duration) -> Result<Connection, QueryError> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        let mut connection = Connection { stream };
        let mut body = PROTOCOL.to_be_bytes().to_vec();
        for word in ["user", user, "database", "postgres"] {
            body.extend_from_slice(word.as_bytes());
            body.push(0);
        }
        body.push(0);
        connection.send(None, &body)?;
        connection.answer()?;
        Ok(connection)
    }

    /// Runs statements as one simple query; rows of all of them.
    pub fn query(&mut self, sql: &str) -> Result<Rows, QueryError> {
        let mut body = sql.as_bytes().to_vec();
        body.push(0);
        self.send(Some(b'Q'), &body)?;
        self.answer()
    }

    fn send(&mut self, kind: Option<u8>, body: &[u8]) -> io::Result<()> {
        let mut message = Vec::with_capacity(body.len() + 5);
        message.extend(kind);
        message.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
        message.extend_from_slice(body);
        self.stream.write_all(&message)
    }

    /// Reads to the next ReadyForQuery.
    fn answer(&mut self) -> Result<Rows, QueryError> {
        let mut rows = Rows::new();
        let mut refused = None;
        loop {
            let (kind, body) = self.receive()?;
            match kind {
                b'Z' => return refused.map_or(Ok(rows), Err),
                b'D' => rows.push(row(&body).ok_or_else(garbled)?),
                b'E' => {
                    let error = refusal(&body);
                    // At the start of a session nothing follows.
                    if matches!(&error, QueryError::Refused { state, .. } if state.starts_with("57P")) {
                        return Err(error);
                    }
                    refused = Some(error);
                }
                b'R' if body != 0_u32.to_be_bytes() => {
                    return Err(io::Error::other("the server wants a password").into());
                }
                _ => {}
            }
        }
    }

    fn receive(&mut self) -> Result<(u8, Vec<u8>), QueryError> {
        let mut head = [0; 5];
        self.stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if !(4..=MESSAGE_MAX).contains(&length) {
            return Err(garbled().into());
        }
        let mut body = vec![0; length - 4];
        self.stream.read_exact(&mut body)?;
        Ok((head[0], body))
    }
}

fn garbled() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not a message of PostgreSQL's protocol")
}

/// DataRow: a count, then each column's length (-1 is NULL) and bytes.
fn row(body: &[u8]) -> Option<Vec<Option<String>>> {
    let (count, mut rest) = body.split_at_checked(2)?;
    let mut columns = Vec::new();
    for _ in 0..u16::from_be_bytes(count.try_into().ok()?) {
        let (length, after) = rest.split_at_checked(4)?;
        let length = i32::from_be_bytes(length.try_into().ok()?);
        let (value, after) = after.split_at_checked(length.max(0) as usize)?;
        columns.push((length >= 0).then(|| String::from_utf8_lossy(value).into_owned()));
        rest = after;
    }
    Some(columns)
}

/// ErrorResponse: fields, each a letter and text up to a zero byte.
fn refusal(body: &[u8]) -> QueryError {
    let field = |letter: u8| {
        body.split(|byte| *byte == 0)
            .find(|field| field.first() == Some(&letter))
            .map_or(String::new(), |field| String::from_utf8_lossy(&field[1..]).into_owned())
    };
    QueryError::Refused { state: field(b'C'), message: field(b'M') }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_refusals_are_read() {
        let body = b"\0\x02\0\0\0\x0212\xff\xff\xff\xff";
        assert_eq!(row(body), Some(vec![Some("12".into()), None]));
        assert_eq!(row(&body[..7]), None);
        let QueryError::Refused { state, message } = refusal(b"SERROR\0C40P01\0Mdeadlock detected\0\0")
        else {
            panic!("a refusal");
        };
        assert_eq!((state.as_str(), message.as_str()), ("40P01", "deadlock detected"));
    }
}
