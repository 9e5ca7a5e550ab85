use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;

fn read_text(text: &str) -> Stream {
    read(&Source { file: Arc::from("f.yml"), text }, 2)
}

/// Prints the tree; scalars have their place.
fn show(node: &YamlNode) -> String {
    match &node.kind {
        NodeKind::Scalar(scalar) => format!("{}@{}:{}", scalar.text, node.at.line, node.at.column),
        NodeKind::Sequence(items) => format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(" ")),
        NodeKind::Mapping(entries) => {
            let entries: Vec<String> = entries
                .iter()
                .map(|e| format!("{}@{}:{}={}", e.key.text, e.key.at.line, e.key.at.column, show(&e.value)))
                .collect();
            format!("{{{}}}", entries.join(" "))
        }
    }
}

fn shown(text: &str) -> String {
    let stream = read_text(text);
    assert!(stream.diagnostics.is_empty(), "{:?}", stream.diagnostics);
    show(stream.documents[0].as_ref().unwrap())
}

fn errors(text: &str) -> Vec<String> {
    read_text(text).diagnostics.iter().map(ToString::to_string).collect()
}

#[test]
fn nodes_have_the_places_of_their_first_characters() {
    assert_eq!(shown("é: ü\nb:\n  - c\n  -   d\n"), "{é@1:1=ü@1:4 b@2:1=[c@3:5 d@4:7]}");
}

#[test]
fn lines_count_through_all_documents() {
    let stream = read_text("{}\n---\na: b\n");
    assert_eq!(show(stream.documents[1].as_ref().unwrap()), "{a@3:1=b@3:4}");
}

#[test]
fn aliases_and_merge_keys_are_resolved_and_written_entries_win() {
    assert_eq!(shown("a: &x {p: 1}\nb: *x\n"), "{a@1:1={p@1:8=1@1:11} b@2:1={p@1:8=1@1:11}}");
    assert_eq!(
        shown("- &x {p: 1, q: 2}\n- &y {p: 3, r: 4}\n- {<<: [*x, *y], q: 5}\n"),
        "[{p@1:7=1@1:10 q@1:13=2@1:16} {p@2:7=3@2:10 r@2:13=4@2:16} {q@3:18=5@3:21 p@1:7=1@1:10 r@2:13=4@2:16}]"
    );
    assert_eq!(errors("<<: 5\n"), ["f.yml:1:5: \"<<\" needs a mapping or a list of mappings"]);
}

#[test]
fn duplicate_keys_name_the_first_line_and_do_not_hide_other_errors() {
    assert_eq!(
        errors("run:\n- {a: 1}\n- a: 1\n  b: 2\n  a: 3\n---\nc: 1\nc: 2\n"),
        [
            "f.yml:5:3: run[1]: mapping key \"a\" already defined at line 3",
            "f.yml:8:1: mapping key \"c\" already defined at line 7"
        ]
    );
}

#[test]
fn keys_that_are_no_strings_are_refused() {
    assert_eq!(errors("{1: 2}")[0], "f.yml:1:2: mapping keys must be strings: \"1\" is not (quote it)");
    assert_eq!(errors("? [a]\n: b\n"), ["f.yml:1:3: mapping keys must be strings"]);
    assert!(errors("yes: 1\n'1': 2\n").is_empty());
}

#[test]
fn a_broken_document_does_not_hide_the_next() {
    let stream = read_text("a: [\n---\nb: {\n");
    assert_eq!(stream.diagnostics.len(), 2, "{:?}", stream.diagnostics);
    assert!(stream.documents.iter().all(Option::is_none));
}

#[test]
fn a_third_document_is_not_looked_at() {
    assert!(errors("{}\n---\n{}\n---\n[\n").is_empty());
}

#[test]
fn json_is_yaml() {
    assert_eq!(shown("{\n\t\"a\":\t[1,\"\\ud83d\\ude00\"]\n}"), "{a@2:2=[1@2:8 😀@2:10]}");
}

#[test]
fn unknown_tags_are_refused() {
    assert_eq!(errors("a: !reference [b]\n"), ["f.yml:1:15: a: tag \"!reference\" is not supported here"]);
    assert!(errors("a: !!str 5\nb: !!map {}\n").is_empty());
}

#[test]
fn tags_that_the_caller_knows_are_kept_at_lists() {
    let read_tagged = |text| {
        let source = Source { file: Arc::from("f.yml"), text };
        read_with_tags(&source, 2, &["!reference"])
    };
    let stream = read_tagged("- &a !reference [b]\n- *a\n- [c]\n");
    assert!(stream.diagnostics.is_empty(), "{:?}", stream.diagnostics);
    let Some(YamlNode { kind: NodeKind::Sequence(items), .. }) = &stream.documents[0] else { panic!() };
    let tags: Vec<_> = items.iter().map(|item| item.tag).collect();
    assert_eq!(tags, [Some("!reference"), Some("!reference"), None]);
    let help = Some("write a list behind it, such as !reference [A, B]");
    for (text, help) in [("!reference b", help), ("!reference {b: c}", help), ("!other [b]", None)] {
        let told = read_tagged(text).diagnostics;
        assert_eq!((told.len(), told[0].help.as_deref()), (1, help), "{text}");
    }
}

#[test]
fn a_scalar_tells_if_it_is_text_whatever_it_looks_like() {
    let stream = read_text("[yes, 'yes', \"1\", !!str 1, !!int 1, 1]");
    let Some(YamlNode { kind: NodeKind::Sequence(items), .. }) = &stream.documents[0] else { panic!() };
    let quoted = items.iter().map(|item| matches!(&item.kind, NodeKind::Scalar(s) if s.is_quoted()));
    assert_eq!(quoted.collect::<Vec<_>>(), [false, true, true, true, false, false]);
}

#[test]
fn deep_nesting_is_an_error_and_fast() {
    for (open, between) in [("[", ""), ("{a: ", ""), ("- ", ""), ("? ", ""), ("&a [", "")] {
        let text = open.repeat(100_000) + between;
        let stream = read_text(&text);
        assert!(!stream.diagnostics.is_empty(), "{open}");
    }
    let mut text = String::new();
    for depth in 0..20_000 {
        writeln!(text, "{}a:", " ".repeat(depth.min(400))).unwrap();
    }
    assert!(!read_text(&text).diagnostics.is_empty());
}

#[test]
fn aliases_cannot_unfold_into_a_large_or_deep_tree() {
    let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for level in 1..10 {
        let below = vec![format!("*a{}", level - 1); 10].join(",");
        writeln!(text, "a{level}: &a{level} [{below}]").unwrap();
    }
    assert_eq!(read_text(&text).diagnostics[0].class, Class::Limit);

    let mut text = String::from("a0: &a0 []\n");
    for level in 1..200 {
        writeln!(text, "a{level}: &a{level} [*a{}]", level - 1).unwrap();
    }
    assert_eq!(read_text(&text).diagnostics[0].class, Class::Limit);

    assert_eq!(read_text("a: &a [*a]\n").diagnostics[0].class, Class::Yaml);
    assert_eq!(read_text("a: *b\n").diagnostics[0].class, Class::Yaml);
}

fn each(count: u32, line: impl Fn(u32) -> String) -> String {
    (0..count).map(line).collect()
}

#[test]
fn many_small_values_are_refused_before_they_take_much() {
    for text in [
        format!("[{}]", "1,".repeat(400_000)),
        "- \n".repeat(400_000),
        format!("{{{}}}", each(200_000, |n| format!("k{n}: ,"))),
        format!("- &a [{}]\n- [{}]\n", "1,".repeat(1_000), "*a,".repeat(1_000)),
        format!("- &a {{{}}}\n{}", each(1_000, |n| format!("k{n}: 1,")), "- {<<: *a}\n".repeat(1_000)),
        format!("- &a {}\n{}", "x".repeat(100_000), "- *a\n".repeat(1_000)),
    ] {
        let class = read_text(&text).diagnostics[0].class;
        assert_eq!(class, Class::Limit, "{}", text.chars().take(20).collect::<String>());
    }
}

#[test]
fn what_a_tag_says_must_be_so() {
    assert_eq!(errors("!!int abc"), ["f.yml:1:7: the tag says a number, the value is something else"]);
    assert!(!errors("!!bool 5").is_empty() && !errors("!!null x").is_empty());
    assert!(errors("[!!float 5, !!bool true, !!null ~, !!str 5, !!timestamp 2001-12-14]").is_empty());
}

#[test]
fn an_open_quote_and_a_nul_byte_are_named() {
    for (text, message, help) in [
        (
            "a:\n  b: \"hi\nc: d\n",
            "a quote before this place is not closed, or its text is indented too little",
            "close it, or indent",
        ),
        ("'hi\n", "a quote before this place is not closed", "close it"),
        ("'hi\n---\nb: c\n", "a quote before this place is not closed", "close it"),
        ("a: b\0c\n", "a NUL byte", "remove it"),
    ] {
        let error = read_text(text).diagnostics.into_iter().next().unwrap();
        assert_eq!(error.message, message, "{text:?}");
        assert!(error.help.is_some_and(|shown| shown.starts_with(help)), "{text:?}");
    }
}

#[test]
fn a_byte_order_mark_is_no_text() {
    assert_eq!(shown("\u{feff}a: b\n"), "{a@1:1=b@1:4}");
}

#[test]
fn a_mark_of_a_file_that_was_joined_is_no_text() {
    let second = |text: &str| {
        let stream = read_text(text);
        assert!(stream.diagnostics.is_empty(), "{text:?}: {:?}", stream.diagnostics);
        assert_eq!(stream.documents.len(), 2, "{text:?}");
        show(stream.documents[1].as_ref().unwrap())
    };
    for (text, shown) in [
        ("s: {}\n---\n\u{feff}a: b\n", "{a@3:1=b@3:4}"),
        ("s: {}\r\n---\r\n\u{feff}a: b\r\n", "{a@3:1=b@3:4}"),
        ("s: {}\n---\n\u{feff}# of the second\na: b\n", "{a@4:1=b@4:4}"),
        ("s: {}\n\u{feff}---\na: b\n", "{a@3:1=b@3:4}"),
        ("\u{feff}s: {}\n\u{feff}---\n\u{feff}a: b", "{a@3:1=b@3:4}"),
        ("\u{feff}---\ns: {}\n\u{feff}---\r\na: b", "{a@4:1=b@4:4}"),
        ("s: {}\n...\n\u{feff}---\na: b\n", "{a@4:1=b@4:4}"),
        ("s: |\n  text\n\u{feff}---\na: b\n", "{a@4:1=b@4:4}"),
        ("s: {}\n\u{feff}--- # joined\na: \"\u{feff}b\"\n", "{a@3:1=\u{feff}b@3:4}"),
    ] {
        assert_eq!(second(text), shown, "{text:?}");
    }
    assert_eq!(shown("a: |\n  text\n\u{feff}---\nb: c\n"), "{a@1:1=text\n@2:3}");
    for text in ["a:\n\u{feff}b: c\n", "s: {}\n---\na: b\n\u{feff}c: d\n"] {
        assert!(!read_text(text).diagnostics.is_empty(), "{text:?}");
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_with_places(text in any::<String>()) {
        let stream = read_text(&text);
        for diagnostic in stream.diagnostics {
            prop_assert!(diagnostic.at.line >= 1 && diagnostic.at.column >= 1);
        }
    }

    #[test]
    fn any_yaml_like_text_is_read_or_refused(text in "([-?:,{}&*!|>'\"%@ \\[\\]\n\ta-c0-2]|---|<<: |\\$\\{\\{){0,60}") {
        drop(read_text(&text));
    }
}
