//! What becomes of a source whose pipeline ended by an error: beside others it is begun again, after a pause that
//! doubles; alone it ends the process, which the service manager begins again.
//!
//! Invariant: whatever ends a pipeline, a panic too, is shown as [`Phase::Failed`](holdfast_pipeline::Phase).

use std::{sync::Arc, time::Duration};

use holdfast_core::{Act, Clock, Error, task::Task, text::show_duration};
use holdfast_pipeline::{Gauges, Outcome};
use tokio::sync::watch;

/// Before the first new try, and at most before any.
const PAUSE: Duration = Duration::from_secs(60);
const PAUSE_MAX: Duration = Duration::from_secs(3600);

pub struct Supervision {
    pub name: String,
    pub gauges: Arc<Gauges>,
    pub clock: Clock,
    pub stop: watch::Receiver<bool>,
    /// Other sources live in this process.
    pub others: bool,
}

impl Supervision {
    /// Begins until a pipeline ends in order, or fails for good. `begin` hears whether it is the first time.
    pub async fn carry(mut self, mut begin: impl FnMut(bool) -> Task<Outcome>) -> Outcome {
        let (mut pause, mut first) = (PAUSE, true);
        loop {
            let began = self.clock.now();
            let error = match begin(first).await {
                Ok(Outcome::Failed(error)) => error,
                Ok(outcome) => return outcome,
                Err(error) => error.during("the pipeline ended by a fault of ours"),
            };
            let sentence = error.chain();
            if !self.others || self.is_final(&error) {
                self.gauges.failed(sentence);
                return Outcome::Failed(error);
            }
            first = false;
            let now = self.clock.now();
            if now.saturating_duration_since(began) > PAUSE_MAX {
                pause = PAUSE;
            }
            let again = format!("{sentence}; it is begun again in {}", show_duration(pause));
            tracing::error!(source = self.name, error = again, "this source failed; the others go on");
            self.gauges.failed(again);
            tokio::select! {
                _ = self.stop.wait_for(|stop| *stop) => return Outcome::Failed(error),
                () = self.clock.sleep(pause) => {}
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Settings that never worked are read again by a restart only.
    fn is_final(&self, error: &Error) -> bool {
        error.act() == Act::Configure && self.gauges.figures(self.clock.now()).epoch.is_none()
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::{Timestamp, task};
    use holdfast_pipeline::Phase;

    use super::*;

    fn supervision(clock: &Clock, others: bool) -> (Supervision, watch::Sender<bool>) {
        let (stop, stopped) = watch::channel(false);
        let gauges = Arc::new(Gauges::new(clock.now()));
        let name = "a".to_owned();
        (Supervision { name, gauges, clock: clock.clone(), stop: stopped, others }, stop)
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_fails_beside_others_is_begun_again_ever_later() {
        let clock = Clock::set(Timestamp(0));
        let (supervision, _stop) = supervision(&clock, true);
        let gauges = supervision.gauges.clone();
        let began = clock.now();
        let mut starts = Vec::new();
        let outcome = supervision
            .carry(|first| {
                let now = clock.now();
                starts.push((now - began).as_secs() / 60);
                assert_eq!(first, starts.len() == 1);
                let nth = starts.len();
                let gauges = gauges.clone();
                task::spawn(async move {
                    if nth > 1 {
                        let figures = gauges.figures(now);
                        assert_eq!(figures.phase, Phase::Failed);
                        assert!(figures.sentence.contains("begun again in"), "{}", figures.sentence);
                    }
                    match nth {
                        1 => panic!("a fault of ours"),
                        10 => Outcome::Stopped,
                        _ => Outcome::Failed(Error::corrupt("damaged")),
                    }
                })
            })
            .await;
        assert!(matches!(outcome, Outcome::Stopped), "{outcome:?}");
        assert_eq!(starts, [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]);
    }

    #[tokio::test(start_paused = true)]
    async fn alone_or_with_settings_that_never_worked_it_ends() {
        let clock = Clock::set(Timestamp(0));
        for (others, act) in [(false, Act::Bug), (true, Act::Configure)] {
            let (supervision, _stop) = supervision(&clock, others);
            let gauges = supervision.gauges.clone();
            let mut starts = 0;
            let outcome = supervision
                .carry(|_| {
                    starts += 1;
                    task::spawn(async move {
                        match act {
                            Act::Bug => panic!("a fault of ours"),
                            _ => Outcome::Failed(Error::configure("no such role")),
                        }
                    })
                })
                .await;
            assert!(matches!(&outcome, Outcome::Failed(error) if error.act() == act), "{outcome:?}");
            assert_eq!((starts, gauges.figures(clock.now()).phase), (1, Phase::Failed));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_does_not_wait_for_the_next_try() {
        let clock = Clock::set(Timestamp(0));
        let (supervision, stop) = supervision(&clock, true);
        let began = clock.now();
        let fails = |_| task::spawn(async { Outcome::Failed(Error::corrupt("damaged")) });
        let ask = async {
            clock.sleep(Duration::from_secs(5)).await;
            stop.send_replace(true);
        };
        let (outcome, ()) = tokio::join!(supervision.carry(fails), ask);
        assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
        assert_eq!((clock.now() - began).as_secs(), 5);
    }
}
