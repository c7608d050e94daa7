//! The sequence table of the contract, in both scopes.

use super::table::{Scope, check, check_in};

#[test]
fn the_ten_rows() {
    check(
        "P1 e0 s0             -> unknown P1
         open P1              -> e0
         open P1              -> e1
         P1 e0 s0             -> fenced by e1
         P1 e2 s0             -> not issued, e1
         P1 e1 s5             -> no state for s5
         P1 e1 s1             -> ahead, no state for s1
         P1 e1 s4             -> ahead, no state for s4
         P1 e1 s0             -> ok 0
         P1 e1 s1             -> ok 1
         P1 e1 s1             -> dup 1
         P1 e1 s0             -> dup 0
         P1 e1 s0 other       -> reused s0
         P1 e1 s3             -> ahead, s3 want s2
         P1 e1 s6             -> ahead, s6 want s2
         P1 e1 s7             -> s7 want s2
         P1 e1 s2             -> ok 2
         P1 e1 s3             -> ok 3
         P1 e1 s4             -> ok 4
         P1 e1 s0             -> dup 0
         P1 e1 s5             -> ok 5
         P1 e1 s0             -> old
         P1 e1 s0 other       -> old
         P1 e1 s1             -> dup 1
         P1 e0 s5             -> fenced by e1
         P1 e2 s5             -> not issued, e1
         P2 e0 s0             -> unknown P2",
    );
}

#[test]
fn epochs_come_before_sequences_and_digests() {
    check(
        "open P1              -> e0
         P1 e0 s0             -> ok 0
         open P1              -> e1
         P1 e0 s0             -> fenced by e1
         P1 e0 s0 other       -> fenced by e1
         P1 e0 s9             -> fenced by e1
         P1 e2 s9             -> not issued, e1
         P1 e1 s0             -> dup 0
         P1 e1 s1             -> ok 1",
    );
}

#[test]
fn an_ended_session_owns_no_epoch() {
    check(
        "open P1              -> e0
         P1 e0 s0             -> ok 0
         close P1
         P1 e0 s0             -> fenced by e1
         P1 e0 s1             -> fenced by e1
         P1 e1 s0             -> not issued, e1
         P1 e1 s1             -> not issued, e1
         P1 e2 s1             -> not issued, e1
         close P1
         open P1              -> e2
         P1 e1 s1             -> fenced by e2
         P1 e2 s0             -> dup 0
         P1 e2 s1             -> ok 1",
    );
}

#[test]
fn a_reset_drops_sequences_and_windows() {
    check(
        "open P1              -> e0
         P1 e0 s0             -> ok 0
         P1 e0 s1             -> ok 1
         open P1 reset        -> e1
         P1 e1 s1             -> ahead, no state for s1
         P1 e1 s2             -> ahead, no state for s2
         P1 e1 s5             -> no state for s5
         P1 e1 s0 other       -> ok 2
         P1 e1 s0 other       -> dup 2
         P1 e1 s0             -> reused s0
         P1 e1 s1             -> ok 3
         open P1              -> e2
         P1 e2 s1             -> dup 3
         forget
         P1 e2 s1             -> dup 3
         P1 e2 s2             -> ok 4",
    );
}

#[test]
fn the_fresh_flag_tells_a_reset_from_the_rows_alone() {
    check(
        "open P1              -> e0
         P1 e0 s0; P1 e0 s1; P1 e0 s2; P1 e0 s3 -> ok 0; ok 1; ok 2; ok 3
         open P1 reset monotonic -> e1
         P1 e1 s3 other       -> ok 4
         forget
         P1 e1 s2             -> old
         P1 e1 s3             -> reused s3
         P1 e1 s3 other       -> dup 4
         snapshot
         trim
         forget
         P1 e1 s2             -> old
         P1 e1 s3             -> reused s3
         P1 e1 s4             -> ok 5",
    );
}

#[test]
fn monotonic_takes_any_greater_sequence() {
    check(
        "open P1 monotonic    -> e0
         P1 e0 s700           -> ok 0
         P1 e0 s700           -> dup 0
         P1 e0 s699           -> old
         P1 e0 s0             -> old
         P1 e0 s9000          -> ok 1
         P1 e0 s700 other     -> reused s700
         P1 e0 s8999 other    -> old
         open P1              -> e1
         P1 e1 s9000          -> dup 1
         P1 e1 s9006          -> s9006 want s9001
         P1 e1 s9001          -> ok 2
         open P1 monotonic    -> e2
         P1 e2 s9005          -> ok 3
         P1 e2 s9003          -> old",
    );
}

#[test]
fn largest_sequences() {
    check(
        "open P1 monotonic    -> e0
         P1 e0 s9007199254740990 -> ok 0
         P1 e0 s9007199254740991 -> ok 1
         P1 e0 s9007199254740991 -> dup 1
         open P1              -> e1
         P1 e1 s0             -> old",
    );
}

#[test]
fn each_url_is_a_scope_of_its_own() {
    check_in(
        Scope::Partition,
        "open P1              -> e0
         P1 e0 s0 p0          -> ok 0
         P1 e0 s0 p1          -> ok 0
         P1 e0 s0 topic       -> ok 1
         P1 e0 s1 p1          -> ok 1
         P1 e0 s1 topic       -> ok 2
         P1 e0 s0 p0          -> dup 0
         P1 e0 s0 topic       -> dup 1
         P1 e0 s2 p0          -> ahead, s2 want s1",
    );
}

#[test]
fn producers_do_not_meet() {
    check(
        "open P1              -> e0
         open P2              -> e0
         P1 e0 s0; P2 e0 s0   -> ok 0; ok 1
         P2 e0 s0 other       -> reused s0
         open P1              -> e1
         P2 e0 s1             -> ok 2
         P1 e0 s1             -> fenced by e1
         P1 e1 s1             -> ok 3",
    );
}
