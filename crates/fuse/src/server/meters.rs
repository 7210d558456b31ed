//! What a mount serves: requests, bytes and times by kind of work, and the busiest files.
//!
//! An exchange is timed from the moment it was received to its reply ([`Received`]), so that waiting for a
//! thread counts. Everything is sharded by thread; a thread looks at its own lines only. Which files are busy
//! is known from every [`SAMPLE`]th request of a thread: each shard keeps the [`PLACES`] files with the
//! highest counts, and a newcomer takes the place and the count of the lowest (space-saving; Metwally,
//! Agrawal, El Abbadi, ICDT 2005). How much of its count it has taken over is remembered: what a file did
//! between two readings is the growth of the rest.
//!
//! There is one set of meters in a process, which serves one mount as a rule: so a request need not hold on
//! to it, and no count of references is a line that all threads write.
//!
//! Neighbours: `server` wraps what it receives; front ends read [`meters`].

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{LazyLock, Weak};
use std::time::Instant;

use quire_base::metrics::{Counter, Histogram, Times};
use quire_base::shard::{self, SHARDS};
use quire_base::sync::{Arc, Mutex};

use crate::operations::kept::Kept;
use crate::protocol::request::{Message, Operation, Request};
use crate::transport::{Exchange, Outcome};

/// One request in so many is looked at for the file that it is for; a prime, so that no rhythm of requests
/// hides one.
const SAMPLE: u32 = 13;
/// Files that a shard remembers.
const PLACES: usize = 32;
/// The busiest files that a reading names.
const NAMED: usize = 10;

/// Kinds of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Contents read.
    Read,
    /// Contents written.
    Write,
    /// fsync, fdatasync and their like.
    Sync,
    /// Names, attributes and all else.
    Other,
}

impl Work {
    /// All kinds.
    pub const ALL: [Work; 4] = [Work::Read, Work::Write, Work::Sync, Work::Other];

    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Work::Read => "read",
            Work::Write => "write",
            Work::Sync => "sync",
            Work::Other => "other",
        }
    }
}

#[derive(Default)]
struct Meter {
    requests: Counter,
    bytes: Counter,
    nanos: Counter,
    times: Histogram,
}

/// A file's part in a shard's sample.
#[derive(Clone, Copy, Default)]
struct Place {
    node: u64,
    /// With those that were taken over.
    requests: u64,
    taken_over: u64,
    bytes: u64,
}

#[derive(Default)]
#[repr(align(64))]
struct Places(Mutex<Vec<Place>>);

/// See the module's documentation.
pub struct Meters {
    meters: [Meter; Work::ALL.len()],
    places: [Places; SHARDS],
    kept: Mutex<Vec<Weak<Kept>>>,
}

/// A reading of one kind of work.
#[derive(Clone, Debug)]
pub struct Served {
    /// Which.
    pub work: Work,
    /// Requests answered.
    pub requests: u64,
    /// Bytes read or written.
    pub bytes: u64,
    /// How long they took together.
    pub nanos: u64,
    /// How long each took.
    pub times: Times,
}

/// A busy file, as the sample has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyFile {
    /// Inode number.
    pub inode: u64,
    /// Requests, about.
    pub requests: u64,
    /// Bytes, about.
    pub bytes: u64,
}

thread_local! {
    static UNTIL_SAMPLE: Cell<u32> = const { Cell::new(1) };
}

/// What this process has served.
pub fn meters() -> &'static Meters {
    static METERS: LazyLock<Meters> = LazyLock::new(Meters::default);
    &METERS
}

impl Default for Meters {
    fn default() -> Meters {
        Meters {
            meters: Default::default(),
            places: std::array::from_fn(|_| Places::default()),
            kept: Mutex::default(),
        }
    }
}

impl Meters {
    /// Has [`Meters::serialised_files`] ask there.
    pub(crate) fn watch(&self, kept: &Arc<Kept>) {
        self.kept.lock().push(Arc::downgrade(kept));
    }

    /// Files that somebody writes while the kernel keeps pages of them for a reader: it lets in one writer at
    /// a time.
    pub fn serialised_files(&self) -> u64 {
        self.kept.lock().iter().filter_map(Weak::upgrade).map(|kept| kept.serialised()).sum()
    }

    fn note(&self, work: Work, node: u64, bytes: u64, nanos: u64) {
        let meter = &self.meters[work as usize];
        meter.requests.add(1);
        meter.bytes.add(bytes);
        meter.nanos.add(nanos);
        meter.times.note(nanos);
        let sampled = UNTIL_SAMPLE.with(|left| {
            left.set(left.get() - 1);
            left.get() == 0 && {
                left.set(SAMPLE);
                true
            }
        });
        if sampled {
            self.sample(node, bytes);
        }
    }

    fn sample(&self, node: u64, bytes: u64) {
        let mut places = self.places[shard::current()].0.lock();
        if !places.iter().any(|place| place.node == node) {
            if places.len() < PLACES {
                places.push(Place { node, ..Place::default() });
            } else if let Some(lowest) = places.iter_mut().min_by_key(|place| place.requests) {
                let requests = lowest.requests;
                *lowest = Place { node, requests, taken_over: requests, bytes: 0 };
            }
        }
        if let Some(place) = places.iter_mut().find(|place| place.node == node) {
            place.requests += u64::from(SAMPLE);
            place.bytes += bytes * u64::from(SAMPLE);
        }
    }

    /// What was served so far.
    pub fn read(&self) -> Vec<Served> {
        let served = |work: Work| {
            let meter = &self.meters[work as usize];
            Served {
                work,
                requests: meter.requests.get(),
                bytes: meter.bytes.get(),
                nanos: meter.nanos.get(),
                times: meter.times.read(),
            }
        };
        Work::ALL.map(served).into()
    }

    /// The busiest files so far, the one with the most requests first.
    pub fn busiest(&self) -> Vec<BusyFile> {
        let mut files = self.files(|place| place.requests);
        files.sort_by_key(|file| (std::cmp::Reverse(file.requests), file.inode));
        files.truncate(NAMED);
        files
    }

    /// All files in the sample, with what each did since it last came in.
    pub fn sampled(&self) -> Vec<BusyFile> {
        self.files(|place| place.requests - place.taken_over)
    }

    fn files(&self, requests: impl Fn(&Place) -> u64) -> Vec<BusyFile> {
        let mut files: BTreeMap<u64, BusyFile> = BTreeMap::new();
        for places in &self.places {
            for place in places.0.lock().iter() {
                let file =
                    files.entry(place.node).or_insert(BusyFile { inode: place.node, requests: 0, bytes: 0 });
                file.requests += requests(place);
                file.bytes += place.bytes;
            }
        }
        files.into_values().collect()
    }
}

/// An exchange with its request, decoded; its reply is timed.
pub(super) struct Received<E> {
    inner: E,
    request: Request,
    began: Instant,
}

impl<E: Exchange> Received<E> {
    /// From now on.
    pub(super) fn new(inner: E, request: Request) -> Received<E> {
        Received { inner, request, began: Instant::now() }
    }

    pub(super) fn request(&self) -> Request {
        self.request
    }
}

/// What a request is to the meters, and the bytes that it has moved.
fn work_of(operation: &Operation, outcome: Outcome) -> (Work, u64) {
    match (operation, outcome) {
        (Operation::Read(_), outcome) => (Work::Read, outcome.map_or(0, |length| length as u64)),
        (Operation::Write { data, .. }, Ok(_)) => (Work::Write, data.len() as u64),
        (Operation::Write { .. }, Err(_)) => (Work::Write, 0),
        (Operation::Fsync(_) | Operation::Fsyncdir(_) | Operation::Syncfs, _) => (Work::Sync, 0),
        _ => (Work::Other, 0),
    }
}

impl<E: Exchange> Exchange for Received<E> {
    const MAY_WAIT: bool = E::MAY_WAIT;

    fn message(&self) -> Message<'_> {
        self.inner.message()
    }
    fn room(&mut self) -> &mut [u8] {
        self.inner.room()
    }
    fn reply(self, outcome: Outcome) {
        let (work, bytes) = work_of(&self.request.operation, outcome);
        let nanos = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        meters().note(work, self.request.header.nodeid, bytes, nanos);
        self.inner.reply(outcome);
    }
    fn no_reply(self) {
        self.inner.no_reply();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_files_are_found_among_many() {
        let meters = Meters::default();
        for request in 0..200_000u64 {
            // Two files have a quarter of the requests each, ten thousand share the rest.
            let node = match request % 4 {
                0 => 7,
                1 => 9,
                _ => 1000 + request * 7919 % 10_000,
            };
            meters.note(Work::Read, node, 4096, 5_000);
        }
        let busiest: Vec<u64> = meters.busiest().iter().take(2).map(|file| file.inode).collect();
        assert!(busiest == [7, 9] || busiest == [9, 7], "{busiest:?}");
        let requests = meters.busiest()[1].requests;
        assert!((40_000..80_000).contains(&requests), "{requests}");
        let served = meters.read();
        assert_eq!((served[0].requests, served[0].bytes), (200_000, 200_000 * 4096));
        assert_eq!(served[0].times.count(), 200_000);
    }

    /// A file that had just come into the sample had the count of the one before it, which passed for what it
    /// did since the last reading. A file that became busy after days did not show: only the ten with the
    /// highest counts of all time did.
    #[test]
    fn a_newcomer_shows_with_its_own_requests() {
        let meters = Meters::default();
        let note = |node| meters.note(Work::Read, node, 4096, 5_000);
        (0..640_000).for_each(|request| note(100 + request % 32));
        (0..13_000).for_each(|_| note(7));
        let own = meters.sampled().into_iter().find(|file| file.inode == 7).expect("it is in the sample");
        assert_eq!((own.requests, own.bytes), (13_000, 13_000 * 4096));
        assert!(meters.busiest().iter().all(|file| file.requests >= 20_000));
    }
}
