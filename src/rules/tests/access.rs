//! Who may open, see, end a session, and who may handle a transaction.

use std::sync::Arc;

use crate::{
    model::{
        ProducerId, Scopes, Word,
        scopes::{Reach, SessionOwner},
        session::{Open, Sequences, Sequencing},
    },
    rules::{
        Refusal,
        access::{check_open, check_session, check_transaction},
        session::{End, end, open, repeat},
        tests::{name, session::a_row},
    },
};

fn an_open(scope: &str, transactional_id: Option<&str>, is_conditional: bool) -> Open {
    Open {
        transactional_id: transactional_id.map(name),
        condition: is_conditional.then_some((ProducerId(7), 3)),
        open_id: None,
        transaction_timeout_ms: None,
        sequencing: Sequencing::Contiguous,
        sequences: Sequences::Continue,
        scopes: scopes(scope),
    }
}

/// `produce:pay@1`: the scope, and the subject of the token.
fn scopes(text: &str) -> Arc<Scopes> {
    let (scope, subject) = text.split_once('@').unwrap_or((text, ""));
    let subject = subject.parse().ok().map(|number: u8| [number; 32]);
    Arc::new(Scopes::parse(scope, subject))
}

fn not_covered(scope: &str) -> Refusal {
    Refusal::SessionNotCovered { scope: scope.to_owned() }
}

#[test]
fn opens_by_what_they_name() {
    let table = [
        ("produce:pay*", Some("pay-1"), false, Ok(())),
        ("produce:x@1", Some("pay"), false, Err(not_covered("produce:pay"))),
        ("produce:x", Some("pay"), true, Err(not_covered("produce:pay"))),
        ("produce:x@1", None, false, Ok(())),
        ("produce", None, false, Ok(())),
        ("produce:*", None, false, Err(Refusal::NamelessSession)),
        // the session's row decides
        ("produce:x", None, true, Ok(())),
    ];
    for (scope, name, is_conditional, want) in table {
        let found = check_open(&an_open(scope, name, is_conditional));
        assert_eq!(found, want, "{scope} {name:?} {is_conditional}");
    }
}

/// What is said of a session that the token does not cover is that alone: neither its epoch nor its
/// name.
#[test]
fn a_row_that_is_not_covered_is_refused_first() {
    let refused = not_covered("produce");
    for row in ["P7 pay e3", "P7 pay e3 closed", "P7 pay e9"] {
        let row = a_row(row).unwrap();
        let asked = an_open("produce:x@1", None, true);
        assert_eq!(open(&asked, Some(&row)).unwrap_err(), refused);
        let again = repeat(&asked, Some(row.clone()), (ProducerId(7), 3));
        assert_eq!(again.unwrap_err(), refused);
        for epoch in [None, Some(2), Some(10)] {
            assert_eq!(end(&row, epoch, &scopes("produce:x@1")).unwrap_err(), refused);
        }
    }
    let row = a_row("P7 pay e3").unwrap();
    assert_eq!(open(&an_open("produce:pay", None, true), Some(&row)).unwrap().epoch, 4);
    assert_eq!(end(&row, None, &scopes("produce:pay")), Ok(End::Now));
    let unknown = Refusal::UnknownProducer { producer_id: ProducerId(7) };
    assert_eq!(open(&an_open("produce:x", None, true), None).unwrap_err(), unknown);
}

#[test]
fn a_session_without_a_name_is_its_openers() {
    let mut row = a_row("P7 e3").unwrap();
    row.opened_by = Some([1; 32]);
    for (scope, is_covered) in
        [("produce:x@1", true), ("produce:x@2", false), ("produce:*", false), ("produce@2", true)]
    {
        let opened = open(&an_open(scope, None, true), Some(&row));
        assert_eq!(opened.is_ok(), is_covered, "{scope}");
        assert_eq!(check_session(&scopes(scope), &row.owner()).is_ok(), is_covered, "{scope}");
    }
}

#[test]
fn the_refusal_of_a_transaction_tells_a_word_alone() {
    let session = SessionOwner { transactional_id: Some(name("pay")), opened_by: None };
    let reach = Reach { session: Some(session), topics: vec![name("t")], groups: vec![name("g")] };
    let table = [
        ("produce:t produce:pay group:g", Ok(())),
        ("produce:t group:g", Err(Word::Produce)),
        ("produce:pay group:g", Err(Word::Produce)),
        ("produce:t produce:pay", Err(Word::Group)),
    ];
    for (scope, want) in table {
        let want = want.map_err(|word| Refusal::TransactionNotCovered { word });
        assert_eq!(check_transaction(&scopes(scope), &reach), want, "{scope}");
    }
}
