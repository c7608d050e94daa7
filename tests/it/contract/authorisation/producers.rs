//! What a token covers of the work of producers: sessions by their names or by who opened them, and
//! transactions by all that they hold.

use oncelog::model::Code;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::http::{Answer, SECRET, Server, claims, signed, token};

const SESSIONS: &str = "/v1/sessions";
const ALL: &str = "/v1/transactions";

fn token_of(sub: &str, scope: &str) -> String {
    let mut claims = claims("acme", scope);
    claims["sub"] = json!(sub);
    signed(&claims, SECRET)
}

fn refused(answer: &Answer, scope: &str) {
    assert_eq!(answer.refused(Code::Forbidden)["required_scope"], scope);
}

/// A server with two topics.
async fn server() -> Server {
    let server = Server::signed().await;
    for topic in ["payments", "scratch"] {
        server.put(&format!("/v1/topics/{topic}")).token(&token("acme", "admin")).await.created();
    }
    server
}

async fn open(server: &Server, body: Value, token: &str) -> Value {
    server.post(SESSIONS).json(body).token(token).await.created()
}

fn path_of(opened: &Value) -> String {
    format!("{SESSIONS}/{}", opened["producer_id"])
}

async fn listed(server: &Server, query: &str, token: &str) -> Vec<Value> {
    let list = server.get(&format!("{SESSIONS}{query}")).token(token).await.ok();
    let sessions = list["sessions"].as_array().unwrap().iter();
    sessions.map(|session| session["producer_id"].clone()).collect()
}

#[tokio::test]
async fn a_named_session_needs_a_pattern_that_covers_its_name() {
    let server = server().await;
    let owner = token("acme", "produce:pay*");
    let stranger = token_of("anna", "produce:scratch");
    let opened = open(&server, json!({"transactional_id": "pay-1"}), &owner).await;
    let path = path_of(&opened);
    let id = Uuid::now_v7().to_string();
    let by_name = json!({"transactional_id": "pay-1", "open_id": id});
    for open_id in [json!(id), Value::Null] {
        let mut body = by_name.clone();
        body["open_id"] = open_id;
        let answer = server.post(SESSIONS).json(&body).token(&stranger).await;
        refused(&answer, "produce:pay-1");
    }
    // by its number nothing is told: neither the name nor the epoch
    for epoch in [0, 7] {
        let by_id = json!({"producer_id": opened["producer_id"], "epoch": epoch});
        let answer = server.post(SESSIONS).json(by_id).token(&stranger).await;
        refused(&answer, "produce");
        assert!(!answer.text().contains("pay-1") && !answer.text().contains("epoch"));
        let end = server.delete(&format!("{path}?epoch={epoch}")).token(&stranger).await;
        refused(&end, "produce");
    }
    for path in [path.clone(), format!("{path}/sequences")] {
        refused(&server.get(&path).token(&stranger).await, "produce");
        server.get(&path).token(&owner).await.ok();
    }
    let unknown = server.get(&format!("{SESSIONS}/987654321")).token(&stranger).await;
    unknown.refused(Code::UnknownProducer);
    let seen = server.get(&path).token(&owner).await.ok();
    assert_eq!((&seen["epoch"], &seen["closed"]), (&json!(0), &json!(false)));
    // a repeat by an open id of somebody else's
    let repeated = server.post(SESSIONS).json(&by_name).token(&owner).await.created();
    assert_eq!(repeated["epoch"], 1);
    let theirs = server.post(SESSIONS).json(json!({"open_id": id})).token(&stranger).await;
    refused(&theirs, "produce");
    server.delete(&path).token(&owner).await.no_content();
}

#[tokio::test]
async fn a_session_without_a_name_is_its_openers() {
    let server = server().await;
    let (anna, bert) = (token_of("anna", "produce:scratch"), token_of("bert", "produce:scratch"));
    let [whole, nobody] = ["produce", "produce:scratch"].map(|scope| token("acme", scope));
    let answer = server.post(SESSIONS).json("{}").token(&nobody).await;
    refused(&answer, "produce");
    let (of_anna, of_all) =
        (open(&server, json!({}), &anna).await, open(&server, json!({}), &whole).await);
    for (opened, token, is_covered) in [
        (&of_anna, &anna, true),
        // another token of the same `sub`
        (&of_anna, &token_of("anna", "produce:other"), true),
        (&of_anna, &whole, true),
        (&of_anna, &bert, false),
        (&of_anna, &nobody, false),
        (&of_all, &anna, false),
        (&of_all, &nobody, false),
        (&of_all, &token_of("bert", "produce"), true),
    ] {
        let seen = server.get(&path_of(opened)).token(token).await;
        assert_eq!(seen.status, if is_covered { 200 } else { 403 }, "{}", seen.text());
    }
    // it stays its first opener's, though another opens it again
    let again = json!({"producer_id": of_anna["producer_id"], "epoch": 0});
    server.post(SESSIONS).json(&again).token(&bert).await.refused(Code::Forbidden);
    open(&server, again, &whole).await;
    let again = json!({"producer_id": of_anna["producer_id"], "epoch": 1});
    open(&server, again, &anna).await;
    assert_eq!(listed(&server, "", &anna).await, [of_anna["producer_id"].clone()]);
    assert_eq!(listed(&server, "", &bert).await, [] as [Value; 0]);
    assert_eq!(listed(&server, "", &whole).await.len(), 2);
}

/// The answer that a key has remembered is nobody else's either.
#[tokio::test]
async fn a_key_gives_no_session_of_another() {
    let server = server().await;
    let call =
        |token: &str| server.post(SESSIONS).json("{}").header("idempotency-key", "k").token(token);
    let opened = call(&token_of("anna", "produce:scratch")).await.created();
    let again = call(&token_of("anna", "produce:scratch")).await.created();
    assert_eq!(
        (&again["producer_id"], &again["duplicate"]),
        (&opened["producer_id"], &json!(true))
    );
    refused(&call(&token_of("bert", "produce:scratch")).await, "produce");
}

#[tokio::test]
async fn lists_show_the_sessions_that_are_covered() {
    let server = server().await;
    let whole = token("acme", "produce");
    let mut ids = Vec::new();
    for name in ["a.1", "b.1", "a.2", "b.2", "a.3"] {
        let opened = open(&server, json!({"transactional_id": name}), &whole).await;
        ids.push(opened["producer_id"].clone());
    }
    let of_a = token("acme", "produce:a.*");
    assert_eq!(listed(&server, "", &whole).await, ids);
    let [a1, b1, a2, _, a3] = &ids[..] else { panic!() };
    assert_eq!(listed(&server, "", &of_a).await, [a1.clone(), a2.clone(), a3.clone()]);
    // neither a short page nor next_after shows the others
    let page = server.get(&format!("{SESSIONS}?limit=2")).token(&of_a).await.ok();
    assert_eq!(page["next_after"], a2.to_string());
    assert_eq!(
        listed(&server, &format!("?after={b1}&limit=1"), &of_a).await,
        std::slice::from_ref(a2)
    );
    let last = server.get(&format!("{SESSIONS}?limit=3")).token(&of_a).await.ok();
    assert_eq!(last["next_after"], Value::Null);
    assert_eq!(listed(&server, "?transactional_id=b.1", &of_a).await, [] as [Value; 0]);
    assert_eq!(listed(&server, "?transactional_id=a.3", &of_a).await, std::slice::from_ref(a3));
}

/// What it holds: appends to these topics, offsets of these groups.
async fn staged(server: &Server, session: &Value, topics: &[&str], groups: &[&str]) -> String {
    let all = token("acme", "produce consume group");
    let append = |topic: &&str| json!({"topic": topic, "records": [{"value": 1}]});
    let offset = |group: &&str| {
        json!({"group": group, "topic": "payments", "partition": 0, "offset": 0,
            "expected_offset": null})
    };
    let mut body = json!({"appends": topics.iter().map(append).collect::<Vec<_>>(),
        "offsets": groups.iter().map(offset).collect::<Vec<_>>()});
    for field in ["producer_id", "epoch"] {
        if session[field].is_i64() {
            body[field] = session[field].clone();
        }
    }
    let begun = server.post(ALL).json(body).token(&all).await.created();
    format!("{ALL}/{}", begun["transaction_id"].as_str().unwrap())
}

/// Every call of a transaction: method, path, body.
fn calls(path: &str, session: &Value) -> Vec<(&'static str, String, Value)> {
    let of_session = |mut body: Value| {
        for field in ["producer_id", "epoch"] {
            if session[field].is_i64() {
                body[field] = session[field].clone();
            }
        }
        body
    };
    let append = json!({"appends": [{"topic": "scratch", "records": [{"value": 1}]}]});
    let mut numbered = append.clone();
    numbered["sequence"] = json!(0);
    let offset = json!({"offsets": [{"group": "mine", "topic": "scratch", "partition": 0,
        "offset": 0, "expected_offset": null}]});
    vec![
        ("GET", path.to_owned(), Value::Null),
        ("POST", format!("{path}/records"), of_session(append.clone())),
        ("POST", format!("{path}/records"), of_session(numbered)),
        ("POST", format!("{path}/offsets"), of_session(offset)),
        ("POST", format!("{path}/prepare"), of_session(json!({}))),
        ("POST", format!("{path}/commit"), of_session(json!({}))),
        ("POST", format!("{path}/commit"), of_session(append)),
        ("POST", format!("{path}/abort"), of_session(json!({}))),
    ]
}

async fn all_refused(server: &Server, path: &str, session: &Value, token: &str, scope: &str) {
    for (method, path, body) in calls(path, session) {
        let call = server.call(method, &path).token(token);
        let call = if body.is_null() { call } else { call.json(&body) };
        let answer = call.await;
        refused(&answer, scope);
        assert!(!answer.text().contains("payments"), "{method} {path}: {}", answer.text());
    }
}

#[tokio::test]
async fn a_transaction_needs_all_that_it_holds() {
    let server = server().await;
    let none = json!({});
    let own = "produce:scratch group:mine consume:scratch";
    let path = staged(&server, &none, &["scratch", "payments"], &["mine"]).await;
    all_refused(&server, &path, &none, &token("acme", own), "produce").await;
    let path = staged(&server, &none, &["scratch"], &["theirs"]).await;
    for scope in [own, "produce group:mine consume"] {
        all_refused(&server, &path, &none, &token("acme", scope), "group").await;
    }
    let pay = open(&server, json!({"transactional_id": "pay"}), &token("acme", "produce")).await;
    let path = staged(&server, &pay, &["scratch"], &["mine"]).await;
    all_refused(&server, &path, &pay, &token("acme", own), "produce").await;
    // nor without naming the session, nor as another epoch
    all_refused(&server, &path, &none, &token("acme", own), "produce").await;
    let fenced = json!({"producer_id": pay["producer_id"], "epoch": 9});
    all_refused(&server, &path, &fenced, &token("acme", own), "produce").await;
    // nothing was done to it, and what covers all of it does all of it
    let owner = token("acme", "produce:scratch produce:pay group:mine consume:scratch");
    let seen = server.get(&path).token(&owner).await.ok();
    assert_eq!((&seen["state"], &seen["append_count"]), (&json!("ongoing"), &json!(1)));
    for (method, path, body) in calls(&path, &pay).into_iter().take(6) {
        let call = server.call(method, &path).token(&owner);
        let call = if body.is_null() { call } else { call.json(&body) };
        call.await.ok();
    }
    // what is committed has its topics and its session still
    let committed = token("acme", "produce:scratch");
    refused(&server.get(&path).token(&committed).await, "produce");
    let stranger = token("acme", "produce:pay");
    refused(&server.get(&path).token(&stranger).await, "produce");
    let ended = server.get(&path).token(&token("acme", "produce:pay produce:scratch")).await.ok();
    assert_eq!(ended["state"], "committed");
}

/// What another token adds counts from then on.
#[tokio::test]
async fn what_was_added_since_counts() {
    let server = server().await;
    let narrow = token("acme", "produce:scratch group:mine consume:scratch");
    let path = staged(&server, &json!({}), &["scratch"], &[]).await;
    let append = |topic: &str| json!({"appends": [{"topic": topic, "records": [{"value": 1}]}]});
    let records = format!("{path}/records");
    server.post(&records).json(append("scratch")).token(&narrow).await.ok();
    server.post(&records).json(append("payments")).token(&token("acme", "produce")).await.ok();
    all_refused(&server, &path, &json!({}), &narrow, "produce").await;
    let ended = format!("{path}/commit");
    let committed = server.post(&ended).json("{}").token(&token("acme", "produce")).await.ok();
    assert_eq!(committed["append_count"], 3);
    // a repeat is a read
    refused(&server.post(&ended).json("{}").token(&narrow).await, "produce");
}

#[tokio::test]
async fn of_an_aborted_one_the_session_and_the_call_count() {
    let server = server().await;
    let all = token("acme", "produce group consume");
    let narrow = token("acme", "produce:scratch");
    let path = staged(&server, &json!({}), &["payments"], &["theirs"]).await;
    refused(&server.get(&path).token(&narrow).await, "produce");
    server.post(&format!("{path}/abort")).json("{}").token(&all).await.ok();
    let seen = server.get(&path).token(&narrow).await.ok();
    assert_eq!((&seen["state"], &seen["reason"]), (&json!("aborted"), &json!("client")));
    let repeat = server.post(&format!("{path}/abort")).json("{}").token(&narrow);
    assert_eq!(repeat.await.ok()["duplicate"], true);
    let append = json!({"appends": [{"topic": "payments", "records": [{"value": 1}]}]});
    let late = server.post(&format!("{path}/records")).json(append).token(&narrow).await;
    refused(&late, "produce:payments");
    let pay = open(&server, json!({"transactional_id": "pay"}), &all).await;
    let path = staged(&server, &pay, &["scratch"], &[]).await;
    let by_session = json!({"producer_id": pay["producer_id"], "epoch": 0});
    server.post(&format!("{path}/abort")).json(by_session).token(&all).await.ok();
    refused(&server.get(&path).token(&narrow).await, "produce");
}

#[tokio::test]
async fn what_is_not_there_is_told_before_what_is_not_covered() {
    let server = server().await;
    let narrow = token("acme", "produce:scratch group:mine consume:scratch");
    let pay = open(&server, json!({"transactional_id": "pay"}), &token("acme", "produce")).await;
    let absent = format!("{ALL}/{}", Uuid::now_v7());
    let old = format!("{ALL}/01809b1e-0000-7000-8000-000000000001");
    for session in [json!({}), pay] {
        for (path, code) in [(&absent, Code::TransactionNotFound), (&old, Code::TransactionExpired)]
        {
            for (method, path, body) in calls(path, &session) {
                let call = server.call(method, &path).token(&narrow);
                let call = if body.is_null() { call } else { call.json(&body) };
                call.await.refused(code);
            }
        }
    }
}

/// Also where this is the whole transaction, which asks no session's row for its name each time.
#[tokio::test]
async fn a_begin_needs_its_session() {
    let server = server().await;
    let all = token("acme", "produce");
    let pay = open(&server, json!({"transactional_id": "pay"}), &all).await;
    let narrow = token("acme", "produce:scratch");
    let begin = |commit: bool| {
        json!({"transaction_id": Uuid::now_v7(), "producer_id": pay["producer_id"], "epoch": 0,
            "commit": commit, "appends": [{"topic": "scratch", "records": [{"value": 1}]}]})
    };
    for _ in 0..2 {
        for commit in [true, false] {
            refused(&server.post(ALL).json(begin(commit)).token(&narrow).await, "produce");
        }
        let mut fenced = begin(true);
        fenced["epoch"] = json!(9);
        refused(&server.post(ALL).json(fenced).token(&narrow).await, "produce");
        let owner = token("acme", "produce:scratch produce:pay");
        server.post(ALL).json(begin(true)).token(&owner).await.created();
    }
    let mut unknown = begin(true);
    unknown["producer_id"] = json!(987_654_321);
    server.post(ALL).json(unknown).token(&narrow).await.refused(Code::UnknownProducer);
    // a repeat by somebody else is told nothing
    let whole = begin(true);
    server.post(ALL).json(&whole).token(&all).await.created();
    refused(&server.post(ALL).json(&whole).token(&narrow).await, "produce");
    assert_eq!(server.post(ALL).json(&whole).token(&all).await.ok()["duplicate"], true);
}

#[tokio::test]
async fn ids_of_open_transactions_are_told_to_those_who_may_end_them() {
    let server = server().await;
    let none = json!({});
    let path = staged(&server, &none, &["scratch", "payments"], &["theirs"]).await;
    let mine = staged(&server, &none, &["scratch"], &[]).await;
    let shown = async |scope: &str| -> Vec<Value> {
        let read = "/v1/topics/scratch/partitions/0/records?isolation=read_uncommitted";
        let page = server.get(read).token(&token("acme", scope)).await.ok();
        let staged = page["staged"].as_array().unwrap();
        assert!(staged.iter().all(|one| one["records"].as_array().unwrap().len() == 1));
        staged.iter().map(|one| one["transaction_id"].clone()).collect()
    };
    let [path, mine] = [path, mine].map(|path| json!(path.rsplit('/').next().unwrap()));
    assert_eq!(shown("consume produce group").await, [path.clone(), mine.clone()]);
    assert_eq!(shown("consume operator").await, [path, mine.clone()]);
    for scope in ["consume produce", "consume produce:scratch group", "consume produce:scratch"] {
        assert_eq!(shown(scope).await, [Value::Null, mine.clone()], "{scope}");
    }
    assert_eq!(shown("consume").await, [Value::Null, Value::Null]);
}
