//! Values of the language (language.md §9.2, §9.6).

use std::fmt;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// A value and its mark. Marks sit on leaves: an object with one sensitive member is not sensitive itself.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// The value.
    pub data: Data,
    /// It must be masked wherever it is shown (language.md §11.5).
    pub sensitive: bool,
}

/// The bare value.
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
    /// Array, untyped inside.
    Array(Vec<Value>),
    /// Object (`struct`), in order of insertion; order never matters for equality.
    Object(IndexMap<String, Value>),
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
    /// A value without mark.
    pub const fn plain(data: Data) -> Self {
        Self { data, sensitive: false }
    }

    /// Text without mark.
    pub fn text(text: impl Into<String>) -> Self {
        Self::plain(Data::String(text.into()))
    }

    /// Whether it or anything inside is marked.
    pub fn is_sensitive(&self) -> bool {
        self.sensitive
            || match &self.data {
                Data::Array(items) => items.iter().any(Self::is_sensitive),
                Data::Object(members) => members.values().any(Self::is_sensitive),
                Data::Null | Data::Bool(_) | Data::Number(_) | Data::String(_) => false,
            }
    }

    /// Marks it and everything inside (language.md §11.5).
    pub fn mark_sensitive(&mut self) {
        self.sensitive = true;
        match &mut self.data {
            Data::Array(items) => items.iter_mut().for_each(Self::mark_sensitive),
            Data::Object(members) => members.values_mut().for_each(Self::mark_sensitive),
            Data::Null | Data::Bool(_) | Data::Number(_) | Data::String(_) => {}
        }
    }

    /// The declared type it has; `None` for null.
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

    /// Name of its type in messages.
    pub const fn type_name(&self) -> &'static str {
        match self.value_type() {
            None => "null",
            Some(value_type) => value_type.name(),
        }
    }
}

/// Evaluated text and its mark.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Text {
    /// The text.
    pub text: String,
    /// It must be masked wherever it is shown (language.md §11.5).
    pub sensitive: bool,
}

impl Text {
    /// Text without mark.
    pub fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), sensitive: false }
    }
}

impl From<Text> for Value {
    fn from(text: Text) -> Self {
        Self { data: Data::String(text.text), sensitive: text.sensitive }
    }
}

/// Shows the length only: the text may be a secret.
impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "text of {} bytes", self.text.len())
    }
}

impl ValueType {
    /// Its name in `type:` and in messages.
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

/// Shows the type only: values may be secrets.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.type_name())
    }
}
