//! Tenants, as their operators describe and see them.

pub mod revocation;

use std::collections::BTreeMap;

use self::revocation::Revocations;
use super::{
    Name, Timestamp,
    settings::{Key, OwnSettings},
};

/// A tenant with its description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    pub name: Name,
    pub created_at: Timestamp,
    /// Its own values, and the operator's maxima.
    pub settings: OwnSettings,
    pub revocations: Revocations,
    /// Increases with every change of this description.
    pub version: i64,
    /// When it was suspended: its requests are refused since.
    pub suspended_at: Option<Timestamp>,
    /// When it was deleted: its data is being removed since.
    pub deleted_at: Option<Timestamp>,
}

/// A tenant with the amount of its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantDescription {
    pub tenant: Tenant,
    pub topic_count: i64,
    pub partition_count: i64,
}

/// A merge patch of maxima: none removes one, absent ones stay.
pub type MaximaChanges = BTreeMap<Key, Option<i64>>;

/// An operator's merge patch of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantPatch {
    pub maxima: MaximaChanges,
    pub suspended: Option<bool>,
}

impl Tenant {
    /// A strong validator of everything that can change here.
    pub fn etag(&self) -> String {
        let Self { name, created_at, settings, version, suspended_at, deleted_at, .. } = self;
        let mut words =
            format!("{name} {created_at} {} {}\n", suspended_at.is_some(), deleted_at.is_some());
        for (key, value) in &settings.values {
            words += &format!("{} {value}\n", key.name());
        }
        for (key, most) in &settings.maxima.0 {
            words += &format!("{} at most {most}\n", key.name());
        }
        format!("\"{version}-{:016x}\"", xxhash_rust::xxh3::xxh3_64(words.as_bytes()))
    }
}
