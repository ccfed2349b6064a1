//! A folder with settings, identity, repository and one source, and the real binary over it.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};

use holdfast_core::{Clock, Random, Sink};
use holdfast_fs::{FsSettings, FsSink};
use holdfast_pipeline::{Gauges, Outcome, Parts, Pool, Settings, Writer};
use holdfast_repo::epoch::InstanceId;
use holdfast_testkit::scripted::{Script, ScriptedSource};
use tempfile::TempDir;
use tokio::sync::watch;

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
        let site = Self::before_init();
        site.with_source(&[])
    }

    /// Settings and an identity; no repository yet.
    pub fn before_init() -> Self {
        let site = Self { folder: TempDir::new().unwrap(), id: String::new() };
        site.holdfast(&["keygen", "--out", "me"]).good();
        site.settings("");
        site
    }

    /// Makes the repository, with more arguments to `init`, and its source.
    pub fn with_source(mut self, init: &[&str]) -> Self {
        let me = format!("me={}", self.recipient("me"));
        let kit = self.holdfast(&[&["init", "--recipient", &me], init].concat()).good();
        self.id = kit.out.trim().trim_start_matches("id = ").trim_matches('"').to_owned();
        self.settings("");
        self.with_identity(&["source", "add", "main"]).good();
        self
    }

    /// As a sidecar leaves it: some log and a finished run.
    pub fn with_data(self) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(self.follow());
        self
    }

    async fn follow(&self) {
        let (clock, random) = (Clock::system(), Random::system());
        let script = Script {
            start: 0,
            bytes_per_second: 20_000,
            busy_for: Duration::from_secs(1),
            step_bytes: 4096,
            waits: 0,
            breaks: 0,
            run_every: Duration::from_millis(100),
            run_pieces: 3,
            run_takes: Duration::from_millis(100),
        };
        let source = ScriptedSource::new(clock.clone(), random.clone(), script);
        let store = FsSink::open(self.at("store"), FsSettings::default(), random.clone()).await.unwrap();
        let gauges = Arc::new(Gauges::new(clock.now()));
        let (stop, stopped) = watch::channel(false);
        let writer = Writer::new(Parts {
            settings: Settings { max_lag: Duration::from_millis(100), ..Settings::default() },
            source_key: std::fs::read_to_string(self.at("main.key")).unwrap().parse().unwrap(),
            capabilities: store.capabilities().await.unwrap(),
            sink: Arc::new(store),
            tailer: source.tailer("main"),
            pool: Pool::inline(),
            clock: clock.clone(),
            random,
            instance: InstanceId([1; 16]),
            gauges: gauges.clone(),
            stop: stopped,
        });
        let backed_up = async {
            while gauges.figures(clock.now()).checkpoint.is_none() {
                clock.sleep(Duration::from_millis(20)).await;
            }
            stop.send_replace(true);
        };
        let (outcome, ()) = tokio::join!(writer.run(), backed_up);
        assert!(matches!(outcome, Outcome::Stopped), "{outcome:?}");
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.at(name), text).unwrap();
    }
    pub fn recipient(&self, of: &str) -> String {
        let identity = std::fs::read_to_string(self.at(of)).unwrap();
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
        let done = self.command(args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Answer { code: done.status.code().unwrap(), out: text(done.stdout), err: text(done.stderr) }
    }
    /// As [`Self::holdfast`], with the identity.
    pub fn with_identity(&self, args: &[&str]) -> Answer {
        self.holdfast(&[args, &["--identity", "me"]].concat())
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
