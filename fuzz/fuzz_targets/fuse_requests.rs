//! libFuzzer's way into [`quire_fuzz::fuse_requests`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| quire_fuzz::fuse_requests::run(input));
