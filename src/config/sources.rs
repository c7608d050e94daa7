//! Configuration sources: flags, environment and file, each read into text with its origin.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use clap::{Arg, ArgMatches, Command, FromArgMatches};
use secrecy::{ExposeSecret, SecretString};

use super::{ConfigError, KEYS, Key, units::Unit};

/// Variables of the command-line clients and of the tests, which are not configuration.
const FOREIGN_VARIABLES: &[&str] = &[
    "ONCELOG_URL",
    "ONCELOG_ADMIN_URL",
    "ONCELOG_TOKEN",
    "ONCELOG_CONTEXT",
    "ONCELOG_CONFIG",
    "ONCELOG_CA_FILE",
    "ONCELOG_CLIENT_CERT_FILE",
];
const PREFIX: &str = "ONCELOG_";

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    File(PathBuf),
    Environment(String),
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// The flags given on the command line: one for each key, and `--config`. It has no `Debug`,
/// because it holds secrets.
#[derive(Clone, Default)]
pub struct Flags {
    pub config: Option<PathBuf>,
    pub values: BTreeMap<&'static str, String>,
}

impl Flags {
    /// The flags of a command that takes only some of the keys.
    pub fn of<const N: usize>(
        config: Option<PathBuf>,
        given: [(&'static str, Option<SecretString>); N],
    ) -> Self {
        let given = given.into_iter();
        let values = given.filter_map(|(name, value)| Some((name, value?.expose_secret().into())));
        Self { config, values: values.collect() }
    }
}

impl clap::Args for Flags {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .help("A TOML file with configuration keys [env: ONCELOG_CONFIG]");
        KEYS.iter().fold(command.arg(config), |command, key| {
            command.arg(
                Arg::new(key.name).long(key.flag()).value_name(key.value_name).help(key.help()),
            )
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        if let Some(path) = matches.get_one::<String>("config") {
            self.config = Some(path.into());
        }
        for key in KEYS {
            if let Some(value) = matches.get_one::<String>(key.name) {
                self.values.insert(key.name, value.clone());
            }
        }
        Ok(())
    }
}

/// The effective text of each key that was set.
#[derive(Default)]
pub(super) struct Given {
    pub values: BTreeMap<&'static str, (String, Origin)>,
    pub errors: Vec<ConfigError>,
    /// What was changed before it was parsed.
    pub notes: Vec<String>,
}

impl Given {
    /// Reads all sources, the weakest first: later ones take precedence.
    pub fn read(flags: &Flags, environment: &BTreeMap<String, String>) -> Self {
        let mut given = Self::default();
        let named = environment.get("ONCELOG_CONFIG").filter(|path| !path.is_empty());
        if let Some(path) = flags.config.clone().or_else(|| named.map(PathBuf::from)) {
            given.read_file(path);
        }
        given.read_environment(environment);
        for (name, text) in &flags.values {
            let origin = Origin::Flag(format!("--{}", name.replace('_', "-")));
            given.values.insert(name, (text.clone(), origin));
        }
        given
    }

    fn read_file(&mut self, path: PathBuf) {
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) => {
                return self.add_error(format!("cannot read the file {}: {error}", path.display()));
            }
        };
        let table: toml::Table = match text.parse() {
            Ok(table) => table,
            Err(error) => {
                // Not the error's own words in full: they quote the line, which may hold a secret.
                let line = error.span().map_or(1, |span| text[..span.start].lines().count().max(1));
                let what = error.message();
                let path = path.display();
                return self.add_error(format!("{path}, near line {line}, is not TOML: {what}"));
            }
        };
        for (name, value) in table {
            let Some(key) = KEYS.iter().find(|key| key.name == name) else {
                self.add_error(format!(
                    "unknown key `{name}` in {}; `oncelog serve --help` lists all",
                    path.display()
                ));
                continue;
            };
            let text = match value {
                toml::Value::String(text) => text,
                toml::Value::Integer(number) => number.to_string(),
                toml::Value::Boolean(is_on) => is_on.to_string(),
                other => {
                    let kind = other.type_str();
                    let text =
                        format!("is a {kind}, but must be a string, an integer or a boolean");
                    self.errors.push(ConfigError::of(key, &Origin::File(path.clone()), &text));
                    continue;
                }
            };
            self.values.insert(key.name, (text, Origin::File(path.clone())));
        }
    }

    /// An empty variable counts as unset: compose files and shells often leave them behind.
    fn read_environment(&mut self, environment: &BTreeMap<String, String>) {
        let set = |name: &str| environment.get(name).filter(|text| !text.is_empty());
        for key in KEYS {
            for name in key.variables() {
                let file = key.file_variable(&name);
                let path = file.as_ref().and_then(|file| set(file));
                match (set(&name), file.zip(path)) {
                    (Some(_), Some((file, _))) => {
                        self.add_error(format!("{name} and {file} exclude each other: set one"));
                    }
                    (Some(text), None) => {
                        self.values.insert(key.name, (text.clone(), Origin::Environment(name)));
                    }
                    (None, Some((file, path))) => self.read_secret(key, file, path),
                    (None, None) => {}
                }
            }
        }
        for (name, text) in environment.iter().filter(|(name, _)| name.starts_with(PREFIX)) {
            let is_of = |key: &Key| {
                let variable = key.variable();
                variable == *name || key.file_variable(&variable).as_ref() == Some(name)
            };
            let known = KEYS.iter().any(is_of)
                || FOREIGN_VARIABLES.contains(&name.as_str())
                || name.starts_with("ONCELOG_TEST_")
                || is_service_link(name, text);
            if !known {
                self.add_error(format!(
                    "unknown environment variable {name}; `oncelog serve --help` lists all"
                ));
            }
        }
    }

    /// Reads a secret from the file that a variable names, as container platforms mount it.
    fn read_secret(&mut self, key: &'static Key, variable: String, path: &str) {
        match std::fs::read_to_string(path) {
            Ok(text) => {
                self.values.insert(key.name, (text, Origin::Environment(variable)));
            }
            Err(error) => {
                self.add_error(format!(
                    "cannot read {path} (from environment {variable}): {error}"
                ));
            }
        }
    }

    fn add_error(&mut self, text: String) {
        self.errors.push(ConfigError { key: None, text });
    }
}

/// Detects the variables that Kubernetes adds to a pod's environment if a Service is named oncelog
/// or oncelog-*.
fn is_service_link(name: &str, text: &str) -> bool {
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.contains("_PORT_")
        || (name.ends_with("_PORT") && text.contains("://"))
}

impl Key {
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    pub fn variable(&self) -> String {
        format!("{PREFIX}{}", self.name.to_uppercase())
    }

    /// The variables that set the key, the weakest first.
    pub fn variables(&self) -> Vec<String> {
        match self.name {
            "database_url" => vec!["DATABASE_URL".into(), self.variable()],
            _ => vec![self.variable()],
        }
    }

    /// The variable that names a file with the value, if it is a secret.
    pub fn file_variable(&self, variable: &str) -> Option<String> {
        self.secret.then(|| format!("{variable}_FILE"))
    }

    /// The default as people read it: times and sizes with their units.
    pub fn shown_default(&self) -> String {
        match (Unit::of(self.name), self.default.parse()) {
            (Some(unit), Ok(number)) => unit.show(number),
            _ => self.default.into(),
        }
    }

    fn help(&self) -> String {
        let files = self.file_variable(&self.variable());
        let variables = self.variables().into_iter().chain(files);
        let variables = variables.collect::<Vec<_>>().join(" or ");
        let default = match self.default {
            "" => String::new(),
            _ => format!(" [default: {}]", self.shown_default()),
        };
        let doc = self.doc.trim();
        format!("{doc}{default} [env: {variables}]")
    }
}
