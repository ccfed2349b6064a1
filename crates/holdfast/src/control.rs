//! Orders to the process that follows a source, over a unix socket in the source's state folder: only who may write
//! there may give them. The folder's lock decides whose socket it is, so processes that share a state folder do not
//! take each other's.

use std::{os::unix::fs::PermissionsExt, path::Path};

use axum::{Router, extract::State, http::StatusCode, routing::post};
use holdfast_core::{Error, Result, task};
use holdfast_postgres::BackupRequests;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
};

use crate::state::{StateFolder, control_socket};

/// The one order there is today.
pub const BASE_BACKUP: &str = "/base-backup";

/// Listens until the task is dropped.
pub fn serve(state: &StateFolder, requests: BackupRequests) -> Result<task::Task<()>> {
    let path = state.control_socket();
    // A socket file outlives its process; the folder's lock, which we hold, tells that no other process lives.
    let _ = std::fs::remove_file(&path);
    let trouble = |cause: std::io::Error| {
        Error::configure(format!("the control socket {} cannot be made", path.display())).because(cause)
    };
    let listener = UnixListener::bind(&path).map_err(trouble)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(trouble)?;
    let router = Router::new().route(BASE_BACKUP, post(base_backup)).with_state(requests);
    Ok(task::spawn(async move {
        if let Err(cause) = axum::serve(listener, router).await {
            tracing::warn!(%cause, "the control socket ended; base-backup will not reach this process");
        }
    }))
}

async fn base_backup(State(requests): State<BackupRequests>) -> (StatusCode, &'static str) {
    if requests.ask() {
        (StatusCode::ACCEPTED, "a base backup begins now")
    } else {
        (StatusCode::OK, "a base backup is asked for already")
    }
}

/// Gives one order to the process that follows `source`; the answer's sentence.
pub async fn order(state: &Path, source: &str, path: &str) -> Result<String> {
    let socket = control_socket(state, source);
    let silent = |cause: std::io::Error| {
        Error::retry(format!(
            "no running holdfast that follows «{source}» answers at {}; start one with «holdfast run», or give its state_dir",
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
