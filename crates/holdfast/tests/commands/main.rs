//! The commands as people type them: the real binary over a repository in a folder.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod identity;
mod mistakes;
mod outage;
mod site;
mod sources;
