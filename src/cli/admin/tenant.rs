//! `oncelog tenant`: what operators do with tenants.

use std::io::{IsTerminal, stdout};

use clap::Subcommand;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{
    delete::{Deletable, delete},
    settings::{self, maximum},
};
use crate::{
    cli::{
        block_on,
        client::{Answer, Client, ServerFlags, counted},
        common::{Common, OUTPUT, PATIENCE, name},
        output::{print, table, text},
    },
    model::{Name, settings::Key},
};

const MAXIMA: &str = "\
A maximum is a number, or `default`, which removes it: then only the setting's range applies.
`oncelog settings set --help` explains all settings and their ranges.";

pub(in crate::cli) const EXAMPLE: &str = "\
All of them need a token with the scope `operator`; its tenant does not matter.

Example:
  oncelog tenant set acme max_topics=50";

const KIND: Deletable = Deletable { noun: "tenant", path: "tenants", with: "all its data" };

#[derive(Subcommand)]
pub(in crate::cli) enum TenantCommand {
    /// List all tenants
    #[command(after_help = format!("{OUTPUT}\n\nExample:\n  oncelog tenant list --json | jq -r .tenant"))]
    List {
        #[command(flatten)]
        common: Common,
    },
    /// Create a tenant, or show that it already exists
    #[command(after_help = format!("\
Maxima given here replace all maxima that the tenant has.
{MAXIMA}
{OUTPUT}

Example:
  oncelog tenant create acme max_topics=20 retention_ms=604800000"))]
    Create {
        /// The tenant
        #[arg(value_parser = name)]
        name: Name,
        /// The largest values that its settings may take
        #[arg(value_name = "KEY=MAXIMUM", value_parser = maximum)]
        maxima: Vec<(Key, Value)>,
        #[command(flatten)]
        common: Common,
    },
    /// Show a tenant, its own settings and its maxima
    #[command(after_help = format!("{OUTPUT}\n\nExample:\n  oncelog tenant show acme"))]
    Show {
        /// The tenant
        #[arg(value_parser = name)]
        name: Name,
        #[command(flatten)]
        common: Common,
    },
    /// Change the maxima of a tenant, all or none
    #[command(after_help = format!("\
{MAXIMA}
A maximum takes effect within a second, also for values that the tenant set earlier.
{OUTPUT}

Example:
  oncelog tenant set acme max_topics=50 retention_ms=default"))]
    Set {
        /// The tenant
        #[arg(value_parser = name)]
        name: Name,
        #[arg(required = true, value_name = "KEY=MAXIMUM", value_parser = maximum)]
        maxima: Vec<(Key, Value)>,
        #[command(flatten)]
        common: Common,
    },
    /// Refuse all requests of a tenant until it is resumed
    #[command(after_help = format!("{OUTPUT}\n\nExample:\n  oncelog tenant suspend acme"))]
    Suspend {
        /// The tenant
        #[arg(value_parser = name)]
        name: Name,
        #[command(flatten)]
        common: Common,
    },
    /// Serve a suspended tenant again
    #[command(after_help = format!("{OUTPUT}\n\nExample:\n  oncelog tenant resume acme"))]
    Resume {
        /// The tenant
        #[arg(value_parser = name)]
        name: Name,
        #[command(flatten)]
        common: Common,
    },
    /// Delete a tenant and all its data
    #[command(after_help = "\
It asks for confirmation; without a terminal, --yes is required.

Example:
  oncelog tenant delete acme --yes")]
    Delete {
        /// The tenant
        #[arg(value_parser = name)]
        name: Name,
        /// Skip the confirmation
        #[arg(long, short)]
        yes: bool,
        #[command(flatten)]
        server: ServerFlags,
    },
}

pub(in crate::cli) fn run(command: TenantCommand) -> anyhow::Result<()> {
    block_on(async {
        match command {
            TenantCommand::List { common } => list(common).await,
            TenantCommand::Create { name, maxima, common } => create(&name, maxima, common).await,
            TenantCommand::Show { name, common } => {
                let client = Client::new(common.server, Some(PATIENCE))?;
                let get = client.request(Method::GET, &["tenants", name.as_str()], &[]);
                show(&client.send(get).await?, common.json)
            }
            TenantCommand::Set { name, maxima, common } => {
                patch(&name, json!({"maxima": settings::members(maxima)}), None, common).await
            }
            TenantCommand::Suspend { name, common } => {
                patch(&name, json!({"suspended": true}), Some("suspended"), common).await
            }
            TenantCommand::Resume { name, common } => {
                patch(&name, json!({"suspended": false}), Some("resumed"), common).await
            }
            TenantCommand::Delete { name, yes, server } => delete(&KIND, &name, yes, server).await,
        }
    })
}

async fn create(name: &Name, maxima: Vec<(Key, Value)>, common: Common) -> anyhow::Result<()> {
    let client = Client::new(common.server, Some(PATIENCE))?;
    let put = client.request(Method::PUT, &["tenants", name.as_str()], &[]);
    let put = if maxima.is_empty() {
        put
    } else {
        put.json(&json!({"maxima": settings::members(maxima)}))
    };
    let answer = client.send(put).await?;
    let done = if answer.status == StatusCode::OK {
        format!("tenant {name} already exists")
    } else {
        format!("created tenant {name}")
    };
    client.notice(&done);
    show(&answer, common.json)
}

/// Changes the tenant; `now` is the verb of the notice.
async fn patch(name: &Name, body: Value, now: Option<&str>, common: Common) -> anyhow::Result<()> {
    let client = Client::new(common.server, Some(PATIENCE))?;
    let patch = client.request(Method::PATCH, &["tenants", name.as_str()], &[]).json(&body);
    let answer = client.send(patch).await?;
    if let Some(now) = now {
        client.notice(&format!("{now} tenant {name}"));
    }
    show(&answer, common.json)
}

fn state(tenant: &Value) -> String {
    let since = |member: &str| tenant[member].as_str();
    match (since("deleted_at"), since("suspended_at")) {
        (Some(at), _) => format!("deleting since {at}"),
        (None, Some(at)) => format!("suspended since {at}"),
        (None, None) => "active".into(),
    }
}

fn show(answer: &Answer, as_json: bool) -> anyhow::Result<()> {
    if as_json || !stdout().is_terminal() {
        return print(&[&answer.body, &b"\n"[..]].concat());
    }
    let tenant: Value = answer.json()?;
    let word = |member: &str| tenant[member].as_str().unwrap_or_default();
    let count = |member: &str, one: &str| counted(tenant[member].as_u64().unwrap_or_default(), one);
    let mut shown = format!(
        "{}, created {}, {}\n{} with {}\n\n",
        word("tenant"),
        word("created_at"),
        state(&tenant),
        count("topic_count", "topic"),
        count("partition_count", "partition")
    );
    let has = |member: &str, name: &str| tenant[member].get(name).is_some();
    let said: Vec<&str> = Key::ALL
        .iter()
        .map(|key| key.name())
        .filter(|name| has("settings", name) || has("maxima", name))
        .collect();
    if said.is_empty() {
        shown += "no own settings, no maxima\n";
    } else {
        let mut rows = table(&["setting", "own value", "maximum"]);
        for name in said {
            let cell = |member: &str| match tenant[member].get(name) {
                Some(value) => text(value),
                None => text(&json!("")),
            };
            rows.add_row([text(&json!(name)), cell("settings"), cell("maxima")]);
        }
        shown += &format!("{rows}\n");
    }
    print(shown.as_bytes())
}

async fn list(common: Common) -> anyhow::Result<()> {
    let client = Client::new(common.server, Some(PATIENCE))?;
    let as_json = common.json || !stdout().is_terminal();
    let mut tenants = table(&["tenant", "created", "state"]);
    let each = |tenant: &serde_json::value::RawValue| {
        if as_json {
            print(format!("{tenant}\n").as_bytes())?;
        } else {
            let tenant: Value = serde_json::from_str(tenant.get())?;
            let members = [&tenant["tenant"], &tenant["created_at"], &json!(state(&tenant))];
            tenants.add_row(members.map(text));
        }
        Ok(true)
    };
    client.list(&["tenants"], &[], "tenants", each).await?;
    if as_json { Ok(()) } else { print(format!("{tenants}\n").as_bytes()) }
}
