//! Telling the caller how far a check is, without calling it for every step.

use crate::Progress;

/// Steps between two calls.
const STRIDE: u64 = 1024;

/// Counts the steps of one phase.
pub(crate) struct Meter<'a> {
    tell: Option<&'a dyn Fn(Progress)>,
    phase: &'static str,
    done: u64,
    total: u64,
}

impl<'a> Meter<'a> {
    /// Begins a phase of about `total` steps (0: unknown).
    pub(crate) fn start(tell: Option<&'a dyn Fn(Progress)>, phase: &'static str, total: u64) -> Meter<'a> {
        let meter = Meter { tell, phase, done: 0, total };
        meter.show();
        meter
    }

    /// Notes steps.
    pub(crate) fn advance(&mut self, steps: u64) {
        let before = self.done / STRIDE;
        self.done += steps;
        if self.done / STRIDE != before {
            self.show();
        }
    }

    fn show(&self) {
        if let Some(tell) = self.tell {
            tell(Progress { phase: self.phase, done: self.done, total: self.total.max(self.done) });
        }
    }
}

impl Drop for Meter<'_> {
    fn drop(&mut self) {
        self.total = self.done;
        self.show();
    }
}
