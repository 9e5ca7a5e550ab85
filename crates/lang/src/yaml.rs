//! Parses YAML text to trees of nodes with exact places (language.md §2). granit-parser does scanning and grammar. This
//! module adds the rules of the dialect (string keys, no duplicates, aliases, merge keys, types of scalars) and bounds
//! that keep a hostile text from exhausting memory or the stack. It does not know the keys of a document.

mod build;
mod indentation;
pub(crate) mod places;
pub mod scalar;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use granit_parser::{ErrorKind, Marker, Parser, ScanError};
use indentation::Indentation;

use super::diagnostic::{Class, Diagnostic, Position};

/// Deepest nesting of collections. All recursive walks over trees rely on it.
pub(crate) const DEPTH_LIMIT: usize = 128;

/// A text and its name in messages.
#[derive(Clone, Debug)]
pub struct Source<'t> {
    /// Name in messages.
    pub file: Arc<str>,
    /// The text.
    pub text: &'t str,
}

/// A node of a document.
#[derive(Clone, Debug)]
pub struct YamlNode {
    /// Place of its first character. For an alias: the place of the node it stands for.
    pub at: Position,
    /// Kind and content.
    pub kind: NodeKind,
    /// Tag of a list, if it is one that the caller of [`read_with_tags`] knows.
    pub tag: Option<&'static str>,
}

/// Kinds of nodes. Aliases and merge keys are resolved.
#[derive(Clone, Debug)]
pub enum NodeKind {
    /// Text, number, boolean or null.
    Scalar(Scalar),
    /// A list.
    Sequence(Vec<YamlNode>),
    /// A mapping; keys are unique.
    Mapping(Vec<YamlEntry>),
}

/// A scalar as written; [`scalar::resolve`] finds its meaning.
#[derive(Clone, Debug)]
pub struct Scalar {
    /// Text with escapes resolved.
    pub text: String,
    /// Notation in the source.
    pub(crate) style: Style,
    /// Type forced by a tag.
    pub(crate) tag: Option<Tag>,
    /// Bytes of the source that hold the scalar.
    pub(crate) raw: Range<usize>,
}

/// Notation of a scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
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
pub(crate) enum Tag {
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
pub struct YamlEntry {
    /// The key.
    pub key: YamlKey,
    /// Its value.
    pub value: YamlNode,
}

/// A key of a mapping.
#[derive(Clone, Debug)]
pub struct YamlKey {
    /// Text of the key.
    pub text: String,
    /// Place of its first character.
    pub at: Position,
    /// Notation in the source, needed for places of templates inside.
    pub(crate) style: Style,
    /// Bytes of the source that hold the key.
    pub(crate) raw: Range<usize>,
}

/// Content of a text.
#[derive(Debug)]
pub struct Stream {
    /// Its documents in order, at most as many as requested. A broken document is `None`.
    pub documents: Vec<Option<YamlNode>>,
    /// All YAML errors in them.
    pub diagnostics: Vec<Diagnostic>,
    /// Start of the next document after them, if it is not empty.
    pub(crate) next: Option<Position>,
    /// Place after the last character.
    pub end: Position,
}

/// Reads the first `limit` documents and the beginning of the next one. Goes on with the next after a syntax error.
pub fn read(source: &Source<'_>, limit: usize) -> Stream {
    read_with_tags(source, limit, &[])
}

/// Reads as [`read`] does, but accepts `tags` at lists and keeps them in [`YamlNode::tag`].
pub fn read_with_tags(source: &Source<'_>, limit: usize, tags: &[&'static str]) -> Stream {
    let mut stream =
        Stream { documents: Vec::new(), diagnostics: Vec::new(), next: None, end: end_of(source.text) };
    let text = with_marks_aside(source.text);
    let mut parser = Parser::new_from_str_with_options(
        &text,
        granit_parser::options! {
            flow_nesting_limit: DEPTH_LIMIT,
            block_nesting_limit: DEPTH_LIMIT,
        },
    );
    while stream.documents.len() < limit {
        match build::document(&mut parser, source, tags, &mut stream.diagnostics) {
            Ok(Some(node)) => stream.documents.push(Some(node)),
            Ok(None) => break,
            Err(error) => {
                // Stop at a text that is too large or too deep: the rest may be long.
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

/// Puts blanks in place of each byte order mark at the start of a document that is not the first, behind its `---`. Files
/// that were joined have such marks, and the parser accepts a mark only where no document is open. All other bytes stay
/// where they are.
fn with_marks_aside(text: &str) -> Cow<'_, str> {
    const MARK: char = '\u{feff}';
    const BLANKS: &str = "   ";
    const LINE_END: [char; 2] = ['\r', '\n'];
    const { assert!(BLANKS.len() == MARK.len_utf8()) };
    if !text.trim_start_matches(MARK).contains(MARK) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut previous = "";
    for line in text.split_inclusive('\n') {
        match line.strip_prefix(MARK) {
            Some(rest) if begins_document(previous) => {
                out.insert_str(out.trim_end_matches(LINE_END).len(), BLANKS);
                out.push_str(rest);
            }
            Some(rest) if !out.is_empty() && begins_document(rest) => {
                let (content, end) = rest.split_at(rest.trim_end_matches(LINE_END).len());
                out.extend([content, BLANKS, end]);
            }
            _ => out.push_str(line),
        }
        previous = line.trim_start_matches(MARK);
    }
    Cow::Owned(out)
}

/// True if a line is the `---` before a document.
fn begins_document(line: &str) -> bool {
    line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

fn position(marker: &Marker) -> Position {
    let line = u32::try_from(marker.line()).unwrap_or(u32::MAX);
    let column = u32::try_from(marker.col()).unwrap_or(u32::MAX).saturating_add(1);
    Position { line: line.max(1), column }
}

fn syntax_error(error: &ScanError, source: &Source<'_>) -> Diagnostic {
    let at = position(error.marker());
    let structure = is_about_structure(error.kind());
    let indentation = structure.then(|| indentation::of_line(source.text, at.line)).flatten();
    if let Some(Indentation { at, fits: false, help }) = indentation {
        return Diagnostic::error(Class::Yaml, &source.file, at, "the indentation does not fit")
            .with_help(help);
    }
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
        ErrorKind::UnclosedQuotedScalar | ErrorKind::DocumentIndicatorInQuotedScalar => {
            diagnostic(Class::Yaml, "a quote before this place is not closed".to_owned())
                .with_help("close it")
        }
        ErrorKind::InvalidQuotedScalarIndent => {
            let message = "a quote before this place is not closed, or its text is indented too little";
            diagnostic(Class::Yaml, message.to_owned())
                .with_help("close it, or indent each line of its text more than its key")
        }
        ErrorKind::UnexpectedCharacter { character: '\0' } => {
            diagnostic(Class::Yaml, "a NUL byte".to_owned())
                .with_help("remove it: neither YAML nor a command can hold one")
        }
        ErrorKind::UnexpectedCharacter { .. } => {
            diagnostic(Class::Yaml, error.info()).with_help("quote a text that starts with this character")
        }
        _ => Diagnostic {
            help: indentation.map(|indentation| indentation.help),
            ..diagnostic(Class::Yaml, error.info())
        },
    }
}

/// True for errors that a wrong indentation can cause.
const fn is_about_structure(error: &ErrorKind) -> bool {
    matches!(
        error,
        ErrorKind::ExpectedBlockMappingKey
            | ErrorKind::ExpectedBlockSequenceEntry
            | ErrorKind::ExpectedDocumentStart
            | ErrorKind::InvalidIndentation
            | ErrorKind::SimpleKeyExpected
            | ErrorKind::InvalidSimpleKey
            | ErrorKind::BlockSequenceEntryNotAllowed
            | ErrorKind::InvalidBlockScalarIndent
            | ErrorKind::InvalidFlowScalarIndent
            | ErrorKind::MappingKeyNotAllowed
            | ErrorKind::MappingValueNotAllowed
    )
}

/// Returns the place after the last character.
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

impl Scalar {
    /// True if quotes, a block or a tag make it text, whatever it looks like.
    pub fn is_quoted(&self) -> bool {
        self.tag.map_or(self.style != Style::Plain, |tag| tag == Tag::String)
    }
}

impl YamlNode {
    /// Returns the kind of node for messages.
    pub(crate) fn describe(&self) -> &'static str {
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

    /// True if it is null or not written at all.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.kind, NodeKind::Scalar(scalar) if scalar::resolve(scalar) == scalar::Resolved::Null)
    }
}

#[cfg(test)]
mod tests;
