//! Plans an invocation: source, inputs and environment of its function, and return values (language.md §5, §7, §10–§13,
//! §16, §17).
//!
//! Pure functions on top of [`step_runner_lang`]. [`crate::job::machine`] calls them in order and owns all lasting state.

pub(crate) mod bind;
pub mod builtin;
pub mod check;
pub mod definition;
pub(crate) mod library;
pub mod locate;
pub(crate) mod matrix;
pub mod outline;
pub(crate) mod returned;
pub(crate) mod script_legacy;
pub(crate) mod secrets;
