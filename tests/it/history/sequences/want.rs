//! What an answer has to be, and how it differs from what it is.

use oncelog::{broker::Error, model::Code, rules::Refusal};
use serde_json::{Value, json};

/// In the place of a value that nobody can foretell.
pub const ANY: &str = "<any>";

/// An answer as it came. Of NDJSON the body has `lines`, and `headers`, those of oncelog's.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    pub status: u16,
    pub body: Value,
}

/// An answer as it has to be.
#[derive(Clone, Debug)]
pub struct Want {
    pub status: u16,
    /// Of a problem, the members that matter; else all.
    pub body: Value,
}

/// Done, or refused.
pub type Judged = Result<Want, Want>;

impl Want {
    pub fn ok(body: Value) -> Self {
        Self { status: 200, body }
    }

    pub fn created(body: Value) -> Self {
        Self { status: 201, body }
    }

    pub fn no_content() -> Self {
        Self { status: 204, body: Value::Null }
    }

    pub fn code(code: Code) -> Self {
        Self { status: code.status(), body: json!({"code": code.as_str()}) }
    }

    /// Whatever comes: what is not judged today.
    pub fn anything() -> Self {
        Self { status: 0, body: json!(ANY) }
    }

    /// How the answer differs.
    pub fn differs(&self, reply: &Reply) -> Option<String> {
        if self.status == 0 {
            return None;
        }
        if self.status != reply.status {
            return Some(format!("status {} instead of {}", reply.status, self.status));
        }
        differs(&self.body, &reply.body, self.status < 400, "")
    }
}

impl From<Error> for Want {
    fn from(error: Error) -> Self {
        let mut want = Self::code(error.code);
        for (name, value) in error.facts {
            want.body[name] = value;
        }
        want
    }
}

impl From<Refusal> for Want {
    fn from(refusal: Refusal) -> Self {
        Error::from(refusal).into()
    }
}

/// `exact`: an object has no other members.
fn differs(want: &Value, got: &Value, exact: bool, at: &str) -> Option<String> {
    match (want, got) {
        (Value::String(any), _) if any == ANY => None,
        (Value::Object(want), Value::Object(got)) => {
            let missing = want.keys().find(|name| !got.contains_key(*name));
            let other = got.keys().find(|name| exact && !want.contains_key(*name));
            if let Some(name) = missing.or(other) {
                let what = if missing.is_some() { "missing" } else { "not expected" };
                return Some(format!("{at}/{name}: {what}"));
            }
            want.iter().find_map(|(name, value)| {
                differs(value, &got[name], exact, &format!("{at}/{name}"))
            })
        }
        (Value::Array(want), Value::Array(got)) if want.len() == got.len() => {
            let pairs = want.iter().zip(got).enumerate();
            pairs
                .into_iter()
                .find_map(|(n, (want, got))| differs(want, got, exact, &format!("{at}/{n}")))
        }
        _ if want == got => None,
        _ => Some(format!("{at}: {got} instead of {want}")),
    }
}
