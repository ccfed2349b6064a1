//! `holdfast wal-fetch %f %p`: asks the prefetcher, starts it when it is not there, and answers so that Postgres
//! never mistakes trouble for the end of WAL.
//!
//! Exit codes (measured on 13 to 18): 0 the file is there; 1 to 125 it does not exist, which ends recovery by
//! promoting; 126 and above stop the server. In standby mode 1 makes it ask again, and 126 would kill it.

use std::{fs::File, io, path::Path, time::Duration};

use holdfast_core::{Clock, Error, Instant, Result};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
};

use super::{
    journal::failed,
    prefetch::{Reply, Request, socket_path},
};

/// A prefetcher starts within this time, or something is wrong with it.
const START: Duration = Duration::from_secs(20);
const RELAUNCH: Duration = Duration::from_secs(2);
/// Longest answer: a prefetcher gives passing errors up long before.
const ANSWER: Duration = Duration::from_secs(900);

/// What became of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetched {
    Done,
    /// The file lies wholly beyond what this restore holds.
    Missing,
}

/// The process's exit code. `standby` as the session says; when it cannot be read, false.
pub fn exit_code(outcome: &Result<Fetched>, standby: bool) -> u8 {
    match outcome {
        Ok(Fetched::Done) => 0,
        Ok(Fetched::Missing) => 1,
        Err(_) if standby => 1,
        Err(_) => 126,
    }
}

/// Asks for the file `name` to be put at `to` (absolute). `own` is our folder in the data folder; `launch` starts a
/// prefetcher for it in a process that outlives this one, and returns at once.
pub async fn fetch(
    own: &Path,
    name: &str,
    to: &Path,
    launch: &(dyn Fn() -> Result<()> + Send + Sync),
    clock: &Clock,
) -> Result<Fetched> {
    let request = Request { name: name.to_owned(), to: to.to_owned() };
    let mut text = serde_json::to_string(&request)
        .map_err(|cause| Error::bug("a request could not be encoded").because(cause))?;
    text.push('\n');
    let began = clock.now();
    let mut launched: Option<Instant> = None;
    loop {
        // A prefetcher that ends (idle, killed) between two steps is started again.
        let answer = clock.timeout(ANSWER, ask(own, &text)).await;
        match answer {
            Some(Ok(Reply::Done)) => return Ok(Fetched::Done),
            Some(Ok(Reply::Missing)) => return Ok(Fetched::Missing),
            Some(Ok(Reply::Failed(why))) => return Err(Error::unreachable(why)),
            None => {
                return Err(Error::unreachable(format!(
                    "the prefetcher of {} does not answer",
                    own.display()
                )));
            }
            Some(Err(cause)) if clock.now().duration_since(began) > START => {
                return Err(failed("reached", &own.join("socket"), cause));
            }
            // Again after a while: one that just ended for idleness may still have held the lock.
            Some(Err(_)) if launched.is_none_or(|at| clock.now().duration_since(at) > RELAUNCH) => {
                launch()?;
                launched = Some(clock.now());
            }
            Some(Err(_)) => clock.sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn ask(own: &Path, request: &str) -> io::Result<Reply> {
    let folder = File::open(own)?;
    let mut stream = UnixStream::connect(socket_path(&folder)).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).await?;
    serde_json::from_str(&line).map_err(|cause| io::Error::new(io::ErrorKind::UnexpectedEof, cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_truly_not_there_may_end_recovery() {
        let error = || Err(Error::retry("the store does not answer"));
        assert_eq!(exit_code(&Ok(Fetched::Done), false), 0);
        assert_eq!(exit_code(&Ok(Fetched::Missing), false), 1);
        assert_eq!(exit_code(&error(), false), 126);
        assert_eq!(exit_code(&error(), true), 1);
    }
}
