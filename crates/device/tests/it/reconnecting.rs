//! The layer that reconnects, over sessions that the test answers by hand.

use quire_base::{BLOCK_SIZE, BlockNo, Error, ErrorKind, Result};
use quire_device::reconnecting::{Answered, Connector, Failure, Ownership, Properties, Request, Session};
use quire_device::{AlignedBuf, Backend, Io, IoClass, IoOp, ReconnectingBackend, Segment};
use quire_format::owner::OwnerMark;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(20);
const BLOCKS: u64 = 1 << 20;

/// A request as the server got it: the number of its session, and how to answer it.
struct Got {
    session: u32,
    request: Request,
    answered: Answered,
}

impl Got {
    fn accept(self) {
        let bytes = match &self.request {
            Request::Read { length, .. } => Some(AlignedBuf::zeroed(*length)),
            _ => None,
        };
        (self.answered)(Ok(bytes));
    }

    /// Short words: session, kind, block and first byte.
    fn brief(&self) -> String {
        let block = |offset: &u64| offset / BLOCK_SIZE as u64;
        let what = match &self.request {
            Request::Read { offset, .. } => format!("read {}", block(offset)),
            Request::Write { offset, data, .. } => format!("write {} {}", block(offset), data[0]),
            Request::Zeroes { offset, .. } => format!("zero {}", block(offset)),
            Request::Flush => "flush".into(),
            Request::Trim { offset, .. } => format!("trim {}", block(offset)),
        };
        format!("{}: {what}", self.session)
    }
}

#[derive(Clone)]
struct Server {
    got: Sender<Got>,
    connections: Arc<AtomicU32>,
    refuses: Arc<AtomicBool>,
}

struct Connection {
    number: u32,
    server: Server,
    is_closed: Mutex<bool>,
}

fn broken() -> Failure {
    Failure::Broken(Error::new(ErrorKind::Io, "cut"))
}

impl Session for Connection {
    fn submit(&self, request: Request, answered: Answered) {
        if *self.is_closed.lock().unwrap() {
            return answered(Err(broken()));
        }
        let _ = self.server.got.send(Got { session: self.number, request, answered });
    }

    fn blocks(&self) -> u64 {
        BLOCKS
    }

    fn close(&self) {
        *self.is_closed.lock().unwrap() = true;
    }
}

impl Connector for Server {
    fn connect(&self, _limit: Duration) -> Result<Arc<dyn Session>> {
        if self.refuses.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Io, "refused"));
        }
        let number = self.connections.fetch_add(1, Ordering::SeqCst) + 1;
        Ok(Arc::new(Connection { number, server: self.clone(), is_closed: Mutex::new(false) }))
    }
}

struct Bench {
    backend: Arc<ReconnectingBackend>,
    server: Server,
    got: Receiver<Got>,
}

impl Bench {
    fn new(patience: Option<Duration>) -> Bench {
        Bench::owned(patience, None)
    }

    fn owned(patience: Option<Duration>, ownership: Option<Ownership>) -> Bench {
        Bench::with(false, patience, ownership)
    }

    fn with(is_read_only: bool, patience: Option<Duration>, ownership: Option<Ownership>) -> Bench {
        let (sender, got) = channel();
        let server =
            Server { got: sender, connections: Arc::default(), refuses: Arc::new(AtomicBool::new(false)) };
        let session = server.connect(LIMIT).unwrap();
        let properties =
            Properties { name: "server".into(), blocks: BLOCKS, is_read_only, patience, ownership };
        let backend = ReconnectingBackend::new(properties, Box::new(server.clone()), session).unwrap();
        Bench { backend: Arc::new(backend), server, got }
    }

    fn next(&self) -> Got {
        self.got.recv_timeout(LIMIT).expect("a request")
    }

    /// Expects a request and accepts it.
    fn accept(&self, brief: &str) {
        let got = self.next();
        assert_eq!(got.brief(), brief);
        got.accept();
    }

    /// Starts a transfer of blocks full of `byte`; the outcome comes through the channel.
    fn start(&self, op: IoOp, at: u64, blocks: usize, byte: u8) -> Receiver<Result<()>> {
        let (sender, ended) = channel();
        let mut buf = AlignedBuf::blocks(blocks);
        buf.fill(byte);
        // SAFETY: `done` owns the buffer.
        let segments = vec![unsafe { Segment::new(buf.as_mut_ptr(), buf.len()) }];
        let done = Box::new(move |outcome| {
            drop(buf);
            let _ = sender.send(outcome);
        });
        self.backend.submit(IoClass::Data, vec![Io { op, at: BlockNo(at), segments, done }]);
        ended
    }

    fn start_flush(&self) -> Receiver<Result<()>> {
        let (sender, ended) = channel();
        let backend = self.backend.clone();
        std::thread::spawn(move || sender.send(backend.flush()));
        ended
    }

    /// A write that is answered at once.
    fn write(&self, at: u64, byte: u8) {
        let ended = self.start(IoOp::Write, at, 1, byte);
        self.next().accept();
        outcome(&ended).unwrap();
    }

    /// Breaks the connection under a read of block 9, and gives that read's outcome to come.
    fn cut(&self) -> Receiver<Result<()>> {
        let read = self.start(IoOp::Read, 9, 1, 0);
        (self.next().answered)(Err(broken()));
        read
    }
}

fn outcome(ended: &Receiver<Result<()>>) -> Result<()> {
    ended.recv_timeout(LIMIT).expect("an outcome")
}

const PATIENT: Option<Duration> = Some(Duration::from_secs(10));

#[test]
fn a_flush_covers_only_writes_that_had_completed_before_it() {
    let bench = Bench::new(PATIENT);
    bench.write(1, 1);
    let second = bench.start(IoOp::Write, 2, 1, 2);
    let late = bench.next();
    let flush = bench.start_flush();
    bench.accept("1: flush");
    outcome(&flush).unwrap();
    late.accept();
    outcome(&second).unwrap();
    let read = bench.cut();
    // The first write is durable; the second completed after the flush was submitted.
    bench.accept("2: write 2 2");
    bench.accept("2: flush");
    bench.accept("2: read 9");
    outcome(&read).unwrap();
    // Durable by then: nothing is written again after another break.
    let read = bench.cut();
    bench.accept("3: flush");
    bench.accept("3: read 9");
    outcome(&read).unwrap();
}

#[test]
fn a_flush_that_broke_follows_what_it_should_have_covered() {
    let bench = Bench::new(PATIENT);
    bench.write(1, 1);
    let flush = bench.start_flush();
    (bench.next().answered)(Err(broken()));
    bench.accept("2: write 1 1");
    bench.accept("2: flush");
    assert!(flush.try_recv().is_err(), "the caller's flush has not been answered");
    bench.accept("2: flush");
    outcome(&flush).unwrap();
}

#[test]
fn overlapping_writes_are_written_again_one_after_the_other() {
    let bench = Bench::new(PATIENT);
    for byte in 1..=3 {
        bench.write(5, byte);
    }
    let read = bench.cut();
    for byte in 1..=3 {
        let got = bench.next();
        assert_eq!(got.brief(), format!("2: write 5 {byte}"));
        assert!(bench.got.recv_timeout(Duration::from_millis(50)).is_err(), "the next one waits for it");
        got.accept();
    }
    bench.accept("2: flush");
    bench.accept("2: read 9");
    outcome(&read).unwrap();
}

#[test]
fn what_was_in_flight_goes_on_behind_what_is_written_again() {
    let bench = Bench::new(PATIENT);
    bench.write(1, 1);
    let write = bench.start(IoOp::Write, 2, 1, 2);
    let old = bench.next();
    let read = bench.cut();
    bench.accept("2: write 1 1");
    // An answer of the old session is not heard any more.
    old.accept();
    assert!(write.recv_timeout(Duration::from_millis(50)).is_err());
    bench.accept("2: flush");
    bench.accept("2: write 2 2");
    bench.accept("2: read 9");
    outcome(&write).unwrap();
    outcome(&read).unwrap();
}

#[test]
fn a_connection_that_breaks_while_writing_again_is_made_once_more() {
    let bench = Bench::new(PATIENT);
    bench.write(1, 1);
    let read = bench.cut();
    bench.accept("2: write 1 1");
    (bench.next().answered)(Err(broken()));
    bench.accept("3: write 1 1");
    bench.accept("3: flush");
    bench.accept("3: read 9");
    outcome(&read).unwrap();
}

#[test]
fn without_reconnecting_the_first_break_is_the_end() {
    let bench = Bench::new(None);
    bench.write(1, 1);
    let write = bench.start(IoOp::Write, 2, 1, 2);
    drop(bench.next());
    let error = outcome(&bench.cut()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("reconnect=SECONDS"), "{error}");
    assert!(error.to_string().contains("mount again"), "{error}");
    outcome(&write).unwrap_err();
    let start = Instant::now();
    let mut buf = AlignedBuf::blocks(1);
    bench.backend.read(IoClass::Data, BlockNo(3), &mut buf).unwrap_err();
    bench.backend.write(IoClass::Data, BlockNo(3), &buf).unwrap_err();
    bench.backend.flush().unwrap_err();
    bench.backend.discard(BlockNo(3), 1).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(1), "each fails at once");
}

#[test]
fn patience_ends() {
    let bench = Bench::new(Some(Duration::from_millis(300)));
    bench.write(1, 1);
    bench.server.refuses.store(true, Ordering::SeqCst);
    let start = Instant::now();
    let error = outcome(&bench.cut()).unwrap_err();
    assert!(error.to_string().contains("could not be made again"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    bench.backend.flush().unwrap_err();
}

#[test]
fn a_server_that_refuses_what_is_written_again_ends_the_device() {
    let bench = Bench::new(PATIENT);
    bench.write(1, 1);
    let read = bench.cut();
    (bench.next().answered)(Err(Failure::Refused(Error::new(ErrorKind::NoSpace, "full"))));
    let error = outcome(&read).unwrap_err();
    assert!(error.to_string().contains("could not be written again: full"), "{error}");
}

#[test]
fn a_failed_flush_ends_changes_but_not_reads() {
    let bench = Bench::new(PATIENT);
    bench.write(1, 1);
    let flush = bench.start_flush();
    (bench.next().answered)(Err(Failure::Refused(Error::new(ErrorKind::Io, "bad medium"))));
    outcome(&flush).unwrap_err();
    outcome(&bench.start(IoOp::Write, 2, 1, 2)).unwrap_err();
    let read = bench.start(IoOp::Read, 1, 1, 0);
    bench.accept("1: read 1");
    outcome(&read).unwrap();
}

/// The layer's own flush and the volume's were under way together. The server told the error of its disk to
/// one of them, as Linux does, and the other one counted: an fsync returned, and what it covered was lost.
#[test]
fn a_flush_beside_one_that_fails_does_not_count() {
    let bench = Bench::new(PATIENT);
    bench.write(3, 1);
    let (first, second) = (bench.start_flush(), bench.start_flush());
    let flush = bench.next();
    assert_eq!(flush.brief(), "1: flush");
    // What comes behind is not held up.
    let read = bench.start(IoOp::Read, 3, 1, 0);
    bench.accept("1: read 3");
    outcome(&read).unwrap();
    (flush.answered)(Err(Failure::Refused(Error::new(ErrorKind::Io, "bad medium"))));
    assert!(outcome(&first).is_err() && outcome(&second).is_err());
}

/// Nobody flushes, and 200 MiB are written: what is kept stays within its limit.
#[test]
fn it_flushes_by_itself_before_too_much_is_kept() {
    const PIECE: usize = 1024;
    let Bench { backend, server, got } = Bench::new(PATIENT);
    let answering = std::thread::spawn(move || {
        let (mut unflushed, mut most, mut flushes) = (0, 0, 0);
        while let Ok(next) = got.recv_timeout(LIMIT) {
            match &next.request {
                Request::Write { data, .. } => unflushed += data.len(),
                Request::Flush => {
                    flushes += 1;
                    most = most.max(std::mem::take(&mut unflushed));
                }
                Request::Trim { .. } => {
                    next.accept();
                    break;
                }
                _ => {}
            }
            next.accept();
        }
        (most, flushes)
    });
    let buf = vec![1; PIECE * BLOCK_SIZE];
    for piece in 0..50 {
        backend.write(IoClass::Data, BlockNo(piece * PIECE as u64), &buf).unwrap();
    }
    backend.discard(BlockNo(0), 1).unwrap();
    let (most, flushes) = answering.join().unwrap();
    assert!(flushes >= 3 && most <= 64 << 20, "{flushes} flushes, {most} bytes before one");
    drop((backend, server));
}

#[test]
fn zeros_travel_without_themselves() {
    let bench = Bench::new(PATIENT);
    let write = bench.start(IoOp::Write, 7, 32, 0);
    bench.accept("1: zero 7");
    outcome(&write).unwrap();
    let read = bench.cut();
    bench.accept("2: zero 7");
    bench.accept("2: flush");
    bench.accept("2: read 9");
    outcome(&read).unwrap();
}

#[test]
fn dropping_ends_what_is_under_way_first() {
    let Bench { backend, server: _server, got } = Bench::new(PATIENT);
    let (sender, ended) = channel();
    let caller = backend.clone();
    std::thread::spawn(move || sender.send(caller.flush()));
    let flush = got.recv_timeout(LIMIT).unwrap();
    let dropping = std::thread::spawn(move || drop(backend));
    flush.accept();
    outcome(&ended).unwrap();
    let start = Instant::now();
    while !dropping.is_finished() {
        assert!(start.elapsed() < LIMIT, "the drop does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn ownership(interval: Duration) -> Ownership {
    let mark = OwnerMark { owner: 1, beat: 1, ..OwnerMark::default() };
    Ownership { mark, written: quire_base::Uptime::now(), interval, sure: 2 * LIMIT }
}

impl Got {
    /// Answers a read of the mark's block.
    fn show(self, mark: Option<u64>) {
        assert_eq!(self.brief(), format!("{}: read 1", self.session));
        let mut block = AlignedBuf::blocks(1);
        if let Some(owner) = mark {
            let host = "elsewhere".into();
            block.copy_from_slice(&OwnerMark { owner, host, ..OwnerMark::default() }.encode());
        }
        (self.answered)(Ok(Some(block)));
    }

    fn is_of_mark(&self) -> bool {
        match &self.request {
            Request::Read { offset, .. } | Request::Write { offset, .. } => *offset == 4096,
            _ => false,
        }
    }

    fn cut(self) {
        (self.answered)(Err(broken()));
    }
}

impl Bench {
    /// Drops the backend of an owner, and answers everything meanwhile.
    fn end(self) {
        let Bench { backend, server, got } = self;
        drop(server);
        let ending = std::thread::spawn(move || drop(backend));
        while let Ok(next) = got.recv_timeout(LIMIT) {
            match &next.request {
                Request::Read { .. } if next.is_of_mark() => next.show(Some(1)),
                _ => next.accept(),
            }
        }
        ending.join().unwrap();
    }
}

/// An owner that was cut off, superseded, and admitted again wrote what it had kept over the new owner's
/// data.
#[test]
fn a_superseded_owner_writes_nothing_over_a_new_connection() {
    for newer in [Some(2), None] {
        let bench = Bench::owned(Some(LIMIT), Some(ownership(LIMIT)));
        bench.write(7, 70);
        let flushed = bench.start_flush();
        bench.next().cut();
        bench.next().show(newer);
        let error = outcome(&flushed).unwrap_err();
        let wanted = if newer.is_some() { "on elsewhere" } else { "another process" };
        assert!(error.to_string().contains(wanted), "{error}");
        let refused = bench.start(IoOp::Write, 9, 1, 90);
        assert!(outcome(&refused).is_err());
        drop(bench.backend);
        assert!(bench.got.try_iter().next().is_none(), "nothing is sent any more");
    }
}

/// A machine was suspended for longer than others wait for its owner's beat. When it went on, programs wrote
/// over the connection that was still there before the thread that counts the time ran, and the clock that it
/// counted by had stood still.
#[test]
fn an_owner_that_is_not_sure_any_more_sends_nothing() {
    for _ in 0..50 {
        // Nor does it send the next beat.
        let over = Ownership { sure: Duration::ZERO, ..ownership(Duration::ZERO) };
        let bench = Bench::owned(Some(LIMIT), Some(over));
        let error = outcome(&bench.start(IoOp::Write, 9, 1, 90)).unwrap_err();
        assert!(error.to_string().contains("may take the volume over"), "{error}");
        drop(bench.backend);
        assert!(bench.got.try_iter().next().is_none(), "nothing is sent");
    }
}

#[test]
fn an_owner_that_is_still_the_owner_goes_on() {
    let bench = Bench::owned(Some(LIMIT), Some(ownership(LIMIT)));
    bench.write(7, 70);
    let flushed = bench.start_flush();
    bench.next().cut();
    bench.next().show(Some(1));
    for brief in ["2: write 7 70", "2: flush", "2: flush"] {
        bench.accept(brief);
    }
    outcome(&flushed).unwrap();
    // In the end the mark goes, durably.
    let Bench { backend, got, .. } = bench;
    let ending = std::thread::spawn(move || drop(backend));
    got.recv_timeout(LIMIT).unwrap().show(Some(1));
    for brief in ["2: write 1 0", "2: flush"] {
        let next = got.recv_timeout(LIMIT).unwrap();
        assert_eq!(next.brief(), brief);
        next.accept();
    }
    ending.join().unwrap();
}

/// A stopped owner that goes on over a connection that still stands finds the new owner's mark at its next
/// beat.
#[test]
fn a_beat_raises_the_mark_or_ends_the_owner() {
    let bench = Bench::owned(None, Some(ownership(Duration::from_millis(1))));
    for beat in 2..5 {
        bench.next().show(Some(1));
        let got = bench.next();
        let Request::Write { offset: 4096, data, .. } = &got.request else { panic!("{}", got.brief()) };
        let mark = OwnerMark::decode(data[..].try_into().unwrap()).unwrap().unwrap();
        assert_eq!((mark.owner, mark.beat), (1, beat));
        got.accept();
    }
    bench.next().show(Some(2));
    let start = Instant::now();
    let error = loop {
        let ended = bench.start(IoOp::Read, 3, 1, 0);
        match ended.recv_timeout(Duration::from_millis(20)) {
            Ok(outcome) => break outcome.unwrap_err(),
            // It came to the server before the owner had learnt it.
            Err(_) => assert!(start.elapsed() < LIMIT),
        }
    };
    assert!(error.to_string().contains("has taken the volume over"), "{error}");
}

/// Beats were kept until the next flush, like any write. A volume that was idle for a night had thousands of
/// them, all over the same block. A new connection had to carry them one after the other, and the time for
/// reconnecting was over first.
#[test]
fn beats_are_not_written_again() {
    let bench = Bench::owned(Some(LIMIT), Some(ownership(Duration::from_millis(1))));
    let write = bench.start(IoOp::Write, 7, 1, 70);
    let mut beats = 0;
    while beats < 4 {
        match bench.next() {
            got if matches!(got.request, Request::Read { .. }) => got.show(Some(1)),
            got => {
                beats += u32::from(got.is_of_mark());
                got.accept();
            }
        }
    }
    outcome(&write).unwrap();
    bench.next().cut();
    bench.next().show(Some(1));
    for brief in ["2: write 7 70", "2: flush"] {
        bench.accept(brief);
    }
    bench.end();
}

/// A beat waited for room in memory and then behind all requests that waited for the server. It was late by
/// any time, and another machine took the volume of an owner that worked.
#[test]
fn a_beat_goes_before_everything_that_waits() {
    let bench = Bench::owned(Some(LIMIT), Some(ownership(Duration::from_millis(100))));
    let writes: Vec<_> = (0..260).map(|number| bench.start(IoOp::Write, 1000 + 64 * number, 63, 1)).collect();
    let backend = bench.backend.clone();
    // It finds no memory.
    let last = std::thread::spawn(move || backend.write(IoClass::Data, BlockNo(500), &[1; 64 * BLOCK_SIZE]));
    let (mut unanswered, mut beats) = (Vec::new(), 0);
    while unanswered.len() < 256 || beats < 2 {
        match bench.next() {
            got if !got.is_of_mark() => unanswered.push(got),
            got if matches!(got.request, Request::Read { .. }) => got.show(Some(1)),
            got => {
                got.accept();
                beats += u32::from(unanswered.len() == 256);
            }
        }
    }
    assert_eq!(unanswered.len(), 256, "what waits is still waiting");
    unanswered.into_iter().for_each(Got::accept);
    bench.end();
    writes.iter().for_each(|ended| outcome(ended).unwrap());
    last.join().unwrap().unwrap();
}

/// An owner went on whose beats did not succeed, while others took it for gone after a time.
#[test]
fn an_owner_whose_beat_stands_still_ends_by_itself() {
    let sure = Duration::from_millis(400);
    for (patience, is_answered) in [(None, false), (Some(LIMIT), false), (Some(LIMIT), true)] {
        let start = Instant::now();
        let bench = Bench::owned(patience, Some(Ownership { sure, ..ownership(Duration::from_millis(50)) }));
        let write = bench.start(IoOp::Write, 9, 1, 90);
        let error = loop {
            match bench.got.recv_timeout(Duration::from_millis(10)) {
                // A device that does not let the mark be read.
                Ok(got) if is_answered => {
                    (got.answered)(Err(Failure::Refused(Error::new(ErrorKind::Io, "bad medium"))));
                }
                Ok(got) => std::mem::forget(got.answered),
                Err(_) => {}
            }
            let ended = bench.start(IoOp::Read, 3, 1, 0);
            match ended.recv_timeout(Duration::from_millis(10)) {
                Ok(Err(error)) if error.to_string().contains("owner's mark") => break error,
                _ => assert!(start.elapsed() < LIMIT, "it goes on"),
            }
        };
        assert!(error.to_string().contains("could not be raised"), "{error}");
        assert!(start.elapsed() >= sure, "{:?}", start.elapsed());
        assert!(outcome(&write).is_err());
    }
    // Nor does it reconnect for longer.
    let bench = Bench::owned(Some(LIMIT), Some(Ownership { sure, ..ownership(LIMIT) }));
    bench.server.refuses.store(true, Ordering::SeqCst);
    let error = outcome(&bench.cut()).unwrap_err();
    assert!(error.to_string().contains("could not be raised"), "{error}");
}

/// One look at the mark that failed after a connection was made again ended the device, though the beat puts
/// up with it.
#[test]
fn a_mark_that_cannot_be_read_once_ends_nothing() {
    let bench = Bench::owned(Some(LIMIT), Some(ownership(LIMIT)));
    let read = bench.cut();
    let got = bench.next();
    assert_eq!(got.brief(), "2: read 1");
    (got.answered)(Err(Failure::Refused(Error::new(ErrorKind::Io, "bad medium"))));
    bench.next().show(Some(1));
    for brief in ["3: flush", "3: read 9"] {
        bench.accept(brief);
    }
    outcome(&read).unwrap();
    bench.end();
}

/// A server that only reads need not offer flushes, and refuses them then. The flush behind each new
/// connection was refused, which ended the device, though nothing had been written.
#[test]
fn what_is_only_read_is_not_flushed() {
    let bench = Bench::with(true, PATIENT, None);
    let read = bench.cut();
    bench.accept("2: read 9");
    outcome(&read).unwrap();
}

/// After a failed flush the mark stayed on the device when its owner let go of it. A standby waited until the
/// beat had stood still for minutes.
#[test]
fn a_failed_flush_does_not_keep_the_mark() {
    let bench = Bench::owned(PATIENT, Some(ownership(LIMIT)));
    let flush = bench.start_flush();
    (bench.next().answered)(Err(Failure::Refused(Error::new(ErrorKind::Io, "bad medium"))));
    outcome(&flush).unwrap_err();
    let Bench { backend, got, .. } = bench;
    let ending = std::thread::spawn(move || drop(backend));
    got.recv_timeout(LIMIT).unwrap().show(Some(1));
    for brief in ["1: write 1 0", "1: flush"] {
        let next = got.recv_timeout(LIMIT).expect(brief);
        assert_eq!(next.brief(), brief);
        next.accept();
    }
    ending.join().unwrap();
}
