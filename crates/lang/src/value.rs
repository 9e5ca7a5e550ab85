//! Values of the language (language.md §9.2, §9.6).

use std::fmt;
use std::sync::Arc;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// Bytes that a value, or the key of a member, is taken for beside its text: what it needs in the largest of its forms, those
/// of JSON and of messages.
pub(crate) const WEIGHT: usize = 80;

/// Bytes that an object is taken for beside its members: in a message it has room for eleven, however few there are.
pub(crate) const OBJECT_WEIGHT: usize = 640;

/// A value and its mark. A mark on a member does not mark the object around it.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// Value without its mark.
    pub data: Data,
    /// True if it must be masked wherever it is shown (language.md §11.5).
    pub sensitive: bool,
}

/// A value without its mark. Copies of arrays and objects share what is inside.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub enum Data {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// IEEE 754 double, always finite.
    Number(f64),
    /// Text.
    String(String),
    /// Array of values of any type.
    Array(Arc<[Value]>),
    /// Object (`struct`) in order of insertion. The order never matters for equality.
    Object(Arc<IndexMap<String, Value>>),
}

/// Declared types of inputs and outputs (language.md §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ValueType {
    /// Text.
    String,
    /// Double.
    Number,
    /// `true` or `false`.
    Boolean,
    /// List.
    Array,
    /// Object.
    Struct,
}

impl Value {
    /// Makes a value without a mark.
    pub const fn plain(data: Data) -> Self {
        Self { data, sensitive: false }
    }

    /// Makes text without a mark.
    pub fn text(text: impl Into<String>) -> Self {
        Self::plain(Data::String(text.into()))
    }

    /// Makes an array without a mark.
    pub fn array(items: impl IntoIterator<Item = Self>) -> Self {
        Self::plain(Data::Array(items.into_iter().collect()))
    }

    /// Makes an object without a mark.
    pub fn object(members: IndexMap<String, Self>) -> Self {
        Self::plain(Data::Object(Arc::new(members)))
    }

    /// Subtracts the size of the value from `left` bytes. Stops at the first byte too many and returns `None`.
    pub fn take_from(&self, left: usize) -> Option<usize> {
        let left = left.checked_sub(WEIGHT)?;
        match &self.data {
            Data::Null | Data::Bool(_) | Data::Number(_) => Some(left),
            Data::String(text) => left.checked_sub(text.len()),
            Data::Array(items) => items.iter().try_fold(left, |left, item| item.take_from(left)),
            Data::Object(members) => {
                let left = left.checked_sub(OBJECT_WEIGHT)?;
                members.iter().try_fold(left, |left, (key, member)| {
                    member.take_from(left.checked_sub(WEIGHT + key.len())?)
                })
            }
        }
    }

    /// True if it or a value inside is marked.
    pub fn is_sensitive(&self) -> bool {
        self.sensitive
            || match &self.data {
                Data::Array(items) => items.iter().any(Self::is_sensitive),
                Data::Object(members) => members.values().any(Self::is_sensitive),
                Data::Null | Data::Bool(_) | Data::Number(_) | Data::String(_) => false,
            }
    }

    /// Visits all numbers in it.
    pub fn for_each_number(&self, visit: &mut impl FnMut(f64)) {
        self.visit_numbers(true, visit);
    }

    /// Visits the marked numbers in it.
    pub fn for_each_marked_number(&self, visit: &mut impl FnMut(f64)) {
        self.visit_numbers(false, visit);
    }

    /// Visits the marked numbers in it, all if `is_marked`.
    fn visit_numbers(&self, is_marked: bool, visit: &mut impl FnMut(f64)) {
        let is_marked = is_marked || self.sensitive;
        match &self.data {
            Data::Number(number) if is_marked => visit(*number),
            Data::Array(items) => items.iter().for_each(|item| item.visit_numbers(is_marked, visit)),
            Data::Object(members) => {
                members.values().for_each(|member| member.visit_numbers(is_marked, visit));
            }
            Data::Null | Data::Bool(_) | Data::Number(_) | Data::String(_) => {}
        }
    }

    /// Marks it and everything inside (language.md §11.5).
    pub fn mark_sensitive(&mut self) {
        self.sensitive = true;
        match &mut self.data {
            Data::Array(items) => Arc::make_mut(items).iter_mut().for_each(Self::mark_sensitive),
            Data::Object(members) => Arc::make_mut(members).values_mut().for_each(Self::mark_sensitive),
            Data::Null | Data::Bool(_) | Data::Number(_) | Data::String(_) => {}
        }
    }

    /// Returns the type that it has in a declaration; `None` for null.
    pub const fn value_type(&self) -> Option<ValueType> {
        match self.data {
            Data::Null => None,
            Data::Bool(_) => Some(ValueType::Boolean),
            Data::Number(_) => Some(ValueType::Number),
            Data::String(_) => Some(ValueType::String),
            Data::Array(_) => Some(ValueType::Array),
            Data::Object(_) => Some(ValueType::Struct),
        }
    }

    /// Returns the name of its type for messages.
    pub const fn type_name(&self) -> &'static str {
        match self.value_type() {
            None => "null",
            Some(value_type) => value_type.name(),
        }
    }
}

/// Evaluated text and its mark.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EvaluatedText {
    /// The text.
    pub text: String,
    /// True if it must be masked wherever it is shown (language.md §11.5).
    pub sensitive: bool,
}

impl EvaluatedText {
    /// Makes text without a mark.
    pub fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), sensitive: false }
    }
}

impl From<EvaluatedText> for Value {
    fn from(text: EvaluatedText) -> Self {
        Self { data: Data::String(text.text), sensitive: text.sensitive }
    }
}

/// Shows only the length, because the text may be a secret.
impl fmt::Debug for EvaluatedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "text of {} bytes", self.text.len())
    }
}

impl ValueType {
    /// Returns the name used in `type:` and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Number => "number",
            Self::Boolean => "boolean",
            Self::Array => "array",
            Self::Struct => "struct",
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Shows only the type, because the value may be a secret.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.type_name())
    }
}
