//! Passes arbitrary client bytes through the filter in front of the HTTP/2 library. The result does not depend on how
//! the bytes are cut into pieces.

#![no_main]

use libfuzzer_sys::fuzz_target;
use step_runner::grpc::check_frames;

fuzz_target!(|input: (u8, &[u8])| {
    let (piece, bytes) = input;
    let whole = check_frames(bytes, usize::MAX);
    assert!(whole.as_ref().is_none_or(|passed| passed.len() <= bytes.len() + 10));
    assert_eq!(whole, check_frames(bytes, usize::from(piece)));
});
