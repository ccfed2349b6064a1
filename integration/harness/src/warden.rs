//! Ends our servers when this process dies without saying so (SIGKILL, abort): a small shell holds the read end
//! of a pipe whose write end is ours alone. End of file means that we are gone, and it kills what is still listed.

use std::{
    io::Write,
    os::unix::process::CommandExt,
    process::{ChildStdin, Command, Stdio},
    sync::{Mutex, OnceLock, PoisonError},
};

const SCRIPT: &str = r#"
pids=
while read -r verb pid; do
  case $verb in
    +) pids="$pids $pid" ;;
    -) left=; for p in $pids; do [ "$p" = "$pid" ] || left="$left $p"; done; pids=$left ;;
  esac
done
for p in $pids; do
  kill -STOP "$p"
  for c in $(cat /proc/"$p"/task/*/children); do kill -KILL "$c"; done
  kill -KILL "$p"
done 2>/dev/null
"#;

/// Lists a process; it is killed with its children when we die before [`forget`].
pub fn watch(pid: u32) {
    say('+', pid);
}

/// The process has ended and was waited for: its number may be used by somebody else from now on.
pub fn forget(pid: u32) {
    say('-', pid);
}

fn say(verb: char, pid: u32) {
    static PIPE: OnceLock<Option<Mutex<ChildStdin>>> = OnceLock::new();
    let pipe = PIPE.get_or_init(|| {
        // A group of its own: Ctrl-C at the terminal must reach us, not the one who cleans up after us.
        let child = Command::new("/bin/sh")
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        child.ok().and_then(|mut child| child.stdin.take()).map(Mutex::new)
    });
    if let Some(pipe) = pipe {
        let mut pipe = pipe.lock().unwrap_or_else(PoisonError::into_inner);
        // A warden that was killed cannot help any more; the servers still end by their owner's drop.
        writeln!(pipe, "{verb} {pid}").ok();
    }
}
