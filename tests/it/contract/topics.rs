//! Topics over HTTP: make, grow, change, list, trim, delete, and their limits.

use oncelog::{
    broker::ServiceConfig,
    model::{Code, topic::TopicPatch},
};
use serde_json::{Value, json};

use crate::support::{self, http::Server, name, proxy::Proxy};

fn records(topic: &str, partition: i32) -> String {
    format!("/v1/topics/{topic}/partitions/{partition}/records")
}

#[tokio::test]
async fn put_makes_a_topic_once() {
    let server = Server::start().await;
    let put = |body: Value| server.put("/v1/topics/orders").json(body);
    let made = put(json!({"partition_count": 2})).await.created();
    let empty = |partition: i32| {
        json!({"partition": partition, "log_start_offset": 0, "high_watermark": 0,
            "record_count": 0, "size_bytes": 0})
    };
    assert_eq!(
        made,
        json!({"topic": "orders", "partition_count": 2, "settings": {},
            "created_at": made["created_at"], "partitions": [empty(0), empty(1)]})
    );
    let at = made["created_at"].as_str().unwrap();
    assert!(at.len() == 24 && at.ends_with('Z'), "{at}");
    // repeated: the same answer, as long as the count is not another
    for repeat in [json!({"partition_count": 2}), json!({}), json!({"partition_count": null})] {
        assert_eq!(put(repeat).await.ok(), made);
    }
    for other in [1, 3] {
        put(json!({"partition_count": other})).await.refused(Code::TopicExists);
    }
    // settings of a repeat are set, left out they stay
    let small = json!({"settings": {"max_batch_records": 7}});
    assert_eq!(put(small).await.ok()["settings"], json!({"max_batch_records": 7}));
    assert_eq!(put(json!({})).await.ok()["settings"], json!({"max_batch_records": 7}));
    assert_eq!(server.get("/v1/topics/orders").await.ok()["partition_count"], 2);
    // an empty body is {}, with or without a media type: one partition
    assert_eq!(server.put("/v1/topics/a").await.created()["partition_count"], 1);
    assert_eq!(server.put("/v1/topics/b").json("").await.created()["partition_count"], 1);
}

#[tokio::test]
async fn what_is_wrong_with_a_topic_is_named() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let most = 16 << 20;
    let table: &[(Value, &[&str])] = &[
        (json!({"partitions": 1}), &["/partitions"]),
        (json!({"partition_count": 0}), &["/partition_count"]),
        (json!({"partition_count": 10_001}), &["/partition_count"]),
        (json!({"partition_count": 1.0}), &["/partition_count"]),
        (json!({"partition_count": "1"}), &["/partition_count"]),
        (json!({"settings": []}), &["/settings"]),
        (json!({"settings": {"retention": 1}}), &["/settings/retention"]),
        (json!({"settings": {"max_batch_records": 0}}), &["/settings/max_batch_records"]),
        (json!({"settings": {"max_batch_records": "x"}}), &["/settings/max_batch_records"]),
        (
            json!({"partition_count": 0, "settings":
                {"max_batch_bytes": most + 1, "max_record_bytes": 0}}),
            &["/partition_count", "/settings/max_batch_bytes", "/settings/max_record_bytes"],
        ),
        (json!([]), &[""]),
        (json!(1), &[""]),
    ];
    for (body, pointers) in table {
        server.put("/v1/topics/orders").json(body).await.invalid(pointers);
        server.patch("/v1/topics/orders").json(body).await.invalid(pointers);
    }
    let twice = r#"{"partition_count": 1, "partition_count": 1}"#;
    server.put("/v1/topics/orders").json(twice).await.invalid(&["/partition_count"]);
    server.put("/v1/topics/orders?dry=1").json("{}").await.invalid(&["?dry"]);
    for broken in ["{", "{}{}", "nul", "\u{feff}{}", "{\"settings\": {\"max_batch"] {
        server.put("/v1/topics/orders").json(broken).await.refused(Code::InvalidRequest);
    }
    server.put("/v1/topics/orders").json("").body([0x7b, 0xff, 0x7d]).await.invalid(&[""]);
    let unchanged = server.get("/v1/topics/orders").await.ok();
    assert_eq!((&unchanged["partition_count"], &unchanged["settings"]), (&json!(1), &json!({})));
}

#[tokio::test]
async fn names_and_numbers_in_the_path_are_judged() {
    let server = Server::start().await;
    let longest = "x".repeat(249);
    server.put(&format!("/v1/topics/{longest}")).await.created();
    for name in ["A.b-c_9", "...", "-", "0"] {
        server.put(&format!("/v1/topics/{name}")).await.created();
        assert_eq!(server.get(&format!("/v1/topics/{name}")).await.ok()["topic"], name);
    }
    let bad = ["a b", "%61%2fb", "ä", "%ff", "a:b", "*", ".", "..", &"x".repeat(250), "%zz"];
    for name in bad {
        // as is on the line: a client's URL parser would mend some
        for (method, rest) in [("PUT", ""), ("GET", ""), ("GET", "/partitions/0/records")] {
            let name = name.replace(' ', "%20");
            let line =
                format!("{method} /v1/topics/{name}{rest} HTTP/1.1\r\nhost: localhost\r\n\r\n");
            server.raw(line).await.invalid(&["/path/topic"]);
        }
    }
    server.topic("orders", 1).await;
    for partition in ["-1", "01", "x", "1.0", "2147483648", "+1", "%20"] {
        let path = format!("/v1/topics/orders/partitions/{partition}/records");
        server.get(&path).await.invalid(&["/path/partition"]);
        server.post(&path).json(r#"{"records":[{"value":1}]}"#).await.invalid(&["/path/partition"]);
    }
    for producer in ["-1", "x", "01", "9007199254740992"] {
        let path = format!("/v1/sessions/{producer}");
        server.get(&path).await.invalid(&["/path/producer_id"]);
        server.delete(&path).await.invalid(&["/path/producer_id"]);
    }
    server.get("/v1/sessions/9007199254740991").await.refused(Code::UnknownProducer);
    server
        .get("/v1/topics/orders/partitions/2147483647/records")
        .await
        .refused(Code::PartitionNotFound);
    // an empty name is a malformed one, where something follows
    server.post("/v1/topics//records").json("{}").await.invalid(&["/path/topic"]);
    for path in ["/v1/topics/", "/v1/topics/a/b", "/V1/topics", "/v1"] {
        server.get(path).await.refused(Code::RouteNotFound);
    }
}

#[tokio::test]
async fn patch_grows_and_merges() {
    let server = Server::start().await;
    server.topic("orders", 2).await;
    let patch = |body: Value| server.patch("/v1/topics/orders").json(body);
    let settings =
        async |body: Value| patch(json!({"settings": body})).await.ok()["settings"].clone();
    let grown = patch(json!({"partition_count": 5})).await.ok();
    assert_eq!(grown["partitions"].as_array().unwrap().len(), 5);
    assert_eq!(grown, server.get("/v1/topics/orders").await.ok());
    patch(json!({"partition_count": 4})).await.refused(Code::TopicExists);
    assert_eq!(patch(json!({"partition_count": 5})).await.ok(), grown);
    assert_eq!(patch(json!({})).await.ok(), grown);
    assert_eq!(server.patch("/v1/topics/orders").await.ok(), grown);
    // what is absent stays; "default" takes the own value away
    let both = settings(json!({"max_batch_records": 5, "max_batch_bytes": 100})).await;
    assert_eq!(both, json!({"max_batch_records": 5, "max_batch_bytes": 100}));
    let third = settings(json!({"max_record_bytes": 50, "max_batch_bytes": "default"})).await;
    assert_eq!(third, json!({"max_batch_records": 5, "max_record_bytes": 50}));
    assert_eq!(
        settings(json!({"max_batch_records": "default"})).await,
        json!({"max_record_bytes": 50})
    );
    let null = patch(json!({"settings": {"max_record_bytes": null}})).await;
    null.invalid(&["/settings/max_record_bytes"]);
    server.patch("/v1/topics/none").json("{}").await.refused(Code::TopicNotFound);
}

#[tokio::test]
async fn a_deleted_topic_is_gone_and_its_name_starts_over() {
    let server = Server::start().await;
    server.topic("orders", 2).await;
    let (p, _) = server.session("p").await;
    let append = |path: &str, sequence: i64| {
        server.post(path).json(json!({"producer_id": p, "epoch": 0, "sequence": sequence,
            "records": [{"value": sequence}]}))
    };
    let (whole, one) = ("/v1/topics/orders/records", records("orders", 1));
    for sequence in 0..3 {
        append(whole, sequence).await.ok();
        append(&one, sequence).await.ok();
    }
    server.delete("/v1/topics/orders").await.no_content();
    server.delete("/v1/topics/orders").await.refused(Code::TopicNotFound);
    server.get("/v1/topics/orders").await.refused(Code::TopicNotFound);
    server.get(&one).await.refused(Code::TopicNotFound);
    append(whole, 3).await.refused(Code::TopicNotFound);
    append(&one, 3).await.refused(Code::TopicNotFound);
    let session = server.get(&format!("/v1/sessions/{p}")).await.ok();
    assert_eq!(session["next_sequences"], json!([]));
    // another topic of that name: offsets and sequences from 0
    server.topic("orders", 2).await;
    append(whole, 3).await.refused(Code::UnknownProducerState);
    append(&one, 3).await.refused(Code::UnknownProducerState);
    assert_eq!(append(&one, 0).await.ok()["base_offset"], 0);
    let first = append(whole, 0).await.ok();
    assert_eq!(first["duplicate"], false);
    assert_eq!(server.get(&records("orders", 0)).await.ok()["log_start_offset"], 0);
    // the old rows go in the background, and nothing of the new
    server.broker.sweep().await.unwrap();
    let read = server.get(&one).await.ok();
    assert_eq!(read["records"][0]["value"], 0);
}

#[tokio::test]
async fn a_trim_moves_the_log_start_and_nothing_else() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let path = records("orders", 0);
    for value in 0..5 {
        server.post(&path).json(json!({"records": [{"value": value}]})).await.ok();
    }
    let trim = |query: &str| server.delete(&format!("{path}{query}"));
    trim("?before=3").await.no_content();
    let read = server.get(&path).await.ok();
    assert_eq!(read["records"][0]["offset"], 3);
    assert_eq!((&read["log_start_offset"], &read["high_watermark"]), (&json!(3), &json!(5)));
    // never back
    trim("?before=1").await.no_content();
    let problem = server.get(&format!("{path}?offset=2")).await.refused(Code::OffsetOutOfRange);
    assert_eq!((&problem["log_start_offset"], &problem["high_watermark"]), (&json!(3), &json!(5)));
    let topic = server.get("/v1/topics/orders").await.ok();
    let partition = &topic["partitions"][0];
    assert_eq!(
        (&partition["log_start_offset"], &partition["record_count"]),
        (&json!(3), &json!(2))
    );
    // never past the end
    let problem = trim("?before=6").await.refused(Code::OffsetOutOfRange);
    assert_eq!(problem["high_watermark"], 5);
    trim("?before=5").await.no_content();
    assert_eq!(server.get(&path).await.ok()["next_offset"], 5);
    let next = server.post(&path).json(r#"{"records":[{"value":5}]}"#).await.ok();
    assert_eq!(next["base_offset"], 5);
    trim("").await.invalid(&["?before"]);
    trim("?before=-1").await.invalid(&["?before"]);
    trim("?before=x").await.invalid(&["?before"]);
    trim("?before=1&force=1").await.invalid(&["?force"]);
    server
        .delete(&format!("{}?before=0", records("orders", 1)))
        .await
        .refused(Code::PartitionNotFound);
    server.delete(&format!("{}?before=0", records("none", 0))).await.refused(Code::TopicNotFound);
}

#[tokio::test]
async fn lists_are_paged_and_linked() {
    let server = Server::start().await;
    let mut names: Vec<String> = (0..7).map(|i| format!("t{i}")).collect();
    names.extend(["T", "_", "-", "a.b"].map(str::to_owned));
    for name in &names {
        server.put(&format!("/v1/topics/{name}")).await.created();
    }
    names.sort();
    let (mut path, mut seen, mut pages) = ("/v1/topics?limit=4".to_owned(), vec![], 0);
    loop {
        let answer = server.get(&path).await;
        let list = answer.ok();
        let items = list["topics"].as_array().unwrap();
        seen.extend(items.iter().map(|item| item["topic"].as_str().unwrap().to_owned()));
        pages += 1;
        let Some(after) = list["next_after"].as_str() else {
            assert!(list["next_after"].is_null() && answer.header("link").is_none());
            break;
        };
        assert_eq!(seen.last().unwrap(), after);
        let link = answer.header("link").unwrap();
        path = link.strip_prefix('<').unwrap().strip_suffix(">; rel=\"next\"").unwrap().to_owned();
        assert_eq!(path, format!("/v1/topics?limit=4&after={after}"));
    }
    assert_eq!((seen, pages), (names, 3));
    let all = server.get("/v1/topics").await.ok();
    let item = &all["topics"][0];
    assert_eq!(
        *item,
        json!({"topic": "-", "partition_count": 1, "settings": {},
            "created_at": item["created_at"]})
    );
    // behind a name that is not there
    assert_eq!(server.get("/v1/topics?after=t5x").await.ok()["topics"][0]["topic"], "t6");
    for (query, pointer) in [
        ("limit=0", "?limit"),
        ("limit=1001", "?limit"),
        ("limit=-1", "?limit"),
        ("limit=1e2", "?limit"),
        ("limit=", "?limit"),
        ("after=", "?after"),
        ("after=%00", "?after"),
        ("limit=1&limit=1", "?limit"),
        ("limt=1", "?limt"),
    ] {
        for list in ["/v1/topics", "/v1/sessions"] {
            server.get(&format!("{list}?{query}")).await.invalid(&[pointer]);
        }
    }
    server.get("/v1/topics?limit=1000").await.ok();
    server.get("/v1/topics/t1?limit=1").await.invalid(&["?limit"]);
}

#[tokio::test]
async fn quotas_count_what_is_there() {
    let server = Server::start().await;
    server.topic("first", 1).await;
    server
        .sql(
            "insert into oncelog.topics (tenant_id, name, partition_count) \
            select tenant_id, 'filler-' || i, 1 from oncelog.tenants, generate_series(2, 999) i",
        )
        .await;
    server.topic("last", 1).await;
    let problem = server.put("/v1/topics/more").await.refused(Code::QuotaExceeded);
    assert_eq!((&problem["limit"], &problem["retry"]), (&json!(1_000), &json!("never")));
    // what is there can still be put and grown
    server.put("/v1/topics/last").await.ok();
    server.patch("/v1/topics/last").json(r#"{"partition_count":3}"#).await.ok();
    // a deleted one stops counting at once
    server.delete("/v1/topics/first").await.no_content();
    server.put("/v1/topics/more").await.created();
    server.put("/v1/topics/again").await.refused(Code::QuotaExceeded);
    // partitions: 997 fillers, 3, 1 of `more`; and one topic makes up the rest
    server.delete("/v1/topics/filler-2").await;
    server
        .sql(
            "update oncelog.topics set partition_count = 10000 - 1002 + 1 - 2 \
            where name = 'filler-3'",
        )
        .await;
    let patch =
        |count: i32| server.patch("/v1/topics/more").json(json!({"partition_count": count}));
    let problem = patch(5).await.refused(Code::QuotaExceeded);
    assert_eq!(problem["limit"], 10_000);
    patch(2).await.ok();
}

#[tokio::test]
async fn methods_media_and_representations() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let allow = async |method: &str, path: &str| -> String {
        let answer = server.call(method, path).await;
        answer.refused(Code::MethodNotAllowed);
        let mut allowed: Vec<_> = answer.header("allow").unwrap().split(',').collect();
        allowed.sort_unstable();
        allowed.join(" ")
    };
    assert_eq!(allow("POST", "/v1/topics").await, "GET HEAD");
    assert_eq!(allow("POST", "/v1/topics/orders").await, "DELETE GET HEAD PATCH PUT");
    assert_eq!(
        allow("PUT", "/v1/topics/orders/partitions/0/records").await,
        "DELETE GET HEAD POST"
    );
    assert_eq!(allow("DELETE", "/livez").await, "GET HEAD");
    // NDJSON is where the contract has it, and no other type anywhere
    let ndjson = "application/x-ndjson";
    for path in ["/v1/topics", "/v1/topics/orders", "/v1/sessions"] {
        for accept in [ndjson, "text/html", "application/xml, text/*", "application/json;q=0"] {
            server.get(path).header("accept", accept).await.refused(Code::NotAcceptable);
        }
        for accept in ["*/*", "application/*", "text/html, application/json;q=0.1"] {
            let answer = server.get(path).header("accept", accept).await;
            answer.ok();
            assert_eq!(answer.header("content-type"), Some("application/json"));
        }
    }
    let put = |media: &str| server.put("/v1/topics/x").header("content-type", media).body("{}");
    for media in ["text/plain", ndjson, "application/json; charset=latin1", "", "json"] {
        put(media).await.refused(Code::UnsupportedMediaType);
    }
    server.put("/v1/topics/x").body("{}").await.refused(Code::UnsupportedMediaType);
    let twice = put("application/json").header("content-type", "application/json").await;
    twice.refused(Code::UnsupportedMediaType);
    put("Application/JSON ; charset=\"UTF-8\"").await.created();
}

#[tokio::test]
async fn requests_have_ids() {
    let server = Server::start().await;
    let call = |id: &str| server.get("/v1/topics").header("x-request-id", id);
    assert_eq!(call("mine-1").await.header("x-request-id"), Some("mine-1"));
    let longest = "x".repeat(128);
    assert_eq!(call(&longest).await.header("x-request-id"), Some(&*longest));
    for bad in ["", "a b", "ä", &"x".repeat(129)] {
        let answer = call(bad).await;
        let made = answer.header("x-request-id").unwrap();
        assert!(uuid::Uuid::try_parse(made).is_ok(), "{made}");
    }
    let (one, two) = (server.get("/livez").await, server.get("/livez").await);
    assert_ne!(one.header("x-request-id").unwrap(), two.header("x-request-id").unwrap());
}

/// The database goes away where the answer is read: it is true that nothing has changed.
#[tokio::test]
async fn a_change_that_could_not_be_described_was_not_made() {
    const DESCRIBING: &str = "select l.partition, l.log_start_offset";
    let options = support::database().await;
    let proxy = Proxy::start(&options, 1).await;
    let broker = support::broker(&proxy.options(&options), ServiceConfig::default());
    let tenant = support::tenant(&broker).await;
    let (topic, settings) = (name("orders"), ServiceConfig::default());
    let other = support::broker(&options, settings);
    proxy.cut_at(DESCRIBING, false);
    let put = broker.put_topic(tenant, &topic, Some(1), None).await;
    assert_eq!((put.err().map(|e| e.code), proxy.cut_nowhere()), (Some(Code::Unavailable), true));
    let (_, is_new) = other.put_topic(tenant, &topic, Some(1), None).await.unwrap();
    assert!(is_new);
    proxy.cut_at(DESCRIBING, false);
    let patch = TopicPatch { partition_count: Some(3), ..TopicPatch::default() };
    let patched = broker.patch_topic(tenant, &topic, patch).await;
    let code = patched.err().map(|error| error.code);
    assert_eq!((code, proxy.cut_nowhere()), (Some(Code::Unavailable), true));
    let described = other.topic(tenant, &topic).await.unwrap();
    assert_eq!(described.summary.partition_count, 1);
}
