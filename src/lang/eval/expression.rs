//! Evaluation of expressions (language.md §9.3–§9.6).

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt::Display;
use std::sync::Arc;

use indexmap::IndexMap;

use super::budget::{Budget, Exhausted, VALUE_DEPTH, fits_depth};
use super::functions::Function;
use super::operators::{arithmetic, compare, equal, is_truthy};
use super::scope::{Item, NoMember, Scope};
use crate::lang::ast::print::Path;
use crate::lang::ast::{Access, BinaryOperator, Expression, ExpressionKind, Part, UnaryOperator};
use crate::lang::convert::to_text;
use crate::lang::diagnostic::{Class, Diagnostic, Position};
use crate::lang::name;
use crate::lang::value::{Data, Text, Value};

/// Most names an error lists.
const LISTED_NAMES: usize = 20;
/// Most characters of an expression that an error shows.
const SHOWN_TEXT: usize = 200;

/// Evaluates the expressions of one document.
pub(super) struct Evaluator<'s> {
    scope: &'s dyn Scope,
    file: &'s Arc<str>,
    budget: &'s Budget,
    /// Left sides of `||` under way: what they do not find is forgiven, so nobody reads a help that costs a search.
    forgiving: Cell<usize>,
}

type Result<T> = std::result::Result<T, Diagnostic>;

impl<'s> Evaluator<'s> {
    pub(super) const fn new(scope: &'s dyn Scope, file: &'s Arc<str>, budget: &'s Budget) -> Self {
        Self { scope, file, budget, forgiving: Cell::new(0) }
    }

    /// The value of an expression, with the bounds of language.md §6.
    pub(super) fn value(&self, expression: &'s Expression) -> Result<Value> {
        let value = self.owned(expression)?;
        if fits_depth(&value, VALUE_DEPTH) {
            Ok(value)
        } else {
            Err(self.error(Class::Limit, expression.at, format!("value nested deeper than {VALUE_DEPTH}")))
        }
    }

    /// The text of all parts, joined.
    pub(super) fn text(&self, parts: &'s [Part], at: Position) -> Result<Text> {
        let mut joined = Text::default();
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
                    joined.sensitive |= self.look(&value, expression.at)?;
                }
            }
        }
        Ok(joined)
    }

    /// Text of a value, paid for before it is made.
    fn text_of<'v>(&self, value: &'v Value, at: Position) -> Result<Cow<'v, str>> {
        self.budget.take_value(value).map_err(|limit| self.exhausted(limit, at))?;
        Ok(match &value.data {
            Data::String(text) => Cow::Borrowed(text),
            _ => Cow::Owned(to_text(value)),
        })
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
                value(Value::plain(Data::Array(items?)))
            }
            ExpressionKind::Object(pairs) => value(self.object(pairs)?),
            ExpressionKind::Unary(operators, operand) => value(self.unary(operators, operand, at)?),
            ExpressionKind::Binary(first, rest) => self.binary(first, rest),
            ExpressionKind::Access(root, path) => self.access(root, path),
        }
    }

    /// The value of an operand; a function is none.
    fn borrowed(&self, expression: &'s Expression) -> Result<Cow<'s, Value>> {
        let item = self.evaluate(expression)?;
        self.whole(item, expression.at)
    }

    /// A whole value of its own, paid for.
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
            // A marked key can be seen only in the whole object.
            sensitive |= marked;
            members.insert(text, self.owned(member)?);
        }
        Ok(Value { data: Data::Object(members), sensitive })
    }

    fn unary(&self, operators: &[UnaryOperator], operand: &'s Expression, at: Position) -> Result<Value> {
        let value = match self.evaluate(operand)? {
            Item::Function(_) if operators.last() == Some(&UnaryOperator::Not) => {
                Cow::Owned(Value::plain(Data::Bool(true)))
            }
            item => self.whole(item, operand.at)?,
        };
        let sensitive = self.look(&value, operand.at)?;
        let mut result: Option<Data> = None;
        for operator in operators.iter().rev() {
            let data = result.as_ref().unwrap_or(&value.data);
            result = Some(match (operator, data) {
                (UnaryOperator::Not, data) => Data::Bool(!is_truthy(data)),
                (UnaryOperator::Plus, Data::Number(number)) => Data::Number(*number),
                (UnaryOperator::Minus, Data::Number(number)) => Data::Number(-number),
                (UnaryOperator::Plus | UnaryOperator::Minus, _) => {
                    let sign = operator.symbol();
                    let got = if result.is_some() { "boolean" } else { value.type_name() };
                    return Err(self.error(Class::Type, at, format!("\"{sign}\" needs a number, got {got}")));
                }
            });
        }
        let data = result.unwrap_or_else(|| value.data.clone());
        Ok(Value { data, sensitive })
    }

    fn binary(&self, first: &'s Expression, rest: &'s [(BinaryOperator, Expression)]) -> Result<Item<'s>> {
        let mut left = self.left_side(first, rest.first(), false)?;
        for (index, (operator, operand)) in rest.iter().enumerate() {
            left = match operator {
                BinaryOperator::Or | BinaryOperator::And => {
                    let truth = left.truth(self.budget);
                    let (truth, sensitive) = truth.map_err(|limit| self.exhausted(limit, operand.at))?;
                    if truth == (*operator == BinaryOperator::Or) {
                        left.marked(sensitive)
                    } else {
                        self.left_side(operand, rest.get(index + 1), sensitive)?
                    }
                }
                _ => {
                    let left = self.whole(left, first.at)?;
                    let right = self.borrowed(operand)?;
                    Item::Value(Cow::Owned(self.combine(*operator, left, &right, operand.at)?))
                }
            };
        }
        Ok(left)
    }

    /// An operand with the operator behind it: "||", and nothing else, forgives a left side that is not there.
    fn left_side(
        &self,
        operand: &'s Expression,
        next: Option<&(BinaryOperator, Expression)>,
        sensitive: bool,
    ) -> Result<Item<'s>> {
        if !matches!(next, Some((BinaryOperator::Or, _))) {
            let item = self.evaluate(operand)?;
            return self.mark(item, sensitive, operand.at);
        }
        self.forgiving.set(self.forgiving.get() + 1);
        let result = self.evaluate(operand);
        self.forgiving.set(self.forgiving.get() - 1);
        match result {
            Err(error) if error.class == Class::NotFound => {
                Ok(Item::Value(Cow::Owned(Value::plain(Data::Null))).marked(sensitive))
            }
            result => self.mark(result?, sensitive, operand.at),
        }
    }

    /// Marks an item; objects are built for it.
    fn mark(&self, item: Item<'s>, sensitive: bool, at: Position) -> Result<Item<'s>> {
        if sensitive && !matches!(item, Item::Function(_)) {
            Ok(Item::Value(self.whole(item, at)?).marked(true))
        } else {
            Ok(item)
        }
    }

    fn combine(
        &self,
        operator: BinaryOperator,
        left: Cow<'_, Value>,
        right: &Value,
        at: Position,
    ) -> Result<Value> {
        use BinaryOperator as Op;
        let sensitive = self.look(&left, at)? | self.look(right, at)?;
        let is_borrowed = matches!(left, Cow::Borrowed(_));
        let data = match operator {
            Op::Equal => Data::Bool(equal(&left, right)),
            Op::NotEqual => Data::Bool(!equal(&left, right)),
            Op::Less => Data::Bool(compare(&left, right).is_lt()),
            Op::LessEqual => Data::Bool(compare(&left, right).is_le()),
            Op::Greater => Data::Bool(compare(&left, right).is_gt()),
            Op::GreaterEqual => Data::Bool(compare(&left, right).is_ge()),
            _ => match (left.into_owned().data, &right.data) {
                (Data::Number(a), Data::Number(b)) => Data::Number(
                    arithmetic(operator, a, *b).map_err(|(class, text)| self.error(class, at, text))?,
                ),
                (Data::String(mut a), Data::String(b)) if operator == Op::Add => {
                    self.take(b.len() + if is_borrowed { a.len() } else { 0 }, at)?;
                    a.push_str(b);
                    Data::String(a)
                }
                (a, _) => return Err(self.operands(operator, &Value::plain(a), right, at)),
            },
        };
        Ok(Value { data, sensitive })
    }

    fn operands(&self, operator: BinaryOperator, left: &Value, right: &Value, at: Position) -> Diagnostic {
        let error = self.error(
            Class::Type,
            at,
            format!(
                "\"{}\" cannot combine {} and {}",
                operator.symbol(),
                left.type_name(),
                right.type_name()
            ),
        );
        if operator == BinaryOperator::Add { error.with_help("str() makes text of any value") } else { error }
    }

    fn access(&self, root: &'s Expression, path: &'s [Access]) -> Result<Item<'s>> {
        let mut item = match (&root.kind, path.first()) {
            (ExpressionKind::Name(name), Some(Access::Call(..))) => self.callee(name, root.at)?,
            _ => self.evaluate(root)?,
        };
        for (index, access) in path.iter().enumerate() {
            let before = || shown(&Path(root, path.get(..index).unwrap_or_default()));
            item = match access {
                Access::Member(key, at) => self.member(item, key, *at, before)?,
                Access::Index(index, at) => self.index(item, index, *at, before)?,
                Access::Call(arguments, at) => self.call(&item, arguments, *at)?,
            };
        }
        Ok(item)
    }

    /// A name in the place of a function; one that does not exist is told the functions there are.
    fn callee(&self, name: &str, at: Position) -> Result<Item<'s>> {
        if self.scope.lookup(name).is_none() && Function::named(name).is_none() {
            let known = || Function::NAMES.map(str::to_owned).to_vec();
            return Err(self.not_found(at, || "function ".to_owned(), name, known));
        }
        self.name(name, at)
    }

    fn member(
        &self,
        item: Item<'s>,
        key: &str,
        at: Position,
        before: impl Fn() -> String,
    ) -> Result<Item<'s>> {
        item.member(key, self.tells()).map_err(|why| match why {
            NoMember::Missing(known) => self.not_found(at, || format!("{}.{key}: ", before()), key, || known),
            NoMember::NotAnObject(what) => self.error(
                Class::Type,
                at,
                format!("{} is no object but {what}: it has no members", before()),
            ),
        })
    }

    fn index(
        &self,
        item: Item<'s>,
        index: &'s Expression,
        at: Position,
        before: impl Fn() -> String,
    ) -> Result<Item<'s>> {
        let key = self.borrowed(index)?;
        let sensitive = self.look(&key, index.at)?;
        let found = match (item, &key.data) {
            (Item::Value(array), Data::Number(number)) if matches!(array.data, Data::Array(_)) => {
                self.element(array, *number, index.at, before)?
            }
            (Item::Value(array), _) if matches!(array.data, Data::Array(_)) => {
                let got = key.type_name();
                return Err(self.error(
                    Class::Type,
                    index.at,
                    format!("an array is indexed by a number, got {got}"),
                ));
            }
            (Item::Value(value), _) if !matches!(value.data, Data::Object(_)) => {
                let what = value.type_name();
                return Err(self.error(
                    Class::Type,
                    at,
                    format!("{} is {what}: it cannot be indexed", before()),
                ));
            }
            (Item::Function(_), _) => {
                return Err(self.error(Class::Type, at, "a function cannot be indexed"));
            }
            // A computed key is data and may be a secret: only the names that exist are shown.
            (object, Data::String(key)) => object.member(key, self.tells()).map_err(|why| match why {
                NoMember::Missing(known) => self.missing_key(index, key, before, known),
                NoMember::NotAnObject(_) => self.error(Class::Type, at, "not an object"),
            })?,
            (_, _) => {
                let got = key.type_name();
                return Err(self.error(
                    Class::Type,
                    index.at,
                    format!("an object is indexed by a string, got {got}"),
                ));
            }
        };
        self.mark(found, sensitive, at)
    }

    fn missing_key(
        &self,
        index: &Expression,
        key: &str,
        before: impl Fn() -> String,
        known: Vec<String>,
    ) -> Diagnostic {
        let place = || format!("{}[{}]: ", before(), shown(index));
        if matches!(index.kind, ExpressionKind::Literal(_)) {
            self.not_found(index.at, place, key, || known)
        } else if self.tells() {
            self.error(Class::NotFound, index.at, format!("{}the key was not found", place()))
                .with_help(list(&known))
        } else {
            self.error(Class::NotFound, index.at, "")
        }
    }

    fn element(
        &self,
        array: Cow<'s, Value>,
        number: f64,
        at: Position,
        before: impl Fn() -> String,
    ) -> Result<Item<'s>> {
        let sensitive = array.sensitive;
        let out_of_range = |length: usize| {
            if !self.tells() {
                return self.error(Class::NotFound, at, "");
            }
            let message =
                format!("{}[…]: the index is out of range, the array has {length} elements", before());
            self.error(Class::NotFound, at, message)
        };
        if number.fract() != 0.0 {
            return Err(self.error(Class::Type, at, "an index must be a whole number"));
        }
        let position = if number >= 0.0 { number as usize } else { usize::MAX };
        let element = match array {
            Cow::Borrowed(Value { data: Data::Array(items), .. }) => {
                items.get(position).map(Cow::Borrowed).ok_or_else(|| out_of_range(items.len()))?
            }
            Cow::Owned(Value { data: Data::Array(mut items), .. }) if position < items.len() => {
                Cow::Owned(items.swap_remove(position))
            }
            Cow::Owned(Value { data: Data::Array(items), .. }) => return Err(out_of_range(items.len())),
            Cow::Borrowed(_) | Cow::Owned(_) => return Err(out_of_range(0)),
        };
        Ok(Item::Value(element).marked(sensitive))
    }

    fn call(&self, item: &Item<'s>, arguments: &'s [Expression], at: Position) -> Result<Item<'s>> {
        let Item::Function(function) = item else {
            return Err(self.error(Class::Type, at, "only functions can be called"));
        };
        let [argument] = arguments else {
            let message =
                format!("{}() takes exactly one argument, got {}", function.name(), arguments.len());
            return Err(self.error(Class::Type, at, message));
        };
        let value = self.borrowed(argument)?;
        self.budget.take_value(&value).map_err(|limit| self.exhausted(limit, at))?;
        let data = function.call(&value).map_err(|text| self.error(Class::Type, argument.at, text))?;
        Ok(Item::Value(Cow::Owned(Value { data, sensitive: self.look(&value, argument.at)? })))
    }

    /// Whether an error of the class not-found will be read by anybody.
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
        let message = format!("{}\"{}\" was not found", before(), name::shown(name));
        let error = self.error(Class::NotFound, at, message);
        error.with_help(meant(name, &known()))
    }

    /// Pays for one walk through a value; tells whether it or anything inside is marked.
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

/// What may have been meant by `name`, which is not among `known`.
pub fn meant(name: &str, known: &[String]) -> String {
    match name::suggest(name, known.iter().map(String::as_str)) {
        Some(similar) => format!("did you mean \"{similar}\"?"),
        None => list(known),
    }
}

/// `known: a, b, …`
fn list(known: &[String]) -> String {
    if known.is_empty() {
        return "there are none".to_owned();
    }
    let mut sorted: Vec<&str> = known.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    let rest = sorted.len().saturating_sub(LISTED_NAMES);
    sorted.truncate(LISTED_NAMES);
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    format!("known: {}{more}", sorted.join(", "))
}

/// An access path as written, cut where it is too long for a message.
pub fn render(root: &Expression, path: &[Access]) -> String {
    shown(&Path(root, path))
}

/// What is written, cut where it is too long for a message.
fn shown(written: &impl Display) -> String {
    let text = written.to_string();
    match text.char_indices().nth(SHOWN_TEXT) {
        Some((cut, _)) => format!("{}…", text.get(..cut).unwrap_or_default()),
        None => text,
    }
}
