//! Which fields of a message its definition does not have: the operator of a daemon that meets a newer client learns
//! their numbers from the log, each once, at level `debug` (service.md §4.2).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use prost::{Message, decode_length_delimiter};
use prost_types::FileDescriptorSet;

/// Unknown fields at most told in the life of a daemon: who sends more invents them.
const MAX_TOLD: usize = 64;

/// Messages within each other at most: deeper ones are refused by the library too.
const MAX_DEPTH: u32 = 100;

/// Fields by message: the number, and the message it holds, if it holds one. A message that is partly guessed has the
/// fields of both parts.
type Fields = BTreeMap<String, BTreeMap<u32, Option<String>>>;

static FIELDS: LazyLock<Fields> = LazyLock::new(|| {
    let definition = include_bytes!(concat!(env!("OUT_DIR"), "/definitions.bin"));
    // It was written by the compiler of this program.
    let files = FileDescriptorSet::decode(definition.as_slice()).unwrap_or_default().file;
    let mut fields = Fields::new();
    for file in &files {
        for message in &file.message_type {
            let name = whole(&format!("{}.{}", file.package(), message.name()));
            let known = fields.entry(name).or_default();
            for field in &message.field {
                let held = field.type_name.as_deref().map(|name| whole(name.trim_start_matches('.')));
                known.insert(field.number() as u32, held);
            }
        }
    }
    fields
});

/// Name of the message that a guessed part belongs to.
fn whole(name: &str) -> String {
    name.replacen("proto.guesses.", "proto.", 1)
}

static TOLD: Mutex<BTreeSet<Unknown>> = Mutex::new(BTreeSet::new());

/// Message and number.
type Unknown = (String, u32);

/// Tells the operator about unknown fields of the message with this full name, if anybody listens.
pub(super) fn report_unknown(message: impl FnOnce() -> String, bytes: &Bytes) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let mut found = BTreeSet::new();
    unknown(&whole(&message()), bytes.clone(), MAX_DEPTH, &mut found);
    let mut told = TOLD.lock();
    for unknown in found {
        if told.len() < MAX_TOLD && told.insert(unknown.clone()) {
            let (message, number) = unknown;
            tracing::debug!(message, number, "a field came that is not known; it is left out");
        }
    }
}

/// Collects the unknown fields; `None` where the bytes are no message, which is told elsewhere.
fn unknown(message: &str, mut bytes: Bytes, depth: u32, found: &mut BTreeSet<Unknown>) -> Option<()> {
    let (known, depth) = (FIELDS.get(message)?, depth.checked_sub(1)?);
    while bytes.has_remaining() && found.len() < MAX_TOLD {
        let key = decode_length_delimiter(&mut bytes).ok()?;
        let number = u32::try_from(key >> 3).ok()?;
        let content = content(key & 7, &mut bytes)?;
        match known.get(&number) {
            None => drop(found.insert((message.to_owned(), number))),
            // Of maps and of the library's own only the keys are known.
            Some(Some(held)) if FIELDS.contains_key(held) => unknown(held, content, depth, found)?,
            Some(_) => {}
        }
    }
    Some(())
}

/// Takes the content of a field of this wire type; empty unless it has a length.
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
    use crate::pb::v1;

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
        // A job with a variable of which field 9 is unknown, and a field 4 beside it.
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
    fn no_bytes_make_it_panic() {
        for bytes in [&[0xff; 12][..], &[2, 0xff], &[1, 1], &[0x0b], &[8], &[5 << 3 | 2, 200, 1, 0]] {
            unknown_of("proto.RunRequest", bytes);
        }
    }
}
