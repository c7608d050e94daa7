//! `oncelog settings`: shows and changes the settings of the token's tenant.

use std::io::{IsTerminal, stdout};

use clap::Subcommand;
use reqwest::Method;
use serde_json::{Map, Value, json};

use crate::{
    cli::{
        block_on,
        client::{Answer, Client},
        common::{Common, OUTPUT, PATIENCE},
        output::{print, table, text},
    },
    model::settings::{self, Key, Setting},
};

const ORIGINS: &str = "\
`from` says where a value comes from: `tenant`, `default`, or `operator` if the tenant's value or
the default exceeds the maximum that an operator has set, and the maximum applies instead.";

#[derive(Subcommand)]
pub(in crate::cli) enum SettingsCommand {
    /// Show the tenant's settings, and where each value comes from
    #[command(after_help = format!("{ORIGINS}\n{OUTPUT}\n\n{}\nExample:\n  oncelog settings show", explained()))]
    Show {
        #[command(flatten)]
        common: Common,
    },
    /// Change settings of the tenant, all or none
    #[command(after_help = format!("\
A value is a number, `default`, which removes the tenant's own value, or `null` for no limit.
{OUTPUT}

{}
Example:
  oncelog settings set max_batch_records=5000 producer_expiry_ms=null max_topics=default", explained()))]
    Set {
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = change)]
        changes: Vec<(Key, Value)>,
        #[command(flatten)]
        common: Common,
    },
}

/// Explains every setting, for the help.
fn explained() -> String {
    explain(Key::ALL.iter().map(|key| key.setting()))
}

/// Explains the settings that a topic may have, for the help.
pub(in crate::cli) fn explained_of_topics() -> String {
    explain(Key::ALL.iter().map(|key| key.setting()).filter(|setting| setting.of_topics))
}

fn explain(table: impl Iterator<Item = Setting>) -> String {
    let mut settings = String::from("Settings:\n");
    for setting in table {
        let null = if setting.nullable { ", or null" } else { "" };
        let range = match setting.choices {
            [] => format!("{} to {}{null}", setting.minimum, setting.maximum),
            choices => choices.join(" or "),
        };
        settings += &format!(
            "  {}: {range}; default {}\n      {}\n",
            setting.name, setting.default, setting.help
        );
    }
    settings
}

/// Parses `key=maximum`, which must lie within the setting's range.
pub(in crate::cli) fn maximum(text: &str) -> Result<(Key, Value), String> {
    let (key, most) = change(text)?;
    match most {
        _ if !key.setting().choices.is_empty() => Err(format!("{} has no maximum", key.name())),
        Value::Null => Err("a maximum cannot be null; `default` removes it".into()),
        most => Ok((key, most)),
    }
}

/// Parses `key=value` of a setting that a topic may have.
pub(in crate::cli) fn topic_change(text: &str) -> Result<(Key, Value), String> {
    let (key, value) = change(text)?;
    match key.setting().of_topics {
        true => Ok((key, value)),
        false => Err(format!("{} is a setting of tenants, not of topics", key.name())),
    }
}

/// A request's `settings`.
pub(in crate::cli) fn members(changes: Vec<(Key, Value)>) -> Map<String, Value> {
    changes.into_iter().map(|(key, value)| (key.name().to_owned(), value)).collect()
}

/// Parses `key=value`; a value out of range is a usage error before any request is sent.
fn change(text: &str) -> Result<(Key, Value), String> {
    let (name, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    let key = Key::parse(name).ok_or_else(|| {
        let names: Vec<&str> = Key::ALL.iter().map(|key| key.name()).collect();
        format!("{name} is not one of {}", names.join(", "))
    })?;
    let value = match value {
        "default" => return Ok((key, json!("default"))),
        "null" => settings::Value::Unlimited,
        text => match (key.choice(text), text.parse(), key.setting().choices) {
            (Some(choice), ..) => choice,
            (None, Ok(number), []) => settings::Value::Number(number),
            (.., []) => return Err("a value is a number, `default` or `null`".into()),
            (.., choices) => {
                return Err(format!("a value is `default` or one of {}", choices.join(", ")));
            }
        },
    };
    key.check(value)?;
    Ok((key, json!(value)))
}

pub(in crate::cli) fn run(command: SettingsCommand) -> anyhow::Result<()> {
    block_on(async {
        match command {
            SettingsCommand::Show { common } => {
                let client = Client::new(common.server, Some(PATIENCE))?;
                let answer = client.send(client.request(Method::GET, &["settings"], &[])).await?;
                show(&answer, common.json)
            }
            SettingsCommand::Set { changes, common } => {
                let client = Client::new(common.server, Some(PATIENCE))?;
                let patch = client.request(Method::PATCH, &["settings"], &[]);
                let patch = patch.json(&members(changes));
                show(&client.send(patch).await?, common.json)
            }
        }
    })
}

fn show(answer: &Answer, as_json: bool) -> anyhow::Result<()> {
    if as_json || !stdout().is_terminal() {
        return print(&[&answer.body, &b"\n"[..]].concat());
    }
    let answer: Value = answer.json()?;
    let mut settings = table(&["setting", "value", "from", "maximum"]);
    for (name, value) in answer["settings"].as_object().into_iter().flatten() {
        let members = [&json!(name), value, &answer["origins"][name], &answer["maxima"][name]];
        settings.add_row(members.map(text));
    }
    print(format!("{settings}\n").as_bytes())
}
