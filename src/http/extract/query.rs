//! Query strings, parsed as strictly as bodies: an unknown, repeated, missing or malformed
//! parameter is an error, never ignored.

use std::borrow::Cow;

use axum::{extract::FromRequestParts, http::request::Parts};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, IntoDeserializer, Visitor, value},
    forward_to_deserialize_any,
};

use super::json::named_by;
use crate::{broker::Error, model::ValidationErrors};

/// The parameters of an operation without a body.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        Ok(Self(parse(parts.uri.query())?))
    }
}

/// Where the parameters come from; pointers to them differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterPlace {
    Query,
    /// From a JSON object.
    Body,
}

impl ParameterPlace {
    pub fn of(self, name: &str) -> String {
        match self {
            ParameterPlace::Query => format!("?{name}"),
            ParameterPlace::Body => format!("/{name}"),
        }
    }
}

/// For an operation without parameters.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoParameters {}

pub fn parse<T: DeserializeOwned>(query: Option<&str>) -> Result<T, ValidationErrors> {
    let mut pairs = Vec::new();
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = unescape(name).map_err(|why| ValidationErrors::at("?", why))?;
        let value = unescape(value).map_err(|why| ValidationErrors::at(format!("?{name}"), why))?;
        pairs.push((name, Text(value)));
    }
    let pairs = value::MapDeserializer::new(pairs.into_iter());
    serde_path_to_error::deserialize(pairs).map_err(|error| {
        let path = error.path().to_string();
        let detail = error.into_inner().to_string();
        // Serde names a missing or repeated field in its words only.
        let name = if path == "." { named_by(&detail).unwrap_or_default() } else { &path };
        ValidationErrors::at(format!("?{name}"), detail.clone())
    })
}

/// Decodes by RFC 3986: `+` stays a plus (as in the zone of a timestamp).
fn unescape(text: &str) -> Result<String, &'static str> {
    // The crate keeps a malformed escape as it is.
    let is_escape = |rest: &str| match rest.as_bytes() {
        [high, low, ..] => high.is_ascii_hexdigit() && low.is_ascii_hexdigit(),
        _ => false,
    };
    if !text.split('%').skip(1).all(is_escape) {
        return Err("malformed percent-encoding");
    }
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Cow::into_owned).map_err(|_| "invalid UTF-8")
}

/// All characters except RFC 3986's unreserved ones.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

pub fn escape(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// Parses an integer in its only spelling: no sign but `-`, no leading zeros, no spaces.
pub fn integer(text: &str) -> Result<i64, &'static str> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let canonical = digits == "0" || !digits.is_empty() && !digits.starts_with('0');
    if !canonical || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err("expected an integer");
    }
    text.parse().map_err(|_| "expected an integer below 2^53")
}

/// The text of a parameter, converted to the type of its field.
struct Text(String);

impl<'de> IntoDeserializer<'de, value::Error> for Text {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Text {
    type Error = value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_string(self.0)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_i64(integer(&self.0).map_err(serde::de::Error::custom)?)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_some(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_enum(self.0.into_deserializer())
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Isolation {
        ReadCommitted,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Parameters {
        before: i64,
        name: Option<String>,
        isolation: Option<Isolation>,
    }

    #[test]
    fn what_is_taken() {
        let parse = |query| parse::<Parameters>(Some(query)).unwrap();
        let (before, name) = (7, None);
        assert_eq!(parse("before=7"), Parameters { before, name, isolation: None });
        assert_eq!(parse("&n%61me=a%20b+c&before=-7").name.unwrap(), "a b+c");
        assert_eq!(
            parse("isolation=read_committed&before=0").isolation,
            Some(Isolation::ReadCommitted)
        );
    }

    #[test]
    fn what_is_refused_is_named() {
        let table = [
            ("", "?before", "missing field"),
            ("before=1&befor=2", "?befor", "unknown field"),
            ("before=1&before=2", "?before", "duplicate field"),
            ("before=", "?before", "integer"),
            ("before=+1", "?before", "integer"),
            ("before=01", "?before", "integer"),
            ("before=1.0", "?before", "integer"),
            ("before=99999999999999999999", "?before", "2^53"),
            ("before=1&name=%zz", "?name", "percent-encoding"),
            ("before=1&name=%f", "?name", "percent-encoding"),
            ("before=1&name=%%41", "?name", "percent-encoding"),
            ("before=1&name=%+1", "?name", "percent-encoding"),
            ("before=1&name=%ff", "?name", "UTF-8"),
            ("before=1&%ff=a", "?", "UTF-8"),
            ("before=1&isolation=none", "?isolation", "unknown variant"),
        ];
        for (query, pointer, detail) in table {
            let error = parse::<Parameters>(Some(query)).unwrap_err().listed.remove(0);
            assert_eq!(error.pointer, pointer, "{query}");
            assert!(error.detail.contains(detail), "{query}: {}", error.detail);
        }
        let error = parse::<NoParameters>(Some("limit=1")).err().unwrap().listed.remove(0);
        assert_eq!(error.pointer, "?limit");
    }

    #[test]
    fn escapes_are_of_all_but_unreserved_characters() {
        assert_eq!(escape("a/b ä%+~"), "a%2Fb%20%C3%A4%25%2B~");
    }

    proptest! {
        #[test]
        fn escapes_come_back(text in ".*") {
            prop_assert_eq!(unescape(&escape(&text)).unwrap(), text);
        }

        /// What is taken says what it was made of, and what is refused names a parameter.
        #[test]
        fn any_query_is_taken_as_it_is_or_refused(
            query in "((before|name|isolation|%6eame|x|)=?\
                (-?[0-9]{0,20}|read_committed|%.{0,2}|.*)&?){0,4}",
        ) {
            match parse::<Parameters>(Some(&query)) {
                Ok(Parameters { before, name, .. }) => {
                    let again = format!("before={before}");
                    let again = name.iter().fold(again, |q, name| q + "&name=" + &escape(name));
                    let parsed = parse::<Parameters>(Some(&again)).unwrap();
                    prop_assert_eq!((parsed.before, parsed.name), (before, name));
                }
                Err(errors) => prop_assert!(errors.listed[0].pointer.starts_with('?')),
            }
        }
    }
}
