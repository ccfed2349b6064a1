//! How to reach an S3 store of the harness, whichever it is.

use std::path::{Path, PathBuf};

use anyhow::Result;

/// Address and credentials; the bucket exists.
#[derive(Clone, Debug)]
pub struct Store {
    /// `http://127.0.0.1:PORT` or `https://localhost:PORT`; path style.
    pub endpoint: String,
    pub region: String,
    pub bucket: String,
    pub access_key: String,
    pub secret_key: String,
    /// The certificate (PEM) to trust, when the endpoint speaks TLS.
    pub authority: Option<String>,
}

impl Store {
    pub(crate) fn at(endpoint: String, authority: Option<String>) -> Self {
        Self {
            endpoint,
            region: "us-east-1".to_owned(),
            bucket: "holdfast".to_owned(),
            access_key: "AKIAHARNESS0000000000".to_owned(),
            secret_key: "harness-secret-of-no-value".to_owned(),
            authority,
        }
    }

    /// Writes the certificate to trust into `folder`.
    pub fn write_authority(&self, folder: &Path) -> Result<Option<PathBuf>> {
        let Some(authority) = &self.authority else { return Ok(None) };
        let path = folder.join("store-authority.pem");
        std::fs::write(&path, authority)?;
        Ok(Some(path))
    }

    /// The port, for proxies.
    pub(crate) fn port(&self) -> Option<u16> {
        self.endpoint.rsplit(':').next()?.parse().ok()
    }
}
