//! Any text is either an expression or an error with a position. A parsed expression prints as text that parses to the
//! same tree. Evaluation stays within its limits and is deterministic. Quoted text is never evaluated.

#![no_main]

use std::sync::{Arc, LazyLock};

use indexmap::IndexMap;
use libfuzzer_sys::fuzz_target;
use step_runner::lang::convert::{to_json, to_text};
use step_runner::lang::diagnostic::Position;
use step_runner::lang::eval::{evaluate_native, evaluate_text};
use step_runner::lang::expression::{self, EXPRESSION_LIMIT};
use step_runner::lang::template::{parse_inline, quote};
use step_runner::lang::value::{Data, Value};

/// Values by the names that expressions can use: one of each type, a sensitive one, and a large one.
static SCOPE: LazyLock<IndexMap<String, Value>> = LazyLock::new(|| {
    let number = |number| Value::plain(Data::Number(number));
    let mut secret = Value::text("hidden");
    secret.mark_sensitive();
    let list = Value::array([number(1.0), Value::text("two"), secret.clone()]);
    let names = [
        ("a", number(7.0)),
        ("s", Value::text("text")),
        ("x", secret),
        ("b", Value::text("0123456789abcdef".repeat(65_536))),
        ("o", Value::object(IndexMap::from([("k".to_owned(), list.clone())]))),
        ("l", list),
    ];
    names.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
});

fuzz_target!(|text: &str| {
    let file: Arc<str> = Arc::from("f");
    match expression::parse(text, &file) {
        Err(error) => assert!(error.at.line >= 1 && error.at.column >= 1, "no place"),
        Ok(tree) => {
            let printed = tree.to_string();
            let again = expression::parse(&printed, &file);
            assert!(
                printed.len() > EXPRESSION_LIMIT || again.as_ref().is_ok_and(|again| *again == tree),
                "{printed:?} is not {text:?}: {again:?}"
            );
        }
    }

    let quoted = parse_inline(&quote(text), &file, Position::START).expect("a quoted text has no expression");
    assert_eq!(quoted.as_literal(), Some(text));

    for scalar in [text.to_owned(), format!("${{{{ {text} }}}}")] {
        let Ok(template) = parse_inline(&scalar, &file, Position::START) else { continue };
        let printed = template.to_string();
        if let Ok(again) = parse_inline(&printed, &file, Position::START) {
            assert!(again == template, "{printed:?} is not {scalar:?}");
        }
        let native = evaluate_native(&template, &*SCOPE);
        let joined = evaluate_text(&template, &*SCOPE);
        match &native {
            Ok(value) => {
                assert!(evaluate_native(&template, &*SCOPE).is_ok_and(|again| again == *value));
                assert!(value.clone() == *value && !to_json(value).to_string().is_empty());
                if let Ok(joined) = joined {
                    assert_eq!(joined.text, to_text(value));
                    assert_eq!(joined.sensitive, value.is_sensitive());
                }
            }
            // The text form can exceed a size limit that the value itself keeps.
            Err(error) => assert_eq!(joined.err().map(|error| error.class), Some(error.class)),
        }
    }
});
