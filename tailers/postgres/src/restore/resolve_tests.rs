//! Resolving against a brute-force reference: times that fall, several timelines and a stray one, gaps, suspect
//! base backups. The reference knows every record, also those in gaps.

use holdfast_core::{
    Bytes, Checkpoint, Gap, Mark, MarkKind, Moment, Note, Place, RunId, Span, Timestamp, Wish,
};
use holdfast_testkit::MemoryView;
use proptest::prelude::*;

use super::{
    boundary::{Entry, tests::written},
    resolve::{Choice, resolve},
    timelines::{TimelineChoice, branch},
};
use crate::{
    records::{Base, NoteBody, Parameters},
    wal::Lsn,
};

const SEGMENT: u64 = 1 << 20;

/// What a case is made from; indexes are taken modulo what there is.
#[derive(Clone, Debug)]
struct Case {
    lengths: Vec<u32>,
    /// Per record: a commit with this jitter of its time, if any.
    commits: Vec<Option<i64>>,
    switches: Vec<usize>,
    gap: Option<(usize, usize)>,
    /// First and last record of the run, and whether it is suspect.
    bases: Vec<(usize, usize, bool)>,
    stray: usize,
    samples: usize,
}

fn cases() -> impl Strategy<Value = Case> {
    (12usize..80).prop_flat_map(|n| {
        (
            proptest::collection::vec(prop_oneof![24u32..300, 24u32..12_000], n),
            proptest::collection::vec(proptest::option::weighted(0.6, -2500i64..2500), n),
            proptest::collection::vec(1..n, 0..3),
            proptest::option::of((1..n, 1usize..8)),
            proptest::collection::vec((0..n, 0usize..8, proptest::bool::weighted(0.2)), 0..5),
            1..n,
            1usize..12,
        )
            .prop_map(move |(lengths, commits, mut switches, gap, bases, stray, samples)| {
                switches.sort_unstable();
                switches.dedup();
                let gap = gap.map(|(from, length)| (from, (from + length).min(n)));
                let bases = bases.into_iter().map(|(b, l, bad)| (b, (b + l).min(n - 1), bad)).collect();
                Case { lengths, commits, switches, gap, bases, stray, samples }
            })
    })
}

struct World {
    view: MemoryView,
    records: Vec<Entry>,
    /// Record, time.
    commits: Vec<(usize, i64)>,
    lost: std::ops::Range<usize>,
    /// (begin record, last record, suspect)
    bases: Vec<(usize, usize, bool)>,
}

fn id(number: usize) -> RunId {
    RunId((number as u64).to_be_bytes())
}

fn build(case: &Case) -> World {
    let (wal, records) = written(&case.lengths, SEGMENT);
    let wal = Bytes::from(wal);
    let mut view = MemoryView::default();
    view.chunk = 4000;
    let lost = case.gap.map_or(0..0, |(from, to)| from..to);
    let timeline_of = |record: usize| 1 + case.switches.iter().filter(|at| **at <= record).count() as u32;
    let newest = timeline_of(records.len() - 1);
    // A stray timeline with a higher number and commits of its own, seen before the newest of ours.
    let (stray, fork) = (newest + 1, records[case.stray].begin);
    let stray_parent = timeline_of(case.stray.saturating_sub(1));
    let switch = |at: usize| records[case.switches[at]].begin;
    let mut text = String::new();
    for timeline in 2..=newest {
        text.push_str(&format!("{}\t{}\tx\n", timeline - 1, Lsn(switch(timeline as usize - 2))));
        note(&mut view, timeline, &text);
    }
    let upto: String = text.lines().take(stray_parent as usize - 1).map(|line| format!("{line}\n")).collect();
    note(&mut view, stray, &format!("{upto}{stray_parent}\t{}\tx\n", Lsn(fork)));
    view.add_log(branch(stray), fork, wal.slice(fork as usize..));
    view.marks.push(mark(stray, records[case.stray], 1, 999_999));
    for (at, record) in records.iter().enumerate() {
        if lost.contains(&at) {
            continue;
        }
        let next = records.get(at + 1).map_or(record.end, |next| next.begin);
        let from = if at == 0 { 0 } else { record.begin };
        view.add_log(branch(timeline_of(at)), from, wal.slice(from as usize..next as usize));
        // The server over-sends: half of what was never to be, beyond the switch.
        if timeline_of(at + 1) > timeline_of(at) && at + 1 < records.len() && !lost.contains(&(at + 1)) {
            view.add_log(branch(timeline_of(at)), next, Bytes::from_static(&[7; 16]));
        }
    }
    let mut commits = Vec::new();
    for (at, jitter) in case.commits.iter().enumerate() {
        if let Some(jitter) = jitter {
            let time = at as i64 * 1000 + jitter;
            commits.push((at, time));
            if !lost.contains(&at) {
                view.marks.push(mark(timeline_of(at), records[at], time, at as u64 + 100));
            }
        }
    }
    if !lost.is_empty() {
        let (from, to) =
            (records[lost.start], records.get(lost.end).map_or(records[lost.end - 1].end, |r| r.begin));
        for timeline in timeline_of(lost.start)..=timeline_of(lost.end - 1) {
            let low = if timeline == 1 { 0 } else { switch(timeline as usize - 2) }.max(from.begin);
            let high = if timeline == newest { to } else { switch(timeline as usize - 1) }.min(to);
            let span = Span { branch: branch(timeline), from: low, to: high };
            view.gap(Gap { span, cause: "the slot was lost".into(), noticed: Timestamp(0) });
        }
    }
    let mut bases = Vec::new();
    for (begin, last, suspect) in &case.bases {
        if (*begin..=*last).any(|at| lost.contains(&at)) || timeline_of(*begin) != timeline_of(*last) {
            continue;
        }
        let timeline = timeline_of(*begin);
        let (start, end) = (records[*begin].begin, records[*last].end);
        let base = Base {
            label: "test".into(),
            timeline,
            start: Lsn(start),
            end_timeline: timeline,
            end: Lsn(end),
            tablespaces: Vec::new(),
            segment_size: SEGMENT as u32,
            version: 150_000,
            system_identifier: 1,
            parameters: Parameters::default(),
            checksums: true,
            group_access: false,
            from_standby: false,
        };
        view.checkpoint(Checkpoint {
            id: id(bases.len()),
            begin: Place { branch: branch(timeline), position: start },
            serves: Place { branch: branch(timeline), position: end },
            began: Timestamp(*begin as i64 * 1000 + 3000),
            ended: Timestamp(*last as i64 * 1000 + 3000),
            layers: Vec::new(),
            rows: 0,
            bytes: 0,
            sent: 0,
            suspect: suspect.then(|| "page 7 is damaged".into()),
            body: base.encode().unwrap(),
        });
        bases.push((*begin, *last, *suspect));
    }
    // The stream is on its newest timeline of all.
    let head = view.heads.iter().position(|head| head.branch == branch(newest));
    if let Some(at) = head {
        let head = view.heads.remove(at);
        view.heads.push(head);
    }
    view.sample(case.samples);
    view.vouched = Some(Timestamp(records.len() as i64 * 1000 + 3000));
    World { view, records, commits, lost, bases }
}

fn note(view: &mut MemoryView, timeline: u32, text: &str) {
    let body = NoteBody::History { timeline, content: Bytes::from(text.to_owned()) };
    let place = Place { branch: branch(timeline), position: 0 };
    view.note(Note { place, time: Timestamp(0), body: body.encode().unwrap() });
}

fn mark(timeline: u32, record: Entry, time: i64, xid: u64) -> Mark {
    Mark {
        begin: record.begin,
        place: Place { branch: branch(timeline), position: record.end },
        time: Timestamp(time),
        kind: MarkKind::Commit { id: xid },
    }
}

impl World {
    fn resolve(&self, wish: &Wish, inclusive: bool) -> holdfast_core::Result<Moment> {
        let choice = Choice { timeline: TimelineChoice::Current, inclusive };
        futures::executor::block_on(resolve(wish, choice, &self.view))
    }

    /// Records `0..n` are what is restored.
    fn restored(&self, moment: &Moment) -> usize {
        let end = if moment.inclusive { moment.place.position } else { moment.begin };
        self.records.iter().filter(|record| record.end <= end).count()
    }

    /// Is a state of `n` records reachable, and from which base backup should it be?
    fn base_for(&self, n: usize) -> Option<usize> {
        let whole = |begin: usize| (begin..n).all(|at| !self.lost.contains(&at));
        let fits = |(_, (begin, last, _)): &(usize, &(usize, usize, bool))| *last < n && whole(*begin);
        let best = |clean: bool| {
            let all = self.bases.iter().enumerate().filter(fits);
            all.filter(|(_, base)| !clean || !base.2).map(|(at, base)| (base.1, at)).max()
        };
        best(true).or_else(|| best(false)).map(|(_, at)| at)
    }

    /// Whatever was asked: the moment is a whole durable record after a base backup, without a gap.
    fn check(&self, moment: &Moment) -> Result<(), TestCaseError> {
        let n = self.restored(moment);
        let last = Entry { begin: moment.begin, end: moment.place.position };
        prop_assert!(self.records.contains(&last), "{moment:?}");
        let best = self.base_for(n);
        let chosen = self.bases[usize::try_from(u64::from_be_bytes(moment.checkpoint.0)).unwrap()];
        prop_assert!(best.is_some(), "nothing serves {n}");
        let best = self.bases[best.unwrap()];
        prop_assert_eq!((chosen.1, chosen.2), (best.1, best.2), "not the newest clean base backup");
        let mut at = self.records[chosen.0].begin;
        for span in &moment.path {
            prop_assert_eq!(span.from, at);
            at = span.to;
        }
        prop_assert_eq!(at, moment.place.position);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_time_is_everything_before_the_first_later_commit(case in cases()) {
        let world = build(&case);
        let mut times: Vec<i64> = world.commits.iter().flat_map(|(_, time)| [time - 1, *time, time + 1]).collect();
        times.extend([-9000, world.records.len() as i64 * 1000 + 2999, i64::MAX / 2]);
        for time in times {
            let first_later = world.commits.iter().find(|(at, of)| *of > time && !world.lost.contains(at));
            match world.resolve(&Wish::Time(Timestamp(time)), true) {
                Ok(moment) => {
                    world.check(&moment)?;
                    let n = world.restored(&moment);
                    for (at, of) in &world.commits {
                        // Of what a gap swallowed only the rough time is known.
                        let known = !world.lost.contains(at);
                        if *at < n && (known || *of > time + 6000) {
                            let before = first_later.is_none_or(|(later, _)| at < later);
                            prop_assert!(before || world.lost.contains(at) && *of <= time, "{at} of {n} at {time}");
                        }
                        // Commits swap places by their jitter, also across a gap that nobody can see into.
                        let same_side = world.lost.is_empty() || *at < world.lost.start || *of + 6000 < time;
                        if *at >= n && known && same_side {
                            prop_assert!(first_later.is_some_and(|(later, _)| at >= later), "{at} is missing at {time}");
                        }
                    }
                }
                Err(error) => {
                    // Refused only when nothing before the first later commit is reachable and known to be so old.
                    let n = first_later.map_or(world.records.len(), |(at, _)| *at);
                    let began = world.bases.iter().any(|(begin, last, _)| {
                        *begin as i64 * 1000 + 3000 <= time
                            && *last < n
                            && (*begin..n).all(|at| !world.lost.contains(&at))
                    });
                    let vouched = first_later.is_some() || time <= world.records.len() as i64 * 1000 + 3000;
                    prop_assert!(!began || !vouched, "{time} was refused: {error}");
                }
            }
        }
    }

    #[test]
    fn positions_and_transactions_end_at_their_record(case in cases(), inclusive: bool) {
        let world = build(&case);
        let edge = usize::from(inclusive);
        for (at, record) in world.records.iter().enumerate() {
            let reachable = !world.lost.contains(&at) && world.base_for(at + edge).is_some();
            for (wish, known) in [
                (Wish::Position(Lsn(record.begin).to_string()), world.base_for(at).is_some()),
                (Wish::Transaction(at as u64 + 100), case.commits[at].is_some()),
            ] {
                match world.resolve(&wish, inclusive) {
                    Ok(moment) => {
                        world.check(&moment)?;
                        // At the end of a stretch no record begins: all of it is meant.
                        if !world.lost.contains(&at) {
                            prop_assert_eq!(world.restored(&moment), at + edge, "{:?}", wish);
                        }
                    }
                    Err(error) => prop_assert!(!reachable || !known, "{wish:?} was refused: {error}"),
                }
            }
        }
    }

    #[test]
    fn latest_and_immediate_are_the_ends_of_what_can_be_had(case in cases()) {
        let world = build(&case);
        let tail = world.lost.end == world.records.len() && !world.lost.is_empty();
        let newest = if tail { world.lost.start } else { world.records.len() };
        match world.resolve(&Wish::Latest, true) {
            Ok(moment) => {
                world.check(&moment)?;
                prop_assert_eq!(world.restored(&moment), newest);
            }
            Err(_) => prop_assert!(world.base_for(newest).is_none()),
        }
        match world.resolve(&Wish::Immediate, true) {
            Ok(moment) => {
                world.check(&moment)?;
                let chosen = world.bases[usize::try_from(u64::from_be_bytes(moment.checkpoint.0)).unwrap()];
                prop_assert_eq!(world.restored(&moment), chosen.1 + 1);
            }
            Err(_) => prop_assert!(world.bases.is_empty()),
        }
    }
}

fn plain(switches: Vec<usize>, gap: Option<(usize, usize)>, bases: Vec<(usize, usize, bool)>) -> Case {
    Case { lengths: vec![100; 40], commits: vec![Some(0); 40], switches, gap, bases, stray: 20, samples: 4 }
}

/// E5: of two base backups, the one before the target; none before it is an error.
#[test]
fn a_base_backup_newer_than_the_target_is_not_chosen() {
    let world = build(&plain(vec![], None, vec![(4, 5, false), (20, 22, false)]));
    let moment = world.resolve(&Wish::Time(Timestamp(15_000)), true).unwrap();
    assert_eq!((moment.checkpoint, moment.time), (id(0), Some(Timestamp(15_000))));
    assert_eq!((moment.inclusive, world.restored(&moment)), (false, 16));
    let error = world.resolve(&Wish::Time(Timestamp(2_000)), true).unwrap_err();
    assert!(error.to_string().contains("before the first base backup"), "{error}");
    assert!(error.to_string().contains("the first moment that can be restored is"), "{error}");
}

#[test]
fn an_exclusive_time_leaves_its_own_commit_out() {
    let world = build(&plain(vec![], None, vec![(0, 1, false)]));
    let moment = world.resolve(&Wish::Time(Timestamp(15_000)), false).unwrap();
    assert_eq!(world.restored(&moment), 15);
}

#[test]
fn a_later_time_than_all_that_is_known_is_refused_with_the_newest() {
    let world = build(&plain(vec![], None, vec![(0, 1, false)]));
    let error = world.resolve(&Wish::Time(Timestamp(43_001)), true).unwrap_err();
    assert!(error.to_string().contains(&Timestamp(43_000).to_string()), "{error}");
    let moment = world.resolve(&Wish::Time(Timestamp(43_000)), true).unwrap();
    assert_eq!(world.restored(&moment), 40);
}

#[test]
fn a_gap_is_named_with_the_moments_on_both_sides() {
    let world = build(&plain(vec![], Some((10, 14)), vec![(2, 3, false), (15, 16, false)]));
    let wish = Wish::Position(Lsn(world.records[12].begin).to_string());
    let error = world.resolve(&wish, true).unwrap_err().to_string();
    for part in [
        "the slot was lost".to_owned(),
        format!("from {} to {}", Lsn(world.records[10].begin), Lsn(world.records[14].begin)),
        format!("before it is {}", Timestamp(9_000)),
        format!("after it is {}", Timestamp(19_000)),
    ] {
        assert!(error.contains(&part), "{part}: {error}");
    }
    for time in [11_000, 12_500, 14_000] {
        let error = world.resolve(&Wish::Time(Timestamp(time)), true).unwrap_err();
        assert!(error.to_string().contains("the slot was lost"), "{error}");
    }
}

#[test]
fn a_name_given_twice_is_refused() {
    let mut world = build(&plain(vec![], None, vec![(0, 1, false)]));
    for at in [8usize, 12] {
        world.view.marks[at].kind = MarkKind::Name("before_migration".into());
    }
    let wish = Wish::Name("before_migration".into());
    assert!(world.resolve(&wish, true).unwrap_err().to_string().contains("more than once"));
    world.view.marks[8].kind = MarkKind::Tick;
    let moment = world.resolve(&wish, true).unwrap();
    assert_eq!(world.restored(&moment), 12);
    let error = world.resolve(&Wish::Name("other".into()), true).unwrap_err();
    assert!(error.to_string().contains("no restore point «other»"), "{error}");
}

#[test]
fn an_id_that_came_round_is_asked_for_with_its_epoch() {
    let mut world = build(&plain(vec![], None, vec![(0, 1, false)]));
    for (at, mark) in world.view.marks.iter_mut().enumerate() {
        let epoch = if at < 10 { 1u64 << 32 } else { 2 << 32 };
        mark.kind = MarkKind::Commit { id: epoch | at as u64 };
    }
    let in_epoch = |epoch: u64| Wish::Transaction(epoch << 32 | 700);
    for (at, epoch) in [(5usize, 1), (15, 2)] {
        world.view.marks[at].kind = MarkKind::Commit { id: epoch << 32 | 700 };
    }
    for (at, epoch) in [(5, 1), (15, 2)] {
        let moment = world.resolve(&in_epoch(epoch), true).unwrap();
        assert_eq!(moment.place.position, world.view.marks[at].place.position);
    }
    let error = world.resolve(&Wish::Transaction(700), true).unwrap_err().to_string();
    assert!(
        error.contains("with the epoch") && error.contains(&world.view.marks[5].time.to_string()),
        "{error}"
    );
    assert!(world.resolve(&in_epoch(3), true).is_err());
    // Only once in this range: the epoch may be left out.
    let moment = world.resolve(&Wish::Transaction(12), true).unwrap();
    assert_eq!(moment.place.position, world.view.marks[12].place.position);
}

#[test]
fn a_position_before_damage_is_reached() {
    let mut world = build(&plain(vec![], None, vec![(0, 1, false)]));
    world.view.damage(world.records[22].begin);
    let at = |record: usize| Wish::Position(Lsn(world.records[record].begin).to_string());
    let moment = world.resolve(&at(20), true).unwrap();
    assert_eq!(world.restored(&moment), 21);
    let error = world.resolve(&at(22), true).unwrap_err().to_string();
    assert!(error.contains("is not in the repository"), "{error}");
}

/// A11: the stray timeline has the highest number, and its base backup is not ours.
#[test]
fn the_line_of_the_stream_is_followed_unless_told_otherwise() {
    let world = build(&plain(vec![30], None, vec![(0, 1, false)]));
    let moment = world.resolve(&Wish::Latest, true).unwrap();
    assert_eq!(moment.place.branch, branch(2));
    let choice = Choice { timeline: TimelineChoice::Latest, inclusive: true };
    let stray = futures::executor::block_on(resolve(&Wish::Latest, choice, &world.view)).unwrap();
    assert_eq!(stray.place.branch, branch(3));
    let choice = Choice { timeline: TimelineChoice::Number(9), inclusive: true };
    let error = futures::executor::block_on(resolve(&Wish::Latest, choice, &world.view)).unwrap_err();
    assert!(error.to_string().contains("no timeline 9"), "{error}");
}

/// Marks are read by windows that samples narrow: the cost of a time does not grow with the log before it.
#[test]
fn a_time_reads_few_marks() {
    let mut case = plain(vec![], None, vec![(30, 31, false)]);
    case.samples = 1;
    let mut world = build(&case);
    world.view.most_marks = 1;
    let before = world.view.calls();
    world.resolve(&Wish::Time(Timestamp(35_000)), true).unwrap();
    assert!(world.view.calls() - before < 20, "{} calls", world.view.calls() - before);
}
