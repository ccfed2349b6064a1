//! What every store must do, as one suite that each implementation of [`Sink`] runs.
//!
//! Owns the reading of the seam: where the seam's page leaves room, the suite decides. Works below a prefix of
//! its own and removes what it made, so it may run against a store that holds other things.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a suite of tests fails by panic")]

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use holdfast_core::{
    Act, Sink,
    sink::{Body, Created, OBJECT_MAX, Range, list_all},
    task,
};

/// Writers that create the same name at the same time.
const RACERS: usize = 16;

/// A store to be tried, and what it is known to be.
pub struct SinkSuite {
    sink: Arc<dyn Sink>,
    prefix: String,
    create_only: bool,
    by_folder: bool,
}

impl SinkSuite {
    /// `prefix` is a folder name that nobody else uses.
    pub fn new(sink: Arc<dyn Sink>, prefix: &str) -> Self {
        Self { sink, prefix: prefix.to_owned(), create_only: true, by_folder: false }
    }

    /// The store replaces objects: `create` never answers `Exists`, and the probe must say so.
    pub fn overwriting(mut self) -> Self {
        self.create_only = false;
        self
    }

    /// The store walks its folders by name, so what lies in `a/` comes before `a-1` and `a.1` (SeaweedFS). No
    /// two names of a repository on such a store differ in that way.
    pub fn by_folder(mut self) -> Self {
        self.by_folder = true;
        self
    }

    /// Runs everything; panics with a sentence where the store differs.
    pub async fn run(&self) {
        self.probe().await;
        self.whole_and_ranges().await;
        self.odd_sizes().await;
        self.largest_body().await;
        self.nested_names().await;
        self.listing().await;
        self.created_once().await;
        self.race().await;
        self.visible_at_once().await;
        self.own_time().await;
        self.removal().await;
        self.errors().await;
        self.clean_up().await;
    }

    async fn probe(&self) {
        for round in 0..2 {
            let found = self.sink.capabilities().await.unwrap();
            assert_eq!(found.create_only, self.create_only, "the probe is wrong, round {round}");
            assert!(!found.history.is_empty(), "«check» has nothing to show about old versions");
        }
        assert!(!self.sink.address().is_empty());
    }

    async fn whole_and_ranges(&self) {
        let name = self.name("ranges/object");
        let bytes = pattern(1, 10_000);
        let parts = [0..1, 1..1, 1..4_097, 4_097..10_000].map(|part| bytes.slice(part));
        self.created(&name, Body(parts.to_vec())).await;
        assert_eq!(self.whole(&name).await, bytes, "a body of several parts reads back whole");
        for (from, length, expected) in [
            (0, 1, 0..1),
            (0, 10_000, 0..10_000),
            (17, 4_000, 17..4_017),
            (9_999, 1, 9_999..10_000),
            (9_990, 100, 9_990..10_000),
            (0, u64::MAX, 0..10_000),
            (10_000, 1, 0..0),
            (12_345, 10, 0..0),
            (u64::MAX, u64::MAX, 0..0),
            (5, 0, 0..0),
        ] {
            let part = self.sink.read(&name, Range::Part { from, length }).await.unwrap();
            let part = part.unwrap_or_else(|| panic!("[{from}, +{length}) of an object that is there: none"));
            assert_eq!(part, bytes.slice(expected), "[{from}, +{length}) of 10,000 bytes");
        }
        let absent = self.name("ranges/absent");
        for range in [Range::All, Range::Part { from: 0, length: 5 }, Range::Part { from: 3, length: 0 }] {
            assert_eq!(self.sink.read(&absent, range).await.unwrap(), None, "{range:?} of what is not there");
        }
    }

    async fn odd_sizes(&self) {
        for size in [0, 1, 2, 65_535, 65_536, 65_537, (1 << 20) + 7] {
            let name = self.name(&format!("sizes/{size}"));
            let bytes = pattern(size as u64, size);
            self.created(&name, Body::from(bytes.clone())).await;
            assert_eq!(self.whole(&name).await, bytes, "{size} bytes");
            let page = self.sink.list(&name, None, 10).await.unwrap();
            let entry = page.entries.iter().find(|entry| entry.name == name).unwrap();
            assert_eq!(entry.size, size as u64, "size in the listing");
            assert!(entry.modified.micros() > 0, "the store's own time in the listing");
        }
        let empty = self.name("sizes/0");
        let part = self.sink.read(&empty, Range::Part { from: 0, length: 10 }).await.unwrap();
        assert_eq!(part, Some(Bytes::new()), "a range of an empty object is empty, not missing");
        let nothing = self.name("sizes/no-parts");
        self.created(&nothing, Body::default()).await;
        assert!(self.whole(&nothing).await.is_empty());
    }

    async fn largest_body(&self) {
        let name = self.name("largest");
        let half = pattern(64, OBJECT_MAX / 2);
        self.created(&name, Body(vec![half.clone(), half.clone()])).await;
        let read = self.whole(&name).await;
        assert_eq!(read.len(), OBJECT_MAX);
        assert!(read[..OBJECT_MAX / 2] == half[..] && read[OBJECT_MAX / 2..] == half[..]);
        let from = (OBJECT_MAX / 2 - 3) as u64;
        let part = self.sink.read(&name, Range::Part { from, length: 6 }).await.unwrap().unwrap();
        assert_eq!(part, [&half[half.len() - 3..], &half[..3]].concat());
        let over = Body(vec![half.clone(), half, Bytes::from_static(b"x")]);
        let error = self.sink.create(&self.name("over"), over).await.unwrap_err();
        assert_eq!(error.act(), Act::Bug, "more than 64 MiB in one object is our own mistake: {error}");
        self.sink.remove(&[name]).await.unwrap();
    }

    async fn nested_names(&self) {
        let names = [
            "nested/a",
            "nested/b/c/d/e/f/0000000000000001",
            "nested/A.b_c-D/x",
            "nested/b/cd.e",
            "nested/...",
        ];
        for (n, name) in names.iter().enumerate() {
            self.created(&self.name(name), Body::from(pattern(n as u64, n + 1))).await;
        }
        for (n, name) in names.iter().enumerate() {
            assert_eq!(self.whole(&self.name(name)).await.len(), n + 1, "{name}");
        }
    }

    /// «/» sorts behind «-» and «.» and before digits and letters: a store that walks folders in the order of
    /// their names gets `l/a/2` and `l/a-1` wrong.
    async fn listing(&self) {
        let mut names: Vec<String> =
            ["l/a.1", "l/a-1", "l/a1", "l/a_1", "l/b", "l/A", "l/ab/1"].map(str::to_owned).into();
        for n in 0..30 {
            names.push(format!("l/a/{n:03}"));
            names.push(format!("l/c/{}/{n}", n % 3));
        }
        if self.by_folder {
            names.retain(|name| !name.starts_with("l/a-") && !name.starts_with("l/a."));
        }
        names.sort();
        let full: Vec<String> = names.iter().map(|name| self.name(name)).collect();
        for name in &full {
            self.created(name, Body::from(vec![1])).await;
        }
        let root = self.name("l/");
        let within = |prefix: &str, after: Option<&str>| -> Vec<String> {
            full.iter()
                .filter(|name| name.starts_with(prefix) && after.is_none_or(|after| name.as_str() > after))
                .cloned()
                .collect()
        };
        for limit in [1, 2, 7, 1_000] {
            assert_eq!(self.paged(&root, None, limit).await, full, "pages of {limit}");
        }
        for prefix in ["l/a", "l/a/", "l/a/01", "l/a/010", "l/c/1/", "l/c/1/2", "l/ab", "l/nothing", "l/a/0/"]
        {
            let prefix = self.name(prefix);
            assert_eq!(self.paged(&prefix, None, 4).await, within(&prefix, None), "prefix {prefix}");
        }
        for after in
            ["l/a", "l/a-1", "l/a-2", "l/a/", "l/a/013", "l/a/0135", "l/b", "l/c/1", "l/c/1/9", "l/zz"]
        {
            if self.by_folder && after.starts_with("l/a-") {
                continue;
            }
            for prefix in ["l/", "l/a/", "l/c/"] {
                let (prefix, after) = (self.name(prefix), self.name(after));
                let expected = within(&prefix, Some(&after));
                assert_eq!(self.paged(&prefix, Some(&after), 5).await, expected, "{prefix} after {after}");
            }
        }
        let exact = self.sink.list(&root, None, full.len()).await.unwrap();
        let rest = exact.entries.last().map(|last| self.sink.list(&root, Some(&last.name), 5));
        assert!(rest.unwrap().await.unwrap().entries.is_empty(), "nothing comes after the last name");
        let all = list_all(&*self.sink, &root, None).await.unwrap();
        assert_eq!(all.into_iter().map(|entry| entry.name).collect::<Vec<_>>(), full);
    }

    async fn created_once(&self) {
        if !self.create_only {
            return;
        }
        let name = self.name("once");
        self.created(&name, Body::from(pattern(1, 100))).await;
        for body in [pattern(1, 100), pattern(2, 100), Bytes::new()] {
            let second = self.sink.create(&name, Body::from(body)).await.unwrap();
            assert_eq!(second, Created::Exists);
            assert_eq!(self.whole(&name).await, pattern(1, 100), "the first body stays");
        }
        self.sink.remove(std::slice::from_ref(&name)).await.unwrap();
        self.created(&name, Body::from(pattern(2, 100))).await;
    }

    async fn race(&self) {
        for round in 0..4 {
            let name = self.name(&format!("race/{round}"));
            let racers: Vec<_> = (0..RACERS)
                .map(|racer| {
                    let (sink, name) = (self.sink.clone(), name.clone());
                    task::spawn(async move {
                        loop {
                            match sink.create(&name, Body::from(pattern(racer as u64, 50_000))).await {
                                Err(error) if error.is_passing() => {}
                                other => return other.unwrap(),
                            }
                        }
                    })
                })
                .collect();
            let mut winners = Vec::new();
            for (racer, task) in racers.into_iter().enumerate() {
                if task.await.unwrap() == Created::New {
                    winners.push(racer);
                }
            }
            let read = self.whole(&name).await;
            if self.create_only {
                assert_eq!(winners.len(), 1, "exactly one of {RACERS} may create a name: {winners:?}");
            }
            let whole = winners.iter().any(|winner| pattern(*winner as u64, 50_000) == read);
            assert!(whole, "what is read is one winner's body, whole");
        }
    }

    async fn visible_at_once(&self) {
        let writers: Vec<_> = (0..RACERS)
            .map(|writer| {
                let (sink, name) = (self.sink.clone(), self.name(&format!("visible/{writer:02}/object")));
                task::spawn(async move {
                    let body = pattern(writer as u64, 1_000);
                    while let Err(error) = sink.create(&name, Body::from(body.clone())).await {
                        assert!(error.is_passing(), "{}", error.chain());
                    }
                    assert_eq!(sink.read(&name, Range::All).await.unwrap(), Some(body), "read after create");
                    let page = sink.list(&name, None, 1).await.unwrap();
                    assert_eq!(page.entries.len(), 1, "list after create");
                })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap();
        }
        assert_eq!(self.paged(&self.name("visible/"), None, 3).await.len(), RACERS);
    }

    /// Its answers tell what its clock shows, which is what the times of its objects are of.
    async fn own_time(&self) {
        let name = self.name("time");
        self.created(&name, Body::from(vec![1])).await;
        let (_, told) = self.sink.clock().expect("an answer tells the store's time");
        let listed = self.sink.list(&name, None, 1).await.unwrap();
        let modified = listed.entries[0].modified;
        let apart = told.since(modified).max(modified.since(told));
        assert!(apart <= Duration::from_secs(3), "the store says {told}, its object {modified}");
    }

    async fn removal(&self) {
        let names: Vec<String> =
            (0..1_100).map(|n| self.name(&format!("removed/{}/{n:04}", n % 7))).collect();
        let present: Vec<&String> = names.iter().step_by(10).collect();
        for name in &present {
            self.created(name, Body::from(vec![1, 2, 3])).await;
        }
        let kept = self.name("removed/kept");
        self.created(&kept, Body::from(vec![1])).await;
        self.sink.remove(&[]).await.unwrap();
        self.sink.remove(&names).await.expect("absent names count as removed, more than 1,000 are taken");
        assert_eq!(self.paged(&self.name("removed/"), None, 100).await, vec![kept]);
        assert_eq!(self.sink.read(present[0], Range::All).await.unwrap(), None);
        self.sink.remove(&names[..3]).await.expect("a second time");
    }

    async fn errors(&self) {
        for bad in ["", "a//b", "../up", "a b", "ü"] {
            let error = self.sink.create(bad, Body::from(vec![1])).await.unwrap_err();
            assert_eq!(error.act(), Act::Bug, "creating «{bad}»: {error}");
            let error = self.sink.read(bad, Range::All).await.unwrap_err();
            assert_eq!(error.act(), Act::Bug, "reading «{bad}»: {error}");
            let error = self.sink.remove(&[bad.to_owned()]).await.unwrap_err();
            assert_eq!(error.act(), Act::Bug, "removing «{bad}»: {error}");
        }
    }

    async fn clean_up(&self) {
        let root = self.name("");
        let all = list_all(&*self.sink, &root, None).await.unwrap();
        let names: Vec<String> = all.into_iter().map(|entry| entry.name).collect();
        assert!(!names.is_empty());
        self.sink.remove(&names).await.unwrap();
        assert!(list_all(&*self.sink, &root, None).await.unwrap().is_empty());
    }

    fn name(&self, rest: &str) -> String {
        format!("{}/{rest}", self.prefix)
    }

    async fn created(&self, name: &str, body: Body) {
        let created = self.sink.create(name, body).await;
        match created {
            Ok(created) => assert_eq!(created, Created::New, "{name}"),
            Err(error) => panic!("create of {name}: {}", error.chain()),
        }
    }

    async fn whole(&self, name: &str) -> Bytes {
        match self.sink.read(name, Range::All).await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => panic!("{name} was created and is not there"),
            Err(error) => panic!("read of {name}: {}", error.chain()),
        }
    }

    /// All names by pages of `limit`, each page checked for order, bounds and progress.
    async fn paged(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        loop {
            let last = names.last().cloned();
            let page = self.sink.list(prefix, last.as_deref().or(after), limit).await.unwrap();
            assert!(page.entries.len() <= limit, "{} entries where {limit} were allowed", page.entries.len());
            assert!(!page.more || !page.entries.is_empty(), "an empty page that promises more never ends");
            for entry in page.entries {
                let before = names.last().map(String::as_str).or(after);
                assert!(
                    before.is_none_or(|before| before < entry.name.as_str()),
                    "{} is out of order",
                    entry.name
                );
                names.push(entry.name);
            }
            if !page.more {
                return names;
            }
        }
    }
}

/// Bytes that depend on `seed`, the same each time.
fn pattern(seed: u64, length: usize) -> Bytes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes.into()
}
