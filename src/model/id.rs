//! Ids and numbers. Numbers are JSON integers below 2^53; ids chosen by clients are UUIDs.

use serde::{Deserialize, Serialize};
use uuid::{Uuid, Variant, Version};

/// The largest integer that JSON numbers carry exactly in every language (2^53 - 1).
pub const MAX_INTEGER: i64 = (1 << 53) - 1;

/// The position of a record in a log: from 0, without gaps.
pub type Offset = i64;
/// A run of a producer: increases with every open, never restarts.
pub type Epoch = i64;
/// The number of an append request in its scope: 0, 1, 2 ...
pub type Sequence = i64;
/// The number of a partition in its topic, from 0.
pub type Partition = i32;
/// 128 bits of XXH3 over the stored lines of a request: equal digests mean equal records.
pub type Digest = [u8; 16];

/// The owner of everything else; the first column of every key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId(pub i64);

/// One incarnation of a topic: a topic that is deleted and created again has another id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicId(pub i64);

/// A partition's log or a topic's journal. Ids are never reused, so a deleted log is gone for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogId(pub i64);

/// One incarnation of a group. Its ids share the sequence of log ids, because watches treat both
/// alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub i64);

/// A logical producer; its id is permanent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProducerId(pub i64);

/// A UUIDv7 (RFC 9562) in its hyphenated form, upper or lower case.
pub fn uuid_v7(text: &str) -> Option<Uuid> {
    let uuid = Uuid::try_parse(text).ok().filter(|_| text.len() == 36)?;
    let is_v7 = uuid.get_version() == Some(Version::SortRand);
    (is_v7 && uuid.get_variant() == Variant::RFC4122).then_some(uuid)
}

#[cfg(test)]
mod tests {
    use super::uuid_v7;

    #[test]
    fn only_a_uuid_of_version_7_in_its_hyphenated_form_is_taken() {
        for good in ["019aa5b6-5c00-7000-8000-000000000001", "019AA5B6-5C00-7FFF-BFFF-00000000000A"]
        {
            assert_eq!(uuid_v7(good).unwrap().to_string(), good.to_lowercase());
        }
        for bad in [
            "",
            "019aa5b65c0070008000000000000001",
            "{019aa5b6-5c00-7000-8000-000000000001}",
            "urn:uuid:019aa5b6-5c00-7000-8000-000000000001",
            "019aa5b6-5c00-7000-8000-00000000000g",
            "019aa5b6-5c00-4000-8000-000000000001", // version 4
            "019aa5b6-5c00-7000-c000-000000000001", // another variant than RFC 9562's
            "019aa5b6-5c00-7000-0000-000000000001",
        ] {
            assert_eq!(uuid_v7(bad), None, "{bad}");
        }
    }
}
