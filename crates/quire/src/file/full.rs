//! What an operation that finds no space does before it fails.
//!
//! Space that is not free now may become free without anybody's loss: dirty data has more promised than it
//! takes, the more so the more small files there are; blocks that were freed wait for their record to be
//! durable; the metadata pool may be larger than the tree needs. An operation that finds no space has all of
//! that settled, and tries again. So `NoSpace` means that the volume is full.
//!
//! Protocol: [`Engine::retry_without_space`] runs with no lock, gate or reservation held; a change may be
//! under way, the caller's own among them. Threads that may not wait get `WouldBlock` instead.
//!
//! Neighbours: writes, sizes, fallocate, groups, names, attributes and snapshots come through here;
//! [`crate::store::pool_promise`] says what is promised beside the data.

use crate::engine::Engine;
use quire_base::sync::Arc;
use quire_base::{ErrorKind, Result, patience};
use std::time::Duration;

/// Times that an operation tries again, while others promise to their data what it has made free.
const TRIES_MAX: u32 = 4;
/// How long it waits for unlinked files to be freed.
const REAPER_PATIENCE: Duration = Duration::from_secs(10);

impl Engine {
    /// Runs `attempt`; if it finds no space, makes free what can be, and runs it again. It does so once also
    /// where nothing seems to wait: the last of it may have become free since the attempt.
    pub(crate) fn retry_without_space<T>(
        self: &Arc<Engine>,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let mut tries = 0;
        loop {
            match attempt() {
                Err(error)
                    if error.kind() == ErrorKind::NoSpace
                        && (tries == 0 || tries < TRIES_MAX && self.store.has_delayed()) =>
                {
                    self.recover_space()?;
                    tries += 1;
                }
                other => return other,
            }
        }
    }

    /// Gives dirty data its blocks, frees orphans that wait, forces everything, and makes the metadata pool
    /// as small as it may be.
    fn recover_space(self: &Arc<Engine>) -> Result<()> {
        patience::check("space to become free")?;
        if self.store.options.threads && !self.reaper.is_idle() {
            self.reaper.await_idle(REAPER_PATIENCE);
        }
        if self.store.has_delayed() {
            // What cannot be written is for the fsync of its file to tell.
            let _ = self.write_back();
        }
        // Also if no block is counted as waiting: another thread may have it in hand.
        self.store.force_frees()?;
        // A pool that finds no room to move its nodes stays as large as it is: the try comes all the same.
        self.store.shrink_pool().or_else(|error| match error.kind() {
            ErrorKind::NoSpace => Ok(()),
            _ => Err(error),
        })
    }
}
