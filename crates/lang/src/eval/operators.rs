//! Operators on values (language.md §9.3). They ignore marks and places.

use std::cmp::Ordering;

use indexmap::IndexMap;

use crate::ast::BinaryOperator;
use crate::diagnostic::Class;
use crate::value::{Data, Value};

/// True for every value except `false`, null, `0`, `""`, `[]` and `{}`.
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

/// Compares deeply. Marks and the order of keys do not matter; different types are unequal.
pub(super) fn equal(left: &Value, right: &Value) -> bool {
    match (&left.data, &right.data) {
        (Data::Array(a), Data::Array(b)) => {
            a.len() == b.len() && a.iter().zip(&**b).all(|(x, y)| equal(x, y))
        }
        (Data::Object(a), Data::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, x)| b.get(key).is_some_and(|y| equal(x, y)))
        }
        _ => compare(left, right) == Ordering::Equal,
    }
}

/// Orders all values: by type, then within the type.
pub(super) fn compare(left: &Value, right: &Value) -> Ordering {
    match (&left.data, &right.data) {
        (Data::Bool(a), Data::Bool(b)) => a.cmp(b),
        // Numbers are finite.
        (Data::Number(a), Data::Number(b)) => a.partial_cmp(b).unwrap_or(Ordering::Equal),
        (Data::String(a), Data::String(b)) => a.cmp(b),
        (Data::Array(a), Data::Array(b)) => a
            .iter()
            .zip(&**b)
            .map(|(x, y)| compare(x, y))
            .find(|order| order.is_ne())
            .unwrap_or_else(|| a.len().cmp(&b.len())),
        (Data::Object(a), Data::Object(b)) => {
            let by_size = a.len().cmp(&b.len());
            if by_size.is_ne() {
                return by_size;
            }
            let (left_members, right_members) = (sorted(a), sorted(b));
            let both = || left_members.iter().zip(&right_members);
            both()
                .map(|((x, _), (y, _))| x.cmp(y))
                .chain(both().map(|((_, x), (_, y))| compare(x, y)))
                .find(|order| order.is_ne())
                .unwrap_or(Ordering::Equal)
        }
        (a, b) => rank(a).cmp(&rank(b)),
    }
}

fn sorted(members: &IndexMap<String, Value>) -> Vec<(&String, &Value)> {
    let mut sorted: Vec<_> = members.iter().collect();
    sorted.sort_unstable_by_key(|(key, _)| *key);
    sorted
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::sync::Arc;

    use super::*;
    use crate::convert::json::{MemoryBudget, parse};
    use crate::convert::to_json;
    use crate::value::EvaluatedText;

    const ARITHMETIC: [BinaryOperator; 5] = [
        BinaryOperator::Add,
        BinaryOperator::Subtract,
        BinaryOperator::Multiply,
        BinaryOperator::Divide,
        BinaryOperator::Remainder,
    ];

    /// Values of every type, many of them equal or similar.
    fn value_strategy() -> impl Strategy<Value = Value> {
        let number = prop_oneof![Just(-0.0), Just(0.0), -2.0..2.0, any::<i8>().prop_map(f64::from)];
        let leaf = prop_oneof![
            Just(Value::plain(Data::Null)),
            any::<bool>().prop_map(|truth| Value::plain(Data::Bool(truth))),
            number.prop_map(|number| Value::plain(Data::Number(number))),
            "[ab\u{e9}]{0,2}".prop_map(Value::text),
            "[ab]".prop_map(|text| Value { data: Data::String(text), sensitive: true }),
        ];
        leaf.prop_recursive(3, 20, 3, |inner| {
            let member = ("[abc]", inner.clone());
            prop_oneof![
                prop::collection::vec(inner, 0..3).prop_map(Value::array),
                prop::collection::vec(member, 0..3)
                    .prop_map(|members| Value::object(members.into_iter().collect())),
            ]
        })
    }

    /// Returns the value without marks and with the members of objects in another order.
    fn rearranged(value: &Value) -> Value {
        Value::plain(match &value.data {
            Data::Array(items) => Data::Array(items.iter().map(rearranged).collect()),
            Data::Object(members) => Data::Object(Arc::new(
                members.iter().rev().map(|(key, member)| (key.clone(), rearranged(member))).collect(),
            )),
            scalar => scalar.clone(),
        })
    }

    proptest! {
        #[test]
        fn values_have_one_total_order(a in value_strategy(), b in value_strategy(), c in value_strategy()) {
            prop_assert_eq!(compare(&a, &a), Ordering::Equal);
            prop_assert_eq!(compare(&a, &b), compare(&b, &a).reverse());
            let mut sorted = [&a, &b, &c];
            sorted.sort_by(|x, y| compare(x, y));
            let [low, middle, high] = sorted;
            prop_assert!(compare(low, middle).is_le() && compare(middle, high).is_le() && compare(low, high).is_le());
            prop_assert!(rank(&low.data) <= rank(&middle.data) && rank(&middle.data) <= rank(&high.data));
        }

        #[test]
        fn equality_is_deep_and_sees_neither_marks_nor_the_order_of_keys(a in value_strategy(), b in value_strategy()) {
            prop_assert!(equal(&a, &rearranged(&a)));
            prop_assert_eq!(equal(&a, &b), rearranged(&a) == rearranged(&b));
            prop_assert_eq!(equal(&a, &b), compare(&a, &b).is_eq());
            if equal(&a, &b) {
                prop_assert_eq!(is_truthy(&a.data), is_truthy(&b.data));
                prop_assert_eq!(a.value_type(), b.value_type());
            }
        }

        #[test]
        fn a_value_that_goes_through_json_or_text_comes_back_the_same(a in value_strategy()) {
            let back = |json: &str| parse(json, &MemoryBudget::new(1 << 20)).unwrap();
            prop_assert!(equal(&back(&to_json(&a).to_string()), &a));
            let text = crate::convert::to_text(&Value::array([a.clone()]));
            prop_assert!(equal(&back(&text), &Value::array([a.clone()])));
            let stored = postcard::to_allocvec(&a).unwrap();
            prop_assert!(postcard::from_bytes::<Value>(&stored).unwrap() == a, "marks are kept in records");
            let text = EvaluatedText { text, sensitive: a.sensitive };
            prop_assert_eq!(Value::from(text).sensitive, a.sensitive);
        }

        #[test]
        fn arithmetic_gives_finite_numbers_or_errors(a in any::<f64>(), b in any::<f64>()) {
            prop_assume!(a.is_finite() && b.is_finite());
            for operator in ARITHMETIC {
                match arithmetic(operator, a, b) {
                    Ok(result) => prop_assert!(result.is_finite()),
                    Err((Class::DivZero, _)) => prop_assert!(b == 0.0),
                    Err((class, _)) => prop_assert_eq!(class, Class::Type),
                }
            }
        }
    }
}
