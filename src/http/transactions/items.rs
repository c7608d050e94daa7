//! The appends and offsets that a call adds to a transaction. Records stay text here: the model
//! parses each array once.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::{
    broker::{Error, Taken},
    http::{
        extract::{
            auth::Grant,
            body::count,
            json::{AtMost, Object, elements, given},
        },
        openapi::schemas::Record,
    },
    model::{
        Batch, Code, ValidationErrors, Word,
        append::Scope,
        group::{MAX_MEMBER_ID_BYTES, MAX_OFFSETS, Member},
        transaction::{AppendItem, CommitRight, OffsetItem, Work},
    },
};

/// Maximum number of appends per call.
pub const MAX_APPENDS: usize = 10_000;

pub type Appends<'a> = AtMost<Object<TransactionAppend<'a>>, MAX_APPENDS>;
pub type Offsets<'a> = AtMost<Object<TransactionOffset<'a>>, MAX_OFFSETS>;

/// Records for a topic, or for one of its partitions.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TransactionAppend<'a> {
    /// The topic.
    #[serde(borrow)]
    topic: Cow<'a, str>,
    /// The partition for all records; without it they are spread by key.
    #[schema(minimum = 0, maximum = 2147483647)]
    partition: Option<i64>,
    /// One to `max_batch_records` records, stored in this order.
    #[schema(value_type = Vec<Record>, min_items = 1)]
    records: &'a RawValue,
}

/// An offset to commit for a group, in one of three forms: by a member (`member_id`, `generation`),
/// by compare-and-set (`expected_offset`, which a member can add), or by a member with a `cursor`
/// alone. In a transaction with appends, a member's cursor is committed only if the committed
/// offset is still where the cursor's run began, and at least one of the members' offsets must
/// advance; else `offset_commit_conflict`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TransactionOffset<'a> {
    /// The group; it is created if it does not exist.
    #[serde(borrow)]
    group: Cow<'a, str>,
    /// The member that owns the partition. Requires `generation`.
    #[schema(min_length = 1, max_length = 255)]
    member_id: Option<String>,
    /// The member's generation.
    #[schema(minimum = 0)]
    generation: Option<i64>,
    /// The topic that was read.
    topic: Option<String>,
    /// The partition that was read.
    #[schema(minimum = 0, maximum = 2147483647)]
    partition: Option<i64>,
    /// The offset of the next record to process.
    #[schema(minimum = 0)]
    offset: Option<i64>,
    /// Commit only if this is the committed offset; null if nothing is committed yet. A member can
    /// add it to `offset`, but not to `cursor`; required without a member.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<i64>, minimum = 0)]
    expected_offset: Option<Option<i64>>,
    /// Instead of topic, partition and offset: the cursor from the member's fetch.
    cursor: Option<String>,
}

/// Parsed items whose permissions are not checked yet.
pub struct ParsedWork {
    work: Work,
}

impl ParsedWork {
    /// `held` is the request's memory reservation; the records of each item are added to it before
    /// the next item is parsed.
    pub fn read(
        (appends, offsets): (Option<Appends>, Option<Offsets>),
        traceparent: Option<&str>,
        held: &mut Taken,
        errors: &mut ValidationErrors,
    ) -> Result<Self, Error> {
        let mut work = Work::default();
        let appends = elements(errors, "/appends", appends, Code::TransactionTooLarge);
        let offsets = elements(errors, "/offsets", offsets, Code::TransactionTooLarge);
        for (index, Object(append)) in appends.into_iter().enumerate() {
            let at = format!("/appends/{index}");
            if let Some(item) = append.checked(&at, traceparent, errors) {
                count(held, held.bytes() + item.batch.held_bytes())?;
                work.appends.push(item);
            }
        }
        for (index, Object(offset)) in offsets.into_iter().enumerate() {
            work.offsets.extend(offset.checked(&format!("/offsets/{index}"), errors));
        }
        Ok(Self { work })
    }

    /// Returns the items if the token permits all topics and groups they name.
    pub fn permitted(self, grant: &Grant) -> Result<Work, Error> {
        for append in &self.work.appends {
            grant.demand(Word::Produce, &append.topic)?;
        }
        for offset in &self.work.offsets {
            grant.demand(Word::Group, offset.group())?;
            // the broker knows the topics of a cursor
            if let OffsetItem::At { topic, .. } = offset {
                grant.demand(Word::Consume, topic)?;
            }
        }
        Ok(self.work)
    }
}

impl TransactionAppend<'_> {
    fn checked(
        self,
        at: &str,
        traceparent: Option<&str>,
        errors: &mut ValidationErrors,
    ) -> Option<AppendItem> {
        let topic = errors.name(&format!("{at}/topic"), Some(&self.topic));
        let partition = errors.partition(&format!("{at}/partition"), self.partition);
        let batch = errors.part(Batch::from_array(self.records, at, traceparent));
        let scope = partition.map_or(Scope::Topic, Scope::Partition);
        Some(AppendItem { topic: topic?, scope, batch: batch?.into() })
    }
}

impl TransactionOffset<'_> {
    fn checked(self, at: &str, errors: &mut ValidationErrors) -> Option<OffsetItem> {
        let of = |name: &str| format!("{at}/{name}");
        let group = errors.name(&of("group"), Some(&self.group));
        let topic = errors.name(&of("topic"), self.topic.as_deref());
        let partition = errors.partition(&of("partition"), self.partition);
        let offset = errors.count(&of("offset"), self.offset);
        let place = [
            ("topic", self.topic.is_some()),
            ("partition", self.partition.is_some()),
            ("offset", self.offset.is_some()),
        ];
        for (name, is_given) in place {
            match (&self.cursor, is_given) {
                (Some(_), true) => errors.add(&of(name), "the cursor contains it; omit it"),
                (None, false) => errors.add(&of(name), "missing"),
                _ => {}
            }
        }
        let cursor = self.cursor.as_deref().map(str::to_owned);
        let claim = self.claim(at, errors);
        let group = group?;
        match (cursor, claim?) {
            (None, claim) => {
                let (topic, partition, offset) = (topic?, partition?, offset?);
                Some(OffsetItem::At { group, topic, partition, offset, claim })
            }
            (Some(cursor), CommitRight::Member { member_id, generation, .. }) => {
                let member = Member { member_id, generation };
                Some(OffsetItem::Cursor { group, member, cursor })
            }
            // which was refused above
            (Some(_), CommitRight::Expected(_)) => None,
        }
    }

    fn claim(self, at: &str, errors: &mut ValidationErrors) -> Option<CommitRight> {
        let of = |name: &str| format!("{at}/{name}");
        // PostgreSQL's text has no U+0000
        let fits = |id: &str| (1..=MAX_MEMBER_ID_BYTES).contains(&id.len()) && !id.contains('\0');
        if self.member_id.as_deref().is_some_and(|id| !fits(id)) {
            let detail =
                format!("a member id must be 1 to {MAX_MEMBER_ID_BYTES} bytes without NUL");
            errors.add(&of("member_id"), detail);
        }
        errors.count(&of("generation"), self.generation);
        errors.count(&of("expected_offset"), self.expected_offset.flatten());
        let member = self.cursor.is_some() || self.member_id.is_some() || self.generation.is_some();
        if self.cursor.is_some() && self.expected_offset.is_some() {
            errors.add(&of("expected_offset"), "the cursor contains it; omit it");
        }
        if let Some(expected) = self.expected_offset.filter(|_| !member) {
            return Some(CommitRight::Expected(expected));
        } else if !member {
            let detail = "missing: give member_id and generation, or expected_offset (null if \
                          nothing was committed yet)";
            errors.add(at, detail);
            return None;
        }
        let missing = "missing: a member needs both member_id and generation";
        if self.member_id.is_none() {
            errors.add(&of("member_id"), missing);
        }
        if self.generation.is_none() {
            errors.add(&of("generation"), missing);
        }
        Some(CommitRight::Member {
            member_id: self.member_id?,
            generation: self.generation?,
            expected: self.expected_offset,
            began: None,
        })
    }
}
