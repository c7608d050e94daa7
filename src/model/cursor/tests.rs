use std::collections::BTreeMap;

use proptest::{collection, option, prelude::*};

use super::*;

const TENANT: TenantId = TenantId(3);
const TOPIC: TopicId = TopicId(17);
const GROUP: GroupId = GroupId(17);

fn topic(positions: &[Offset], first: usize) -> TopicCursor {
    TopicCursor { positions: positions.to_vec(), first }
}

fn group(positions: &[(i64, i64, Offset)], first: usize) -> GroupCursor {
    let position = |&(log, owned_since, offset)| {
        let began = Some(Some(offset));
        Position { log_id: LogId(log), owned_since, offset, began }
    };
    GroupCursor { positions: positions.iter().map(position).collect(), first, told: None }
}

/// As the server wrote them before runs.
fn former(cursor: &GroupCursor) -> String {
    let mut written = Written::new(VERSION, cursor.first);
    let (mut log, mut since, mut at) = (0, 0, 0);
    for position in &cursor.positions {
        written.step(&mut log, position.log_id.0);
        written.step(&mut since, position.owned_since);
        written.step(&mut at, position.offset);
    }
    written.seal(TENANT, Owner::Group(GROUP))
}

#[test]
fn it_is_short() {
    let one = topic(&[1_000_000], 0).encode(TENANT, TOPIC);
    assert_eq!(one.len(), 14, "{one}");
    let far = 1 << 40;
    let positions: Vec<Offset> = (0..10_000).map(|n| far + n * 7919 % 16_000).collect();
    let many = topic(&positions, 9_999).encode(TENANT, TOPIC);
    assert!(many.len() < 40_000, "{}", many.len());
    let positions: Vec<_> = (0..1_000).map(|n| (900 + n, 12, far + n * 7919 % 16_000)).collect();
    let mut many = group(&positions, 0);
    // of 60 records from each
    many.positions.iter_mut().for_each(|p| p.began = Some(Some(p.offset - 60)));
    let many = many.encode(TENANT, GROUP);
    assert!(many.len() < 8_200, "{}", many.len());
}

#[test]
fn only_its_owner_may_go_on_with_it() {
    let cursor = topic(&[5, 0, 7], 2);
    let text = cursor.encode(TENANT, TOPIC);
    assert_eq!(TopicCursor::parse(&text, TENANT, TOPIC), Some(cursor));
    assert_eq!(TopicCursor::parse(&text, TenantId(4), TOPIC), None);
    assert_eq!(TopicCursor::parse(&text, TENANT, TopicId(18)), None);
    // of the same number
    assert_eq!(GroupCursor::parse(&text, TENANT, GROUP), None);

    let cursor = group(&[(4, 1, 0), (9, 3, 12)], 1);
    let text = cursor.encode(TENANT, GROUP);
    assert_eq!(GroupCursor::parse(&text, TENANT, GROUP), Some(cursor));
    assert_eq!(GroupCursor::parse(&text, TenantId(4), GROUP), None);
    assert_eq!(GroupCursor::parse(&text, TENANT, GroupId(18)), None);
    assert_eq!(TopicCursor::parse(&text, TENANT, TOPIC), None);
}

#[test]
fn nothing_is_a_cursor_as_well() {
    let (none, nobody) = (topic(&[], 0), group(&[], 0));
    let text = none.encode(TENANT, TOPIC);
    assert_eq!(TopicCursor::parse(&text, TENANT, TOPIC), Some(none));
    let text = nobody.encode(TENANT, GROUP);
    assert_eq!(GroupCursor::parse(&text, TENANT, GROUP), Some(nobody));
}

/// What no cursor of ours says, under a checksum that is right.
#[test]
fn what_lies_outside_of_its_bounds_is_refused() {
    let parse =
        |cursor: &TopicCursor| TopicCursor::parse(&cursor.encode(TENANT, TOPIC), TENANT, TOPIC);
    for (positions, first, is_good) in [
        (&[0, MAX_INTEGER, 0][..], 0, true),
        (&[MAX_INTEGER + 1], 0, false),
        (&[-1], 0, false),
        (&[5, -5], 0, false),
        (&[1, 2], 1, true),
        (&[1, 2], 2, false),
        (&[], 1, false),
    ] {
        assert_eq!(parse(&topic(positions, first)).is_some(), is_good, "{positions:?} {first}");
    }
    let parse =
        |cursor: &GroupCursor| GroupCursor::parse(&cursor.encode(TENANT, GROUP), TENANT, GROUP);
    for (positions, first, is_good) in [
        (&[(1, 0, 0), (MAX_INTEGER, MAX_INTEGER, MAX_INTEGER)][..], 1, true),
        (&[(1, 0, 0), (1, 0, 0)], 0, false),
        (&[(2, 0, 0), (1, 0, 0)], 0, false),
        (&[(1, -1, 0)], 0, false),
        (&[(1, 0, MAX_INTEGER + 1)], 0, false),
        (&[(1, 0, 0)], 1, false),
    ] {
        assert_eq!(parse(&group(positions, first)).is_some(), is_good, "{positions:?} {first}");
    }
    for (began, is_good) in [(0, true), (MAX_INTEGER, true), (-1, false), (MAX_INTEGER + 1, false)]
    {
        let mut cursor = group(&[(1, 0, 7)], 0);
        cursor.positions[0].began = Some(Some(began));
        assert_eq!(parse(&cursor).is_some(), is_good, "began at {began}");
    }
    for (told, is_good) in [(0, true), (MAX_INTEGER, true), (MAX_INTEGER + 1, false)] {
        let cursor = GroupCursor { told: Some(told), ..group(&[], 0) };
        assert_eq!(parse(&cursor).is_some(), is_good, "told in {told}");
    }
    let sealed = |body: &[u8]| {
        let mut written = Written(vec![VERSION, 0]);
        written.0.extend(body);
        written.seal(TENANT, Owner::Topic(TOPIC))
    };
    for body in
        [&[][..], &[0x80], &[0, 0x80], &[0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]]
    {
        assert_eq!(TopicCursor::parse(&sealed(body), TENANT, TOPIC), None, "{:?}", body.len());
    }
    let mut other = Written(vec![VERSION, 0]);
    other.number(0);
    let text = other.seal(TENANT, Owner::Topic(TOPIC));
    assert_eq!(TopicCursor::parse(&text, TENANT, TOPIC), Some(TopicCursor::start()));
    let mut newer = BASE64_URL_SAFE_NO_PAD.decode(&text).unwrap();
    newer[0] += 1;
    let newer = BASE64_URL_SAFE_NO_PAD.encode(newer);
    assert_eq!(TopicCursor::parse(&newer, TENANT, TOPIC), None);
}

fn offsets() -> impl Strategy<Value = Offset> {
    prop_oneof![0..100i64, 1_000_000..1_001_000i64, 0..=MAX_INTEGER]
}

fn topics() -> impl Strategy<Value = TopicCursor> {
    (collection::vec(offsets(), 0..40), any::<prop::sample::Index>()).prop_map(
        |(positions, first)| {
            let first = first.index(positions.len().max(1));
            TopicCursor { positions, first }
        },
    )
}

fn groups() -> impl Strategy<Value = GroupCursor> {
    let began = option::of(option::of(offsets()));
    let positions = collection::btree_map(offsets(), (offsets(), offsets(), began), 0..20);
    let told = option::of(offsets());
    (positions, any::<prop::sample::Index>(), told).prop_map(|(positions, first, told)| {
        let positions: BTreeMap<i64, _> = positions;
        let first = first.index(positions.len().max(1));
        let position = |(log, (owned_since, offset, began))| {
            let log_id = LogId(log);
            Position { log_id, owned_since, offset, began }
        };
        GroupCursor { positions: positions.into_iter().map(position).collect(), first, told }
    })
}

proptest! {
    #[test]
    fn what_was_written_is_read(topic in topics(), group in groups()) {
        let text = topic.encode(TENANT, TOPIC);
        prop_assert_eq!(TopicCursor::parse(&text, TENANT, TOPIC), Some(topic));
        let text = group.encode(TENANT, GROUP);
        prop_assert_eq!(GroupCursor::parse(&text, TENANT, GROUP), Some(group.clone()));
        let mut group = group;
        let text = former(&group);
        group.told = None;
        group.positions.iter_mut().for_each(|position| position.began = None);
        prop_assert_eq!(GroupCursor::parse(&text, TENANT, GROUP), Some(group));
    }

    #[test]
    fn what_was_mangled_is_refused(
        topic in topics(), group in groups(), at in any::<prop::sample::Index>(), byte in 0u8..0x80
    ) {
        for text in [topic.encode(TENANT, TOPIC), group.encode(TENANT, GROUP), former(&group)] {
            let mut mangled = text.clone().into_bytes();
            mangled[at.index(text.len())] = byte;
            let mangled = String::from_utf8(mangled).unwrap();
            prop_assume!(mangled != text);
            prop_assert_eq!(TopicCursor::parse(&mangled, TENANT, TOPIC), None);
            prop_assert_eq!(GroupCursor::parse(&mangled, TENANT, GROUP), None);
        }
    }

    #[test]
    fn whatever_comes_is_survived(text in ".*", bytes in collection::vec(any::<u8>(), 0..60)) {
        prop_assert_eq!(TopicCursor::parse(&text, TENANT, TOPIC), None);
        let sealed = |version: u8, owner: Owner| {
            let mut written = Written(vec![version, 0]);
            written.0.extend(&bytes);
            written.seal(TENANT, owner)
        };
        let (of_topic, of_group) = (Owner::Topic(TOPIC), Owner::Group(GROUP));
        for text in [
            BASE64_URL_SAFE_NO_PAD.encode(&bytes),
            sealed(VERSION, of_topic),
            sealed(VERSION, of_group),
            sealed(GROUP_VERSION, of_group),
        ] {
            let _ = TopicCursor::parse(&text, TENANT, TOPIC);
            let _ = GroupCursor::parse(&text, TENANT, GROUP);
        }
    }
}
