//! Deterministic simulation of the real writer: one thread, paused time, seeded random, a store and a schedule
//! that are as bad as they may be. After each run a restore holds what was settled, byte for byte.
//!
//! `HOLDFAST_SEEDS=20000` (or `500..20000`) runs more seeds, `HOLDFAST_SEED=17` runs one and prints what happened.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod clocks;
mod damage;
mod faulty;
mod named;
mod plain;
mod restore;
mod seeds;
mod tidy;
mod world;

/// Runs a simulation on a runtime of its own, whose time passes only when nothing else can.
pub fn simulate<F: Future>(simulation: F) -> F::Output {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(simulation)
}
