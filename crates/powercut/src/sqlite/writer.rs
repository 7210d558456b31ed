//! A process that commits to a SQLite database until the power goes, and writes down what was acknowledged.
//!
//! Neighbours: [`super`] starts and kills it; [`crate::machine::is_powered`] tells it whether an answer still
//! counts.

use super::{Mode, payload};
use crate::failure::{Failure, Outcome};
use crate::machine::is_powered;
use quire_base::random::Random;
use rusqlite::{Connection, ErrorCode, TransactionBehavior};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a writer waits for the others of its database.
const BUSY_PATIENCE: Duration = Duration::from_secs(20);

/// A writer's orders.
#[derive(Clone, Debug)]
pub struct Options {
    /// The database's mode.
    pub mode: Mode,
    /// The database.
    pub database: PathBuf,
    /// This writer.
    pub client: usize,
    /// The last number that is in the database.
    pub after: u64,
    /// Decides the mix.
    pub seed: u64,
    /// The machine's power file.
    pub power: PathBuf,
    /// Where acknowledged numbers go.
    pub ledger: PathBuf,
}

/// Opens a database as every process here does.
pub fn open(mode: Mode, path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_PATIENCE)?;
    connection.pragma_update(None, "page_size", mode.page_size)?;
    let journal: String =
        connection.pragma_update_and_check(None, "journal_mode", mode.journal, |row| row.get(0))?;
    assert_eq!(journal, mode.journal, "the database took the journal mode");
    connection.pragma_update(None, "synchronous", mode.synchronous)?;
    // Small, so that large transactions spill before they commit and the log is checkpointed often.
    connection.pragma_update(None, "cache_size", 40)?;
    connection.pragma_update(None, "wal_autocheckpoint", 100)?;
    Ok(connection)
}

/// Makes a database and its tables.
pub fn create(mode: Mode, path: &Path) -> Outcome {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|error| Failure::trouble("making a folder", error))?;
    }
    let make = || {
        let connection = open(mode, path)?;
        connection.execute_batch(
            "CREATE TABLE ledger(client INT, number INT, payload BLOB, PRIMARY KEY(client, number));
             CREATE TABLE totals(client INT PRIMARY KEY, number INT, bytes INT);
             CREATE TABLE scratch(id INTEGER PRIMARY KEY, client INT, filler BLOB);
             CREATE INDEX scratch_client ON scratch(client);",
        )
    };
    make().map_err(|error: rusqlite::Error| Failure::trouble("making a database", error))
}

/// Writes until the power is off or something fails.
pub fn run(options: &Options) -> Outcome {
    end_with_the_harness();
    let trouble = |error: std::io::Error| Failure::trouble("a writer's files on the host", error);
    let power = File::open(&options.power).map_err(trouble)?;
    let mut ledger = File::options().create(true).append(true).open(&options.ledger).map_err(trouble)?;
    let mut random = Random::seeded(options.seed);
    let mut number = options.after + 1;
    let outcome = (|| {
        let mut connection = open(options.mode, &options.database)?;
        loop {
            match transaction(&mut connection, options.client, number, &mut random) {
                Ok(true) if !is_powered(&power) => return Ok(()),
                Ok(true) => {
                    if ledger.write_all(format!("{number}\n").as_bytes()).is_err() {
                        return Ok(());
                    }
                    number += 1;
                }
                Ok(false) => {}
                Err(error) if is_busy(&error) => {}
                Err(error) => return Err(error),
            }
        }
    })();
    match outcome {
        Err(error) if is_powered(&power) => {
            ledger.write_all(format!("error {error}\n").as_bytes()).map_err(trouble)?;
            Err(Failure::Broken(error.to_string()))
        }
        // What fails without power is no news.
        _ => Ok(()),
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// One transaction; true if `number` was committed, false if it was rolled back on purpose or was
/// housekeeping.
fn transaction(
    connection: &mut Connection,
    client: usize,
    number: u64,
    random: &mut Random,
) -> rusqlite::Result<bool> {
    match random.below(400) {
        0 => connection.execute_batch("VACUUM").map(|()| false),
        1..4 => connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(false)),
        choice => {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let payload = payload(client, number);
            transaction
                .prepare_cached("INSERT INTO ledger VALUES(?1, ?2, ?3)")?
                .execute(rusqlite::params![client, number, payload])?;
            transaction
                .prepare_cached(
                    "INSERT INTO totals VALUES(?1, ?2, ?3)
                     ON CONFLICT(client) DO UPDATE SET number = ?2, bytes = bytes + ?3",
                )?
                .execute(rusqlite::params![client, number, payload.len()])?;
            if choice % 5 == 0 {
                // Pages come and go, more of them than the cache holds.
                for _ in 0..random.below(12) {
                    transaction
                        .prepare_cached("INSERT INTO scratch(client, filler) VALUES(?1, zeroblob(?2))")?
                        .execute(rusqlite::params![client, random.below(40_000)])?;
                }
                transaction
                    .prepare_cached(
                        "DELETE FROM scratch WHERE client = ?1 AND id NOT IN
                         (SELECT id FROM scratch WHERE client = ?1 ORDER BY id DESC LIMIT 20)",
                    )?
                    .execute([client])?;
            }
            if choice % 29 == 0 {
                transaction.rollback()?;
                return Ok(false);
            }
            transaction.commit()?;
            Ok(true)
        }
    }
}

/// The harness holds the other end of our standard input: when it is gone, so are we.
fn end_with_the_harness() {
    std::thread::spawn(|| {
        let mut byte = [0];
        while matches!(std::io::stdin().read(&mut byte), Ok(count) if count > 0) {}
        std::process::exit(0);
    });
}
