//! A log with a thousand concurrent appenders, durable in batches; then opened again and verified.
//!
//! `cargo run --release -p quire-fs --example log -- [APPENDERS] [RECORDS]`
//!
//! Each of APPENDERS (1000) tasks on one thread appends RECORDS (20) records and waits for the durability of
//! each before it appends the next one, as a database's sessions do. Fsyncs that are under way together share
//! one force of the journal. After every record that was durable, the program knows that a crash keeps it.

use futures::executor::block_on;
use futures::future::try_join_all;
use quire::{File, FormatOptions, OpenOptions, Result, Volume};
use std::io::{BufRead, BufReader};
use std::time::Instant;

/// One session: its records carry its number and theirs.
async fn append(log: &File, appender: usize, records: usize) -> Result<()> {
    for record in 0..records {
        let offset = log.append(format!("{appender} {record}\n").as_bytes())?;
        log.sync_data_async().await?;
        assert!(offset < log.metadata().len());
    }
    Ok(())
}

/// Every session's records are there, each once and in its own order.
fn verify(log: &File, appenders: usize, records: usize) -> std::io::Result<()> {
    let mut next = vec![0; appenders];
    for line in BufReader::new(log.cursor()).lines() {
        let line = line?;
        let (appender, record) = line.split_once(' ').expect("a record has two numbers");
        let (appender, record): (usize, usize) = (appender.parse().unwrap(), record.parse().unwrap());
        assert_eq!(record, next[appender], "of appender {appender}");
        next[appender] += 1;
    }
    assert!(next.iter().all(|&found| found == records));
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| arguments.next().map_or(Ok(default), |text| text.parse());
    let (appenders, records): (usize, usize) = (number(1000)?, number(20)?);
    let image = std::env::temp_dir().join(format!("quire-log-{}.img", std::process::id()));

    FormatOptions::new().size(256 << 20).format(&image)?;
    let volume = Volume::open(&image)?;
    volume.create_dir("db")?;
    let log = OpenOptions::new().append(true).create_new(true).open(&volume, "db/log")?;

    let began = Instant::now();
    block_on(try_join_all((0..appenders).map(|appender| append(&log, appender, records))))?;
    let seconds = began.elapsed().as_secs_f64();
    let flushes = volume.metrics()["device_flushes_total"];
    println!("{} durable records in {seconds:.2} s with {flushes} flushes", appenders * records);
    drop(log);
    volume.close()?;

    let volume = Volume::open(&image)?;
    verify(&volume.open_file("db/log")?, appenders, records)?;
    println!("all of them are there");
    volume.close()?;
    std::fs::remove_file(&image)?;
    Ok(())
}
