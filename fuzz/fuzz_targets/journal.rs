//! Reads journals of arbitrary bytes without a panic. A valid first record is read whatever bytes follow it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use step_runner::journal::{Reader, Records, append_record, encode};

fuzz_target!(|input: (String, Vec<u8>, Vec<u8>)| {
    let (text, payload, garbage) = input;

    let event = Value::from(text);
    let mut file = encode(&event).expect("text is JSON");
    let whole = file.len() as u64;
    file.extend_from_slice(&garbage);
    let mut reader = Reader::<Value>::new(&file);
    let first = reader.next().expect("a record").expect("a good record");
    assert_eq!((first.start, first.end, first.event), (0, whole, event));
    for record in reader.by_ref() {
        if let Err(damage) = record {
            assert!(damage.at >= whole);
        }
    }
    assert!(reader.position() >= whole && reader.position() <= file.len() as u64);

    let mut file = Vec::new();
    append_record(&payload, &mut file).expect("short enough");
    file.extend_from_slice(&garbage);
    let mut records = Records::new(&file);
    assert_eq!(records.next(), Some(Ok(&payload[..])));
    assert!(records.count() <= garbage.len() + 1);
});
