//! References to variables in a value: `$NAME`, `${NAME}`, and `$$` for a dollar (ci.md §3).

use step_runner_model::escape;

/// A part of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Text. Its dollars mean themselves.
    Literal(String),
    /// A reference.
    Reference {
        /// The name.
        name: String,
        /// The reference as it is written.
        written: String,
    },
}

/// Cost of a piece beside its text, so that many empty ones are bounded, too.
const PIECE_SIZE: usize = 16;

impl Piece {
    /// Returns the piece as text.
    pub(super) fn written(&self) -> &str {
        match self {
            Self::Literal(text) => text,
            Self::Reference { written, .. } => written,
        }
    }

    pub(super) fn size(&self) -> usize {
        self.written().len() + PIECE_SIZE
    }
}

/// Returns pieces as the value of a request: the daemon's expansion gives back literals, and resolves references
/// (variables.md §4). A reference is put into braces if what follows would become part of its name.
pub(super) fn sent(pieces: &[Piece]) -> String {
    let mut sent = String::new();
    for (index, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Literal(text) => sent.push_str(&escape(text)),
            // The daemon removes it. An inserted text could close it.
            Piece::Reference { written, .. } if written == "${" => {}
            Piece::Reference { name, written } => {
                let goes_on =
                    pieces.get(index + 1).is_some_and(|next| next.written().starts_with(is_of_name));
                if goes_on && !name.is_empty() && !written.starts_with("${") {
                    sent.extend(["${", name, "}"]);
                } else {
                    sent.push_str(written);
                }
            }
        }
    }
    sent
}

/// True for the characters of names without braces.
const fn is_of_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

/// Splits a value. What only looks like a reference, such as `${X:-y}` or `$1`, stays for the daemon, too.
pub(super) fn pieces(value: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut literal = String::new();
    let mut rest = value;
    while let Some(dollar) = rest.find('$') {
        literal.push_str(rest.get(..dollar).unwrap_or_default());
        let at = rest.get(dollar..).unwrap_or_default();
        let (piece, length) = at_dollar(at);
        match piece {
            Some(reference) => {
                flush(&mut literal, &mut pieces);
                pieces.push(reference);
            }
            None => literal.push('$'),
        }
        rest = at.get(length..).unwrap_or_default();
    }
    literal.push_str(rest);
    flush(&mut literal, &mut pieces);
    pieces
}

fn flush(literal: &mut String, pieces: &mut Vec<Piece>) {
    if !literal.is_empty() {
        pieces.push(Piece::Literal(std::mem::take(literal)));
    }
}

/// Reads what starts with a dollar, and its length. `None` is a literal dollar.
fn at_dollar(text: &str) -> (Option<Piece>, usize) {
    let behind = text.get(1..).unwrap_or_default();
    if behind.starts_with('$') {
        return (None, 2);
    }
    let (name, length) = if let Some(inside) = behind.strip_prefix('{') {
        match inside.find('}') {
            Some(end) => (inside.get(..end).unwrap_or_default(), end + 3),
            None => return (Some(foreign(text, 2)), 2),
        }
    } else {
        let end = behind.find(|c: char| !is_of_name(c)).unwrap_or(behind.len());
        let name = behind.get(..end).unwrap_or_default();
        if name.is_empty() || name.starts_with(|first: char| first.is_ascii_digit()) {
            let special = behind.starts_with(|c: char| c.is_ascii_digit() || "*#@!?-".contains(c));
            return if special { (Some(foreign(text, 2)), 2) } else { (None, 1) };
        }
        (name, end + 1)
    };
    let written = text.get(..length).unwrap_or_default().to_owned();
    (Some(Piece::Reference { name: name.to_owned(), written }), length)
}

/// A reference in a form that has a meaning for the daemon only. No variable has an empty name.
fn foreign(text: &str, length: usize) -> Piece {
    Piece::Reference { name: String::new(), written: text.get(..length).unwrap_or_default().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(value: &str) -> Vec<String> {
        let shown = |piece: Piece| match piece {
            Piece::Literal(text) => text,
            Piece::Reference { name, .. } => format!("<{name}>"),
        };
        pieces(value).into_iter().map(shown).collect()
    }

    #[test]
    fn a_reference_never_takes_what_another_variable_brings() {
        let reference = |written: &str| pieces(written).remove(0);
        let literal = |text: &str| Piece::Literal(text.to_owned());
        for (parts, expected) in [
            (vec![reference("$A"), literal("b")], "${A}b"),
            (vec![reference("$A"), literal("-b")], "$A-b"),
            (vec![reference("${A}"), literal("b")], "${A}b"),
            (vec![reference("$A"), reference("$B")], "$A$B"),
            (vec![reference("${"), literal("b}")], "b}"),
            (vec![literal("$"), literal("b")], "$$b"),
            (vec![reference("$A"), literal("_b")], "${A}_b"),
            (vec![reference("$A"), literal("1")], "${A}1"),
            (vec![reference("$A"), literal("é")], "$Aé"),
            (vec![reference("$1"), literal("b")], "$1b"),
            (vec![literal("b"), reference("$A")], "b$A"),
        ] {
            assert_eq!(sent(&parts), expected);
        }
    }

    #[test]
    fn references_have_two_forms() {
        for (value, expected) in [
            ("a$B-${C}d", vec!["a", "<B>", "-", "<C>", "d"]),
            ("$$B", vec!["$B"]),
            ("$$$B", vec!["$", "<B>"]),
            ("$", vec!["$"]),
            ("$ x", vec!["$ x"]),
            ("${a-b}", vec!["<a-b>"]),
            ("$1$?", vec!["<>", "<>"]),
            ("${open", vec!["<>", "open"]),
            ("é$é", vec!["é$é"]),
            ("$A_1.$_x", vec!["<A_1>", ".", "<_x>"]),
            ("$*$@$#$!$-$%", vec!["<>", "<>", "<>", "<>", "<>", "$%"]),
            ("$12", vec!["<>", "2"]),
            ("${}x", vec!["<>", "x"]),
            ("", vec![]),
        ] {
            assert_eq!(split(value), expected, "{value}");
        }
    }
}
