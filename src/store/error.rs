//! The kinds of database errors.

use std::fmt;

use crate::rules::append::encoding::Corrupt;

/// What caused a database error. Its text goes to the log, never to a client.
#[derive(Debug)]
pub enum Cause {
    /// The database or the connection to it failed.
    Database(sqlx::Error),
    /// Another writer was first: a compare failed.
    Overtaken,
    /// The database did not answer for so long that the connection was given up.
    SilentPeer,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Database(error) => error.fmt(f),
            Cause::Overtaken => f.write_str("another writer was quicker"),
            Cause::SilentPeer => f.write_str("the database did not answer in time"),
        }
    }
}

/// The text of a database error goes to the log, never to a client.
#[derive(Debug)]
pub enum Error {
    /// Certainly not written: a lock timed out, or another transaction was in conflict.
    Contended(Cause),
    /// The database cannot be reached, or the connection was lost. Whether what was sent took
    /// effect is for the caller to know.
    Unavailable(Cause),
    /// A COMMIT was sent, and its answer was lost.
    OutcomeUnknown(Cause),
    /// The data or a statement is invalid.
    Unexpected(String),
    /// The server, or a pooler in front of it, is unsuitable; the text says what to do.
    Unsuitable(String),
}

impl Error {
    /// The name of the kind, for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Error::Contended(_) => "contended",
            Error::Unavailable(_) => "unavailable",
            Error::OutcomeUnknown(_) => "outcome_unknown",
            Error::Unexpected(_) => "corrupt",
            Error::Unsuitable(_) => "unsuitable",
        }
    }

    /// Another transaction was first; nothing is written.
    pub fn overtaken() -> Self {
        Error::Contended(Cause::Overtaken)
    }

    /// What was sent may have taken effect.
    pub fn silent_peer() -> Self {
        Error::OutcomeUnknown(Cause::SilentPeer)
    }

    /// The error of an autocommitted write, which may have taken effect before the connection was
    /// lost.
    pub fn of_a_write(self) -> Self {
        match self {
            Error::Unavailable(error) => Error::OutcomeUnknown(error),
            other => other,
        }
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        let sqlx::Error::Database(database) = &error else {
            return match error {
                sqlx::Error::Io(_)
                | sqlx::Error::Tls(_)
                | sqlx::Error::Protocol(_)
                | sqlx::Error::PoolTimedOut
                | sqlx::Error::PoolClosed
                | sqlx::Error::WorkerCrashed => Error::Unavailable(Cause::Database(error)),
                other => Error::Unexpected(other.to_string()),
            };
        };
        let code = database.code().unwrap_or_default();
        match code.as_ref() {
            // lock not available, deadlock, serialization, a key that another transaction has taken
            // meanwhile, a key that a row refers to and that was removed meanwhile, a statement
            // that has undone itself
            "55P03" | "40P01" | "40001" | "23505" | "23503" | "OL001" => {
                Error::Contended(Cause::Database(error))
            }
            // read-only after a failover, too many connections, disk full, out of memory
            "25006" | "53300" | "53100" | "53200" => Error::Unavailable(Cause::Database(error)),
            // an idle transaction was ended, a long one, or a statement that took too long
            "25P03" | "25P04" | "57014" => Error::Unavailable(Cause::Database(error)),
            // somebody else has dropped this connection's prepared statements
            "26000" => Error::Unavailable(Cause::Database(error)),
            // connection exceptions, shutdown, crash, starting up, database dropped
            code if code.starts_with("08") || code.starts_with("57P") => {
                Error::Unavailable(Cause::Database(error))
            }
            _ => Error::Unexpected(error.to_string()),
        }
    }
}

impl From<Corrupt> for Error {
    fn from(_: Corrupt) -> Self {
        Error::Unexpected("the rows of a log have gaps, or their provenance is unreadable".into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Contended(error) => write!(f, "contended: {error}"),
            Error::Unavailable(error) => write!(f, "database unavailable: {error}"),
            Error::OutcomeUnknown(error) => write!(f, "outcome unknown: {error}"),
            Error::Unexpected(what) => write!(f, "unexpected: {what}"),
            Error::Unsuitable(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {}
