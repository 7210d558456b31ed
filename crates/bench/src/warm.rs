//! Memory that is there before an engine needs it.
//!
//! A virtual machine may have no memory behind its free pages: what was never touched, or was freed and
//! reported, comes from the host at the first store, twenty times as slowly as other free memory. The first
//! engine of a list would pay for that, and an engine that gives its memory back would pay for it again.
//!
//! Neighbours: [`crate::run`] calls it before each engine.

use crate::drive::{Part, Stage, Surroundings, Until, drive};
use crate::outcome::Outcome;
use crate::report::machine;
use quire_base::memory;
use quire_device::AlignedBuf;
use std::thread;

/// Bytes that are touched between two looks at Ctrl-C.
const PIECE: u64 = 64 << 20;

/// Touches as much free memory as a workload with so many bytes on the device can use, and frees it.
///
/// At most three quarters of what this process may use, the largest cache that an engine gets, and of what is
/// available, so that nobody loses memory.
pub fn warm(device_bytes: u64, surroundings: &Surroundings<'_>) -> Outcome {
    surroundings.progress.phase("touching memory");
    let least = memory::usable_bytes().min(machine::available_bytes());
    let pieces = device_bytes.min(least / 4 * 3) / PIECE;
    let threads = thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let parts = (0..threads).map(|thread| -> Part<'_, Vec<AlignedBuf>> {
        Box::new(move |stage: &Stage| {
            let mut touched = Vec::new();
            for _ in (thread..pieces).step_by(threads as usize) {
                if stage.is_over() {
                    break;
                }
                // Zeroing stores to every page.
                touched.push(AlignedBuf::try_zeroed(PIECE as usize)?);
                stage.advance(1);
            }
            Ok(touched)
        })
    });
    // All is held until all is touched, so that no page is touched twice.
    drive(surroundings, Until::Done(pieces), parts.collect()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupt::Interrupt;
    use crate::outcome::Trouble;
    use crate::progress::Progress;
    use crate::report::machine::{reset_resident_peak, resident_peak_bytes};

    #[test]
    fn memory_is_touched_until_somebody_interrupts() {
        let (interrupt, progress) = (Interrupt::none(), Progress::hidden());
        let surroundings = Surroundings { interrupt: &interrupt, progress: &progress };
        reset_resident_peak(std::process::id());
        warm(3 * PIECE, &surroundings).unwrap();
        let peak = resident_peak_bytes(std::process::id()).unwrap();
        assert!(peak >= 3 * PIECE, "{peak}");
        interrupt.raise();
        assert!(matches!(warm(3 * PIECE, &surroundings), Err(Trouble::Interrupted)));
    }
}
