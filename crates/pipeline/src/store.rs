//! The sink as a writer uses it: patient, and sure of what became of a create.
//!
//! Invariant: a name is created with the same bytes however often it is sent. Errors that a person must mend
//! (rights, credentials) are waited for as well: the source keeps what is not settled, and the gauges say
//! what is wrong.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use holdfast_core::{
    Act, Clock, Error, Instant, Random, Result, Sink, Timestamp,
    sink::{Body, Capabilities, Created, Page, Range, create_same},
};
use holdfast_repo::{
    chain::Access,
    object::{Front, OpenFront, SealedObject},
};

use crate::gauges::Gauges;

const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Waits for the store, whatever it says, unless the call itself is wrong.
struct Patient {
    inner: Arc<dyn Sink>,
    clock: Clock,
    random: Random,
    gauges: Arc<Gauges>,
}

/// `sink`, made patient.
pub(crate) fn patient(
    sink: Arc<dyn Sink>,
    clock: Clock,
    random: Random,
    gauges: Arc<Gauges>,
) -> Arc<dyn Sink> {
    Arc::new(Patient { inner: sink, clock, random, gauges })
}

impl Patient {
    async fn ask<T, F>(&self, what: &str, ask: impl Fn() -> F + Send + Sync) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        let mut pause = PAUSE;
        loop {
            match ask().await {
                Ok(answer) => {
                    self.gauges.store_answered();
                    return Ok(answer);
                }
                Err(error) if error.is_passing() || error.act() == Act::Configure => {
                    tracing::warn!(what, error = error.chain(), "the store did not do it; asking again");
                    self.gauges.store_failed(error.chain());
                }
                Err(error) => return Err(error),
            }
            let jitter = self.random.below(u64::try_from(pause.as_micros()).unwrap_or(u64::MAX));
            self.clock.sleep(pause / 2 + Duration::from_micros(jitter) / 2).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

#[async_trait]
impl Sink for Patient {
    async fn capabilities(&self) -> Result<Capabilities> {
        self.ask("capabilities", || self.inner.capabilities()).await
    }
    async fn create(&self, name: &str, body: Body) -> Result<Created> {
        self.ask(name, || self.inner.create(name, body.clone())).await
    }
    async fn read(&self, name: &str, range: Range) -> Result<Option<Bytes>> {
        self.ask(name, || self.inner.read(name, range)).await
    }
    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        self.ask(prefix, || self.inner.list(prefix, after, limit)).await
    }
    /// Not patient: removal is tidying, and may not be allowed to us.
    async fn remove(&self, names: &[String]) -> Result<()> {
        self.inner.remove(names).await
    }
    fn address(&self) -> String {
        self.inner.address()
    }
    fn clock(&self) -> Option<(Instant, Timestamp)> {
        self.inner.clock()
    }
}

/// How the create of a log object ended.
#[derive(Debug)]
pub(crate) enum Put {
    Stored,
    /// Another writer's object, or an END, stands under the name.
    Taken(Box<OpenFront>),
}

/// Creates an object that only we can have named: a second create of ours may find the first.
///
/// # Errors
/// `Bug` when other bytes stand there.
pub(crate) async fn create_ours(sink: &dyn Sink, name: &str, body: &Body) -> Result<()> {
    if create_same(sink, name, body).await? {
        Ok(())
    } else {
        Err(Error::bug(format!("{name} was to be written, but holds other bytes")))
    }
}

/// Creates a log object: success, or what stands there instead.
pub(crate) async fn put(access: &Access, object: &SealedObject) -> Result<Put> {
    let name = access.stream.log(object.id.epoch, object.id.number);
    loop {
        if access.sink.create(&name, object.body.clone()).await? == Created::New {
            return Ok(Put::Stored);
        }
        // Taken, perhaps by an earlier attempt of ours.
        if let Some(found) = access.front(object.id.epoch, object.id.number).await? {
            let ours = found.digest == object.digest;
            return Ok(if ours { Put::Stored } else { Put::Taken(Box::new(found)) });
        }
    }
}

/// What stands where our object should be, as a reason to stop.
pub(crate) fn fence(found: &OpenFront) -> Error {
    let name = found.prelude.id;
    match &found.front {
        Front::End(end) => {
            Error::fenced(format!("{name} is the END that epoch {} wrote: it took the stream over", end.by))
        }
        Front::Data(_) => Error::fenced(format!("{name} holds an object of another writer")),
    }
}
