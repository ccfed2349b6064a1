//! `list`: base backups, gaps and, for a window, the commits that can be restored.

use holdfast_core::{Mark, MarkKind, Result, Span, Timestamp, View, text::show_size};
use holdfast_postgres::{records::Base, wal::Lsn};
use serde::Serialize;

use crate::{cli::List, config::Config, output, reading::Reader};

#[derive(Serialize)]
struct BaseBackup {
    id: String,
    began: String,
    ended: String,
    timeline: u64,
    serves_from: String,
    bytes: u64,
    sent: u64,
    suspect: Option<String>,
}

#[derive(Serialize)]
struct GapLine {
    timeline: u64,
    from: String,
    to: String,
    noticed: String,
    cause: String,
}

#[derive(Serialize)]
struct Point {
    time: String,
    kind: &'static str,
    what: String,
    timeline: u64,
    lsn: String,
}

pub async fn run(args: &List, config: &Config, json: bool) -> Result<()> {
    let opened = Reader::open(config, &args.identity).await?.source(config, &args.name).await?;
    let view = opened.view(args.lineage.as_deref()).await?;
    let catalog = view.catalog();
    let backups = catalog.checkpoints.iter().map(base_backup).collect::<Result<Vec<_>>>()?;
    let gaps: Vec<GapLine> = catalog
        .gaps
        .iter()
        .map(|gap| GapLine {
            timeline: gap.span.branch.0,
            from: Lsn(gap.span.from).to_string(),
            to: Lsn(gap.span.to).to_string(),
            noticed: gap.noticed.to_string(),
            cause: gap.cause.clone(),
        })
        .collect();
    let window = match (&args.from, &args.to) {
        (None, None) => None,
        (from, to) => Some((
            from.as_ref().map_or(Ok(Timestamp(i64::MIN)), |text| text.parse())?,
            to.as_ref().map_or(Ok(Timestamp(i64::MAX)), |text| text.parse())?,
        )),
    };
    let points = match window {
        Some(window) => points(&view, window, args.limit).await?,
        None => Vec::new(),
    };
    if json {
        return output::json(
            &serde_json::json!({ "base_backups": backups, "gaps": gaps, "restore_points": points }),
        );
    }
    let rows: Vec<Vec<String>> = backups
        .iter()
        .map(|b| {
            vec![
                b.id.clone(),
                b.ended.clone(),
                b.timeline.to_string(),
                b.serves_from.clone(),
                show_size(b.bytes),
                show_size(b.sent),
                b.suspect.clone().map_or_else(|| "clean".to_owned(), |why| format!("suspect: {why}")),
            ]
        })
        .collect();
    output::table(&["base backup", "ended", "timeline", "serves from", "holds", "sent", "state"], &rows);
    if !gaps.is_empty() {
        let rows: Vec<Vec<String>> = gaps
            .iter()
            .map(|g| {
                vec![g.timeline.to_string(), g.from.clone(), g.to.clone(), g.noticed.clone(), g.cause.clone()]
            })
            .collect();
        output::line("");
        output::table(&["gap on timeline", "from", "to", "noticed", "cause"], &rows);
    }
    if window.is_some() {
        let rows: Vec<Vec<String>> = points
            .iter()
            .map(|p| {
                vec![p.time.clone(), p.kind.to_owned(), p.what.clone(), p.timeline.to_string(), p.lsn.clone()]
            })
            .collect();
        output::line("");
        output::table(&["time", "restore point", "id or name", "timeline", "LSN"], &rows);
        if points.len() >= args.limit {
            output::line(format!(
                "the list ends at --limit {}; later points of the window are not shown",
                args.limit
            ));
        }
    }
    Ok(())
}

fn base_backup(checkpoint: &holdfast_core::Checkpoint) -> Result<BaseBackup> {
    let base = Base::decode(&checkpoint.body)?;
    Ok(BaseBackup {
        id: checkpoint.id.to_string(),
        began: checkpoint.began.to_string(),
        ended: checkpoint.ended.to_string(),
        timeline: u64::from(base.end_timeline),
        serves_from: base.end.to_string(),
        bytes: checkpoint.bytes,
        sent: checkpoint.sent,
        suspect: checkpoint.suspect.clone(),
    })
}

/// Restore points of a window, in stream order. Commit times are not monotone, so a window is read a minute
/// beyond both ends.
async fn points(view: &dyn View, (from, to): (Timestamp, Timestamp), limit: usize) -> Result<Vec<Point>> {
    let catalog = view.catalog();
    let slack = std::time::Duration::from_secs(60);
    let mut points = Vec::new();
    // What lies before the first base backup is held, but nothing can be restored to it.
    let first = |branch| {
        let serves = catalog.checkpoints.iter().map(|checkpoint| checkpoint.serves);
        serves
            .filter(|place| place.branch <= branch)
            .min()
            .map(|place| if place.branch == branch { place.position } else { 0 })
    };
    for span in &catalog.spans {
        let Some(first) = first(span.branch) else { continue };
        // Samples are sparse and sorted within a branch: begin at the last one before the window.
        let samples = catalog.samples.iter().filter(|sample| sample.place.branch == span.branch);
        let begin = samples
            .filter(|sample| sample.time < from.minus(slack))
            .map(|sample| sample.place.position)
            .max()
            .unwrap_or(span.from)
            .clamp(span.from, span.to);
        let mut rest = Span { from: begin, ..*span };
        while !rest.is_empty() && points.len() < limit {
            let found = view.marks(rest).await?;
            if found.covered.is_empty() {
                break;
            }
            let beyond = found.marks.first().is_some_and(|mark| mark.time > to.plus(slack));
            let inside = found
                .marks
                .iter()
                .filter(|mark| from <= mark.time && mark.time <= to && first <= mark.place.position);
            points.extend(inside.map(point).take(limit.saturating_sub(points.len())));
            rest.from = found.covered.to;
            if beyond {
                break;
            }
        }
    }
    Ok(points)
}

fn point(mark: &Mark) -> Point {
    let (kind, what) = match &mark.kind {
        MarkKind::Commit { id } => ("commit", id.to_string()),
        MarkKind::Name(name) => ("name", name.clone()),
        MarkKind::Tick => ("tick", String::new()),
    };
    Point {
        time: mark.time.to_string(),
        kind,
        what,
        timeline: mark.place.branch.0,
        lsn: Lsn(mark.place.position).to_string(),
    }
}
