//! One-request transactions with ids generated here: a retry of the same request runs once.
//!
//! The ids of a run count up from the first one, and a transaction is sent after the one before it
//! is committed. So a run that is restarted with the same first id finds its place by looking up a
//! few ids. It needs no session, and two runs at the same time do no harm: both send the same
//! transactions.

use anyhow::{Context, bail};
use bytes::Bytes;
use reqwest::{Method, RequestBuilder, header::CONTENT_TYPE};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::{Value, value::RawValue};
use uuid::Uuid;

use super::Destination;
use crate::cli::client::{Client, Failure, Problem};

/// The size limit of an append in a transaction: half of the default of `max_batch_bytes`. Like all
/// that decides what a request holds, it must not change between two runs.
const APPEND_BYTES: usize = 1 << 19;
/// The default of `max_body_bytes`.
const MAX_BODY_BYTES: usize = 16 << 20;
/// The fields that a read adds to a record.
const READ_FIELDS: [&str; 5] = ["offset", "partition", "topic", "appended_at", "transaction_id"];

const EXPIRED: &str = "\
transactions are remembered for the tenant's transaction_retention_ms (7 days unless set), and an \
id is accepted for that long after the instant in it, which comes from this machine's clock; later \
the server cannot know whether it has run. Check with `oncelog consume` where the log ends, and \
send the rest of the input with a new --transaction-id (`oncelog txn id` creates one)";

pub struct TransactionRun {
    /// None: every transaction gets a random id.
    first: Option<Uuid>,
    batch_size: usize,
    /// The beginning of each append.
    head: String,
}

impl TransactionRun {
    /// Returns also how many transactions earlier runs with the same first id have committed.
    pub async fn open(
        client: &Client,
        destination: &Destination,
        first: Option<Uuid>,
        batch_size: usize,
    ) -> anyhow::Result<(Self, i64)> {
        let partition = destination.partition.map(|number| format!("\"partition\":{number},"));
        let partition = partition.unwrap_or_default();
        let head = format!("{{\"topic\":\"{}\",{partition}\"records\":[", destination.topic);
        let committed = match first {
            Some(first) => count_committed(client, first).await?,
            None => 0,
        };
        Ok((Self { first, batch_size, head }, committed))
    }

    /// Builds the request of transaction `number`, and where each of its appends begins.
    pub fn request(
        &self,
        client: &Client,
        number: i64,
        ndjson: &[u8],
        lines: &[u64],
    ) -> anyhow::Result<(RequestBuilder, Vec<usize>)> {
        let id = self.first.map_or_else(Uuid::now_v7, |first| nth(first, number));
        let (body, starts) = self.body(id, std::str::from_utf8(ndjson)?, lines)?;
        let request = client.request(Method::POST, &["transactions"], &[]);
        let request = request.header(CONTENT_TYPE, "application/json").body(Bytes::from(body));
        Ok((request, starts))
    }

    fn body(&self, id: Uuid, ndjson: &str, lines: &[u64]) -> anyhow::Result<(String, Vec<usize>)> {
        let mut body =
            format!("{{\"transaction_id\":\"{id}\",\"commit\":true,\"appends\":[{}", self.head);
        let (mut starts, mut records, mut bytes) = (vec![0], 0, 0);
        for (index, (text, line)) in ndjson.split_terminator('\n').zip(lines).enumerate() {
            let record =
                strip_read_fields(text).with_context(|| format!("line {line}: not a record"))?;
            if records == self.batch_size || records > 0 && bytes + record.len() > APPEND_BYTES {
                body.push_str("]},");
                body.push_str(&self.head);
                starts.push(index);
                (records, bytes) = (0, 0);
            }
            if records > 0 {
                body.push(',');
            }
            body.push_str(&record);
            (records, bytes) = (records + 1, bytes + record.len());
        }
        body.push_str("]}]}");
        if body.len() > MAX_BODY_BYTES {
            bail!(
                "lines {} to {} make a request of more than {MAX_BODY_BYTES} bytes: give a smaller \
                 --transaction-size",
                lines.first().copied().unwrap_or_default(),
                lines.last().copied().unwrap_or_default()
            );
        }
        Ok((body, starts))
    }
}

/// The ids of a run count up from the first, in the last 62 bits: they keep its instant, and a list
/// shows them in the order of the input.
fn nth(first: Uuid, number: i64) -> Uuid {
    const COUNTED: u128 = (1 << 62) - 1;
    let first = first.as_u128();
    let counted = first.wrapping_add(u128::from(number.unsigned_abs())) & COUNTED;
    Uuid::from_u128(first & !COUNTED | counted)
}

/// The number of committed transactions of a run. Each is sent after the one before it is
/// committed, so an exponential and a binary search find the first that is missing.
async fn count_committed(client: &Client, first: Uuid) -> anyhow::Result<i64> {
    let (mut held, mut step) = (0, 1);
    while is_committed(client, nth(first, held + step - 1)).await? {
        held += step;
        step *= 2;
    }
    while step > 1 {
        step /= 2;
        if is_committed(client, nth(first, held + step - 1)).await? {
            held += step;
        }
    }
    Ok(held)
}

async fn is_committed(client: &Client, id: Uuid) -> anyhow::Result<bool> {
    let text = id.to_string();
    let get = client.request(Method::GET, &["transactions", &text], &[]);
    match client.send(get).await {
        Ok(answer) => match answer.json::<Value>()?["state"].as_str() {
            Some("committed") => Ok(true),
            state => bail!(
                "transaction {id} is {}, so it is not of an earlier run: give each input a \
                 --transaction-id of its own (`oncelog txn id` creates one)",
                state.unwrap_or("in no state")
            ),
        },
        Err(Failure::Refused(problem)) if problem.code == "transaction_not_found" => Ok(false),
        Err(failure) => {
            let hint = match &failure {
                Failure::Refused(problem) => hint_for(problem),
                _ => None,
            };
            let hint = hint.map(|hint| format!("\n{hint}")).unwrap_or_default();
            bail!("cannot look up transaction {id}: {failure}{hint}")
        }
    }
}

/// The record of a line without the fields that a read adds: an append of NDJSON ignores them, a
/// transaction refuses them. It also makes sure that one line is one record.
fn strip_read_fields(line: &str) -> anyhow::Result<String> {
    let Members(members) = serde_json::from_str(line)?;
    if !members.iter().any(|(name, _)| READ_FIELDS.contains(&name.as_str())) {
        return Ok(line.to_owned());
    }
    let kept = members.iter().filter(|(name, _)| !READ_FIELDS.contains(&name.as_str()));
    let kept = kept.map(|(name, value)| format!("{}:{value}", Value::from(name.as_str())));
    Ok(format!("{{{}}}", kept.collect::<Vec<_>>().join(",")))
}

/// The members of an object in order, duplicates included: the server must see and refuse them.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        json.deserialize_map(Object)
    }
}

/// Advice to the user about a refusal.
pub fn hint_for(problem: &Problem) -> Option<&'static str> {
    Some(match problem.code.as_str() {
        "transaction_expired" => EXPIRED,
        "invalid_transaction_id" => {
            "ids contain the time of this machine, unless --transaction-id is given: is its clock \
             right?"
        }
        "transaction_reused" => {
            "the id was used for other lines: give each input its own --transaction-id \
             (`oncelog txn id` creates one)"
        }
        "transaction_too_large" => {
            "give a smaller --transaction-size, or a larger --batch-size for fewer appends; keep \
             --transaction-id only if nothing was stored yet"
        }
        "batch_too_large" => {
            "the limits of the topic apply to each append of a transaction: give a smaller \
             --batch-size (a record above max_record_bytes is always refused); keep \
             --transaction-id only if nothing was stored yet"
        }
        "payload_too_large" => {
            "a transaction is one request: give a smaller --transaction-size, or raise the limit \
             of the server (max_body_bytes, 16 MiB unless configured); keep --transaction-id \
             only if nothing was stored yet"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "019aa5b6-5c00-7000-8000-000000000000";

    fn body(batch_size: usize, ndjson: &str) -> anyhow::Result<(Value, Vec<usize>)> {
        let head = "{\"topic\":\"t\",\"records\":[".to_owned();
        let transactions = TransactionRun { first: None, batch_size, head };
        let lines: Vec<u64> = (1..).take(ndjson.lines().count()).collect();
        let (body, starts) = transactions.body(FIRST.parse().unwrap(), ndjson, &lines)?;
        Ok((serde_json::from_str(&body).unwrap(), starts))
    }

    #[test]
    fn a_transaction_is_cut_into_appends_by_records_and_by_bytes() {
        let (request, starts) = body(2, "{\"value\":1}\n{\"value\":2}\n{\"value\":3}\n").unwrap();
        assert_eq!((&request["transaction_id"], &request["commit"]), (&FIRST.into(), &true.into()));
        assert_eq!(
            request["appends"].to_string(),
            "[{\"records\":[{\"value\":1},{\"value\":2}],\"topic\":\"t\"},\
             {\"records\":[{\"value\":3}],\"topic\":\"t\"}]"
        );
        assert_eq!(starts, [0, 2]);
        let large = format!("{{\"value\":\"{}\"}}\n", "x".repeat(APPEND_BYTES / 2));
        assert_eq!(body(9, &large.repeat(3)).unwrap().1, [0, 1, 2]);
        // a record above the size limit of an append gets an append of its own
        let larger = format!("{{\"value\":\"{}\"}}\n", "x".repeat(APPEND_BYTES));
        assert_eq!(body(9, &larger.repeat(2)).unwrap().1, [0, 1]);
        let error = body(9, &larger.repeat(32)).unwrap_err().to_string();
        assert!(error.contains("lines 1 to 32") && error.contains("--transaction-size"), "{error}");
    }

    #[test]
    fn a_line_is_one_record_without_what_a_read_adds() {
        let table = [
            (r#" {"value":1.50} "#, r#" {"value":1.50} "#),
            (
                r#"{"offset":1,"partition":0,"topic":"t","k\u0065y":"a","appended_at":"x","value":{"offset": 1}}"#,
                r#"{"key":"a","value":{"offset": 1}}"#,
            ),
            (r#"{"transaction_id":"x","value":1,"value":2}"#, r#"{"value":1,"value":2}"#),
            (r#"{"offset":1}"#, "{}"),
        ];
        for (line, want) in table {
            assert_eq!(strip_read_fields(line).unwrap(), want);
        }
        for line in [r#"{"value":1},{"value":2}"#, r#"{"value":1"#, "7", "", "]}"] {
            let error = body(9, &format!("{{\"value\":0}}\n{line}\n")).unwrap_err();
            assert!(format!("{error:#}").starts_with("line 2: not a record: "), "{error:#}");
        }
    }

    #[test]
    fn ids_count_on_and_stay_ids_of_the_same_instant() {
        let first: Uuid = FIRST.parse().unwrap();
        assert_eq!(nth(first, 0), first);
        assert_eq!(nth(first, 258).to_string(), "019aa5b6-5c00-7000-8000-000000000102");
        let last: Uuid = "019aa5b6-5c00-7000-bfff-ffffffffffff".parse().unwrap();
        assert_eq!(nth(last, 1), first);
    }
}
