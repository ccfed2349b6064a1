//! What this store really does, found out by doing it: two writes of one name in a row, and sixteen at once.
//! Some stores answer 200 to a header they do not know, and some check it before they write instead of while.

use futures::future::{BoxFuture, join_all};
use holdfast_core::{
    Error, Result,
    sink::{Body, Capabilities, Created, Range},
};
use std::sync::atomic::Ordering::Relaxed;

use crate::{
    Inner,
    answer::{Ask, Failure},
    remove::Versions,
};

const RACERS: u8 = 16;

/// Races that decide nothing before we give up: each lost writer is told to try again by some stores.
const ROUNDS: usize = 3;

impl Inner {
    pub async fn probe(&self) -> Result<Capabilities> {
        let id = hex::encode(self.random.array::<8>());
        let mut made = vec![format!("probe/{id}/twice")];
        let create_only = self.twice(&made[0]).await? && self.race(&id, &mut made).await?;
        self.plain.store(!create_only, Relaxed);
        if let Err(error) = self.remove(&made).await {
            tracing::debug!("probe objects stay where they are: {}", error.chain());
        }
        Ok(Capabilities { create_only, history: self.history().await? })
    }

    /// Is the second of two writes refused, and the first kept?
    async fn twice(&self, name: &str) -> Result<bool> {
        let first = Body::from(b"first".to_vec());
        match self.put(name, &first, true).await {
            Ok(Created::New) => {}
            // Ours from an attempt whose answer was lost: the name is random.
            Ok(Created::Exists) => {}
            // Does it refuse the condition, or every write? A plain one tells.
            Err(failure) if failure.refused() => {
                return match self.put(name, &first, false).await {
                    Ok(_) => Ok(false),
                    Err(_) => Err(failure.error),
                };
            }
            Err(failure) => return Err(failure.error),
        }
        let second = Body::from(b"second".to_vec());
        if self.put(name, &second, true).await.map_err(|failure| failure.error)? == Created::New {
            return Ok(false);
        }
        Ok(self.read(name, Range::All).await?.as_deref() == Some(b"first"))
    }

    /// Does exactly one of many writers at once win?
    async fn race(&self, id: &str, made: &mut Vec<String>) -> Result<bool> {
        for round in 0..ROUNDS {
            let name = format!("probe/{id}/race-{round}");
            made.push(name.clone());
            let bodies: Vec<Body> = (0..RACERS).map(|racer| Body::from(vec![racer; 1000])).collect();
            let raced = join_all(bodies.iter().map(|body| self.put(&name, body, true))).await;
            let (mut winners, mut losers) = (Vec::new(), 0);
            for (racer, result) in (0..RACERS).zip(raced) {
                match result {
                    Ok(Created::New) => winners.push(racer),
                    Ok(Created::Exists) => losers += 1,
                    Err(failure) if failure.status == Some(409) => losers += 1,
                    // A store that slows us down answers some: who was not answered may have won, which the read
                    // below would show.
                    Err(failure) if failure.error.is_passing() => {}
                    Err(failure) => return Err(failure.error),
                }
            }
            match winners.as_slice() {
                [] => {}
                [_] if losers == 0 => {}
                [winner] => {
                    let kept = self.read(&name, Range::All).await?;
                    return Ok(kept.as_deref() == Some(vec![*winner; 1000].as_slice()));
                }
                _ => return Ok(false),
            }
        }
        Err(Error::retry(format!(
            "{} answered too few of {RACERS} racing writers to tell who created an object",
            self.address()
        )))
    }

    /// What we may know of old versions and locks, as a sentence.
    async fn history(&self) -> Result<String> {
        let versions = match self.versions().await? {
            Versions::Kept => "the bucket keeps (or kept) old versions",
            Versions::None => "the bucket keeps no old versions: what is overwritten or removed is gone",
            Versions::Unknown => {
                "whether the bucket keeps old versions is unknown (s3:GetBucketVersioning is not granted, or the store does not know it)"
            }
        };
        Ok(format!("{versions}; {}", self.lock().await?))
    }

    async fn lock(&self) -> Result<String> {
        let ask = Ask {
            what: format!("looking for object lock in {}", self.address()),
            right: "s3:GetBucketObjectLockConfiguration",
        };
        let send = |_| -> BoxFuture<'_, Result<_, Failure>> {
            Box::pin(async {
                let request = self.client.get_object_lock_configuration().bucket(&self.settings.bucket);
                request.send().await.map_err(|error| ask.judge(error))
            })
        };
        let output = match self.call(&ask, 0, send).await {
            Ok(output) => output,
            Err(failure) if failure.error.is_passing() => return Err(failure.error),
            Err(failure) if failure.is(404, "ObjectLockConfigurationNotFoundError") => {
                return Ok("objects are not locked".to_owned());
            }
            Err(_) => return Ok("whether objects are locked is unknown".to_owned()),
        };
        let Some(lock) =
            output.object_lock_configuration().filter(|lock| lock.object_lock_enabled().is_some())
        else {
            return Ok("objects are not locked".to_owned());
        };
        // A bucket with lock takes no object without a checksum.
        self.checksum.store(true, Relaxed);
        let retention = lock.rule().and_then(|rule| rule.default_retention());
        Ok(match retention {
            Some(retention) => {
                let mode = retention.mode().map_or("an unnamed", |mode| mode.as_str());
                let days = retention.days().map(|days| format!("{days} days"));
                let time = days.or_else(|| retention.years().map(|years| format!("{years} years")));
                format!(
                    "objects are locked for {} in {mode} mode",
                    time.unwrap_or("an unnamed time".to_owned())
                )
            }
            None => "objects can be locked, but none is by default".to_owned(),
        })
    }
}
