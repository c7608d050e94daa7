//! Revocations: which tokens are refused, and lists that stay short.

use proptest::prelude::*;
use uuid::Uuid;

use crate::{
    model::{
        Timestamp,
        tenant::revocation::{IssuedToken, Revocation, Revocations, Revoked},
    },
    rules::{
        Refusal,
        revocation::{MAX_REVOCATIONS, in_force, is_revoked, with},
    },
};

fn id(text: &str) -> Revoked {
    Revoked::TokenId(text.into())
}

fn subject(text: &str, issued_before: i64) -> Revoked {
    Revoked::Subject { subject: text.into(), issued_before: Timestamp(issued_before) }
}

fn all(issued_before: i64) -> Revoked {
    Revoked::IssuedBefore(Timestamp(issued_before))
}

fn revocation(revoked: Revoked, expires_at: Option<i64>) -> Revocation {
    let expires_at = expires_at.map(Timestamp);
    Revocation { id: Uuid::now_v7(), revoked, created_at: Timestamp(0), expires_at }
}

#[test]
fn what_a_revocation_is_about() {
    // revoked, its end; the token's id, subject, issue; now; is it refused
    let table = [
        (id("a"), None, "a", None, None, 5, true),
        (id("a"), None, "a", Some("anna"), Some(99), 5, true),
        (id("a"), None, "b", Some("a"), None, 5, false),
        (id("a"), Some(6), "a", None, None, 5, true),
        (id("a"), Some(5), "a", None, None, 5, false),
        (subject("anna", 10), None, "a", Some("anna"), Some(9), 5, true),
        (subject("anna", 10), None, "a", Some("anna"), Some(10), 5, false),
        (subject("anna", 10), None, "a", Some("anna"), None, 5, true),
        (subject("anna", 10), None, "anna", Some("bert"), Some(9), 5, false),
        (subject("anna", 10), None, "anna", None, None, 5, false),
        (all(10), None, "a", Some("anna"), Some(9), 5, true),
        (all(10), None, "a", None, Some(10), 5, false),
        (all(10), None, "a", None, None, 5, true),
        (all(10), Some(3), "a", None, None, 5, false),
    ];
    for (revoked, end, id, subject, issued_at, now, refused) in table {
        let list = Revocations(vec![revocation(revoked.clone(), end)]);
        let token = IssuedToken { id, subject, issued_at: issued_at.map(Timestamp) };
        assert_eq!(is_revoked(&list, token, Timestamp(now)), refused, "{revoked:?} {token:?}");
    }
}

#[test]
fn there_are_so_many_at_most() {
    let now = Timestamp(5);
    let of = |n: usize| revocation(id(&n.to_string()), (n == 7).then_some(6));
    let mut list = Revocations((0..MAX_REVOCATIONS).map(of).collect());
    let more = || revocation(id("more"), None);
    let refusal = with(&list, more(), now).unwrap_err();
    assert!(matches!(refusal, Refusal::TooMany { limit: 1000, .. }), "{refusal}");
    // one of the same is taken into the new one, and one that is over makes room
    list = with(&list, revocation(id("3"), None), now).unwrap();
    assert_eq!(list.0.len(), MAX_REVOCATIONS);
    list = with(&list, more(), Timestamp(6)).unwrap();
    assert_eq!(list.0.len(), MAX_REVOCATIONS);
    assert!(with(&list, revocation(id("yet more"), None), Timestamp(6)).is_err());
}

fn any_revoked() -> impl Strategy<Value = Revoked> {
    prop_oneof![
        "[a-c]".prop_map(Revoked::TokenId),
        ("[a-c]", 0..6_i64).prop_map(|(text, before)| subject(&text, before)),
        (0..6_i64).prop_map(all),
    ]
}

proptest! {
    /// The list refuses what each of all that were made refuses, and it is no longer than they are
    /// many.
    #[test]
    fn a_short_list_refuses_what_the_long_one_does(
        made in prop::collection::vec((any_revoked(), prop::option::of(0..8_i64), 0..4_i64), 0..12),
        tokens in prop::collection::vec(
            ("[a-c]", prop::option::of("[a-c]"), prop::option::of(0..6_i64), 0..8_i64), 1..12),
    ) {
        let (mut list, mut naive, mut now) = (Revocations::default(), Vec::new(), 0);
        for (revoked, end, later) in made {
            now += later;
            let new = revocation(revoked, end);
            naive.push(new.clone());
            list = with(&list, new, Timestamp(now)).unwrap();
        }
        prop_assert!(list.0.len() <= naive.len());
        for (id, subject, issued_at, later) in tokens {
            let token = IssuedToken {
                id: &id,
                subject: subject.as_deref(),
                issued_at: issued_at.map(Timestamp),
            };
            let at = Timestamp(now + later);
            let refuses = |one: &Revocation| is_revoked(&Revocations(vec![one.clone()]), token, at);
            let wanted = naive.iter().any(refuses);
            prop_assert_eq!(is_revoked(&list, token, at), wanted, "{:?}", token);
        }
        let left = in_force(&list, Timestamp(i64::MAX)).count();
        prop_assert_eq!(left, list.0.iter().filter(|one| one.expires_at.is_none()).count());
    }
}
