//! `plan`: what the configured intervals cost in requests, before the bill says so.

use std::time::Duration;

use holdfast_core::{Result, text::show_duration};
use holdfast_postgres::Ack;

use crate::{cli::CostPlan, config::Config, output};

const MONTH: Duration = Duration::from_secs(30 * 86400);

#[derive(serde::Serialize)]
struct Line {
    source: String,
    case: &'static str,
    puts_a_month: u64,
    dollars_a_month: f64,
    note: String,
}

pub fn run(args: &CostPlan, config: &Config, json: bool) -> Result<()> {
    let mut lines = Vec::new();
    for (name, source) in &config.sources {
        let mut add = |case, interval: Duration, note: String| {
            let puts = (MONTH.as_secs_f64() / interval.as_secs_f64().max(1e-3)) as u64;
            // Every 64 small objects are merged into one more.
            let puts_a_month = puts + puts / 64;
            let dollars = puts_a_month as f64 / 1e6 * args.put_price;
            lines.push(Line {
                source: name.clone(),
                case,
                puts_a_month,
                dollars_a_month: (dollars * 100.0).round() / 100.0,
                note,
            });
        };
        let pipeline = &source.pipeline;
        add(
            "idle",
            pipeline.heartbeat,
            format!("one object each heartbeat, {}", show_duration(pipeline.heartbeat)),
        );
        add(
            "always busy",
            pipeline.max_lag,
            format!("one object each max_lag, {}", show_duration(pipeline.max_lag)),
        );
        if source.postgres.ack == Ack::Remote {
            let note = format!(
                "a commit waits at every moment; bounded by put_spacing, {}",
                show_duration(pipeline.put_spacing)
            );
            add("commits wait without pause", pipeline.put_spacing, note);
        }
    }
    if json {
        return output::json(&lines);
    }
    let rows: Vec<Vec<String>> = lines
        .iter()
        .map(|line| {
            vec![
                line.source.clone(),
                line.case.to_owned(),
                line.puts_a_month.to_string(),
                format!("{:.2}", line.dollars_a_month),
                line.note.clone(),
            ]
        })
        .collect();
    output::table(&["source", "case", "PUTs a month", "USD a month", "why"], &rows);
    Ok(())
}
