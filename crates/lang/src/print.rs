//! Prints expressions and templates. The text parses back to an equal tree. It has as few brackets as precedence
//! allows, so it nests no deeper than the text that was read. Spaces and the choice of quotes can differ.

use std::fmt::{self, Display, Formatter, Write as _};

use crate::ast::{Access, BinaryOperator, Expression, ExpressionKind, Part, Template};
use crate::convert::number_to_text;
use crate::template;
use crate::value::Data;

/// Prints the scalar as written in a file, without YAML quotes.
impl Display for Template {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            match part {
                Part::Text(text) => f.write_str(&template::quote(text))?,
                Part::Expression(expression) => write!(f, "${{{{ {expression} }}}}")?,
            }
        }
        Ok(())
    }
}

/// Prints the expression without delimiters.
impl Display for Expression {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ExpressionKind::Literal(literal) => write_literal(&literal.data, f),
            ExpressionKind::Interpolation(parts) => write_interpolation(parts, f),
            ExpressionKind::Name(name) => f.write_str(name),
            ExpressionKind::Array(items) => {
                f.write_char('[')?;
                write_list(items, f)?;
                f.write_char(']')
            }
            ExpressionKind::Object(pairs) => write_object(pairs, f),
            ExpressionKind::Unary(operators, operand) => {
                operators.iter().try_for_each(|operator| f.write_char(operator.symbol()))?;
                let bare = !matches!(operand.kind, ExpressionKind::Unary(..) | ExpressionKind::Binary(..));
                write_grouped(operand, bare, f)
            }
            ExpressionKind::Binary(first, rest) => write_chain(first, rest, f),
            ExpressionKind::Access(root, path) => Path(root, path).fmt(f),
        }
    }
}

/// An access path or its beginning: the accessed expression and the accesses.
pub(crate) struct Path<'e>(pub(crate) &'e Expression, pub(crate) &'e [Access]);

impl Display for Path<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(root, path) = self;
        let bare = !matches!(
            root.kind,
            ExpressionKind::Unary(..) | ExpressionKind::Binary(..) | ExpressionKind::Access(..)
        );
        write_grouped(root, bare || path.is_empty(), f)?;
        path.iter().try_for_each(|access| access.fmt(f))
    }
}

impl Display for Access {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Member(name, _) => write!(f, ".{name}"),
            Self::Index(index, _) => write!(f, "[{index}]"),
            Self::Call(arguments, _) => {
                f.write_char('(')?;
                write_list(arguments, f)?;
                f.write_char(')')
            }
        }
    }
}

fn write_grouped(expression: &Expression, bare: bool, f: &mut Formatter<'_>) -> fmt::Result {
    if bare { expression.fmt(f) } else { write!(f, "({expression})") }
}

fn write_chain(
    first: &Expression,
    rest: &[(BinaryOperator, Expression)],
    f: &mut Formatter<'_>,
) -> fmt::Result {
    let level = rest.first().map_or(u8::MAX, |(operator, _)| operator.level());
    let binds_stronger = |operand: &Expression| match &operand.kind {
        ExpressionKind::Binary(_, inner) => {
            inner.first().is_some_and(|(operator, _)| operator.level() > level)
        }
        _ => true,
    };
    write_grouped(first, binds_stronger(first), f)?;
    for (operator, operand) in rest {
        write!(f, " {} ", operator.symbol())?;
        write_grouped(operand, binds_stronger(operand), f)?;
    }
    Ok(())
}

fn write_list(items: &[Expression], f: &mut Formatter<'_>) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        f.write_str(if index == 0 { "" } else { ", " })?;
        item.fmt(f)?;
    }
    Ok(())
}

fn write_object(pairs: &[(Expression, Expression)], f: &mut Formatter<'_>) -> fmt::Result {
    f.write_char('{')?;
    for (index, (key, member)) in pairs.iter().enumerate() {
        f.write_str(if index == 0 { "" } else { ", " })?;
        // A bare word would be read as the text of the key.
        let is_word = match &key.kind {
            ExpressionKind::Name(_) => true,
            ExpressionKind::Literal(literal) => matches!(literal.data, Data::Null | Data::Bool(_)),
            _ => false,
        };
        write_grouped(key, !is_word, f)?;
        write!(f, ": {member}")?;
    }
    f.write_char('}')
}

fn write_interpolation(parts: &[Part], f: &mut Formatter<'_>) -> fmt::Result {
    f.write_char('"')?;
    for part in parts {
        match part {
            Part::Text(text) => write_quoted(text, f)?,
            Part::Expression(expression) => write!(f, "${{{{ {expression} }}}}")?,
        }
    }
    f.write_char('"')
}

/// Prints a literal, which is always a scalar: arrays and objects of literals are trees of their own.
fn write_literal(literal: &Data, f: &mut Formatter<'_>) -> fmt::Result {
    match literal {
        Data::Bool(truth) => truth.fmt(f),
        Data::Number(number) => f.write_str(&number_to_text(*number)),
        Data::String(text) => {
            f.write_char('"')?;
            write_quoted(text, f)?;
            f.write_char('"')
        }
        Data::Null | Data::Array(_) | Data::Object(_) => f.write_str("null"),
    }
}

fn write_quoted(text: &str, f: &mut Formatter<'_>) -> fmt::Result {
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        if rest.starts_with(template::OPEN) {
            f.write_char('\\')?;
        }
        match character {
            '"' | '\\' => write!(f, "\\{character}")?,
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            control if control.is_control() => write!(f, "\\u{:04x}", u32::from(control))?,
            other => f.write_char(other)?,
        }
        rest = rest.get(character.len_utf8()..).unwrap_or_default();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::ast::UnaryOperator;
    use crate::diagnostic::Position;
    use crate::expression::parse;
    use crate::template::parse_inline;
    use crate::value::Value;

    fn parsed(text: &str) -> Expression {
        parse(text, &Arc::from("f")).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn printed(text: &str) -> String {
        parsed(text).to_string()
    }

    #[test]
    fn brackets_stand_only_where_precedence_needs_them() {
        for (text, expected) in [
            ("((1)+(2*3))", "1 + 2 * 3"),
            ("(1+2)*3-(4-5)", "(1 + 2) * 3 - (4 - 5)"),
            ("(1-2)-3", "(1 - 2) - 3"),
            ("-(-x)+!(a&&b)", "-(-x) + !(a && b)"),
            ("(-x).y", "(-x).y"),
            ("(a.b)['c']( 1,[ 2 ])", "(a.b)[\"c\"](1, [2])"),
            (
                "{a: 1, (b): 2, 'c d': 3, (null): 4, d.e: 5}",
                "{\"a\": 1, (b): 2, \"c d\": 3, (null): 4, d.e: 5}",
            ),
            ("a || b && c == 1", "a || b && c == 1"),
            ("1e21.x", "1e+21.x"),
        ] {
            assert_eq!(printed(text), expected);
            assert_eq!(printed(expected), expected);
        }
    }

    #[test]
    fn texts_keep_every_character() {
        for text in ["", "\"\\/\u{7}\u{1}\n\r\t", "$", "$$", "${", "${{", "\\${{ x", "a}}", "é😀\u{2028}"]
        {
            let literal = literal(Data::String(text.to_owned()));
            assert!(parsed(&literal.to_string()) == literal, "{literal}");
        }
        assert_eq!(
            printed(r#""a\\${{ "b${{ {c: 1} }}" }}$${{ d }}""#),
            r#""a\\${{ "b${{ {"c": 1} }}" }}$${{ d }}""#
        );
    }

    #[test]
    fn the_deepest_expression_prints_as_deep_as_it_is() {
        let text = format!("{}1{}", "(a + ".repeat(128), ")".repeat(128));
        let text = format!("{text} * 2 == 3 && 4 || {{a.b: 1}}");
        assert!(parsed(&printed(&text)) == parsed(&text));
    }

    fn expression(kind: ExpressionKind) -> Expression {
        Expression { kind, at: Position::START }
    }

    fn literal(data: Data) -> Expression {
        expression(ExpressionKind::Literal(Value::plain(data)))
    }

    fn text_strategy() -> impl Strategy<Value = String> {
        prop_oneof!["([a\\\\$ {}'\"\n\u{1}]|\\$\\{\\{|\\}\\}){0,6}", any::<String>()]
    }

    fn name_strategy() -> impl Strategy<Value = String> {
        "x[a-z_é]{0,3}"
    }

    /// Parts as the parser makes them: no empty text, no adjacent texts, at least one expression.
    fn parts_strategy(
        inner: impl Strategy<Value = Expression> + Clone + 'static,
    ) -> impl Strategy<Value = Vec<Part>> {
        let piece = (text_strategy(), inner);
        (prop::collection::vec(piece, 1..3), text_strategy()).prop_map(|(pieces, last)| {
            let text = |text: String| Some(text).filter(|text| !text.is_empty()).map(Part::Text);
            let pieces = pieces.into_iter().flat_map(|(before, expression)| {
                text(before).into_iter().chain([Part::Expression(expression)]).collect::<Vec<_>>()
            });
            pieces.chain(text(last)).collect()
        })
    }

    const OPERATORS: [[BinaryOperator; 2]; 5] = [
        [BinaryOperator::Or, BinaryOperator::Or],
        [BinaryOperator::And, BinaryOperator::And],
        [BinaryOperator::LessEqual, BinaryOperator::NotEqual],
        [BinaryOperator::Add, BinaryOperator::Subtract],
        [BinaryOperator::Multiply, BinaryOperator::Remainder],
    ];

    /// Any tree that the parser can produce.
    fn expression_strategy() -> impl Strategy<Value = Expression> {
        let leaf = prop_oneof![
            Just(literal(Data::Null)),
            any::<bool>().prop_map(|truth| literal(Data::Bool(truth))),
            (0.0..f64::MAX).prop_map(|number| literal(Data::Number(number))),
            (0..100u32).prop_map(|number| literal(Data::Number(number.into()))),
            text_strategy().prop_map(|text| literal(Data::String(text))),
            name_strategy().prop_map(|name| expression(ExpressionKind::Name(name))),
        ];
        leaf.prop_recursive(5, 40, 4, |inner| {
            let list = || prop::collection::vec(inner.clone(), 0..3);
            let access = prop_oneof![
                name_strategy().prop_map(|name| Access::Member(name, Position::START)),
                inner.clone().prop_map(|index| Access::Index(index, Position::START)),
                list().prop_map(|arguments| Access::Call(arguments, Position::START)),
            ];
            let signs = prop::collection::vec(
                prop::sample::select(vec![UnaryOperator::Plus, UnaryOperator::Minus, UnaryOperator::Not]),
                1..3,
            );
            let chain = (
                inner.clone(),
                prop::sample::select(OPERATORS.to_vec()),
                prop::collection::vec((any::<bool>(), inner.clone()), 1..3),
            );
            prop_oneof![
                list().prop_map(ExpressionKind::Array),
                prop::collection::vec((inner.clone(), inner.clone()), 0..3).prop_map(ExpressionKind::Object),
                parts_strategy(inner.clone()).prop_map(ExpressionKind::Interpolation),
                (signs, inner.clone()).prop_map(|(signs, operand)| match operand.kind {
                    // The parser joins adjacent signs into one node.
                    ExpressionKind::Unary(more, inside) => ExpressionKind::Unary(more, inside),
                    _ => ExpressionKind::Unary(signs, Box::new(operand)),
                }),
                chain.prop_map(|(first, [even, odd], rest)| {
                    let rest = rest.into_iter().map(|(is_odd, x)| (if is_odd { odd } else { even }, x));
                    ExpressionKind::Binary(Box::new(first), rest.collect())
                }),
                (inner.clone(), prop::collection::vec(access, 1..3))
                    .prop_map(|(root, path)| ExpressionKind::Access(Box::new(root), path)),
            ]
            .prop_map(expression)
        })
    }

    proptest! {
        #[test]
        fn a_printed_expression_parses_to_the_same_tree(tree in expression_strategy()) {
            let text = tree.to_string();
            let again = parse(&text, &Arc::from("f"));
            prop_assert!(again.as_ref().is_ok_and(|again| *again == tree), "{text}: {again:?}");
        }

        #[test]
        fn a_printed_template_parses_to_the_same_parts(
            parts in parts_strategy(expression_strategy().boxed())
        ) {
            let file = Arc::from("f");
            // A template cannot hold a backslash directly before an expression: it would escape the expression.
            let writable = parts.windows(2).all(|pair| {
                !matches!(pair, [Part::Text(text), Part::Expression(_)] if text.ends_with('\\'))
            });
            prop_assume!(writable);
            let tree = Template { parts, file: Arc::clone(&file), at: Position::START };
            let text = tree.to_string();
            let again = parse_inline(&text, &file, Position::START);
            prop_assert!(again.as_ref().is_ok_and(|again| *again == tree), "{text}: {again:?}");
        }
    }
}
