//! Plans an invocation: source, inputs and environment of its function, and return values (language.md §5, §7, §10–§13,
//! §16, §17).
//!
//! Pure functions on top of [`step_runner_lang`]. [`crate::job::machine`] calls them in order and owns all lasting state.

pub mod bind;
pub mod builtin;
pub mod check;
pub mod definition;
pub mod library;
pub mod locate;
pub mod returned;
pub mod script_legacy;
pub mod secrets;
