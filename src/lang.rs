//! The step language: text to syntax tree to typed values (language.md).
//!
//! The module is pure: it uses no file system, clock or environment. It turns a file's text into an [`ast::Function`]
//! or *all* its [`diagnostic::Diagnostic`]s, and an [`ast::Template`] with a scope into a [`value::Value`].

pub mod ast;
pub mod convert;
pub mod diagnostic;
pub mod document;
pub mod environment;
pub mod eval;
pub mod expression;
pub mod extent;
pub mod name;
pub mod output_file;
pub mod reference;
pub mod schema;
mod shell;
pub mod template;
pub mod value;
pub mod yaml;
