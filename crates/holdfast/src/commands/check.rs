//! `check`: proves each thing that a backup and a restore will need, and says for each failure what to change.

use std::process::ExitCode;

use holdfast_core::{Act, Clock, Error, Random, Result, Sink, Tailer};
use holdfast_postgres::{Postgres, Verdict};
use holdfast_repo::{names::lineage_id, view::Repository};
use serde::Serialize;

use crate::{
    cli::Check,
    config::Config,
    exit_code, keys, output,
    reading::Reader,
    store::{self, Patience},
};

#[derive(Serialize)]
struct Line {
    about: String,
    what: &'static str,
    state: State,
    sentence: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Good,
    Note,
    Bad,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Note => "note",
            Self::Bad => "BAD",
        }
    }
}

#[derive(Default)]
struct Lines {
    all: Vec<Line>,
}

impl Lines {
    fn add(&mut self, about: &str, what: &'static str, state: State, sentence: impl Into<String>) {
        self.all.push(Line { about: about.to_owned(), what, state, sentence: sentence.into() });
    }
    /// The value of a step that worked; else its error is a line.
    fn take<T>(&mut self, about: &str, what: &'static str, step: Result<T>) -> Option<T> {
        match step {
            Ok(value) => Some(value),
            Err(error) => {
                self.add(about, what, State::Bad, error.chain());
                None
            }
        }
    }
}

pub async fn run(args: &Check, config: &Config, json: bool) -> Result<ExitCode> {
    let mut lines = Lines::default();
    let reader = check_store(args, config, &mut lines).await;
    for name in &config.chosen(&args.names) {
        let checked = check_source(name, config, reader.as_ref(), &mut lines).await;
        lines.take(name, "settings", checked);
    }
    if let Some(reader) = reader.filter(|reader| reader.identity.is_some()) {
        let names = reader.chosen(config, &args.names).await;
        for name in lines.take("identity", "sources", names).unwrap_or_default() {
            let opened = check_identity(&reader, config, &name).await;
            if let Some(sentence) = lines.take(&name, "identity", opened) {
                lines.add(&name, "identity", State::Good, sentence);
            }
        }
    }
    if json {
        output::json(&lines.all)?;
    } else {
        let rows: Vec<Vec<String>> = lines
            .all
            .iter()
            .map(|l| vec![l.state.word().to_owned(), l.about.clone(), l.what.to_owned(), l.sentence.clone()])
            .collect();
        output::table(&["", "of", "what", ""], &rows);
    }
    let bad = lines.all.iter().any(|line| line.state == State::Bad);
    Ok(if bad { exit_code(Act::Configure) } else { ExitCode::SUCCESS })
}

async fn check_store(args: &Check, config: &Config, lines: &mut Lines) -> Option<Reader> {
    const OF: &str = "store";
    let (clock, random) = (Clock::system(), Random::system());
    let store = store::open(&config.repository, Patience::Reader, &clock, &random).await;
    let store = lines.take(OF, "reached", store)?;
    let id = lines.take(OF, "repository id", config.id())?;
    let repository = lines.take(OF, "repository", Repository::open(store.bare.clone(), Some(id)).await)?;
    let sentence = format!("{} at {}", repository.id(), store.bare.address());
    lines.add(OF, "repository", State::Good, sentence);
    let capabilities = lines.take(OF, "writes", store.bare.capabilities().await)?;
    if capabilities.create_only {
        lines.add(OF, "writes", State::Good, "refuses to overwrite, one after the other and in a race");
    } else {
        lines.add(OF, "writes", State::Note, "accepts overwriting: each settle costs one request more, and a stolen sidecar could replace its own past");
    }
    lines.add(OF, "history", State::Note, capabilities.history);
    if let Some(skew) = lines.take(OF, "clock", skew(&*store.bare, &clock, &random).await) {
        let state = if skew.abs() < 30.0 { State::Good } else { State::Note };
        lines.add(OF, "clock", state, format!("the store's clock is {skew:+.1} s from this host's"));
    }
    let identity = lines.take("identity", "file", keys::identity(&args.identity, &repository).await)?;
    Some(Reader { store, repository, identity })
}

/// Seconds that the store's clock is ahead of ours: from the time of an object that is written and removed.
async fn skew(sink: &dyn Sink, clock: &Clock, random: &Random) -> Result<f64> {
    let name = format!("probe/{:016x}", random.u64());
    let before = clock.wall();
    sink.create(&name, Vec::from(*b"clock").into()).await?;
    let listed = sink.list(&name, None, 1).await?;
    // Not being allowed to remove is no fault: sidecars need not be.
    let _ = sink.remove(std::slice::from_ref(&name)).await;
    let entry = listed.entries.first().ok_or_else(|| {
        Error::corrupt("an object that was just written is not listed: the store does not show finished writes at once, and cannot be used")
    })?;
    Ok((entry.modified.micros() - before.micros()) as f64 / 1e6)
}

async fn check_source(name: &str, config: &Config, reader: Option<&Reader>, lines: &mut Lines) -> Result<()> {
    let source = config.source(name)?;
    let tailer = Postgres::new(source.postgres.clone(), name, Clock::system())?;
    let key = lines.take(name, "key file", keys::source_key(&source.common.key_file));
    if let (Some(key), Some(reader)) = (&key, reader)
        && let Some(known) = lines.take(name, "key file", reader.repository.source_by_key(key).await)
    {
        let ring = reader.repository.source_ring(known.id).await?;
        let sentence = format!("of source {}, sealed to {} recipients", known.id, ring.recipients.len());
        lines.add(name, "key file", State::Good, sentence);
        if known.content.name != name {
            let sentence = format!(
                "{} holds the key of source «{}»: set key_file in [source.{name}] to the key of «{name}»",
                source.common.key_file.display(),
                known.content.name
            );
            lines.add(name, "key file", State::Bad, sentence);
        }
        let lineages = reader.repository.lineage_ids(known.id).await?;
        if let Some(identity) = lines.take(name, "connection", tailer.identity().await) {
            let own = lineage_id(&known.key, known.repo, known.id, &identity.text);
            let fits = known.content.accepts(&identity.text, own, &lineages);
            if fits {
                lines.add(name, "identity of the source", State::Good, identity.text);
            } else {
                lines.add(name, "identity of the source", State::Bad, format!("«{}» is not the source that the repository knows: the wrong server, or after a rebuild «holdfast source adopt {name}»", identity.text));
            }
        }
    }
    for finding in tailer.examine().await {
        let state = match finding.verdict {
            Verdict::Good => State::Good,
            Verdict::Note => State::Note,
            Verdict::Bad => State::Bad,
        };
        lines.add(name, finding.what, state, finding.sentence);
    }
    Ok(())
}

/// Opens the newest data key, as a restore will.
async fn check_identity(reader: &Reader, config: &Config, name: &str) -> Result<String> {
    let opened = reader.source(config, name).await?;
    if opened.lineages.is_empty() {
        return Ok("opens the source's key; nothing is stored yet".to_owned());
    }
    let view = opened.view(None).await?;
    let epoch = view.chain().head().at.0;
    view.keys().get(epoch).await?;
    Ok(format!("opens the source's key and the newest data key, of epoch {epoch}"))
}
