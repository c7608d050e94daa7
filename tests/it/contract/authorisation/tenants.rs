//! Tenants share nothing; and what an operator has closed stays closed.

use oncelog::model::Code;
use serde_json::json;
use uuid::Uuid;

use super::{Names, Needs, OPERATIONS, Row, World, all_words};
use crate::support::http::{Server, token};

#[tokio::test]
async fn they_share_nothing() {
    let server = Server::signed().await;
    let open_id = Uuid::now_v7().to_string();
    let mut producers = Vec::new();
    for tenant in ["a", "b"] {
        let all = token(tenant, &all_words());
        let topic = json!({"partition_count": if tenant == "a" { 1 } else { 3 }});
        server.put("/v1/topics/orders").json(topic).token(&all).await.created();
        // one name and one open id, two producers
        let open = json!({"transactional_id": "p", "open_id": open_id});
        let session = server.post("/v1/sessions").json(open).token(&all).await.created();
        assert_eq!((&session["epoch"], &session["duplicate"]), (&json!(0), &json!(false)));
        producers.push(session["producer_id"].as_i64().unwrap());
        let append = json!({"producer_id": producers.last(), "epoch": 0, "sequence": 0,
            "records": [{"value": tenant}]});
        let path = "/v1/topics/orders/partitions/0/records";
        let appended = server.post(path).json(append).token(&all).await.ok();
        assert_eq!(appended["base_offset"], 0);
        let read = server.get(path).token(&all).await.ok();
        assert_eq!(read["records"].as_array().unwrap().len(), 1);
        assert_eq!(read["records"][0]["value"], tenant);
    }
    let [a, b] = producers[..] else { panic!() };
    assert_ne!(a, b);
    // a producer of a is none of b's
    let of_b = token("b", &all_words());
    let append = json!({"producer_id": a, "epoch": 0, "sequence": 1, "records": [{"value": 1}]});
    for path in ["/v1/topics/orders/records", "/v1/topics/orders/partitions/0/records"] {
        let answer = server.post(path).json(&append).token(&of_b).await;
        answer.refused(Code::UnknownProducer);
    }
    for open in [
        json!({"producer_id": a, "epoch": 0}),
        json!({"producer_id": a, "epoch": 0, "transactional_id": "p"}),
    ] {
        server.post("/v1/sessions").json(open).token(&of_b).await.refused(Code::UnknownProducer);
    }
    server.delete("/v1/topics/orders").token(&of_b).await.no_content();
    server.get("/v1/topics/orders").token(&of_b).await.refused(Code::TopicNotFound);
    server.get("/v1/topics/orders").token(&token("a", "admin")).await.ok();
}

/// Those of a tenant's own data, with what the rows before need.
fn of_tenants() -> impl Iterator<Item = &'static Row> {
    OPERATIONS.iter().filter(|row| row.3 != Needs::Nothing && !row.0.contains("tenant"))
}

#[tokio::test]
async fn nothing_opens_for_a_suspended_tenant() {
    let world = World::new().await;
    let all = token("acme", &all_words());
    let suspend = async |suspended: bool| {
        let patch = world.server.patch("/v1/tenants/acme").token(&all);
        assert_eq!(patch.json(json!({"suspended": suspended})).await.ok()["suspended"], suspended);
    };
    suspend(true).await;
    for row in of_tenants() {
        let problem = world.call(row, Some(&all)).await.refused(Code::Forbidden);
        assert!(problem["detail"].as_str().unwrap().contains("acme is suspended"), "{}", row.0);
        assert_eq!((problem.get("required_scope"), &problem["retry"]), (None, &json!("never")));
        // the token comes first
        let answer = world.call(row, Some(&token("acme", "nothing"))).await;
        assert!(answer.refused(Code::Forbidden)["required_scope"].is_string(), "{}", row.0);
    }
    // of what is there and what is not, nobody learns anything
    for row in of_tenants() {
        world.call_on(row, Some(&all), &Names::nowhere()).await.refused(Code::Forbidden);
    }
    // others go on, and so does the operator
    world.server.get("/v1/topics").token(&token("other", "admin")).await.ok();
    suspend(false).await;
    let topic = format!("/v1/topics/{}", super::TOPIC);
    let described = world.server.get(&topic).token(&all).await.ok();
    assert_eq!(described["partitions"][0]["high_watermark"], 0);
    for row in of_tenants() {
        world.prepare_for(row).await;
        assert_eq!(world.call(row, Some(&all)).await.status, row.4, "{}", row.0);
    }
}

#[tokio::test]
async fn a_deleted_tenant_is_not_there() {
    let world = World::new().await;
    let all = token("acme", &all_words());
    let theirs = world.names();
    world.server.delete("/v1/tenants/acme").token(&all).await.no_content();
    for row in of_tenants() {
        for names in [&theirs, &Names::nowhere()] {
            let problem = world.call_on(row, Some(&all), names).await.refused(Code::TenantNotFound);
            assert!(problem["detail"].as_str().unwrap().contains("acme is deleted"), "{}", row.0);
        }
    }
    world.server.get("/v1/topics").token(&token("other", "admin")).await.ok();
}
