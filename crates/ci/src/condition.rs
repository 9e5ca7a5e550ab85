//! Expressions of `rules:if` (ci.md §2): parsing and evaluation.

mod parser;
mod token;

use std::borrow::Cow;

use crate::pattern;

/// A parsed expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition(Tree);

/// Nodes of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Tree {
    Null,
    Text(String),
    Variable(String),
    Pattern { pattern: String, flags: String },
    Not(Box<Self>),
    And(Box<Self>, Box<Self>),
    Or(Box<Self>, Box<Self>),
    Equal { left: Box<Self>, right: Box<Self>, negated: bool },
    Matches { left: Box<Self>, right: Box<Self>, negated: bool },
}

/// A mistake in an expression: the byte at which it is, what is wrong, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Offset in the text.
    pub offset: usize,
    /// The mistake.
    pub message: String,
    /// The remedy.
    pub help: Option<&'static str>,
}

/// A value: text, or null.
type Found<'v> = Option<Cow<'v, str>>;

impl Condition {
    /// Parses an expression. Regular expressions that are written down are checked, too.
    pub fn parse(text: &str) -> Result<Self, Mistake> {
        parser::parse(text).map(Self)
    }

    /// True if the expression holds. `lookup` returns the value of a variable that is set. An `Err` is a regular
    /// expression from a variable that is none.
    pub fn holds(&self, lookup: &dyn Fn(&str) -> Option<String>) -> Result<bool, String> {
        self.0.holds(lookup)
    }
}

impl Tree {
    fn holds(&self, lookup: &dyn Fn(&str) -> Option<String>) -> Result<bool, String> {
        Ok(match self {
            Self::Null => false,
            Self::Text(text) => !text.is_empty(),
            Self::Pattern { .. } => true,
            Self::Variable(_) => self.value(lookup).is_some_and(|value| !value.is_empty()),
            Self::Not(inner) => !inner.holds(lookup)?,
            Self::And(left, right) => left.holds(lookup)? && right.holds(lookup)?,
            Self::Or(left, right) => left.holds(lookup)? || right.holds(lookup)?,
            Self::Equal { left, right, negated } => (left.value(lookup) == right.value(lookup)) != *negated,
            Self::Matches { left, right, negated } => {
                let from_variable = right.value(lookup);
                let parts = match &**right {
                    Self::Pattern { pattern, flags } => Some((pattern.as_str(), flags.as_str())),
                    _ => from_variable.as_deref().and_then(parser::split_pattern),
                };
                // A value that is no expression matches nothing.
                let Some((pattern, flags)) = parts else { return Ok(*negated) };
                let text = left.value(lookup).unwrap_or_default();
                pattern::regex(pattern, flags)?.is_match(&text) != *negated
            }
        })
    }

    /// Returns the value of an operand. An expression as operand of a comparison counts as null or not null.
    fn value<'v>(&'v self, lookup: &dyn Fn(&str) -> Option<String>) -> Found<'v> {
        match self {
            Self::Text(text) => Some(Cow::Borrowed(text)),
            Self::Variable(name) => lookup(name).map(Cow::Owned),
            Self::Pattern { pattern, .. } => Some(Cow::Borrowed(pattern)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(text: &str) -> bool {
        let lookup = |name: &str| {
            let value = match name {
                "A" => "a",
                "B" => "b",
                "EMPTY" => "",
                "BRANCH" => "feature/x-1",
                "PATTERN" => "/^FEATURE/i",
                "PLAIN" => "x-",
                "OPEN" => "/x/ y",
                "A_1" => "one",
                "BACK" => "a\\b",
                _ => return None,
            };
            Some(value.to_owned())
        };
        Condition::parse(text).unwrap().holds(&lookup).unwrap()
    }

    #[test]
    fn expressions_mean_what_gitlab_documents() {
        for (text, expected) in [
            ("$A", true),
            ("$EMPTY", false),
            ("$UNSET", false),
            ("!$UNSET", true),
            ("$UNSET == null", true),
            ("$EMPTY == null", false),
            ("$EMPTY == \"\"", true),
            ("$A == 'a' && $B == \"b\"", true),
            ("$A == \"x\" || $B == \"b\" && $A", true),
            ("($A == \"a\" || $A) && $UNSET", false),
            ("$A == \"a\" || $A && $UNSET", true),
            ("\"a\" == $A", true),
            ("$A != $B", true),
            ("$BRANCH =~ /^feature\\//", true),
            ("$BRANCH =~ /^FEATURE/", false),
            ("$BRANCH =~ /^FEATURE/i", true),
            ("$BRANCH !~ /^main$/", true),
            ("$BRANCH =~ $PATTERN", true),
            ("$BRANCH =~ $PLAIN", false),
            ("$BRANCH !~ $PLAIN", true),
            ("$BRANCH =~ $UNSET", false),
            ("$UNSET =~ /x/", false),
            ("$UNSET !~ /x/", true),
            ("$EMPTY =~ /^$/", true),
            ("!($A == \"b\")", true),
            ("null", false),
            ("'a'", true),
            ("\"\"", false),
            ("/a/", true),
            ("$A_1 == 'one'&&$A", true),
            ("$UNSET == /a/", false),
            ("$UNSET != /a/", true),
            ("$A == null || $UNSET == $UNSET", true),
            ("$BRANCH =~ $OPEN", false),
            ("$BRANCH !~ $OPEN", true),
            ("$BRANCH =~ 'x-'", false),
            ("$BACK =~ /^a\\\\b$/ && $UNSET", false),
            ("$BACK =~ /a\\\\/", true),
            ("'a/b' =~ /a\\/b$/ && $A", true),
            ("$BRANCH =~ /^FEATURE/is&&$B", true),
            ("null =~ /^$/", true),
            ("!!$A", true),
            ("!$A == 'a'", false),
            ("(($A))", true),
        ] {
            assert_eq!(holds(text), expected, "{text}");
        }
    }

    #[test]
    fn mistakes_have_a_place_and_a_remedy() {
        for (text, offset, part) in [
            ("${A} == 'a'", 0, "braces"),
            ("$A = 'a'", 3, "\"=\""),
            ("$A == 'a", 6, "not closed"),
            ("$A &&", 5, "ends"),
            ("$A =~ /(/", 6, "regular expression"),
            ("$A =~ /a", 6, "not closed"),
            ("$A == a", 6, "\"a\""),
            ("($A", 3, "ends"),
            ("$A $B", 3, "expected"),
            ("", 0, "ends"),
            ("$A =~ 'a' =~ 'b'", 10, "expected"),
            ("$", 0, "variable"),
            ("$A & $B", 3, "\"&\""),
            ("$A | $B", 3, "\"|\""),
            ("$1", 0, "variable"),
            ("  $", 2, "variable"),
            ("&& $A", 0, "expected a value"),
            ("$A == )", 6, "expected a value"),
            ("($A $B)", 4, "expected \")\""),
            ("$A == abcd", 6, "\"abcd\""),
            ("$A == nullx", 6, "\"nullx\""),
            ("$A == é", 6, "\"é\""),
            ("$A =~ /a/x", 6, "no flag \"x\""),
        ] {
            let mistake = Condition::parse(text).unwrap_err();
            assert!(mistake.message.contains(part), "{text}: {mistake:?}");
            assert_eq!(mistake.offset, offset, "{text}: {mistake:?}");
        }
    }

    #[test]
    fn operators_of_other_languages_are_answered_with_the_one_that_is_meant() {
        for (text, help) in [
            ("$A = 'a'", "write \"==\""),
            ("$A & $B", "write \"&&\""),
            ("$A | $B", "write \"||\""),
            ("$A == a", "put a text into quotes, and write a variable as $NAME"),
            ("${A}", "write $NAME"),
            ("$A == 'a", "close it"),
            ("$A =~ /a", "end it with \"/\""),
        ] {
            assert_eq!(Condition::parse(text).unwrap_err().help, Some(help), "{text}");
        }
    }

    #[test]
    fn deep_expressions_are_refused_and_long_ones_are_not() {
        assert!(Condition::parse(&format!("{}$A{}", "(".repeat(10_000), ")".repeat(10_000))).is_err());
        assert!(Condition::parse(&"!".repeat(10_000)).is_err());
        let long = vec!["$A"; 400].join(" || ");
        assert!(Condition::parse(&long).is_ok());
        assert!(Condition::parse(&vec!["$A"; 100_000].join(" && ")).is_err());
        // A thousand words, and one more.
        assert!(Condition::parse(&format!("!{}", vec!["$A"; 500].join("&&"))).is_ok());
        assert_eq!(Condition::parse(&vec!["$A"; 501].join("&&")).unwrap_err().offset, 2_000);
        let nested = |depth: usize| Condition::parse(&format!("{}$A", "!".repeat(depth)));
        assert!(nested(63).is_ok() && nested(64).unwrap_err().message.contains("too deeply"));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_an_expression_or_a_mistake_within_it(text in "([$!()=~&|/'\"A-Ci ]|null|\\$A|== ){0,40}") {
            match Condition::parse(&text) {
                Ok(condition) => drop(condition.holds(&|_| Some("a".to_owned()))),
                Err(mistake) => assert!(mistake.offset <= text.len()),
            }
        }
    }
}
