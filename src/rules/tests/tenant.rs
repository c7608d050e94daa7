//! Tenants: who is served, and the effect of an operator's patch.

use super::{
    name,
    settings::{below, own},
};
use crate::{
    model::{
        Timestamp,
        settings::{IfMatch, Key},
        tenant::{MaximaChanges, Tenant, TenantPatch, revocation::Revocations},
    },
    rules::{
        Refusal,
        tenant::{admit, patch, patched},
    },
};

/// `suspended`, `deleted`, both or none.
fn tenant(words: &str) -> Tenant {
    let since = |word| words.contains(word).then_some(Timestamp(1));
    Tenant {
        name: name("acme"),
        created_at: Timestamp(0),
        revocations: Revocations::default(),
        settings: below("max_topics=9", "max_topics=5 retention_ms=9000"),
        version: 3,
        suspended_at: since("suspended"),
        deleted_at: since("deleted"),
    }
}

fn told(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::TenantSuspended { .. } => "suspended",
        Refusal::TenantDeleted { .. } => "deleted",
        Refusal::PreconditionFailed { .. } => "stale",
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tenant_is_served_unless_it_is_suspended_or_deleted() {
    for (words, want) in [
        ("", None),
        ("suspended", Some("suspended")),
        ("deleted", Some("deleted")),
        ("suspended deleted", Some("deleted")),
    ] {
        assert_eq!(admit(&tenant(words)).err().as_ref().map(told), want, "{words}");
    }
}

/// `max_topics=5 retention_ms=default`
fn changes(words: &str) -> MaximaChanges {
    let of = |word: &str| {
        let (name, most) = word.split_once('=').unwrap();
        (Key::parse(name).unwrap(), most.parse().ok())
    };
    words.split_whitespace().map(of).collect()
}

#[test]
fn a_patch_keeps_sets_and_removes_maxima() {
    let table = [
        ("", "", ""),
        ("", "max_topics=5", "max_topics=5"),
        ("max_topics=5", "", "max_topics=5"),
        ("max_topics=5", "max_topics=0", "max_topics=0"),
        ("max_topics=5", "max_topics=default", ""),
        ("", "max_topics=default", ""),
        ("max_topics=5", "max_partitions=7", "max_topics=5 max_partitions=7"),
    ];
    for (former, patch, want) in table {
        let maxima = |words| below("", words).maxima;
        assert_eq!(patched(&maxima(former), &changes(patch)), maxima(want), "{former} | {patch}");
    }
}

#[test]
fn an_operator_suspends_resumes_and_limits() {
    let table = [
        ("", "", None, Ok("max_topics=5 retention_ms=9000")),
        ("", "", Some(true), Ok("suspended max_topics=5 retention_ms=9000")),
        ("suspended", "", None, Ok("suspended max_topics=5 retention_ms=9000")),
        ("suspended", "max_topics=7", Some(false), Ok("max_topics=7 retention_ms=9000")),
        ("suspended", "max_topics=default", Some(true), Ok("suspended retention_ms=9000")),
        // what is being removed stays as it is
        ("deleted", "", None, Err("deleted")),
        ("suspended deleted", "", Some(false), Err("deleted")),
    ];
    for (words, maxima, suspended, want) in table {
        let asked = TenantPatch { maxima: changes(maxima), suspended };
        let got = patch(&tenant(words), &asked, None);
        let got = got.as_ref().map_err(told).map(|(maxima, suspended)| (maxima, *suspended));
        let (want_suspended, want_maxima) = match want {
            Ok(words) => match words.strip_prefix("suspended ") {
                Some(rest) => (true, Ok(below("", rest).maxima)),
                None => (false, Ok(below("", words).maxima)),
            },
            Err(why) => (false, Err(why)),
        };
        let want = want_maxima.as_ref().map(|maxima| (maxima, want_suspended)).map_err(|why| *why);
        assert_eq!(got, want, "{words} | {asked:?}");
    }
}

#[test]
fn a_conditional_patch_is_of_the_tenant_it_names() {
    let former = tenant("");
    let etag = former.etag();
    let try_with = |tags: IfMatch| patch(&former, &TenantPatch::default(), Some(&tags)).is_ok();
    assert!(try_with(IfMatch::Any));
    assert!(try_with(IfMatch::OneOf(vec!["\"x\"".into(), etag.clone()])));
    let others = [
        tenant("suspended"),
        tenant("deleted"),
        Tenant { version: 4, ..tenant("") },
        Tenant { settings: own("max_topics=9"), ..tenant("") },
        Tenant { settings: below("max_topics=8", "max_topics=5 retention_ms=9000"), ..tenant("") },
        // another one of that name
        Tenant { created_at: Timestamp(1), ..tenant("") },
    ];
    for other in others {
        assert_ne!(other.etag(), etag);
        assert!(!try_with(IfMatch::OneOf(vec![other.etag()])), "{other:?}");
    }
}
