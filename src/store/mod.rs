//! The store: every SQL statement, beside the function that binds it. It decides nothing.
//!
//! Locks are taken in one order everywhere: the tenant's row, session rows by id, transactions by
//! id, groups by name and their offsets by group and log, heads by log id, producer states by
//! producer. Heads and sessions are locked `for no key update`, never `for update`, which conflicts
//! with the `for key share` of foreign keys. There are three exceptions: the heads of a deleted
//! topic, because a prepare holds them by key share; the row of a deleted group, because a
//! transaction that creates offsets in it does the same; and all data of a deleted tenant. Each
//! locking statement exists once, and what is read under a lock is read by a later statement,
//! because a statement that waited for the lock still sees the old rows.
//!
//! **What a statement checks under a row's lock is a column of that row, or is checked again after
//! the lock.** A statement sees the snapshot of its beginning. If a row has changed while the
//! statement waited for it, the statement evaluates the row's columns again, but its sub-selects,
//! joins and other parts still use the old snapshot; a row that was only locked counts as
//! unchanged. So a transaction that adds something that others check under a row updates that row:
//! a call that stages increments a count in its transaction's row, a reservation of keys one in its
//! journal's, and whatever invalidates the read set of appends raises a fence. A statement may also
//! rely on the snapshot of its beginning for
//! - facts that change in one direction only, and whose old value causes a refusal: a group's
//!   generation, a next offset;
//! - facts that never change with effect without a write to the row: a member that joins and takes
//!   a partition becomes its owner there;
//! - facts that are checked again by a unique key, or by a function with a new snapshot
//!   (`forgotten_horizon`);
//! - facts that a later statement of the same transaction checks again.

pub mod append;
pub mod catalog;
pub mod dedup;
mod fair_pool;
pub mod group;
pub mod janitor;
pub mod notify;
pub mod quotas;
pub mod read;
pub mod session;
pub mod transaction;

mod connect;
mod error;
mod history;
mod migration;
mod probe;
mod route;
mod types;
mod work;

pub use connect::{Store, begin, commit, rollback, server, settle};
pub use error::Error;
pub use history::{History, Server};
pub use probe::Probe;
pub use route::Route;
pub use sqlx::{PgConnection as Connection, PgTransaction as Transaction};
use sqlx::{PgConnection, Postgres, postgres::PgArguments, query::Query};
pub use work::Work;

/// Names statements and lists them, so that a test can prepare every one on a migrated database.
macro_rules! statements {
    ($($(#[$doc:meta])* $name:ident = $sql:expr;)*) => {
        $($(#[$doc])* const $name: &str = $sql;)*
        /// Every statement of this file.
        pub const STATEMENTS: &[(&str, &str)] = &[$((stringify!($name), $name)),*];
    };
}
use statements;

/// A condition that is always true and makes its statement durable. It belongs to every statement
/// that writes and commits by itself, placed where it is evaluated before any row is written: when
/// such a statement commits, `synchronous_commit` is at least `on`, whatever the server, the role
/// or another client of the same pooler has set; and lock waits are limited. Both end with the
/// statement.
macro_rules! durable {
    () => {
        r"(case current_setting('synchronous_commit')
                when 'off' then set_config('synchronous_commit', 'on', true) = 'on'
                when 'local' then set_config('synchronous_commit', 'on', true) = 'on'
                else true end
            and case current_setting('lock_timeout')
                when '0' then set_config('lock_timeout', '5s', true) = '5s'
                else true end)"
    };
}
use durable;

/// All statements, by file.
pub const STATEMENTS: &[(&str, &[(&str, &str)])] = &[
    ("append", append::STATEMENTS),
    ("append", append::transactions::STATEMENTS),
    ("append_load", append::load::STATEMENTS),
    ("catalog_logs", catalog::logs::STATEMENTS),
    ("catalog_tenants", catalog::tenants::STATEMENTS),
    ("catalog_topics", catalog::topics::STATEMENTS),
    ("connect", connect::STATEMENTS),
    ("dedup", dedup::STATEMENTS),
    ("dedup_rings", dedup::rings::STATEMENTS),
    ("group", group::STATEMENTS),
    ("group_admin", group::admin::STATEMENTS),
    ("group_leases", group::leases::STATEMENTS),
    ("group_offsets", group::offsets::STATEMENTS),
    ("janitor", janitor::STATEMENTS),
    ("janitor_compaction", janitor::compaction::STATEMENTS),
    ("janitor_deleted_tenants", janitor::deleted_tenants::STATEMENTS),
    ("janitor_measure", janitor::measure::STATEMENTS),
    ("janitor_producers", janitor::producers::STATEMENTS),
    ("janitor_retention", janitor::retention::STATEMENTS),
    ("janitor_snapshots", janitor::snapshots::STATEMENTS),
    ("janitor_transactions", janitor::transactions::STATEMENTS),
    ("migration", migration::STATEMENTS),
    ("notify", notify::STATEMENTS),
    ("probe", probe::STATEMENTS),
    ("quotas", quotas::STATEMENTS),
    ("read", read::STATEMENTS),
    ("route", route::STATEMENTS),
    ("session", session::STATEMENTS),
    ("transaction", transaction::STATEMENTS),
    ("transaction_end", transaction::end::STATEMENTS),
    ("transaction_one_request", transaction::one_request::STATEMENTS),
    ("transaction_record_ids", transaction::record_ids::STATEMENTS),
    ("transaction_staging", transaction::staging::STATEMENTS),
];

type Result<T, E = Error> = std::result::Result<T, E>;

/// Runs a statement for its effect.
async fn execute(conn: &mut PgConnection, query: Query<'_, Postgres, PgArguments>) -> Result<()> {
    query.execute(conn).await?;
    Ok(())
}

/// An instant as Postgres returns it.
type Instant = chrono::DateTime<chrono::Utc>;
