//! `oncelog settings`: shows and changes the settings of the token's tenant.

use clap::Subcommand;
use comfy_table::{Cell, CellAlignment};
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::resource::{AdminClient, Common, OUTPUT, help};
use crate::{
    cli::{
        block_on,
        output::{Column, cell, table},
    },
    config::units::Unit,
    model::settings::{self, Key, Setting},
};

const ORIGINS: &str = "\
`from` says where a value comes from: `tenant`, `default`, or `operator` if the tenant's value or
the default exceeds the maximum that an operator has set, and the maximum applies instead.";

const SET: &str = "\
A value is a number or a word, `default`, which removes the tenant's own value, or `null` for no
limit. Times and sizes may have a unit (`7d`, `10MiB`).";

#[derive(Subcommand)]
pub(in crate::cli) enum SettingsCommand {
    /// Show the tenant's settings, and where each value comes from
    #[command(after_help = help(
        &format!("{ORIGINS}\n{OUTPUT}\n\n{}", explain_settings()), &["oncelog settings show"]))]
    Show(Common),
    /// Change settings of the tenant, all or none
    #[command(after_help = help(
        &format!("{SET}\n{OUTPUT}\n\n{}", explain_settings()),
        &["oncelog settings set producer_expiry_ms=30d max_batch_bytes=4MiB max_topics=default"]))]
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
    ("value", |setting| value_cell(setting, "value")),
    ("from", |setting| cell(&setting["from"])),
    ("maximum", |setting| value_cell(setting, "maximum")),
];

/// A member of a row that names its `setting`: times and sizes with their units.
pub(in crate::cli) fn value_cell(row: &Value, member: &str) -> Cell {
    let name = row["setting"].as_str().unwrap_or_default();
    match row[member].as_u64() {
        Some(number) => Cell::new(shown(name, number)).set_alignment(CellAlignment::Right),
        None => cell(&row[member]),
    }
}

/// A number as people write it.
pub(in crate::cli) fn shown(name: &str, number: u64) -> String {
    Unit::of(name).map_or_else(|| number.to_string(), |unit| unit.show(number))
}

fn shown_value(name: &str, value: settings::Value) -> String {
    match value.number().map(u64::try_from) {
        Some(Ok(number)) => shown(name, number),
        _ => value.to_string(),
    }
}

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
            [] => {
                let [least, most] = [setting.minimum, setting.maximum].map(settings::Value::Number);
                let name = setting.name;
                format!("{} to {}{null}", shown_value(name, least), shown_value(name, most))
            }
            choices => choices.join(" or "),
        };
        settings += &format!(
            "  {}: {range}; default {}\n      {}\n",
            setting.name,
            shown_value(setting.name, setting.default),
            setting.help
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
        text => match (key.choice(text), key.setting().choices) {
            (Some(choice), _) => choice,
            (None, []) => settings::Value::Number(number(name, text)?),
            (None, choices) => {
                return Err(format!("a value is `default` or one of {}", choices.join(", ")));
            }
        },
    };
    key.check(value).map_err(|why| match (value, key.setting()) {
        (settings::Value::Number(_), Setting { minimum, maximum, .. }) => {
            let [least, most] = [minimum, maximum].map(settings::Value::Number);
            let [value, least, most] = [value, least, most].map(|value| shown_value(name, value));
            format!("{value} is outside of {least} to {most}")
        }
        _ => why,
    })?;
    Ok((key, json!(value)))
}

/// Parses a number; that of a time or a size may have a unit.
fn number(name: &str, text: &str) -> Result<i64, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let Some(unit) = Unit::of(name) else {
        return Err("a value is a number, `default` or `null`".into());
    };
    let number = unit.parse(text).map_err(|why| format!("{why}; or `default` or `null`"))?;
    i64::try_from(number).map_err(|_| format!("{text} is too large"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_may_have_units() {
        for (text, value) in [
            ("retention_ms=7d", json!(604_800_000)),
            ("retention_ms=604800000", json!(604_800_000)),
            ("retention_ms=null", json!(null)),
            ("retention_ms=default", json!("default")),
            ("retention_bytes=10GiB", json!(10_i64 << 30)),
            ("max_batch_bytes=1MiB", json!(1 << 20)),
            ("max_topics=5", json!(5)),
            ("cleanup=compact", json!("compact")),
        ] {
            assert_eq!(change(text).unwrap().1, value, "{text}");
        }
        for (text, why) in [
            ("retention_ms=7w", "ms, s, m, h or d"),
            ("retention_ms=soon", "or `default` or `null`"),
            ("retention_ms=1ms", "1ms is outside of 1s to 3650d"),
            ("retention_ms=-1", "-1 is outside of 1s to 3650d"),
            ("retention_ms=4000d", "4000d is outside of 1s to 3650d"),
            ("retention_bytes=16777215TiB", "16777215TiB is too large"),
            ("max_batch_bytes=10MB", "B, KiB, MiB, GiB or TiB"),
            ("max_batch_bytes=1GiB", "1GiB is outside of 1B to 16MiB"),
            ("max_topics=5d", "a value is a number"),
        ] {
            let told = change(text).unwrap_err();
            assert!(told.contains(why), "{text}: {told}");
        }
    }

    #[test]
    fn the_help_shows_units() {
        let help = explain_topic_settings();
        assert!(help.contains("retention_ms: 1s to 3650d, or null; default 7d\n"), "{help}");
        assert!(help.contains("max_batch_bytes: 1B to 16MiB; default 1MiB\n"), "{help}");
        assert!(help.contains("max_batch_records: 1 to 100000; default 1000\n"), "{help}");
    }
}
