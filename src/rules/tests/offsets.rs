//! Offsets of groups: a row a commit, and every case there is against an oracle.

use uuid::Uuid;

use crate::{
    model::{Offset, group::Member, transaction::Claim},
    rules::{
        Refusal,
        offsets::{Asked, Group, Right, Row, Verdict, judge_all, judge_in_transaction},
    },
};

const MINE: Uuid = Uuid::from_u128(1);
const OTHER: Uuid = Uuid::from_u128(2);

/// `5 m1@2 pinned`: the committed offset, the owner with its first generation, whether another
/// transaction pins it (`mine`: this one).
fn a_row(words: &str) -> Row {
    let mut row = Row::default();
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
fn a_group(words: &str) -> Group {
    let mut words = words.split_whitespace();
    let generation = words.next().unwrap().trim_start_matches('g').parse().unwrap();
    Group { generation, members: words.map(str::to_owned).collect() }
}

/// By what right a row of a table commits, and what.
pub enum Claimed {
    Member(Member),
    Expected(Option<Offset>),
    Free,
}

/// `m1 g3 at 6`, `over 5 at 6`, `over none at 6`, `at 6`
pub fn a_claim(words: &str) -> (Claimed, Offset) {
    let (right, offset) = words.rsplit_once("at ").unwrap();
    let claimed = match right.split_whitespace().collect::<Vec<_>>()[..] {
        [] => Claimed::Free,
        ["over", "none"] => Claimed::Expected(None),
        ["over", expected] => Claimed::Expected(Some(expected.parse().unwrap())),
        [member, generation] => Claimed::Member(Member {
            member_id: member.into(),
            generation: generation[1..].parse().unwrap(),
        }),
        _ => panic!("{words}"),
    };
    (claimed, offset.trim().parse().unwrap())
}

impl Claimed {
    fn right(&self) -> Right {
        match self {
            Claimed::Member(member) => Right::Member(member.clone()),
            Claimed::Expected(expected) => Right::Expected(*expected),
            Claimed::Free => Right::Free,
        }
    }

    /// None: not in a transaction.
    pub fn claim(&self) -> Option<Claim> {
        match self {
            Claimed::Member(Member { member_id, generation }) => {
                Some(Claim::Member { member_id: member_id.clone(), generation: *generation })
            }
            Claimed::Expected(expected) => Some(Claim::Expected(*expected)),
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
        other => format!("{other:?}"),
    }
}

fn plainly(row: &Row, group: &Group, (claimed, offset): &(Claimed, Offset)) -> String {
    let asked = Asked { row, right: &claimed.right(), offset: *offset };
    match judge_all(&[asked], group) {
        Ok(verdicts) if verdicts == [Verdict::Commit] => "commits".into(),
        Ok(verdicts) if verdicts == [Verdict::Keep] => "keeps".into(),
        Ok(verdicts) => panic!("{verdicts:?}"),
        Err(refused) => {
            assert_eq!(refused.items, [0]);
            show(&refused.refusal)
        }
    }
}

fn in_transaction(row: &Row, group: &Group, (claimed, offset): &(Claimed, Offset)) -> String {
    let Some(claim) = claimed.claim() else { return "-".into() };
    match judge_in_transaction(row, group, &claim, *offset, MINE) {
        Ok(()) => "commits".into(),
        Err(refusal) => show(&refusal),
    }
}

/// The row, the group, the claim, what becomes of it outside of transactions and what in one.
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
        5 m1@2         | g4 m1    | m1 g4 at 5      | commits           | commits
        5 m1@2         | g4 m1    | m1 g4 at 4      | keeps             | 5 not 4
        5 m1@2 pinned  | g4 m1    | m1 g4 at 6      | 5 not none, pinned | 5 not 6, pinned
        5 m1@2 pinned  | g4 m1    | m1 g4 at 4      | 5 not none, pinned | 5 not 4, pinned
        5 m1@2 pinned  | g4 m1    | m1 g1 at 6      | lost, g4          | lost, g4
        5 m1@2 pinned  | g4       | m1 g4 at 6      | unknown           | unknown
        5 m1@2 mine    | g4 m1    | m1 g4 at 6      | 5 not none, pinned | commits
        5 m1@2 mine    | g4 m1    | m1 g4 at 4      | 5 not none, pinned | 5 not 4";
    for line in table.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let parts: Vec<&str> = line.split('|').map(str::trim).collect();
        let [row, group, claim, plain, transactional] = parts[..] else { panic!("{line}") };
        let (row, group, claim) = (a_row(row), a_group(group), a_claim(claim));
        assert_eq!(plainly(&row, &group, &claim), plain, "{line}");
        assert_eq!(in_transaction(&row, &group, &claim), transactional, "{line}");
    }
}

/// Each item with its row; the verdicts, or what refuses all and because of which items.
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
    for line in table.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let parts: Vec<&str> = line.split('|').map(str::trim).collect();
        let [group, items, want] = parts[..] else { panic!("{line}") };
        let items = items.split(';').filter(|item| !item.is_empty()).map(|item| {
            let (row, claim) = item.split_once(':').unwrap();
            (a_row(row), a_claim(claim))
        });
        let items: Vec<_> = items.collect();
        let rights: Vec<Right> = items.iter().map(|(_, (claimed, _))| claimed.right()).collect();
        let asked: Vec<Asked<'_>> = items
            .iter()
            .zip(&rights)
            .map(|((row, (_, offset)), right)| Asked { row, right, offset: *offset })
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

/// What the contract says, read from its end: the last thing that could be wrong first.
fn oracle(
    row: &Row,
    group: &Group,
    claimed: &Claimed,
    offset: Offset,
    in_transaction: bool,
) -> &'static str {
    let committed = row.committed_offset;
    let mut answer = "commits";
    match claimed {
        Claimed::Member(_) if committed.is_some_and(|committed| committed > offset) => {
            answer = if in_transaction { "conflict" } else { "keeps" };
        }
        Claimed::Expected(expected) if *expected != committed => answer = "conflict",
        _ => {}
    }
    let others_pin = |pin: Uuid| !(in_transaction && pin == MINE);
    if row.pinned_by.is_some_and(others_pin) {
        answer = "conflict";
    }
    match claimed {
        Claimed::Member(Member { member_id, generation }) => {
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
    let by_members = ["m1", "m2"].iter().flat_map(|member| {
        (1..=5).flat_map(move |generation| {
            (4..=6).map(move |offset| format!("{member} g{generation} at {offset}"))
        })
    });
    let claims: Vec<String> = claims.into_iter().map(str::to_owned).chain(by_members).collect();
    let mut cases = 0;
    for committed in ["-", "0", "4", "5", "6"] {
        for owner in ["", "m1@2", "m1@4", "m2@3"] {
            for pin in ["", "pinned", "mine"] {
                for group in ["g4", "g4 m1", "g4 m2", "g4 m1 m2", "g2 m1"] {
                    for claim in &claims {
                        let row = format!("{committed} {owner} {pin}");
                        let at = format!("{row} | {group} | {claim}");
                        let (row, group, claim) = (a_row(&row), a_group(group), a_claim(claim));
                        let kind = |got: String| match got {
                            _ if got.contains(" not ") => "conflict".to_owned(),
                            _ if got.starts_with("lost") => "lost".to_owned(),
                            _ => got,
                        };
                        let (claimed, offset) = &claim;
                        let want = oracle(&row, &group, claimed, *offset, false);
                        assert_eq!(kind(plainly(&row, &group, &claim)), want, "{at}");
                        if claimed.claim().is_some() {
                            let want = oracle(&row, &group, claimed, *offset, true);
                            assert_eq!(kind(in_transaction(&row, &group, &claim)), want, "{at}");
                        }
                        cases += 1;
                    }
                }
            }
        }
    }
    assert_eq!(cases, 5 * 4 * 3 * 5 * 37);
}
