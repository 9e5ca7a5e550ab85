//! The bytes of a trace, however they came, and after a kill at any byte.

use proptest::prelude::*;

use super::*;

/// A log as a daemon writes it: entries of two channels, continued lines, a progress bar, odd bytes.
fn log() -> Vec<u8> {
    let time = "2026-11-28T01:02:03.000004Z";
    let mut bytes = Vec::new();
    let lines: [(&str, &[u8]); 9] = [
        ("00O ", b"section_start:1:step_script\r\x1b[0KRunning"),
        ("01O ", b"hello"),
        ("01O ", b"half of \xe2\x82"),
        ("01O+", b"\xac a euro, 10 %\r"),
        ("01E ", b"an error \xff\xfe"),
        ("01O ", b"20 %\r"),
        ("01O+", b"30 %"),
        ("01O ", b"\xe2\x82"),
        ("00O ", b"section_end:1:step_script\r\x1b[0K"),
    ];
    for (source, body) in lines {
        bytes.extend_from_slice(format!("{time} {source}").as_bytes());
        bytes.extend_from_slice(body);
        bytes.push(b'\n');
    }
    bytes
}

const HEAD: &str = "2026-11-28T01:02:02.000000Z 00O Running on x\n";

/// Makes a whole trace, giving the log in pieces that end at these places.
fn whole(form: Form, limit: u64, log: &[u8], cuts: &[usize]) -> (Vec<u8>, Text) {
    let mut text = Text::new(form, limit);
    let mut out = Vec::new();
    text.head(HEAD, &mut out);
    let mut at = 0;
    for cut in cuts.iter().copied().chain([log.len()]) {
        let cut = cut.clamp(at, log.len());
        text.log(&log[at..cut], &mut out);
        at = cut;
    }
    text.end_of_log(&mut out);
    text.tail("Job succeeded\n", &mut out);
    (out, text)
}

#[test]
fn a09_a_trace_of_entries_is_the_log_with_one_replacement_for_each_wrong_byte() {
    let (out, _) = whole(Form::Entries, 1 << 20, &log(), &[]);
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with(HEAD) && text.ends_with("Job succeeded\n"), "{text}");
    assert!(text.contains("half of \u{fffd}\u{fffd}\n"), "{text}");
    assert!(text.contains("an error \u{fffd}\u{fffd}\n"), "{text}");
    assert_eq!(text.lines().count(), 11);
}

#[test]
fn a09_a_trace_without_times_joins_the_pieces_of_a_line() {
    let (out, _) = whole(Form::Lines, 1 << 20, &log(), &[]);
    let text = String::from_utf8(out).unwrap();
    assert!(
        text.contains("half of \u{fffd}\u{fffd}\n") || text.contains("half of \u{20ac} a euro"),
        "{text}"
    );
    assert!(text.contains("20 %\r30 %\n"), "{text:?}");
    assert!(text.contains("\n\u{fffd}\u{fffd}\nsection_end"), "{text:?}");
    assert!(text.ends_with("\r\x1b[0K\nJob succeeded\n"), "{text:?}");
}

#[test]
fn a09_wrong_bytes_are_counted_as_the_server_counts_them() {
    let mut pending = Vec::new();
    assert_eq!(super::text::characters(&mut pending, b"\xe2\x82\n"), "\u{fffd}\u{fffd}\n");
    assert_eq!(super::text::characters(&mut pending, b"a\0\r\xe2"), "a\0\r");
    assert_eq!(super::text::characters(&mut pending, b"\x82\xacb"), "\u{20ac}b");
    assert!(pending.is_empty());
}

#[test]
fn a09_at_the_limit_the_trace_ends_with_a_note_and_the_result() {
    let (out, text) = whole(Form::Entries, 120, &log(), &[]);
    let shown = String::from_utf8(out).unwrap();
    assert!(text.is_full());
    let note = "2026-11-28T01:02:03.000004Z 00O \x1b[33;1mJob's log exceeded limit of 120 bytes; the job goes on, its result follows.\x1b[0;m\n";
    let kept = shown.strip_suffix("Job succeeded\n").unwrap().strip_suffix(note).unwrap();
    assert!(kept.len() <= 120 && kept.ends_with('\n'), "{kept:?}");

    let (out, _) = whole(Form::Lines, 70, &log(), &[]);
    let shown = String::from_utf8(out).unwrap();
    assert!(shown.contains("\n\x1b[33;1mJob's log exceeded limit of 70 bytes"), "{shown:?}");
}

#[test]
fn a09_a_trace_that_just_fits_has_no_note() {
    let length = whole(Form::Entries, 1 << 20, &log(), &[]).0.len() - "Job succeeded\n".len();
    assert!(!whole(Form::Entries, length as u64, &log(), &[]).1.is_full());
    assert!(whole(Form::Entries, length as u64 - 1, &log(), &[]).1.is_full());
}

#[test]
fn a17_a_line_without_end_is_left_out() {
    let long = vec![b'x'; 3 << 20];
    let log = [&long[..], b"\n2026-11-28T01:02:03.000004Z 01O after\n"].concat();
    for cuts in [vec![], vec![1 << 19, 2 << 20]] {
        for form in [Form::Entries, Form::Lines] {
            let (out, text) = whole(form, 64 << 20, &log, &cuts);
            assert!(String::from_utf8(out).unwrap().ends_with("after\nJob succeeded\n"));
            assert_eq!(text.checkpoint().log_offset, log.len() as u64);
        }
    }
}

#[test]
fn a09_the_checksum_is_that_of_the_server() {
    let mut text = Text::new(Form::Lines, 1 << 20);
    assert_eq!(checksum(text.crc()), "crc32:00000000");
    text.head("hello world\n", &mut Vec::new());
    assert_eq!((checksum(text.crc()).as_str(), text.len()), ("crc32:af083b2d", 12));
}

/// Logs of whole and broken lines.
fn logs() -> impl Strategy<Value = Vec<u8>> {
    let body = prop::collection::vec(
        prop_oneof![Just(b'a'), Just(b'\r'), Just(0xe2_u8), Just(0x82), Just(0xac)],
        0..12,
    );
    let source = prop::sample::select(vec!["01O ", "01O+", "01E ", "01E+", "00O ", ""]);
    let line = (source, body).prop_map(|(source, mut body)| {
        body.retain(|byte| *byte != b'\n');
        let header =
            if source.is_empty() { String::new() } else { format!("2026-11-28T01:02:03.000004Z {source}") };
        [header.as_bytes(), &body, b"\n"].concat()
    });
    (prop::collection::vec(line, 0..20), prop::collection::vec(any::<u8>(), 0..40))
        .prop_map(|(lines, tail)| [lines.concat(), tail].concat())
}

proptest! {
    #[test]
    fn a09_the_trace_depends_on_the_bytes_alone(
        log in logs(), cuts in prop::collection::vec(0..600_usize, 0..6), limit in 0..900_u64, entries: bool,
    ) {
        let form = if entries { Form::Entries } else { Form::Lines };
        let mut cuts = cuts;
        cuts.sort_unstable();
        let (out, text) = whole(form, limit, &log, &cuts);
        let (at_once, _) = whole(form, limit, &log, &[]);
        prop_assert_eq!(&out, &at_once);
        prop_assert!(String::from_utf8(out.clone()).is_ok());
        prop_assert_eq!((text.len(), text.crc()), (out.len() as u64, crc32fast::hash(&out)));
    }

    #[test]
    fn a09_a_kill_at_any_byte_changes_nothing(
        log in logs(), kill in 0..600_usize, limit in 0..900_u64, entries: bool, written in 0..100_usize,
    ) {
        let form = if entries { Form::Entries } else { Form::Lines };
        let (wanted, _) = whole(form, limit, &log, &[]);
        let mut text = Text::new(form, limit);
        let mut trace = Vec::new();
        text.head(HEAD, &mut trace);
        text.log(&log[..kill.min(log.len())], &mut trace);
        let file = text.checkpoint().encode().unwrap();
        // What came behind the checkpoint is on disk in part.
        let mut lost = Vec::new();
        text.log(&log[kill.min(log.len())..], &mut lost);
        trace.extend_from_slice(&lost[..written.min(lost.len())]);

        let checkpoint = Checkpoint::decode(&file).unwrap();
        let (mut text, cut) = resume(&checkpoint, &trace, form, limit).unwrap();
        trace.truncate(cut as usize);
        text.log(&log[checkpoint.log_offset as usize..], &mut trace);
        text.end_of_log(&mut trace);
        text.tail("Job succeeded\n", &mut trace);
        prop_assert_eq!(trace, wanted);
    }

    #[test]
    fn a09_a_trace_that_does_not_fit_its_checkpoint_is_found(log in logs(), at: prop::sample::Index) {
        let mut text = Text::new(Form::Entries, 1 << 20);
        let mut trace = Vec::new();
        text.head(HEAD, &mut trace);
        text.log(&log, &mut trace);
        let checkpoint = text.checkpoint();
        prop_assert!(resume(&checkpoint, &trace[..trace.len() - 1], Form::Entries, 1 << 20).is_none());
        let at = at.index(trace.len());
        trace[at] ^= 1;
        prop_assert!(resume(&checkpoint, &trace, Form::Entries, 1 << 20).is_none());
    }
}
