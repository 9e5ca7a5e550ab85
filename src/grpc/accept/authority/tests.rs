//! Tests the filter between a client's encoder and a decoder, both with a table that evicts entries.

use proptest::prelude::*;

use super::*;

type Field = (Vec<u8>, Vec<u8>);

/// Maximum size of the table of either side, in bytes.
const TABLE: usize = 4_096;

/// The limit of a header list.
const LIST: usize = 16 << 10;

/// A block of this length whose list is within the limit.
fn kept(length: usize) -> Filtered {
    Filtered { length, is_too_large: false }
}

/// A dynamic table, newest entry first.
#[derive(Clone, Default)]
struct Table(Vec<Field>);

impl Table {
    fn insert(&mut self, field: Field) {
        self.0.insert(0, field);
        while self.0.iter().map(|(name, value)| name.len() + value.len() + 32).sum::<usize>() > TABLE {
            self.0.pop();
        }
    }
}

/// Ways to encode a field.
#[derive(Clone, Copy, Debug)]
enum Style {
    Inserted,
    Plain,
    NeverIndexed,
}

/// A client whose encoder refers to its table whenever it can.
#[derive(Clone, Default)]
pub(in crate::grpc::accept) struct Encoder {
    table: Table,
}

fn put_integer(block: &mut Vec<u8>, pattern: u8, prefix: u8, mut value: usize) {
    let mask = mask(prefix);
    if value < mask {
        block.push(pattern | value as u8);
        return;
    }
    block.push(pattern | mask as u8);
    value -= mask;
    while value >= 0x80 {
        block.push(value as u8 | 0x80);
        value >>= 7;
    }
    block.push(value as u8);
}

fn put_string(block: &mut Vec<u8>, text: &[u8]) {
    put_integer(block, 0, 7, text.len());
    block.extend_from_slice(text);
}

impl Encoder {
    fn put(&mut self, block: &mut Vec<u8>, field: &Field, style: Style, names_anew: bool) {
        let entries = &self.table.0;
        if let Some(at) = entries.iter().position(|entry| entry == field) {
            return put_integer(block, 0x80, 7, STATIC_ENTRIES + 1 + at);
        }
        let (pattern, prefix) = match style {
            Style::Inserted => (0x40, 6),
            Style::Plain => (0, 4),
            Style::NeverIndexed => (0x10, 4),
        };
        let dynamic = entries.iter().position(|(name, _)| *name == field.0).map(|at| STATIC_ENTRIES + 1 + at);
        let fixed = (field.0 == NAME).then_some(AUTHORITY);
        if let Some(index) = dynamic.or(fixed).filter(|_| !names_anew) {
            put_integer(block, pattern, prefix, index);
        } else {
            put_integer(block, pattern, prefix, 0);
            put_string(block, &field.0);
        }
        put_string(block, &field.1);
        if matches!(style, Style::Inserted) {
            self.table.insert(field.clone());
        }
    }

    /// Encodes a block and inserts all its fields into the table.
    pub(in crate::grpc::accept) fn block(&mut self, fields: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut block = Vec::new();
        for (name, value) in fields {
            self.put(&mut block, &(name.to_vec(), value.to_vec()), Style::Inserted, false);
        }
        block
    }
}

/// The library behind the filter.
#[derive(Default)]
pub(in crate::grpc::accept) struct Decoder {
    table: Table,
}

impl Decoder {
    pub(in crate::grpc::accept) fn decode(&mut self, block: &[u8]) -> Vec<Field> {
        let (mut fields, mut at) = (Vec::new(), 0);
        while at < block.len() {
            let first = block[at];
            let prefix = if first >= 0x80 {
                7
            } else if first >= 0x40 {
                6
            } else {
                4
            };
            let (index, mut end) = integer(block, at, prefix).unwrap();
            let entry = |index: usize| match index {
                AUTHORITY => (NAME.to_vec(), Vec::new()),
                index => self.table.0[index - STATIC_ENTRIES - 1].clone(),
            };
            let mut text = || {
                let (text, _, after) = string(block, end).unwrap();
                end = after;
                text.to_vec()
            };
            let field = match (prefix, index) {
                (7, index) => entry(index),
                (_, 0) => (text(), text()),
                (_, index) => (entry(index).0, text()),
            };
            if prefix == 6 {
                self.table.insert(field.clone());
            }
            fields.push(field);
            at = end;
        }
        fields
    }
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => Just(NAME.to_vec()),
        4 => "x-[a-e]".prop_map(String::into_bytes),
        1 => "[a-z]{1,8}".prop_map(String::into_bytes),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => "[ab]{0,2}".prop_map(String::into_bytes),
        1 => proptest::collection::vec(any::<u8>(), 0..20),
        // Large fields evict others.
        1 => (0_usize..1_500).prop_map(|length| vec![b'v'; length]),
    ]
}

fn style() -> impl Strategy<Value = Style> {
    prop_oneof![4 => Just(Style::Inserted), 1 => Just(Style::Plain), 1 => Just(Style::NeverIndexed)]
}

fn blocks() -> impl Strategy<Value = Vec<Vec<(Field, Style, bool)>>> {
    let field = ((name(), value()), style(), prop::bool::weighted(0.1));
    proptest::collection::vec(proptest::collection::vec(field, 0..12), 1..40)
}

proptest! {
    #[test]
    fn fault_88_every_block_is_the_same_without_authority(blocks in blocks()) {
        let (mut client, mut filter, mut library) = (Encoder::default(), AuthorityFilter::default(), Decoder::default());
        for fields in blocks {
            let mut block = Vec::new();
            for (field, style, names_anew) in &fields {
                client.put(&mut block, field, *style, *names_anew);
            }
            let length = filter.filter(&mut block, usize::MAX / ABUSE).unwrap().length;
            let expected: Vec<Field> =
                fields.into_iter().map(|(field, ..)| field).filter(|(name, _)| name != NAME).collect();
            prop_assert_eq!(library.decode(&block[..length]), expected);
        }
    }

    #[test]
    fn any_bytes_are_filtered_or_refused(blocks in proptest::collection::vec(any::<Vec<u8>>(), 1..10)) {
        let mut filter = AuthorityFilter::default();
        for mut block in blocks {
            let length = block.len();
            prop_assert!(filter.filter(&mut block, LIST).is_ok_and(|kept| kept.length <= length) || length > 0);
        }
    }
}

#[test]
fn fault_88_the_name_is_known_in_every_form() {
    let huffman = [&[0x40, 0x80 | NAME_HUFFMAN.len() as u8], NAME_HUFFMAN, &[1, b'x']].concat();
    let literal = [&[0x10, NAME.len() as u8], NAME, &[0]].concat();
    // Indexed in the static table; inserted with an empty value, plain and in the Huffman code; never indexed.
    for form in [&[0x81][..], &[0x41, 0], &[0x41, 0x80], &[0x01, 1, b'%'], &[0x11, 0], &huffman, &literal] {
        let mut block = [form, &[0x83]].concat();
        let length = AuthorityFilter::default().filter(&mut block, LIST).unwrap().length;
        assert_eq!(block[..length], [0x83], "{form:?}");
    }
}

#[test]
fn changes_of_the_table_stay() {
    let mut block = [0x20, 0x3f, 0xe1, 0x1f, 0x81, 0x83];
    assert_eq!(AuthorityFilter::default().filter(&mut block, LIST), Ok(kept(5)));
    assert_eq!(block[..5], [0x20, 0x3f, 0xe1, 0x1f, 0x83]);
}

#[test]
fn broken_blocks_are_refused() {
    for block in [
        // Index 0, an index that was never inserted, a cut integer, one of six bytes, a cut name, a cut value.
        &[0x80][..],
        &[0xbe],
        &[0xff],
        &[0xff, 0x80, 0x80, 0x80, 0x80, 0x80, 1],
        &[0x40, 3, b'a'],
        &[0x41, 3, b'a'],
        &[0x41],
    ] {
        let filtered = AuthorityFilter::default().filter(&mut block.to_vec(), LIST);
        assert_eq!(filtered, Err(BlockError::Malformed), "{block:?}");
    }
}

#[test]
fn a_thousand_calls_cost_no_memory() {
    let (mut client, mut filter) = (Encoder::default(), AuthorityFilter::default());
    for call in 0..1_000 {
        let mut block = client.block(&[(NAME, format!("run%2F{call}").as_bytes())]);
        assert_eq!(filter.filter(&mut block, LIST), Ok(kept(0)));
    }
    assert!(filter.entries.len() <= MAX_ENTRIES, "{}", filter.entries.len());
}

#[test]
fn fault_103_removed_fields_count_towards_the_header_list() {
    // A reference to an entry of the table that was removed counts as the field itself.
    let entry = FIELD_OVERHEAD + NAME.len() + 100;
    let inserted = [&[0x41, 100][..], &[b'v'; 100]].concat();
    for (block, counted) in [
        (vec![0xbe], entry),
        (vec![0x81], FIELD_OVERHEAD + NAME.len()),
        (vec![0x01, 3, b'a', b'b', b'c'], FIELD_OVERHEAD + NAME.len() + 3),
        // The name alone is that of the entry.
        (vec![0x0f, 0x2f, 1, b'a'], FIELD_OVERHEAD + NAME.len() + 1),
        // A field that stays; the library counts its name and its value.
        (vec![0x83], FIELD_OVERHEAD),
    ] {
        let mut filter = AuthorityFilter::default();
        assert_eq!(filter.filter(&mut inserted.clone(), LIST), Ok(kept(0)));
        let mut filtered =
            |count: usize| filter.filter(&mut [&[0x81][..], &block.repeat(count)].concat(), LIST);
        let most = (LIST - FIELD_OVERHEAD - NAME.len()) / counted;
        assert!(!filtered(most).unwrap().is_too_large, "{block:?}");
        assert!(filtered(most + 1).unwrap().is_too_large, "{block:?}");
        assert_eq!(filtered(ABUSE * LIST / counted + 1), Err(BlockError::Abusive), "{block:?}");
    }
}

#[test]
fn a_list_without_authority_is_for_the_library_to_count() {
    let mut block = vec![0x83; 1_000];
    assert_eq!(AuthorityFilter::default().filter(&mut block, LIST), Ok(kept(1_000)));
}
