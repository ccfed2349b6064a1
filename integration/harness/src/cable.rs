//! A TCP line that a test can cut, hang or slow down: between holdfast and a Postgres server, say.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Result;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
};

use crate::backstage::{Line, Listening};

#[derive(Clone, Copy, Debug, Default)]
struct State {
    hanging: bool,
    /// Lines made before this many strandings carry nothing any more.
    stranded: u64,
    delay: Duration,
}

/// Forwards connections to one address; ends when dropped.
pub struct Cable {
    to: SocketAddr,
    state: Arc<watch::Sender<State>>,
    port: u16,
    listening: Option<Listening>,
}

impl Cable {
    /// A line to `port` of 127.0.0.1.
    pub fn to(port: u16) -> Result<Self> {
        let to = SocketAddr::from(([127, 0, 0, 1], port));
        let mut cable = Self { to, state: Arc::new(watch::Sender::default()), port: 0, listening: None };
        cable.mend()?;
        Ok(cable)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Cuts all connections and refuses new ones until [`Cable::mend`].
    pub fn cut(&mut self) {
        self.listening = None;
    }

    pub fn mend(&mut self) -> Result<()> {
        let (to, state) = (self.to, self.state.clone());
        let listening = Listening::start(self.port, None, move |line| {
            let watched = state.subscribe();
            async move {
                if let Ok(server) = TcpStream::connect(to).await {
                    server.set_nodelay(true).ok();
                    join(line, server, watched).await;
                }
            }
        })?;
        self.port = listening.port();
        self.listening = Some(listening);
        Ok(())
    }

    /// Accepts and keeps connections, moves no byte until [`Cable::go`].
    pub fn hang(&self) {
        self.state.send_modify(|state| state.hanging = true);
    }

    pub fn go(&self) {
        self.state.send_modify(|state| state.hanging = false);
    }

    /// The lines of now stay open and carry nothing any more, as behind a firewall that forgot them; new ones work.
    pub fn strand(&self) {
        self.state.send_modify(|state| state.stranded += 1);
    }

    /// Each read of either side is passed on this much later.
    pub fn delay(&self, delay: Duration) {
        self.state.send_modify(|state| state.delay = delay);
    }
}

async fn join(client: Box<dyn Line>, server: TcpStream, state: watch::Receiver<State>) {
    let made = state.borrow().stranded;
    let (client_reads, client_writes) = tokio::io::split(client);
    let (server_reads, server_writes) = server.into_split();
    tokio::join!(
        pump(client_reads, server_writes, state.clone(), made),
        pump(server_reads, client_writes, state, made)
    );
}

async fn pump(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut state: watch::Receiver<State>,
    made: u64,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let delay = state.borrow().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if state.wait_for(|state| !state.hanging && state.stranded == made).await.is_err() {
            return;
        }
        if to.write_all(buffer.get(..count).unwrap_or_default()).await.is_err() {
            return;
        }
    }
    to.shutdown().await.ok();
}
