//! A proxy before an S3 store that knows requests: a delay per request, answers of its own, lost answers, resets,
//! a bandwidth; and it counts what passes.

mod flow;
mod rule;

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use hyper::{Request, Response, body::Incoming, client::conn::http1::SendRequest, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;

pub use self::rule::{Fault, Rule};
use self::{
    flow::{Bandwidth, Flow},
    rule::Rules,
};
use crate::{
    Certificates, Store,
    backstage::{Line, Listening},
};

/// What passed so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    pub requests: u64,
    pub puts: u64,
    /// Requests to remove something, whatever they were answered.
    pub removals: u64,
    /// Body bytes to the store and from it.
    pub up: u64,
    pub down: u64,
}

#[derive(Default)]
struct Shared {
    rules: Mutex<Rules>,
    bandwidth: Arc<Bandwidth>,
    requests: AtomicU64,
    puts: AtomicU64,
    removals: AtomicU64,
    up: Arc<AtomicU64>,
    down: Arc<AtomicU64>,
}

/// Stands before a plain HTTP store; ends when dropped.
pub struct Toxic {
    store: Store,
    upstream: SocketAddr,
    tls: Option<Arc<rustls::ServerConfig>>,
    shared: Arc<Shared>,
    port: u16,
    listening: Option<Listening>,
}

impl Toxic {
    /// A proxy before `store`.
    pub fn before(store: &Store) -> Result<Self> {
        Self::start(store, None)
    }

    /// The same, speaking TLS to clients.
    pub fn before_tls(store: &Store, certificates: &Certificates) -> Result<Self> {
        Self::start(store, Some(certificates))
    }

    fn start(store: &Store, certificates: Option<&Certificates>) -> Result<Self> {
        if store.authority.is_some() {
            bail!("the proxy stands before plain stores only; let the proxy speak TLS instead");
        }
        let upstream =
            SocketAddr::from(([127, 0, 0, 1], store.port().context("the store's endpoint has no port")?));
        let tls = certificates.map(|made| made.server()?.server_config()).transpose()?;
        let mut store = store.clone();
        store.authority = certificates.map(Certificates::authority);
        let mut toxic = Self { store, upstream, tls, shared: Arc::default(), port: 0, listening: None };
        toxic.up()?;
        let scheme = if toxic.tls.is_some() { "https://localhost" } else { "http://127.0.0.1" };
        toxic.store.endpoint = format!("{scheme}:{}", toxic.port);
        Ok(toxic)
    }

    /// How to reach the store through this proxy.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Replaces all rules. The first rule that matches a request and does not merely delay it decides.
    pub fn set(&self, rules: impl IntoIterator<Item = Rule>) {
        self.rules().set(rules);
    }

    pub fn clear(&self) {
        self.set([]);
    }

    fn rules(&self) -> std::sync::MutexGuard<'_, Rules> {
        self.shared.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes a second of all bodies together; `None`: as fast as it goes.
    pub fn bandwidth(&self, bytes_per_second: Option<u64>) {
        self.shared.bandwidth.set(bytes_per_second);
    }

    /// The store is gone: connections are cut, new ones refused.
    pub fn down(&mut self) {
        self.listening = None;
    }

    /// And there again, at the same port.
    pub fn up(&mut self) -> Result<()> {
        let (shared, upstream) = (self.shared.clone(), self.upstream);
        let listening =
            Listening::start(self.port, self.tls.clone(), move |line| serve(line, upstream, shared.clone()))?;
        self.port = listening.port();
        self.listening = Some(listening);
        Ok(())
    }

    pub fn passed(&self) -> Passed {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Passed {
            requests: read(&self.shared.requests),
            puts: read(&self.shared.puts),
            removals: read(&self.shared.removals),
            up: read(&self.shared.up),
            down: read(&self.shared.down),
        }
    }
}

async fn serve(line: Box<dyn Line>, upstream: SocketAddr, shared: Arc<Shared>) {
    let store = Arc::new(tokio::sync::Mutex::new(None));
    let service = service_fn(move |request| answer(request, upstream, shared.clone(), store.clone()));
    let mut http = hyper::server::conn::http1::Builder::new();
    // Either side may go away at any time: that is what this proxy is for.
    http.timer(TokioTimer::new()).serve_connection(TokioIo::new(line), service).await.ok();
}

/// The connection to the store that belongs to one connection of a client.
type Upstream = Arc<tokio::sync::Mutex<Option<SendRequest<Flow>>>>;

/// An error makes hyper cut the client's connection without an answer.
async fn answer(
    request: Request<Incoming>,
    upstream: SocketAddr,
    shared: Arc<Shared>,
    store: Upstream,
) -> Result<Response<Flow>> {
    shared.requests.fetch_add(1, Ordering::Relaxed);
    if request.method() == hyper::Method::PUT {
        shared.puts.fetch_add(1, Ordering::Relaxed);
    }
    let batch = request.method() == hyper::Method::POST
        && request.uri().query().is_some_and(|query| query.split('&').any(|part| part.starts_with("delete")));
    if batch || request.method() == hyper::Method::DELETE {
        shared.removals.fetch_add(1, Ordering::Relaxed);
    }
    let verdict = {
        let mut rules = shared.rules.lock().unwrap_or_else(PoisonError::into_inner);
        rules.judge(request.method(), request.uri())
    };
    if !verdict.delay.is_zero() {
        tokio::time::sleep(verdict.delay).await;
    }
    match verdict.fault {
        Some(Fault::Reset) => bail!("reset by rule"),
        Some(Fault::Silence) => std::future::pending().await,
        Some(Fault::Status(code)) => {
            drain(request.into_body()).await;
            let name = match code {
                301 => "PermanentRedirect",
                400 => "AuthorizationHeaderMalformed",
                403 => "AccessDenied",
                404 => "NoSuchBucket",
                503 => "SlowDown",
                _ => "InternalError",
            };
            let text = format!(
                "<?xml version=\"1.0\"?><Error><Code>{name}</Code><Message>by rule</Message></Error>"
            );
            let response = Response::builder().status(code).header("content-type", "application/xml");
            Ok(response.body(Flow::whole(Bytes::from(text)))?)
        }
        Some(Fault::LoseAnswer) => {
            let response = forward(request, upstream, &shared, &store).await?;
            drain(response.into_body()).await;
            bail!("answer lost by rule")
        }
        Some(Fault::Delay(_)) | None => forward(request, upstream, &shared, &store).await,
    }
}

async fn forward(
    request: Request<Incoming>,
    upstream: SocketAddr,
    shared: &Shared,
    store: &Upstream,
) -> Result<Response<Flow>> {
    let mut store = store.lock().await;
    let ready = match store.as_mut() {
        Some(open) => open.ready().await.is_ok(),
        None => false,
    };
    if !ready {
        let stream = TcpStream::connect(upstream).await?;
        stream.set_nodelay(true)?;
        let (open, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            connection.await.ok();
        });
        *store = Some(open);
    }
    let open = store.as_mut().context("no connection to the store")?;
    let request = request.map(|body| Flow::through(body, shared.bandwidth.clone(), shared.up.clone()));
    let response = open.send_request(request).await?;
    Ok(response.map(|body| Flow::through(body, shared.bandwidth.clone(), shared.down.clone())))
}

async fn drain<B: hyper::body::Body + Unpin>(mut body: B) {
    while let Some(Ok(_)) =
        std::future::poll_fn(|context| std::pin::Pin::new(&mut body).poll_frame(context)).await
    {}
}

/// A store that is `away` for each request: what most measurements want.
pub fn away(delay: Duration) -> [Rule; 1] {
    [Rule::new(Fault::Delay(delay))]
}
