//! Replay of any ring: it ends, and keeps its promises.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| drop(quire_journal::fuzz::fuzz_replay(input)));
