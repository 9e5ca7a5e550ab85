use chrono::FixedOffset;
use proptest::collection::vec;
use proptest::prelude::*;

use super::text::{Marker, show};
use super::{Format, Options, Output, Printer};
use crate::frame::{HEADER_LEN, HOLD_MAX, Stamp};

fn wire(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut wire = Vec::new();
    for (second, (source, body)) in entries.iter().enumerate() {
        wire.extend_from_slice(format!("2021-01-01T00:00:{second:02}.678999Z {source}{body}\n").as_bytes());
    }
    wire
}

fn print(format: Format, wire: &[u8]) -> Output {
    let mut printer = Printer::new(format);
    let mut out = Output::default();
    printer.push(wire, &mut out);
    printer.finish(&mut out);
    out
}

fn pretty_with(options: Options, entries: &[(&str, &str)]) -> String {
    String::from_utf8(print(Format::Pretty(options), &wire(entries)).stdout).unwrap()
}

fn pretty(entries: &[(&str, &str)]) -> String {
    pretty_with(Options::plain_utc(), entries)
}

fn shown(text: &[u8], color: bool) -> String {
    let mut out = Vec::new();
    show(text, color, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn lines_come_in_the_order_they_went_out() {
    let out = pretty(&[
        ("00O ", "start"),
        ("01O ", "a"),
        ("01E ", "b"),
        ("01O ", "c"),
        ("0fE ", "d"),
        ("01X ", "e"),
    ]);
    assert_eq!(
        out,
        "00:00:00.678 run  start\n00:00:01.678 out  a\n00:00:02.678 err  b\n\
         00:00:03.678 out  c\n00:00:04.678 0fE  d\n00:00:05.678 01X  e\n"
    );
}

#[test]
fn a_line_shows_before_the_next_one_arrives() {
    let mut printer = Printer::new(Format::Pretty(Options::plain_utc()));
    let mut out = Output::default();
    printer.push(&wire(&[("00O ", "Running step name=a")]), &mut out);
    assert_eq!(out.stdout, b"00:00:00.678 run  Running step name=a\n");
}

#[test]
fn a_joined_line_shows_its_last_part_that_is_not_empty() {
    assert_eq!(
        pretty(&[("01O ", "10%\r"), ("01E ", "x"), ("01O+", "20%\r"), ("01O+", ""), ("01O ", "end")]),
        "00:00:01.678 err  x\n00:00:00.678 out  20%\n00:00:04.678 out  end\n"
    );
    assert_eq!(
        pretty(&[("01O ", "dos\r"), ("01O ", "next\r")]),
        "00:00:00.678 out  dos\n00:00:01.678 out  next\n"
    );
    assert_eq!(pretty(&[("01O ", "\r"), ("01O ", "")]), "00:00:00.678 out  \n00:00:01.678 out  \n");
}

#[test]
fn all_shows_every_part() {
    let all = Options { all: true, ..Options::plain_utc() };
    assert_eq!(
        pretty_with(all, &[("01O ", "10%\r20%\r"), ("01O+", "30%\r\r"), ("01O+", "done"), ("01O ", "dos\r")]),
        "00:00:00.678 out  10%\n00:00:00.678 out  20%\n00:00:01.678 out  30%\n\
         00:00:02.678 out  done\n00:00:03.678 out  dos\n"
    );
}

#[test]
fn a_line_cut_by_overflow_is_shown_whole() {
    let long = "x".repeat(9_000);
    assert_eq!(
        pretty(&[("01O ", &long), ("01E ", "e"), ("01O+", "end")]),
        format!("00:00:01.678 err  e\n00:00:00.678 out  {long}end\n")
    );
    let huge = "x".repeat(2 << 20);
    assert_eq!(pretty(&[("01O ", &huge), ("01O+", "end")]), format!("00:00:00.678 out  {huge}end\n"));
}

#[test]
fn only_a_piece_of_the_line_shown_last_goes_on_in_it() {
    let huge = "x".repeat(2 << 20);
    for (source, tag) in [("01E+", "err"), ("01O ", "out")] {
        assert_eq!(
            pretty(&[("01O ", &huge), (source, "another")]),
            format!("00:00:00.678 out  {huge}\n00:00:01.678 {tag}  another\n")
        );
    }
}

#[test]
fn times_move_to_the_zone_given() {
    let local = |seconds| Options { offset: FixedOffset::east_opt(seconds).unwrap(), ..Options::plain_utc() };
    assert_eq!(pretty_with(local(5_400), &[("01O ", "a")]), "01:30:00.678 out  a\n");
    assert_eq!(pretty_with(local(-1), &[("01O ", "a")]), "23:59:59.678 out  a\n");
}

/// Output for `entries` before anything follows them.
fn at_once(entries: &[(&str, &str)]) -> String {
    let mut printer = Printer::new(Format::Pretty(Options::plain_utc()));
    let mut out = Output::default();
    printer.push(&wire(entries), &mut out);
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn only_what_may_be_continued_waits_for_its_end() {
    // No carriage return, and no longer than the longest body that ends its line for certain.
    let longest = "x".repeat(HOLD_MAX - HEADER_LEN);
    assert_eq!(at_once(&[("01O ", &longest)]), format!("00:00:00.678 out  {longest}\n"));
    assert_eq!(at_once(&[("01O ", &format!("{longest}x"))]), "");
    assert_eq!(at_once(&[("01O ", "10%\r")]), "");
    assert_eq!(at_once(&[("01O ", "10%\r"), ("01O+", "done")]), "00:00:00.678 out  done\n");
    assert_eq!(at_once(&[("01O ", "10%\r"), ("01O+", "20%\r")]), "");
}

#[test]
fn a_line_that_may_be_continued_is_to_be_had_as_it_is_so_far() {
    let so_far = |entries: &[(&str, &str)]| {
        let mut printer = Printer::new(Format::Pretty(Options::plain_utc()));
        printer.push(&wire(entries), &mut Output::default());
        let mut out = Output::default();
        printer.unfinished(None, &mut out);
        String::from_utf8(out.stdout).unwrap()
    };
    assert_eq!(so_far(&[("01O ", "10%\r")]), "00:00:00.678 out  10%");
    assert_eq!(so_far(&[("01O ", "10%\r"), ("01O+", "20%\r\x1b[K")]), "00:00:00.678 out  20%");
    assert_eq!(so_far(&[("01O ", "10%\r"), ("01O+", "done")]), "");
    assert_eq!(so_far(&[("01O ", "10%\r"), ("01E ", "half\r")]), "00:00:01.678 err  half");
}

#[test]
fn lines_that_are_no_entries_are_marked() {
    let out = print(
        Format::Pretty(Options::plain_utc()),
        b"junk\nthis line is longer than a header, but is none\n",
    );
    assert_eq!(
        String::from_utf8(out.stdout).unwrap(),
        "????????.??? ???  junk\n????????.??? ???  this line is longer than a header, but is none\n"
    );
}

#[test]
fn plain_separates_the_channels_and_merges_on_demand() {
    let wire = wire(&[("00O ", "run"), ("01O ", "a\r"), ("01E ", "e"), ("01O+", "b"), ("00E ", "w")]);
    let out = print(Format::Plain { merge: false }, &wire);
    assert_eq!((&*out.stdout, &*out.stderr), (&b"a\rb\n"[..], &b"run\ne\nw\n"[..]));
    let out = print(Format::Plain { merge: true }, &wire);
    assert_eq!((&*out.stdout, &*out.stderr), (&b"a\r\ne\nb\n"[..], &b"run\nw\n"[..]));
}

#[test]
fn outputs_that_are_one_file_keep_the_order_of_the_log_and_whole_lines() {
    let wire = wire(&[("00O ", "run"), ("01O ", "a"), ("01E ", "e"), ("01O ", "b"), ("00E ", "w")]);
    let out = print(Format::Together, &wire);
    assert_eq!((&*out.stdout, &*out.stderr), (&b"run\na\ne\nb\nw\n"[..], &b""[..]));
}

#[test]
fn a_message_of_the_callers_own_starts_on_a_line_of_its_own() {
    // Lines whose end has not come yet.
    let (bar, long) = ("half\r", "x".repeat(2 << 20));
    for (format, body, stdout) in [
        (Format::Pretty(Options::plain_utc()), &*long, format!("00:00:00.678 out  {long}\n")),
        (Format::Together, bar, format!("{bar}\n")),
        (Format::Plain { merge: false }, bar, bar.to_owned()),
    ] {
        let mut printer = Printer::new(format);
        let mut out = Output::default();
        printer.push(&wire(&[("01O ", body)]), &mut out);
        printer.interrupt(&mut out);
        printer.interrupt(&mut out);
        assert!(out.stdout == stdout.as_bytes() && out.stderr.is_empty(), "{format:?}");
    }
}

#[test]
fn raw_passes_everything() {
    assert_eq!(print(Format::Raw, b"junk\nhalf").stdout, b"junk\nhalf");
}

#[test]
fn colours_pass_only_to_a_terminal() {
    assert_eq!(shown(b"\x1b[31;1mred", false), "red");
    assert_eq!(shown(b"\x1b[31;1mred", true), "\x1b[31;1mred\x1b[0m");
    assert_eq!(shown(b"\x1b[31mred\x1b[0m.", true), "\x1b[31mred\x1b[0m.", "no second reset");
}

#[test]
fn sequences_that_move_or_set_anything_are_removed() {
    for color in [false, true] {
        assert_eq!(shown(b"a\x1b[2J\x1b[1;1H\x1b[?25lb\x1b[>4;2mc\x1b[0 qd", color), "abcd");
        assert_eq!(shown(b"\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b", color), "ab");
    }
}

#[test]
fn other_control_bytes_become_visible() {
    assert_eq!(shown(b"\ta\0\x08\x7f", true), "\ta\\x00\\x08\\x7f");
    assert_eq!(shown(b"\x1bc\x1b[", true), "\\x1bc\\x1b[", "no CSI, or not a whole one");
    assert_eq!(shown(b"\x1b]0;never ends", true), "\\x1b]0;never ends");
    assert_eq!(shown("\u{e9}\u{9b}31m\u{1f600}".as_bytes(), true), "\u{e9}\\xc2\\x9b31m\u{1f600}");
    assert_eq!(shown(b"\xff\xc3", true), "\\xff\\xc3");
}

#[test]
fn marks_that_turn_a_line_around_become_visible_in_pretty_alone() {
    let turned = "a\u{202e}b\u{2066}\u{200f}\u{61c}c\u{2028}d\u{200b}";
    let seen = "a<U+202E>b<U+2066><U+200F><U+061C>c<U+2028>d\u{200b}";
    assert_eq!(pretty(&[("01O ", turned)]), format!("00:00:00.678 out  {seen}\n"));
    let wire = wire(&[("01O ", turned)]);
    assert_eq!(print(Format::Plain { merge: false }, &wire).stdout, format!("{turned}\n").into_bytes());
    assert_eq!(print(Format::Raw, &wire).stdout, wire);
}

#[test]
fn section_markers_become_headings_or_nothing() {
    let start = "\x1b[0Ksection_start:1:build_it[collapsed=true]\r\x1b[0K";
    let end = "section_end:2:build_it\r\x1b[0K";
    assert_eq!(pretty(&[("01O ", &format!("{start}Building"))]), "00:00:00.678 out  Building\n");
    assert_eq!(pretty(&[("01O ", start)]), "00:00:00.678 out  build_it\n");
    assert_eq!(pretty(&[("01O ", end), ("01O ", "a")]), "00:00:01.678 out  a\n");
    assert_eq!(pretty(&[("01O ", &format!("{end}{start}Next"))]), "00:00:00.678 out  Next\n");
    let terminal = Options { color: true, all: true, ..Options::plain_utc() };
    assert_eq!(
        pretty_with(terminal, &[("01O ", &format!("{start}Building"))]),
        "00:00:00.678 out  \x1b[1mBuilding\x1b[0m\n"
    );
}

#[test]
fn only_whole_markers_count() {
    assert_eq!(Marker::parse(b"section_start:12:a.b-c_D9"), Some(Marker::Start(b"a.b-c_D9")));
    assert_eq!(Marker::parse(b"section_end:12:a"), Some(Marker::End));
    for text in [
        "section_start:12:",
        "section_start::a",
        "section_start:1x:a",
        "section_end:1:a b",
        "x section_end:1:a",
    ] {
        assert_eq!(Marker::parse(text.as_bytes()), None, "{text}");
    }
}

/// Lines of a step that look like the daemon's stay the step's.
#[test]
fn lines_of_a_step_that_look_like_the_daemons_name_no_stream_and_stay_its_own() {
    let forged = [
        ("00O ", "Running step name=unit stream=02"),
        ("01O ", "Running step name=x stream=02"),
        ("01O ", "Running step name=x"),
        ("01E ", "job failed: x"),
        ("01O ", "2021-01-01T00:00:00.678999Z 00O Running step name=x stream=02"),
        ("02O ", "of unit"),
    ];
    let options = Options { names: true, ..Options::plain_utc() };
    assert_eq!(
        pretty_with(options, &forged),
        "00:00:00.678 run  Running step name=unit stream=02\n\
         00:00:01.678 out  Running step name=x stream=02\n\
         00:00:02.678 out  Running step name=x\n\
         00:00:03.678 err  job failed: x\n\
         00:00:04.678 out  2021-01-01T00:00:00.678999Z 00O Running step name=x stream=02\n\
         00:00:05.678 unit  of unit\n"
    );
    let plain = print(Format::Plain { merge: false }, &wire(&forged));
    assert_eq!(plain.stderr, b"Running step name=unit stream=02\njob failed: x\n");
    assert!(plain.stdout.ends_with(b"\nunit | of unit\n"), "{plain:?}");
}

proptest! {
    #[test]
    fn times_are_those_of_the_calendar_in_any_zone(
        micros in 0..4_000_000_000_000_000_i64,
        east in -86_399..86_400_i32,
    ) {
        let offset = FixedOffset::east_opt(east).unwrap();
        let mut wire = Stamp::from_unix_micros(micros).as_bytes().to_vec();
        wire.extend_from_slice(b" 01O a\n");
        let out = print(Format::Pretty(Options { offset, ..Options::plain_utc() }), &wire);
        let time = chrono::DateTime::from_timestamp_micros(micros).unwrap().with_timezone(&offset);
        prop_assert_eq!(String::from_utf8(out.stdout).unwrap(), format!("{} out  a\n", time.format("%H:%M:%S%.3f")));
    }

    #[test]
    fn what_is_shown_is_text_without_control_characters(text in vec(any::<u8>(), 0..200)) {
        prop_assert!(!shown(&text, false).chars().any(|character| character.is_control() && character != '\t'));
    }

    #[test]
    fn printing_does_not_depend_on_the_pieces(
        lines in vec((0..4_usize, vec(prop_oneof![Just(b'\r'), Just(b'\x1b'), any::<u8>()], 0..20)), 0..12),
        piece in 1..100_usize,
        all in any::<bool>(),
    ) {
        let mut log = Vec::new();
        for (prefix, text) in &lines {
            log.extend_from_slice(wire_prefix(["01O ", "01O+", "01E ", ""][*prefix]).as_bytes());
            log.extend_from_slice(text);
            log.push(b'\n');
        }
        for format in [Format::Raw, Format::Plain { merge: all }, Format::Pretty(Options { all, ..Options::plain_utc() })] {
            let mut printer = Printer::new(format);
            let mut out = Output::default();
            for piece in log.chunks(piece) {
                printer.push(piece, &mut out);
            }
            printer.finish(&mut out);
            prop_assert_eq!(out, print(format, &log));
        }
    }
}

/// A header of the source, or an empty text without one.
fn wire_prefix(source: &str) -> String {
    if source.is_empty() { String::new() } else { format!("2021-01-01T00:00:00.678999Z {source}") }
}
