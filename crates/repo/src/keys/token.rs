//! `hf-<kind>-<hex>`: how keys look in files, on paper and in configurations.

use holdfast_core::{Error, Result};
use zeroize::Zeroizing;

const CHECK: usize = 4;
/// For the sentence about one that was given for another; of unknown text nothing is repeated, it may be secret.
const KINDS: [&str; 4] = ["identity", "recipient", "protected-identity", "source-key"];

/// Hexadecimal digits of `bytes` and of a check sum over kind and bytes.
pub fn write(kind: &str, bytes: &[u8]) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(kind.len() + 4 + 2 * (bytes.len() + CHECK)));
    text.push_str("hf-");
    text.push_str(kind);
    text.push('-');
    for byte in bytes.iter().chain(&check(kind, bytes)) {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
        }
    }
    text
}

/// Reads the line of `text` that is a token of this kind. Blank lines and lines that begin with `#` are
/// skipped; spaces within the line are ignored, since paper is read in groups.
pub fn read(kind: &str, what: &str, text: &str) -> Result<Zeroizing<Vec<u8>>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let [line] = lines.collect::<Vec<_>>()[..] else {
        return Err(Error::configure(format!("expected is {what}: one line, {}", shape(kind))));
    };
    let digits = line
        .strip_prefix("hf-")
        .and_then(|rest| rest.strip_prefix(kind))
        .and_then(|rest| rest.strip_prefix('-'))
        .ok_or_else(|| {
            let other = KINDS.iter().find(|other| is(other, line));
            let given = other.map(|other| format!("; this one is of «hf-{other}-»")).unwrap_or_default();
            Error::configure(format!("expected is {what}: {}{given}", shape(kind)))
        })?;
    let digits: Zeroizing<String> = Zeroizing::new(digits.split_whitespace().collect());
    let mut bytes = hex::decode(digits.as_bytes()).map(Zeroizing::new).map_err(|_| {
        Error::configure(format!(
            "{what} has characters that are no hexadecimal digits, or lacks one: expected is {}",
            shape(kind)
        ))
    })?;
    let body = bytes
        .len()
        .checked_sub(CHECK)
        .ok_or_else(|| Error::configure(format!("{what} is cut short: expected is {}", shape(kind))))?;
    if check(kind, &bytes[..body]) != bytes[body..] {
        return Err(Error::configure(format!(
            "{what} has a wrong check sum: some digits were mistyped or lost; compare it with the original"
        )));
    }
    bytes.truncate(body);
    Ok(bytes)
}

/// What a token of this kind looks like, for people.
fn shape(kind: &str) -> String {
    format!("«hf-{kind}-» and hexadecimal digits, as holdfast wrote it")
}

/// Is there a token of this kind in `text`?
pub fn is(kind: &str, text: &str) -> bool {
    text.lines().any(|line| {
        line.trim().strip_prefix("hf-").and_then(|r| r.strip_prefix(kind)).is_some_and(|r| r.starts_with('-'))
    })
}

fn check(kind: &str, bytes: &[u8]) -> [u8; CHECK] {
    let hash = blake3::Hasher::new().update(kind.as_bytes()).update(&[0]).update(bytes).finalize();
    let [a, b, c, d, ..] = *hash.as_bytes();
    [a, b, c, d]
}
