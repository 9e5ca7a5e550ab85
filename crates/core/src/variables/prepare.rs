//! Prepares a request at Run, in this order: checks, directories, expansion, phrases (variables.md §2).

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use indexmap::{IndexMap, IndexSet};
use step_runner_model::Variable;

use super::expand::expand;
use super::{
    Base, FileVariable, LogLevel, MAX_ENTRIES, MAX_ENTRY, MAX_EXPANDED, MAX_FILE_KEY, MAX_TOTAL, Prepared,
    RequestList, Service, VariableError,
};
use crate::request::{JobPart, RunEnvironment};

/// Prepares a request. `vars_dir` is the job's own folder for file variables (variables.md §3).
pub fn prepare(
    request: &RunEnvironment,
    service: Service,
    base: &Base,
    vars_dir: &str,
) -> Result<Prepared, VariableError> {
    let no_job = JobPart::default();
    let job = request.job.as_ref().unwrap_or(&no_job);
    check_shape(request, job, service)?;

    let root = [&job.build_dir, &request.work_dir].into_iter().find(|dir| !dir.is_empty());
    let directory = match root {
        Some(root) if !job.private_file_variables => format!("{}.tmp", trim_slashes(root)),
        _ => vars_dir.to_owned(),
    };
    let definitions = Definitions::new(&job.variables, &directory, base, service);
    let values = definitions.values()?;

    let mut prepared = Prepared { work_dir: root.cloned(), ..Prepared::default() };
    for (index, variable) in job.variables.iter().enumerate() {
        if !definitions.is_last(index) {
            continue;
        }
        let value = if variable.file {
            let file = definitions.file(index, &values);
            let path = file.path.clone();
            prepared.files.push(file);
            path
        } else {
            if variable.masked {
                prepared.sensitive.push(variable.key.clone());
            }
            values.get(&index).map_or(variable.value.as_str(), Cow::as_ref).to_owned()
        };
        if service == Service::V1 {
            check_entry(RequestList::Variables, index, &variable.key, &value)?;
        }
        prepared.vars.insert(variable.key.clone(), value);
    }
    prepared.env = match service {
        Service::V1 if request.job.is_some() => prepared.vars.clone(),
        Service::V1 | Service::Proto => request.env.iter().cloned().collect(),
    };
    prepared.log_level = log_level(&definitions, &prepared.vars, base)?;
    prepared.phrases = phrases(request, job, &values);
    let prefixes = job.token_prefixes.iter().chain(&request.masking.token_prefixes);
    prepared.token_prefixes = prefixes.cloned().collect::<IndexSet<_>>().into_iter().collect();
    Ok(prepared)
}

/// Checks everything that does not depend on expansion (variables.md §6).
fn check_shape(request: &RunEnvironment, job: &JobPart, service: Service) -> Result<(), VariableError> {
    if service == Service::V1 && request.job.is_some() && !request.env.is_empty() {
        return Err(VariableError::JobAndEnv);
    }
    let count = request.env.len() + job.variables.len();
    if count > MAX_ENTRIES {
        return Err(VariableError::TooMany(count));
    }
    let variables = job.variables.iter().map(|variable| variable.key.len() + variable.value.len());
    let total = variables.chain(request.env.iter().map(|(key, value)| key.len() + value.len())).sum();
    if total > MAX_TOTAL {
        return Err(VariableError::TooMuch(total));
    }
    check_path("build_dir", &job.build_dir)?;
    check_path("work_dir", &request.work_dir)?;
    for (index, (key, value)) in request.env.iter().enumerate() {
        let list = RequestList::Env;
        check_key(list, index, key)?;
        if value.contains('\0') {
            return Err(VariableError::NulInValue { list, index });
        }
        check_entry(list, index, key, value)?;
    }
    for (index, variable) in job.variables.iter().enumerate() {
        let list = RequestList::Variables;
        check_key(list, index, &variable.key)?;
        if variable.file {
            check_file_key(index, &variable.key)?;
        } else if variable.value.contains('\0') {
            return Err(VariableError::NulInValue { list, index });
        }
    }
    Ok(())
}

fn check_path(field: &'static str, path: &str) -> Result<(), VariableError> {
    let problem = if path.contains('\0') {
        "a path with a NUL byte"
    } else if !path.is_empty() && !path.starts_with('/') {
        "a relative path"
    } else {
        return Ok(());
    };
    Err(VariableError::Path { field, problem })
}

fn check_key(list: RequestList, index: usize, key: &str) -> Result<(), VariableError> {
    let problem = if key.is_empty() {
        "empty"
    } else if key.contains('=') {
        "a text with `=`"
    } else if key.contains('\0') {
        "a text with a NUL byte"
    } else {
        return Ok(());
    };
    Err(VariableError::Key { list, index, problem })
}

fn check_file_key(index: usize, key: &str) -> Result<(), VariableError> {
    let problem = if key.contains(['/', '\\']) {
        "a text with a path separator"
    } else if matches!(key, "." | "..") {
        "the name of a directory"
    } else if key.len() > MAX_FILE_KEY {
        "too long"
    } else {
        return Ok(());
    };
    Err(VariableError::FileKey { index, problem })
}

fn check_entry(list: RequestList, index: usize, key: &str, value: &str) -> Result<(), VariableError> {
    let bytes = key.len() + 1 + value.len();
    if bytes > MAX_ENTRY { Err(VariableError::EntryTooLarge { list, index, bytes }) } else { Ok(()) }
}

/// Removes trailing slashes. `/` itself stays, so its files go to `/.tmp`.
fn trim_slashes(root: &str) -> Cow<'_, str> {
    match root.trim_end_matches('/') {
        "" => "/".into(),
        trimmed => trimmed.into(),
    }
}

/// The job's variables, indexed by key.
struct Definitions<'a> {
    variables: &'a [Variable],
    /// Positions of each key, ascending.
    positions: HashMap<&'a str, Vec<usize>>,
    directory: &'a str,
    base: &'a Base,
    service: Service,
}

/// Expanded values by position: the last one of each key, and all masked ones.
type ExpandedValues<'a> = HashMap<usize, Cow<'a, str>>;

impl<'a> Definitions<'a> {
    fn new(variables: &'a [Variable], directory: &'a str, base: &'a Base, service: Service) -> Self {
        let mut positions: HashMap<&str, Vec<usize>> = HashMap::with_capacity(variables.len());
        for (index, variable) in variables.iter().enumerate() {
            positions.entry(&variable.key).or_default().push(index);
        }
        Self { variables, positions, directory, base, service }
    }

    fn is_last(&self, index: usize) -> bool {
        self.variables
            .get(index)
            .and_then(|variable| self.last(&variable.key))
            .is_some_and(|last| last == index)
    }

    fn last(&self, key: &str) -> Option<usize> {
        self.positions.get(key)?.last().copied()
    }

    /// Expands the values of all definitions that count: the last of each key, and masked ones (variables.md §5).
    fn values(&self) -> Result<ExpandedValues<'a>, VariableError> {
        let mut values = HashMap::with_capacity(self.variables.len());
        let mut budget = MAX_EXPANDED;
        for (index, variable) in self.variables.iter().enumerate() {
            if !self.is_last(index) && !variable.masked {
                continue;
            }
            let value = match self.service {
                Service::Proto => Cow::Borrowed(variable.value.as_str()),
                Service::V1 if !variable.value.contains('$') => Cow::Borrowed(variable.value.as_str()),
                Service::V1 => {
                    let mut out = String::new();
                    expand(&variable.value, &mut out, budget, |name, out| self.look_up(name, index, out))
                        .map_err(|_| VariableError::ExpansionTooLarge { index })?;
                    Cow::Owned(out)
                }
            };
            budget = budget.checked_sub(value.len()).ok_or(VariableError::ExpansionTooLarge { index })?;
            values.insert(index, value);
        }
        Ok(values)
    }

    /// Appends the value of `name` as definition `from` sees it (variables.md §4).
    fn look_up(&self, name: &str, from: usize, out: &mut String) {
        let is_own = self.variables.get(from).is_some_and(|variable| variable.key == name);
        let found = if is_own {
            let at = self.positions.get(name).map_or(&[][..], Vec::as_slice);
            at.partition_point(|at| *at < from).checked_sub(1).and_then(|before| at.get(before)).copied()
        } else {
            self.last(name)
        };
        match found.and_then(|index| self.variables.get(index)) {
            Some(variable) if variable.file => out.push_str(&self.path(&variable.key)),
            Some(variable) => out.push_str(&variable.value),
            None => out.push_str(&self.base.get(name).unwrap_or_default()),
        }
    }

    fn path(&self, key: &str) -> String {
        format!("{}/{key}", self.directory)
    }

    fn file(&self, index: usize, values: &ExpandedValues<'_>) -> FileVariable {
        let name = self.variables.get(index).map_or("", |variable| &variable.key);
        FileVariable {
            path: self.path(name),
            directory: self.directory.to_owned(),
            name: name.to_owned(),
            content: values.get(&index).map_or_else(String::new, |value| value.clone().into_owned()),
        }
    }
}

/// Returns layer 2 of language.md §13: the job variable, else the base environment, else `info`.
fn log_level(
    definitions: &Definitions<'_>,
    vars: &IndexMap<String, String>,
    base: &Base,
) -> Result<LogLevel, VariableError> {
    let index = definitions.last(LogLevel::VARIABLE);
    let text = match vars.get(LogLevel::VARIABLE) {
        Some(value) => Some(Cow::Borrowed(value.as_str())),
        None => base.get(LogLevel::VARIABLE),
    };
    text.map_or(Ok(LogLevel::default()), |text| {
        LogLevel::parse(&text).ok_or(VariableError::LogLevel { index })
    })
}

/// Returns the values of masked variables, as sent and expanded, then the request's own phrases (variables.md §5).
fn phrases(request: &RunEnvironment, job: &JobPart, values: &ExpandedValues<'_>) -> Vec<Vec<u8>> {
    let masked = job.variables.iter().enumerate().filter(|(_, variable)| variable.masked);
    let values = masked.flat_map(|(index, variable)| {
        [Some(variable.value.as_str()), values.get(&index).map(Cow::as_ref)].into_iter().flatten()
    });
    let all = values.chain(request.masking.phrases.iter().map(String::as_str));
    let mut seen = HashSet::new();
    all.filter(|phrase| !phrase.is_empty() && seen.insert(*phrase))
        .map(|phrase| phrase.as_bytes().to_vec())
        .collect()
}

#[cfg(test)]
mod tests;
