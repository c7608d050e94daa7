//! Some of everything that can be asked of oncelog, of two replicas in turn.

use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::served::{Answer, Client, partition_path, until};

pub struct Traffic<'a> {
    pub replicas: [&'a Client; 2],
    /// Of all names: several may run at once.
    pub suffix: usize,
}

impl Traffic<'_> {
    fn client(&self, turn: i64) -> &Client {
        self.replicas[usize::try_from(turn).unwrap() % 2]
    }

    fn name(&self, name: &str) -> String {
        format!("{name}{}", self.suffix)
    }

    async fn post(&self, turn: i64, path: &str, body: Value) -> Value {
        self.send(turn, Method::POST, path, &[], Some(&body)).await.json()
    }

    async fn keyed(&self, turn: i64, path: &str, key: &str, body: &Value) -> Value {
        let key = self.name(key);
        self.send(turn, Method::POST, path, &[("idempotency-key", &key)], Some(body)).await.json()
    }

    /// Until it is done. (Somebody else may have been at the same rows: that changes nothing, and
    /// happens more often the stricter transactions are kept apart.)
    async fn send(
        &self,
        turn: i64,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Answer {
        let headers = [&[("content-type", "application/json")], headers].concat();
        until("an answer", async || {
            let body = body.map(ToString::to_string);
            let send = self.client(turn).send(method.clone(), path, &headers, body);
            let answer = send.await.unwrap();
            if answer.status == 503 && answer.json()["side_effects"] == "none" {
                return None;
            }
            assert!((200..300).contains(&answer.status), "{path}: {answer:?}");
            Some(answer)
        })
        .await
    }

    pub async fn run(&self) {
        let topic = self.name("t");
        self.put_topic(&topic).await;
        self.appends(&topic).await;
        self.transactions(&topic).await;
        self.groups(&topic).await;
        self.administration(&topic).await;
    }

    async fn put_topic(&self, topic: &str) {
        let body = json!({"partition_count": 3});
        self.send(0, Method::PUT, &format!("/v1/topics/{topic}"), &[], Some(&body)).await;
    }

    async fn delete(&self, turn: i64, path: &str) {
        self.send(turn, Method::DELETE, path, &[], None).await;
    }

    async fn get(&self, turn: i64, path: &str) -> Value {
        self.send(turn, Method::GET, path, &[], None).await.json()
    }

    async fn appends(&self, topic: &str) {
        let (partition, whole) = (partition_path(topic, 0), format!("/v1/topics/{topic}/records"));
        let session = json!({"transactional_id": self.name("p"), "open_id": Uuid::now_v7()});
        let (first, again) = (
            self.post(0, "/v1/sessions", session.clone()).await,
            self.post(1, "/v1/sessions", session).await,
        );
        assert_eq!(first["producer_id"], again["producer_id"]);
        let open = json!({"transactional_id": self.name("p")});
        let session = self.keyed(0, "/v1/sessions", "open", &open).await;
        let numbered = |sequence: i64, records: Value| {
            json!({"producer_id": session["producer_id"], "epoch": session["epoch"],
                "sequence": sequence, "records": records})
        };
        for sequence in 0..6 {
            let body = numbered(sequence, json!([{"key": "k", "value": sequence}, {"value": 0}]));
            let stored = self.post(sequence, &partition, body.clone()).await;
            let again = self.post(sequence + 1, &partition, body).await;
            assert_eq!(stored["base_offset"], again["base_offset"]);
            assert_eq!(again["duplicate"], true);
            let body =
                numbered(sequence, json!([{"key": "a", "value": 1}, {"key": "b", "value": 2}]));
            self.post(sequence, &whole, body).await;
            let body = json!({"records": [{"value": 1}]});
            self.post(sequence, &partition, body.clone()).await;
            let key = format!("append-{sequence}");
            let stored = self.keyed(sequence, &whole, &key, &body).await;
            let again = self.keyed(sequence + 1, &whole, &key, &body).await;
            assert_eq!((&stored["duplicate"], &again["duplicate"]), (&json!(false), &json!(true)));
            let body = json!({"records": [{"id": format!("id-{sequence}"), "value": 1}]});
            self.post(sequence, &whole, body.clone()).await;
            assert_eq!(self.post(sequence + 1, &whole, body).await["duplicate"], true);
        }
        let path = format!("/v1/sessions/{}", session["producer_id"]);
        for read in [path.clone(), format!("{path}/sequences"), "/v1/sessions".into()] {
            self.get(1, &read).await;
        }
        self.delete(1, &path).await;
    }

    async fn transactions(&self, topic: &str) {
        let open = json!({"transactional_id": self.name("x")});
        let session = self.post(0, "/v1/sessions", open).await;
        let (id, epoch) = (&session["producer_id"], &session["epoch"]);
        let appends =
            |value: i64| json!([{"topic": topic, "records": [{"key": "k", "value": value}]}]);
        for (turn, end) in (0..6).zip(["commit", "abort", "prepare"].into_iter().cycle()) {
            let of_session = json!({"producer_id": id, "epoch": epoch});
            let begun = self.post(turn, "/v1/transactions", of_session.clone()).await;
            let path = format!("/v1/transactions/{}", begun["transaction_id"].as_str().unwrap());
            for sequence in 0..3 {
                let mut body = of_session.clone();
                body["appends"] = appends(sequence);
                body["sequence"] = json!(sequence);
                self.post(turn + sequence, &format!("{path}/records"), body).await;
            }
            if end != "commit" || turn > 3 {
                let mut body = of_session.clone();
                let group = self.name(&format!("by-hand-{turn}-"));
                body["offsets"] = json!([{"group": group, "topic": topic, "partition": 0,
                    "expected_offset": null, "offset": 1}]);
                self.post(turn, &format!("{path}/offsets"), body).await;
            }
            self.post(turn + 1, &format!("{path}/{end}"), of_session.clone()).await;
            if end == "prepare" {
                self.post(turn, &format!("{path}/commit"), of_session).await;
            }
            self.get(turn, &path).await;
        }
        for turn in 0..3 {
            let id = Uuid::now_v7();
            let body = json!({"transaction_id": id, "appends": appends(turn), "commit": true});
            self.post(turn, "/v1/transactions", body.clone()).await;
            assert_eq!(self.post(turn + 1, "/v1/transactions", body).await["duplicate"], true);
            let anonymous = json!({"appends": appends(turn), "timeout_ms": 1_000});
            self.post(turn, "/v1/transactions", anonymous).await;
        }
        self.get(0, "/v1/transactions").await;
    }

    async fn groups(&self, topic: &str) {
        let group = self.name("g");
        let members = format!("/v1/groups/{group}/members");
        let join = json!({"topics": [topic], "auto_offset_reset": "earliest"});
        let mut joined = Vec::new();
        for turn in 0..2 {
            let key = format!("join-{turn}");
            let member = self.keyed(turn, &members, &key, &join).await;
            joined.push(member["member_id"].as_str().unwrap().to_owned());
        }
        for round in 0..3 {
            for (turn, member) in (round..).zip(&joined) {
                let path = format!("{members}/{member}");
                self.post(turn, &format!("{path}/heartbeat"), json!({})).await;
                let fetched = self.get(turn, &format!("{path}/records?limit=3")).await;
                let commit = json!({"member_id": member, "generation": fetched["generation"],
                    "cursor": fetched["cursor"]});
                let path = format!("/v1/groups/{group}/offsets");
                let answer = self.client(turn + 1).post(&path, &commit).await;
                // whose partitions go to the other just now has to fetch again
                assert!([200, 409].contains(&answer.status), "{answer:?}");
            }
        }
        for read in [
            format!("/v1/groups/{group}"),
            format!("/v1/groups/{group}/offsets"),
            "/v1/groups".into(),
        ] {
            self.get(1, &read).await;
        }
        for (turn, member) in (0..).zip(&joined) {
            self.delete(turn, &format!("{members}/{member}")).await;
        }
        let reset = json!({"to": "earliest"});
        self.post(0, &format!("/v1/groups/{group}/offsets/reset"), reset).await;
        self.delete(1, &format!("/v1/groups/{group}")).await;
    }

    async fn administration(&self, topic: &str) {
        let path = format!("/v1/topics/{topic}");
        let patch = async |path: &str, body: Value| {
            self.send(0, Method::PATCH, path, &[], Some(&body)).await;
        };
        patch(&path, json!({"partition_count": 5, "settings": {"max_batch_records": 500}})).await;
        patch("/v1/settings", json!({"max_batch_records": 5_000})).await;
        self.post(1, &format!("{path}/records"), json!({"records": [{"key": "z", "value": 1}]}))
            .await;
        self.delete(1, &format!("{path}/partitions/0/records?before=3")).await;
        for read in ["/records?offset=earliest", "/partitions/0/records?offset=earliest", ""] {
            self.get(1, &format!("{path}{read}")).await;
        }
        self.put_topic(&self.name("short")).await;
        self.delete(1, &format!("/v1/topics/{}", self.name("short"))).await;
    }
}
