//! What lies between here and the database: nothing that matters, or a pooler that gives a
//! connection of the server to whoever has a transaction to run.

use sqlx::{
    AssertSqlSafe, Connection, PgConnection, Row,
    postgres::{PgConnectOptions, PgRow},
};
use uuid::Uuid;

use super::{Error, statements};

/// How often it is looked whether two clients get the same connection of the server. One look tells,
/// unless others take and give back connections at the very same moments.
const LOOKS: usize = 16;
/// Settings that a client may name as it likes.
const TOKEN: &str = "oncelog.token";

const NO_PREPARED_STATEMENTS: &str = "the connection pooler in front of the database shares \
    connections between transactions but does not support prepared statements: connect to the \
    database directly, use session pooling, or enable prepared statements in the pooler (PgBouncer \
    1.21 or newer: max_prepared_statements = 200)";
const READ_ONLY: &str = "default_transaction_read_only is on for this role or database, and the \
    connection pooler does not let clients change it: ALTER ROLE ... SET \
    default_transaction_read_only = off, or connect to the database directly";

statements! {
    SEEN = "select current_setting('oncelog.token', true)";
    READS_ONLY = "select current_setting('transaction_read_only')::boolean and not pg_is_in_recovery()";
}

/// Whose the server's connections are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// One's own, until one hangs up.
    Dedicated,
    /// One's own for a transaction. What a session keeps is lost, or is another client's.
    Shared,
}

/// How to connect, asking for these settings where that is allowed, and what is found there.
pub async fn find(
    bare: &PgConnectOptions,
    settings: &[(&str, &str)],
) -> Result<(PgConnectOptions, Route), Error> {
    let options = bare.clone().options(settings.iter().copied());
    let token = Uuid::now_v7().simple().to_string();
    let marked = options.clone().options([(TOKEN, &token)]);
    let (options, mut connection) = match PgConnection::connect_with(&marked).await {
        Ok(connection) => (options, connection),
        Err(error) if refuses_settings(&error) => {
            (bare.clone(), PgConnection::connect_with(bare).await?)
        }
        Err(error) => return Err(error.into()),
    };
    let seen: Option<String> = ask(&mut connection, SEEN).await?.try_get(0)?;
    let route = if seen == Some(token) {
        Route::Dedicated
    } else if ask(&mut connection, READS_ONLY).await?.try_get(0)? {
        return Err(Error::Unsuitable(READ_ONLY.into()));
    } else {
        let mut other = PgConnection::connect_with(&options).await?;
        let route = compare(&mut connection, &mut other).await?;
        other.close().await?;
        route
    };
    connection.close().await?;
    Ok((options, route))
}

/// PgBouncer's: `unsupported startup parameter: options`, from 1.20 on with a word more.
fn refuses_settings(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(refusal) = error else { return false };
    refusal.message().contains("startup parameter")
}

/// Each asks by a prepared statement of its own, of the same name. With connections of one's own
/// each is answered by its own process of the server, again and again. Where connections are shared,
/// both are answered by the same one or somebody's changes; and the statements have been kept apart.
async fn compare(one: &mut PgConnection, other: &mut PgConnection) -> Result<Route, Error> {
    let texts = [(); 2].map(|()| Uuid::now_v7().simple().to_string());
    for _ in 0..LOOKS {
        let before = prepared(one, &texts[0]).await?;
        let elsewhere = prepared(other, &texts[1]).await?;
        let after = prepared(one, &texts[0]).await?;
        if before == elsewhere || before != after {
            return Ok(Route::Shared);
        }
    }
    Ok(Route::Dedicated)
}

/// Which process of the server answers to a prepared statement. It says a text that no other one
/// says, which others left under its name, too; and its parameters are of a kind that nobody else's
/// are, so that no other statement will take them.
async fn prepared(connection: &mut PgConnection, text: &str) -> Result<i32, Error> {
    let sql = format!(
        "select pg_backend_pid(), '{text}' from (select $1::\"char\", $2::\"char\", $3::\"char\") p"
    );
    let query = sqlx::query_as(AssertSqlSafe(sql)).bind(0i8).bind(0i8).bind(0i8);
    let answered: Result<(i32, String), sqlx::Error> = query.fetch_one(connection).await;
    match answered {
        Ok((process, answered)) if answered == text => Ok(process),
        Err(error) if !is_of_a_statement(&error) => Err(error.into()),
        Ok(_) | Err(_) => Err(Error::Unsuitable(NO_PREPARED_STATEMENTS.into())),
    }
}

/// Whether it is not there, there already, or another one.
fn is_of_a_statement(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(refusal) => {
            let code = refusal.code().unwrap_or_default();
            matches!(&*code, "26000" | "42P05") || refusal.message().contains("prepared statement")
        }
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::ColumnIndexOutOfBounds { .. } => true,
        _ => false,
    }
}

/// In one message, which any pooler passes on as one.
async fn ask(connection: &mut PgConnection, sql: &'static str) -> Result<PgRow, Error> {
    Ok(sqlx::raw_sql(sql).fetch_one(connection).await?)
}
