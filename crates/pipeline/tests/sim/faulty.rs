//! A future that is dropped at its n-th poll, or not polled for hours.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use holdfast_core::Clock;
use tokio::sync::watch;

/// A future that is not polled while it is paused.
pub struct Pausable<F> {
    inner: Pin<Box<F>>,
    paused: watch::Receiver<bool>,
    /// Wakes us at the next change.
    waiting: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

pub struct Pause(watch::Sender<bool>);

impl Pause {
    pub fn set(&self, paused: bool) {
        self.0.send_replace(paused);
    }
}

impl<F: Future> Pausable<F> {
    pub fn new(inner: F) -> (Self, Pause) {
        let (sender, paused) = watch::channel(false);
        (Self { inner: Box::pin(inner), paused, waiting: None }, Pause(sender))
    }
}

impl<F: Future> Future for Pausable<F> {
    type Output = F::Output;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        if *self.paused.borrow() {
            let mut paused = self.paused.clone();
            let mut waiting: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
                let _ = paused.wait_for(|paused| !paused).await;
            });
            if waiting.as_mut().poll(context).is_pending() {
                self.waiting = Some(waiting);
                return Poll::Pending;
            }
        }
        self.waiting = None;
        self.inner.as_mut().poll(context)
    }
}

pub struct Faulty<F> {
    /// `None` once it crashed.
    inner: Option<Pin<Box<F>>>,
    polls: u64,
    crash_at: Option<u64>,
    freeze: Option<(u64, Duration)>,
    frozen: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    clock: Clock,
}

impl<F: Future> Faulty<F> {
    pub fn new(inner: F, clock: Clock) -> Self {
        Self { inner: Some(Box::pin(inner)), polls: 0, crash_at: None, freeze: None, frozen: None, clock }
    }
    pub fn crash_at(mut self, poll: u64) -> Self {
        self.crash_at = Some(poll);
        self
    }
    pub fn freeze_at(mut self, poll: u64, duration: Duration) -> Self {
        self.freeze = Some((poll, duration));
        self
    }
}

impl<F: Future> Future for Faulty<F> {
    /// `None`: it crashed.
    type Output = Option<F::Output>;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(frozen) = &mut self.frozen {
            if frozen.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.frozen = None;
        }
        self.polls += 1;
        if self.crash_at.is_some_and(|at| self.polls >= at) {
            self.inner = None;
            return Poll::Ready(None);
        }
        let polls = self.polls;
        if let Some((_, duration)) = self.freeze.take_if(|(at, _)| polls >= *at) {
            let clock = self.clock.clone();
            let mut sleep: Pin<Box<dyn Future<Output = ()> + Send>> =
                Box::pin(async move { clock.sleep(duration).await });
            if sleep.as_mut().poll(context).is_pending() {
                self.frozen = Some(sleep);
                return Poll::Pending;
            }
        }
        match &mut self.inner {
            Some(inner) => inner.as_mut().poll(context).map(Some),
            None => Poll::Ready(None),
        }
    }
}
