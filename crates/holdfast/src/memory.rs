//! How much of the process's memory the pipelines may fill with what is on its way.

use holdfast_core::{Error, Result, text::show_size};
use holdfast_pipeline::Budget;

/// What [`Budget::default`] is made for. About 40 % of it are batches and packs in flight; the rest is what sealing,
/// connections and the allocator need.
const WHOLE: u64 = 256 << 20;
/// With less, a source could not hold the one pack that it fills and the one that it sends.
const LEAST: u64 = 64 << 20;

/// The budget of each source: of `memory`, or else of 256 MiB or a quarter of what the cgroup allows.
///
/// # Errors
/// `Configure` when `memory` is too little for so many sources.
pub fn budget(memory: Option<u64>, sources: u64) -> Result<Budget> {
    let allowed = match memory {
        Some(memory) if memory < LEAST.saturating_mul(sources) => {
            return Err(Error::configure(format!(
                "memory in [process] is {}, which is too little for the sources of this process ({sources}): each needs \
                 {}; give more, or let another process follow some of them",
                show_size(memory),
                show_size(LEAST)
            )));
        }
        Some(memory) => memory,
        None => cgroup_limit().map_or(WHOLE, |limit| (limit / 4).min(WHOLE)),
    };
    let whole = Budget::default();
    let part = |bytes: u64| {
        let part = u128::from(bytes) * u128::from(allowed) / u128::from(WHOLE);
        u64::try_from(part).unwrap_or(u64::MAX)
    };
    let all = Budget { stream: part(whole.stream), content: part(whole.content), merge: part(whole.merge) };
    Ok(all.share(sources))
}

fn cgroup_limit() -> Option<u64> {
    ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_honoured_or_refused() {
        assert_eq!(budget(Some(WHOLE), 1).unwrap(), Budget::default());
        let large = budget(Some(16 * WHOLE), 1).unwrap();
        assert_eq!(large.content, 16 * Budget::default().content);
        assert_eq!(budget(Some(16 * WHOLE), 4).unwrap().stream, 4 * Budget::default().stream);
        assert_eq!(budget(Some(1 << 50), 1).unwrap().stream, 48 << 42);
        let error = budget(Some(WHOLE / 2), 3).unwrap_err().to_string();
        assert!(error.contains("128 MiB") && error.contains("each needs 64 MiB"), "{error}");
        assert!(budget(None, 3).is_ok(), "nobody chose it");
    }
}
