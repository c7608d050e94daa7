//! What came of bursts: each acknowledged append exactly once where it was said to be, each repeat
//! answered as the first, transactions whole or not at all, one winner of each compare-and-set.

use std::collections::{BTreeMap, BTreeSet};

use oncelog::rules::append::producer_state::REMEMBERED_REQUESTS;
use serde_json::{Value, json};

use super::{
    OFF, Off,
    bursts::{Act, Fact, Form, TOPICS},
    call::{Body, Request},
    fleet::Client,
    want::Reply,
};

/// Of which shot, which part of it, which record there.
type Mark = (i64, i64, i64);
type Place = (String, i64, i64);

/// What lies in the logs of a tenant.
#[derive(Default)]
struct Stored {
    places: BTreeMap<Mark, Vec<Place>>,
    records: BTreeMap<Place, Value>,
}

async fn get(client: &Client<'_>, path: String) -> Reply {
    client.send(0, &Request { method: "GET", path, ..Request::default() }).await
}

async fn stored(client: &Client<'_>) -> Result<Stored, String> {
    let mut stored = Stored::default();
    for (topic, _) in TOPICS {
        let described = get(client, format!("/v1/topics/{topic}")).await.body;
        for partition in 0..described["partition_count"].as_i64().unwrap() {
            let at = format!("/v1/topics/{topic}/partitions/{partition}/records?limit=10000");
            let page = get(client, at).await.body;
            let records = page["records"].as_array().unwrap();
            for (want, record) in (0_i64..).zip(records) {
                let offset = record["offset"].as_i64().unwrap();
                if offset != want {
                    return Err(format!("{topic}/{partition}: {offset} where {want} has to be"));
                }
                let place = (topic.to_owned(), partition, offset);
                let mark = mark(&record["value"]);
                stored.places.entry(mark).or_default().push(place.clone());
                stored.records.insert(place, record.clone());
            }
            if page["high_watermark"] != json!(records.len()) {
                return Err(format!("{topic}/{partition}: not all is there: {page}"));
            }
        }
    }
    Ok(stored)
}

fn mark(value: &Value) -> Mark {
    let number = |name: &str| value[name].as_i64().unwrap();
    (number("shot"), number("part"), number("index"))
}

fn is_done(reply: &&Reply) -> bool {
    reply.status < 300
}

fn body(request: &Request) -> &Value {
    match &request.body {
        Body::Json(body) => body,
        Body::None | Body::Lines(_) => &Value::Null,
    }
}

fn marks(records: &Value) -> Vec<Mark> {
    let records = records.as_array().into_iter().flatten();
    records.map(|record| mark(&record["value"])).collect()
}

pub async fn judge(client: &Client<'_>, facts: &[&Fact]) -> Result<(), String> {
    let stored = stored(client).await?;
    for fact in facts {
        let judged = match fact.part {
            "append" => judge_append(fact, facts, &stored),
            "whole" => judge_whole(fact, &stored),
            "read" => judge_read(fact, &stored),
            "open" => judge_open(fact),
            "commit" | "grow" | "records" | "more" | "offsets" | "end" | "again" => Ok(()),
            other => Err(format!("{other}?")),
        };
        judged.and_then(|()| no_failure(fact)).map_err(|why| told(fact, &why))?;
    }
    judge_opens(facts)?;
    for fact in facts.iter().filter(|fact| fact.part == "end") {
        judge_staged(client, fact, facts, &stored).await.map_err(|why| told(fact, &why))?;
    }
    judge_offsets(client, facts).await
}

fn told(fact: &Fact, why: &str) -> String {
    let Request { method, path, key, .. } = &fact.request;
    let replies = fact.replies.iter().map(|reply| format!("\n    {} {}", reply.status, reply.body));
    let replies: String = replies.collect();
    let shot = fact.shot.number;
    format!("shot {shot}: {why}\n{method} {path} {key:?} {}{replies}", body(&fact.request))
}

/// Nothing but what the contract says of healthy servers.
fn no_failure(fact: &Fact) -> Result<(), String> {
    let failed = fact.replies.iter().find(|reply| reply.status >= 500);
    failed.map_or(Ok(()), |reply| Err(format!("{}", reply.body)))
}

/// Of all answers that say it was done: the first and its repeats say the same, and one only that
/// it was done now.
fn same_answers<'a>(fact: &'a Fact, what: &[&str]) -> Result<Option<&'a Reply>, String> {
    let done: Vec<&Reply> = fact.replies.iter().filter(is_done).collect();
    let Some(first) = done.first() else { return Ok(None) };
    for reply in &done {
        if let Some(field) = what.iter().find(|field| reply.body[**field] != first.body[**field]) {
            return Err(format!("{field} of a repeat differs"));
        }
    }
    let now = done.iter().filter(|reply| reply.body["duplicate"] == json!(false)).count();
    if now > 1 { Err(format!("done {now} times")) } else { Ok(Some(first)) }
}

/// Whether the producer has appended so often since that the place of this append is forgotten.
fn may_be_forgotten(fact: &Fact, facts: &[&Fact]) -> bool {
    let of = |fact: &Fact| {
        let sent = body(&fact.request);
        (fact.request.path.clone(), sent["producer_id"].as_i64(), sent["epoch"].as_i64())
    };
    let sequence = |fact: &Fact| body(&fact.request)["sequence"].as_i64();
    let is_later = |other: &&&Fact| {
        of(other) == of(fact)
            && sequence(other) > sequence(fact)
            && other.replies.iter().any(|reply| is_done(&reply))
    };
    sequence(fact).is_some() && facts.iter().filter(is_later).count() >= REMEMBERED_REQUESTS
}

/// Without the repeats whose answer says that the place is forgotten.
fn remembered(fact: &Fact) -> Fact {
    let says_where = |reply: &&Reply| {
        let said = ["appended_at", "offsets", "base_offset"].map(|name| &reply.body[name]);
        !is_done(reply) || reply.body["duplicate"] == json!(false) || said != [&Value::Null; 3]
    };
    Fact { replies: fact.replies.iter().filter(says_where).cloned().collect(), ..fact.clone() }
}

fn judge_append(fact: &Fact, facts: &[&Fact], stored: &Stored) -> Result<(), String> {
    let Act::Append { form, .. } = fact.shot.act else { return Ok(()) };
    let fact = &if may_be_forgotten(fact, facts) { remembered(fact) } else { fact.clone() };
    // what of each record is told depends on whether it is a repeat, where records have ids
    let what: &[&str] = match form {
        Form::Ids => &["topic"],
        _ => &["topic", "partition", "base_offset", "record_count", "offsets", "appended_at"],
    };
    let first = same_answers(fact, what)?;
    let marks = marks(&body(&fact.request)["records"]);
    let Some(first) = first else {
        let refused = fact.replies.iter().map(|reply| reply.body["code"].clone());
        return Err(format!("never taken: {:?}", refused.collect::<Vec<_>>()));
    };
    let topic = first.body["topic"].as_str().unwrap();
    for (index, mark) in marks.iter().enumerate() {
        let places = stored.places.get(mark).map(Vec::as_slice).unwrap_or_default();
        if places.len() != 1 {
            return Err(format!("record {index} is stored {} times: {places:?}", places.len()));
        }
        let said = match first.body["offsets"].as_array() {
            Some(offsets) => {
                (offsets[index]["partition"].as_i64(), offsets[index]["offset"].as_i64())
            }
            None => {
                let base = first.body["base_offset"].as_i64();
                (first.body["partition"].as_i64(), base.map(|base| base + index as i64))
            }
        };
        let (at, partition, offset) = &places[0];
        if at != topic || said != (Some(*partition), Some(*offset)) {
            return Err(format!("record {index} lies at {places:?}, not at {said:?}"));
        }
    }
    Ok(())
}

/// The places of a committed transaction hold its records, each once, in their order.
fn judge_places(
    id: &str,
    committed: &Reply,
    wanted: &[Mark],
    stored: &Stored,
) -> Result<(), String> {
    let mut left: BTreeSet<Mark> = wanted.iter().copied().collect();
    for item in committed.body["appends"].as_array().into_iter().flatten() {
        let topic = item["topic"].as_str().unwrap().to_owned();
        let partition = item["partition"].as_i64().unwrap();
        let base = item["base_offset"].as_i64().unwrap_or(0);
        for offset in base..base + item["record_count"].as_i64().unwrap() {
            let place = (topic.clone(), partition, offset);
            let record = stored.records.get(&place).ok_or(format!("nothing at {place:?}"))?;
            if record["transaction_id"] != json!(id) || !left.remove(&mark(&record["value"])) {
                return Err(format!("{place:?} holds {record}"));
            }
        }
    }
    if !left.is_empty() {
        return Err(format!("{left:?} are missing"));
    }
    for mark in wanted {
        let places = &stored.places[mark];
        if places.len() != 1 {
            return Err(format!("{mark:?} is stored {} times: {places:?}", places.len()));
        }
    }
    Ok(())
}

fn judge_whole(fact: &Fact, stored: &Stored) -> Result<(), String> {
    let request = body(&fact.request);
    let appends = request["appends"].as_array().unwrap().iter();
    let wanted: Vec<Mark> = appends.flat_map(|item| marks(&item["records"])).collect();
    match same_answers(fact, &["appends", "state", "transaction_id", "ended_at"])? {
        Some(committed) => {
            let id = request["transaction_id"].as_str().unwrap();
            judge_places(id, committed, &wanted, stored)
        }
        None => {
            let is_there = wanted.iter().find(|mark| stored.places.contains_key(mark));
            let code = &fact.replies[0].body["code"];
            let may_be_refused = *code == json!("offset_commit_conflict");
            match is_there {
                Some(mark) => Err(format!("refused, and {mark:?} is there")),
                None if may_be_refused => Ok(()),
                None => Err("refused".to_owned()),
            }
        }
    }
}

/// A transaction is seen whole or not at all, in all partitions that an answer covers.
fn judge_read(fact: &Fact, stored: &Stored) -> Result<(), String> {
    let answer = &fact.replies[0].body;
    let topic = answer["topic"].as_str().ok_or("no answer")?;
    let ends: BTreeMap<i64, i64> = answer["partitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|at| (at["partition"].as_i64().unwrap(), at["high_watermark"].as_i64().unwrap()))
        .collect();
    let shown = answer["records"].as_array().unwrap().len() as i64;
    if shown != ends.values().sum::<i64>() {
        return Err(format!("{shown} records up to {ends:?}"));
    }
    let mut seen: BTreeMap<&str, BTreeSet<bool>> = BTreeMap::new();
    for ((of, partition, offset), record) in &stored.records {
        if let Some(id) = record["transaction_id"].as_str().filter(|_| of == topic) {
            let end = ends.get(partition).copied().unwrap_or(0);
            seen.entry(id).or_default().insert(*offset < end);
        }
    }
    let half = seen.iter().find(|(_, seen)| seen.len() > 1);
    let half = half.filter(|_| !OFF.contains(&Off::HalfTransactions));
    half.map_or(Ok(()), |(id, _)| Err(format!("half of transaction {id} up to {ends:?}")))
}

/// A client that has won with this open id has won with every repeat of it that was on its way as
/// well.
fn judge_open(fact: &Fact) -> Result<(), String> {
    let won = fact.replies.iter().filter(is_done).count();
    if won == 0 || won == fact.replies.len() || OFF.contains(&Off::RepeatedReopens) {
        return same_answers(fact, &["producer_id", "epoch"]).map(|_| ());
    }
    Err("won, and the repeat is refused".to_owned())
}

/// No epoch was given to two open ids.
fn judge_opens(facts: &[&Fact]) -> Result<(), String> {
    let mut winners: BTreeMap<(i64, i64), &Fact> = BTreeMap::new();
    for fact in facts.iter().filter(|fact| fact.part == "open") {
        let Some(won) = fact.replies.iter().find(is_done) else { continue };
        let number = |name: &str| won.body[name].as_i64().unwrap();
        if let Some(other) = winners.insert((number("producer_id"), number("epoch")), fact) {
            return Err(told(fact, &format!("shot {} has this epoch", other.shot.number)));
        }
    }
    Ok(())
}

/// What was taken while it was open is committed with it, and nothing else.
async fn judge_staged(
    client: &Client<'_>,
    end: &Fact,
    facts: &[&Fact],
    stored: &Stored,
) -> Result<(), String> {
    let committed = same_answers(end, &["appends", "ended_at"])?.ok_or("not committed")?;
    let id = committed.body["transaction_id"].as_str().unwrap();
    let its = |fact: &&&Fact| fact.shot.number == end.shot.number;
    let (mut wanted, mut moves) = (Vec::new(), false);
    for fact in facts.iter().filter(its) {
        let is_taken = fact.replies.iter().any(|reply| is_done(&reply));
        match fact.part {
            "records" | "more" if is_taken => {
                wanted.extend(marks(&body(&fact.request)["appends"][0]["records"]));
            }
            "offsets" => moves = is_taken,
            _ => {}
        }
    }
    judge_places(id, committed, &wanted, stored)?;
    let group = format!("/v1/groups/group-{}/offsets", end.shot.number);
    let has_moved = get(client, group).await.status == 200;
    if has_moved == moves || OFF.contains(&Off::OffsetsBesideCommits) {
        return Ok(());
    }
    Err(format!("offsets taken: {moves}; committed with it: {has_moved}"))
}

/// Compare-and-sets that were done make one chain, whose end is committed.
async fn judge_offsets(client: &Client<'_>, facts: &[&Fact]) -> Result<(), String> {
    let mut moves: BTreeMap<i64, Vec<(Option<i64>, i64)>> = BTreeMap::new();
    for fact in facts.iter().filter(|fact| fact.part == "commit" || fact.part == "whole") {
        // a plain commit has nothing that distinguishes its repeat from another
        let done = fact.replies.iter().filter(is_done).count();
        let done = if fact.part == "whole" { done.min(1) } else { done };
        for item in body(&fact.request)["offsets"].as_array().into_iter().flatten() {
            let step = (item["expected_offset"].as_i64(), item["offset"].as_i64().unwrap());
            let partition = item["partition"].as_i64().unwrap();
            let its = moves.entry(partition).or_default();
            // who moves nothing may do so at any time
            its.extend(std::iter::repeat_n(step, done).filter(|step| step.0 != Some(step.1)));
        }
    }
    let committed = get(client, "/v1/groups/group/offsets".into()).await.body;
    for (partition, mut moves) in moves {
        moves.sort_unstable();
        let mut at = None;
        for (from, to) in &moves {
            if *from != at {
                return Err(format!(
                    "partition {partition}: from {at:?}, but {from:?} to {to} was done: {moves:?}"
                ));
            }
            at = Some(*to);
        }
        let offsets = committed["offsets"].as_array().into_iter().flatten();
        let said = offsets.into_iter().find(|said| said["partition"] == json!(partition));
        let said = said.and_then(|said| said["offset"].as_i64());
        if said != at {
            return Err(format!("partition {partition}: {said:?} is committed, not {at:?}"));
        }
    }
    Ok(())
}
