//! Where a job runs: which environment an entry has, what a job may ask of it, and what is left over (agent.md §8).
//!
//! Decisions only. The programs of an engine or cluster are run by the caller.

mod address;
mod credentials;
mod failure;
mod orphans;
mod rules;
mod services;

pub use address::{Address, BadAddress};
pub use credentials::{AuthFile, Login, registry_of};
pub use failure::{PULL_WAITS, PullFailure, Pulls, pull_failure};
pub use orphans::{Found, JOB_LABEL, ROLE_LABEL, STATE_LABEL, labels, orphans};
pub use rules::{
    Asked, ImagePolicy, Overwrite, PullPolicy, Rules, image, images, is_allowed, is_reference, overwritten,
    pull_policies, user,
};
pub use services::aliases;
