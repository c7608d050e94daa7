use super::{request::Called, *};
use crate::{
    broker::Budget,
    http::extract::json,
    model::{
        Code, Name,
        append::Scope,
        dedup::RequestKey,
        group::Member,
        transaction::{Begin, Call, Caller, CommitRight, OffsetItem, RepeatedBy, Work},
    },
};

const ID: &str = "019aa5b6-5c00-7000-8000-000000000002";

/// A token for everything, as in embedded mode.
async fn everything() -> std::sync::Arc<crate::http::extract::auth::Grant> {
    let keys = crate::http::extract::auth::Keys::open().unwrap();
    keys.grant(&axum::http::HeaderMap::new()).await.unwrap()
}

/// Of a budget without end.
fn nothing() -> Taken {
    Budget::new(usize::MAX).take(None, 0).unwrap()
}

async fn begin(text: &str) -> Result<Begin, Error> {
    json::parse::<BeginTransaction>(text)?.checked(None, None, &*everything().await, &mut nothing())
}

async fn records(text: &str) -> Result<Called, Error> {
    json::parse::<AppendToTransaction>(text)?.checked(None, &*everything().await, &mut nothing())
}

async fn offsets(text: &str) -> Result<Called, Error> {
    json::parse::<AddOffsetsToTransaction>(text)?.checked(&*everything().await, &mut nothing())
}

async fn commit(text: &str, by_operator: bool) -> Result<Called, Error> {
    let body = json::parse::<CommitTransaction>(text)?;
    body.checked(None, &*everything().await, by_operator, &mut nothing())
}

/// The pointers of `invalid_request`.
#[track_caller]
fn pointers<T: std::fmt::Debug>(made: Result<T, Error>) -> Vec<String> {
    let error = made.unwrap_err();
    assert_eq!(error.code, Code::InvalidRequest, "{error:?}");
    let errors = error.facts[0].1.as_array().unwrap().iter();
    errors.map(|error| error["pointer"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn what_is_left_out_is_not_asked_for_and_neither_is_null_or_nothing() {
    for text in [
        "{}",
        r#"{"transaction_id":null,"producer_id":null,"epoch":null,"timeout_ms":null,"appends":null,
            "offsets":null,"commit":null}"#,
        r#"{"appends":[],"offsets":[],"commit":false}"#,
    ] {
        let begun = begin(text).await.unwrap();
        assert_eq!((begun.transaction_id, begun.session, begun.timeout_ms), (None, None, None));
        assert!(!begun.commit && begun.work.appends.is_empty() && begun.work.offsets.is_empty());
        assert_eq!(begun.digest(), begin("{}").await.unwrap().digest());
    }
    for text in ["{}", r#"{"expected_appends":null,"appends":[],"offsets":null}"#] {
        let (caller, call) = commit(text, false).await.unwrap();
        assert_eq!(caller, Caller::Bearer);
        let Call::Commit { expected_appends: None, work } = call else { panic!("{call:?}") };
        assert!(work.appends.is_empty() && work.offsets.is_empty());
    }
}

#[tokio::test]
async fn everything_arrives_as_it_was_sent() {
    let begun = begin(
        r#"{"transaction_id":"019AA5B6-5C00-7000-8000-000000000002","producer_id":17,"epoch":4,
            "timeout_ms":1,"commit":true,"appends":[
              {"topic":"orders","records":[{"key":"k","value": [1, 2]},{"value":null}]},
              {"records":[{"value_base64":"AAEC"}],"partition":3,"topic":"audit"}],
            "offsets":[
              {"group":"billing","member_id":"m-1","generation":3,"topic":"carts","partition":0,"offset":121},
              {"group":"billing","member_id":"m-1","generation":3,"expected_offset":8,"topic":"carts","partition":2,"offset":7},
              {"group":"billing","member_id":"m-1","generation":3,"expected_offset":null,"topic":"carts","partition":3,"offset":1},
              {"group":"billing","expected_offset":120,"topic":"carts","partition":0,"offset":0},
              {"group":"billing","expected_offset":null,"member_id":null,"topic":"carts","partition":1,"offset":9}]}"#,
    )
    .await
    .unwrap();
    assert_eq!(begun.transaction_id.unwrap().to_string(), ID);
    assert_eq!(begun.session, Some((ProducerId(17), 4)));
    assert_eq!((begun.timeout_ms, begun.commit), (Some(1), true));
    let Work { appends, offsets } = begun.work;
    let appended = appends.iter().map(|item| (item.topic.as_str(), item.scope, &*item.batch.lines));
    assert_eq!(
        appended.collect::<Vec<_>>(),
        [
            ("orders", Scope::Topic, "{\"value\":[1,2],\"key\":\"k\"}\n{\"value\":null}\n"),
            ("audit", Scope::Partition(3), "{\"value_base64\":\"AAEC\"}\n"),
        ]
    );
    let member = |expected| CommitRight::Member {
        member_id: "m-1".into(),
        generation: 3,
        expected,
        began: None,
    };
    let at = |partition, offset, claim| {
        let name = |name| Name::parse(name).unwrap();
        OffsetItem::At { group: name("billing"), topic: name("carts"), partition, offset, claim }
    };
    let (over, none) = (CommitRight::Expected(Some(120)), CommitRight::Expected(None));
    let by_member =
        [at(0, 121, member(None)), at(2, 7, member(Some(Some(8)))), at(3, 1, member(Some(None)))];
    let without_members = [at(0, 0, over), at(1, 9, none)];
    assert_eq!(offsets, [&by_member[..], &without_members].concat());
}

/// What a member expects is part of what it sends.
#[tokio::test]
async fn another_expected_offset_is_another_begin() {
    let digest = async |more: &str| {
        let member = r#""member_id":"m","generation":1"#;
        let place = r#""group":"g","topic":"t","partition":0,"offset":1"#;
        begin(&format!(r#"{{"offsets":[{{{place},{member}{more}}}]}}"#)).await.unwrap().digest()
    };
    let mut digests = Vec::new();
    for more in
        ["", r#","expected_offset":null"#, r#","expected_offset":0"#, r#","expected_offset":1"#]
    {
        digests.push(digest(more).await);
    }
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), 4);
}

/// One item that is right, and what is to be judged.
fn second(name: &str, right: &str, item: &str) -> String {
    format!(r#"{{"{name}":[{right},{item}]}}"#)
}

#[tokio::test]
async fn what_is_wrong_with_an_append_is_pointed_at() {
    let right = r#"{"topic":"orders","records":[{"value":1}]}"#;
    let table: &[(&str, &[&str])] = &[
        ("{}", &["/topic"]),
        ("[]", &[""]),
        (r#"{"topic":"orders"}"#, &["/records"]),
        (r#"{"topic":null,"records":[{"value":1}]}"#, &["/topic"]),
        (r#"{"topic":"a b","partition":-1,"records":[]}"#, &["/topic", "/partition", "/records"]),
        (r#"{"topic":"o","partition":2147483648,"records":[{"value":1}]}"#, &["/partition"]),
        (r#"{"topic":"o","partition":"0","records":[{"value":1}]}"#, &["/partition"]),
        (r#"{"topic":"o","records":null}"#, &["/records"]),
        (r#"{"topic":"o","records":{}}"#, &["/records"]),
        (r#"{"topic":"o","records":[{"value":1}],"records":[{"value":1}]}"#, &["/records"]),
        (r#"{"topic":"o","records":[{"value":01}]}"#, &["/records"]),
        (r#"{"topic":"o","records":[{"value":1},[]]}"#, &["/records/1"]),
        (r#"{"topic":"o","records":[{"value":1},{"valeu":1}]}"#, &["/records/1/valeu"]),
        (r#"{"topic":"o","records":[{"value":1,"headers":{"/":1}}]}"#, &["/records/0/headers/~1"]),
        // fields of an append of its own
        (r#"{"topic":"o","records":[{"value":1}],"expected_offset":0}"#, &["/expected_offset"]),
        (r#"{"topic":"o","records":[{"value":1}],"sequence":0}"#, &["/sequence"]),
        (r#"{"topic":"o","records":[{"value":1}],"producer_id":1}"#, &["/producer_id"]),
    ];
    for (item, below) in table {
        let body = second("appends", right, item);
        let want: Vec<_> = below.iter().map(|below| format!("/appends/1{below}")).collect();
        assert_eq!(pointers(begin(&body).await), want, "{item}");
        assert_eq!(pointers(records(&body).await), want, "{item}");
        assert_eq!(pointers(commit(&body, false).await), want, "{item}");
    }
}

#[tokio::test]
async fn what_is_wrong_with_an_offset_is_pointed_at() {
    let right =
        r#"{"group":"g","expected_offset":null,"topic":"carts","partition":0,"offset":121}"#;
    let place = r#""group":"g","topic":"carts","partition":0,"offset":121"#;
    let with = |fields: &str| format!("{{{place},{fields}}}");
    let long = format!(r#""member_id":"{}","generation":1"#, "m".repeat(256));
    let table: &[(String, &[&str])] = &[
        ("{}".into(), &["/group"]),
        (r#"{"group":"g"}"#.into(), &["/topic", "/partition", "/offset", ""]),
        (format!("{{{place}}}"), &[""]),
        (with(r#""member_id":"m""#), &["/generation"]),
        (with(r#""generation":1"#), &["/member_id"]),
        (with(r#""member_id":"","generation":1"#), &["/member_id"]),
        (with(r#""member_id":"\u0000","generation":1"#), &["/member_id"]),
        (with(&long), &["/member_id"]),
        (with(r#""member_id":"m","generation":-1"#), &["/generation"]),
        (with(r#""member_id":"m","expected_offset":null"#), &["/generation"]),
        (with(r#""member_id":"m","generation":1,"expected_offset":-1"#), &["/expected_offset"]),
        (with(r#""expected_offset":-1"#), &["/expected_offset"]),
        (with(r#""expected_offset":"1""#), &["/expected_offset"]),
        (with(r#""expected_offset":9007199254740992"#), &["/expected_offset"]),
        (with(r#""expected_offset":1,"expected_offset":1"#), &["/expected_offset"]),
        (with(r#""expected_offset":1,"metadata":"x""#), &["/metadata"]),
        (
            r#"{"group":"..","topic":"","partition":-1,"offset":-1,"expected_offset":1}"#.into(),
            &["/group", "/topic", "/partition", "/offset"],
        ),
        (r#"{"group":"g","cursor":"c"}"#.into(), &["/member_id", "/generation"]),
        (r#"{"group":"g","cursor":7}"#.into(), &["/cursor"]),
        (
            with(r#""member_id":"m","generation":1,"cursor":"c""#),
            &["/topic", "/partition", "/offset"],
        ),
        (
            r#"{"group":"g","member_id":"m","generation":1,"cursor":"c","expected_offset":1}"#
                .into(),
            &["/expected_offset"],
        ),
    ];
    for (item, below) in table {
        let body = second("offsets", right, item);
        let want: Vec<_> = below.iter().map(|below| format!("/offsets/1{below}")).collect();
        assert_eq!(pointers(begin(&body).await), want, "{item}");
        assert_eq!(pointers(offsets(&body).await), want, "{item}");
        assert_eq!(pointers(commit(&body, false).await), want, "{item}");
    }
    for (count, want) in [(10_000, true), (10_001, false)] {
        let body = format!(r#"{{"offsets":[{}]}}"#, vec![right; count].join(","));
        assert_eq!(offsets(&body).await.is_ok(), want);
    }
    let longest = format!(r#""member_id":"{}","generation":0"#, "m".repeat(255));
    offsets(&second("offsets", right, &with(&longest))).await.unwrap();
}

#[tokio::test]
async fn all_mistakes_around_the_work_come_at_once() {
    let item = r#"{"topic":"o","partition":-1,"records":[]}"#;
    let body = format!(r#"{{"producer_id":-1,"timeout_ms":0,"appends":[{item}]}}"#);
    let want =
        ["/producer_id", "/epoch", "/timeout_ms", "/appends/0/partition", "/appends/0/records"];
    assert_eq!(pointers(begin(&body).await), want);
    let body = format!(r#"{{"epoch":1,"expected_appends":-1,"appends":[{item}]}}"#);
    let want = ["/producer_id", "/expected_appends", "/appends/0/partition", "/appends/0/records"];
    assert_eq!(pointers(commit(&body, false).await), want);
    for text in ["{}", r#"{"appends":null}"#, r#"{"appends":[],"sequence":-1}"#] {
        let more: &[&str] =
            if text.contains("-1") { &["/sequence", "/appends"] } else { &["/appends"] };
        assert_eq!(pointers(records(text).await), more, "{text}");
    }
    for text in ["{}", r#"{"offsets":null}"#, r#"{"offsets":[]}"#] {
        assert_eq!(pointers(offsets(text).await), ["/offsets"], "{text}");
    }
    let table = [
        (r#"{"transaction_id":7}"#, "/transaction_id"),
        (r#"{"commit":1}"#, "/commit"),
        (r#"{"comit":true}"#, "/comit"),
        (r#"{"commit":true,"commit":true}"#, "/commit"),
        (r#"{"timeout_ms":9007199254740992}"#, "/timeout_ms"),
        (r#"{"appends":{}}"#, "/appends"),
        (r#"{"offsets":[[]]}"#, "/offsets/0"),
        (r#"{"sequence":0}"#, "/sequence"),
        ("[]", ""),
        ("{} {}", ""),
    ];
    for (text, pointer) in table {
        assert_eq!(pointers(begin(text).await), [pointer], "{text}");
    }
}

#[tokio::test]
async fn an_id_is_a_uuid_v7_and_a_cursor_stands_for_offsets() {
    for id in ["", "x", "9f1c8d6e-1111-4111-8111-111111111111", &ID.replace('-', "")] {
        let error = begin(&format!(r#"{{"transaction_id":"{id}"}}"#)).await.unwrap_err();
        assert_eq!(error.code, Code::InvalidTransactionId, "{id}");
    }
    let right = r#"{"group":"g","expected_offset":null,"topic":"t","partition":0,"offset":1}"#;
    let cursor = r#"{"group":"g","member_id":"m","generation":1,"cursor":"c"}"#;
    let (_, Call::Offsets(items)) = offsets(&second("offsets", right, cursor)).await.unwrap()
    else {
        panic!("offsets are expected");
    };
    let member = Member { member_id: "m".into(), generation: 1 };
    let group = Name::parse("g").unwrap();
    assert_eq!(items[1], OffsetItem::Cursor { group, member, cursor: "c".into() });
}

#[tokio::test]
async fn an_operator_names_no_session_and_adds_nothing() {
    let abort =
        |text: &str, by_operator| json::parse::<CallTransaction>(text).unwrap().abort(by_operator);
    let session = r#"{"producer_id":1,"epoch":0}"#;
    assert_eq!(abort("{}", true).unwrap().0, Caller::Operator);
    assert_eq!(abort("{}", false).unwrap().0, Caller::Bearer);
    assert_eq!(abort(session, false).unwrap().0, Caller::Session(ProducerId(1), 0));
    assert_eq!(pointers(abort(session, true)), ["/producer_id", "/epoch"]);
    assert_eq!(pointers(abort(r#"{"epoch":0}"#, true)), ["/epoch"]);
    for text in ["{}", r#"{"appends":[],"offsets":[],"expected_appends":1}"#] {
        assert_eq!(commit(text, true).await.unwrap().0, Caller::Operator);
    }
    let work = r#"{"producer_id":1,"appends":[{"topic":"o","records":[{"value":1}]}],
        "offsets":[{"group":"g","expected_offset":1,"topic":"o","partition":0,"offset":1}]}"#;
    assert_eq!(pointers(commit(work, true).await), ["/appends", "/offsets", "/producer_id"]);
}

#[tokio::test]
async fn the_traceparent_goes_into_the_records() {
    let text = r#"{"appends":[{"topic":"o","records":[{"value":1}]}]}"#;
    let body: BeginTransaction = json::parse(text).unwrap();
    let begun = body.checked(None, Some("T"), &*everything().await, &mut nothing()).unwrap();
    let lines = &begun.work.appends[0].batch.lines;
    assert_eq!(lines, "{\"value\":1,\"headers\":{\"traceparent\":\"T\"}}\n");
    // and not into what is compared when it is repeated
    assert_eq!(begun.digest(), begin(text).await.unwrap().digest());
}

#[tokio::test]
async fn a_key_is_for_one_request_transactions_without_an_id() {
    let key = RequestKey::new("evt_123", "POST", "/v1/transactions", &[]);
    let named = format!(r#"{{"transaction_id":"{ID}"}}"#);
    let both = format!(r#"{{"transaction_id":"{ID}","commit":true}}"#);
    for (text, is_taken) in [
        (r#"{"commit":true}"#, true),
        (r#"{"commit":true,"producer_id":1,"epoch":0}"#, true),
        ("{}", false),
        (r#"{"commit":false}"#, false),
        (&*named, false),
        (&*both, false),
    ] {
        let body: BeginTransaction = json::parse(text).unwrap();
        let begun = body.checked(Some(key), None, &*everything().await, &mut nothing());
        if is_taken {
            assert_eq!(begun.unwrap().repeated_by(), RepeatedBy::Key(key), "{text}");
        } else {
            assert_eq!(pointers(begun), ["Idempotency-Key"], "{text}");
        }
    }
    assert_eq!(begin("{}").await.unwrap().repeated_by(), RepeatedBy::Nothing);
    assert_eq!(begin(&named).await.unwrap().repeated_by(), RepeatedBy::Id);
}

#[test]
fn lists_are_filtered_and_linked() {
    let query = TransactionsQuery {
        state: Some(State::Prepared),
        older_than_ms: Some(0),
        producer_id: Some(17),
        limit: None,
        after: Some(ID.to_uppercase()),
    };
    let filter = query.filter().unwrap();
    assert_eq!(base(&filter), "/v1/transactions?state=prepared&older_than_ms=0&producer_id=17&");
    assert_eq!(base(&Filter::default()), "/v1/transactions?");
    let query = TransactionsQuery {
        state: None,
        older_than_ms: Some(-1),
        producer_id: Some(1 << 53),
        limit: None,
        after: Some("17".into()),
    };
    let errors = query.filter().unwrap_err().listed.into_iter().map(|error| error.pointer);
    assert_eq!(errors.collect::<Vec<_>>(), ["?older_than_ms", "?producer_id", "?after"]);
}
