//! libFuzzer's way into [`quire_fuzz::blocks`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| quire_fuzz::blocks::run(input));
