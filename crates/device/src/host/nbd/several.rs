//! Several connections that serve as one session.
//!
//! One connection is one socket with one thread on either side. Where the server says that a flush over any
//! connection covers what was answered on all (`NBD_FLAG_CAN_MULTI_CONN`), requests go over several in turn,
//! in no order: that is all that [`Session`] promises.
//!
//! The first connection that breaks ends the session: its requests are answered with `Broken`, and the layer
//! above closes the others and writes again what no flush has covered.
//!
//! Neighbours: `session` is one of them.

use super::session::NbdSession;
use crate::reconnecting::{Answered, Request, Session};
use quire_base::sync::atomic::{AtomicUsize, Ordering};

/// See the module's documentation.
pub(super) struct Several {
    /// At least one, all with the same export.
    sessions: Vec<NbdSession>,
    next: AtomicUsize,
}

impl Several {
    pub(super) fn new(sessions: Vec<NbdSession>) -> Several {
        assert!(!sessions.is_empty());
        Several { sessions, next: AtomicUsize::new(0) }
    }
}

impl Session for Several {
    fn submit(&self, request: Request, answered: Answered) {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        self.sessions[turn % self.sessions.len()].submit(request, answered);
    }

    fn blocks(&self) -> u64 {
        self.sessions[0].blocks()
    }

    fn close(&self) {
        self.sessions.iter().for_each(NbdSession::close);
    }
}
