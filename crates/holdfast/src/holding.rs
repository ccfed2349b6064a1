//! The hold of a command (R9): placed before it reads, let go of when it is done.

use holdfast_core::{Clock, Random, Result};
use holdfast_repo::{
    hold::{Holds, KeptHold, Placed},
    record::Hold,
};

use crate::reading::Opened;

/// Writes the hold of a command on this host.
pub async fn place(opened: &Opened, purpose: &str) -> Result<Placed> {
    let (clock, random) = (Clock::system(), Random::system());
    let holds = Holds {
        sink: opened.store.sink.clone(),
        source: opened.source.id,
        source_key: opened.source.key.clone(),
    };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let record = Hold { host, purpose: purpose.to_owned(), written: clock.wall() };
    holds.place(record, &clock, &random).await
}

/// Lets go of it, and says so where the store does not remove it: what was done under it is done.
pub async fn release(hold: KeptHold) {
    if let Some(note) = left(hold).await {
        eprintln!("note: {note}");
    }
}

async fn left(hold: KeptHold) -> Option<String> {
    let error = hold.release().await.err()?;
    Some(format!("the hold was not removed and ends by itself within a day: {}", error.chain()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use async_trait::async_trait;
    use bytes::Bytes;
    use holdfast_core::{
        Error, Sink, SourceId, Timestamp,
        sink::{Body, Capabilities, Created, Page, Range},
    };
    use holdfast_repo::seal::Key;
    use holdfast_testkit::MemorySink;

    use super::*;

    /// A store that removes nothing, and says so in its own way.
    struct Keeps(MemorySink);

    #[async_trait]
    impl Sink for Keeps {
        async fn capabilities(&self) -> Result<Capabilities> {
            self.0.capabilities().await
        }
        async fn create(&self, name: &str, body: Body) -> Result<Created> {
            self.0.create(name, body).await
        }
        async fn read(&self, name: &str, range: Range) -> Result<Option<Bytes>> {
            self.0.read(name, range).await
        }
        async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
            self.0.list(prefix, after, limit).await
        }
        async fn remove(&self, _: &[String]) -> Result<()> {
            Err(Error::retry("405 method not allowed"))
        }
        fn address(&self) -> String {
            "kept".to_owned()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_that_cannot_be_removed_costs_a_note() {
        let (clock, random) = (Clock::set(Timestamp(0)), Random::seeded(1));
        let holds = Holds {
            sink: Arc::new(Keeps(MemorySink::create_only())),
            source: SourceId([1; 8]),
            source_key: Key::new([2; 32]),
        };
        let record = Hold { host: "h".to_owned(), purpose: "p".to_owned(), written: clock.wall() };
        let Placed::Held(holder) = holds.place(record, &clock, &random).await.unwrap() else {
            panic!("the store lets us write")
        };
        let note = left(holder.keep()).await.unwrap();
        assert!(note.contains("ends by itself") && note.contains("405"), "{note}");
    }
}
