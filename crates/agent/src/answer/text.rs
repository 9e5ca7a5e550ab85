//! Texts of a server's refusals, made fit for people: short, on one line, without tokens.

use serde_json::Value as Json;

use crate::tokens::Token;

/// Longest text that is shown, in bytes.
const LONGEST: usize = 512;

/// Shown instead of a secret.
const HIDDEN: &str = "[MASKED]";

/// Prefixes of the tokens that servers issue. What follows one is never shown.
pub const TOKEN_PREFIXES: [&str; 14] = [
    "glpat-",
    "gloas-",
    "gldt-",
    "glrt-",
    "glcbt-",
    "glrtr-",
    "glptt-",
    "glft-",
    "glimt-",
    "glagent-",
    "glsoat-",
    "glffct-",
    "gltok-",
    "_gitlab_session=",
];

/// Prefix of a registration token, which old servers take: no prefix of [`TOKEN_PREFIXES`], because jobs have none.
const REGISTRATION_PREFIX: &str = "GR1348941";

/// Returns the text of a refusal: `message`, a text or a map of lists, `error`, or the body itself.
pub fn message(body: &str, secrets: &[&Token]) -> String {
    let text = match serde_json::from_str::<Json>(body) {
        Ok(Json::Object(map)) => {
            let found =
                map.get("message").or_else(|| map.get("error_description")).or_else(|| map.get("error"));
            found.map_or_else(String::new, flat)
        }
        Ok(other) => flat(&other),
        Err(_) => body.to_owned(),
    };
    clean(&text, secrets)
}

/// Returns a value as one text.
fn flat(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        Json::Array(items) => items.iter().map(flat).collect::<Vec<_>>().join(", "),
        Json::Object(map) => {
            map.iter().map(|(key, value)| format!("{key}: {}", flat(value))).collect::<Vec<_>>().join("; ")
        }
        other => other.to_string(),
    }
}

/// Removes tokens and queries of URLs, escapes control characters, and cuts the text.
pub fn clean(text: &str, secrets: &[&Token]) -> String {
    let mut text = text.trim().to_owned();
    for secret in secrets {
        text = text.replace(secret.expose(), HIDDEN);
    }
    for prefix in TOKEN_PREFIXES.into_iter().chain([REGISTRATION_PREFIX]) {
        text = without_tokens(&text, prefix);
    }
    let mut shown = String::new();
    for character in without_queries(&text).chars() {
        if shown.len() + character.len_utf8() > LONGEST {
            shown.push('…');
            break;
        }
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Replaces what follows a prefix, up to the next character that no token has.
fn without_tokens(text: &str, prefix: &str) -> String {
    let mut pieces = text.split(prefix);
    let mut shown = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let in_token = |c: char| c.is_ascii_alphanumeric() || "-_.=".contains(c);
        shown.push_str(prefix);
        // What a daemon has hidden stays as it is.
        if !piece.starts_with(HIDDEN) {
            shown.push_str(HIDDEN);
        }
        shown.push_str(piece.trim_start_matches(in_token));
    }
    shown
}

/// Replaces the query of each URL.
fn without_queries(text: &str) -> String {
    let mut shown = String::new();
    for (index, piece) in text.split("://").enumerate() {
        if index == 0 {
            shown.push_str(piece);
            continue;
        }
        shown.push_str("://");
        let end = piece.find(|c: char| c.is_whitespace() || "\"'<>".contains(c)).unwrap_or(piece.len());
        let (url, behind) = piece.split_at(end);
        match url.split_once('?') {
            Some((address, _)) => {
                shown.push_str(address);
                shown.push_str("?…");
            }
            None => shown.push_str(url),
        }
        shown.push_str(behind);
    }
    shown
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_have_several_forms() {
        for (body, shown) in [
            (r#"{"message":"403 Forbidden"}"#, "403 Forbidden"),
            (
                r#"{"message":{"tags_list":["can not be empty","x"],"b":"c"}}"#,
                "tags_list: can not be empty, x; b: c",
            ),
            (r#"{"error":"invalid_token","error_description":"Token was revoked"}"#, "Token was revoked"),
            (r#"{"error":"scope is invalid"}"#, "scope is invalid"),
            (r#"{"other":1}"#, ""),
            ("<html>\nbad</html>", "<html>\\nbad</html>"),
            ("", ""),
        ] {
            assert_eq!(message(body, &[]), shown, "{body}");
        }
    }

    #[test]
    fn c10_tokens_and_queries_are_not_shown() {
        let token = Token::new("oldRandomToken12345").unwrap();
        let text = "GET https://s.test/a?X-Amz-Signature=abc failed: oldRandomToken12345 glrt-t1_abc.def, acme-glcbt-a.b.c GR1348941abc";
        assert_eq!(
            clean(text, &[&token]),
            "GET https://s.test/a?… failed: [MASKED] glrt-[MASKED], acme-glcbt-[MASKED] GR1348941[MASKED]"
        );
    }

    proptest! {
        #[test]
        fn a_text_is_short_on_one_line_and_without_tokens(text: String, many in 0..200_usize, tail in "[a-z0-9]{8}") {
            let token = Token::new(&format!("tok{tail}")).unwrap();
            let text = format!("{}{}{}glrt-{tail}{text}", text.repeat(many % 5), "é".repeat(many), token.expose());
            let shown = clean(&text, &[&token]);
            prop_assert!(shown.len() <= LONGEST + 16, "{}", shown.len());
            prop_assert!(!shown.contains(&tail) || text.matches(&tail).count() > 2);
            prop_assert!(!shown.chars().any(char::is_control));
        }
    }
}
