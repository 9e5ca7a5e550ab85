//! YAML text to trees of nodes with exact places (language.md §2). Scanning and grammar are granit-parser's; this
//! module adds the rules of the dialect: string keys, no duplicates, aliases, merge keys, kinds of scalars, and the
//! bounds that keep a hostile text from exhausting memory or the stack. It knows nothing of the keys of a document.

mod build;
pub mod places;
pub mod scalar;

use std::ops::Range;
use std::sync::Arc;

use granit_parser::{ErrorKind, Marker, Parser, ScanError};

use super::diagnostic::{Class, Diagnostic, Position};

/// Deepest nesting of collections. Everything that walks a tree recursively relies on it.
pub const DEPTH_LIMIT: usize = 128;

/// A text and the name it has in messages.
#[derive(Clone, Debug)]
pub struct Source<'t> {
    /// Name in messages.
    pub file: Arc<str>,
    /// The text.
    pub text: &'t str,
}

/// A node of a document.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its first character; of an alias, that of the node it stands for.
    pub at: Position,
    /// What it is.
    pub kind: NodeKind,
}

/// Kinds of nodes. Aliases and merge keys are resolved.
#[derive(Clone, Debug)]
pub enum NodeKind {
    /// Text, number, boolean or null.
    Scalar(Scalar),
    /// A list.
    Sequence(Vec<Node>),
    /// A mapping; keys are unique.
    Mapping(Vec<Entry>),
}

/// A scalar as written; [`scalar::resolve`] tells what it means.
#[derive(Clone, Debug)]
pub struct Scalar {
    /// Its text, escapes resolved.
    pub text: String,
    /// How it is written.
    pub style: Style,
    /// Type forced by a tag.
    pub tag: Option<Tag>,
    /// Bytes of the source that hold it.
    pub raw: Range<usize>,
}

/// How a scalar is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Without quotes.
    Plain,
    /// `'…'`
    Single,
    /// `"…"`
    Double,
    /// `|` or `>`
    Block,
}

/// Tags of scalars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// `!!str` or `!`
    String,
    /// `!!int` or `!!float`
    Number,
    /// `!!bool`
    Boolean,
    /// `!!null`
    Null,
}

/// A key with its value.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// Its value.
    pub value: Node,
}

/// A key of a mapping.
#[derive(Clone, Debug)]
pub struct Key {
    /// Its text.
    pub text: String,
    /// Its first character.
    pub at: Position,
    /// How it is written, for places of templates inside.
    pub style: Style,
    /// Bytes of the source that hold it.
    pub raw: Range<usize>,
}

/// What a text holds.
#[derive(Debug)]
pub struct Stream {
    /// Its documents in order, at most as many as asked for; `None` for one that is broken.
    pub documents: Vec<Option<Node>>,
    /// Everything that is wrong with them as YAML.
    pub diagnostics: Vec<Diagnostic>,
    /// Where a document begins that follows them and holds something.
    pub next: Option<Position>,
    /// The last character.
    pub end: Position,
}

/// Reads the first `limit` documents; of what follows only the beginning is looked at. After a syntax error reading goes on with the
/// next document.
pub fn read(source: &Source<'_>, limit: usize) -> Stream {
    let mut stream =
        Stream { documents: Vec::new(), diagnostics: Vec::new(), next: None, end: end_of(source.text) };
    let mut parser = Parser::new_from_str_with_options(
        source.text,
        granit_parser::options! {
            flow_nesting_limit: DEPTH_LIMIT,
            block_nesting_limit: DEPTH_LIMIT,
        },
    );
    while stream.documents.len() < limit {
        match build::document(&mut parser, source, &mut stream.diagnostics) {
            Ok(Some(node)) => stream.documents.push(Some(node)),
            Ok(None) => break,
            Err(error) => {
                // Nobody reads on in a text that is too large or too deep, however much of it is left.
                let is_over = error.class == Class::Limit;
                stream.diagnostics.push(error);
                stream.documents.push(None);
                if is_over {
                    return stream;
                }
                match parser.proceed_next_document() {
                    Ok(true) => {}
                    Ok(false) | Err(_) => return stream,
                }
            }
        }
    }
    stream.next = build::next_start(&mut parser);
    stream
}

/// Place of a marker of the parser.
fn position(marker: &Marker) -> Position {
    let line = u32::try_from(marker.line()).unwrap_or(u32::MAX);
    let column = u32::try_from(marker.col()).unwrap_or(u32::MAX).saturating_add(1);
    Position { line: line.max(1), column }
}

/// A syntax error as a diagnostic.
fn syntax_error(error: &ScanError, source: &Source<'_>) -> Diagnostic {
    let at = position(error.marker());
    let diagnostic = |class, message: String| Diagnostic::error(class, &source.file, at, message);
    match error.kind() {
        ErrorKind::RecursionLimitExceeded => {
            diagnostic(Class::Limit, format!("YAML nested deeper than {DEPTH_LIMIT}"))
        }
        ErrorKind::UnknownAnchor => {
            diagnostic(Class::Yaml, "alias of an anchor that is not defined before it".to_owned())
        }
        ErrorKind::TabNotAllowed
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabInIndentation
        | ErrorKind::TabAtBlockScalarStart => {
            diagnostic(Class::Yaml, "tabs may not indent".to_owned()).with_help("use spaces")
        }
        ErrorKind::MappingValueNotAllowed => diagnostic(Class::Yaml, error.info())
            .with_help("quote a text that holds \": \", and check the indentation"),
        ErrorKind::UnexpectedCharacter { .. } => {
            diagnostic(Class::Yaml, error.info()).with_help("quote a text that starts with this character")
        }
        _ => diagnostic(Class::Yaml, error.info()),
    }
}

/// The place after the last character.
fn end_of(text: &str) -> Position {
    let mut at = Position::START;
    for character in text.chars() {
        if character == '\n' {
            at = Position { line: at.line.saturating_add(1), column: 1 };
        } else {
            at.column = at.column.saturating_add(1);
        }
    }
    at
}

impl Node {
    /// What it is, in messages.
    pub fn describe(&self) -> &'static str {
        match &self.kind {
            NodeKind::Sequence(_) => "a list",
            NodeKind::Mapping(_) => "a mapping",
            NodeKind::Scalar(scalar) => match scalar::resolve(scalar) {
                scalar::Resolved::Null => "nothing",
                scalar::Resolved::Bool(_) => "a boolean",
                scalar::Resolved::Number(_) | scalar::Resolved::OutOfRange => "a number",
                scalar::Resolved::Text => "a string",
            },
        }
    }

    /// Whether it is null or not written at all.
    pub fn is_null(&self) -> bool {
        matches!(&self.kind, NodeKind::Scalar(scalar) if scalar::resolve(scalar) == scalar::Resolved::Null)
    }
}

#[cfg(test)]
mod tests;
