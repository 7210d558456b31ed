//! Runs a target over its kept corpus and over seeded mutations of it, with the limits of a fuzzer: no panic,
//! 20 s an input, 2 GiB of memory.
//!
//! A finding is written to `fuzz/artifacts/TARGET/` and named with the command that repeats it.
//!
//! Neighbours: `tests/replay.rs` does this for every target, `src/bin/replay.rs` for chosen inputs.

use crate::Target;
use crate::mutate::mutated;
use quire_base::random::Random;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long one input may take.
pub const TIMEOUT: Duration = Duration::from_secs(20);
/// Memory that the process may have taken, in bytes.
pub const RESIDENT_BYTES_MAX: u64 = 2 << 30;

/// What a replay did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Replayed {
    /// Inputs of the corpus.
    pub kept: usize,
    /// Mutations of them.
    pub mutations: usize,
    /// The longest that an input took.
    pub slowest: Duration,
}

fn folder(part: &str, target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(part).join(target.name)
}

/// The kept inputs of a target, in the order of their names.
pub fn corpus(target: &Target) -> std::io::Result<Vec<Vec<u8>>> {
    let mut paths = std::fs::read_dir(folder("corpus", target))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<Vec<_>>>()?;
    paths.sort();
    paths.iter().map(std::fs::read).collect()
}

/// Runs the corpus, then `mutations` inputs made from it and `seed`. Errors are findings, in words.
pub fn replay(target: &Target, mutations: usize, seed: u64) -> Result<Replayed, String> {
    let corpus = corpus(target).map_err(|error| format!("the corpus of {}: {error}", target.name))?;
    if corpus.is_empty() {
        return Err(format!("{} has no corpus", target.name));
    }
    let mut random = Random::seeded(seed);
    let mutations = (0..mutations).map(|_| mutated(&corpus, &mut random, target.input_bytes_max));
    let mut done = Replayed { kept: corpus.len(), mutations: mutations.len(), ..Replayed::default() };
    for input in corpus.iter().cloned().chain(mutations) {
        let took = run_guarded(target, &input)?;
        done.slowest = done.slowest.max(took);
    }
    Ok(done)
}

/// Runs one input within the limits.
pub fn run_guarded(target: &Target, input: &[u8]) -> Result<Duration, String> {
    let begun = Instant::now();
    let (ended, wait) = channel::<()>();
    let outcome = std::thread::scope(|scope| {
        // A hang cannot be unwound: the watchdog ends the process.
        scope.spawn(|| {
            let wait = wait;
            if wait.recv_timeout(TIMEOUT) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{}", found(target, input, "takes more than 20 s"));
                std::process::abort();
            }
        });
        let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
        drop(ended);
        outcome
    });
    if outcome.is_err() {
        return Err(found(target, input, "panics"));
    }
    if resident_bytes_peak() > RESIDENT_BYTES_MAX {
        return Err(found(target, input, "or one before it takes more than 2 GiB"));
    }
    Ok(begun.elapsed())
}

fn found(target: &Target, input: &[u8], what: &str) -> String {
    let folder = folder("artifacts", target);
    let path = folder.join(format!("replay-{:08x}", crc32c::crc32c(input)));
    let kept = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, input));
    let place = kept.map_or_else(|error| format!("{input:02x?} ({error})"), |()| path.display().to_string());
    let name = target.name;
    format!("{name}: an input {what}; again with: cargo run -p quire-fuzz --bin replay -- {name} {place}")
}

/// The most memory that this process has had, in bytes; 0 where the system does not tell.
fn resident_bytes_peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()).unwrap_or(0) << 10
}
