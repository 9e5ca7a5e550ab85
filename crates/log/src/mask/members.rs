//! Members of secrets that are JSON texts (variables.md §5).

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{
    config::PHRASE_BYTES,
    forms::{MIN_LENGTH, trim},
};

/// Returns the texts in a phrase that is a JSON object or list, at any depth. Each of them has at least 8 bytes after
/// trimming, because shorter ones would hit other text. Keys, numbers and truth values are left out.
pub fn json_members(phrase: &[u8]) -> Vec<String> {
    let phrase = trim(phrase);
    // A longer phrase is refused, so it need not be read.
    if phrase.len() > PHRASE_BYTES || !matches!(phrase.first(), Some(b'{' | b'[')) {
        return Vec::new();
    }
    let mut texts = Vec::new();
    let mut reader = serde_json::Deserializer::from_slice(phrase);
    let whole = Texts(&mut texts).deserialize(&mut reader).and_then(|()| reader.end());
    texts.retain(|text| whole.is_ok() && trim(text.as_bytes()).len() >= MIN_LENGTH);
    texts
}

/// Collects all texts of a JSON text, those of repeated keys too.
struct Texts<'a>(&'a mut Vec<String>);

impl<'de> DeserializeSeed<'de> for Texts<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Texts<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.0.push(text.to_owned());
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(Texts(&mut *self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<(), A::Error> {
        while object.next_key::<IgnoredAny>()?.is_some() {
            object.next_value_seed(Texts(&mut *self.0))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_35_members_are_the_longer_texts_of_a_json_text_at_any_depth() {
        for (phrase, members) in [
            (r#"{"password":"correct-horse","port":5432123456}"#, &["correct-horse"][..]),
            (
                r#" {"key":"-----BEGIN\nline one","a":{"b":["tok\u0065n-token"," x ",[true,null]]}} "#,
                &["-----BEGIN\nline one", "token-token"],
            ),
            (r#"["one-two-three","  short   "]"#, &["one-two-three"]),
            (r#"{"same":"first-value","same":"second-value"}"#, &["first-value", "second-value"]),
            (r#"{"long-enough-key":"short"}"#, &[]),
            (r#""a text alone""#, &[]),
            (r#"{"password":"correct-horse""#, &[]),
            (r#"{"password":"correct-horse"} more"#, &[]),
            ("[section]\npassword=correct-horse", &[]),
            ("correct-horse", &[]),
            ("", &[]),
        ] {
            assert_eq!(json_members(phrase.as_bytes()), members, "{phrase}");
        }
        let deep = format!("{}\"correct-horse\"{}", "[".repeat(1000), "]".repeat(1000));
        assert!(json_members(deep.as_bytes()).is_empty());
        let long = format!("[\"{}\"]", "x".repeat(PHRASE_BYTES));
        assert!(json_members(long.as_bytes()).is_empty());
    }
}
