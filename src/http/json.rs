//! Strict JSON: unknown and repeated fields, trailing bytes and arrays in an object's place are
//! refused, and every mistake is named by an RFC 6901 pointer.

use std::{fmt, marker::PhantomData, ops::RangeInclusive};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_path_to_error::{Path, Segment};

use crate::model::{Fault, Invalid, MAX_INTEGER, Name, Partition};

/// Reads one object. (`T` refuses unknown fields by its own attribute.)
pub fn parse<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, Invalid> {
    let mut json = serde_json::Deserializer::from_str(text);
    let parsed = serde_path_to_error::deserialize::<_, Object<T>>(&mut json);
    let Object(value) = parsed.map_err(|error| {
        let mut pointer = pointer(error.path());
        let detail = error.into_inner().to_string();
        if let Some(name) = named_by(&detail) {
            push(&mut pointer, name);
        }
        Invalid::at(pointer, detail)
    })?;
    json.end().map_err(|error| Invalid::at("", error.to_string()))?;
    Ok(value)
}

/// The field that serde names in its words only, its path being the object's.
pub fn named_by(detail: &str) -> Option<&str> {
    let rest = detail
        .strip_prefix("missing field `")
        .or_else(|| detail.strip_prefix("duplicate field `"))?;
    rest.split_once('`').map(|(name, _)| name)
}

fn pointer(path: &Path) -> String {
    let mut pointer = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => push(&mut pointer, &index.to_string()),
            Segment::Map { key } => push(&mut pointer, key),
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    pointer
}

fn push(pointer: &mut String, token: &str) {
    pointer.push('/');
    pointer.push_str(&token.replace('~', "~0").replace('/', "~1"));
}

/// Serde's structs also read arrays; this one insists on an object.
#[derive(Serialize)]
pub struct Object<T>(pub T);

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_map(ObjectVisitor(PhantomData))
    }
}

/// Tells null from absent, which is `None`.
pub fn given<'de, D: Deserializer<'de>>(json: D) -> Result<Option<Option<i64>>, D::Error> {
    Option::deserialize(json).map(Some)
}

/// Collects every mistake of a request, where serde stops at the first.
#[derive(Default)]
pub struct Faults(Vec<Fault>);

impl Faults {
    pub fn add(&mut self, pointer: &str, detail: impl Into<String>) {
        self.0.push(Fault { pointer: pointer.to_owned(), detail: detail.into() });
    }

    /// The value if it lies in the range; absent values do.
    pub fn range(
        &mut self,
        pointer: &str,
        value: Option<i64>,
        range: RangeInclusive<i64>,
    ) -> Option<i64> {
        let value = value?;
        if range.contains(&value) {
            return Some(value);
        }
        let (low, high) = (range.start(), range.end());
        self.add(pointer, format!("{value} is outside of {low} to {high}"));
        None
    }

    /// An id, offset, epoch or sequence.
    pub fn count(&mut self, pointer: &str, value: Option<i64>) -> Option<i64> {
        self.range(pointer, value, 0..=MAX_INTEGER)
    }

    /// The number of a partition.
    pub fn partition(&mut self, pointer: &str, value: Option<i64>) -> Option<Partition> {
        let value = self.range(pointer, value, 0..=i64::from(Partition::MAX))?;
        Partition::try_from(value).ok()
    }

    /// What was made of a part of the request, or all that is wrong with it.
    pub fn part<T>(&mut self, made: Result<T, Invalid>) -> Option<T> {
        made.map_err(|invalid| self.0.extend(invalid.faults)).ok()
    }

    pub fn name(&mut self, pointer: &str, text: Option<&str>) -> Option<Name> {
        match Name::parse(text?) {
            Ok(name) => Some(name),
            Err(why) => {
                self.add(pointer, why);
                None
            }
        }
    }

    pub fn finish(self) -> Result<(), Invalid> {
        if self.0.is_empty() { Ok(()) } else { Err(Invalid { faults: self.0 }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        #[serde(rename = "a/b~c")]
        _odd: Option<i64>,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        count: Option<i64>,
        inner: Option<Object<Inner>>,
        _list: Option<Vec<i64>>,
        _must: i64,
    }

    #[test]
    fn null_is_absent() {
        let outer: Outer = parse(r#" {"count": null, "inner": null, "_must": 1} "#).unwrap();
        assert!(outer.count.is_none() && outer.inner.is_none());
    }

    #[test]
    fn mistakes_are_pointed_at() {
        let table = [
            (r#"{"_must": 1, "coumt": 2}"#, "/coumt", "unknown field `coumt`"),
            (r#"{"_must": 1, "count": 2, "count": 3}"#, "/count", "duplicate field"),
            (r#"{}"#, "/_must", "missing field"),
            (r#"{"_must": 1.0}"#, "/_must", "floating point"),
            (r#"{"_must": 1e3}"#, "/_must", "floating point"),
            (r#"{"_must": "1"}"#, "/_must", "string"),
            (r#"{"_must": 18446744073709551616}"#, "/_must", "floating point"),
            (r#"{"_must": 1, "_list": [1, 2, "x"]}"#, "/_list/2", "string"),
            (r#"{"_must": 1, "inner": {"a/b~c": "x"}}"#, "/inner/a~1b~0c", "string"),
            (r#"{"_must": 1, "inner": {"x": 1}}"#, "/inner/x", "unknown field"),
            (r#"{"_must": 1, "inner": [1]}"#, "/inner", "expected an object"),
            (r#"[1, 2, 3, 4]"#, "", "expected an object"),
            (r#"{"_must": 1} x"#, "", "trailing characters"),
            (r#"{"_must": 1"#, "", "EOF"),
            ("", "", "EOF"),
        ];
        for (text, pointer, detail) in table {
            let fault = parse::<Outer>(text).err().unwrap().faults.remove(0);
            assert_eq!(fault.pointer, pointer, "{text}: {}", fault.detail);
            assert!(fault.detail.contains(detail), "{text}: {}", fault.detail);
        }
    }

    #[test]
    fn all_faults_are_collected() {
        let mut faults = Faults::default();
        assert_eq!(faults.range("/a", Some(1), 1..=2), Some(1));
        assert_eq!(faults.range("/b", Some(0), 1..=2), None);
        assert_eq!(faults.count("/c", Some(1 << 53)), None);
        assert!(faults.name("/d", Some("..")).is_none());
        assert_eq!(faults.partition("/e", Some(i64::from(Partition::MAX))), Some(Partition::MAX));
        assert_eq!(faults.partition("/f", Some(1 << 31)), None);
        assert_eq!(faults.part(Ok(7)), Some(7));
        assert_eq!(faults.part::<()>(Err(Invalid::at("/g", "no"))), None);
        let pointers: Vec<_> =
            faults.finish().unwrap_err().faults.into_iter().map(|fault| fault.pointer).collect();
        assert_eq!(pointers, ["/b", "/c", "/d", "/f", "/g"]);
    }
}
