//! Runs: what a member has processed between two commits is committed once, in whatever
//! transaction.

use futures_util::future::join_all;
use uuid::Uuid;

use super::{
    transactions::{made, world},
    *,
};

fn with(seen: &Value) -> String {
    format!("cursor={}", seen["cursor"].as_str().unwrap())
}

fn offsets(member: &Member, seen: &Value) -> Value {
    json!([{"group": member.group, "member_id": member.id, "generation": seen["generation"],
        "cursor": seen["cursor"]}])
}

fn appends() -> Value {
    json!([{"topic": "done", "records": [{"value": "made"}]}])
}

/// How a transaction comes to its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Whole,
    OffsetsFirst,
    OffsetsLast,
    /// All of the work comes with the commit.
    AtTheEnd,
    Prepared,
}

const FORMS: [Form; 5] =
    [Form::Whole, Form::OffsetsFirst, Form::OffsetsLast, Form::AtTheEnd, Form::Prepared];

impl Form {
    /// What would be refused is.
    async fn commit(self, server: &Server, member: &Member, seen: &Value) -> Answer {
        let (offsets, appends) = (offsets(member, seen), appends());
        if self == Form::Whole {
            let body = json!({"appends": appends, "offsets": offsets, "commit": true});
            return server.post("/v1/transactions").json(body).await;
        }
        let begun = server.post("/v1/transactions").await.created();
        let path = format!("/v1/transactions/{}", begun["transaction_id"].as_str().unwrap());
        let (offsets, appends) = (json!({"offsets": offsets}), json!({"appends": appends}));
        let post = async |call: &str, body: &Value| {
            server.post(&format!("{path}/{call}")).json(body).await
        };
        match self {
            Form::AtTheEnd => {
                let mut body = offsets;
                body["appends"] = appends["appends"].clone();
                return post("commit", &body).await;
            }
            Form::OffsetsFirst => {
                post("offsets", &offsets).await.ok();
                post("records", &appends).await.ok();
            }
            _ => {
                post("records", &appends).await.ok();
                post("offsets", &offsets).await.ok();
            }
        }
        if self == Form::Prepared {
            let prepared = post("prepare", &json!({})).await;
            if prepared.status != 200 {
                return prepared;
            }
        }
        post("commit", &json!({})).await
    }

    async fn commits(self, server: &Server, member: &Member, seen: &Value) {
        let answer = self.commit(server, member, seen).await;
        assert!(answer.status < 300, "{self:?}: {}", answer.text());
    }

    async fn conflicts(self, server: &Server, member: &Member, seen: &Value) -> Value {
        let before = made(server).await;
        let problem = self.commit(server, member, seen).await.refused(Code::OffsetCommitConflict);
        assert_eq!(made(server).await, before, "{self:?}");
        problem
    }
}

#[tokio::test]
async fn of_two_transactions_with_the_same_records_one_commits() {
    for first in FORMS {
        for second in FORMS {
            let (here, there) = world().await;
            let a = Member::join(&here, "g", json!({"topics": ["orders"]})).await;
            let page = a.fetch(&here, "limit=2").await.ok();
            first.commits(&here, &a, &page).await;
            let problem = second.conflicts(&there, &a, &page).await;
            assert_eq!(
                (&problem["expected_offset"], &problem["committed_offset"]),
                (&Value::Null, &json!(1))
            );
            // and what begins before and ends behind what is committed has processed it, too
            let longer = a.fetch(&here, &format!("{}&run=continue", with(&page))).await.ok();
            second.conflicts(&there, &a, &longer).await;
            let rest = a.fetch(&here, &with(&page)).await.ok();
            second.commits(&there, &a, &rest).await;
            let problem = first.conflicts(&there, &a, &rest).await;
            assert_eq!(
                (&problem["expected_offset"], &problem["committed_offset"]),
                (&json!(1), &json!(2))
            );
            assert_eq!(made(&here).await, 2);
        }
    }
}

/// Which of them is chance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_at_once_with_the_same_records_one_commits() {
    let (here, there) = world().await;
    let a = Member::join(&here, "g", json!({"topics": ["orders"]})).await;
    let mut seen = a.fetch(&here, "limit=1").await.ok();
    // the first commit in a partition is a slow path, those after it are quick ones
    for round in 1..=8 {
        let partition = round % 2;
        let contenders = FORMS.iter().cycle().take(10).enumerate();
        let commits = contenders.map(|(n, form)| {
            let (server, member, seen) = (if n % 2 == 0 { &here } else { &there }, &a, &seen);
            async move { form.commit(server, member, seen).await }
        });
        let answers = join_all(commits).await;
        let committed = answers.iter().filter(|answer| answer.status < 300).count();
        assert_eq!(committed, 1, "round {round}");
        for refused in answers.iter().filter(|answer| answer.status >= 300) {
            refused.refused(Code::OffsetCommitConflict);
        }
        assert_eq!(made(&here).await, round as usize);
        append(&here, "orders", partition, 1).await;
        seen = a.fetch(&here, &format!("limit=1&{}", with(&seen))).await.ok();
        assert_eq!(records(&seen).len(), 1, "round {round}");
    }
}

#[tokio::test]
async fn a_transaction_repeated_under_its_id_is_answered_as_before() {
    let (here, there) = world().await;
    let a = Member::join(&here, "g", json!({"topics": ["orders"]})).await;
    let page = a.fetch(&here, "limit=2").await.ok();
    let body = json!({"transaction_id": Uuid::now_v7(), "appends": appends(),
        "offsets": offsets(&a, &page), "commit": true});
    let first = here.post("/v1/transactions").json(&body).await.created();
    let rest = a.fetch(&here, &with(&page)).await.ok();
    Form::Whole.commits(&here, &a, &rest).await;
    let again = there.post("/v1/transactions").json(&body).await.ok();
    assert_eq!(again["duplicate"], true);
    assert_eq!(again["appends"], first["appends"]);
    assert_eq!(made(&here).await, 2);
}

/// Where each kind of fetch has its run begin, as transactions prove it.
#[tokio::test]
async fn a_fetch_begins_a_run_where_it_says() {
    // what is committed before the second fetch; its run; whether a transaction of it commits now,
    // and, where that is another matter, after a commit of the first page
    let table = [
        (false, "", true),
        (false, "&run=continue", true),
        (false, "&run=new", false),
        (true, "", true),
        (true, "&run=continue", false),
        (true, "&run=new", true),
    ];
    for (is_committed, run, commits) in table {
        let (here, _) = world().await;
        let a = Member::join(&here, "g", json!({"topics": ["orders"]})).await;
        let first = a.fetch(&here, "limit=2").await.ok();
        if is_committed {
            a.commit_all(&here, &first).await.ok();
        }
        let second = a.fetch(&here, &format!("{}{run}", with(&first))).await.ok();
        assert_eq!(records(&second), ["orders/0@1", "orders/1@1"]);
        match commits {
            true => Form::Whole.commits(&here, &a, &second).await,
            false => drop(Form::Whole.conflicts(&here, &a, &second).await),
        }
    }
}

/// One that commits page by page while it fetches ahead.
#[tokio::test]
async fn who_fetches_ahead_says_that_each_page_is_a_run() {
    let (here, there) = world().await;
    let a = Member::join(&here, "g", json!({"topics": ["orders"]})).await;
    let first = a.fetch(&here, "limit=1").await.ok();
    let second = a.fetch(&there, &format!("limit=1&run=new&{}", with(&first))).await.ok();
    let third = a.fetch(&here, &format!("run=new&{}", with(&second))).await.ok();
    assert_eq!(records(&third).len(), 2);
    // none of them before those before it, not even where they read other partitions
    Form::OffsetsLast.conflicts(&here, &a, &third).await;
    Form::Whole.conflicts(&here, &a, &second).await;
    for page in [&first, &second, &third] {
        Form::Whole.commits(&here, &a, page).await;
    }
    Form::Whole.conflicts(&here, &a, &second).await;
    assert_eq!(made(&here).await, 3);
}

/// A forgotten commit lands between the pages that a transaction gathers.
#[tokio::test]
async fn who_gathers_is_refused_where_a_commit_of_its_own_has_come_between() {
    let (here, there) = world().await;
    let a = Member::join(&here, "g", json!({"topics": ["orders"]})).await;
    // only one partition has something for the second page: the other does not move any more
    let first = a.fetch(&here, "limit=3").await.ok();
    Form::Whole.commits(&there, &a, &first).await;
    let second = a.fetch(&here, &format!("run=continue&{}", with(&first))).await.ok();
    assert_eq!(records(&second).len(), 1);
    Form::Whole.conflicts(&here, &a, &second).await;
    // as where the pages were staged one after the other, each as a run
    let (here, there) = world().await;
    let a = Member::join(&here, "g", json!({"topics": ["orders"]})).await;
    let first = a.fetch(&here, "limit=3").await.ok();
    let begun = here.post("/v1/transactions").await.created();
    let path = format!("/v1/transactions/{}", begun["transaction_id"].as_str().unwrap());
    let add = async |page: &Value| {
        let body = json!({"offsets": offsets(&a, page)});
        here.post(&format!("{path}/offsets")).json(body).await.ok();
        here.post(&format!("{path}/records")).json(json!({"appends": appends()})).await.ok();
    };
    add(&first).await;
    Form::Whole.commits(&there, &a, &first).await;
    let second = a.fetch(&here, &with(&first)).await.ok();
    add(&second).await;
    let refused = here.post(&format!("{path}/commit")).await;
    assert_eq!(refused.refused(Code::OffsetCommitConflict)["expected_offset"], Value::Null);
    assert_eq!(made(&here).await, 1);
}

/// Its first page is part of what the transaction has made, but would not be settled by it.
#[tokio::test]
async fn what_a_continued_run_has_lost_is_not_left_out_of_its_commit() {
    for is_regained in [false, true] {
        let (here, there) = world().await;
        let a = Member::join(&here, "g", json!({"topics": ["orders"]})).await;
        let first = a.fetch(&here, "limit=2").await.ok();
        let b = Member::join(&there, "g", json!({"topics": ["orders"]})).await;
        let told = a.heartbeat(&here).await.ok();
        a.heartbeat_of(&here, &told).await.ok();
        if is_regained {
            b.leave(&there).await;
        }
        let lost = revoked(&told);
        let gathered = a.fetch(&here, &format!("run=continue&{}", with(&first))).await.ok();
        let told = if is_regained { "" } else { &lost };
        assert_eq!(revoked(&gathered), told);
        assert!(records(&gathered).iter().all(|record| !record.starts_with(&lost)), "{gathered}");
        for form in FORMS {
            let refused = form.commit(&there, &a, &gathered).await;
            refused.refused(Code::IllegalGeneration);
        }
        // without that it begins again there, or leaves it to others
        let fresh = a.fetch(&here, &with(&first)).await.ok();
        let again = records(&fresh).iter().filter(|record| record.starts_with(&lost)).count();
        assert_eq!(again, if is_regained { 2 } else { 0 });
        a.commit_all(&here, &fresh).await.ok();
    }
}

#[tokio::test]
async fn pages_that_are_staged_one_after_the_other_are_committed_together() {
    for run in ["", "&run=continue", "&run=new"] {
        let (here, _) = world().await;
        let a = Member::join(&here, "g", json!({"topics": ["orders"]})).await;
        let first = a.fetch(&here, "limit=1").await.ok();
        let second = a.fetch(&here, &format!("{}{run}", with(&first))).await.ok();
        let body = json!({"appends": appends(), "offsets": offsets(&a, &first)});
        let begun = here.post("/v1/transactions").json(body).await.created();
        let path = format!("/v1/transactions/{}/commit", begun["transaction_id"].as_str().unwrap());
        let body = json!({"appends": appends(), "offsets": offsets(&a, &second)});
        here.post(&path).json(body).await.ok();
        assert_eq!(made(&here).await, 2);
        assert_eq!(records(&a.fetch(&here, "").await.ok()), [""; 0]);
        // and in one list
        for partition in 0..2 {
            append(&here, "orders", partition, 1).await;
        }
        let first = a.fetch(&here, &format!("limit=1&{}", with(&second))).await.ok();
        let second = a.fetch(&here, &format!("{}{run}", with(&first))).await.ok();
        let both = [offsets(&a, &first)[0].clone(), offsets(&a, &second)[0].clone()];
        let body = json!({"appends": appends(), "offsets": both, "commit": true});
        here.post("/v1/transactions").json(&body).await.created();
        here.post("/v1/transactions").json(&body).await.refused(Code::OffsetCommitConflict);
        assert_eq!(made(&here).await, 3);
    }
}

#[tokio::test]
async fn who_appends_as_a_member_has_processed_something() {
    let (here, _) = world().await;
    let a = Member::join(&here, "g", json!({"topics": ["orders"]})).await;
    let page = a.fetch(&here, "").await.ok();
    Form::Whole.commits(&here, &a, &page).await;
    let nothing = a.fetch(&here, &with(&page)).await.ok();
    assert_eq!(records(&nothing), [""; 0]);
    for form in FORMS {
        let problem = form.conflicts(&here, &a, &nothing).await;
        assert_eq!(
            (&problem["expected_offset"], &problem["committed_offset"]),
            (&json!(2), &json!(2))
        );
    }
    let by = |offset: i64, more: Value| {
        let mut item = json!({"group": "g", "member_id": a.id, "generation": nothing["generation"],
            "topic": "orders", "partition": 0, "offset": offset});
        item.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"appends": appends(), "offsets": [item], "commit": true})
    };
    let send = async |body: Value| here.post("/v1/transactions").json(body).await;
    send(by(2, json!({}))).await.refused(Code::OffsetCommitConflict);
    send(by(2, json!({"expected_offset": 2}))).await.refused(Code::OffsetCommitConflict);
    // offsets alone repeat nothing, and records alone say nothing of offsets
    let without = json!({"offsets": offsets(&a, &nothing), "commit": true});
    send(without).await.created();
    send(json!({"appends": appends(), "commit": true})).await.created();
    // by number it moves from wherever it is, or from where it is said to be
    append(&here, "orders", 0, 4).await;
    send(by(3, json!({}))).await.created();
    send(by(4, json!({"expected_offset": 2}))).await.refused(Code::OffsetCommitConflict);
    send(by(4, json!({"expected_offset": null}))).await.refused(Code::OffsetCommitConflict);
    send(by(4, json!({"expected_offset": 3}))).await.created();
    let problem = send(by(4, json!({"expected_offset": 3}))).await;
    assert_eq!(problem.refused(Code::OffsetCommitConflict)["committed_offset"], 4);
    let mut mixed = by(4, json!({"cursor": page["cursor"], "expected_offset": 4}));
    let item = mixed["offsets"][0].as_object_mut().unwrap();
    item.retain(|field, _| !["topic", "partition", "offset"].contains(&&**field));
    send(mixed).await.invalid(&["/offsets/0/expected_offset"]);
}

#[tokio::test]
async fn a_run_continues_with_a_cursor_only() {
    let (here, _) = world().await;
    let a = Member::join(&here, "g", json!({"topics": ["orders"]})).await;
    a.fetch(&here, "run=continue").await.invalid(&["?run"]);
    a.fetch(&here, "run=since_commit").await.invalid(&["?run"]);
    assert_eq!(a.fetch(&here, "run=new").await.ok(), a.fetch(&here, "").await.ok());
}

/// What a replica of the version before has staged says nothing of runs.
#[tokio::test]
async fn staged_offsets_of_the_version_before_are_judged_as_before() {
    let (here, _) = world().await;
    let a = Member::join(&here, "g", json!({"topics": ["orders"]})).await;
    let page = a.fetch(&here, "limit=2").await.ok();
    let body = json!({"appends": appends(), "offsets": offsets(&a, &page)});
    let stage = async || {
        let begun = here.post("/v1/transactions").json(&body).await.created();
        here.sql("update oncelog.staged_offsets set began_at_offset = null").await;
        format!("/v1/transactions/{}/commit", begun["transaction_id"].as_str().unwrap())
    };
    let (one, other) = (stage().await, stage().await);
    append(&here, "orders", 0, 1).await;
    here.post(&one).await.ok();
    // the offsets do not move, which is new
    here.post(&other).await.refused(Code::OffsetCommitConflict);
    let longer = a.fetch(&here, &format!("run=continue&{}", with(&page))).await.ok();
    Form::Whole.conflicts(&here, &a, &longer).await;
    let body = json!({"appends": appends(), "offsets": offsets(&a, &longer)});
    let begun = here.post("/v1/transactions").json(&body).await.created();
    here.sql("update oncelog.staged_offsets set began_at_offset = null").await;
    let path = format!("/v1/transactions/{}/commit", begun["transaction_id"].as_str().unwrap());
    here.post(&path).await.ok();
}
