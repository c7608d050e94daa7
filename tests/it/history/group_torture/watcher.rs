//! Looks at the groups in the database all the time, each look one snapshot of all of them, and
//! judges what has happened between two: who owns what, since when, and how soon what a dead member
//! had went to others.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use serde_json::Value;
use sqlx::{ConnectOptions, PgConnection, postgres::PgConnectOptions};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{At, Kind, World};

const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Less than the time between two renewals of the shortest lease: a lease that was seen that long
/// ago is still the newest, or has been renewed and has not run out.
const SEEN_LATELY: Duration = Duration::from_millis(300);
/// Within this time of the end of its lease others own what a member had.
const HANDOVER_MS: i64 = 1_000;
/// What a loaded machine may add to it.
const SLACK_MS: i64 = 1_000;

const LOOK: &str = "select json_agg(json_build_object( \
        'group', g.name, 'generation', g.generation, \
        'members', (select coalesce(json_agg(json_build_object( \
                'id', m.member_id, 'instance_id', m.instance_id, \
                'lease_ms', round(extract(epoch from m.lease_expires_at) * 1000)::bigint)), '[]') \
            from oncelog.group_members m where m.tenant_id = g.tenant_id and m.group_name = g.name), \
        'places', (select coalesce(json_agg(json_build_object( \
                'topic', t.name, 'partition', l.partition, 'owner', o.member_id, 'since', o.owned_since, \
                'owned_ms', round(extract(epoch from o.owned_at) * 1000)::bigint, \
                'assigned_to', o.assigned_to, 'committed', o.committed_offset)), '[]') \
            from oncelog.group_offsets o \
            join oncelog.logs l on l.tenant_id = o.tenant_id and l.log_id = o.log_id \
            join oncelog.topics t on t.tenant_id = l.tenant_id and t.topic_id = l.topic_id \
            where o.tenant_id = g.tenant_id and o.group_name = g.name)))::text \
    from oncelog.groups g";

#[derive(Clone, Debug)]
struct Lease {
    instance_id: Option<String>,
    until_ms: i64,
}

#[derive(Clone, Debug)]
struct Place {
    /// Who, since which generation, and since when.
    owner: Option<(String, i64, i64)>,
    assigned_to: Option<String>,
    committed: Option<i64>,
}

#[derive(Clone, Debug, Default)]
struct Group {
    generation: i64,
    members: BTreeMap<String, Lease>,
    places: BTreeMap<At, Place>,
}

/// All groups in one instant.
#[derive(Clone, Debug, Default)]
pub struct Look(BTreeMap<String, Group>);

impl Look {
    async fn take(connection: &mut PgConnection) -> Self {
        let text: Option<String> = sqlx::query_scalar(LOOK).fetch_one(connection).await.unwrap();
        let groups: Vec<Value> =
            text.map(|text| serde_json::from_str(&text).unwrap()).unwrap_or_default();
        Self(
            groups
                .iter()
                .map(|group| (string(&group["group"]).unwrap(), Group::of(group)))
                .collect(),
        )
    }

    /// Both groups have committed all there is, and every partition has the owner that it is to
    /// have.
    pub fn is_quiet(&self, ends: &BTreeMap<At, i64>, members: usize) -> bool {
        let is_settled = |group: &Group, at: &At, end: i64| {
            group.places.get(at).is_some_and(|place| {
                let owner = place.owner.as_ref().map(|(id, ..)| id);
                let is_member = owner.is_some_and(|id| group.members.contains_key(id));
                is_member
                    && owner == place.assigned_to.as_ref()
                    && place.committed.unwrap_or(0) == end
            })
        };
        self.0.len() == Kind::ALL.len()
            && self.0.values().all(|group| group.members.len() == members)
            && self.0.values().all(|group| ends.iter().all(|(at, end)| is_settled(group, at, *end)))
    }

    /// Nobody is a member, and nobody owns anything.
    pub fn is_empty(&self) -> bool {
        let is_empty = |group: &Group| {
            group.members.is_empty() && group.places.values().all(|place| place.owner.is_none())
        };
        self.0.values().all(is_empty)
    }

    /// All subscribe to the same: no member has two partitions more than another.
    pub fn judge_balance(&self) {
        for (name, group) in &self.0 {
            let mut owned: BTreeMap<&String, usize> =
                group.members.keys().map(|id| (id, 0)).collect();
            for (owner, ..) in group.places.values().filter_map(|place| place.owner.as_ref()) {
                *owned.entry(owner).or_default() += 1;
            }
            let (most, least) = (owned.values().max().unwrap(), owned.values().min().unwrap());
            assert!(most - least <= 1, "{name}: {owned:?}");
        }
    }
}

fn string(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

impl Group {
    fn of(group: &Value) -> Self {
        let list = |name: &str| group[name].as_array().unwrap().iter();
        let member = |member: &Value| {
            let (instance_id, until_ms) =
                (string(&member["instance_id"]), member["lease_ms"].as_i64().unwrap());
            (string(&member["id"]).unwrap(), Lease { instance_id, until_ms })
        };
        let place = |place: &Value| {
            let at =
                (string(&place["topic"]).unwrap(), place["partition"].as_i64().unwrap() as i32);
            let owner = string(&place["owner"]).map(|owner| {
                (owner, place["since"].as_i64().unwrap(), place["owned_ms"].as_i64().unwrap())
            });
            let (assigned_to, committed) =
                (string(&place["assigned_to"]), place["committed"].as_i64());
            (at, Place { owner, assigned_to, committed })
        };
        Self {
            generation: group["generation"].as_i64().unwrap(),
            members: list("members").map(member).collect(),
            places: list("places").map(place).collect(),
        }
    }

    fn is_replaced(&self, lease: &Lease) -> bool {
        lease.instance_id.is_some()
            && self.members.values().any(|member| member.instance_id == lease.instance_id)
    }
}

/// How long after the end of a lease others owned what its member had.
#[derive(Default)]
pub struct Handovers {
    looks: u64,
    after_ms: Vec<i64>,
    let_go: u64,
    pub expired: u64,
    replaced: u64,
}

impl fmt::Display for Handovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sorted = self.after_ms.clone();
        sorted.sort_unstable();
        let (median, most) = (sorted.get(sorted.len() / 2), sorted.last());
        let Self { looks, let_go, expired, replaced, .. } = self;
        write!(
            f,
            "{looks} looks at the groups, {let_go} partitions let go of, {replaced} members \
             replaced by their instance, {expired} expired; of their {} partitions others were owners after the lease by median {median:?} ms, at \
             most {most:?} ms",
            sorted.len()
        )
    }
}

impl Handovers {
    fn judge(&mut self, name: &str, before: &Group, after: &Group, left: &BTreeSet<String>) {
        assert!(after.generation >= before.generation, "{name}: generations only grow");
        for (id, lease) in &before.members {
            let is_gone = !after.members.contains_key(id);
            if is_gone && after.is_replaced(lease) {
                self.replaced += 1;
            } else if is_gone && !left.contains(id) {
                self.expired += 1;
            }
        }
        for (at, place) in &after.places {
            let Some((owner, since, at_ms)) = &place.owner else { continue };
            assert!(*since <= after.generation, "{name} {at:?}: owned since {since}");
            assert!(after.members.contains_key(owner), "{name} {at:?}: {owner} is no member");
            let former = before.places.get(at);
            let Some((former_owner, former_since, _)) = former.and_then(|f| f.owner.as_ref())
            else {
                continue;
            };
            if former_owner == owner && former_since == since {
                continue;
            }
            let Some(lease) = before.members.get(former_owner) else { continue };
            if since == former_since {
                assert!(after.is_replaced(lease), "{name} {at:?}: two owners since {since}");
                continue;
            }
            assert!(since > former_since, "{name} {at:?}: {former_since}, then {since}");
            let was_to_move = former.unwrap().assigned_to.as_ref() != Some(former_owner);
            let is_gone = !after.members.contains_key(former_owner);
            if was_to_move || !is_gone {
                self.let_go += 1;
            } else if !left.contains(former_owner) && !after.is_replaced(lease) {
                let after_ms = at_ms - lease.until_ms;
                assert!(
                    after_ms >= 0,
                    "{name} {at:?}: taken {} ms before the lease ended",
                    -after_ms
                );
                let most = HANDOVER_MS + SLACK_MS;
                assert!(after_ms <= most, "{name} {at:?}: {after_ms} ms without an owner");
                self.after_ms.push(after_ms);
            }
        }
    }
}

pub struct Watcher {
    latest: Arc<Mutex<Look>>,
    stop: CancellationToken,
    watching: JoinHandle<(Look, Handovers)>,
}

impl Watcher {
    pub fn start(options: &PgConnectOptions, world: Arc<World>) -> Self {
        let (latest, stop) = (Arc::<Mutex<Look>>::default(), CancellationToken::new());
        let (shown, stopped, options) = (latest.clone(), stop.clone(), options.clone());
        let watching = tokio::spawn(async move {
            let mut connection = options.connect().await.unwrap();
            let (mut before, mut looked) = (Look::default(), Instant::now());
            let mut handovers = Handovers::default();
            let pause = || tokio::time::sleep(LOOK_INTERVAL);
            while stopped.run_until_cancelled(pause()).await.is_some() {
                let look = Look::take(&mut connection).await;
                // who asked to leave before the look
                let left = world.left.lock().unwrap().clone();
                handovers.looks += 1;
                let is_lately = looked.elapsed() < SEEN_LATELY;
                for (name, group) in look.0.iter().filter(|_| is_lately) {
                    if let Some(before) = before.0.get(name) {
                        handovers.judge(name, before, group, &left);
                    }
                }
                (before, looked) = (look.clone(), Instant::now());
                *shown.lock().unwrap() = look;
            }
            (Look::take(&mut connection).await, handovers)
        });
        Self { latest, stop, watching }
    }

    pub fn latest(&self) -> Look {
        self.latest.lock().unwrap().clone()
    }

    /// The last look, and what happened before.
    pub async fn stop(self) -> (Look, Handovers) {
        self.stop.cancel();
        self.watching.await.unwrap()
    }
}
