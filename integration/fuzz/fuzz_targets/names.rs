#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| holdfast_repo::fuzzing::run("names", bytes));
