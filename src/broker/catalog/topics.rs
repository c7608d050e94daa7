//! Topics: create, change, describe, delete, trim; and the logs that a name currently stands for.

use std::sync::Arc;

use moka::{future::Cache, ops::compute::Op};
use tokio::time::Instant;

use super::settings::{SETTINGS_LAG, lock_tenant};
use crate::{
    broker::{Broker, Error, wakeup::watch::Change},
    model::{
        Code, LogId, Name, Offset, Partition, TenantId,
        settings::{Changes, OwnSettings},
        topic::{Listed, Page, TopicDescription, TopicPatch, TopicSummary},
    },
    rules,
    store::{self, Connection, History, Store, catalog::topics::StoredTopic},
};

/// Maximum number of cached logs.
const REMEMBERED_LOGS: u64 = 1_000_000;

/// Recently resolved names.
pub struct Topics {
    store: Store,
    cache: Cache<(TenantId, Name), ResolvedTopic>,
}

/// The result of resolving a name.
#[derive(Clone)]
struct ResolvedTopic {
    /// That a topic does not exist, or could not be looked up, is reported only to callers who
    /// asked before.
    topic: Result<Arc<StoredTopic>, Error>,
    history: History,
    /// The result is from this time or later.
    found_at: Instant,
}

impl Topics {
    pub fn new(store: Store) -> Self {
        let cache = Cache::builder()
            // its settings may lag so long; its logs never do: a vanished or moved head means
            // "resolve the name again"
            .time_to_live(SETTINGS_LAG)
            .weigher(|_, found: &ResolvedTopic| {
                let logs = found.topic.as_ref().map_or(0, |topic| topic.logs.len());
                u32::try_from(logs).unwrap_or(u32::MAX).saturating_add(8)
            })
            .max_capacity(REMEMBERED_LOGS)
            .build();
        Self { store, cache }
    }

    /// Resolves a topic. `refresh`: the cached result has proved wrong.
    pub async fn resolve(
        &self,
        tenant: TenantId,
        name: &Name,
        refresh: bool,
    ) -> Result<Arc<StoredTopic>, Error> {
        let (arrived_at, key) = (Instant::now(), (tenant, name.clone()));
        if !refresh
            && let Some(ResolvedTopic { topic: Ok(topic), history, .. }) =
                self.cache.get(&key).await
            && history == self.store.history()
        {
            return Ok(topic);
        }
        // those that look for a name follow each other: all that came before one begins share what
        // it finds, and nobody is told what was found before he came
        let found = self.cache.entry(key).and_compute_with(|known| async move {
            if known.is_some_and(|known| known.value().found_at >= arrived_at) {
                return Op::Nop;
            }
            Op::Put(self.find(tenant, name).await)
        });
        let found = found.await.into_entry().map(|found| found.into_value().topic);
        found.unwrap_or_else(|| Err(Error::internal()))
    }

    async fn find(&self, tenant: TenantId, name: &Name) -> ResolvedTopic {
        let (found_at, wanted) = (Instant::now(), name.clone());
        let find = self.store.of(tenant).run(async move |connection| {
            store::catalog::topics::find(connection, tenant, &wanted).await
        });
        let topic = match find.await {
            Ok(Some(topic)) => Ok(Arc::new(topic)),
            Ok(None) => Err(Error::topic_not_found(name)),
            Err(error) => Err(Error::from(error)),
        };
        let history = match &topic {
            Ok(topic) => self.store.saw(topic.server),
            Err(_) => self.store.history(),
        };
        ResolvedTopic { topic, history, found_at }
    }

    /// Resolves a topic that must have this partition.
    pub async fn partition(
        &self,
        tenant: TenantId,
        name: &Name,
        partition: Partition,
        refresh: bool,
    ) -> Result<Arc<StoredTopic>, Error> {
        let has = |topic: &StoredTopic| (partition as usize) < topic.logs.len();
        let topic = self.resolve(tenant, name, refresh).await?;
        if has(&topic) {
            return Ok(topic);
        }
        // it may have grown since
        let topic = self.resolve(tenant, name, true).await?;
        if has(&topic) {
            return Ok(topic);
        }
        Err(Error::partition_not_found(name, partition, topic.summary.partition_count))
    }

    async fn forget(&self, tenant: TenantId, name: &Name) {
        self.cache.invalidate(&(tenant, name.clone())).await;
    }
}

impl Broker {
    /// Returns `(description, created)`. Without `partition_count`: 1 for a new topic, any for an
    /// existing one.
    pub async fn put_topic(
        &self,
        tenant: TenantId,
        topic: &Name,
        partition_count: Option<Partition>,
        settings: Option<Changes>,
    ) -> Result<(TopicDescription, bool), Error> {
        let name = topic.clone();
        let put = self.store.of(tenant).transaction(async move |connection| {
            let created = put(connection, tenant, &name, partition_count, settings).await?;
            // before the commit: what fails after it would be told as if nothing had changed
            Ok::<_, Error>((describe(connection, tenant, &name).await?, created))
        });
        let done = put.await?;
        self.topics.forget(tenant, topic).await;
        Ok(done)
    }

    pub async fn topic(&self, tenant: TenantId, topic: &Name) -> Result<TopicDescription, Error> {
        let name = topic.clone();
        let describe = self.store.of(tenant).run(async move |c| describe(c, tenant, &name).await);
        describe.await
    }

    pub async fn topics(
        &self,
        tenant: TenantId,
        page: Page,
    ) -> Result<Listed<TopicSummary>, Error> {
        let Page { limit, after } = page;
        let list = self.store.of(tenant).run(async move |connection| {
            let after = after.unwrap_or_default();
            store::catalog::topics::list(connection, tenant, &after, limit + 1).await
        });
        Ok(Listed::cut(list.await?, limit, |topic| topic.topic.to_string()))
    }

    pub async fn patch_topic(
        &self,
        tenant: TenantId,
        topic: &Name,
        patch: TopicPatch,
    ) -> Result<TopicDescription, Error> {
        let name = topic.clone();
        let patched = self.store.of(tenant).transaction(async move |connection| {
            patch_locked(connection, tenant, &name, patch).await?;
            describe(connection, tenant, &name).await
        });
        let patched = patched.await?;
        // who reads all of it has waited for new partitions as well; who is not told polls
        if let Ok(grown) = self.topics.resolve(tenant, topic, true).await {
            let news = Change::HighWatermark(grown.summary.partition_count.into());
            self.notifier.changed(tenant, [(grown.journal, news)]);
        }
        Ok(patched)
    }

    /// The name is free at once; the data is removed in the background. A topic in which a prepared
    /// transaction will commit cannot be deleted, because that commit can no longer be refused.
    ///
    /// A prepare takes key-share locks on the heads it pins and inserts its pins in one
    /// transaction. Appends do not conflict with these; locks for deletion wait for them. So either
    /// the prepare comes first, and the statement after the lock sees its pins, or the deletion
    /// does, and the prepare cannot lock the heads.
    pub async fn delete_topic(&self, tenant: TenantId, topic: &Name) -> Result<(), Error> {
        let name = topic.clone();
        let delete = self.store.of(tenant).transaction(async move |connection| {
            // the tenant's row comes first
            store::catalog::tenants::topics_changed(connection, tenant).await?;
            let Some((id, ..)) = store::catalog::topics::lock(connection, tenant, &name).await?
            else {
                return Err(Error::topic_not_found(&name));
            };
            // an append in flight comes before this or finds its head gone
            let logs = store::catalog::topics::lock_logs(connection, tenant, id).await?;
            if let Some(id) = store::catalog::topics::pinned_by(connection, tenant, &logs).await? {
                return Err(Error::topic_in_use(&name, id));
            }
            store::catalog::topics::delete(connection, tenant, id, &logs).await?;
            Ok(logs)
        });
        let logs: Vec<LogId> = delete.await?;
        self.topics.forget(tenant, topic).await;
        self.notifier.changed(tenant, logs.into_iter().map(|log| (log, Change::Gone)));
        Ok(())
    }

    /// Advances the partition's log start to `before`; it never moves back.
    pub async fn trim(
        &self,
        tenant: TenantId,
        topic: &Name,
        partition: Partition,
        before: Offset,
    ) -> Result<(), Error> {
        let mut refresh = false;
        loop {
            let resolved = self.topics.partition(tenant, topic, partition, refresh).await?;
            let log = resolved.logs[partition as usize];
            refresh = true;
            let Some(seen) = self.watermarks.read(tenant, log).await? else { continue };
            let (log_start_offset, high_watermark) = (seen.log_start_offset, seen.high_watermark);
            if before > high_watermark {
                let detail =
                    format!("Offset {before} exceeds the high watermark {high_watermark}.");
                return Err(Error::new(Code::OffsetOutOfRange, detail)
                    .fact("log_start_offset", log_start_offset)
                    .fact("high_watermark", high_watermark));
            }
            let trim = self.store.of(tenant).write(async move |connection| {
                store::catalog::topics::trim(connection, tenant, log, before).await
            });
            if trim.await? {
                return Ok(());
            }
        }
    }
}

async fn describe(
    connection: &mut Connection,
    tenant: TenantId,
    name: &Name,
) -> Result<TopicDescription, Error> {
    let found = store::catalog::topics::find(connection, tenant, name).await?;
    let found = found.ok_or_else(|| Error::topic_not_found(name))?;
    let partitions = store::catalog::topics::partitions(connection, tenant, found.topic_id).await?;
    match partitions.is_empty() {
        // deleted between the two statements
        true => Err(Error::topic_not_found(name)),
        false => Ok(TopicDescription { summary: found.summary, partitions }),
    }
}

async fn put(
    connection: &mut Connection,
    tenant: TenantId,
    name: &Name,
    partition_count: Option<Partition>,
    settings: Option<Changes>,
) -> Result<bool, Error> {
    let mut existing = store::catalog::topics::lock(connection, tenant, name).await?;
    if existing.is_none() {
        let wanted = partition_count.unwrap_or(1);
        let limits = lock_tenant(connection, tenant).await?.settings;
        // another may have made it meanwhile; from here on no other can
        existing = store::catalog::topics::lock(connection, tenant, name).await?;
        if existing.is_none() {
            check_quota(connection, tenant, &limits, (1, wanted)).await?;
            let changes = settings.unwrap_or_default();
            rules::settings::check_maxima("/settings", &changes, &limits)?;
            let settings = own(&changes);
            store::catalog::topics::insert(connection, tenant, name, wanted, &settings).await?;
            store::catalog::tenants::topics_changed(connection, tenant).await?;
            return Ok(true);
        }
    }
    let Some((id, count, former)) = existing else { return Ok(false) };
    if partition_count.is_some_and(|wanted| wanted != count) {
        let detail = format!(
            "Topic {name} exists with partition_count {count}. PATCH can increase it; it cannot be \
             reduced."
        );
        return Err(Error::new(Code::TopicExists, detail));
    }
    let settings = settings.map(|changes| (own(&changes), changes));
    if let Some((settings, changes)) = settings.filter(|(settings, _)| *settings != former) {
        let (limits, _) = store::catalog::tenants::settings(connection, tenant).await?;
        rules::settings::check_maxima("/settings", &changes, &limits)?;
        store::catalog::topics::update(connection, tenant, id, count, &settings).await?;
    }
    Ok(false)
}

/// The settings of a new topic after these changes.
fn own(settings: &Changes) -> OwnSettings {
    rules::settings::patched(&OwnSettings::default(), settings)
}

/// Requires the tenant's row, with these settings, to be locked.
async fn check_quota(
    connection: &mut Connection,
    tenant: TenantId,
    limits: &OwnSettings,
    (topics, partitions): (i64, Partition),
) -> Result<(), Error> {
    let counts = store::catalog::topics::counts(connection, tenant).await?;
    let more = (topics, i64::from(partitions));
    let Some((key, limit)) = rules::settings::exceeded(limits, counts, more) else { return Ok(()) };
    let detail = format!("{} is {limit}. Delete topics that are no longer needed.", key.name());
    Err(Error::new(Code::QuotaExceeded, detail).fact("limit", limit))
}

async fn patch_locked(
    connection: &mut Connection,
    tenant: TenantId,
    name: &Name,
    patch: TopicPatch,
) -> Result<(), Error> {
    // the tenant's row comes before the topic's, as in `put`
    let limits = match patch.partition_count {
        Some(_) => lock_tenant(connection, tenant).await?.settings,
        None => store::catalog::tenants::settings(connection, tenant).await?.0,
    };
    let Some((id, count, former)) = store::catalog::topics::lock(connection, tenant, name).await?
    else {
        return Err(Error::topic_not_found(name));
    };
    let wanted = patch.partition_count.unwrap_or(count);
    if wanted < count {
        let detail =
            format!("Topic {name} has {count} partitions; partition_count cannot be reduced.");
        return Err(Error::new(Code::TopicExists, detail));
    }
    if wanted > count {
        check_quota(connection, tenant, &limits, (0, wanted - count)).await?;
        // the decision how to spread records is made again
        let logs = store::catalog::topics::log_ids(connection, tenant, id).await?;
        store::catalog::logs::lock(connection, tenant, &logs).await?;
        store::catalog::logs::raise_fences(connection, tenant, &logs).await?;
        store::catalog::topics::add_partitions(connection, tenant, id, count, wanted).await?;
        store::catalog::tenants::topics_changed(connection, tenant).await?;
    }
    rules::settings::check_maxima("/settings", &patch.settings, &limits)?;
    let settings = rules::settings::patched(&former, &patch.settings);
    store::catalog::topics::update(connection, tenant, id, wanted, &settings).await?;
    Ok(())
}
