//! Groups: responses to members, and ownership. `properties` checks invariants over whole
//! histories.

pub mod assign;
mod checks;
mod limits;
pub mod offsets;
mod properties;
pub mod reset;
mod table;
mod world;

use super::name;
use crate::model::Timestamp;
use table::check;
use world::{World, a_join};

#[test]
fn partitions_are_announced_then_let_go_by_who_shows_that() {
    check(
        "
        topic c 2
        join a c         -> g1 c0 c1
        join b c         -> g2
        who              -> c0 a1, c1 a1>b
        beat b           -> g2
        commit a g1 c1   -> ok
        beat a           -> g2 c0, let go c1
        who              -> c0 a1, c1 a1>>b
        beat b           -> g2
        commit a g1 c1   -> ok
        commit a g2 c1   -> ok
        commit b g2 c1   -> illegal, g2
        beat a           -> g2 c0, let go c1
        beat a g2        -> g3 c0
        who              -> c0 a1, c1 b3
        commit a g2 c1   -> illegal, g3
        commit a g3 c1   -> illegal, g3
        commit a g1 c0   -> ok
        commit b g2 c1   -> illegal, g3
        beat b           -> g3 c1
        commit b g3 c1   -> ok
        commit b g4 c1   -> illegal, g3",
    );
}

#[test]
fn who_shows_nothing_lets_go_of_nothing() {
    check(
        "
        topic c 2
        join a c         -> g1 c0 c1
        join b c         -> g2
        beat a           -> g2 c0, let go c1
        beat a           -> g2 c0, let go c1
        beat a g1        -> g2 c0, let go c1
        beat b g2        -> g2
        who              -> c0 a1, c1 a1>>b
        commit a g1 c1   -> ok
        beat a g2        -> g3 c0
        who              -> c0 a1, c1 b3",
    );
}

/// A generation that was never in a response.
#[test]
fn a_generation_to_come_shows_nothing() {
    check(
        "
        topic c 2
        join a c         -> g1 c0 c1
        join b c         -> g2
        beat a g3        -> g2 c0, let go c1
        beat a g99       -> g2 c0, let go c1
        settles a g3
        who              -> c0 a1, c1 a1>>b
        beat a g2        -> g3 c0",
    );
}

#[test]
fn a_call_lets_go_of_what_the_answer_told_that_it_shows() {
    check(
        "
        topic c 6
        join a c         -> g1 c0 c1 c2 c3 c4 c5
        join b c         -> g2
        beat a           -> g2 c0 c1 c2, let go c3 c4 c5
        join d c         -> g3
        who              -> c0 a1, c1 a1, c2 a1>d, c3 a1>>b, c4 a1>>b, c5 a1>>d
        beat a g2        -> g4 c0 c1, let go c2
        who              -> c0 a1, c1 a1, c2 a1>>d, c3 b4, c4 b4, c5 d4
        beat a g2        -> g4 c0 c1, let go c2
        beat a g4        -> g5 c0 c1
        who              -> c0 a1, c1 a1, c2 d5, c3 b4, c4 b4, c5 d4",
    );
}

#[test]
fn a_later_answer_shows_as_much() {
    check(
        "
        topic c 3
        join a c         -> g1 c0 c1 c2
        join b c         -> g2
        beat a           -> g2 c0 c1, let go c2
        join d c         -> g3
        beat a           -> g3 c0, let go c1 c2
        beat a g3        -> g4 c0",
    );
}

#[test]
fn a_commit_that_shows_an_answer_lets_go_as_well() {
    check(
        "
        topic c 2
        join a c for 300 -> g1 c0 c1
        join b c         -> g2
        settles a g1
        who              -> c0 a1, c1 a1>b
        beat a           -> g2 c0, let go c1
        pass 200
        settles a g2
        who              -> c0 a1, c1 b3
        lease a          -> 100 left, g3
        settles z g3
        who              -> c0 a1, c1 b3",
    );
}

/// Its response belonged to another ownership.
#[test]
fn what_was_given_back_and_is_taken_again_is_shown_again() {
    check(
        "
        topic c 2
        join a c         -> g1 c0 c1
        join b c         -> g2
        beat a           -> g2 c0, let go c1
        leave b
        who              -> c0 a1, c1 a1
        join d c         -> g4
        who              -> c0 a1, c1 a1>d
        beat a g2        -> g4 c0, let go c1
        beat a g3        -> g4 c0, let go c1
        beat a g4        -> g5 c0",
    );
}

#[test]
fn what_was_told_and_is_not_let_go_of_is_taken() {
    check(
        "
        topic c 2
        join a c for 45000 -> g1 c0 c1
        join b c for 45000 -> g2
        pass 10000
        beat a           -> g2 c0, let go c1
        pass 30000
        beat a           -> g2 c0, let go c1
        beat b           -> g2
        pass 15000
        beat a           -> g2 c0, let go c1
        commit a g2 c1   -> ok
        pass 1
        settle
        who              -> c0 a1, c1 b3
        commit a g2 c1   -> illegal, g3
        commit a g2 c0   -> ok
        beat a           -> g3 c0",
    );
}

/// A short lease does not shorten the grace period, and a member that was not told yet loses
/// nothing.
#[test]
fn half_a_minute_there_is_to_let_go() {
    let mut world = World::new();
    world.grow(&name("c"), 2);
    world.join("a", &a_join(&["c"])).unwrap();
    world.join("b", &a_join(&["c"])).unwrap();
    let owned = |world: &World, id: &str| {
        world.state.places.values().filter(|place| place.is_owned_by(id)).count()
    };
    let both_live = |world: &mut World, ms: i64, is_told: bool| {
        for _ in 0..ms / 100 {
            world.now.0 += 100;
            // a lease goes on without a word, as one that was renewed by a waiting fetch
            for member in world.state.members.values_mut() {
                member.lease_expires_at = Timestamp(world.now.0 + world::TIMEOUT_MS);
            }
            if is_told {
                world.beat("a", None).unwrap();
            }
            world.settle();
        }
    };
    both_live(&mut world, 60_000, false);
    assert_eq!((owned(&world, "a"), owned(&world, "b")), (2, 0));
    world.beat("a", None).unwrap();
    both_live(&mut world, 30_000, true);
    assert_eq!((owned(&world, "a"), owned(&world, "b")), (2, 0));
    world.now.0 += 1;
    world.settle();
    assert_eq!((owned(&world, "a"), owned(&world, "b")), (1, 1));
}

#[test]
fn joins_elsewhere_stop_nobody() {
    check(
        "
        topic c 3
        join a c         -> g1 c0 c1 c2
        join b c         -> g2
        beat a           -> g2 c0 c1, let go c2
        beat a g2        -> g3 c0 c1
        join d c         -> g4
        commit b g3 c2   -> ok
        commit a g1 c0   -> ok
        beat b           -> g4 c2
        beat b           -> g4 c2
        beat a           -> g4 c0, let go c1
        beat a g4        -> g5 c0
        who              -> c0 a1, c1 d5, c2 b3",
    );
}

#[test]
fn a_member_that_left_owns_nothing_at_once() {
    check(
        "
        topic c 2
        join a c         -> g1 c0 c1
        join b c         -> g2
        late a
        who              -> c0 b3, c1 b3
        commit a g1 c0   -> unknown
        beat a           -> unknown
        beat a g2        -> unknown
        leave a          -> unknown
        beat b           -> g3 c0 c1
        leave b
        who              -> c0 -, c1 -
        commit b g3 c0   -> unknown
        join d c         -> g5 c0 c1
        who              -> c0 d5, c1 d5",
    );
}

#[test]
fn a_lease_ends_after_its_last_instant() {
    check(
        "
        topic c 1
        join a c for 300 -> g1 c0
        pass 300
        settle
        commit a g1 c0   -> ok
        pass 1
        commit a g1 c0   -> ok
        beat a           -> unknown
        settle
        commit a g1 c0   -> unknown
        who              -> c0 -",
    );
}

#[test]
fn what_was_lost_and_regained_is_another_ownership() {
    check(
        "
        topic c 2
        join a c         -> g1 c0 c1
        join b c         -> g2
        beat a           -> g2 c0, let go c1
        beat a g2        -> g3 c0
        leave b
        who              -> c0 a1, c1 a4
        commit a g1 c1   -> illegal, g4
        commit a g2 c1   -> illegal, g4
        commit a g3 c1   -> illegal, g4
        commit a g4 c1   -> ok
        commit a g1 c0   -> ok",
    );
}

#[test]
fn a_handover_to_a_member_that_is_gone_is_none() {
    check(
        "
        topic c 2
        join a c         -> g1 c0 c1
        join b c         -> g2
        late b
        beat a           -> g3 c0 c1
        commit a g1 c1   -> ok
        join b c         -> g4
        beat a           -> g4 c0, let go c1
        late b
        who              -> c0 a1, c1 a1
        commit a g1 c1   -> ok
        beat a           -> g5 c0 c1
        who              -> c0 a1, c1 a1",
    );
}

#[test]
fn what_is_let_go_goes_to_whom_the_newest_assignment_names() {
    check(
        "
        topic c 2
        join a c         -> g1 c0 c1
        join b c         -> g2
        beat a           -> g2 c0, let go c1
        join d c         -> g3
        leave b
        who              -> c0 a1, c1 a1>>d
        beat a g2        -> g5 c0
        who              -> c0 a1, c1 d5",
    );
}

#[test]
fn an_instance_that_comes_back_has_its_place() {
    check(
        "
        topic c 3
        join a as pod c  -> g1 c0 c1 c2
        join b c         -> g2
        beat a           -> g2 c0 c1, let go c2
        beat a g2        -> g3 c0 c1
        join A as pod c  -> g3 c0 c1
        who              -> c0 A1, c1 A1, c2 b3
        beat a           -> unknown
        commit a g3 c0   -> unknown
        commit A g3 c0   -> ok
        join x c         -> g4
        beat A           -> g4 c0, let go c1
        join B as pod c  -> g5 c0
        who              -> c0 B1, c1 x5, c2 b3
        late B
        join D as pod c  -> g7",
    );
}

#[test]
fn an_instance_that_comes_back_otherwise_is_a_rebalance() {
    check(
        "
        topic c 2
        topic d 2
        join a as pod c  -> g1 c0 c1
        join A as pod d  -> g3 d0 d1
        who              -> c0 -, c1 -, d0 A2, d1 A2
        join B as pod c d -> g4 c0 c1 d0 d1
        who              -> c0 B4, c1 B4, d0 B2, d1 B2
        join D as pod /c/ -> g6 c0 c1
        join E as pod /c/ -> g6 c0 c1
        join F as pod /c|x/ -> g7 c0 c1
        join y /c/       -> g8
        join G as pod c for 100 -> g10 c0
        who              -> c0 G4, c1 y10, d0 -, d1 -",
    );
}

/// It never learned of its partitions: those that its response does not name were never its own.
#[test]
fn what_comes_to_an_instance_that_comes_back_stays_on_its_way() {
    check(
        "
        topic c 2
        join a c         -> g1 c0 c1
        join b as pod c  -> g2
        beat a           -> g2 c0, let go c1
        join B as pod c  -> g2
        who              -> c0 a1, c1 a1>>B
        beat a g2        -> g3 c0
        who              -> c0 a1, c1 B3",
    );
}

#[test]
fn members_without_an_instance_are_never_the_same() {
    check(
        "
        topic c 2
        join a c         -> g1 c0 c1
        join b c         -> g2
        join d as pod c  -> g3
        join e as dop c  -> g4
        beat a           -> g4 c0, let go c1",
    );
}

#[test]
fn a_member_to_be_that_subscribes_elsewhere_leaves_it_to_its_owner() {
    check(
        "
        topic c 2
        topic d 3
        join a c         -> g1 c0 c1
        join b as pod c  -> g2
        join x d         -> g3 d0 d1 d2
        who              -> c0 a1, c1 a1>b, d0 x3, d1 x3, d2 x3
        join B as pod d  -> g4
        who              -> c0 a1, c1 a1, d0 x3, d1 x3, d2 x3>B",
    );
}

#[test]
fn partitions_that_are_made_come_in() {
    check(
        "
        topic c 1
        join a c         -> g1 c0
        join b /^c/      -> g2
        topic d 1
        settle
        beat a           -> g2 c0
        topic c 2
        settle
        who              -> c0 a1, c1 b3
        topic c9 1
        beat b           -> g4 c1 c90
        delete c9
        beat b           -> g4 c1
        topic c9 1
        settle
        who              -> c0 a1, c1 b3, c90 b5
        delete c
        beat a           -> g5
        beat b           -> g5 c90",
    );
}

#[test]
fn a_call_without_anything_to_let_go_renews_the_lease_only() {
    check(
        "
        topic c 1
        join a c for 300 -> g1 c0
        lease a          -> 300 left, g1
        pass 99
        beat a           -> g1 c0
        lease a          -> 201 left, g1
        pass 1
        beat a           -> g1 c0
        lease a          -> 300 left, g1
        who              -> c0 a1",
    );
    let mut world = World::new();
    world.grow(&name("c"), 2);
    world.join("a", &a_join(&["c"])).unwrap();
    world.now.0 += 200;
    let mut before = world.state.clone();
    world.beat("a", None).unwrap();
    let lease = Timestamp(world.now.0 + world::TIMEOUT_MS);
    before.members.get_mut("a").unwrap().lease_expires_at = lease;
    assert_eq!(world.state, before);
}

#[test]
fn other_topics_make_no_generation() {
    let mut world = World::new();
    world.grow(&name("c"), 2);
    world.join("a", &a_join(&["c"])).unwrap();
    world.grow(&name("d"), 2);
    let mut before = world.state.clone();
    world.settle();
    before.topics_version = world.topics.version;
    assert_eq!(world.state, before);
}

/// A topic that no member may read is the group's, and nobody's.
#[test]
fn a_member_is_assigned_what_its_token_covers() {
    check(
        "
        topic c 1
        topic d 1
        join a /./ reads c -> g1 c0
        who                -> c0 a1, d0 -
        topic cc 1
        settle
        who                -> c0 a1, cc0 -, d0 -
        starts             -> c0 reset, cc0 earliest, d0 reset
        join b /./ reads * -> g3 cc0 d0
        who                -> c0 a1, cc0 b3, d0 b3
        leave b            ->
        who                -> c0 a1, cc0 -, d0 -",
    );
}

#[test]
fn an_instance_whose_token_covers_less_keeps_less() {
    check(
        "
        topic c 1
        topic d 1
        join a /./ as pod         -> g1 c0 d0
        join b /./ as pod reads c -> g3 c0
        who                       -> c0 b1, d0 -
        join a /./ as pod         -> g4 c0 d0",
    );
}
