//! libFuzzer's way into [`quire_fuzz::stream`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| quire_fuzz::stream::run(input));
