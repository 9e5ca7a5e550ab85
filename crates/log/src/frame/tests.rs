use super::{DAEMON, Framer, HOLD_MAX, LogChannel, STEP, Stamp, Stamper, daemon_lines};

fn at(second: i64) -> Stamp {
    Stamp::from_unix_micros(1_609_459_200_000_000 + second * 1_000_000)
}

fn framed(writes: &[&[u8]]) -> String {
    let mut framer = Framer::new(STEP, LogChannel::Out);
    let mut out = Vec::new();
    for (second, write) in (0..).zip(writes) {
        framer.push(write, &at(second), &mut out);
    }
    framer.finish(&mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn each_line_of_a_write_is_an_entry() {
    assert_eq!(
        framed(&[b"one\ntwo\n"]),
        "2021-01-01T00:00:00.000000Z 01O one\n2021-01-01T00:00:00.000000Z 01O two\n"
    );
}

#[test]
fn an_entry_has_the_time_of_its_first_byte() {
    assert_eq!(framed(&[b"", b"he", b"llo\n"]), "2021-01-01T00:00:01.000000Z 01O hello\n");
}

#[test]
fn a_carriage_return_after_the_last_line_feed_flushes() {
    assert_eq!(
        framed(&[b"a\rb\nc\rd", b"\n"]),
        "2021-01-01T00:00:00.000000Z 01O a\rb\n\
         2021-01-01T00:00:00.000000Z 01O c\rd\n\
         2021-01-01T00:00:01.000000Z 01O+\n"
    );
}

#[test]
fn fault_16_the_hold_limit_counts_a_held_header_only() {
    let entries = |writes: &[&[u8]]| framed(writes).lines().count();
    let text = vec![b'x'; HOLD_MAX + 1];
    assert_eq!(entries(&[&text[..HOLD_MAX], b"\n"]), 1, "the whole limit without held bytes");
    assert_eq!(entries(&[&text, b"\n"]), 2, "one byte more");
    assert_eq!(entries(&[b"a", &text[..HOLD_MAX - 33], b"\n"]), 1, "the limit with held bytes");
    assert_eq!(entries(&[b"a", &text[..HOLD_MAX - 32], b"\n"]), 2, "one byte more");
}

#[test]
fn closing_twice_adds_nothing_and_keeps_the_pending_continuation() {
    let mut framer = Framer::new(0xff, LogChannel::Err);
    let mut out = Vec::new();
    framer.push(b"a\r", &at(0), &mut out);
    framer.finish(&mut out);
    framer.finish(&mut out);
    framer.push(b"b\n", &at(1), &mut out);
    assert_eq!(out, b"2021-01-01T00:00:00.000000Z ffE a\r\n2021-01-01T00:00:01.000000Z ffE+b\n");
}

#[test]
fn a_text_of_the_daemon_becomes_an_entry_a_line() {
    let mut out = Vec::new();
    daemon_lines(LogChannel::Err, b"job failed: a\n\nb\n", &at(0), &mut out);
    let expected: String =
        ["job failed: a", "", "b"].map(|text| format!("2021-01-01T00:00:00.000000Z 00E {text}\n")).concat();
    assert_eq!(String::from_utf8(out).unwrap(), expected);
    assert_eq!(DAEMON, 0);
}

#[test]
fn stamps_agree_with_the_calendar() {
    let mut stamper = Stamper::new();
    let start = 951_782_399_999_990_i64; // ten microseconds before the leap day of the year 2000
    for step in 0..2_000_i64 {
        let micros = start + step * step * 7_919_000_003;
        let expected = chrono::DateTime::from_timestamp_micros(micros).unwrap();
        let expected = expected.format("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
        assert_eq!(stamper.stamp(micros).as_bytes(), expected.as_bytes());
        assert_eq!(Stamp::from_unix_micros(micros).as_bytes(), expected.as_bytes());
    }
}

#[test]
fn stamps_before_the_epoch_and_out_of_range_keep_their_form() {
    let text = |micros| String::from_utf8(Stamp::from_unix_micros(micros).as_bytes().to_vec()).unwrap();
    assert_eq!(text(0), "1970-01-01T00:00:00.000000Z");
    assert_eq!(text(-1), "1969-12-31T23:59:59.999999Z");
    assert_eq!(text(i64::MIN), "0000-01-01T00:00:00.000000Z");
    assert_eq!(text(i64::MAX), "9999-12-31T23:59:59.999999Z");
}
