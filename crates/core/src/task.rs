//! The door to concurrency: tasks end with their owner, threads have names.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use crate::{Error, Result};

/// A spawned task that is aborted when its handle is dropped. Await it for its result.
#[derive(Debug)]
pub struct Task<T>(tokio::task::JoinHandle<T>);

impl<T> Task<T> {
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
    pub fn abort(&self) {
        self.0.abort();
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T>;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        Pin::new(&mut self.0)
            .poll(context)
            .map(|joined| joined.map_err(|cause| Error::bug("a task ended early").because(cause)))
    }
}

#[allow(clippy::disallowed_methods, reason = "this is the door")]
pub fn spawn<F>(future: F) -> Task<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    Task(tokio::task::spawn(future))
}

/// Runs `work` on the blocking pool: file system calls, never the pipeline's own steps.
#[allow(clippy::disallowed_methods, reason = "this is the door")]
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|cause| Error::bug("a blocking step panicked").because(cause))
}

/// A named thread of our own, for CPU work.
pub fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map_err(|cause| Error::retry(format!("thread {name} could not be started")).because(cause))
}
