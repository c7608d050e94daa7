//! The table of settings, and how they are stored.

use super::*;

#[test]
fn the_table_keeps_its_own_ranges() {
    for key in Key::ALL {
        let setting = key.setting();
        assert_eq!(key.check(setting.default), Ok(()), "{}", setting.name);
        assert!(setting.minimum <= setting.maximum && setting.help.ends_with('.'));
        assert_eq!(Key::parse(setting.name), Some(*key));
        if let Some(first) = setting.choices.first() {
            assert_eq!(setting.default, Value::Choice(first));
            assert_eq!(key.choice(first), Some(setting.default));
            assert!(key.choice("delet").is_none());
            for bad in [Value::Number(0), Value::Unlimited, Value::Choice("other")] {
                assert!(key.check(bad).is_err(), "{}", setting.name);
            }
            continue;
        }
        assert!(key.check(Value::Choice("id")).is_err());
        assert_eq!(key.check(Value::Unlimited).is_ok(), setting.nullable);
        for (number, good) in [
            (setting.minimum, true),
            (setting.maximum, true),
            (setting.minimum - 1, false),
            (setting.maximum + 1, false),
        ] {
            assert_eq!(key.check(Value::Number(number)).is_ok(), good, "{}", setting.name);
        }
    }
    assert_eq!(Key::parse("retention"), None);
}

#[test]
fn own_values_are_stored_and_read_whatever_newer_replicas_wrote() {
    let values = [(Key::ProducerExpiryMs, Value::Unlimited), (Key::MaxTopics, Value::Number(7))];
    let own = OwnSettings { values: values.into(), ..Default::default() };
    let text = serde_json::to_string(&own).unwrap();
    assert_eq!(text, r#"{"producer_expiry_ms":null,"max_topics":7}"#);
    assert_eq!(serde_json::from_str::<OwnSettings>(&text).unwrap(), own);
    let newer = r#"{"producer_expiry_ms":null,"max_topics":7,"colour":"blue","x":{}}"#;
    assert_eq!(serde_json::from_str::<OwnSettings>(newer).unwrap(), own);
    for broken in [r#"{"dedup":"none"}"#, r#"{"max_topics":"7"}"#, r#"{"max_topics":1.5}"#, "[]"] {
        assert!(serde_json::from_str::<OwnSettings>(broken).is_err(), "{broken}");
    }
    let maxima = Maxima(BTreeMap::from([(Key::MaxTopics, 7)]));
    assert_eq!(serde_json::to_string(&maxima).unwrap(), r#"{"max_topics":7}"#);
    let newer = r#"{"max_topics":7,"colours":2}"#;
    assert_eq!(serde_json::from_str::<Maxima>(newer).unwrap(), maxima);
}

#[test]
fn the_validator_tells_what_is_answered_apart() {
    let of = |version, value, origin| {
        let in_force = InForce { key: Key::MaxTopics, value, origin, maximum: 9 };
        TenantSettings { version, in_force: vec![in_force] }.etag()
    };
    let first = of(0, Value::Number(1), Origin::Default);
    assert_eq!(first, of(0, Value::Number(1), Origin::Default));
    for other in [
        of(1, Value::Number(1), Origin::Default),
        of(0, Value::Number(2), Origin::Default),
        of(0, Value::Number(1), Origin::Tenant),
    ] {
        assert_ne!(first, other);
    }
    assert!(IfMatch::Any.holds(&first));
    assert!(IfMatch::OneOf(vec!["\"x\"".into(), first.clone()]).holds(&first));
    assert!(!IfMatch::OneOf(vec![format!("W/{first}")]).holds(&first));
}
