//! Any text is either a reference or an error that does not quote the text. A parsed reference is complete. A reference
//! that an expression computes is parsed like a written one.

#![no_main]

use std::sync::Arc;

use indexmap::IndexMap;
use libfuzzer_sys::fuzz_target;
use step_runner::lang::ast::{Reference, Template};
use step_runner::lang::diagnostic::Position;
use step_runner::lang::reference::{parse, resolve};
use step_runner::lang::template::parse_inline;
use step_runner::lang::value::Value;

fuzz_target!(|text: &str| {
    let file: Arc<str> = Arc::from("f");
    let parsed = parse(text, &file, Position::START);
    if let Err(error) = &parsed {
        let long = text.split(|c: char| !c.is_alphanumeric()).find(|word| word.len() >= 16);
        assert!(long.is_none_or(|word| !error.to_string().contains(word)), "{error} quotes {text:?}");
    }

    let scope = IndexMap::from([("r".to_owned(), Value::text(text))]);
    let template = parse_inline("${{ r }}", &file, Position::START).expect("a template");
    let computed = resolve(&Reference::Dynamic(template), &scope);
    if text.contains("${{") {
        assert!(computed.is_err(), "evaluated again");
    } else {
        assert!(computed.as_ref().ok() == parsed.as_ref().ok(), "{computed:?} is not {parsed:?}");
    }

    let literal = |template: &Template| template.as_literal().expect("nothing to evaluate").to_owned();
    match parsed {
        Err(_) => {}
        Ok(Reference::Local { path, files }) => {
            assert!(text.trim().starts_with(['.', '/']) && !path.contains("//") && !files.is_empty());
            // A parsed reference, written out again, parses to the same reference.
            let file_name = files.first().filter(|_| files.len() == 1).map(|file| format!("/{file}"));
            let written = format!("{path}{}", file_name.unwrap_or_default());
            let again = parse(&written, &file, Position::START);
            // Skipped if the name ends in white space, which is possible before a slash: trimming would change it.
            assert!(
                written.trim() != written
                    || again.is_ok_and(|again| again == Reference::Local { path, files }),
                "{written:?}"
            );
        }
        Ok(Reference::Builtin { name, .. }) => {
            assert!(name.split('/').all(|part| !part.is_empty()) && name.is_ascii());
        }
        Ok(Reference::Git { url, rev, dir, files }) => {
            let (url, dir) = (literal(&url), literal(&dir));
            assert!(url.starts_with("http://") || url.starts_with("https://"), "{url}");
            assert!(!literal(&rev).is_empty() && dir.starts_with("steps") && !files.is_empty());
        }
        Ok(Reference::Oci { registry, repository, tag, files, .. }) => {
            assert!([&registry, &repository, &tag].iter().all(|part| !literal(part).is_empty()));
            assert!(!literal(&registry).contains('/') && !files.is_empty());
        }
        Ok(Reference::Dynamic(_)) => panic!("a text is never dynamic"),
    }
});
