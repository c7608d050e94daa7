//! THE LEDGER: every SQL statement, beside the function that binds it. It decides nothing.
//!
//! Locks are taken in one order everywhere: the tenant's row, session rows by id, transactions by id,
//! groups by name and their offsets by group and log, heads by log id, producer states by producer.
//! Heads and sessions are locked `for no key update`, never `for update`, which fights the
//! `for key share` of foreign keys; only the heads of a topic that is deleted are, since a prepare
//! holds them by key share, and the row of a group that is deleted, since whoever makes offsets in it
//! does, and so for all that a removed tenant has had. Each locking statement stands in one place, and what is read under a lock is read by a later
//! statement: the one that waited still sees the old rows.
//!
//! **What a statement judges under a row's lock is a column of that row, or is judged anew after the
//! lock.** A statement sees the database as it was when it began. Of a row that has changed while it
//! waited it looks at the columns once more; a sub-select, a join or another part of it still answers of
//! before, and a row that was only locked and let go of counts as unchanged. So whoever adds something
//! that others judge by a row touches that row: a call that stages raises a count in its transaction's,
//! a claim of keys raises one in its journal's, whatever moves the ground of appends raises a fence.
//! What else a statement may take from its own beginning:
//! - facts that only ever turn one way, and whose old view refuses: a group's generation, a next offset;
//! - what nobody changes to any effect without writing into the row as well: a member that comes and
//!   takes a partition becomes its owner there;
//! - what is judged again by a unique key, or by a function that reads anew (`forgotten_horizon`);
//! - what a later statement of the same transaction judges once more.

pub mod append;
pub mod catalog;
pub mod dedup;
mod fair_pool;
pub mod group;
pub mod janitor;
pub mod notify;
pub mod read;
pub mod session;
pub mod transaction;

mod connect;
mod error;
mod history;
mod migration;
mod route;

pub use connect::{Store, Work, begin, commit, rollback, settle};
pub use error::Error;
pub use history::{History, Server};
pub use route::Route;
pub use sqlx::{PgConnection as Connection, PgTransaction as Transaction};

/// Names statements and lists them, so that a test can prepare every one on a migrated database.
macro_rules! statements {
    ($($(#[$doc:meta])* $name:ident = $sql:expr;)*) => {
        $($(#[$doc])* const $name: &str = $sql;)*
        /// Every statement of this file.
        pub const STATEMENTS: &[(&str, &str)] = &[$((stringify!($name), $name)),*];
    };
}
use statements;

/// A condition that holds and makes what it stands in durable. It belongs to every statement that
/// writes and commits by itself, where no row is written without its having been asked: by the time
/// such a statement commits, `synchronous_commit` is no weaker than `on`, and stronger where it was,
/// whatever the server, the role or another client of the same pooler has set; and locks are not
/// waited for for ever. Both end with the statement.
macro_rules! durable {
    () => {
        "(case current_setting('synchronous_commit') \
                when 'off' then set_config('synchronous_commit', 'on', true) = 'on' \
                when 'local' then set_config('synchronous_commit', 'on', true) = 'on' else true end \
            and case current_setting('lock_timeout') when '0' then set_config('lock_timeout', '5s', true) = '5s' else true end)"
    };
}
use durable;

/// Every statement there is, by file.
pub const STATEMENTS: &[(&str, &[(&str, &str)])] = &[
    ("appends", append::STATEMENTS),
    ("beats", group::leases::STATEMENTS),
    ("compaction", janitor::compaction::STATEMENTS),
    ("connect", connect::STATEMENTS),
    ("ending", transaction::end::STATEMENTS),
    ("expiry", janitor::producers::STATEMENTS),
    ("forgetting", janitor::transactions::STATEMENTS),
    ("groups", group::admin::STATEMENTS),
    ("janitor", janitor::STATEMENTS),
    ("key_rings", dedup::rings::STATEMENTS),
    ("keys", dedup::STATEMENTS),
    ("loading", append::load::STATEMENTS),
    ("logs", catalog::logs::STATEMENTS),
    ("members", group::STATEMENTS),
    ("migration", migration::STATEMENTS),
    ("notices", notify::STATEMENTS),
    ("offsets", group::offsets::STATEMENTS),
    ("reads", read::STATEMENTS),
    ("removal", janitor::deleted_tenants::STATEMENTS),
    ("retention", janitor::retention::STATEMENTS),
    ("route", route::STATEMENTS),
    ("sessions", session::STATEMENTS),
    ("snapshots", janitor::snapshots::STATEMENTS),
    ("staged_ids", transaction::record_ids::STATEMENTS),
    ("staging", transaction::staging::STATEMENTS),
    ("tenants", catalog::tenants::STATEMENTS),
    ("topics", catalog::topics::STATEMENTS),
    ("transactions", transaction::STATEMENTS),
    ("whole", transaction::one_request::STATEMENTS),
];

/// An instant as Postgres gives it.
type Instant = chrono::DateTime<chrono::Utc>;
