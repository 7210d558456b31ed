//! Every interleaving of small models: filling and committing, waiting for room, group commit, shutdown.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p quire-journal --test it loom_force --release`

use loom::cell::UnsafeCell;
use loom::thread;
use quire_base::sync::Mutex;
use quire_base::sync::atomic::{AtomicU64, Ordering};
use quire_base::{BlockNo, Error, ErrorKind, Result, Seq};
use quire_format::journal::PAYLOAD_BYTES;
use quire_journal::commit::{GroupCommit, Writer};
use quire_journal::failure::Failure;
use quire_journal::stream::{PADDING_MAX, Shortage, Stream};
use quire_journal::{Journal, JournalConfig, Medium};
use std::sync::Arc;

const PAYLOAD: u64 = PAYLOAD_BYTES as u64;

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(model);
}

/// The bytes of a record, as loom sees them: it reports two accesses that nothing orders.
struct Bytes(UnsafeCell<()>);

unsafe impl Sync for Bytes {}
unsafe impl Send for Bytes {}

impl Bytes {
    fn new() -> Bytes {
        Bytes(UnsafeCell::new(()))
    }
    fn write(&self) {
        self.0.with_mut(|_| ());
    }
    fn read(&self) {
        self.0.with(|_| ());
    }
}

/// Two appenders fill halves of a block, the committer sleeps until both are done and then sees all their
/// bytes.
#[test]
fn the_committer_sees_what_was_filled() {
    check(3, || {
        let stream = Arc::new(Stream::new(0, 0, 16, 4));
        let halves = Arc::new([Bytes::new(), Bytes::new()]);
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (stream, halves) = (stream.clone(), halves.clone());
                thread::spawn(move || {
                    let (range, used) = stream.advance(PAYLOAD / 2);
                    let start = range.end() - range.bytes();
                    halves[(start != 0) as usize].write();
                    assert_eq!(used, if start == 0 { PAYLOAD } else { 0 });
                    stream.fill(range);
                })
            })
            .collect();
        stream.wait_filled(PAYLOAD, &Failure::new()).unwrap();
        halves.iter().for_each(Bytes::read);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

/// An append and the closing of the block race; whichever comes first, the block gets full once and the
/// record is in the block the position says.
#[test]
fn closing_races_with_appending() {
    check(3, || {
        let stream = Arc::new(Stream::new(0, 0, 16, 4));
        let (first, _) = stream.advance(64);
        stream.fill(first);
        let appender = {
            let stream = stream.clone();
            thread::spawn(move || {
                let (range, _) = stream.advance(64);
                let end = range.end();
                stream.fill(range);
                end
            })
        };
        let (padding, closed) = stream.close();
        if let Some(padding) = padding {
            stream.pad(padding);
        }
        assert_eq!(closed, PAYLOAD);
        stream.wait_filled(closed, &Failure::new()).unwrap();
        let end = appender.join().unwrap();
        assert!(end == 128 || end == PAYLOAD + 64);
        assert_eq!(stream.head(), if end == 128 { PAYLOAD } else { end });
    });
}

/// A slot is filled again only after the committer was done with it.
#[test]
fn a_recycled_slot_is_nobodys() {
    check(3, || {
        let stream = Arc::new(Stream::new(0, 0, 16, 1));
        let bytes = Arc::new(Bytes::new());
        stream.claim(PAYLOAD).unwrap();
        let (range, _) = stream.advance(PAYLOAD);
        bytes.write();
        stream.fill(range);
        let next = {
            let (stream, bytes) = (stream.clone(), bytes.clone());
            thread::spawn(move || {
                let failure = Failure::new();
                while stream.claim(PAYLOAD).is_err() {
                    stream.wait_for_room(PAYLOAD, PAYLOAD, &failure);
                }
                let (range, _) = stream.advance(PAYLOAD);
                bytes.write();
                stream.fill(range);
            })
        };
        stream.wait_filled(PAYLOAD, &Failure::new()).unwrap();
        bytes.read();
        stream.recycle(0, PAYLOAD);
        next.join().unwrap();
    });
}

/// A thread that waits for room is woken, be the room given back, or used and become something to force.
#[test]
fn room_given_back_is_not_lost() {
    check(3, || {
        let stream = Arc::new(Stream::new(0, 0, 16, 4));
        stream.claim(3 * PAYLOAD).unwrap();
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let stream = stream.clone();
                thread::spawn(move || {
                    let failure = Failure::new();
                    while stream.claim(2 * PAYLOAD) == Err(Shortage::Buffer) {
                        stream.wait_for_room(2 * PAYLOAD, 0, &failure);
                    }
                    stream.unclaim(2 * PAYLOAD);
                })
            })
            .collect();
        stream.unclaim(3 * PAYLOAD);
        for waiter in waiters {
            waiter.join().unwrap();
        }
        assert_eq!(stream.claimed(), 0);
    });
}

#[test]
fn room_that_was_used_can_be_forced() {
    check(3, || {
        let stream = Arc::new(Stream::new(0, 0, 16, 2));
        stream.claim(2 * PAYLOAD).unwrap();
        let waiter = {
            let stream = stream.clone();
            thread::spawn(move || {
                let failure = Failure::new();
                while stream.claim(PAYLOAD).is_err() && stream.head() == 0 {
                    stream.wait_for_room(PAYLOAD, 0, &failure);
                }
            })
        };
        // All that was claimed is used, nothing is given back.
        let (range, used) = stream.advance(2 * PAYLOAD);
        stream.fill(range);
        stream.unclaim(2 * PAYLOAD - used);
        waiter.join().unwrap();
    });
}

/// Group commit alone: a head that only grows, a medium that remembers what landed.
struct Fake {
    head: AtomicU64,
    /// Ranges on the medium, and how far they were reported.
    medium: Mutex<(Vec<(u64, u64)>, u64)>,
    failure: Failure,
    commit: GroupCommit,
    fails: bool,
}

impl Fake {
    fn new(fails: bool) -> Arc<Fake> {
        Arc::new(Fake {
            head: AtomicU64::new(0),
            medium: Mutex::new((Vec::new(), 0)),
            failure: Failure::new(),
            commit: GroupCommit::new(0),
            fails,
        })
    }
    fn append_and_force(&self) -> Result<()> {
        let seq = self.head.fetch_add(1, Ordering::AcqRel) + 1;
        self.commit.force(seq, &self.failure, self)?;
        assert!(self.on_medium() >= seq, "served early");
        assert!(self.commit.durable() >= seq);
        Ok(())
    }
    /// How far the medium holds everything.
    fn on_medium(&self) -> u64 {
        let mut end = 0;
        let medium = self.medium.lock();
        while let Some((_, to)) = medium.0.iter().find(|(from, _)| *from == end) {
            end = *to;
        }
        end
    }
}

impl Writer for Fake {
    type Departed = ();
    fn is_worthwhile(&self, snapped: u64) -> bool {
        self.head.load(Ordering::Acquire) > snapped
    }
    fn depart(&self, wanted: u64) -> (u64, ()) {
        let head = self.head.load(Ordering::Acquire);
        assert!(wanted <= head);
        (head, ())
    }
    fn write(&self, from: u64, to: u64, durable: u64, _: ()) -> Result<()> {
        assert!(to > from && durable <= from, "a write of nothing, or of what is durable");
        if self.fails {
            return Err(Error::new(ErrorKind::Io, "broken"));
        }
        self.medium.lock().0.push((from, to));
        Ok(())
    }
    fn landed(&self, from: u64, to: u64, members: u64) {
        assert!((1..=3).contains(&members));
        let mut medium = self.medium.lock();
        assert!(medium.1 == from, "reported out of order");
        medium.1 = to;
    }
    fn shut_down(&self, error: Error) {
        self.failure.set(error);
        self.commit.wake_all();
    }
}

fn forcers(fake: &Arc<Fake>, count: usize) -> Vec<thread::JoinHandle<Result<()>>> {
    (0..count)
        .map(|_| {
            let fake = fake.clone();
            thread::spawn(move || fake.append_and_force())
        })
        .collect()
}

#[test]
fn nobody_is_forgotten_and_nobody_served_early() {
    check(3, || {
        let fake = Fake::new(false);
        let threads = forcers(&fake, 2);
        fake.append_and_force().unwrap();
        for thread in threads {
            thread.join().unwrap().unwrap();
        }
        assert_eq!((fake.commit.durable(), fake.on_medium()), (3, 3));
    });
}

#[test]
fn one_thread_forces_again_and_again() {
    check(3, || {
        let fake = Fake::new(false);
        let threads = forcers(&fake, 1);
        fake.append_and_force().unwrap();
        fake.append_and_force().unwrap();
        for thread in threads {
            thread.join().unwrap().unwrap();
        }
    });
}

#[test]
fn a_failure_reaches_all() {
    check(3, || {
        let fake = Fake::new(true);
        let threads = forcers(&fake, 2);
        assert!(fake.append_and_force().is_err());
        for thread in threads {
            assert!(thread.join().unwrap().is_err());
        }
        assert_eq!(fake.commit.durable(), 0);
    });
}

#[test]
fn a_shutdown_from_elsewhere_reaches_all() {
    check(3, || {
        let fake = Fake::new(false);
        let threads = forcers(&fake, 2);
        fake.shut_down(Error::new(ErrorKind::Io, "from elsewhere"));
        // Nobody may hang; who is served before the shutdown may succeed.
        for thread in threads {
            let _ = thread.join().unwrap();
        }
        assert!(fake.append_and_force().is_err());
    });
}

/// The whole journal, on a medium that keeps the images it is given.
#[derive(Clone, Default)]
struct Kept(Arc<std::sync::Mutex<Vec<(BlockNo, Vec<u8>)>>>);

impl Medium for Kept {
    fn mark(&self) -> u64 {
        0
    }
    fn flush_before(&self, _: u64) -> Result<()> {
        Ok(())
    }
    fn write(&self, runs: &[(BlockNo, &[u8])]) -> Result<()> {
        let mut kept = self.0.lock().unwrap();
        kept.extend(runs.iter().map(|(at, bytes)| (*at, bytes.to_vec())));
        Ok(())
    }
    fn flush_after(&self) -> Result<()> {
        Ok(())
    }
}

#[test]
fn the_journal_as_a_whole() {
    check(2, || {
        let kept = Kept::default();
        let config = JournalConfig {
            start: BlockNo(0),
            blocks: 64,
            volume: 1,
            incarnation: 1,
            head: Seq(0),
            tail: Seq(0),
            buffer_bytes: 0,
        };
        let journal = Arc::new(Journal::on(Box::new(kept.clone()), config));
        let run = |journal: &Journal, kept: &Kept, byte: u8| {
            let mut reservation = journal.try_reserve(16).unwrap();
            let seq = journal.append(&mut reservation, &[byte; 16]);
            drop(reservation);
            journal.force(seq).unwrap();
            let (block, offset) = ((seq.0 - 1) / PAYLOAD, ((seq.0 - 1) % PAYLOAD) as usize + 64);
            let kept = kept.0.lock().unwrap();
            let image = kept.iter().find(|(at, _)| at.0 == block).expect("forced, but not written");
            assert_eq!(image.1[offset - 15..=offset], [byte; 16]);
        };
        let other = {
            let (journal, kept) = (journal.clone(), kept.clone());
            thread::spawn(move || run(&journal, &kept, 1))
        };
        run(&journal, &kept, 2);
        other.join().unwrap();
        let usage = journal.usage();
        assert_eq!((usage.reserved_bytes, usage.unforced_bytes), (0, 0));
        let blocks: Vec<u64> = kept.0.lock().unwrap().iter().map(|(at, _)| at.0).collect();
        assert!(blocks.is_sorted() && (1..=2).contains(&blocks.len()), "written twice: {blocks:?}");
        assert!(PADDING_MAX >= PAYLOAD);
    });
}
