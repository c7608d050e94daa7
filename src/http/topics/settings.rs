//! Changes of a topic's settings, as they are written in JSON.

use serde::{Deserialize, Deserializer, de};
use utoipa::{
    ToSchema,
    openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type},
};

use crate::model::topic::Change;

pub const MAX_BATCH_RECORDS: i64 = 100_000;
pub const MAX_BATCH_BYTES: i64 = 16 << 20;

/// `"default"` or null removes the topic's own value.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettingsChange {
    #[serde(default, deserialize_with = "change")]
    #[schema(schema_with = batch_records)]
    pub max_batch_records: Change,
    #[serde(default, deserialize_with = "change")]
    #[schema(schema_with = batch_bytes)]
    pub max_batch_bytes: Change,
    #[serde(default, deserialize_with = "change")]
    #[schema(schema_with = record_bytes)]
    pub max_record_bytes: Change,
}

fn batch_records() -> Schema {
    change_schema("Most records of one append.", MAX_BATCH_RECORDS)
}

fn batch_bytes() -> Schema {
    change_schema("Most bytes of one append.", MAX_BATCH_BYTES)
}

fn record_bytes() -> Schema {
    change_schema("Most bytes of one record.", MAX_BATCH_BYTES)
}

fn change_schema(description: &str, most: i64) -> Schema {
    let of = |kind| ObjectBuilder::new().schema_type(SchemaType::new(kind));
    let value = of(Type::Integer).minimum(Some(1)).maximum(Some(most));
    let default = of(Type::String).enum_values(Some(["default"]));
    let change = OneOfBuilder::new().description(Some(description));
    change.item(value).item(default).item(of(Type::Null)).into()
}

fn change<'de, D: Deserializer<'de>>(json: D) -> Result<Change, D::Error> {
    struct Visitor;
    impl de::Visitor<'_> for Visitor {
        type Value = Change;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an integer, null or \"default\"")
        }
        fn visit_unit<E: de::Error>(self) -> Result<Change, E> {
            Ok(Change::Default)
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<Change, E> {
            let other = || E::invalid_value(de::Unexpected::Str(text), &self);
            if text == "default" { Ok(Change::Default) } else { Err(other()) }
        }
        fn visit_i64<E: de::Error>(self, value: i64) -> Result<Change, E> {
            Ok(Change::Set(value))
        }
        fn visit_u64<E: de::Error>(self, value: u64) -> Result<Change, E> {
            Ok(Change::Set(i64::try_from(value).unwrap_or(i64::MAX)))
        }
    }
    json.deserialize_any(Visitor)
}
