//! What a user says about a bucket. Secrets are never here: they come from the environment or from files.

use std::{path::PathBuf, time::Duration};

use holdfast_core::{Error, Result, sink::check_name, text::duration};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct S3Settings {
    pub bucket: String,
    /// Put before every name, with a slash between. Empty: the bucket is holdfast's alone.
    pub prefix: String,
    /// `https://host:port` of a store that is not AWS.
    pub endpoint: Option<String>,
    /// From `AWS_REGION` or the profile when not given; `us-east-1` where there is an endpoint.
    pub region: Option<String>,
    /// Bucket in the path instead of the host name. Default: yes where there is an endpoint.
    pub path_style: Option<bool>,
    /// Authorities (PEM) to trust beside those of the system.
    pub ca_file: Option<PathBuf>,
    /// `http://user:password@host:port`, or `none`. Default: `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`.
    pub proxy: Option<String>,
    /// Hosts reached directly, comma-separated. Default, where no `proxy` is given: `NO_PROXY`.
    pub no_proxy: Option<String>,
    /// Section of the shared credentials and config files.
    pub profile: Option<String>,
    /// Shared credentials file to use instead of `~/.aws/credentials`; read again when it changes.
    pub credentials_file: Option<PathBuf>,
    /// Files that hold one value each; read again when they change.
    pub access_key_file: Option<PathBuf>,
    pub secret_key_file: Option<PathBuf>,
    pub session_token_file: Option<PathBuf>,
    /// As the store names it; must be one that can be read at once.
    pub storage_class: Option<String>,
    /// Hash each body for the signature. Default: only without TLS, which hashes already.
    pub sign_payload: Option<bool>,
    /// Send a CRC32C with each object. Without it one is sent once the store asks (object lock).
    pub checksum: bool,
    /// How long one connection may take to be made.
    #[serde(with = "duration")]
    pub connect_timeout: Duration,
    /// How long an attempt may go without any progress.
    #[serde(with = "duration")]
    pub stall_timeout: Duration,
}

impl Default for S3Settings {
    fn default() -> Self {
        Self {
            bucket: String::new(),
            prefix: String::new(),
            endpoint: None,
            region: None,
            path_style: None,
            ca_file: None,
            proxy: None,
            no_proxy: None,
            profile: None,
            credentials_file: None,
            access_key_file: None,
            secret_key_file: None,
            session_token_file: None,
            storage_class: None,
            sign_payload: None,
            checksum: false,
            connect_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(20),
        }
    }
}

impl S3Settings {
    /// Refuses what cannot work, before anything is sent.
    pub(crate) fn check(&self) -> Result<()> {
        if self.bucket.is_empty() {
            return Err(Error::configure("no `bucket` is set for the S3 store"));
        }
        let prefix = self.prefix.trim_matches('/');
        if !prefix.is_empty() {
            check_name(prefix).map_err(|cause| {
                Error::configure(format!(
                    "`prefix` «{prefix}» cannot be used: parts of 0-9, A-Z, a-z, «.», «_» and «-» between single slashes are allowed"
                ))
                .because(cause)
            })?;
        }
        if let Some(endpoint) = &self.endpoint
            && !endpoint.starts_with("https://")
            && !endpoint.starts_with("http://")
        {
            return Err(Error::configure(format!(
                "`endpoint` «{endpoint}» does not begin with https:// or http://"
            )));
        }
        if self.access_key_file.is_some() != self.secret_key_file.is_some() {
            return Err(Error::configure(
                "`access_key_file` and `secret_key_file` go together, but only one of them is set",
            ));
        }
        let class = self.storage_class.as_deref().unwrap_or_default();
        if matches!(class, "GLACIER" | "DEEP_ARCHIVE") {
            return Err(Error::configure(format!(
                "`storage_class` «{class}» cannot be read without thawing: choose one that can be read at once"
            )));
        }
        if self.stall_timeout.is_zero() || self.connect_timeout.is_zero() {
            return Err(Error::configure(
                "`stall_timeout` and `connect_timeout` must be longer than nothing",
            ));
        }
        Ok(())
    }

    /// The store's own address, without TLS?
    pub(crate) fn is_plain(&self) -> bool {
        self.endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"))
    }
}
