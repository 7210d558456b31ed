//! A block device over an image file that can lose its power.
//!
//! ```text
//!   read                    newest held version of each block, else the file
//!   submit(writes) -> held -> device thread: completes them in seeded order, after seeded pauses
//!   flush                   destages every write that had completed when it was called, in seeded order
//!   cut                     at the next moment that the seed likes: puts what it lets survive into the file, ends
//!                           the process
//! ```
//!
//! Moments: at once; when about as many writes are held as ever during one of the times in `WATCH`, since
//! otherwise most cuts would find next to nothing held; or in the middle of a flush of about the largest
//! size. After `MOMENT_PATIENCE` times that long any will do.
//!
//! Protocol of the cut: under the lock of the state, which is never released again, the *power file* says
//! "0", then the file gets its last bytes. So a program that reads "1" there after its commit returned knows
//! that the commit returned while the power was on; whatever it is told later is the error of a machine that
//! no longer exists.
//!
//! Invariants: only destaged bytes are in the file (in the page cache of the host, which outlives this
//! process: the cut is simulated, the host is not); at most `HELD_BYTES_MAX` are held beyond what is in
//! flight.
//!
//! Two devices *lie*, so that the checks can be seen to fail: flushes return at once and do nothing. One
//! leaves chaos at a cut, the other an orderly state of the past, which no structure contradicts and only
//! ledgers can tell.
//!
//! Neighbours: [`crate::cache`] is the state; [`crate::serve`] puts a volume and a mount on top.

use crate::cache::{Fates, Medium, WriteCache};
use quire_base::random::Random;
use quire_base::sync::{Arc, Condvar, Mutex, MutexGuard, thread};
use quire_base::{BLOCK_SIZE, BlockNo, Error, ErrorKind, Result};
use quire_device::backend::Done;
use quire_device::{Backend, Io, IoClass, IoOp, Segment};
use rustix::fs::FlockOperation;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// Bytes that the cache holds before it makes room; about what a drive has.
const HELD_BYTES_MAX: usize = 32 << 20;

/// How long a cut looks at what is usual before it chooses its moment: short, or long enough for a database's
/// checkpoint to be among it.
const WATCH: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(1200)];
/// It waits so many times longer for the moment that the seed chose.
const MOMENT_PATIENCE: u32 = 3;

/// What a flush is worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Honesty {
    /// What completed before it is safe.
    #[default]
    Honest,
    /// Nothing: a cut leaves any part of what was written.
    Lies,
    /// Nothing, but writes reach the medium in order: a cut leaves what was there some time ago.
    LiesInOrder,
}

impl Honesty {
    /// The option of the program that asks for it.
    pub fn flag(self) -> Option<&'static str> {
        match self {
            Honesty::Honest => None,
            Honesty::Lies => Some("--lies"),
            Honesty::LiesInOrder => Some("--lies-in-order"),
        }
    }
}

/// How the device behaves.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    /// Decides orders, pauses, whims and what a cut leaves.
    pub seed: u64,
    /// What its flushes are worth.
    pub honesty: Honesty,
}

/// When an ordered cut comes.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// When so many writes are held.
    Held(usize),
    /// When a flush that covers so many has destaged some of them.
    InFlush(usize),
}

/// The most that was seen of late.
#[derive(Clone, Copy, Debug, Default)]
struct Peaks {
    held: usize,
    covered: usize,
}

/// How the world is told of a cut.
pub struct LastWords {
    /// The power file.
    pub power: File,
    /// Says what became of the held writes; afterwards the process ends.
    pub say: fn(std::io::Result<Fates>),
}

struct State {
    cache: WriteCache,
    random: Random,
    /// Writes whose completion the device thread has yet to tell.
    queue: Vec<(u64, Done)>,
    is_closing: bool,
    /// A cut was ordered for then.
    cut_at: Option<Moment>,
    peaks: Peaks,
}

struct Shared {
    file: ImageFile,
    state: Mutex<State>,
    /// Signalled when the queue gets something, or at the end.
    submitted: Condvar,
    pace: Pace,
    honesty: Honesty,
    last_words: LastWords,
}

/// What the seed makes of this device, drawn once.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Longest pause before a batch of completions, microseconds.
    completion_micros: u64,
    /// Longest pause at the start of a flush, microseconds.
    flush_micros: u64,
    /// One in so many writes makes the device destage something on its own; 0 never.
    whim: u64,
}

impl Pace {
    fn draw(random: &mut Random) -> Pace {
        let mut pick = |choices: &[u64]| choices[random.below(choices.len() as u64) as usize];
        Pace {
            completion_micros: pick(&[0, 0, 100, 500]),
            flush_micros: pick(&[0, 200, 1000, 3000]),
            whim: pick(&[0, 500, 50, 5]),
        }
    }
}

/// See the module's documentation.
pub struct PowerCutBackend {
    shared: Arc<Shared>,
    name: String,
    blocks: u64,
    worker: Option<thread::JoinHandle<()>>,
}

/// Ends the process without a destructor, a handler or another request served.
pub fn end_at_once() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}

struct ImageFile(File);

impl Medium for ImageFile {
    fn read(&self, at: u64, block: &mut [u8]) -> std::io::Result<()> {
        self.0.read_exact_at(block, BlockNo(at).byte_offset())
    }

    fn write(&self, at: u64, blocks: &[u8]) -> std::io::Result<()> {
        self.0.write_all_at(blocks, BlockNo(at).byte_offset())
    }
}

impl PowerCutBackend {
    /// Opens and locks the image file at `path`; all that is in it is safe.
    pub fn open(path: &Path, behaviour: Behaviour, last_words: LastWords) -> Result<PowerCutBackend> {
        let name = path.display().to_string();
        let failed = |error: &std::io::Error| Error::os(format_args!("opening {name}"), error);
        let file = File::options().read(true).write(true).open(path).map_err(|error| failed(&error))?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| Error::new(ErrorKind::Busy, format!("{name} is open by another process")))?;
        let blocks = file.metadata().map_err(|error| failed(&error))?.len() / BLOCK_SIZE as u64;
        let mut random = Random::seeded(behaviour.seed);
        let pace = Pace::draw(&mut random);
        tracing::info!(?behaviour, ?pace, "a device that can lose its power");
        let cache = WriteCache::new(behaviour.honesty == Honesty::LiesInOrder);
        let state = State {
            cache,
            random,
            queue: Vec::new(),
            is_closing: false,
            cut_at: None,
            peaks: Peaks::default(),
        };
        let shared = Arc::new(Shared {
            file: ImageFile(file),
            state: Mutex::new(state),
            submitted: Condvar::new(),
            pace,
            honesty: behaviour.honesty,
            last_words,
        });
        let worker = {
            let shared = shared.clone();
            thread::Builder::new()
                .name("powercut-device".into())
                .spawn(move || complete_writes(&shared))
                .map_err(|error| Error::os("starting the device's thread", &error))?
        };
        Ok(PowerCutBackend { shared, name, blocks, worker: Some(worker) })
    }

    /// Cuts the power at the next moment that the seed likes. From then on nothing reaches the file but what
    /// the seed lets survive. The process ends.
    pub fn cut(&self) -> ! {
        let mut state = self.shared.state.lock();
        let choice = state.random.below(5);
        if choice > 0 {
            state.peaks = Peaks::default();
            let watch = WATCH[state.random.below(2) as usize];
            drop(state);
            thread::sleep(watch);
            state = self.shared.state.lock();
            let peaks = state.peaks;
            let part = 8 - state.random.below(7) as usize;
            state.cut_at = Some(match choice {
                1..3 => Moment::Held((peaks.held * part / 8).max(1)),
                _ => Moment::InFlush((peaks.covered * part / 8).max(1)),
            });
            drop(state);
            thread::sleep(watch * MOMENT_PATIENCE);
            state = self.shared.state.lock();
        }
        self.shared.cut_now(&mut state)
    }

    /// After an orderly close: what was not flushed by now is lost, and should be nothing. Returns the number
    /// of such writes.
    pub fn lose_unflushed(&self) -> u64 {
        self.shared.state.lock().cache.lose_all()
    }

    fn check(&self, doing: &str, at: BlockNo, bytes: u64) -> Result<()> {
        let count = bytes / BLOCK_SIZE as u64;
        if bytes == 0 || !bytes.is_multiple_of(BLOCK_SIZE as u64) {
            return Err(Error::invalid(format!("{doing} {bytes} bytes of {}: not whole blocks", self.name)));
        }
        if at.0.checked_add(count).is_none_or(|end| end > self.blocks) {
            return Err(Error::corrupt(format!(
                "{doing} {count} blocks at {at} of {}: past its end",
                self.name
            )));
        }
        Ok(())
    }

    fn fill(&self, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        let shared = &*self.shared;
        let mut missing = Vec::new();
        {
            let state = shared.state.lock();
            for (block, bytes) in (at.0..).zip(buf.chunks_exact_mut(BLOCK_SIZE)) {
                match state.cache.newest(block) {
                    Some(newest) => bytes.copy_from_slice(newest),
                    None => missing.push(block),
                }
            }
        }
        // What is not held now is in the file, and nobody writes a block while somebody else reads it.
        for run in missing.chunk_by(|left, right| left + 1 == *right) {
            let start = (run[0] - at.0) as usize * BLOCK_SIZE;
            let bytes = &mut buf[start..start + run.len() * BLOCK_SIZE];
            shared
                .file
                .read(run[0], bytes)
                .map_err(|error| Error::os(format_args!("reading {}", self.name), &error))?;
        }
        Ok(())
    }

    fn failed(&self, doing: &str, error: &std::io::Error) -> Error {
        Error::os(format_args!("{doing} {}", self.name), error)
    }
}

impl Shared {
    /// Holds a write, after the whims that it provokes and the room it needs.
    fn hold(&self, state: &mut State, at: BlockNo, data: Vec<u8>) -> std::io::Result<u64> {
        if self.pace.whim > 0 && state.random.one_in(self.pace.whim) {
            state.cache.destage_any(&mut state.random, &self.file)?;
        }
        state.peaks.held = state.peaks.held.max(state.cache.len());
        if let Some(Moment::Held(count)) = state.cut_at
            && state.cache.len() >= count
        {
            self.cut_now(state);
        }
        while state.cache.bytes() + data.len() > HELD_BYTES_MAX
            && state.cache.destage_any(&mut state.random, &self.file)?
        {}
        Ok(state.cache.submit(at.0, data))
    }

    /// Never returns, so the caller's lock is never let go.
    fn cut_now(&self, state: &mut State) -> ! {
        let outcome = self
            .last_words
            .power
            .write_all_at(b"0", 0)
            .and_then(|()| state.cache.cut(&mut state.random, &self.file));
        (self.last_words.say)(outcome);
        end_at_once()
    }

    fn pause(&self, state: MutexGuard<'_, State>, micros_max: u64) {
        let mut state = state;
        if micros_max == 0 || state.random.one_in(2) {
            return;
        }
        let micros = state.random.below(micros_max);
        drop(state);
        thread::sleep(Duration::from_micros(micros));
    }
}

/// The device's thread: completes submitted writes, in an order of its own.
fn complete_writes(shared: &Shared) {
    loop {
        let mut state = shared.state.lock();
        while state.queue.is_empty() {
            if state.is_closing {
                return;
            }
            shared.submitted.wait(&mut state);
        }
        shared.pause(state, shared.pace.completion_micros);
        let mut state = shared.state.lock();
        let mut batch = std::mem::take(&mut state.queue);
        shuffle(&mut batch, &mut state.random);
        drop(state);
        for (id, done) in batch {
            shared.state.lock().cache.complete(id);
            done(Ok(()));
        }
    }
}

fn shuffle<T>(items: &mut [T], random: &mut Random) {
    for last in (1..items.len()).rev() {
        items.swap(last, random.below(last as u64 + 1) as usize);
    }
}

/// Copies the memory of a request.
///
/// # Safety
/// The segments are valid until this returns.
unsafe fn capture(segments: &[Segment]) -> Vec<u8> {
    let mut data = Vec::with_capacity(segments.iter().map(Segment::len).sum());
    for segment in segments {
        // SAFETY: the caller's promise; a write's memory is only read.
        data.extend_from_slice(unsafe { std::slice::from_raw_parts(segment.ptr(), segment.len()) });
    }
    data
}

impl Backend for PowerCutBackend {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, _class: IoClass, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        self.check("reading", at, buf.len() as u64)?;
        self.fill(at, buf)
    }

    fn write(&self, _class: IoClass, at: BlockNo, buf: &[u8]) -> Result<()> {
        self.check("writing", at, buf.len() as u64)?;
        let mut guard = self.shared.state.lock();
        let id =
            self.shared.hold(&mut guard, at, buf.to_vec()).map_err(|error| self.failed("writing", &error))?;
        self.shared.pause(guard, self.shared.pace.completion_micros);
        self.shared.state.lock().cache.complete(id);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        if self.shared.honesty != Honesty::Honest {
            return Ok(());
        }
        let state = self.shared.state.lock();
        let mut covered = state.cache.completed();
        self.shared.pause(state, self.shared.pace.flush_micros);
        shuffle(&mut covered, &mut self.shared.state.lock().random);
        let count = covered.len();
        for (done, id) in covered.into_iter().enumerate() {
            // One lock for each write, so that a cut can come between them.
            let mut state = self.shared.state.lock();
            state.peaks.covered = state.peaks.covered.max(count);
            if let Some(Moment::InFlush(least)) = state.cut_at
                && count >= least
                && state.random.one_in(count as u64 - done as u64)
            {
                self.shared.cut_now(&mut state);
            }
            let outcome = state.cache.destage(id, &self.shared.file);
            drop(state);
            outcome.map_err(|error| self.failed("flushing", &error))?;
        }
        Ok(())
    }

    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        // A medium that cannot.
        self.check("discarding", at, count.saturating_mul(BLOCK_SIZE as u64))
    }

    fn submit(&self, _class: IoClass, ios: Vec<Io>) {
        for io in ios {
            if let Err(error) = self.check(io.op.doing_what(), io.at, io.bytes()) {
                (io.done)(Err(error));
                continue;
            }
            match io.op {
                IoOp::Read => {
                    let mut data = vec![0; io.bytes() as usize];
                    let outcome = self.fill(io.at, &mut data);
                    let mut rest = &data[..];
                    for segment in &io.segments {
                        let (part, after) = rest.split_at(segment.len());
                        // SAFETY: `done` has not run, so the segment is valid and nobody relies on its bytes.
                        unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), segment.ptr(), part.len()) };
                        rest = after;
                    }
                    (io.done)(outcome);
                }
                IoOp::Write => {
                    // SAFETY: `done` has not run, so the segments are valid and unchanging.
                    let data = unsafe { capture(&io.segments) };
                    let mut state = self.shared.state.lock();
                    match self.shared.hold(&mut state, io.at, data) {
                        Ok(id) => {
                            state.queue.push((id, io.done));
                            self.shared.submitted.notify_one();
                        }
                        Err(error) => {
                            drop(state);
                            (io.done)(Err(self.failed("writing", &error)));
                        }
                    }
                }
            }
        }
    }
}

/// Words for messages.
trait Doing {
    fn doing_what(&self) -> &'static str;
}

impl Doing for IoOp {
    fn doing_what(&self) -> &'static str {
        match self {
            IoOp::Read => "reading",
            IoOp::Write => "writing",
        }
    }
}

impl Drop for PowerCutBackend {
    fn drop(&mut self) {
        self.shared.state.lock().is_closing = true;
        self.shared.submitted.notify_all();
        if let Some(worker) = self.worker.take() {
            // Only this handle can be the last, and the device's thread holds none.
            let _ = worker.join();
        }
    }
}
