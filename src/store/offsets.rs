//! Committed offsets of groups, and who owns their partitions.

use std::collections::BTreeMap;

use sqlx::PgConnection;

use super::Error;
use crate::{
    model::{Name, Offset, TenantId},
    rules::offsets::{Group, Place, Row},
};

/// Locks the offsets' rows in the order of group and log, made where there are none yet.
pub async fn lock(
    _connection: &mut PgConnection,
    _tenant: TenantId,
    _places: &[Place],
) -> Result<BTreeMap<Place, Row>, Error> {
    Err(Error::Corrupt("not yet".into()))
}

/// What is known of the groups' members.
pub async fn groups(
    _connection: &mut PgConnection,
    _tenant: TenantId,
    _groups: &[Name],
) -> Result<BTreeMap<Name, Group>, Error> {
    Err(Error::Corrupt("not yet".into()))
}

/// An offset to be committed at a locked place.
pub struct Commit {
    pub place: Place,
    pub offset: Offset,
    pub metadata: Option<String>,
}

/// Writes the offsets of locked rows.
pub async fn commit(
    _connection: &mut PgConnection,
    _tenant: TenantId,
    _commits: &[Commit],
) -> Result<(), Error> {
    Err(Error::Corrupt("not yet".into()))
}
