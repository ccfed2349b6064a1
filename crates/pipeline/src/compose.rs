//! Turns the steps of a batch into what an object holds. Pure.

use bytes::Bytes;
use holdfast_core::{Item, Mark, Span, Step, Timestamp};
use holdfast_repo::entry::{Entry, Marks};

/// The body of an object to be, and what its header says of it.
#[derive(Debug, Default)]
pub(crate) struct Composed {
    pub entries: Vec<Entry>,
    /// The closed half, in parts.
    pub closed: Vec<Bytes>,
    pub spans: Vec<Span>,
    pub marks: Option<(Timestamp, Timestamp)>,
    pub mark_count: u32,
    /// Something rare is in it: the catalog goes along.
    pub rare: bool,
    length: u32,
    open_marks: Vec<Mark>,
}

impl Composed {
    /// An object that carries one entry and nothing of the source.
    pub fn only(entry: Entry) -> Self {
        Self { entries: vec![entry], ..Self::default() }
    }
}

pub(crate) fn compose(steps: Vec<Step>) -> Composed {
    let mut out = Composed::default();
    for step in steps {
        match step.item {
            Item::Log { span, bytes, whole, marks } => out.log(span, bytes, whole, marks),
            Item::Note(note) => out.rare(Entry::Note(note)),
            Item::Gap(gap) => out.rare(Entry::Gap(gap)),
            Item::Finished(finished) => out.rare(Entry::Checkpoint(Box::new(finished.checkpoint))),
            Item::Quiet | Item::CaughtUp => {}
        }
    }
    out.flush_marks();
    out
}

impl Composed {
    /// Log bytes that go on where the last ones ended become one entry with them.
    fn log(&mut self, span: Span, bytes: Bytes, whole: bool, marks: Vec<Mark>) {
        let added = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        match self.entries.last_mut() {
            Some(Entry::Log { span: last, length, whole: ends, .. })
                if last.branch == span.branch && last.to == span.from =>
            {
                last.to = span.to;
                *length += added;
                *ends = whole;
            }
            _ => {
                self.flush_marks();
                self.entries.push(Entry::Log { span, offset: self.length, length: added, whole });
            }
        }
        match self.spans.last_mut() {
            Some(last) if last.branch == span.branch && last.to == span.from => last.to = span.to,
            _ => self.spans.push(span),
        }
        self.length += added;
        if !bytes.is_empty() {
            self.closed.push(bytes);
        }
        for mark in &marks {
            let (oldest, newest) = self.marks.unwrap_or((mark.time, mark.time));
            self.marks = Some((oldest.min(mark.time), newest.max(mark.time)));
            self.mark_count += 1;
        }
        self.open_marks.extend(marks);
    }
    fn rare(&mut self, entry: Entry) {
        self.flush_marks();
        self.entries.push(entry);
        self.rare = true;
    }
    fn flush_marks(&mut self) {
        if !self.open_marks.is_empty() {
            self.entries.push(Entry::Marks(Marks(std::mem::take(&mut self.open_marks))));
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::{Branch, Cursor, Gap, MarkKind, Place};

    use super::*;

    fn step(branch: u64, from: u64, text: &'static [u8], marks: bool) -> Step {
        let span = Span { branch: Branch(branch), from, to: from + text.len() as u64 };
        let mark = Mark {
            begin: from,
            place: Place { branch: span.branch, position: span.to },
            time: Timestamp(from as i64),
            kind: MarkKind::Commit { id: from },
        };
        Step {
            item: Item::Log {
                span,
                bytes: Bytes::from_static(text),
                whole: true,
                marks: if marks { vec![mark] } else { Vec::new() },
            },
            cursor: Cursor(Bytes::new()),
            vouched: None,
            waits: false,
        }
    }

    #[test]
    fn what_goes_on_is_joined_and_what_does_not_is_not() {
        let gap = Gap {
            span: Span { branch: Branch(1), from: 6, to: 9 },
            cause: "lost".to_owned(),
            noticed: Timestamp(3),
        };
        let mut steps = vec![step(1, 0, b"abc", true), step(1, 3, b"def", true)];
        steps.push(Step { item: Item::Gap(gap.clone()), ..step(1, 0, b"", false) });
        steps.push(step(1, 9, b"gh", true));
        steps.push(step(2, 11, b"i", false));
        let out = compose(steps);
        let span = |branch, from, to| Span { branch: Branch(branch), from, to };
        assert_eq!(out.spans, [span(1, 0, 6), span(1, 9, 11), span(2, 11, 12)]);
        assert_eq!(out.closed.concat(), b"abcdefghi");
        assert_eq!((out.mark_count, out.rare), (3, true));
        assert_eq!(out.marks, Some((Timestamp(0), Timestamp(9))));
        let kinds: Vec<_> = out
            .entries
            .iter()
            .map(|entry| match entry {
                Entry::Log { offset, length, .. } => format!("log {offset}+{length}"),
                Entry::Marks(marks) => format!("marks {}", marks.0.len()),
                Entry::Gap(_) => "gap".to_owned(),
                other => format!("{other:?}"),
            })
            .collect();
        assert_eq!(kinds, ["log 0+6", "marks 2", "gap", "log 6+2", "marks 1", "log 8+1"]);
    }
}
