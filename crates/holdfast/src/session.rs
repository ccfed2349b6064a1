//! What a restore leaves behind for `wal-fetch`: where the repository is and the keys of this restore's log, in a
//! file of mode 0600, never the identity.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use holdfast_core::{Clock, Error, Random, Result, View};
use holdfast_postgres::restore::{OpenView, Session};
use holdfast_repo::view::Pass;
use holdfast_s3::S3Settings;
use serde::{Deserialize, Serialize};

use crate::{
    config::Repository,
    store::{self, Patience},
};

/// Credentials that the restore was given by environment reach the server's environment by nobody else.
const CREDENTIALS: [&str; 3] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blob {
    url: String,
    s3: S3Settings,
    pass: String,
    environment: BTreeMap<String, String>,
}

impl Blob {
    pub fn new(repository: &Repository, pass: &Pass) -> Result<Self> {
        let given =
            CREDENTIALS.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)));
        Ok(Self {
            url: repository.url.clone(),
            s3: repository.s3.clone(),
            pass: pass.text()?.to_string(),
            environment: given.collect(),
        })
    }

    pub fn text(&self) -> Result<String> {
        serde_json::to_string(self)
            .map_err(|cause| Error::bug("a session could not be written").because(cause))
    }

    pub fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|cause| {
            Error::configure("the session of this restore cannot be read; give the restore command again")
                .because(cause)
        })
    }

    /// For the prefetcher's process.
    pub fn environment(&self) -> &BTreeMap<String, String> {
        &self.environment
    }
}

/// Opens what a session names.
pub struct FromSession;

#[async_trait]
impl OpenView for FromSession {
    async fn open(&self, session: &Session) -> Result<Arc<dyn View>> {
        let blob = Blob::parse(&session.blob)?;
        let repository: Repository =
            Repository { id: None, url: blob.url.clone(), upload_rate: None, s3: blob.s3.clone() };
        let store = store::open(&repository, Patience::Reader, &Clock::system(), &Random::system()).await?;
        let view = Pass::parse(&blob.pass)?.view(store.sink).await?;
        view.map(|view| Arc::new(view) as Arc<dyn View>).ok_or_else(|| {
            Error::corrupt(format!("the stream of this restore is not at {} any more", repository.url))
        })
    }
}
