//! What a user may tune about one pipeline. Components (clock, sink, tailer, keys) are passed in beside it.

use std::time::Duration;

use holdfast_core::text;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// A batch closes at the latest so long after its first byte.
    #[serde(with = "text::duration")]
    pub max_lag: Duration,
    /// Smallest distance between two creates when somebody waits: bounds the bill.
    #[serde(with = "text::duration")]
    pub put_spacing: Duration,
    /// A batch closes when it holds so many bytes.
    #[serde(with = "text::size")]
    pub batch_bytes: u64,
    /// Creates of log objects in flight.
    pub in_flight: usize,
    /// An empty object is written when none was started for so long.
    #[serde(with = "text::duration")]
    pub heartbeat: Duration,
    pub takeover: Takeover,
    pub budget: Budget,
    /// Merge small log objects.
    pub merge: bool,
    /// A stop is carried out within this time: flush, settle, release, good-bye to the source.
    #[serde(with = "text::duration")]
    pub stop_grace: Duration,
    /// What the settings call the source: another source's key is refused. Given at a start, not in a file.
    #[serde(skip)]
    pub source: Option<String>,
    /// Given at a start, not in a file.
    #[serde(skip)]
    pub take_over: bool,
    /// Backfill: end when all that the source held at the start is durable and settled.
    #[serde(skip)]
    pub until_caught_up: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_lag: Duration::from_secs(1),
            put_spacing: Duration::from_millis(5),
            batch_bytes: 8 << 20,
            in_flight: 8,
            heartbeat: Duration::from_secs(20),
            takeover: Takeover::Silence,
            budget: Budget::default(),
            merge: true,
            stop_grace: Duration::from_secs(10),
            source: None,
            take_over: false,
            until_caught_up: false,
        }
    }
}

/// When a stream of another instance may be taken without being told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Takeover {
    /// After three of its heartbeats in which nothing moved.
    Silence,
    /// Only after it ended in order, or when told to.
    Manual,
}

/// Most bytes that may be in memory, by what they are. Bytes of one kind never wait for those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Budget {
    /// The stream's own: batches from their first byte until they are stored.
    #[serde(with = "text::size")]
    pub stream: u64,
    /// Bulk content, from `put` until its pack is stored.
    #[serde(with = "text::size")]
    pub content: u64,
    /// Stored log objects that are kept for the first merge.
    #[serde(with = "text::size")]
    pub merge: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { stream: 48 << 20, content: 48 << 20, merge: 8 << 20 }
    }
}

impl Budget {
    /// A share of the whole for each of several sources; never so small that a pipeline could not move.
    pub fn share(self, sources: u64) -> Self {
        let part = |bytes: u64, least: u64| (bytes / sources.max(1)).max(least);
        Self {
            stream: part(self.stream, 2 << 20),
            content: part(self.content, 17 << 20),
            merge: part(self.merge, 1 << 20),
        }
    }
}
