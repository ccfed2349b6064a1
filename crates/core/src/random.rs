//! The door to randomness. Keys, salts and ids come from the operating system; simulations are seeded.

use std::sync::{Arc, Mutex};

/// Random bytes. Cloning shares the generator.
#[derive(Clone, Debug)]
pub struct Random {
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    System,
    /// SplitMix64: for simulations only, never for keys that protect anything.
    Seeded(Arc<Mutex<u64>>),
}

impl Random {
    pub fn system() -> Self {
        Self { source: Source::System }
    }
    pub fn seeded(seed: u64) -> Self {
        Self { source: Source::Seeded(Arc::new(Mutex::new(seed))) }
    }
    /// Fills `out`. Panics when the operating system gives no randomness: sealing could not go on safely.
    #[allow(clippy::disallowed_methods, clippy::expect_used, reason = "this is the door")]
    pub fn fill(&self, out: &mut [u8]) {
        match &self.source {
            Source::System => getrandom::fill(out).expect("the operating system gives no random bytes"),
            Source::Seeded(state) => {
                let mut state = state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                for chunk in out.chunks_mut(8) {
                    let word = splitmix(&mut state).to_le_bytes();
                    chunk.copy_from_slice(&word[..chunk.len()]);
                }
            }
        }
    }
    pub fn array<const N: usize>(&self) -> [u8; N] {
        let mut out = [0; N];
        self.fill(&mut out);
        out
    }
    pub fn u64(&self) -> u64 {
        u64::from_le_bytes(self.array())
    }
    /// A number in `0..bound` (0 when `bound` is 0); the bias of 2^-64 does not matter for jitter and choice.
    pub fn below(&self, bound: u64) -> u64 {
        ((u128::from(self.u64()) * u128::from(bound)) >> 64) as u64
    }
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
