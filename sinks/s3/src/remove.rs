//! Removal of all that a bucket keeps under a name: in a bucket with versions a plain delete only hides.

use aws_sdk_s3::types::{Delete, ObjectIdentifier};
use futures::{StreamExt, TryStreamExt, future::BoxFuture, stream};
use holdfast_core::{Error, Result};

use crate::{
    Inner,
    answer::{Ask, Failure},
};

/// Objects in one request.
const BATCH: usize = 1000;

/// Requests in flight for the versions of a batch.
const ABREAST: usize = 8;

/// Does the bucket keep old versions?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Versions {
    /// On, or on for some time in the past.
    Kept,
    /// Never switched on.
    None,
    /// We may not ask, or the store does not know the question.
    Unknown,
}

/// A key, and the version to remove where there are any.
type Doomed = (String, Option<String>);

impl Inner {
    pub async fn remove(&self, names: &[String]) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let versions = self.versions().await?;
        for batch in names.chunks(BATCH) {
            let doomed: Vec<Doomed> = match versions {
                Versions::None | Versions::Unknown => {
                    batch.iter().map(|name| (self.key(name), None)).collect()
                }
                Versions::Kept => {
                    let asked: Vec<BoxFuture<'_, Result<Vec<Doomed>>>> =
                        batch.iter().map(|name| Box::pin(self.versions_of(name)) as _).collect();
                    let lists: Vec<_> = stream::iter(asked).buffer_unordered(ABREAST).try_collect().await?;
                    lists.into_iter().flatten().collect()
                }
            };
            for part in doomed.chunks(BATCH) {
                self.remove_batch(part).await?;
            }
        }
        Ok(())
    }

    /// Asked once; an answer that passes is asked for again.
    pub async fn versions(&self) -> Result<Versions> {
        let ask = Ask {
            what: format!("looking for old versions in {}", self.address()),
            right: "s3:GetBucketVersioning",
        };
        let asked = self.versions.get_or_try_init(|| async {
            let send = |_| -> BoxFuture<'_, _> {
                Box::pin(async {
                    let request = self.client.get_bucket_versioning().bucket(&self.settings.bucket);
                    request.send().await.map_err(|error| ask.judge(error))
                })
            };
            match self.call(&ask, 0, send).await {
                Ok(output) if output.status().is_some() => Ok(Versions::Kept),
                Ok(_) => Ok(Versions::None),
                Err(failure) if failure.error.is_passing() || failure.is(404, "NoSuchBucket") => {
                    Err(failure.error)
                }
                Err(_) => Ok(Versions::Unknown),
            }
        });
        asked.await.copied()
    }

    async fn versions_of(&self, name: &str) -> Result<Vec<Doomed>> {
        let key = self.key(name);
        let ask = self.ask("listing the versions", name, "s3:ListBucketVersions");
        let mut found: Vec<Doomed> = Vec::new();
        let mut marker: Option<(String, Option<String>)> = None;
        loop {
            let from = marker.clone();
            let send = |_| -> BoxFuture<'_, _> {
                let from = from.clone();
                let request = self
                    .client
                    .list_object_versions()
                    .bucket(&self.settings.bucket)
                    .prefix(&key)
                    .set_key_marker(from.as_ref().map(|(key, _)| key.clone()))
                    .set_version_id_marker(from.and_then(|(_, version)| version));
                let ask = &ask;
                Box::pin(async move { request.send().await.map_err(|error| ask.judge(error)) })
            };
            let output = self.call(&ask, 1 << 20, send).await.map_err(|failure| failure.error)?;
            let versions = output.versions().iter().map(|version| (version.key(), version.version_id()));
            let markers = output.delete_markers().iter().map(|marker| (marker.key(), marker.version_id()));
            let mut beyond = false;
            for (other, version) in versions.chain(markers) {
                if other == Some(key.as_str()) {
                    found.push((key.clone(), version.map(str::to_owned)));
                } else {
                    beyond = true;
                }
            }
            let next = output.next_key_marker().map(str::to_owned);
            match (output.is_truncated().unwrap_or(false) && !beyond, next) {
                (true, Some(next)) if marker.as_ref().is_none_or(|(last, _)| *last <= next) => {
                    marker = Some((next, output.next_version_id_marker().map(str::to_owned)));
                }
                _ => return Ok(found),
            }
        }
    }

    async fn remove_batch(&self, doomed: &[Doomed]) -> Result<()> {
        let Some((first, _)) = doomed.first() else { return Ok(()) };
        let what = format!("removal of «{first}» and {} others in {}", doomed.len() - 1, self.address());
        let ask = Ask { what, right: "s3:DeleteObject, and s3:DeleteObjectVersion where versions are kept," };
        let send = |_| -> BoxFuture<'_, _> { Box::pin(self.send_remove(&ask, doomed)) };
        match self.call(&ask, 1 << 20, send).await {
            // Some stores know single removals only.
            Err(failure) if failure.unsupported() => {
                let asked: Vec<BoxFuture<'_, Result<()>>> =
                    doomed.iter().map(|one| Box::pin(self.remove_one(one)) as _).collect();
                stream::iter(asked).buffer_unordered(ABREAST).try_collect().await
            }
            other => other.map_err(|failure| failure.error),
        }
    }

    async fn send_remove(&self, ask: &Ask, doomed: &[Doomed]) -> Result<(), Failure> {
        let bug = |cause| Failure {
            status: None,
            code: None,
            login: false,
            error: Error::bug("a removal without a name").because(cause),
        };
        let mut delete = Delete::builder().quiet(true);
        for (key, version) in doomed {
            let one =
                ObjectIdentifier::builder().key(key).set_version_id(version.clone()).build().map_err(bug)?;
            delete = delete.objects(one);
        }
        let delete = delete.build().map_err(bug)?;
        let request = self.client.delete_objects().bucket(&self.settings.bucket).delete(delete);
        let output = request.send().await.map_err(|error| ask.judge(error))?;
        for refused in output.errors() {
            if matches!(refused.code(), Some("NoSuchKey" | "NoSuchVersion")) {
                continue;
            }
            let (code, message) = (refused.code().map(str::to_owned), refused.message().map(str::to_owned));
            return Err(ask.answered(None, code, message, None));
        }
        Ok(())
    }

    async fn remove_one(&self, (key, version): &Doomed) -> Result<()> {
        let ask =
            self.ask("removal", key, "s3:DeleteObject, and s3:DeleteObjectVersion where versions are kept,");
        let send = |_| -> BoxFuture<'_, _> {
            let request = self
                .client
                .delete_object()
                .bucket(&self.settings.bucket)
                .key(key)
                .set_version_id(version.clone());
            let ask = &ask;
            Box::pin(async move { request.send().await.map_err(|error| ask.judge(error)).map(|_| ()) })
        };
        match self.call(&ask, 0, send).await {
            Err(failure) if matches!(failure.code.as_deref(), Some("NoSuchKey" | "NoSuchVersion")) => Ok(()),
            other => other.map_err(|failure| failure.error),
        }
    }
}
