//! Files whose pages the kernel keeps for those who read them: `cache=auto`.
//!
//! Protocol. An open for reading of a file that nobody has open for writing, and that was not written for a
//! while, lets the kernel keep pages; all other opens are direct. The open marks the inode as [`Mark::Paged`]
//! before the kernel hears of it. A write through another open of a marked inode is answered only when the
//! kernel has dropped its pages, *after* the volume has the write: a page that was read before the write is
//! dropped, and one that is read later has it. So a read that begins after a write has returned sees the
//! write.
//!
//! Invariants: pages that the kernel keeps are those of a marked inode, or as new as the file. The mark goes
//! when the kernel has dropped the pages, no open keeps pages, and no open and no read of a page came in
//! between: so writers pay for readers that are there, not for readers long gone. An inode's [`Opens`]
//! outlive the kernel's interest in it, as the last close may arrive behind that.
//!
//! A reader that races with a write may see a part of it, and while a file has both, the kernel lets one
//! writer in at a time; [`Kept::serialised`] counts such files.
//!
//! Neighbours: [`super::data`] opens and closes; the server drops pages (`server/drops.rs`).

use std::time::{Duration, SystemTime};

use quire_base::sync::Arc;
use quire_base::sync::Mutex;
use quire_base::sync::atomic::{AtomicU64, Ordering};

/// For so long a file must not have been written before the kernel keeps pages of it.
const QUIET: Duration = Duration::from_secs(2);

/// The opens of an inode, counted under `cache=auto`.
#[derive(Debug, Default)]
pub struct Opens(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    writers: u32,
    /// Readers whose pages the kernel keeps.
    kept: u32,
    others: u32,
    /// Grows with every open, and with every page that is read through one that is not kept.
    events: u64,
}

impl Counts {
    fn are_serialised(&self) -> bool {
        self.writers > 0 && self.kept > 0
    }
}

/// How an open is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Writer,
    Kept,
    Other,
}

/// An open that is counted; dropping it ends that.
#[derive(Debug)]
pub struct Counted {
    opens: Arc<Opens>,
    role: Role,
    all: Arc<Kept>,
}

/// What a mount knows of all such files.
#[derive(Debug, Default)]
pub struct Kept(AtomicU64);

impl Kept {
    /// Files that somebody writes while the kernel keeps pages of them for somebody else.
    pub fn serialised(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts an open for writing.
    pub fn writer(self: &Arc<Kept>, opens: &Arc<Opens>) -> Counted {
        self.count(opens, |_| Role::Writer)
    }

    /// Counts an open for reading of a file that was last `changed` then. The kernel may keep pages if
    /// [`Counted::is_kept`]; `mark` was called before anybody could open the file for writing.
    pub fn reader(
        self: &Arc<Kept>,
        opens: &Arc<Opens>,
        may_keep: bool,
        changed: SystemTime,
        mark: impl FnOnce(),
    ) -> Counted {
        self.count(opens, |counts| {
            // A time that lies ahead tells nothing.
            let quiet = changed.elapsed().is_ok_and(|since| since >= QUIET);
            if may_keep && quiet && counts.writers == 0 {
                mark();
                return Role::Kept;
            }
            Role::Other
        })
    }

    fn count(self: &Arc<Kept>, opens: &Arc<Opens>, role: impl FnOnce(&Counts) -> Role) -> Counted {
        let mut counts = opens.0.lock();
        let role = role(&counts);
        self.change(&mut counts, |counts| *role.of(counts) += 1);
        counts.events += 1;
        Counted { opens: opens.clone(), role, all: self.clone() }
    }

    fn change(&self, counts: &mut Counts, change: impl FnOnce(&mut Counts)) {
        let before = counts.are_serialised();
        change(counts);
        match (before, counts.are_serialised()) {
            (false, true) => drop(self.0.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.0.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
    }
}

impl Opens {
    /// For [`Opens::dropped`], to be asked for before pages are dropped.
    pub fn events(&self) -> u64 {
        self.0.lock().events
    }

    /// Pages were dropped behind `events`: calls `unmark` if there are none now.
    pub fn dropped(&self, events: u64, unmark: impl FnOnce()) {
        let counts = self.0.lock();
        if (counts.kept, counts.events) == (0, events) {
            unmark();
        }
    }
}

impl Role {
    fn of(self, counts: &mut Counts) -> &mut u32 {
        match self {
            Role::Writer => &mut counts.writers,
            Role::Kept => &mut counts.kept,
            Role::Other => &mut counts.others,
        }
    }
}

impl Counted {
    /// Whether the kernel may keep pages for this open.
    pub fn is_kept(&self) -> bool {
        self.role == Role::Kept
    }

    /// Notes that the kernel reads a page through this open, by calling `mark`.
    pub fn note_page(&self, mark: impl FnOnce()) {
        if self.is_kept() {
            return;
        }
        let mut counts = self.opens.0.lock();
        counts.events += 1;
        mark();
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.opens.0.lock();
        self.all.change(&mut counts, |counts| *self.role.of(counts) -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG_AGO: SystemTime = SystemTime::UNIX_EPOCH;

    #[test]
    fn only_quiet_files_that_nobody_writes_are_kept() {
        let (all, opens) = (Arc::new(Kept::default()), Arc::new(Opens::default()));
        let read = |may_keep, changed| {
            let mut marked = false;
            let counted = all.reader(&opens, may_keep, changed, || marked = true);
            assert_eq!(marked, counted.is_kept());
            counted
        };
        assert!(!read(false, LONG_AGO).is_kept());
        assert!(!read(true, SystemTime::now()).is_kept());
        assert!(!read(true, SystemTime::now() + Duration::from_secs(60)).is_kept());
        let kept = read(true, LONG_AGO);
        assert!(kept.is_kept());
        let writer = all.writer(&opens);
        assert_eq!(all.serialised(), 1);
        assert!(!read(true, LONG_AGO).is_kept());
        drop(kept);
        assert_eq!(all.serialised(), 0);
        drop(writer);
        assert!(read(true, LONG_AGO).is_kept());
    }

    #[test]
    fn the_mark_goes_with_the_pages() {
        let (all, opens) = (Arc::new(Kept::default()), Arc::new(Opens::default()));
        let goes = |events| {
            let mut gone = false;
            opens.dropped(events, || gone = true);
            gone
        };
        let reader = all.reader(&opens, true, LONG_AGO, || {});
        let writer = all.writer(&opens);
        assert!(!goes(opens.events()), "a reader has it open");
        drop(reader);
        let another = all.writer(&opens);
        let before = opens.events();
        assert!(goes(before), "only writers have it open");
        drop(another);
        writer.note_page(|| {});
        assert!(!goes(before), "a page was read meanwhile");
        let before = opens.events();
        drop(all.reader(&opens, true, LONG_AGO, || {}));
        assert!(!goes(before), "somebody had it open meanwhile");
    }
}
