//! Random histories: what readers see is what was taken over, at every depth and from every place.

use holdfast_core::{Branch, Sink, Span, View};
use holdfast_repo::{
    chain::{At, Depth},
    view::Repository,
};
use proptest::prelude::*;

use crate::author::{Author, Batch};

#[derive(Clone, Debug)]
enum Action {
    Write {
        count: u64,
        bytes: usize,
    },
    Empty,
    Catalog,
    /// Merges the next so many plain numbers.
    Merge {
        count: u64,
        remove: bool,
    },
    /// Merges all merged objects of the epoch.
    MergeUp {
        remove: bool,
    },
    Claim {
        skip: u64,
    },
    Dead,
    /// An object of a fenced writer lands behind what was taken over.
    Late {
        behind: u64,
    },
    Branch,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => (1u64..12, 1usize..400).prop_map(|(count, bytes)| Action::Write { count, bytes }),
        1 => Just(Action::Empty),
        1 => Just(Action::Catalog),
        4 => (1u64..8, any::<bool>()).prop_map(|(count, remove)| Action::Merge { count, remove }),
        2 => any::<bool>().prop_map(|remove| Action::MergeUp { remove }),
        2 => (0u64..3).prop_map(|skip| Action::Claim { skip }),
        1 => Just(Action::Dead),
        2 => (0u64..3).prop_map(|behind| Action::Late { behind }),
        1 => Just(Action::Branch),
    ]
}

struct History {
    author: Author,
    written: Vec<At>,
    /// Merged ranges of the open epoch, and the last number merged.
    merged: Vec<(u64, u64)>,
    highest: u64,
    fenced: Option<At>,
    spans: Vec<Span>,
}

impl History {
    async fn new(create_only: bool) -> Self {
        let author = Author::on(create_only).await;
        let written = vec![(author.epoch, 0)];
        Self { author, written, merged: Vec::new(), highest: 1, fenced: None, spans: Vec::new() }
    }

    async fn write(&mut self, batch: Batch) {
        let span = self.author.span(batch.bytes as u64);
        self.written.push(self.author.write(batch).await);
        match self.spans.last_mut() {
            Some(last) if last.branch == span.branch => last.to = span.to,
            _ if span.is_empty() => {}
            _ => self.spans.push(span),
        }
    }

    async fn act(&mut self, action: Action) {
        match action {
            Action::Write { count, bytes } => {
                for at in 0..count {
                    let marks = vec![self.author.position; (at % 3) as usize];
                    self.write(Batch { bytes: bytes.max(marks.len()), marks, ..Batch::default() }).await;
                }
            }
            Action::Empty => self.write(Batch::default()).await,
            Action::Catalog => self.write(Batch { catalog: true, ..Batch::default() }).await,
            Action::Merge { count, remove } => {
                let from = self.merged.last().map_or(1, |(_, to)| to + 1);
                let to = from + count - 1;
                // The newest object of an open epoch is never merged.
                if to + 1 < self.author.number {
                    self.author.merge(from..=to, remove).await;
                    self.merged.push((from, to));
                }
            }
            Action::MergeUp { remove } => {
                if self.merged.len() > 1 {
                    let ranges: Vec<_> = self.merged.iter().map(|(from, to)| *from..=*to).collect();
                    self.author.merge_merged(&ranges, remove).await;
                    self.merged = vec![(1, self.merged.last().unwrap().1)];
                }
            }
            Action::Claim { skip } => {
                self.fenced = Some((self.author.epoch, self.author.number));
                self.highest += 1 + skip;
                self.author.claim(self.highest).await;
                self.written.push((self.author.epoch, 0));
                self.merged.clear();
            }
            Action::Dead => {
                self.highest += 1;
                self.author.claim_dead(self.highest).await;
            }
            Action::Late { behind } => {
                if let Some((epoch, end)) = self.fenced {
                    let number = end + behind + u64::from(self.author.create_only);
                    let author = &self.author;
                    let bytes = author.sink.get(&author.stream.log(author.epoch, 0)).unwrap();
                    author.sink.create(&author.stream.log(epoch, number), bytes.into()).await.unwrap();
                }
            }
            Action::Branch => self.author.branch += 1,
        }
    }

    async fn check(&self, start: usize) {
        let author = &self.author;
        let chain = author.chain().await;
        assert_eq!(chain.damage(), Vec::<String>::new());
        assert_eq!(chain.head().at, *self.written.last().unwrap());
        assert_eq!(chain.begin().await.unwrap(), self.written[0]);
        let known = chain.catalog().await.unwrap();
        assert_eq!((known.catalog, known.damage), (author.catalog.clone(), Vec::new()));
        let start = start % self.written.len();
        for depth in [Depth::Front, Depth::Entries, Depth::Whole] {
            let mut walk = chain.walk(self.written[start], depth);
            let mut seen = Vec::new();
            while let Some(object) = walk.next_object().await.unwrap() {
                seen.push((object.id().epoch, object.id().number));
            }
            assert_eq!(seen, self.written[start..], "{depth:?}");
        }
        let before = start.checked_sub(1).map(|at| self.written[at]);
        assert_eq!(chain.before(self.written[start]).await.unwrap(), before);

        let repository = Repository::open(author.sink.clone(), None).await.unwrap();
        let source = repository.source("main", &author.identity).await.unwrap();
        let identity = Some(author.identity.clone());
        let view = repository.view(&source, author.stream, identity).await.unwrap().unwrap();
        for span in &self.spans {
            let mut at = span.from + start as u64 % span.len().max(1);
            while at < span.to {
                let chunks =
                    view.log(Span { from: at, to: (at + 3_777).min(span.to), ..*span }).await.unwrap();
                assert!(!chunks.is_empty(), "nothing at {at} of {span:?}");
                for chunk in chunks {
                    assert_eq!(chunk.span.from, at);
                    assert_eq!(chunk.bytes, Author::log_bytes(span.branch.0, at, chunk.span.to));
                    at = chunk.span.to;
                }
            }
        }
        assert!(view.log(Span { branch: Branch(99), from: 0, to: 10 }).await.unwrap().is_empty());
    }
}

fn run(create_only: bool, actions: Vec<Action>, start: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut history = History::new(create_only).await;
        for action in actions {
            history.act(action).await;
        }
        history.check(start).await;
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn readers_see_what_was_taken_over(actions in prop::collection::vec(action(), 1..40), start: usize) {
        run(true, actions, start);
    }

    #[test]
    fn readers_see_what_was_taken_over_without_create_only_writes(actions in prop::collection::vec(action(), 1..40), start: usize) {
        run(false, actions, start);
    }
}
