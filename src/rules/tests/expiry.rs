//! Expiry: one table row per check.

use super::{
    session::a_row,
    text::{cells, rows},
};
use crate::{
    model::{
        Timestamp,
        session::OPEN_ID_MEMORY_MS,
        settings::{Key, OwnSettings, Value},
    },
    rules::expiry::{Activity, ExpiryVerdict, GroupActivity, judge, judge_group, limit_ms},
};

const HOUR_MS: i64 = 3_600_000;

fn hours(text: &str) -> i64 {
    text.parse::<i64>().unwrap() * HOUR_MS
}

/// `limit 10` or `limit null`, and `now 109`.
fn limit_and_now(limit: &str, now: &str) -> (Option<i64>, Timestamp) {
    let limit = limit.strip_prefix("limit ").unwrap().trim();
    let now = now.strip_prefix("now ").unwrap().trim();
    ((limit != "null").then(|| hours(limit)), Timestamp(hours(now)))
}

fn show(verdict: ExpiryVerdict) -> String {
    match verdict {
        ExpiryVerdict::Expired => "expired".to_owned(),
        ExpiryVerdict::ActiveAt(at) => format!("active {}", at.0 / HOUR_MS),
    }
}

/// In hours: `o` opened, `a` its last append, `t` its last transaction's begin or end, `n` noted,
/// `h` its open horizon, `limit`, `now`. `open`: it has an open transaction.
#[test]
fn a_producer_expires_when_it_has_been_idle_longer_than_its_limit() {
    let table = "
        o100              | limit 10   | now 109 -> active 100
        o100              | limit 10   | now 110 -> active 100
        o100              | limit 10   | now 111 -> expired
        o100 a105         | limit 10   | now 111 -> active 105
        o100 a105         | limit 10   | now 115 -> active 105
        o100 a105         | limit 10   | now 116 -> expired
        o100 a90          | limit 10   | now 110 -> active 100
        o100 a90          | limit 10   | now 111 -> expired
        o100 a105         | limit null | now 999 -> active 105
        o100              | limit null | now 999 -> active 100
        o100 a90          | limit 200  | now 300 -> active 100
        o100 h86          | limit 10   | now 111 -> active 101
        o100 h85          | limit 10   | now 110 -> active 100
        o100 h85          | limit 10   | now 111 -> expired
        o100 h110         | limit 1    | now 111 -> active 134
        o100 h110         | limit 1    | now 135 -> active 134
        o100 h110         | limit 1    | now 136 -> expired
        o100 h110 a120    | limit 40   | now 159 -> active 120
        o100 h110 a120    | limit 40   | now 161 -> expired
        o100 h110         | limit null | now 136 -> active 100
        o100 t105         | limit 10   | now 115 -> active 105
        o100 t105         | limit 10   | now 116 -> expired
        o100 t90          | limit 10   | now 111 -> expired
        o100 a104 t105    | limit 10   | now 112 -> active 105
        o100 a105 t104    | limit 10   | now 112 -> active 105
        o100 t105         | limit null | now 999 -> active 105
        o100 n105         | limit 10   | now 115 -> active 105
        o100 n105         | limit 10   | now 116 -> expired
        o100 n90 a95      | limit 10   | now 110 -> active 100
        o100 n107 t105    | limit 10   | now 115 -> active 107
        o100 open         | limit 10   | now 999 -> active 999
        o100 open t105    | limit 10   | now 110 -> active 110
        o100 open         | limit null | now 999 -> active 999
        o100 open h900    | limit 10   | now 920 -> active 920
        o100 open h910    | limit 10   | now 920 -> active 925";
    assert_eq!(OPEN_ID_MEMORY_MS, 25 * HOUR_MS);
    for row in rows(table) {
        let [doings, limit, now, want] = cells(row);
        let (mut session, mut activity) = (a_row("P7 pay").unwrap(), Activity::default());
        for word in doings.split_whitespace() {
            if word == "open" {
                activity.in_transaction = true;
                continue;
            }
            let at = Timestamp(hours(&word[1..]));
            match &word[..1] {
                "o" => session.opened_at = at,
                "h" => session.open_horizon = at,
                "t" => activity.last_transacted_at = Some(at),
                "n" => activity.noted_at = Some(at),
                _ => activity.last_appended_at = Some(at),
            }
        }
        let (limit, now) = limit_and_now(limit, now);
        assert_eq!(show(judge(&session, &activity, limit, now)), want, "{row}");
    }
}

#[test]
fn one_with_a_name_has_its_own_limit() {
    let own = |key, value| OwnSettings { values: [(key, value)].into(), ..Default::default() };
    let (named, nameless) = (a_row("P7 pay").unwrap(), a_row("P7").unwrap());
    let unnamed_only = own(Key::ProducerExpiryMs, Value::Number(5_000));
    let named_only = own(Key::TransactionalIdExpiryMs, Value::Unlimited);
    let week = Some(7 * 24 * HOUR_MS);
    for (session, tenant, want) in [
        (&named, &OwnSettings::default(), week),
        (&nameless, &OwnSettings::default(), week),
        (&named, &unnamed_only, week),
        (&nameless, &unnamed_only, Some(5_000)),
        (&named, &named_only, None),
        (&nameless, &named_only, week),
    ] {
        assert_eq!(limit_ms(session, tenant), want, "{session:?}");
    }
}

/// In hours: `n` noted, `c` last committed, `limit`, `now`. `members`, `pinned`: it is in use.
#[test]
fn a_group_expires_when_nobody_was_in_it_and_committed_for_longer_than_its_limit() {
    let table = "
        n100              | limit 10   | now 110 -> active 100
        n100              | limit 10   | now 111 -> expired
        n100 c105         | limit 10   | now 115 -> active 105
        n100 c105         | limit 10   | now 116 -> expired
        n100 c90          | limit 10   | now 110 -> active 100
        n100 c90          | limit 10   | now 111 -> expired
        n100              | limit null | now 999 -> active 100
        n100 c105         | limit null | now 999 -> active 105
        n100 members      | limit 10   | now 999 -> active 999
        n100 pinned       | limit 10   | now 999 -> active 999
        n100 c105 pinned  | limit null | now 999 -> active 999
        n100 c105 members | limit 10   | now 116 -> active 116
        n120 members      | limit 10   | now 116 -> active 120";
    for row in rows(table) {
        let [doings, limit, now, want] = cells(row);
        let mut activity = GroupActivity::default();
        for word in doings.split_whitespace() {
            match word {
                "members" => activity.has_members = true,
                "pinned" => activity.is_pinned = true,
                noted if noted.starts_with('n') => {
                    activity.noted_at = Timestamp(hours(&noted[1..]))
                }
                at => activity.last_committed_at = Some(Timestamp(hours(&at[1..]))),
            }
        }
        let (limit, now) = limit_and_now(limit, now);
        assert_eq!(show(judge_group(&activity, limit, now)), want, "{row}");
    }
}
