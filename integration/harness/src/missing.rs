//! What this machine cannot have, said plainly.

use std::fmt;

/// Something that a test needs is not here. The text says what is missing, why, and how to mend it.
#[derive(Debug, Clone)]
pub struct Missing {
    pub what: String,
    pub why: String,
    pub mend: String,
}

impl Missing {
    pub fn new(what: impl Into<String>, why: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { what: what.into(), why: why.into(), mend: mend.into() }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "missing: {} ({}). To mend it: {}", self.what, self.why.trim(), self.mend)
    }
}

impl std::error::Error for Missing {}
