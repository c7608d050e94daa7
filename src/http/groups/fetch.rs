//! Members fetch: records of all their partitions in one answer.

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
            auth::Word,
            body::JsonBody,
            json::Faults,
            media::{AnswersRecords, Media},
            query::{ParameterPlace, Query},
        },
        openapi::schemas::FetchAnswer,
        reads::{
            bounds::Bounds,
            cursors,
            records::{self, drop_last, write_records},
        },
    },
    model::{
        Invalid, Name,
        read::{self, Fetch, GroupFetched, PartitionRecords},
    },
};

/// What a fetch asks for, in the URL or in a body.
#[derive(Default, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FetchParameters {
    /// Where to go on: the `cursor` of an answer, as it stands. Without: from the committed offsets.
    cursor: Option<String>,
    /// Where the run begins that the answer goes on with: what a transaction with its cursor has
    /// processed. Without: at the cursor, where exactly that is committed by now, else where the
    /// cursor's run began. `continue`: where the cursor's run began, whatever was committed. `new`: at
    /// the cursor.
    #[param(inline)]
    run: Option<Run>,
    /// Most records to answer, of all partitions together.
    #[param(minimum = 1, maximum = 10000, default = 500)]
    #[schema(minimum = 1, maximum = 10000, default = 500)]
    limit: Option<i64>,
    /// Most bytes of records to answer, of all partitions together; the first one always comes.
    #[param(minimum = 1, maximum = 16777216, default = 1048576)]
    #[schema(minimum = 1, maximum = 16777216, default = 1048576)]
    max_bytes: Option<i64>,
    /// How long to wait for a record when there is none yet in any partition (a long poll); it may
    /// be longer than the lease, which goes on meanwhile.
    #[param(minimum = 0, maximum = 60000, default = 0)]
    #[schema(minimum = 0, maximum = 60000, default = 0)]
    wait_ms: Option<i64>,
}

/// Where a run begins, if not where the newest commit says.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Run {
    Continue,
    New,
}

impl FetchParameters {
    fn checked(self, place: ParameterPlace) -> Result<Fetch, Invalid> {
        let mut faults = Faults::default();
        let run = match self.run {
            None => read::Run::SinceCommit,
            Some(Run::Continue) => read::Run::Continue,
            Some(Run::New) => read::Run::New,
        };
        if run == read::Run::Continue && self.cursor.is_none() {
            faults.add("?run", "there is no run to continue; continue comes with a cursor");
        }
        let Bounds { limit, max_bytes, wait_ms } =
            Bounds::checked(&mut faults, place, self.limit, self.max_bytes, self.wait_ms);
        cursors::check(&mut faults, place, self.cursor.as_deref(), LONG_CURSORS);
        faults.finish()?;
        Ok(Fetch { cursor: self.cursor, run, limit, max_bytes, wait_ms })
    }
}

/// What takes a cursor that is too long for a URL.
const LONG_CURSORS: &str = "POST /v1/groups/{group}/members/{member_id}/records";

/// What the fetch of the document's story answers.
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

/// The next answer.
fn nothing_new() -> Value {
    let mut answer = example();
    answer["records"] = json!([]);
    answer
}

/// Fetch records
///
/// Committed records of the member's partitions: those of one partition together and in order, each
/// partition a fair part. It begins at the committed offsets (where there is none, as the group's
/// `auto_offset_reset` says), or with a `cursor` where the answer it came with ended; the same cursor
/// gives the same records again, so a lost answer loses nothing. What the cursor says of a partition
/// that the member has lost since, or lost and got back, does not count.
///
/// A cursor also says where the run began that it ends: a transaction with records commits it only if
/// that is still committed there, so that what was processed once is not processed a second time.
/// After a commit of a cursor the fetch with it begins a new run, without further ado; `run` is for
/// those who fetch ahead of their commits (`new`) or gather several answers for one transaction
/// (`continue`).
///
/// The lease is renewed. With `wait_ms` an empty answer waits for the first record; what is to be let
/// go of ends the wait at once: it is in `revoked`, and no records of it come any more. It goes to its
/// new owner with the first call that shows this answer: a fetch or commit with its cursor, or a
/// heartbeat with its `generation`. What is not let go of so within the session timeout, and 30
/// seconds, is taken.
///
/// `Accept: application/x-ndjson` asks for the records alone, one a line; what to let go of is then
/// told by heartbeats only. The token needs `group` for the group, and `consume` for every topic in
/// the assignment.
#[utoipa::path(get, path = "/v1/groups/{group}/members/{member_id}/records",
    operation_id = "fetch_group", tag = "groups",
    params(("group" = String, Path, description = "The group's name"),
        ("member_id" = String, Path, description = "The `member_id` of the join"), FetchParameters),
    responses((status = 200, description = "Records, perhaps none",
        content(
            (FetchAnswer = "application/json", example = json!(example())),
            (String = "application/x-ndjson", example = json!(
                "{\"topic\":\"orders\",\"partition\":1,\"offset\":0,\"appended_at\":\
                 \"2026-11-21T08:00:00.000Z\",\"value_base64\":\"AAEC\",\"key\":\"customer-1\"}\n\
                 {\"topic\":\"orders\",\"partition\":3,\"offset\":0,\"appended_at\":\
                 \"2026-11-21T08:00:00.000Z\",\"value\":{\"total\":12.5},\"key\":\"customer-7\",\
                 \"headers\":{\"source\":\"web\"}}\n"))),
        headers(
            ("Oncelog-Cursor" = String, description = "With NDJSON: where to go on"),
            ("Oncelog-Generation" = i64, description = "With NDJSON: the newest generation")))),
    security(("bearer" = ["group", "consume"])))]
pub async fn fetch_group(
    access: GroupAccess<Group>,
    State(gate): State<Arc<Admission>>,
    MemberPath(member_id): MemberPath,
    AnswersRecords(media): AnswersRecords,
    Query(query): Query<FetchParameters>,
) -> Result<Response, Error> {
    answer(access, &gate, &member_id, media, query.checked(ParameterPlace::Query)?).await
}

/// Fetch records with a long cursor
///
/// The same as the `GET`, with its parameters as a JSON body: for cursors that are too long for a URL (of
/// more than 8 KiB), as those of members that own very many partitions are. It can be repeated as it is.
#[utoipa::path(post, path = "/v1/groups/{group}/members/{member_id}/records",
    operation_id = "fetch_group_by_body", tag = "groups",
    params(("group" = String, Path, description = "The group's name"),
        ("member_id" = String, Path, description = "The `member_id` of the join")),
    request_body(content = FetchParameters, description = "The parameters of the fetch",
        example = json!({"cursor": CURSOR, "limit": 500, "wait_ms": 0})),
    responses((status = 200, description = "Records, perhaps none",
        content(
            (FetchAnswer = "application/json", example = json!(nothing_new())),
            (String = "application/x-ndjson", example = json!(""))),
        headers(
            ("Oncelog-Cursor" = String, description = "With NDJSON: where to go on"),
            ("Oncelog-Generation" = i64, description = "With NDJSON: the newest generation")))),
    security(("bearer" = ["group", "consume"])))]
pub async fn fetch_group_by_body(
    access: GroupAccess<Group>,
    State(gate): State<Arc<Admission>>,
    MemberPath(member_id): MemberPath,
    AnswersRecords(media): AnswersRecords,
    sent: JsonBody<FetchParameters>,
) -> Result<Response, Error> {
    answer(access, &gate, &member_id, media, sent.body.checked(ParameterPlace::Body)?).await
}

async fn answer(
    access: GroupAccess<Group>,
    gate: &Admission,
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
            gate.answer(ends.size_bytes() + capacity(&parts), || json_body(&ends, &parts))?
        }
        Media::Ndjson => gate.answer(capacity(&parts), || ndjson_body(&parts))?,
    };
    let content_type = HeaderValue::from_static(media.as_str());
    let mut answer = ([(CONTENT_TYPE, content_type)], body).into_response();
    if media == Media::Ndjson {
        answer.headers_mut().insert("oncelog-cursor", cursors::header(cursor)?);
        answer.headers_mut().insert("oncelog-generation", generation.into());
    }
    Ok(answer)
}

/// What stands around the records.
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
    let mut body = Vec::with_capacity(ends.size_bytes() + capacity(parts));
    body.extend_from_slice(&ends.head);
    for part in parts {
        write_records(&mut body, &part.origin, &part.slices, b',');
    }
    drop_last(&mut body, b',');
    body.extend_from_slice(ends.tail.as_bytes());
    body
}

fn ndjson_body(parts: &[PartitionRecords]) -> Vec<u8> {
    let mut body = Vec::with_capacity(capacity(parts));
    for part in parts {
        write_records(&mut body, &part.origin, &part.slices, b'\n');
    }
    body
}

fn capacity(parts: &[PartitionRecords]) -> usize {
    parts.iter().map(|part| records::capacity(&part.origin, &part.slices)).sum()
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

    fn fetch(text: &str) -> Result<Fetch, Invalid> {
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
            assert_eq!(fetch(text).unwrap_err().faults[0].pointer, pointer, "{text}");
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
        let body = ndjson_body(&parts);
        assert!(body.len() <= capacity(&parts));
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
        assert!(body.len() <= ends.size_bytes() + capacity(&parts));
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
        assert!(ndjson_body(&[]).is_empty());
    }
}
