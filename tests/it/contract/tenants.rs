//! Tenants over HTTP, as operators see them: made, limited, suspended, deleted.

use oncelog::{
    broker::{NewTenants, ServiceConfig},
    model::{
        Code,
        settings::{Key, Maxima},
    },
};
use serde_json::{Value, json};

use crate::support::{
    self,
    http::{Answer, Server, Setup, shared_keys, token},
    served::until,
};

const TENANTS: &str = "/v1/tenants";

/// A server of several tenants, and its operator's token.
async fn world() -> (Server, String) {
    (Server::signed().await, token("nobody", "operator"))
}

fn path(tenant: &str) -> String {
    format!("{TENANTS}/{tenant}")
}

/// Whether a tenant's request is served there.
async fn status(server: &Server, tenant: &str) -> u16 {
    server.get("/v1/topics").token(&token(tenant, "admin")).await.status
}

fn names(list: &Value) -> Vec<&str> {
    let tenants = list["tenants"].as_array().unwrap().iter();
    tenants.map(|tenant| tenant["tenant"].as_str().unwrap()).collect()
}

fn etag(answer: &Answer) -> &str {
    answer.header("etag").unwrap()
}

#[tokio::test]
async fn tenants_are_made_and_seen() {
    let (server, operator) = world().await;
    let put = |body: &str| server.put(&path("acme")).token(&operator).json(body);
    let get = async || server.get(&path("acme")).token(&operator).await;
    get().await.refused(Code::TenantNotFound);
    let made = put(r#"{"maxima": {"max_topics": 2, "retention_ms": 9000}}"#).await;
    let created_at = made.created()["created_at"].clone();
    let want = json!({"tenant": "acme", "created_at": created_at, "suspended": false,
        "suspended_at": null, "deleted_at": null, "settings": {},
        "maxima": {"max_topics": 2, "retention_ms": 9_000},
        "topic_count": 0, "partition_count": 0});
    assert_eq!(made.json(), want);
    // without maxima they stay; with some, these are all
    for body in ["", "{}", r#"{"maxima": null}"#] {
        let again = put(body).await;
        assert_eq!((again.ok(), etag(&again)), (want.clone(), etag(&made)), "{body}");
    }
    assert_eq!(get().await.ok(), want);
    let other = put(r#"{"maxima": {"max_topics": "default", "max_partitions": 3}}"#).await;
    assert_eq!(other.ok()["maxima"], json!({"max_partitions": 3}));
    assert_ne!(etag(&other), etag(&made));
    assert_eq!(put(r#"{"maxima": {}}"#).await.ok()["maxima"], json!({}));

    let admin = token("acme", "admin");
    for (topic, count) in [("a", 2), ("b", 3)] {
        let body = json!({"partition_count": count});
        server.put(&format!("/v1/topics/{topic}")).token(&admin).json(body).await.created();
    }
    server
        .patch("/v1/settings")
        .token(&admin)
        .json(json!({"max_topics": 9, "retention_ms": null}))
        .await
        .ok();
    let seen = get().await.ok();
    assert_eq!((&seen["topic_count"], &seen["partition_count"]), (&json!(2), &json!(5)));
    assert_eq!(seen["settings"], json!({"max_topics": 9, "retention_ms": null}));
}

#[tokio::test]
async fn tenants_are_listed_by_name_with_those_that_tokens_have_made() {
    let (server, operator) = world().await;
    let list = async |query: &str| server.get(&format!("{TENANTS}{query}")).token(&operator).await;
    assert_eq!(list("").await.ok(), json!({"tenants": [], "next_after": null}));
    for name in ["b", "a.2", "B"] {
        server.put(&path(name)).token(&operator).await.created();
    }
    assert_eq!(status(&server, "a.1").await, 200);
    let all = list("").await.ok();
    assert_eq!(names(&all), ["B", "a.1", "a.2", "b"]);
    assert_eq!(all["tenants"][0].get("topic_count"), None);
    let first = list("?limit=2").await;
    assert_eq!((names(&first.ok()), &first.ok()["next_after"]), (vec!["B", "a.1"], &json!("a.1")));
    assert_eq!(first.header("link"), Some("</v1/tenants?limit=2&after=a.1>; rel=\"next\""));
    let rest = list("?limit=2&after=a.1").await.ok();
    assert_eq!((names(&rest), &rest["next_after"]), (vec!["a.2", "b"], &Value::Null));
    list("?limit=0").await.invalid(&["?limit"]);
    list("?state=suspended").await.invalid(&["?state"]);
}

#[tokio::test]
async fn what_is_wrong_is_named_and_nothing_changes() {
    let (server, operator) = world().await;
    let before = server.put(&path("acme")).token(&operator).await;
    before.created();
    let most = Key::MaxTopics.setting().maximum;
    let of_both: &[(Value, &[&str])] = &[
        (json!({"maximum": {}}), &["/maximum"]),
        (json!({"maxima": []}), &["/maxima"]),
        (json!({"maxima": {"max_topic": 1}}), &["/maxima/max_topic"]),
        (json!({"maxima": {"max_topics": "5"}}), &["/maxima/max_topics"]),
        (json!({"maxima": {"max_topics": 1.5}}), &["/maxima/max_topics"]),
        (
            json!({"maxima": {"max_topics": -1, "retention_ms": 999}}),
            &["/maxima/retention_ms", "/maxima/max_topics"],
        ),
        (json!({"maxima": {"max_topics": most + 1}}), &["/maxima/max_topics"]),
        // forever is no maximum, and words have none
        (json!({"maxima": {"retention_ms": null}}), &["/maxima/retention_ms"]),
        (
            json!({"maxima": {"dedup": "id", "cleanup": "compact"}}),
            &["/maxima/dedup", "/maxima/cleanup"],
        ),
        (json!({"settings": {"max_topics": 1}}), &["/settings"]),
        (json!([]), &[""]),
    ];
    let of_patches: &[(Value, &[&str])] = &[
        (json!({"suspended": "yes"}), &["/suspended"]),
        (json!({"suspended": true, "deleted": true}), &["/deleted"]),
        (json!({"suspended": true, "maxima": {"max_topics": -1}}), &["/maxima/max_topics"]),
    ];
    let call = |method: &str, path: &str| server.call(method, path).token(&operator);
    for (body, pointers) in of_both {
        call("PUT", &path("acme")).json(body).await.invalid(pointers);
        call("PUT", &path("another")).json(body).await.invalid(pointers);
    }
    for (body, pointers) in of_both.iter().chain(of_patches) {
        call("PATCH", &path("acme")).json(body).await.invalid(pointers);
    }
    call("PUT", &path("acme")).json(json!({"suspended": true})).await.invalid(&["/suspended"]);
    for method in ["GET", "PUT", "PATCH", "DELETE"] {
        call(method, &path("a%20b")).await.invalid(&["/path/tenant"]);
        call(method, &format!("{}?dry=1", path("acme"))).await.invalid(&["?dry"]);
    }
    call("POST", TENANTS).await.refused(Code::MethodNotAllowed);
    for method in ["GET", "PATCH", "DELETE"] {
        call(method, &path("another")).await.refused(Code::TenantNotFound);
    }
    let after = call("GET", &path("acme")).await;
    assert_eq!((after.json(), etag(&after)), (before.json(), etag(&before)));
    // the largest that a setting may be is no mistake
    call("PATCH", &path("acme")).json(json!({"maxima": {"max_topics": most}})).await.ok();
}

#[tokio::test]
async fn a_patch_merges_and_holds_its_condition() {
    let (server, operator) = world().await;
    let first = server.put(&path("acme")).token(&operator).await;
    first.created();
    let patch = |if_match: &str, body: Value| {
        let call = server.patch(&path("acme")).token(&operator).header("if-match", if_match);
        call.json(body)
    };
    let limited =
        patch(etag(&first), json!({"maxima": {"max_topics": 5, "retention_ms": 9_000}})).await;
    assert_eq!(limited.ok()["maxima"], json!({"max_topics": 5, "retention_ms": 9_000}));
    patch(etag(&first), json!({"suspended": true})).await.refused(Code::PreconditionFailed);
    let suspended =
        patch(etag(&limited), json!({"maxima": {"max_topics": "default"}, "suspended": true}))
            .await;
    let seen = suspended.ok();
    assert_eq!(
        (&seen["maxima"], &seen["suspended"]),
        (&json!({"retention_ms": 9_000}), &json!(true))
    );
    // nothing changes: neither the instant nor the validator
    for body in [json!({}), json!({"suspended": true}), json!({"suspended": null, "maxima": {}})] {
        let again = patch("*", body).await;
        assert_eq!((again.ok(), etag(&again)), (seen.clone(), etag(&suspended)));
    }
    let resumed = patch(etag(&suspended), json!({"suspended": false})).await;
    let now = resumed.ok();
    assert_eq!((&now["suspended"], &now["suspended_at"]), (&json!(false), &Value::Null));
    // a change of the tenant's own is one, too
    server
        .patch("/v1/settings")
        .token(&token("acme", "admin"))
        .json(json!({"max_topics": 1}))
        .await
        .ok();
    patch(etag(&resumed), json!({})).await.refused(Code::PreconditionFailed);
}

#[tokio::test]
async fn maxima_are_the_tenants_alone() {
    let (server, operator) = world().await;
    server
        .put(&path("acme"))
        .token(&operator)
        .json(json!({"maxima": {"max_topics": 0}}))
        .await
        .created();
    let put = |tenant: &str| server.put("/v1/topics/orders").token(&token(tenant, "admin"));
    assert_eq!(put("acme").await.refused(Code::QuotaExceeded)["limit"], 0);
    put("rival").await.created();
    // an administrator of a tenant is no operator
    let raise = server.patch(&path("acme")).token(&token("acme", "admin produce consume group"));
    let problem = raise.json(json!({"maxima": {}})).await.refused(Code::Forbidden);
    assert_eq!(problem["required_scope"], "operator");
}

/// At once where it was said, and soon on other replicas; whatever tenant the operator's token
/// names.
#[tokio::test]
async fn a_tenant_is_suspended_and_resumed_on_all_replicas() {
    let (here, operator) = (Server::signed().await, token("acme", "operator"));
    let setup = Setup { keys: shared_keys(), ..Setup::default() };
    let there = Server::on(&here.options, setup).await;
    for server in [&here, &there] {
        assert_eq!((status(server, "acme").await, status(server, "rival").await), (200, 200));
    }
    let produce = token("acme", "admin produce");
    here.put("/v1/topics/orders").token(&produce).await.created();
    let append = |server: &Server| {
        let call = server.post("/v1/topics/orders/records").token(&produce);
        call.json(r#"{"records":[{"value":1}]}"#)
    };
    append(&there).await.ok();
    for (suspended, want) in [(true, 403), (false, 200), (true, 403)] {
        let patch = here.patch(&path("acme")).token(&operator);
        patch.json(json!({"suspended": suspended})).await.ok();
        assert_eq!((status(&here, "acme").await, append(&here).await.status), (want, want));
        until("it there", async || (status(&there, "acme").await == want).then_some(())).await;
        assert_eq!(append(&there).await.status, want);
        for server in [&here, &there] {
            assert_eq!(status(server, "rival").await, 200);
        }
    }
    // what it has is not touched
    let seen = there.get(&path("acme")).token(&operator).await.ok();
    assert_eq!((&seen["suspended"], &seen["topic_count"]), (&json!(true), &json!(1)));
}

#[tokio::test]
async fn without_tokens_the_one_tenant_can_be_suspended_and_resumed() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    server.patch(&path("default")).json(json!({"suspended": true})).await.ok();
    let problem = server.get("/v1/topics").await.refused(Code::Forbidden);
    let why = "Tenant default is suspended. Its requests are refused until an operator resumes it.";
    assert_eq!(problem["detail"], why);
    server.patch(&path("default")).json(json!({"suspended": false})).await.ok();
    server.get("/v1/topics").await.ok();
}

#[tokio::test]
async fn a_deleted_tenant_refuses_until_it_is_gone_and_created_again() {
    let (here, operator) = world().await;
    let setup = Setup { keys: shared_keys(), ..Setup::default() };
    let there = Server::on(&here.options, setup).await;
    let call = |method: &str| here.call(method, &path("acme")).token(&operator);
    call("PUT").json(json!({"maxima": {"max_topics": 7}})).await.created();
    for server in [&here, &there] {
        assert_eq!(status(server, "acme").await, 200);
    }
    let tenant = here.broker.tenant(&support::name("acme")).await.unwrap();
    let made_at = call("GET").await.ok()["created_at"].clone();
    for _ in 0..2 {
        call("DELETE").await.no_content();
    }
    assert_eq!(status(&here, "acme").await, 404);
    until("it there", async || (status(&there, "acme").await == 404).then_some(())).await;
    // who came in before makes nothing any more
    let put = here.broker.put_topic(tenant, &support::name("orders"), None, None).await;
    assert_eq!(put.unwrap_err().code, Code::TenantNotFound);
    let patch = here.broker.patch_settings(tenant, Default::default(), None).await;
    assert_eq!(patch.unwrap_err().code, Code::TenantNotFound);
    // while it is removed it is seen, and nothing else
    let seen = call("GET").await.ok();
    assert!(seen["deleted_at"].is_string(), "{seen}");
    for method in ["PUT", "PATCH"] {
        let problem = call(method).await.refused(Code::TenantNotFound);
        let why = "Tenant acme is deleted and its data is being removed. An operator can create another \
             with its name afterwards.";
        assert_eq!(problem["detail"], why);
    }
    here.sql("delete from oncelog.tenants where name = 'acme'").await;
    for method in ["GET", "PATCH", "DELETE"] {
        call(method).await.refused(Code::TenantNotFound);
    }
    // a token makes another one, which has nothing of the former
    for server in [&here, &there] {
        until("it again", async || (status(server, "acme").await == 200).then_some(())).await;
    }
    let fresh = call("GET").await.ok();
    assert_eq!((&fresh["maxima"], &fresh["deleted_at"]), (&json!({}), &Value::Null));
    assert_ne!(fresh["created_at"], made_at);
    assert_ne!(here.broker.tenant(&support::name("acme")).await.unwrap(), tenant);
}

/// A server where tokens make tenants by this policy, and a replica of it.
async fn servers_with(new_tenants: NewTenants) -> [Server; 2] {
    let setup = || Setup {
        keys: shared_keys(),
        settings: ServiceConfig { new_tenants: new_tenants.clone(), ..ServiceConfig::default() },
        ..Setup::default()
    };
    let options = support::database().await;
    [Server::on(&options, setup()).await, Server::on(&options, setup()).await]
}

/// Removes what is deleted, as the janitor does a minute later.
async fn removed(server: &Server, tenant: &str) {
    server
        .sql(format!(
            "update oncelog.tenants set deleted_at = deleted_at - interval '1 hour' \
             where name = '{tenant}'"
        ))
        .await;
    let count = format!("select count(*) from oncelog.tenants where name = '{tenant}'");
    until("it is removed", async || {
        server.broker.sweep().await.unwrap();
        (support::number(&server.options, count.clone()).await == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_deleted_tenant_comes_back_by_an_operator_only() {
    let servers = servers_with(NewTenants::default()).await;
    let [here, there] = &servers;
    let operator = token("nobody", "operator");
    let by_operator = |method: &str| here.call(method, &path("acme")).token(&operator);
    let acme = token("acme", "admin");
    there.put("/v1/topics/orders").token(&acme).await.created();
    let former = there.broker.tenant(&support::name("acme")).await.unwrap();
    by_operator("DELETE").await.no_content();
    removed(here, "acme").await;
    let why = "Tenant acme was deleted. Only an operator can create another with its name: \
               PUT /v1/tenants/acme.";
    for server in &servers {
        until("it is refused", async || {
            let answer = server.get("/v1/topics").token(&acme).await;
            (answer.json()["detail"] == why).then(|| answer.refused(Code::TenantNotFound))
        })
        .await;
    }
    for method in ["GET", "PATCH", "DELETE"] {
        by_operator(method).await.refused(Code::TenantNotFound);
    }
    by_operator("PUT").await.created();
    for server in &servers {
        until("it again", async || (status(server, "acme").await == 200).then_some(())).await;
        let topics = server.get("/v1/topics").token(&acme).await.ok();
        assert_eq!(topics["topics"], json!([]));
    }
    assert_ne!(there.broker.tenant(&support::name("acme")).await.unwrap(), former);
}

#[tokio::test]
async fn where_tenants_are_known_a_token_makes_none() {
    let policy = NewTenants { by_operators_only: true, ..NewTenants::default() };
    let servers = servers_with(policy).await;
    let [here, there] = &servers;
    for server in &servers {
        let problem = server.get("/v1/topics").token(&token("acme", "admin")).await;
        let why = "Tenant acme is not known here. An operator creates it: PUT /v1/tenants/acme.";
        assert_eq!(problem.refused(Code::Forbidden)["detail"], why);
    }
    assert_eq!(support::number(&here.options, "select count(*) from oncelog.tenants").await, 0);
    here.put(&path("acme")).token(&token("nobody", "operator")).await.created();
    assert_eq!(status(here, "acme").await, 200);
    until("there, too", async || (status(there, "acme").await == 200).then_some(())).await;
}

#[tokio::test]
async fn new_tenants_have_the_maxima_of_the_configuration() {
    let default_maxima =
        Maxima([(Key::MaxTopics, 1), (Key::MaxRequestsPerS, 50)].into_iter().collect());
    let servers = servers_with(NewTenants { default_maxima, ..NewTenants::default() }).await;
    let [server, _] = &servers;
    let maxima = json!({"max_topics": 1, "max_requests_per_s": 50});
    let operator = token("nobody", "operator");
    let acme = token("acme", "admin");
    let made = server.put("/v1/topics/one").token(&acme).await;
    made.created();
    assert_eq!(made.header("ratelimit-policy"), Some("\"max_requests_per_s\";q=100;w=2"));
    server.put("/v1/topics/two").token(&acme).await.refused(Code::QuotaExceeded);
    assert_eq!(server.get(&path("acme")).token(&operator).await.ok()["maxima"], maxima);
    let put = |name: &str| server.put(&path(name)).token(&operator);
    assert_eq!(put("bare").await.created()["maxima"], maxima);
    let own = json!({"max_topics": 7});
    assert_eq!(put("own").json(json!({"maxima": own})).await.created()["maxima"], own);
    let none = put("none").json(json!({"maxima": {}})).await.created();
    assert_eq!(none["maxima"], json!({}));
}

#[tokio::test]
async fn tokens_make_no_more_tenants_than_there_may_be() {
    let policy = NewTenants { max_tenants: Some(3), ..NewTenants::default() };
    let servers = servers_with(policy).await;
    let [here, _] = &servers;
    let all = (0..24).map(async |number: usize| {
        let acme = token(&format!("t{number}"), "admin");
        servers[number % 2].get("/v1/topics").token(&acme).await
    });
    let all = futures_util::future::join_all(all).await;
    assert_eq!(all.iter().filter(|answer| answer.status == 200).count(), 3);
    for refused in all.iter().filter(|answer| answer.status != 200) {
        let problem = refused.refused(Code::QuotaExceeded);
        assert_eq!((&problem["limit"], &problem["retry"]), (&json!(3), &json!("never")));
    }
    // those that are there go on, and an operator creates more
    for (number, answer) in all.iter().enumerate().filter(|(_, answer)| answer.status == 200) {
        assert_eq!(status(here, &format!("t{number}")).await, answer.status);
    }
    here.put(&path("more")).token(&token("nobody", "operator")).await.created();
    assert_eq!(status(here, "more").await, 200);
}

/// They count one after the other, and only the first one counts what it makes.
#[tokio::test]
async fn many_that_name_the_last_tenant_first_are_all_served() {
    let policy = NewTenants { max_tenants: Some(1), ..NewTenants::default() };
    let servers = servers_with(policy).await;
    let all = (0..24).map(async |number: usize| status(&servers[number % 2], "acme").await);
    let all = futures_util::future::join_all(all).await;
    assert_eq!(all, [200; 24]);
}

/// The row of one that has nothing may go at any time.
#[tokio::test]
async fn a_tenant_that_is_gone_is_told_so() {
    let server = Server::start().await;
    let tenant = support::tenant(&server.broker).await;
    server.sql("delete from oncelog.tenants").await;
    let gone = server.broker.put_topic(tenant, &support::name("orders"), None, None).await;
    assert_eq!(gone.unwrap_err().code, Code::TenantNotFound);
    assert_eq!(server.broker.settings(tenant).await.unwrap_err().code, Code::TenantNotFound);
}
