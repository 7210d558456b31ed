//! What the committer is to do, and when: the store's side of [`crate::background`].
//!
//! Protocol. A thread that needs a checkpoint, recorded content written home, or the periodic commit ahead of
//! its time asks for it; what has been asked for already wakes nobody again. The committer sleeps until
//! something is asked for, or until the commit is due, and takes all of it at once.
//!
//! Neighbours: [`super::transaction`] and `group` ask; `background` has the thread.

use quire_base::sync::time::{Duration, Instant};
use quire_base::sync::{Condvar, Mutex};

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Committer {
    wanted: Mutex<Wanted>,
    wake: Condvar,
}

#[derive(Default)]
struct Wanted {
    stop: bool,
    checkpoint: bool,
    homes: bool,
    commit: bool,
}

/// What is due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    pub(crate) checkpoint: bool,
    /// Recorded content is to be written home.
    pub(crate) homes: bool,
    /// The periodic commit.
    pub(crate) commit: bool,
}

impl Committer {
    /// Asks for a checkpoint.
    pub(crate) fn want_checkpoint(&self) {
        self.want(|wanted| &mut wanted.checkpoint);
    }

    /// Asks that recorded content be written home.
    pub(crate) fn want_homes(&self) {
        self.want(|wanted| &mut wanted.homes);
    }

    /// Asks for a commit: memory waits for what inodes owe to the journal.
    pub(crate) fn want_commit(&self) {
        self.want(|wanted| &mut wanted.commit);
    }

    fn want(&self, which: impl FnOnce(&mut Wanted) -> &mut bool) {
        let mut wanted = self.wanted.lock();
        if !std::mem::replace(which(&mut wanted), true) {
            self.wake.notify_one();
        }
    }

    /// Whether something but a checkpoint is asked of the committer.
    pub(crate) fn is_wanted_elsewhere(&self) -> bool {
        let wanted = self.wanted.lock();
        wanted.stop || wanted.homes || wanted.commit
    }

    /// Ends the committer's sleep for good.
    pub(crate) fn stop(&self) {
        self.wanted.lock().stop = true;
        self.wake.notify_all();
    }

    /// Sleeps until there is something to do; `None` is the end. The periodic commit comes at `next`, and a
    /// commit that somebody has asked for at `early` or behind it.
    pub(crate) fn next(&self, next: Instant, early: Instant) -> Option<Due> {
        let mut wanted = self.wanted.lock();
        let at = |wanted: &Wanted| if wanted.commit { next.min(early) } else { next };
        while !wanted.stop && !wanted.checkpoint && !wanted.homes {
            let left: Duration = at(&wanted).saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.wake.wait_for(&mut wanted, left);
        }
        if wanted.stop {
            return None;
        }
        let commit = Instant::now() >= at(&wanted);
        wanted.commit &= !commit;
        Some(Due {
            checkpoint: std::mem::take(&mut wanted.checkpoint),
            homes: std::mem::take(&mut wanted.homes),
            commit,
        })
    }

    /// As [`Committer::next`] for callers without threads: what has been asked for but for the commit.
    pub(crate) fn take(&self) -> Due {
        let mut wanted = self.wanted.lock();
        Due {
            checkpoint: std::mem::take(&mut wanted.checkpoint),
            homes: std::mem::take(&mut wanted.homes),
            commit: false,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// A commit that memory waited for was forgotten where a checkpoint was wanted at the same time: under a
    /// load that always wants one, it came with the periodic commit only.
    #[test]
    fn a_commit_that_is_asked_for_comes_beside_a_checkpoint() {
        let committer = Committer::default();
        let now = Instant::now();
        committer.want_commit();
        committer.want_checkpoint();
        let due = committer.next(now + Duration::from_secs(3600), now).unwrap();
        assert!(due.checkpoint && due.commit);
        committer.want_checkpoint();
        let due = committer.next(now + Duration::from_secs(3600), now).unwrap();
        assert!(due.checkpoint && !due.commit);
    }
}
