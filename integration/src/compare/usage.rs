//! CPU time and memory, from /proc.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use holdfast_harness::{Server, process};

/// CPU time of all children of ours that have ended and were waited for, with theirs.
pub fn children_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let rest = stat.rfind(')').and_then(|at| stat.get(at + 1..)).unwrap_or_default();
    let ticks: u64 =
        rest.split_whitespace().skip(13).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// CPU time of a server so far: the postmaster, its children, and those that have ended.
pub fn server_time(server: &Server) -> Duration {
    let Some(pid) = server.pid() else { return Duration::ZERO };
    let family = process::children(pid).into_iter().chain([pid]);
    family.filter_map(process::cpu_time).sum()
}

/// Watches the largest resident memory of a command that ends by itself; `stop` ends the watch.
pub fn sample_memory(pid: u32) -> (Arc<AtomicU64>, tokio::task::AbortHandle) {
    let peak = Arc::new(AtomicU64::new(0));
    let seen = peak.clone();
    let task = tokio::spawn(async move {
        while let Some(bytes) = process::peak_memory(pid) {
            seen.fetch_max(bytes, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    (peak, task.abort_handle())
}
