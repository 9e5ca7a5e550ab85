//! Any bytes are either outputs and exports, or an error that names a line. It can quote an export's name, and nothing
//! else of the line unless a type is wrong. Blank lines, carriage returns and repeating the whole file change nothing. A line that is refused in a file is
//! also refused alone.

#![no_main]

use indexmap::IndexMap;
use libfuzzer_sys::fuzz_target;
use step_runner::lang::ast::Declaration;
use step_runner::lang::diagnostic::{Class, Position};
use step_runner::lang::output_file::{LINE_LIMIT, read_delegated, read_exports, read_outputs};
use step_runner::lang::value::ValueType;

fuzz_target!(|content: &[u8]| {
    drop(read_delegated(content));
    let declare = |(name, value_type)| {
        (name, Declaration { value_type, default: None, sensitive: false, at: Position::START })
    };
    let declared: IndexMap<String, Declaration> =
        [("a".to_owned(), ValueType::String), ("b".to_owned(), ValueType::Struct)]
            .into_iter()
            .map(declare)
            .collect();
    if let Ok(outputs) = read_outputs(content, &declared) {
        assert!(outputs.iter().all(|(name, value)| value.value_type() == Some(declared[name].value_type)));
    }

    let whole = read_exports(content);
    let Ok(text) = std::str::from_utf8(content) else {
        assert!(whole.is_err_and(|error| error.line.is_some()));
        return;
    };
    match &whole {
        Ok(exports) => {
            let each = text.split('\n').flat_map(|line| read_exports(line.as_bytes()).expect("a good line"));
            let joined: IndexMap<String, String> = each.collect();
            assert_eq!(&joined, exports, "the last line wins");
            assert!(exports.iter().all(|(name, value)| {
                !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')
            }));
        }
        Err(error) => {
            let line = error.bad_line(content).expect("a line").to_vec();
            let alone = read_exports(&line).expect_err("refused in a file, but not alone");
            assert!(alone.class == error.class && alone.line == Some(1), "{alone:?} is not {error:?}");
            let (name, rest) = quoted_name(&error.message);
            assert!(!name.contains('='), "{} quotes more than a name", error.message);
            let word = text.split(|c: char| !c.is_alphanumeric()).find(|word| word.len() >= 12);
            assert!(
                error.class == Class::Type || word.is_none_or(|word| !rest.contains(word)),
                "{} quotes the file",
                error.message
            );
        }
    }
    let spaced = format!("\n{}\n \t\n", text.replace('\n', "\r\n\n"));
    if text.split('\n').all(|line| line.len() < LINE_LIMIT) {
        assert_eq!(read_exports(spaced.as_bytes()).ok(), whole.as_ref().ok().cloned(), "blank lines matter");
    }
    let twice = format!("{text}\n{text}");
    if let (Ok(whole), Ok(twice)) = (&whole, read_exports(twice.as_bytes())) {
        assert_eq!(*whole, twice);
    }
});

/// Returns the name of the export that a message is about, and the rest of the message.
fn quoted_name(message: &str) -> (&str, &str) {
    let quoted = message.split_once("export \"").and_then(|(_, quoted)| quoted.rsplit_once("\": "));
    quoted.unwrap_or(("", message))
}
