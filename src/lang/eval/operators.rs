//! Operators on values (language.md §9.3). They know nothing of marks and places.

use std::cmp::Ordering;

use crate::lang::ast::BinaryOperator;
use crate::lang::diagnostic::Class;
use crate::lang::value::{Data, Value};

/// Whether a value counts as true: all but `false`, null, `0`, `""`, `[]` and `{}`.
pub(super) fn is_truthy(data: &Data) -> bool {
    match data {
        Data::Null => false,
        Data::Bool(truth) => *truth,
        Data::Number(number) => *number != 0.0,
        Data::String(text) => !text.is_empty(),
        Data::Array(items) => !items.is_empty(),
        Data::Object(members) => !members.is_empty(),
    }
}

/// Deep equality; marks and order of keys do not matter, different types are unequal.
pub(super) fn equal(left: &Value, right: &Value) -> bool {
    compare(left, right) == Ordering::Equal
}

/// Order of all values: by type, then within the type.
pub(super) fn compare(left: &Value, right: &Value) -> Ordering {
    match (&left.data, &right.data) {
        (Data::Bool(a), Data::Bool(b)) => a.cmp(b),
        // Numbers are finite.
        (Data::Number(a), Data::Number(b)) => a.partial_cmp(b).unwrap_or(Ordering::Equal),
        (Data::String(a), Data::String(b)) => a.cmp(b),
        (Data::Array(a), Data::Array(b)) => a
            .iter()
            .zip(b)
            .map(|(x, y)| compare(x, y))
            .find(|order| order.is_ne())
            .unwrap_or_else(|| a.len().cmp(&b.len())),
        (Data::Object(a), Data::Object(b)) => {
            let by_size = a.len().cmp(&b.len());
            if by_size.is_ne() {
                return by_size;
            }
            let sorted = |members: &indexmap::IndexMap<String, Value>| {
                let mut keys: Vec<String> = members.keys().cloned().collect();
                keys.sort_unstable();
                keys
            };
            let (left_keys, right_keys) = (sorted(a), sorted(b));
            let by_keys = left_keys.cmp(&right_keys);
            if by_keys.is_ne() {
                return by_keys;
            }
            left_keys
                .iter()
                .filter_map(|key| Some(compare(a.get(key)?, b.get(key)?)))
                .find(|order| order.is_ne())
                .unwrap_or(Ordering::Equal)
        }
        (a, b) => rank(a).cmp(&rank(b)),
    }
}

const fn rank(data: &Data) -> u8 {
    match data {
        Data::Null => 0,
        Data::Bool(_) => 1,
        Data::Number(_) => 2,
        Data::String(_) => 3,
        Data::Array(_) => 4,
        Data::Object(_) => 5,
    }
}

/// Arithmetic on two numbers.
pub(super) fn arithmetic(
    operator: BinaryOperator,
    left: f64,
    right: f64,
) -> Result<f64, (Class, &'static str)> {
    use BinaryOperator as Op;
    let result = match operator {
        Op::Add => left + right,
        Op::Subtract => left - right,
        Op::Multiply => left * right,
        Op::Divide | Op::Remainder if right == 0.0 => return Err((Class::DivZero, "division by zero")),
        Op::Divide => left / right,
        Op::Remainder => left % right,
        _ => return Err((Class::Type, "not an arithmetic operator")),
    };
    if result.is_finite() {
        Ok(result)
    } else {
        Err((Class::Type, "the result is beyond the range of numbers"))
    }
}

/// How an operator is written.
pub(super) const fn symbol(operator: BinaryOperator) -> &'static str {
    match operator {
        BinaryOperator::Or => "||",
        BinaryOperator::And => "&&",
        BinaryOperator::Equal => "==",
        BinaryOperator::NotEqual => "!=",
        BinaryOperator::Less => "<",
        BinaryOperator::LessEqual => "<=",
        BinaryOperator::Greater => ">",
        BinaryOperator::GreaterEqual => ">=",
        BinaryOperator::Add => "+",
        BinaryOperator::Subtract => "-",
        BinaryOperator::Multiply => "*",
        BinaryOperator::Divide => "/",
        BinaryOperator::Remainder => "%",
    }
}
