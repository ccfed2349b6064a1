//! A bulk job's own table: rows wait in memory until they are a layer's worth.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use holdfast_core::{
    Checkpoint, Clock, Error, Finished, Instant, PackId, Place, Result, Row, Run, RunId, Timestamp,
};
use holdfast_repo::layer::RowBuffer;
use tokio::sync::{mpsc, oneshot};

use super::{Command, Live, ended, lock};

/// The stream names what is finished every minute, so that a restart sends none of it again; a long run more
/// rarely, so that its layers stay few.
const NAME_EVERY: Duration = Duration::from_secs(60);
const AGE_PART: u32 = 16;

pub(super) struct RunHandle {
    id: RunId,
    began: Timestamp,
    commands: mpsc::Sender<Command>,
    live: Arc<Mutex<Live>>,
    clock: Clock,
    started: Instant,
    cut: Instant,
    rows: RowBuffer,
    row_count: u64,
    bytes: u64,
    /// Packs from here on were begun by this run; older ones it only keeps.
    first_pack: PackId,
    sent: u64,
    /// A layer was begun and is not named yet: who gives that up has lost its rows.
    cutting: bool,
}

impl RunHandle {
    pub(super) fn new(
        id: RunId,
        began: Timestamp,
        commands: mpsc::Sender<Command>,
        live: Arc<Mutex<Live>>,
        clock: Clock,
        first_pack: PackId,
    ) -> Self {
        let started = clock.now();
        Self {
            id,
            began,
            commands,
            live,
            clock,
            started,
            cut: started,
            rows: RowBuffer::default(),
            row_count: 0,
            bytes: 0,
            first_pack,
            sent: 0,
            cutting: false,
        }
    }

    fn is_due(&self) -> bool {
        let now = self.clock.now();
        let every = NAME_EVERY.max(now.saturating_duration_since(self.started) / AGE_PART);
        !self.rows.is_empty() && (self.rows.is_full() || now >= self.cut + every)
    }

    /// Makes a layer of the rows, and has the stream name it. Not cancel-safe: a run of which a step was given up
    /// refuses to go on, since its table would miss rows.
    async fn cut(&mut self) -> Result<()> {
        if self.cutting {
            return Err(Error::bug("a step of this run was given up while its rows were written"));
        }
        if self.rows.is_empty() {
            return Ok(());
        }
        self.cutting = true;
        let rows = std::mem::take(&mut self.rows);
        self.cut = self.clock.now();
        let (done, made) = oneshot::channel();
        self.commands.send(Command::Layer { rows, done }).await.map_err(|_| ended())?;
        let layer = made.await.map_err(|_| ended())??;
        let mut live = lock(&self.live);
        if let Some(run) = live.runs.get_mut(&self.id) {
            self.sent += layer.objects.iter().map(|object| object.bytes).sum::<u64>();
            run.progress.layers.push(layer);
            run.changed = true;
        }
        self.cutting = false;
        Ok(())
    }
}

#[async_trait]
impl Run for RunHandle {
    fn id(&self) -> RunId {
        self.id
    }

    async fn row(&mut self, row: Row) -> Result<()> {
        self.row_count += 1;
        for held in &row.held {
            self.bytes += u64::from(held.extent.opened);
            if held.extent.pack >= self.first_pack {
                self.sent += u64::from(held.extent.length);
            }
        }
        self.rows.push(&row);
        if self.is_due() { self.cut().await } else { Ok(()) }
    }

    async fn finish(
        mut self: Box<Self>,
        begin: Place,
        serves: Place,
        ended_at: Timestamp,
        suspect: Option<String>,
        body: Bytes,
    ) -> Result<Finished> {
        self.cut().await?;
        let live = lock(&self.live);
        let run = live.runs.get(&self.id).ok_or_else(ended)?;
        Ok(Finished {
            checkpoint: Checkpoint {
                id: self.id,
                begin,
                serves,
                began: self.began,
                ended: ended_at,
                layers: run.progress.layers.clone(),
                rows: self.row_count,
                bytes: self.bytes,
                sent: self.sent,
                suspect,
                body,
            },
        })
    }
}

impl Drop for RunHandle {
    fn drop(&mut self) {
        lock(&self.live).runs.remove(&self.id);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::disallowed_methods)]
mod tests {
    use super::*;
    use crate::content::LiveRun;

    #[tokio::test(start_paused = true)]
    async fn a_run_of_which_a_step_was_given_up_does_not_finish() {
        let clock = Clock::system();
        let (commands, mut inlet) = mpsc::channel(4);
        let (id, began) = (RunId([1; 8]), Timestamp(1));
        let live = Arc::new(Mutex::new(Live::default()));
        let progress =
            holdfast_core::RunProgress { id, began, layers: Vec::new(), body: Bytes::from_static(b"") };
        lock(&live).runs.insert(id, LiveRun { progress, changed: false });
        let first = PackId { epoch: holdfast_core::Epoch::numbered(1), number: 0 };
        let mut run = Box::new(RunHandle::new(id, began, commands, live, clock.clone(), first));
        let row = Row { key: Bytes::from_static(b"k"), value: Bytes::new(), held: Vec::new() };
        clock.sleep(NAME_EVERY * 2).await;
        // Its layer is never made; the caller gives up waiting.
        assert!(clock.timeout(Duration::from_secs(5), run.row(row)).await.is_none());
        assert!(matches!(inlet.recv().await, Some(Command::Layer { .. })));
        let place = Place { branch: holdfast_core::Branch(1), position: 1 };
        let error = run.finish(place, place, Timestamp(2), None, Bytes::new()).await.unwrap_err();
        assert!(error.to_string().contains("given up"), "{error}");
    }
}
