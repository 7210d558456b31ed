//! Replay of any ring: it ends, gives records in order, and finds no more than there is.
//!
//! Input: see [`quire_journal::fuzz::fuzz_replay`].

/// Runs one input.
pub fn run(input: &[u8]) {
    drop(quire_journal::fuzz::fuzz_replay(input));
}
