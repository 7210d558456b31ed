//! Every interleaving of writes that move the end of file with reads that it clips, and of appends: the size
//! is published before the first unlock, appends take their offset under the size lock.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p quire-cache --test it loom_size --release`

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use quire_cache::park::Parking;
use quire_cache::segment::{SegmentLock, all_unchanged, collect_versions, lock_all};
use smallvec::SmallVec;

/// Segments of one word each, and a size in words.
struct File {
    parking: Parking,
    segments: Vec<SegmentLock>,
    data: Vec<AtomicU64>,
    size: AtomicU64,
    size_lock: Mutex<()>,
}

impl File {
    fn new(segments: usize, size: u64) -> Arc<File> {
        Arc::new(File {
            parking: Parking::new(1),
            segments: (0..segments).map(|_| SegmentLock::new()).collect(),
            data: (0..segments).map(|_| AtomicU64::new(0)).collect(),
            size: AtomicU64::new(size),
            size_lock: Mutex::new(()),
        })
    }

    /// A batch over `[at, end)`, as the cache does it.
    fn batch(&self, at: usize, end: usize, value: u64) {
        let segments = &self.segments[at..end];
        lock_all(segments.iter(), &self.parking);
        self.data[at..end].iter().for_each(|word| word.store(value, Ordering::Relaxed));
        self.size.fetch_max(end as u64, Ordering::AcqRel);
        segments.iter().for_each(|segment| segment.unlock(&self.parking));
    }

    /// A write that can extend the file.
    fn write(&self, at: usize, end: usize, value: u64) {
        let _size = self.size_lock.lock().unwrap();
        self.batch(at, end, value);
    }

    fn append(&self, words: usize, value: u64) -> usize {
        let _size = self.size_lock.lock().unwrap();
        let at = self.size.load(Ordering::Acquire) as usize;
        self.batch(at, at + words, value);
        at
    }

    /// An optimistic read of everything, clipped by the size.
    fn try_read(&self) -> Option<Vec<u64>> {
        let size = self.size.load(Ordering::Acquire);
        let segments = || self.segments[..size as usize].iter();
        let mut versions = SmallVec::new();
        if !collect_versions(segments(), &mut versions) {
            return None;
        }
        let copy = self.data[..size as usize].iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let unchanged = all_unchanged(segments(), &versions);
        (unchanged && self.size.load(Ordering::Acquire) == size).then_some(copy)
    }

    /// A locked one: the size is looked at again with the segments shared.
    fn read(&self) -> Vec<u64> {
        loop {
            let size = self.size.load(Ordering::Acquire);
            let segments = || self.segments[..size as usize].iter();
            segments().for_each(|segment| segment.share(&self.parking));
            let now = self.size.load(Ordering::Acquire);
            let copy = self.data[..size as usize].iter().map(|word| word.load(Ordering::Relaxed)).collect();
            segments().for_each(|segment| segment.unshare(&self.parking));
            if now <= size {
                return copy;
            }
        }
    }
}

fn model(body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// A write from inside the file to beyond its end: its bytes are never seen with the old end, nor the new end
/// without them.
#[test]
fn a_write_across_the_end_is_seen_whole_by_optimistic_reads() {
    model(|| {
        let file = File::new(2, 1);
        let other = file.clone();
        let writer = thread::spawn(move || other.write(0, 2, 7));
        if let Some(copy) = file.try_read() {
            assert!(copy == [0] || copy == [7, 7], "{copy:?}");
        }
        writer.join().unwrap();
    });
}

#[test]
fn a_write_across_the_end_is_seen_whole_by_locked_reads() {
    model(|| {
        let file = File::new(2, 1);
        let other = file.clone();
        let writer = thread::spawn(move || other.write(0, 2, 7));
        let copy = file.read();
        assert!(copy == [0] || copy == [7, 7], "{copy:?}");
        writer.join().unwrap();
    });
}

/// Two appends, one of two words: both are there, one behind the other, and readers see whole ones.
#[test]
fn appends_are_neither_lost_nor_interleaved() {
    model(|| {
        let file = File::new(3, 0);
        let other = file.clone();
        let long = thread::spawn(move || other.append(2, 7));
        let short_at = file.append(1, 8);
        if let Some(copy) = file.try_read() {
            let known: [&[u64]; 3] = [&[8], &[8, 7, 7], &[7, 7, 8]];
            assert!(known.contains(&copy.as_slice()), "{copy:?}");
        }
        let long_at = long.join().unwrap();
        assert_eq!((short_at, long_at), if short_at == 0 { (0, 1) } else { (2, 0) });
        assert_eq!(file.size.load(Ordering::Acquire), 3);
    });
}
