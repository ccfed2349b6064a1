//! Real Postgres servers of every major that holdfast follows.

mod builds;
mod options;
mod server;
mod standby;
mod template;

pub use builds::{Major, apt_install, debian_bin};
pub use options::Options;
pub(crate) use server::free_port;
pub use server::{Server, Stop};
