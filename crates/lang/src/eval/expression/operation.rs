//! Operators: the operands they evaluate and the results they compute (language.md §9.3).

use std::borrow::Cow;

use super::super::operators::{arithmetic, compare, equal, is_truthy};
use super::super::scope::Item;
use super::{Evaluator, Result};
use crate::ast::{BinaryOperator, Expression, UnaryOperator};
use crate::diagnostic::{Class, Diagnostic, Position};
use crate::value::{Data, Value};

impl<'s> Evaluator<'s> {
    pub(super) fn unary(
        &self,
        operators: &[UnaryOperator],
        operand: &'s Expression,
        at: Position,
    ) -> Result<Value> {
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

    pub(super) fn binary(
        &self,
        first: &'s Expression,
        rest: &'s [(BinaryOperator, Expression)],
    ) -> Result<Item<'s>> {
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

    /// Evaluates an operand. If `next` is "||", an error of class not-found gives null; no other operator forgives one.
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

    /// Marks an item. Builds an object first, because only a built value can carry a mark.
    pub(super) fn mark(&self, item: Item<'s>, sensitive: bool, at: Position) -> Result<Item<'s>> {
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
        if matches!(operator, Op::Less | Op::LessEqual | Op::Greater | Op::GreaterEqual) {
            let sorted = self.budget.sort(&left).and_then(|()| self.budget.sort(right));
            sorted.map_err(|limit| self.exhausted(limit, at))?;
        }
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
}
