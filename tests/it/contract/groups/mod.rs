//! Groups: what operators see and do.

mod admin;
mod expiry;
pub mod members;
pub mod offsets;
mod races;
mod reset;
mod size;

use oncelog::model::{
    TenantId,
    group::{AutoOffsetReset, Join, Joined, Subscription},
};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{
    self,
    http::{Answer, Call, Server},
    name,
};

impl Server {
    pub fn group(&self, group: &str) -> Call {
        self.get(&format!("/v1/groups/{group}"))
    }

    pub fn delete_group(&self, group: &str) -> Call {
        self.delete(&format!("/v1/groups/{group}"))
    }

    pub fn reset(&self, group: &str, reset: Value) -> Call {
        self.post(&format!("/v1/groups/{group}/offsets/reset")).json(reset)
    }

    pub async fn tenant_id(&self) -> TenantId {
        support::tenant(&self.broker).await
    }

    /// A member of these topics.
    pub async fn member(
        &self,
        group: &str,
        topics: &[&str],
        reset: Option<AutoOffsetReset>,
    ) -> Joined {
        let topics = topics.iter().map(|topic| name(topic)).collect();
        let join = Join {
            subscription: Subscription { topics, ..Subscription::default() },
            instance_id: None,
            session_timeout_ms: None,
            auto_offset_reset: reset,
        };
        self.broker
            .join_group(self.tenant_id().await, &name(group), join, None)
            .await
            .unwrap()
            .value
    }

    pub async fn leave(&self, group: &str, member: &Joined) {
        let tenant = self.tenant_id().await;
        self.broker.leave_group(tenant, &name(group), &member.member_id).await.unwrap();
    }

    /// A transaction that is to commit an offset, prepared; its id.
    pub async fn pin(&self, group: &str, topic: &str, partition: i32, from: Value) -> String {
        let id = Uuid::now_v7().to_string();
        let offset = json!({"group": group, "topic": topic, "partition": partition, "offset": 3,
            "expected_offset": from});
        let begin = json!({"transaction_id": id, "offsets": [offset]});
        self.post("/v1/transactions").json(begin).await.created();
        self.post(&format!("/v1/transactions/{id}/prepare")).await.ok();
        id
    }
}

/// One member of each partition of a description: `0 5, 1 null`.
#[track_caller]
fn each(answer: &Answer, member: &str) -> String {
    let answer = answer.ok();
    let one = |place: &Value| format!("{} {}", place["partition"], place[member]);
    answer["partitions"].as_array().unwrap().iter().map(one).collect::<Vec<_>>().join(", ")
}
