//! Access to members and elements, and calls of functions (language.md §9.4, §9.5).

use std::borrow::Cow;

use super::super::functions::Function;
use super::super::scope::{Item, NoMember};
use super::{Evaluator, Result, list, shown};
use crate::ast::{Access, Expression, ExpressionKind};
use crate::diagnostic::{Class, Diagnostic, Position};
use crate::print::Path;
use crate::value::{Data, Value};

impl<'s> Evaluator<'s> {
    pub(super) fn access(&self, root: &'s Expression, path: &'s [Access]) -> Result<Item<'s>> {
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
            // A borrowed value costs nothing. An owned one is a copy: it is marked, or comes from the environment.
            if let Item::Value(Cow::Owned(value)) = &item {
                self.look(value, root.at)?;
            }
        }
        Ok(item)
    }

    /// Looks up a name in function position. The error for an unknown name lists the functions.
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
            NoMember::Because(why) => self.lacking(at, || format!("{}.{key}: ", before()), key, why),
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
            // A computed key may be a secret, so the error shows only the names that exist.
            (object, Data::String(key)) => object.member(key, self.tells()).map_err(|why| match why {
                NoMember::Missing(known) => self.missing_key(index, key, before, known),
                NoMember::Because(why) if matches!(index.kind, ExpressionKind::Literal(_)) => {
                    self.lacking(index.at, || format!("{}[{}]: ", before(), shown(index)), key, why)
                }
                NoMember::Because(why) => self.error(Class::NotFound, index.at, "").with_help(why),
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
                .with_help(list(&before(), None, &known))
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
            Cow::Owned(Value { data: Data::Array(items), .. }) => {
                items.get(position).cloned().map(Cow::Owned).ok_or_else(|| out_of_range(items.len()))?
            }
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
        let sensitive = match function {
            Function::Str => self.becomes_text(&value, argument)?,
            Function::Num | Function::Bool => self.look(&value, argument.at)?,
        };
        Ok(Item::Value(Cow::Owned(Value { data, sensitive })))
    }
}
