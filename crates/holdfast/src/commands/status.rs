//! `status`: from the repository alone, so that a dead sidecar is seen from elsewhere.

use std::process::ExitCode;

use holdfast_core::{
    Checkpoint, Clock, Error, Place, Result, Timestamp, View,
    text::{show_duration, show_size},
};
use serde::Serialize;

use crate::{cli::Status, config::Config, exit_code, output, reading::Reader};

#[derive(Serialize)]
struct Line {
    source: String,
    lineage: String,
    /// Remember it, and give it to `--expect`: a repository that was rolled back behind it is noticed.
    head: String,
    restorable_from: Option<String>,
    restorable_to: Option<String>,
    at_risk_seconds: Option<f64>,
    base_backups: usize,
    newest_base_backup: Option<String>,
    stored_bytes: u64,
    gaps: usize,
    /// What a person should know: nothing to restore yet, the newest gap, damaged objects.
    notices: Vec<String>,
}

pub async fn run(args: &Status, config: &Config, json: bool) -> Result<ExitCode> {
    let reader = Reader::open(config, &args.identity).await?;
    let mut lines = Vec::new();
    let mut failed = None;
    for name in &reader.chosen(config, &args.names).await? {
        match of_source(name, &reader, config).await {
            Ok(mut found) => lines.append(&mut found),
            // One that cannot be read must not hide the others.
            Err(error) => {
                eprintln!("holdfast: {name}: {}", error.chain());
                failed = Some(error.act());
            }
        }
    }
    for expected in &args.expect {
        check_head(expected, &lines)?;
    }
    if json {
        output::json(&lines)?;
    } else if !lines.is_empty() {
        print(&lines);
    }
    Ok(failed.map_or(ExitCode::SUCCESS, exit_code))
}

async fn of_source(name: &str, reader: &Reader, config: &Config) -> Result<Vec<Line>> {
    let wall = Clock::system().wall();
    let opened = reader.source(config, name).await?;
    let mut lines = Vec::new();
    for lineage in &opened.lineages {
        let Some(view) = opened.view_of(lineage).await? else { continue };
        let catalog = view.catalog();
        let newest = catalog.checkpoints.iter().max_by_key(|checkpoint| checkpoint.ended);
        let (from, to) = window(&catalog.checkpoints, &view.heads(), view.vouched());
        let (epoch, number) = view.chain().head().at;
        let mut notices = Vec::new();
        if newest.is_none() {
            notices.push("no base backup is finished yet: nothing can be restored".to_owned());
        } else if to.is_none() {
            notices.push(
                "the log up to the end of the base backup is not durable yet: nothing can be restored"
                    .to_owned(),
            );
        }
        notices.extend(
            catalog.gaps.last().map(|gap| format!("newest gap, noticed {}: {}", gap.noticed, gap.cause)),
        );
        notices.extend(view.damage().iter().cloned());
        lines.push(Line {
            source: name.to_owned(),
            lineage: lineage.record.identity.clone(),
            head: format!("{}/{}/{:x}", lineage.stream.lineage, epoch, number),
            restorable_from: from.map(|time| time.to_string()),
            restorable_to: to.map(|time| time.to_string()),
            at_risk_seconds: view.vouched().map(|time| wall.since(time).as_secs_f64()),
            base_backups: catalog.checkpoints.len(),
            newest_base_backup: newest.map(|checkpoint| checkpoint.ended.to_string()),
            stored_bytes: catalog.checkpoints.iter().map(|checkpoint| checkpoint.sent).sum(),
            gaps: catalog.gaps.len(),
            notices,
        });
    }
    if lines.is_empty() {
        return Err(Error::unreachable("nothing is in the repository yet: no writer ever began this stream"));
    }
    Ok(lines)
}

/// The first and the last moment that can be restored. A base backup serves once the log reaches its end, which may be
/// newer than the newest instant that the source vouched for.
fn window(
    checkpoints: &[Checkpoint],
    heads: &[Place],
    vouched: Option<Timestamp>,
) -> (Option<Timestamp>, Option<Timestamp>) {
    let reached = |place: Place| {
        heads.iter().any(|head| head.branch == place.branch && head.position >= place.position)
    };
    let serving = || checkpoints.iter().filter(|held| reached(held.serves)).map(|held| held.ended);
    let to = serving().max().map(|ended| vouched.map_or(ended, |vouched| vouched.max(ended)));
    (serving().min(), to)
}

/// A head is LINEAGE/EPOCH/NUMBER; epochs and numbers only ever grow.
fn check_head(expected: &str, lines: &[Line]) -> Result<()> {
    let parse = |text: &str| -> Option<(String, String, u64)> {
        let mut parts = text.split('/');
        let (lineage, epoch, number) = (parts.next()?, parts.next()?, parts.next()?);
        Some((lineage.to_owned(), epoch.to_owned(), u64::from_str_radix(number, 16).ok()?))
    };
    let wanted = parse(expected).ok_or_else(|| {
        Error::configure(format!(
            "«{expected}» is no head: give one as status printed it, LINEAGE/EPOCH/NUMBER"
        ))
    })?;
    let found = lines.iter().filter_map(|line| parse(&line.head)).find(|found| found.0 == wanted.0);
    match found {
        Some(found) if (&found.1, found.2) >= (&wanted.1, wanted.2) => Ok(()),
        _ => Err(Error::corrupt(format!(
            "the repository ends before the head {expected} that was seen earlier: it was rolled back, or objects were removed"
        ))),
    }
}

fn print(lines: &[Line]) {
    let rows: Vec<Vec<String>> = lines
        .iter()
        .map(|line| {
            let none = || "-".to_owned();
            let at_risk = line.at_risk_seconds.map(std::time::Duration::from_secs_f64);
            vec![
                line.source.clone(),
                at_risk.map_or_else(none, show_duration),
                line.restorable_from.clone().unwrap_or_else(none),
                line.restorable_to.clone().unwrap_or_else(none),
                format!("{} ({})", line.base_backups, show_size(line.stored_bytes)),
                line.gaps.to_string(),
                line.head.clone(),
            ]
        })
        .collect();
    output::table(
        &["source", "at risk", "restorable from", "restorable to", "base backups", "gaps", "head"],
        &rows,
    );
    for line in lines {
        for notice in &line.notices {
            output::line(format!("{}: {notice}", line.source));
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::{Branch, Bytes, RunId};

    use super::*;

    fn place(position: u64) -> Place {
        Place { branch: Branch(1), position }
    }

    fn ended(at: i64, serves: u64) -> Checkpoint {
        Checkpoint {
            id: RunId([1; 8]),
            begin: place(0),
            serves: place(serves),
            began: Timestamp(0),
            ended: Timestamp(at),
            layers: Vec::new(),
            rows: 0,
            bytes: 0,
            sent: 0,
            suspect: None,
            body: Bytes::new(),
        }
    }

    #[test]
    fn a_window_never_ends_before_it_begins() {
        let first = [ended(50, 100)];
        assert_eq!(window(&first, &[place(99)], Some(Timestamp(40))), (None, None));
        // Right after the first base backup: nothing newer was vouched for yet.
        let both = Some(Timestamp(50));
        assert_eq!(window(&first, &[place(100)], Some(Timestamp(40))), (both, both));
        let two = [ended(50, 100), ended(90, 200)];
        assert_eq!(window(&two, &[place(150)], Some(Timestamp(70))), (both, Some(Timestamp(70))));
        assert_eq!(window(&[], &[place(150)], Some(Timestamp(70))), (None, None));
    }
}
