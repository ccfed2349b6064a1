//! Verification of a lineage: is everything there, whole, chained, and what the checkpoints name?
//!
//! Invariants: nothing is changed; a problem never ends the work, so that one damaged object does not hide
//! another; memory is bounded by one object and the lists of a few packs.

mod log;
mod tables;

use holdfast_core::{Act, Error, Progress, Result, RunId, Span, Timestamp};

use crate::view::LineageView;

/// How much is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Log objects and table layers whole; of packs their lists.
    Named,
    /// And every named pack, against its digest.
    Digests,
    /// And every named piece is opened and hashed: needs an identity.
    Contents,
}

/// What a problem takes away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closes {
    /// Moments whose path crosses these, with the newest time before and the oldest after, as far as known.
    Spans { spans: Vec<Span>, after: Option<Timestamp>, before: Option<Timestamp> },
    /// Moments that stand on these checkpoints and no other.
    Checkpoints(Vec<RunId>),
    /// Nothing that is known to be needed.
    Nothing,
}

#[derive(Clone, Debug)]
pub struct Problem {
    /// Names the object and says what is wrong.
    pub what: String,
    pub closes: Closes,
}

/// What verification found.
#[derive(Clone, Debug, Default)]
pub struct Verification {
    pub log_objects: u64,
    pub layer_objects: u64,
    pub packs: u64,
    pub rows: u64,
    pub pieces: u64,
    pub bytes: u64,
    pub problems: Vec<Problem>,
}

impl Verification {
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }
    fn read(&mut self, bytes: u64, progress: &dyn Progress) {
        self.bytes += bytes;
        progress.done(bytes);
    }
}

/// Verifies a lineage as of when its view was opened.
///
/// # Errors
/// What the store says, and `Configure` for [`Level::Contents`] without an identity. Damage is no error here.
pub async fn verify(view: &LineageView, level: Level, progress: &dyn Progress) -> Result<Verification> {
    if level == Level::Contents && !view.keys().can_open() {
        return Err(Error::configure("contents are opened with an identity: give one, or verify less"));
    }
    let mut found = Verification::default();
    log::verify(view, level, progress, &mut found).await?;
    tables::verify(view, level, progress, &mut found).await?;
    for damage in view.damage() {
        if !found.problems.iter().any(|problem| problem.what == *damage) {
            found.problems.push(Problem { what: damage.clone(), closes: Closes::Nothing });
        }
    }
    found.problems = once(std::mem::take(&mut found.problems));
    Ok(found)
}

/// One damaged object is met by many rows: it is said once, with all that it closes.
fn once(problems: Vec<Problem>) -> Vec<Problem> {
    let mut kept: Vec<Problem> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for problem in problems {
        let place = *places.entry(problem.what.clone()).or_insert(kept.len());
        match (kept.get_mut(place).map(|known| &mut known.closes), &problem.closes) {
            (None, _) => kept.push(problem),
            (Some(Closes::Checkpoints(known)), Closes::Checkpoints(more)) => {
                for run in more {
                    if !known.contains(run) {
                        known.push(*run);
                    }
                }
            }
            (Some(Closes::Checkpoints(_)), _) | (Some(_), Closes::Nothing) => {}
            (Some(known), _) => *known = problem.closes,
        }
    }
    kept
}

/// Damage is an answer; other errors are not.
fn damage<T>(result: Result<T>) -> Result<std::result::Result<T, String>> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(error) if error.act() == Act::Corrupt => Ok(Err(error.chain())),
        Err(error) => Err(error),
    }
}
