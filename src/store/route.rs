//! Detects the route to the database: direct, or a pooler that shares server connections per
//! transaction.

use sqlx::{
    AssertSqlSafe, Connection, PgConnection, Row,
    postgres::{PgConnectOptions, PgRow},
};
use uuid::Uuid;

use super::{Error, statements};

/// How often to check whether two clients get the same server connection. One check suffices,
/// unless others acquire and release connections at exactly the same moments.
const LOOKS: usize = 16;
/// Settings whose names a client can choose.
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

/// Who uses a connection of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// One client, until it disconnects.
    Dedicated,
    /// One client for one transaction. Session state is lost, or seen by other clients.
    Shared,
}

/// Determines how to connect, with these settings where they are allowed, and the route.
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
            let connection = PgConnection::connect_with(bare).await;
            (bare.clone(), connection.map_err(|error| unreachable(bare, error))?)
        }
        Err(error) => return Err(unreachable(bare, error)),
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

/// PgBouncer's error: `unsupported startup parameter: options`, with another word from 1.20 on.
fn refuses_settings(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(refusal) = error else { return false };
    refusal.message().contains("startup parameter")
}

/// Why there is no connection: some causes no waiting mends.
fn unreachable(options: &PgConnectOptions, error: sqlx::Error) -> Error {
    let user = options.get_username();
    let database = options.get_database().unwrap_or(user);
    let host = options.get_host();
    let mistake = match &error {
        sqlx::Error::Tls(cause) => Some(format!(
            "the database connection cannot use TLS: {cause}; without sslmode in database_url a \
             database on another host must have a certificate for its name: add \
             sslrootcert=FILE if an authority of your own has signed it, or sslmode=disable on a \
             network that you trust"
        )),
        sqlx::Error::Database(refusal) => match refusal.code().unwrap_or_default().as_ref() {
            "3D000" => Some(format!(
                "there is no database {database} on {host}: create it (CREATE DATABASE), or name \
                 another in database_url"
            )),
            "28P01" => {
                Some(format!("{host} does not accept the password of {user} in database_url"))
            }
            "28000" => Some(format!(
                "{host} does not let {user} connect to {database}: {}; check the user in \
                 database_url, and pg_hba.conf",
                refusal.message()
            )),
            "42501" => Some(format!("{user} may not connect to {database}: GRANT CONNECT")),
            _ => None,
        },
        _ => None,
    };
    mistake.map_or_else(|| error.into(), Error::Unsuitable)
}

/// Two clients each use their own prepared statement, with the same name. On dedicated connections
/// each is answered by its own server process, every time. On shared connections both are answered
/// by the same process, or by changing ones; then it is also checked that the pooler keeps the
/// statements apart.
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

/// Returns the server process that answers a prepared statement. Its text is unique, also among
/// statements that others have left under its name; and its parameter types are unusual, so that no
/// other statement accepts them.
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

/// Whether an error is about a prepared statement that is missing, already exists, or is another
/// one.
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

/// In one message, which any pooler forwards as one.
async fn ask(connection: &mut PgConnection, sql: &'static str) -> Result<PgRow, Error> {
    Ok(sqlx::raw_sql(sql).fetch_one(connection).await?)
}
