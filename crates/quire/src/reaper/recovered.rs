//! Orphans that replay found: a list from which the reaper takes when nothing else waits.
//!
//! After a crash there may be millions. The list keeps a number and a slot of each; an inode is made of it,
//! and its record read, only when its turn comes. So a mount waits for none of them and memory stays bounded.
//! Until then nobody else reaches it: it has no name, and a look-up by number refuses inodes without links.
//! Its slot (or key) keeps it through further crashes.
//!
//! Invariants: a number is on the list once, and not in the inode table; what is taken counts as left until
//! it is queued for the reaper, or found not to need it.
//!
//! Neighbours: [`super::after_crash`] fills the list and takes from it.

use crate::store::orphan_slots::OrphanState;
use quire_base::InodeNo;
use quire_base::sync::Mutex;
use quire_base::sync::atomic::{AtomicUsize, Ordering};
use quire_base::sync::time::{Duration, Instant};

/// Between two lines in the log while many are freed.
const REPORT_EVERY: Duration = Duration::from_secs(5);

#[derive(Default)]
struct List {
    /// Taken from the end.
    orphans: Vec<(InodeNo, OrphanState)>,
    total: usize,
    reported: Option<Instant>,
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct RecoveredOrphans {
    list: Mutex<List>,
    /// Not queued yet. Looked at without the lock; nearly always zero.
    left: AtomicUsize,
}

/// An orphan taken from the list; it counts as left until this is dropped.
pub(crate) struct Recovered<'a> {
    all: &'a RecoveredOrphans,
    pub(crate) number: InodeNo,
    pub(crate) state: OrphanState,
}

impl RecoveredOrphans {
    /// Sets the list, once, before anybody takes from it.
    pub(crate) fn fill(&self, mut orphans: Vec<(InodeNo, OrphanState)>) {
        orphans.reverse();
        let mut list = self.list.lock();
        (list.total, list.reported) = (orphans.len(), Some(Instant::now()));
        self.left.store(orphans.len(), Ordering::SeqCst);
        list.orphans = orphans;
    }

    /// The next one. Tells from time to time how many are left.
    pub(crate) fn take(&self) -> Option<Recovered<'_>> {
        if self.is_empty() {
            return None;
        }
        let mut list = self.list.lock();
        let (number, state) = list.orphans.pop()?;
        let now = Instant::now();
        if list.reported.is_none_or(|at| now.saturating_duration_since(at) >= REPORT_EVERY) {
            list.reported = Some(now);
            let (left, total) = (list.orphans.len() + 1, list.total);
            tracing::info!(left, total, "freeing files without a name that a crash left");
        }
        if list.orphans.is_empty() {
            list.orphans = Vec::new();
        }
        Some(Recovered { all: self, number, state })
    }

    /// Nothing is left, or in somebody's hands.
    pub(crate) fn is_empty(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }
}

impl Drop for Recovered<'_> {
    fn drop(&mut self) {
        if self.all.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            let total = self.all.list.lock().total;
            tracing::info!(total, "the files without a name that a crash left are freed, or about to be");
        }
    }
}
