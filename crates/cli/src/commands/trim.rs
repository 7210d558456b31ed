//! `quire trim`: tells the device of a mounted volume about all free space.
//!
//! The server works through the volume piece by piece, at this command's request ([`crate::server::room`]);
//! so the command sets the pace, and what it has not asked for is not done when it is interrupted.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use quire_base::size;
use quire_fuse::mount;

use crate::arguments::Trim;
use crate::exit::{Failure, Outcome};
use crate::{control, output, places};

/// Discards all free space of a mounted volume and says how much that was.
pub fn run(arguments: &Trim) -> Outcome {
    let dir = places::mounted(&arguments.dir)?.dir;
    // Else the sync might wait for the thaw.
    super::freeze::check_thawed(&dir)?;
    // What has been freed so far is free for the trim, too.
    mount::sync(&dir)?;
    let bar = bar();
    let (mut at, mut discarded, started) = (0, 0, Instant::now());
    loop {
        let [next, bytes, end] = ask(&dir, at)?;
        discarded += bytes;
        bar.set_length(end);
        bar.set_position(next);
        if next >= end {
            break;
        }
        at = next;
        if let Some(rate) = arguments.rate {
            let due = Duration::from_secs_f64(discarded as f64 / rate.max(1) as f64);
            std::thread::sleep(due.saturating_sub(started.elapsed()));
        }
    }
    bar.finish_and_clear();
    output::line(format_args!("{}: {} ({discarded} bytes) discarded", dir.display(), size::show(discarded)));
    Ok(())
}

/// One request: from which byte to go on, how many bytes were discarded, and where the volume ends.
fn ask(dir: &std::path::Path, at: u64) -> Outcome<[u64; 3]> {
    let answer = control::ask(dir, &format!("trim {at}"))?;
    let numbers: Vec<u64> = answer.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    <[u64; 3]>::try_from(numbers)
        .map_err(|_| Failure::new(32, format!("the server of {} did not answer", dir.display())))
}

fn bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {percent:>3}% {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}
