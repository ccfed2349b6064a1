//! The stream: every object from the first to the head, and the epoch objects that its keys come from.

use std::collections::BTreeMap;

use holdfast_core::{Branch, Epoch, Progress, Result, Span, Timestamp};

use super::{Closes, Level, Problem, Verification, damage};
use crate::{
    chain::{Depth, Found, Object},
    view::LineageView,
};

/// What is known on the way.
#[derive(Default)]
struct Trail {
    heads: BTreeMap<Branch, u64>,
    newest: Option<Timestamp>,
    /// Problems whose other end is not yet seen.
    open: Vec<usize>,
}

pub(super) async fn verify(
    view: &LineageView,
    level: Level,
    progress: &dyn Progress,
    found: &mut Verification,
) -> Result<()> {
    let chain = view.chain();
    let mut trail = Trail::default();
    let mut epoch = None;
    let begin = match damage(chain.begin().await)? {
        Ok(begin) => begin,
        Err(what) => {
            let what = format!("{what}: what came before cannot be reached");
            let closes = Closes::Spans { spans: Vec::new(), after: None, before: None };
            found.problems.push(Problem { what, closes });
            chain.oldest_known().await
        }
    };
    let (bytes, _) = chain.size(begin, chain.head().at).await?;
    let layers =
        holdfast_core::View::catalog(view).checkpoints.iter().flat_map(|checkpoint| &checkpoint.layers);
    let layers: u64 = layers.flat_map(|layer| &layer.objects).map(|object| object.bytes).sum();
    // Packs are met on the way; how much of them is read depends on the level.
    progress.total(bytes + layers);
    let mut walk = chain.walk(begin, Depth::Whole);
    while let Some(next) = walk.next().await? {
        let (at, sound) = match next {
            Found::Object(object) => {
                found.log_objects += 1;
                found.read(object.len() as u64, progress);
                let entries = object.entries(&chain.access().source_key);
                let checked = match entries.and_then(|_| object.check()) {
                    Ok(_) if level == Level::Contents => match view.keys().get(object.id().epoch).await {
                        Ok(key) => object.closed(&key).map(|_| ()),
                        // The epoch object is a problem of its own.
                        Err(_) => Ok(()),
                    },
                    other => other.map(|_| ()),
                };
                let at = object.id().epoch;
                (at, damage(checked)?.map(|()| object))
            }
            Found::Lost { epoch, error, .. } => (epoch, Err(error.chain())),
        };
        if epoch.replace(at) != Some(at) {
            verify_epoch(view, at, found).await?;
        }
        match sound {
            Ok(object) => trail.pass(&object, found),
            Err(what) => {
                let closes = Closes::Spans { spans: Vec::new(), after: trail.newest, before: None };
                trail.open.push(found.problems.len());
                found.problems.push(Problem { what, closes });
            }
        }
    }
    Ok(())
}

async fn verify_epoch(view: &LineageView, epoch: Epoch, found: &mut Verification) -> Result<()> {
    let keys = view.keys();
    let opened = if keys.can_open() {
        keys.get(epoch).await.map(|_| ())
    } else {
        keys.object(epoch).await.map(|_| ())
    };
    if let Err(what) = damage(opened)? {
        found.problems.push(Problem {
            what: format!("{what}: log bytes and pieces of epoch {epoch} cannot be opened"),
            closes: Closes::Nothing,
        });
    }
    Ok(())
}

impl Trail {
    /// A sound object tells where the damage before it ended.
    fn pass(&mut self, object: &Object, found: &mut Verification) {
        let header = &object.header;
        let oldest = header.marks.map(|(oldest, _)| oldest);
        for problem in &self.open {
            let Some(Problem { closes: Closes::Spans { spans, before, .. }, .. }) =
                found.problems.get_mut(*problem)
            else {
                continue;
            };
            *before = before.or(oldest);
            for span in &header.spans {
                let from = self.heads.get(&span.branch).copied().unwrap_or(span.from);
                if from < span.from {
                    spans.push(Span { branch: span.branch, from, to: span.from });
                }
            }
        }
        if !header.spans.is_empty() {
            self.open.clear();
        }
        for span in &header.spans {
            self.heads.insert(span.branch, span.to);
        }
        self.newest = self.newest.max(header.marks.map(|(_, newest)| newest)).max(header.vouched);
    }
}
