//! Bulk content: the half that tailers hold ([`Gate`], [`RunHandle`]) and the half that the writer drives
//! ([`Packer`]), joined by one bounded channel.
//!
//! Invariant (R1): a ticket gives its extent, and a layer its name, only once the object that holds it is
//! durable. Content has a budget of its own, so it never delays the stream.

mod packer;
mod run;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use holdfast_core::{
    Clock, Content, Epoch, Error, Extent, Layer, PackId, Random, Result, Run, RunId, RunProgress, Ticket,
    Timestamp,
};
use holdfast_repo::{layer::RowBuffer, pack::PIECE_MAX};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

pub(crate) use packer::{Packer, Tools};
use run::RunHandle;

/// Commands that wait for the writer; the bytes they carry are bounded by the budget.
const COMMANDS: usize = 64;
/// What a piece takes beside its bytes, even an empty one.
const PIECE_COST: usize = 256;

pub(crate) enum Command {
    Piece { bytes: Bytes, permit: OwnedSemaphorePermit, ticket: oneshot::Sender<Result<Extent>> },
    Flush,
    Layer { rows: RowBuffer, done: oneshot::Sender<Result<Layer>> },
}

/// Runs of this tenure that have not ended, as the stream shall name them.
#[derive(Default)]
pub(crate) struct Live {
    runs: BTreeMap<RunId, LiveRun>,
}

struct LiveRun {
    progress: RunProgress,
    changed: bool,
}

impl Live {
    /// Progress that the stream does not name yet.
    pub fn changed(&mut self) -> Vec<RunProgress> {
        let named = |run: &mut LiveRun| std::mem::take(&mut run.changed).then(|| run.progress.clone());
        self.runs.values_mut().filter_map(named).collect()
    }
    pub fn is_live(&self, id: RunId) -> bool {
        self.runs.contains_key(&id)
    }
}

/// What a tailer gets as its [`Content`]. Ends with its tenure: then every call is refused.
pub(crate) struct Gate {
    commands: mpsc::Sender<Command>,
    budget: Arc<Semaphore>,
    live: Arc<Mutex<Live>>,
    epoch: Epoch,
    /// Number of the pack that takes the next piece, or of one before it.
    packs: Arc<AtomicU64>,
    clock: Clock,
    random: Random,
}

/// Both halves for one tenure. `budget` in bytes.
pub(crate) fn gate(budget: u64, epoch: Epoch, clock: Clock, random: Random) -> (Arc<Gate>, Inlet) {
    let (commands, receiver) = mpsc::channel(COMMANDS);
    let permits = usize::try_from(budget).unwrap_or(usize::MAX).clamp(2 * PIECE_MAX, Semaphore::MAX_PERMITS);
    let live = Arc::new(Mutex::new(Live::default()));
    let packs = Arc::new(AtomicU64::new(0));
    let inlet =
        Inlet { commands: receiver, live: live.clone(), packs: packs.clone(), pack_bytes: permits / 3 };
    let gate =
        Gate { commands, budget: Arc::new(Semaphore::new(permits)), live, epoch, packs, clock, random };
    (Arc::new(gate), inlet)
}

/// What the writer needs of a gate.
pub(crate) struct Inlet {
    commands: mpsc::Receiver<Command>,
    pub live: Arc<Mutex<Live>>,
    packs: Arc<AtomicU64>,
    /// A pack of so many bytes closes: while it is stored, others must have room.
    pack_bytes: usize,
}

pub(crate) fn lock(live: &Mutex<Live>) -> MutexGuard<'_, Live> {
    live.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ended() -> Error {
    Error::fenced("the writer that took this content has ended")
}

#[async_trait]
impl Content for Gate {
    async fn put(&self, bytes: Bytes) -> Result<Ticket> {
        if bytes.len() > PIECE_MAX {
            return Err(Error::bug(format!("a piece of {} bytes is larger than {PIECE_MAX}", bytes.len())));
        }
        let cost = u32::try_from(bytes.len() + PIECE_COST).unwrap_or(u32::MAX);
        let permit = self.budget.clone().acquire_many_owned(cost).await.map_err(|_| ended())?;
        let (sender, ticket) = Ticket::new();
        let command = Command::Piece { bytes, permit, ticket: sender };
        self.commands.send(command).await.map_err(|_| ended())?;
        Ok(ticket)
    }

    async fn flush(&self) -> Result<()> {
        self.commands.send(Command::Flush).await.map_err(|_| ended())
    }

    async fn begin(&self, began: Timestamp, body: Bytes) -> Result<Box<dyn Run>> {
        let id = RunId(self.random.array());
        let progress = RunProgress { id, began, layers: Vec::new(), body };
        lock(&self.live).runs.insert(id, LiveRun { progress, changed: false });
        let first = PackId { epoch: self.epoch, number: self.packs.load(Relaxed) };
        let (commands, live) = (self.commands.clone(), self.live.clone());
        Ok(Box::new(RunHandle::new(id, began, commands, live, self.clock.clone(), first)))
    }
}
