//! Layers of settings: option, else environment variable, else settings file, else default. Records each value's
//! source.

use std::fmt;
use std::path::{Path, PathBuf};

use step_runner_lang::name;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Config, SETTINGS, Setting, TomlType};

/// The settings as given, before any check.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    /// Settings file: its name for messages, and its text.
    pub file: Option<(PathBuf, String)>,
    /// The environment. Names that belong to no setting are ignored, and so are empty values.
    pub env: Vec<(String, String)>,
    /// Options by [`Setting::name`], each with all values given.
    pub options: Vec<(&'static str, Vec<String>)>,
}

/// Source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The default: no layer gives a value.
    Default,
    /// A line of the settings file.
    File {
        /// Name of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
    },
    /// An environment variable.
    Variable(String),
    /// An option.
    Option(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Option(name) => write!(f, "--{name}"),
        }
    }
}

/// The settings in force, and the source of each.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// Their sources, in the order of [`SETTINGS`].
    pub(crate) sources: Vec<Source>,
}

/// One mistake in the settings: its source, the setting, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{source_name}: {message}")]
pub(crate) struct ConfigError {
    /// `FILE:LINE`, the variable or the option.
    pub(crate) source_name: String,
    /// The mistake and the remedy. Values are not quoted.
    pub(crate) message: String,
}

/// All mistakes in the settings (exit code 2, cli.md).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            fmt::Display::fmt(error, f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

impl Config {
    /// Combines the layers and checks every value. Returns all errors at once.
    pub fn load(layers: &Layers) -> Result<Loaded, ConfigErrors> {
        let mut loading = Loading {
            config: Self::default(),
            sources: vec![Source::Default; SETTINGS.len()],
            errors: Vec::new(),
        };
        if let Some((path, text)) = &layers.file {
            loading.file(path, text);
        }
        for (position, setting) in SETTINGS.iter().enumerate() {
            let variable = setting.variable();
            let value = layers.env.iter().find(|(name, value)| *name == variable && !value.is_empty());
            if let Some((_, value)) = value {
                loading.set(position, setting, std::slice::from_ref(value), Source::Variable(variable));
            }
        }
        for (name, items) in &layers.options {
            let source = Source::Option(name.replace('_', "-"));
            match find(name) {
                Some((position, setting)) => loading.set(position, setting, items, source),
                None => loading.fail(&source, unknown(name)),
            }
        }
        if loading.errors.is_empty() {
            Ok(Loaded { config: loading.config, sources: loading.sources })
        } else {
            loading.errors.sort_by_key(|(line, _)| *line);
            Err(ConfigErrors(loading.errors.into_iter().map(|(_, error)| error).collect()))
        }
    }
}

impl Loaded {
    /// Returns a valid settings file for `--print-config`; each line names its source. `defaults` supplies values for
    /// settings that no layer sets, such as paths that depend on the environment.
    pub fn print(&self, defaults: &Config) -> String {
        let lines = SETTINGS.iter().zip(&self.sources).map(|(setting, source)| {
            match setting.show(&self.config).or_else(|| setting.show(defaults)) {
                Some(value) => format!("{} = {value}  # {source}\n", setting.name),
                None => format!("# {} is not set  # {source}\n", setting.name),
            }
        });
        lines.collect()
    }
}

fn find(name: &str) -> Option<(usize, &'static Setting)> {
    SETTINGS.iter().enumerate().find(|(_, setting)| setting.name == name)
}

struct Loading {
    config: Config,
    sources: Vec<Source>,
    /// Each error with its line of the settings file. Errors of variables and options have no line and sort last.
    errors: Vec<(usize, ConfigError)>,
}

impl Loading {
    fn fail(&mut self, source: &Source, message: String) {
        let line = if let Source::File { line, .. } = source { *line } else { usize::MAX };
        self.errors.push((line, ConfigError { source_name: source.to_string(), message }));
    }

    fn set(&mut self, position: usize, setting: &Setting, items: &[String], source: Source) {
        if (setting.set)(&mut self.config, items) {
            if let Some(place) = self.sources.get_mut(position) {
                *place = source;
            }
        } else {
            self.fail(&source, format!("{}: bad value, expected {}", setting.name, setting.demand()));
        }
    }

    fn file(&mut self, path: &Path, text: &str) {
        let at = |offset: usize| Source::File { path: path.to_owned(), line: line_of(text, offset) };
        let table = match DeTable::parse(text) {
            Ok(table) => table,
            Err(error) => {
                let offset = error.span().map_or(0, |span| span.start);
                self.fail(&at(offset), format!("not TOML: {}", error.message()));
                return;
            }
        };
        for (key, value) in table.get_ref() {
            let source = at(key.span().start);
            let name: &str = key.get_ref();
            let Some((position, setting)) = find(name) else {
                self.fail(&source, unknown(name));
                continue;
            };
            if let Some(items) = items(setting, value) {
                self.set(position, setting, &items, source);
            } else {
                let got = kind_name(value.get_ref());
                self.fail(&source, format!("{name}: expected {}, found {got}", setting.demand()));
            }
        }
    }
}

fn unknown(name: &str) -> String {
    let meant = find(&name.replace('-', "_")).map(|(_, setting)| setting.name);
    match meant.or_else(|| name::suggest(name, SETTINGS.iter().map(|setting| setting.name))) {
        Some(meant) => format!("unknown key `{name}`: write `{meant}`"),
        None => format!("unknown key `{name}`: `serve --print-config` shows all of them"),
    }
}

/// Returns the variables among `names` that look like a misspelt setting, each with the intended name. Nothing else
/// checks these names, so a typing error would go unnoticed.
pub fn misspelt_variables<'n>(names: impl IntoIterator<Item = &'n str>) -> Vec<(&'n str, String)> {
    let known: Vec<String> = SETTINGS.iter().map(Setting::variable).collect();
    let meant = |name: &'n str| {
        let rest = name.strip_prefix(PREFIX)?;
        let settings = SETTINGS.iter().map(|setting| setting.name);
        let setting = name::suggest(&rest.to_ascii_lowercase(), settings).and_then(find)?.1;
        (!known.iter().any(|known| known == name)).then(|| (name, setting.variable()))
    };
    names.into_iter().filter_map(meant).collect()
}

const PREFIX: &str = "STEP_RUNNER_";

fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

/// Returns the texts of a TOML value, if `setting` accepts its type.
fn items(setting: &Setting, value: &Spanned<DeValue<'_>>) -> Option<Vec<String>> {
    if let DeValue::Array(list) = value.get_ref() {
        let items = list.iter().map(|item| scalar(item.get_ref()).map(|(_, text)| text));
        return if setting.is_list() { items.collect() } else { None };
    }
    let (kind, text) = scalar(value.get_ref())?;
    setting.kinds.contains(&kind).then(|| vec![text])
}

fn scalar(value: &DeValue<'_>) -> Option<(TomlType, String)> {
    match value {
        DeValue::String(text) => Some((TomlType::String, text.to_string())),
        DeValue::Integer(number) => Some((
            TomlType::Integer,
            match number.radix() {
                8 => format!("0o{}", number.as_str()),
                10 => number.as_str().to_owned(),
                radix => i64::from_str_radix(number.as_str(), radix).ok()?.to_string(),
            },
        )),
        DeValue::Float(number) => Some((TomlType::Float, number.as_str().to_owned())),
        DeValue::Boolean(switch) => Some((TomlType::Boolean, switch.to_string())),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

fn kind_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
