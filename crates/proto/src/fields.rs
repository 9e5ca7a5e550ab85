//! Finds the unknown fields of a message, as a newer client sends, and logs each number once at level `debug`
//! (service.md §4.2). Counts a message's fields.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use prost::{Message, decode_length_delimiter};
use prost_types::{DescriptorProto, FileDescriptorSet};

/// Maximum number of unknown fields logged in the life of a daemon. A peer that sends more invents them.
const MAX_REPORTED: usize = 64;

/// Maximum nesting of messages. The library refuses deeper ones too.
const MAX_DEPTH: u32 = 100;

/// Maximum number of fields of a message, including those of the messages inside it. The inputs of a request may have
/// that many values, each with a name. A field of two bytes takes some hundred bytes in memory once decoded.
pub(super) const MAX_FIELDS: usize = 1 << 19;

/// Known fields by message: the field number and, if the field holds a message, that message's name. A message with a
/// guessed part has the fields of both parts.
type Fields = BTreeMap<String, BTreeMap<u32, Option<String>>>;

static FIELDS: LazyLock<Fields> = LazyLock::new(|| {
    // Cannot fail: the compiler of this program wrote it.
    let files = FileDescriptorSet::decode(super::DEFINITIONS).unwrap_or_default().file;
    let mut fields = Fields::new();
    for file in &files {
        for message in &file.message_type {
            add(&mut fields, file.package(), message);
        }
    }
    fields
});

fn add(fields: &mut Fields, within: &str, message: &DescriptorProto) {
    let name = whole(&format!("{within}.{}", message.name()));
    for inner in &message.nested_type {
        add(fields, &name, inner);
    }
    let known = fields.entry(name).or_default();
    for field in &message.field {
        let held = field.type_name.as_deref().map(|name| whole(name.trim_start_matches('.')));
        known.insert(field.number() as u32, held);
    }
}

/// Maps the name of a guessed part to the name of the message that it belongs to.
fn whole(name: &str) -> String {
    name.replacen("proto.guesses.", "proto.", 1)
}

static REPORTED: Mutex<BTreeSet<Unknown>> = Mutex::new(BTreeSet::new());

/// Message name and field number.
type Unknown = (String, u32);

/// Logs the unknown fields of a message with this full name, if level `debug` is enabled.
pub(super) fn report_unknown(message: impl FnOnce() -> String, bytes: &Bytes) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let mut found = BTreeSet::new();
    unknown(&whole(&message()), bytes.clone(), MAX_DEPTH, &mut found);
    let mut told = REPORTED.lock();
    for unknown in found {
        if told.len() < MAX_REPORTED && told.insert(unknown.clone()) {
            let (message, number) = unknown;
            tracing::debug!(message, number, "a field came that is not known; it is left out");
        }
    }
}

/// True if a message of this full name has more than [`MAX_FIELDS`] fields.
pub(super) fn are_too_many(message: impl FnOnce() -> String, bytes: &Bytes) -> bool {
    // Each field takes at least two bytes.
    bytes.len() / 2 > MAX_FIELDS && left(&whole(&message()), bytes, MAX_DEPTH, MAX_FIELDS).is_none()
}

/// Returns how many of `left` fields remain after those of a message; `None` if it has too many. Malformed bytes end
/// the count: the decoder reports them.
fn left(message: &str, mut bytes: &[u8], depth: u32, mut left: usize) -> Option<usize> {
    let (Some(known), Some(depth)) = (FIELDS.get(message), depth.checked_sub(1)) else { return Some(left) };
    while !bytes.is_empty() {
        left = left.checked_sub(1)?;
        let Ok(key) = decode_length_delimiter(&mut bytes) else { return Some(left) };
        let len = match key & 7 {
            0 => decode_length_delimiter(&mut bytes).ok().map(|_| 0),
            1 => Some(8),
            2 => decode_length_delimiter(&mut bytes).ok(),
            5 => Some(4),
            _ => None,
        };
        let Some((content, rest)) = len.and_then(|len| bytes.split_at_checked(len)) else {
            return Some(left);
        };
        bytes = rest;
        let number = u32::try_from(key >> 3).unwrap_or(0);
        if let Some(Some(held)) = known.get(&number)
            && key & 7 == 2
        {
            left = self::left(held, content, depth, left)?;
        }
    }
    Some(left)
}

/// Collects the unknown fields. Returns `None` if the bytes are malformed, which the decoder reports.
fn unknown(message: &str, mut bytes: Bytes, depth: u32, found: &mut BTreeSet<Unknown>) -> Option<()> {
    let (known, depth) = (FIELDS.get(message)?, depth.checked_sub(1)?);
    while bytes.has_remaining() && found.len() < MAX_REPORTED {
        let key = decode_length_delimiter(&mut bytes).ok()?;
        let number = u32::try_from(key >> 3).ok()?;
        let content = content(key & 7, &mut bytes)?;
        match known.get(&number) {
            None => drop(found.insert((message.to_owned(), number))),
            // The entries of maps are not searched.
            Some(Some(held)) if FIELDS.contains_key(held) && !held.ends_with("Entry") => {
                unknown(held, content, depth, found)?;
            }
            Some(_) => {}
        }
    }
    Some(())
}

/// Takes the content of a field of this wire type from `bytes`. It is empty unless the type is length-delimited.
fn content(wire_type: usize, bytes: &mut Bytes) -> Option<Bytes> {
    let len = match wire_type {
        0 => {
            decode_length_delimiter(bytes).ok()?;
            return Some(Bytes::new());
        }
        1 => 8,
        2 => decode_length_delimiter(&mut *bytes).ok()?,
        5 => 4,
        _ => return None,
    };
    (len <= bytes.len()).then(|| bytes.split_to(len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;

    fn unknown_of(message: &str, bytes: &[u8]) -> Vec<u32> {
        let mut found = BTreeSet::new();
        unknown(message, Bytes::copy_from_slice(bytes), MAX_DEPTH, &mut found);
        found.into_iter().map(|(_, number)| number).collect()
    }

    #[test]
    fn certain_and_guessed_fields_are_known() {
        let request = [1 << 3 | 2, 1, b'1', 7 << 3 | 2, 0, 8 << 3 | 2, 0, 3 << 3 | 2, 2, 9 << 3, 0];
        assert_eq!(unknown_of("proto.RunRequest", &request), [0; 0]);
        assert_eq!(unknown_of("proto.CancelRequest", &[1 << 3 | 2, 1, b'1', 2 << 3, 5]), [2]);
    }

    #[test]
    fn unknown_fields_are_found_in_inner_messages_too() {
        // A job with a variable whose field 9 is unknown, next to an unknown field 4.
        let job = [1 << 3 | 2, 2, 9 << 3, 1];
        let request = [&[4 << 3 | 5, 0, 0, 0, 0, 5 << 3 | 2, 4][..], &job].concat();
        assert_eq!(unknown_of("proto.RunRequest", &request), [4, 9]);
    }

    #[test]
    fn fields_of_every_service_are_known() {
        let request = v1::RunRequest { id: "1".into(), steps: "[]".into(), ..Default::default() };
        let bytes = [request.encode_to_vec(), vec![0xfa, 0x01, 0]].concat();
        assert_eq!(unknown_of("steprunner.v1.RunRequest", &bytes), [31]);
    }

    #[test]
    fn messages_in_messages_without_end_take_no_stack() {
        let mut bytes = Vec::new();
        for _ in 0..5_000 {
            let mut outer = vec![9 << 3 | 2];
            prost::encoding::encode_varint(bytes.len() as u64, &mut outer);
            outer.append(&mut bytes);
            bytes = outer;
        }
        unknown_of("steprunner.v1.StepResult", &bytes);
    }

    #[test]
    fn fault_57_fields_are_counted_before_memory_is_taken_for_them() {
        let name = || "steprunner.v1.RunRequest".to_owned();
        let many = |field: &[u8]| Bytes::from(field.repeat(2 * MAX_FIELDS));
        assert!(are_too_many(name, &many(&[5 << 3 | 2, 2, 1 << 3 | 2, 0])), "variables");
        assert!(are_too_many(name, &many(&[3 << 3 | 2, 0])), "entries of the environment");
        let value = |number| prost_types::Value { kind: Some(prost_types::value::Kind::NumberValue(number)) };
        let list = |count| {
            let values = vec![value(1.0); count];
            let list = prost_types::value::Kind::ListValue(prost_types::ListValue { values });
            let inputs = [("a".to_owned(), prost_types::Value { kind: Some(list) })].into();
            Bytes::from(v1::RunRequest { inputs, ..Default::default() }.encode_to_vec())
        };
        assert!(are_too_many(name, &list(MAX_FIELDS)));
        assert!(!are_too_many(name, &list(MAX_FIELDS / 2 - 10)));
        let long = v1::RunRequest { steps: "x".repeat(8 * MAX_FIELDS), ..Default::default() };
        assert!(!are_too_many(name, &Bytes::from(long.encode_to_vec())));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        for bytes in [&[0xff; 12][..], &[2, 0xff], &[1, 1], &[0x0b], &[8], &[5 << 3 | 2, 200, 1, 0]] {
            unknown_of("proto.RunRequest", bytes);
        }
    }
}
