//! Evaluation of expressions (language.md §9.3–§9.6).

mod access;
mod operation;

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashSet;
use std::fmt::Display;
use std::sync::Arc;

use indexmap::IndexMap;
use step_runner_model::text;

use super::budget::{Budget, Exhausted, VALUE_DEPTH, fits_depth};
use super::functions::Function;
use super::scope::{Item, Scope};
use crate::ast::{Access, Expression, ExpressionKind, Part};
use crate::convert::to_text;
use crate::diagnostic::{Class, Diagnostic, Position};
use crate::name;
use crate::print::Path;
use crate::value::{Data, EvaluatedText, Value};

/// Maximum number of names that an error lists. Beyond that it lists the most similar ones.
const LISTED_NAMES: usize = 20;
/// Maximum number of these similar names.
const SIMILAR_NAMES: usize = 5;
/// Maximum number of characters of an expression that an error shows.
const SHOWN_TEXT: usize = 200;

/// Evaluates the expressions of one document.
pub(super) struct Evaluator<'s> {
    scope: &'s dyn Scope,
    file: &'s Arc<str>,
    budget: &'s Budget,
    /// Number of `||` whose left side is being evaluated. Errors of class not-found are forgiven there, so they skip
    /// the costly search for similar names.
    forgiving: Cell<usize>,
}

type Result<T> = std::result::Result<T, Diagnostic>;

impl<'s> Evaluator<'s> {
    pub(super) const fn new(scope: &'s dyn Scope, file: &'s Arc<str>, budget: &'s Budget) -> Self {
        Self { scope, file, budget, forgiving: Cell::new(0) }
    }

    /// Returns the value of an expression within the bounds of language.md §6.
    pub(super) fn value(&self, expression: &'s Expression) -> Result<Value> {
        let value = self.owned(expression)?;
        if fits_depth(&value, VALUE_DEPTH) {
            Ok(value)
        } else {
            Err(self.error(Class::Limit, expression.at, format!("value nested deeper than {VALUE_DEPTH}")))
        }
    }

    pub(super) fn text(&self, parts: &'s [Part], at: Position) -> Result<EvaluatedText> {
        let mut joined = EvaluatedText::default();
        for part in parts {
            match part {
                Part::Text(text) => {
                    self.take(text.len(), at)?;
                    joined.text.push_str(text);
                }
                Part::Expression(expression) => {
                    let value = self.borrowed(expression)?;
                    let text = self.text_of(&value, expression.at)?;
                    joined.text.push_str(&text);
                    joined.sensitive |= self.becomes_text(&value, expression)?;
                }
            }
        }
        Ok(joined)
    }

    /// Returns the text of a value. Charges the budget before the text is made.
    fn text_of<'v>(&self, value: &'v Value, at: Position) -> Result<Cow<'v, str>> {
        self.budget.take_value(value).map_err(|limit| self.exhausted(limit, at))?;
        Ok(match &value.data {
            Data::String(text) => Cow::Borrowed(text),
            _ => Cow::Owned(to_text(value)),
        })
    }

    /// Returns the mark of the value of `expression`, which becomes text, and notes its marked numbers. A number that
    /// is written in the expression is no secret, though it may be marked: `${{ secret == "x" && 8080 || 80 }}`.
    fn becomes_text(&self, value: &Value, expression: &Expression) -> Result<bool> {
        let is_marked = self.look(value, expression.at)?;
        if is_marked {
            // Collected once: the value can have a million numbers, the expression ten thousand.
            let mut written = HashSet::new();
            expression.for_each_number(&mut |number| {
                written.insert(number.to_bits());
            });
            value.for_each_marked_number(&mut |number| {
                if !written.contains(&number.to_bits()) {
                    self.scope.note_number(number);
                }
            });
        }
        Ok(is_marked)
    }

    fn evaluate(&self, expression: &'s Expression) -> Result<Item<'s>> {
        let at = expression.at;
        let value = |value: Value| Ok(Item::Value(Cow::Owned(value)));
        match &expression.kind {
            ExpressionKind::Literal(literal) => Ok(Item::Value(Cow::Borrowed(literal))),
            ExpressionKind::Interpolation(parts) => value(Value::from(self.text(parts, at)?)),
            ExpressionKind::Name(name) => self.name(name, at),
            ExpressionKind::Array(items) => {
                let items: Result<Vec<Value>> = items.iter().map(|item| self.owned(item)).collect();
                value(Value::array(items?))
            }
            ExpressionKind::Object(pairs) => value(self.object(pairs)?),
            ExpressionKind::Unary(operators, operand) => value(self.unary(operators, operand, at)?),
            ExpressionKind::Binary(first, rest) => self.binary(first, rest),
            ExpressionKind::Access(root, path) => self.access(root, path),
        }
    }

    /// Returns the value of an operand. A function is an error.
    fn borrowed(&self, expression: &'s Expression) -> Result<Cow<'s, Value>> {
        let item = self.evaluate(expression)?;
        self.whole(item, expression.at)
    }

    /// Returns an owned value and charges the budget for it.
    fn owned(&self, expression: &'s Expression) -> Result<Value> {
        let value = self.borrowed(expression)?;
        self.budget.take_value(&value).map_err(|limit| self.exhausted(limit, expression.at))?;
        Ok(value.into_owned())
    }

    fn whole(&self, item: Item<'s>, at: Position) -> Result<Cow<'s, Value>> {
        let built = !matches!(item, Item::Value(_));
        let value = item.into_value().ok_or_else(|| {
            self.error(Class::Type, at, "a function is no value: call it with one argument")
        })?;
        if built {
            self.budget.take_value(&value).map_err(|limit| self.exhausted(limit, at))?;
        }
        Ok(value)
    }

    fn name(&self, name: &str, at: Position) -> Result<Item<'s>> {
        if let Some(item) = self.scope.lookup(name) {
            return Ok(item);
        }
        if let Some(function) = Function::named(name) {
            return Ok(Item::Function(function));
        }
        Err(self.not_found(at, String::new, name, || self.scope.names()))
    }

    fn object(&self, pairs: &'s [(Expression, Expression)]) -> Result<Value> {
        let mut members = IndexMap::with_capacity(pairs.len());
        let mut sensitive = false;
        for (key, member) in pairs {
            let Value { data: Data::String(text), sensitive: marked } = self.owned(key)? else {
                return Err(self.error(Class::Type, key.at, "an object key must be a string"));
            };
            // A marked key is visible only in the whole object, so the object is marked.
            sensitive |= marked;
            members.insert(text, self.owned(member)?);
        }
        Ok(Value { data: Data::Object(Arc::new(members)), sensitive })
    }

    /// True if an error of class not-found will be read.
    fn tells(&self) -> bool {
        self.forgiving.get() == 0
    }

    fn not_found(
        &self,
        at: Position,
        before: impl FnOnce() -> String,
        name: &str,
        known: impl FnOnce() -> Vec<String>,
    ) -> Diagnostic {
        if !self.tells() {
            return self.error(Class::NotFound, at, "");
        }
        let before = before();
        let message = format!("{before}\"{}\" was not found", text::quote(name));
        let error = self.error(Class::NotFound, at, message);
        error.with_help(meant(&before, name, &known()))
    }

    /// Returns the error for a member that is not there for the reason `why`.
    fn lacking(&self, at: Position, before: impl FnOnce() -> String, name: &str, why: String) -> Diagnostic {
        if !self.tells() {
            return self.error(Class::NotFound, at, "");
        }
        let message = format!("{}\"{}\" was not found", before(), text::quote(name));
        self.error(Class::NotFound, at, message).with_help(why)
    }

    fn look(&self, value: &Value, at: Position) -> Result<bool> {
        self.budget.look(value).map_err(|limit| self.exhausted(limit, at))
    }

    fn take(&self, bytes: usize, at: Position) -> Result<()> {
        self.budget.take(bytes).map_err(|limit| self.exhausted(limit, at))
    }

    fn exhausted(&self, limit: Exhausted, at: Position) -> Diagnostic {
        let message = match limit {
            Exhausted::Bytes => "the evaluated value is larger than 64 MiB",
            Exhausted::Work => "the expression compares or tests too many values",
        };
        self.error(Class::Limit, at, message)
    }

    fn error(&self, class: Class, at: Position, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error(class, self.file, at, message)
    }
}

/// Suggests a replacement for `name`, which is not among `known`. `path` begins with what has the names.
pub fn meant(path: &str, name: &str, known: &[String]) -> String {
    match name::suggest(name, known.iter().map(String::as_str)) {
        Some(similar) => format!("did you mean \"{similar}\"?"),
        None => list(path, Some(name), known),
    }
}

/// Returns `known: a, b, …`; of very many names only those similar to `name`.
fn list(path: &str, name: Option<&str>, known: &[String]) -> String {
    if known.is_empty() {
        // With a name, the path ends with it.
        let members = path.matches(['.', '[']).count().saturating_sub(usize::from(name.is_some()));
        return match (path.split(['.', '[', ':']).next().unwrap_or_default(), members) {
            ("inputs", 0) => "this file declares no inputs",
            ("steps", 0) => "no step of this list comes before",
            ("steps", 2) => "the step has no outputs",
            _ => "nothing is set there",
        }
        .to_owned();
    }
    if known.len() > LISTED_NAMES {
        let all = known.iter().map(String::as_str);
        let similar = name.map(|name| name::nearest(name, all, SIMILAR_NAMES)).unwrap_or_default();
        if similar.is_empty() {
            return format!("{} others are known", known.len());
        }
        return format!("known: {} and {} more", similar.join(", "), known.len() - similar.len());
    }
    let mut sorted: Vec<&str> = known.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    format!("known: {}", sorted.join(", "))
}

/// Returns an access path as written, cut where it is too long for a message.
pub fn render(root: &Expression, path: &[Access]) -> String {
    shown(&Path(root, path))
}

/// Returns the printed form of `written`, cut where it is too long for a message.
fn shown(written: &impl Display) -> String {
    let text = written.to_string();
    match text.char_indices().nth(SHOWN_TEXT) {
        Some((cut, _)) => format!("{}…", text.get(..cut).unwrap_or_default()),
        None => text,
    }
}
