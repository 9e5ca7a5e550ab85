//! Refusals of the supervisor that a client may retry.

use std::time::Duration;

use crate::error::Chain;
use crate::model::{Reason, Refusal};
use crate::store::StoreError;

/// Suggested delay before a client retries a temporary refusal.
pub(super) const RETRY: Duration = Duration::from_secs(1);

pub(super) fn store_refusal(error: &StoreError) -> Refusal {
    refusal(error.reason(), Chain(error).to_string())
}

/// Builds a refusal, with a retry delay if a retry may help.
pub(super) fn refusal(reason: Reason, text: String) -> Refusal {
    Refusal { retry_after: reason.may_pass().then_some(RETRY), ..Refusal::new(reason, text) }
}
