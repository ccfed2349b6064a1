//! Brings a [`Catalog`] up to date, object by object. Pure: the writer and every reader use the same step, so
//! both know the same. Applying an object twice changes nothing.

use holdfast_core::{Branch, Catalog, Place, Sample, Span, Timestamp};

use crate::{
    entry::Entry,
    object::{Header, ObjectId},
};

/// One sample of the log in so many objects of an epoch, at most.
const SAMPLE_EVERY: u64 = 64;
/// Samples of a catalog, at most; beyond, those go that leave the smallest hole.
const SAMPLES_MAX: usize = 2048;
/// The newest samples, which are never thinned.
const SAMPLES_FRESH: usize = 128;

/// Applies one object: its entries in order, then the spans of its header.
pub fn apply(catalog: &mut Catalog, id: ObjectId, header: &Header, entries: &[Entry]) {
    for entry in entries {
        apply_entry(catalog, entry);
    }
    for span in &header.spans {
        add_span(catalog, *span);
    }
    let newest = header.marks.map(|(_, newest)| newest).max(header.vouched);
    for (at, span) in header.spans.iter().enumerate() {
        let later = header.spans.get(at + 1..).unwrap_or_default();
        if later.iter().all(|other| other.branch != span.branch) {
            add_sample(catalog, id, span.end(), newest);
        }
    }
}

/// Newest place of each branch, in the order in which the stream wrote to them last.
pub fn heads(catalog: &Catalog) -> Vec<Place> {
    let mut heads: Vec<Place> = Vec::new();
    for span in &catalog.spans {
        heads.retain(|place| place.branch != span.branch);
        heads.push(span.end());
    }
    heads
}

fn apply_entry(catalog: &mut Catalog, entry: &Entry) {
    match entry {
        Entry::Catalog(whole) => *catalog = (**whole).clone(),
        Entry::Note(note) => {
            if !catalog.notes.contains(note) {
                catalog.notes.push(note.clone());
            }
        }
        Entry::Gap(gap) => {
            if !catalog.gaps.contains(gap) {
                catalog.gaps.push(gap.clone());
            }
        }
        Entry::Progress(run) => {
            let finished = catalog.checkpoints.iter().any(|checkpoint| checkpoint.id == run.id);
            match catalog.runs.iter_mut().find(|known| known.id == run.id) {
                Some(known) => *known = run.clone(),
                None if finished => {}
                None => catalog.runs.push(run.clone()),
            }
        }
        Entry::Abandoned(run) => catalog.runs.retain(|known| known.id != *run),
        Entry::Checkpoint(checkpoint) => {
            catalog.runs.retain(|known| known.id != checkpoint.id);
            if catalog.checkpoints.iter().all(|known| known.id != checkpoint.id) {
                catalog.checkpoints.push((**checkpoint).clone());
            }
        }
        // Not rare, or of no concern to a restore.
        Entry::Log { .. }
        | Entry::Marks(_)
        | Entry::Cursor(_)
        | Entry::Took(_)
        | Entry::Clocks { .. }
        | Entry::Cut { .. }
        | Entry::Doom { .. }
        | Entry::Release => {}
    }
}

/// Joins a span to the last one of its branch when they touch. The span written to last stands last.
fn add_span(catalog: &mut Catalog, span: Span) {
    let last = catalog.spans.iter().rposition(|known| known.branch == span.branch);
    let joined = match last {
        Some(at) if catalog.spans.get(at).is_some_and(|known| span.from <= known.to) => {
            let mut known = catalog.spans.remove(at);
            // Of what is known already, the stream goes on as it did.
            if span.to <= known.to {
                catalog.spans.insert(at, known);
                return;
            }
            known.to = span.to;
            known
        }
        _ => span,
    };
    catalog.spans.push(joined);
}

/// The last sample of a branch moves with the stream, so that it also carries the newest time seen; it stays
/// behind, and another one begins, once it is far enough from the one before it.
fn add_sample(catalog: &mut Catalog, id: ObjectId, place: Place, newest: Option<Timestamp>) {
    let samples = &mut catalog.samples;
    let same = |sample: &Sample| sample.place.branch == place.branch;
    let mut time = newest.unwrap_or(Timestamp(i64::MIN));
    if let Some(at) = samples.iter().rposition(same)
        && let Some(last) = samples.get(at).cloned()
    {
        if (id.epoch, id.number) <= (last.epoch, last.number) {
            return;
        }
        time = time.max(last.time);
        let before = samples.get(..at).and_then(|older| older.iter().rev().find(|sample| same(sample)));
        if before
            .is_some_and(|before| before.epoch == last.epoch && last.number - before.number < SAMPLE_EVERY)
        {
            samples.remove(at);
        }
    }
    samples.push(Sample { epoch: id.epoch, number: id.number, place, time });
    if samples.len() > SAMPLES_MAX {
        thin(samples);
    }
}

/// Removes the older sample whose neighbours of the same branch lie closest together.
fn thin(samples: &mut Vec<Sample>) {
    let old = samples.len().saturating_sub(SAMPLES_FRESH);
    let hole = |at: usize| -> Option<u64> {
        let branch: Branch = samples.get(at)?.place.branch;
        let same = |sample: &&Sample| sample.place.branch == branch;
        let before = samples.get(..at)?.iter().rev().find(same)?;
        let after = samples.get(at + 1..)?.iter().find(same)?;
        Some(after.place.position.saturating_sub(before.place.position))
    };
    let least = (1..old).filter_map(|at| Some((hole(at)?, at))).min();
    // Samples without neighbours of their own branch go last, the oldest first.
    let at = least.map_or(0, |(_, at)| at);
    samples.remove(at);
}

#[cfg(test)]
mod tests {
    use holdfast_core::{Bytes, Epoch, Gap, LineageId, RunId, RunProgress};

    use super::*;

    fn id(epoch: u64, number: u64) -> ObjectId {
        ObjectId { lineage: LineageId([1; 8]), epoch: Epoch::numbered(epoch), number }
    }
    fn span(branch: u64, from: u64, to: u64) -> Span {
        Span { branch: Branch(branch), from, to }
    }
    fn header(spans: &[Span], newest: i64) -> Header {
        Header {
            spans: spans.to_vec(),
            written: Timestamp(0),
            uptime: 0,
            vouched: None,
            marks: Some((Timestamp(0), Timestamp(newest))),
            mark_count: 1,
            heartbeat: 20_000,
            catalog: None,
            release: false,
        }
    }

    #[test]
    fn spans_join_and_heads_follow_the_stream() {
        let mut catalog = Catalog::default();
        apply(&mut catalog, id(1, 0), &header(&[span(1, 0, 10)], 1), &[]);
        apply(&mut catalog, id(1, 1), &header(&[span(1, 10, 20), span(2, 15, 30)], 2), &[]);
        apply(&mut catalog, id(1, 2), &header(&[span(2, 40, 50)], 3), &[]);
        let again = catalog.clone();
        for number in 0..3 {
            let spans = [vec![span(1, 0, 10)], vec![span(1, 10, 20), span(2, 15, 30)], vec![span(2, 40, 50)]];
            apply(&mut catalog, id(1, number), &header(&spans[number as usize], 3), &[]);
        }
        assert_eq!(catalog, again, "applying twice changed something");
        assert_eq!(catalog.spans, [span(1, 0, 20), span(2, 15, 30), span(2, 40, 50)]);
        assert_eq!(heads(&catalog), [span(1, 0, 20).end(), span(2, 0, 50).end()]);
        apply(&mut catalog, id(1, 3), &header(&[span(1, 20, 21)], 3), &[]);
        assert_eq!(heads(&catalog), [span(2, 0, 50).end(), span(1, 0, 21).end()]);
    }

    #[test]
    fn every_mark_before_a_sample_is_at_most_as_new() {
        let mut catalog = Catalog::default();
        let times = |n: u64| (n * 7919 % 1000) as i64;
        for n in 0..400_000 {
            apply(
                &mut catalog,
                id(1 + n / 1000, n % 1000),
                &header(&[span(1, n * 100, n * 100 + 100)], times(n)),
                &[],
            );
            if n % 50_000 == 0 {
                // As after a restart from a stored catalog.
                catalog = postcard::from_bytes(&postcard::to_stdvec(&catalog).unwrap()).unwrap();
            }
        }
        assert!(catalog.samples.len() <= SAMPLES_MAX);
        let mut newest = (0, 0);
        for sample in &catalog.samples {
            for n in newest.0..sample.place.position / 100 {
                newest = (n + 1, newest.1.max(times(n)));
            }
            assert!(sample.time.0 >= newest.1, "{sample:?}");
        }
        // Old and new parts of the log are both within reach.
        let holes: Vec<u64> =
            catalog.samples.windows(2).map(|w| w[1].place.position - w[0].place.position).collect();
        assert!(holes.iter().all(|hole| *hole < 100 * 400_000 / 500), "{holes:?}");
        assert_eq!(catalog.samples.last().unwrap().place.position, 400_000 * 100);
    }

    #[test]
    fn runs_end_once() {
        let run =
            RunProgress { id: RunId([1; 8]), began: Timestamp(1), layers: Vec::new(), body: Bytes::new() };
        let gap = Gap { span: span(1, 5, 6), cause: "c".into(), noticed: Timestamp(2) };
        let mut catalog = Catalog::default();
        let entries = [Entry::Progress(run.clone()), Entry::Gap(gap.clone()), Entry::Gap(gap)];
        apply(&mut catalog, id(1, 0), &header(&[], 0), &entries);
        assert_eq!((catalog.runs.len(), catalog.gaps.len()), (1, 1));
        apply(&mut catalog, id(1, 1), &header(&[], 0), &[Entry::Abandoned(run.id)]);
        assert!(catalog.runs.is_empty());
    }
}
