//! THE WORK: one function an operation: load, decide, write, confirm, signal.

mod error;

pub use error::Error;

use crate::model::{
    Name, Offset, Partition, ProducerId, TenantId,
    session::{NextSequence, Open, Opened, Session},
    topic::{Listed, Page, TopicDescription, TopicPatch, TopicSettings, TopicSummary},
    transfer::{Append, Appended, Fetched, Read, Scope},
};

/// One replica's work. Holds nothing that is not in Postgres but caches and connections.
pub struct Broker {}

impl Broker {
    /// The tenant of a token, by name; made known at its first use.
    pub async fn tenant(&self, _name: &Name) -> Result<TenantId, Error> {
        todo!()
    }
    /// False while draining or without a database.
    pub async fn ready(&self) -> Result<(), Error> {
        todo!()
    }
    /// True from the moment a shutdown was asked for.
    pub fn draining(&self) -> bool {
        todo!()
    }
    /// `(description, created)`. `partition_count` none: 1 for a new topic, any for an existing one.
    pub async fn put_topic(
        &self,
        _tenant: TenantId,
        _topic: &Name,
        _partition_count: Option<Partition>,
        _settings: Option<TopicSettings>,
    ) -> Result<(TopicDescription, bool), Error> {
        todo!()
    }
    pub async fn topic(&self, _tenant: TenantId, _topic: &Name) -> Result<TopicDescription, Error> {
        todo!()
    }
    pub async fn topics(
        &self,
        _tenant: TenantId,
        _page: Page,
    ) -> Result<Listed<TopicSummary>, Error> {
        todo!()
    }
    pub async fn patch_topic(
        &self,
        _tenant: TenantId,
        _topic: &Name,
        _patch: TopicPatch,
    ) -> Result<TopicDescription, Error> {
        todo!()
    }
    pub async fn delete_topic(&self, _tenant: TenantId, _topic: &Name) -> Result<(), Error> {
        todo!()
    }
    /// Moves the partition's log start to `before` (never back, never past the high watermark).
    pub async fn trim(
        &self,
        _tenant: TenantId,
        _topic: &Name,
        _partition: Partition,
        _before: Offset,
    ) -> Result<(), Error> {
        todo!()
    }
    pub async fn open_session(&self, _tenant: TenantId, _open: Open) -> Result<Opened, Error> {
        todo!()
    }
    /// `next_sequences` as of now, `duplicate` false.
    pub async fn session(&self, _tenant: TenantId, _id: ProducerId) -> Result<Opened, Error> {
        todo!()
    }
    /// All sessions by producer id, or the one of a transactional id.
    pub async fn sessions(
        &self,
        _tenant: TenantId,
        _transactional_id: Option<&Name>,
        _page: Page,
    ) -> Result<Listed<Session>, Error> {
        todo!()
    }
    pub async fn session_sequences(
        &self,
        _tenant: TenantId,
        _id: ProducerId,
        _page: Page,
    ) -> Result<Listed<NextSequence>, Error> {
        todo!()
    }
    /// Ends the session; ending it again changes nothing.
    pub async fn end_session(&self, _tenant: TenantId, _id: ProducerId) -> Result<(), Error> {
        todo!()
    }
    pub async fn append(
        &self,
        _tenant: TenantId,
        _topic: &Name,
        _scope: Scope,
        _append: Append,
    ) -> Result<Appended, Error> {
        todo!()
    }
    pub async fn read(
        &self,
        _tenant: TenantId,
        _topic: &Name,
        _partition: Partition,
        _read: Read,
    ) -> Result<Fetched, Error> {
        todo!()
    }
}
