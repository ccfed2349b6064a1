//! The one TOML file, with every key also by environment.
//!
//! `HOLDFAST_SOURCE__MAIN__DSN=…` sets `dsn` of `[source.main]`: sections are joined by two underscores, upper
//! case. The environment wins. Unknown keys are refused with the nearest name; secrets are file names.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use holdfast_core::{Error, RepoId, Result, text};
use holdfast_s3::S3Settings;
use serde::Deserialize;
use toml::{Table, Value};

use crate::bounds;

const ENVIRONMENT: &str = "HOLDFAST_";
/// Keys of the environment that are flags of the command line and no settings.
const FLAGS: [&str; 4] = ["CONFIG", "IDENTITY_FILE", "PASSPHRASE_FILE", "PG_BIN"];

#[derive(Clone, Debug)]
pub struct Config {
    pub repository: Repository,
    pub process: Process,
    pub sources: BTreeMap<String, Source>,
}

/// `[repository]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repository {
    /// As `init` printed it. The store's owner cannot put another repository in its place.
    pub id: Option<RepoIdText>,
    /// `s3://bucket/prefix`, or a folder.
    pub url: String,
    /// Upload limit, bytes a second.
    #[serde(default, with = "text::size::optional")]
    pub upload_rate: Option<u64>,
    /// Bucket and prefix come from the url.
    #[serde(default)]
    pub s3: S3Settings,
}

#[derive(Clone, Copy, Debug)]
pub struct RepoIdText(pub RepoId);

impl<'de> Deserialize<'de> for RepoIdText {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map(Self).map_err(|_| {
            serde::de::Error::custom(format!(
                "«{text}» is no repository id: it has 64 hexadecimal digits, as init printed it"
            ))
        })
    }
}

/// `[process]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Process {
    /// Instance ids and control sockets. May vanish; then this instance counts as another one.
    pub state_dir: PathBuf,
    /// Address of /metrics, /healthz, /readyz and the status page.
    pub listen: Option<String>,
    pub log: LogFormat,
    /// Memory for all sources together; by default a quarter of what the cgroup allows, at most 256 MiB.
    #[serde(with = "text::size::optional")]
    pub memory: Option<u64>,
    /// How long a stop may take, the good-bye to the sources included.
    #[serde(with = "text::duration")]
    pub stop_grace: Duration,
}

impl Default for Process {
    fn default() -> Self {
        Self {
            state_dir: PathBuf::from("/var/lib/holdfast"),
            listen: None,
            log: LogFormat::Text,
            memory: None,
            stop_grace: Duration::from_secs(10),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// `[source.NAME]`: what all kinds have in common, and the kind's own settings.
#[derive(Clone, Debug)]
pub struct Source {
    pub common: Common,
    pub pipeline: holdfast_pipeline::Settings,
    pub postgres: holdfast_postgres::Settings,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Common {
    pub kind: Kind,
    /// The file that `source add` wrote.
    pub key_file: PathBuf,
}

const COMMON: [&str; 2] = ["kind", "key_file"];
/// The pipeline's settings that stand in the file; `max_lag` has a default of each kind's own.
const PIPELINE: [&str; 4] = ["heartbeat", "put_spacing", "takeover", "merge"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Postgres,
}

impl Config {
    pub fn read(path: &Path) -> Result<Self> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            // On the worst day there may be no file: the two keys of the recovery kit are enough.
            Err(_) if std::env::var_os("HOLDFAST_REPOSITORY__URL").is_some() => String::new(),
            Err(cause) => {
                return Err(Error::configure(format!(
                    "the settings file {} cannot be read; name it with --config or HOLDFAST_CONFIG, or set HOLDFAST_REPOSITORY__URL and __ID",
                    path.display()
                ))
                .because(cause));
            }
        };
        Self::parse(&text, std::env::vars()).map_err(|error| {
            let what = format!("the settings in {} are not usable", path.display());
            error.during(what)
        })
    }

    pub fn parse(text: &str, environment: impl Iterator<Item = (String, String)>) -> Result<Self> {
        let mut table: Table = text.parse().map_err(|cause: toml::de::Error| {
            Error::configure(format!("it is no TOML: {}", cause.to_string().trim_end()))
        })?;
        let laid = overlay(&mut table, environment)?;
        known(&table, &["repository", "process", "source"], "")?;
        let mut take = |name: &str| match table.remove(name) {
            Some(Value::Table(table)) => Ok(Some(table)),
            Some(_) => Err(Error::configure(format!("«{name}» is a section: write [{name}]"))),
            None => Ok(None),
        };
        let repository: Repository = section(take("repository")?, "repository", &laid, &[])?;
        let process = section(take("process")?, "process", &laid, &[])?;
        let mut sources = BTreeMap::new();
        let given: BTreeMap<String, Table> = section(take("source")?, "source", &laid, &[])?;
        for (name, table) in given {
            check_name(&name)?;
            let source = Source::parse(&name, table, &laid)?;
            sources.insert(name, source);
        }
        distinct(&sources)?;
        let config = Self { repository, process, sources };
        bounds::check(&config)?;
        Ok(config)
    }

    pub fn source(&self, name: &str) -> Result<&Source> {
        self.sources.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.sources.keys().map(String::as_str).collect();
            Error::configure(format!(
                "no source «{name}» is configured{}; the file has {}",
                hint(name, &names),
                if names.is_empty() { "none".to_owned() } else { names.join(", ") }
            ))
        })
    }

    /// The sources that were named, else all that are configured.
    pub fn chosen(&self, named: &[String]) -> Vec<String> {
        if named.is_empty() { self.sources.keys().cloned().collect() } else { named.to_vec() }
    }

    pub fn id(&self) -> Result<RepoId> {
        self.repository.id.map(|id| id.0).ok_or_else(|| {
            Error::configure(
                "the repository's id is missing: put the line id = \"…\" that init printed (it stands in the recovery kit) into [repository]",
            )
        })
    }
}

impl Source {
    fn parse(name: &str, mut table: Table, laid: &Laid) -> Result<Self> {
        let mut take = |keys: &[&str]| -> Table {
            keys.iter().filter_map(|key| table.remove(*key).map(|value| ((*key).to_owned(), value))).collect()
        };
        let (common, pipeline) = (take(&COMMON), take(&PIPELINE));
        let at = format!("source.{name}");
        let others: Vec<&str> = COMMON.into_iter().chain(PIPELINE).collect();
        // First, since it is here that a misspelt key of the others is found.
        let postgres: holdfast_postgres::Settings = section(Some(table), &at, laid, &others)?;
        let common: Common = section(Some(common), &at, laid, &[])?;
        let mut pipeline: holdfast_pipeline::Settings = section(Some(pipeline), &at, laid, &[])?;
        pipeline.max_lag = postgres.max_lag;
        Ok(Self { common, pipeline, postgres })
    }
}

/// Two sources of one key would fence each other, two of one slot take turns at it.
fn distinct(sources: &BTreeMap<String, Source>) -> Result<()> {
    for (at, (name, source)) in sources.iter().enumerate() {
        for (other, earlier) in sources.iter().take(at) {
            if source.common.key_file == earlier.common.key_file {
                return Err(Error::configure(format!(
                    "[source.{other}] and [source.{name}] have the same key_file: each source has a key of its own, made by «holdfast source add»"
                )));
            }
            let slot = source.postgres.slot_for(name);
            if source.postgres.dsn == earlier.postgres.dsn && slot == earlier.postgres.slot_for(other) {
                return Err(Error::configure(format!(
                    "[source.{other}] and [source.{name}] follow one server by one slot, {slot}: leave one of them out, or give one another name in «slot»"
                )));
            }
        }
    }
    Ok(())
}

/// Names appear in commands, slots and metric labels.
fn check_name(name: &str) -> Result<()> {
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
    if !name.is_empty() && name.len() <= 40 && name.chars().all(fine) {
        return Ok(());
    }
    Err(Error::configure(format!("«{name}» is no source name: use at most 40 of a-z, 0-9, - and _")))
}

/// Which environment variable set a key (`source.main.dsn`).
type Laid = BTreeMap<String, String>;

/// Reads one section, of its defaults where it is not there. serde names the unknown key and all known ones (`more`
/// are those of the section's other parts); the nearest is offered.
fn section<T: serde::de::DeserializeOwned>(
    table: Option<Table>,
    at: &str,
    laid: &Laid,
    more: &[&str],
) -> Result<T> {
    Value::Table(table.unwrap_or_default()).try_into().map_err(|cause: toml::de::Error| {
        let message = cause.message().to_owned();
        let mut ticked = message.split('`').skip(1).step_by(2);
        let named = ticked.next().unwrap_or_default();
        let text = cause.to_string();
        let key = text.rsplit_once("in `").and_then(|(_, rest)| rest.split('`').next()).unwrap_or_default();
        let by = |key: &str| match laid.get(&format!("{at}.{key}")) {
            Some(variable) => format!("{variable} of the environment: "),
            None => String::new(),
        };
        if message.starts_with("unknown field ") {
            // Where a key is unknown, serde names the section above it.
            let above = if key.is_empty() { String::new() } else { format!("{key}.") };
            let mut names: Vec<&str> = ticked.collect();
            names.extend_from_slice(more);
            let by = by(&format!("{above}{named}"));
            let at = format!("{at}.{key}");
            let at = at.trim_end_matches('.');
            return Error::configure(format!("{by}[{at}] has no key «{named}»{}", hint(named, &names)));
        }
        if message.starts_with("missing field ") {
            return Error::configure(format!("[{at}] needs the key «{named}»"));
        }
        match key {
            "" => Error::configure(format!("in [{at}]: {message}")),
            key => Error::configure(format!("{}«{key}» in [{at}]: {message}", by(key))),
        }
    })
}

fn known(table: &Table, names: &[&str], at: &str) -> Result<()> {
    match table.keys().find(|key| !names.contains(&key.as_str())) {
        Some(key) => Err(Error::configure(format!("there is no section [{at}{key}]{}", hint(key, names)))),
        None => Ok(()),
    }
}

/// « (did you mean …?)», when something is near.
pub fn hint(given: &str, names: &[&str]) -> String {
    names
        .iter()
        // Two letters that changed places are one slip, in short names too.
        .map(|name| match strsim::osa_distance(given, name) {
            0..=1 => (1.0, name),
            _ => (strsim::jaro_winkler(given, name), name),
        })
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| format!(" (did you mean «{name}»?)"))
        .unwrap_or_default()
}

/// Lays `HOLDFAST_A__B__C=value` over `a.b.c`. A value that reads as a boolean or an integer is one, unless the
/// file has a string there.
fn overlay(table: &mut Table, environment: impl Iterator<Item = (String, String)>) -> Result<Laid> {
    let mut laid = Laid::new();
    for (variable, value) in environment {
        let Some(path) = variable.strip_prefix(ENVIRONMENT) else { continue };
        if FLAGS.contains(&path) || !path.contains("__") {
            continue;
        }
        let keys: Vec<String> = path.split("__").map(str::to_lowercase).collect();
        let Some((last, sections)) = keys.split_last() else { continue };
        let mut at = &mut *table;
        for key in sections {
            let entry = at.entry(key.clone()).or_insert_with(|| Value::Table(Table::new()));
            at = entry.as_table_mut().ok_or_else(|| {
                Error::configure(format!("{variable}: «{key}» is a value in the file and no section"))
            })?;
        }
        let was_text = at.get(last).is_some_and(Value::is_str);
        let parsed = match value.parse::<i64>() {
            Ok(number) if !was_text => Value::Integer(number),
            _ if value == "true" || value == "false" => Value::Boolean(value == "true"),
            _ => Value::String(value),
        };
        at.insert(last.clone(), parsed);
        laid.insert(keys.join("."), variable);
    }
    Ok(laid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = include_str!("../../../holdfast.sample.toml");

    fn none() -> std::iter::Empty<(String, String)> {
        std::iter::empty()
    }

    fn refused(text: &str) -> String {
        Config::parse(text, none()).unwrap_err().chain()
    }

    #[test]
    fn the_sample_is_read_and_says_the_defaults() {
        let config = Config::parse(SAMPLE, none()).unwrap();
        let least = "[repository]\nurl = \"/backup\"\n[source.main]\nkind = \"postgres\"\nkey_file = \"k\"\ndsn = \"d\"\n";
        let defaults = Config::parse(least, none()).unwrap();
        let (sample, plain) = (config.source("main").unwrap(), defaults.source("main").unwrap());
        assert_eq!(sample.pipeline, plain.pipeline);
        let examples = |settings: &holdfast_postgres::Settings| holdfast_postgres::Settings {
            dsn: String::new(),
            slot: None,
            base_backup_rate: None,
            max_slot_lag: None,
            ..settings.clone()
        };
        assert_eq!(examples(&sample.postgres), examples(&plain.postgres));
        assert_eq!(config.process.stop_grace, defaults.process.stop_grace);
        let (s3, default) = (config.repository.s3, S3Settings::default());
        assert_eq!((s3.connect_timeout, s3.stall_timeout), (default.connect_timeout, default.stall_timeout));
    }

    #[test]
    fn mistakes_are_named_with_what_was_meant() {
        let swap = |from: &str, to: &str| {
            assert!(SAMPLE.contains(from), "{from}");
            refused(&SAMPLE.replacen(from, to, 1))
        };
        assert!(swap("max_lag =", "max_lags =").contains("did you mean «max_lag»"));
        assert!(swap("heartbeat =", "hartbeat =").contains("did you mean «heartbeat»"));
        assert!(swap("\nkey_file =", "\nkeyfile =").contains("did you mean «key_file»"));
        assert!(swap("\ndsn =", "\n# dsn =").contains("[source.main] needs the key «dsn»"));
        assert!(swap("merge = true", "merge = 1").contains("«merge» in [source.main]"));
        assert!(swap("path_style = true", "path_style = 1").contains("«s3.path_style» in [repository]"));
        assert!(swap("\nurl =", "\nulr =").contains("did you mean «url»"));
        assert!(swap("secret_key_file =", "secret_keyfile =").contains("did you mean «secret_key_file»"));
        assert!(swap("state_dir =", "statedir =").contains("did you mean «state_dir»"));
        assert!(swap("[source.main]", "[sources.main]").contains("did you mean «source»"));
        assert!(swap("[source.main]", "[source.\"Main DB\"]").contains("no source name"));
        assert!(swap("max_lag = \"1s\"", "max_lag = \"1\"").contains("no duration"));
        assert!(swap("kind = \"postgres\"", "kind = \"mysql\"").contains("mysql"));
        assert!(swap("id = \"00", "id = \"x0").contains("no repository id"));
        assert!(refused("[repository]\nid = \"\"\n").contains("repository"));
        assert!(refused("repository = 1\n").contains("section"));
        assert!(refused("x = [").contains("TOML"));
        let twice = |more: &str| refused(&format!("{SAMPLE}\n[source.other]\nkind = \"postgres\"\n{more}\n"));
        let dsn = "dsn = \"host=/run/postgresql user=holdfast\"";
        let said = twice(&format!("key_file = \"/etc/holdfast/other.key\"\n{dsn}\nslot = \"holdfast_main\""));
        assert!(said.contains("[source.main] and [source.other]") && said.contains("slot"), "{said}");
        let said = twice("key_file = \"/etc/holdfast/main.key\"\ndsn = \"host=other\"");
        assert!(said.contains("the same key_file"), "{said}");
    }

    #[test]
    fn the_environment_wins() {
        let given = [
            ("HOLDFAST_SOURCE__MAIN__DSN", "host=other"),
            ("HOLDFAST_SOURCE__MAIN__MERGE", "false"),
            ("HOLDFAST_REPOSITORY__URL", "/elsewhere"),
            ("HOLDFAST_CONFIG", "no setting"),
        ];
        let config =
            Config::parse(SAMPLE, given.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned()))).unwrap();
        assert_eq!(config.source("main").unwrap().postgres.dsn, "host=other");
        assert!(!config.source("main").unwrap().pipeline.merge);
        assert_eq!(config.repository.url, "/elsewhere");

        let refused = |variable: &str, value: &str| {
            let given = [(variable.to_owned(), value.to_owned())];
            Config::parse(SAMPLE, given.into_iter()).unwrap_err().chain()
        };
        for (variable, value) in [
            ("HOLDFAST_SOURCE__MAIN__MERGE", "perhaps"),
            ("HOLDFAST_SOURCE__MAIN__HEARTBEAT", "soon"),
            ("HOLDFAST_SOURCE__MAIN__HARTBEAT", "20s"),
            ("HOLDFAST_PROCESS__STOP_GRACE", "true"),
            ("HOLDFAST_REPOSITORY__S3__STALL_TIMEOUT", "5"),
            ("HOLDFAST_REPOSITORY__S3__STALLTIMEOUT", "5s"),
        ] {
            let error = refused(variable, value);
            assert!(error.contains(variable), "{variable}: {error}");
        }
    }
}
