//! Patterns: globs of files and regular expressions of users (ci.md §2). Both run in time linear in the text, with
//! bounded memory, whatever a user writes.

use regex::{Regex, RegexBuilder};

/// Largest compiled expression in bytes. Expressions in CI files take some kilobytes.
const PROGRAM_LIMIT: usize = 1024 * 1024;

/// Longest pattern of a user.
const PATTERN_LIMIT: usize = 16 * 1024;

/// Deepest nesting of groups.
const NESTING_LIMIT: u32 = 64;

/// Compiles an expression in the syntax of RE2. `flags` are letters such as `i`.
pub(crate) fn regex(pattern: &str, flags: &str) -> Result<Regex, String> {
    if pattern.len() > PATTERN_LIMIT {
        return Err(format!("the regular expression has more than {PATTERN_LIMIT} bytes"));
    }
    let mut builder = RegexBuilder::new(pattern);
    builder.size_limit(PROGRAM_LIMIT).dfa_size_limit(PROGRAM_LIMIT).nest_limit(NESTING_LIMIT);
    for flag in flags.chars() {
        match flag {
            'i' => builder.case_insensitive(true),
            'm' => builder.multi_line(true),
            's' => builder.dot_matches_new_line(true),
            'U' => builder.swap_greed(true),
            _ => return Err(format!("a regular expression has no flag \"{}\"", flag.escape_default())),
        };
    }
    builder.build().map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => "the regular expression is too large".to_owned(),
        error => {
            let text = error.to_string();
            let last = text.lines().last().unwrap_or_default();
            format!("not a regular expression: {}", last.trim_start_matches("error: "))
        }
    })
}

/// A glob.
#[derive(Clone, Debug)]
pub struct Glob(Regex);

impl Glob {
    /// Compiles a glob of `include:local`: `*` is anything within a folder, `**` anything at all.
    pub(crate) fn of_include(text: &str) -> Result<Self, String> {
        let mut pattern = String::from(r"\A");
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let (piece, taken) = if rest.starts_with("**") {
                (".*".to_owned(), 2)
            } else if first == '*' {
                ("[^/]*".to_owned(), 1)
            } else {
                (regex::escape(first.encode_utf8(&mut [0; 4])), first.len_utf8())
            };
            pattern.push_str(&piece);
            rest = rest.get(taken..).unwrap_or_default();
        }
        pattern.push_str(r"\z");
        regex(&pattern, "s").map(Self)
    }

    /// Compiles a glob of `exists`, `changes` and `cache:key:files`: `*`, `?` and `[…]` stay within a folder, `**/` is
    /// any number of folders, `{a,b}` is a choice.
    pub(crate) fn of_path(text: &str) -> Result<Self, String> {
        let mut pattern = String::from(r"\A");
        let mut rest = text.strip_prefix("./").unwrap_or(text);
        let mut braces = 0_usize;
        while let Some(first) = rest.chars().next() {
            let behind = rest.get(first.len_utf8()..).unwrap_or_default();
            let (piece, after) = match first {
                '*' if rest.starts_with("**/") => {
                    ("(?:[^/]+/)*".to_owned(), rest.get(3..).unwrap_or_default())
                }
                '*' => ("[^/]*".to_owned(), behind.trim_start_matches('*')),
                '?' => ("[^/]".to_owned(), behind),
                '[' => class(behind).unwrap_or_else(|| (r"\[".to_owned(), behind)),
                '{' if behind.contains('}') => {
                    braces += 1;
                    ("(?:".to_owned(), behind)
                }
                '}' if braces > 0 => {
                    braces -= 1;
                    (")".to_owned(), behind)
                }
                ',' if braces > 0 => ("|".to_owned(), behind),
                '\\' => match behind.chars().next() {
                    Some(escaped) => (
                        regex::escape(escaped.encode_utf8(&mut [0; 4])),
                        behind.get(escaped.len_utf8()..).unwrap_or_default(),
                    ),
                    None => (r"\\".to_owned(), behind),
                },
                other => (regex::escape(other.encode_utf8(&mut [0; 4])), behind),
            };
            pattern.push_str(&piece);
            rest = after;
        }
        pattern.push_str(&")".repeat(braces));
        pattern.push_str(r"\z");
        regex(&pattern, "s").map(Self)
    }

    /// Compiles a glob of `artifacts` and `cache`: as [`Self::of_path`], and `**` at its end reaches into all folders.
    pub fn of_archive(text: &str) -> Result<Self, String> {
        let deep = text.strip_suffix("/**").map(|folder| format!("{folder}/**/*"));
        Self::of_path(if text == "**" { "**/*" } else { deep.as_deref().unwrap_or(text) })
    }

    /// True if the whole path fits.
    pub fn fits(&self, path: &str) -> bool {
        self.0.is_match(path)
    }
}

/// Translates what follows `[`. `None`: no class, so the bracket is a character.
fn class(rest: &str) -> Option<(String, &str)> {
    let end = rest.get(1..)?.find(']')? + 1;
    let inner = rest.get(..end)?;
    let (negated, inner) = inner.strip_prefix(['!', '^']).map_or((false, inner), |inner| (true, inner));
    let mut class = String::from(if negated { "[^/" } else { "[" });
    for character in inner.chars() {
        if !(character == '-' || character.is_alphanumeric()) {
            class.push('\\');
        }
        class.push(character);
    }
    class.push(']');
    Some((class, rest.get(end + 1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_of_includes_reach_as_far_as_documented() {
        for (glob, path, fits) in [
            ("ci/*.yml", "ci/a.yml", true),
            ("ci/*.yml", "ci/a/b.yml", false),
            ("ci/**.yml", "ci/a.yml", true),
            ("ci/**.yml", "ci/a/b.yml", true),
            ("ci/**/*.yml", "ci/a.yml", false),
            ("ci/**/*.yml", "ci/a/b.yml", true),
            ("ci/a.yml", "ci/axyml", false),
            ("ci/*é*.yml", "ci/aéb.yml", true),
            ("**", "a\nb", true),
        ] {
            assert_eq!(Glob::of_include(glob).unwrap().fits(path), fits, "{glob} {path}");
        }
    }

    #[test]
    fn globs_of_paths_are_those_of_ruby() {
        for (glob, path, fits) in [
            ("**/*.rs", "a.rs", true),
            ("**/*.rs", "a/b/c.rs", true),
            ("*.rs", "a/b.rs", false),
            ("src/**/*", "src/.hidden/x", true),
            ("src/**", "src/a/b", false),
            ("a/{b,c}.rs", "a/c.rs", true),
            ("a/{b,c/d}.rs", "a/c/d.rs", true),
            ("[ab].rs", "b.rs", true),
            ("[!ab].rs", "b.rs", false),
            ("a?c", "abc", true),
            ("a?c", "a/c", false),
            (r"a\*", "a*", true),
            ("./a", "a", true),
            ("{a", "{a", true),
            ("[a", "[a", true),
            ("[", "[", true),
            ("a}", "a}", true),
            ("a,b", "a,b", true),
            ("a,b", "a", false),
            ("{a,b},c", "b,c", true),
            ("{a,b},c", "c", false),
            ("{a,{b,c}}d", "cd", true),
            ("{a,{b}", "a", true),
            ("x**y", "xaby", true),
            ("x**y", "xa/by", false),
            ("**/a", "xa", false),
            ("[a-c]", "b", true),
            ("[^a-c]", "b", false),
            ("[!a]", "/", false),
            ("[.^]", "^", true),
            ("[.]", "x", false),
            ("[]]", "]", true),
            (r"[\]", r"\", true),
            ("[ab]c[d]", "bcd", true),
            ("a?", "aé", true),
            (r"a\é", "aé", true),
            (r"a\", r"a\", true),
        ] {
            assert_eq!(Glob::of_path(glob).unwrap().fits(path), fits, "{glob} {path}");
        }
    }

    #[test]
    fn globs_of_archives_reach_below_what_they_name() {
        for (glob, path, fits) in
            [("**", "a/b", true), ("a/**", "a/b/c", true), ("a/**", "b", false), ("a/*", "a/b/c", false)]
        {
            assert_eq!(Glob::of_archive(glob).unwrap().fits(path), fits, "{glob} {path}");
        }
    }

    #[test]
    fn flags_are_those_of_re2() {
        for (pattern, flags, text, matches) in [
            ("^b$", "", "a\nb", false),
            ("^b$", "m", "a\nb", true),
            ("^B$", "im", "a\nb", true),
            ("B", "", "b", false),
            ("B", "i", "b", true),
            ("a.b", "", "a\nb", false),
            ("a.b", "s", "a\nb", true),
        ] {
            assert_eq!(regex(pattern, flags).unwrap().is_match(text), matches, "/{pattern}/{flags} {text:?}");
        }
        let found = |flags: &str| regex("a+", flags).unwrap().find("aaa").unwrap().len();
        assert_eq!((found(""), found("U")), (3, 1));
        assert_eq!(regex("a", "g").unwrap_err(), "a regular expression has no flag \"g\"");
    }

    #[test]
    fn expressions_are_bounded_by_their_text_and_by_what_becomes_of_it() {
        let padded = |length: usize| format!("(?x)a{}", " ".repeat(length - 5));
        assert!(regex(&padded(16_384), "").is_ok());
        assert!(regex(&padded(16_385), "").unwrap_err().contains("16384 bytes"));
        assert!(regex(r"\w{20}", "").is_ok() && regex(&"ab".repeat(1_000), "").is_ok());
        assert_eq!(regex("(a{1000}){1000}", "").unwrap_err(), "the regular expression is too large");
    }

    #[test]
    fn patterns_that_explode_elsewhere_are_refused_or_fast() {
        assert!(regex("(a{1000}){1000}", "").is_err());
        assert!(regex(&"(".repeat(1000), "").is_err());
        assert!(regex(&"a".repeat(PATTERN_LIMIT + 1), "").is_err());
        let nested = regex("^(a+)+$", "").unwrap();
        assert!(!nested.is_match(&format!("{}b", "a".repeat(100_000))));
        assert!(regex("a(?=b)", "").is_err() && regex("a", "x").is_err());
    }
}
