//! A folder with settings, identity, repository and one source, and the real binary over it.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use tempfile::TempDir;

pub struct Site {
    folder: TempDir,
    /// The repository's id.
    pub id: String,
}

/// How a command ended.
#[derive(Debug)]
pub struct Answer {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Answer {
    #[track_caller]
    pub fn good(self) -> Self {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }
    /// It failed with this code, and says this.
    #[track_caller]
    pub fn refused(self, code: i32, sentence: &str) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.err.contains(sentence), "{self:?}");
        self
    }
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap()
    }
}

impl Site {
    /// A repository with the source «main», whose server does not exist.
    pub fn new() -> Self {
        let mut site = Self { folder: TempDir::new().unwrap(), id: String::new() };
        site.holdfast(&["keygen", "--out", site.at("me").to_str().unwrap()]).good();
        site.settings("");
        let kit = site.holdfast(&["init", "--recipient", &format!("me={}", site.recipient())]).good();
        site.id = kit.out.trim().trim_start_matches("id = ").trim_matches('"').to_owned();
        site.settings("");
        site.holdfast(&["source", "add", "main", "--identity", site.at("me").to_str().unwrap()]).good();
        site
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.at(name), text).unwrap();
    }
    fn recipient(&self) -> String {
        let identity = std::fs::read_to_string(self.at("me")).unwrap();
        let word = identity.split_whitespace().find(|word| word.starts_with("hf-recipient-"));
        word.unwrap().to_owned()
    }
    /// `[repository]` as the recovery kit has it.
    pub fn kit(&self) -> String {
        let id = if self.id.is_empty() { String::new() } else { format!("id = \"{}\"\n", self.id) };
        format!("[repository]\n{id}url = \"{}\"\n", self.at("store").display())
    }
    /// `[process]` and `[source.main]`, with `more` at the end of the latter.
    pub fn source(&self, more: &str) -> String {
        format!(
            "[process]\nstate_dir = \"{}\"\n[source.main]\nkind = \"postgres\"\nkey_file = \"{}\"\n\
             dsn = \"host=/nowhere user=holdfast\"\n{more}",
            self.at("state").display(),
            self.at("main.key").display()
        )
    }
    pub fn settings(&self, more: &str) {
        self.write("holdfast.toml", &format!("{}{}", self.kit(), self.source(more)));
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command.args(args).current_dir(self.folder.path()).env_clear();
        command
    }
    pub fn holdfast(&self, args: &[&str]) -> Answer {
        self.holdfast_with(args, &[])
    }
    pub fn holdfast_with(&self, args: &[&str], environment: &[(&str, &str)]) -> Answer {
        let done = self.command(args).envs(environment.iter().copied()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Answer { code: done.status.code().unwrap(), out: text(done.stdout), err: text(done.stderr) }
    }
    /// As [`Self::holdfast`], with the identity.
    pub fn with_identity(&self, args: &[&str]) -> Answer {
        let identity = self.at("me");
        self.holdfast(&[args, &["--identity", identity.to_str().unwrap()]].concat())
    }
}

/// A process that runs until it is stopped; its log is kept in a file.
pub struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    pub fn start(mut command: Command, log: &Path) -> Self {
        let file = std::fs::File::create(log).unwrap();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn().unwrap();
        Self { child, log: log.to_owned() }
    }
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }
    /// Waits until `what` answers; fails with the log when it does not, or when the process ends.
    #[track_caller]
    pub fn until<T>(&mut self, what: impl Fn(&Self) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(answer) = what(self) {
                return answer;
            }
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none() && began.elapsed() < Duration::from_secs(60),
                "{ended:?}\n{}",
                self.log()
            );
            sleep(Duration::from_millis(50));
        }
    }
    /// SIGTERM; its exit code, and how long it took to end.
    pub fn stop(mut self) -> (i32, Duration) {
        let began = Instant::now();
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let code = self.child.wait().unwrap().code().unwrap();
        (code, began.elapsed())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port of this host on which nobody listens.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Status line and body; `None` while nobody answers.
pub fn get(port: u16, path: &str) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.lines().next()?.to_owned(), body.to_owned()))
}
