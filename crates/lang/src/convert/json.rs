//! Parses JSON text within a bound on memory: a text of many small values takes a multiple of its length.

use std::cell::Cell;
use std::fmt;

use indexmap::IndexMap;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use thiserror::Error;

use crate::value::{Data, Value, WEIGHT};

/// Bytes that values can still take. Several texts can share one.
#[derive(Debug)]
pub struct MemoryBudget(Cell<usize>);

/// Reason why a text has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum JsonError {
    /// It is not JSON, or not of the expected form.
    #[error("no JSON, or of another form than is wanted here (line {line})")]
    Malformed {
        /// Line within the text, counted from 1.
        line: usize,
    },
    /// It holds a number beyond the range of doubles.
    #[error("number out of range")]
    OutOfRange,
    /// It nests deeper than 128.
    #[error("nested deeper than 128")]
    TooDeep,
    /// Its values exceed the [`MemoryBudget`].
    #[error("too many values")]
    TooLarge,
}

impl MemoryBudget {
    /// Makes room for values of `bytes` bytes.
    pub const fn new(bytes: usize) -> Self {
        Self(Cell::new(bytes))
    }

    fn take<E: serde::de::Error>(&self, bytes: usize) -> Result<(), E> {
        let left = self.0.get().checked_sub(bytes + WEIGHT);
        self.0.set(left.unwrap_or(0));
        left.map(drop).ok_or_else(|| E::custom(TOO_LARGE))
    }
}

const TOO_LARGE: &str = "no room";

/// Returns the value of a text, unmarked (language.md §11.1). The last of equal keys counts; integers over 2^53 round.
pub fn parse(text: &str, budget: &MemoryBudget) -> Result<Value, JsonError> {
    read(text, Any(budget))
}

/// Returns two members of an object by name and skips the others. A key as written in `names` wins over one in another
/// letter case. Of several such keys the last one counts (language.md §12).
pub(crate) fn members(
    text: &str,
    names: [&str; 2],
    budget: &MemoryBudget,
) -> Result<[Option<Value>; 2], JsonError> {
    read(text, Members { names, budget })
}

fn read<'t, S: DeserializeSeed<'t>>(text: &'t str, seed: S) -> Result<S::Value, JsonError> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = seed.deserialize(&mut deserializer);
    value.and_then(|value| deserializer.end().map(|()| value)).map_err(|error| {
        let message = error.to_string();
        if message.starts_with("number out of range") {
            JsonError::OutOfRange
        } else if message.starts_with("recursion limit exceeded") {
            JsonError::TooDeep
        } else if message.starts_with(TOO_LARGE) {
            JsonError::TooLarge
        } else {
            JsonError::Malformed { line: error.line().max(1) }
        }
    })
}

#[derive(Clone, Copy)]
struct Any<'r>(&'r MemoryBudget);

impl<'de> DeserializeSeed<'de> for Any<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self).map(Value::plain)
    }
}

impl<'de> Visitor<'de> for Any<'_> {
    type Value = Data;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Data, E> {
        self.0.take(0)?;
        Ok(Data::Null)
    }

    fn visit_bool<E: serde::de::Error>(self, truth: bool) -> Result<Data, E> {
        self.0.take(0)?;
        Ok(Data::Bool(truth))
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Data, E> {
        self.visit_f64(number as f64)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Data, E> {
        self.visit_f64(number as f64)
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Data, E> {
        self.0.take(0)?;
        Ok(Data::Number(number))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Data, E> {
        self.0.take(text.len())?;
        Ok(Data::String(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Data, A::Error> {
        self.0.take(0)?;
        let mut items = Vec::new();
        while let Some(item) = sequence.next_element_seed(self)? {
            items.push(item);
        }
        Ok(Data::Array(items.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Data, A::Error> {
        self.0.take(0)?;
        let mut members = IndexMap::new();
        while let Some(key) = map.next_key::<String>()? {
            self.0.take(key.len())?;
            members.insert(key, map.next_value_seed(self)?);
        }
        Ok(Data::Object(members.into()))
    }
}

struct Members<'n, 'r> {
    names: [&'n str; 2],
    budget: &'r MemoryBudget,
}

impl<'de> DeserializeSeed<'de> for Members<'_, '_> {
    type Value = [Option<Value>; 2];

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Members<'_, '_> {
    type Value = [Option<Value>; 2];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut exact = [None, None];
        let mut alike = [None, None];
        while let Some(key) = map.next_key::<String>()? {
            let slots = self.names.into_iter().zip(exact.iter_mut().zip(&mut alike));
            let slot = slots
                .filter(|(name, _)| key.eq_ignore_ascii_case(name))
                .map(|(name, (exact, alike))| if key == name { exact } else { alike });
            match slot.last() {
                Some(slot) => *slot = Some(map.next_value_seed(Any(self.budget))?),
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        let [[a, b], [like_a, like_b]] = [exact, alike];
        Ok([a.or(like_a), b.or(like_b)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::to_text;

    fn shown(text: &str) -> Result<String, JsonError> {
        parse(text, &MemoryBudget::new(10_000)).map(|value| to_text(&value))
    }

    #[test]
    fn values_are_those_of_json() {
        assert_eq!(
            shown(" {\"a\": [1, -2.5e3, 18446744073709551616, true, null, \"\\ud83d\\ude00\"], \"a\": {}}")
                .unwrap(),
            "{\"a\": {}}"
        );
        assert_eq!(
            shown("[1, -2.5e3, 18446744073709551616, true, null]").unwrap(),
            "[1, -2500, 18446744073709552000, true, null]"
        );
    }

    #[test]
    fn each_way_to_fail_has_its_name() {
        assert_eq!(shown("1e999"), Err(JsonError::OutOfRange));
        assert_eq!(parse(&"[".repeat(1000), &MemoryBudget::new(1 << 20)).err(), Some(JsonError::TooDeep));
        assert_eq!(shown(&format!("[{}1]", "1,".repeat(1000))), Err(JsonError::TooLarge));
        assert_eq!(shown("[1\n,\n]"), Err(JsonError::Malformed { line: 3 }));
        for text in ["", "{}{}", "[1] x", "\"\\ud800\"", "\u{feff}1", "'a'", "{a: 1}"] {
            assert!(matches!(shown(text), Err(JsonError::Malformed { .. })), "{text}");
        }
    }

    #[test]
    fn members_are_found_as_written_else_in_any_case_the_last_counts() {
        let found = |text: &str| {
            let found = members(text, ["name", "value"], &MemoryBudget::new(10_000)).unwrap();
            found.map(|value| value.map_or("-".to_owned(), |value| to_text(&value)))
        };
        assert_eq!(
            found(r#"{"NAME": 1, "name": 2, "Name": 3, "Value": 4, "VALUE": 5, "Value": 6}"#),
            ["2", "6"]
        );
        assert_eq!(found(r#"{"x": {"name": 1}, "value": 1, "value": 2}"#), ["-", "2"]);
        assert!(members("[]", ["a", "b"], &MemoryBudget::new(1000)).is_err());
    }
}
