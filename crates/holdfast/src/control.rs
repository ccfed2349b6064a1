//! Orders to a running process, over a unix socket in the state folder: only who may write there may give them.

use std::{collections::BTreeMap, os::unix::fs::PermissionsExt, path::Path, sync::Arc};

use axum::{Router, extract::State, http::StatusCode, routing::post};
use holdfast_core::{Error, Result, task};
use holdfast_postgres::BackupRequests;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
};

use crate::{sources::Watched, state::control_socket};

type Orders = Arc<BTreeMap<String, BackupRequests>>;

/// Listens until the task is dropped.
pub fn serve(state: &Path, watched: &[Watched]) -> Result<task::Task<()>> {
    let orders: BTreeMap<_, _> =
        watched.iter().map(|source| (source.name.clone(), source.requests.clone())).collect();
    let path = control_socket(state);
    // A socket file outlives its process; the flocks of the sources tell whether another process lives.
    let _ = std::fs::remove_file(&path);
    let trouble = |cause: std::io::Error| {
        Error::configure(format!("the control socket {} cannot be made", path.display())).because(cause)
    };
    let listener = UnixListener::bind(&path).map_err(trouble)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(trouble)?;
    let router = Router::new().route("/base-backup/{name}", post(base_backup)).with_state(Arc::new(orders));
    Ok(task::spawn(async move {
        if let Err(cause) = axum::serve(listener, router).await {
            tracing::warn!(%cause, "the control socket ended; base-backup will not reach this process");
        }
    }))
}

async fn base_backup(
    State(orders): State<Orders>,
    axum::extract::Path(name): axum::extract::Path<String>,
) -> (StatusCode, String) {
    match orders.get(&name) {
        Some(requests) if requests.ask() => (StatusCode::ACCEPTED, "a base backup begins now".to_owned()),
        Some(_) => (StatusCode::OK, "a base backup is asked for already".to_owned()),
        None => (StatusCode::NOT_FOUND, format!("this process follows no source «{name}»")),
    }
}

/// Gives one order; the answer's sentence.
pub async fn order(state: &Path, path: &str) -> Result<String> {
    let socket = control_socket(state);
    let silent = |cause: std::io::Error| {
        Error::retry(format!(
            "no running holdfast answers at {}; start one with «holdfast run», or give its state_dir",
            socket.display()
        ))
        .because(cause)
    };
    let mut stream = UnixStream::connect(&socket).await.map_err(silent)?;
    let request =
        format!("POST {path} HTTP/1.1\r\nhost: holdfast\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(silent)?;
    let mut answer = Vec::new();
    (&mut stream).take(64 << 10).read_to_end(&mut answer).await.map_err(silent)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let good = head.split(' ').nth(1).is_some_and(|status| status.starts_with('2'));
    if good { Ok(body.trim().to_owned()) } else { Err(Error::configure(body.trim().to_owned())) }
}
