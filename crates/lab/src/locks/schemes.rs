//! The schemes, from the whole file under one lock to versions of segments.
//!
//! | name | readers | writers | untorn |
//! | --- | --- | --- | --- |
//! | `exclusive` | the one lock | the one lock | yes |
//! | `shared-exclusive` | the one lock shared (XFS) | the one lock | yes |
//! | `across-pages` | as above, and their pages shared | inside a page: shared, and the page; else the one lock | yes |
//! | `no-read-lock` | nothing (ext4, btrfs) | the one lock | no |
//! | `bitmap-64` | the bits of their 64ths of the file | the same bits | yes |
//! | `range-tree` | their range, shared, in a tree under a lock | their range | yes |
//! | `folio-shared` | their segments, shared, in order | their segments, in order | yes |
//! | `folio-optimistic` | versions of their segments before and after | their segments, in order | yes |

use quire_base::sync::atomic::{AtomicU64, Ordering, fence};
use quire_base::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock};
use quire_bench::array::Array;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes that a page, or a segment, covers.
const SEGMENT: usize = 4096;
/// Optimistic tries before a reader takes locks.
const TRIES: usize = 8;

/// A way to keep reads and writes of an array apart.
pub trait Scheme: Send + Sync {
    /// Copies a range out.
    fn read(&self, array: &Array, range: Range<usize>, out: &mut [u8]);
    /// Copies a range in.
    fn write(&self, array: &Array, range: Range<usize>, data: &[u8]);
}

/// A scheme by its name.
pub struct Entry {
    /// As in the table.
    pub name: &'static str,
    /// For an array of so many bytes.
    pub make: fn(usize) -> Arc<dyn Scheme>,
}

/// All schemes, in the table's order.
pub const ALL: &[Entry] = &[
    Entry { name: "exclusive", make: |_| Arc::new(Exclusive(Mutex::new(()))) },
    Entry { name: "shared-exclusive", make: |_| Arc::new(SharedExclusive(RwLock::new(()))) },
    Entry { name: "across-pages", make: |bytes| Arc::new(AcrossPages::new(bytes)) },
    Entry { name: "no-read-lock", make: |_| Arc::new(NoReadLock(Mutex::new(()))) },
    Entry { name: "bitmap-64", make: |bytes| Arc::new(Bitmap::new(bytes)) },
    Entry { name: "range-tree", make: |_| Arc::new(RangeTree::default()) },
    Entry { name: "folio-shared", make: |bytes| Arc::new(FolioShared(locks(bytes))) },
    Entry { name: "folio-optimistic", make: |bytes| Arc::new(FolioOptimistic::new(bytes)) },
];

fn segments(range: &Range<usize>) -> Range<usize> {
    range.start / SEGMENT..range.end.div_ceil(SEGMENT)
}

fn locks(bytes: usize) -> Vec<RwLock<()>> {
    (0..bytes.div_ceil(SEGMENT)).map(|_| RwLock::new(())).collect()
}

struct Exclusive(Mutex<()>);

impl Scheme for Exclusive {
    fn read(&self, array: &Array, range: Range<usize>, out: &mut [u8]) {
        let _held = self.0.lock();
        array.copy_out(range.start, out);
    }
    fn write(&self, array: &Array, range: Range<usize>, data: &[u8]) {
        let _held = self.0.lock();
        array.copy_in(range.start, data);
    }
}

struct SharedExclusive(RwLock<()>);

impl Scheme for SharedExclusive {
    fn read(&self, array: &Array, range: Range<usize>, out: &mut [u8]) {
        let _held = self.0.read();
        array.copy_out(range.start, out);
    }
    fn write(&self, array: &Array, range: Range<usize>, data: &[u8]) {
        let _held = self.0.write();
        array.copy_in(range.start, data);
    }
}

struct AcrossPages {
    whole: RwLock<()>,
    pages: Vec<RwLock<()>>,
}

impl AcrossPages {
    fn new(bytes: usize) -> AcrossPages {
        AcrossPages { whole: RwLock::new(()), pages: locks(bytes) }
    }
}

impl Scheme for AcrossPages {
    fn read(&self, array: &Array, range: Range<usize>, out: &mut [u8]) {
        let _held = self.whole.read();
        // Writers across pages are kept out by `whole`; those inside a page meet only that page's readers,
        // one page at a time.
        let mut at = range.start;
        let mut rest = out;
        for page in segments(&range) {
            let end = ((page + 1) * SEGMENT).min(range.end);
            let (now, later) = rest.split_at_mut(end - at);
            let _page = self.pages[page].read();
            array.copy_out(at, now);
            (at, rest) = (end, later);
        }
    }
    fn write(&self, array: &Array, range: Range<usize>, data: &[u8]) {
        let pages = segments(&range);
        if pages.len() == 1 {
            let _held = self.whole.read();
            let _page = self.pages[pages.start].write();
            array.copy_in(range.start, data);
        } else {
            let _held = self.whole.write();
            array.copy_in(range.start, data);
        }
    }
}

struct NoReadLock(Mutex<()>);

impl Scheme for NoReadLock {
    fn read(&self, array: &Array, range: Range<usize>, out: &mut [u8]) {
        array.copy_out(range.start, out);
    }
    fn write(&self, array: &Array, range: Range<usize>, data: &[u8]) {
        let _held = self.0.lock();
        array.copy_in(range.start, data);
    }
}

/// One word, a bit for each 64th of the array; a range's bits are taken all at once.
struct Bitmap {
    held: AtomicU64,
    /// Bytes of a bit.
    stride: usize,
}

impl Bitmap {
    fn new(bytes: usize) -> Bitmap {
        Bitmap { held: AtomicU64::new(0), stride: bytes.div_ceil(64).max(1) }
    }

    fn with<T>(&self, range: &Range<usize>, copy: impl FnOnce() -> T) -> T {
        let (first, last) = (range.start / self.stride, (range.end - 1) / self.stride);
        let bits = (u64::MAX >> (63 - (last - first).min(63))) << first.min(63);
        let mut spins = 0u32;
        loop {
            let held = self.held.load(Ordering::Relaxed);
            if held & bits == 0
                && self
                    .held
                    .compare_exchange_weak(held, held | bits, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                break;
            }
            spins += 1;
            if spins.is_multiple_of(32) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        let result = copy();
        self.held.fetch_and(!bits, Ordering::Release);
        result
    }
}

impl Scheme for Bitmap {
    fn read(&self, array: &Array, range: Range<usize>, out: &mut [u8]) {
        self.with(&range, || array.copy_out(range.start, out));
    }
    fn write(&self, array: &Array, range: Range<usize>, data: &[u8]) {
        self.with(&range, || array.copy_in(range.start, data));
    }
}

/// Held ranges in a tree by (start, ticket), behind one lock; a range that does not fit waits.
#[derive(Default)]
struct RangeTree {
    state: Mutex<Held>,
    changed: Condvar,
}

#[derive(Default)]
struct Held {
    /// (start, ticket) to (end, exclusive).
    ranges: BTreeMap<(usize, u64), (usize, bool)>,
    tickets: u64,
    /// Longest range ever held: how far before a start a range that reaches it may begin.
    longest: usize,
    waiting: usize,
}

impl RangeTree {
    fn with<T>(&self, range: &Range<usize>, exclusive: bool, copy: impl FnOnce() -> T) -> T {
        let mut state = self.state.lock();
        while state.conflicts(range, exclusive) {
            state.waiting += 1;
            self.changed.wait(&mut state);
            state.waiting -= 1;
        }
        state.tickets += 1;
        let key = (range.start, state.tickets);
        state.longest = state.longest.max(range.len());
        state.ranges.insert(key, (range.end, exclusive));
        drop(state);
        let result = copy();
        let mut state = self.state.lock();
        state.ranges.remove(&key);
        if state.waiting > 0 {
            self.changed.notify_all();
        }
        result
    }
}

impl Held {
    fn conflicts(&self, range: &Range<usize>, exclusive: bool) -> bool {
        let from = (range.start.saturating_sub(self.longest), 0);
        self.ranges
            .range(from..(range.end, 0))
            .any(|(_, &(end, other))| end > range.start && (exclusive || other))
    }
}

impl Scheme for RangeTree {
    fn read(&self, array: &Array, range: Range<usize>, out: &mut [u8]) {
        self.with(&range, false, || array.copy_out(range.start, out));
    }
    fn write(&self, array: &Array, range: Range<usize>, data: &[u8]) {
        self.with(&range, true, || array.copy_in(range.start, data));
    }
}

struct FolioShared(Vec<RwLock<()>>);

impl Scheme for FolioShared {
    fn read(&self, array: &Array, range: Range<usize>, out: &mut [u8]) {
        let segments = segments(&range);
        if segments.len() == 1 {
            let _held = self.0[segments.start].read();
            return array.copy_out(range.start, out);
        }
        let _held: Vec<_> = self.0[segments].iter().map(RwLock::read).collect();
        array.copy_out(range.start, out);
    }
    fn write(&self, array: &Array, range: Range<usize>, data: &[u8]) {
        let segments = segments(&range);
        if segments.len() == 1 {
            let _held = self.0[segments.start].write();
            return array.copy_in(range.start, data);
        }
        let _held: Vec<_> = self.0[segments].iter().map(RwLock::write).collect();
        array.copy_in(range.start, data);
    }
}

/// A segment: even version when nobody writes.
struct Versioned {
    lock: Mutex<()>,
    version: AtomicU64,
}

struct FolioOptimistic(Vec<Versioned>);

impl FolioOptimistic {
    fn new(bytes: usize) -> FolioOptimistic {
        let segment = |_| Versioned { lock: Mutex::new(()), version: AtomicU64::new(0) };
        FolioOptimistic((0..bytes.div_ceil(SEGMENT)).map(segment).collect())
    }

    fn lock_all(segments: &[Versioned], act: impl FnOnce()) {
        if let [one] = segments {
            let _held = one.lock.lock();
            return act();
        }
        let _held: Vec<MutexGuard<'_, ()>> = segments.iter().map(|segment| segment.lock.lock()).collect();
        act();
    }
}

/// Sum of the versions, or nothing while a writer is inside. Versions only grow, so an equal sum means equal
/// versions.
fn stable_sum(segments: &[Versioned]) -> Option<u64> {
    segments.iter().try_fold(0u64, |sum, segment| {
        let version = segment.version.load(Ordering::Acquire);
        version.is_multiple_of(2).then_some(sum.wrapping_add(version))
    })
}

impl Scheme for FolioOptimistic {
    fn read(&self, array: &Array, range: Range<usize>, out: &mut [u8]) {
        let segments = &self.0[segments(&range)];
        for _ in 0..TRIES {
            if let Some(before) = stable_sum(segments) {
                array.copy_out(range.start, out);
                fence(Ordering::Acquire);
                if stable_sum(segments) == Some(before) {
                    return;
                }
            }
            std::hint::spin_loop();
        }
        Self::lock_all(segments, || array.copy_out(range.start, out));
    }
    fn write(&self, array: &Array, range: Range<usize>, data: &[u8]) {
        let segments = &self.0[segments(&range)];
        Self::lock_all(segments, || {
            for segment in segments {
                let version = segment.version.load(Ordering::Relaxed);
                segment.version.store(version + 1, Ordering::Relaxed);
            }
            fence(Ordering::Release);
            array.copy_in(range.start, data);
            for segment in segments {
                let version = segment.version.load(Ordering::Relaxed);
                segment.version.store(version + 1, Ordering::Release);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_reads_what_was_written() {
        let bytes = 64 * SEGMENT;
        for entry in ALL {
            let array = Array::new(bytes).unwrap();
            let scheme = (entry.make)(bytes);
            for (start, len) in [(0, 1), (10, SEGMENT), (3 * SEGMENT, SEGMENT), (5000, 20_000), (0, bytes)] {
                let data: Vec<u8> = (0..len).map(|n| (n * 7 + start) as u8).collect();
                scheme.write(&array, start..start + len, &data);
                let mut out = vec![0; len];
                scheme.read(&array, start..start + len, &mut out);
                assert_eq!(out, data, "{} at {start}, {len} bytes", entry.name);
            }
        }
    }
}
