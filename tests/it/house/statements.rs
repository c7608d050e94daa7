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
    "append_append_claiming",
    "append_append_row",
    "append_append_rows",
    "append_confirm",
    "group_leases_beats",
    "group_leases_generations",
    "group_leases_names",
    "group_leases_renew",
    "janitor_compaction_candidates",
    "janitor_compaction_claim",
    "janitor_compaction_finish",
    "janitor_compaction_lock",
    "janitor_compaction_move",
    "janitor_compaction_remove",
    "janitor_compaction_rewrite",
    "janitor_compaction_standing",
    "janitor_producers_drop_states",
    "janitor_producers_idle",
    "janitor_producers_last_transacted_at",
    "janitor_producers_lock",
    "janitor_producers_orphan_opens",
    "janitor_producers_orphaned",
    "janitor_producers_snapshot_appended_at",
    "janitor_producers_tails",
    "janitor_producers_transacted",
    "group_admin_drop_places",
    "group_admin_idle",
    "group_admin_lock_places",
    "group_admin_members",
    "group_admin_places",
    "group_admin_starts",
    "group_admin_subscribed",
    "janitor_drop_offsets",
    "janitor_measure_tenant_names",
    "janitor_drop_rows",
    "janitor_trim_rows",
    "janitor_trimmable",
    "janitor_unfolded",
    "janitor_unsnapped_trims",
    "dedup_claimed",
    "dedup_find",
    "dedup_journals",
    "dedup_remember",
    "catalog_logs_hold",
    "catalog_logs_read",
    "catalog_logs_lock",
    "catalog_logs_watermarks",
    "group_members",
    "group_places",
    "group_write_places",
    "append_load_states",
    "append_load_tails",
    "append_load_session_facts",
    "append_load_share_sessions",
    "group_offsets_commit",
    "group_offsets_groups",
    "group_offsets_list",
    "group_offsets_lock",
    "group_offsets_make_rows",
    "read_is_compacted",
    "read_rows",
    "read_search",
    "read_staged",
    "janitor_deleted_tenants_deleted",
    "janitor_deleted_tenants_left",
    "janitor_deleted_tenants_prepared",
    "janitor_deleted_tenants_drop_topic_keys",
    "janitor_retention_facts",
    "janitor_retention_oldest",
    "janitor_retention_page",
    "session_registered_logs",
    "session_standings",
    "transaction_record_ids_drop_empty",
    "transaction_record_ids_ids",
    "transaction_record_ids_keep",
    "transaction_record_ids_lines",
    "transaction_record_ids_release",
    "transaction_record_ids_topics",
    "transaction_staging_logs",
    "transaction_staging_stage",
    "catalog_tenants_find",
    "catalog_tenants_read",
    "catalog_topics_find",
    "catalog_topics_pinned_by",
    "transaction_begin_new",
    "transaction_end_commit",
    "transaction_ongoing",
    "transaction_reach",
    "append_append_transactions",
    "append_append_transactions_claiming",
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
        let seldom = [
            "janitor_producers_",
            "janitor_deleted_tenants_",
            "session_",
            "read_staged",
            "catalog_tenants_read",
        ];
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

/// A plain row costs a read nothing of what is staged: it is looked up only for a row that points
/// to it, by its key. And what is shown of open transactions is found by them, never among what
/// committed ones have staged.
#[tokio::test]
async fn what_is_staged_is_looked_up_by_key() {
    let mut connection = connect().await;
    connection.execute("set plan_cache_mode = force_generic_plan").await.unwrap();
    connection.execute("set enable_seqscan = off").await.unwrap();
    for name in ["read_rows", "read_staged"] {
        let (_, sql) = all().find(|(found, _)| found == name).unwrap();
        let plan = plan(&mut connection, name, sql).await;
        let (above, lookup) = plan.split_once("SubPlan ").unwrap_or_else(|| panic!("{plan}"));
        let lines: Vec<&str> = lookup.lines().skip(1).map(str::trim).collect();
        assert!(lines[0].contains("Index Scan using staged_batches_pkey"), "{plan}");
        let key = ["tenant_id =", "transaction_id =", "ordinal ="];
        assert!(key.iter().all(|column| lines[1].contains(column)), "{plan}");
        match name {
            // which server answers is asked once, and before anything is read
            "read_rows" => {
                assert!(!above.contains("staged"), "{plan}");
                assert!(above.contains("One-Time Filter:"), "{plan}");
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
    let (_, settings) =
        all().find(|(name, _)| name == "janitor_deleted_tenants_read_in_order").unwrap();
    connection
        .execute("set enable_seqscan = off; set plan_cache_mode = force_generic_plan; begin")
        .await
        .unwrap();
    let (mut count, costly) = (0, ["Sort", "Bitmap", "Seq Scan", "Hash", "Join"]);
    connection.execute(settings).await.unwrap();
    let is_first_rows = |name: &str, sql: &str| {
        name.starts_with("janitor_deleted_tenants_")
            && (sql.contains("limit") || name.ends_with("_left"))
    };
    for (name, sql) in all().filter(|(name, sql)| is_first_rows(name, sql)) {
        let plan = plan(&mut connection, &name, sql).await;
        // those over all tenants have few rows, and no key in their order
        let is_ordered = !costly.iter().any(|way| plan.contains(way));
        assert!(is_ordered || name == "janitor_deleted_tenants_doomed_topics", "{name}:\n{plan}");
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
        // a delete of heads has to wait for a prepare's key share, and no foreign key refers to
        // them; that of a group for those that make offsets in it that of whatever a deleted tenant
        // has, which is passed by if it is held
        let exempt = [
            "group_admin_lock",
            "group_admin_lock_unless_held",
            "janitor_lock_doomed",
            "janitor_deleted_tenants_lock_groups",
            "janitor_deleted_tenants_lock_last_logs",
            "janitor_deleted_tenants_lock_sessions",
            "janitor_deleted_tenants_lock_tenant",
            "catalog_topics_lock_logs",
        ];
        assert!(exempt.contains(&&*name), "{name}: {sql}");
    }
}

/// Anyone who locks several heads locks them in order.
#[test]
fn rule_16_heads_are_locked_in_order() {
    let ordered = [
        "order by log_id for no key update",
        "order by l.log_id for no key update",
        "order by log_id for update",
    ];
    let others = ["transaction_end_commit", "catalog_topics_lock_logs"];
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
    let rows = all().find(|(name, _)| name == "append_append_rows").unwrap().1;
    assert!(rows.contains(ordered[1]));
}

/// Every statement names the tenant, or works over all of them for a stated reason.
#[test]
fn every_statement_is_of_one_tenant() {
    let over_all = [
        "janitor_compaction_candidates",
        "connect_",
        "janitor_producers_idle",
        "janitor_producers_orphaned",
        "janitor_transactions_due",
        "janitor_transactions_late",
        "group_admin_count",
        "group_admin_idle",
        "group_admin_lags",
        "janitor_doomed",
        "janitor_hurry",
        "janitor_measure_",
        "janitor_outgrown",
        "janitor_trimmable",
        "janitor_unfolded",
        "janitor_unsnapped_trims",
        "dedup_rings_",
        "group_late",
        "group_outdated",
        "migration_",
        "notify_",
        "probe_",
        "janitor_deleted_tenants_deleted",
        "janitor_deleted_tenants_doomed_topics",
        "janitor_deleted_tenants_read_in_order",
        "janitor_retention_page",
        "route_",
        "session_clock",
        "transaction_staging_sweeping",
        "catalog_tenants_",
        "transaction_open",
    ];
    for (name, sql) in all() {
        let exempt = over_all.iter().any(|prefix| name.starts_with(prefix));
        let inserts = ["insert", "with named as"].iter().any(|start| sql.starts_with(start));
        let inserts = inserts && sql.contains("(tenant_id") && sql.contains("$1");
        assert!(exempt || inserts || sql.contains("tenant_id = $1"), "{name}: {sql}");
    }
}

/// Guarantee 1: whatever the server or the role says, what is committed was flushed: a statement
/// that commits by itself asks `durable!`, a transaction says so as it begins. What is stronger is
/// kept. (That no statement was forgotten, the triggers of `support::database` see to in every
/// test.)
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
