//! CPU threads for sealing. Async code reaches them only by `try_send` under a permit, and gets its answer by
//! oneshot: a full queue can never block the runtime.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use crossbeam_channel::Sender;
use holdfast_core::{Error, Result, task};
use tokio::sync::{Semaphore, oneshot};

type Job = Box<dyn FnOnce() + Send>;

/// Shared by all pipelines of a process. The threads end with the last clone.
#[derive(Clone)]
pub struct Pool {
    threads: Option<Threads>,
}

#[derive(Clone)]
struct Threads {
    jobs: Sender<Job>,
    permits: Arc<Semaphore>,
}

impl Pool {
    /// Runs each job where it is awaited: for simulations.
    pub fn inline() -> Self {
        Self { threads: None }
    }

    pub fn threads(count: usize) -> Result<Self> {
        let count = count.max(1);
        let queue = count * 4;
        let (jobs, take) = crossbeam_channel::bounded::<Job>(queue);
        for number in 0..count {
            let take = take.clone();
            task::thread(&format!("seal-{number}"), move || take.iter().for_each(|job| job()))?;
        }
        Ok(Self { threads: Some(Threads { jobs, permits: Arc::new(Semaphore::new(queue)) }) })
    }

    /// # Errors
    /// `Bug` when the work panicked.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let Some(threads) = &self.threads else { return Ok(work()) };
        let closed = || Error::bug("the sealing threads have ended");
        let permit = threads.permits.clone().acquire_owned().await.map_err(|_| closed())?;
        let (answer, asked) = oneshot::channel();
        let job = Box::new(move || {
            // A panic ends this job, not the thread that others share.
            if let Ok(done) = catch_unwind(AssertUnwindSafe(work)) {
                let _ = answer.send(done);
            }
            drop(permit);
        });
        threads.jobs.try_send(job).map_err(|_| closed())?;
        asked.await.map_err(|_| Error::bug("a sealing step panicked"))
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use holdfast_core::Act;

    use super::*;

    #[tokio::test]
    async fn more_jobs_than_the_queue_holds_all_end() {
        let pool = Pool::threads(2).unwrap();
        let answers = join_all((0..200u64).map(|n| pool.run(move || n * n))).await;
        let sum: u64 = answers.into_iter().map(|n| n.unwrap()).sum();
        assert_eq!(sum, (0..200u64).map(|n| n * n).sum::<u64>());
    }

    #[tokio::test]
    async fn a_panic_ends_one_job_and_no_thread() {
        let pool = Pool::threads(1).unwrap();
        let error = pool.run(|| -> u8 { panic!("on purpose") }).await.unwrap_err();
        assert_eq!(error.act(), Act::Bug);
        assert_eq!(pool.run(|| 7).await.unwrap(), 7);
    }
}
