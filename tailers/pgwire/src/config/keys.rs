//! The settings that exist, where the environment has them, and the answer to one that does not.

use std::collections::BTreeMap;

use super::dsn::Settings;
use crate::{Error, Result};

/// Name and environment variable of each setting we act on.
const KNOWN: &[(&str, &str)] = &[
    ("application_name", "PGAPPNAME"),
    ("channel_binding", "PGCHANNELBINDING"),
    ("cleartext_password", ""),
    ("connect_timeout", "PGCONNECT_TIMEOUT"),
    ("dbname", "PGDATABASE"),
    ("fallback_application_name", ""),
    ("host", "PGHOST"),
    ("hostaddr", "PGHOSTADDR"),
    ("keepalives", ""),
    ("keepalives_count", ""),
    ("keepalives_idle", ""),
    ("keepalives_interval", ""),
    ("options", "PGOPTIONS"),
    ("passfile", "PGPASSFILE"),
    ("password", "PGPASSWORD"),
    ("port", "PGPORT"),
    ("require_auth", "PGREQUIREAUTH"),
    ("service", "PGSERVICE"),
    ("sslcert", "PGSSLCERT"),
    ("sslkey", "PGSSLKEY"),
    ("sslmode", "PGSSLMODE"),
    ("sslnegotiation", "PGSSLNEGOTIATION"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("target_session_attrs", "PGTARGETSESSIONATTRS"),
    ("tcp_user_timeout", ""),
    ("user", "PGUSER"),
];

/// Settings of libpq that change nothing for us as long as they have one of these values.
const IDLE: &[(&str, &[&str])] = &[
    ("client_encoding", &["", "auto", "UTF8", "utf8", "UTF-8", "utf-8"]),
    ("gssencmode", &["", "disable", "prefer"]),
    ("load_balance_hosts", &["", "disable"]),
    ("replication", &["", "true", "on", "yes", "1"]),
    ("sslcompression", &["", "0"]),
    ("sslsni", &["", "1"]),
];

#[derive(Debug, Default)]
pub(super) struct Values(BTreeMap<&'static str, String>);

impl Values {
    /// Adds settings; `origin` is named in errors. Those already present stay unless `replace`.
    pub(super) fn add(&mut self, settings: Settings, replace: bool, origin: &str) -> Result<()> {
        for (key, value) in settings {
            if let Some((name, _)) = KNOWN.iter().find(|(name, _)| *name == key) {
                if replace || !self.0.contains_key(name) {
                    self.0.insert(name, value);
                }
            } else if let Some((_, harmless)) = IDLE.iter().find(|(name, _)| *name == key) {
                if !harmless.contains(&value.as_str()) {
                    return Err(Error::Config(format!(
                        "«{key}={value}» in {origin} is not supported: leave {key} out"
                    )));
                }
            } else {
                return Err(Error::Config(unknown(&key, origin)));
            }
        }
        Ok(())
    }
    /// Adds what the environment says, where nothing was said yet.
    pub(super) fn add_environment(&mut self, variable: impl Fn(&str) -> Option<String>) {
        for (name, in_environment) in KNOWN.iter().filter(|(_, v)| !v.is_empty()) {
            if !self.0.contains_key(name)
                && let Some(value) = variable(in_environment)
            {
                self.0.insert(name, value);
            }
        }
    }
    /// An empty value counts as none, as in libpq.
    pub(super) fn take(&mut self, key: &'static str) -> Option<String> {
        self.0.remove(key).filter(|value| !value.is_empty())
    }
    pub(super) fn number(&mut self, key: &'static str) -> Result<Option<u32>> {
        let Some(text) = self.take(key) else { return Ok(None) };
        // libpq reads negative numbers as «the default».
        match text.trim().parse::<i64>() {
            Ok(number) if number < 0 => Ok(None),
            Ok(number) => u32::try_from(number).map(Some).map_err(|_| wrong(key, &text, "a smaller number")),
            Err(_) => Err(wrong(key, &text, "a whole number")),
        }
    }
    /// One of the words.
    pub(super) fn word<T: Copy>(
        &mut self,
        key: &'static str,
        words: &[(&'static str, T)],
    ) -> Result<Option<T>> {
        let Some(text) = self.take(key) else { return Ok(None) };
        match words.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => Ok(Some(*value)),
            None => {
                let all: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                Err(wrong(key, &text, &format!("one of {}", all.join(", "))))
            }
        }
    }
}

pub(super) fn wrong(key: &str, value: &str, instead: &str) -> Error {
    Error::Config(format!("«{key}={value}» is not possible: write {instead}"))
}

fn unknown(key: &str, origin: &str) -> String {
    let shown: String = key.chars().take(40).collect();
    let names = KNOWN.iter().map(|(name, _)| *name).chain(IDLE.iter().map(|(name, _)| *name));
    let near = names
        .map(|name| (strsim::damerau_levenshtein(name, &shown), name))
        .min()
        .filter(|(distance, name)| *distance <= name.len() / 3 + 1);
    match near {
        Some((_, name)) => format!("there is no setting «{shown}» ({origin}): did you mean «{name}»?"),
        None => format!("the setting «{shown}» ({origin}) does not exist or is not supported here"),
    }
}
