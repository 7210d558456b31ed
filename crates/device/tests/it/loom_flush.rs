//! Flush combining under every interleaving:
//! `RUSTFLAGS="--cfg loom" cargo test -p quire-device --test it loom_flush`.
//!
//! The medium is a model with two sets of blocks: written, and covered by a successful flush (those written
//! when it was submitted). The properties:
//!
//! * a caller that is told "durable" finds its write covered;
//! * every caller returns (loom reports a lost wake-up as a deadlock);
//! * a write that a ring completes on its own thread counts from its completion on, in whatever order several
//!   rings complete theirs;
//! * a failed flush reaches everybody whom no successful flush covers, and every flush after it.

use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use loom::thread;
use quire_base::{BlockNo, Error, ErrorKind, Result};
use quire_device::{Backend, Device, Io, IoClass, IoOp, Segment};
use std::sync::{Arc, Mutex};

static BLOCK: [u8; 4096] = [0; 4096];

struct Medium {
    written: AtomicU64,
    covered: AtomicU64,
    flushes: AtomicUsize,
    in_flight: AtomicUsize,
    rings: [Mutex<Vec<Io>>; 2],
    /// The flush with this number (from 0) fails.
    failing: Option<usize>,
}

impl Medium {
    fn device(failing: Option<usize>) -> (Arc<Medium>, Arc<Device>) {
        let medium = Arc::new(Medium {
            written: AtomicU64::new(0),
            covered: AtomicU64::new(0),
            flushes: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            rings: Default::default(),
            failing,
        });
        (medium.clone(), Device::new(medium))
    }
}

impl Medium {
    /// What the completion thread of a ring does.
    fn complete(&self, ring: usize) {
        let ios = std::mem::take(&mut *self.rings[ring].lock().unwrap());
        for io in ios {
            self.written.fetch_or(1 << io.at.0, Ordering::AcqRel);
            (io.done)(Ok(()));
        }
    }
}

impl Backend for Medium {
    fn blocks(&self) -> u64 {
        8
    }
    fn name(&self) -> String {
        "model".into()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read(&self, _: IoClass, _: BlockNo, _: &mut [u8]) -> Result<()> {
        Ok(())
    }
    fn write(&self, _: IoClass, at: BlockNo, _: &[u8]) -> Result<()> {
        self.written.fetch_or(1 << at.0, Ordering::AcqRel);
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        assert_eq!(self.in_flight.fetch_add(1, Ordering::AcqRel), 0, "two flushes in flight");
        let covers = self.written.load(Ordering::Acquire);
        thread::yield_now();
        let number = self.flushes.fetch_add(1, Ordering::AcqRel);
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
        if self.failing == Some(number) {
            return Err(Error::new(ErrorKind::Io, "failed flush"));
        }
        self.covered.store(covers, Ordering::Release);
        Ok(())
    }
    fn discard(&self, _: BlockNo, _: u64) -> Result<()> {
        Ok(())
    }
    /// Two rings: the request for a block waits in the ring of its parity until [`Medium::complete`].
    fn submit(&self, _: IoClass, ios: Vec<Io>) {
        for io in ios {
            self.rings[(io.at.0 % 2) as usize].lock().unwrap().push(io);
        }
    }
}

/// Writes block `who` and asks for durability.
fn write_and_flush(who: u64, medium: &Medium, device: &Device) -> Result<()> {
    device.write(IoClass::Data, BlockNo(who), &BLOCK).unwrap();
    let mark = device.mark();
    device.flush_to(mark)?;
    assert!(medium.covered.load(Ordering::Acquire) >> who & 1 == 1, "told durable too early");
    assert!(device.flushed_mark() >= mark);
    Ok(())
}

/// Two rings complete a write each, and the threads that waited for them ask for durability; so does a third.
fn rings_complete_out_of_order(_: usize) {
    let (medium, device) = Medium::device(None);
    let marks: [Arc<AtomicU64>; 2] = Default::default();
    let ios = marks.iter().enumerate().map(|(ring, mark)| {
        let (mark, device) = (mark.clone(), Arc::downgrade(&device));
        let done = Box::new(move |outcome: Result<()>| {
            outcome.unwrap();
            mark.store(device.upgrade().expect("the threads keep it").mark(), Ordering::Release);
        });
        // SAFETY: the model touches no memory.
        let segment = unsafe { Segment::new(BLOCK.as_ptr().cast_mut(), BLOCK.len()) };
        Io { op: IoOp::Write, at: BlockNo(ring as u64), segments: vec![segment], done }
    });
    device.submit(IoClass::Data, ios.collect());
    let rings = marks.map(|mark| (mark, medium.clone(), device.clone())).into_iter().enumerate();
    let rings: Vec<_> = rings
        .map(|(ring, (mark, medium, device))| {
            thread::spawn(move || {
                medium.complete(ring);
                let mark = mark.load(Ordering::Acquire);
                assert!(mark > 1, "its own write is counted");
                device.flush_to(mark).unwrap();
                assert!(medium.covered.load(Ordering::Acquire) >> ring & 1 == 1, "told durable too early");
            })
        })
        .collect();
    write_and_flush(2, &medium, &device).unwrap();
    rings.into_iter().for_each(|ring| ring.join().unwrap());
    assert_eq!(medium.covered.load(Ordering::Acquire), 0b111);
}

fn model(threads: usize, check: impl Fn(usize) + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(if threads > 2 { 2 } else { 4 });
    builder.check(move || check(threads));
}

fn succeeds(threads: usize) {
    let (medium, device) = Medium::device(None);
    let others: Vec<_> = (1..threads)
        .map(|who| {
            let (medium, device) = (medium.clone(), device.clone());
            thread::spawn(move || write_and_flush(who as u64, &medium, &device).unwrap())
        })
        .collect();
    write_and_flush(0, &medium, &device).unwrap();
    others.into_iter().for_each(|other| other.join().unwrap());
    assert_eq!(medium.covered.load(Ordering::Acquire), (1 << threads) - 1);
    assert!(medium.flushes.load(Ordering::Acquire) <= threads);
}

fn fails(threads: usize, failing: usize) {
    let (medium, device) = Medium::device(Some(failing));
    let others: Vec<_> = (1..threads)
        .map(|who| {
            let (medium, device) = (medium.clone(), device.clone());
            thread::spawn(move || write_and_flush(who as u64, &medium, &device))
        })
        .collect();
    let mine = write_and_flush(0, &medium, &device);
    let outcomes: Vec<_> = others.into_iter().map(|other| other.join().unwrap()).chain([mine]).collect();
    let flushes = medium.flushes.load(Ordering::Acquire);
    let failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
    if flushes > failing {
        assert_eq!(flushes, failing + 1, "a flush after the failed one");
        assert!(failed >= 1 && device.failure().is_some());
        assert!(device.write(IoClass::Journal, BlockNo(0), &BLOCK).is_err());
        device.write(IoClass::Data, BlockNo(0), &BLOCK).unwrap();
        assert!(device.flush().is_err());
        assert_eq!(medium.flushes.load(Ordering::Acquire), flushes);
    } else {
        assert_eq!(failed, 0);
    }
}

#[test]
fn two_callers() {
    model(2, succeeds);
}

#[test]
fn three_callers() {
    model(3, succeeds);
}

#[test]
fn two_callers_first_flush_fails() {
    model(2, |threads| fails(threads, 0));
}

#[test]
fn three_callers_second_flush_fails() {
    model(3, |threads| fails(threads, 1));
}

#[test]
fn two_rings_and_a_caller() {
    model(3, rings_complete_out_of_order);
}
