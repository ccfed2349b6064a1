//! Reads back what a stream holds, through the view that every restore uses, and compares it with the arithmetic.

use std::sync::Arc;

use holdfast_core::{Sink, Span, View, digest};
use holdfast_repo::{
    chain::Access,
    names::{Stream, lineage_id},
    view::{DataKeys, LineageView},
};
use holdfast_testkit::scripted::{BRANCH, log_bytes, piece_bytes, record_end};

use crate::world::World;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Where the log begins and ends.
    pub from: u64,
    pub to: u64,
    pub marks: usize,
    pub checkpoints: usize,
    pub gaps: usize,
}

impl World {
    pub fn access(&self) -> Access {
        let lineage = lineage_id(&self.key.key, self.key.repo, self.key.source, "arithmetic");
        let stream = Stream { source: self.key.source, lineage };
        Access {
            sink: Arc::new(self.sink.clone()) as Arc<dyn Sink>,
            stream,
            source_key: self.key.key.clone(),
        }
    }

    /// Everything that a reader finds; panics when anything of it is not what the source once held.
    pub async fn restore(&self) -> Restored {
        let access = self.access();
        let keys = DataKeys::new(access.clone(), self.key.repo, Some(self.identity.clone()));
        let Some(view) = LineageView::open(access, Arc::new(keys)).await.unwrap() else {
            return Restored::default();
        };
        // A create that is in flight, or whose writer died, is no damage.
        let damage = view.damage().iter().filter(|said| !said.contains("it is in flight, or lost"));
        assert_eq!(damage.collect::<Vec<_>>(), Vec::<&String>::new());
        let catalog = view.catalog();
        let mut restored = Restored { gaps: catalog.gaps.len(), ..Restored::default() };
        assert!(catalog.spans.len() <= 1, "the log has holes: {:?}", catalog.spans);
        let Some(span) = catalog.spans.first().copied() else { return restored };
        (restored.from, restored.to) = (span.from, span.to);
        assert_eq!(view.heads(), [span.end()]);

        let mut at = span.from;
        while at < span.to {
            let chunks = view.log(Span { branch: BRANCH, from: at, to: span.to }).await.unwrap();
            assert!(!chunks.is_empty(), "the log ends at {at} instead of {}", span.to);
            for chunk in chunks {
                assert_eq!(chunk.span.from, at, "the log is not contiguous");
                assert_eq!(chunk.bytes, log_bytes(at, chunk.span.to), "wrong bytes from {at} on");
                at = chunk.span.to;
            }
        }

        let mut marks = Vec::new();
        let mut from = span.from;
        loop {
            let answer = view.marks(Span { branch: BRANCH, from, to: span.to }).await.unwrap();
            if answer.covered.is_empty() {
                break;
            }
            marks.extend(answer.marks);
            from = answer.covered.to;
        }
        let mut expected = span.from;
        for mark in &marks {
            expected = record_end(expected);
            assert_eq!(mark.place.position, expected, "a mark is missing or double");
        }
        assert!(record_end(expected) > span.to, "marks end at {expected}, the log at {}", span.to);
        restored.marks = marks.len();

        for checkpoint in &catalog.checkpoints {
            let began = u64::from_le_bytes(checkpoint.body.as_ref().try_into().unwrap());
            let rows = view.rows(&checkpoint.layers, &[], usize::MAX).await.unwrap();
            assert_eq!(rows.len() as u64, checkpoint.rows);
            for (piece, row) in rows.iter().enumerate() {
                let expected = piece_bytes(began, piece as u64);
                assert_eq!(row.value, &digest(&expected)[..]);
                assert_eq!(view.content(&row.held[0]).await.unwrap(), expected);
            }
            assert!(checkpoint.serves.position <= span.to);
        }
        restored.checkpoints = catalog.checkpoints.len();
        restored
    }
}
