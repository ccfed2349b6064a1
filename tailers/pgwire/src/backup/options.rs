//! What to ask BASE_BACKUP for, and how each server wants to be asked.

use crate::{Error, Result};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupOptions {
    /// Stands in `backup_label`; at most 1,024 bytes for the server.
    pub label: String,
    /// Let the server estimate sizes (it walks all files first) and report as it goes.
    pub progress: bool,
    /// Make the first checkpoint at full speed instead of spreading it.
    pub fast: bool,
    /// Let the server wait until its last segment is archived. Never ends where nothing archives.
    pub wait: bool,
    /// KiB a second that the server sends at most, 32 to 1,048,576.
    pub max_rate: Option<u32>,
    /// Send `tablespace_map` instead of symbolic links.
    pub tablespace_map: bool,
    pub verify_checksums: bool,
    /// `None`: no manifest.
    pub manifest: Option<ManifestChecksums>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManifestChecksums {
    None,
    Crc32c,
    Sha224,
    Sha256,
    Sha384,
    Sha512,
}

impl ManifestChecksums {
    fn word(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::Crc32c => "CRC32C",
            Self::Sha224 => "SHA224",
            Self::Sha256 => "SHA256",
            Self::Sha384 => "SHA384",
            Self::Sha512 => "SHA512",
        }
    }
}

impl Default for BackupOptions {
    /// A fast checkpoint, no waiting for an archive, tablespace map, checksums verified, manifest with CRC-32C.
    fn default() -> Self {
        Self {
            label: "holdfast".into(),
            progress: false,
            fast: true,
            wait: false,
            max_rate: None,
            tablespace_map: true,
            verify_checksums: true,
            manifest: Some(ManifestChecksums::Crc32c),
        }
    }
}

impl BackupOptions {
    /// The command for a server of this major version.
    pub(super) fn command(&self, major: u32) -> Result<String> {
        if self.label.len() > 1024 || self.label.contains(['\0', '\n', '\r']) {
            return Err(Error::Config(
                "the label of a base backup is one line of at most 1,024 bytes".into(),
            ));
        }
        if self.max_rate.is_some_and(|rate| !(32..=1_048_576).contains(&rate)) {
            return Err(Error::Config("a base backup's rate is 32 to 1,048,576 KiB a second".into()));
        }
        let label = format!("'{}'", self.label.replace('\'', "''"));
        Ok(if major < 15 { self.words(&label) } else { self.list(&label) })
    }

    fn words(&self, label: &str) -> String {
        let mut text = format!("BASE_BACKUP LABEL {label}");
        let mut word = |on: bool, word: &str| {
            if on {
                text.push(' ');
                text.push_str(word);
            }
        };
        word(self.progress, "PROGRESS");
        word(self.fast, "FAST");
        word(!self.wait, "NOWAIT");
        if let Some(rate) = self.max_rate {
            word(true, &format!("MAX_RATE {rate}"));
        }
        word(self.tablespace_map, "TABLESPACE_MAP");
        word(!self.verify_checksums, "NOVERIFY_CHECKSUMS");
        if let Some(checksums) = self.manifest {
            word(true, &format!("MANIFEST 'yes' MANIFEST_CHECKSUMS '{}'", checksums.word()));
        }
        text
    }

    fn list(&self, label: &str) -> String {
        let mut parts = vec![
            format!("LABEL {label}"),
            format!("PROGRESS {}", self.progress),
            format!("CHECKPOINT '{}'", if self.fast { "fast" } else { "spread" }),
            format!("WAIT {}", self.wait),
            format!("TABLESPACE_MAP {}", self.tablespace_map),
            format!("VERIFY_CHECKSUMS {}", self.verify_checksums),
        ];
        if let Some(rate) = self.max_rate {
            parts.push(format!("MAX_RATE {rate}"));
        }
        match self.manifest {
            Some(checksums) => {
                parts.push(format!("MANIFEST 'yes', MANIFEST_CHECKSUMS '{}'", checksums.word()));
            }
            None => parts.push("MANIFEST 'no'".into()),
        }
        format!("BASE_BACKUP ({})", parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_is_asked_in_its_own_syntax() {
        let options = BackupOptions { label: "it's".into(), max_rate: Some(32), ..BackupOptions::default() };
        assert_eq!(
            options.command(14).unwrap(),
            "BASE_BACKUP LABEL 'it''s' FAST NOWAIT MAX_RATE 32 TABLESPACE_MAP MANIFEST 'yes' MANIFEST_CHECKSUMS 'CRC32C'"
        );
        assert_eq!(
            options.command(15).unwrap(),
            "BASE_BACKUP (LABEL 'it''s', PROGRESS false, CHECKPOINT 'fast', WAIT false, TABLESPACE_MAP true, \
             VERIFY_CHECKSUMS true, MAX_RATE 32, MANIFEST 'yes', MANIFEST_CHECKSUMS 'CRC32C')"
        );
        assert!(BackupOptions { max_rate: Some(31), ..options.clone() }.command(15).is_err());
        assert!(BackupOptions { label: "a\nb".into(), ..options }.command(15).is_err());
    }
}
