//! Trees of a CI configuration (ci.md §2, row YAML). A tree can have parts of several files, so each node has its file
//! and position. Copies share what they hold: merging and references cost what they change, not what they bring.

use std::sync::Arc;

use indexmap::IndexMap;
use step_runner_lang::diagnostic::{Class, Diagnostic, Position};

/// Weight of a node without its text, as in the YAML reader (language.md §6).
const NODE_WEIGHT: usize = 256;

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name of the file.
    pub file: Arc<str>,
    /// Line and column.
    pub at: Position,
}

impl Place {
    /// Makes an error of class `schema` at this place.
    pub(crate) fn error(&self, message: impl Into<String>) -> Diagnostic {
        self.error_of(Class::Schema, message)
    }

    /// Makes an error.
    pub(crate) fn error_of(&self, class: Class, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error(class, &self.file, self.at, message)
    }

    /// Makes a warning of class `schema` at this place.
    pub(crate) fn warning(&self, message: impl Into<String>) -> Diagnostic {
        Diagnostic::warning(Class::Schema, &self.file, self.at, message)
    }
}

/// A value of a configuration, with its place.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) place: Place,
    pub(crate) kind: Kind,
    /// Bytes that it stands for, with all below it. Bounds what is made of shared nodes.
    weight: usize,
    /// Number of levels below it.
    height: usize,
}

/// Kinds of values.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Null,
    Bool(Plain<bool>),
    /// A number, in the form that GitLab gives it as text.
    Number(Plain<Arc<str>>),
    Text(Arc<str>),
    List(Arc<Vec<Node>>),
    Map(Arc<Map>),
    /// `!reference [a, b]`
    Reference(Arc<Vec<String>>),
}

/// A scalar without quotes, whose meaning YAML decides.
#[derive(Clone, Debug)]
pub(crate) struct Plain<T> {
    pub(crate) value: T,
    pub(crate) written: Arc<str>,
}

/// Entries of a mapping in their order.
pub(crate) type Map = IndexMap<String, Entry>;

/// A value of a mapping, with the place of its key.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: Place,
    pub(crate) value: Node,
}

impl Node {
    pub(crate) fn new(place: Place, kind: Kind) -> Self {
        let (inner, height) = match &kind {
            Kind::Null | Kind::Bool(_) | Kind::Number(_) => (0, 0),
            Kind::Text(text) => (text.len(), 0),
            Kind::Reference(path) => (path.iter().map(String::len).sum(), 0),
            Kind::List(items) => items.iter().fold((0, 1), |all, item| below(all, item, 0)),
            Kind::Map(map) => {
                map.iter().fold((0, 1), |all, (key, entry)| below(all, &entry.value, key.len()))
            }
        };
        Self { place, kind, weight: NODE_WEIGHT.saturating_add(inner), height }
    }

    pub(crate) fn text(place: Place, text: impl Into<Arc<str>>) -> Self {
        Self::new(place, Kind::Text(text.into()))
    }

    pub(crate) fn map(place: Place, map: Map) -> Self {
        Self::new(place, Kind::Map(Arc::new(map)))
    }

    pub(crate) fn list(place: Place, items: Vec<Self>) -> Self {
        Self::new(place, Kind::List(Arc::new(items)))
    }

    pub(crate) const fn weight(&self) -> usize {
        self.weight
    }

    pub(crate) const fn height(&self) -> usize {
        self.height
    }

    pub(crate) const fn is_null(&self) -> bool {
        matches!(self.kind, Kind::Null)
    }

    pub(crate) fn as_map(&self) -> Option<&Map> {
        if let Kind::Map(map) = &self.kind { Some(map) } else { None }
    }

    /// Returns the value of a key that is there and not null.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        self.as_map()?.get(key).map(|entry| &entry.value).filter(|value| !value.is_null())
    }

    /// Returns the items of a list and of the lists in it, which aliases and references bring. Another value is the only
    /// item. The depth is bounded by what makes the tree.
    pub(crate) fn flattened(&self) -> Vec<&Self> {
        match &self.kind {
            Kind::List(items) => items.iter().flat_map(Self::flattened).collect(),
            _ => vec![self],
        }
    }

    /// Returns the kind of value for messages.
    pub(crate) const fn describe(&self) -> &'static str {
        match self.kind {
            Kind::Null => "nothing",
            Kind::Bool(_) => "a boolean",
            Kind::Number(_) => "a number",
            Kind::Text(_) => "a text",
            Kind::List(_) | Kind::Reference(_) => "a list",
            Kind::Map(_) => "a mapping",
        }
    }

    /// Merges two values: mappings at every depth, all else is replaced by `over`. `null` takes a key of `self` away.
    pub(crate) fn merged(&self, over: &Self) -> Self {
        let (Kind::Map(base), Kind::Map(upper)) = (&self.kind, &over.kind) else { return over.clone() };
        let mut map = Map::clone(base);
        for (key, entry) in upper.iter() {
            match map.get_mut(key) {
                Some(_) if entry.value.is_null() => drop(map.shift_remove(key)),
                Some(known) => {
                    known.value = known.value.merged(&entry.value);
                    known.key = entry.key.clone();
                }
                None => drop(map.insert(key.clone(), entry.clone())),
            }
        }
        Self::map(over.place.clone(), map)
    }
}

fn below((weight, height): (usize, usize), node: &Node, key: usize) -> (usize, usize) {
    (weight.saturating_add(node.weight).saturating_add(key), height.max(node.height.saturating_add(1)))
}
