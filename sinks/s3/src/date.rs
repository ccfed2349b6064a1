//! The store's clock: each of its answers carries a `Date`, in whole seconds.

use std::sync::Arc;

use aws_sdk_s3::{
    config::{ConfigBag, Intercept, RuntimeComponents},
    primitives::{DateTime, DateTimeFormat},
};
use aws_smithy_runtime_api::{
    box_error::BoxError, client::interceptors::context::BeforeDeserializationInterceptorContextRef,
};
use holdfast_core::{Clock, Timestamp, sink::StoreClock};

/// Looks at every answer.
#[derive(Debug)]
pub struct DateReader {
    pub clock: Clock,
    pub seen: Arc<StoreClock>,
}

impl Intercept for DateReader {
    fn name(&self) -> &'static str {
        "holdfast date"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let date = context.response().headers().get("date");
        if let Some(date) = date.and_then(|date| DateTime::from_str(date, DateTimeFormat::HttpDate).ok()) {
            self.seen.saw(self.clock.now(), Timestamp(date.secs().saturating_mul(1_000_000)));
        }
        Ok(())
    }
}
