//! libFuzzer's way into [`quire_fuzz::values`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| quire_fuzz::values::run(input));
