//! Migrates the schema to that of this version.

use std::sync::LazyLock;

use sqlx::{Connection, migrate::Migrator};

use super::{Error, Store, begin, commit, statements};

/// Without sqlx's lock, which belongs to a session: behind a pooler it would protect nothing.
static MIGRATOR: LazyLock<Migrator> = LazyLock::new(|| {
    let mut migrator = sqlx::migrate!("./migrations");
    migrator.set_locking(false);
    migrator
});

/// PostgreSQL 14, as in `server_version_num`.
const OLDEST_VERSION: i32 = 140_000;

statements! {
    SCHEMA_EXISTS = "select exists (select from pg_namespace where nspname = 'oncelog')";
    VERSION = "select current_setting('server_version_num')::integer";
    /// One replica migrates at a time, as long as it takes; others wait without limit.
    MIGRATE_ALONE = r"select set_config('lock_timeout', '0', true), set_config('statement_timeout', '0', true),
        set_config('search_path', 'oncelog', true),
        pg_advisory_xact_lock(hashtext('oncelog'), hashtext('migration'))";
}

impl Store {
    /// Migrates the schema as a whole or not at all; safe to run on many replicas at once.
    pub async fn migrate(&self) -> Result<(), Error> {
        self.route().await?;
        let mut connection = self.connection().await?;
        let version: i32 = sqlx::query_scalar(VERSION).fetch_one(&mut connection).await?;
        if version < OLDEST_VERSION {
            let what = format!("PostgreSQL 14 or newer is required, this is {}", version / 10_000);
            return Err(Error::Unsuitable(what));
        }
        let mut transaction = begin(&mut connection).await?;
        sqlx::query(MIGRATE_ALONE).execute(&mut *transaction).await?;
        if !sqlx::query_scalar(SCHEMA_EXISTS).fetch_one(&mut *transaction).await? {
            sqlx::raw_sql("create schema oncelog").execute(&mut *transaction).await?;
        }
        let migrated = MIGRATOR.run(&mut *transaction).await;
        migrated.map_err(|error| Error::Unexpected(format!("migration: {error}")))?;
        commit(transaction).await?;
        Ok(connection.close().await?)
    }
}
