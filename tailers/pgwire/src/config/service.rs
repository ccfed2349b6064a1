//! Service files: named sets of settings, one `[name]` and `key=value` a line.

use std::{fs, path::PathBuf};

use super::{Surroundings, dsn::Settings};
use crate::{Error, Result};

/// Larger files are refused before they are read.
const FILE_MAX: u64 = 1 << 20;

/// The settings of `name`, from the user's file or else the system's.
pub(super) fn load(name: &str, surroundings: &Surroundings) -> Result<Settings> {
    let mut tried = Vec::new();
    for path in places(surroundings) {
        match read(&path)? {
            Some(text) => {
                if let Some(settings) = section(&text, name, &path.display().to_string())? {
                    return Ok(settings);
                }
                tried.push(format!("{} (no [{name}] in it)", path.display()));
            }
            None => tried.push(format!("{} (not there)", path.display())),
        }
    }
    Err(Error::Config(format!(
        "the service «{name}» is nowhere defined; looked at {}",
        if tried.is_empty() { "nothing: set PGSERVICEFILE".into() } else { tried.join(", ") }
    )))
}

fn places(surroundings: &Surroundings) -> Vec<PathBuf> {
    let own = match surroundings.variable("PGSERVICEFILE") {
        Some(path) => Some(PathBuf::from(path)),
        None => surroundings.home.as_ref().map(|home| home.join(".pg_service.conf")),
    };
    let system = surroundings
        .variable("PGSYSCONFDIR")
        .map_or_else(|| PathBuf::from("/etc/postgresql-common"), PathBuf::from)
        .join("pg_service.conf");
    own.into_iter().chain([system]).collect()
}

fn read(path: &std::path::Path) -> Result<Option<String>> {
    let cannot = |cause: std::io::Error| Error::Config(format!("{} cannot be read: {cause}", path.display()));
    match fs::metadata(path) {
        Ok(meta) if meta.len() > FILE_MAX => {
            Err(Error::Config(format!("{} is too large for a service file", path.display())))
        }
        Ok(_) => fs::read_to_string(path).map(Some).map_err(cannot),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(cannot(error)),
    }
}

fn section(text: &str, name: &str, file: &str) -> Result<Option<Settings>> {
    let mut inside = false;
    let mut found: Option<Settings> = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(header) = line.strip_prefix('[') {
            if found.is_some() {
                break;
            }
            inside = header.strip_suffix(']') == Some(name);
            if inside {
                found = Some(Settings::new());
            }
            continue;
        }
        let (true, Some(settings)) = (inside, found.as_mut()) else { continue };
        let (key, value) = line.split_once('=').ok_or_else(|| {
            Error::Config(format!("line {} of {file} is neither [service] nor key=value", number + 1))
        })?;
        if key == "service" || key == "servicefile" {
            return Err(Error::Config(format!(
                "line {} of {file}: a service cannot name another service",
                number + 1
            )));
        }
        settings.push((key.trim().to_owned(), value.trim().to_owned()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_found_by_its_name() {
        let text = "# ours\n[a]\nhost=x\n\n[b]\nhost=y\nport=5\n[c]\nnonsense\n";
        let settings = section(text, "b", "f").unwrap().unwrap();
        assert_eq!(settings, [("host".to_owned(), "y".to_owned()), ("port".to_owned(), "5".to_owned())]);
        assert_eq!(section(text, "d", "f").unwrap(), None);
        assert!(section(text, "c", "f").unwrap_err().to_string().contains("line 9 of f"));
    }
}
