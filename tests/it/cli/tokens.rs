//! Tokens made by the program, taken by the program.

use std::process::Command;

use serde_json::json;

use super::{Output, client, oncelog, run, run_with};
use crate::support::{
    self,
    http::{now_s, signed},
    proxy::Proxy,
    served::replica,
};

/// The one of `replica`.
const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn with_secret(arguments: &[&str]) -> Command {
    let mut command = oncelog(arguments);
    command.env("ONCELOG_TOKEN_HS256_SECRET", SECRET);
    command
}

async fn minted(scope: &str, more: &[&str]) -> Output {
    let arguments = [&["token", "mint", "--tenant", "acme", "--scope", scope], more].concat();
    run(with_secret(&arguments)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minted_token_opens_a_server_with_that_key() {
    let options = support::database().await;
    let proxy = Proxy::start(&options, 1).await;
    let (_process, server) = replica(&proxy, &options).await;
    let token = minted("admin produce consume:orders.*", &[]).await.stdout;
    let token = token.trim();
    assert!(token.split('.').count() == 3 && !token.contains(char::is_whitespace));
    let call = async |arguments: &[&str], token: &str| {
        let mut command = client(&server.url, arguments);
        command.env("ONCELOG_TOKEN", token);
        run(command).await
    };
    let made = call(&["topic", "create", "orders.eu"], token).await;
    assert_eq!(made.lines()[0]["topic"], "orders.eu");
    assert_eq!(call(&["consume", "--topic", "orders.eu"], token).await.code, Some(0));
    call(&["topic", "create", "audit"], token).await.lines();
    let narrow = call(&["consume", "--topic", "audit"], token).await;
    assert!(narrow.failed(1).contains("forbidden") && narrow.stderr.contains("consume:audit"));

    let without = call(&["topic", "list"], "").await;
    assert!(without.failed(1).contains("ONCELOG_TOKEN"));
    let broken = call(&["topic", "list"], "sesame").await;
    assert!(broken.failed(1).contains("unauthenticated") && !broken.stderr.contains("sesame"));
    let unwritable = call(&["topic", "list"], "ses\name").await;
    assert!(!unwritable.failed(1).contains("ses"));
}

/// A session without a name belongs to whom its token was minted for.
#[tokio::test]
async fn a_token_can_be_minted_for_somebody() {
    let of_anna = minted("produce:orders", &["--sub", "anna"]).await.stdout;
    let inspected = run(with_secret(&["token", "inspect", of_anna.trim()])).await;
    assert!(inspected.stdout.contains("sub = \"anna\""), "{}", inspected.stdout);
    let of_nobody = minted("produce:orders", &[]).await.stdout;
    let inspected = run(with_secret(&["token", "inspect", of_nobody.trim()])).await;
    assert!(!inspected.stdout.contains("sub ="), "{}", inspected.stdout);
}

#[tokio::test]
async fn inspect_tells_claims_expiry_and_verdict() {
    let good = minted("produce", &["--expires-in", "90m"]).await.stdout;
    let inspected = run(with_secret(&["token", "inspect", good.trim()])).await;
    assert_eq!(inspected.code, Some(0), "{inspected:?}");
    for words in ["signed with HS256", "tenant = \"acme\"", "scope = \"produce\"", "accepted"] {
        assert!(inspected.stdout.contains(words), "{}", inspected.stdout);
    }
    let expiry = inspected.stdout.lines().find(|line| line.starts_with("exp = ")).unwrap();
    assert!(expiry.contains("in 89 minutes") || expiry.contains("in 90 minutes"), "{expiry}");

    let piped = run_with(with_secret(&["token", "inspect"]), good.clone()).await;
    assert_eq!(piped.stdout.lines().last(), inspected.stdout.lines().last());
    let keyless = run_with(oncelog(&["token", "inspect", "-"]), good.clone()).await;
    assert!(keyless.code == Some(0) && keyless.stdout.contains("no key is configured"));

    let mut other = with_secret(&["token", "inspect", good.trim()]);
    other.env("ONCELOG_TOKEN_AUDIENCE", "other");
    assert!(run(other).await.failed(1).contains("audience"));
    let mut other = oncelog(&["token", "inspect", good.trim()]);
    other.env("ONCELOG_TOKEN_HS256_SECRET", "another secret of 32 bytes or so");
    let other = run(other).await;
    assert!(other.failed(1).contains("signature") && other.stdout.contains("acme"));

    let claims = json!({"aud": "oncelog", "iss": "oncelog", "tenant": "t", "scope": "produce",
        "exp": now_s() - 3 * 3600});
    let old = run(with_secret(&["token", "inspect", &signed(&claims, SECRET)])).await;
    assert!(old.failed(1).contains("expired"));
    assert!(old.stdout.contains("3 hours ago"), "{}", old.stdout);

    for nonsense in ["", "a.b", "a.b.c", "e30.W10.x"] {
        let output = run_with(with_secret(&["token", "inspect"]), nonsense).await;
        assert!(output.failed(1).contains("not a JWT"), "{nonsense}");
    }
}

#[tokio::test]
async fn without_a_secret_nothing_is_minted() {
    let output = run(oncelog(&["token", "mint", "--tenant", "t", "--scope", "produce"])).await;
    assert!(output.failed(1).contains("ONCELOG_TOKEN_HS256_SECRET"));
    assert_eq!(output.stdout, "");
}
