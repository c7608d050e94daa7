//! Settings: the effective value of several levels, and the effect of a patch.

use super::text::{cells, rows};
use crate::{
    model::settings::{Change, Changes, IfMatch, Key, Maxima, Origin, OwnSettings, Value},
    rules::{
        Refusal,
        settings::{
            batch_limits, check_maxima, exceeded, in_force, of_tenant, patch_tenant, patched,
        },
    },
};

/// `max_topics=5 producer_expiry_ms=null`
pub fn own(words: &str) -> OwnSettings {
    let of = |word: &str| {
        let (name, value) = word.split_once('=').unwrap();
        let value =
            if value == "null" { Value::Unlimited } else { Value::Number(value.parse().unwrap()) };
        (Key::parse(name).unwrap(), value)
    };
    OwnSettings { values: words.split_whitespace().map(of).collect(), ..Default::default() }
}

/// The same, of a tenant whose operator has set `max_topics=4`.
pub fn below(words: &str, maxima: &str) -> OwnSettings {
    let most = |(key, value): (Key, Value)| (key, value.number().unwrap());
    OwnSettings { maxima: Maxima(own(maxima).values.into_iter().map(most).collect()), ..own(words) }
}

/// The same, and `max_topics=default`.
fn changes(words: &str) -> Changes {
    let of = |word: &str| match word.strip_suffix("=default") {
        Some(name) => (Key::parse(name).unwrap(), Change::Default),
        None => {
            let (key, value) = own(word).values.into_iter().next().unwrap();
            (key, Change::Set(value))
        }
    };
    words.split_whitespace().map(of).collect()
}

#[test]
fn the_nearest_level_that_says_something_holds() {
    let table = [
        ("", "", 1_000),
        ("", "max_batch_records=7", 7),
        ("max_batch_records=9", "", 9),
        ("max_batch_records=9", "max_batch_records=7", 9),
        ("max_batch_bytes=9", "max_batch_records=7", 7),
        ("max_batch_bytes=9", "max_topics=7", 1_000),
    ];
    for (topic, tenant, want) in table {
        let (topic, tenant) = (own(topic), own(tenant));
        assert_eq!(in_force(Key::MaxBatchRecords, &[&topic, &tenant]), Value::Number(want));
        assert_eq!(batch_limits(&topic, &tenant).max_batch_records, want);
    }
    let forever = own("producer_expiry_ms=null");
    assert_eq!(
        in_force(Key::ProducerExpiryMs, &[&OwnSettings::default(), &forever]),
        Value::Unlimited
    );
    let limits =
        batch_limits(&own("max_batch_bytes=5"), &own("max_record_bytes=6 max_batch_bytes=9"));
    assert_eq!((limits.max_batch_bytes, limits.max_record_bytes), (5, 6));
}

/// Values of a topic, its tenant and the operator: the effective value of the topic; that of the
/// tenant, and its origin.
#[test]
fn nothing_is_above_the_operators_maximum() {
    let table = "
        max_batch_records |      |      |      -> 1000 | 1000 default
        max_batch_records |      |      | 1000 -> 1000 | 1000 default
        max_batch_records |      |      | 1001 -> 1000 | 1000 default
        max_batch_records |      |      | 999  -> 999  | 999 operator
        max_batch_records |      | 5    | 5    -> 5    | 5 tenant
        max_batch_records |      | 6    | 5    -> 5    | 5 operator
        max_batch_records | 9    | 4    | 5    -> 5    | 4 tenant
        max_batch_records | 4    | 6    | 5    -> 4    | 5 operator
        retention_bytes   |      |      | 7    -> 7    | 7 operator
        dedup_window_ms   | null | 0    | 60   -> 60   | 0 tenant
        dedup_window_ms   | 0    | null | 60   -> 0    | 60 operator
        dedup_window_ms   | null |      | 0    -> 0    | 0 operator
        dedup_window_ms   | null | null |      -> null | null tenant";
    for row in rows(table) {
        let [name, topic, tenant, maximum, value, origin] = cells(row);
        let key = Key::parse(name).unwrap();
        let said = |value: &str| match value {
            "" => String::new(),
            value => format!("{name}={value}"),
        };
        let (topic, tenant) = (own(&said(topic)), below(&said(tenant), &said(maximum)));
        let told = of_tenant(&tenant, 0).in_force;
        let told = told.iter().find(|setting| setting.key == key).unwrap();
        let of_topic = in_force(key, &[&topic, &tenant]);
        assert_eq!(of_topic.to_string(), value, "{row}");
        assert_eq!(format!("{} {}", told.value, told.origin.as_str()), origin, "{row}");
        let most = maximum.parse().unwrap_or(key.setting().maximum);
        assert_eq!(told.maximum, most, "{row}");
    }
    // it is of one setting
    let other = below("", "max_batch_bytes=7");
    assert_eq!(in_force(Key::MaxBatchRecords, &[&other]), Value::Number(1_000));
}

#[test]
fn a_patch_keeps_sets_and_removes() {
    let table = [
        ("", "", ""),
        ("max_topics=5", "", "max_topics=5"),
        ("", "max_topics=default", ""),
        ("max_topics=5", "max_topics=default", ""),
        (
            "max_topics=5",
            "max_topics=6 producer_expiry_ms=null",
            "max_topics=6 producer_expiry_ms=null",
        ),
        ("producer_expiry_ms=null", "producer_expiry_ms=9000", "producer_expiry_ms=9000"),
        ("producer_expiry_ms=null max_topics=5", "producer_expiry_ms=default", "max_topics=5"),
    ];
    for (former, patch, want) in table {
        assert_eq!(patched(&own(former), &changes(patch)), own(want), "{former} | {patch}");
    }
}

/// The maxima, and a patch of a tenant or a topic: which values exceed them.
#[test]
fn a_patch_stays_within_the_operators_maxima() {
    let table = [
        ("", "max_topics=100000", ""),
        ("max_topics=5", "max_topics=5", ""),
        ("max_topics=5", "max_topics=6", "max_topics=6/5"),
        ("max_topics=5", "max_topics=default max_partitions=9", ""),
        ("retention_ms=5000", "retention_ms=null", "retention_ms=null/5000"),
        ("retention_bytes=5", "retention_ms=null", ""),
        (
            "max_batch_bytes=5 retention_bytes=7 max_topics=0",
            "retention_bytes=8 max_batch_bytes=5 max_topics=1",
            "retention_bytes=8/7 max_topics=1/0",
        ),
    ];
    for (maxima, patch, want) in table {
        // what the tenant has of its own does not matter
        let tenant = below("max_topics=9 retention_ms=null", maxima);
        let got = match check_maxima("", &changes(patch), &tenant) {
            Ok(()) => Vec::new(),
            Err(Refusal::AboveMaxima { settings, .. }) => settings,
            Err(other) => panic!("{other:?}"),
        };
        let got = got.iter().map(|(key, value, most)| format!("{}={value}/{most}", key.name()));
        assert_eq!(got.collect::<Vec<_>>().join(" "), want, "{maxima} | {patch}");
        let patched = patch_tenant(&tenant, 0, &changes(patch), None);
        assert_eq!(patched.is_ok(), want.is_empty(), "{maxima} | {patch}");
        assert!(patched.is_err() || patched.unwrap().maxima == tenant.maxima);
    }
    // the state that was meant comes first
    let stale = Some(&IfMatch::OneOf(vec![]));
    let refused = patch_tenant(&below("", "max_topics=5"), 0, &changes("max_topics=6"), stale);
    assert!(matches!(refused, Err(Refusal::PreconditionFailed { .. })), "{refused:?}");
}

#[test]
fn a_conditional_patch_is_of_the_state_it_names() {
    let (former, patch) = (own("max_topics=5"), changes("max_topics=6"));
    let etag = of_tenant(&former, 3).etag();
    let older = of_tenant(&former, 2).etag();
    let try_with = |if_match: Option<IfMatch>| patch_tenant(&former, 3, &patch, if_match.as_ref());
    for if_match in [
        None,
        Some(IfMatch::Any),
        Some(IfMatch::OneOf(vec![etag.clone()])),
        Some(IfMatch::OneOf(vec![older.clone(), etag.clone()])),
    ] {
        assert_eq!(try_with(if_match), Ok(own("max_topics=6")));
    }
    for tags in [vec![], vec![older], vec![format!("W/{etag}")], vec!["*".into(), "x".into()]] {
        let refused = Refusal::PreconditionFailed { etag: etag.clone() };
        assert_eq!(try_with(Some(IfMatch::OneOf(tags))), Err(refused));
    }
}

#[test]
fn a_tenant_is_told_all_with_its_origins() {
    let told = of_tenant(&own("producer_expiry_ms=null max_topics=1000"), 4);
    assert_eq!(told.in_force.len(), Key::ALL.len());
    for setting in &told.in_force {
        let row = setting.key.setting();
        let (value, origin) = match setting.key {
            Key::ProducerExpiryMs => (Value::Unlimited, Origin::Tenant),
            // its own value, though it is the default's
            Key::MaxTopics => (Value::Number(1_000), Origin::Tenant),
            _ => (row.default, Origin::Default),
        };
        assert_eq!((setting.value, setting.origin, setting.maximum), (value, origin, row.maximum));
    }
}

#[test]
fn quotas_hold_on_both_sides() {
    let tenant = own("max_topics=2 max_partitions=6");
    let table = [
        ((1, 4), (1, 2), None),
        ((2, 4), (1, 1), Some((Key::MaxTopics, 2))),
        ((1, 5), (1, 2), Some((Key::MaxPartitions, 6))),
        ((1, 5), (0, 1), None),
        ((1, 5), (0, 2), Some((Key::MaxPartitions, 6))),
        // lowered below what is there: growth within the other limit goes on
        ((9, 5), (0, 1), None),
        ((9, 9), (0, 0), None),
    ];
    for (counts, more, want) in table {
        assert_eq!(exceeded(&tenant, counts, more), want, "{counts:?} {more:?}");
    }
    assert_eq!(exceeded(&OwnSettings::default(), (999, 9_999), (1, 1)), None);
    assert_eq!(
        exceeded(&OwnSettings::default(), (0, 9_999), (1, 2)),
        Some((Key::MaxPartitions, 10_000))
    );
    assert_eq!(exceeded(&own("max_topics=0"), (0, 0), (1, 1)), Some((Key::MaxTopics, 0)));
}
