//! Real threads: appends in parallel, groups, failures that everybody hears of.

use crate::common::*;
use quire_base::sync::{Condvar, Mutex, thread};
use quire_base::{BlockNo, Error, ErrorKind, Result, Seq};
use quire_journal::{Journal, JournalConfig, Medium, Short};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Many threads on a small ring and a smaller buffer, with a checkpointer: every record is there, once, and
/// every thread's records are in its order.
#[test]
fn parallel_appends_lose_nothing() {
    const THREADS: u64 = 6;
    const EACH: u64 = 1500;
    let blocks = 64;
    let rig = Arc::new(Rig::open(
        quire_device::simulated::Image::new(START.0 + blocks),
        JournalConfig { buffer_bytes: 10 * 4096, ..config(blocks, Seq(0)) },
    ));
    rig.backend.stop_recording();
    // What checkpoints have read back, and the positions in the two "superblocks".
    let checkpoints = Arc::new(Mutex::new((Vec::<(Seq, Vec<u8>)>::new(), Seq(0), Seq(0))));
    let checkpoint = |rig: &Rig, state: &mut (Vec<(Seq, Vec<u8>)>, Seq, Seq)| {
        let newest = rig.journal.close_block();
        rig.journal.force(newest).unwrap();
        let (records, _) = rig.replay(state.1).unwrap();
        state.0.extend(records.into_iter().filter(|record| record.0 <= newest));
        (state.1, state.2) = (newest, state.1);
        rig.journal.checkpointed(state.1, state.2);
    };
    let workers: Vec<_> = (0..THREADS)
        .map(|worker| {
            let (rig, checkpoints) = (rig.clone(), checkpoints.clone());
            thread::spawn(move || {
                for number in 0..EACH {
                    let mut bytes = payload(number, (number * 7 % 900) as usize);
                    bytes.extend_from_slice(&worker.to_le_bytes());
                    bytes.extend_from_slice(&number.to_le_bytes());
                    let mut reservation = loop {
                        match rig.journal.try_reserve(bytes.len()) {
                            Ok(reservation) => break reservation,
                            Err(Short::Checkpoint) => checkpoint(&rig, &mut checkpoints.lock()),
                            Err(other) => panic!("{other:?}"),
                        }
                    };
                    let seq = rig.journal.append(&mut reservation, &bytes);
                    drop(reservation);
                    if number % 5 == worker % 5 {
                        rig.journal.force(seq).unwrap();
                        assert!(rig.journal.durable() >= seq);
                    }
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().unwrap();
    }
    let mut state = checkpoints.lock();
    checkpoint(&rig, &mut state);
    assert!(state.0.is_sorted_by_key(|record| record.0));
    let mut next = [0; THREADS as usize];
    for (_, bytes) in &state.0 {
        let word = |back: usize| u64::from_le_bytes(bytes[bytes.len() - back..][..8].try_into().unwrap());
        let (worker, number) = (word(16), word(8));
        assert_eq!(number, next[worker as usize], "thread {worker}");
        next[worker as usize] += 1;
        assert_eq!(bytes[..bytes.len() - 16], payload(number, (number * 7 % 900) as usize));
    }
    assert_eq!(next, [EACH; THREADS as usize]);
    let usage = rig.journal.usage();
    assert_eq!((usage.reserved_bytes, usage.unforced_bytes), (0, 0));
    assert!(rig.backend.violations().is_empty(), "{:?}", rig.backend.violations());
}

/// A medium whose writes wait until they are let through, and fail when told to.
#[derive(Default)]
struct Gated {
    entered: AtomicU64,
    open: Mutex<bool>,
    changed: Condvar,
    fail: AtomicBool,
    panic: AtomicBool,
}

impl Gated {
    fn set_open(&self, open: bool) {
        *self.open.lock() = open;
        self.changed.notify_all();
    }
    fn wait_entered(&self, count: u64) {
        while self.entered.load(Ordering::SeqCst) < count {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[derive(Clone)]
struct Handle(Arc<Gated>);

impl Medium for Handle {
    fn mark(&self) -> u64 {
        0
    }
    fn flush_before(&self, _: u64) -> Result<()> {
        Ok(())
    }
    fn write(&self, _: &[(BlockNo, &[u8])]) -> Result<()> {
        self.0.entered.fetch_add(1, Ordering::SeqCst);
        let mut open = self.0.open.lock();
        while !*open {
            self.0.changed.wait(&mut open);
        }
        assert!(!self.0.panic.load(Ordering::SeqCst), "the medium panics");
        if self.0.fail.load(Ordering::SeqCst) {
            Err(Error::new(ErrorKind::Io, "broken medium"))
        } else {
            Ok(())
        }
    }
    fn flush_after(&self) -> Result<()> {
        Ok(())
    }
}

fn gated() -> (Arc<Gated>, Arc<Journal>) {
    let gate = Arc::new(Gated::default());
    let journal = Journal::on(Box::new(Handle(gate.clone())), config(64, Seq(0)));
    (gate, Arc::new(journal))
}

fn append(journal: &Journal, payload: &[u8]) -> Seq {
    journal.append(&mut journal.try_reserve(payload.len()).unwrap(), payload)
}

/// Starts `count` threads that append and force; waits until they sleep.
fn forcers(journal: &Arc<Journal>, count: u64) -> Vec<thread::JoinHandle<Result<()>>> {
    let before = journal.counts().forces;
    let threads = (0..count)
        .map(|_| {
            let journal = journal.clone();
            thread::spawn(move || {
                let seq = append(&journal, b"grouped");
                journal.force(seq)
            })
        })
        .collect();
    while journal.counts().forces < before + count {
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(Duration::from_millis(20));
    threads
}

#[test]
fn those_who_come_during_a_write_share_the_next() {
    let (gate, journal) = gated();
    let first = forcers(&journal, 1);
    gate.wait_entered(1);
    let later = forcers(&journal, 10);
    gate.set_open(true);
    for thread in first.into_iter().chain(later) {
        thread.join().unwrap().unwrap();
    }
    let counts = journal.counts();
    assert_eq!((counts.writes, gate.entered.load(Ordering::SeqCst)), (2, 2));
    assert_eq!(counts.groups, [1, 0, 0, 0, 1, 0, 0, 0]);
}

#[test]
fn a_failed_write_fails_everyone() {
    let (gate, journal) = gated();
    let first = forcers(&journal, 1);
    gate.wait_entered(1);
    let later = forcers(&journal, 5);
    gate.fail.store(true, Ordering::SeqCst);
    gate.set_open(true);
    for thread in first.into_iter().chain(later) {
        assert!(thread.join().unwrap().unwrap_err().to_string().contains("broken medium"));
    }
    assert_eq!(gate.entered.load(Ordering::SeqCst), 1);
    assert_eq!(journal.durable(), Seq(0));
}

/// A shutdown does not wait for the write in flight to wake the others.
#[test]
fn a_shutdown_wakes_everyone() {
    let (gate, journal) = gated();
    let first = forcers(&journal, 1);
    gate.wait_entered(1);
    let later = forcers(&journal, 5);
    journal.shut_down(Error::new(ErrorKind::Io, "from elsewhere"));
    for thread in later {
        assert!(thread.join().unwrap().unwrap_err().to_string().contains("from elsewhere"));
    }
    gate.set_open(true);
    for thread in first {
        assert!(thread.join().unwrap().unwrap_err().to_string().contains("from elsewhere"));
    }
    assert_eq!(journal.durable(), Seq(0));
}

#[test]
fn a_leader_that_panics_wakes_everyone() {
    let (gate, journal) = gated();
    let first = forcers(&journal, 1);
    gate.wait_entered(1);
    let later = forcers(&journal, 3);
    gate.panic.store(true, Ordering::SeqCst);
    gate.set_open(true);
    assert!(first.into_iter().next().unwrap().join().is_err());
    for thread in later {
        assert_eq!(thread.join().unwrap().unwrap_err().kind(), ErrorKind::Shutdown);
    }
}

/// With the buffer promised away and nothing to force, a reservation waits for another to be given back or
/// used.
#[test]
fn a_reservation_waits_for_others() {
    for used in [true, false] {
        let (gate, journal) = gated();
        gate.set_open(true);
        let mut held = Vec::new();
        while let Ok(reservation) = journal.try_reserve_now(500) {
            held.push(reservation);
        }
        let waiter = {
            let journal = journal.clone();
            thread::spawn(move || journal.try_reserve(9000).map(drop).map_err(Error::from))
        };
        thread::sleep(Duration::from_millis(20));
        assert!(!waiter.is_finished());
        for mut reservation in held {
            if used {
                journal.append(&mut reservation, &[1; 500]);
            }
        }
        waiter.join().unwrap().unwrap();
    }
}
