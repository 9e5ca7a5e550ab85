//! Every service either accepts arbitrary bytes as a request to run a job or refuses them with a message. None panics.

#![no_main]

use libfuzzer_sys::fuzz_target;
use step_runner::grpc::check_run;

fuzz_target!(|bytes: &[u8]| {
    let first = check_run(bytes);
    assert_eq!(first, check_run(bytes), "the same bytes are judged in two ways");
    for refusal in first.into_iter().filter_map(Result::err) {
        assert!(!refusal.text.is_empty() && refusal.retry_after.is_none());
    }
});
