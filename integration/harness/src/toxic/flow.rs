//! A body on its way: counted, and held back to a bandwidth.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

/// A share of one line for all bodies: each frame books its time on it.
#[derive(Default)]
pub struct Bandwidth(Mutex<Booked>);

#[derive(Default)]
struct Booked {
    bytes_per_second: Option<u64>,
    until: Option<Instant>,
}

impl Bandwidth {
    pub fn set(&self, bytes_per_second: Option<u64>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Booked { bytes_per_second, until: None };
    }

    /// When a frame of `size` bytes has passed; `None`: at once.
    fn book(&self, size: usize) -> Option<Instant> {
        let mut booked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rate = booked.bytes_per_second?.max(1);
        let now = Instant::now();
        let start = booked.until.map_or(now, |until| until.max(now));
        let until = start + Duration::from_secs_f64(size as f64 / rate as f64);
        booked.until = Some(until);
        Some(until)
    }
}

/// Either a body that passes through, or a whole one of ours.
pub enum Flow {
    Through {
        body: Incoming,
        bandwidth: Arc<Bandwidth>,
        count: Arc<AtomicU64>,
        held: Option<(Pin<Box<Sleep>>, Frame<Bytes>)>,
    },
    Whole(Option<Bytes>),
}

impl Flow {
    pub fn through(body: Incoming, bandwidth: Arc<Bandwidth>, count: Arc<AtomicU64>) -> Self {
        Self::Through { body, bandwidth, count, held: None }
    }

    pub fn whole(bytes: Bytes) -> Self {
        Self::Whole(Some(bytes))
    }
}

impl Body for Flow {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Through { body, bandwidth, count, held } => {
                if held.is_none() {
                    let frame = match ready!(Pin::new(body).poll_frame(context)) {
                        Some(Ok(frame)) => frame,
                        other => return Poll::Ready(other),
                    };
                    let size = frame.data_ref().map_or(0, Bytes::len);
                    count.fetch_add(size as u64, Ordering::Relaxed);
                    match bandwidth.book(size) {
                        None => return Poll::Ready(Some(Ok(frame))),
                        Some(until) => *held = Some((Box::pin(tokio::time::sleep_until(until)), frame)),
                    }
                }
                if let Some((sleep, _)) = held {
                    ready!(sleep.as_mut().poll(context));
                }
                Poll::Ready(held.take().map(|(_, frame)| Ok(frame)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Through { body, held, .. } => held.is_none() && body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Through { body, held, .. } => {
                let waiting =
                    held.as_ref().and_then(|(_, frame)| frame.data_ref()).map_or(0, |data| data.len() as u64);
                match body.size_hint().exact() {
                    Some(rest) => SizeHint::with_exact(rest + waiting),
                    None => SizeHint::default(),
                }
            }
        }
    }
}
