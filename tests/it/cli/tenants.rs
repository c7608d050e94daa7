//! `oncelog tenant`, as operators use it.

use oncelog::http::Listener;
use serde_json::{Value, json};

use super::{client, run};
use crate::support::http::{Server, Setup};

#[tokio::test]
async fn tenants_are_made_limited_suspended_and_deleted() {
    let server = Server::start().await;
    let url = format!("http://{}", server.address);
    let tenant = async |arguments: &[&str]| {
        let output = run(client(&url, &[&["tenant"], arguments].concat())).await;
        let told = output.stderr.clone();
        (output.lines(), told)
    };
    let (made, told) = tenant(&["create", "acme", "max_topics=5", "retention_ms=9s"]).await;
    assert_eq!(made[0]["maxima"], json!({"max_topics": 5, "retention_ms": 9_000}));
    assert!(told.contains("created tenant acme"), "{told}");
    let (again, told) = tenant(&["create", "acme"]).await;
    assert_eq!(again, made);
    assert!(told.contains("tenant acme already exists"), "{told}");
    let (set, _) = tenant(&["set", "acme", "max_topics=default", "max_partitions=7"]).await;
    assert_eq!(set[0]["maxima"], json!({"retention_ms": 9_000, "max_partitions": 7}));
    let (suspended, told) = tenant(&["suspend", "acme"]).await;
    assert_eq!(suspended[0]["suspended"], true);
    assert!(told.contains("suspended tenant acme"), "{told}");
    let (resumed, told) = tenant(&["resume", "acme", "--json"]).await;
    assert_eq!(resumed[0]["suspended"], false);
    assert!(told.contains("resumed tenant acme"), "{told}");
    assert_eq!(tenant(&["show", "acme"]).await.0, resumed);
    tenant(&["create", "rival"]).await;
    let (list, _) = tenant(&["list"]).await;
    let names: Vec<&Value> = list.iter().map(|tenant| &tenant["tenant"]).collect();
    assert_eq!(names, ["acme", "rival"]);

    let unasked = run(client(&url, &["tenant", "delete", "acme"])).await;
    assert!(unasked.failed(2).contains("--yes"), "{unasked:?}");
    let (nothing, told) = tenant(&["delete", "acme", "--yes"]).await;
    assert!(nothing.is_empty() && told.contains("deleted tenant acme"), "{told}");
    assert!(tenant(&["show", "acme"]).await.0[0]["deleted_at"].is_string());
    let none = run(client(&url, &["tenant", "show", "none"])).await;
    assert!(none.failed(1).contains("(tenant_not_found, HTTP 404)"), "{none:?}");
}

#[tokio::test]
async fn the_admin_listener_is_asked_and_looked_for_where_it_is_missing() {
    let options = crate::support::database().await;
    let setup = |listener| Setup { listener, ..Setup::default() };
    let public = Server::on(&options, setup(Listener::Public { has_docs: true })).await;
    let admin = Server::on(&options, setup(Listener::Admin)).await;
    let [public, admin] = [public.address, admin.address].map(|at| format!("http://{at}"));
    let lost = run(client(&public, &["tenant", "list"])).await;
    let told = lost.failed(1);
    for words in ["This path is on the admin listener", "--admin-url or ONCELOG_ADMIN_URL sets"] {
        assert!(told.contains(words), "{told}");
    }
    let mut command = client(&public, &["tenant", "create", "acme"]);
    command.env("ONCELOG_ADMIN_URL", &admin);
    assert_eq!(run(command).await.lines()[0]["tenant"], "acme");
    let list = ["tenant", "list", "--admin-url", &admin];
    assert_eq!(run(client(&public, &list)).await.lines().len(), 1);
    // what is not for operators is not asked there
    let mut command = client(&public, &["topic", "list"]);
    command.env("ONCELOG_ADMIN_URL", &admin);
    assert!(run(command).await.lines().is_empty());
}

/// The advice to get a scope is for those who lack one.
#[tokio::test]
async fn a_suspended_tenant_learns_why_it_is_refused() {
    let server = Server::start().await;
    let url = format!("http://{}", server.address);
    run(client(&url, &["tenant", "create", "default", "max_topics=5"])).await.lines();
    let shown = run(client(&url, &["settings", "show"])).await.lines();
    assert_eq!(shown[0]["origins"]["max_topics"], "operator");
    let above = run(client(&url, &["settings", "set", "max_topics=6"])).await;
    assert!(above.failed(1).contains("6 exceeds 5, the operator's maximum"), "{above:?}");
    run(client(&url, &["tenant", "suspend", "default"])).await.lines();
    let refused = run(client(&url, &["topic", "list"])).await;
    let told = refused.failed(1);
    assert!(told.contains("default is suspended") && !told.contains("scope"), "{told}");
}

#[tokio::test]
async fn wrong_usage_is_told_before_a_server_is_asked() {
    let table: [(&[&str], &str); 7] = [
        (&["show", "a b"], "a name must be"),
        (&["set", "acme"], "KEY=MAXIMUM"),
        (&["set", "acme", "max_topics"], "KEY=VALUE"),
        (&["set", "acme", "max_topic=1"], "max_topic is not one of"),
        (&["set", "acme", "max_topics=-1"], "outside of 0 to"),
        (&["set", "acme", "retention_ms=null"], "a maximum cannot be null"),
        (&["create", "acme", "dedup=id"], "dedup has no maximum"),
    ];
    for (arguments, said) in table {
        let output = run(client("http://127.0.0.1:9", &[&["tenant"], arguments].concat())).await;
        assert!(output.failed(2).contains(said), "{arguments:?}: {output:?}");
    }
}
