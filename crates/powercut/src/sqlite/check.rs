//! A process that opens a SQLite database after a power cut and says what is in it.
//!
//! Output, in lines: `recovered <microseconds>`, `client <client> <rows>` each, `whole`; or `broken <why>`.
//!
//! Neighbours: [`super`] reads it and compares it with the ledgers.

use super::writer::open;
use super::{Mode, payload};
use rusqlite::Connection;
use std::path::Path;
use std::time::{Duration, Instant};

/// Newest rows of a client whose contents are compared; `integrity_check` reads all.
const COMPARED: u64 = 400;

/// A client's transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The client.
    pub client: usize,
    /// Its transactions are 1 to this.
    pub rows: u64,
}

/// The output, read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Opening the database to the first answer, hot journal and log included.
    pub recovered_in: Duration,
    /// One for each client with transactions.
    pub found: Vec<Found>,
    /// The check came to its end and found nothing wrong.
    pub is_whole: bool,
    /// What is wrong.
    pub broken: Option<String>,
}

impl Report {
    /// Reads the lines.
    pub fn parse(text: &str) -> Report {
        let mut report = Report::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["recovered", micros] => {
                    report.recovered_in = Duration::from_micros(micros.parse().unwrap_or(0));
                }
                ["client", client, rows] => {
                    if let (Ok(client), Ok(rows)) = (client.parse(), rows.parse()) {
                        report.found.push(Found { client, rows });
                    }
                }
                ["whole"] => report.is_whole = true,
                ["broken", ..] => report.broken = Some(line["broken ".len()..].to_owned()),
                _ => {}
            }
        }
        report
    }
}

/// Checks and prints. True if nothing is wrong.
pub fn run(mode: Mode, path: &Path) -> bool {
    let started = Instant::now();
    let outcome = open(mode, path).map_err(|error| error.to_string()).and_then(|connection| {
        connection
            .query_row("SELECT count(*) FROM totals", [], |row| row.get::<_, u64>(0))
            .map_err(|error| error.to_string())?;
        println!("recovered {}", started.elapsed().as_micros());
        examine(&connection)
    });
    match &outcome {
        Ok(()) => println!("whole"),
        Err(why) => println!("broken {}", why.replace('\n', "; ")),
    }
    outcome.is_ok()
}

fn examine(connection: &Connection) -> Result<(), String> {
    let failed = |error: rusqlite::Error| error.to_string();
    let mut statement = connection.prepare("PRAGMA integrity_check").map_err(failed)?;
    let lines: Vec<String> =
        statement.query_map([], |row| row.get(0)).and_then(Iterator::collect).map_err(failed)?;
    if lines != ["ok"] {
        return Err(format!("integrity_check: {}", lines.join("; ")));
    }
    let mut statement = connection
        .prepare(
            "SELECT l.client, count(*), min(l.number), max(l.number), sum(length(l.payload)), t.number, t.bytes
             FROM ledger l LEFT JOIN totals t ON t.client = l.client GROUP BY l.client",
        )
        .map_err(failed)?;
    let mut rows = statement.query([]).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let get = |column| row.get::<_, u64>(column).map_err(failed);
        let (client, count) = (get(0)?, get(1)?);
        let seen = [get(2)?, get(3)?, get(4)?, get(5)?, get(6)?];
        if seen[..2] != [1, count] || seen[3] != count || seen[2] != seen[4] {
            return Err(format!(
                "client {client}: {count} rows, numbers {} to {}, {} bytes; its total says number {}, {} bytes",
                seen[0], seen[1], seen[2], seen[3], seen[4]
            ));
        }
        compare_contents(connection, client, count)?;
        println!("client {client} {count}");
    }
    Ok(())
}

fn compare_contents(connection: &Connection, client: u64, count: u64) -> Result<(), String> {
    let failed = |error: rusqlite::Error| error.to_string();
    let mut statement = connection
        .prepare("SELECT number, payload FROM ledger WHERE client = ?1 AND number > ?2")
        .map_err(failed)?;
    let mut rows = statement.query([client, count.saturating_sub(COMPARED)]).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let number: u64 = row.get(0).map_err(failed)?;
        let found: Vec<u8> = row.get(1).map_err(failed)?;
        if found != payload(client as usize, number) {
            return Err(format!("client {client}, number {number}: not the contents that were committed"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_read_back() {
        let report = Report::parse("recovered 1500\nclient 0 12\nclient 2 3\nwhole\n");
        assert_eq!(report.recovered_in, Duration::from_micros(1500));
        assert_eq!(report.found, [Found { client: 0, rows: 12 }, Found { client: 2, rows: 3 }]);
        assert!(report.is_whole && report.broken.is_none());
        assert_eq!(Report::parse("broken a b\n").broken.as_deref(), Some("a b"));
        assert!(!Report::parse("recovered 1\nclient 0 1\n").is_whole);
    }

    #[test]
    fn a_row_that_is_not_what_was_committed_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let mode = super::super::MODES[0];
        super::super::writer::create(mode, &path).unwrap();
        let connection = open(mode, &path).unwrap();
        let good = payload(1, 1);
        connection.execute("INSERT INTO ledger VALUES(1, 1, ?1)", [&good]).unwrap();
        connection.execute("INSERT INTO totals VALUES(1, 1, ?1)", [good.len()]).unwrap();
        assert_eq!(examine(&connection), Ok(()));
        connection.execute("UPDATE ledger SET payload = zeroblob(?1)", [good.len()]).unwrap();
        assert!(examine(&connection).unwrap_err().contains("contents"));
        connection.execute("UPDATE totals SET number = 2", []).unwrap();
        assert!(examine(&connection).unwrap_err().contains("its total says"));
    }
}
