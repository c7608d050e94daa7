//! The HTTP face of transactions: what is taken, what is refused and how it is pointed at, whom the
//! token lets do it, and how it is answered.

use oncelog::model::Code;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::http::{Answer, Call, Server, token};

const ALL: &str = "/v1/transactions";
const CALLS: [&str; 5] = ["records", "offsets", "prepare", "commit", "abort"];

async fn served() -> Server {
    let server = Server::start().await;
    server.topic("orders", 2).await;
    server
}

fn begin(server: &Server, body: impl ToString) -> Call {
    server.post(ALL).json(body)
}

/// A transaction that has just begun, and the path of its calls.
async fn begun(server: &Server, body: Value) -> String {
    let begun = begin(server, body).await.created();
    assert_eq!((&begun["state"], &begun["duplicate"]), (&json!("ongoing"), &json!(false)));
    format!("{ALL}/{}", begun["transaction_id"].as_str().unwrap())
}

fn append(value: i64) -> Value {
    json!({"topic": "orders", "partition": 0, "records": [{"value": value}]})
}

/// The transaction without what only a call says.
fn described(answer: &Value) -> Value {
    let mut transaction = answer.clone();
    transaction.as_object_mut().unwrap().remove("duplicate");
    transaction
}

async fn high_watermark(server: &Server, partition: i32) -> Value {
    let path = format!("/v1/topics/orders/partitions/{partition}/records");
    server.get(&path).await.ok()["high_watermark"].clone()
}

#[tokio::test]
async fn a_transaction_is_begun_filled_and_committed_and_each_call_can_be_repeated() {
    let server = served().await;
    let (p, epoch) = server.session("p").await;
    let id = Uuid::now_v7();
    let body = json!({"transaction_id": id.to_string().to_uppercase(), "producer_id": p,
        "epoch": epoch, "timeout_ms": 30_000, "appends": [append(1)]});
    let first = begin(&server, &body).await;
    let path = format!("{ALL}/{id}");
    assert_eq!(first.header("location"), Some(path.as_str()));
    let begun = first.created();
    assert_eq!(begun["transaction_id"], id.to_string());
    assert_eq!((&begun["producer_id"], &begun["epoch"]), (&json!(p), &json!(epoch)));
    assert_eq!((&begun["state"], &begun["append_count"]), (&json!("ongoing"), &json!(1)));
    assert!(begun["expires_at"].is_string() && begun.get("appends").is_none(), "{begun}");
    for name in ["prepared_at", "ended_at", "reason"] {
        assert_eq!(begun[name], Value::Null, "{name}");
    }
    let again = begin(&server, &body).await;
    assert_eq!(again.header("location"), None);
    assert_eq!(again.ok()["duplicate"], true);
    begin(&server, json!({"transaction_id": id})).await.refused(Code::TransactionReused);

    let records = json!({"producer_id": p, "epoch": epoch, "sequence": 0, "appends": [
        {"topic": "orders", "records": [{"key": "a", "value": 2}, {"key": "b", "value": 3}]}]});
    for duplicate in [false, true] {
        let taken = server.post(&format!("{path}/records")).json(&records).await.ok();
        assert_eq!((&taken["append_count"], &taken["duplicate"]), (&json!(2), &json!(duplicate)));
    }
    assert_eq!(high_watermark(&server, 0).await, 0);

    let commit = json!({"producer_id": p, "epoch": epoch, "expected_appends": 3,
        "appends": [{"topic": "orders", "partition": 1, "records": [{"value": 4}]}]});
    let committed = server.post(&format!("{path}/commit")).json(&commit).await.ok();
    assert_eq!((&committed["state"], &committed["append_count"]), (&json!("committed"), &json!(3)));
    assert!(committed["ended_at"].is_string() && committed["expires_at"].is_null());
    let appends = committed["appends"].as_array().unwrap();
    assert_eq!(
        appends[0],
        json!({"topic": "orders", "partition": 0, "base_offset": 0, "record_count": 1})
    );
    let stored: i64 = appends.iter().map(|place| place["record_count"].as_i64().unwrap()).sum();
    assert_eq!(stored, 4);
    let again = server.post(&format!("{path}/commit")).json(&commit).await.ok();
    assert_eq!((&again["duplicate"], described(&again)), (&json!(true), described(&committed)));
    assert_eq!(server.get(&path).await.ok(), described(&committed));
    let problem =
        server.post(&format!("{path}/abort")).json(json!({"producer_id": p, "epoch": epoch}));
    let problem = problem.await.refused(Code::InvalidTransactionState);
    assert_eq!((&problem["state"], &problem["reason"]), (&json!("committed"), &Value::Null));
}

#[tokio::test]
async fn one_request_can_be_a_transaction() {
    let server = served().await;
    let body = json!({"transaction_id": Uuid::now_v7(), "commit": true, "appends": [
        append(1), {"topic": "orders", "partition": 1, "records": [{"value": 2}, {"value": 3}]}]});
    let whole = begin(&server, &body).await.created();
    let place = |partition: i32, record_count: i64| {
        json!({"topic": "orders", "partition": partition, "base_offset": 0,
            "record_count": record_count})
    };
    assert_eq!(whole["appends"], json!([place(0, 1), place(1, 2)]));
    assert_eq!((&whole["state"], &whole["append_count"]), (&json!("committed"), &json!(2)));
    assert_eq!((&whole["producer_id"], &whole["epoch"]), (&Value::Null, &Value::Null));
    let again = begin(&server, &body).await.ok();
    assert_eq!((&again["duplicate"], described(&again)), (&json!(true), described(&whole)));
    // without an id the server makes one; nothing is a transaction too
    let nothing = begin(&server, json!({"commit": true})).await.created();
    assert_eq!((&nothing["state"], &nothing["appends"]), (&json!("committed"), &json!([])));
    assert_ne!(nothing["transaction_id"], whole["transaction_id"]);
}

#[tokio::test]
async fn an_empty_body_asks_for_nothing_more() {
    let server = served().await;
    let begun = server.post(ALL).await.created();
    let path = format!("{ALL}/{}", begun["transaction_id"].as_str().unwrap());
    server.post(&format!("{path}/records")).await.invalid(&["/appends"]);
    server.post(&format!("{path}/offsets")).await.invalid(&["/offsets"]);
    assert_eq!(server.post(&format!("{path}/prepare")).await.ok()["state"], "prepared");
    assert_eq!(server.post(&format!("{path}/commit")).await.ok()["state"], "committed");
    let path = begun_alone(&server).await;
    let aborted = server.post(&format!("{path}/abort")).await.ok();
    assert_eq!((&aborted["state"], &aborted["reason"]), (&json!("aborted"), &json!("client")));
    assert!(aborted.get("appends").is_none());
}

async fn begun_alone(server: &Server) -> String {
    begun(server, json!({})).await
}

/// Every operation with a body, on a transaction there is.
async fn posts(server: &Server) -> Vec<String> {
    let path = begun_alone(server).await;
    let calls = CALLS.iter().map(|call| format!("{path}/{call}"));
    [ALL.to_owned()].into_iter().chain(calls).collect()
}

#[tokio::test]
async fn only_json_is_taken_and_no_key_beside_the_id() {
    let server = served().await;
    for path in posts(&server).await {
        server.post(&path).ndjson("{\"value\":1}\n").await.refused(Code::UnsupportedMediaType);
        server.post(&path).body("{}").await.refused(Code::UnsupportedMediaType);
        // one-request transactions take it: `keys`
        let keyed = server.post(&path).json("{}").header("idempotency-key", "k").await;
        keyed.invalid(&["Idempotency-Key"]);
        let html = server.post(&path).json("{}").header("accept", "text/html").await;
        html.refused(Code::NotAcceptable);
        server.post(&format!("{path}?commit=true")).json("{}").await.invalid(&["?commit"]);
    }
    // where an operator may ask, it says so; elsewhere `as` is unknown
    for path in posts(&server).await {
        let by_operator = path.ends_with("/commit") || path.ends_with("/abort");
        if !by_operator {
            server.post(&format!("{path}?as=operator")).json("{}").await.invalid(&["?as"]);
        }
        server.post(&format!("{path}?as=client")).json("{}").await.invalid(&["?as"]);
    }
}

#[tokio::test]
async fn what_is_wrong_is_pointed_at_and_nothing_is_done() {
    let server = served().await;
    let path = begun_alone(&server).await;
    let records = |record: &str| {
        let good = r#"{"topic":"orders","records":[{"value":1}]}"#;
        let sixth = r#"{"value":1},"#.repeat(7);
        format!(r#"{{"appends":[{good},{{"topic":"orders","records":[{sixth}{record}]}}]}}"#)
    };
    let table = [
        (r#"{"valeu":1}"#, "/valeu"),
        (r#"{"value":1,"value_base64":""}"#, ""),
        (r#"{"value":1,"value":1}"#, "/value"),
        (r#"{"value":1,"headers":{"a":"1","\u0061":"2"}}"#, "/headers/a"),
        (r#"{"value":1,"key":"\ud800"}"#, "/key"),
        (r#"{"value":["\ud800"]}"#, "/value"),
        (r#"{"value":-1e400}"#, "/value"),
        (r#"{"value":1,"offset":7}"#, "/offset"),
        (r#"{"value_base64":"AAE"}"#, "/value_base64"),
        ("[]", ""),
    ];
    for (record, below) in table {
        for path in [ALL, &format!("{path}/records"), &format!("{path}/commit")] {
            let pointer = format!("/appends/1/records/7{below}");
            server.post(path).json(records(record)).await.invalid(&[&pointer]);
        }
    }
    let offsets = json!({"timeout_ms": 0, "offsets": [
        {"group": "g", "topic": "orders", "partition": 0, "offset": 1, "expected_offset": -1},
        {"group": "a b", "member_id": "", "topic": "orders", "partition": 0, "offset": 1}]});
    let faults = [
        "/timeout_ms",
        "/offsets/0/expected_offset",
        "/offsets/1/group",
        "/offsets/1/member_id",
        "/offsets/1/generation",
    ];
    begin(&server, offsets).await.invalid(&faults);
    let half = json!({"producer_id": 1});
    for call in CALLS {
        let answer = server.post(&format!("{path}/{call}")).json(&half).await;
        let problem = answer.refused(Code::InvalidRequest);
        assert_eq!(problem["errors"][0]["pointer"], "/epoch", "{call}");
    }
    let cursor =
        json!({"offsets": [{"group": "g", "member_id": "m", "generation": 1, "cursor": "c"}]});
    server.post(&format!("{path}/offsets")).json(&cursor).await.refused(Code::InvalidCursor);
    begin(&server, &cursor).await.refused(Code::InvalidCursor);
    let raw = b"{\"appends\":[{\"topic\":\"orders\",\"records\":[{\"value\":\"\xff\"}]}]}";
    let raw = server.post(ALL).header("content-type", "application/json").body(&raw[..]);
    raw.await.invalid(&[""]);

    let transaction = server.get(&path).await.ok();
    assert_eq!(
        (&transaction["state"], &transaction["append_count"]),
        (&json!("ongoing"), &json!(0))
    );
    assert_eq!(server.get(ALL).await.ok()["transactions"].as_array().unwrap().len(), 1);
    assert_eq!(high_watermark(&server, 0).await, 0);
}

#[tokio::test]
async fn no_depth_of_nesting_hurts() {
    let server = served().await;
    let deep = |open: &str, close: &str| open.repeat(100_000) + "1" + &close.repeat(100_000);
    for value in [deep("[", "]"), deep("{\"a\":", "}")] {
        let whole = format!(
            r#"{{"commit":true,"appends":[{{"topic":"orders","records":[{{"value":{value}}}]}}]}}"#
        );
        begin(&server, whole).await.invalid(&["/appends/0/records/0/value"]);
        for body in [
            value.clone(),
            format!("{{\"unknown\":{value}}}"),
            format!("{{\"timeout_ms\":{value}}}"),
            format!("{{\"appends\":{value}}}"),
            format!("{{\"appends\":[{{\"topic\":{value}}}]}}"),
            format!("{{\"appends\":[{{\"topic\":\"orders\",\"records\":{value}}}]}}"),
            format!("{{\"offsets\":[{value}]}}"),
            format!("{{\"offsets\":[{{\"expected_offset\":{value}}}]}}"),
        ] {
            begin(&server, body).await.refused(Code::InvalidRequest);
        }
    }
}

#[tokio::test]
async fn an_id_is_a_uuid_v7_in_whatever_case() {
    let server = served().await;
    let path = begun_alone(&server).await;
    let id = path.rsplit('/').next().unwrap();
    let bad = [
        "7".to_owned(),
        id.replace('-', ""),
        format!("{id}0"),
        format!("%7B{id}%7D"),
        "%ff".to_owned(),
        "9f1c8d6e-1111-4111-8111-111111111111".to_owned(),
    ];
    for id in &bad {
        server.get(&format!("{ALL}/{id}")).await.refused(Code::InvalidTransactionId);
        for call in CALLS {
            let answer = server.post(&format!("{ALL}/{id}/{call}")).json("{}").await;
            answer.refused(Code::InvalidTransactionId);
        }
        let chosen = begin(&server, json!({"transaction_id": id})).await;
        chosen.refused(Code::InvalidTransactionId);
    }
    let upper = format!("{ALL}/{}", id.to_uppercase());
    assert_eq!(server.get(&upper).await.ok()["transaction_id"], id);
    assert_eq!(server.post(&format!("{upper}/abort")).await.ok()["transaction_id"], id);
    for (instant, code) in
        [("01900000-0000", Code::TransactionExpired), ("ffffffff-ffff", Code::InvalidTransactionId)]
    {
        let id = format!("{instant}-7000-8000-000000000001");
        begin(&server, json!({"transaction_id": id})).await.refused(code);
    }
    let unknown = Uuid::now_v7();
    server.get(&format!("{ALL}/{unknown}")).await.refused(Code::TransactionNotFound);
}

#[tokio::test]
async fn the_token_must_reach_every_topic_and_every_group() {
    let server = Server::signed().await;
    let all = token("acme", "produce group admin");
    server.put("/v1/topics/orders.eu").token(&all).await.created();
    let id = server.post(ALL).token(&all).await.created()["transaction_id"].clone();
    let path = format!("{ALL}/{}", id.as_str().unwrap());
    let topic = |name: &str| json!({"topic": name, "records": [{"value": 1}]});
    let offset = |group: &str| {
        json!({"group": group, "topic": "orders.eu", "partition": 0, "offset": 0,
            "expected_offset": null})
    };
    // body, scope, the scope that is missing
    let table = [
        (json!({"appends": [topic("orders.eu")]}), "produce:orders.*", ""),
        (json!({"appends": [topic("orders.eu")]}), "produce:carts consume", "produce:orders.eu"),
        (
            json!({"appends": [topic("orders.eu"), topic("b"), topic("c")]}),
            "produce:o*",
            "produce:b",
        ),
        // a topic that is not there, or in other hands
        (json!({"appends": [topic("nothing")]}), "produce:orders.eu", "produce:nothing"),
        (json!({"offsets": [offset("g.1")]}), "produce:orders.* group:g.* consume:orders.*", ""),
        (json!({"offsets": [offset("g.1")]}), "produce consume", "group:g.1"),
        (json!({"offsets": [offset("g.1")]}), "produce group consume:x", "consume:orders.eu"),
        (json!({"offsets": [offset("g.1"), offset("h")]}), "produce consume group:g.*", "group:h"),
        (
            json!({"appends": [topic("orders.eu")], "offsets": [offset("g")]}),
            "produce:orders.eu",
            "group:g",
        ),
        (json!({}), "group consume admin operator", "produce"),
    ];
    for (body, scope, missing) in table {
        let of_records = body["offsets"].is_null();
        let call = if of_records { "records" } else { "offsets" };
        let both = body["appends"].is_array() && body["offsets"].is_array();
        let paths = [ALL.to_owned(), format!("{path}/commit"), format!("{path}/{call}")];
        for path in &paths[..if both { 2 } else { 3 }] {
            if missing.is_empty() && path.ends_with("/commit") {
                continue;
            }
            let answer = server.post(path).json(&body).token(&token("acme", scope)).await;
            if missing.is_empty() {
                assert!(answer.status < 300, "{path} {scope}: {}", answer.text());
            } else {
                let problem = answer.refused(Code::Forbidden);
                assert_eq!(problem["required_scope"], missing, "{path} {scope}");
            }
        }
    }
    // what is wrong with the shape comes first, what is there comes later
    let none = token("acme", "produce:nothing");
    let post = |body: Value| server.post(&format!("{path}/records")).json(body).token(&none);
    post(json!({"appends": [topic("a b")]})).await.invalid(&["/appends/0/topic"]);
    post(json!({"appends": [topic("orders.eu")]})).await.refused(Code::Forbidden);
    post(json!({"appends": [topic("nothing")]})).await.refused(Code::TopicNotFound);
}

#[tokio::test]
async fn an_operator_ends_what_is_stuck_and_says_so() {
    let server = Server::signed().await;
    let (produce, operator) = (token("acme", "produce"), token("acme", "operator"));
    let open = server.post("/v1/sessions").json("{}").token(&produce).await.created();
    let session = json!({"producer_id": open["producer_id"], "epoch": 0});
    let path = async || {
        let begun = server.post(ALL).json(&session).token(&produce).await.created();
        format!("{ALL}/{}", begun["transaction_id"].as_str().unwrap())
    };
    let call = |path: &str, call: &str, body: &Value, token: &str| {
        server.post(&format!("{path}/{call}")).json(body).token(token)
    };
    let (none, stuck) = (json!({}), path().await);
    for end in ["commit", "abort"] {
        let as_operator = format!("{end}?as=operator");
        let required = |answer: Answer| answer.refused(Code::Forbidden)["required_scope"].clone();
        assert_eq!(required(call(&stuck, &as_operator, &none, &produce).await), "operator");
        assert_eq!(required(call(&stuck, end, &none, &operator).await), "produce");
        let narrowed = token("acme", "operator:acme produce");
        assert_eq!(required(call(&stuck, &as_operator, &none, &narrowed).await), "operator");
        let named = call(&stuck, &as_operator, &session, &operator).await;
        named.invalid(&["/producer_id", "/epoch"]);
        // a query that is malformed is nobody's: either scope is told
        for token in [&produce, &operator] {
            let odd = call(&stuck, &format!("{as_operator}&x=1"), &none, token).await;
            odd.invalid(&["?x"]);
        }
        let consume = token("acme", "consume");
        let odd = call(&stuck, &format!("{end}?x=1"), &none, &consume).await;
        assert_eq!(required(odd), "produce | operator");
    }
    let work = json!({"appends": [append(1)]});
    call(&stuck, "commit?as=operator", &work, &operator).await.invalid(&["/appends"]);
    // in use, not stuck: only what is prepared can be committed
    call(&stuck, "commit?as=operator", &none, &operator).await.invalid(&["?as"]);
    let aborted = call(&stuck, "abort?as=operator", &none, &operator).await.ok();
    assert_eq!((&aborted["state"], &aborted["reason"]), (&json!("aborted"), &json!("operator")));
    assert_eq!(aborted["producer_id"], session["producer_id"]);

    let prepared = path().await;
    call(&prepared, "prepare", &none, &produce).await.invalid(&["/producer_id"]);
    call(&prepared, "prepare", &session, &produce).await.ok();
    let committed = call(&prepared, "commit?as=operator", &none, &operator).await.ok();
    assert_eq!(
        (&committed["state"], &committed["duplicate"]),
        (&json!("committed"), &json!(false))
    );
    assert!(committed["prepared_at"].is_string());
    assert_eq!(server.get(&prepared).token(&operator).await.ok(), described(&committed));
}

#[tokio::test]
async fn transactions_are_listed_by_id_page_by_page_and_by_what_they_are() {
    let server = served().await;
    let (p, epoch) = server.session("p").await;
    let empty = json!({"transactions": [], "next_after": null});
    assert_eq!(server.get(ALL).await.ok(), empty);
    let session = json!({"producer_id": p, "epoch": epoch});
    let bound = begun(&server, session.clone()).await;
    let prepared = begun(&server, json!({"appends": [append(1)]})).await;
    server.post(&format!("{prepared}/prepare")).await.ok();
    let whole = begin(&server, json!({"commit": true, "appends": [append(2)]})).await.created();
    let whole = format!("{ALL}/{}", whole["transaction_id"].as_str().unwrap());
    let mut paths = vec![bound.clone(), prepared.clone(), whole.clone()];
    paths.sort();
    let list = async |query: &str| -> Vec<String> {
        let list = server.get(&format!("{ALL}{query}")).await.ok();
        assert_eq!(list["next_after"], Value::Null);
        let items = list["transactions"].as_array().unwrap().iter();
        let path = |item: &Value| {
            assert!(item.get("appends").is_none() && item.get("duplicate").is_none(), "{item}");
            format!("{ALL}/{}", item["transaction_id"].as_str().unwrap())
        };
        items.map(path).collect()
    };
    assert_eq!(list("").await, paths);
    assert_eq!(list("?state=ongoing").await, std::slice::from_ref(&bound));
    assert_eq!(list("?state=prepared").await, [prepared]);
    assert_eq!(list("?state=committed&older_than_ms=0").await, [whole]);
    assert_eq!(list("?state=aborted").await, [] as [String; 0]);
    // the last is older than any timestamp
    for age_ms in [3_600_000, 300_000_000_000_000_i64, (1 << 53) - 1] {
        assert_eq!(list(&format!("?older_than_ms={age_ms}")).await, [] as [String; 0]);
    }
    assert_eq!(list(&format!("?producer_id={p}&state=ongoing")).await, [bound]);
    assert_eq!(list(&format!("?producer_id={}", p + 1)).await, [] as [String; 0]);

    let mut next = format!("{ALL}?older_than_ms=0&limit=2");
    let mut seen = Vec::new();
    for more in [true, false] {
        let answer = server.get(&next).await;
        let page = answer.ok();
        let items = page["transactions"].as_array().unwrap().iter();
        seen.extend(
            items.map(|item| format!("{ALL}/{}", item["transaction_id"].as_str().unwrap())),
        );
        assert_eq!(page["next_after"].is_string(), more);
        let Some(link) = answer.header("link") else { break };
        let (url, rel) = link.split_once('>').unwrap();
        assert_eq!(rel, "; rel=\"next\"");
        next = url.strip_prefix('<').unwrap().to_owned();
        assert!(next.starts_with(&format!("{ALL}?older_than_ms=0&limit=2&after=")), "{next}");
    }
    assert_eq!(seen, paths);
    for (query, pointer) in [
        ("state=open", "?state"),
        ("older_than_ms=-1", "?older_than_ms"),
        ("producer_id=x", "?producer_id"),
        ("after=17", "?after"),
        ("limit=0", "?limit"),
        ("as=operator", "?as"),
    ] {
        server.get(&format!("{ALL}?{query}")).await.invalid(&[pointer]);
    }
    server.get(&format!("{}?as=operator", paths[0])).await.invalid(&["?as"]);
}

#[tokio::test]
async fn committed_records_carry_their_transaction_and_the_trace_of_their_request() {
    let server = served().await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let path = begun_alone(&server).await;
    let records = server.post(&format!("{path}/records")).json(json!({"appends": [append(1)]}));
    records.header("traceparent", trace).await.ok();
    let last = server.post(&format!("{path}/commit")).json(json!({"appends": [append(2)]}));
    last.header("traceparent", "not one").await.ok();
    let whole = begin(&server, json!({"commit": true, "appends": [append(3)]}));
    let whole = whole.header("traceparent", trace).await.created();
    let read = server.get("/v1/topics/orders/partitions/0/records").await.ok();
    let id = path.rsplit('/').next().unwrap();
    let told = read["records"].as_array().unwrap().iter().map(|record| {
        (&record["value"], &record["transaction_id"], &record["headers"]["traceparent"])
    });
    assert_eq!(
        told.collect::<Vec<_>>(),
        [
            (&json!(1), &json!(id), &json!(trace)),
            (&json!(2), &json!(id), &Value::Null),
            (&json!(3), &whole["transaction_id"], &json!(trace)),
        ]
    );
}

#[tokio::test]
async fn opening_a_session_tells_what_became_of_its_transactions() {
    let server = served().await;
    let open = async || {
        let open = server.post("/v1/sessions").json(json!({"transactional_id": "p"}));
        open.await.created()
    };
    let first = open().await;
    assert_eq!(first["aborted_transaction"], Value::Null);
    assert_eq!(first["prepared_transactions"], json!([]));
    let session = json!({"producer_id": first["producer_id"], "epoch": 0});
    let prepared = begun(&server, session.clone()).await;
    server.post(&format!("{prepared}/prepare")).json(&session).await.ok();
    let ongoing = begun(&server, session).await;
    let second = open().await;
    let id = |path: &str| path.rsplit('/').next().unwrap().to_owned();
    assert_eq!(second["aborted_transaction"], id(&ongoing));
    assert_eq!(second["prepared_transactions"], json!([id(&prepared)]));
    assert_eq!(server.get(&ongoing).await.ok()["reason"], "fenced");
    let seen = server.get(&format!("/v1/sessions/{}", first["producer_id"])).await.ok();
    assert_eq!(seen["prepared_transactions"], json!([id(&prepared)]));
}

#[tokio::test]
async fn offsets_are_judged_when_the_transaction_commits() {
    let server = served().await;
    let join = "insert into oncelog.groups (tenant_id, name)
        select tenant_id, 'owned' from oncelog.tenants;
        insert into oncelog.group_members (tenant_id, group_name, member_id)
        select tenant_id, 'owned', 'm-1' from oncelog.tenants";
    server.sql(join).await;
    let offset = |group: &str, right: Value| {
        let mut offset = json!({"group": group, "topic": "orders", "partition": 0, "offset": 0});
        offset.as_object_mut().unwrap().extend(right.as_object().unwrap().clone());
        json!({"offsets": [offset]})
    };
    let member = |id: &str| json!({"member_id": id, "generation": 0});
    let table = [
        (offset("free", json!({"expected_offset": 7})), Code::OffsetCommitConflict),
        (offset("owned", json!({"expected_offset": null})), Code::GroupNotEmpty),
        (offset("owned", member("m-1")), Code::IllegalGeneration),
        (offset("owned", member("m-2")), Code::UnknownMember),
    ];
    for (body, code) in table {
        let path = begun_alone(&server).await;
        let taken = server.post(&format!("{path}/offsets")).json(&body).await.ok();
        assert_eq!((&taken["state"], &taken["duplicate"]), (&json!("ongoing"), &json!(false)));
        for end in ["commit", "prepare"] {
            server.post(&format!("{path}/{end}")).await.refused(code);
        }
        assert_eq!(server.get(&path).await.ok()["state"], "ongoing");
        let mut whole = body.clone();
        whole["commit"] = json!(true);
        begin(&server, whole).await.refused(code);
    }
    let mut whole = offset("free", json!({"expected_offset": null}));
    whole["commit"] = json!(true);
    assert_eq!(begin(&server, whole).await.created()["state"], "committed");
    let committed = server.get("/v1/groups/free/offsets").await.ok();
    assert_eq!(committed["offsets"][0]["offset"], 0);
}
