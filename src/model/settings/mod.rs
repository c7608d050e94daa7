//! The settings of tenants and topics in one table, which validation, answers, documents and the
//! command line read.

pub mod rates;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error, ser::SerializeMap};

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub name: &'static str,
    pub default: Value,
    pub minimum: i64,
    pub maximum: i64,
    /// Whether null ("unlimited") is allowed.
    pub nullable: bool,
    /// The allowed words, for a setting that is not a number.
    pub choices: &'static [&'static str],
    /// Whether a topic may have its own value.
    pub of_topics: bool,
    pub help: &'static str,
}

macro_rules! settings {
    ($($key:ident $name:literal $default:tt $least:literal $most:literal $null:literal $topics:literal
        $help:literal;)*) => {
        /// The settings by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Key { $($key),* }

        impl Key {
            pub const ALL: &'static [Key] = &[$(Key::$key),*];

            /// The setting's row of the table.
            pub const fn setting(self) -> Setting {
                match self {
                    $(Key::$key => Setting {
                        name: $name,
                        default: settings!(@default $default),
                        minimum: $least,
                        maximum: $most,
                        nullable: $null,
                        choices: settings!(@choices $default),
                        of_topics: $topics,
                        help: $help,
                    }),*
                }
            }
        }
    };
    (@default null) => { Value::Unlimited };
    (@default [$first:literal $($other:literal)*]) => { Value::Choice($first) };
    (@default $number:literal) => { Value::Number($number) };
    (@choices [$($choice:literal)*]) => { &[$($choice),*] };
    (@choices $other:tt) => { &[] };
}

settings! {
    // key                  name                         default     least most            null
    // topics
    TransactionTimeoutMs    "transaction_timeout_ms"     60_000      1     86_400_000      false false
        "The default timeout of transactions, if neither the begin nor the session gives one.";
    MaxTransactionTimeoutMs "max_transaction_timeout_ms" 900_000     1     86_400_000      false false
        "The longest timeout that a transaction or a session may have.";
    TransactionRetentionMs  "transaction_retention_ms"   604_800_000 1_000 315_360_000_000 false false
        "How long the outcome of a transaction is remembered after its end; older ids are refused.";
    MaxTransactionBatches   "max_transaction_batches"    10_000      1     100_000         false false
        "Maximum number of batches of a transaction: one per partition of every append.";
    ProducerExpiryMs        "producer_expiry_ms"         604_800_000 1_000 315_360_000_000 true  false
        "How long a producer without a name may be idle before it expires.";
    TransactionalIdExpiryMs "transactional_id_expiry_ms" 604_800_000 1_000 315_360_000_000 true  false
        "How long a producer with a transactional id may be idle before it expires.";
    DedupWindowMs           "dedup_window_ms"            86_400_000  0     315_360_000_000 true  true
        "How long record ids and Idempotency-Keys are remembered; 0: they are not.";
    Dedup                   "dedup"                      ["id" "content"] 0 0              false true
        "What identifies a duplicate record: its `id`, or its key and value (`content`).";
    RetentionMs             "retention_ms"               604_800_000 1_000 315_360_000_000 true  true
        "How long records are kept; with `cleanup` = `compact`: how long tombstones are kept.";
    RetentionBytes          "retention_bytes"            null        1     9_007_199_254_740_991 true true
        "Maximum size of a partition in bytes; the oldest records are removed first.";
    Cleanup                 "cleanup"                    ["delete" "compact"] 0 0          false true
        "`delete` removes old records; `compact` keeps the last record of each key.";
    SessionTimeoutMinMs     "session_timeout_min_ms"     1_000       1     86_400_000      false false
        "The shortest lease that a group member may ask for.";
    SessionTimeoutMaxMs     "session_timeout_max_ms"     300_000     1     86_400_000      false false
        "The longest lease that a group member may ask for.";
    OffsetsExpiryMs         "offsets_expiry_ms"          604_800_000 1_000 315_360_000_000 true  false
        "How long a group without members keeps its offsets after the last commit.";
    MaxBatchRecords         "max_batch_records"          1_000       1     100_000         false true
        "Maximum number of records of an append.";
    MaxBatchBytes           "max_batch_bytes"            1_048_576   1     16_777_216      false true
        "Maximum size of an append in bytes.";
    MaxRecordBytes          "max_record_bytes"           1_048_576   1     16_777_216      false true
        "Maximum size of a record in bytes.";
    MaxTopics               "max_topics"                 1_000       0     100_000         false false
        "Maximum number of topics of the tenant.";
    MaxPartitions           "max_partitions"             10_000      0     1_000_000       false false
        "Maximum number of partitions of all topics of the tenant.";
    MaxRequestsPerS         "max_requests_per_s"         null        1     1_000_000       true  false
        "Requests a second that each replica admits; twice as many may come at once.";
    MaxBytesInPerS          "max_bytes_in_per_s"         null        1     1_000_000_000_000 true false
        "Bytes of request bodies a second that each replica takes, decompressed.";
    MaxBytesOutPerS         "max_bytes_out_per_s"        null        1     1_000_000_000_000 true false
        "Bytes of response bodies a second that each replica sends, before compression.";
    MaxWaitingReads         "max_waiting_reads"          null        0     1_000_000       true  false
        "Maximum number of reads that wait for records at once, on each replica.";
    MaxSessions             "max_sessions"               null        0     1_000_000       true  false
        "Maximum number of producers, with and without a transactional id.";
    MaxGroups               "max_groups"                 null        0     1_000_000       true  false
        "Maximum number of consumer groups.";
    MaxOpenTransactions     "max_open_transactions"      null        0     1_000_000       true  false
        "Maximum number of ongoing transactions, those of one request apart.";
    MaxPreparedTransactions "max_prepared_transactions"  null        0     1_000_000       true  false
        "Maximum number of prepared transactions.";
    MaxStagedBytes          "max_staged_bytes"           null        0     9_007_199_254_740_991 true false
        "Maximum size of the records staged by ongoing and prepared transactions, in bytes.";
    MaxStoredBytes          "max_stored_bytes"           null        0     9_007_199_254_740_991 true false
        "Maximum size of all records of the tenant, the staged ones among them, in bytes.";
}

/// The value of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    Number(i64),
    /// Null: unlimited.
    Unlimited,
    /// One of the words of the setting.
    Choice(&'static str),
}

/// A change of one setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Removes the own value.
    Default,
    Set(Value),
}

/// A merge patch: absent settings stay.
pub type Changes = BTreeMap<Key, Change>;

/// The own values of a tenant or a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnSettings {
    pub values: BTreeMap<Key, Value>,
    /// The maxima that an operator sets for a tenant and its topics; empty for topics.
    pub maxima: Maxima,
}

/// The largest values that an operator allows; settings with words have none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Maxima(pub BTreeMap<Key, i64>);

/// The origin of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    Default,
    Operator,
    Tenant,
}

/// All settings of a tenant, in the order of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantSettings {
    /// Increases with every change.
    pub version: i64,
    pub in_force: Vec<InForce>,
}

/// The effective value of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InForce {
    pub key: Key,
    pub value: Value,
    pub origin: Origin,
    pub maximum: i64,
}

impl Key {
    pub const fn name(self) -> &'static str {
        self.setting().name
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|key| key.name() == name)
    }

    /// The settings with numbers, which can have maxima.
    pub fn numbers() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|key| key.setting().choices.is_empty())
    }

    /// Parses a word of the setting.
    pub fn choice(self, text: &str) -> Option<Value> {
        let choices = self.setting().choices.iter();
        choices.copied().find(|choice| *choice == text).map(Value::Choice)
    }

    /// The settings that a topic may override.
    pub fn of_topics() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|key| key.setting().of_topics)
    }

    /// Returns why the setting may not have this value, if so.
    pub fn check(self, value: Value) -> Result<(), String> {
        let Setting { minimum, maximum, nullable, choices, .. } = self.setting();
        match value {
            Value::Choice(choice) if choices.contains(&choice) => Ok(()),
            _ if !choices.is_empty() => Err(format!("expected one of {}", choices.join(", "))),
            Value::Choice(_) => Err("expected a number".into()),
            Value::Unlimited if nullable => Ok(()),
            Value::Unlimited => Err("null is not allowed; \"default\" removes the value".into()),
            Value::Number(number) if (minimum..=maximum).contains(&number) => Ok(()),
            Value::Number(number) => Err(format!("{number} is outside of {minimum} to {maximum}")),
        }
    }
}

impl Value {
    /// Unlimited exceeds every maximum; a word exceeds none.
    pub fn exceeds(self, maximum: i64) -> bool {
        match self {
            Value::Number(number) => number > maximum,
            Value::Unlimited => true,
            Value::Choice(_) => false,
        }
    }

    /// None means unlimited.
    pub fn number(self) -> Option<i64> {
        match self {
            Value::Number(number) => Some(number),
            Value::Unlimited | Value::Choice(_) => None,
        }
    }
}

impl Origin {
    pub fn as_str(self) -> &'static str {
        match self {
            Origin::Default => "default",
            Origin::Operator => "operator",
            Origin::Tenant => "tenant",
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Number(number) => number.serialize(to),
            Value::Unlimited => to.serialize_none(),
            Value::Choice(choice) => choice.serialize(to),
        }
    }
}

/// The values alone; maxima are stored and answered separately.
impl Serialize for OwnSettings {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        by_name(&self.values, to)
    }
}

impl Serialize for Maxima {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        by_name(&self.0, to)
    }
}

fn by_name<S: Serializer>(each: &BTreeMap<Key, impl Serialize>, to: S) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(Some(each.len()))?;
    for (key, value) in each {
        map.serialize_entry(key.name(), value)?;
    }
    map.end()
}

/// Reads the stored form. Names that only newer replicas know are skipped.
impl<'de> Deserialize<'de> for OwnSettings {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let stored = BTreeMap::<String, serde_json::Value>::deserialize(from)?;
        let mut values = BTreeMap::new();
        for (name, value) in stored {
            let Some(key) = Key::parse(&name) else { continue };
            let value = match value {
                serde_json::Value::Null => Value::Unlimited,
                serde_json::Value::String(text) => {
                    key.choice(&text).ok_or_else(|| D::Error::custom(name))?
                }
                value => Value::Number(value.as_i64().ok_or_else(|| D::Error::custom(name))?),
            };
            values.insert(key, value);
        }
        Ok(Self { values, maxima: Maxima::default() })
    }
}

/// The stored form.
impl<'de> Deserialize<'de> for Maxima {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let stored = BTreeMap::<String, i64>::deserialize(from)?;
        let known = stored.into_iter().filter_map(|(name, most)| Some((Key::parse(&name)?, most)));
        Ok(Self(known.collect()))
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Number(number) => number.fmt(f),
            Value::Unlimited => f.write_str("null"),
            Value::Choice(choice) => f.write_str(choice),
        }
    }
}

impl TenantSettings {
    /// A strong validator, which changes whenever the answer does.
    pub fn etag(&self) -> String {
        let words: String = self
            .in_force
            .iter()
            .map(|s| format!("{} {} {} {}\n", s.key.name(), s.value, s.origin.as_str(), s.maximum))
            .collect();
        format!("\"{}-{:016x}\"", self.version, xxhash_rust::xxh3::xxh3_64(words.as_bytes()))
    }
}

/// The condition of `If-Match`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IfMatch {
    /// `*`: any state.
    Any,
    /// One of these strong validators.
    OneOf(Vec<String>),
}

impl IfMatch {
    pub fn holds(&self, etag: &str) -> bool {
        match self {
            IfMatch::Any => true,
            IfMatch::OneOf(tags) => tags.iter().any(|tag| tag == etag),
        }
    }
}

#[cfg(test)]
mod tests;
