//! Brings a cluster back: which moment (`resolve` over `timelines`, `search` and `boundary`), onto which
//! folder (`plan` over `target` and `space`), the files themselves (`apply` over `files`, `journal`, `control` and
//! `recovery`), the WAL that Postgres asks for while it recovers (`wal_fetch`), and proof that it arrived where it
//! was promised (`start_check`).
//!
//! Knows a repository only as core's [`View`](holdfast_core::View).

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use holdfast_core::{Moment, Plan, Restorer, Result, View, Wish};
use journal::Journal;

mod apply;
pub mod boundary;
mod control;
mod files;
mod journal;
mod plan;
pub mod prefetch;
mod recovery;
pub mod resolve;
pub mod search;
pub mod segment;
pub mod session;
mod space;
pub mod start_check;
pub mod target;
pub mod timelines;
pub mod wal_fetch;

#[cfg(test)]
mod resolve_tests;

pub use journal::is_finished;
pub use plan::PostgresPlan;
pub use prefetch::{OpenView, Patience, serve};
pub use resolve::Choice;
pub use session::Session;
pub use target::{Action, OWN_FOLDER, Owner, Target, command_word};
pub use timelines::TimelineChoice;

/// Brings a Postgres cluster back into a data folder.
#[derive(Debug)]
pub struct PostgresRestorer {
    pub target: Target,
    pub choice: Choice,
    /// A standby without a target: it goes on with whatever the repository gets later.
    pub follows: bool,
    /// The wish that was resolved last, for the journal.
    wish: Mutex<String>,
}

impl PostgresRestorer {
    pub fn new(target: Target, choice: Choice) -> Self {
        Self { target, choice, follows: false, wish: Mutex::default() }
    }
}

#[async_trait]
impl Restorer for PostgresRestorer {
    async fn resolve(&self, wish: &Wish, view: &dyn View) -> Result<Moment> {
        let text = format!("{wish:?} {:?}", self.choice);
        text.clone_into(&mut self.wish.lock().unwrap_or_else(PoisonError::into_inner));
        // What is newest moves; a restore that goes on does not.
        if let Some(begun) = Journal::peek(&self.target.data.join(OWN_FOLDER))?
            && begun.wish == text
            && matches!(wish, Wish::Latest | Wish::Immediate)
        {
            return Ok(begun.moment);
        }
        resolve::resolve(wish, self.choice, view).await
    }

    async fn plan(&self, moment: &Moment, view: &dyn View) -> Result<Box<dyn Plan>> {
        let follows = self.follows && self.target.standby;
        let wish = self.wish.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Box::new(PostgresPlan::new(moment, wish, &self.target, follows, view).await?))
    }
}
