use proptest::prelude::*;

use super::*;

fn level(entries: &[(&str, &str)]) -> Level {
    entries.iter().map(|(name, value)| ((*name).to_owned(), Defined::expanded(*value))).collect()
}

fn sent(levels: &[Level]) -> Vec<(String, String)> {
    let resolved = Resolved::new(levels).unwrap();
    resolved.to_request().into_iter().map(|variable| (variable.key, variable.value)).collect()
}

fn one(levels: &[Level], name: &str) -> String {
    sent(levels).into_iter().find(|(key, _)| key == name).unwrap().1
}

#[test]
fn references_are_resolved_through_all_levels() {
    let levels = [level(&[("A", "$B/x"), ("C", "c")]), level(&[("B", "b-${C}")]), level(&[("C", "late")])];
    assert_eq!(one(&levels, "A"), "b-late/x");
}

#[test]
fn names_that_no_variable_has_stay_for_the_daemon() {
    assert_eq!(one(&[level(&[("A", "$HOME/${X:-y} $1")])], "A"), "$HOME/${X:-y} $1");
}

#[test]
fn what_stays_keeps_its_name_beside_what_is_inserted() {
    assert_eq!(one(&[level(&[("A", "$HOME$B"), ("B", "b")])], "A"), "${HOME}b");
}

#[test]
fn cycles_stay_as_written() {
    assert_eq!(one(&[level(&[("PATH", "/x:$PATH")])], "PATH"), "/x:$PATH");
    let cycle = [level(&[("A", "a$B"), ("B", "b$A")])];
    assert_eq!((one(&cycle, "A"), one(&cycle, "B")), ("a$B".to_owned(), "b$A".to_owned()));
    let to_cycle = [level(&[("X", "x$A"), ("A", "a$B$Y"), ("B", "b$A"), ("Y", "y")])];
    assert_eq!(one(&to_cycle, "X"), "xa${B}y");
}

#[test]
fn dollars_that_mean_themselves_are_sent_doubled() {
    let mut raw = level(&[("A", "1$$2"), ("B", "$A!$RAW")]);
    raw.insert("RAW".to_owned(), Defined::raw("$A $$ $"));
    let levels = [raw];
    assert_eq!(one(&levels, "A"), "1$$2");
    assert_eq!(one(&levels, "B"), "1$$2!$$A $$$$ $$");
    assert_eq!(one(&levels, "RAW"), "$$A $$$$ $$");
    assert_eq!(Resolved::new(&levels).unwrap().value("B").unwrap(), "1$2!$A $$ $");
}

#[test]
fn the_daemon_alone_knows_the_path_of_a_file() {
    let mut variables = level(&[("A", "--key $KEY")]);
    variables.insert("KEY".to_owned(), Defined { file: true, ..Defined::raw("secret") });
    let levels = [variables];
    assert_eq!(one(&levels, "A"), "--key $KEY");
    let resolved = Resolved::new(&levels).unwrap();
    assert_eq!((resolved.value("KEY"), resolved.has("KEY")), (None, true));
    assert!(!format!("{resolved:?}").contains("secret"));
}

#[test]
fn keywords_are_filled_in_and_unknown_names_are_nothing() {
    let resolved = Resolved::new(&[level(&[("TAG", "1.2"), ("IMAGE", "rust:$TAG")])]).unwrap();
    assert_eq!(resolved.fill_in("$IMAGE-${NONE}x$$"), "rust:1.2-x$");
}

#[test]
fn values_that_double_forty_times_are_refused_at_once() {
    let mut bomb: Level =
        (0..40).map(|n| (format!("V{n}"), Defined::expanded(format!("$V{0}$V{0}", n + 1)))).collect();
    bomb.insert("V40".to_owned(), Defined::expanded("xx"));
    assert!(Resolved::new(&[bomb]).is_err());
    let many = (0..5_000).map(|n| (format!("V{n}"), Defined::expanded(""))).collect();
    assert!(Resolved::new(&[many]).is_err());
}

#[test]
fn a_long_chain_takes_no_stack() {
    let chain: Level =
        (0..4_000).map(|n| (format!("V{n}"), Defined::expanded(format!("$V{}", n + 1)))).collect();
    assert_eq!(one(&[chain], "V0"), "$V4000");
}

#[test]
fn values_are_bounded_by_their_bytes_and_their_pieces() {
    let read = |value: String| {
        let level: Level = [("A".to_owned(), Defined::expanded(value))].into();
        Resolved::new(&[level]).map(drop)
    };
    let mib = 1024 * 1024;
    assert_eq!(read("x".repeat(15 * mib)), Ok(()));
    let refused = read("x".repeat(16 * mib)).unwrap_err();
    assert_eq!(refused.0, "the values of the variables have more than 16 MiB after expansion");
    // Each of them costs, however short it is.
    assert!(read("$1".repeat(100_000)).is_ok() && read("$1".repeat(mib)).is_err());
}

#[test]
fn as_many_variables_are_possible_as_a_request_takes() {
    let many =
        |count: usize| -> Level { (0..count).map(|n| (format!("V{n}"), Defined::expanded(""))).collect() };
    assert!(Resolved::new(&[many(4_096)]).is_ok() && Resolved::new(&[many(4_097)]).is_err());
}

#[test]
fn debug_output_has_names_and_sizes_and_no_values() {
    let secret = Defined { masked: true, ..Defined::raw("hunter2") };
    let shown = format!("{secret:?}");
    assert!(
        shown.contains("[7 bytes]") && shown.contains("masked: true") && !shown.contains("hunter2"),
        "{shown}"
    );
    let resolved = Resolved::new(&[[("PASSWORD".to_owned(), secret)].into()]).unwrap();
    assert_eq!(format!("{resolved:?}"), "[\"PASSWORD\"]");
}

#[test]
fn texts_of_inputs_get_what_is_known_and_keep_the_rest() {
    let mut variables = level(&[("A", "a"), ("B", "$A$UNKNOWN")]);
    variables.insert("KEY".to_owned(), Defined { file: true, ..Defined::raw("secret") });
    let resolved = Resolved::new(&[variables]).unwrap();
    assert_eq!(
        resolved.fill_in_known("$A ${B} $NONE ${NONE}x $KEY $$ $1"),
        "a a$UNKNOWN $NONE ${NONE}x $KEY $ $1"
    );
    assert_eq!(resolved.fill_in("$A ${B} [$NONE] [$KEY]"), "a a$UNKNOWN [] []");
}

#[test]
fn variables_of_a_payload_are_expanded_once_against_what_was_sent() {
    let variable = |key: &str, value: &str| PayloadVariable {
        key: key.to_owned(),
        value: value.to_owned(),
        ..PayloadVariable::default()
    };
    let all = [
        variable("A", "first"),
        variable("A", "$B"),
        variable("B", "b"),
        variable("TWICE", "$A/${B}"),
        variable("SELF", "x:$SELF"),
        variable("PATH_OF", "--key $KEY $NONE"),
        PayloadVariable { file: true, masked: true, ..variable("KEY", "secret") },
        PayloadVariable { raw: true, ..variable("RAW", "$A $$") },
        variable("OF_RAW", "$RAW"),
    ];
    let sent: Vec<(String, bool, bool)> =
        of_payload(&all).into_iter().map(|found| (found.value, found.file, found.masked)).collect();
    let plain = |value: &str| (value.to_owned(), false, false);
    assert_eq!(
        sent,
        [
            plain("first"),
            plain("b"),
            plain("b"),
            plain("$$B/b"),
            plain("x:$SELF"),
            plain("--key $KEY $NONE"),
            ("secret".to_owned(), true, true),
            plain("$$A $$$$"),
            plain("$$A $$$$"),
        ]
    );
}

proptest! {
    #[test]
    fn raw_values_survive_and_resolution_is_stable(value in "[$A-C{}x ]{0,12}", other in "[$A-C{}x ]{0,12}") {
        let mut variables = level(&[("A", &value), ("B", &other)]);
        variables.insert("C".to_owned(), Defined::raw(value.clone()));
        let sent = sent(&[variables]);
        prop_assert_eq!(sent[2].1.replace("$$", "$"), value);
        // What is sent has no reference to a variable left, but for cycles.
        let again: Level =
            sent.iter().map(|(name, value)| (name.clone(), Defined::expanded(value.clone()))).collect();
        let resolved_again = Resolved::new(&[again]).unwrap().to_request();
        prop_assert_eq!(resolved_again.len(), 3);
    }
}
