//! Resets and lags: one table row per partition.

use uuid::Uuid;

use crate::{
    model::{
        Timestamp,
        group::{AutoOffsetReset, view::ResetTo},
    },
    rules::{
        Refusal,
        group::{
            Starts,
            reset::{ResetContext, check, lag, target},
        },
        tests::text::{cells, rows},
    },
};

/// `c10` committed; `new`: created after the group subscribed; `old`: before; `earliest` and so on:
/// the group's auto_offset_reset; `[5,20)`: the log.
fn a_context(text: &str) -> ResetContext {
    let mut context = ResetContext {
        committed_offset: None,
        starts: None,
        auto_offset_reset: AutoOffsetReset::Earliest,
        log: (0, 0),
        found: None,
    };
    for word in text.split_whitespace() {
        match word {
            "new" => context.starts = Some(Starts::Earliest),
            "old" => context.starts = Some(Starts::Reset),
            log if log.starts_with('[') => {
                let (start, end) = log[1..log.len() - 1].split_once(',').unwrap();
                context.log = (start.parse().unwrap(), end.parse().unwrap());
            }
            word => match AutoOffsetReset::parse(word) {
                Some(reset) => context.auto_offset_reset = reset,
                None => context.committed_offset = Some(word[1..].parse().unwrap()),
            },
        }
    }
    context
}

#[test]
fn an_offset_is_moved_into_the_log() {
    let table = "
        c10 [5,20)          | earliest  -> 5
        c10 [5,20)          | latest    -> 20
        [0,0)               | earliest  -> 0
        [0,0)               | latest    -> 0
        [7,7)               | latest    -> 7
        c10 [5,20)          | offset 4  -> 5
        c10 [5,20)          | offset 5  -> 5
        c10 [5,20)          | offset 6  -> 6
        c10 [5,20)          | offset 20 -> 20
        c10 [5,20)          | offset 21 -> 20
        c10 [5,20)          | found 12  -> 12
        c10 [5,20)          | found -   -> 20
        c10 [5,20)          | by 0      -> 10
        c10 [5,20)          | by -5     -> 5
        c10 [5,20)          | by -6     -> 5
        c10 [5,20)          | by 10     -> 20
        c10 [5,20)          | by 11     -> 20
        c10 [5,20)          | by -9223372036854775808 -> 5
        c10 [5,20)          | by 9223372036854775807  -> 20
        c2 [5,20)           | by 1      -> 5
        c2 [5,20)           | by 4      -> 6
        [5,20)              | by 1      -> 6
        latest [5,20)       | by -1     -> 19
        latest new [5,20)   | by 1      -> 6
        latest old [5,20)   | by -1     -> 19
        error new [5,20)    | by 1      -> 6
        error [5,20)        | by 1      -> nowhere
        error old [5,20)    | by 1      -> nowhere
        error [5,20)        | earliest  -> 5
        error c2 [5,20)     | by 1      -> 5";
    for [text, to, want] in rows(table).map(cells) {
        let mut context = a_context(text);
        let (word, number) = to.split_once(' ').unwrap_or((to, ""));
        let to = match word {
            "earliest" => ResetTo::Earliest,
            "latest" => ResetTo::Latest,
            "offset" => ResetTo::Offset(number.trim().parse().unwrap()),
            "by" => ResetTo::By(number.trim().parse().unwrap()),
            _ => {
                context.found = number.trim().parse().ok();
                ResetTo::Timestamp(Timestamp(0))
            }
        };
        let got = match target(to, &context) {
            Ok(offset) => offset.to_string(),
            Err(Refusal::NowhereToBegin { .. }) => "nowhere".to_owned(),
            Err(refusal) => panic!("{refusal:?}"),
        };
        assert_eq!(got, want, "{text} {to:?}");
    }
}

#[test]
fn a_lag_is_what_is_still_to_be_processed() {
    let table = "
        c10 [5,20)        -> 10
        c20 [5,20)        -> 0
        c5 [5,20)         -> 15
        [5,20)            -> 15
        earliest [5,20)   -> 15
        latest [5,20)     -> 0
        latest old [5,20) -> 0
        latest new [5,20) -> 15
        error [5,20)      -> unknown
        error new [5,20)  -> 15
        error c10 [5,20)  -> 10
        error c4 [5,20)   -> unknown
        c4 [5,20)         -> 15
        latest c4 [5,20)  -> 0
        [0,0)             -> 0";
    for [text, want] in rows(table).map(cells) {
        let got = lag(&a_context(text)).map_or("unknown".to_owned(), |lag| lag.to_string());
        assert_eq!(got, want, "{text}");
    }
}

#[test]
fn a_group_is_left_alone_while_somebody_is_at_it() {
    let id = Uuid::now_v7();
    assert_eq!(check(false, None), Ok(()));
    assert_eq!(check(true, None), Err(Refusal::GroupNotEmpty));
    // who may at all comes first
    assert_eq!(check(true, Some((Some(7), id))), Err(Refusal::GroupNotEmpty));
    for committed_offset in [None, Some(7)] {
        let pinned_by = Some(id);
        let want =
            Refusal::OffsetCommitConflict { expected_offset: None, committed_offset, pinned_by };
        assert_eq!(check(false, Some((committed_offset, id))), Err(want));
    }
}
