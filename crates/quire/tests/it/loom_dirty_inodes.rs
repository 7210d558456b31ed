//! The list of dirty inodes under loom: a change that races with those who journal is journaled or stays
//! listed.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p quire-fs --test it loom_dirty_inodes --release`

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use quire::InodeNo;
use quire::internals::dirty_inodes::{DirtyInodes, DirtyMark, Owes};

const INODE: InodeNo = InodeNo(7);

#[derive(Default)]
struct Model {
    list: DirtyInodes,
    mark: DirtyMark,
    /// What an inode has in memory only.
    times: AtomicU64,
    size: AtomicU64,
    journaled: AtomicU64,
}

impl Model {
    fn change(&self, what: &AtomicU64, level: Owes) {
        what.store(1, Ordering::Relaxed);
        self.list.mark(INODE, &self.mark, level);
    }

    fn owes(&self) -> Owes {
        match (self.size.load(Ordering::Relaxed), self.times.load(Ordering::Relaxed)) {
            (0, 0) => Owes::Nothing,
            (0, _) => Owes::Times,
            _ => Owes::Due,
        }
    }

    /// One pass of a thread that journals; `leaves` it leaves in memory.
    fn journal(&self, level: Owes) {
        for inode in self.list.numbers(level) {
            assert_eq!(inode, INODE);
            self.journaled.fetch_add(self.size.swap(0, Ordering::AcqRel), Ordering::Relaxed);
            if level == Owes::Times {
                self.times.swap(0, Ordering::AcqRel);
            }
            self.list.settle(inode, &self.mark, || self.owes());
        }
    }
}

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

fn spawn(model: &Arc<Model>, body: impl FnOnce(&Model) + Send + 'static) -> thread::JoinHandle<()> {
    let model = model.clone();
    thread::spawn(move || body(&model))
}

/// A write marked an inode while the periodic commit settled it: were the two stores not fenced, the write
/// would find the mark set, the commit no change, and the inode would be dirty outside the list.
#[test]
fn a_mark_beside_a_settling_is_never_lost() {
    model(|| {
        let model = Arc::new(Model::default());
        model.change(&model.times, Owes::Due);
        let writer = spawn(&model, |model| model.change(&model.size, Owes::Due));
        model.journal(Owes::Times);
        writer.join().unwrap();
        if model.owes() != Owes::Nothing {
            assert!(model.mark.is_set());
            assert_eq!(model.list.numbers(Owes::Due), [INODE]);
        }
        model.journal(Owes::Times);
        assert_eq!(model.owes(), Owes::Nothing);
        assert!(!model.mark.is_set() && model.list.is_empty());
    });
}

/// Times that stay in memory and a size that may not: the size makes the inode due, whichever thread settles
/// meanwhile.
#[test]
fn an_inode_is_listed_as_what_it_owes() {
    model(|| {
        let model = Arc::new(Model::default());
        let sizes = spawn(&model, |model| model.change(&model.size, Owes::Due));
        let times = spawn(&model, |model| model.change(&model.times, Owes::Times));
        model.journal(Owes::Due);
        sizes.join().unwrap();
        times.join().unwrap();
        match model.owes() {
            Owes::Due => assert_eq!(model.list.numbers(Owes::Due), [INODE]),
            owes => {
                assert_eq!(owes, Owes::Times);
                assert_eq!(model.list.numbers(Owes::Times), [INODE]);
            }
        }
    });
}

/// A thread that makes the volume durable while another one journals finds what that one has in hand: an
/// inode leaves the list only after it has been journaled.
#[test]
fn what_another_thread_journals_is_still_listed() {
    model(|| {
        let model = Arc::new(Model::default());
        model.change(&model.size, Owes::Due);
        let committer = spawn(&model, |model| model.journal(Owes::Due));
        if model.list.numbers(Owes::Times).is_empty() {
            assert_eq!(model.journaled.load(Ordering::Relaxed), 1);
        }
        committer.join().unwrap();
    });
}
