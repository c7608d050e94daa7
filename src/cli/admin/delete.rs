//! Deleting a thing by name, after a question.

use std::io::{IsTerminal, Write, stderr, stdin};

use anyhow::Context;
use reqwest::Method;

use crate::{
    cli::{
        WrongUsage,
        client::{Client, Failure, ServerFlags},
        common::PATIENCE,
    },
    model::Name,
};

/// What there is to delete.
pub(in crate::cli) struct Deletable {
    /// As people call it.
    pub noun: &'static str,
    /// Its collection in the API.
    pub path: &'static str,
    /// What goes with it.
    pub with: &'static str,
}

pub(in crate::cli) async fn delete(
    kind: &Deletable,
    name: &Name,
    yes: bool,
    server: ServerFlags,
) -> anyhow::Result<()> {
    let Deletable { noun, path, with } = kind;
    if !yes {
        if !stdin().is_terminal() {
            let what = "there is no terminal to ask on: give --yes to delete without being asked";
            return Err(WrongUsage(what.into()).into());
        }
        if !is_meant(name, with)? {
            anyhow::bail!("nothing was deleted");
        }
    }
    let client = Client::new(server, Some(PATIENCE))?;
    match client.send(client.request(Method::DELETE, &[path, name.as_str()], &[])).await {
        // the answer to an earlier attempt was lost
        Err(Failure::Refused(problem))
            if problem.code == format!("{noun}_not_found") && client.repeats() > 0 => {}
        answer => drop(answer?),
    }
    client.notice(&format!("{noun} {name} is deleted"));
    Ok(())
}

fn is_meant(name: &Name, with: &str) -> anyhow::Result<bool> {
    write!(stderr(), "Delete {name} with {with}? Type its name: ")?;
    let mut answer = String::new();
    stdin().read_line(&mut answer).context("cannot read the answer")?;
    Ok(answer.trim() == name.as_str())
}
