//! libFuzzer's way into [`quire_fuzz::nbd_address`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| quire_fuzz::nbd_address::run(input));
