//! Common parts of all lists: `limit`, `after`, `next_after`, and a `Link` to the next page.

use axum::{
    Json,
    http::{HeaderValue, header::LINK},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::query::escape;
use crate::{
    broker::Error,
    model::{
        ValidationErrors,
        topic::{Listed, Page},
    },
};

const DEFAULT_LIMIT: i64 = 100;
const MAX_LIMIT: i64 = 1_000;
/// Longer than any name with its partition.
const MAX_AFTER_BYTES: usize = 300;
/// Minimum number of names that a list reads in one statement.
const LOOKED_AT_ONCE: i64 = 100;

#[derive(Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// Maximum number of items to return.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<i64>,
    /// The `next_after` of the previous page; omit it to start at the beginning.
    after: Option<String>,
}

impl ListQuery {
    pub fn page(self) -> Result<Page, ValidationErrors> {
        page(self.limit, self.after)
    }
}

pub fn page(limit: Option<i64>, after: Option<String>) -> Result<Page, ValidationErrors> {
    let mut errors = ValidationErrors::default();
    errors.range("?limit", limit, 1..=MAX_LIMIT);
    let visible = |text: &String| {
        (1..=MAX_AFTER_BYTES).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
    };
    if after.as_ref().is_some_and(|text| !visible(text)) {
        errors.add("?after", "not a next_after of this list");
    }
    errors.finish()?;
    Ok(Page { limit: limit.unwrap_or(DEFAULT_LIMIT), after })
}

/// Reads on until the page is full of permitted items, so that neither a short page nor
/// `next_after` reveals others.
pub async fn covered<T, L>(
    page: &Page,
    look: impl Fn(Page) -> L,
    after_of: impl Fn(&T) -> String,
    covers: impl Fn(&T) -> bool,
) -> Result<Listed<T>, Error>
where
    L: Future<Output = Result<Listed<T>, Error>>,
{
    let full = usize::try_from(page.limit).unwrap_or(usize::MAX);
    let (mut items, mut after) = (Vec::new(), page.after.clone());
    loop {
        // however small the page, few looks pass over many items that are not covered
        let listed = look(Page { limit: page.limit.max(LOOKED_AT_ONCE), after }).await?;
        let end = listed.next_after.is_none();
        for item in listed.items.into_iter().filter(&covers) {
            if items.len() == full {
                let next_after = items.last().map(&after_of);
                return Ok(Listed { items, next_after });
            }
            items.push(item);
        }
        if end {
            return Ok(Listed { items, next_after: None });
        }
        after = listed.next_after;
    }
}

/// The page, made of its items and its `next_after`, with a link to the next one. `base` is the URL
/// with its other parameters, ready for one more.
pub fn answer<T, I: From<T>, L: Serialize>(
    listed: Listed<T>,
    base: &str,
    limit: i64,
    page: impl FnOnce(Vec<I>, Option<String>) -> L,
) -> Response {
    let Listed { items, next_after } = listed;
    let link = next_after.as_deref().and_then(|after| {
        let link = format!("<{base}limit={limit}&after={}>; rel=\"next\"", escape(after));
        HeaderValue::try_from(link).ok()
    });
    let items = items.into_iter().map(I::from).collect();
    (link.map(|link| [(LINK, link)]), Json(page(items, next_after))).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages() {
        let default = page(None, None).unwrap();
        assert_eq!(default, Page { limit: 100, after: None });
        for (limit, after, pointer) in
            [(0, "a", "?limit"), (1001, "a", "?limit"), (1, "", "?after"), (1, "\0", "?after")]
        {
            let invalid = page(Some(limit), Some(after.into())).unwrap_err();
            assert_eq!(invalid.listed[0].pointer, pointer);
        }
    }

    #[test]
    fn the_next_page_is_linked() {
        let listed = Listed { items: vec![7], next_after: Some("a/1".into()) };
        let answer = answer(listed, "/v1/topics?", 2, |items: Vec<i64>, after| (items, after));
        assert_eq!(answer.headers()[LINK], "</v1/topics?limit=2&after=a%2F1>; rel=\"next\"");
    }
}
