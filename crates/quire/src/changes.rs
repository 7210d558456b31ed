//! Operations that change the volume, counted, so that closing it can refuse new ones and wait for those
//! under way, and freezing it or taking a snapshot can keep them back.
//!
//! What has returned `Ok` ended before the last sync of a clean close, or was never begun. Work of the engine
//! itself (writeback, commits, the reaper) is not counted: it goes on until its threads are stopped. An
//! operation begins once: where one is made of others, these begin.
//!
//! Neighbours: every operation begins with [`Engine::begin_change`]; [`crate::volume`] closes,
//! [`crate::freeze`] freezes, [`crate::snapshots`] takes snapshots. The protocol is
//! [`quire_base::admission`].

use crate::engine::Engine;
use quire_base::admission::{Admitted, NotAdmitted};
use quire_base::{Error, ErrorKind, Result, patience};

impl Engine {
    /// Begins an operation that changes the volume; an error if that takes none: it is read-only, shut down,
    /// or being closed. The operation is under way until the value is dropped. Waits while the volume is
    /// frozen, or a snapshot is taken.
    pub(crate) fn begin_change(&self) -> Result<Admitted<'_>> {
        self.store.check_writable()?;
        let admitted = match self.changes.try_enter() {
            Err(NotAdmitted::Held) => {
                patience::check("the thaw of the volume, or a snapshot")?;
                // The program that froze the volume thaws it.
                let _program = patience::for_a_program();
                self.changes.enter()
            }
            outcome => outcome.ok(),
        };
        admitted.ok_or_else(closing)
    }

    /// As [`Engine::begin_change`], but an error of kind `Busy` while the volume is frozen, that says `what`
    /// has to wait. The caller does not hold [`Engine::frozen`].
    pub(crate) fn begin_change_unless_frozen(&self, what: &str) -> Result<Admitted<'_>> {
        loop {
            self.store.check_writable()?;
            match self.changes.try_enter() {
                Ok(admitted) => return Ok(admitted),
                Err(NotAdmitted::Refused) => return Err(closing()),
                // The thread that keeps changes back holds the mutex, or has frozen the volume.
                Err(NotAdmitted::Held) => {
                    patience::check("the snapshot that is being taken")?;
                    drop(self.not_frozen(what)?);
                }
            }
        }
    }

    /// As [`Engine::begin_change`], if nothing keeps changes back: never waits.
    pub(crate) fn try_begin_change(&self) -> Option<Admitted<'_>> {
        self.store.check_writable().ok()?;
        self.changes.try_enter().ok()
    }
}

fn closing() -> Error {
    Error::new(ErrorKind::Shutdown, "the volume is being closed")
}
