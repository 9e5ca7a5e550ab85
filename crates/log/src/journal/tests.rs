use proptest::collection::vec;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use super::{Damage, DamageKind, MAX_RECORD, Reader, RecordTooLong, Records, append_record, encode};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
enum Event {
    Started,
    File { path: String, inode: u64 },
    Cancel { cause: String },
}

fn events() -> Vec<Event> {
    vec![
        Event::Started,
        Event::File { path: "/tmp/a\n\"b\u{e9}".into(), inode: u64::MAX },
        Event::Cancel { cause: "finish called".into() },
    ]
}

/// Returns the file of `events`, and the offsets of its records, its end last.
fn file_of(events: &[Event]) -> (Vec<u8>, Vec<usize>) {
    let mut file = Vec::new();
    let mut starts = vec![0];
    for event in events {
        file.extend(encode(event).unwrap());
        starts.push(file.len());
    }
    (file, starts)
}

fn read(file: &[u8]) -> (Vec<Event>, Option<Damage>) {
    let mut events = Vec::new();
    let mut reader = Reader::<Event>::new(file);
    for record in reader.by_ref() {
        match record {
            Ok(record) => events.push(record.event),
            Err(damage) => return (events, Some(damage)),
        }
    }
    assert_eq!(reader.position(), file.len() as u64);
    (events, None)
}

#[test]
fn a_line_is_json_with_the_check_sum_of_its_event() {
    let line = encode(&Event::Started).unwrap();
    assert_eq!(
        String::from_utf8(line).unwrap(),
        "{\"crc32\":\"12fb0593\",\"event\":{\"type\":\"started\"}}\n"
    );
}

#[test]
fn what_was_written_is_read_with_its_positions() {
    let (file, starts) = file_of(&events());
    let records: Vec<_> = Reader::<Event>::new(&file).map(Result::unwrap).collect();
    assert_eq!(records.iter().map(|record| record.event.clone()).collect::<Vec<_>>(), events());
    for (record, bounds) in records.iter().zip(starts.windows(2)) {
        assert_eq!([record.start, record.end], [bounds[0] as u64, bounds[1] as u64]);
    }
}

#[test]
fn a_file_cut_anywhere_gives_its_whole_records_and_names_the_torn_one() {
    let (file, starts) = file_of(&events());
    for cut in 0..file.len() {
        let whole = starts.iter().filter(|&&start| start <= cut).count() - 1;
        let torn = starts[whole] != cut;
        let damage = torn.then_some(Damage { at: starts[whole] as u64, kind: DamageKind::Torn });
        assert_eq!(read(&file[..cut]), (events()[..whole].to_vec(), damage), "cut at {cut}");
    }
}

#[test]
fn a_flip_of_any_bit_is_detected_at_its_record() {
    let (file, starts) = file_of(&events());
    for at in 0..file.len() {
        for bit in 0..8 {
            let mut broken = file.clone();
            broken[at] ^= 1 << bit;
            let record = starts.iter().filter(|&&start| start <= at).count() - 1;
            let (read, damage) = read(&broken);
            assert_eq!(read, events()[..record], "bit {bit} of byte {at}");
            assert_eq!(damage.map(|damage| damage.at), Some(starts[record] as u64), "bit {bit} of byte {at}");
        }
    }
}

#[test]
fn an_event_of_another_version_is_no_corruption_and_is_not_quoted() {
    let line = encode(&serde_json::json!({ "type": "file", "path": 7, "inode": "hidden value" })).unwrap();
    let (_, damage) = read(&line);
    let damage = damage.unwrap();
    assert!(matches!(damage.kind, DamageKind::Unknown { .. }), "{damage:?}");
    assert!(!damage.to_string().contains("hidden"), "{damage}");
}

#[test]
fn reading_ends_after_damage() {
    let (mut file, _) = file_of(&events());
    file[3] ^= 1;
    let mut reader = Reader::<Event>::new(&file);
    assert!(reader.next().unwrap().is_err());
    assert!(reader.next().is_none());
    assert_eq!(reader.position(), 0);
}

fn records_of(payloads: &[Vec<u8>]) -> (Vec<u8>, Vec<usize>) {
    let mut file = Vec::new();
    let mut starts = vec![0];
    for payload in payloads {
        append_record(payload, &mut file).unwrap();
        starts.push(file.len());
    }
    (file, starts)
}

fn read_records(file: &[u8]) -> (Vec<Vec<u8>>, Option<Damage>) {
    let mut payloads = Vec::new();
    for payload in Records::new(file) {
        match payload {
            Ok(payload) => payloads.push(payload.to_vec()),
            Err(damage) => return (payloads, Some(damage)),
        }
    }
    (payloads, None)
}

#[test]
fn zeros_behind_the_last_record_are_a_write_that_never_arrived() {
    let (mut file, starts) = records_of(&[b"a".to_vec()]);
    file.extend_from_slice(&[0; 4096]);
    let damage = Damage { at: starts[1] as u64, kind: DamageKind::Torn };
    assert_eq!(read_records(&file), (vec![b"a".to_vec()], Some(damage)));
}

#[test]
fn fault_43_a_sector_of_zeros_is_a_torn_write_and_a_single_zero_is_damage() {
    let lines: Vec<u8> = (0..100).flat_map(|n| encode(&format!("event number {n}")).unwrap()).collect();
    let kind = |bytes: &[u8]| Reader::<String>::new(bytes).find_map(Result::err).map(|damage| damage.kind);
    assert_eq!(kind(&lines), None);
    for sector in 0..lines.len() / 512 {
        let mut bad = lines.clone();
        bad[sector * 512..(sector + 1) * 512].fill(0);
        assert_eq!(kind(&bad), Some(DamageKind::Torn), "sector {sector}");
    }
    for at in (0..lines.len()).filter(|at| lines[*at] != b'\n') {
        let mut bad = lines.clone();
        bad[at] = 0;
        assert_eq!(kind(&bad), Some(DamageKind::Corrupt), "byte {at}");
    }
}

#[test]
fn a_length_beyond_the_limit_is_damage_and_never_written() {
    assert_eq!(read_records(&[0xff; 16]).1, Some(Damage { at: 0, kind: DamageKind::Corrupt }));
    let mut out = Vec::new();
    let len = MAX_RECORD + 1;
    assert_eq!(append_record(&vec![0; len], &mut out), Err(RecordTooLong { len }));
    assert!(out.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn records_survive_cuts_and_show_flips(payloads in vec(vec(any::<u8>(), 0..20), 1..4)) {
        let (file, starts) = records_of(&payloads);
        prop_assert_eq!(read_records(&file), (payloads.clone(), None));
        for at in 0..file.len() {
            let record = starts.iter().filter(|&&start| start <= at).count() - 1;
            let torn = starts[record] != at;
            let damage = torn.then_some(Damage { at: starts[record] as u64, kind: DamageKind::Torn });
            prop_assert_eq!(read_records(&file[..at]), (payloads[..record].to_vec(), damage));
            for bit in 0..8 {
                let mut broken = file.clone();
                broken[at] ^= 1 << bit;
                let (read, damage) = read_records(&broken);
                prop_assert_eq!(&read[..], &payloads[..record]);
                prop_assert_eq!(damage.map(|damage| damage.at), Some(starts[record] as u64));
            }
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in vec(any::<u8>(), 0..300)) {
        let good: u64 = Reader::<serde_json::Value>::new(&bytes).flatten().map(|record| record.end - record.start).sum();
        prop_assert!(good <= bytes.len() as u64);
        prop_assert!(Records::new(&bytes).flatten().count() <= bytes.len());
    }
}

#[test]
fn a_record_of_the_greatest_length_is_one_and_a_longer_one_is_not() {
    let longest = vec![7; MAX_RECORD];
    let mut file = Vec::new();
    append_record(&longest, &mut file).unwrap();
    let mut records = Records::new(&file);
    assert_eq!(records.position(), 0);
    assert_eq!(records.next().unwrap().unwrap().len(), MAX_RECORD);
    assert_eq!(records.position(), file.len() as u64);
    assert!(records.next().is_none());
    let longer = vec![7; MAX_RECORD + 1];
    assert_eq!(append_record(&longer, &mut file), Err(RecordTooLong { len: MAX_RECORD + 1 }));
}
