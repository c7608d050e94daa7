//! What needs no server or little of it: usage, configuration, documents, topics.

use serde_json::json;

use super::{client, oncelog, run, run_with};
use crate::support::{self, proxy::Proxy, served::Served};

/// Nobody listens there.
const NOBODY: &str = "http://127.0.0.1:9";
const ID: &str = "019aa5b6-5c00-7000-8000-000000000004";

/// Each of these ends with a code, and says these words.
async fn refused(table: &[(&[&str], i32, &str)]) {
    for (arguments, code, words) in table {
        let output = run(oncelog(arguments)).await;
        assert!(output.failed(*code).contains(words), "{arguments:?}: {}", output.stderr);
        assert_eq!(output.stdout, "");
    }
}

#[tokio::test]
async fn wrong_usage_ends_with_2_and_failure_with_1() {
    let table: [(&[&str], i32, &str); 37] = [
        (&[], 2, "Exit codes"),
        (&["serv"], 2, "serve"),
        (&["produce"], 2, "--topic"),
        (&["produce", "--topic", "a b"], 2, "a name must be"),
        (&["produce", "--topic", "t", "--in-flight", "6"], 2, "1..=5"),
        (&["produce", "--topic", "t", "--plain", "--key-field", "x"], 2, "cannot be used with"),
        (&["produce", "--topic", "t", "--transaction-size", "0"], 2, "1..=100000"),
        (&["produce", "--topic", "t", "--transaction-id", ID], 2, "--transaction-size"),
        (
            &["produce", "--topic", "t", "--transaction-size", "9", "--transaction-id", "import-7"],
            2,
            "a transaction id is a UUIDv7; `oncelog txn id` creates one",
        ),
        (
            &["produce", "--topic", "t", "--transaction-size", "9", "--transactional-id", "x"],
            2,
            "give --transaction-id (`oncelog txn id`",
        ),
        (
            &["produce", "--topic", "t", "--transaction-size", "9", "--in-flight", "5"],
            2,
            "transactions go one after the other",
        ),
        (
            &["produce", "--topic", "t", "--transaction-size", "9", "--batch-size", "10"],
            2,
            "--batch-size is above --transaction-size",
        ),
        (&["txn", "list", "--state", "open"], 2, "ongoing, prepared, committed, aborted"),
        (&["txn", "list", "--older-than", "5 minutes"], 2, "such as 90s"),
        (&["txn", "list", "--producer", "x"], 2, "--producer"),
        (&["txn", "show", "7"], 2, "is a UUIDv7"),
        (&["txn", "abort"], 2, "<ID>"),
        (&["topic", "delete", "t"], 2, "give --yes"),
        (&["topic", "set", "t"], 2, "KEY=VALUE"),
        (&["topic", "set", "t", "max_topics=1"], 2, "max_topics is a setting of tenants"),
        (&["topic", "set", "t", "retention=1"], 2, "not one of dedup_window_ms, dedup, reten"),
        (&["topic", "create", "t", "cleanup=often"], 2, "one of delete, compact"),
        (&["topic", "list", "--url", "ftp://localhost:1"], 2, "expected http:// or https://"),
        (&["topic", "list", "--url", ":1"], 2, "a host and a port"),
        (&["topic", "list", "--url", "127.0.0.1:9"], 1, "http://127.0.0.1:9/ does not answer"),
        (&["topic", "list", "--context", "prod"], 1, "`oncelog context set prod --url URL`"),
        (&["settings", "set"], 2, "KEY=VALUE"),
        (&["settings", "set", "max_topics"], 2, "KEY=VALUE"),
        (&["settings", "set", "max_topic=1"], 2, "max_topic is not one of transaction_timeout"),
        (&["settings", "set", "max_topics=-1"], 2, "outside of 0 to"),
        (&["settings", "set", "max_topics=null"], 2, "null is not allowed"),
        (&["settings", "set", "max_topics=many"], 2, "a value is a number"),
        (&["settings", "set", "retention_ms=1w"], 2, "ms, s, m, h or d, such as 90s"),
        (&["token", "mint", "--tenant", "t", "--scope", "produe"], 2, "not one of produce"),
        (&["produce", "/no/such/file", "--topic", "t"], 1, "cannot open /no/such/file"),
        (
            &["consume", "--topic", "t", "--max-retry-ms", "1", "--url", NOBODY],
            1,
            "does not answer: Connection refused; gave up after",
        ),
        (&["topic", "list", "--url", NOBODY], 1, "is a server running there? --url or ONCELOG_URL"),
    ];
    refused(&table).await;
    let help = run(oncelog(&["--help"])).await;
    assert_eq!(help.code, Some(0));
    for words in ["Exit codes:", "0    success", "1    failure", "2    usage", "130  interrupted"] {
        assert!(help.stdout.contains(words));
    }
}

#[tokio::test]
async fn wrong_usage_of_readers_and_sessions_is_told() {
    let table: [(&[&str], i32, &str); 9] = [
        (&["consume", "--topic", "t", "--offset", "x1"], 2, "an offset is"),
        (&["consume", "--topic", "t", "--timestamp", "today"], 2, "RFC 3339"),
        (&["consume", "--topic", "t", "--until-end"], 2, "needs --follow or --group"),
        (&["consume", "--topic", "t", "--offset", "--5"], 2, "an offset is"),
        (&["consume", "--topic", "t", "--format", "%x"], 2, "unknown sequence %x; known: %k key"),
        (&["consume", "--topic", "t", "--key", "k", "--group", "g"], 2, "cannot be used with"),
        (&["consume", "--topic", "t", "--max-retry-ms", "5w"], 2, "ms, s, m, h or d"),
        (&["session", "show"], 2, "<PRODUCER|--transactional-id <ID>>"),
        (&["session", "open", "--producer-id", "1"], 2, "--epoch"),
    ];
    refused(&table).await;
}

#[tokio::test]
async fn every_command_is_explained_with_an_example_and_no_secret() {
    let commands = [
        "serve",
        "migrate",
        "config",
        "openapi",
        "completions",
        "token",
        "token mint",
        "token inspect",
        "topic",
        "topic create",
        "topic list",
        "topic describe",
        "topic set",
        "topic delete",
        "status",
        "context",
        "context list",
        "context show",
        "context use",
        "context set",
        "context remove",
        "session",
        "session open",
        "session list",
        "session show",
        "session close",
        "settings show",
        "settings set",
        "tenant",
        "tenant list",
        "tenant create",
        "tenant show",
        "tenant set",
        "tenant suspend",
        "tenant resume",
        "tenant delete",
        "txn",
        "txn list",
        "txn show",
        "txn abort",
        "txn commit",
        "txn id",
        "produce",
        "consume",
        "bench append",
        "bench read",
        "bench wake",
        "bench session",
        "bench heartbeat",
    ];
    for name in commands {
        for help in ["-h", "--help"] {
            let arguments: Vec<&str> = name.split(' ').chain([help]).collect();
            let mut command = oncelog(&arguments);
            command.env("ONCELOG_TOKEN", "sesame").env("ONCELOG_TOKEN_HS256_SECRET", "sesame");
            let output = run(command).await;
            let example = output.stdout.split_once("Example").unwrap().1;
            assert!(example.contains(&format!("oncelog {name}")), "{name}");
            assert!(!output.stdout.contains("sesame"), "{name}");
        }
    }
}

#[tokio::test]
async fn config_tells_each_value_and_its_origin() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("oncelog.toml");
    std::fs::write(&file, "lanes = 3\nlog_level = \"warn\"\n").unwrap();
    let secret = "0123456789abcdef0123456789abcdef";
    let mut command = oncelog(&["config", "--listen", "127.0.0.1:0", "--config"]);
    command.arg(&file).env("ONCELOG_TOKEN_HS256_SECRET", secret).env("ONCELOG_LOG_LEVEL", "debug");
    let output = run(command).await;
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let has = |line: &str| assert!(output.stdout.lines().any(|l| l == line), "{}", output.stdout);
    has("listen = \"127.0.0.1:0\"  # flag --listen");
    has(&format!("lanes = 3  # file {}", file.display()));
    has("log_level = \"debug\"  # environment ONCELOG_LOG_LEVEL");
    has("token_hs256_secret = \"***\"  # environment ONCELOG_TOKEN_HS256_SECRET");
    has("gap_wait_ms = 1000  # default");
    assert!(!output.stdout.contains(secret));

    // with units they say the same
    std::fs::write(&file, "gap_wait_ms = \"2s\"\nmax_body_bytes = \"32MiB\"\n").unwrap();
    let mut command = oncelog(&["config", "--body-timeout-ms", "1m", "--config"]);
    command.arg(&file).env("ONCELOG_PAGE_CACHE_BYTES", "1GiB");
    let output = run(command).await;
    let has = |line: &str| assert!(output.stdout.lines().any(|l| l == line), "{output:?}");
    has("body_timeout_ms = 60000  # flag --body-timeout-ms");
    has(&format!("gap_wait_ms = 2000  # file {}", file.display()));
    has(&format!("max_body_bytes = 33554432  # file {}", file.display()));
    has("page_cache_bytes = 1073741824  # environment ONCELOG_PAGE_CACHE_BYTES");
    let wrong = run(oncelog(&["config", "--max-body-bytes", "10MB"])).await;
    let told = wrong.failed(1);
    assert!(told.contains("is `10MB`, must be an integer from 65536 to"), "{told}");
    assert!(told.contains("B, KiB, MiB, GiB or TiB, such as 10MiB"), "{told}");

    let mut command = oncelog(&["config", "--lanes", "many"]);
    command.env("ONCELOG_LISTN", "x");
    let output = run(command).await;
    let stderr = output.failed(1);
    assert!(stderr.contains("flag --lanes") && stderr.contains("ONCELOG_LISTN"), "{stderr}");
}

#[tokio::test]
async fn documents_are_printed_whole() {
    let openapi = run(oncelog(&["openapi"])).await;
    let document: serde_json::Value = serde_json::from_str(&openapi.stdout).unwrap();
    assert!(document["paths"]["/v1/topics/{topic}/records"].is_object());
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(oncelog(&["completions", shell])).await;
        assert_eq!(output.code, Some(0));
        assert!(output.stdout.contains("transactional-id"), "{shell}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrate_makes_an_empty_database_ready_and_repeats() {
    let migrated = support::database().await;
    let proxy = Proxy::start(&migrated, 1).await;
    // a database that nobody has migrated is made from it
    let admin = proxy.options(&migrated);
    let name = format!("{}_empty", admin.get_database().unwrap());
    let mut connection = sqlx::ConnectOptions::connect(&admin).await.unwrap();
    let create = sqlx::AssertSqlSafe(format!("create database {name}"));
    sqlx::Executor::execute(&mut connection, create).await.unwrap();
    let url = format!("postgres://postgres@127.0.0.1:{}/{name}?sslmode=disable", admin.get_port());
    for _ in 0..2 {
        let mut command = oncelog(&["migrate"]);
        command.env("DATABASE_URL", &url);
        let output = run(command).await;
        assert_eq!((output.code, &*output.stdout), (Some(0), "the schema is up to date\n"));
    }
    let mut connection = sqlx::ConnectOptions::connect(&admin.database(&name)).await.unwrap();
    let count = "select count(*) from information_schema.tables where table_schema = 'oncelog'";
    let tables: i64 = sqlx::query_scalar(count).fetch_one(&mut connection).await.unwrap();
    assert!(tables > 3);

    let nowhere = run(oncelog(&["migrate"])).await;
    assert!(nowhere.failed(1).contains("--database-url"));
    let secret = run(oncelog(&["migrate", "--database-url", "mysql://u:sesame@h/d"])).await;
    assert!(!secret.failed(1).contains("sesame"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_from_their_making_to_their_end() {
    let served = Served::alone().await;
    let url = served.client.url.as_str();
    let made = run(client(url, &["topic", "create", "orders", "--partitions", "2"])).await;
    assert_eq!(made.lines()[0]["partition_count"], 2);
    assert_eq!(made.stderr, "oncelog: created topic orders\n");
    let again = run(client(url, &["topic", "create", "orders"])).await;
    assert!(again.lines().len() == 1 && again.stderr.contains("already exists"));
    let other = run(client(url, &["topic", "create", "orders", "--partitions", "3"])).await;
    assert!(other.failed(1).contains("(topic_exists, HTTP 409)"), "{}", other.stderr);
    let own = ["topic", "create", "audit", "retention_ms=9s", "dedup=content"];
    let audit = run(client(url, &own)).await.lines();
    assert_eq!(audit[0]["settings"], json!({"retention_ms": 9_000, "dedup": "content"}));
    let set =
        ["topic", "set", "audit", "retention_ms=default", "cleanup=compact", "--partitions", "2"];
    let audit = run(client(url, &set)).await.lines();
    assert_eq!(audit[0]["settings"], json!({"cleanup": "compact", "dedup": "content"}));
    assert_eq!(audit[0]["partition_count"], 2);
    let fewer = run(client(url, &["topic", "set", "audit", "--partitions", "1"])).await;
    assert!(fewer.failed(1).contains("HTTP 409"), "{fewer:?}");

    let listed = run(client(url, &["topic", "list"])).await.lines();
    let names: Vec<_> = listed.iter().map(|topic| topic["topic"].clone()).collect();
    assert_eq!(names, [json!("audit"), json!("orders")]);
    let described = run(client(url, &["topic", "describe", "orders", "--json"])).await.lines();
    assert_eq!(described[0]["partitions"][1]["high_watermark"], 0);

    let deleted = run_with(client(url, &["topic", "delete", "orders", "-y"]), "").await;
    assert_eq!(deleted.code, Some(0), "{}", deleted.stderr);
    let gone = run(client(url, &["topic", "describe", "orders"])).await;
    let stderr = gone.failed(1);
    assert!(stderr.contains("topic_not_found") && stderr.contains("oncelog topic create"));
    let elsewhere = run(client(&format!("{url}/elsewhere"), &["topic", "list"])).await;
    assert!(elsewhere.failed(1).contains("is --url the address"), "{}", elsewhere.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_are_shown_and_set() {
    let served = Served::alone().await;
    let url = served.client.url.as_str();
    let shown = run(client(url, &["settings", "show"])).await.lines();
    assert_eq!(shown[0]["settings"]["max_topics"], 1_000);
    let set = [
        "max_topics=5",
        "producer_expiry_ms=null",
        "max_batch_bytes=default",
        "max_record_bytes=64KiB",
        "dedup_window_ms=2h",
    ];
    let set: Vec<&str> = ["settings", "set"].into_iter().chain(set).collect();
    for _ in 0..2 {
        let settings = &run(client(url, &set)).await.lines()[0];
        assert_eq!(settings["settings"]["max_topics"], 5);
        assert_eq!(settings["settings"]["producer_expiry_ms"], json!(null));
        assert_eq!(settings["origins"]["max_batch_bytes"], "default");
        assert_eq!(settings["settings"]["max_record_bytes"], 65_536);
        assert_eq!(settings["settings"]["dedup_window_ms"], 7_200_000);
    }
    run(client(url, &["settings", "set", "max_topics=default", "--json"])).await.lines();
    let shown = run(client(url, &["settings", "show", "--json"])).await.lines();
    assert_eq!(shown[0]["settings"]["max_topics"], 1_000);
    assert_eq!(shown[0]["origins"]["producer_expiry_ms"], "tenant");
    run(client(url, &["settings", "set", "max_topics=0"])).await.lines();
    let refused = run(client(url, &["topic", "create", "t"])).await;
    assert!(refused.failed(1).contains("(quota_exceeded, HTTP 429)"), "{}", refused.stderr);
}
