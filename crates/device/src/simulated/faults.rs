//! Errors on order: a fault says which operations fail, from which on, how often, and with what.

use crate::backend::IoClass;
use quire_base::{BlockNo, Error, ErrorKind};
use std::ops::Range;

/// What kind of operation a fault meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultOp {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
    /// Discards.
    Discard,
}

/// A rule that makes matching operations fail. Built by [`Fault::on`] and refined:
/// `Fault::on(FaultOp::Write).class(IoClass::Journal).after(3).times(1)`.
#[derive(Clone, Debug)]
pub struct Fault {
    op: FaultOp,
    class: Option<IoClass>,
    region: Option<Range<u64>>,
    skip: u64,
    times: u64,
    kind: ErrorKind,
}

impl Fault {
    /// The next such operation fails with [`ErrorKind::Io`], once.
    pub fn on(op: FaultOp) -> Fault {
        Fault { op, class: None, region: None, skip: 0, times: 1, kind: ErrorKind::Io }
    }

    /// Only operations of this class (flushes and discards have none).
    pub fn class(self, class: IoClass) -> Fault {
        Fault { class: Some(class), ..self }
    }

    /// Only operations that touch these blocks.
    pub fn region(self, blocks: Range<u64>) -> Fault {
        Fault { region: Some(blocks), ..self }
    }

    /// Lets the first `skip` matching operations pass.
    pub fn after(self, skip: u64) -> Fault {
        Fault { skip, ..self }
    }

    /// Fails so many matching operations, then is spent; `u64::MAX` for ever.
    pub fn times(self, times: u64) -> Fault {
        Fault { times, ..self }
    }

    /// The kind of error; [`ErrorKind::NoSpace`] is a full host.
    pub fn kind(self, kind: ErrorKind) -> Fault {
        Fault { kind, ..self }
    }

    /// Whether this operation fails; counts it if it matches.
    pub(super) fn strikes(
        &mut self,
        op: FaultOp,
        class: Option<IoClass>,
        at: BlockNo,
        count: u64,
    ) -> Option<Error> {
        let touches = self.region.as_ref().is_none_or(|r| at.0 < r.end && r.start < at.0 + count);
        if op != self.op || !touches || (self.class.is_some() && self.class != class) {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        if self.times == 0 {
            return None;
        }
        if self.times != u64::MAX {
            self.times -= 1;
        }
        let place = if op == FaultOp::Flush { String::new() } else { format!(" at block {at}") };
        Some(Error::new(self.kind, format!("simulated {op:?} error{place}")))
    }

    pub(super) fn is_spent(&self) -> bool {
        self.times == 0
    }
}
