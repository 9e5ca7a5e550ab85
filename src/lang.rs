//! The step language: text to syntax tree to typed values (language.md).
//!
//! Pure: no file system, clock or environment. A file's text comes in, a [`ast::Function`] or *all* its
//! [`diagnostic::Diagnostic`]s come out; a [`ast::Template`] and a scope come in, a [`value::Value`] comes out.

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
pub mod template;
pub mod value;
pub mod yaml;
