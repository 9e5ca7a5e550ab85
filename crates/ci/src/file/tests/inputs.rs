//! `spec:inputs`: declarations, values, and what becomes of `$[[ … ]]` (ci.md §2).

use super::*;

/// Reads a file with one header, a script of one line and values that the caller gives as texts.
fn script(inputs: &str, script: &str, given: &[(&str, &str)]) -> Result<Vec<String>, Vec<String>> {
    let text = format!("spec: {{inputs: {inputs}}}\n---\na: {{script: {script}}}");
    let files = Texts(BTreeMap::from([("ci.yml", text)]));
    let inputs = given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let (facts, level) = (Facts::default(), Level::new());
    let source = Source { path: "ci.yml", files: &files, inputs: &inputs, facts: &facts, given: &level };
    let file =
        read(&source).map_err(|findings| findings.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    Ok(file.jobs["a"].script.clone())
}

#[test]
fn values_have_the_types_that_are_declared() {
    for (declared, given, expected) in [
        ("{type: string}", "v", "v"),
        ("", "5", "5"),
        ("{type: number}", "5", "5"),
        ("{type: number}", "1.10", "1.1"),
        ("{type: boolean}", "yes", "true"),
        ("{type: boolean}", "no", "false"),
        ("{type: array}", "[a, 'b', \"c\"]", r#"["a", "b", "c"]"#),
        ("{type: array}", "a,,b", r#"["a", "b"]"#),
        ("{type: array}", "", "[]"),
        ("{options: [a, 5]}", "a", "a"),
        ("{type: number, options: [1, 5]}", "5", "5"),
        ("{type: array, options: [[a], [b, c]]}", "b,c", r#"["b", "c"]"#),
        ("{regex: '^v[0-9]+$'}", "v1", "v1"),
        ("{default: d}", "v", "v"),
        ("{description: text}", "v", "v"),
    ] {
        // Something before the block makes a text of the value.
        let line = script(&format!("{{i: {declared}}}"), "\"= $[[ inputs.i ]]\"", &[("i", given)]);
        assert_eq!(line, Ok(vec![format!("= {expected}")]), "{declared} {given}");
    }
    for (default, expected) in [
        ("d", "d"),
        ("{type: number, default: 5}", "5"),
        ("{type: boolean, default: off}", "false"),
        ("{type: array, default: [a, 5, yes, [b, \"x\\\"y\"]]}", r#"["a", 5, true, ["b", "x\"y"]]"#),
    ] {
        let declared = if default == "d" { "{default: d}" } else { default };
        let line = script(&format!("{{i: {declared}}}"), "\"= $[[ inputs.i ]]\"", &[]);
        assert_eq!(line, Ok(vec![format!("= {expected}")]), "{declared}");
    }
    let whole = script("{i: {type: array}}", "\" $[[ inputs.i ]] \"", &[("i", "a, b")]);
    assert_eq!(whole, Ok(vec!["a".to_owned(), "b".to_owned()]));
    let two = script("{i: , j: }", "\"$[[ inputs.i ]]$[[inputs.j]]\"", &[("i", "a"), ("j", "b")]);
    assert_eq!(two, Ok(vec!["ab".to_owned()]));
}

#[test]
fn an_input_without_a_value_is_told_once() {
    let line = "\"$[[ inputs.i ]]\", after_script: \"= $[[ inputs.i | posix_escape ]]\"";
    let told = script("{i: {type: boolean}}", line, &[]).unwrap_err();
    assert!(told.len() == 1 && told[0].contains("the input \"i\" needs a value"), "{told:?}");
}

#[test]
fn values_that_do_not_fit_are_told() {
    for (declared, given, part) in [
        ("{type: number}", "x", "the input is of type number, the value is a text"),
        ("{type: boolean}", "1", "the input is of type boolean, the value is a text"),
        ("{type: number}", "yes", "the input is of type number, the value is a text"),
        ("{options: [a, b]}", "c", "the value is none of the options (write one of a, b)"),
        ("{type: number, options: [\"5\"]}", "5", "the value is none of the options"),
        ("{type: array, options: [[a], [a, b, c]]}", "a,b", "the value is none of the options"),
        ("{type: array, options: [[a, c]]}", "a,b", "the value is none of the options"),
        ("{type: array, options: [a]}", "a", "the value is none of the options"),
        ("{options: a}", "a", "expected a list"),
        ("{regex: '^v[0-9]+$'}", "x1", "the value does not match \"^v[0-9]+$\""),
        ("{regex: '('}", "x", "not a regular expression"),
        ("{type: number, regex: '5'}", "5", "\"regex\" is for inputs of type string only"),
        ("{type: text}", "x", "write one of string, number, boolean, array"),
        ("{typ: string}", "x", "did you mean \"type\"?"),
        ("{rules: []}", "x", "\"rules\" of an input are not supported here"),
        ("{default: 5}", "x", "the input is of type string, the value is a number"),
        ("5", "x", "expected a mapping"),
    ] {
        let errors =
            script(&format!("{{i: {declared}}}"), "\"$[[ inputs.i ]]\"", &[("i", given)]).unwrap_err();
        assert!(errors.iter().any(|error| error.contains(part)), "{declared} {given}: {errors:?}");
    }
    let missing = script("{i: }", "x", &[]).unwrap_err();
    assert!(missing[0].contains("the input \"i\" needs a value"), "{missing:?}");
    let undeclared = script("{colour: {default: d}}", "x", &[("color", "v")]).unwrap_err();
    assert!(
        undeclared[0].contains("the file has no input \"color\" (did you mean \"colour\"?)"),
        "{undeclared:?}"
    );
    assert_eq!(script("{i: {default: d}}", "x", &[("i", "v")]), Ok(vec!["x".to_owned()]));
}

#[test]
fn an_included_file_gets_the_inputs_of_its_entry() {
    let files = |inputs: &str, header: &str| {
        [
            ("ci.yml", format!("include: {{local: b.yml, inputs: {inputs}}}\na: {{script: x}}")),
            ("b.yml", format!("{header}b: {{script: y}}")),
        ]
    };
    let header = "spec: {inputs: {n: {type: number}}}\n---\n";
    assert!(read_all(&files("{n: 5}", header)).is_ok());
    for (inputs, header, part) in [
        ("{n: \"5\"}", header, "the value is a text"),
        ("{n: 5, m: 6}", header, "the file has no input \"m\""),
        ("{}", header, "the input \"n\" needs a value"),
        ("{n: ~}", header, "the input \"n\" needs a value"),
        ("{n: 5}", "", "the file has no input \"n\""),
        ("{}", "spec: {include: x}\n---\n", "\"spec:include\" is not supported here"),
        ("{}", "spec: {component: [name]}\n---\n", "\"spec:component\" is not supported here"),
        ("{}", "spec: {inputs: [a]}\n---\n", "expected a mapping"),
    ] {
        let errors = read_all(&files(inputs, header)).unwrap_err();
        assert!(errors.iter().any(|error| error.contains(part)), "{inputs} {header}: {errors:?}");
    }
    assert!(read_all(&files("{}", "spec: {inputs: }\n---\n")).is_ok());
}

#[test]
fn functions_change_a_value_in_their_order() {
    for (block, expected) in [
        ("inputs.i", "a b-cé"),
        ("inputs.i | truncate(0,1)", "a"),
        ("inputs.i|truncate(2, 3)", "b-c"),
        ("inputs.i | truncate(5,9)", "é"),
        ("inputs.i | truncate(0,3) | posix_escape", "a\\ b"),
        ("inputs.v | expand_vars", "true $NONE"),
        ("inputs.v | expand_vars | truncate(0,4) | posix_escape", "true"),
        ("inputs.n | truncate(0,1)", "1"),
    ] {
        let inputs = "{i: {default: a b-cé}, v: {default: $CI $NONE}, n: {type: number, default: 12}}";
        assert_eq!(
            script(inputs, &format!("\"$[[ {block} ]]\"").replace('\\', "\\\\"), &[]),
            Ok(vec![expected.to_owned()]),
            "{block}"
        );
    }
    for (block, part) in [
        ("inputs.i | upper", "unknown function \"upper\""),
        ("inputs.i | truncate(0)", "unknown function"),
        ("inputs.i | truncate(a,b)", "unknown function"),
        ("inputs.i | truncate(0,1", "unknown function"),
        ("inputs.i | expand_vars | expand_vars | expand_vars | expand_vars", "more than 3 functions"),
        ("inputs.l | posix_escape", "\"posix_escape\" needs a text"),
        ("inputs.x", "there is no input \"x\""),
        ("component.version", "\"$[[ component.version ]]\" is not supported here"),
    ] {
        for around in ["", "= "] {
            let inputs = "{i: {default: d}, l: {type: array, default: [a]}}";
            let errors = script(inputs, &format!("\"{around}$[[ {block} ]]\""), &[]).unwrap_err();
            assert!(errors.iter().any(|error| error.contains(part)), "{block}: {errors:?}");
        }
    }
    assert!(
        script("{i: {default: d}}", "\"x $[[ inputs.i\"", &[]).unwrap_err()[0].contains("without \"]]\"")
    );
}

#[test]
fn names_and_references_are_filled_in_too() {
    let text = "spec: {inputs: {job: {default: build}, on: {type: boolean, default: yes}}}\n---\n\
        .base: {script: [x]}\n\
        \"$[[ inputs.job ]]-it\": {script: !reference [\".$[[ inputs.job | truncate(0,0) ]]base\", script], allow_failure: \"$[[ inputs.on ]]\"}\n";
    let file = read_one(text).unwrap();
    let job = &file.jobs["build-it"];
    assert!(job.allow_failure.is_some());
    assert_eq!(job.script, ["x"]);
}
