//! One error for all seams. It says what to *do*; details stay in the source chain.

use std::fmt;

/// What the caller should do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    /// Passing trouble (reset, time-out, 5xx): the same call may be made again.
    Retry,
    /// The other side asks for less (429, 503 SlowDown): try again later and with fewer in flight.
    SlowDown,
    /// The source is another one than the lineage in the repository, or has left its history.
    LostLineage,
    /// Another writer owns the stream: stop settling at once.
    Fenced,
    /// Bytes that should be whole are not: name the object, never guess.
    Corrupt,
    /// A person must change something (rights, keys, settings).
    Configure,
    /// A restore cannot reach the promised moment, or something that must exist does not.
    Unreachable,
    /// Our own mistake: an invariant does not hold.
    Bug,
}

/// An error sentence (what happened, to what, what to do), the [`Act`], and its cause.
#[derive(Debug)]
pub struct Error {
    act: Act,
    what: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn new(act: Act, what: impl Into<String>) -> Self {
        Self { act, what: what.into(), source: None }
    }
    pub fn retry(what: impl Into<String>) -> Self {
        Self::new(Act::Retry, what)
    }
    pub fn slow_down(what: impl Into<String>) -> Self {
        Self::new(Act::SlowDown, what)
    }
    pub fn lost_lineage(what: impl Into<String>) -> Self {
        Self::new(Act::LostLineage, what)
    }
    pub fn fenced(what: impl Into<String>) -> Self {
        Self::new(Act::Fenced, what)
    }
    pub fn corrupt(what: impl Into<String>) -> Self {
        Self::new(Act::Corrupt, what)
    }
    pub fn configure(what: impl Into<String>) -> Self {
        Self::new(Act::Configure, what)
    }
    pub fn unreachable(what: impl Into<String>) -> Self {
        Self::new(Act::Unreachable, what)
    }
    pub fn bug(what: impl Into<String>) -> Self {
        Self::new(Act::Bug, what)
    }
    /// Adds the cause.
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
    /// Wraps this error in a sentence that names the larger step; the act stays.
    pub fn during(self, what: impl Into<String>) -> Self {
        Self { act: self.act, what: what.into(), source: Some(Box::new(self)) }
    }
    pub fn act(&self) -> Act {
        self.act
    }
    /// May the same call succeed if it is made again?
    pub fn is_passing(&self) -> bool {
        matches!(self.act, Act::Retry | Act::SlowDown)
    }
    /// The sentence and its causes, joined by colons: for logs and for people.
    pub fn chain(&self) -> String {
        let mut text = self.what.clone();
        let mut next = std::error::Error::source(self);
        while let Some(cause) = next {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            next = cause.source();
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|e| e as _)
    }
}
