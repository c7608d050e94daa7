//! `oncelog context`: names servers, and chooses the one that commands call.

use std::io::{BufRead, IsTerminal, stdin, stdout};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use super::{
    GivenUrl,
    contexts::{Context, Contexts},
    url,
};
use crate::{
    cli::{
        WrongUsage,
        common::name,
        output::{Column, cell, cell_or_blank, print, table},
    },
    model::Name,
};

pub(in crate::cli) const EXAMPLE: &str = "\
A context is a name for a server, with the token to send to it. The one in use applies to every
command that calls a server; --context or ONCELOG_CONTEXT chooses another for one command, and
--url, --admin-url, --token and their variables override it. Its token goes to its own URLs only.
Contexts are in
$XDG_CONFIG_HOME/oncelog/contexts.json (~/.config by default), which only its owner can read; no
command prints a token.

Examples:
  oncelog context set local --url localhost:8080
  oncelog context set prod --url https://log.example --token - < token
  oncelog context set ops --url https://log.example --admin-url log.internal:8081 --token - < token
  oncelog context use prod
  oncelog topic list --context local";

#[derive(Subcommand)]
pub(in crate::cli) enum ContextCommand {
    /// List all contexts
    #[command(after_help = "Example:\n  oncelog context list")]
    List(Format),
    /// Show a context: the one that commands use, unless another is named
    #[command(after_help = "Example:\n  oncelog context show prod")]
    Show {
        /// Context name
        #[arg(env = "ONCELOG_CONTEXT", hide_env_values = true)]
        name: Option<String>,
        #[command(flatten)]
        format: Format,
    },
    /// Choose the context that commands use
    #[command(after_help = "Examples:\n  oncelog context use prod\n  oncelog context use --none")]
    Use {
        /// Context name
        #[arg(value_parser = name, required_unless_present = "none")]
        name: Option<Name>,
        /// Use none: commands call --url, ONCELOG_URL or http://127.0.0.1:8080
        #[arg(long, conflicts_with = "name")]
        none: bool,
    },
    /// Create a context, or change its URL or token; the first one is used at once
    #[command(after_help = "\
Examples:
  oncelog context set local --url localhost:8080
  oncelog token mint --tenant acme --scope produce | oncelog context set prod --token -")]
    Set {
        /// Context name
        #[arg(value_parser = name)]
        name: Name,
        /// Base URL of the server; without http:// or https:// it is http
        #[arg(long, default_value = "", hide_default_value = true, value_parser = url)]
        url: GivenUrl,
        /// Base URL of its admin listener, for `tenant` and `status`; --url without it removes it
        #[arg(long, default_value = "", hide_default_value = true, value_parser = url)]
        admin_url: GivenUrl,
        /// Bearer token; `-` reads it from stdin, where other users of this machine cannot see it
        #[arg(long)]
        token: Option<SecretString>,
        /// Remove the token
        #[arg(long, conflicts_with = "token")]
        no_token: bool,
    },
    /// Remove a context
    #[command(after_help = "Example:\n  oncelog context remove prod")]
    Remove {
        /// Context name
        #[arg(value_parser = name)]
        name: Name,
    },
}

#[derive(Args)]
pub(in crate::cli) struct Format {
    /// Print JSON, one object per line, also on a terminal
    #[arg(long)]
    json: bool,
}

const COLUMNS: &[Column] = &[
    ("in use", |context| cell(&json!(if context["current"] == true { "*" } else { "" }))),
    ("context", |context| cell(&context["context"])),
    ("url", |context| cell_or_blank(&context["url"])),
    ("admin url", |context| cell_or_blank(&context["admin_url"])),
    ("token", |context| cell(&json!(if context["has_token"] == true { "yes" } else { "no" }))),
];

pub(in crate::cli) fn run(command: ContextCommand) -> anyhow::Result<()> {
    let contexts = Contexts::load()?;
    match command {
        ContextCommand::List(format) => {
            let all = contexts.contexts.iter();
            let items = all.map(|(name, context)| item(&contexts, name.as_str(), context));
            show(&items.collect::<Vec<_>>(), &format)
        }
        ContextCommand::Show { name, format } => {
            let name = name.filter(|name| !name.is_empty());
            let Some((name, context)) = contexts.chosen(name.as_deref())? else {
                bail!("no context is in use: `oncelog context use NAME` chooses one");
            };
            show(&[item(&contexts, name, &context)], &format)
        }
        ContextCommand::Use { name, .. } => choose(contexts, name),
        ContextCommand::Set { name, url, admin_url, token, no_token } => {
            set(contexts, name, (url, admin_url), token, no_token)
        }
        ContextCommand::Remove { name } => remove(contexts, &name),
    }
}

fn item(contexts: &Contexts, name: &str, context: &Context) -> Value {
    let is_current = contexts.current.as_ref().is_some_and(|current| current.as_str() == name);
    let admin_url = context.admin_url.as_ref().map(Url::as_str);
    json!({"context": name, "url": context.url.as_str(), "admin_url": admin_url,
        "has_token": context.token.is_some(), "current": is_current})
}

fn show(items: &[Value], format: &Format) -> anyhow::Result<()> {
    if format.json || !stdout().is_terminal() {
        let lines: String = items.iter().map(|item| format!("{item}\n")).collect();
        return print(lines.as_bytes());
    }
    print(format!("{}\n", table(COLUMNS, items)).as_bytes())
}

fn choose(mut contexts: Contexts, name: Option<Name>) -> anyhow::Result<()> {
    if let Some(name) = &name {
        contexts.chosen(Some(name.as_str()))?;
    }
    contexts.current = name;
    contexts.save()?;
    match &contexts.current {
        Some(name) => eprintln!("oncelog: commands now use context {name}"),
        None => eprintln!("oncelog: commands now use no context"),
    }
    Ok(())
}

fn set(
    mut contexts: Contexts,
    name: Name,
    (url, admin_url): (GivenUrl, GivenUrl),
    token: Option<SecretString>,
    no_token: bool,
) -> anyhow::Result<()> {
    let former = contexts.contexts.get(&name).cloned();
    // another server may have another admin listener
    let kept = former.as_ref().filter(|_| url.is_none());
    let admin_url = admin_url.or_else(|| kept.and_then(|former| former.admin_url.clone()));
    let Some(url) = url.or_else(|| former.as_ref().map(|former| former.url.clone())) else {
        return Err(WrongUsage(format!("context {name} is new: give its --url")).into());
    };
    // a token is for the server that it was set for
    let kept = former.filter(|former| former.url == url && !no_token);
    let token = match token {
        Some(token) => Some(given(token)?),
        None => kept.and_then(|former| former.token),
    };
    let is_first = contexts.contexts.is_empty();
    contexts.contexts.insert(name.clone(), Context { url, admin_url, token });
    if is_first {
        contexts.current = Some(name.clone());
    }
    contexts.save()?;
    let used = if is_first { ", which commands now use" } else { "" };
    eprintln!("oncelog: set context {name}{used}");
    Ok(())
}

/// The token, from stdin if it is `-`.
fn given(token: SecretString) -> anyhow::Result<SecretString> {
    let mut line = token.expose_secret().to_owned();
    if line == "-" {
        line.clear();
        stdin().lock().read_line(&mut line).context("cannot read the token from stdin")?;
    }
    match line.trim() {
        "" => bail!("the token is empty; --no-token removes one"),
        token => Ok(token.into()),
    }
}

fn remove(mut contexts: Contexts, name: &Name) -> anyhow::Result<()> {
    contexts.chosen(Some(name.as_str()))?;
    contexts.contexts.remove(name);
    let was_current = contexts.current.take_if(|current| current == name).is_some();
    contexts.save()?;
    let used = if was_current { "; commands now use no context" } else { "" };
    eprintln!("oncelog: removed context {name}{used}");
    Ok(())
}
