//! libFuzzer's way into [`quire_fuzz::journal_ring`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| quire_fuzz::journal_ring::run(input));
