//! What the administrative commands share: arguments, help, and how a resource is listed, shown,
//! created, changed and deleted.

use std::{
    io::{IsTerminal, Write, stderr, stdin, stdout},
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use reqwest::{Method, StatusCode};
use serde_json::{Map, Value, value::RawValue};

use crate::{
    cli::{
        WrongUsage,
        client::{Answer, Client, Failure},
        common::name,
        output::{Column, print, table},
        server::ServerFlags,
    },
    model::Name,
};

/// How long these commands retry: a person waits for them.
const PATIENCE: Duration = Duration::from_secs(5);

pub const OUTPUT: &str = "\
On a terminal the output is a table; piped, or with --json, it is JSON, one object per line.";

pub const CONFIRMATION: &str = "It asks for confirmation; without a terminal, --yes is required.";

/// The end of a command's help.
pub fn help(notes: &str, examples: &[&str]) -> String {
    let plural = if examples.len() == 1 { "" } else { "s" };
    format!("{}\n\nExample{plural}:\n  {}", notes.trim_end(), examples.join("\n  "))
}

#[derive(Args)]
pub struct Common {
    /// Print JSON, one object per line, also on a terminal
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub server: ServerFlags,
}

#[derive(Args)]
pub struct NameArgs {
    /// Name
    #[arg(value_parser = name)]
    pub name: Name,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Args)]
pub struct DeleteArgs {
    /// Name
    #[arg(value_parser = name)]
    name: Name,
    /// Skip the confirmation
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    pub server: ServerFlags,
}

/// The client of a command, and the format of its output.
pub struct AdminClient {
    pub client: Client,
    prints_json: bool,
}

impl AdminClient {
    pub fn new(common: Common) -> anyhow::Result<Self> {
        let prints_json = common.json || !stdout().is_terminal();
        Ok(Self { client: Client::new(common.server, Some(PATIENCE))?, prints_json })
    }

    /// Sends a request; an empty body is left out.
    pub async fn call(
        &self,
        method: Method,
        path: &[&str],
        body: Map<String, Value>,
    ) -> Result<Answer, Failure> {
        let request = self.client.request(method, path, &[]);
        let request = if body.is_empty() { request } else { request.json(&body) };
        self.client.send(request).await
    }

    /// Prints a response as it is, or its description for people.
    pub fn print(&self, answer: &Answer, describe: fn(&Value) -> String) -> anyhow::Result<()> {
        if self.prints_json {
            return print(&[&answer.body, &b"\n"[..]].concat());
        }
        print(describe(&answer.json()?).as_bytes())
    }
}

/// A kind of resource that has a list.
pub struct Resource {
    /// Its name in messages and error codes.
    pub noun: &'static str,
    /// Its collection, in paths and in the response of a list.
    pub collection: &'static str,
    /// The columns of a list.
    pub columns: &'static [Column],
    /// Describes one resource for people.
    pub describe: fn(&Value) -> String,
}

/// The items of a list: each printed as it comes, or all of them as a table at the end.
pub struct ListOutput {
    columns: &'static [Column],
    prints_json: bool,
    rows: Vec<Value>,
}

impl ListOutput {
    pub fn new(resource: &Resource, admin: &AdminClient) -> Self {
        Self { columns: resource.columns, prints_json: admin.prints_json, rows: Vec::new() }
    }

    pub fn add(&mut self, item: &RawValue) -> anyhow::Result<()> {
        if self.prints_json {
            return print(format!("{item}\n").as_bytes());
        }
        self.rows.push(serde_json::from_str(item.get())?);
        Ok(())
    }

    pub fn finish(self) -> anyhow::Result<()> {
        if self.prints_json {
            return Ok(());
        }
        print(format!("{}\n", table(self.columns, &self.rows)).as_bytes())
    }
}

impl Resource {
    pub async fn list(&self, filter: &[(&str, &str)], common: Common) -> anyhow::Result<()> {
        let admin = AdminClient::new(common)?;
        let mut output = ListOutput::new(self, &admin);
        let add = |item: &RawValue| output.add(item).map(|()| true);
        admin.client.list(&[self.collection], filter, add).await?;
        output.finish()
    }

    pub async fn show(&self, id: &str, common: Common) -> anyhow::Result<()> {
        let admin = AdminClient::new(common)?;
        let answer = admin.call(Method::GET, &[self.collection, id], Map::new()).await?;
        admin.print(&answer, self.describe)
    }

    pub async fn create(
        &self,
        name: &Name,
        body: Map<String, Value>,
        common: Common,
    ) -> anyhow::Result<()> {
        let admin = AdminClient::new(common)?;
        let answer = admin.call(Method::PUT, &[self.collection, name.as_str()], body).await?;
        admin.client.notice(&match answer.status {
            StatusCode::OK => format!("{} {name} already exists", self.noun),
            _ => format!("created {} {name}", self.noun),
        });
        admin.print(&answer, self.describe)
    }

    /// Changes a resource; `done` is the verb of the notice.
    pub async fn change(
        &self,
        name: &Name,
        body: Map<String, Value>,
        done: Option<&str>,
        common: Common,
    ) -> anyhow::Result<()> {
        let admin = AdminClient::new(common)?;
        let answer = admin.call(Method::PATCH, &[self.collection, name.as_str()], body).await?;
        if let Some(done) = done {
            admin.client.notice(&format!("{done} {} {name}", self.noun));
        }
        admin.print(&answer, self.describe)
    }

    /// Deletes a resource after a confirmation; `contents` is what is deleted with it.
    pub async fn delete(&self, args: DeleteArgs, contents: &str) -> anyhow::Result<()> {
        let DeleteArgs { name, yes, server } = args;
        if !yes {
            if !stdin().is_terminal() {
                let what = "no terminal to ask for confirmation: give --yes to delete without it";
                return Err(WrongUsage(what.into()).into());
            }
            if !is_confirmed(&name, contents)? {
                bail!("nothing was deleted");
            }
        }
        let client = Client::new(server, Some(PATIENCE))?;
        let delete = client.request(Method::DELETE, &[self.collection, name.as_str()], &[]);
        match client.send(delete).await {
            // an earlier attempt deleted it, and its response was lost
            Err(Failure::Refused(problem))
                if problem.code == format!("{}_not_found", self.noun) && client.repeats() > 0 => {}
            answer => drop(answer?),
        }
        client.notice(&format!("deleted {} {name}", self.noun));
        Ok(())
    }
}

fn is_confirmed(name: &Name, contents: &str) -> anyhow::Result<bool> {
    write!(stderr(), "Delete {name} with {contents}? Type its name: ")?;
    let mut answer = String::new();
    stdin().read_line(&mut answer).context("cannot read the answer")?;
    Ok(answer.trim() == name.as_str())
}
