//! The pulled half: log, notes, gaps and finished base backups, in stream order.
//!
//! Invariants: `next` keeps all it knows in `self`, so a dropped call loses nothing; a base backup is yielded
//! only once the log up to its end was.

use std::{collections::VecDeque, future::Future, pin::Pin, sync::Arc};

use async_trait::async_trait;
use holdfast_core::{
    Content, Error, Finished, Follower, Instant, Item, Place, Result, State, Step, Timestamp,
};

use super::{
    Shared,
    connect::{Connected, connect},
    cutter::{Cut, Cutter},
    link::{Event, Link},
    server::Facts,
};
use crate::{cursor::Position, settings::Ack, wal::Lsn};

type Switching = Pin<Box<dyn Future<Output = Result<Connected>> + Send>>;

enum Stage {
    Streaming(Link),
    /// The timeline ended; the stream goes on along the next one.
    Switching(Switching),
    Over(String),
}

pub(super) struct PostgresFollower {
    shared: Arc<Shared>,
    state: Arc<dyn State>,
    stage: Stage,
    cutter: Cutter,
    ready: VecDeque<Step>,
    /// Base backups that wait for the log up to their end.
    finished: VecDeque<Finished>,
    /// Where the server was when we began; `None` once said so.
    catching_up: Option<(u32, Lsn)>,
    /// The server is a standby: what its primary holds beyond it nobody knows, so nothing is vouched for.
    standby: bool,
}

impl PostgresFollower {
    pub(super) fn begin(
        shared: Arc<Shared>,
        connected: Connected,
        content: Arc<dyn Content>,
        state: Arc<dyn State>,
    ) -> Result<Self> {
        let Connected { facts, link, cutter, items, cuts, gap } = connected;
        let mut follower = Self {
            shared,
            state: state.clone(),
            stage: Stage::Over(String::new()),
            cutter,
            ready: VecDeque::new(),
            finished: VecDeque::new(),
            catching_up: Some((facts.timeline, facts.position)),
            standby: facts.standby,
        };
        follower.stream(link, &facts, items, cuts)?;
        if gap {
            follower.shared.bases.demand();
        }
        follower.shared.bases.run(content, state);
        Ok(follower)
    }

    /// Goes on along a new connection.
    fn adopt(&mut self, connected: Connected) -> Result<()> {
        let Connected { facts, link, cutter, items, cuts, gap } = connected;
        self.cutter = cutter;
        if gap {
            self.shared.bases.demand();
        }
        self.stream(link, &facts, items, cuts)
    }

    fn stream(
        &mut self,
        link: Link,
        facts: &Facts,
        items: Vec<(Item, Position)>,
        cuts: Vec<Cut>,
    ) -> Result<()> {
        self.shared.set_link(Some(link.state.clone()));
        self.shared.health.change(|health| health.connections += 1);
        self.shared.watch_slot(&facts.host);
        self.standby = facts.standby;
        for (item, position) in items {
            self.ready.push_back(Step { item, cursor: position.encode()?, vouched: None, waits: false });
        }
        self.stage = Stage::Streaming(link);
        self.take(cuts)
    }

    /// Makes steps of cuts; the newest one carries what is vouched for.
    fn take(&mut self, cuts: Vec<Cut>) -> Result<()> {
        if let Some((at, why)) = self.cutter.take_damage() {
            tracing::warn!(%at, "log without meaning to us: {why}. It is kept as it is; commits in it are no restore points");
        }
        let remote = self.waits();
        let last = cuts.len().saturating_sub(1);
        for (index, cut) in cuts.into_iter().enumerate() {
            let Cut { span, bytes, whole, marks, notes, after } = cut;
            let cursor = after.encode()?;
            let (vouched, hurried) = if index == last { self.news() } else { (None, false) };
            let item = Item::Log { span, bytes, whole, marks };
            self.ready.push_back(Step { item, cursor: cursor.clone(), vouched, waits: remote || hurried });
            for (place, body) in notes {
                let item = body.note(place, self.shared.clock.wall())?;
                self.ready.push_back(Step { item, cursor: cursor.clone(), vouched: None, waits: false });
            }
        }
        Ok(())
    }

    fn waits(&self) -> bool {
        let counted_on = matches!(&self.stage, Stage::Streaming(link) if link.state.counted_on());
        counted_on || self.shared.settings.ack == Ack::Remote
    }

    /// What the link learned about all that was received.
    fn news(&self) -> (Option<(Instant, Timestamp)>, bool) {
        let Stage::Streaming(link) = &self.stage else { return (None, false) };
        let received = self.cutter.received();
        let vouched = link.state.vouched(received).filter(|_| !self.standby);
        let vouched = vouched.map(|vouch| (vouch.instant, vouch.time));
        (vouched, link.state.hurried(received))
    }

    /// A step without log, when there is something to say.
    fn quiet(&mut self) -> Result<()> {
        let (vouched, waits) = self.news();
        if vouched.is_some() || waits {
            let cursor = self.cutter.position().encode()?;
            self.ready.push_back(Step { item: Item::Quiet, cursor, vouched, waits });
        }
        Ok(())
    }

    fn on_event(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Wal { start, bytes } => {
                let mut cuts = Vec::new();
                self.cutter.receive(start, bytes, &mut cuts)?;
                self.take(cuts)
            }
            Event::Wake => self.quiet(),
            Event::TimelineEnd { next, switch } => {
                let timeline = self.cutter.timeline();
                tracing::info!(timeline, next, %switch, "the server's timeline changed");
                if let Some(cut) = self.cutter.switch(next, switch)? {
                    self.take(vec![cut])?;
                }
                self.shared.set_link(None);
                let (shared, state, position) =
                    (self.shared.clone(), self.state.clone(), self.cutter.position());
                self.stage = Stage::Switching(Box::pin(async move {
                    connect(&shared, Some(position), &state.catalog()).await
                }));
                Ok(())
            }
            // The next stream finds out what is missing and records the gap.
            Event::Removed(cause) => Err(Error::retry(
                "the server removed log before it was sent: the stream is opened again and records a gap",
            )
            .because(cause)),
            Event::Over(cause) => Err(cause),
        }
    }

    /// The next base backup whose end the stream has reached.
    fn due(&mut self) -> Result<()> {
        self.finished.extend(self.shared.bases.take_finished());
        let reached = |place: &Place| {
            let timeline = u64::from(self.cutter.timeline());
            place.branch.0 < timeline || place.branch.0 == timeline && place.position <= self.cutter.at().0
        };
        while self.finished.front().is_some_and(|one| reached(&one.checkpoint.serves)) {
            if let Some(one) = self.finished.pop_front() {
                let cursor = self.cutter.position().encode()?;
                self.ready.push_back(Step { item: Item::Finished(one), cursor, vouched: None, waits: true });
            }
        }
        Ok(())
    }

    /// Says once that all is in the stream that the server held when we began, with a base backup under it.
    fn caught_up(&mut self) -> Result<()> {
        let Some((timeline, lsn)) = self.catching_up else { return Ok(()) };
        let here = (self.cutter.timeline(), self.cutter.at());
        if here >= (timeline, lsn) && self.finished.is_empty() && self.shared.bases.is_idle() {
            self.catching_up = None;
            let cursor = self.cutter.position().encode()?;
            self.ready.push_back(Step { item: Item::CaughtUp, cursor, vouched: None, waits: false });
        }
        Ok(())
    }

    /// Waits for one thing to happen and takes it in.
    async fn happen(&mut self) -> Result<()> {
        match &mut self.stage {
            Stage::Over(why) => Err(Error::retry(why.clone())),
            Stage::Switching(switching) => {
                let connected = switching.as_mut().await?;
                self.adopt(connected)
            }
            Stage::Streaming(link) => {
                tokio::select! {
                    biased;
                    event = link.next() => self.on_event(event),
                    () = self.shared.bases.changed() => Ok(()),
                }
            }
        }
    }
}

#[async_trait]
impl Follower for PostgresFollower {
    async fn next(&mut self) -> Result<Step> {
        loop {
            if let Some(step) = self.ready.pop_front() {
                return Ok(step);
            }
            self.due()?;
            self.caught_up()?;
            if !self.ready.is_empty() {
                continue;
            }
            if let Err(cause) = self.happen().await {
                self.shared.set_link(None);
                self.stage = Stage::Over("the stream broke earlier: it must be opened again".to_owned());
                return Err(cause);
            }
        }
    }
}

impl Drop for PostgresFollower {
    fn drop(&mut self) {
        if let Stage::Streaming(link) = &self.stage {
            self.shared.forget_link(&link.state);
        }
    }
}
