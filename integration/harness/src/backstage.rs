//! The runtime of the servers that live in this process. They have one of their own, so that a test may pause its
//! time, block its only thread or end its runtime while they go on.

use std::{
    future::Future,
    sync::{Arc, OnceLock},
};

use anyhow::{Context, Result};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    runtime::Runtime,
    task::{AbortHandle, JoinSet},
};
use tokio_rustls::TlsAcceptor;

fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();
    RUNTIME
        .get_or_init(|| {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(2).thread_name("backstage").enable_all().build().ok()
        })
        .as_ref()
        .context("no runtime could be made for the servers of this process")
}

/// A byte stream to a client, plain or TLS.
pub trait Line: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Line for T {}

/// A listening server; its connections are cut when it is dropped.
pub struct Listening {
    port: u16,
    task: AbortHandle,
}

impl Listening {
    /// Listens on 127.0.0.1 (`port` 0: any) and hands each connection to `serve`.
    pub fn start<F, S>(port: u16, tls: Option<Arc<ServerConfig>>, serve: S) -> Result<Self>
    where
        S: Fn(Box<dyn Line>) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let socket = std::net::TcpListener::bind(("127.0.0.1", port))
            .with_context(|| format!("port {port} of 127.0.0.1 is taken"))?;
        socket.set_nonblocking(true)?;
        let port = socket.local_addr()?.port();
        let runtime = runtime()?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(socket)?
        };
        let serve = Arc::new(serve);
        let task = runtime.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).ok();
                let (serve, tls) = (serve.clone(), tls.clone());
                connections.spawn(async move {
                    if let Some(line) = secure(stream, tls).await {
                        serve(line).await;
                    }
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { port, task: task.abort_handle() })
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn secure(stream: TcpStream, tls: Option<Arc<ServerConfig>>) -> Option<Box<dyn Line>> {
    match tls {
        None => Some(Box::new(stream)),
        Some(config) => match TlsAcceptor::from(config).accept(stream).await {
            Ok(stream) => Some(Box::new(stream)),
            // A client that does not trust us: that is its answer to give.
            Err(_) => None,
        },
    }
}
