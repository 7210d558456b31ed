//! Doing operations on a file and keeping record of them.
//!
//! Neighbours: [`crate::simulated`] and [`crate::threads`] call it from their threads.

use crate::cell::{self, CELL, Writer};
use crate::operation::{Event, Operation, Outcome};
use quire::inodes::{Create, InodeRef, IoFlags};
use quire::{AlignedBuf, Error, Volume};
use quire_base::sync::{self, Arc, thread};
// Not by way of `quire_base::sync`: the record is no part of what is simulated, and keeping it is no point.
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of the file that fills the cache.
const OTHER_BYTES: u64 = 7 << 20;
/// Bytes of it that are read at a time.
const OTHER_PIECE: usize = 1 << 20;

/// What a buffer holds before a read. Not zeros: a read that leaves bytes out is found out.
const UNREAD: u8 = 0xDB;

/// A file at work, and its history.
pub struct Bench {
    volume: Volume,
    file: InodeRef,
    other: InodeRef,
    /// How long a pause is.
    pause: Duration,
    time: AtomicU64,
    next: AtomicU32,
    events: Mutex<Vec<Event>>,
    /// Asynchronous operations that have not ended.
    under_way: sync::Mutex<u32>,
    ended: sync::Condvar,
}

impl Bench {
    /// A new file called `name`. `other` is a file for [`Operation::Pressure`], of [`Bench::other`].
    pub fn new(volume: &Volume, name: &str, other: &InodeRef, pause: Duration) -> quire::Result<Bench> {
        let file = volume.inodes().create(&volume.inodes().root(), name.as_bytes(), &Create::file(0o644))?;
        Ok(Bench {
            volume: volume.clone(),
            file,
            other: other.clone(),
            pause,
            time: AtomicU64::new(1),
            next: AtomicU32::new(1),
            events: Mutex::new(Vec::new()),
            under_way: sync::Mutex::new(0),
            ended: sync::Condvar::new(),
        })
    }

    /// A file that is larger than a small cache, all of it a hole.
    pub fn other(volume: &Volume) -> quire::Result<InodeRef> {
        let other = volume.inodes().create(&volume.inodes().root(), b"other", &Create::file(0o644))?;
        volume.inodes().set_len(&other, OTHER_BYTES)?;
        Ok(other)
    }

    /// The file.
    pub fn file(&self) -> &InodeRef {
        &self.file
    }

    /// Does an operation as a thread of the history.
    pub fn perform(self: &Arc<Bench>, thread: u32, operation: &Operation) {
        if let Operation::Submit(operation) = operation {
            return self.submit(thread, operation);
        }
        let (number, at) = self.call(thread, operation, false);
        let outcome = self.attempt(number, operation).unwrap_or_else(|error| failed(&error));
        self.returned(at, outcome);
    }

    /// Notes a call; gives the operation's number and its place in the history.
    fn call(&self, thread: u32, operation: &Operation, submitted: bool) -> (Writer, usize) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut events = self.events.lock();
        events.push(Event {
            number,
            thread,
            submitted,
            operation: operation.clone(),
            outcome: Outcome::Pending,
            called: self.time.fetch_add(1, Ordering::SeqCst),
            returned: u64::MAX,
        });
        (number, events.len() - 1)
    }

    fn returned(&self, at: usize, outcome: Outcome) {
        let returned = self.time.fetch_add(1, Ordering::SeqCst);
        let mut events = self.events.lock();
        (events[at].outcome, events[at].returned) = (outcome, returned);
    }

    /// Sends a direct read or write off.
    fn submit(self: &Arc<Bench>, thread: u32, operation: &Operation) {
        let (number, event) = self.call(thread, operation, true);
        *self.under_way.lock() += 1;
        let bench = self.clone();
        let end = move |outcome: quire::Result<Outcome>| {
            bench.returned(event, outcome.unwrap_or_else(|error| failed(&error)));
            *bench.under_way.lock() -= 1;
            bench.ended.notify_all();
        };
        match *operation {
            Operation::Write { at, len, flags } => {
                let buffer = AlignedBuf::copy_of(&data(number, len));
                let done = move |_: AlignedBuf, count: quire::Result<usize>| {
                    end(count.and_then(|count| written(at, len, count)));
                };
                self.volume.inodes().write_direct_then(&self.file, buffer, at * CELL, flags, Box::new(done));
            }
            Operation::Read { at, len, .. } => {
                let mut buffer = AlignedBuf::zeroed((len * CELL) as usize);
                buffer.fill(UNREAD);
                let done = move |buffer: AlignedBuf, count: quire::Result<usize>| {
                    end(count.map(|count| decoded(&buffer[..count])));
                };
                self.volume.inodes().read_direct_then(&self.file, buffer, at * CELL, Box::new(done));
            }
            _ => end(Err(Error::invalid(format!("{operation} has no asynchronous form")))),
        }
    }

    /// Waits until nothing that was submitted is under way.
    pub fn settle(&self) {
        let mut under_way = self.under_way.lock();
        while *under_way > 0 {
            self.ended.wait(&mut under_way);
        }
    }

    fn attempt(&self, number: Writer, operation: &Operation) -> quire::Result<Outcome> {
        let (volume, file) = (&self.volume, &self.file);
        let done = |()| Outcome::Done;
        match operation {
            Operation::Write { at, len, flags } => {
                let count = volume.inodes().write_at(file, &data(number, *len), at * CELL, *flags)?;
                written(*at, *len, count)
            }
            Operation::Append { len, flags } => {
                let (at, count) = volume.inodes().append(file, &data(number, *len), *flags)?;
                written(cells(at)?, *len, count)
            }
            Operation::Truncate { size } => volume.inodes().set_len(file, size * CELL).map(done),
            Operation::Allocate { mode, at, len } => {
                volume.inodes().allocate(file, mode.engine(), at * CELL, len * CELL).map(done)
            }
            Operation::Read { at, len, direct } => {
                let flags = if *direct { IoFlags::DIRECT } else { IoFlags::empty() };
                let mut buffer = vec![UNREAD; (len * CELL) as usize];
                let count = volume.inodes().read_at(file, &mut buffer, at * CELL, flags)?;
                Ok(decoded(&buffer[..count]))
            }
            Operation::Size => Ok(Outcome::Size(cells(volume.inodes().metadata(file).size())?)),
            Operation::Fsync { datasync } => volume.inodes().fsync(file, *datasync).map(done),
            Operation::Sync => volume.sync().map(done),
            Operation::Pressure => self.fill_cache().map(done),
            Operation::Pause => {
                thread::sleep(self.pause);
                Ok(Outcome::Done)
            }
            Operation::Submit(_) => unreachable!("what is submitted is not waited for"),
        }
    }

    fn fill_cache(&self) -> quire::Result<()> {
        let mut buffer = vec![0; OTHER_PIECE];
        for at in (0..OTHER_BYTES).step_by(OTHER_PIECE) {
            self.volume.inodes().read_at(&self.other, &mut buffer, at, IoFlags::empty())?;
        }
        Ok(())
    }

    /// The history so far.
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().clone()
    }
}

fn data(number: Writer, len: u64) -> Vec<u8> {
    let mut data = vec![0; (len * CELL) as usize];
    cell::fill(number, &mut data);
    data
}

fn decoded(buffer: &[u8]) -> Outcome {
    match cell::decode(buffer) {
        Ok(runs) => Outcome::Runs(runs),
        Err(byte) => Outcome::Foreign(byte),
    }
}

fn failed(error: &Error) -> Outcome {
    Outcome::Failed(error.kind(), error.to_string())
}

/// What a write of `len` cells answered. Nothing is in the way of a whole one: a short one has failed.
fn written(at: u64, len: u64, bytes: usize) -> quire::Result<Outcome> {
    match cells(bytes as u64)? {
        count if count == len => Ok(Outcome::Written { at, count }),
        count => Err(Error::corrupt(format!("{count} cells of {len} were written, and there is room"))),
    }
}

/// Bytes as cells; an error if the engine gave a number that cannot be right.
fn cells(bytes: u64) -> quire::Result<u64> {
    if bytes.is_multiple_of(CELL) {
        Ok(bytes / CELL)
    } else {
        Err(Error::corrupt(format!("{bytes} bytes, though everything written is in multiples of {CELL}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A short write was held against what it said that it had written: an engine that wrote one cell of each
    /// request passed.
    #[test]
    fn a_short_write_has_failed() {
        assert_eq!(written(3, 4, 32).unwrap(), Outcome::Written { at: 3, count: 4 });
        for bytes in [0, 8, 24, 31, 40] {
            assert!(written(3, 4, bytes).is_err(), "{bytes}");
        }
    }
}
