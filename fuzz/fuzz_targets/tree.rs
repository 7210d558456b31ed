//! libFuzzer's way into [`quire_fuzz::tree`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| quire_fuzz::tree::run(input));
