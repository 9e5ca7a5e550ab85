//! A GitLab CI job as one steps document (ci.md §1 to §3).
//!
//! Three things describe a job: a `.gitlab-ci.yml` ([`mod@file`]), the payload that a server sends to a runner, and a mapping
//! of keywords. Each becomes a checked [`job::Job`], and [`plan`] makes one request of it. Variables are in
//! [`variables`].
//!
//! The crate is pure: the caller gives files through [`Files`] and facts about the repository as
//! [`Facts`](variables::Facts). Of the project it may name `model` and `lang` only.

mod condition;
mod duration;
pub mod file;
mod files;
mod finding;
pub mod job;
mod node;
mod pattern;
pub mod plan;
mod scalar;
mod settings;
pub mod variables;
mod yaml;

pub use condition::{Condition, Mistake};
pub use files::{Files, ReadError};
pub use node::Place;
pub use pattern::Glob;
pub use settings::{Settings, Strategy};
