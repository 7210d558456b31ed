//! libFuzzer's way into [`quire_fuzz::operations`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| quire_fuzz::operations::run(input));
