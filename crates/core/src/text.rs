//! Durations and sizes as people write them in settings: `"1s"`, `"250ms"`, `"24h"`; `"48MiB"`, `"10MB"`.
//! For serde: `#[serde(with = "holdfast_core::text::duration")]`.

use std::time::Duration;

use crate::{Error, Result};

const TIMES: [(&str, f64); 8] = [
    ("ms", 1e-3),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("s", 1.0),
    ("min", 60.0),
    ("m", 60.0),
    ("h", 3600.0),
    ("d", 86400.0),
];

const SIZES: [(&str, f64); 11] = [
    ("B", 1.0),
    ("kB", 1e3),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
    ("", 1.0),
];

fn parse(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let text = text.trim();
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let number: f64 = number.parse().ok()?;
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim())?;
    Some(number * factor)
}

/// Seconds, minutes, hours, days; a number alone is refused, since nobody could tell its unit.
pub fn parse_duration(text: &str) -> Result<Duration> {
    parse(text, &TIMES).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).ok_or_else(|| {
        Error::configure(format!(
            "«{text}» is no duration: write it like \"500ms\", \"1s\", \"5min\", \"24h\" or \"7d\""
        ))
    })
}

pub fn parse_size(text: &str) -> Result<u64> {
    match parse(text, &SIZES) {
        Some(bytes) if bytes.is_finite() && bytes < 9e18 => Ok(bytes as u64),
        _ => Err(Error::configure(format!(
            "«{text}» is no size: write it like \"64MiB\", \"1.5GiB\" or \"10MB\""
        ))),
    }
}

/// The shortest of `450ms`, `1.25s`, `3min`, `2h 5min`, `4d 3h`.
pub fn show_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{}ms", duration.as_millis()),
        1..60 => format!("{}s", (duration.as_millis() as f64 / 10.0).round() / 100.0),
        60..3600 => pair(seconds, 60, "min", 1, "s"),
        3600..86400 => pair(seconds, 3600, "h", 60, "min"),
        _ => pair(seconds, 86400, "d", 3600, "h"),
    }
}

fn pair(seconds: u64, large: u64, large_name: &str, small: u64, small_name: &str) -> String {
    match (seconds % large) / small {
        0 => format!("{}{large_name}", seconds / large),
        rest => format!("{}{large_name} {rest}{small_name}", seconds / large),
    }
}

/// `512 B`, `1.5 MiB`, `10 GiB`.
pub fn show_size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{} {}", (value * 10.0).round() / 10.0, units[unit])
    }
}

macro_rules! as_text {
    ($module:ident, $type:ty, $parse:path, $show:path) => {
        pub mod $module {
            use serde::{Deserialize, Deserializer, Serializer, de::Error};
            pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                $parse(&String::deserialize(from)?).map_err(D::Error::custom)
            }
            pub fn serialize<S: Serializer>(value: &$type, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(&$show(*value))
            }
            /// The same for an optional setting (add `default`).
            pub mod optional {
                use serde::{Deserialize, Deserializer, Serializer, de::Error};
                pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<$type>, D::Error> {
                    Option::<String>::deserialize(from)?
                        .map(|text| $parse(&text).map_err(D::Error::custom))
                        .transpose()
                }
                pub fn serialize<S: Serializer>(value: &Option<$type>, to: S) -> Result<S::Ok, S::Error> {
                    match value {
                        Some(value) => to.serialize_some(&$show(*value)),
                        None => to.serialize_none(),
                    }
                }
            }
        }
    };
}

as_text!(duration, std::time::Duration, crate::text::parse_duration, crate::text::show_duration);
as_text!(size, u64, crate::text::parse_size, crate::text::show_size);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_people_write_them() {
        assert_eq!(parse_duration("250ms").unwrap(), Duration::from_millis(250));
        assert_eq!(parse_duration("1.5 h").unwrap(), Duration::from_secs(5400));
        assert!(parse_duration("10").is_err());
        assert!(parse_duration("-1s").is_err());
        assert_eq!(parse_size("48MiB").unwrap(), 48 << 20);
        assert!(parse_size("48 mb").is_err());
        assert_eq!(show_duration(Duration::from_secs(7500)), "2h 5min");
        assert_eq!(show_size(3 << 19), "1.5 MiB");
    }
}
