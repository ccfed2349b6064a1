//! Looks, beside the stream, for what asks a writer to roll to a new epoch: a ring with other recipients, and
//! a claim above ours that comes to nothing and would hold merging up for ever (R6). What lies there and is no name
//! of ours ends no writer: the next look may see more.

use std::time::Duration;

use futures::future::BoxFuture;
use holdfast_core::{Act, Epoch, Error, Instant, Result, SourceId};
use holdfast_repo::{chain::Access, view::Repository};

const LOOK_EVERY: Duration = Duration::from_secs(300);
/// A claim above ours that does nothing for so long is answered with a new epoch.
const IDLE_CLAIM: Duration = Duration::from_secs(3600);

/// What a look brought.
#[derive(Default)]
pub(crate) struct Looked {
    above: Option<Epoch>,
    /// The epoch above has its number 0: somebody writes the stream.
    written: bool,
    ring: Option<u64>,
}

pub(crate) struct Lookout {
    repository: Repository,
    source: SourceId,
    access: Access,
    epoch: Epoch,
    create_only: bool,
    /// Generation of the ring whose recipients we seal to.
    ring: u64,
    at: Instant,
    work: Option<BoxFuture<'static, Result<Looked>>>,
    /// The claim above ours, and since when it is seen.
    above: Option<(Epoch, Instant)>,
}

impl Lookout {
    pub fn new(
        repository: Repository,
        access: Access,
        epoch: Epoch,
        create_only: bool,
        ring: u64,
        now: Instant,
    ) -> Self {
        let (source, at) = (access.stream.source, now + LOOK_EVERY);
        Self { repository, source, access, epoch, create_only, ring, at, work: None, above: None }
    }

    /// Looks at once.
    pub fn hurry(&mut self, now: Instant) {
        self.at = now;
    }

    /// When [`Self::tick`] is to be called again at the latest.
    pub fn wake(&self) -> Option<Instant> {
        self.work.is_none().then_some(self.at)
    }

    /// Begins to look where it is time.
    pub fn tick(&mut self, now: Instant) {
        if now < self.at || self.work.is_some() {
            return;
        }
        self.at = now + LOOK_EVERY;
        let (access, epoch) = (self.access.clone(), self.epoch);
        let (repository, source) = (self.repository.clone(), self.source);
        self.work = Some(Box::pin(async move {
            let look = async {
                let above = access.epochs_above(epoch).await?.last().copied();
                let written = match above {
                    Some(above) => access.front(above, 0).await?.is_some(),
                    None => false,
                };
                Ok::<_, Error>(Looked { above, written, ring: repository.source_generation(source).await? })
            };
            match look.await {
                Err(error) if error.act() == Act::Corrupt => {
                    tracing::warn!(error = error.chain(), "epochs and rings could not be looked at");
                    Ok(Looked::default())
                }
                looked => looked,
            }
        }));
    }

    /// Carries a look on; pending while there is none. Cancel-safe.
    pub async fn step(&mut self) -> Result<Looked> {
        match &mut self.work {
            Some(work) => {
                let done = work.await;
                self.work = None;
                done
            }
            None => std::future::pending().await,
        }
    }

    /// Why we should roll to a new epoch, if we should.
    ///
    /// # Errors
    /// `Fenced` by a successor that writes (its END may lie in a hole below what we stored, where a store lost an
    /// object), and by any epoch above ours where the store tells a fenced writer no other way.
    pub fn judge(&mut self, looked: Looked, now: Instant) -> Result<Option<String>> {
        if let Some(above) = looked.above.filter(|_| looked.written || !self.create_only) {
            return Err(overtaken(above));
        }
        if let Some(ring) = looked.ring.filter(|ring| *ring > self.ring) {
            return Ok(Some(format!("ring generation {ring} has other recipients")));
        }
        self.above = match (looked.above, self.above) {
            (Some(above), Some((known, since))) if above == known => Some((above, since)),
            (Some(above), _) => Some((above, now)),
            (None, _) => None,
        };
        let idle = self.above.filter(|(_, since)| now.saturating_duration_since(*since) >= IDLE_CLAIM);
        Ok(idle.map(|(above, _)| format!("epoch {above} was claimed above ours and does nothing")))
    }
}

/// What a writer above ours means.
pub(crate) fn overtaken(above: Epoch) -> Error {
    Error::fenced(format!("epoch {above} stands above ours: another writer took over"))
}
