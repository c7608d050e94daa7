//! The one error of all operations: a code, words for a person, facts for a program.

use serde_json::Value;

use crate::model::Code;

/// What an operation answers instead of its result.
#[derive(Clone, Debug, PartialEq)]
pub struct Error {
    pub code: Code,
    /// What was wrong, what was expected, what to do; readable alone.
    pub detail: String,
    /// The code's facts, as members of the problem document.
    pub facts: Vec<(&'static str, Value)>,
}

impl Error {
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), facts: Vec::new() }
    }

    pub fn fact(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.facts.push((name, value.into()));
        self
    }
}
