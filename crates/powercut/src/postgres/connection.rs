//! A session with the server over its local socket: simple queries, rows as text, and patience.
//!
//! The protocol is that of the crate `tokio-postgres`. A query has ended when the server is ready for the
//! next one; a commit counts only then. Each session has a runtime of its own and runs in the thread that
//! asks, which waits no longer than it is told to: a mount that hangs must not hang the harness.
//!
//! Neighbours: [`super::client`] commits with it, [`super`] checks with it.

use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};

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
    Gone(String),
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueryError::Refused { state, message } => write!(f, "{message} ({state})"),
            QueryError::Gone(why) => write!(f, "connection: {why}"),
        }
    }
}

impl From<io::Error> for QueryError {
    fn from(error: io::Error) -> QueryError {
        QueryError::Gone(error.to_string())
    }
}

impl From<tokio_postgres::Error> for QueryError {
    fn from(error: tokio_postgres::Error) -> QueryError {
        match error.as_db_error() {
            Some(refusal) => QueryError::Refused {
                state: refusal.code().code().to_owned(),
                message: refusal.message().to_owned(),
            },
            None => QueryError::Gone(error.to_string()),
        }
    }
}

/// Rows of text; None is NULL.
pub type Rows = Vec<Vec<Option<String>>>;

/// A session.
pub struct Connection {
    client: Client,
    patience: Duration,
    // Last: the task that reads and writes the socket ends with it.
    runtime: Runtime,
}

impl Connection {
    /// Connects as `user` to the database `postgres`. Nothing waits longer than `patience` for an answer.
    pub fn open(socket: &Path, user: &str, patience: Duration) -> Result<Connection, QueryError> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let start = async {
            let stream = UnixStream::connect(socket).await?;
            let mut config = Config::new();
            config.user(user).dbname("postgres");
            let (client, session) = config.connect_raw(stream, NoTls).await?;
            // What ends the session is seen by the next query.
            tokio::spawn(async { drop(session.await) });
            Ok::<_, QueryError>(client)
        };
        let client =
            runtime.block_on(async { timeout(patience, start).await }).map_err(|_| late(patience))??;
        Ok(Connection { client, patience, runtime })
    }

    /// Runs statements as one simple query; rows of all of them.
    pub fn query(&mut self, sql: &str) -> Result<Rows, QueryError> {
        let answer =
            self.runtime.block_on(async { timeout(self.patience, self.client.simple_query(sql)).await });
        let messages = answer.map_err(|_| late(self.patience))??;
        let row = |message: SimpleQueryMessage| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect())
            }
            _ => None,
        };
        Ok(messages.into_iter().filter_map(row).collect())
    }
}

fn late(patience: Duration) -> QueryError {
    QueryError::Gone(format!("no answer within {patience:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// A server on a mount that hangs accepts a connection and never answers.
    #[test]
    fn nobody_waits_for_a_silent_server() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        let error = Connection::open(&socket, "nobody", Duration::from_millis(50)).err().unwrap();
        assert_eq!(error.to_string(), "connection: no answer within 50ms");
        let error = Connection::open(&folder.path().join("none"), "nobody", Duration::from_secs(5)).err();
        assert!(matches!(error, Some(QueryError::Gone(_))));
    }
}
