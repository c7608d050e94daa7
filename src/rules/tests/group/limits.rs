//! Where a group starts, the length of leases, and limits of counts.

use super::{
    table::check,
    world::{World, a_join},
};
use crate::{
    model::{
        Offset, Timestamp,
        group::{AutoOffsetReset, MAX_MEMBERS, MAX_PATTERNS},
        read::Run,
    },
    rules::{
        Refusal,
        group::{
            Member, Starts,
            position::{is_withheld, position, run_began},
            renewed, session_timeout_ms,
        },
        tests::{
            name,
            settings::own,
            text::{cells, rows, show_refusal},
        },
    },
};

#[test]
fn what_was_made_after_the_first_subscription_is_read_from_its_start() {
    check(
        "
        topic c 1
        topic d 1
        join a c         -> g1 c0
        starts           -> c0 reset
        topic c 2
        settle
        starts           -> c0 reset, c1 earliest
        join b d         -> g3 d0
        starts           -> c0 reset, c1 earliest, d0 reset
        leave a
        leave b
        topic c 3
        topic d 2
        settle
        starts           -> c0 reset, c1 earliest, d0 reset
        join b d         -> g6 d0 d1
        starts           -> c0 reset, c1 earliest, d0 reset, d1 earliest
        join a c         -> g7 c0 c1 c2
        starts           -> c0 reset, c1 earliest, c2 earliest, d0 reset, d1 earliest",
    );
}

#[test]
fn what_a_pattern_would_have_matched_is_read_from_its_start() {
    check(
        "
        topic c1 1
        topic d 1
        join a /^c/      -> g1 c10
        topic c2 1
        topic d 2
        leave a
        topic c3 1
        join b d c1      -> g4 c10 d0 d1
        starts           -> c10 reset, c20 earliest, d0 reset, d1 reset
        join x c3        -> g5 c30
        starts           -> c10 reset, c20 earliest, c30 earliest, d0 reset, d1 reset
        join y /^(c|d)/  -> g6 c20
        leave x
        leave b
        leave y
        delete d
        topic d 1
        join b d         -> g10 d0
        starts           -> c10 reset, c20 earliest, c30 earliest, d0 earliest",
    );
}

/// Another topic with the same name: the group subscribes to it only if a member names it, or a
/// pattern matches.
#[test]
fn a_topic_that_is_made_again_is_another() {
    check(
        "
        topic c 1
        join a c         -> g1 c0
        delete c
        topic c 1
        settle
        starts           -> c0 earliest
        who              -> c0 a2
        leave a
        delete c
        topic c 1
        join a c         -> g4 c0
        starts           -> c0 reset",
    );
}

#[test]
fn the_last_join_that_says_where_to_begin_wins() {
    check(
        "
        topic c 1
        reset              -> earliest
        join a c           -> g1 c0
        reset              -> earliest
        join b c latest    -> g2
        join d c           -> g3
        reset              -> latest
        join e as pod c error -> g4
        join E as pod c    -> g4
        reset              -> error
        join F as pod c earliest -> g4
        reset              -> earliest",
    );
}

#[test]
fn a_group_goes_on_where_it_has_committed_else_where_it_is_to_begin() {
    // in a log that holds [3, 9)
    let table = "
        5    | -        | 5 5 5
        3    | earliest | 3 3 3
        9    | reset    | 9 9 9
        0    | reset    | 3 9 error
        2    | earliest | 3 9 error
        2    | -        | 3 9 error
        10   | earliest | out out out
        none | earliest | 3 3 3
        none | reset    | 3 9 error
        none | -        | 3 9 error";
    for row in rows(table) {
        let [committed, starts, want] = cells(row);
        let committed: Option<Offset> = committed.parse().ok();
        let starts = match starts {
            "earliest" => Some(Starts::Earliest),
            "reset" => Some(Starts::Reset),
            _ => None,
        };
        let at = |reset: &AutoOffsetReset| match position(committed, starts, *reset, (3, 9)) {
            Ok(offset) => offset.to_string(),
            Err(Refusal::OffsetOutOfRange { offset, log_start_offset, high_watermark }) => {
                assert_eq!((Some(offset), log_start_offset, high_watermark), (committed, 3, 9));
                "out".into()
            }
            Err(Refusal::NowhereToBegin { committed_offset, log_start_offset, high_watermark }) => {
                assert_eq!((committed_offset, log_start_offset, high_watermark), (committed, 3, 9));
                "error".into()
            }
            Err(other) => panic!("{other:?}"),
        };
        let got: Vec<String> = AutoOffsetReset::ALL.iter().map(at).collect();
        assert_eq!(got.join(" "), want, "{row}");
    }
}

#[test]
fn what_a_prepared_transaction_is_to_commit_is_withheld_from_all_that_have_not_passed_it() {
    let table = [
        (None, None, false),
        (Some(4), None, false),
        (None, Some(5), true),
        (Some(4), Some(5), true),
        (Some(5), Some(5), false),
        (Some(6), Some(5), false),
    ];
    for (named, pinned, want) in table {
        assert_eq!(is_withheld(named, pinned), want, "{named:?} {pinned:?}");
    }
}

#[test]
fn a_session_timeout_lies_within_what_the_tenant_permits() {
    let table = "
        -                                                     | 45000
        1000                                                  | 1000
        999                                                   | 1000 to 300000
        300000                                                | 300000
        300001                                                | 1000 to 300000
        - session_timeout_max_ms=20000                        | 20000
        20001 session_timeout_max_ms=20000                    | 1000 to 20000
        - session_timeout_min_ms=50000                        | 50000
        49999 session_timeout_min_ms=50000                    | 50000 to 300000
        - session_timeout_min_ms=9000 session_timeout_max_ms=8000    | 9000
        9000 session_timeout_min_ms=9000 session_timeout_max_ms=8000 | 9000
        8000 session_timeout_min_ms=9000 session_timeout_max_ms=8000 | 9000 to 9000
        9001 session_timeout_min_ms=9000 session_timeout_max_ms=8000 | 9000 to 9000";
    for row in rows(table) {
        let [case, want] = cells(row);
        let (asked, tenant) = case.split_once(' ').unwrap_or((case, ""));
        let got = match session_timeout_ms(asked.parse().ok(), &own(tenant)) {
            Ok(timeout_ms) => timeout_ms.to_string(),
            Err(range) => format!("{} to {}", range.start(), range.end()),
        };
        assert_eq!(got, want, "{row}");
    }
}

#[test]
fn a_lease_is_renewed_when_a_third_of_it_has_passed() {
    let renewed = |at: i64| renewed(Timestamp(1_300), 300, Timestamp(at)).map(|until| until.0);
    assert_eq!(renewed(1_000), None);
    assert_eq!(renewed(1_099), None);
    assert_eq!(renewed(1_100), Some(1_400));
    assert_eq!(renewed(1_300), Some(1_600));
    let mut world = World::new();
    world.grow(&name("c"), 1);
    world.join("a", &a_join(&["c", "for", "300"])).unwrap();
    assert_eq!(world.state.members["a"].heartbeat_interval_ms(), 100);
}

#[test]
fn a_group_has_so_many_members_and_patterns_and_no_more() {
    let mut world = World::new();
    world.grow(&name("c"), 1);
    let a_member = || Member {
        instance_id: None,
        subscription: a_join(&["c"]).subscription,
        session_timeout_ms: 300,
        joined_at: world.now,
        lease_expires_at: world.now,
    };
    let members = (2..MAX_MEMBERS).map(|n| (format!("m{n}"), a_member())).collect();
    world.state.members = members;
    world.join("a", &a_join(&["as", "pod", "c"])).unwrap();
    world.join("b", &a_join(&["c"])).unwrap();
    let before = world.state.clone();
    let full = world.join("d", &a_join(&["c", "/new/", "latest"])).unwrap_err();
    assert_eq!(show_refusal(&full), format!("at most {MAX_MEMBERS} members of a group"));
    assert_eq!(world.state, before);
    world.join("A", &a_join(&["as", "pod", "c"])).unwrap();
    assert_eq!(world.state.members.len(), MAX_MEMBERS);

    let mut world = World::new();
    for number in 0..MAX_PATTERNS {
        world.join("a", &a_join(&["as", "pod", &format!("/p{number}/")])).unwrap();
    }
    let before = world.state.clone();
    let full = world.join("A", &a_join(&["as", "pod", "/more/", "latest"])).unwrap_err();
    assert_eq!(show_refusal(&full), format!("at most {MAX_PATTERNS} patterns of a group"));
    assert_eq!(world.state, before);
    world.join("A", &a_join(&["as", "pod", "/p7/"])).unwrap();
    assert_eq!(world.state.patterns.len(), MAX_PATTERNS);
}

/// The run of the fetch, the cursor, where its run began, the committed offset, and that of a
/// prepared transaction; and where the run then begins.
#[test]
fn where_a_run_begins() {
    let table = "
        since   | 8 5    | 5 -    | 5
        since   | 8 5    | 8 -    | 8
        since   | 8 5    | 5 8    | 8
        since   | 8 5    | 7 -    | 5
        since   | 8 5    | 9 -    | 5
        since   | 8 5    | - -    | 5
        since   | 8 none | - -    | none
        since   | 8 none | 8 -    | 8
        since   | 0 none | - -    | none
        since   | 8 ?    | 5 -    | ?
        since   | 8 ?    | 8 -    | 8
        continue | 8 5   | 8 -    | 5
        continue | 8 5   | 5 8    | 5
        continue | 8 none | 8 -   | none
        continue | 8 ?   | 8 -    | ?
        new     | 8 5    | 5 -    | 8
        new     | 8 none | - -    | 8
        new     | 8 ?    | 5 -    | 8";
    let number = |word: &str| word.parse::<i64>().ok();
    let began = |word: &str| (word != "?").then(|| number(word));
    for row in rows(table) {
        let [run, cursor, offsets, want] = cells(row);
        let run = match run {
            "since" => Run::SinceCommit,
            "continue" => Run::Continue,
            _ => Run::New,
        };
        let (at, from) = cursor.split_once(' ').unwrap();
        let (committed, pinned) = offsets.split_once(' ').unwrap();
        let offsets = [committed, pinned].map(number);
        let got = run_began(run, at.parse().unwrap(), began(from), offsets);
        assert_eq!(got, began(want), "{row}");
    }
}
