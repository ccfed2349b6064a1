//! An S3 server in this process: `s3s-fs` behind hyper, each object a file below a folder, so that a test can flip,
//! cut, swap or remove it.

use std::{
    collections::HashMap,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Result;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{Method, Request, body::Incoming, header, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use s3s::{
    S3Request, S3Result,
    access::S3Access,
    auth::{S3Auth, SecretKey},
    dto::PutObjectInput,
    s3_error,
    service::{S3Service, S3ServiceBuilder},
};
use tempfile::TempDir;

use crate::{Certificates, Store, backstage::Listening};

/// What the store does with `If-None-Match`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conditions {
    /// Create-only writes hold, races included.
    Kept,
    /// The header is ignored: every write overwrites (B2 is such a store).
    Ignored,
}

/// Ends when dropped; the folder goes with it unless it was given.
pub struct S3Local {
    store: Store,
    objects: PathBuf,
    keys: Keys,
    _folder: Option<TempDir>,
    _listening: Listening,
}

impl S3Local {
    /// A plain HTTP store that keeps conditions.
    pub fn start() -> Result<Self> {
        Self::start_with(Conditions::Kept, None)
    }

    /// The same with TLS: clients reach it as `localhost` and trust `certificates`.
    pub fn start_tls(certificates: &Certificates) -> Result<Self> {
        Self::start_with(Conditions::Kept, Some(certificates))
    }

    pub fn start_with(conditions: Conditions, certificates: Option<&Certificates>) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("hf-s3-").tempdir()?;
        let root = folder.path().to_owned();
        Self::start_in(&root, Some(folder), conditions, certificates)
    }

    /// A plain store that keeps its objects in a folder of the caller's (a file system in memory, say).
    pub fn start_at(root: &Path) -> Result<Self> {
        Self::start_in(root, None, Conditions::Kept, None)
    }

    /// The same with TLS.
    pub fn start_tls_at(root: &Path, certificates: &Certificates) -> Result<Self> {
        Self::start_in(root, None, Conditions::Kept, Some(certificates))
    }

    fn start_in(
        root: &Path,
        folder: Option<TempDir>,
        conditions: Conditions,
        certificates: Option<&Certificates>,
    ) -> Result<Self> {
        let mut store = Store::at(String::new(), certificates.map(Certificates::authority));
        let objects = root.join(&store.bucket);
        std::fs::create_dir_all(&objects)?;
        let system = s3s_fs::FileSystem::new(root).map_err(|cause| anyhow::anyhow!("s3s-fs: {cause:?}"))?;
        let mut builder = S3ServiceBuilder::new(system);
        let keys = Keys(Arc::new(Mutex::new((store.access_key.clone(), store.secret_key.clone()))));
        builder.set_auth(keys.clone());
        if conditions == Conditions::Ignored {
            builder.set_access(Careless);
        }
        let (service, root) = (builder.build(), root.to_owned());
        let names = Arc::new(Names { service, root, conditions, busy: Mutex::default() });
        let tls = certificates.map(|made| made.server()?.server_config()).transpose()?;
        let scheme = if tls.is_some() { "https://localhost" } else { "http://127.0.0.1" };
        let listening = Listening::start(0, tls, move |line| {
            let names = names.clone();
            async move {
                let service = service_fn(move |request| names.clone().answer(request));
                let mut http = hyper::server::conn::http1::Builder::new();
                // A client that goes away in the middle of a request is none of our business.
                http.timer(TokioTimer::new()).serve_connection(TokioIo::new(line), service).await.ok();
            }
        })?;
        store.endpoint = format!("{scheme}:{}", listening.port());
        Ok(Self { store, objects, keys, _folder: folder, _listening: listening })
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Other credentials count from now on, and those of before no more.
    pub fn accept_only(&mut self, access_key: &str, secret_key: &str) {
        access_key.clone_into(&mut self.store.access_key);
        secret_key.clone_into(&mut self.store.secret_key);
        *self.keys.0.lock().unwrap_or_else(PoisonError::into_inner) =
            (access_key.to_owned(), secret_key.to_owned());
    }

    /// The folder in which object `a/b` is the file `a/b`.
    pub fn objects(&self) -> &Path {
        &self.objects
    }
}

/// The one pair that is accepted now.
#[derive(Clone)]
struct Keys(Arc<Mutex<(String, String)>>);

#[async_trait::async_trait]
impl S3Auth for Keys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        let (accepted, secret) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if access_key != accepted {
            return Err(s3_error!(InvalidAccessKeyId, "these credentials are over"));
        }
        Ok(SecretKey::from(secret.clone()))
    }
}

/// Forgets the condition of a write after its signature, which covers the header, was checked.
struct Careless;

#[async_trait::async_trait]
impl S3Access for Careless {
    async fn put_object(&self, request: &mut S3Request<PutObjectInput>) -> S3Result<()> {
        request.input.if_none_match = None;
        Ok(())
    }
}

type Busy = Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>;

/// The service, one write per name at a time: s3s-fs looks whether a name is taken and writes it later, so two
/// create-only writes that race would both win.
///
/// Bodies go in and out whole: s3s-fs itself reads and writes 4 KiB at a time, each a hop between threads, and such a
/// store would be what a comparison measures.
struct Names {
    service: S3Service,
    root: PathBuf,
    conditions: Conditions,
    busy: Busy,
}

impl Names {
    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<s3s::HttpResponse, s3s::HttpError> {
        let (name, method) = (request.uri().path().to_owned(), request.method().clone());
        let plain = request.uri().query().is_none_or(|query| query == "x-id=GetObject");
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(|cause| s3s::HttpError::new(cause.into()))?.to_bytes();
        let request = Request::from_parts(head, s3s::Body::from(body));
        if method == Method::GET && plain {
            let mut response = self.service.call(request).await?;
            if let Some(bytes) = self.read(&name, &response).await {
                *response.body_mut() = s3s::Body::from(bytes);
            }
            return Ok(response);
        }
        let conditional =
            self.conditions == Conditions::Kept && request.headers().contains_key(header::IF_NONE_MATCH);
        if method != Method::PUT || !conditional {
            return self.service.call(request).await;
        }
        let turn =
            self.busy.lock().unwrap_or_else(PoisonError::into_inner).entry(name.clone()).or_default().clone();
        let answer = {
            let _turn = turn.lock().await;
            self.service.call(request).await
        };
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        // The map and this call: nobody else waits.
        if Arc::strong_count(&turn) == 2 {
            busy.remove(&name);
        }
        answer
    }

    /// What the answer to a GET of an object is about to stream, read at once; `None` for all else.
    async fn read(&self, name: &str, response: &s3s::HttpResponse) -> Option<Bytes> {
        if !response.status().is_success() {
            return None;
        }
        let number = |name| response.headers().get(name)?.to_str().ok();
        let length: usize = number(header::CONTENT_LENGTH)?.parse().ok()?;
        let from = match number(header::CONTENT_RANGE) {
            Some(range) => range.strip_prefix("bytes ")?.split('-').next()?.parse().ok()?,
            None => 0,
        };
        let path = self.root.join(name.trim_start_matches('/'));
        let read = move || {
            let mut bytes = vec![0; length];
            std::fs::File::open(path)?.read_exact_at(&mut bytes, from)?;
            std::io::Result::Ok(bytes.into())
        };
        tokio::task::spawn_blocking(read).await.ok()?.ok()
    }
}
