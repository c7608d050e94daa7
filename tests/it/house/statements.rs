//! Every SQL statement is prepared on a migrated database, and the hot ones go by index.

use oncelog::store::STATEMENTS;
use sqlx::{AssertSqlSafe, ConnectOptions, Executor, PgConnection};

use crate::support;

async fn connect() -> PgConnection {
    support::database().await.connect().await.unwrap()
}

fn all() -> impl Iterator<Item = (String, &'static str)> {
    STATEMENTS.iter().flat_map(|(file, statements)| {
        statements.iter().map(move |(name, sql)| (format!("{file}_{}", name.to_lowercase()), *sql))
    })
}

#[tokio::test]
async fn every_statement_can_be_prepared() {
    let mut connection = connect().await;
    let mut count = 0;
    for (name, sql) in all() {
        let prepared = connection.execute(AssertSqlSafe(format!("prepare {name} as {sql}"))).await;
        prepared.unwrap_or_else(|error| panic!("{name}: {error}"));
        count += 1;
    }
    assert!(count > 50, "{count}");
}

/// How many parameters a statement has.
fn parameters(sql: &str) -> usize {
    (1..60).rev().find(|n| sql.contains(&format!("${n}"))).unwrap_or(0)
}

/// Statements that go by index.
const HOT: &[&str] = &[
    "appends_append_claiming",
    "appends_append_row",
    "appends_append_rows",
    "appends_confirm",
    "beats_beats",
    "beats_generations",
    "beats_names",
    "beats_renew",
    "compaction_candidates",
    "compaction_claim",
    "compaction_finish",
    "compaction_lock",
    "compaction_move",
    "compaction_remove",
    "compaction_rewrite",
    "compaction_standing",
    "expiry_drop_states",
    "expiry_idle",
    "expiry_last_transacted_at",
    "expiry_lock",
    "expiry_orphan_opens",
    "expiry_orphaned",
    "expiry_snapshot_appended_at",
    "expiry_tails",
    "expiry_transacted",
    "groups_drop_places",
    "groups_idle",
    "groups_lock_places",
    "groups_members",
    "groups_places",
    "groups_starts",
    "groups_subscribed",
    "janitor_drop_offsets",
    "janitor_drop_rows",
    "janitor_trim_rows",
    "janitor_trimmable",
    "janitor_unfolded",
    "janitor_unsnapped_trims",
    "keys_claimed",
    "keys_find",
    "keys_journals",
    "keys_remember",
    "logs_hold",
    "logs_read",
    "logs_lock",
    "logs_watermarks",
    "members_members",
    "members_places",
    "members_write_places",
    "loading_states",
    "loading_tails",
    "loading_session_facts",
    "loading_share_sessions",
    "offsets_commit",
    "offsets_groups",
    "offsets_list",
    "offsets_lock",
    "offsets_make_rows",
    "reads_is_compacted",
    "reads_rows",
    "reads_search",
    "reads_staged",
    "removal_deleted",
    "removal_left",
    "removal_prepared",
    "removal_drop_topic_keys",
    "retention_facts",
    "retention_oldest",
    "retention_page",
    "sessions_registered_logs",
    "sessions_standings",
    "staged_ids_drop_empty",
    "staged_ids_ids",
    "staged_ids_keep",
    "staged_ids_lines",
    "staged_ids_release",
    "staged_ids_topics",
    "staging_logs",
    "staging_stage",
    "tenants_find",
    "tenants_read",
    "topics_find",
    "topics_pinned_by",
    "transactions_begin_new",
    "ending_commit",
    "transactions_ongoing",
    "appends_append_transactions",
    "appends_append_transactions_claiming",
];

/// With sequential scans switched off, none is left in a statement that has its index; and rows are
/// looked up one by one also by plans that were made while the tables were empty.
#[tokio::test]
async fn hot_statements_go_by_index() {
    let mut connection = connect().await;
    for setting in ["enable_seqscan = off", "plan_cache_mode = force_generic_plan"] {
        connection.execute(AssertSqlSafe(format!("set {setting}"))).await.unwrap();
    }
    let mut wrong = Vec::new();
    for wanted in HOT {
        let (name, sql) = all().find(|(name, _)| name == wanted).expect(wanted);
        let plan = plan(&mut connection, &name, sql).await;
        let scans_a_tenant = plan.contains("Index Cond: (tenant_id = $1)\n");
        // what is staged is found by the tenant's open transactions, which have their own index
        // the row of a tenant is one
        let seldom = ["expiry_", "removal_", "sessions_", "reads_staged", "tenants_read"];
        let is_seldom = seldom.iter().any(|prefix| name.starts_with(prefix));
        if plan.contains("Seq Scan") || scans_a_tenant && !is_seldom {
            wrong.push(format!("{name}:\n{plan}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

async fn plan(connection: &mut PgConnection, name: &str, sql: &str) -> String {
    connection.execute(AssertSqlSafe(format!("prepare {name} as {sql}"))).await.unwrap();
    let nulls = vec!["null"; parameters(sql)].join(", ");
    let explain = format!("explain (costs off) execute {name} ({nulls})");
    let plan: Vec<(String,)> =
        sqlx::query_as(AssertSqlSafe(explain)).fetch_all(connection).await.unwrap();
    plan.into_iter().map(|(line,)| line + "\n").collect()
}

/// A plain row costs a read nothing of what is staged: it is looked up only for a row that points to
/// it, by its key. And what is shown of open transactions is found by them, never among what
/// committed ones have staged.
#[tokio::test]
async fn what_is_staged_is_looked_up_by_key() {
    let mut connection = connect().await;
    connection.execute("set plan_cache_mode = force_generic_plan").await.unwrap();
    connection.execute("set enable_seqscan = off").await.unwrap();
    for name in ["reads_rows", "reads_staged"] {
        let (_, sql) = all().find(|(found, _)| found == name).unwrap();
        let plan = plan(&mut connection, name, sql).await;
        let (above, lookup) = plan.split_once("SubPlan 1\n").unwrap_or_else(|| panic!("{plan}"));
        let lines: Vec<&str> = lookup.lines().map(str::trim).collect();
        assert!(lines[0].contains("Index Scan using staged_batches_pkey"), "{plan}");
        let key = ["tenant_id =", "transaction_id =", "ordinal ="];
        assert!(key.iter().all(|column| lines[1].contains(column)), "{plan}");
        match name {
            // which server answers is asked once, and before anything is read
            "reads_rows" => {
                assert!(!above.contains("staged"), "{plan}");
                assert!(above.contains("One-Time Filter: ((1 / (("), "{plan}");
            }
            _ => assert!(above.contains("using transactions_open"), "{plan}"),
        }
        assert!(!plan.contains("Hash") && !plan.contains("Merge"), "{plan}");
    }
}

/// A chunk of a deleted tenant's rows is read in the order of a key, and no more of them is.
#[tokio::test]
async fn chunks_of_a_tenant_are_read_in_order() {
    let mut connection = connect().await;
    let (_, settings) = all().find(|(name, _)| name == "removal_read_in_order").unwrap();
    connection
        .execute("set enable_seqscan = off; set plan_cache_mode = force_generic_plan; begin")
        .await
        .unwrap();
    let (mut count, costly) = (0, ["Sort", "Bitmap", "Seq Scan", "Hash", "Join"]);
    connection.execute(settings).await.unwrap();
    let is_first_rows = |name: &str, sql: &str| {
        name.starts_with("removal_") && (sql.contains("limit") || name.ends_with("_left"))
    };
    for (name, sql) in all().filter(|(name, sql)| is_first_rows(name, sql)) {
        let plan = plan(&mut connection, &name, sql).await;
        // those over all tenants have few rows, and no key in their order
        let is_ordered = !costly.iter().any(|way| plan.contains(way));
        assert!(is_ordered || name == "removal_doomed_topics", "{name}:\n{plan}");
        // of no slot nothing is left to show
        let is_by_place = plan.contains("Tid Scan") || plan.contains("Subplans Removed: 19");
        assert!(!sql.contains("ctid") || is_by_place, "{name}:\n{plan}");
        count += 1;
    }
    assert!(count > 10);
}

/// `for update` fights the `for key share` of foreign keys; heads and sessions are locked
/// `for no key update`.
#[test]
fn rule_15_no_statement_locks_for_update() {
    for (name, sql) in all().filter(|(_, sql)| sql.contains("for update")) {
        // a delete of heads has to wait for a prepare's key share, and no foreign key refers to them;
        // that of a group for those that make offsets in it
        // that of whatever a deleted tenant has, which is passed by if it is held
        let exempt = [
            "groups_lock",
            "groups_lock_unless_held",
            "janitor_lock_doomed",
            "removal_lock_groups",
            "removal_lock_last_logs",
            "removal_lock_sessions",
            "removal_lock_tenant",
            "topics_lock_logs",
        ];
        assert!(exempt.contains(&&*name), "{name}: {sql}");
    }
}

/// Whoever locks several heads locks them in order.
#[test]
fn rule_16_heads_are_locked_in_order() {
    let ordered = [
        "order by log_id for no key update",
        "order by l.log_id for no key update",
        "order by log_id for update",
    ];
    let others = ["ending_commit", "topics_lock_logs"];
    let locking = all().filter(|(name, sql)| {
        sql.contains("for no key update") && sql.contains("oncelog.logs") && sql.contains("any($2)")
            || others.contains(&&**name)
    });
    let mut count = 0;
    for (name, sql) in locking {
        assert!(ordered.iter().any(|order| sql.contains(order)), "{name}");
        count += 1;
    }
    assert!(count > 0);
    let rows = all().find(|(name, _)| name == "appends_append_rows").unwrap().1;
    assert!(rows.contains(ordered[1]));
}

/// Every statement names the tenant, or works over all of them for a stated reason.
#[test]
fn every_statement_is_of_one_tenant() {
    let over_all = [
        "compaction_candidates",
        "connect_",
        "expiry_idle",
        "expiry_orphaned",
        "forgetting_due",
        "forgetting_late",
        "groups_count",
        "groups_idle",
        "groups_lags",
        "janitor_doomed",
        "janitor_hurry",
        "janitor_outgrown",
        "janitor_trimmable",
        "janitor_unfolded",
        "janitor_unsnapped_trims",
        "key_rings_",
        "members_late",
        "members_outdated",
        "migration_",
        "notices_",
        "removal_deleted",
        "removal_doomed_topics",
        "removal_read_in_order",
        "retention_page",
        "route_",
        "sessions_clock",
        "staging_sweeping",
        "tenants_",
        "transactions_open",
    ];
    for (name, sql) in all() {
        let exempt = over_all.iter().any(|prefix| name.starts_with(prefix));
        let inserts = sql.starts_with("insert") && sql.contains("(tenant_id") && sql.contains("$1");
        assert!(exempt || inserts || sql.contains("tenant_id = $1"), "{name}: {sql}");
    }
}

/// Guarantee 1: whatever the server or the role says, what is committed was flushed: a statement that
/// commits by itself asks `durable!`, a transaction says so as it begins. What is stronger is kept.
/// (That no statement was forgotten, the triggers of `support::database` see to in every test.)
#[tokio::test]
async fn every_commit_is_flushed() {
    let options = support::database().await;
    let name = options.get_database().unwrap().to_owned();
    for (theirs, ours) in [
        ("off", "on"),
        ("local", "on"),
        ("remote_write", "remote_write"),
        ("on", "on"),
        ("remote_apply", "remote_apply"),
    ] {
        let mut admin = options.connect().await.unwrap();
        let alter = format!("alter database {name} set synchronous_commit = {theirs}");
        admin.execute(AssertSqlSafe(alter)).await.unwrap();
        let store = oncelog::store::Store::new(options.clone(), 1);
        let mut connection = store.connection().await.unwrap();
        let shown = "select current_setting('synchronous_commit')";
        let mut transaction = oncelog::store::begin(&mut connection).await.unwrap();
        let begun: String = sqlx::query_scalar(shown).fetch_one(&mut *transaction).await.unwrap();
        oncelog::store::rollback(transaction).await.unwrap();
        assert_eq!(begun, ours, "{theirs}");
        let after: String = sqlx::query_scalar(shown).fetch_one(&mut connection).await.unwrap();
        assert_eq!(after, theirs);
    }
}
