//! What is printed at the end.

use std::time::Duration;

use crate::step::{Line, Outcome};

#[derive(Default)]
pub struct Report {
    rows: Vec<Row>,
    missing: Vec<String>,
    failed: Vec<String>,
    passed: u64,
}

struct Row {
    name: String,
    held: bool,
    took: Duration,
    note: String,
    /// Part of the row above it: shown, not counted again.
    part: bool,
}

impl Report {
    /// Takes a step in; true when it held.
    pub fn add(&mut self, outcome: Outcome) -> bool {
        self.note_missing(&outcome);
        let note = outcome.why.unwrap_or_default();
        self.rows.push(Row {
            name: outcome.name.to_owned(),
            held: outcome.held,
            took: outcome.took,
            note,
            part: false,
        });
        outcome.held
    }

    /// As [`Report::add`], with a row for each test program, read from what cargo prints around them.
    pub fn add_tests(&mut self, outcome: Outcome) -> bool {
        let parts = parts(&outcome.lines);
        self.passed += parts.iter().map(|part| part.passed).sum::<u64>();
        let failed = outcome.lines.iter().filter_map(|line| {
            let name = line.text.strip_prefix("test ")?;
            name.strip_suffix(" ... FAILED").or_else(|| name.strip_suffix(" ... failed"))
        });
        self.failed.extend(failed.map(str::to_owned));
        let held = self.add(outcome);
        for part in parts.into_iter().filter(|part| part.passed > 0 || !part.held) {
            let note = format!("{} passed{}", part.passed, if part.held { "" } else { ", some failed" });
            self.rows.push(Row { name: part.name, held: part.held, took: part.took, note, part: true });
        }
        held
    }

    fn note_missing(&mut self, outcome: &Outcome) {
        let lines = outcome.lines.iter().map(|line| line.text.as_str()).chain(outcome.why.as_deref());
        for line in lines {
            if let Some(at) = line.find("missing: ")
                && line.contains("To mend it: ")
            {
                let text = line.get(at..).unwrap_or_default().to_owned();
                if !self.missing.contains(&text) {
                    self.missing.push(text);
                }
            }
        }
    }

    pub fn held(&self) -> bool {
        self.rows.iter().all(|row| row.held)
    }

    pub fn print(&self) {
        println!("\n{:<44} {:>8}  result", "step", "seconds");
        for row in &self.rows {
            let name = if row.part { format!("  {}", row.name) } else { row.name.clone() };
            let result = if row.held { "ok" } else { "FAILED" };
            println!("{name:<44} {:>8.1}  {result}  {}", row.took.as_secs_f64(), row.note);
        }
        let whole: Duration = self.rows.iter().filter(|row| !row.part).map(|row| row.took).sum();
        println!("{:<44} {:>8.1}  {}", "all", whole.as_secs_f64(), if self.held() { "ok" } else { "FAILED" });
        for name in &self.failed {
            println!("failed: {name}");
        }
        match self.missing.as_slice() {
            [] => println!("\nnothing was missing on this machine"),
            list => list.iter().for_each(|line| println!("{line}")),
        }
        println!("{} passed, {} failed", self.passed, self.failed.len());
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Part {
    name: String,
    passed: u64,
    held: bool,
    took: Duration,
}

/// Cargo prints «Running unittests src/lib.rs (target/debug/deps/NAME-HASH)» or «Doc-tests NAME» before a test
/// program, which ends with «test result: ok. N passed; …».
fn parts(lines: &[Line]) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut open: Option<(String, Duration)> = None;
    for line in lines {
        let text = line.text.trim();
        if let Some(rest) = text.strip_prefix("Running ") {
            open = Some((program(rest), line.at));
        } else if let Some(name) = text.strip_prefix("Doc-tests ") {
            open = Some((format!("{name} (documentation)"), line.at));
        } else if let Some(rest) = text.strip_prefix("test result: ")
            && let Some((name, since)) = open.take()
        {
            let passed = rest.split(". ").nth(1).and_then(|counts| counts.split(' ').next()?.parse().ok());
            let took = line.at.saturating_sub(since);
            parts.push(Part { name, passed: passed.unwrap_or(0), held: rest.starts_with("ok"), took });
        }
    }
    parts.extend(open.map(|(name, _)| Part { name, passed: 0, held: false, took: Duration::ZERO }));
    parts
}

/// `unittests src/lib.rs (target/debug/deps/holdfast_core-0123)` → `holdfast_core`.
fn program(rest: &str) -> String {
    let file = rest.rsplit('/').next().unwrap_or(rest).trim_end_matches(')');
    let name = file.rsplit_once('-').map_or(file, |(name, _)| name);
    let unit = rest.starts_with("unittests");
    format!("{name}{}", if unit { " (unit)" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<Line> {
        let numbered = text.lines().zip(1..);
        numbered
            .map(|(line, second)| Line { at: Duration::from_secs(second), text: line.to_owned() })
            .collect()
    }

    #[test]
    fn cargo_output_becomes_rows() {
        let text = "     Running unittests src/lib.rs (target/debug/deps/holdfast_core-0a1b)\n\
            test a ... ok\n\
            test result: ok. 12 passed; 0 failed; 0 ignored\n     \
            Running tests/kill.rs (target/debug/deps/kill-77)\n\
            test result: FAILED. 3 passed; 1 failed; 0 ignored\n   \
            Doc-tests holdfast_core";
        let rows = parts(&lines(text));
        let row = |name: &str, passed, held, seconds| Part {
            name: name.to_owned(),
            passed,
            held,
            took: Duration::from_secs(seconds),
        };
        let wanted = [
            row("holdfast_core (unit)", 12, true, 2),
            row("kill", 3, false, 1),
            row("holdfast_core (documentation)", 0, false, 0),
        ];
        assert_eq!(rows, wanted);
    }

    #[test]
    fn what_is_missing_is_listed_once() {
        let line = "Error: missing: SeaweedFS (no pip). To mend it: install pip";
        let mut report = Report::default();
        let held = report.add(Outcome {
            name: "servers",
            held: false,
            took: Duration::ZERO,
            lines: lines(&format!("{line}\nall fine\n{line}")),
            why: None,
        });
        assert!(!held && !report.held());
        assert_eq!(report.missing, ["missing: SeaweedFS (no pip). To mend it: install pip"]);
    }
}
