//! `quire trim`: tells the device of a mounted volume about all free space.
//!
//! The server works through the volume piece by piece, at this command's request ([`crate::server::room`]);
//! so the command sets the pace, and what it has not asked for is not done when it is interrupted.

use std::time::{Duration, Instant};

use quire_base::size;
use quire_fuse::mount;

use crate::arguments::Trim;
use crate::exit::{self, Failure, Outcome};
use crate::{control, output, places};

/// Less than this at a time would be discards of single blocks.
const RATE_MIN: u64 = 64 << 10;
/// Requests in which the bytes of a second are discarded.
const PIECES_A_SECOND: u64 = 10;

/// Discards all free space of a mounted volume and says how much that was.
pub fn run(arguments: &Trim) -> Outcome {
    if arguments.rate.is_some_and(|rate| rate < RATE_MIN) {
        return Err(Failure::usage(format!("--rate: at least {} a second", size::show(RATE_MIN))));
    }
    let dir = places::mounted(&arguments.dir)?.dir;
    // Else the sync might wait for the thaw.
    super::freeze::check_thawed(&dir)?;
    // What has been freed so far is free for the trim, too.
    mount::sync(&dir)?;
    // Short pieces, so that the device is never busy for long.
    let most = arguments.rate.map_or(u64::MAX, |rate| (rate / PIECES_A_SECOND).max(RATE_MIN));
    let bar = output::bar(true, "{bar:40} {percent:>3}% {elapsed}");
    let (mut at, mut discarded, started) = (0, 0, Instant::now());
    loop {
        let [next, bytes, end] = ask(&dir, at, most)?;
        discarded += bytes;
        bar.set_length(end);
        bar.set_position(next);
        if let Some(rate) = arguments.rate {
            let due = Duration::from_secs_f64(discarded as f64 / rate as f64);
            std::thread::sleep(due.saturating_sub(started.elapsed()));
        }
        if next >= end {
            break;
        }
        at = next;
    }
    bar.finish_and_clear();
    output::line(format_args!("{}: {} ({discarded} bytes) discarded", dir.display(), size::show(discarded)));
    Ok(())
}

/// One request, for `most` bytes of the volume from `at` on: from which byte to go on, how many bytes were
/// discarded, and where the volume ends.
fn ask(dir: &std::path::Path, at: u64, most: u64) -> Outcome<[u64; 3]> {
    let answer = control::ask_patiently(dir, &format!("trim {at} {most}"))?;
    let numbers: Vec<u64> = answer.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    <[u64; 3]>::try_from(numbers)
        .map_err(|_| Failure::new(exit::FAILED, format!("the server of {} did not answer", dir.display())))
}
