//! The server's backup manifest, read as a stream and compared with the files that were received.
//!
//! Memory does not grow with the number of files: both sides are summed into one digest of (path, size,
//! checksum), in any order. So a difference is found, though not in which file.

use holdfast_core::{Error, Result};
use serde::Deserialize;

/// Longest line: a path of 4 KiB, escaped.
const LINE_MAX: usize = 32 << 10;

/// A sum over files that does not depend on their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    files: u64,
    sum: [u64; 4],
}

impl Tally {
    /// `checksum` is the CRC-32C of the file's bytes.
    pub fn add(&mut self, path: &str, size: u64, checksum: u32) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&size.to_le_bytes()).update(&checksum.to_le_bytes()).update(path.as_bytes());
        let hash = hasher.finalize();
        for (sum, word) in self.sum.iter_mut().zip(hash.as_bytes().chunks_exact(8)) {
            *sum = sum.wrapping_add(word.first_chunk().map_or(0, |word| u64::from_le_bytes(*word)));
        }
        self.files += 1;
    }
}

#[derive(Deserialize)]
struct FileLine {
    #[serde(rename = "Path")]
    path: Option<String>,
    #[serde(rename = "Encoded-Path")]
    encoded: Option<String>,
    #[serde(rename = "Size")]
    size: u64,
    #[serde(rename = "Checksum-Algorithm")]
    algorithm: Option<String>,
    #[serde(rename = "Checksum")]
    checksum: Option<String>,
}

/// Reads the manifest as the server writes it: one line a file.
#[derive(Default)]
pub(super) struct ManifestReader {
    line: Vec<u8>,
    tally: Tally,
    /// Between the lines that open and close the list of files.
    files: bool,
    ended: bool,
}

impl ManifestReader {
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<()> {
        while let Some(at) = bytes.iter().position(|byte| *byte == b'\n') {
            let (head, tail) = bytes.split_at(at);
            self.line.extend_from_slice(head);
            bytes = tail.get(1..).unwrap_or_default();
            let line = std::mem::take(&mut self.line);
            self.take(&line)?;
        }
        self.line.extend_from_slice(bytes);
        if self.line.len() > LINE_MAX {
            return Err(bad("has a line that does not end"));
        }
        Ok(())
    }

    fn take(&mut self, line: &[u8]) -> Result<()> {
        let line = line.trim_ascii();
        if line.starts_with(b"\"Files\":") {
            self.files = true;
        } else if line.starts_with(b"]") {
            self.files = false;
        } else if line.starts_with(b"\"Manifest-Checksum\":") {
            self.ended = true;
        } else if self.files && !line.is_empty() {
            self.file(line.strip_suffix(b",").unwrap_or(line))?;
        }
        Ok(())
    }

    fn file(&mut self, line: &[u8]) -> Result<()> {
        let file: FileLine =
            serde_json::from_slice(line).map_err(|cause| bad("cannot be read").because(cause))?;
        let path = match (file.path, file.encoded) {
            (Some(path), _) => path,
            (None, Some(hexed)) => {
                let raw = hex::decode(hexed).map_err(|cause| bad("cannot be read").because(cause))?;
                String::from_utf8(raw).map_err(|cause| bad("names a file in no UTF-8").because(cause))?
            }
            (None, None) => return Err(bad("has a file without a name")),
        };
        let mut raw = [0; 4];
        let stated = (file.algorithm.as_deref(), file.checksum.unwrap_or_default());
        if stated.0 != Some("CRC32C") || hex::decode_to_slice(&stated.1, &mut raw).is_err() {
            return Err(bad("has a file without the checksum that was asked for"));
        }
        self.tally.add(&path, file.size, u32::from_le_bytes(raw));
        Ok(())
    }

    /// Compares with what was received.
    pub fn finish(mut self, received: &Tally) -> Result<()> {
        let rest = std::mem::take(&mut self.line);
        self.take(&rest)?;
        if !self.ended {
            return Err(bad("is cut short"));
        }
        if self.tally != *received {
            return Err(Error::retry(format!(
                "the files received do not match the server's manifest ({} files stated, {} received): the backup is \
                 made anew",
                self.tally.files, received.files
            )));
        }
        Ok(())
    }
}

fn bad(why: &str) -> Error {
    Error::corrupt(format!("the server's backup manifest {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = r#"{ "PostgreSQL-Backup-Manifest-Version": 1,
"Files": [
{ "Path": "backup_label", "Size": 226, "Last-Modified": "2026-11-30 12:00:00 GMT", "Checksum-Algorithm": "CRC32C", "Checksum": "010203f4" },
{ "Encoded-Path": "6162", "Size": 0, "Last-Modified": "2026-11-30 12:00:00 GMT", "Checksum-Algorithm": "CRC32C", "Checksum": "00000000" }
],
"WAL-Ranges": [
{ "Timeline": 1, "Start-LSN": "0/2000028", "End-LSN": "0/2000100" }
],
"Manifest-Checksum": "00"}
"#;

    fn read(text: &str, chunk: usize, tally: &Tally) -> Result<()> {
        let mut reader = ManifestReader::default();
        for chunk in text.as_bytes().chunks(chunk) {
            reader.push(chunk)?;
        }
        reader.finish(tally)
    }

    #[test]
    fn any_order_matches_and_any_difference_does_not() {
        let mut tally = Tally::default();
        tally.add("ab", 0, 0);
        tally.add("backup_label", 226, 0xf403_0201);
        for chunk in [1, 7, 4096] {
            read(MANIFEST, chunk, &tally).unwrap();
        }
        for changed in [("226", "227"), ("6162", "6163"), ("f4", "f5")] {
            assert!(read(&MANIFEST.replace(changed.0, changed.1), 4096, &tally).is_err(), "{changed:?}");
        }
        let (cut, _) = MANIFEST.split_once("\"Manifest-Checksum").unwrap();
        assert!(read(cut, 4096, &tally).unwrap_err().to_string().contains("cut short"));
    }
}
