//! The rows: subjects, references and targets.

/// One measurement. Those of a row alternate.
pub struct Run {
    pub title: &'static str,
    pub work: Work,
}

pub enum Work {
    /// `oncelog bench` with these arguments, against fresh brokers on a fresh database.
    Oncelog { brokers: usize, arguments: &'static [&'static str] },
    /// The same on a database that a first broker has set up; the transactions in it are counted.
    Counted { arguments: &'static [&'static str] },
    /// The same on stored events, this many times the usual number: a first broker stores them and
    /// stops, and another one is measured.
    Stored { arguments: &'static [&'static str], times: u32 },
    /// The same with members that only send heartbeats; the CPU load is measured.
    Heartbeats { arguments: &'static [&'static str] },
    /// The same on a database full of work for the janitor, due or not.
    Chores { arguments: &'static [&'static str], due: bool },
    /// The same repeatedly on a topic with this `retention_bytes`.
    Retained { arguments: &'static [&'static str], retention_bytes: i64 },
    /// pgbench on a fresh database.
    Pgbench(Pgbench),
}

pub struct Pgbench {
    /// The script, a file of this directory.
    pub script: &'static str,
    pub clients: usize,
    pub events_per_transaction: u32,
    /// Whether to log each transaction's duration, for the percentiles.
    pub log: bool,
    /// Whether the table of events is filled first.
    pub filled: bool,
}

pub struct Figure {
    pub title: &'static str,
    pub of: Value,
    /// The divisor; an absolute figure has none.
    pub by: Option<Value>,
    pub aim: Aim,
}

/// The run, and the path in its JSON.
pub struct Value(pub usize, pub &'static str);

#[derive(Clone, Copy)]
pub enum Aim {
    AtLeast(f64),
    AtMost(f64),
    /// For information only.
    None,
}

pub struct Row {
    pub name: &'static str,
    pub title: &'static str,
    /// Every flush takes 2 ms longer, as on a cloud disk.
    pub slow_flush: bool,
    pub runs: &'static [Run],
    pub figures: &'static [Figure],
}

const EVENTS: &str = "/events_per_s";
/// The transactions of all sessions, per append.
pub const DATABASE_TRANSACTIONS: &str = "/database_transactions_per_append";
const APPEND_P50: &str = "/latencies/append/p50_us";
const APPEND_P99: &str = "/latencies/append/p99_us";
const APPEND_MAX: &str = "/latencies/append/max_us";

const fn oncelog(title: &'static str, arguments: &'static [&'static str]) -> Run {
    Run { title, work: Work::Oncelog { brokers: 1, arguments } }
}

const fn counted(title: &'static str, arguments: &'static [&'static str]) -> Run {
    Run { title, work: Work::Counted { arguments } }
}

const fn two_brokers(title: &'static str, arguments: &'static [&'static str]) -> Run {
    Run { title, work: Work::Oncelog { brokers: 2, arguments } }
}

const fn pgbench(title: &'static str, clients: usize, script: &'static str) -> Run {
    let plain = Pgbench { script, clients, events_per_transaction: 1, log: false, filled: false };
    Run { title, work: Work::Pgbench(plain) }
}

const fn beside_chores(title: &'static str, due: bool) -> Run {
    let arguments = &["append", "--connections", "16", "--records-per-request", "10"];
    Run { title, work: Work::Chores { arguments, due } }
}

const SINGLES: Run = oncelog("singles, 64 connections", &["append"]);
const SINGLES_UNSEQUENCED: Run =
    oncelog("singles, 64 connections, unsequenced", &["append", "--unsequenced"]);
const HEAD_LOCK: Run =
    pgbench("pgbench: a row an event under a head lock, 64 clients", 64, "head_lock_insert.sql");
const SINGLES_16: Run = oncelog("singles, 16 connections", &["append", "--connections", "16"]);
const HUNDREDS: Run = oncelog(
    "100 a request, 16 connections",
    &["append", "--connections", "16", "--records-per-request", "100"],
);

/// The ratio of one run to another in events per second.
const fn ratio(title: &'static str, of: usize, by: usize, aim: Aim) -> Figure {
    Figure { title, of: Value(of, EVENTS), by: Some(Value(by, EVENTS)), aim }
}

const fn absolute(title: &'static str, of: Value, aim: Aim) -> Figure {
    Figure { title, of, by: None, aim }
}

pub const ROWS: &[Row] = &[
    Row {
        name: "singles",
        title: "single sequenced appends, 64 connections and producers, one partition",
        slow_flush: false,
        runs: &[SINGLES, HEAD_LOCK],
        figures: &[ratio("against a row an event under a head lock", 0, 1, Aim::AtLeast(30.0))],
    },
    Row {
        name: "slow-flush",
        title: "the same, each flush 2 ms longer (a cloud disk)",
        slow_flush: true,
        runs: &[SINGLES, HEAD_LOCK],
        figures: &[ratio("against a row an event under a head lock", 0, 1, Aim::AtLeast(45.0))],
    },
    Row {
        name: "latency",
        title: "single sequenced appends, one connection",
        slow_flush: false,
        runs: &[
            oncelog("singles, 1 connection", &["append", "--connections", "1"]),
            Run {
                title: "pgbench: bare insert, 1 client",
                work: Work::Pgbench(Pgbench {
                    script: "bare_insert.sql",
                    clients: 1,
                    events_per_transaction: 1,
                    log: true,
                    filled: false,
                }),
            },
        ],
        figures: &[Figure {
            title: "p50 against p50 of a bare insert",
            of: Value(0, APPEND_P50),
            by: Some(Value(1, "/p50_us")),
            aim: Aim::AtMost(2.0),
        }],
    },
    Row {
        name: "hundreds",
        title: "100-event sequenced appends, 16 connections",
        slow_flush: false,
        runs: &[
            HUNDREDS,
            oncelog(
                "the same to 16 partitions",
                &[
                    "append",
                    "--connections",
                    "16",
                    "--records-per-request",
                    "100",
                    "--partitions",
                    "16",
                ],
            ),
            Run {
                title: "pgbench: bare inserts of the same rows, 16 clients",
                work: Work::Pgbench(Pgbench {
                    script: "batch_insert.sql",
                    clients: 16,
                    events_per_transaction: 100,
                    log: false,
                    filled: false,
                }),
            },
        ],
        figures: &[
            ratio("1 partition against bare inserts", 0, 2, Aim::AtLeast(0.60)),
            ratio("16 partitions against bare inserts", 1, 2, Aim::AtLeast(0.50)),
        ],
    },
    Row {
        name: "sequenced-singles",
        title: "what a sequence costs: singles, 64 connections",
        slow_flush: false,
        runs: &[SINGLES, SINGLES_UNSEQUENCED],
        figures: &[ratio("sequenced against unsequenced", 0, 1, Aim::AtLeast(0.95))],
    },
    Row {
        name: "sequenced-hundreds",
        title: "what a sequence costs: 100 a request, 16 connections",
        slow_flush: false,
        runs: &[
            HUNDREDS,
            oncelog(
                "100 a request, 16 connections, unsequenced",
                &["append", "--connections", "16", "--records-per-request", "100", "--unsequenced"],
            ),
        ],
        figures: &[ratio("sequenced against unsequenced", 0, 1, Aim::AtLeast(0.98))],
    },
    Row {
        name: "ids-singles",
        title: "what ids and a window of 10 minutes cost: singles, 64 connections",
        slow_flush: false,
        runs: &[
            SINGLES_UNSEQUENCED,
            oncelog("with ids", &["append", "--unsequenced", "--ids"]),
            oncelog(
                "with ids, a million live",
                &["append", "--unsequenced", "--ids", "--live-ids", "1000000"],
            ),
            oncelog(
                "without ids, where a million are live",
                &["append", "--unsequenced", "--ids", "--live-ids", "1000000", "--plain"],
            ),
        ],
        figures: &[
            ratio("a million live ids against few", 2, 1, Aim::AtLeast(0.85)),
            ratio("ids, a million live, against none", 2, 0, Aim::AtLeast(0.85)),
            ratio(
                "appends without ids beside a million live, against none",
                3,
                0,
                Aim::AtLeast(0.85),
            ),
        ],
    },
    Row {
        name: "ids-hundreds",
        title: "what ids and a window of 10 minutes cost: 100 a request, 16 connections",
        slow_flush: false,
        runs: &[
            oncelog(
                "100 a request, 16 connections, unsequenced",
                &["append", "--connections", "16", "--records-per-request", "100", "--unsequenced"],
            ),
            oncelog(
                "with ids",
                &[
                    "append",
                    "--connections",
                    "16",
                    "--records-per-request",
                    "100",
                    "--unsequenced",
                    "--ids",
                ],
            ),
            oncelog(
                "with ids, a million live",
                &[
                    "append",
                    "--connections",
                    "16",
                    "--records-per-request",
                    "100",
                    "--unsequenced",
                    "--ids",
                    "--live-ids",
                    "1000000",
                ],
            ),
        ],
        figures: &[
            ratio("a million live ids against few", 2, 1, Aim::AtLeast(0.85)),
            ratio("ids, a million live, against none", 2, 0, Aim::None),
        ],
    },
    Row {
        name: "keyed",
        title: "keyed sequenced appends of 100 to a topic, 16 connections",
        slow_flush: false,
        runs: &[
            oncelog(
                "keyed, 16 partitions",
                &[
                    "append",
                    "--connections",
                    "16",
                    "--records-per-request",
                    "100",
                    "--scope",
                    "topic",
                    "--partitions",
                    "16",
                ],
            ),
            oncelog(
                "keyed, a topic of 1 partition",
                &[
                    "append",
                    "--connections",
                    "16",
                    "--records-per-request",
                    "100",
                    "--scope",
                    "topic",
                ],
            ),
            HUNDREDS,
        ],
        figures: &[
            ratio("16 partitions against 1", 0, 1, Aim::AtLeast(0.8)),
            ratio("16 partitions against appends to a partition", 0, 2, Aim::None),
        ],
    },
    Row {
        name: "read",
        title: "sequential read of stored events, pages of 1000",
        slow_flush: false,
        runs: &[
            Run {
                title: "read, a broker that has nothing in memory",
                work: Work::Stored { arguments: &["read", "--warmup-s", "0"], times: 1 },
            },
            Run {
                title: "pgbench: pages of 1000 rows, a row an event",
                work: Work::Pgbench(Pgbench {
                    script: "page_select.sql",
                    clients: 1,
                    events_per_transaction: 1000,
                    log: false,
                    filled: true,
                }),
            },
            Run {
                title: "pgbench: single rows by key",
                work: Work::Pgbench(Pgbench {
                    script: "row_select.sql",
                    clients: 1,
                    events_per_transaction: 1,
                    log: false,
                    filled: true,
                }),
            },
        ],
        figures: &[
            Figure {
                title: "first pass against pages of rows",
                of: Value(0, "/first_pass_events_per_s"),
                by: Some(Value(1, EVENTS)),
                aim: Aim::AtLeast(4.0),
            },
            ratio("pass after pass against pages of rows", 0, 1, Aim::None),
            ratio("pass after pass against single rows", 0, 2, Aim::None),
        ],
    },
    Row {
        name: "wake",
        title: "commit to waiting reader, 200 events/s",
        slow_flush: false,
        runs: &[
            oncelog("wake, one broker", &["wake"]),
            two_brokers("wake, producer and reader at different brokers", &["wake"]),
        ],
        figures: &[
            absolute(
                "answer to arrival, p50",
                Value(0, "/latencies/answer_to_arrival/p50_us"),
                Aim::AtMost(800.0),
            ),
            absolute(
                "answer to arrival, p99",
                Value(0, "/latencies/answer_to_arrival/p99_us"),
                Aim::AtMost(2000.0),
            ),
            absolute(
                "send to arrival, p50",
                Value(0, "/latencies/send_to_arrival/p50_us"),
                Aim::None,
            ),
            absolute(
                "send to arrival, p99",
                Value(0, "/latencies/send_to_arrival/p99_us"),
                Aim::None,
            ),
            absolute(
                "two brokers: answer to arrival, p50",
                Value(1, "/latencies/answer_to_arrival/p50_us"),
                Aim::None,
            ),
            absolute(
                "two brokers: answer to arrival, p99",
                Value(1, "/latencies/answer_to_arrival/p99_us"),
                Aim::None,
            ),
        ],
    },
    Row {
        name: "readers",
        title: "1,000 readers long-polling one partition, 20 events/s",
        slow_flush: false,
        runs: &[
            counted("wake, 1,000 readers", &["wake", "--rate", "20", "--readers", "1000"]),
            counted("wake, 1 reader", &["wake", "--rate", "20"]),
        ],
        figures: &[
            Figure {
                title: "database transactions of an append and its readers, against 1",
                of: Value(0, DATABASE_TRANSACTIONS),
                by: Some(Value(1, DATABASE_TRANSACTIONS)),
                aim: Aim::AtMost(1.0),
            },
            ratio("appends, against 1", 0, 1, Aim::AtLeast(0.8)),
            absolute(
                "answer to arrival, p99",
                Value(0, "/latencies/answer_to_arrival/p99_us"),
                Aim::None,
            ),
        ],
    },
    Row {
        name: "brokers",
        title: "two brokers appending to one partition, singles, 64 connections",
        slow_flush: false,
        runs: &[two_brokers("singles, 32 connections each to 2 brokers", &["append"]), SINGLES],
        figures: &[ratio("against one broker", 0, 1, Aim::AtLeast(0.7))],
    },
    Row {
        name: "sessions",
        title: "a fresh session and one append, 16 connections",
        slow_flush: false,
        runs: &[oncelog("session and append, 16 connections", &["session"]), SINGLES_16],
        figures: &[ratio("against single appends", 0, 1, Aim::AtLeast(0.2))],
    },
    Row {
        name: "staged",
        title: "10 sequenced appends of 100 events in a transaction, 16 connections, 1 partition",
        slow_flush: false,
        runs: &[
            oncelog("transactions of 10 x 100", &["transaction", "--form", "staged"]),
            HUNDREDS,
        ],
        figures: &[ratio("against the same without", 0, 1, Aim::AtLeast(0.9))],
    },
    Row {
        name: "whole",
        title: "one-request transactions: two topics and a compare-and-set offset, 16 connections",
        slow_flush: false,
        runs: &[
            oncelog("whole transactions", &["transaction"]),
            SINGLES_16,
            oncelog("the same in three requests", &["transaction", "--form", "three"]),
        ],
        figures: &[
            ratio("against single appends", 0, 1, Aim::AtLeast(0.5)),
            ratio("against the same in three requests", 0, 2, Aim::AtLeast(3.0)),
        ],
    },
    Row {
        name: "groups",
        title: "consume-transform-produce, 4 members, a one-request transaction per 100 events",
        slow_flush: false,
        runs: &[
            Run {
                title: "4 members, 16 partitions to 16",
                work: Work::Stored { arguments: &["transform", "--partitions", "16"], times: 3 },
            },
            oncelog(
                "100 a request, 4 connections, 16 partitions",
                &[
                    "append",
                    "--connections",
                    "4",
                    "--records-per-request",
                    "100",
                    "--partitions",
                    "16",
                ],
            ),
        ],
        figures: &[ratio("against appends of the same", 0, 1, Aim::AtLeast(0.5))],
    },
    Row {
        name: "heartbeats",
        title: "10,000 members in 1,000 groups, each with 12 partitions, that do nothing but stay",
        slow_flush: false,
        runs: &[Run {
            title: "10,000 heartbeats in 15 s",
            work: Work::Heartbeats { arguments: &["heartbeat", "--partitions", "12"] },
        }],
        figures: &[
            absolute("PostgreSQL's processor time", Value(0, "/database_cores"), Aim::AtMost(0.05)),
            absolute("the broker's processor time", Value(0, "/brokers_cores"), Aim::None),
            absolute("heartbeats", Value(0, EVENTS), Aim::None),
            absolute("database transactions", Value(0, "/database_transactions_per_s"), Aim::None),
            absolute("p50 of a heartbeat", Value(0, "/latencies/heartbeat/p50_us"), Aim::None),
            absolute("p99 of a heartbeat", Value(0, "/latencies/heartbeat/p99_us"), Aim::None),
        ],
    },
    Row {
        name: "janitor",
        title: "appends of 10, 16 connections, to a log that is trimmed beside other removals",
        slow_flush: false,
        runs: &[
            beside_chores("appends while the janitor works", true),
            beside_chores("appends while nothing is due", false),
        ],
        figures: &[
            absolute(
                "longest chunk, at most",
                Value(0, "/longest_chunk_us"),
                Aim::AtMost(50_000.0),
            ),
            Figure {
                title: "p99 of an append against that without",
                of: Value(0, APPEND_P99),
                by: Some(Value(1, APPEND_P99)),
                aim: Aim::None,
            },
            absolute("longest append", Value(0, APPEND_MAX), Aim::None),
            absolute("longest append, nothing due", Value(1, APPEND_MAX), Aim::None),
            absolute("longest pass, at most", Value(0, "/longest_pass_us"), Aim::None),
            ratio("appends against those without", 0, 1, Aim::None),
        ],
    },
    Row {
        name: "retention",
        title: "100-event appends, 16 connections, to a partition that keeps 8 MiB, in 8 rounds",
        slow_flush: false,
        runs: &[
            Run {
                title: "100 a request, 16 connections, 8 MiB kept",
                work: Work::Retained {
                    arguments: &["append", "--connections", "16", "--records-per-request", "100"],
                    retention_bytes: 8 << 20,
                },
            },
            HUNDREDS,
        ],
        figures: &[
            Figure {
                title: "the table after the last round against the third",
                of: Value(0, "/last_table_bytes"),
                by: Some(Value(0, "/first_table_bytes")),
                aim: Aim::AtMost(1.2),
            },
            Figure {
                title: "its index after the last round against the third",
                of: Value(0, "/last_index_bytes"),
                by: Some(Value(0, "/first_index_bytes")),
                aim: Aim::AtMost(1.2),
            },
            ratio("against the same where all is kept", 0, 1, Aim::AtLeast(0.8)),
            Figure {
                title: "p99 of an append against the same where all is kept",
                of: Value(0, "/latencies/append/p99_us"),
                by: Some(Value(1, "/latencies/append/p99_us")),
                aim: Aim::None,
            },
            absolute(
                "longest wait for a row's lock",
                Value(0, "/longest_lock_wait_us"),
                Aim::AtMost(50_000.0),
            ),
        ],
    },
];
