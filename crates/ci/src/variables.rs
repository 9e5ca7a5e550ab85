//! Variables of a job (ci.md §3): their order, references among them through all levels, and the values that a request
//! gets.

pub mod dotenv;
pub(crate) mod order;
mod payload;
mod predefined;
mod reference;

use indexmap::IndexMap;
use step_runner_model::Variable;

pub(crate) use payload::{PayloadVariable, lenient, of_payload};
pub use predefined::{
    CommitFacts, Facts, JobFacts, RepositoryFacts, environment_slug, environment_tier, predefined, slug,
};
use reference::{Piece, pieces, sent};

/// Maximum number of variables, as in a request (variables.md §6).
const COUNT_LIMIT: usize = 4_096;

/// Maximum number of bytes of all resolved values, as in a request (variables.md §6).
const VALUES_LIMIT: usize = 16 * 1024 * 1024;

/// A variable before references are resolved.
#[derive(Clone, PartialEq, Eq)]
pub struct Defined {
    /// Its value, the content of the file for a file variable.
    pub value: String,
    /// True if dollars in the value mean themselves (`expand: false`).
    pub raw: bool,
    /// True if the value goes to a file, and the variable holds its path.
    pub file: bool,
    /// True if the value is a secret.
    pub masked: bool,
}

impl Defined {
    /// A variable whose references are resolved.
    pub fn expanded(value: impl Into<String>) -> Self {
        Self { value: value.into(), raw: false, file: false, masked: false }
    }

    /// A variable whose dollars mean themselves.
    pub fn raw(value: impl Into<String>) -> Self {
        Self { raw: true, ..Self::expanded(value) }
    }
}

impl std::fmt::Debug for Defined {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Defined")
            .field("value", &format_args!("[{} bytes]", self.value.len()))
            .field("raw", &self.raw)
            .field("file", &self.file)
            .field("masked", &self.masked)
            .finish()
    }
}

/// Variables by name. Of equal names the later wins and keeps the first one's place.
pub type Level = IndexMap<String, Defined>;

/// More variables, or longer values, than a request can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooLarge(pub String);

/// Variables of all levels, with resolved references.
#[derive(Clone, Default)]
pub struct Resolved {
    values: Values,
}

impl Resolved {
    /// Resolves the references among the variables of `levels`. A later level wins.
    pub fn new<'l>(levels: impl IntoIterator<Item = &'l Level>) -> Result<Self, TooLarge> {
        let mut all = Level::new();
        for level in levels {
            for (name, defined) in level {
                all.insert(name.clone(), defined.clone());
            }
        }
        if all.len() > COUNT_LIMIT {
            return Err(TooLarge(format!("the job has more than {COUNT_LIMIT} variables")));
        }
        let mut values: Values = all
            .into_iter()
            .map(|(name, defined)| {
                let pieces = defined.pieces();
                (name, (defined, pieces))
            })
            .collect();
        let order = order::of(&edges(&values));
        let mut left = VALUES_LIMIT;
        for variable in order.post_order {
            let made = made(variable, &values, &order.component, &mut left)?;
            if let Some((_, (_, pieces))) = values.get_index_mut(variable) {
                *pieces = made;
            }
        }
        Ok(Self { values })
    }

    /// Returns the value of a variable as a condition sees it: references that stay are as they were written.
    pub fn value(&self, name: &str) -> Option<String> {
        let (defined, pieces) = self.values.get(name)?;
        (!defined.file).then(|| pieces.iter().map(Piece::written).collect())
    }

    /// True if a variable of this name is given, a file variable too.
    pub fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// Fills in the variables that are known. Other references stay as they are written.
    pub(crate) fn fill_in_known(&self, text: &str) -> String {
        let known = |piece: &Piece| match piece {
            Piece::Reference { name, .. } => self.value(name),
            Piece::Literal(_) => None,
        };
        pieces(text).iter().map(|piece| known(piece).unwrap_or_else(|| piece.written().to_owned())).collect()
    }

    /// Fills the variables into a text of a keyword, such as `image`. Names that no variable has become nothing.
    pub fn fill_in(&self, text: &str) -> String {
        fill_in(text, &|name| self.value(name))
    }

    /// Returns the variables of a request. Dollars that must survive the daemon's expansion are doubled (variables.md §1).
    pub fn to_request(&self) -> Vec<Variable> {
        self.values
            .iter()
            .map(|(name, (defined, pieces))| Variable {
                key: name.clone(),
                value: sent(pieces),
                file: defined.file,
                masked: defined.masked,
            })
            .collect()
    }
}

/// Fills variables into a text of a keyword. Names that no variable has become nothing.
pub(crate) fn fill_in(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> String {
    let fill = |piece: Piece| match piece {
        Piece::Literal(text) => text,
        Piece::Reference { name, .. } => lookup(&name).unwrap_or_default(),
    };
    pieces(text).into_iter().map(fill).collect()
}

impl Defined {
    fn pieces(&self) -> Vec<Piece> {
        if self.raw { vec![Piece::Literal(self.value.clone())] } else { pieces(&self.value) }
    }
}

/// Values by name, each with its pieces.
type Values = IndexMap<String, (Defined, Vec<Piece>)>;

/// Returns for each variable the numbers of those that it refers to. The daemon resolves references to files.
fn edges(values: &Values) -> Vec<Vec<usize>> {
    values
        .values()
        .map(|(_, pieces)| pieces.iter().filter_map(|piece| referenced(values, piece)).collect())
        .collect()
}

/// Returns the number of the variable that a piece refers to.
fn referenced(values: &Values, piece: &Piece) -> Option<usize> {
    let Piece::Reference { name, .. } = piece else { return None };
    let (number, _, (defined, _)) = values.get_full(name.as_str())?;
    (!defined.file).then_some(number)
}

/// Returns the pieces of a variable after all that it refers to is made. A reference within a cycle stays as written.
fn made(
    variable: usize,
    values: &Values,
    component: &[usize],
    left: &mut usize,
) -> Result<Vec<Piece>, TooLarge> {
    let mut made = Vec::new();
    let pieces = values.get_index(variable).map(|(_, (_, pieces))| pieces.as_slice()).unwrap_or_default();
    for piece in pieces {
        let other = referenced(values, piece)
            .filter(|other| component.get(*other) != component.get(variable))
            .and_then(|other| values.get_index(other));
        let inserted = other.map_or(std::slice::from_ref(piece), |(_, (_, pieces))| pieces);
        let size: usize = inserted.iter().map(Piece::size).sum();
        *left = left.checked_sub(size).ok_or_else(|| {
            let limit = VALUES_LIMIT / (1024 * 1024);
            TooLarge(format!("the values of the variables have more than {limit} MiB after expansion"))
        })?;
        made.extend_from_slice(inserted);
    }
    Ok(made)
}

impl std::fmt::Debug for Resolved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.values.keys()).finish()
    }
}

#[cfg(test)]
mod tests;
