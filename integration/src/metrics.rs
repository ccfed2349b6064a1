//! What `/metrics` says, once or over time.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::AbortHandle,
};

/// One reading.
#[derive(Clone, Debug)]
pub struct Metrics(String);

impl Metrics {
    pub async fn read(port: u16) -> Result<Self> {
        page(port, "/metrics").await.map(Self)
    }

    /// The value of a metric whose line begins with `name`: a bare name, or one with labels. The largest, when there
    /// are several lines.
    pub fn get(&self, name: &str) -> Option<f64> {
        let values = self.0.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            if !rest.starts_with([' ', '{', ',']) && !name.contains('{') {
                return None;
            }
            line.rsplit(' ').next()?.parse::<f64>().ok()
        });
        values.reduce(f64::max)
    }

    pub fn text(&self) -> &str {
        &self.0
    }
}

/// One page that a sidecar serves, with its head.
pub(crate) async fn page(port: u16, path: &str) -> Result<String> {
    let reading = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok::<_, std::io::Error>(text)
    };
    let read = tokio::time::timeout(Duration::from_secs(5), reading).await;
    Ok(read.with_context(|| format!("{path} does not answer"))??)
}

/// Reads one metric again and again until dropped.
pub struct Sampler {
    seen: Arc<Mutex<Vec<f64>>>,
    task: AbortHandle,
}

impl Sampler {
    pub fn start(port: u16, metric: &'static str, every: Duration) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = seen.clone();
        let task = tokio::spawn(async move {
            loop {
                if let Ok(metrics) = Metrics::read(port).await
                    && let Some(value) = metrics.get(metric)
                {
                    kept.lock().unwrap_or_else(PoisonError::into_inner).push(value);
                }
                tokio::time::sleep(every).await;
            }
        });
        Self { seen, task: task.abort_handle() }
    }

    /// All values so far, smallest first.
    pub fn sorted(&self) -> Vec<f64> {
        let mut values = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        values.sort_by(f64::total_cmp);
        values
    }

    /// Forgets what it saw.
    pub fn clear(&self) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.task.abort();
    }
}
