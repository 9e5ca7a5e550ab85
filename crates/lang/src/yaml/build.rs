//! Builds trees from parser events. Works without recursion, so nested text cannot exhaust the stack.

use std::collections::{HashMap, HashSet};

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, Tag as RawTag};
use step_runner_model::text;

use super::{
    DEPTH_LIMIT, NodeKind, Scalar, Source, Style, Tag, YamlEntry, YamlKey, YamlNode, position, scalar,
    syntax_error,
};
use crate::diagnostic::{Class, Diagnostic, Position};

/// Largest weight of all nodes of a document, copies by aliases included. It bounds the memory for a short text that
/// unfolds and for a long one of many small values.
const WEIGHT_LIMIT: usize = 64 * 1024 * 1024;
/// Weight of a node without its text. It includes everything made from the node later.
const NODE_WEIGHT: usize = 256;
/// Maximum number of errors kept of one text, over all its documents.
const FINDINGS_LIMIT: usize = 1_000;

/// Reads the next document; `None` at the end of the text. An `Err` ends the document, a diagnostic does not.
pub(super) fn document<'t>(
    parser: &mut Parser<'t, StrInput<'t>>,
    source: &Source<'_>,
    tags: &[&'static str],
    diagnostics: &mut Vec<Diagnostic>,
) -> Result<Option<YamlNode>, Diagnostic> {
    let mut builder = Builder {
        source,
        tags,
        diagnostics,
        stack: Vec::new(),
        root: None,
        anchors: HashMap::new(),
        weight: 0,
    };
    while let Some(event) = parser.next_event() {
        let (event, span): (Event<'t>, Span) =
            event.map_err(|error: ScanError| syntax_error(&error, source))?;
        if matches!(event, Event::DocumentEnd) {
            return Ok(builder.root.take());
        }
        builder.event(event, &span)?;
    }
    Ok(None)
}

/// Returns the start of the next document if it is not empty. Errors in it are ignored.
pub(super) fn next_start<'t>(parser: &mut Parser<'t, StrInput<'t>>) -> Option<Position> {
    let mut start = None;
    loop {
        match parser.next_event()?.ok()? {
            (Event::DocumentStart(..), span) => start = Some(position(&span.start)),
            (Event::Scalar(text, ScalarStyle::Plain, ..), _) if matches!(&*text, "" | "~") => return None,
            (Event::Scalar(..) | Event::SequenceStart(..) | Event::MappingStart(..), _) => return start,
            (Event::StreamEnd, _) => return None,
            _ => {}
        }
    }
}

enum Open {
    Sequence {
        at: Position,
        anchor: usize,
        items: Vec<YamlNode>,
        tag: Option<&'static str>,
    },
    Mapping {
        at: Position,
        anchor: usize,
        entries: Vec<YamlEntry>,
        lines: HashMap<String, u32>,
        key: Pending,
    },
}

/// The item that an open mapping expects next.
enum Pending {
    /// A key.
    Key,
    /// The value of this key.
    Value(YamlKey),
    /// The value of a refused key. It is dropped.
    Dropped,
}

/// A node that aliases can name.
struct Anchor {
    node: YamlNode,
    weight: usize,
    height: usize,
}

struct Builder<'s, 't> {
    source: &'s Source<'t>,
    /// Tags that lists can have.
    tags: &'s [&'static str],
    diagnostics: &'s mut Vec<Diagnostic>,
    stack: Vec<Open>,
    root: Option<YamlNode>,
    anchors: HashMap<usize, Anchor>,
    weight: usize,
}

impl Builder<'_, '_> {
    fn event(&mut self, event: Event<'_>, span: &Span) -> Result<(), Diagnostic> {
        let at = position(&span.start);
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let tag = tag.and_then(|tag| self.scalar_tag(&tag, &text, at));
                let raw = span.byte_range().unwrap_or_default();
                let scalar = Scalar { text: text.into_owned(), style: style_of(style), tag, raw };
                self.complete(YamlNode { at, kind: NodeKind::Scalar(scalar), tag: None }, anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                let own = tag.as_deref().and_then(|tag| self.own_tag(tag));
                if own.is_none() {
                    self.collection_tag(tag.as_deref(), "seq", at);
                }
                self.open(Open::Sequence { at, anchor, items: Vec::new(), tag: own })
            }
            Event::MappingStart(_, anchor, tag) => {
                self.collection_tag(tag.as_deref(), "map", at);
                let (entries, lines) = (Vec::new(), HashMap::new());
                self.open(Open::Mapping { at, anchor, entries, lines, key: Pending::Key })
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(id) => self.alias(id, at),
            _ => Ok(()),
        }
    }

    fn open(&mut self, open: Open) -> Result<(), Diagnostic> {
        if self.stack.len() >= DEPTH_LIMIT {
            let at = match open {
                Open::Sequence { at, .. } | Open::Mapping { at, .. } => at,
            };
            return Err(self.too_deep(at));
        }
        self.stack.push(open);
        Ok(())
    }

    fn close(&mut self) -> Result<(), Diagnostic> {
        match self.stack.pop() {
            Some(Open::Sequence { at, anchor, items, tag }) => {
                self.complete(YamlNode { at, kind: NodeKind::Sequence(items), tag }, anchor)
            }
            Some(Open::Mapping { at, anchor, entries, .. }) => {
                let entries = self.merge(entries)?;
                self.complete(YamlNode { at, kind: NodeKind::Mapping(entries), tag: None }, anchor)
            }
            None => Ok(()),
        }
    }

    fn alias(&mut self, id: usize, at: Position) -> Result<(), Diagnostic> {
        let Some(anchor) = self.anchors.get(&id) else {
            return Err(self.error(Class::Yaml, at, "an alias inside the node it stands for"));
        };
        let (node, weight, height) = (&anchor.node, anchor.weight, anchor.height);
        if self.stack.len() + height > DEPTH_LIMIT {
            return Err(self.too_deep(at));
        }
        let node = node.clone();
        self.weigh(weight, at)?;
        self.complete(node, 0)
    }

    /// Finishes a node: remembers it if it has an anchor, and adds it to the open collection.
    fn complete(&mut self, node: YamlNode, anchor: usize) -> Result<(), Diagnostic> {
        // The nodes inside have been weighed already.
        self.weigh(own_weight(&node), node.at)?;
        if anchor != 0 {
            let (weight, height) = measure(&node);
            self.weigh(weight, node.at)?;
            self.anchors.insert(anchor, Anchor { node: node.clone(), weight, height });
        }
        let refused = match self.stack.last_mut() {
            None => {
                self.root = Some(node);
                None
            }
            Some(Open::Sequence { items, .. }) => {
                items.push(node);
                None
            }
            Some(Open::Mapping { entries, lines, key, .. }) => match std::mem::replace(key, Pending::Key) {
                Pending::Value(name) => {
                    entries.push(YamlEntry { key: name, value: node });
                    None
                }
                Pending::Dropped => None,
                Pending::Key => match accept_key(node, lines) {
                    Ok(name) => {
                        *key = Pending::Value(name);
                        None
                    }
                    Err(refused) => {
                        *key = Pending::Dropped;
                        Some(refused)
                    }
                },
            },
        };
        if let Some(Refused { at, class, message, help }) = refused {
            let mut error = self.error(class, at, message);
            error.help = help.map(str::to_owned);
            self.report(error);
        }
        Ok(())
    }

    /// Replaces `<<` by the entries of the mappings it names. Written entries win, then those of earlier mappings.
    fn merge(&mut self, entries: Vec<YamlEntry>) -> Result<Vec<YamlEntry>, Diagnostic> {
        let is_merge = |entry: &YamlEntry| entry.key.text == "<<" && entry.key.style == Style::Plain;
        if !entries.iter().any(is_merge) {
            return Ok(entries);
        }
        let (merged, mut own): (Vec<YamlEntry>, Vec<YamlEntry>) = entries.into_iter().partition(is_merge);
        let mut present: HashSet<String> = own.iter().map(|entry| entry.key.text.clone()).collect();
        for entry in merged {
            let at = entry.value.at;
            let sources = match entry.value.kind {
                NodeKind::Sequence(items) => items,
                NodeKind::Mapping(_) | NodeKind::Scalar(_) => vec![entry.value],
            };
            for source in sources {
                let NodeKind::Mapping(inherited) = source.kind else {
                    return Err(self.error(Class::Yaml, at, "\"<<\" needs a mapping or a list of mappings"));
                };
                for candidate in inherited {
                    if present.insert(candidate.key.text.clone()) {
                        own.push(candidate);
                    }
                }
            }
        }
        Ok(own)
    }

    fn scalar_tag(&mut self, tag: &RawTag, text: &str, at: Position) -> Option<Tag> {
        let (tag, what) = match tag.suffix_in_namespace("tag:yaml.org,2002:").as_deref() {
            Some("str" | "timestamp") => (Tag::String, "text"),
            Some("int" | "float") => (Tag::Number, "a number"),
            Some("bool") => (Tag::Boolean, "true or false"),
            Some("null") => (Tag::Null, "null"),
            _ if tag.original() == "!" => (Tag::String, "text"),
            _ => {
                self.unknown_tag(tag, at);
                return None;
            }
        };
        if !scalar::allows(tag, text) {
            let error =
                self.error(Class::Yaml, at, format!("the tag says {what}, the value is something else"));
            self.report(error);
        }
        Some(tag)
    }

    fn own_tag(&self, tag: &RawTag) -> Option<&'static str> {
        self.tags.iter().copied().find(|known| tag.original() == *known)
    }

    fn collection_tag(&mut self, tag: Option<&RawTag>, expected: &str, at: Position) {
        if let Some(tag) = tag
            && tag.core_suffix() != Some(expected)
            && tag.original() != "!"
        {
            self.unknown_tag(tag, at);
        }
    }

    fn unknown_tag(&mut self, tag: &RawTag, at: Position) {
        let message = format!("tag \"{}\" is not supported here", text::quote(&tag.original()));
        let error = self.error(Class::Yaml, at, message);
        // A tag of the caller stands before lists alone.
        let help = self.own_tag(tag).map(|own| format!("write a list behind it, such as {own} [A, B]"));
        self.report(Diagnostic { help, ..error });
    }

    fn report(&mut self, error: Diagnostic) {
        if self.diagnostics.len() < FINDINGS_LIMIT {
            self.diagnostics.push(error);
        }
    }

    /// Charges the weight of nodes before they are kept.
    fn weigh(&mut self, weight: usize, at: Position) -> Result<(), Diagnostic> {
        self.weight = self.weight.saturating_add(weight);
        if self.weight > WEIGHT_LIMIT {
            let message = "the values of the document take more than 64 MiB: each counts 256 bytes and its text, and what an alias \
                           stands for counts again";
            return Err(self.error(Class::Limit, at, message));
        }
        Ok(())
    }

    fn too_deep(&self, at: Position) -> Diagnostic {
        self.error(Class::Limit, at, format!("YAML nested deeper than {DEPTH_LIMIT}"))
    }

    fn error(&self, class: Class, at: Position, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error(class, &self.source.file, at, message).with_path(self.path())
    }

    /// Returns the path of the open collections, such as `run[2].inputs`.
    fn path(&self) -> String {
        let mut path = String::new();
        for open in &self.stack {
            match open {
                Open::Sequence { items, .. } => {
                    path.push('[');
                    path.push_str(&items.len().to_string());
                    path.push(']');
                }
                Open::Mapping { key: Pending::Value(key), .. } => {
                    if !path.is_empty() {
                        path.push('.');
                    }
                    path.push_str(&text::quote(&key.text));
                }
                Open::Mapping { .. } => {}
            }
        }
        path
    }
}

struct Refused {
    at: Position,
    class: Class,
    message: String,
    help: Option<&'static str>,
}

/// Accepts a node as a key. `lines` holds the lines of the keys before it.
fn accept_key(node: YamlNode, lines: &mut HashMap<String, u32>) -> Result<YamlKey, Refused> {
    let at = node.at;
    let refuse = |class, message, help| Err(Refused { at, class, message, help });
    match node.kind {
        NodeKind::Scalar(key) if scalar::resolve(&key) == scalar::Resolved::Text => {
            if let Some(line) = lines.get(&key.text) {
                let message =
                    format!("mapping key \"{}\" already defined at line {line}", text::quote(&key.text));
                return refuse(Class::Yaml, message, None);
            }
            lines.insert(key.text.clone(), at.line);
            Ok(YamlKey { text: key.text, at, style: key.style, raw: key.raw })
        }
        NodeKind::Scalar(key) => {
            let message = format!("mapping keys must be strings: \"{}\" is not", text::quote(&key.text));
            refuse(Class::Schema, message, Some("quote it"))
        }
        NodeKind::Sequence(_) | NodeKind::Mapping(_) => {
            refuse(Class::Schema, "mapping keys must be strings".to_owned(), None)
        }
    }
}

/// Returns the weight of a node without the nodes inside.
fn own_weight(node: &YamlNode) -> usize {
    match &node.kind {
        NodeKind::Scalar(scalar) => NODE_WEIGHT + scalar.text.len(),
        NodeKind::Sequence(_) | NodeKind::Mapping(_) => NODE_WEIGHT,
    }
}

/// Returns weight and height of a tree. The depth limit makes recursion safe.
fn measure(node: &YamlNode) -> (usize, usize) {
    let join = |(weight, height): (usize, usize), (child_weight, child_height): (usize, usize)| {
        (weight + child_weight, height.max(child_height + 1))
    };
    match &node.kind {
        NodeKind::Scalar(_) => (own_weight(node), 0),
        NodeKind::Sequence(items) => items.iter().map(measure).fold((NODE_WEIGHT, 1), join),
        NodeKind::Mapping(entries) => entries
            .iter()
            .map(|entry| {
                let (weight, height) = measure(&entry.value);
                (weight + NODE_WEIGHT + entry.key.text.len(), height)
            })
            .fold((NODE_WEIGHT, 1), join),
    }
}

const fn style_of(style: ScalarStyle) -> Style {
    match style {
        ScalarStyle::Plain => Style::Plain,
        ScalarStyle::SingleQuoted => Style::Single,
        ScalarStyle::DoubleQuoted => Style::Double,
        ScalarStyle::Literal | ScalarStyle::Folded => Style::Block,
    }
}
