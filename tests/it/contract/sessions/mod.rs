//! Sessions over HTTP: open, retry, conditional open, reset, close, and their responses.

pub mod late_copies;

use oncelog::model::Code;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::http::{Answer, Call, Server, now_s};

const OPEN: &str = "/v1/sessions";

fn open(server: &Server, body: Value) -> Call {
    server.post(OPEN).json(body)
}

fn id_of(session: &Value) -> i64 {
    session["producer_id"].as_i64().unwrap()
}

fn append(server: &Server, path: &str, p: i64, epoch: i64, sequence: i64, value: &str) -> Call {
    server.post(path).json(json!({"producer_id": p, "epoch": epoch, "sequence": sequence,
        "records": [{"value": value}]}))
}

const WHOLE: &str = "/v1/topics/orders/records";
const ONE: &str = "/v1/topics/orders/partitions/0/records";

/// A UUIDv7 of this instant.
fn uuid_at(at_ms: u64) -> String {
    let nanos = u32::try_from(at_ms % 1_000).unwrap() * 1_000_000;
    Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, at_ms / 1_000, nanos)).to_string()
}

#[tokio::test]
async fn a_fresh_session_states_everything() {
    let server = Server::start().await;
    // no body, an empty one, {} and nulls are the same
    let nulls = json!({"transactional_id": null, "producer_id": null, "epoch": null,
        "open_id": null, "transaction_timeout_ms": null, "sequencing": null, "sequences": null});
    let mut ids = Vec::new();
    let opens = [server.post(OPEN), server.post(OPEN).json(""), open(&server, json!({}))];
    for call in opens.into_iter().chain([open(&server, nulls)]) {
        let answer: Answer = call.await;
        let session = answer.created();
        ids.push(id_of(&session));
        let location = format!("/v1/sessions/{}", id_of(&session));
        assert_eq!(answer.header("location"), Some(&*location));
        assert_eq!(
            session,
            json!({"producer_id": session["producer_id"], "epoch": 0, "transactional_id": null,
                "sequencing": "contiguous", "transaction_timeout_ms": 60_000, "closed": false,
                "opened_at": session["opened_at"], "next_sequences": [],
                "aborted_transaction": null, "prepared_transactions": [], "duplicate": false})
        );
        let mut seen = server.get(&location).await.ok();
        seen["duplicate"] = json!(false);
        assert_eq!(seen, session);
    }
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
}

#[tokio::test]
async fn a_name_keeps_its_producer_and_raises_its_epoch() {
    let server = Server::start().await;
    let named = |rest: Value| {
        let mut body = json!({"transactional_id": "p"});
        body.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        open(&server, body)
    };
    let first = named(json!({"transaction_timeout_ms": 900_000, "sequencing": "monotonic"}));
    let first = first.await.created();
    let told = (&first["transaction_timeout_ms"], &first["sequencing"]);
    assert_eq!(told, (&json!(900_000), &json!("monotonic")));
    // an open states everything: what is left out is the default, not what was
    let second = named(json!({})).await.created();
    assert_eq!((id_of(&second), &second["epoch"]), (id_of(&first), &json!(1)));
    let told = (&second["transaction_timeout_ms"], &second["sequencing"]);
    assert_eq!(told, (&json!(60_000), &json!("contiguous")));
    let other = open(&server, json!({"transactional_id": "P"})).await.created();
    assert_ne!(id_of(&other), id_of(&first));
}

#[tokio::test]
async fn what_is_wrong_with_an_open_is_named() {
    let server = Server::start().await;
    let v4 = "f81d4fae-7dec-41d0-a765-00a0c91e6bf6";
    let day = 24 * 3_600;
    let (old, ahead) = (now_s() - day - 60, now_s() + day + 60);
    let table: &[(Value, &[&str])] = &[
        (json!({"transactional": "p"}), &["/transactional"]),
        (json!({"transactional_id": ""}), &["/transactional_id"]),
        (json!({"transactional_id": "a b"}), &["/transactional_id"]),
        (json!({"transactional_id": ".."}), &["/transactional_id"]),
        (json!({"transactional_id": 1}), &["/transactional_id"]),
        (json!({"producer_id": 1}), &["/epoch"]),
        (json!({"epoch": 1}), &["/producer_id"]),
        (json!({"producer_id": -1, "epoch": 1_i64 << 53}), &["/producer_id", "/epoch"]),
        (json!({"open_id": v4}), &["/open_id"]),
        (json!({"open_id": "x"}), &["/open_id"]),
        (json!({"open_id": uuid_at(old * 1_000)}), &["/open_id"]),
        (json!({"open_id": uuid_at(ahead * 1_000)}), &["/open_id"]),
        (json!({"transaction_timeout_ms": 0}), &["/transaction_timeout_ms"]),
        (json!({"transaction_timeout_ms": 900_001}), &["/transaction_timeout_ms"]),
        (json!({"sequencing": "dense"}), &["/sequencing"]),
        (json!({"sequences": "restart"}), &["/sequences"]),
        (
            json!({"transactional_id": "", "open_id": "", "transaction_timeout_ms": -1}),
            &["/transactional_id", "/open_id", "/transaction_timeout_ms"],
        ),
        (json!([]), &[""]),
    ];
    for (body, pointers) in table {
        open(&server, body.clone()).await.invalid(pointers);
    }
    server.post("/v1/sessions?epoch=1").json("{}").await.invalid(&["?epoch"]);
    let surrogate = r#"{"transactional_id": "\ud800"}"#;
    server.post(OPEN).json(surrogate).await.refused(Code::InvalidRequest);
    let list = server.get("/v1/sessions").await.ok();
    assert_eq!(list, json!({"sessions": [], "next_after": null}));
}

/// The tenant's default and maximum; a default above the maximum is the maximum.
#[tokio::test]
async fn how_long_transactions_may_take_is_the_sessions_within_the_tenants_maximum() {
    let server = Server::start().await;
    let set = async |body: Value| drop(server.patch("/v1/settings").json(body).await.ok());
    let timeout = async |asked: Value| {
        let body = json!({"transactional_id": "p", "transaction_timeout_ms": asked});
        open(&server, body).await.created()["transaction_timeout_ms"].clone()
    };
    let beyond = async |asked: i64, maximum: i64| {
        let before = server.get("/v1/sessions").await.ok();
        for id in ["p", "new"] {
            let body = json!({"transactional_id": id, "transaction_timeout_ms": asked});
            let answer = open(&server, body).await;
            answer.invalid(&["/transaction_timeout_ms"]);
            assert!(answer.text().contains(&format!("which is {maximum}")), "{}", answer.text());
        }
        open(&server, json!({"transaction_timeout_ms": asked})).await.refused(Code::InvalidRequest);
        // nobody was made, nobody fenced
        assert_eq!(server.get("/v1/sessions").await.ok(), before);
    };
    assert_eq!(timeout(Value::Null).await, 60_000);
    assert_eq!(timeout(json!(900_000)).await, 900_000);
    beyond(900_001, 900_000).await;
    set(json!({"transaction_timeout_ms": 5_000, "max_transaction_timeout_ms": 7_000})).await;
    assert_eq!(timeout(Value::Null).await, 5_000);
    assert_eq!(timeout(json!(7_000)).await, 7_000);
    assert_eq!(timeout(json!(1)).await, 1);
    beyond(7_001, 7_000).await;
    // the patch is taken, in whatever order the two are changed
    set(json!({"max_transaction_timeout_ms": 3_000})).await;
    let settings = server.get("/v1/settings").await.ok()["settings"].clone();
    assert_eq!(settings["transaction_timeout_ms"], 5_000);
    assert_eq!(timeout(Value::Null).await, 3_000);
    beyond(5_000, 3_000).await;
    set(json!({"transaction_timeout_ms": 86_400_000})).await;
    assert_eq!(timeout(Value::Null).await, 3_000);
    set(json!({"max_transaction_timeout_ms": 86_400_000})).await;
    assert_eq!(timeout(Value::Null).await, 86_400_000);
    // malformed comes before too long, and that before the producer is looked for
    let body = json!({"producer_id": 999, "epoch": 0, "transaction_timeout_ms": 86_400_001});
    open(&server, body).await.invalid(&["/transaction_timeout_ms"]);
}

/// A repeat is answered with what was made, whatever the settings are by now.
#[tokio::test]
async fn a_repeated_open_is_not_judged_by_a_newer_maximum() {
    let server = Server::start().await;
    let body = json!({"transactional_id": "p", "transaction_timeout_ms": 9_000,
        "open_id": uuid_at(now_s() * 1_000)});
    let first = open(&server, body.clone()).await.created();
    server.patch("/v1/settings").json(json!({"max_transaction_timeout_ms": 5})).await.ok();
    let again = open(&server, body).await.ok();
    assert_eq!((&again["duplicate"], &again["epoch"]), (&json!(true), &first["epoch"]));
    assert_eq!(again["transaction_timeout_ms"], 9_000);
}

#[tokio::test]
async fn an_open_id_answers_its_session_again_until_another_open() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let ids: Vec<String> = (0..3).map(|i| uuid_at(now_s() * 1_000 + i)).collect();
    let named = |id: &str| json!({"transactional_id": "p", "open_id": id});
    let first = open(&server, named(&ids[0])).await.created();
    let p = id_of(&first);
    append(&server, ONE, p, 0, 0, "x").await.ok();
    // the same session, its next sequences as of now; other options are ignored
    for body in [
        named(&ids[0]),
        named(&ids[0].to_uppercase()),
        json!({"transactional_id": "p", "open_id": ids[0], "sequencing": "monotonic",
            "sequences": "reset", "transaction_timeout_ms": 5}),
    ] {
        let mut want = first.clone();
        want["duplicate"] = json!(true);
        want["next_sequences"] = json!([{"topic": "orders", "partition": 0, "next_sequence": 1}]);
        let answer = open(&server, body).await;
        assert_eq!(answer.ok(), want);
        assert!(answer.header("location").is_none());
    }
    // its id belongs to that name and that producer
    for other in [
        json!({"transactional_id": "q", "open_id": ids[0]}),
        json!({"open_id": ids[0]}),
        json!({"producer_id": p + 1, "epoch": 0, "open_id": ids[0]}),
        json!({"producer_id": p, "epoch": 0, "transactional_id": "q", "open_id": ids[0]}),
    ] {
        open(&server, other).await.refused(Code::IdempotencyKeyReused);
    }
    let second = open(&server, named(&ids[1])).await.created();
    assert_eq!(second["epoch"], 1);
    // a delayed duplicate of the old open changes nothing
    let problem = open(&server, named(&ids[0])).await.refused(Code::ProducerFenced);
    assert_eq!(problem["current_epoch"], 1);
    assert_eq!(open(&server, named(&ids[1])).await.ok()["epoch"], 1);
    // nor does one that comes after the end
    server.delete(&format!("/v1/sessions/{p}")).await.no_content();
    let problem = open(&server, named(&ids[1])).await.refused(Code::ProducerFenced);
    assert_eq!(problem["current_epoch"], 2);
    // without a name, too
    let nameless = json!({"open_id": ids[2]});
    let made = open(&server, nameless.clone()).await.created();
    let again = open(&server, nameless).await.ok();
    assert_eq!((id_of(&again), &again["duplicate"]), (id_of(&made), &json!(true)));
}

#[tokio::test]
async fn behind_64_opens_the_horizon_holds_what_is_forgotten() {
    let server = Server::start().await;
    let base_ms = (now_s() - 3_600) * 1_000;
    let ids: Vec<String> = (0..66).map(|i| uuid_at(base_ms + i * 1_000)).collect();
    let named = |id: &str| json!({"transactional_id": "p", "open_id": id});
    for (epoch, id) in ids.iter().enumerate() {
        assert_eq!(open(&server, named(id)).await.created()["epoch"], epoch);
    }
    // two are forgotten, and refused all the same; the others are remembered
    for id in [&ids[0], &ids[1], &ids[2], &ids[64]] {
        let problem = open(&server, named(id)).await.refused(Code::ProducerFenced);
        assert_eq!(problem["current_epoch"], 65);
    }
    assert_eq!(open(&server, named(&ids[65])).await.ok()["epoch"], 65);
    // never seen, but it might have been: at or before the horizon, which is the second's instant
    for at_ms in [base_ms - 1, base_ms + 500, base_ms + 1_000] {
        open(&server, named(&uuid_at(at_ms))).await.refused(Code::ProducerFenced);
    }
    // behind the horizon an id that is not remembered was never used
    let new = open(&server, named(&uuid_at(base_ms + 1_001))).await.created();
    assert_eq!(new["epoch"], 66);
    // the horizon is this producer's alone
    let other = json!({"transactional_id": "q", "open_id": uuid_at(base_ms)});
    open(&server, other).await.created();
}

#[tokio::test]
async fn a_conditional_open_never_steals() {
    let server = Server::start().await;
    let first = open(&server, json!({"transactional_id": "p"})).await.created();
    let p = id_of(&first);
    let condition = |epoch: i64| json!({"producer_id": p, "epoch": epoch});
    let problem = open(&server, condition(1)).await.refused(Code::InvalidProducerEpoch);
    assert_eq!(problem["current_epoch"], 0);
    let second = open(&server, condition(0)).await.created();
    let told = (id_of(&second), &second["epoch"], &second["transactional_id"]);
    assert_eq!(told, (p, &json!(1), &json!("p")));
    // alone it never answers twice
    let problem = open(&server, condition(0)).await.refused(Code::ProducerFenced);
    assert_eq!(problem["current_epoch"], 1);
    // with an open_id its repeat is known
    let mut with_id = condition(1);
    with_id["open_id"] = json!(Uuid::now_v7());
    assert_eq!(open(&server, with_id.clone()).await.created()["epoch"], 2);
    assert_eq!(open(&server, with_id.clone()).await.ok()["epoch"], 2);
    // the name has to be that producer's
    let with_name =
        |name: &str, id: i64| json!({"producer_id": id, "epoch": 2, "transactional_id": name});
    open(&server, json!({"transactional_id": "q"})).await.created();
    for (name, id) in [("q", p), ("r", p), ("p", p + 1_000)] {
        open(&server, with_name(name, id)).await.refused(Code::UnknownProducer);
    }
    assert_eq!(open(&server, with_name("p", p)).await.created()["epoch"], 3);
    // ended: the next epoch has no owner, so nobody can name it
    server.delete(&format!("/v1/sessions/{p}")).await.no_content();
    open(&server, condition(3)).await.refused(Code::ProducerFenced);
    open(&server, condition(4)).await.refused(Code::InvalidProducerEpoch);
}

#[tokio::test]
async fn an_ended_session_is_fenced_and_its_name_goes_on() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let (p, _) = server.session("p").await;
    append(&server, ONE, p, 0, 0, "x").await.ok();
    let path = format!("/v1/sessions/{p}");
    for _ in 0..2 {
        server.delete(&path).await.no_content();
        let session = server.get(&path).await.ok();
        assert_eq!((&session["epoch"], &session["closed"]), (&json!(1), &json!(true)));
    }
    let fenced = append(&server, ONE, p, 0, 1, "x").await.refused(Code::ProducerFenced);
    assert_eq!(fenced["current_epoch"], 1);
    // also what was acknowledged before: the producer is judged first
    append(&server, ONE, p, 0, 0, "x").await.refused(Code::ProducerFenced);
    append(&server, ONE, p, 1, 1, "x").await.refused(Code::InvalidProducerEpoch);
    let again = open(&server, json!({"transactional_id": "p"})).await.created();
    assert_eq!((id_of(&again), &again["epoch"]), (p, &json!(2)));
    let next = json!([{"topic": "orders", "partition": 0, "next_sequence": 1}]);
    assert_eq!(again["next_sequences"], next);
    append(&server, ONE, p, 2, 1, "y").await.ok();
    server.delete(&format!("/v1/sessions/{}", p + 1_000)).await.refused(Code::UnknownProducer);
    server.delete(&format!("{path}?force=1")).await.invalid(&["?force"]);
}

#[tokio::test]
async fn an_open_tells_what_arrived() {
    let server = Server::start().await;
    server.topic("orders", 2).await;
    server.topic("audit", 4).await;
    let (p, _) = server.session("p").await;
    for sequence in 0..3 {
        append(&server, WHOLE, p, 0, sequence, "x").await.ok();
    }
    append(&server, ONE, p, 0, 0, "x").await.ok();
    append(&server, "/v1/topics/audit/partitions/3/records", p, 0, 0, "x").await.ok();
    append(&server, "/v1/topics/audit/partitions/1/records", p, 0, 0, "x").await.ok();
    // a refused request counts nowhere
    append(&server, "/v1/topics/audit/partitions/2/records", p, 0, 9, "x")
        .await
        .refused(Code::UnknownProducerState);
    let want = json!([
        {"topic": "audit", "partition": 1, "next_sequence": 1},
        {"topic": "audit", "partition": 3, "next_sequence": 1},
        {"topic": "orders", "next_sequence": 3},
        {"topic": "orders", "partition": 0, "next_sequence": 1}]);
    let opened = open(&server, json!({"transactional_id": "p"})).await.created();
    assert_eq!(opened["next_sequences"], want);
    // sequences go on under the new epoch, and repeats of the old one's numbers are known
    assert_eq!(append(&server, WHOLE, p, 1, 2, "x").await.ok()["duplicate"], true);
    assert_eq!(append(&server, WHOLE, p, 1, 3, "x").await.ok()["duplicate"], false);
    // page by page
    let (mut path, mut seen) = (format!("/v1/sessions/{p}/sequences?limit=1"), vec![]);
    loop {
        let answer = server.get(&path).await;
        let page = answer.ok();
        let items = page["sequences"].as_array().unwrap();
        assert_eq!(items.len(), 1);
        seen.extend(items.clone());
        let Some(link) = answer.header("link") else {
            assert!(page["next_after"].is_null());
            break;
        };
        path = link.strip_prefix('<').unwrap().strip_suffix(">; rel=\"next\"").unwrap().to_owned();
    }
    let mut now = want.clone();
    now[2]["next_sequence"] = json!(4);
    assert_eq!(json!(seen), now);
    let all = server.get(&format!("/v1/sessions/{p}/sequences")).await.ok();
    assert_eq!(all, json!({"sequences": now, "next_after": null}));
    server.get("/v1/sessions/999999/sequences").await.refused(Code::UnknownProducer);
}

#[tokio::test]
async fn at_most_a_thousand_scopes_are_listed() {
    let server = Server::start().await;
    server.topic("many", 1_001).await;
    let (p, _) = server.session("p").await;
    server
        .sql(format!(
            "insert into oncelog.producer_states \
                (tenant_id, log_id, producer_id, epoch, last_sequence, as_of_offset) \
            select tenant_id, log_id, {p}, 0, 4, 0 from oncelog.logs"
        ))
        .await;
    for opened in [
        server.get(&format!("/v1/sessions/{p}")).await.ok(),
        open(&server, json!({"transactional_id": "p"})).await.created(),
    ] {
        let listed = opened["next_sequences"].as_array().unwrap();
        assert_eq!(listed.len(), 1_000);
        assert_eq!(listed[0], json!({"topic": "many", "next_sequence": 5}));
        assert_eq!(listed[999]["partition"], 998);
    }
    let path = format!("/v1/sessions/{p}/sequences?limit=1000");
    let page = server.get(&path).await.ok();
    assert_eq!(page["next_after"], "many/998");
    let rest = server.get(&format!("{path}&after=many%2F998")).await;
    let partitions: Vec<_> =
        rest.ok()["sequences"].as_array().unwrap().iter().map(|s| s["partition"].clone()).collect();
    assert_eq!(partitions, [999, 1_000]);
    // fenced in chunks, all of them
    let path = "/v1/topics/many/partitions/1000/records";
    append(&server, path, p, 0, 5, "x").await.refused(Code::ProducerFenced);
    append(&server, path, p, 1, 5, "x").await.ok();
}

#[tokio::test]
async fn sessions_are_found_and_listed() {
    let server = Server::start().await;
    let mut ids = Vec::new();
    for name in ["c", "a", "b"] {
        ids.push(server.session(name).await.0);
    }
    ids.push(id_of(&server.post(OPEN).await.created()));
    let list = async |query: &str| -> (Vec<i64>, Value) {
        let list = server.get(&format!("/v1/sessions{query}")).await.ok();
        let sessions = list["sessions"].as_array().unwrap();
        (sessions.iter().map(id_of).collect(), list["next_after"].clone())
    };
    assert_eq!(list("").await, (ids.clone(), Value::Null));
    assert_eq!(list("?transactional_id=a").await, (vec![ids[1]], Value::Null));
    assert_eq!(list("?transactional_id=none").await, (vec![], Value::Null));
    let page = list("?limit=3").await;
    assert_eq!(page, (ids[..3].to_vec(), json!(ids[2].to_string())));
    assert_eq!(list(&format!("?limit=3&after={}", ids[2])).await, (ids[3..].to_vec(), Value::Null));
    let answer = server.get("/v1/sessions?limit=1").await;
    let link = format!("</v1/sessions?limit=1&after={}>; rel=\"next\"", ids[0]);
    assert_eq!(answer.header("link"), Some(&*link));
    let item = &answer.ok()["sessions"][0];
    assert_eq!(
        *item,
        json!({"producer_id": ids[0], "epoch": 0, "transactional_id": "c",
            "sequencing": "contiguous", "transaction_timeout_ms": 60_000, "closed": false,
            "opened_at": item["opened_at"]})
    );
    for (query, pointer) in [
        ("?transactional_id=a%20b", "?transactional_id"),
        ("?after=x", "?after"),
        ("?after=-1", "?after"),
        ("?name=a", "?name"),
    ] {
        server.get(&format!("/v1/sessions{query}")).await.invalid(&[pointer]);
    }
}

#[tokio::test]
async fn monotonic_sequences_only_grow() {
    let server = Server::start().await;
    server.topic("orders", 2).await;
    for path in [WHOLE, ONE] {
        let name = if path == WHOLE { "w" } else { "o" };
        let monotonic = json!({"transactional_id": name, "sequencing": "monotonic"});
        let p = id_of(&open(&server, monotonic).await.created());
        let send = async |epoch: i64, sequence: i64, value: &str| -> Answer {
            append(&server, path, p, epoch, sequence, value).await
        };
        // rows 5 and 10 are "append"
        let first = send(0, 10, "a").await;
        assert_eq!(first.ok()["duplicate"], false);
        let second = send(0, 1_000_000, "b").await;
        assert_eq!(second.ok()["duplicate"], false);
        // a remembered one repeats, or is reused
        let repeat = send(0, 10, "a").await;
        assert_eq!(
            repeat.text(),
            first.text().replace("\"duplicate\":false", "\"duplicate\":true")
        );
        send(0, 10, "x").await.refused(Code::SequenceReused);
        // a smaller one never seen is a duplicate without a place
        let lost = send(0, 500, "x").await.ok();
        let place = if path == WHOLE { &lost["offsets"] } else { &lost["base_offset"] };
        assert_eq!((place, &lost["duplicate"]), (&Value::Null, &json!(true)));
        // back to contiguous: the last sequence stays
        let opened = open(&server, json!({"transactional_id": name})).await.created();
        assert_eq!(opened["next_sequences"][0]["next_sequence"], 1_000_001);
        let problem = send(1, 1_000_009, "c").await.refused(Code::OutOfOrderSequence);
        assert_eq!(problem["expected"], 1_000_001);
        assert_eq!(send(1, 1_000_001, "c").await.ok()["duplicate"], false);
    }
}

#[tokio::test]
async fn a_reset_starts_all_scopes_at_0() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let (p, _) = server.session("p").await;
    for sequence in 0..2 {
        append(&server, WHOLE, p, 0, sequence, "x").await.ok();
        append(&server, ONE, p, 0, sequence, "x").await.ok();
    }
    let reset = json!({"transactional_id": "p", "sequences": "reset"});
    let opened = open(&server, reset).await.created();
    let next = opened["next_sequences"].as_array().unwrap();
    assert!(next.iter().all(|scope| scope["next_sequence"] == 0), "{next:?}");
    for path in [WHOLE, ONE] {
        append(&server, path, p, 1, 2, "x").await.refused(Code::UnknownProducerState);
        // the old windows are gone: neither a repeat nor reused
        let first = append(&server, path, p, 1, 0, "x").await.ok();
        assert_eq!(first["duplicate"], false);
        append(&server, path, p, 1, 1, "other").await.ok();
        assert_eq!(append(&server, path, p, 1, 0, "x").await.ok()["duplicate"], true);
    }
    // a plain open goes on from there
    let opened = open(&server, json!({"transactional_id": "p"})).await.created();
    let next = opened["next_sequences"].as_array().unwrap();
    assert!(next.iter().all(|scope| scope["next_sequence"] == 2), "{next:?}");
}
