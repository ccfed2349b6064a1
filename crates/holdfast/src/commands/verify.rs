//! `verify`: reads back what is stored and names all that is damaged, with the moments it closes.

use std::process::ExitCode;

use holdfast_core::{Act, Result, text::show_size};
use holdfast_repo::verify::{Closes, Level, Verification, verify};

use crate::{cli::Verify, config::Config, exit_code, output, reading::Reader};

pub async fn run(args: &Verify, config: &Config, json: bool) -> Result<ExitCode> {
    let reader = Reader::open(config, &args.identity).await?;
    let level = if reader.identity.is_some() { Level::Contents } else { Level::Digests };
    let opened = reader.source(config, &args.name).await?;
    let mut sound = true;
    let mut answers = Vec::new();
    for lineage in &opened.lineages {
        let Some(view) = opened.view_of(lineage).await? else { continue };
        let found = verify(&view, level, &output::Bar::new()).await?;
        sound &= found.is_sound();
        answers.push((lineage.record.identity.clone(), found));
    }
    if json {
        let all: Vec<_> = answers.iter().map(|(identity, found)| as_json(identity, found)).collect();
        output::json(&all)?;
    } else {
        for (identity, found) in &answers {
            output::line(format!(
                "{identity}: {} log objects, {} table objects, {} packs with {} pieces, {} read: {}",
                found.log_objects,
                found.layer_objects,
                found.packs,
                found.pieces,
                show_size(found.bytes),
                if found.is_sound() {
                    "whole".to_owned()
                } else {
                    format!("{} problems", found.problems.len())
                }
            ));
            for problem in &found.problems {
                output::line(format!("  {}\n    closes {}", problem.what, closes(&problem.closes)));
            }
        }
    }
    Ok(if sound { ExitCode::SUCCESS } else { exit_code(Act::Corrupt) })
}

fn as_json(identity: &str, found: &Verification) -> serde_json::Value {
    let problems: Vec<_> = found
        .problems
        .iter()
        .map(|problem| serde_json::json!({ "what": problem.what, "closes": closes(&problem.closes) }))
        .collect();
    serde_json::json!({
        "lineage": identity,
        "log_objects": found.log_objects,
        "table_objects": found.layer_objects,
        "packs": found.packs,
        "pieces": found.pieces,
        "bytes": found.bytes,
        "problems": problems,
    })
}

fn closes(closes: &Closes) -> String {
    match closes {
        Closes::Spans { after, before, .. } => {
            let word = |time: &Option<holdfast_core::Timestamp>, open: &str| {
                time.map_or_else(|| open.to_owned(), |time| time.to_string())
            };
            format!("moments between {} and {}", word(after, "the beginning"), word(before, "now"))
        }
        Closes::Checkpoints(runs) => {
            let names: Vec<String> = runs.iter().map(ToString::to_string).collect();
            format!("moments that stand on base backup {}", names.join(", "))
        }
        Closes::Nothing => "nothing that is known to be needed".to_owned(),
    }
}
