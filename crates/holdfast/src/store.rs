//! The sink that the settings name, with its decorators.

use std::{sync::Arc, time::Duration};

use holdfast_core::{
    Clock, Error, Random, Result, Sink,
    sink::{self, Meter, RetrySettings, Urgent},
};
use holdfast_fs::{FsSettings, FsSink};
use holdfast_s3::S3Sink;

use crate::config::Repository;

/// Who calls decides how long a call is tried.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    /// A writer outlives the store's outage: the source keeps what is not durable.
    Forever,
    /// A person waits.
    Minutes,
}

#[derive(Clone)]
pub struct Store {
    pub sink: Arc<dyn Sink>,
    /// The store itself, for `check`: an answer at once.
    pub bare: Arc<dyn Sink>,
    pub meter: Arc<Meter>,
}

/// Opens the repository's store. A folder that is not there is an error: its disk may not be mounted.
pub async fn open(
    repository: &Repository,
    patience: Patience,
    clock: &Clock,
    random: &Random,
) -> Result<Store> {
    Ok(decorate(connect(repository, false, clock, random).await?, repository, patience, clock, random))
}

/// For `init`: makes the folder.
pub async fn create(repository: &Repository, clock: &Clock, random: &Random) -> Result<Store> {
    let bare = connect(repository, true, clock, random).await?;
    Ok(decorate(bare, repository, Patience::Minutes, clock, random))
}

fn decorate(
    bare: Arc<dyn Sink>,
    repository: &Repository,
    patience: Patience,
    clock: &Clock,
    random: &Random,
) -> Store {
    let settings = RetrySettings {
        patience: match patience {
            Patience::Forever => None,
            Patience::Minutes => Some(Duration::from_secs(60)),
        },
        ..RetrySettings::default()
    };
    let urgent: Urgent = |name| name.contains("/log/") || name.contains("/epochs/");
    let (rate, clock, random) = (repository.upload_rate, clock.clone(), random.clone());
    let (sink, meter) = sink::decorate(bare.clone(), settings, rate, urgent, clock, random);
    Store { sink, bare, meter }
}

async fn connect(
    repository: &Repository,
    create: bool,
    clock: &Clock,
    random: &Random,
) -> Result<Arc<dyn Sink>> {
    let folder = match repository.url.split_once("://") {
        None => repository.url.as_str(),
        Some(("file", path)) => path,
        Some(("s3", rest)) => {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            if bucket.is_empty() {
                return Err(Error::configure(format!(
                    "url = \"{}\" in [repository] names no bucket: write s3://bucket/prefix",
                    repository.url
                )));
            }
            let mut settings = repository.s3.clone();
            bucket.clone_into(&mut settings.bucket);
            prefix.clone_into(&mut settings.prefix);
            return Ok(Arc::new(S3Sink::connect(settings, clock.clone(), random.clone()).await?));
        }
        Some((scheme, _)) => {
            return Err(Error::configure(format!(
                "url in [repository] begins with «{scheme}://»; holdfast knows s3://bucket/prefix and folders"
            )));
        }
    };
    let settings = FsSettings { create, ..FsSettings::default() };
    Ok(Arc::new(FsSink::open(folder, settings, random.clone()).await?))
}
