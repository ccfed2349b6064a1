//! Timeline history files: from which timeline each one was forked, and where.

use holdfast_core::{Error, Result};

use super::Lsn;

/// Longest history file we accept: some 40 bytes a switch, so thousands of promotions.
const BYTES_MAX: usize = 1 << 20;

/// A timeline that `end` closes: the next one begins there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ancestor {
    pub timeline: u32,
    pub end: Lsn,
    /// Why it was left, in the server's words.
    pub reason: String,
}

/// The line of a timeline: its ancestors, oldest first; ends never fall. An ancestor may hold nothing of its own:
/// it ends where it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    pub timeline: u32,
    pub ancestors: Vec<Ancestor>,
}

impl History {
    /// The first timeline of a cluster has no file.
    pub fn first(timeline: u32) -> Self {
        Self { timeline, ancestors: Vec::new() }
    }

    /// Lines of `parent timeline, switch position, reason`; empty ones and comments (`#`) are passed over.
    pub fn parse(timeline: u32, content: &[u8]) -> Result<Self> {
        let bad = |why: &str| Error::corrupt(format!("the history file of timeline {timeline} {why}"));
        if content.len() > BYTES_MAX {
            return Err(bad("is longer than 1 MiB"));
        }
        let text = String::from_utf8_lossy(content);
        let mut ancestors: Vec<Ancestor> = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let mut words = line.splitn(3, |c: char| c.is_ascii_whitespace()).map(str::trim);
            let parent = words.next().and_then(|word| word.parse().ok());
            let end = words.next().and_then(|word| word.parse().ok());
            let (Some(parent), Some(end)) = (parent, end) else {
                return Err(bad(&format!("has a line that is none: «{line}»")));
            };
            if ancestors.last().is_some_and(|last| last.timeline >= parent) || parent >= timeline {
                return Err(bad("does not rise from line to line"));
            }
            // A recovery may follow the newest timeline and stop before it was forked: what lies behind the later,
            // lower end is no part of this line.
            for earlier in &mut ancestors {
                earlier.end = earlier.end.min(end);
            }
            ancestors.push(Ancestor { timeline: parent, end, reason: words.next().unwrap_or("").to_owned() });
        }
        if ancestors.is_empty() {
            return Err(bad("names no ancestor"));
        }
        Ok(Self { timeline, ancestors })
    }

    /// Where `timeline` ends on this line: `Some(None)` for the open end of the newest one, `None` when it is
    /// no part of this line.
    pub fn end_of(&self, timeline: u32) -> Option<Option<Lsn>> {
        if timeline == self.timeline {
            return Some(None);
        }
        self.ancestors
            .iter()
            .find(|ancestor| ancestor.timeline == timeline)
            .map(|ancestor| Some(ancestor.end))
    }

    /// Is the position `lsn` of `timeline` on this line? A switch position belongs to both sides.
    pub fn holds(&self, timeline: u32, lsn: Lsn) -> bool {
        match self.end_of(timeline) {
            Some(Some(end)) => lsn <= end && self.start_of(timeline).is_some_and(|start| lsn >= start),
            Some(None) => self.start_of(timeline).is_some_and(|start| lsn >= start),
            None => false,
        }
    }

    /// Where `timeline` begins on this line (0/0 for the oldest).
    pub fn start_of(&self, timeline: u32) -> Option<Lsn> {
        let mut start = Lsn::INVALID;
        for ancestor in &self.ancestors {
            if ancestor.timeline == timeline {
                return Some(start);
            }
            start = ancestor.end;
        }
        (timeline == self.timeline).then_some(start)
    }

    /// The timeline of this line to which the byte at `lsn` belongs.
    pub fn timeline_at(&self, lsn: Lsn) -> u32 {
        let ancestor = self.ancestors.iter().find(|ancestor| lsn < ancestor.end);
        ancestor.map_or(self.timeline, |ancestor| ancestor.timeline)
    }

    /// The timeline that follows `timeline` on this line and holds log of its own, and where it begins.
    pub fn next_part(&self, timeline: u32) -> Option<(u32, Lsn)> {
        let (mut next, begin) = self.next_after(timeline)?;
        while self.end_of(next).flatten().is_some_and(|end| end <= begin) {
            next = self.next_after(next)?.0;
        }
        Some((next, begin))
    }

    /// The timeline that follows `timeline` on this line, and where it begins.
    pub fn next_after(&self, timeline: u32) -> Option<(u32, Lsn)> {
        let at = self.ancestors.iter().position(|ancestor| ancestor.timeline == timeline)?;
        let end = self.ancestors.get(at)?.end;
        Some((self.ancestors.get(at + 1).map_or(self.timeline, |next| next.timeline), end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: &[u8] =
        b"1\t0/3000148\tno recovery target specified\n\n2\t0/5000000\tbefore 2026-01-01 10:00:00+00\n";

    #[test]
    fn a_line_of_three_timelines() {
        let history = History::parse(3, THREE).unwrap();
        assert_eq!(history.ancestors.len(), 2);
        assert_eq!(history.ancestors[1].reason, "before 2026-01-01 10:00:00+00");
        assert_eq!(history.next_after(1), Some((2, Lsn(0x300_0148))));
        assert_eq!(history.next_after(2), Some((3, Lsn(0x500_0000))));
        assert_eq!(history.next_after(3), None);
        assert!(history.holds(1, Lsn(0x300_0148)) && !history.holds(1, Lsn(0x300_0149)));
        assert!(history.holds(2, Lsn(0x300_0148)) && !history.holds(2, Lsn(0x300_0147)));
        assert!(history.holds(3, Lsn(u64::MAX)) && !history.holds(4, Lsn(0x600_0000)));
    }

    #[test]
    fn what_does_not_rise_is_refused() {
        for bad in [&b""[..], b"# nothing", b"2 0/1", b"1 0/2\n1 0/3", b"1 0/5\n2 0/6", b"x 0/1", b"1 y"] {
            assert!(History::parse(2, bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }

    /// As Postgres writes it when a recovery along timeline 2 stops before the place where 2 was forked.
    #[test]
    fn a_later_lower_end_cuts_the_earlier_ones() {
        let history = History::parse(3, b"1 0/15262E0\n2 0/1516790").unwrap();
        assert_eq!(history.end_of(1), Some(Some(Lsn(0x151_6790))));
        assert_eq!(history.start_of(3), Some(Lsn(0x151_6790)));
        assert_eq!(history.timeline_at(Lsn(0x151_6790)), 3);
        assert_eq!(history.timeline_at(Lsn(0x151_678F)), 1);
        assert!(!history.holds(1, Lsn(0x152_62E0)) && !history.holds(2, Lsn(0x152_62E0)));
        assert_eq!(history.next_part(1), Some((3, Lsn(0x151_6790))));
        assert_eq!(history.next_part(2), Some((3, Lsn(0x151_6790))));
        assert_eq!(history.next_part(3), None);
    }
}
