//! Sinks before stores of the harness, and a store of a few lines that answers as a test wants.
#![allow(dead_code, reason = "each test file uses its part")]

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use holdfast_core::{Clock, Random};
use holdfast_harness::Store;
use holdfast_s3::{S3Settings, S3Sink};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

pub fn settings(store: &Store, folder: &Path) -> S3Settings {
    S3Settings {
        bucket: store.bucket.clone(),
        ca_file: store.write_authority(folder).unwrap(),
        ..at(&store.endpoint, &store.access_key, &store.secret_key, folder)
    }
}

pub fn at(endpoint: &str, access: &str, secret: &str, folder: &Path) -> S3Settings {
    let (access_file, secret_file) = (folder.join("access-key"), folder.join("secret-key"));
    std::fs::write(&access_file, format!("{access}\n")).unwrap();
    std::fs::write(&secret_file, secret).unwrap();
    S3Settings {
        bucket: "bucket".to_owned(),
        endpoint: Some(endpoint.to_owned()),
        region: Some("us-east-1".to_owned()),
        proxy: Some("none".to_owned()),
        access_key_file: Some(access_file),
        secret_key_file: Some(secret_file),
        ..S3Settings::default()
    }
}

pub async fn connect(settings: S3Settings) -> S3Sink {
    S3Sink::connect(settings, Clock::system(), Random::system()).await.unwrap()
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub target: String,
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
    pub fn is(&self, method: &str, part: &str) -> bool {
        self.method == method && self.target.contains(part)
    }
}

/// What the stub does about a request.
pub enum Reply {
    Answer(u16, String),
    /// After a pause.
    Later(Duration, u16, String),
    /// A head that announces `length` bytes, then these, then the end of the line.
    Short {
        length: usize,
        bytes: Vec<u8>,
    },
    /// The same, but the line stays open.
    ShortAndSilent {
        length: usize,
        bytes: Vec<u8>,
    },
    Cut,
    Silence,
}

impl Reply {
    pub fn ok() -> Self {
        Self::Answer(200, String::new())
    }
    pub fn error(status: u16, code: &str) -> Self {
        Self::Answer(
            status,
            format!(
                "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>said the stub</Message></Error>"
            ),
        )
    }
}

/// A store of HTTP/1.1 that answers by a function.
pub struct Stub {
    pub endpoint: String,
    pub seen: Arc<Mutex<Vec<Request>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Stub {
    pub async fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let seen: Arc<Mutex<Vec<Request>>> = Arc::default();
        let (answer, notes) = (Arc::new(answer), seen.clone());
        let task = tokio::spawn(async move {
            let mut lines = tokio::task::JoinSet::new();
            loop {
                let (line, _) = listener.accept().await.unwrap();
                let (answer, notes) = (answer.clone(), notes.clone());
                lines.spawn(async move { serve(line, &*answer, &notes).await });
            }
        });
        Self { endpoint, seen, task }
    }

    pub fn requests(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    mut line: TcpStream,
    answer: &(impl Fn(&Request) -> Reply + ?Sized),
    seen: &Mutex<Vec<Request>>,
) {
    let mut buffer = Vec::new();
    while let Some(request) = receive(&mut line, &mut buffer).await {
        let reply = answer(&request);
        let head = request.method == "HEAD";
        seen.lock().unwrap().push(request);
        match reply {
            Reply::Answer(status, body) => send(&mut line, status, &body, head).await,
            Reply::Later(pause, status, body) => {
                tokio::time::sleep(pause).await;
                send(&mut line, status, &body, head).await;
            }
            Reply::Short { length, bytes } => {
                short(&mut line, length, &bytes).await;
                return;
            }
            Reply::ShortAndSilent { length, bytes } => {
                short(&mut line, length, &bytes).await;
                return std::future::pending().await;
            }
            Reply::Cut => return,
            Reply::Silence => return std::future::pending().await,
        }
    }
}

async fn send(line: &mut TcpStream, status: u16, body: &str, head: bool) {
    let text = format!("HTTP/1.1 {status} -\r\nContent-Length: {}\r\nETag: \"e\"\r\n\r\n", body.len());
    let _ = line.write_all(text.as_bytes()).await;
    if !head {
        let _ = line.write_all(body.as_bytes()).await;
    }
}

async fn short(line: &mut TcpStream, length: usize, bytes: &[u8]) {
    let _ = line.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").as_bytes()).await;
    let _ = line.write_all(bytes).await;
}

async fn receive(line: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Request> {
    let end = loop {
        if let Some(end) = buffer.windows(4).position(|w| w == b"\r\n\r\n") {
            break end;
        }
        if line.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(buffer[..end].to_vec()).unwrap();
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: HashMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let length: usize = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    buffer.drain(..end + 4);
    while buffer.len() < length {
        if line.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    let body = buffer.drain(..length).collect();
    Some(Request { method, target, headers, body })
}
