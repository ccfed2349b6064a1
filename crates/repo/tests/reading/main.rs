//! Reading a repository: the chain of a stream, the view of a lineage, verification.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod author;
mod chain;
mod hold;
mod random;
mod verify;
mod view;
