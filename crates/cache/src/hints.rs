//! Hints of callers about their use of a file: readahead, and data that need not be kept.
//!
//! *Let go*: a folio that is clean and idle leaves at once; one with blocks to be written is marked as
//! fleeting, and leaves when its writeback has finished ([`crate::finish`]). A use that is not to be kept
//! lets only those go that are on trial ([`crate::reclaim`]): what others use often stays.
//!
//! Neighbours: fs translates advice and flags of calls into these.

use crate::folio::FolioPin;
use crate::index::{BLOCKS_END, Pins};
use crate::mapping::Mapping;
use crate::reclaim;
use quire_base::sync::atomic::{AtomicU8, Ordering};
use quire_base::units::blocks_for;
use quire_base::{BLOCK_SIZE, Result};

/// How a file is going to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pattern {
    /// As it turns out.
    #[default]
    Normal,
    /// From front to back: readahead at once, and twice as far.
    Sequential,
    /// Here and there: no readahead.
    Random,
}

/// A mapping's [`Pattern`], as a word.
#[derive(Default)]
pub(crate) struct PatternCell(AtomicU8);

impl PatternCell {
    pub fn get(&self) -> Pattern {
        match self.0.load(Ordering::Relaxed) {
            1 => Pattern::Sequential,
            2 => Pattern::Random,
            _ => Pattern::Normal,
        }
    }
    fn set(&self, pattern: Pattern) {
        self.0.store(pattern as u8, Ordering::Relaxed);
    }
}

/// Folios looked at with one visit to the index.
const FOLIOS_AT_ONCE: usize = 64;

impl Mapping {
    /// Says how the file is going to be read, by whomever.
    pub fn expect(&self, pattern: Pattern) {
        self.pattern.set(pattern);
    }

    /// Starts reading bytes `[start, end)` in, as far as they lie in the file and a 16th of the cache holds
    /// them, and does not wait for it. The caller holds the gate.
    pub fn read_ahead(&self, start: u64, end: u64) -> Result<()> {
        let batch = self.core.config.batch_bytes as u64;
        let most = self.core.budget.limit() / 16;
        let end = end.min(self.backing()?.size()).min(start.saturating_add(most));
        let mut at = start;
        while at < end {
            let stop = (at - at % batch + batch).min(end);
            let (first, last) = (at / BLOCK_SIZE as u64, blocks_for(stop));
            let mut pins = Pins::new();
            self.make_ahead(first, last, &mut pins);
            self.fill(&Pins::new(), first, first, Some((&pins, last)))?;
            at = stop;
        }
        Ok(())
    }

    /// Lets blocks `[first, end)` go, that is folios which end in there: dirty ones when they have been
    /// written, which this does not start.
    pub fn drop_behind(&self, first: u64, end: u64) {
        self.drop_matching(first, end, |_| true);
    }

    /// As [`Mapping::drop_behind`], after a use that is not to be kept.
    pub fn drop_behind_used(&self, first: u64, end: u64) {
        self.drop_matching(first, end, |pin| reclaim::is_on_trial(pin));
    }

    fn drop_matching(&self, first: u64, end: u64, leaves: impl Fn(&FolioPin) -> bool) {
        let end = end.min(BLOCKS_END);
        let mut from = first;
        while from < end {
            let mut pins = Pins::new();
            self.index.pin_some(self.number, from, end, FOLIOS_AT_ONCE, &mut pins);
            let Some(last) = pins.last() else { return };
            from = last.end_block();
            for pin in pins {
                if pin.end_block() > end || !leaves(&pin) {
                    continue;
                }
                // Before the look at what is unfinished: who finishes it later sees the mark.
                pin.fleeting.store(true, Ordering::SeqCst);
                if !pin.listed.load(Ordering::SeqCst) {
                    self.remove(pin.start(), pin.folio(), 1);
                }
            }
        }
    }
}
