//! `oncelog tenant`: what operators do with tenants.

use clap::{Args, Subcommand};
use comfy_table::Cell;
use serde_json::{Map, Value, json};

use super::{
    resource::{CONFIRMATION, Common, DeleteArgs, NameArgs, OUTPUT, Resource, help},
    revocations::{self, RevokeArgs, UnrevokeArgs},
    settings::{self, maximum, value_cell},
};
use crate::{
    cli::{
        block_on,
        common::{counted, name},
        output::{Column, cell, table},
        server::{AdminFlags, ServerFlags},
    },
    model::{Name, settings::Key},
};

const MAXIMA: &str = "\
A maximum is a number, which may have a unit (`7d`, `10MiB`), or `default`, which removes it: then
only the setting's range applies.
`oncelog settings set --help` explains all settings and their ranges.";

pub(in crate::cli) const EXAMPLE: &str = "\
All of them need a token with the scope `operator`; its tenant does not matter. Where the server has
an admin listener (it has one if it checks tokens), tenants are there: --admin-url,
ONCELOG_ADMIN_URL or `oncelog context set --admin-url` says where that is; by default it is the port
after the public one, on the server's own machine.

Examples:
  oncelog tenant set acme max_topics=50
  oncelog tenant list --admin-url 127.0.0.1:8081";

#[derive(Args)]
pub(in crate::cli) struct TenantArgs {
    #[command(flatten)]
    admin: AdminFlags,
    #[command(subcommand)]
    command: TenantCommand,
}

impl TenantCommand {
    /// Which server the command calls.
    fn server(&mut self) -> &mut ServerFlags {
        match self {
            Self::List(common) => &mut common.server,
            Self::Create { common, .. } | Self::Set { common, .. } => &mut common.server,
            Self::Show(args)
            | Self::Suspend(args)
            | Self::Resume(args)
            | Self::Revocations(args) => &mut args.common.server,
            Self::Revoke(args) => &mut args.common.server,
            Self::Unrevoke(args) => &mut args.common.server,
            Self::Delete(args) => &mut args.server,
        }
    }
}

#[derive(Subcommand)]
enum TenantCommand {
    /// List all tenants
    #[command(after_help = help(OUTPUT, &["oncelog tenant list --json | jq -r .tenant"]))]
    List(Common),
    /// Create a tenant, or show that it already exists
    #[command(after_help = help(
        &format!("Maxima given here replace all maxima that the tenant has.\n{MAXIMA}\n{OUTPUT}"),
        &["oncelog tenant create acme max_topics=20 retention_ms=7d"]))]
    Create {
        /// Tenant name
        #[arg(value_parser = name)]
        name: Name,
        /// The largest values that its settings may take
        #[arg(value_name = "KEY=MAXIMUM", value_parser = maximum)]
        maxima: Vec<(Key, Value)>,
        #[command(flatten)]
        common: Common,
    },
    /// Show a tenant, its own settings and its maxima
    #[command(after_help = help(OUTPUT, &["oncelog tenant show acme"]))]
    Show(NameArgs),
    /// Change the maxima of a tenant, all or none
    #[command(after_help = help(
        &format!("{MAXIMA}\n{EFFECT}\n{OUTPUT}"),
        &["oncelog tenant set acme max_topics=50 retention_ms=default"]))]
    Set {
        /// Tenant name
        #[arg(value_parser = name)]
        name: Name,
        /// The largest values that its settings may take
        #[arg(required = true, value_name = "KEY=MAXIMUM", value_parser = maximum)]
        maxima: Vec<(Key, Value)>,
        #[command(flatten)]
        common: Common,
    },
    /// Refuse all requests of a tenant until it is resumed
    #[command(after_help = help(OUTPUT, &["oncelog tenant suspend acme"]))]
    Suspend(NameArgs),
    /// Serve a suspended tenant again
    #[command(after_help = help(OUTPUT, &["oncelog tenant resume acme"]))]
    Resume(NameArgs),
    /// Refuse tokens of a tenant that have not expired
    #[command(after_help = help(
        &format!("{REVOKED}\n{OUTPUT}"),
        &["oncelog tenant revoke acme --subject anna --expires-in 30d",
            "oncelog tenant revoke acme --token-id 7f9c",
            "oncelog tenant revoke acme --all"]))]
    Revoke(RevokeArgs),
    /// List the revocations of a tenant
    #[command(after_help = help(OUTPUT, &["oncelog tenant revocations acme"]))]
    Revocations(NameArgs),
    /// Remove a revocation: its tokens are accepted again
    #[command(after_help = help(
        REVOKED,
        &["oncelog tenant unrevoke acme 01a209e2-7250-7788-8709-39f1b7cbc983"]))]
    Unrevoke(UnrevokeArgs),
    /// Delete a tenant and all its data
    #[command(after_help = help(CONFIRMATION, &["oncelog tenant delete acme --yes"]))]
    Delete(DeleteArgs),
}

const REVOKED: &str = "\
It takes effect within a second. Tokens without `iat` count as issued before any instant.";

const EFFECT: &str =
    "A maximum takes effect within a second, also for values that the tenant set earlier.";

const TENANT: Resource = Resource {
    noun: "tenant",
    collection: "tenants",
    columns: &[
        ("tenant", |tenant| cell(&tenant["tenant"])),
        ("created", |tenant| cell(&tenant["created_at"])),
        ("state", |tenant| Cell::new(state(tenant))),
    ],
    describe,
};

const MAXIMA_COLUMNS: &[Column] = &[
    ("setting", |setting| cell(&setting["setting"])),
    ("own value", |setting| value_cell(setting, "value")),
    ("maximum", |setting| value_cell(setting, "maximum")),
];

pub(in crate::cli) fn run(args: TenantArgs) -> anyhow::Result<()> {
    let TenantArgs { admin, mut command } = args;
    command.server().admin = Some(admin);
    block_on(async {
        match command {
            TenantCommand::List(common) => TENANT.list(&[], common).await,
            TenantCommand::Create { name, maxima, common } => {
                TENANT.create(&name, settings::body("maxima", maxima), common).await
            }
            TenantCommand::Show(NameArgs { name, common }) => {
                TENANT.show(name.as_str(), common).await
            }
            TenantCommand::Set { name, maxima, common } => {
                TENANT.change(&name, settings::body("maxima", maxima), None, common).await
            }
            TenantCommand::Suspend(args) => set_suspended(args, true, "suspended").await,
            TenantCommand::Resume(args) => set_suspended(args, false, "resumed").await,
            TenantCommand::Revoke(args) => revocations::revoke(args).await,
            TenantCommand::Revocations(args) => revocations::list(args).await,
            TenantCommand::Unrevoke(args) => revocations::unrevoke(args).await,
            TenantCommand::Delete(args) => TENANT.delete(args, "all its data").await,
        }
    })
}

async fn set_suspended(args: NameArgs, value: bool, done: &str) -> anyhow::Result<()> {
    let body = Map::from_iter([("suspended".to_owned(), json!(value))]);
    TENANT.change(&args.name, body, Some(done), args.common).await
}

fn state(tenant: &Value) -> String {
    let since = |member: &str| tenant[member].as_str();
    match (since("deleted_at"), since("suspended_at")) {
        (Some(at), _) => format!("deleting since {at}"),
        (None, Some(at)) => format!("suspended since {at}"),
        (None, None) => "active".into(),
    }
}

fn describe(tenant: &Value) -> String {
    let word = |member: &str| tenant[member].as_str().unwrap_or_default();
    let count = |member: &str, one: &str| counted(tenant[member].as_u64().unwrap_or_default(), one);
    let head = format!(
        "{}, created {}, {}\n{} with {}\n\n",
        word("tenant"),
        word("created_at"),
        state(tenant),
        count("topic_count", "topic"),
        count("partition_count", "partition")
    );
    let setting = |key: &Key| {
        let (name, blank) = (key.name(), json!(""));
        let (value, maximum) = (tenant["settings"].get(name), tenant["maxima"].get(name));
        (value.is_some() || maximum.is_some()).then(|| {
            json!({"setting": name, "value": value.unwrap_or(&blank),
                "maximum": maximum.unwrap_or(&blank)})
        })
    };
    let settings: Vec<Value> = Key::ALL.iter().filter_map(setting).collect();
    match settings.as_slice() {
        [] => head + "no own settings, no maxima\n",
        settings => format!("{head}{}\n", table(MAXIMA_COLUMNS, settings)),
    }
}
