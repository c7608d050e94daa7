//! Opening sessions: one table row per open.

use std::sync::Arc;

use uuid::Uuid;

use crate::{
    model::{
        ProducerId, Scopes, Timestamp,
        session::{OPEN_ID_WINDOW_MS, Open, Sequences, Sequencing},
    },
    rules::{
        Refusal,
        session::{End, SessionRow, check_open_id, end, open, repeat},
        tests::{
            name, open_session,
            text::{check, show_refusal},
        },
    },
};

/// A UUIDv7 with this timestamp.
pub fn made_at(millis: i64) -> Uuid {
    Uuid::from_u128((millis as u128) << 80 | 7 << 76 | 2 << 62 | 0x1234)
}

/// `pay` (a name), `P7:e3` (a condition), `@900` (an open id with this timestamp), `reset`.
fn an_open(words: &str) -> Open {
    let mut open = Open {
        transactional_id: None,
        condition: None,
        open_id: None,
        transaction_timeout_ms: None,
        sequencing: Sequencing::Contiguous,
        sequences: Sequences::Continue,
        scopes: Arc::new(Scopes::all()),
    };
    for word in words.split_whitespace() {
        if word == "reset" {
            open.sequences = Sequences::Reset;
        } else if let Some(millis) = word.strip_prefix('@') {
            open.open_id = Some(made_at(millis.parse().unwrap()));
        } else if let Some((id, epoch)) = word.split_once(":e") {
            open.condition = Some((ProducerId(id[1..].parse().unwrap()), epoch.parse().unwrap()));
        } else if word != "-" {
            open.transactional_id = Some(name(word));
        }
    }
    open
}

/// `P7 pay e3`, then `closed`, `reset2` (its reset epoch), `@500` (its horizon); `none`.
pub fn a_row(words: &str) -> Option<SessionRow> {
    if words == "none" {
        return None;
    }
    let mut facts = open_session(0);
    let (mut producer_id, mut transactional_id, mut open_horizon) = (0, None, Timestamp(0));
    for word in words.split_whitespace() {
        match word {
            "closed" => facts.closed = true,
            _ if word.starts_with('P') => producer_id = word[1..].parse().unwrap(),
            _ if word.starts_with('@') => open_horizon = Timestamp(word[1..].parse().unwrap()),
            _ if word.starts_with("reset") => facts.reset_epoch = word[5..].parse().unwrap(),
            _ if word.starts_with('e') => facts.epoch = word[1..].parse().unwrap(),
            text => transactional_id = Some(name(text)),
        }
    }
    Some(SessionRow {
        producer_id: ProducerId(producer_id),
        transactional_id,
        opened_by: None,
        facts,
        transaction_timeout_ms: 60_000,
        open_horizon,
        opened_at: Timestamp(400),
        fencing: false,
    })
}

#[test]
fn opens_never_seen_before() {
    let table = "
        none                  | -                  -> e0 reset0
        none                  | pay reset          -> e0 reset0
        none                  | P7:e0              -> unknown P7
        none                  | pay P7:e0          -> unknown P7
        P7 pay e3             | pay                -> e4 reset0
        P7 pay e3 reset2      | pay                -> e4 reset2
        P7 pay e3 reset2      | pay reset          -> e4 reset4
        P7 pay e3 closed      | pay                -> e4 reset0
        P7 pay e3             | P7:e3              -> e4 reset0
        P7 pay e3             | pay P7:e3 reset    -> e4 reset4
        P7 e3                 | P7:e3              -> e4 reset0
        P7 pay e3             | P7:e2              -> fenced by e3
        P7 pay e3             | P7:e4              -> not issued, e3
        P7 pay e3 closed      | P7:e2              -> fenced by e3
        P7 pay e3 closed      | P7:e3              -> not issued, e3
        P7 pay e3 closed      | P7:e4              -> not issued, e3
        P7 pay e3             | P8:e3              -> unknown P8
        P7 pay e3             | bill P7:e3         -> unknown P7
        P7 pay e3             | bill P7:e2         -> unknown P7
        P7 e3                 | pay P7:e3          -> unknown P7
        P7 pay e3 @500        | pay @501           -> e4 reset0
        P7 pay e3 @500        | pay @500           -> fenced by e3
        P7 pay e3 @500        | pay @499           -> fenced by e3
        P7 pay e3 @500        | P7:e3 @499         -> fenced by e3
        P7 pay e3 @500        | P7:e4 @499         -> not issued, e3
        P7 pay e3 @500        | pay                -> e4 reset0";
    check(table, |row, words| match open(&an_open(words), a_row(row).as_ref()) {
        Ok(next) => format!("e{} reset{}", next.epoch, next.reset_epoch),
        Err(refusal) => show_refusal(&refusal),
    });
}

#[test]
fn remembered_open_ids() {
    let table = "
        P7 pay e3             | made3 pay          -> again
        P7 pay e3             | made3 pay reset    -> again
        P7 pay e3             | made2 pay          -> fenced by e3
        P7 pay e3 closed      | made2 pay          -> fenced by e3
        P7 pay e3 closed      | made3 pay          -> fenced by e3
        P7 pay e3             | made3 bill         -> reused
        P7 pay e3             | made2 bill         -> reused
        P7 pay e3             | made3 -            -> reused
        P7 e3                 | made3 -            -> again
        P7 e3                 | made3 pay          -> reused
        P7 pay e3             | made3 P7:e2        -> again
        P7 pay e3             | made3 pay P7:e2    -> again
        P7 pay e3             | made3 bill P7:e2   -> reused
        P7 pay e3             | made3 P8:e2        -> reused
        P7 pay e4             | made3 P7:e2        -> fenced by e4
        none                  | made3 pay          -> unknown P7
        none                  | made3 -            -> unknown P7
        none                  | made0 pay reset    -> unknown P7
        none                  | made3 P7:e2        -> unknown P7";
    check(table, |row, words| {
        let (made, words) = words.split_once(' ').unwrap();
        let made = made.strip_prefix("made").unwrap().parse().unwrap();
        match repeat(&an_open(words), a_row(row), (ProducerId(7), made)) {
            Ok(_) => "again".into(),
            Err(refusal) => show_refusal(&refusal),
        }
    });
}

#[test]
fn ends_of_an_epoch_or_of_whichever_is_open() {
    let table = "
        P7 pay e3             | -                  -> now
        P7 pay e3             | e3                 -> now
        P7 pay e3             | e2                 -> stale
        P7 pay e3             | e0                 -> stale
        P7 pay e3             | e4                 -> not issued, e3
        P7 e0                 | e0                 -> now
        P7 e0                 | e1                 -> not issued, e0
        P7 pay e3 closed      | -                  -> before
        P7 pay e3 closed      | e2                 -> before
        P7 pay e3 closed      | e1                 -> before
        P7 pay e3 closed      | e3                 -> before
        P7 pay e3 closed      | e4                 -> not issued, e3";
    check(table, |row, epoch| {
        let epoch = epoch.strip_prefix('e').map(|epoch| epoch.parse().unwrap());
        match end(&a_row(row).unwrap(), epoch, &Scopes::all()) {
            Ok(End::Now) => "now".into(),
            Ok(End::Before) => "before".into(),
            Ok(End::Stale) => "stale".into(),
            Err(refusal) => show_refusal(&refusal),
        }
    });
}

#[test]
fn open_ids_are_uuids_of_a_day_around_the_clock() {
    let now = Timestamp(1_800_000_000_000);
    let check = |open_id| check_open_id(&Open { open_id, ..an_open("-") }, now);
    assert_eq!(check(None), Ok(()));
    for distance in [0, OPEN_ID_WINDOW_MS, -OPEN_ID_WINDOW_MS] {
        assert_eq!(check(Some(made_at(now.0 + distance))), Ok(()), "{distance}");
    }
    let far = [OPEN_ID_WINDOW_MS + 1, -OPEN_ID_WINDOW_MS - 1].map(|d| made_at(now.0 + d));
    let version_4 = Uuid::from_u128((now.0 as u128) << 80 | 4 << 76 | 2 << 62);
    for bad in far.into_iter().chain([version_4, Uuid::nil(), Uuid::max()]) {
        assert_eq!(check(Some(bad)), Err(Refusal::InvalidOpenId), "{bad}");
    }
}
