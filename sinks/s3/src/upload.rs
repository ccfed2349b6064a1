//! How a body leaves: slices as they are, without a copy, each taken slice a sign of progress; and the look at
//! what a «200» really says.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll},
};

use aws_runtime::auth::PayloadSigningOverride;
use aws_sdk_s3::{
    config::{ConfigBag, Intercept, RuntimeComponents},
    primitives::SdkBody,
};
use aws_smithy_runtime_api::{
    box_error::BoxError,
    client::interceptors::context::{
        AfterDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextMut,
    },
};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use sha2::{Digest, Sha256};

use crate::{answer::ErrorInside, deadline::Pulse};

/// Small enough that a slow link shows progress before it counts as stalled.
const CHUNK: usize = 128 << 10;

/// A request body over shared slices.
pub struct Slices {
    parts: VecDeque<Bytes>,
    left: u64,
    pulse: Pulse,
}

impl Slices {
    pub fn new(parts: &[Bytes], pulse: Pulse) -> Self {
        let parts: VecDeque<Bytes> = parts.iter().filter(|part| !part.is_empty()).cloned().collect();
        let left = parts.iter().map(|part| part.len() as u64).sum();
        Self { parts, left, pulse }
    }

    pub fn into_sdk(self) -> SdkBody {
        SdkBody::from_body_1_x(self)
    }
}

impl http_body::Body for Slices {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.pulse.beat();
        let Some(mut part) = self.parts.pop_front() else { return Poll::Ready(None) };
        if part.len() > CHUNK {
            let rest = part.split_off(CHUNK);
            self.parts.push_front(rest);
        }
        self.left = self.left.saturating_sub(part.len() as u64);
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Goes along with one PUT.
#[derive(Debug)]
pub struct Escort {
    /// What the signature says of the payload.
    pub payload: PayloadSigningOverride,
}

impl Escort {
    /// `hashed`: the signature covers the body; else TLS alone protects it on its way.
    pub fn of(parts: &[Bytes], hashed: bool) -> Self {
        let payload = if hashed {
            let mut hash = Sha256::new();
            parts.iter().for_each(|part| hash.update(part));
            PayloadSigningOverride::Precomputed(hex::encode(hash.finalize()))
        } else {
            PayloadSigningOverride::unsigned_payload()
        };
        Self { payload }
    }
}

impl Intercept for Escort {
    fn name(&self) -> &'static str {
        "holdfast"
    }

    fn modify_before_signing(
        &self,
        _: &mut BeforeTransmitInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        settings: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        settings.interceptor_state().store_put(self.payload.clone());
        Ok(())
    }

    /// A PUT that worked has an empty answer; some stores and proxies send their error with «200».
    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let response = context.response();
        let body = response.body().bytes().unwrap_or_default();
        match ErrorInside::found(body) {
            Some(inside) if response.status().is_success() => Err(inside.into()),
            _ => Ok(()),
        }
    }
}
