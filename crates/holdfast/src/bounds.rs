//! Between what bounds a time of the settings makes sense: zero and for ever are not among them, since loops wait by
//! them and instants are added to them.

use std::time::Duration;

use holdfast_core::{Error, Result, text::show_duration};

use crate::config::Config;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
const NONE: Duration = Duration::ZERO;

pub fn check(config: &Config) -> Result<()> {
    let (s3, process) = (&config.repository.s3, &config.process);
    within("repository.s3", "connect_timeout", s3.connect_timeout, Duration::from_millis(100), 10 * MINUTE)?;
    within("repository.s3", "stall_timeout", s3.stall_timeout, SECOND, HOUR)?;
    within("process", "stop_grace", process.stop_grace, NONE, HOUR)?;
    for (name, source) in &config.sources {
        let at = format!("source.{name}");
        let (pipeline, postgres) = (&source.pipeline, &source.postgres);
        within(&at, "heartbeat", pipeline.heartbeat, SECOND, HOUR)?;
        within(&at, "put_spacing", pipeline.put_spacing, NONE, MINUTE)?;
        within(&at, "max_lag", postgres.max_lag, Duration::from_millis(1), HOUR)?;
        within(&at, "shutdown_grace", postgres.shutdown_grace, NONE, DAY)?;
        within(&at, "base_backup_interval", postgres.base_backup_interval, MINUTE, YEAR)?;
    }
    Ok(())
}

/// For `hold --keep`.
pub fn keep(keep: Duration) -> Result<()> {
    if keep <= YEAR {
        return Ok(());
    }
    Err(Error::configure(format!(
        "--keep {} is longer than a year: give a shorter time",
        show_duration(keep)
    )))
}

fn within(section: &str, key: &str, value: Duration, least: Duration, most: Duration) -> Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::configure(format!(
        "«{key}» in [{section}] is {}: it may be from {} to {}",
        show_duration(value),
        show_duration(least),
        show_duration(most)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_no_loop_could_wait_by_is_refused() {
        let parse = |section: &str, line: &str| {
            let in_section = |name: &str| if section == name { line } else { "" };
            let text = format!(
                "[repository]\nurl = \"/backup\"\n[repository.s3]\n{}\n[process]\n{}\n[source.main]\nkind = \"postgres\"\n\
                 key_file = \"k\"\ndsn = \"d\"\n{}\n",
                in_section("repository.s3"),
                in_section("process"),
                in_section("source.main")
            );
            Config::parse(&text, std::iter::empty())
        };
        for (section, key, bad, good) in [
            ("source.main", "heartbeat", ["0s", "999ms", "2h", "99999999999999d"], ["1s", "1h"]),
            ("source.main", "put_spacing", ["61s", "1h", "1d", "99999999999999d"], ["0s", "1min"]),
            ("source.main", "max_lag", ["0s", "61min", "1d", "99999999999999d"], ["5min", "1h"]),
            ("source.main", "shutdown_grace", ["25h", "2d", "400d", "99999999999999d"], ["0s", "1d"]),
            ("source.main", "base_backup_interval", ["0s", "59s", "366d", "99999999999999d"], ["1min", "7d"]),
            ("process", "stop_grace", ["61min", "2h", "1d", "99999999999999d"], ["0s", "30s"]),
            ("repository.s3", "connect_timeout", ["0s", "99ms", "1h", "99999999999999d"], ["1s", "10min"]),
            ("repository.s3", "stall_timeout", ["0s", "999ms", "2h", "99999999999999d"], ["1s", "1h"]),
        ] {
            for value in bad {
                let said = parse(section, &format!("{key} = \"{value}\"")).unwrap_err().chain();
                assert!(said.contains(&format!("«{key}» in [{section}]")), "{value}: {said}");
                assert!(said.contains("it may be from"), "{value}: {said}");
            }
            for value in good {
                parse(section, &format!("{key} = \"{value}\"")).unwrap();
            }
        }
        keep(DAY).unwrap();
        assert!(keep(2 * YEAR).unwrap_err().chain().contains("longer than a year"));
    }
}
