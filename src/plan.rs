//! What an invocation comes to: where its function is found, what it is given, which environment it sees, what it
//! returned (language.md §5, §7, §10–§13, §16, §17).
//!
//! Pure functions over [`crate::lang`]; the order in which they are used, and everything that lasts, is the business of
//! [`crate::job::machine`].

pub mod bind;
pub mod builtin;
pub mod check;
pub mod definition;
pub mod library;
pub mod locate;
pub mod returned;
pub mod script_legacy;
pub mod secrets;
