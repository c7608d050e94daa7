//! Record ids and Idempotency-Keys of appends, over HTTP.

mod crashes;
mod door;
pub mod key_rings;
pub mod keyed;
mod oracle;
mod races;
mod trio;

use oncelog::model::Code;
use serde_json::{Value, json};

use crate::support::http::{Answer, Call, Server};

pub const WHOLE: &str = "/v1/topics/orders/records";
pub const ONE: &str = "/v1/topics/orders/partitions/0/records";

/// A record with an id.
pub fn record(id: &str, value: i64) -> Value {
    json!({"id": id, "key": "k", "value": value})
}

impl Server {
    pub fn send(&self, path: &str, records: &[Value]) -> Call {
        self.post(path).json(json!({"records": records}))
    }

    /// How many records the topic `orders` holds.
    pub async fn stored(&self) -> i64 {
        let topic = self.get("/v1/topics/orders").await.ok();
        let partitions = topic["partitions"].as_array().unwrap();
        partitions.iter().map(|partition| partition["high_watermark"].as_i64().unwrap()).sum()
    }

    /// Everything that is remembered has been so for so long.
    pub async fn ages(&self, ms: i64) {
        let sql = format!(
            "update oncelog.dedup_keys set first_seen_at = first_seen_at - interval '{ms} ms', \
             expires_at = expires_at - interval '{ms} ms'"
        );
        self.sql(sql).await;
    }
}

/// Whether each record is a duplicate.
#[track_caller]
pub fn duplicates(answer: &Answer) -> Vec<bool> {
    let said = answer.ok();
    let offsets = said["offsets"].as_array().unwrap();
    offsets.iter().map(|place| place["duplicate"].as_bool().unwrap()).collect()
}

/// The pointers that a refusal names.
#[track_caller]
pub fn named(answer: &Answer, code: Code) -> Vec<String> {
    let problem = answer.refused(code);
    let errors = problem["errors"].as_array().unwrap();
    errors.iter().map(|error| error["pointer"].as_str().unwrap().to_owned()).collect()
}
