//! Offsets of groups: one table row per commit, and every possible case against an oracle.

use uuid::Uuid;

use crate::{
    model::{LogId, Offset, group::Member, transaction::CommitRight},
    rules::{
        Refusal,
        group::offsets::{
            self, Committer, GroupFacts, OffsetPlace, OffsetRow, OffsetVerdict, RequestedOffset,
            Right, judge_all, judge_in_transaction,
        },
        tests::{
            name,
            text::{cells, rows},
        },
    },
};

const MINE: Uuid = Uuid::from_u128(1);
const OTHER: Uuid = Uuid::from_u128(2);

/// `5 m1@2 pinned`: the committed offset, the owner with its first generation, whether another
/// transaction pins it (`mine`: this one).
fn a_row(words: &str) -> OffsetRow {
    let mut row = OffsetRow::default();
    for word in words.split_whitespace() {
        match word {
            "-" => {}
            "pinned" => row.pinned_by = Some(OTHER),
            "mine" => row.pinned_by = Some(MINE),
            _ if word.contains('@') => {
                let (owner, since) = word.split_once('@').unwrap();
                row.owner = Some((owner.into(), since.parse().unwrap()));
            }
            _ => row.committed_offset = Some(word.parse().unwrap()),
        }
    }
    row
}

/// `g4 m1 m2`: the generation and the members.
fn a_group(words: &str) -> GroupFacts {
    let mut words = words.split_whitespace();
    let generation = words.next().unwrap().trim_start_matches('g').parse().unwrap();
    GroupFacts { generation, members: words.map(str::to_owned).collect() }
}

/// The right of a commit in a table row, and its offset.
pub enum Claimed {
    Member { member: Member, expected: Option<Option<Offset>>, began: Option<Option<Offset>> },
    Expected(Option<Offset>),
    Free,
}

/// `m1 g3 at 6`, `m1 g3 over 5 at 6`, by cursor `m1 g3 from none at 6`, `over 5 at 6`, `at 6`
pub fn a_claim(words: &str) -> (Claimed, Offset) {
    let (right, offset) = words.rsplit_once("at ").unwrap();
    let number = |word: &str| Some(word).filter(|w| *w != "none").map(|w| w.parse().unwrap());
    let member = |id: &str, generation: &str, expected, began| {
        let (member_id, generation) = (id.into(), generation[1..].parse().unwrap());
        Claimed::Member { member: Member { member_id, generation }, expected, began }
    };
    let claimed = match right.split_whitespace().collect::<Vec<_>>()[..] {
        [] => Claimed::Free,
        ["over", base] => Claimed::Expected(number(base)),
        [id, generation] => member(id, generation, None, None),
        [id, generation, "over", base] => member(id, generation, Some(number(base)), None),
        [id, generation, "from", base] => member(id, generation, None, Some(number(base))),
        _ => panic!("{words}"),
    };
    (claimed, offset.trim().parse().unwrap())
}

/// `5 m1@2: m1 g4 at 6; 7: over 7 at 8`: rows, each with a commit over it.
fn some_items(words: &str) -> Vec<(OffsetRow, (Claimed, Offset))> {
    let items = words.split(';').filter(|item| !item.is_empty()).map(|item| {
        let (row, claim) = item.split_once(':').unwrap();
        (a_row(row), a_claim(claim))
    });
    items.collect()
}

impl Claimed {
    /// None: in transactions only.
    fn right(&self) -> Option<Right> {
        match self {
            Claimed::Member { member, expected: None, .. } => Some(Right::Member(member.clone())),
            Claimed::Member { .. } => None,
            Claimed::Expected(expected) => Some(Right::Expected(*expected)),
            Claimed::Free => Some(Right::Free),
        }
    }

    /// None: not in a transaction.
    pub fn claim(&self) -> Option<CommitRight> {
        match self {
            Claimed::Member { member: Member { member_id, generation }, expected, began } => {
                let (member_id, generation) = (member_id.clone(), *generation);
                let (expected, began) = (*expected, *began);
                Some(CommitRight::Member { member_id, generation, expected, began })
            }
            Claimed::Expected(expected) => Some(CommitRight::Expected(*expected)),
            Claimed::Free => None,
        }
    }
}

fn show(refusal: &Refusal) -> String {
    let number = |offset: &Option<Offset>| offset.map_or("none".to_owned(), |n| n.to_string());
    match refusal {
        Refusal::UnknownMember => "unknown".into(),
        Refusal::IllegalGeneration { generation } => format!("lost, g{generation}"),
        Refusal::GroupNotEmpty => "has members".into(),
        Refusal::OffsetCommitConflict { expected_offset, committed_offset, pinned_by } => {
            let pinned = if pinned_by.is_some() { ", pinned" } else { "" };
            format!("{} not {}{pinned}", number(committed_offset), number(expected_offset))
        }
        Refusal::NothingProcessed { offset } => format!("still {offset}"),
        other => format!("{other:?}"),
    }
}

fn plainly(row: &OffsetRow, group: &GroupFacts, (claimed, offset): &(Claimed, Offset)) -> String {
    let Some(right) = claimed.right() else { return "-".into() };
    let asked = RequestedOffset { row, right: &right, offset: *offset };
    match judge_all(&[asked], group) {
        Ok(verdicts) if verdicts == [OffsetVerdict::Commit] => "commits".into(),
        Ok(verdicts) if verdicts == [OffsetVerdict::Keep] => "keeps".into(),
        Ok(verdicts) => panic!("{verdicts:?}"),
        Err(refused) => {
            assert_eq!(refused.items, [0]);
            show(&refused.refusal)
        }
    }
}

/// The server's data; the places do not matter.
fn in_a_place((claimed, offset): &(Claimed, Offset)) -> Option<offsets::Claimed> {
    let place = OffsetPlace { group: name("g"), log_id: LogId(1) };
    Some(offsets::Claimed { place, offset: *offset, claim: claimed.claim()? })
}

fn in_transaction(
    row: &OffsetRow,
    group: &GroupFacts,
    claim: &(Claimed, Offset),
    appends: bool,
) -> String {
    let Some(claimed) = in_a_place(claim) else { return "-".into() };
    let by = Committer { transaction_id: MINE, appends };
    match judge_in_transaction(&[(row, group, &claimed)], by) {
        Ok(()) => "commits".into(),
        Err(refusal) => show(&refusal),
    }
}

/// The row, the group, the commit, the verdict outside of transactions, in one without appends and
/// in one with some (where that differs).
#[test]
fn who_commits_over_what() {
    let table = "
        -              | g0       | at 0            | commits           | -
        5              | g0       | at 9            | commits           | -
        5              | g0       | at 0            | commits           | -
        5              | g4 m1    | at 9            | has members       | -
        5 m1@2         | g4       | at 9            | has members       | -
        5 pinned       | g0       | at 9            | 5 not none, pinned | -
        - pinned       | g0       | at 9            | none not none, pinned | -

        -              | g0       | over none at 3  | commits           | commits
        5              | g0       | over none at 6  | 5 not none        | 5 not none
        -              | g0       | over 5 at 6     | none not 5        | none not 5
        5              | g0       | over 5 at 6     | commits           | commits
        5              | g0       | over 5 at 5     | commits           | commits
        5              | g0       | over 5 at 1     | commits           | commits
        5              | g0       | over 4 at 6     | 5 not 4           | 5 not 4
        5              | g0       | over 6 at 6     | 5 not 6           | 5 not 6
        0              | g0       | over none at 0  | 0 not none        | 0 not none
        5              | g4 m1    | over 5 at 6     | has members       | has members
        5              | g4 m1    | over 4 at 6     | has members       | has members
        5 m1@2         | g4       | over 5 at 6     | has members       | has members
        5 m1@2 pinned  | g4 m1    | over 5 at 6     | has members       | has members
        5 pinned       | g0       | over 5 at 6     | 5 not 5, pinned   | 5 not 5, pinned
        5 pinned       | g0       | over 4 at 6     | 5 not 4, pinned   | 5 not 4, pinned
        5 mine         | g0       | over 5 at 6     | 5 not 5, pinned   | commits

        - m1@2         | g4 m1 m2 | m1 g4 at 0      | commits           | commits
        5 m1@2         | g4 m1 m2 | m1 g4 at 6      | commits           | commits
        5 m1@2         | g4 m1 m2 | m1 g3 at 6      | commits           | commits
        5 m1@2         | g4 m1 m2 | m1 g2 at 6      | commits           | commits
        5 m1@2         | g4 m1 m2 | m1 g1 at 6      | lost, g4          | lost, g4
        5 m1@2         | g4 m1 m2 | m1 g5 at 6      | lost, g4          | lost, g4
        5 m1@2         | g4 m1 m2 | m2 g4 at 6      | lost, g4          | lost, g4
        5              | g4 m1 m2 | m1 g4 at 6      | lost, g4          | lost, g4
        5 m1@2         | g4 m2    | m1 g4 at 6      | unknown           | unknown
        5              | g4       | m1 g4 at 6      | unknown           | unknown
        5 m1@2         | g4 m1    | m1 g4 at 5      | commits           | commits | still 5
        0 m1@2         | g4 m1    | m1 g4 at 0      | commits           | commits | still 0
        5 m1@2         | g4 m1    | m1 g4 at 4      | keeps             | 5 not 4
        5 m1@2 pinned  | g4 m1    | m1 g4 at 6      | 5 not none, pinned | 5 not 6, pinned
        5 m1@2 pinned  | g4 m1    | m1 g4 at 4      | 5 not none, pinned | 5 not 4, pinned
        5 m1@2 pinned  | g4 m1    | m1 g1 at 6      | lost, g4          | lost, g4
        5 m1@2 pinned  | g4       | m1 g4 at 6      | unknown           | unknown
        5 m1@2 mine    | g4 m1    | m1 g4 at 6      | 5 not none, pinned | commits
        5 m1@2 mine    | g4 m1    | m1 g4 at 4      | 5 not none, pinned | 5 not 4";
    check(table);
}

/// Commits by members that state an expected offset, or where their runs began.
#[test]
fn what_members_expect_is_what_is_committed() {
    let table = "
        5 m1@2         | g4 m1    | m1 g4 over 5 at 6    | -            | commits
        5 m1@2         | g4 m1    | m1 g4 over 5 at 5    | -            | commits | still 5
        5 m1@2         | g4 m1    | m1 g4 over 5 at 4    | -            | commits
        5 m1@2         | g4 m1    | m1 g4 over 4 at 6    | -            | 5 not 4
        5 m1@2         | g4 m1    | m1 g4 over 6 at 6    | -            | 5 not 6
        - m1@2         | g4 m1    | m1 g4 over none at 0 | -            | commits
        - m1@2         | g4 m1    | m1 g4 over 0 at 6    | -            | none not 0
        0 m1@2         | g4 m1    | m1 g4 over none at 6 | -            | 0 not none
        5 m1@2         | g4 m1    | m1 g1 over 5 at 6    | -            | lost, g4
        5 m1@2         | g4       | m1 g4 over 5 at 6    | -            | unknown
        5              | g0       | m1 g4 over 5 at 6    | -            | unknown
        5 m1@2 pinned  | g4 m1    | m1 g4 over 5 at 6    | -            | 5 not 5, pinned

        5 m1@2         | g4 m1    | m1 g4 from 5 at 6    | commits      | commits
        5 m1@2         | g4 m1    | m1 g4 from 4 at 6    | commits      | commits | 5 not 4
        5 m1@2         | g4 m1    | m1 g4 from 6 at 7    | commits      | commits | 5 not 6
        5 m1@2         | g4 m1    | m1 g4 from 6 at 6    | commits      | commits | 5 not 6
        5 m1@2         | g4 m1    | m1 g4 from 4 at 5    | commits      | commits | 5 not 4
        5 m1@2         | g4 m1    | m1 g4 from 5 at 5    | commits      | commits | still 5
        5 m1@2         | g4 m1    | m1 g4 from 3 at 4    | keeps        | 5 not 4 | 5 not 3
        - m1@2         | g4 m1    | m1 g4 from none at 0 | commits      | commits
        - m1@2         | g4 m1    | m1 g4 from none at 6 | commits      | commits
        0 m1@2         | g4 m1    | m1 g4 from none at 6 | commits      | commits | 0 not none
        - m1@2         | g4 m1    | m1 g4 from 0 at 6    | commits      | commits | none not 0
        5 m1@2         | g4 m1    | m1 g1 from 5 at 6    | lost, g4     | lost, g4
        5 m1@2 mine    | g4 m1    | m1 g4 from 5 at 6    | 5 not none, pinned | commits
        5 m1@2 mine    | g4 m1    | m1 g4 from 4 at 6    | 5 not none, pinned | commits | 5 not 4
        5 m1@2 pinned  | g4 m1    | m1 g4 from 5 at 6    | 5 not none, pinned | 5 not 6, pinned | 5 not 5, pinned";
    check(table);
}

fn check(table: &str) {
    for line in rows(table) {
        let [row, group, claim, plain, transactional, with_appends] = cells(line);
        let with_appends = if with_appends.is_empty() { transactional } else { with_appends };
        let (row, group, claim) = (a_row(row), a_group(group), a_claim(claim));
        assert_eq!(plainly(&row, &group, &claim), plain, "{line}");
        assert_eq!(in_transaction(&row, &group, &claim, false), transactional, "{line}");
        assert_eq!(in_transaction(&row, &group, &claim, true), with_appends, "{line}");
    }
}

/// All offsets of a transaction with appends: each is checked, and at least one of a member must
/// move.
#[test]
fn a_transaction_has_processed_something() {
    let table = "
        g4 m1 | 5 m1@2: m1 g4 from 5 at 6; 7 m1@2: m1 g4 from 7 at 7 | commits
        g4 m1 | 5 m1@2: m1 g4 from 5 at 5; 7 m1@2: m1 g4 at 8        | commits
        g4 m1 | 5 m1@2: m1 g4 from 5 at 5; 7 m1@2: m1 g4 from 7 at 7 | still 5
        g4 m1 | 5 m1@2: m1 g4 at 5; 7 m1@2: m1 g4 over 7 at 7        | still 5
        g4 m1 | 5 m1@2: m1 g4 from 4 at 5; 7 m1@2: m1 g4 from 7 at 8 | 5 not 4
        g4 m1 | 5 m1@2: m1 g4 from 5 at 6; 7 m1@2: m1 g4 from 6 at 9 | 7 not 6
        g4 m1 | 5 m1@2: m1 g4 from 5 at 5; 7 m1@2: m1 g4 from 6 at 9 | 7 not 6
        g4 m1 | 5 m1@2: m1 g4 from 5 at 6; - m1@2: m1 g4 from none at 0 | commits
        g0    | 5: over 5 at 5; 7: over 7 at 7                       | commits
        g0    |                                                      | commits";
    for line in rows(table) {
        let [group, items, want] = cells(line);
        let (group, items) = (a_group(group), some_items(items));
        let claims: Vec<_> = items.iter().map(|(_, claim)| in_a_place(claim).unwrap()).collect();
        let asked = items.iter().zip(&claims).map(|((row, _), claimed)| (row, &group, claimed));
        let asked: Vec<_> = asked.collect();
        let judged = |appends| {
            let by = Committer { transaction_id: MINE, appends };
            judge_in_transaction(&asked, by)
                .map_or_else(|refusal| show(&refusal), |()| "commits".into())
        };
        assert_eq!(judged(true), want, "{line}");
        assert_eq!(judged(false), "commits", "{line}");
    }
}

/// The offsets that a transaction was given for one place, in order, and the resulting one.
#[test]
fn what_comes_later_counts_from_where_the_first_run_began() {
    let table = "
        m1 g4 from 5 at 6 | m1 g4 from 6 at 9    | m1 g4 from 5 at 9
        m1 g4 from 5 at 6 | m1 g4 from none at 9 | m1 g4 from 5 at 9
        m1 g4 from none at 6 | m1 g4 from 6 at 9 | m1 g4 from none at 9
        m1 g4 at 6        | m1 g4 from 6 at 9    | m1 g4 from 6 at 9
        m1 g4 over 5 at 6 | m1 g4 over 6 at 9    | m1 g4 over 6 at 9
        m1 g2 from 5 at 6 | m2 g4 from 6 at 9    | m2 g4 from 5 at 9
        over 5 at 6       | m1 g4 from 6 at 9    | m1 g4 from 6 at 9
        over 5 at 6       | over 6 at 9          | over 6 at 9
        m1 g4 from 5 at 6 | over 6 at 9          | over 6 at 9";
    let of = |words: &str| in_a_place(&a_claim(words)).unwrap();
    for line in rows(table) {
        let [first, last, then] = cells(line).map(of);
        assert_eq!(last.after(&first), then, "{line}");
    }
    // what it has to be is judged as well, where a number comes after a cursor
    let both = of("m1 g4 over 6 at 9").after(&of("m1 g4 from 5 at 6"));
    let (row, group) = (a_row("6 m1@2"), a_group("g4 m1"));
    let by = Committer { transaction_id: MINE, appends: true };
    let refused = judge_in_transaction(&[(&row, &group, &both)], by).unwrap_err();
    assert_eq!(show(&refused), "6 not 5");
}

/// Each item with its row; the verdicts, or the refusal with the items that caused it.
#[test]
fn a_commit_is_whole_or_nothing() {
    let table = "
        g0    | 5: at 6; 5: over 5 at 6; -: over none at 1           | Commit Commit Commit
        g4 m1 | 5 m1@2: m1 g4 at 6; 5 m1@2: m1 g4 at 4               | Commit Keep
        g4 m1 | 5 m1@2: m1 g4 at 6; 5: m1 g4 at 6; - m2@3: m1 g4 at 6 | lost, g4 because of 1 2
        g4 m1 | 5 m1@2: m2 g4 at 6; 5: m2 g4 at 6                    | unknown because of 0 1
        g4 m1 | 5 m1@2 pinned: m1 g4 at 6; 5 m1@3: m1 g2 at 6        | lost, g4 because of 1
        g0    | 5: over 5 at 6; 5: over 4 at 6; 7: over 4 at 6       | 5 not 4 because of 1
        g0    | 5 pinned: at 6; 5 m1@1: at 6                         | has members because of 1
        g0    | 5: over 4 at 6; 5: at 2; 5: over 4 at 9              | 5 not 4 because of 0 2
        g0    |                                                      | ";
    for line in rows(table) {
        let [group, items, want] = cells(line);
        let items = some_items(items);
        let rights = items.iter().map(|(_, (claimed, _))| claimed.right().unwrap());
        let rights: Vec<Right> = rights.collect();
        let asked: Vec<RequestedOffset<'_>> = items
            .iter()
            .zip(&rights)
            .map(|((row, (_, offset)), right)| RequestedOffset { row, right, offset: *offset })
            .collect();
        let got = match judge_all(&asked, &a_group(group)) {
            Ok(verdicts) => verdicts.iter().map(|v| format!("{v:?} ")).collect::<String>(),
            Err(refused) => {
                let items: String = refused.items.iter().map(|item| format!(" {item}")).collect();
                format!("{} because of{items}", show(&refused.refusal))
            }
        };
        assert_eq!(got.trim(), want, "{line}");
    }
}

/// The form of a commit.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Plain,
    Transaction { appends: bool },
}

/// The contract, read backwards: the last possible error first.
fn oracle(
    row: &OffsetRow,
    group: &GroupFacts,
    claimed: &Claimed,
    offset: Offset,
    form: Form,
) -> &'static str {
    let committed = row.committed_offset;
    let in_transaction = form != Form::Plain;
    let appends = form == Form::Transaction { appends: true };
    let mut answer = "commits";
    match claimed {
        Claimed::Member { .. } if appends && committed == Some(offset) => answer = "nothing",
        Claimed::Member { expected: None, .. } if committed.is_some_and(|at| at > offset) => {
            answer = if in_transaction { "conflict" } else { "keeps" };
        }
        Claimed::Expected(expected) if *expected != committed => answer = "conflict",
        _ => {}
    }
    if let Claimed::Member { expected, began, .. } = claimed {
        let differs = |base: &Option<Option<Offset>>| base.is_some_and(|base| base != committed);
        if differs(expected) || appends && differs(began) {
            answer = "conflict";
        }
    }
    let others_pin = |pin: Uuid| !(in_transaction && pin == MINE);
    if row.pinned_by.is_some_and(others_pin) {
        answer = "conflict";
    }
    match claimed {
        Claimed::Member { member: Member { member_id, generation }, .. } => {
            let owns = row.owner.as_ref().is_some_and(|(owner, since)| {
                owner == member_id && since <= generation && *generation <= group.generation
            });
            if !owns {
                answer = "lost";
            }
            if !group.members.contains(member_id) {
                answer = "unknown";
            }
        }
        _ if row.owner.is_some() || !group.members.is_empty() => answer = "has members",
        _ => {}
    }
    answer
}

#[test]
fn every_case_is_as_the_oracle_says() {
    let claims =
        ["at 4", "at 5", "at 6", "over none at 5", "over 5 at 4", "over 5 at 6", "over 6 at 6"];
    let bases = ["", " over none", " over 5", " over 6", " from none", " from 5", " from 4"];
    let mut claims = claims.map(str::to_owned).to_vec();
    for member in ["m1", "m2"] {
        for (generation, offset) in (1..=5).flat_map(|g| (4..=6).map(move |offset| (g, offset))) {
            let claim = |base: &&str| format!("{member} g{generation}{base} at {offset}");
            claims.extend(bases.iter().map(claim));
        }
    }
    let kind = |got: String| match got {
        _ if got.contains(" not ") => "conflict".to_owned(),
        _ if got.starts_with("lost") => "lost".to_owned(),
        _ if got.starts_with("still") => "nothing".to_owned(),
        _ => got,
    };
    let mut cases = 0;
    for committed in ["-", "0", "4", "5", "6"] {
        for owner in ["", "m1@2", "m1@4", "m2@3"] {
            for pin in ["", "pinned", "mine"] {
                for group in ["g4", "g4 m1", "g4 m2", "g4 m1 m2", "g2 m1"] {
                    for claim in &claims {
                        let row = format!("{committed} {owner} {pin}");
                        let at = format!("{row} | {group} | {claim}");
                        let (row, group, claim) = (a_row(&row), a_group(group), a_claim(claim));
                        let (claimed, offset) = &claim;
                        if claimed.right().is_some() {
                            let want = oracle(&row, &group, claimed, *offset, Form::Plain);
                            assert_eq!(kind(plainly(&row, &group, &claim)), want, "{at}");
                        }
                        for appends in
                            [false, true].into_iter().filter(|_| claimed.claim().is_some())
                        {
                            let form = Form::Transaction { appends };
                            let want = oracle(&row, &group, claimed, *offset, form);
                            let got = in_transaction(&row, &group, &claim, appends);
                            assert_eq!(kind(got), want, "{at} {appends}");
                        }
                        cases += 1;
                    }
                }
            }
        }
    }
    assert_eq!(cases, 5 * 4 * 3 * 5 * (7 + 2 * 5 * 3 * 7));
}
