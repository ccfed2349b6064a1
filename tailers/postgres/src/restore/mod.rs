//! Brings a cluster back: which moment (`resolve` over `timelines`, `search` and `boundary`), onto which
//! folder (`plan` over `target` and `space`), the files themselves (`apply` over `files`, `journal`, `control` and
//! `recovery`), the WAL that Postgres asks for while it recovers (`wal_fetch`), and proof that it arrived where it
//! was promised (`start_check`).
//!
//! Knows a repository only as core's [`View`](holdfast_core::View).

use async_trait::async_trait;
use holdfast_core::{Moment, Plan, Restorer, Result, View, Wish};

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

pub use plan::PostgresPlan;
pub use prefetch::{OpenView, Patience, serve};
pub use resolve::Choice;
pub use session::Session;
pub use target::{Action, OWN_FOLDER, Owner, Target, command_word};
pub use timelines::TimelineChoice;

/// Brings a Postgres cluster back into a data folder.
#[derive(Clone, Debug)]
pub struct PostgresRestorer {
    pub target: Target,
    pub choice: Choice,
    /// A standby without a target: it goes on with whatever the repository gets later.
    pub follows: bool,
}

#[async_trait]
impl Restorer for PostgresRestorer {
    async fn resolve(&self, wish: &Wish, view: &dyn View) -> Result<Moment> {
        resolve::resolve(wish, self.choice, view).await
    }

    async fn plan(&self, moment: &Moment, view: &dyn View) -> Result<Box<dyn Plan>> {
        let follows = self.follows && self.target.standby;
        Ok(Box::new(PostgresPlan::new(moment, &self.target, follows, view).await?))
    }
}
