//! Reads the text of a CI file to a tree (ci.md §2, row YAML). Anchors, aliases, merge keys and limits are those of the
//! YAML reader of `lang`; the meaning of scalars is that of YAML 1.1.

use std::sync::Arc;

use step_runner_lang::diagnostic::Position;
use step_runner_lang::yaml::{self, NodeKind, Scalar, Source, YamlNode};

use crate::finding::Findings;
use crate::node::{Entry, Kind, Map, Node, Place, Plain};
use crate::scalar::{Meaning, meaning};

/// Largest CI file, as GitLab's default for one file.
const FILE_LIMIT: usize = 2 * 1024 * 1024;

/// The tag of references.
const REFERENCE: &str = "!reference";

/// A CI file: its header, if it has one, and its content.
pub(crate) struct Documents {
    /// The document with `spec`.
    pub(crate) header: Option<Node>,
    /// The content. Empty files are an empty mapping.
    pub(crate) content: Node,
}

/// Reads a CI file. `None`, with findings, if it cannot be read at all.
pub(crate) fn read(file: &Arc<str>, text: &str, findings: &mut Findings) -> Option<Documents> {
    let start = Place { file: Arc::clone(file), at: Position::START };
    if text.len() > FILE_LIMIT {
        findings.add(
            start
                .error_of(step_runner_lang::diagnostic::Class::Limit, "the file has more than 2 MiB")
                .with_help("split it, and include the parts that the job needs"),
        );
        return None;
    }
    let stream = yaml::read_with_tags(&Source { file: Arc::clone(file), text }, 3, &[REFERENCE]);
    let is_whole = stream.documents.iter().all(Option::is_some);
    for diagnostic in stream.diagnostics {
        findings.add(diagnostic);
    }
    if !is_whole {
        return None;
    }
    let mut documents: Vec<Node> =
        stream.documents.iter().flatten().map(|document| node(file, document, findings)).collect();
    let is_header = documents.len() > 1 && documents.first().is_some_and(|first| first.get("spec").is_some());
    let header = is_header.then(|| documents.remove(0));
    let mut rest = documents.into_iter();
    let content = rest.next().unwrap_or_else(|| Node::map(start.clone(), Map::new()));
    if let Some(more) = rest.next() {
        findings.add(
            (more.place)
                .error("a further document")
                .with_help("a CI file has one document, and one with \"spec\" before it"),
        );
    }
    let content = if content.is_null() { Node::map(start, Map::new()) } else { content };
    Some(Documents { header, content })
}

/// Converts a node of the YAML reader. The nesting is bounded by the reader.
pub(crate) fn node(file: &Arc<str>, yaml: &YamlNode, findings: &mut Findings) -> Node {
    let place = Place { file: Arc::clone(file), at: yaml.at };
    let kind = match &yaml.kind {
        NodeKind::Scalar(found) => scalar(found),
        NodeKind::Sequence(items) if yaml.tag == Some(REFERENCE) => reference(&place, items, findings),
        NodeKind::Sequence(items) => {
            Kind::List(Arc::new(items.iter().map(|item| node(file, item, findings)).collect()))
        }
        NodeKind::Mapping(entries) => {
            let entries = entries.iter().map(|entry| {
                let key = Place { file: Arc::clone(file), at: entry.key.at };
                (entry.key.text.clone(), Entry { key, value: node(file, &entry.value, findings) })
            });
            Kind::Map(Arc::new(entries.collect()))
        }
    };
    Node::new(place, kind)
}

fn scalar(scalar: &Scalar) -> Kind {
    let written: Arc<str> = Arc::from(scalar.text.as_str());
    if scalar.is_quoted() {
        return Kind::Text(written);
    }
    match meaning(&scalar.text) {
        Meaning::Null => Kind::Null,
        Meaning::Bool(value) => Kind::Bool(Plain { value, written }),
        Meaning::Number(value) => Kind::Number(Plain { value: value.into(), written }),
        Meaning::Text => Kind::Text(written),
    }
}

fn reference(place: &Place, items: &[YamlNode], findings: &mut Findings) -> Kind {
    let names: Option<Vec<String>> = items
        .iter()
        .map(|item| match &item.kind {
            NodeKind::Scalar(scalar) => Some(scalar.text.clone()),
            NodeKind::Sequence(_) | NodeKind::Mapping(_) => None,
        })
        .collect();
    let names = names.unwrap_or_default();
    if names.is_empty() {
        findings.add(
            (place.error("\"!reference\" needs a list of names"))
                .with_help("write !reference [JOB, KEYWORD]"),
        );
    }
    // One without names stays a reference that leads nowhere, so nobody reports it again.
    Kind::Reference(Arc::new(names))
}
