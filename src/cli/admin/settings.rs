//! `oncelog settings`: shows and changes the settings of the token's tenant.

use clap::Subcommand;
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::resource::{AdminClient, Common, OUTPUT, help};
use crate::{
    cli::{
        block_on,
        output::{Column, cell, table},
    },
    model::settings::{self, Key, Setting},
};

const ORIGINS: &str = "\
`from` says where a value comes from: `tenant`, `default`, or `operator` if the tenant's value or
the default exceeds the maximum that an operator has set, and the maximum applies instead.";

const SET: &str = "\
A value is a number or a word, `default`, which removes the tenant's own value, or `null` for no
limit.";

#[derive(Subcommand)]
pub(in crate::cli) enum SettingsCommand {
    /// Show the tenant's settings, and where each value comes from
    #[command(after_help = help(
        &format!("{ORIGINS}\n{OUTPUT}\n\n{}", explain_settings()), &["oncelog settings show"]))]
    Show(Common),
    /// Change settings of the tenant, all or none
    #[command(after_help = help(
        &format!("{SET}\n{OUTPUT}\n\n{}", explain_settings()),
        &["oncelog settings set max_batch_records=5000 producer_expiry_ms=null max_topics=default"]))]
    Set {
        /// Settings to change
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = change)]
        changes: Vec<(Key, Value)>,
        #[command(flatten)]
        common: Common,
    },
}

const COLUMNS: &[Column] = &[
    ("setting", |setting| cell(&setting["setting"])),
    ("value", |setting| cell(&setting["value"])),
    ("from", |setting| cell(&setting["from"])),
    ("maximum", |setting| cell(&setting["maximum"])),
];

/// Explains every setting, for the help.
fn explain_settings() -> String {
    explain(Key::ALL.iter().map(|key| key.setting()))
}

/// Explains the settings that a topic may have, for the help.
pub(in crate::cli) fn explain_topic_settings() -> String {
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
    change_among(text, |key| key.setting().of_topics)
}

/// The body of a request with settings in this field; empty without settings.
pub(in crate::cli) fn body(field: &str, changes: Vec<(Key, Value)>) -> Map<String, Value> {
    let field = (!changes.is_empty()).then(|| (field.to_owned(), members(changes).into()));
    field.into_iter().collect()
}

fn members(changes: Vec<(Key, Value)>) -> Map<String, Value> {
    changes.into_iter().map(|(key, value)| (key.name().to_owned(), value)).collect()
}

/// Parses `key=value` of any setting.
fn change(text: &str) -> Result<(Key, Value), String> {
    change_among(text, |_| true)
}

/// Parses `key=value`; a value out of range is a usage error before any request is sent.
fn change_among(text: &str, is_allowed: fn(&Key) -> bool) -> Result<(Key, Value), String> {
    let (name, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    let key = match Key::parse(name) {
        Some(key) if is_allowed(&key) => key,
        Some(_) => return Err(format!("{name} is a setting of tenants, not of topics")),
        None => {
            let allowed = Key::ALL.iter().copied().filter(is_allowed);
            let names: Vec<&str> = allowed.map(Key::name).collect();
            return Err(format!("{name} is not one of {}", names.join(", ")));
        }
    };
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
    let (method, changes, common) = match command {
        SettingsCommand::Show(common) => (Method::GET, Vec::new(), common),
        SettingsCommand::Set { changes, common } => (Method::PATCH, changes, common),
    };
    block_on(async {
        let admin = AdminClient::new(common)?;
        let answer = admin.call(method, &["settings"], members(changes)).await?;
        admin.print(&answer, describe)
    })
}

fn describe(answer: &Value) -> String {
    let setting = |(name, value): (&String, &Value)| {
        json!({"setting": name, "value": value, "from": answer["origins"][name],
            "maximum": answer["maxima"][name]})
    };
    let settings = answer["settings"].as_object().into_iter().flatten().map(setting);
    format!("{}\n", table(COLUMNS, &settings.collect::<Vec<_>>()))
}
