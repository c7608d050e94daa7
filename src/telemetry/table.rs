//! Every metric: its name, its labels with their values, and its help. `docs/metrics.md` shows the
//! same table.

use crate::model::Code;

/// What a metric measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [Label],
    pub help: &'static str,
}

/// A label and the closed set of its values: except for `Names`, no value comes from a client.
#[derive(Clone, Copy, Debug)]
pub struct Label {
    pub name: &'static str,
    pub values: Values,
}

#[derive(Clone, Copy, Debug)]
pub enum Values {
    These(&'static [&'static str]),
    /// Every problem code.
    Codes,
    /// A problem code, or `none`.
    CodeOrNone,
    /// The operations of the OpenAPI document, or `unmatched`.
    Operations,
    /// The statuses of HTTP.
    Statuses,
    /// The lanes of this replica, from 0.
    Lanes,
    /// This version of oncelog.
    Version,
    /// Names of tenants, groups or topics, of a limited number of series; or `(other)`.
    Names,
}

impl Values {
    /// All values, unless they depend on what is served.
    pub fn listed(self) -> Option<Vec<&'static str>> {
        match self {
            Values::These(values) => Some(values.to_vec()),
            Values::Codes => Some(Code::ALL.iter().map(|code| code.as_str()).collect()),
            Values::CodeOrNone
            | Values::Operations
            | Values::Statuses
            | Values::Lanes
            | Values::Version
            | Values::Names => None,
        }
    }
}

macro_rules! labels {
    ($($constant:ident $name:literal $values:expr;)*) => {
        $(const $constant: Label = Label { name: $name, values: $values };)*
    };
}

macro_rules! metrics_table {
    ($($constant:ident $kind:ident $name:literal [$($label:ident),*] $help:literal;)*) => {
        $(#[doc = $help] pub const $constant: &str = $name;)*

        /// Every metric there is.
        pub const METRICS: &[Metric] = &[$(Metric {
            name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help,
        }),*];
    };
}

/// The outcomes of a pass.
pub const PASS_OUTCOMES: &[&str] = &[
    "passed",
    "overtaken",
    "vanished",
    "behind",
    "contended",
    "unavailable",
    "outcome_unknown",
    "corrupt",
    "unsuitable",
];

/// The tables whose size is shown; all others are one sum.
pub const TABLES: &[&str] =
    &["batches", "staged_batches", "producer_states", "dedup_keys", "logs", "(other)"];

/// The rings that store dedup keys, by their retention.
pub const RINGS: &[&str] = &["15m", "2h", "24h", "7d", "60d", "10y", "forever"];

labels! {
    ABORT_REASON "reason" Values::These(&["client", "timeout", "fenced", "operator"]);
    APPEND_OUTCOME "outcome" Values::These(&["appended", "duplicate", "refused", "failed"]);
    CALL_OUTCOME "outcome" Values::These(&["done", "duplicate"]);
    CODE "code" Values::Codes;
    COMMIT_FORM "form" Values::These(&["plain", "transaction"]);
    CODE_OR_NONE "code" Values::CodeOrNone;
    CUT_REASON "reason" Values::These(&["slow_head", "unread_answer", "idle", "no_room"]);
    DATABASE_ERROR "kind" Values::These(&["contended", "unavailable", "outcome_unknown", "corrupt", "unsuitable"]);
    FILES "files" Values::These(&["jwks", "tls"]);
    DIRECTION "direction" Values::These(&["sent", "received"]);
    DUPLICATE_CALL "call" Values::These(&["open", "join", "offsets"]);
    DUPLICATE_KIND "kind" Values::These(&["idempotency_key"]);
    GROUP "group" Values::Names;
    GROUP_STATE "state" Values::These(&["alive", "empty"]);
    HELD "held" Values::These(&["requests", "answers"]);
    LANE "lane" Values::Lanes;
    HANDSHAKE_OUTCOME "outcome" Values::These(&["ok", "failed", "timeout", "plain_http"]);
    LISTENER "listener" Values::These(&["public", "admin"]);
    LIMIT "limit" Values::These(
        &["queued_appends", "queued_calls", "request_bytes", "answer_bytes", "waiting_reads"]);
    TENANT_LIMIT "limit" Values::These(&[
        "max_requests_per_s", "max_bytes_in_per_s", "max_bytes_out_per_s", "max_waiting_reads",
        "max_sessions", "max_groups", "max_open_transactions", "max_prepared_transactions",
        "max_staged_bytes", "max_stored_bytes"]);
    OFFSET_OUTCOME "outcome" Values::These(&["committed", "unchanged", "refused", "failed"]);
    OPEN_STATE "state" Values::These(&["ongoing", "prepared"]);
    OPERATION "operation" Values::Operations;
    PARKED_OUTCOME "outcome" Values::These(
        &["appended", "duplicate", "refused", "failed", "stale"]);
    PASS_KIND "kind" Values::These(&["quick", "full"]);
    PASS_OUTCOME "outcome" Values::These(PASS_OUTCOMES);
    POOL_STATE "state" Values::These(&["idle", "in_use"]);
    PRODUCER_KIND "kind" Values::These(&["named", "unnamed"]);
    REBALANCE_CAUSE "cause" Values::These(&["join", "leave", "late", "topics", "handover"]);
    RING "ring" Values::These(RINGS);
    RETENTION_LIMIT "limit" Values::These(&["time", "bytes"]);
    SESSION_EVENT "event" Values::These(&["opened", "reopened", "repeated", "ended"]);
    SOURCE "source" Values::These(&["commit", "notice", "poll"]);
    STATUS "status" Values::Statuses;
    TABLE "table" Values::These(TABLES);
    TASK "task" Values::These(&["trim", "snapshot", "doomed_logs", "expiry", "open_ids", "statistics",
        "transactions", "staged", "outcomes", "open_transactions", "members", "groups", "lag",
        "key_rings", "key_sizes", "retention", "tenants", "doomed_topics", "compaction",
        "topic_series", "topic_sizes", "database"]);
    TENANT "tenant" Values::Names;
    TENANT_STATE "state" Values::These(&["active", "suspended", "deleted"]);
    TOPIC "topic" Values::Names;
    TRANSACTION_CALL "call" Values::These(
        &["begin", "records", "offsets", "prepare", "commit", "abort"]);
    TRANSACTION_FORM "form" Values::These(&["staged", "whole"]);
    VERSION "version" Values::Version;
    RELOAD_OUTCOME "outcome" Values::These(&["ok", "failed"]);
    WAIT_OUTCOME "outcome" Values::These(&["records", "nothing", "gone"]);
    PAGE_RESULT "result" Values::These(&["hit", "miss"]);
}

metrics_table! {
    HTTP_REQUESTS_TOTAL Counter "oncelog_http_requests_total" [OPERATION, STATUS]
        "Requests answered.";
    HTTP_REQUEST_DURATION_SECONDS Histogram "oncelog_http_request_duration_seconds" [OPERATION]
        "Time from a request's head to its answer, excluding the time its body took to arrive and the time a read waited for records.";
    HTTP_REQUESTS_IN_FLIGHT Gauge "oncelog_http_requests_in_flight" [OPERATION]
        "Requests without an answer yet, including waiting reads.";
    HTTP_REQUESTS_ABANDONED_TOTAL Counter "oncelog_http_requests_abandoned_total" [OPERATION]
        "Requests whose client disconnected before the answer; an append continues all the same.";
    HTTP_REQUEST_BYTES_TOTAL Counter "oncelog_http_request_bytes_total" []
        "Bytes of request bodies, decompressed.";
    HTTP_ANSWER_BYTES_TOTAL Counter "oncelog_http_answer_bytes_total" [OPERATION]
        "Bytes of answers, before compression.";
    HTTP_BODY_DURATION_SECONDS Histogram "oncelog_http_body_duration_seconds" []
        "Time request bodies took to arrive and be decompressed.";
    HTTP_HELD_BYTES Gauge "oncelog_http_held_bytes" [HELD]
        "Bytes of requests in progress (bodies, and records until they are stored), and of answers that clients have not read yet.";
    HTTP_CONNECTIONS Gauge "oncelog_http_connections" [LISTENER]
        "Open connections.";
    HTTP_CONNECTIONS_CUT_TOTAL Counter "oncelog_http_connections_cut_total" [LISTENER, CUT_REASON]
        "Connections that the server closed: their client was too slow, or others needed their place.";
    TLS_HANDSHAKES_TOTAL Counter "oncelog_tls_handshakes_total" [HANDSHAKE_OUTCOME]
        "TLS handshakes.";
    RELOADS_TOTAL Counter "oncelog_reloads_total" [FILES, RELOAD_OUTCOME]
        "Files that changed and were read again.";
    JWKS_FETCHES_TOTAL Counter "oncelog_jwks_fetches_total" [RELOAD_OUTCOME]
        "Requests for the public keys of token issuers.";
    ERRORS_TOTAL Counter "oncelog_errors_total" [CODE]
        "Problems answered.";
    REFUSED_FOR_LOAD_TOTAL Counter "oncelog_refused_for_load_total" [LIMIT]
        "Requests refused because a limit of this replica was reached.";
    TENANTS_LIMITED_TOTAL Counter "oncelog_tenants_limited_total" [TENANT_LIMIT]
        "Requests refused because a rate or a quota of their tenant was reached.";

    APPENDS_TOTAL Counter "oncelog_appends_total" [APPEND_OUTCOME, CODE_OR_NONE]
        "Append requests answered: refused with the code of a 4xx, failed with that of a 5xx.";
    APPENDED_RECORDS_TOTAL Counter "oncelog_appended_records_total" []
        "Records appended.";
    APPENDED_BYTES_TOTAL Counter "oncelog_appended_bytes_total" []
        "Bytes of the records appended, before compression.";
    TOPIC_APPENDED_RECORDS_TOTAL Counter "oncelog_topic_appended_records_total" [TENANT, TOPIC]
        "Records appended to a topic, or added to a transaction, committed or not: the max_topic_series busiest topics by name, the others as one sum.";
    TOPIC_APPENDED_BYTES_TOTAL Counter "oncelog_topic_appended_bytes_total" [TENANT, TOPIC]
        "Bytes of these records, before compression.";
    DUPLICATE_RECORDS_TOTAL Counter "oncelog_duplicate_records_total" []
        "Records that appends did not store again because their ids or contents were known.";
    QUEUED_APPENDS Gauge "oncelog_queued_appends" [LANE]
        "Append requests waiting for their first pass.";
    QUEUE_DURATION_SECONDS Histogram "oncelog_queue_duration_seconds" []
        "Time from an append request's arrival to the start of its first pass.";
    PARKED_APPENDS Gauge "oncelog_parked_appends" []
        "Out-of-order append requests waiting for missing sequences.";
    PARKED_DURATION_SECONDS Histogram "oncelog_parked_duration_seconds" [PARKED_OUTCOME]
        "Time out-of-order append requests waited for missing sequences, by outcome.";
    PASSES_TOTAL Counter "oncelog_passes_total" [PASS_KIND, PASS_OUTCOME]
        "Passes of a lane over the database, by path: quick is the fast path, full the slow path. Overtaken: another replica had changed a log; behind: a log needed a snapshot first.";
    PASS_DURATION_SECONDS Histogram "oncelog_pass_duration_seconds" [PASS_KIND]
        "Time of a pass of a lane over the database.";
    GROUP_REQUESTS Histogram "oncelog_group_requests" []
        "Append requests per batch.";
    GROUP_RECORDS Histogram "oncelog_group_records" []
        "Records per batch of append requests.";
    GROUP_BYTES Histogram "oncelog_group_bytes" []
        "Bytes per batch of append requests.";
    REDONE_APPENDS_TOTAL Counter "oncelog_redone_appends_total" []
        "Append requests retried because the answer of their pass was lost or the database was unavailable.";
    REMEMBERED_PRODUCERS Gauge "oncelog_remembered_producers" [LANE]
        "Logs and producers in the cache of a lane.";

    READS_TOTAL Counter "oncelog_reads_total" []
        "Reads answered.";
    READ_RECORDS_TOTAL Counter "oncelog_read_records_total" []
        "Records returned by reads.";
    READ_BYTES_TOTAL Counter "oncelog_read_bytes_total" []
        "Bytes of the records returned by reads, before compression.";
    TOPIC_READ_RECORDS_TOTAL Counter "oncelog_topic_read_records_total" [TENANT, TOPIC]
        "Records of a topic returned by reads, also to members of groups: the max_topic_series busiest topics by name, the others as one sum.";
    TOPIC_READ_BYTES_TOTAL Counter "oncelog_topic_read_bytes_total" [TENANT, TOPIC]
        "Bytes of these records, before compression.";
    WAITING_READS Gauge "oncelog_waiting_reads" []
        "Reads waiting for records.";
    READ_WAIT_DURATION_SECONDS Histogram "oncelog_read_wait_duration_seconds" [WAIT_OUTCOME]
        "Time reads waited for records.";
    WAKEUP_DURATION_SECONDS Histogram "oncelog_wakeup_duration_seconds" [SOURCE]
        "Time from when this replica learned of new records (by its own commit, a notice of another replica, or its own poll) until a waiting read has them.";
    PAGE_LOOKUPS_TOTAL Counter "oncelog_page_lookups_total" [PAGE_RESULT]
        "Page cache lookups: hits, and misses, which load the page once for all waiting reads.";
    PAGE_LOADED_BYTES_TOTAL Counter "oncelog_page_loaded_bytes_total" []
        "Bytes of pages loaded from the database.";
    PAGE_EVICTIONS_TOTAL Counter "oncelog_page_evictions_total" []
        "Pages evicted from the cache.";
    PAGE_CACHE_BYTES Gauge "oncelog_page_cache_bytes" []
        "Bytes of cached pages.";
    LOOK_DURATION_SECONDS Histogram "oncelog_look_duration_seconds" []
        "Time of a watermark query, which all reads of a tenant that arrived before it share.";
    LOOK_READS Histogram "oncelog_look_reads" []
        "Reads that shared one watermark query.";
    NOTICES_TOTAL Counter "oncelog_notices_total" [DIRECTION]
        "Notices between replicas about changed logs; received are those of other replicas.";
    LISTENING Gauge "oncelog_listening" []
        "1 while notices arrive, including this replica's own; 0 behind a pooler with transaction pooling. Without notices, waiting reads find records of other replicas by polling.";

    TRANSACTION_CALLS_TOTAL Counter "oncelog_transaction_calls_total" [TRANSACTION_CALL, CALL_OUTCOME]
        "Successful transaction calls, and repeats of them; refusals are counted as errors.";
    TRANSACTIONS_COMMITTED_TOTAL Counter "oncelog_transactions_committed_total" [TRANSACTION_FORM]
        "Transactions committed: staged over several requests, or whole in one request.";
    TRANSACTIONS_ABORTED_TOTAL Counter "oncelog_transactions_aborted_total" [ABORT_REASON]
        "Transactions aborted, by cause.";
    TRANSACTION_COMMIT_DURATION_SECONDS Histogram "oncelog_transaction_commit_duration_seconds" [TRANSACTION_FORM]
        "Time of a transaction commit.";
    OPEN_TRANSACTIONS Gauge "oncelog_open_transactions" [OPEN_STATE]
        "Transactions that have not ended, over all tenants; the same on every replica.";
    OLDEST_TRANSACTION_AGE_SECONDS Gauge "oncelog_oldest_transaction_age_seconds" [OPEN_STATE]
        "Age of the oldest ongoing transaction, and time since the oldest prepared one was prepared, for which it has held its offsets and topics.";

    TENANTS Gauge "oncelog_tenants" [TENANT_STATE]
        "Tenants; deleted ones are counted until all their data is removed; the same on every replica.";
    SESSIONS_TOTAL Counter "oncelog_sessions_total" [SESSION_EVENT]
        "Sessions opened for a new producer, reopened (which fences the older session), opens repeated, sessions ended.";

    DUPLICATES_TOTAL Counter "oncelog_duplicates_total" [DUPLICATE_CALL, DUPLICATE_KIND]
        "Repeats of session opens, group joins and offset commits, detected by their Idempotency-Key.";

    REBALANCES_TOTAL Counter "oncelog_rebalances_total" [REBALANCE_CAUSE]
        "New generations of groups, by cause: a member joined, left, was late (to call, or to release partitions) or released partitions, or topics changed.";
    OFFSET_COMMITS_TOTAL Counter "oncelog_offset_commits_total" [OFFSET_OUTCOME]
        "Offset commits outside of transactions; unchanged: a member's offset below the committed one; refused: 4xx; failed: 5xx.";
    FENCED_COMMITS_TOTAL Counter "oncelog_fenced_commits_total" [COMMIT_FORM]
        "Commits refused because the member had lost a partition or has left: offsets alone (plain), or a transaction.";
    CONSUMER_GROUPS Gauge "oncelog_consumer_groups" [GROUP_STATE]
        "Groups with members (alive) and without (empty), over all tenants; the same on every replica.";
    CONSUMER_GROUP_MEMBERS Gauge "oncelog_consumer_group_members" []
        "Members of groups, over all tenants; the same on every replica.";
    CONSUMER_LAG_RECORDS Gauge "oncelog_consumer_lag_records" [TENANT, GROUP, TOPIC]
        "Records that a group still has to process in a topic: the max_lag_series greatest by name, the others as one sum; the same on every replica.";
    CONSUMER_LAG_SECONDS Gauge "oncelog_consumer_lag_seconds" [TENANT, GROUP, TOPIC]
        "Age of the oldest record that a group still has to process in a topic, 0 without lag: of the groups and topics whose oncelog_consumer_lag_records is shown by name; the same on every replica.";

    TOPIC_STORED_BYTES Gauge "oncelog_topic_stored_bytes" [TENANT, TOPIC]
        "Bytes of the stored records of a topic, before compression: the max_topic_series greatest by name, the others as one sum; the same on every replica.";
    DATABASE_TABLE_BYTES Gauge "oncelog_database_table_bytes" [TABLE]
        "Bytes on disk of a table of the schema oncelog, including indexes and what can be reused; the same on every replica.";
    DATABASE_OLDEST_TRANSACTION_AGE_SECONDS Gauge
        "oncelog_database_oldest_transaction_age_seconds" []
        "Age of the oldest open or prepared transaction in this database whose begin the role of oncelog may see: those of its own role, or of all if it has pg_read_all_stats; the same on every replica.";
    DATABASE_OLDEST_XMIN_AGE_TRANSACTIONS Gauge "oncelog_database_oldest_xmin_age_transactions" []
        "How many transactions ago the oldest snapshot began that keeps vacuum from removing rows: of any role's session or prepared transaction in this database, or of a replication slot; the same on every replica.";

    DATABASE_POOL_CONNECTIONS Gauge "oncelog_database_pool_connections" [POOL_STATE]
        "Connections of the pool; lanes and the notifier have their own.";
    DATABASE_POOL_MAX_CONNECTIONS Gauge "oncelog_database_pool_max_connections" []
        "Maximum number of connections of the pool.";
    DATABASE_POOL_WAITING Gauge "oncelog_database_pool_waiting" []
        "Tasks waiting for a connection of the pool.";
    DATABASE_POOL_ACQUIRE_DURATION_SECONDS Histogram "oncelog_database_pool_acquire_duration_seconds" []
        "Time tasks waited for a connection of the pool.";
    DATABASE_CONNECTS_TOTAL Counter "oncelog_database_connects_total" []
        "Database connections opened.";
    DATABASE_LOSSES_TOTAL Counter "oncelog_database_losses_total" []
        "Database connections found dead.";
    DATABASE_ERRORS_TOTAL Counter "oncelog_database_errors_total" [DATABASE_ERROR]
        "Database errors that ended a request.";

    JANITOR_DURATION_SECONDS Histogram "oncelog_janitor_duration_seconds" [TASK]
        "Time of a round of a janitor task; work left over is done in the next round.";
    JANITOR_CHUNK_DURATION_SECONDS Histogram "oncelog_janitor_chunk_duration_seconds" [TASK]
        "Time of a chunk of a janitor task, which bounds how long it holds a lock; a compaction chunk is a whole log, in many short transactions.";
    JANITOR_CONTENDED_TOTAL Counter "oncelog_janitor_contended_total" [TASK]
        "Chunks that did not get a lock in time; they are retried in the next round.";
    JANITOR_FAILURES_TOTAL Counter "oncelog_janitor_failures_total" [TASK]
        "Rounds of a janitor task that failed.";
    JANITOR_DUE_TOTAL Counter "oncelog_janitor_due_total" [TASK]
        "Items that a round of a janitor task found due: logs, transactions (in batches), producers (expiry), groups, open ids, key rings, or a measurement.";
    JANITOR_ROWS_TOTAL Counter "oncelog_janitor_rows_total" [TASK]
        "Rows that the janitor removed (key_rings: approximately), folded into a snapshot, or aborted (transactions).";
    JANITOR_LAST_SUCCESS_TIMESTAMP_SECONDS Gauge "oncelog_janitor_last_success_timestamp_seconds" [TASK]
        "When a round of a janitor task last succeeded; 0 before the first time.";
    RETENTION_RECORDS_TOTAL Counter "oncelog_retention_records_total" [RETENTION_LIMIT]
        "Records removed because they were older than retention_ms (time), or because the partition exceeded retention_bytes (bytes).";
    RETENTION_BYTES_TOTAL Counter "oncelog_retention_bytes_total" [RETENTION_LIMIT]
        "Bytes of records removed by retention.";
    RETENTION_OVERDUE_SECONDS Gauge "oncelog_retention_overdue_seconds" []
        "How far the oldest record of any log exceeded its retention_ms when last checked; a prepared transaction may hold it.";
    COMPACTED_RECORDS_TOTAL Counter "oncelog_compacted_records_total" []
        "Records removed by compaction: superseded by a later record with their key, or expired tombstones.";
    COMPACTED_BYTES_TOTAL Counter "oncelog_compacted_bytes_total" []
        "Bytes of records removed by compaction.";
    EXPIRED_PRODUCERS_TOTAL Counter "oncelog_expired_producers_total" [PRODUCER_KIND]
        "Producers removed after being idle too long: with a transactional id (named), or without.";
    EXPIRED_GROUPS_TOTAL Counter "oncelog_expired_groups_total" []
        "Groups removed, with their offsets, after being without members and commits for too long.";
    DEDUP_KEYS Gauge "oncelog_dedup_keys" [RING]
        "Approximate number of stored record ids and Idempotency-Keys, by maximum retention, including expired ones not removed yet; the same on every replica.";
    DEDUP_KEYS_BYTES Gauge "oncelog_dedup_keys_bytes" [RING]
        "Bytes on disk of the stored keys, including indexes.";
    SNAPSHOTS_TOTAL Counter "oncelog_snapshots_total" []
        "Snapshots of producer states written.";

    EMBEDDED_RESTARTS_TOTAL Counter "oncelog_embedded_restarts_total" []
        "Restarts of the embedded PostgreSQL after it died.";
    BUILD_INFO Gauge "oncelog_build_info" [VERSION]
        "1; the label is the running version.";
}
