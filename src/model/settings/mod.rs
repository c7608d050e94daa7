//! The settings of tenants and topics: one table says all of them. The ranges that are checked, the
//! answers, the documents and the command line read it.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error, ser::SerializeMap};

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub name: &'static str,
    pub default: Value,
    pub minimum: i64,
    pub maximum: i64,
    /// It knows "for ever", or "without limit": null.
    pub nullable: bool,
    /// It is one of these words, and no number.
    pub choices: &'static [&'static str],
    /// A topic may have its own.
    pub of_topics: bool,
    pub help: &'static str,
}

macro_rules! settings {
    ($($key:ident $name:literal $default:tt $least:literal $most:literal $null:literal $topics:literal
        $help:literal;)*) => {
        /// Which setting.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Key { $($key),* }

        impl Key {
            pub const ALL: &'static [Key] = &[$(Key::$key),*];

            /// Its row of the table.
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
    // key                  name                         default     least most            null  topics
    TransactionTimeoutMs    "transaction_timeout_ms"     60_000      1     86_400_000      false false
        "How long a transaction may stay open, if neither its begin nor its session says.";
    MaxTransactionTimeoutMs "max_transaction_timeout_ms" 900_000     1     86_400_000      false false
        "The longest timeout that a transaction or a session may ask for, and have.";
    TransactionRetentionMs  "transaction_retention_ms"   604_800_000 1_000 315_360_000_000 false false
        "How long the outcome of a transaction is remembered after its end; older ids are refused.";
    MaxTransactionBatches   "max_transaction_batches"    10_000      1     100_000         false false
        "Most batches of one transaction: one for every partition of every append.";
    ProducerExpiryMs        "producer_expiry_ms"         604_800_000 1_000 315_360_000_000 true  false
        "How long a producer without a name may be idle before it is forgotten.";
    TransactionalIdExpiryMs "transactional_id_expiry_ms" 604_800_000 1_000 315_360_000_000 true  false
        "How long a producer with a transactional id may be idle before it is forgotten.";
    DedupWindowMs           "dedup_window_ms"            86_400_000  0     315_360_000_000 true  true
        "How long ids of records and Idempotency-Keys are remembered; 0: not at all.";
    Dedup                   "dedup"                      ["id" "content"] 0 0              false true
        "What tells that a record is known: its `id`, or its key and value.";
    RetentionMs             "retention_ms"               604_800_000 1_000 315_360_000_000 true  true
        "How long records are kept; where `cleanup` is `compact`: those that say a key is gone.";
    RetentionBytes          "retention_bytes"            null        1     9_007_199_254_740_991 true true
        "How many bytes a partition keeps; the oldest records go first.";
    Cleanup                 "cleanup"                    ["delete" "compact"] 0 0          false true
        "Old records are deleted, or all but the last one of each key are.";
    SessionTimeoutMinMs     "session_timeout_min_ms"     1_000       1     86_400_000      false false
        "The shortest lease that a member of a group may ask for.";
    SessionTimeoutMaxMs     "session_timeout_max_ms"     300_000     1     86_400_000      false false
        "The longest lease that a member of a group may ask for.";
    OffsetsExpiryMs         "offsets_expiry_ms"          604_800_000 1_000 315_360_000_000 true  false
        "How long a group without members keeps its committed offsets after the last of them.";
    MaxBatchRecords         "max_batch_records"          1_000       1     100_000         false true
        "Most records of one append.";
    MaxBatchBytes           "max_batch_bytes"            1_048_576   1     16_777_216      false true
        "Most bytes of one append.";
    MaxRecordBytes          "max_record_bytes"           1_048_576   1     16_777_216      false true
        "Most bytes of one record.";
    MaxTopics               "max_topics"                 1_000       0     100_000         false false
        "Most topics of the tenant.";
    MaxPartitions           "max_partitions"             10_000      0     1_000_000       false false
        "Most partitions of all topics of the tenant together.";
}

/// What a setting says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    Number(i64),
    /// null: for ever, without limit.
    Unlimited,
    /// One of the words of the setting.
    Choice(&'static str),
}

/// A change of one setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// No value of its own any more.
    Default,
    Set(Value),
}

/// A merge patch: what is absent stays.
pub type Changes = BTreeMap<Key, Change>;

/// What a tenant, or a topic, has of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnSettings {
    pub values: BTreeMap<Key, Value>,
    /// What an operator lets the values be at most, a tenant's and its topics'. Topics have none.
    pub maxima: Maxima,
}

/// The largest values that an operator lets settings of a tenant have; words have none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Maxima(pub BTreeMap<Key, i64>);

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    Default,
    Operator,
    Tenant,
}

/// A tenant's settings, all of them, in the order of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantSettings {
    /// Grows with every change.
    pub version: i64,
    pub in_force: Vec<InForce>,
}

/// One setting as it holds.
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

    /// Those that are no words, and so have maxima.
    pub fn numbers() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|key| key.setting().choices.is_empty())
    }

    /// The word of the setting that this text is.
    pub fn choice(self, text: &str) -> Option<Value> {
        let choices = self.setting().choices.iter();
        choices.copied().find(|choice| *choice == text).map(Value::Choice)
    }

    /// Those that a topic may have of its own.
    pub fn of_topics() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|key| key.setting().of_topics)
    }

    /// Whether the setting may have this value; if not, why.
    pub fn check(self, value: Value) -> Result<(), String> {
        let Setting { minimum, maximum, nullable, choices, .. } = self.setting();
        match value {
            Value::Choice(choice) if choices.contains(&choice) => Ok(()),
            _ if !choices.is_empty() => Err(format!("it is one of {}", choices.join(", "))),
            Value::Choice(_) => Err("it is a number".into()),
            Value::Unlimited if nullable => Ok(()),
            Value::Unlimited => Err("null is no value of this setting; \"default\" is".into()),
            Value::Number(number) if (minimum..=maximum).contains(&number) => Ok(()),
            Value::Number(number) => Err(format!("{number} is outside of {minimum} to {maximum}")),
        }
    }
}

impl Value {
    /// No limit is more than any maximum; a word is never too much.
    pub fn exceeds(self, maximum: i64) -> bool {
        match self {
            Value::Number(number) => number > maximum,
            Value::Unlimited => true,
            Value::Choice(_) => false,
        }
    }

    /// None: no limit.
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

/// The values alone: maxima are stored and answered beside them.
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

/// As they are stored. A name that only newer replicas know is passed over.
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

/// As they are stored.
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
    /// A strong validator: another one whenever what is answered is another.
    pub fn etag(&self) -> String {
        let words: String = self
            .in_force
            .iter()
            .map(|s| format!("{} {} {} {}\n", s.key.name(), s.value, s.origin.as_str(), s.maximum))
            .collect();
        format!("\"{}-{:016x}\"", self.version, xxhash_rust::xxh3::xxh3_64(words.as_bytes()))
    }
}

/// What `If-Match` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IfMatch {
    /// `*`: whatever is there.
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
