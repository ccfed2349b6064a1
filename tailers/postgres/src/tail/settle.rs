//! Tells the server what it may forget. Never waits: the link's reporting task does the sending.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use holdfast_core::{Cursor, Result, Settler};

use super::Shared;
use crate::cursor::Position;

/// How long a good-bye may wait until the server has heard it.
const GOOD_BYE: Duration = Duration::from_secs(2);

pub(super) struct PostgresSettler {
    shared: Arc<Shared>,
}

impl PostgresSettler {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

#[async_trait]
impl Settler for PostgresSettler {
    async fn settle(&mut self, cursor: &Cursor) -> Result<()> {
        let position = Position::decode(cursor)?;
        self.shared.settle(position.timeline, position.lsn);
        Ok(())
    }

    /// The slot stays; the server only stops waiting for us.
    async fn close(self: Box<Self>) -> Result<()> {
        if let Some(link) = self.shared.link() {
            // A connection that is simply closed may take the last report with it: a server that is about to send
            // meets the closed end first and looks no further.
            self.shared.clock.timeout(GOOD_BYE, link.leave()).await;
            link.give_up("the stream was closed by us");
        }
        self.shared.bases.stop();
        self.shared.set_link(None);
        Ok(())
    }
}
