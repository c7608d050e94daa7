//! The effective value of a setting: a topic's own value, else its tenant's, else the default;
//! never above the operator's maximum.

use super::Refusal;
use crate::model::{
    settings::{
        Change, Changes, IfMatch, InForce, Key, Origin, OwnSettings, TenantSettings, Value,
    },
    topic::BatchLimits,
};

/// The effective value. `levels`: the nearest first.
pub fn in_force(key: Key, levels: &[&OwnSettings]) -> Value {
    let own = levels.iter().find_map(|level| level.values.get(&key).copied());
    let wanted = own.unwrap_or(key.setting().default);
    let maximum = levels.iter().find_map(|level| level.maxima.0.get(&key).copied());
    maximum.filter(|most| wanted.exceeds(*most)).map_or(wanted, Value::Number)
}

/// The values of a level after a merge patch.
pub fn patched(own: &OwnSettings, changes: &Changes) -> OwnSettings {
    let mut own = own.clone();
    for (key, change) in changes {
        match change {
            Change::Default => own.values.remove(key),
            Change::Set(value) => own.values.insert(*key, *value),
        };
    }
    own
}

/// Refuses changes above the operator's maximum, and names all of them. `at` is the pointer to the
/// settings in the request.
pub fn check_maxima(
    at: &'static str,
    changes: &Changes,
    tenant: &OwnSettings,
) -> Result<(), Refusal> {
    let above = |(key, change): (&Key, &Change)| match (change, tenant.maxima.0.get(key)) {
        (Change::Set(value), Some(most)) if value.exceeds(*most) => Some((*key, *value, *most)),
        _ => None,
    };
    let settings: Vec<_> = changes.iter().filter_map(above).collect();
    if settings.is_empty() { Ok(()) } else { Err(Refusal::AboveMaxima { at, settings }) }
}

/// Applies a patch to the locked settings of a tenant.
pub fn patch_tenant(
    own: &OwnSettings,
    version: i64,
    changes: &Changes,
    if_match: Option<&IfMatch>,
) -> Result<OwnSettings, Refusal> {
    let etag = of_tenant(own, version).etag();
    if if_match.is_some_and(|wanted| !wanted.holds(&etag)) {
        return Err(Refusal::PreconditionFailed { etag });
    }
    check_maxima("", changes, own)?;
    Ok(patched(own, changes))
}

/// All settings of a tenant, with their origins.
pub fn of_tenant(own: &OwnSettings, version: i64) -> TenantSettings {
    let in_force = |key: &Key| {
        let (value, wanted) = (in_force(*key, &[own]), own.values.get(key));
        let origin = match wanted {
            _ if value != *wanted.unwrap_or(&key.setting().default) => Origin::Operator,
            Some(_) => Origin::Tenant,
            None => Origin::Default,
        };
        let maximum = own.maxima.0.get(key).copied().unwrap_or(key.setting().maximum);
        InForce { key: *key, value, origin, maximum }
    };
    TenantSettings { version, in_force: Key::ALL.iter().map(in_force).collect() }
}

/// The limits of an append to a topic.
pub fn batch_limits(topic: &OwnSettings, tenant: &OwnSettings) -> BatchLimits {
    let limit = |key| limit(key, &[topic, tenant]);
    BatchLimits {
        max_batch_records: limit(Key::MaxBatchRecords),
        max_batch_bytes: limit(Key::MaxBatchBytes),
        max_record_bytes: limit(Key::MaxRecordBytes),
    }
}

/// A limit of a count.
pub fn limit(key: Key, levels: &[&OwnSettings]) -> i64 {
    in_force(key, levels).number().unwrap_or(i64::MAX)
}

/// The setting, with its value, that this many more topics and partitions would exceed.
pub fn exceeded(
    tenant: &OwnSettings,
    (topics, partitions): (i64, i64),
    (more_topics, more_partitions): (i64, i64),
) -> Option<(Key, i64)> {
    let counts =
        [(Key::MaxTopics, topics, more_topics), (Key::MaxPartitions, partitions, more_partitions)];
    counts.into_iter().find_map(|(key, count, more)| {
        let limit = limit(key, &[tenant]);
        (more > 0 && count + more > limit).then_some((key, limit))
    })
}
