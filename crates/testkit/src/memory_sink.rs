//! A store in memory, for tests of what stands above the sink. Owns its objects; counts requests and bytes,
//! so that a test can say what a step may cost. Damage is done through the methods below `tamper`.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use bytes::Bytes;
use holdfast_core::{
    Clock, Error, Instant, Result, Sink, Timestamp,
    sink::{Body, Capabilities, Created, Entry, OBJECT_MAX, Page, Range, check_name},
};

/// Objects in a sorted map. Modification times count up by one second a write.
#[derive(Debug)]
pub struct MemorySink {
    create_only: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, (Bytes, Timestamp)>,
    seconds: i64,
    traffic: Traffic,
}

/// What was asked of the store so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub creates: u64,
    pub reads: u64,
    pub lists: u64,
    pub bytes_read: u64,
}

impl MemorySink {
    /// A store whose `create` refuses an existing name.
    pub fn create_only() -> Self {
        Self { create_only: true, state: Mutex::default() }
    }
    /// A store whose `create` is a plain put.
    pub fn overwriting() -> Self {
        Self { create_only: false, state: Mutex::default() }
    }
    pub fn traffic(&self) -> Traffic {
        self.lock().traffic
    }
    pub fn reset_traffic(&self) {
        self.lock().traffic = Traffic::default();
    }
    pub fn names(&self) -> Vec<String> {
        self.lock().objects.keys().cloned().collect()
    }
    pub fn get(&self, name: &str) -> Option<Bytes> {
        self.lock().objects.get(name).map(|(bytes, _)| bytes.clone())
    }
    /// Changes an object behind everybody's back; false when there is none of that name.
    pub fn tamper(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut state = self.lock();
        let Some((bytes, _)) = state.objects.get_mut(name) else { return false };
        let mut raw = bytes.to_vec();
        change(&mut raw);
        *bytes = raw.into();
        true
    }
    /// Puts an object whatever stands there.
    pub fn tamper_put(&self, name: &str, bytes: Bytes) {
        self.lock().put(name, bytes);
    }
    /// Loses an object; false when there is none of that name.
    pub fn tamper_lose(&self, name: &str) -> bool {
        self.lock().objects.remove(name).is_some()
    }
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn put(&mut self, name: &str, bytes: Bytes) {
        self.seconds += 1;
        let modified = Timestamp(self.seconds * 1_000_000);
        self.objects.insert(name.to_owned(), (bytes, modified));
    }
}

#[async_trait]
impl Sink for MemorySink {
    async fn capabilities(&self) -> Result<Capabilities> {
        Ok(Capabilities { create_only: self.create_only, history: "kept in memory only".to_owned() })
    }

    async fn create(&self, name: &str, body: Body) -> Result<Created> {
        check_name(name)?;
        if body.len() > OBJECT_MAX {
            return Err(Error::bug(format!("«{name}» would be larger than any object we write")));
        }
        let mut state = self.lock();
        state.traffic.creates += 1;
        if self.create_only && state.objects.contains_key(name) {
            return Ok(Created::Exists);
        }
        state.put(name, body.concat());
        Ok(Created::New)
    }

    async fn read(&self, name: &str, range: Range) -> Result<Option<Bytes>> {
        check_name(name)?;
        let mut state = self.lock();
        state.traffic.reads += 1;
        let Some((bytes, _)) = state.objects.get(name) else { return Ok(None) };
        let bytes = match range {
            Range::All => bytes.clone(),
            Range::Part { from, length } => {
                let end = bytes.len() as u64;
                let from = from.min(end);
                let to = from.saturating_add(length).min(end);
                bytes.slice(from as usize..to as usize)
            }
        };
        state.traffic.bytes_read += bytes.len() as u64;
        Ok(Some(bytes))
    }

    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        let mut state = self.lock();
        state.traffic.lists += 1;
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let mut page = Page::default();
        for (name, (bytes, modified)) in state.objects.range::<str, _>((from, Bound::Unbounded)) {
            if !name.starts_with(prefix) {
                break;
            }
            if page.entries.len() == limit {
                page.more = true;
                break;
            }
            page.entries.push(Entry { name: name.clone(), size: bytes.len() as u64, modified: *modified });
        }
        Ok(page)
    }

    async fn remove(&self, names: &[String]) -> Result<()> {
        let mut state = self.lock();
        for name in names {
            check_name(name)?;
            state.objects.remove(name);
        }
        Ok(())
    }

    fn address(&self) -> String {
        "memory".to_owned()
    }

    fn clock(&self) -> Option<(Instant, Timestamp)> {
        Some((Clock::system().now(), Timestamp(self.lock().seconds * 1_000_000)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use holdfast_core::sink::create_same;

    use super::*;
    use crate::SinkSuite;

    #[tokio::test]
    async fn it_is_a_sink_like_any_other() {
        SinkSuite::new(Arc::new(MemorySink::create_only()), "suite").run().await;
        SinkSuite::new(Arc::new(MemorySink::overwriting()), "suite").overwriting().run().await;
    }

    #[tokio::test]
    async fn an_earlier_attempt_of_ours_is_told_from_other_bytes() {
        let sink = MemorySink::create_only();
        let body = Body(vec![Bytes::from_static(b"one"), Bytes::new(), Bytes::from_static(b"two")]);
        assert!(create_same(&sink, "a", &body).await.unwrap());
        assert!(create_same(&sink, "a", &Body::from(b"onetwo".to_vec())).await.unwrap());
        for other in [&b"onetw"[..], b"onetwo!", b"", b"onetwa"] {
            assert!(!create_same(&sink, "a", &Body::from(other.to_vec())).await.unwrap());
        }
    }

    #[tokio::test]
    async fn listing_goes_on_after_a_name() {
        let sink = MemorySink::create_only();
        for name in ["a/1", "a/2", "a/3", "b/1"] {
            sink.create(name, Body::from(vec![1])).await.unwrap();
        }
        let page = sink.list("a/", None, 2).await.unwrap();
        assert!(page.more);
        let rest = sink.list("a/", Some("a/2"), 2).await.unwrap();
        assert_eq!(rest.entries.len(), 1);
        assert!(!rest.more);
        assert_eq!(sink.create("a/1", Body::from(vec![2])).await.unwrap(), Created::Exists);
    }
}
