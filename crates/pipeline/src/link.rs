//! The connection to the source: opened from the last cursor of the stream, opened again after passing
//! trouble, let go of while the store is out of sight.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use holdfast_core::{Content, Cursor, Follower, Instant, Result, Settler, State, Step};

use crate::parts::Tools;

const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// A connection that held so long starts the pauses anew.
const SOUND: Duration = Duration::from_secs(30);
/// Good-bye takes at most so long.
const CLOSE: Duration = Duration::from_secs(5);

type Opened = (Box<dyn Follower>, Box<dyn Settler>);

pub(crate) struct Link {
    tools: Tools,
    content: Arc<dyn Content>,
    table: Arc<dyn State>,
    state: Standing,
    pause: Duration,
    opened: Option<Instant>,
}

enum Standing {
    /// Opens at this instant.
    Closed(Instant),
    /// Stays closed until it is told to open.
    Parked,
    Opening(BoxFuture<'static, Result<Opened>>),
    /// The settler is away while it settles.
    Open {
        follower: Box<dyn Follower>,
        settler: Option<Box<dyn Settler>>,
    },
}

impl Link {
    pub fn new(tools: Tools, content: Arc<dyn Content>, table: Arc<dyn State>) -> Self {
        let now = tools.clock.now();
        Self { tools, content, table, state: Standing::Closed(now), pause: PAUSE, opened: None }
    }

    pub fn is_parked(&self) -> bool {
        matches!(self.state, Standing::Parked)
    }
    /// Takes the settler for one settle; `None` while the source is not connected, or while it is away.
    pub fn take_settler(&mut self) -> Option<Box<dyn Settler>> {
        match &mut self.state {
            Standing::Open { settler, .. } => settler.take(),
            _ => None,
        }
    }
    pub fn has_settler(&self) -> bool {
        matches!(&self.state, Standing::Open { settler: Some(_), .. })
    }
    /// Brings the settler back. One of an older connection is dropped.
    pub fn return_settler(&mut self, settler: Box<dyn Settler>) {
        if let Standing::Open { settler: slot @ None, .. } = &mut self.state {
            *slot = Some(settler);
        }
    }

    /// The next step of the stream; opens first where needed. Cancel-safe. Passing errors are dealt with here.
    ///
    /// # Errors
    /// What a person must look at.
    pub async fn next(&mut self, cursor: Option<&Cursor>) -> Result<Step> {
        loop {
            match &mut self.state {
                Standing::Parked => return std::future::pending().await,
                Standing::Closed(at) => {
                    let at = *at;
                    self.tools.clock.sleep_until(at).await;
                    let (tailer, cursor) = (self.tools.tailer.clone(), cursor.cloned());
                    let (content, table) = (self.content.clone(), self.table.clone());
                    let opening = Box::pin(async move { tailer.open(cursor, content, table).await });
                    self.state = Standing::Opening(opening);
                }
                Standing::Opening(opening) => match opening.await {
                    Ok((follower, settler)) => {
                        self.opened = Some(self.tools.clock.now());
                        self.state = Standing::Open { follower, settler: Some(settler) };
                    }
                    Err(error) => self.failed(error)?,
                },
                Standing::Open { follower, .. } => match follower.next().await {
                    Ok(step) => {
                        self.tools.gauges.source(None);
                        return Ok(step);
                    }
                    Err(error) => self.failed(error)?,
                },
            }
        }
    }

    fn failed(&mut self, error: holdfast_core::Error) -> Result<()> {
        self.state = Standing::Closed(self.tools.clock.now());
        if !error.is_passing() {
            return Err(error);
        }
        tracing::warn!(error = error.chain(), "the source is out of sight; opening it again");
        self.tools.gauges.source(Some(error.chain()));
        let now = self.tools.clock.now();
        if self.opened.take().is_some_and(|opened| now.saturating_duration_since(opened) >= SOUND) {
            self.pause = PAUSE;
        }
        self.state = Standing::Closed(now + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Ok(())
    }

    /// Lets go of the connection, not of what the source keeps for us; stays closed until [`Self::unpark`].
    pub async fn close(&mut self) {
        let state = std::mem::replace(&mut self.state, Standing::Parked);
        // The follower holds the connection that the good-bye goes over.
        let Standing::Open { follower: _follower, settler } = state else { return };
        if let Some(settler) = settler
            && let Some(Err(error)) = self.tools.clock.timeout(CLOSE, settler.close()).await
        {
            tracing::info!(error = error.chain(), "the source did not hear our good-bye");
        }
    }
    /// Opens again, where it was let go of.
    pub fn unpark(&mut self) {
        if self.is_parked() {
            self.state = Standing::Closed(self.tools.clock.now());
        }
    }
}
