#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| holdfast_postgres::fuzz_decode(bytes));
