//! What `restore` prints for programs: positions as Postgres writes them, times in RFC 3339.

use holdfast_core::{Moment, PlanSummary, Report, Span};
use holdfast_postgres::wal::Lsn;
use serde::Serialize;

/// What `--plan --json` prints.
#[derive(Serialize)]
pub struct Planned {
    moment: Reached,
    /// It was carried out before.
    complete: bool,
    lines: Vec<Named>,
    conflicts: Vec<String>,
    bytes: u64,
    objects: u64,
}

/// What `--json` prints after a restore.
#[derive(Serialize)]
pub struct Done {
    moment: Reached,
    files: u64,
    bytes: u64,
    lines: Vec<String>,
}

#[derive(Serialize)]
struct Named {
    name: String,
    value: String,
}

#[derive(Serialize)]
struct Reached {
    base_backup: String,
    timeline: u64,
    /// Where the last record begins and ends.
    record: String,
    lsn: String,
    inclusive: bool,
    time: Option<String>,
    /// The WAL that is replayed.
    path: Vec<Replayed>,
}

#[derive(Serialize)]
struct Replayed {
    timeline: u64,
    from: String,
    to: String,
}

impl Planned {
    pub fn new(summary: &PlanSummary, complete: bool) -> Self {
        let named = |(name, value): &(String, String)| Named { name: name.clone(), value: value.clone() };
        Self {
            moment: Reached::new(&summary.moment),
            complete,
            lines: summary.lines.iter().map(named).collect(),
            conflicts: summary.conflicts.clone(),
            bytes: summary.bytes,
            objects: summary.objects,
        }
    }
}

impl Done {
    pub fn new(moment: &Moment, report: &Report, lines: Vec<String>) -> Self {
        Self { moment: Reached::new(moment), files: report.files, bytes: report.bytes, lines }
    }
}

impl Reached {
    fn new(moment: &Moment) -> Self {
        let replayed = |span: &Span| Replayed {
            timeline: span.branch.0,
            from: Lsn(span.from).to_string(),
            to: Lsn(span.to).to_string(),
        };
        Self {
            base_backup: moment.checkpoint.to_string(),
            timeline: moment.place.branch.0,
            record: Lsn(moment.begin).to_string(),
            lsn: Lsn(moment.place.position).to_string(),
            inclusive: moment.inclusive,
            time: moment.time.map(|time| time.to_string()),
            path: moment.path.iter().map(replayed).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::{Branch, Place, RunId, Timestamp};

    use super::*;

    #[test]
    fn positions_and_times_have_one_shape() {
        let branch = Branch(2);
        let moment = Moment {
            checkpoint: RunId([0xab; 8]),
            place: Place { branch, position: 0x1_0000_0010 },
            begin: 0xff_ffff,
            inclusive: true,
            time: Some(Timestamp(1_000_000)),
            path: vec![Span { branch, from: 0x10, to: 0x1_0000_0010 }],
        };
        let lines = vec![("data folder".to_owned(), "/data".to_owned())];
        let summary = PlanSummary { moment, lines, conflicts: Vec::new(), bytes: 7, objects: 3 };
        assert_eq!(
            serde_json::to_value(Planned::new(&summary, false)).unwrap(),
            serde_json::json!({
                "moment": {
                    "base_backup": "abababababababab",
                    "timeline": 2,
                    "record": "0/FFFFFF",
                    "lsn": "1/10",
                    "inclusive": true,
                    "time": "1970-01-01T00:00:01Z",
                    "path": [{ "timeline": 2, "from": "0/10", "to": "1/10" }],
                },
                "complete": false,
                "lines": [{ "name": "data folder", "value": "/data" }],
                "conflicts": [],
                "bytes": 7,
                "objects": 3,
            })
        );
    }
}
