//! An S3 bucket as a store. The only place that knows the SDK.
//!
//! - **One PUT an object**, with `If-None-Match: *`, never multipart. A store that the probe found unable to
//!   refuse an existing name gets plain PUTs from then on.
//! - **No retry here**, neither ours nor the SDK's: a lost answer must be known to the caller, who reads back.
//!   The one exception is an attempt that the store refused for who we are, repeated once if reading the
//!   credentials again gave other ones; such a request was not carried out.
//! - **Every attempt ends**: after `stall_timeout` without progress, or by its size (see `deadline`).
//! - **Bodies are not copied.** Over TLS they are not hashed either: TLS protects them on their way, and the
//!   objects authenticate themselves. Without TLS the signature covers them.
//! - Nothing is believed of a vendor's name: see `probe`.

mod answer;
mod connect;
mod credentials;
mod date;
mod deadline;
mod list;
mod probe;
mod remove;
mod settings;
mod upload;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use async_trait::async_trait;
use aws_sdk_s3::{
    Client, error::ProvideErrorMetadata, operation::get_object::GetObjectOutput, primitives::ByteStream,
    types::StorageClass,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use holdfast_core::{
    Clock, Error, Instant, Random, Result, Sink, Timestamp,
    sink::{Body, Capabilities, Created, OBJECT_MAX, Page, Range, StoreClock, check_name},
};
use tokio::sync::OnceCell;

use answer::{Ask, Failure};
use credentials::Keeper;
use date::DateReader;
use deadline::Pulse;
pub use settings::S3Settings;
use upload::{Escort, Slices};

/// A bucket, or a prefix of one.
#[derive(Clone)]
pub struct S3Sink(Arc<Inner>);

struct Inner {
    settings: S3Settings,
    /// Put before every name: empty, or with a trailing slash.
    root: String,
    client: Client,
    keeper: Keeper,
    clock: Clock,
    store_clock: Arc<StoreClock>,
    random: Random,
    /// The store cannot create only where nothing is: plain PUTs.
    plain: AtomicBool,
    /// The store wants a checksum with each object.
    checksum: AtomicBool,
    versions: OnceCell<remove::Versions>,
}

impl S3Sink {
    /// Reads settings and certificates; sends nothing to the store yet.
    ///
    /// Errors: `Configure` for settings that cannot work.
    pub async fn connect(settings: S3Settings, clock: Clock, random: Random) -> Result<Self> {
        let store_clock = Arc::<StoreClock>::default();
        let dates = DateReader { clock: clock.clone(), seen: store_clock.clone() };
        let (client, keeper) = connect::connect(&settings, &clock, dates).await?;
        let prefix = settings.prefix.trim_matches('/');
        let root = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        let checksum = AtomicBool::new(settings.checksum);
        let (plain, versions) = (AtomicBool::new(false), OnceCell::new());
        Ok(Self(Arc::new(Inner {
            settings,
            root,
            client,
            keeper,
            clock,
            store_clock,
            random,
            plain,
            checksum,
            versions,
        })))
    }
}

impl Inner {
    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.root)
    }

    fn ask(&self, operation: &str, name: &str, right: &'static str) -> Ask {
        Ask { what: format!("{operation} of «{name}» in {}", self.address()), right }
    }

    fn address(&self) -> String {
        let (bucket, root) = (&self.settings.bucket, self.root.trim_end_matches('/'));
        let path = if root.is_empty() { bucket.clone() } else { format!("{bucket}/{root}") };
        match &self.settings.endpoint {
            Some(endpoint) => format!("s3://{path} at {endpoint}"),
            None => format!("s3://{path}"),
        }
    }

    /// One attempt over `bytes`, and another if the store refused our credentials and there are newer ones.
    async fn call<'a, T>(
        &'a self,
        ask: &Ask,
        bytes: u64,
        send: impl Fn(Pulse) -> BoxFuture<'a, Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let attempt = async || {
            let pulse = Pulse::new(&self.clock);
            let sent = send(pulse.clone());
            let done = pulse.watch(self.settings.stall_timeout, bytes, sent).await;
            done.unwrap_or_else(|| Err(Failure::stalled(ask)))
        };
        match attempt().await {
            Err(failure) if failure.login && self.keeper.renew().await => attempt().await,
            other => other,
        }
    }

    async fn put(&self, name: &str, body: &Body, only: bool) -> Result<Created, Failure> {
        let ask = self.ask("create", name, "s3:PutObject");
        let send = |pulse| -> BoxFuture<'_, _> { Box::pin(self.send_put(&ask, name, body, only, pulse)) };
        match self.call(&ask, body.len() as u64, send).await {
            Ok(()) => Ok(Created::New),
            Err(failure) if only && failure.is(412, "PreconditionFailed") => Ok(Created::Exists),
            Err(failure) => Err(failure),
        }
    }

    async fn send_put(
        &self,
        ask: &Ask,
        name: &str,
        body: &Body,
        only: bool,
        pulse: Pulse,
    ) -> Result<(), Failure> {
        let checksum = self.checksum.load(Relaxed).then(|| {
            let crc = body.0.iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part));
            STANDARD.encode(crc.to_be_bytes())
        });
        let hashed = self.settings.sign_payload.unwrap_or(self.settings.is_plain());
        let stream = Slices::new(&body.0, pulse).into_sdk();
        let request = self
            .client
            .put_object()
            .bucket(&self.settings.bucket)
            .key(self.key(name))
            .content_length(i64::try_from(body.len()).unwrap_or(i64::MAX))
            .set_if_none_match(only.then(|| "*".to_owned()))
            .set_storage_class(self.settings.storage_class.as_deref().map(StorageClass::from))
            .set_checksum_crc32_c(checksum)
            .body(ByteStream::new(stream))
            .customize()
            .interceptor(Escort::of(&body.0, hashed));
        let Err(error) = request.send().await else { return Ok(()) };
        let wants = error.as_service_error().is_some_and(|answer| {
            let said = answer.message().unwrap_or_default();
            said.contains("Content-MD5") || said.contains("x-amz-checksum")
        });
        let mut failure = ask.judge(error);
        if wants && !self.checksum.swap(true, Relaxed) {
            failure.error =
                Error::retry(format!("{}: the store asks for a checksum, sending one from now on", ask.what));
        }
        Err(failure)
    }

    async fn read(&self, name: &str, range: Range) -> Result<Option<Bytes>> {
        let ask = self.ask(
            "read",
            name,
            "s3:GetObject, and s3:ListBucket (without it a missing object looks forbidden),",
        );
        let empty = matches!(range, Range::Part { length: 0, .. });
        // An empty range cannot be asked for: its first byte tells whether the object is there.
        let wanted = match range {
            Range::Part { from, length } => Some((from, length.clamp(1, OBJECT_MAX as u64))),
            Range::All => None,
        };
        let bytes = wanted.map_or(OBJECT_MAX as u64, |(_, length)| length);
        let send = |pulse| -> BoxFuture<'_, _> { Box::pin(self.send_get(&ask, name, wanted, pulse)) };
        match self.call(&ask, bytes, send).await {
            Ok(bytes) if empty => Ok(bytes.map(|_| Bytes::new())),
            Ok(bytes) => Ok(bytes),
            Err(failure) if matches!(failure.code.as_deref(), Some("NoSuchKey" | "NotFound")) => Ok(None),
            // Behind the end, or any range of an empty object.
            Err(failure) if wanted.is_some() && failure.is(416, "InvalidRange") => Ok(Some(Bytes::new())),
            Err(failure) => Err(failure.error),
        }
    }

    async fn send_get(
        &self,
        ask: &Ask,
        name: &str,
        wanted: Option<(u64, u64)>,
        pulse: Pulse,
    ) -> Result<Option<Bytes>, Failure> {
        let range = wanted.map(|(from, length)| {
            let last = from.saturating_add(length.saturating_sub(1)).min(i64::MAX as u64);
            format!("bytes={}-{last}", from.min(i64::MAX as u64))
        });
        let request =
            self.client.get_object().bucket(&self.settings.bucket).key(self.key(name)).set_range(range);
        let output = request.send().await.map_err(|error| ask.judge(error))?;
        pulse.beat();
        let ranged = output.content_range().is_some();
        if let (Some((from, _)), Some(said)) = (wanted, output.content_range())
            && !said.trim_start_matches("bytes ").starts_with(&format!("{from}-"))
        {
            return Err(unreadable(
                ask,
                format!("it sent the range «{said}» instead of the one from {from}"),
            ));
        }
        let limit = match wanted {
            Some((_, length)) if ranged => usize::try_from(length).unwrap_or(OBJECT_MAX),
            _ => OBJECT_MAX,
        };
        let bytes = receive(ask, output, limit, &pulse).await?;
        match wanted {
            // The store does not know ranges and sent all.
            Some((from, length)) if !ranged => {
                let from = usize::try_from(from).unwrap_or(usize::MAX).min(bytes.len());
                let to = from.saturating_add(usize::try_from(length).unwrap_or(usize::MAX)).min(bytes.len());
                Ok(Some(bytes.slice(from..to)))
            }
            _ => Ok(Some(bytes)),
        }
    }
}

fn unreadable(ask: &Ask, why: String) -> Failure {
    let error = Error::retry(format!("{}: the store's answer cannot be used: {why}", ask.what));
    Failure { status: None, code: None, login: false, error }
}

/// Collects a body of at most `limit` bytes.
async fn receive(
    ask: &Ask,
    mut output: GetObjectOutput,
    limit: usize,
    pulse: &Pulse,
) -> Result<Bytes, Failure> {
    let too_large = || {
        let error = Error::corrupt(format!(
            "{}: the object is larger than any that holdfast writes: it was put there by something else",
            ask.what
        ));
        Failure { status: None, code: None, login: false, error }
    };
    let announced = output.content_length().and_then(|length| usize::try_from(length).ok());
    if announced.is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let mut bytes = BytesMut::with_capacity(announced.unwrap_or(0).min(limit));
    loop {
        match output.body.try_next().await {
            Ok(Some(chunk)) => {
                pulse.beat();
                if bytes.len().saturating_add(chunk.len()) > limit {
                    return Err(too_large());
                }
                bytes.extend_from_slice(&chunk);
            }
            Ok(None) => break,
            Err(cause) => {
                let mut failure = unreadable(ask, "it broke off".to_owned());
                failure.error = failure.error.because(cause);
                return Err(failure);
            }
        }
    }
    if announced.is_some_and(|length| length != bytes.len()) {
        return Err(unreadable(ask, "it broke off".to_owned()));
    }
    Ok(bytes.freeze())
}

#[async_trait]
impl Sink for S3Sink {
    async fn capabilities(&self) -> Result<Capabilities> {
        self.0.probe().await
    }

    async fn create(&self, name: &str, body: Body) -> Result<Created> {
        check_name(name)?;
        if body.len() > OBJECT_MAX {
            return Err(Error::bug(format!("«{name}» would be larger than any object we write")));
        }
        let only = !self.0.plain.load(Relaxed);
        self.0.put(name, &body, only).await.map_err(|failure| failure.error)
    }

    async fn read(&self, name: &str, range: Range) -> Result<Option<Bytes>> {
        check_name(name)?;
        self.0.read(name, range).await
    }

    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        self.0.list(prefix, after, limit).await
    }

    async fn remove(&self, names: &[String]) -> Result<()> {
        for name in names {
            check_name(name)?;
        }
        self.0.remove(names).await
    }

    fn address(&self) -> String {
        self.0.address()
    }

    fn clock(&self) -> Option<(Instant, Timestamp)> {
        self.0.store_clock.read()
    }
}
