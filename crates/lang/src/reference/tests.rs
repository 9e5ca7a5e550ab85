use indexmap::IndexMap;
use proptest::prelude::*;

use super::*;
use crate::template::parse_inline;
use crate::value::Value;

fn file() -> Arc<str> {
    Arc::from("f.yml")
}

fn parsed(text: &str) -> Result<Reference, String> {
    parse(text, &file(), Position::START).map_err(|error| error.message)
}

fn dynamic(text: &str, value: &str) -> Result<Reference, Diagnostic> {
    let scope = IndexMap::from([("x".to_owned(), Value::text(value))]);
    resolve(&Reference::Dynamic(parse_inline(text, &file(), Position::START).unwrap()), &scope)
}

#[test]
fn hidden_files_and_odd_paths_are_local() {
    let local = |text| match parsed(text).unwrap() {
        Reference::Local { path, files } => (path, files.join(" ")),
        other => panic!("{other:?}"),
    };
    let default = "func.yml step.yml".to_owned();
    assert_eq!(local(".hidden"), (".hidden".to_owned(), default.clone()));
    assert_eq!(local("../a/"), ("../a".to_owned(), default.clone()));
    assert_eq!(local("./x.yml"), (".".to_owned(), "x.yml".to_owned()));
    assert_eq!(local(".x.yml"), (".".to_owned(), ".x.yml".to_owned()));
    assert_eq!(local("//"), ("/".to_owned(), default));
}

#[test]
fn fault_68_other_schemes_and_forms_of_git_are_refused_without_credentials_in_the_message() {
    for text in
        ["ssh://git:pw@h/p@v1", "git@host:group/p@v1", "git@host:group/p", "https://u:pw@h/p@", "h@v1"]
    {
        let message = parsed(text).unwrap_err();
        assert!(!message.contains("pw"), "{message}");
    }
    for text in ["https://h/p", "https://u:pw@h.example.com/p", "u:pw@h/p"] {
        assert_eq!(parsed(text).unwrap_err(), "revision missing, expected URL@REV", "{text}");
    }
    for text in ["https://u:pw/x@h/p@v1", "http://u:pw/a?s#s@W@h/r.git@v1", "u:pw/x@h/p/-/d@v1"] {
        let message = parsed(text).unwrap_err();
        assert!(message.contains("write them as %2F, %3F and %23") && !message.contains("pw"), "{message}");
    }
    assert!(parsed("https://h:8443/p@v1").is_ok());
    assert!(parsed("https://[::1]:80/p@v1").is_ok());
}

#[test]
fn forms_of_other_programs_are_answered_with_what_to_write() {
    let long = |url: &str| with_scheme(Template::literal(url, &file(), Position::START));
    for (text, says, helps) in [
        ("file:///srv/p", "file://", "\"/\""),
        ("FILE://localhost/srv/p", "file://", "\"/\""),
        ("ssh://git@h/p", "only http:// and https://", "https://HOST/PATH@REV"),
        ("ssh://git:pw@h:22/p", "only http:// and https://", "https://HOST/PATH@REV"),
        ("git://h/p", "only http:// and https://", "https://HOST/PATH@REV"),
        ("git+ssh://h/p", "only http:// and https://", "https://HOST/PATH@REV"),
        ("ftp://h/p", "only http:// and https://", "https://HOST/PATH@REV"),
        ("git@h:g/p", "USER@HOST:PATH", "https://HOST/PATH@REV"),
        ("git@h.example.com:p.git", "USER@HOST:PATH", "https://HOST/PATH@REV"),
    ] {
        let short = |text: &str| parse(text, &file(), Position::START).map(drop);
        for refused in [short(text), short(&format!("{text}@v1")), long(text).map(drop)] {
            let error = refused.unwrap_err();
            assert!(error.message.contains(says), "{text}: {}", error.message);
            assert!(error.help.as_deref().unwrap_or_default().contains(helps), "{text}: {:?}", error.help);
            assert!(!error.message.contains("pw"), "{text}: {}", error.message);
        }
    }
    for text in ["h/p", "u@h/p", "u@h:80/p", "u:p:w@h/p", "u:p@w:x@h/p", "[::1]:80/p", "u@[::1]/p"] {
        assert_eq!(long(text).unwrap().as_literal(), Some(format!("https://{text}").as_str()));
    }
    assert_eq!(long("HTTPS://h/P").unwrap().as_literal(), Some("https://h/P"));
    assert!(matches!(
        parsed("Http://h/P@v1"),
        Ok(Reference::Git { url, .. }) if url.as_literal() == Some("http://h/P")
    ));
}

#[test]
fn a_place_is_an_origin_with_what_is_named_inside() {
    for (text, shown) in [
        ("http://u:pw@h/g/r.git@v1", "h/g/r.git@v1"),
        ("http://h/g/r.git/-/hello@v1", "h/g/r.git@v1 steps/hello"),
        ("h/g/r/-/my.yml@v1", "h/g/r@v1 steps/my.yml"),
        ("R.example/x:1", "r.example/x:1"),
        ("r.example/x sub", "r.example/x:latest sub"),
        ("r.example/x:1 sub/my.yml", "r.example/x:1 sub/my.yml"),
    ] {
        assert_eq!(place(&parsed(text).unwrap()).as_deref(), Some(shown));
    }
    assert_eq!(place(&parsed("./a").unwrap()), None);
}

#[test]
fn fault_68_credentials_are_found_in_references_of_all_kinds() {
    let of = |text: &str| credentials(&parsed(text).unwrap());
    for (text, expected) in [
        ("https://u:pw@h/p@v1", &["pw"][..]),
        ("git@h/p@v1", &[]),
        ("https://git@h/p@v1", &[]),
        ("https://git:@h/p@v1", &[]),
        ("u:p%40w@h:8443/p@v1", &["p%40w"]),
        ("u:pw#x@h/p@v1", &["pw#x"]),
        ("u:pw?x@h/p@v1", &["pw?x"]),
        ("user?x@h/p@v1", &[]),
        ("u:123#4@h/p@v1", &["123#4"]),
        ("u:a@b/pw@h/p@v1", &["a", "a@b/pw", "b/pw"]),
        ("h:8443/p/a@b@v1", &[]),
        ("[::1]:80/p/@x/y@v1", &[]),
        ("h/p@v1", &[]),
        ("r.example.com:5000/p:v1", &[]),
    ] {
        assert_eq!(of(text), expected, "{text}");
    }
    let git = |url: &str| {
        let url = parse_inline(url, &file(), Position::START).unwrap();
        let part = |text: &str| Template::literal(text, &file(), Position::START);
        credentials(&Reference::Git { url, rev: part("v1"), dir: part(""), files: Vec::new() })
    };
    for url in [
        "HTTPS://u:pw@h/p",
        "ssh://u:pw@h/p",
        "git+https://u:pw@h/p",
        "https:/u:pw@h/p",
        " https:///u:pw@h/p",
        "//u:pw@h/p",
        "https://https://u:pw@h/p",
        "https://u:pw@${{ x }}/p",
        "https://${{ x }}:pw@h/p",
    ] {
        assert_eq!(git(url), ["pw"], "{url}");
    }
    assert_eq!(git("https://u:/pw@h/p"), ["pw"]);
    let dynamic =
        |text: &str| credentials(&Reference::Dynamic(parse_inline(text, &file(), Position::START).unwrap()));
    assert_eq!(dynamic("u:pw@${{ x }}/p@v1"), ["pw"]);
    assert_eq!(dynamic("u:pw@h/p@${{ x }}"), ["pw"]);
    for text in ["echo@${{ x }}", "h/p@${{ x }}", "[::1]:9/p@${{ x }}", "h:${{ x }}/p@v1", "./d@${{ x }}/y"] {
        assert_eq!(dynamic(text), [""; 0], "{text}");
    }
    assert_eq!(git("https://u:pw/x@h/p"), ["pw/x"]);
    assert_eq!(git("https://u:${{ x }}@h/p"), [""; 0]);
    let part = |text: &str| Template::literal(text, &file(), Position::START);
    let image = |registry, repository, tag| Reference::Oci {
        registry: part(registry),
        repository: part(repository),
        tag: part(tag),
        dir: part(""),
        files: Vec::new(),
    };
    assert_eq!(credentials(&image("https://u:pw@h:9", "p", "v")), ["pw"]);
    assert_eq!(credentials(&image("u:pw@h", "u:t@p", "x@v")), ["pw", "t"]);
    let digest = format!("sha256:{}", "0f".repeat(32));
    assert_eq!(credentials(&image("h:5000", "p", &digest)), [""; 0]);
}

#[test]
fn passwords_are_found_in_lines_of_any_text() {
    for (line, expected) in [
        ("- {name: a, func: \"https://u:pw@h/p@v1\"}", &["pw"][..]),
        ("func: https://u:pw@h/p@v1", &["pw"]),
        ("git: {url: 'https://u:pw@h/p', rev: v1}", &["pw"]),
        ("[{\"func\":\"u:pw@h/p@v1\",\"a\":\"https://v:pass@h\"}]", &["pw", "pass"]),
        ("  script: 'ftp://u:p@w@h/x' curl https://ü:w@h", &["p@w", "w"]),
        ("  script: URL=https://u:pw@h/x git@x=https://u:pw@h/y", &["//u:pw", "//u:pw"]),
        ("- [https://u:pw@h/p@v1]", &["pw"]),
        ("func: https://u:pw@h", &["pw"]),
        ("func: u:/pw@h/p@v1", &["pw"]),
        ("func: https://u:a/b@h/p@v1", &["a/b"]),
        ("- {func: https://git@h/p@v1, step: git@h:9/p@v1}", &[]),
        ("image: r.example.com:5000/p:1@sha256:00 # a:b@c", &[]),
        ("script: scp x git@h:/p; echo 10:30 ${{ a }}@b", &[]),
    ] {
        let found: Vec<&str> = passwords_in(line).into_iter().map(|range| line.get(range).unwrap()).collect();
        assert_eq!(found, expected, "{line}");
    }
}

#[test]
fn images_need_a_registry_and_may_have_a_digest() {
    for text in ["word", "a/b:1", "alpine:3", "r.example.com", "r.example.com/:1", "func.yml"] {
        assert!(parsed(text).is_err(), "{text}");
    }
    let digest = format!("sha256:{}", "0f".repeat(32));
    let Reference::Oci { registry, repository, tag, dir, .. } =
        parsed(&format!("localhost/a:1@{digest}  sub//dir")).unwrap()
    else {
        panic!("an image")
    };
    assert_eq!(registry.as_literal(), Some("localhost"));
    assert_eq!(repository.as_literal(), Some("a"));
    assert_eq!(tag.as_literal(), Some(digest.as_str()));
    assert_eq!(dir.as_literal(), Some("sub/dir"));
}

#[test]
fn a_computed_reference_is_parsed_once_and_never_evaluated_again() {
    assert!(matches!(dynamic("./${{ x }}", "a"), Ok(Reference::Local { path, .. }) if path == "./a"));
    let error = dynamic("./${{ x }}", "${{ x }}").unwrap_err();
    assert_eq!(error.class, Class::Schema);
    assert_eq!(dynamic("${{ x }}", " ").unwrap_err().message, "the reference is empty");
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_refused(text in "([a-z./:@ -]|sha256:|https://|/-/|builtin://){0,20}") {
        drop(parsed(&text));
    }

    #[test]
    fn each_password_of_a_reference_is_found_in_its_line(text in "([a-z./:@?#-]|https://){0,20}") {
        if let Ok(reference) = parsed(&text) {
            let line = format!("- {{name: a, func: \"{text}\"}}");
            let hidden: Vec<&str> = passwords_in(&line).into_iter().map(|range| line.get(range).unwrap()).collect();
            for password in credentials(&reference) {
                prop_assert!(hidden.iter().any(|hidden| hidden.contains(&password)), "{password}");
            }
        }
    }
}
