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
use quire_base::{BLOCK_SIZE, Result, memory};
use quire_device::AlignedBuf;
use std::thread;

/// Bytes that are touched between two looks at Ctrl-C.
const PIECE: u64 = 64 << 20;

/// Touches as much free memory as a workload with so many bytes on the device can use, and frees it.
///
/// At most three quarters of what is available. In a control group with a limit it touches nothing: the
/// kernel could kill a run whose group already holds much.
pub fn warm(device_bytes: u64, surroundings: &Surroundings<'_>) -> Outcome {
    if memory::usable_bytes() < memory::machine_bytes() {
        return Ok(());
    }
    surroundings.progress.phase("touching memory");
    let pieces = device_bytes.min(machine::available_bytes() / 4 * 3) / PIECE;
    let threads = thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let parts = (0..threads).map(|thread| -> Part<'_, Vec<AlignedBuf>> {
        let share = (thread..pieces).step_by(threads as usize).count();
        Box::new(move |stage: &Stage| touch(share, stage))
    });
    // All is held until all is touched, so that no page is touched twice.
    drive(surroundings, Until::Done(pieces), parts.collect()).map(drop)
}

/// Touches so many pieces, or fewer when the stage is over.
fn touch(pieces: usize, stage: &Stage) -> Result<Vec<AlignedBuf>> {
    let mut touched = Vec::new();
    while touched.len() < pieces && !stage.is_over() {
        let mut piece = AlignedBuf::try_zeroed(PIECE as usize)?;
        // An allocator may know that fresh pages are zeros, and store nothing.
        piece.chunks_mut(BLOCK_SIZE).for_each(|page| page[0] = 1);
        touched.push(piece);
        stage.advance(1);
    }
    Ok(touched)
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
        let room = machine::available_bytes() / 4 * 3 > 3 * PIECE;
        if !room || memory::usable_bytes() < memory::machine_bytes() {
            eprintln!("SKIPPED: too little memory, or a control group with a limit");
            return;
        }
        let peak = || resident_peak_bytes(std::process::id()).unwrap();
        reset_resident_peak(std::process::id());
        warm(3 * PIECE, &surroundings).unwrap();
        assert!(peak() >= 3 * PIECE, "{}", peak());
        interrupt.raise();
        assert!(matches!(warm(3 * PIECE, &surroundings), Err(Trouble::Interrupted)));
    }

    /// A thread that has touched a piece before it sees Ctrl-C is in order; one that goes on is not.
    #[test]
    fn nothing_is_touched_after_the_end() {
        let (interrupt, progress) = (Interrupt::none(), Progress::hidden());
        let surroundings = Surroundings { interrupt: &interrupt, progress: &progress };
        let part = |stage: &Stage| {
            stage.end();
            touch(3, stage)
        };
        let (touched, _) = drive(&surroundings, Until::Done(3), vec![Box::new(part)]).unwrap();
        assert!(touched[0].is_empty());
    }
}
