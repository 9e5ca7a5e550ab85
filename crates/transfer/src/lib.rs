//! Fetches functions, sources, caches and artifacts for jobs, and publishes images of functions.
//!
//! - [`fetch`] brings the functions that steps name, from Git, registries and this machine, and keeps them in a cache;
//! - [`oci`] is the client of registries;
//! - [`builtin`] is the work of a step's own process, `step-runner builtin NAME`: images of functions, and sources, caches
//!   and artifacts of a CI job.
//!
//! The crate knows no actor and no record of a job. What goes over the network goes through the crate `web`.

pub mod builtin;
pub mod fetch;
pub mod oci;
