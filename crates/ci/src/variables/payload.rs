//! Variables of a payload (ci.md §3.1).

use indexmap::IndexMap;
use serde::{Deserialize, Deserializer};
use step_runner_model::{Variable, escape};

use super::reference::{Piece, pieces, sent};

/// A variable of a payload.
#[derive(Deserialize, Default, Clone)]
#[serde(default)]
pub(crate) struct PayloadVariable {
    #[serde(deserialize_with = "lenient")]
    pub(crate) key: String,
    #[serde(deserialize_with = "lenient")]
    pub(crate) value: String,
    #[serde(deserialize_with = "lenient")]
    pub(crate) file: bool,
    #[serde(deserialize_with = "lenient")]
    pub(crate) masked: bool,
    #[serde(deserialize_with = "lenient")]
    pub(crate) raw: bool,
}

/// Returns the default for `null`, too.
pub(crate) fn lenient<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    from: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}

/// Expands the variables of a payload once, against the values as they were sent (ci.md §3.1). References to files, to
/// names that are not in the list and to the variable itself stay for the daemon; other dollars are doubled.
pub(crate) fn of_payload(variables: &[PayloadVariable]) -> Vec<Variable> {
    let last: IndexMap<&str, &PayloadVariable> =
        variables.iter().map(|variable| (variable.key.as_str(), variable)).collect();
    let expanded = |variable: &PayloadVariable| {
        let expand = |piece: Piece| match piece {
            Piece::Reference { ref name, .. } => match last.get(name.as_str()) {
                Some(other) if !other.file && *name != variable.key => Piece::Literal(other.value.clone()),
                _ => piece,
            },
            Piece::Literal(_) => piece,
        };
        let pieces: Vec<Piece> = pieces(&variable.value).into_iter().map(expand).collect();
        variable.sent(sent(&pieces))
    };
    variables.iter().map(expanded).collect()
}

impl PayloadVariable {
    /// Returns the variable of a request with this value.
    pub(crate) fn sent(&self, value: String) -> Variable {
        let value = if self.raw { escape(&self.value) } else { value };
        Variable { key: self.key.clone(), value, file: self.file, masked: self.masked }
    }
}
