//! Calls that name a deleted topic: a replica that has not noticed answers as one that has.

use oncelog::model::Code;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{append, begin, call, replica_of};
use crate::support::http::{Answer, Server};

#[tokio::test]
async fn the_answer_does_not_depend_on_what_a_replica_has_noticed() {
    let here = Server::start().await;
    let there = replica_of(&here).await;
    here.topic("kept", 1).await;
    here.topic("deleted", 1).await;
    let id = Uuid::now_v7();
    begin(&here, &json!({"transaction_id": id})).await.created();
    let appends = |value: i64| {
        let record = json!([{"value": value}]);
        json!([{"topic": "kept", "records": record}, {"topic": "deleted", "records": record}])
    };
    let records =
        |sequence: i64, value: i64| json!({"sequence": sequence, "appends": appends(value)});
    let first = call(&there, id, "records", &records(0, 1)).await.ok();
    here.delete("/v1/topics/deleted").await.no_content();

    // the one that has not noticed comes first: its answers do not make it notice
    let on_each = async |id: Uuid, verb: &str, body: Value, judge: &dyn Fn(&Answer)| {
        for server in [&there, &here] {
            judge(&call(server, id, verb, &body).await);
        }
    };
    on_each(id, "records", records(0, 1), &|answer| {
        let again = answer.ok();
        assert_eq!(again["duplicate"], true);
        assert_eq!(again["append_count"], first["append_count"]);
    })
    .await;
    // all else is refused for its topics, whatever else is wrong
    let refused = |answer: &Answer| drop(answer.refused(Code::TopicNotFound));
    let work = json!({"appends": appends(1)});
    on_each(id, "records", records(0, 2), &refused).await;
    on_each(id, "records", records(7, 1), &refused).await;
    on_each(Uuid::now_v7(), "records", records(0, 1), &refused).await;
    on_each(id, "commit", work.clone(), &refused).await;
    on_each(id, "records", records(1, 1), &refused).await;

    // also of one that has ended
    let ended = Uuid::now_v7();
    for how in ["abort", "commit"] {
        let id = if how == "abort" { id } else { ended };
        if how == "commit" {
            here.topic("deleted", 1).await;
            begin(&here, &json!({"transaction_id": id})).await.created();
            call(&there, id, "records", &records(0, 1)).await.ok();
        }
        call(&here, id, how, &json!({})).await.ok();
        if how == "commit" {
            here.delete("/v1/topics/deleted").await.no_content();
        }
        on_each(id, "records", records(1, 1), &refused).await;
        on_each(id, "records", records(0, 1), &refused).await;
    }
    on_each(ended, "commit", work.clone(), &|answer| assert_eq!(answer.ok()["duplicate"], true))
        .await;
    on_each(id, "commit", work, &refused).await;
}

/// A cursor has nothing to say of a topic that is gone; an item that names it has.
#[tokio::test]
async fn offsets_of_a_deleted_topic_are_refused_also_beside_a_cursor() {
    let here = Server::start().await;
    let there = replica_of(&here).await;
    here.topic("deleted", 1).await;
    let records = "/v1/topics/deleted/partitions/0/records";
    there.post(records).json(json!({"records": [{"value": 1}]})).await.ok();
    let joined = there.post("/v1/groups/g/members").json(json!({"topics": ["deleted"]})).await;
    let member = joined.created()["member_id"].as_str().unwrap().to_owned();
    let fetched = there.get(&format!("/v1/groups/g/members/{member}/records")).await.ok();
    let by_cursor = json!({"group": "g", "member_id": member,
        "generation": fetched["generation"], "cursor": fetched["cursor"]});
    let named = json!({"group": "g", "topic": "deleted", "partition": 0, "offset": 1,
        "member_id": member, "generation": fetched["generation"], "expected_offset": null});
    here.delete("/v1/topics/deleted").await.no_content();
    for server in [&there, &here] {
        for offsets in [json!([named, by_cursor]), json!([by_cursor, named])] {
            let begun = begin(server, &json!({"offsets": offsets})).await;
            begun.refused(Code::TopicNotFound);
        }
        begin(server, &json!({"offsets": [by_cursor]})).await.created();
    }
}

/// A repeated commit shows the cursors in it, which lets go of what their answers have revoked,
/// also if a topic of the call is not there.
#[tokio::test]
async fn a_repeated_commit_lets_go_of_what_was_revoked() {
    let server = Server::start().await;
    server.topic("orders", 2).await;
    let join = async || {
        let joined = server.post("/v1/groups/g/members").json(json!({"topics": ["orders"]}));
        joined.await.created()["member_id"].as_str().unwrap().to_owned()
    };
    let first = join().await;
    let whole = json!({"commit": true, "appends": [append("orders", 0, &[json!(1)])]});
    let begun = begin(&server, &whole).await.created();
    let second = join().await;
    let fetched = server.get(&format!("/v1/groups/g/members/{first}/records")).await.ok();
    assert_eq!(fetched["revoked"], json!([{"topic": "orders", "partitions": [1]}]));
    let id = begun["transaction_id"].as_str().unwrap().parse().unwrap();
    let commit = json!({"appends": [append("gone", 0, &[json!(2)])], "offsets": [{"group": "g",
        "member_id": first, "generation": fetched["generation"], "cursor": fetched["cursor"]}]});
    assert_eq!(call(&server, id, "commit", &commit).await.ok()["duplicate"], true);
    let beat = server.post(&format!("/v1/groups/g/members/{second}/heartbeat")).json("{}");
    assert_eq!(beat.await.ok()["assignment"], json!([{"topic": "orders", "partitions": [1]}]));
}
