//! Fetches of group members: records of all their partitions in one answer.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderValue, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use super::members::{Membership, assignment};
use crate::{
    broker::Error,
    http::{
        extract::{
            access::{Admission, Group, GroupAccess, MemberPath},
            body::JsonBody,
            media::{AnswersRecords, Media},
            query::{ParameterPlace, Query},
        },
        openapi::schemas::FetchAnswer,
        reads::{
            bounds::Bounds,
            cursors,
            records::{ndjson, total_capacity, write_list},
        },
    },
    model::{
        Name, ValidationErrors, Word,
        read::{self, Fetch, GroupFetched, PartitionRecords},
    },
};

/// The parameters of a fetch, in the URL or in a body.
#[derive(Default, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FetchParameters {
    /// Where to continue: the `cursor` of an earlier answer, unchanged. Without it: at the
    /// committed offsets.
    cursor: Option<String>,
    /// Where the run of this answer begins, that is, the records that a transaction with its cursor
    /// has processed. Default: at the cursor if exactly that is committed by now, else where the
    /// cursor's run began. `continue`: where the cursor's run began, whatever was committed. `new`:
    /// at the cursor.
    #[param(inline)]
    run: Option<Run>,
    /// Maximum number of records, over all partitions.
    #[param(minimum = 1, maximum = 10000, default = 500)]
    #[schema(minimum = 1, maximum = 10000, default = 500)]
    limit: Option<i64>,
    /// Maximum bytes of records, over all partitions; at least one record is always returned.
    #[param(minimum = 1, maximum = 16777216, default = 1048576)]
    #[schema(minimum = 1, maximum = 16777216, default = 1048576)]
    max_bytes: Option<i64>,
    /// How long to wait if no partition has a record yet (long poll); may exceed the lease, which
    /// is renewed meanwhile.
    #[param(minimum = 0, maximum = 60000, default = 0)]
    #[schema(minimum = 0, maximum = 60000, default = 0)]
    wait_ms: Option<i64>,
}

/// Where a run begins, if not determined by the newest commit.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Run {
    Continue,
    New,
}

impl FetchParameters {
    fn checked(self, place: ParameterPlace) -> Result<Fetch, ValidationErrors> {
        let mut errors = ValidationErrors::default();
        let run = match self.run {
            None => read::Run::SinceCommit,
            Some(Run::Continue) => read::Run::Continue,
            Some(Run::New) => read::Run::New,
        };
        if run == read::Run::Continue && self.cursor.is_none() {
            errors.add(&place.of("run"), "run=continue requires a cursor");
        }
        let Bounds { limit, max_bytes, wait_ms } =
            Bounds::checked(&mut errors, place, self.limit, self.max_bytes, self.wait_ms);
        cursors::check(&mut errors, place, self.cursor.as_deref(), LONG_CURSORS);
        errors.finish()?;
        Ok(Fetch { cursor: self.cursor, run, limit, max_bytes, wait_ms })
    }
}

/// The operation that accepts a cursor too long for a URL.
const LONG_CURSORS: &str = "POST /v1/groups/{group}/members/{member_id}/records";

/// The answer to the fetch in the examples.
pub const CURSOR: &str = "AmcCAAQCBAICAAEBAgABAQIAAgHm8GFb";

fn example() -> Value {
    json!({"generation": 1, "assignment": assignment(), "revoked": [],
        "records": [
            {"topic": "orders", "partition": 1, "offset": 0,
                "appended_at": "2026-11-21T08:00:00.000Z", "key": "customer-1",
                "value_base64": "AAEC"},
            {"topic": "orders", "partition": 3, "offset": 0,
                "appended_at": "2026-11-21T08:00:00.000Z", "key": "customer-7",
                "value": {"total": 12.5}, "headers": {"source": "web"}}],
        "cursor": CURSOR})
}

/// The answer to the next fetch in the examples.
fn nothing_new() -> Value {
    let mut answer = example();
    answer["records"] = json!([]);
    answer
}

/// Fetch records
///
/// Returns committed records of the member's partitions, in order within each partition and with a
/// fair share for each. It starts at the committed offsets (where there is none, by the group's
/// `auto_offset_reset`), or with a `cursor` where that answer ended. The same cursor returns the
/// same records again, so a lost answer loses nothing. Positions of partitions that the member has
/// lost since, even if it got them back, are ignored.
///
/// A cursor also contains the start of its run: a transaction with records commits it only if the
/// committed offset is still at that start, so no record is processed twice. After its cursor was
/// committed, a fetch begins a new run automatically. Use `run` only to fetch ahead of commits
/// (`new`) or to process several answers in one transaction (`continue`).
///
/// Renews the lease. With `wait_ms` an empty answer waits for the first record. A revocation ends
/// the wait at once: the partition is in `revoked`, and no more of its records are returned. It
/// moves to its new owner with the first call that acknowledges this answer: a fetch or commit with
/// its cursor, or a heartbeat with its `generation`. A partition not released within the session
/// timeout plus 30 seconds is taken away.
///
/// `Accept: application/x-ndjson` returns only the records, one per line; revocations are then
/// reported by heartbeats only. The token needs `group` for the group, and `consume` for every
/// topic in the assignment.
#[utoipa::path(get, path = "/v1/groups/{group}/members/{member_id}/records",
    operation_id = "fetch_group", tag = "groups",
    params(("group" = String, Path, description = "The group's name"),
        ("member_id" = String, Path, description = "The `member_id` of the join"), FetchParameters),
    responses((status = 200, description = "Records, possibly none",
        content(
            (FetchAnswer = "application/json", example = json!(example())),
            (String = "application/x-ndjson", example = json!(
                "{\"topic\":\"orders\",\"partition\":1,\"offset\":0,\"appended_at\":\
                 \"2026-11-21T08:00:00.000Z\",\"value_base64\":\"AAEC\",\"key\":\"customer-1\"}\n\
                 {\"topic\":\"orders\",\"partition\":3,\"offset\":0,\"appended_at\":\
                 \"2026-11-21T08:00:00.000Z\",\"value\":{\"total\":12.5},\"key\":\"customer-7\",\
                 \"headers\":{\"source\":\"web\"}}\n"))),
        headers(
            ("Oncelog-Cursor" = String, description = "NDJSON only: where to continue"),
            ("Oncelog-Generation" = i64, description = "NDJSON only: the newest generation")))),
    security(("bearer" = ["group", "consume"])))]
pub async fn fetch_group(
    access: GroupAccess<Group>,
    State(admission): State<Arc<Admission>>,
    MemberPath(member_id): MemberPath,
    AnswersRecords(media): AnswersRecords,
    Query(query): Query<FetchParameters>,
) -> Result<Response, Error> {
    answer(access, &admission, &member_id, media, query.checked(ParameterPlace::Query)?).await
}

/// Fetch records with a long cursor
///
/// Same as the `GET`, with its parameters as a JSON body: for cursors longer than 8 KiB, which do
/// not fit into a URL, as members with very many partitions get them. Safe to repeat.
#[utoipa::path(post, path = "/v1/groups/{group}/members/{member_id}/records",
    operation_id = "fetch_group_by_body", tag = "groups",
    params(("group" = String, Path, description = "The group's name"),
        ("member_id" = String, Path, description = "The `member_id` of the join")),
    request_body(content = FetchParameters, description = "The parameters of the fetch",
        example = json!({"cursor": CURSOR, "limit": 500, "wait_ms": 0})),
    responses((status = 200, description = "Records, possibly none",
        content(
            (FetchAnswer = "application/json", example = json!(nothing_new())),
            (String = "application/x-ndjson", example = json!(""))),
        headers(
            ("Oncelog-Cursor" = String, description = "NDJSON only: where to continue"),
            ("Oncelog-Generation" = i64, description = "NDJSON only: the newest generation")))),
    security(("bearer" = ["group", "consume"])))]
pub async fn fetch_group_by_body(
    access: GroupAccess<Group>,
    State(admission): State<Arc<Admission>>,
    MemberPath(member_id): MemberPath,
    AnswersRecords(media): AnswersRecords,
    sent: JsonBody<FetchParameters>,
) -> Result<Response, Error> {
    answer(access, &admission, &member_id, media, sent.body.checked(ParameterPlace::Body)?).await
}

async fn answer(
    access: GroupAccess<Group>,
    admission: &Admission,
    member_id: &str,
    media: Media,
    fetch: Fetch,
) -> Result<Response, Error> {
    let group = &access.group;
    let permit = |topic: &Name| access.grant.demand(Word::Consume, topic);
    let fetched = access.broker.fetch_group(access.tenant, group, member_id, fetch, permit).await?;
    let GroupFetched { membership, parts, cursor } = fetched;
    let generation = membership.generation;
    let body = match media {
        Media::Json => {
            let ends = Ends::new(membership.into(), &cursor)?;
            let size_bytes = ends.size_bytes() + total_capacity(&parts);
            admission.answer(access.tenant, size_bytes, || json_body(&ends, &parts))?
        }
        Media::Ndjson => {
            admission.answer(access.tenant, total_capacity(&parts), || ndjson(&parts))?
        }
    };
    let content_type = HeaderValue::from_static(media.as_str());
    let mut answer = ([(CONTENT_TYPE, content_type)], body).into_response();
    if media == Media::Ndjson {
        answer.headers_mut().insert("oncelog-cursor", cursors::header(cursor)?);
        answer.headers_mut().insert("oncelog-generation", generation.into());
    }
    Ok(answer)
}

/// The JSON around the records.
struct Ends {
    head: Vec<u8>,
    tail: String,
}

impl Ends {
    fn new(membership: Membership, cursor: &str) -> Result<Self, Error> {
        let mut head = serde_json::to_vec(&membership).map_err(|_| Error::internal())?;
        // its closing brace
        head.pop();
        head.extend_from_slice(b",\"records\":[");
        // Cursors are base64: they need no escapes.
        Ok(Self { head, tail: format!("],\"cursor\":\"{cursor}\"}}") })
    }

    fn size_bytes(&self) -> usize {
        self.head.len() + self.tail.len()
    }
}

fn json_body(ends: &Ends, parts: &[PartitionRecords]) -> Vec<u8> {
    let mut body = Vec::with_capacity(ends.size_bytes() + total_capacity(parts));
    body.extend_from_slice(&ends.head);
    write_list(&mut body, parts);
    body.extend_from_slice(ends.tail.as_bytes());
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        http::extract::query,
        model::{
            Name, Timestamp,
            group::{self, Partitions},
            read::{BatchRow, Run, Slice, origin},
        },
    };

    fn fetch(text: &str) -> Result<Fetch, ValidationErrors> {
        query::parse::<FetchParameters>(Some(text))?.checked(ParameterPlace::Query)
    }

    #[test]
    fn parameters() {
        let run = Run::SinceCommit;
        let least = Fetch { cursor: None, run, limit: 500, max_bytes: 1 << 20, wait_ms: 0 };
        assert_eq!(fetch(""), Ok(least.clone()));
        let most = fetch("cursor=c&limit=10000&max_bytes=16777216&wait_ms=60000");
        let cursor = Some("c".to_owned());
        let (limit, max_bytes, wait_ms) = (10_000, 16 << 20, 60_000);
        assert_eq!(most, Ok(Fetch { cursor: cursor.clone(), run, limit, max_bytes, wait_ms }));
        // without a cursor it says nothing
        assert_eq!(fetch("run=new"), Ok(Fetch { run: Run::New, ..least.clone() }));
        for (word, run) in [("new", Run::New), ("continue", Run::Continue)] {
            let with = fetch(&format!("cursor=c&run={word}"));
            assert_eq!(with, Ok(Fetch { cursor: cursor.clone(), run, ..least.clone() }));
        }
        for (text, pointer) in [
            ("limit=0", "?limit"),
            ("limit=10001", "?limit"),
            ("max_bytes=0", "?max_bytes"),
            ("max_bytes=16777217", "?max_bytes"),
            ("wait_ms=-1", "?wait_ms"),
            ("wait_ms=60001", "?wait_ms"),
            ("offset=earliest", "?offset"),
            ("isolation=read_committed", "?isolation"),
            ("cursor=a&cursor=b", "?cursor"),
            ("run=continue", "?run"),
            ("cursor=c&run=since_commit", "?run"),
            ("cursor=c&run=", "?run"),
        ] {
            assert_eq!(fetch(text).unwrap_err().listed[0].pointer, pointer, "{text}");
        }
    }

    fn part(topic: &str, partition: i32, lines: &str) -> PartitionRecords {
        let name = Name::parse(topic).unwrap();
        let count = lines.lines().count() as i64;
        let row = BatchRow {
            base_offset: 7,
            record_count: count,
            appended_at: Timestamp(1_795_248_000_123),
            transaction_id: None,
            kept: None,
            lines: lines.to_owned(),
        };
        let row = Arc::new(row);
        let slice =
            Slice { row, first_offset: 7, start: 0, end: lines.len(), end_offset: 7 + count };
        PartitionRecords { origin: origin(Some(&name), partition), slices: vec![slice] }
    }

    #[test]
    fn records_say_where_they_are_from() {
        let parts =
            [part("b", 12, "{\"value\":1}\n{\"value\":2}\n"), part("a", 0, "{\"value\":3}\n")];
        let at = "\"appended_at\":\"2026-11-21T08:00:00.123Z\"";
        let lines = [
            format!(r#"{{"topic":"b","partition":12,"offset":7,{at},"value":1}}"#),
            format!(r#"{{"topic":"b","partition":12,"offset":8,{at},"value":2}}"#),
            format!(r#"{{"topic":"a","partition":0,"offset":7,{at},"value":3}}"#),
        ];
        let body = ndjson(&parts);
        assert!(body.len() <= total_capacity(&parts));
        assert_eq!(String::from_utf8(body).unwrap(), lines.join("\n") + "\n");
        let own = |topic: &str, numbers: &[i32]| -> Partitions {
            [(Name::parse(topic).unwrap(), numbers.iter().copied().collect())].into()
        };
        let membership = group::Membership {
            generation: 3,
            assignment: own("a", &[1, 0]),
            revoked: own("b", &[2]),
        };
        let ends = Ends::new(membership.into(), "AbC-_").unwrap();
        let body = json_body(&ends, &parts);
        assert!(body.len() <= ends.size_bytes() + total_capacity(&parts));
        let want = format!(
            r#"{{"generation":3,"assignment":[{{"topic":"a","partitions":[0,1]}}],"revoked":[{{"topic":"b","partitions":[2]}}],"records":[{}],"cursor":"AbC-_"}}"#,
            lines.join(",")
        );
        assert_eq!(String::from_utf8(body).unwrap(), want);
    }

    #[test]
    fn nothing_is_an_empty_list() {
        let ends = Ends::new(group::Membership::default().into(), "c").unwrap();
        let body = String::from_utf8(json_body(&ends, &[])).unwrap();
        assert_eq!(
            body,
            r#"{"generation":0,"assignment":[],"revoked":[],"records":[],"cursor":"c"}"#
        );
        assert!(ndjson(&[]).is_empty());
    }
}
