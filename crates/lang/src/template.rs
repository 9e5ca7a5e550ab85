//! Scans templates (language.md §8): text, escapes `\${{`, and expressions `${{ … }}`.

use std::sync::Arc;

use super::ast::{Part, Template};
use super::diagnostic::{Diagnostic, Position};
use super::expression::{self, ParseError};
use super::yaml::places::Places;

/// Opens an expression.
pub const OPEN: &str = "${{";

/// Most bytes of all expressions in one file or request. Their trees take much more memory than their text.
pub(crate) const EXPRESSIONS_LIMIT: usize = 1024 * 1024;

/// Parses a template. `at` is the place of the scalar. `places` computes the places of its characters and is called
/// only for expressions. `left` counts the bytes of expressions still allowed in the file or request.
pub(crate) fn parse(
    text: &str,
    file: &Arc<str>,
    at: Position,
    places: impl FnOnce() -> Places,
    left: &mut usize,
) -> Result<Template, Diagnostic> {
    if !text.contains(OPEN) {
        return Ok(Template::literal(text, file, at));
    }
    let places = places();
    scan(text, &places, left)
        .map(|parts| Template { parts, file: Arc::clone(file), at })
        .map_err(|error| error.at(file, text, &places))
}

/// Parses a template that the file holds verbatim from `at` on.
pub fn parse_inline(text: &str, file: &Arc<str>, at: Position) -> Result<Template, Diagnostic> {
    parse(text, file, at, || Places::inline(text, at), &mut EXPRESSIONS_LIMIT.clone())
}

/// Quotes a text so that it evaluates to itself.
pub fn quote(text: &str) -> String {
    text.replace(OPEN, "\\${{")
}

fn scan(text: &str, places: &Places, left: &mut usize) -> Result<Vec<Part>, ParseError> {
    let mut parts = Vec::new();
    let mut plain = String::new();
    let mut rest = 0;
    while let Some(found) = text.get(rest..).and_then(|tail| tail.find(OPEN)) {
        let open = rest + found;
        let before = text.get(rest..open).unwrap_or_default();
        let inside = open + OPEN.len();
        if let Some(before) = before.strip_suffix('\\') {
            plain.push_str(before);
            plain.push_str(OPEN);
            rest = inside;
            continue;
        }
        plain.push_str(before);
        let (expression, end) = expression::parse_embedded(text, open, inside, places)?;
        *left = left.checked_sub(end - open).ok_or_else(|| {
            ParseError::limit(
                open,
                "the expressions of this document are longer than 1 MiB together".to_owned(),
            )
        })?;
        if !plain.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut plain)));
        }
        parts.push(Part::Expression(expression));
        rest = end;
    }
    plain.push_str(text.get(rest..).unwrap_or_default());
    if !plain.is_empty() {
        parts.push(Part::Text(plain));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use indexmap::IndexMap;
    use proptest::prelude::*;

    use super::*;
    use crate::diagnostic::Class;
    use crate::eval::evaluate_native;
    use crate::value::Value;

    fn template(text: &str) -> Result<Template, Diagnostic> {
        parse_inline(text, &Arc::from("f.yml"), Position { line: 3, column: 5 })
    }

    fn error(text: &str) -> String {
        template(text).unwrap_err().to_string()
    }

    fn evaluated(text: &str) -> Value {
        evaluate_native(&template(text).unwrap(), &IndexMap::<String, Value>::new()).unwrap()
    }

    #[test]
    fn errors_have_the_place_in_the_file() {
        assert_eq!(error("ab ${{ 1 + }}"), "f.yml:3:16: unexpected \"}}\", expected a value");
        assert_eq!(error("é\nx ${{ a"), "f.yml:4:3: expression not closed, opened here");
        assert_eq!(error("${{ }}"), "f.yml:3:9: empty expression");
        assert_eq!(error("${{ 'a }}"), "f.yml:3:9: string not closed, opened here");
    }

    #[test]
    fn of_several_backslashes_the_last_escapes() {
        assert!(evaluated(r"a\\${{ x }}") == Value::text(r"a\${{ x }}"));
        assert!(evaluated(r"a\b") == Value::text(r"a\b"));
    }

    #[test]
    fn fault_67_an_expression_of_more_than_64_kib_is_refused() {
        let text = format!("${{{{ 1{} }}}}", " + 1".repeat(20_000));
        assert_eq!(template(&text).unwrap_err().class, Class::Limit);
        let text = format!("${{{{ '{}' }}}}", "x".repeat(70_000));
        assert_eq!(template(&text).unwrap_err().class, Class::Limit);
    }

    proptest! {
        #[test]
        fn quoting_is_exact(text in "([a\\\\$ {}'\"]|\\$\\{\\{|\\}\\}){0,20}") {
            prop_assert!(evaluated(&quote(&text)) == Value::text(text.as_str()));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in any::<String>()) {
            drop(template(&text));
            drop(template(&format!("${{{{{text}")));
        }

        #[test]
        fn any_expression_like_text_is_parsed_or_refused(
            text in "(\\$\\{\\{|\\}\\}|[-+*/%!<>=&|.,:()\\[\\]{}'\"\\\\ a0-2e\n]|true|null|func){0,60}"
        ) {
            if let Ok(template) = template(&format!("${{{{{text}")) {
                drop(evaluate_native(&template, &IndexMap::<String, Value>::new()));
            }
        }
    }
}
