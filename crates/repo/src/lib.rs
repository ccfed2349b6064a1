//! The repository's formats and keys: everything that is written to a sink, byte by byte (FORMAT.md), and how
//! it is read back. Pure and sync, except for the walk and the view that read from a sink.

pub mod catalog;
pub mod chain;
pub mod entry;
pub mod epoch;
#[doc(hidden)]
pub mod fuzzing;
pub mod hold;
pub mod keys;
pub mod layer;
mod marks;
pub mod merged;
pub mod names;
pub mod object;
pub mod pack;
pub mod record;
pub mod ring;
pub mod seal;
mod trailer;
pub mod verify;
pub mod view;
mod wire;
