//! Strict JSON: unknown and repeated fields, trailing bytes and arrays in place of objects are
//! refused, and every error is located by an RFC 6901 pointer.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};
use serde_path_to_error::{Path, Segment};

use crate::model::{Code, Name, ValidationErrors, validation::MAX_TEXT_BYTES};

/// Parses one object. (`T` refuses unknown fields by its own attribute.)
pub fn parse<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, ValidationErrors> {
    let mut json = serde_json::Deserializer::from_str(text);
    let parsed = serde_path_to_error::deserialize::<_, Object<T>>(&mut json);
    let Object(value) = parsed.map_err(|error| {
        let mut pointer = pointer_of(error.path());
        let detail = error.into_inner().to_string();
        if let Some(name) = named_by(&detail) {
            push(&mut pointer, name);
        }
        ValidationErrors::at(pointer, detail)
    })?;
    json.end().map_err(|error| ValidationErrors::at("", error.to_string()))?;
    Ok(value)
}

/// The field that serde names only in its message; serde's path is that of the object.
pub fn named_by(detail: &str) -> Option<&str> {
    let rest = detail
        .strip_prefix("missing field `")
        .or_else(|| detail.strip_prefix("duplicate field `"))?;
    rest.split_once('`').map(|(name, _)| name)
}

fn pointer_of(path: &Path) -> String {
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
    // what is beyond is not shown, and need not be copied
    let token = &token[..token.floor_char_boundary(MAX_TEXT_BYTES)];
    pointer.push('/');
    pointer.push_str(&token.replace('~', "~0").replace('/', "~1"));
}

/// Accepts objects only; serde's structs would also accept arrays.
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

/// A list of at most `MOST` elements. Nothing of a longer list is kept, and the rest of it is not
/// parsed.
#[derive(Serialize)]
pub struct AtMost<T, const MOST: usize>(Option<Vec<T>>);

impl<T, const MOST: usize> AtMost<T, MOST> {
    /// None if there are too many elements.
    pub fn elements(self) -> Option<Vec<T>> {
        self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.as_ref().is_some_and(Vec::is_empty)
    }
}

struct AtMostVisitor<T, const MOST: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for AtMostVisitor<T, MOST> {
    type Value = AtMost<T, MOST>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut elements = Vec::new();
        while elements.len() < MOST {
            match seq.next_element()? {
                Some(element) => elements.push(element),
                None => return Ok(AtMost(Some(elements))),
            }
        }
        if seq.next_element::<IgnoredAny>()?.is_none() {
            return Ok(AtMost(Some(elements)));
        }
        drop(elements);
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(AtMost(None))
    }
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for AtMost<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_seq(AtMostVisitor(PhantomData))
    }
}

/// Distinguishes null from an absent field, which is `None`.
pub fn given<'de, D: Deserializer<'de>>(json: D) -> Result<Option<Option<i64>>, D::Error> {
    Option::deserialize(json).map(Some)
}

/// The elements of a list; none if it is absent or too long.
pub fn elements<T, const MOST: usize>(
    errors: &mut ValidationErrors,
    pointer: &str,
    list: Option<AtMost<T, MOST>>,
    code: Code,
) -> Vec<T> {
    let Some(list) = list else { return Vec::new() };
    list.elements().unwrap_or_else(|| {
        let detail = format!("at most {MOST} elements are allowed");
        errors.join(ValidationErrors::too_large(pointer, detail, code, MOST as i64));
        Vec::new()
    })
}

/// The names of a list; none if the list is too long.
pub fn names<C: FromIterator<Name>, const MOST: usize>(
    errors: &mut ValidationErrors,
    pointer: &str,
    list: AtMost<String, MOST>,
) -> C {
    let list = list.elements();
    if list.is_none() {
        errors.add(pointer, format!("at most {MOST} names are allowed"));
    }
    let texts = list.into_iter().flatten().enumerate();
    texts
        .filter_map(|(index, text)| errors.name(&format!("{pointer}/{index}"), Some(&text)))
        .collect()
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
            let error = parse::<Outer>(text).err().unwrap().listed.remove(0);
            assert_eq!(error.pointer, pointer, "{text}: {}", error.detail);
            assert!(error.detail.contains(detail), "{text}: {}", error.detail);
        }
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Listed {
        list: Option<AtMost<Object<Inner>, 3>>,
    }

    #[test]
    fn a_list_is_held_up_to_its_bound() {
        let list = |elements: &[&str]| {
            let text = format!("{{\"list\": [{}]}}", elements.join(","));
            parse::<Listed>(&text).map(|sent| sent.list.unwrap().elements().map(|all| all.len()))
        };
        assert_eq!(list(&[]), Ok(Some(0)));
        assert_eq!(list(&["{}"; 3]), Ok(Some(3)));
        assert_eq!(list(&["{}"; 4]), Ok(None));
        // what is beyond need not be what it should be, what is before is looked at
        assert_eq!(list(&["{}", "{}", "{}", "1", "[]"]), Ok(None));
        assert_eq!(list(&["{}", "{}", "1", "{}"]).unwrap_err().listed[0].pointer, "/list/2");
        assert_eq!(parse::<Listed>("{\"list\": {}}").err().unwrap().listed[0].pointer, "/list");
        assert!(parse::<Listed>("{\"list\": [{}, {}, {}, {}, ").is_err());

        let mut errors = ValidationErrors::default();
        errors.add("/a", "no");
        let sent: Listed = parse(r#"{"list": [0, 0, 0]}"#.replace('0', "{}").as_str()).unwrap();
        assert_eq!(elements(&mut errors, "/list", sent.list, Code::PayloadTooLarge).len(), 3);
        let sent: Listed = parse(r#"{"list": [0, 0, 0, 0]}"#.replace('0', "{}").as_str()).unwrap();
        assert!(elements(&mut errors, "/list", sent.list, Code::PayloadTooLarge).is_empty());
        let refused = errors.finish().unwrap_err();
        assert_eq!(refused.too_large.map(|large| large.limit), Some(3));
        assert_eq!(refused.listed[0].pointer, "/list");
    }
}
