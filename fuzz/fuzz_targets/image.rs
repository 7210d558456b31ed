//! libFuzzer's way into [`quire_fuzz::image`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| quire_fuzz::image::run(input));
