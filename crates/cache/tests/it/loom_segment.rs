//! Every interleaving of the segment protocol for small batches: exclusion, no lost wake-up, no deadlock,
//! untorn reads with and without locks, size publication.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p quire-cache --test it loom_segment --release`

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use quire_cache::park::Parking;
use quire_cache::segment::{SegmentLock, all_unchanged, collect_versions, lock_all};
use smallvec::SmallVec;

/// Segments with one word of data each, and a file size.
struct File {
    parking: Parking,
    segments: Vec<SegmentLock>,
    data: Vec<AtomicU64>,
    size: AtomicU64,
}

impl File {
    fn new(segments: usize) -> Arc<File> {
        Arc::new(File {
            parking: Parking::new(1),
            segments: (0..segments).map(|_| SegmentLock::new()).collect(),
            data: (0..segments).map(|_| AtomicU64::new(0)).collect(),
            size: AtomicU64::new(0),
        })
    }

    /// A batch over all segments, as `write` does it.
    fn write(&self, value: u64, size: u64) {
        lock_all(self.segments.iter(), &self.parking);
        self.data.iter().for_each(|word| word.store(value, Ordering::Relaxed));
        self.size.store(size, Ordering::Release);
        self.segments.iter().for_each(|segment| segment.unlock(&self.parking));
    }

    /// An optimistic attempt, as `try_read` does it.
    fn try_read(&self) -> Option<(Vec<u64>, u64)> {
        let size = self.size.load(Ordering::Acquire);
        let mut versions = SmallVec::new();
        if !collect_versions(self.segments.iter(), &mut versions) {
            return None;
        }
        let copy: Vec<u64> = self.data.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        if !all_unchanged(self.segments.iter(), &versions) || self.size.load(Ordering::Acquire) != size {
            return None;
        }
        Some((copy, size))
    }

    /// The slow path, as `read` does it.
    fn read(&self) -> (Vec<u64>, u64) {
        self.segments.iter().for_each(|segment| segment.share(&self.parking));
        let size = self.size.load(Ordering::Acquire);
        let copy = self.data.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        self.segments.iter().for_each(|segment| segment.unshare(&self.parking));
        (copy, size)
    }
}

fn check(copy: &[u64], size: u64) {
    assert!(copy.iter().all(|word| *word == copy[0]), "torn: {copy:?}");
    assert_eq!(copy[0], size, "size and data of different writes");
}

/// Preemptions that a model of more than two threads explores.
fn model(preemptions: Option<usize>, body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(body);
}

#[test]
fn two_writers_exclude_each_other_and_both_end() {
    model(None, || {
        let file = File::new(1);
        let other = file.clone();
        let thread = thread::spawn(move || other.write(1, 1));
        file.write(2, 2);
        thread.join().unwrap();
        let (copy, size) = file.try_read().unwrap();
        check(&copy, size);
        assert_eq!(format!("{:?}", file.segments[0]), "v2");
    });
}

#[test]
fn batch_of_two_against_batch_of_two() {
    model(Some(3), || {
        let file = File::new(2);
        let other = file.clone();
        let thread = thread::spawn(move || other.write(1, 1));
        file.write(2, 2);
        thread.join().unwrap();
        let (copy, size) = file.try_read().unwrap();
        check(&copy, size);
    });
}

#[test]
fn an_optimistic_read_is_one_write() {
    model(Some(3), || {
        let file = File::new(2);
        let other = file.clone();
        let thread = thread::spawn(move || {
            other.write(1, 1);
            other.write(2, 2);
        });
        if let Some((copy, size)) = file.try_read() {
            check(&copy, size);
        }
        thread.join().unwrap();
    });
}

#[test]
fn a_locked_read_is_one_write() {
    model(Some(3), || {
        let file = File::new(2);
        let other = file.clone();
        let thread = thread::spawn(move || other.write(1, 1));
        let (copy, size) = file.read();
        check(&copy, size);
        thread.join().unwrap();
    });
}

#[test]
fn writer_sharer_and_writer_all_get_in() {
    model(Some(2), || {
        let file = File::new(1);
        let (second, third) = (file.clone(), file.clone());
        let writer = thread::spawn(move || second.write(1, 1));
        let sharer = thread::spawn(move || {
            let (copy, size) = third.read();
            check(&copy, size);
        });
        file.write(2, 2);
        writer.join().unwrap();
        sharer.join().unwrap();
    });
}

#[test]
fn two_sharers_and_a_writer_all_get_in() {
    model(Some(2), || {
        let file = File::new(1);
        let (second, third) = (file.clone(), file.clone());
        let one = thread::spawn(move || drop(second.read()));
        let two = thread::spawn(move || drop(third.read()));
        file.write(2, 2);
        one.join().unwrap();
        two.join().unwrap();
        assert_eq!(format!("{:?}", file.segments[0]), "v1");
    });
}
