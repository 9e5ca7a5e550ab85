//! The step language: text to syntax tree to typed values (language.md).
//!
//! Owns the syntax of files, templates and expressions, their values, and the schema of a file. It turns a file's text
//! into an [`ast::Function`] or *all* its [`diagnostic::Diagnostic`]s, and an [`ast::Template`] with a scope into a
//! [`value::Value`].
//!
//! The crate is pure: it may use no file system, clock, environment or runtime, and of the project only the crate
//! `model`.

pub mod ast;
pub mod convert;
pub mod diagnostic;
pub mod document;
pub mod environment;
pub mod eval;
pub mod expression;
pub mod extent;
mod injection;
pub mod name;
pub mod output_file;
mod print;
pub mod reference;
pub mod schema;
mod shell;
pub mod template;
pub mod value;
pub mod yaml;
