//! The file of contexts: named servers with their tokens, and the one in use.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder},
    io::{ErrorKind, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow, bail};
use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};
use tempfile::NamedTempFile;

use crate::model::Name;

/// A server, and the token to send to it.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    #[serde(serialize_with = "write_url", deserialize_with = "read_url")]
    pub url: Url,
    /// Of the admin listener, where it is another.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "write_optional_url",
        deserialize_with = "read_optional_url"
    )]
    pub admin_url: Option<Url>,
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "write_token")]
    pub token: Option<SecretString>,
}

impl Context {
    /// Whether this is a URL of its server.
    pub fn has(&self, url: &Url) -> bool {
        self.url == *url || self.admin_url.as_ref() == Some(url)
    }
}

/// All contexts of a user.
#[derive(Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Contexts {
    /// The one in use, unless a flag or a variable names another.
    pub current: Option<Name>,
    pub contexts: BTreeMap<Name, Context>,
}

fn write_url<S: Serializer>(url: &Url, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(url.as_str())
}

fn read_url<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Url, D::Error> {
    Url::parse(&String::deserialize(from)?).map_err(serde::de::Error::custom)
}

fn write_optional_url<S: Serializer>(url: &Option<Url>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_some(&url.as_ref().map(Url::as_str))
}

fn read_optional_url<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Url>, D::Error> {
    read_url(from).map(Some)
}

fn write_token<S: Serializer>(token: &Option<SecretString>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_some(&token.as_ref().map(ExposeSecret::expose_secret))
}

/// The file, if the environment says where a user's configuration is.
fn path() -> Option<PathBuf> {
    let directory = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let configuration = directory("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    let configuration = configuration.or_else(|| Some(directory("HOME")?.join(".config")))?;
    Some(configuration.join("oncelog").join("contexts.json"))
}

impl Contexts {
    /// Reads the file; without one there are no contexts.
    pub fn load() -> anyhow::Result<Self> {
        path().map_or_else(|| Ok(Self::default()), |path| Self::read(&path))
    }

    fn read(path: &Path) -> anyhow::Result<Self> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error)
                if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) =>
            {
                return Ok(Self::default());
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        // the error's own words may quote a token
        serde_json::from_slice(&text).map_err(|error| {
            anyhow!(
                "{} is not a file of contexts, at line {} column {}: correct it, or remove it and \
                 use `oncelog context set`",
                path.display(),
                error.line(),
                error.column()
            )
        })
    }

    pub fn save(&self) -> anyhow::Result<()> {
        let path = path().context("HOME is not set: there is no place for the file of contexts")?;
        self.write(&path).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Replaces the file, so that a reader finds the former one or this one. Only its owner can
    /// read it.
    fn write(&self, path: &Path) -> anyhow::Result<()> {
        let directory = path.parent().context("it has no directory")?;
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        // its mode is 0600
        let mut file = NamedTempFile::new_in(directory)?;
        serde_json::to_writer_pretty(&mut file, self)?;
        file.write_all(b"\n")?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    }

    /// The context of this name, or the one in use, if there is one.
    pub fn chosen(&self, name: Option<&str>) -> anyhow::Result<Option<(&str, Context)>> {
        let Some(name) = name.or(self.current.as_ref().map(Name::as_str)) else { return Ok(None) };
        self.find(name).map(Some)
    }

    fn find(&self, name: &str) -> anyhow::Result<(&str, Context)> {
        if let Some((name, context)) = self.contexts.iter().find(|(key, _)| key.as_str() == name) {
            return Ok((name.as_str(), context.clone()));
        }
        let names: Vec<&str> = self.contexts.keys().map(Name::as_str).collect();
        match names.as_slice() {
            [] => bail!(
                "there is no context {name}, nor any other: `oncelog context set {name} --url URL` \
                 creates it"
            ),
            names => bail!("there is no context {name}; there are {}", names.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn contexts() -> Contexts {
        let context = |url: &str, token: Option<&str>| Context {
            url: Url::parse(url).unwrap(),
            admin_url: token.and_then(|_| Url::parse("http://10.0.0.7:8081").ok()),
            token: token.map(Into::into),
        };
        let contexts = [
            ("local", context("http://localhost:8080", None)),
            ("prod", context("https://log.example", Some("sesame"))),
        ];
        let named = contexts.map(|(name, context)| (Name::parse(name).unwrap(), context));
        Contexts { current: Name::parse("prod").ok(), contexts: named.into() }
    }

    #[test]
    fn only_the_owner_can_read_the_file_and_it_is_replaced_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/oncelog/contexts.json");
        assert!(Contexts::read(&path).unwrap().contexts.is_empty());
        for _ in 0..2 {
            contexts().write(&path).unwrap();
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
            assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        }
        let read = Contexts::read(&path).unwrap();
        let (name, context) = read.chosen(None).unwrap().unwrap();
        assert_eq!((name, context.url.as_str()), ("prod", "https://log.example/"));
        assert_eq!(context.admin_url.unwrap().as_str(), "http://10.0.0.7:8081/");
        assert_eq!(context.token.unwrap().expose_secret(), "sesame");
        assert!(read.chosen(Some("local")).unwrap().unwrap().1.admin_url.is_none());
        assert!(read.chosen(Some("local")).unwrap().unwrap().1.token.is_none());
        let told = read.chosen(Some("lokal")).err().unwrap().to_string();
        assert_eq!(told, "there is no context lokal; there are local, prod");
    }

    #[test]
    fn a_broken_file_is_an_error_that_quotes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("contexts.json");
        for text in ["", "{", r#"{"contexts": "sesame"}"#, r#"{"contexts": {"a b": "sesame"}}"#] {
            fs::write(&path, text).unwrap();
            let told = format!("{:#}", Contexts::read(&path).err().unwrap());
            assert!(told.contains("contexts.json is not a file of contexts, at line"), "{told}");
            assert!(!told.contains("sesame"), "{told}");
        }
    }
}
