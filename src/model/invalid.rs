//! What is wrong with a request's shape, by JSON pointer.

/// One mistake: where (RFC 6901 pointer into the body, or `?name` for a query parameter,
/// `/path/name` for a path segment) and what was expected instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub pointer: String,
    pub detail: String,
}

/// Every mistake found; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    pub faults: Vec<Fault>,
}

impl Invalid {
    pub fn at(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        let fault = Fault { pointer: pointer.into(), detail: detail.into() };
        Self { faults: vec![fault] }
    }
}
