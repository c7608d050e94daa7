//! `oncelog tenant revoke`, `revocations` and `unrevoke`: tokens refused before they expire.

use std::time::Duration;

use chrono::Utc;
use clap::{ArgGroup, Args};
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};
use uuid::Uuid;

use super::resource::{AdminClient, Common, ListOutput, NameArgs, Resource};
use crate::{
    cli::{
        common::{duration, name},
        output::cell,
    },
    model::{Name, Timestamp},
};

#[derive(Args)]
#[command(group = ArgGroup::new("tokens").required(true).args(["token_id", "subject", "all"]))]
pub struct RevokeArgs {
    /// Tenant name
    #[arg(value_parser = name)]
    name: Name,
    /// The token with this `jti`; of one without, the `token_id` in the audit log
    #[arg(long, value_name = "ID")]
    token_id: Option<String>,
    /// The tokens of this `sub` that were issued before now
    #[arg(long, value_name = "NAME")]
    subject: Option<String>,
    /// All tokens of the tenant that were issued before now
    #[arg(long)]
    all: bool,
    /// With --subject or --all: those issued before this instant instead
    #[arg(long, value_name = "INSTANT", value_parser = instant, conflicts_with = "token_id")]
    issued_before: Option<Timestamp>,
    /// When the revocation ends by itself, such as 12h or 30d: not before its tokens have expired
    #[arg(long, value_name = "TIME", value_parser = duration)]
    expires_in: Option<Duration>,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Args)]
pub struct UnrevokeArgs {
    /// Tenant name
    #[arg(value_parser = name)]
    name: Name,
    /// The revocation's id, as `revocations` lists it
    revocation_id: Uuid,
    #[command(flatten)]
    pub common: Common,
}

const REVOCATION: Resource = Resource {
    noun: "revocation",
    collection: "revocations",
    columns: &[
        ("revocation id", |one| cell(&one["revocation_id"])),
        ("token id", |one| cell(&one["token_id"])),
        ("subject", |one| cell(&one["subject"])),
        ("issued before", |one| cell(&one["issued_before"])),
        ("expires", |one| cell(&one["expires_at"])),
    ],
    describe,
};

fn instant(text: &str) -> Result<Timestamp, &'static str> {
    Timestamp::parse(text)
}

pub async fn revoke(args: RevokeArgs) -> anyhow::Result<()> {
    let RevokeArgs { name, token_id, subject, all, issued_before, expires_in, common } = args;
    let now = Timestamp::from(Utc::now());
    let issued_before = issued_before.or_else(|| all.then_some(now));
    let expires_at =
        expires_in.map(|time| Timestamp(now.0.saturating_add(time.as_millis() as i64)));
    let body = [
        ("token_id", token_id),
        ("subject", subject),
        ("issued_before", issued_before.map(|at| at.to_string())),
        ("expires_at", expires_at.map(|at| at.to_string())),
    ];
    let body = body.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.into())));
    let admin = AdminClient::new(common)?;
    let path = ["tenants", name.as_str(), REVOCATION.collection];
    let answer = admin.call(Method::POST, &path, body.collect()).await?;
    admin.client.notice(&format!("revoked tokens of tenant {name}"));
    admin.print(&answer, REVOCATION.describe)
}

pub async fn list(args: NameArgs) -> anyhow::Result<()> {
    #[derive(Deserialize)]
    struct List {
        revocations: Vec<Box<RawValue>>,
    }

    let NameArgs { name, common } = args;
    let admin = AdminClient::new(common)?;
    let mut output = ListOutput::new(&REVOCATION, &admin);
    let path = ["tenants", name.as_str(), REVOCATION.collection];
    let list: List = admin.call(Method::GET, &path, Map::new()).await?.json()?;
    list.revocations.iter().try_for_each(|one| output.add(one))?;
    output.finish()
}

pub async fn unrevoke(args: UnrevokeArgs) -> anyhow::Result<()> {
    let UnrevokeArgs { name, revocation_id, common } = args;
    let admin = AdminClient::new(common)?;
    let id = revocation_id.to_string();
    let path = ["tenants", name.as_str(), REVOCATION.collection, &id];
    admin.call(Method::DELETE, &path, Map::new()).await?;
    admin.client.notice(&format!("removed revocation {id} of tenant {name}"));
    Ok(())
}

fn describe(one: &Value) -> String {
    let word = |member: &str| one[member].as_str();
    let before = word("issued_before").map(|at| format!(" issued before {at}")).unwrap_or_default();
    let tokens = match (word("token_id"), word("subject")) {
        (Some(id), _) => format!("the token {id}"),
        (None, Some(subject)) => format!("tokens of {subject}{before}"),
        (None, None) => format!("all tokens{before}"),
    };
    let end = word("expires_at").map(|at| format!(", until {at}")).unwrap_or_default();
    format!("{}: {tokens}{end}\n", word("revocation_id").unwrap_or_default())
}
