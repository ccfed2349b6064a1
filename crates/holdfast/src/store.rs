//! The sink that the settings name, with its decorators.

use std::{path::Path, sync::Arc, time::Duration};

use holdfast_core::{
    Clock, Error, Random, Result, Sink,
    sink::{self, Meter, RetrySettings},
};
use holdfast_fs::{FsSettings, FsSink};
use holdfast_repo::names;
use holdfast_s3::S3Sink;

use crate::config::Repository;

/// Who calls decides how long a call is tried.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    /// A pipeline, which goes on asking for as long as an outage lasts (the source keeps what is not durable) and
    /// says so: it must get the error back. Resets, a throttled second and a store that changes its leader pass in
    /// less, unmentioned; and a minute at risk is an alert by then with its cause on the status page.
    Writer,
    /// A person waits.
    Reader,
}

impl Patience {
    fn duration(self) -> Duration {
        match self {
            Self::Writer => Duration::from_secs(15),
            Self::Reader => Duration::from_secs(60),
        }
    }
}

#[derive(Clone)]
pub struct Store {
    pub sink: Arc<dyn Sink>,
    /// The store itself, for who wants an answer at once.
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
    Ok(decorate(bare, repository, Patience::Reader, clock, random))
}

fn decorate(
    bare: Arc<dyn Sink>,
    repository: &Repository,
    patience: Patience,
    clock: &Clock,
    random: &Random,
) -> Store {
    let settings = RetrySettings { patience: Some(patience.duration()), ..RetrySettings::default() };
    let (rate, clock, random) = (repository.upload_rate, clock.clone(), random.clone());
    let (sink, meter) = sink::decorate(bare.clone(), settings, rate, names::is_urgent, clock, random);
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
    if !Path::new(folder).is_absolute() {
        return Err(Error::configure(format!(
            "url = \"{folder}\" in [repository] is a relative path, which means another folder for each process that \
             reads it: write the whole path, or s3://bucket/prefix"
        )));
    }
    let settings = FsSettings { create, ..FsSettings::default() };
    Ok(Arc::new(FsSink::open(folder, settings, random.clone()).await?))
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use bytes::Bytes;
    use holdfast_core::{
        Timestamp,
        sink::{Body, Capabilities, Created, Page, Range},
    };

    use super::*;

    /// A store that is down: nobody listens at its address.
    struct Down;

    fn down<T>() -> Result<T> {
        Err(Error::retry("connection refused"))
    }

    #[async_trait]
    impl Sink for Down {
        async fn capabilities(&self) -> Result<Capabilities> {
            down()
        }
        async fn create(&self, _: &str, _: Body) -> Result<Created> {
            down()
        }
        async fn read(&self, _: &str, _: Range) -> Result<Option<Bytes>> {
            down()
        }
        async fn list(&self, _: &str, _: Option<&str>, _: usize) -> Result<Page> {
            down()
        }
        async fn remove(&self, _: &[String]) -> Result<()> {
            down()
        }
        fn address(&self) -> String {
            "nowhere".to_owned()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_comes_back_to_who_must_say_it() {
        for (patience, within) in [(Patience::Writer, 15), (Patience::Reader, 60)] {
            let (clock, random) = (Clock::set(Timestamp(0)), Random::seeded(1));
            let config: Repository = toml::from_str("url = \"/nowhere\"").unwrap();
            let store = decorate(Arc::new(Down), &config, patience, &clock, &random);
            let began = clock.now();
            let error = store.sink.create("s/l/log/1/1", Body::default()).await.unwrap_err();
            assert!(error.is_passing(), "the pipeline asks again");
            assert!(error.chain().contains("connection refused"), "{}", error.chain());
            let spent = clock.now() - began;
            assert!(
                spent <= Duration::from_secs(within) && spent >= Duration::from_secs(within / 3),
                "{spent:?}"
            );
        }
    }
}
