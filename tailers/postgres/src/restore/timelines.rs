//! Which timelines the repository knows, how they descend from each other, and what log is held along one
//! line of descent. Pure.
//!
//! Invariants: positions rise along a line, so a line turns every place on it into one number; a line is
//! followed only where its history says so, never by counting timelines upwards.

use std::collections::BTreeMap;

use holdfast_core::{Branch, Bytes, Catalog, Error, Place, Result, Span};
use serde::{Deserialize, Serialize};

use crate::{
    records::NoteBody,
    wal::{History, Lsn},
};

/// Which line of timelines a restore follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimelineChoice {
    /// The line that the stream itself is on now: what the cluster's primary writes.
    #[default]
    Current,
    /// The highest timeline known, as Postgres would choose; may be one that a stray promotion left behind.
    Latest,
    Number(u32),
}

impl std::str::FromStr for TimelineChoice {
    type Err = Error;
    /// `current`, `latest`, a number, or a hexadecimal number as in file names (`0x1A`).
    fn from_str(text: &str) -> Result<Self> {
        let number = match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        match (text, number) {
            ("current", _) => Ok(Self::Current),
            ("latest", _) => Ok(Self::Latest),
            (_, Some(number)) if number > 0 => Ok(Self::Number(number)),
            _ => Err(Error::configure(format!("«{text}» is no timeline: write current, latest or a number"))),
        }
    }
}

/// All that the catalog knows of timelines.
#[derive(Debug, Default)]
pub struct Timelines {
    histories: BTreeMap<u32, Known>,
    held: BTreeMap<u32, Vec<Span>>,
    current: Option<u32>,
}

#[derive(Debug)]
struct Known {
    history: History,
    content: Bytes,
    /// Two clusters promoted to the same number: neither can be followed by number alone.
    twice: bool,
}

/// One timeline's share of a line; `to` is open for the newest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub timeline: u32,
    pub from: Lsn,
    pub to: Option<Lsn>,
}

impl Part {
    fn end(&self) -> u64 {
        self.to.map_or(u64::MAX, |to| to.0)
    }
}

/// A timeline and its ancestors, oldest first, each beginning where the one before ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub parts: Vec<Part>,
}

/// Log along a line without a gap, `[from, to)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    pub from: u64,
    pub to: u64,
}

/// A known timeline that a line does not follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    pub timeline: u32,
    /// The timeline of the line from which it was forked, and where; `None` when its history is not known.
    pub fork: Option<(u32, Lsn)>,
}

impl Timelines {
    pub fn read(catalog: &Catalog, heads: &[Place]) -> Result<Self> {
        let mut all = Self { current: heads.last().and_then(|head| number(head.branch)), ..Self::default() };
        for note in &catalog.notes {
            let NoteBody::History { timeline, content } = NoteBody::decode(&note.body)? else { continue };
            let history = History::parse(timeline, &content)?;
            let twice = all
                .histories
                .get(&timeline)
                .is_some_and(|known| known.twice || !same_line(&known.history, &history));
            all.histories.insert(timeline, Known { history, content, twice });
        }
        for span in &catalog.spans {
            if let Some(timeline) = number(span.branch) {
                all.held.entry(timeline).or_default().push(*span);
            }
        }
        for spans in all.held.values_mut() {
            spans.sort_unstable_by_key(|span| span.from);
        }
        Ok(all)
    }

    /// The timeline that the stream itself is on.
    pub fn current(&self) -> Option<u32> {
        self.current
    }

    pub fn highest(&self) -> Option<u32> {
        let histories = self.histories.last_key_value().map(|(timeline, _)| *timeline);
        histories.max(self.held.last_key_value().map(|(timeline, _)| *timeline))
    }

    /// The line that `choice` names. Refuses a timeline whose own history is missing.
    pub fn line(&self, choice: TimelineChoice) -> Result<Line> {
        let timeline = match choice {
            TimelineChoice::Current => self.current,
            TimelineChoice::Latest => self.highest(),
            TimelineChoice::Number(number) => Some(number),
        };
        let Some(timeline) = timeline else {
            return Err(Error::unreachable("this stream holds no WAL yet, so there is nothing to restore"));
        };
        if !self.held.contains_key(&timeline) && !self.histories.contains_key(&timeline) {
            let known: Vec<String> = self.held.keys().map(u32::to_string).collect();
            return Err(Error::unreachable(format!(
                "the repository knows no timeline {timeline}; it holds WAL of {}",
                known.join(", ")
            )));
        }
        let history = self.history(timeline)?;
        let mut parts = Vec::with_capacity(history.ancestors.len() + 1);
        let mut from = Lsn::INVALID;
        for ancestor in &history.ancestors {
            parts.push(Part { timeline: ancestor.timeline, from, to: Some(ancestor.end) });
            from = ancestor.end;
        }
        parts.push(Part { timeline, from, to: None });
        Ok(Line { parts })
    }

    fn history(&self, timeline: u32) -> Result<History> {
        match self.histories.get(&timeline) {
            Some(known) if known.twice => Err(Error::unreachable(format!(
                "two different histories are known of timeline {timeline}: two servers were promoted to the same number; choose another timeline"
            ))),
            Some(known) => Ok(known.history.clone()),
            None if timeline == 1 => Ok(History::first(1)),
            None => Err(Error::unreachable(format!(
                "the history of timeline {timeline} is missing in the repository, so nobody can tell from where it was forked; choose another timeline, or let holdfast connect to a server that has {timeline:08X}.history"
            ))),
        }
    }

    /// Every history that replay of `[begin, end)` along `line` passes must be there and agree with the line's
    /// own (scenario A10): otherwise Postgres would follow another line without a word.
    pub fn require(&self, line: &Line, begin: u64, end: u64) -> Result<()> {
        // A timeline without log of its own is no step of a replay.
        let passed = |part: &Part| part.end() > begin && part.from.0 < end && part.end() > part.from.0;
        for (at, part) in line.parts.iter().enumerate().filter(|(_, part)| passed(part)) {
            let history = self.history(part.timeline)?;
            let agrees = history.ancestors.len() == at
                && history.ancestors.iter().zip(&line.parts).all(|(ancestor, earlier)| {
                    ancestor.timeline == earlier.timeline && Some(ancestor.end) == earlier.to
                });
            if !agrees {
                return Err(Error::unreachable(format!(
                    "the histories of timelines {} and {} contradict each other; choose a timeline with --timeline",
                    part.timeline,
                    line.newest()
                )));
            }
        }
        Ok(())
    }

    /// Known timelines beside `line`.
    pub fn strays(&self, line: &Line) -> Vec<Stray> {
        let mut known: Vec<u32> = self.histories.keys().chain(self.held.keys()).copied().collect();
        known.sort_unstable();
        known.dedup();
        known.retain(|timeline| line.parts.iter().all(|part| part.timeline != *timeline));
        known
            .into_iter()
            .map(|timeline| Stray {
                timeline,
                fork: self.histories.get(&timeline).and_then(|known| fork(&known.history, line)),
            })
            .collect()
    }

    /// Log of the line's own timelines that lies behind where the line leaves them: the tail of a primary that was
    /// lost in a failover, or of the true one when a standby was promoted by accident.
    pub fn tails(&self, line: &Line) -> Vec<Span> {
        let tail = |part: &Part| {
            let (end, held) = (part.to?.0, self.held.get(&part.timeline)?);
            let to = held.iter().map(|span| span.to).max().filter(|to| *to > end)?;
            Some(Span { branch: branch(part.timeline), from: end, to })
        };
        line.parts.iter().filter_map(tail).collect()
    }

    /// The history file of `timeline` as a server holds it: its own, or the part of a descendant's that says
    /// the same.
    pub fn file(&self, timeline: u32) -> Option<Bytes> {
        if let Some(known) = self.histories.get(&timeline) {
            return Some(known.content.clone());
        }
        self.histories.values().find_map(|known| {
            let at = known.history.ancestors.iter().position(|ancestor| ancestor.timeline == timeline)?;
            let mut text = String::new();
            for ancestor in known.history.ancestors.iter().take(at) {
                text.push_str(&format!("{}\t{}\t{}\n", ancestor.timeline, ancestor.end, ancestor.reason));
            }
            (!text.is_empty()).then(|| text.into())
        })
    }

    /// Log along `line` that has no gap, in order.
    pub fn stretches(&self, line: &Line) -> Vec<Stretch> {
        let mut all: Vec<Stretch> = Vec::new();
        for part in &line.parts {
            for span in self.held.get(&part.timeline).into_iter().flatten() {
                let (from, to) = (span.from.max(part.from.0), span.to.min(part.end()));
                if from >= to {
                    continue;
                }
                match all.last_mut() {
                    Some(last) if last.to >= from => last.to = last.to.max(to),
                    _ => all.push(Stretch { from, to }),
                }
            }
        }
        all
    }
}

impl Line {
    pub fn newest(&self) -> u32 {
        self.parts.last().map_or(1, |part| part.timeline)
    }

    /// Is this place on the line? A switch position is on both sides of it.
    pub fn holds(&self, place: Place) -> bool {
        self.parts.iter().any(|part| {
            number(place.branch) == Some(part.timeline)
                && (part.from.0..=part.end()).contains(&place.position)
        })
    }

    /// The place at which what ends at `position` ends: at a switch, the older timeline.
    pub fn ending(&self, position: u64) -> Place {
        let part = self.parts.iter().find(|part| position <= part.end());
        Place { branch: branch(part.map_or_else(|| self.newest(), |part| part.timeline)), position }
    }

    /// `[from, to)` of the line as one span a timeline.
    pub fn path(&self, from: u64, to: u64) -> Vec<Span> {
        let clipped = self.parts.iter().map(|part| Span {
            branch: branch(part.timeline),
            from: from.max(part.from.0),
            to: to.min(part.end()),
        });
        clipped.filter(|span| span.from < span.to).collect()
    }
}

fn same_line(one: &History, other: &History) -> bool {
    let ends = |history: &History| -> Vec<(u32, Lsn)> {
        history.ancestors.iter().map(|ancestor| (ancestor.timeline, ancestor.end)).collect()
    };
    ends(one) == ends(other)
}

/// Where `history` leaves `line`: the last ancestor that both have.
fn fork(history: &History, line: &Line) -> Option<(u32, Lsn)> {
    let shared =
        history.ancestors.iter().zip(&line.parts).take_while(|(a, part)| a.timeline == part.timeline);
    shared.last().map(|(ancestor, _)| (ancestor.timeline, ancestor.end))
}

pub fn branch(timeline: u32) -> Branch {
    Branch(u64::from(timeline))
}

pub fn number(branch: Branch) -> Option<u32> {
    u32::try_from(branch.0).ok()
}

#[cfg(test)]
mod tests {
    use holdfast_core::{Note, Timestamp};

    use super::*;

    fn note(timeline: u32, content: &'static str) -> Note {
        let body = NoteBody::History { timeline, content: Bytes::from_static(content.as_bytes()) };
        let place = Place { branch: branch(timeline), position: 0 };
        Note { place, time: Timestamp(0), body: body.encode().unwrap() }
    }

    fn span(timeline: u32, from: u64, to: u64) -> Span {
        Span { branch: branch(timeline), from, to }
    }

    fn heads(timelines: &[u32]) -> Vec<Place> {
        timelines.iter().map(|t| Place { branch: branch(*t), position: 0x900 }).collect()
    }

    fn three() -> Catalog {
        Catalog {
            notes: vec![note(2, "1\t0/300\tx\n"), note(3, "1\t0/300\tx\n2\t0/500\ty\n")],
            spans: vec![span(1, 0x100, 0x380), span(2, 0x300, 0x500), span(3, 0x500, 0x900)],
            ..Catalog::default()
        }
    }

    #[test]
    fn a_line_joins_its_timelines_at_the_switches() {
        let all = Timelines::read(&three(), &heads(&[1, 2, 3])).unwrap();
        let line = all.line(TimelineChoice::Current).unwrap();
        assert_eq!(all.stretches(&line), [Stretch { from: 0x100, to: 0x900 }]);
        assert_eq!(
            line.path(0x200, 0x600),
            [span(1, 0x200, 0x300), span(2, 0x300, 0x500), span(3, 0x500, 0x600)]
        );
        assert_eq!(line.ending(0x300), Place { branch: branch(1), position: 0x300 });
        assert_eq!(line.ending(0x301), Place { branch: branch(2), position: 0x301 });
        assert!(!line.holds(Place { branch: branch(1), position: 0x301 }), "cut at the switch");
        assert_eq!(all.tails(&line), [span(1, 0x300, 0x380)]);
        all.require(&line, 0x200, 0x900).unwrap();
        let first = all.line(TimelineChoice::Number(1)).unwrap();
        assert_eq!(all.stretches(&first), [Stretch { from: 0x100, to: 0x380 }]);
    }

    /// A10: a history in the middle of the ancestry is missing.
    #[test]
    fn a_missing_history_is_refused_where_replay_would_pass_it() {
        let mut catalog = three();
        catalog.notes.remove(0);
        let all = Timelines::read(&catalog, &heads(&[1, 2, 3])).unwrap();
        let line = all.line(TimelineChoice::Current).unwrap();
        let error = all.require(&line, 0x200, 0x900).unwrap_err();
        assert!(error.to_string().contains("history of timeline 2"), "{error}");
        all.require(&line, 0x500, 0x900).unwrap();
        all.require(&line, 0x100, 0x300).unwrap();
        assert_eq!(all.file(2).unwrap(), "1\t0/300\tx\n", "told by the descendant");
        assert!(all.line(TimelineChoice::Number(2)).unwrap_err().to_string().contains("timeline 2"));
        assert!(all.line(TimelineChoice::Number(7)).unwrap_err().to_string().contains("no timeline 7"));
    }

    /// A11: somebody promoted a standby for a moment; the stream itself stayed on timeline 1.
    #[test]
    fn a_stray_timeline_is_named_and_not_followed() {
        let catalog = Catalog {
            notes: vec![note(2, "1\t0/300\tno recovery target specified\n")],
            spans: vec![span(1, 0x100, 0x900), span(2, 0x300, 0x400)],
            ..Catalog::default()
        };
        let all = Timelines::read(&catalog, &heads(&[2, 1])).unwrap();
        let line = all.line(TimelineChoice::Current).unwrap();
        assert_eq!(line.newest(), 1);
        assert_eq!(all.strays(&line), [Stray { timeline: 2, fork: Some((1, Lsn(0x300))) }]);
        assert_eq!(all.line(TimelineChoice::Latest).unwrap().newest(), 2);
    }

    #[test]
    fn two_servers_promoted_to_one_number_are_told_apart() {
        let mut catalog = three();
        catalog.notes.push(note(2, "1\t0/2F0\tx\n"));
        let all = Timelines::read(&catalog, &heads(&[1, 2, 3])).unwrap();
        assert!(all.line(TimelineChoice::Number(2)).unwrap_err().to_string().contains("two different"));
    }

    #[test]
    fn a_gap_parts_the_log() {
        let catalog =
            Catalog { spans: vec![span(1, 0x400, 0x900), span(1, 0x100, 0x300)], ..Catalog::default() };
        let all = Timelines::read(&catalog, &heads(&[1])).unwrap();
        let line = all.line(TimelineChoice::Current).unwrap();
        let expected = [Stretch { from: 0x100, to: 0x300 }, Stretch { from: 0x400, to: 0x900 }];
        assert_eq!(all.stretches(&line), expected);
    }

    #[test]
    fn choices_read_as_people_write_them() {
        assert_eq!("0x1A".parse::<TimelineChoice>().unwrap(), TimelineChoice::Number(26));
        assert_eq!("latest".parse::<TimelineChoice>().unwrap(), TimelineChoice::Latest);
        assert!("0".parse::<TimelineChoice>().is_err() && "newest".parse::<TimelineChoice>().is_err());
    }
}
