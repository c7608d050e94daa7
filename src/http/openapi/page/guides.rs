//! `/docs/guides`: the pages of `docs/`, rendered when they are first asked for.

use std::sync::LazyLock;

use axum::{
    http::{HeaderMap, Uri},
    response::Response,
};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd, html};

use super::{HTML, nothing_here};
use crate::{broker::Error, http::constant::Constant};

macro_rules! pages {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../../../docs/", $name)))),*]
    };
}

/// The pages, as they are in the repository.
pub const PAGES: &[(&str, &str)] = pages! {
    "README.md" "append-protocol.md" "architecture.md" "benchmarks.md" "clients.md" "compaction.md"
    "configuration.md" "dedup.md" "errors.md" "from-kafka.md" "groups.md" "guarantees.md"
    "janitor.md" "metrics.md" "operating-groups.md" "retention.md" "runbook.md" "sequences.md"
    "settings.md" "tenants.md" "transactions.md"
};

/// Guide
///
/// Returns a page of the documentation, such as `guarantees.md`, as HTML. `README.md` lists them.
#[utoipa::path(get, path = "/docs/guides/{page}", operation_id = "docs_guide", tag = "service",
    params(("page" = String, Path, description = "The page's file name in docs/",
        example = json!("README.md"))),
    responses(
        (status = 200, description = "The page", body = String, content_type = "text/html",
            example = json!("<!doctype html>...")),
        (status = 304, description = "`If-None-Match` has the current ETag")),
    security())]
pub async fn docs_guide(uri: Uri, headers: HeaderMap) -> Result<Response, Error> {
    static RENDERED: LazyLock<Vec<(&str, Constant)>> = LazyLock::new(|| {
        let rendered = PAGES.iter().map(|(name, text)| (*name, Constant::new(HTML, page(text))));
        rendered.collect()
    });
    let name = uri.path().rsplit('/').next();
    let found = RENDERED.iter().find(|(known, _)| name == Some(*known));
    let (_, page) = found.ok_or_else(nothing_here)?;
    Ok(page.answer(&headers).await)
}

/// The page as HTML, with anchors at its headings; links into the rest of the repository are only
/// their texts here.
fn page(markdown: &str) -> String {
    let title = markdown.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or("oncelog");
    let mut elsewhere = Vec::new();
    let events: Vec<Event<'_>> = Parser::new_ext(markdown, Options::ENABLE_TABLES).collect();
    let mut heading = None;
    let mut body = Vec::with_capacity(events.len());
    for (at, event) in events.iter().enumerate() {
        match event {
            Event::Start(Tag::Link { dest_url, .. }) => {
                let is_elsewhere = dest_url.starts_with("../") || dest_url.ends_with(".yml");
                elsewhere.push(is_elsewhere);
                if is_elsewhere {
                    continue;
                }
            }
            Event::End(TagEnd::Link) if elsewhere.pop() == Some(true) => continue,
            Event::Start(Tag::Heading { level, .. }) => {
                heading = Some(*level);
                let id = anchor(&events[at + 1..]);
                body.push(Event::Html(format!("<{level} id=\"{id}\">").into()));
                continue;
            }
            Event::End(TagEnd::Heading(level)) if heading.take().is_some() => {
                body.push(Event::Html(format!("</{level}>\n").into()));
                continue;
            }
            _ => {}
        }
        body.push(event.clone());
    }
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title} - oncelog</title><link rel=\"icon\" href=\"data:,\">\
         <link rel=\"stylesheet\" href=\"../page.css\"></head><body class=\"guide\">\
         <nav><a href=\"README.md\">guides</a> <a href=\"errors.md\">errors</a> \
         <a href=\"../../docs\">API</a></nav><main>\n"
    );
    html::push_html(&mut text, body.into_iter());
    text.push_str("</main></body></html>\n");
    text
}

/// The anchor of a heading whose text follows, as GitHub makes it.
fn anchor(heading: &[Event<'_>]) -> String {
    let inside =
        heading.iter().take_while(|event| !matches!(event, Event::End(TagEnd::Heading(_))));
    let words = inside.filter_map(|event| match event {
        Event::Text(text) | Event::Code(text) => Some(text.to_lowercase()),
        _ => None,
    });
    let kept = |c: char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    words.collect::<String>().chars().filter(|c| kept(*c)).collect::<String>().replace(' ', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_into_the_repository_are_texts_and_headings_have_anchors() {
        let page =
            page("# A `b` c_d!\n\n[x](../SECURITY.md) [y](groups.md#a-b)\n\n|a|\n|-|\n|1|\n");
        assert!(page.contains("<title>A `b` c_d! - oncelog</title>"), "{page}");
        assert!(page.contains("<h1 id=\"a-b-c_d\">A <code>b</code> c_d!</h1>"), "{page}");
        assert!(page.contains("x <a href=\"groups.md#a-b\">y</a>"), "{page}");
        assert!(page.contains("<table>"), "{page}");
    }

    /// Every link between the pages leads to a page and a heading that exist.
    #[test]
    fn every_link_leads_somewhere() {
        let rendered: Vec<(&str, String)> =
            PAGES.iter().map(|(name, text)| (*name, page(text))).collect();
        for (name, html) in &rendered {
            for link in html.split("<a href=\"").skip(1) {
                let link = link.split('"').next().unwrap();
                if link.contains("://") || link == "../../docs" {
                    continue;
                }
                let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
                let file = if file.is_empty() { name } else { file };
                let target = rendered.iter().find(|(known, _)| *known == file);
                let (_, target) = target.unwrap_or_else(|| panic!("{name}: {link}"));
                assert!(
                    anchor.is_empty() || target.contains(&format!("id=\"{anchor}\"")),
                    "{name}: {link}"
                );
            }
        }
    }
}
