//! Followers get every byte of a log once, masked, to the end (logs.md, masking.md §7).

mod content;
mod followers;
mod masking;

use step_runner::pb::v1;

fn masking(phrases: &[&str]) -> v1::Masking {
    v1::Masking { phrases: phrases.iter().map(|&phrase| phrase.to_owned()).collect(), token_prefixes: vec![] }
}
