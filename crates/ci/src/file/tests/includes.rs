//! Files that a configuration is made of, and rules that look at the files of the repository.

use super::*;

/// A repository that cannot be listed.
struct Unlisted(Texts);

impl Files for Unlisted {
    fn read(&self, path: &str) -> Result<String, ReadError> {
        match path {
            "out.yml" => Err(ReadError::Outside),
            "bad.yml" => Err(ReadError::Failed("permission denied".to_owned())),
            _ => self.0.read(path),
        }
    }

    fn list(&self) -> Result<Vec<String>, ReadError> {
        Err(ReadError::Failed("no list".to_owned()))
    }
}

fn read_unlisted(text: &str) -> Result<CiFile, Vec<String>> {
    let files = Unlisted(Texts(BTreeMap::from([
        ("ci.yml", text.to_owned()),
        ("b.yml", "b: {script: y}".to_owned()),
        ("c.yaml", "c: {script: y}".to_owned()),
    ])));
    let (facts, inputs, given) = (Facts::default(), IndexMap::new(), Level::new());
    let source = Source { path: "ci.yml", files: &files, inputs: &inputs, facts: &facts, given: &given };
    read(&source).map_err(|findings| findings.iter().map(ToString::to_string).collect())
}

#[test]
fn files_are_included_by_path_from_the_root() {
    for include in
        ["b.yml", "/b.yml", "[b.yml, c.yaml]", "{local: b.yml}", "[{local: /b.yml}, {local: c.yaml}]"]
    {
        let file = read_unlisted(&format!("include: {include}\na: {{script: x}}")).unwrap();
        assert!(file.jobs.contains_key("a") && file.jobs.contains_key("b"), "{include}");
        assert_eq!(file.jobs.contains_key("c"), include.contains("c.yaml"), "{include}");
    }
    assert!(read_unlisted("include:\na: {script: x}").is_ok());
    assert!(read_unlisted("include: []\na: {script: x}").is_ok());
}

#[test]
fn what_cannot_be_included_is_told_with_its_reason() {
    for (include, part) in [
        ("http://example.com/a.yml", "\"include:remote\" needs a server"),
        ("https://example.com/a.yml", "\"include:remote\" needs a server"),
        ("{project: g/p, file: a.yml}", "\"include:project\" needs a server"),
        ("{template: Rust.gitlab-ci.yml}", "\"include:template\" needs a server"),
        ("{component: a/b@1}", "\"include:component\" needs a server"),
        ("{rules: [{when: always}]}", "it names no file"),
        ("b.txt", "ends in neither .yml nor .yaml"),
        ("b", "ends in neither .yml nor .yaml"),
        ("../b.yml", "is no file of the repository"),
        ("out.yml", "cannot read \"out.yml\": it leads out of the repository"),
        ("bad.yml", "cannot read \"bad.yml\": permission denied"),
        ("'*.yml'", "cannot be listed: no list"),
        ("5", "expected a mapping"),
        ("{local: 5}", "quote it"),
        ("{locl: b.yml}", "did you mean \"local\"?"),
    ] {
        let errors = read_unlisted(&format!("include: {include}\na: {{script: x}}")).unwrap_err();
        assert!(errors.iter().any(|error| error.contains(part)), "{include}: {errors:?}");
    }
}

#[test]
fn a_file_that_is_not_there_is_answered_with_one_that_is() {
    let files = [
        ("ci.yml", "include: ci/jbos.yml\na: {script: x}".to_owned()),
        ("ci/jobs.yml", "b: {script: x}".to_owned()),
    ];
    let errors = read_all(&files).unwrap_err();
    assert!(errors[0].contains("there is no such file (did you mean \"ci/jobs.yml\"?)"), "{errors:?}");
    // A pattern that nothing fits brings nothing.
    assert!(read_all(&[("ci.yml", "include: z*.yml\na: {script: x}".to_owned())]).is_ok());
}

#[test]
fn rules_of_an_include_decide_by_what_they_look_at() {
    for (rules, is_included) in [
        ("[{if: $CI}]", true),
        ("[{if: $NONE}]", false),
        ("[{if: $CI, when: never}]", false),
        ("[{if: $CI, when: always}]", true),
        ("[{when: never}, {if: $CI}]", false),
        ("[{changes: [x]}]", true),
        ("[]", false),
    ] {
        let text = format!("include: {{local: b.yml, rules: {rules}}}\na: {{script: x}}");
        assert_eq!(read_unlisted(&text).unwrap().jobs.contains_key("b"), is_included, "{rules}");
        let files = [("ci.yml", text), ("b.yml", "b: {script: y}".to_owned())];
        assert_eq!(read_all(&files).unwrap().jobs.contains_key("b"), is_included, "{rules}");
    }
    let exists =
        |path: &str| format!("include: {{local: b.yml, rules: [{{exists: [{path}]}}]}}\na: {{script: x}}");
    assert!(read_unlisted(&exists("b.yml")).unwrap_err()[0].contains("cannot be listed: no list"));
    for (path, is_included) in [("b.yml", true), ("'*.yml'", true), ("c.yml", false)] {
        let files = [("ci.yml", exists(path)), ("b.yml", "b: {script: y}".to_owned())];
        assert_eq!(read_all(&files).unwrap().jobs.contains_key("b"), is_included, "{path}");
    }
}

#[test]
fn a_list_of_files_is_asked_for_only_by_rules_that_need_it() {
    let file = read_unlisted(
        "workflow: {rules: [{if: $CI}]}\n\
         plain: {script: x, rules: [{if: $CI, changes: [y]}]}\n\
         looks: {script: x, rules: [{exists: [y]}]}\n",
    )
    .unwrap();
    let (files, level, facts) = (Unlisted(Texts(BTreeMap::new())), Level::new(), Facts::default());
    let circumstances = Circumstances { facts: Some(&facts), files: &files, given: &level, dotenv: &level };
    assert!(of_file(&file, "plain", &circumstances).is_ok());
    let refused = of_file(&file, "looks", &circumstances).err().unwrap();
    assert!(refused[0].to_string().contains("cannot be listed: no list"), "{refused:?}");
    let of_workflow = read_unlisted("workflow: {rules: [{exists: [y]}]}\nplain: {script: x}").unwrap();
    assert!(of_file(&of_workflow, "plain", &circumstances).is_err());
}

#[test]
fn a_header_stands_before_the_content() {
    // A file of one document has no header: what is beside `spec` are its jobs.
    let file = read_one("spec: {inputs: {}}\na: {script: x}").unwrap();
    assert!(file.jobs.contains_key("a"));
    let file = read_one("spec: {inputs: {i: {default: v}}}\n---\na: {script: \"$[[ inputs.i ]]\"}").unwrap();
    assert_eq!(file.jobs["a"].script, ["v"]);
    let file = read_one("a: {script: \"$[[ inputs.i ]]\"}").unwrap();
    assert_eq!(file.jobs["a"].script, ["$[[ inputs.i ]]"]);
    for (text, part) in [
        ("a: {script: x}\n---\nb: {script: x}", "a further document"),
        ("spec: {}\n---\na: {script: x}\n---\nb: {script: x}", "a further document"),
        ("a: {script: !reference []}", "\"!reference\" needs a list of names"),
        ("a: {script: !reference [[a]]}", "\"!reference\" needs a list of names"),
        ("a: {script: !reference [a, b, c]}", "there is no \"b\""),
        ("a: {script: !reference [b]}", "there is no \"b\""),
    ] {
        let errors = errors(text);
        assert!(errors[0].contains(part), "{text}: {errors:?}");
    }
}

#[test]
fn other_yaml_is_read_as_json() {
    let json = plain("t.yml", "a: {b: [1, 1.5, yes, ~, \"on\"]}\nc: 012").unwrap();
    assert_eq!(json.to_string(), r#"{"a":{"b":[1,1.5,true,null,"on"]},"c":10}"#);
    let errors = plain("t.yml", "a: [").unwrap_err();
    assert!(errors[0].to_string().starts_with("t.yml:1:"), "{errors:?}");
}
