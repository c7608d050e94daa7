//! How ids, names, words, instants and settings are stored: the column of each type. Statements
//! bind these types, and rows return them.

use std::fmt::Display;

use sqlx::{
    Decode, Encode, Postgres, Type,
    encode::IsNull,
    error::BoxDynError,
    postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueRef},
    types::Json,
};

use super::{Instant, Server};
use crate::{
    model::{
        GroupId, LogId, Name, ProducerId, TenantId, Timestamp, TopicId,
        dedup::Ring,
        group::{AutoOffsetReset, TopicPattern},
        session::Sequencing,
        settings::{Maxima, OwnSettings},
        tenant::revocation::Revocations,
        transaction::{Reason, State},
    },
    rules::group::Starts,
};

/// For each type: its column, the column's value of one of its values, and the reverse.
macro_rules! stored {
    ($($type:ty as $column:ty: |$value:ident| $encode:expr, |$found:ident| $decode:expr;)*) => {$(
        impl Type<Postgres> for $type {
            fn type_info() -> PgTypeInfo {
                <$column as Type<Postgres>>::type_info()
            }
        }

        impl PgHasArrayType for $type {
            fn array_type_info() -> PgTypeInfo {
                <$column as PgHasArrayType>::array_type_info()
            }
        }

        impl Encode<'_, Postgres> for $type {
            fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
                let $value = self;
                Encode::<Postgres>::encode($encode, buffer)
            }
        }

        impl Decode<'_, Postgres> for $type {
            fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
                let $found = <$column as Decode<Postgres>>::decode(value)?;
                Ok($decode)
            }
        }
    )*};
}

stored! {
    TenantId as i64: |id| id.0, |id| TenantId(id);
    TopicId as i64: |id| id.0, |id| TopicId(id);
    LogId as i64: |id| id.0, |id| LogId(id);
    GroupId as i64: |id| id.0, |id| GroupId(id);
    ProducerId as i64: |id| id.0, |id| ProducerId(id);
    Ring as i16: |ring| ring.0, |ring| Ring(ring);
    Timestamp as Instant: |instant| instant.to_chrono(), |instant| instant.into();
    Server as Instant: |server| server.to_chrono(), |instant| Server::started_at(instant);
    Name as &str: |name| name.as_str(), |text| valid(text, Name::parse)?;
    TopicPattern as &str: |pattern| pattern.as_str(), |text| valid(text, TopicPattern::parse)?;
    AutoOffsetReset as &str: |reset| reset.as_str(), |text| known(text, AutoOffsetReset::parse)?;
    State as &str: |state| state.as_str(), |text| known(text, State::parse)?;
    Reason as &str: |reason| reason.as_str(), |text| known(text, Reason::parse)?;
    Sequencing as bool:
        |sequencing| *sequencing == Sequencing::Monotonic,
        |is_monotonic| if is_monotonic { Sequencing::Monotonic } else { Sequencing::Contiguous };
    Starts as &str: |starts| starts_text(*starts), |text| known(text, parse_starts)?;
    OwnSettings as Json<OwnSettings>: |settings| Json(settings), |settings| settings.0;
    Maxima as Json<Maxima>: |maxima| Json(maxima), |maxima| maxima.0;
    Revocations as Json<Revocations>: |list| Json(list), |list| list.0;
}

/// What is stored was validated before.
fn valid<T, E: Display>(
    text: &str,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<T, BoxDynError> {
    parse(text).map_err(|what| format!("stored {text:?}: {what}").into())
}

fn known<T>(text: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T, BoxDynError> {
    valid(text, |text| parse(text).ok_or("an unknown word"))
}

fn starts_text(starts: Starts) -> &'static str {
    match starts {
        Starts::Reset => "reset",
        Starts::Earliest => "earliest",
    }
}

fn parse_starts(text: &str) -> Option<Starts> {
    [Starts::Reset, Starts::Earliest].into_iter().find(|starts| starts_text(*starts) == text)
}
