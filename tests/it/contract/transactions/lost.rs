//! A lost answer of the database, in every form that a transaction has: the connection is cut
//! before a statement arrives, or after, when only its answer is missing. A client that does what
//! `retry` says ends in the right outcome, and what it asked for is done once.

use std::collections::BTreeSet;

use oncelog::model::Code;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{KEY, append, committed_offset, number, read, see, step};
use crate::support::{
    http::{Answer, Server, Setup},
    proxy::Proxy,
    served::until,
};

/// A replica whose connections can be cut, and one that always sees the truth.
struct World {
    server: Server,
    cut: Server,
    proxy: Proxy,
    /// By form: what made the client send again, and what was lost.
    told: BTreeSet<(&'static str, String)>,
}

async fn world() -> World {
    let server = Server::start().await;
    server.topic("orders", 2).await;
    server.topic("carts", 1).await;
    let carts = json!({"records": vec![json!({"value": "cart"}); 200]});
    server.post("/v1/topics/carts/partitions/0/records").json(carts).await.ok();
    let proxy = Proxy::start(&server.options, 1).await;
    let cut = Server::on(&proxy.options(&server.options), Setup::default()).await;
    World { server, cut, proxy, told: BTreeSet::new() }
}

/// Where a call is cut: before a message arrives, or once it has, so that only the answer is lost.
#[derive(Clone, Copy, Debug)]
struct Cut {
    at: At,
    arrives: bool,
}

#[derive(Clone, Copy, Debug)]
enum At {
    /// The one after that many.
    Step(u64),
    /// The next one that holds this text.
    Text(&'static str),
}

/// That the answer of a statement that was looked for was lost, whatever the client was told: a
/// lane asks again by itself.
const ANSWER_LOST: &str = "answer lost";

/// In every record.
const MARK: &str = "cut here";

fn cuts(steps: u64) -> impl Iterator<Item = Cut> {
    let texts = [At::Text("COMMIT"), At::Text(MARK)];
    let places = (0..steps).map(At::Step).chain(texts);
    places.flat_map(|at| [false, true].map(|arrives| Cut { at, arrives }))
}

impl World {
    /// Sends a call that is cut off, and sends it again as `retry` says, until it is done.
    async fn post(&mut self, form: &'static str, path: &str, body: &Value, cut: Cut) -> Answer {
        let (mut answer, answer_lost) = self.post_once(path, body, cut).await;
        if answer_lost {
            self.told.insert((form, ANSWER_LOST.to_owned()));
        }
        for _ in 0..20 {
            if answer.status < 300 || answer.json()["code"] == Code::AppendsMissing.as_str() {
                return answer;
            }
            let problem = answer.json();
            self.told.insert((form, problem["code"].as_str().unwrap().to_owned()));
            let again = ["same", "later"].contains(&problem["retry"].as_str().unwrap());
            assert!(again, "{cut:?} {path} {body}: {problem}");
            answer = super::post(&self.cut, path, body).await;
        }
        panic!("{cut:?} {path} {body}: {}", answer.text());
    }

    async fn post_once(
        &self,
        path: &str,
        body: &Value,
        Cut { at, arrives }: Cut,
    ) -> (Answer, bool) {
        let call = super::post(&self.cut, path, body);
        let steps = match at {
            At::Step(steps) => steps,
            At::Text(text) => {
                self.proxy.cut_at(text, arrives);
                let answer = call.await;
                let cut = self.proxy.cut_nowhere();
                return (answer, cut && arrives);
            }
        };
        self.proxy.close_gate();
        self.proxy.let_through(steps);
        let call = tokio::spawn(call.into_future());
        let held = async || (call.is_finished() || self.proxy.held() > 0).then_some(());
        until("the call to be held", held).await;
        if arrives {
            self.proxy.lose_held_answers();
        } else {
            self.proxy.cut_all();
        }
        self.proxy.open_gate();
        (call.await.unwrap(), false)
    }

    async fn finish(&self, wanted: &[(Value, Uuid)]) {
        let wanted: Vec<(Value, Value)> =
            wanted.iter().map(|(value, id)| (value.clone(), json!(id))).collect();
        assert_eq!(read(&self.server, "orders", 0).await, wanted);
        println!("{:?}", self.told);
        assert_eq!(crate::support::deadlocks(&self.server.options), 0);
    }
}

/// The forms a transaction has, by the call that is cut.
const FORMS: [&str; 10] = [
    "begin",
    "begin with work",
    "records, numbered",
    "records",
    "offsets",
    "prepare",
    "commit",
    "commit with work",
    "whole",
    "whole, keyed",
];

/// One transaction: a record, and a step of the group.
struct Run<'a> {
    world: &'a mut World,
    form: &'static str,
    cut: Cut,
    id: Uuid,
    /// The session, if there is one.
    signature: Value,
}

impl Run<'_> {
    fn body(&self, mut body: Value) -> Value {
        for (name, value) in self.signature.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        body
    }

    /// A call: cut, if that is the form's.
    async fn call(&mut self, form: &str, verb: &str, body: Value) -> Answer {
        let path = match verb {
            "begin" => super::ALL.to_owned(),
            verb => format!("{}/{}/{verb}", super::ALL, self.id),
        };
        let body = self.body(body);
        if form == self.form {
            return self.world.post(self.form, &path, &body, self.cut).await;
        }
        super::post(&self.world.server, &path, &body).await
    }

    /// Does all of it; false: it was aborted.
    async fn all(&mut self, value: &Value, from: Option<i64>) -> bool {
        let (id, form) = (json!(self.id), self.form);
        let appends = json!([append("orders", 0, std::slice::from_ref(value))]);
        let offsets = json!([step("carts", 0, json!(from), from.unwrap_or(0) + 1)]);
        if form.starts_with("whole") {
            let mut body = json!({"commit": true, "appends": appends, "offsets": offsets});
            match form {
                "whole" => body["transaction_id"] = id,
                _ => body[KEY] = json!(format!("evt_{id}")),
            }
            let answer = self.call(form, "begin", body).await;
            assert_eq!(answer.json()["state"], "committed", "{}", answer.text());
            self.id = answer.json()["transaction_id"].as_str().unwrap().parse().unwrap();
            return true;
        }
        if form == "begin with work" {
            let body = json!({"transaction_id": id, "appends": appends, "offsets": offsets});
            self.call(form, "begin", body).await;
        } else {
            self.call("begin", "begin", json!({"transaction_id": id})).await;
        }
        let mut commit = json!({"expected_appends": 1});
        match form {
            "begin with work" => {}
            "commit with work" => {
                commit["appends"] = appends;
                commit["offsets"] = offsets;
            }
            _ => {
                let mut records = json!({"appends": appends});
                if form != "records" {
                    records["sequence"] = json!(0);
                }
                let numbered = if form == "records" { form } else { "records, numbered" };
                self.call(numbered, "records", records).await.ok();
                self.call("offsets", "offsets", json!({"offsets": offsets})).await.ok();
            }
        }
        if form == "prepare" {
            let prepared = self.call(form, "prepare", json!({})).await.ok();
            assert_eq!(prepared["state"], "prepared");
        }
        let end = if form == "commit with work" { form } else { "commit" };
        let ended = self.call(end, "commit", commit).await;
        if ended.status == 409 {
            // a call without a number was done, and done again: that is seen, and costs the
            // transaction
            let problem = ended.refused(Code::AppendsMissing);
            let counts = (&problem["expected"], &problem["received"]);
            assert_eq!((form, counts), ("records", (&json!(1), &json!(2))));
            self.call("abort", "abort", json!({})).await.ok();
            return false;
        }
        let ended = ended.ok();
        assert_eq!((&ended["state"], &ended["append_count"]), (&json!("committed"), &json!(1)));
        true
    }
}

async fn signature(server: &Server, signed: bool) -> Value {
    if !signed {
        return json!({});
    }
    let (producer_id, epoch) = server.session("p").await;
    json!({"producer_id": producer_id, "epoch": epoch})
}

/// Every form, cut at every step, by a session or without.
async fn every_form_ends_right(signed: bool) {
    let mut world = world().await;
    let (mut wanted, mut offset, mut doubled) = (Vec::new(), None, 0);
    for form in FORMS {
        for cut in cuts(if signed { 2 } else { 4 }) {
            let value = json!(format!("{MARK}: {form}, {cut:?}"));
            let signature = signature(&world.server, signed).await;
            let mut run = Run { world: &mut world, form, cut, id: Uuid::now_v7(), signature };
            if !run.all(&value, offset).await {
                // from the beginning, under a new id
                run.id = Uuid::now_v7();
                run.form = "none";
                assert!(run.all(&value, offset).await);
                doubled += 1;
            }
            let id = run.id;
            wanted.push((value, id));
            offset = Some(offset.unwrap_or(0) + 1);
            assert_eq!(committed_offset(&world.server, "carts", 0).await, offset, "{form} {cut:?}");
            assert_eq!(see(&world.server, id).await["state"], "committed");
        }
    }
    println!("{doubled} calls without a number were done twice, and seen");
    for form in FORMS {
        let lost = [ANSWER_LOST, Code::OutcomeUnknown.as_str()];
        let is_told = |what: &&str| world.told.contains(&(form, (**what).to_owned()));
        assert!(lost.iter().any(is_told), "{form}: no answer was lost");
    }
    world.finish(&wanted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_form_without_a_session_is_done_once_whichever_answer_is_lost() {
    every_form_ends_right(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_form_of_a_session_is_done_once_whichever_answer_is_lost() {
    every_form_ends_right(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_is_done_whichever_answer_is_lost() {
    let mut world = world().await;
    for prepares in [false, true] {
        for cut in cuts(4) {
            let id = Uuid::now_v7();
            let body = json!({"transaction_id": id, "appends": [append("orders", 0, &[json!(0)])]});
            world.server.post(super::ALL).json(&body).await.created();
            let path = format!("{}/{id}", super::ALL);
            if prepares {
                world.server.post(&format!("{path}/prepare")).await.ok();
            }
            let aborted = world.post("abort", &format!("{path}/abort"), &json!({}), cut).await.ok();
            assert_eq!(
                (&aborted["state"], &aborted["reason"]),
                (&json!("aborted"), &json!("client"))
            );
        }
    }
    assert_eq!(number(&world.server, "select count(*) from oncelog.pins").await, 0);
    assert!(world.told.contains(&("abort", Code::OutcomeUnknown.as_str().to_owned())));
    world.finish(&[]).await;
}
