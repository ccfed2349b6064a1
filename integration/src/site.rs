//! One installation of holdfast in a temporary folder: settings, identity, key file, state, and the commands. All of
//! it belongs to the account that the servers run as, since that is who runs `restore_command`.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use anyhow::{Context, Result, bail};
use holdfast_harness::{Server, Store, User, copy_folder, process};
use tempfile::TempDir;

use crate::{Sidecar, program};

/// Where the repository lies.
#[derive(Clone, Debug)]
pub enum Place {
    /// A folder below the site's own.
    Folder,
    /// A given folder (a small file system, say).
    At(PathBuf),
    S3(Store),
}

/// Removed with its owner.
pub struct Site {
    home: TempDir,
    program: PathBuf,
    place: Place,
    id: Option<String>,
    sources: Vec<(String, String)>,
}

impl Site {
    /// A site without a repository yet.
    pub fn new(place: Place) -> Result<Self> {
        let home = tempfile::Builder::new().prefix("hf-site-").tempdir_in("/tmp")?;
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755))?;
        User::give(home.path())?;
        let program = process::reachable(&program()?, home.path())?;
        Ok(Self { home, program, place, id: None, sources: Vec::new() })
    }

    /// Makes keys, the repository and the source `main`, which follows `server`. `settings` are further lines of
    /// its section.
    pub async fn ready(place: Place, server: &Server, settings: &str) -> Result<Self> {
        let mut site = Self::new(place)?;
        site.source("main", &server.dsn(), settings)?;
        site.init().await?;
        site.holdfast(["source", "add", "main", "--identity", "id.key"]).await?;
        Ok(site)
    }

    /// A second host that shares this site's repository and keys, with a state folder of its own.
    pub fn another(&self) -> Result<Self> {
        let mut other = Self::new(match &self.place {
            Place::Folder => Place::At(self.repository()),
            place => place.clone(),
        })?;
        other.id.clone_from(&self.id);
        other.sources.clone_from(&self.sources);
        for file in ["id.key", "main.key"] {
            fs::copy(self.home.path().join(file), other.home.path().join(file))?;
            User::give(&other.home.path().join(file))?;
        }
        other.write_settings()?;
        Ok(other)
    }

    /// Makes this host's state a copy of the other's, as a cloned disk would: instance id and all.
    pub fn copy_state(&self, from: &Self) -> Result<()> {
        let sockets = |path: &Path| path.extension().is_some_and(|extension| extension == "sock");
        copy_folder(&from.home.path().join("state"), &self.home.path().join("state"), &sockets)
    }

    /// Writes (or replaces) a source's section.
    pub fn source(&mut self, name: &str, dsn: &str, settings: &str) -> Result<()> {
        let key = self.home.path().join(format!("{name}.key"));
        let section = format!("kind = \"postgres\"\nkey_file = {key:?}\ndsn = {dsn:?}\n{settings}\n");
        self.sources.retain(|(known, _)| known != name);
        self.sources.push((name.to_owned(), section));
        self.write_settings()
    }

    async fn init(&mut self) -> Result<()> {
        let said = self.holdfast(["keygen", "--out", "id.key"]).await?;
        let recipient = said
            .split(|c: char| c.is_whitespace() || c == '"' || c == '=')
            .find(|word| word.starts_with("hf-recipient-"))
            .with_context(|| format!("keygen printed no recipient: {said}"))?;
        let said = self.holdfast(["init", "--json", "--recipient", &format!("me={recipient}")]).await?;
        let kit: serde_json::Value =
            serde_json::from_str(&said).with_context(|| format!("init printed {said}"))?;
        let id = kit.get("id").or_else(|| kit.get("repository")).and_then(serde_json::Value::as_str);
        self.id = Some(id.with_context(|| format!("init printed no repository id: {said}"))?.to_owned());
        self.write_settings()
    }

    fn write_settings(&self) -> Result<()> {
        let mut text = String::from("[repository]\n");
        if let Some(id) = &self.id {
            text.push_str(&format!("id = {id:?}\n"));
        }
        match &self.place {
            Place::Folder | Place::At(_) => text.push_str(&format!("url = {:?}\n", self.repository())),
            Place::S3(store) => {
                text.push_str(&format!("url = \"s3://{}/site\"\n[repository.s3]\n", store.bucket));
                text.push_str(&format!(
                    "endpoint = {:?}\nregion = {:?}\npath_style = true\n",
                    store.endpoint, store.region
                ));
                if let Some(path) = store.write_authority(self.home.path())? {
                    text.push_str(&format!("ca_file = {path:?}\n"));
                }
            }
        }
        let state = self.home.path().join("state");
        fs::create_dir_all(&state)?;
        User::give(&state)?;
        text.push_str(&format!("[process]\nstate_dir = {state:?}\n"));
        for (name, section) in &self.sources {
            text.push_str(&format!("[source.{name}]\n{section}"));
        }
        fs::write(self.settings_file(), text)?;
        User::give(&self.settings_file())
    }

    pub fn settings_file(&self) -> PathBuf {
        self.home.path().join("holdfast.toml")
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// The repository's folder, when it is one.
    pub fn repository(&self) -> PathBuf {
        match &self.place {
            Place::At(path) => path.clone(),
            Place::Folder | Place::S3(_) => self.home.path().join("repository"),
        }
    }

    /// How many claims were ever made in the repository's folder.
    pub fn epochs(&self) -> Result<usize> {
        fn below(folder: &Path) -> Result<usize> {
            let mut count = 0;
            for entry in fs::read_dir(folder)? {
                let path = entry?.path();
                count += if path.is_dir() { below(&path)? } else { usize::from(folder.ends_with("epochs")) };
            }
            Ok(count)
        }
        below(&self.repository())
    }

    /// Changes where the store is reached (through a proxy, say); commands and sidecars started later see it.
    pub fn move_to(&mut self, place: Place) -> Result<()> {
        self.place = place;
        self.write_settings()
    }

    /// `holdfast ARGUMENTS`, not yet started.
    pub fn command<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Result<Command> {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .current_dir(self.home.path())
            .env("HOLDFAST_CONFIG", self.settings_file())
            .env("HOME", self.home.path())
            .env("TMPDIR", self.home.path());
        if let Place::S3(store) = &self.place {
            command
                .env("AWS_ACCESS_KEY_ID", &store.access_key)
                .env("AWS_SECRET_ACCESS_KEY", &store.secret_key);
        }
        User::drop_root(&mut command)?;
        Ok(command)
    }

    /// `holdfast ARGUMENTS` as a line for a shell: for a machine that sees the same files.
    pub fn line<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Result<String> {
        let command = self.command(arguments)?;
        let quoted = |text: &std::ffi::OsStr| format!("'{}'", text.to_string_lossy().replace('\'', "'\\''"));
        let mut line = format!("cd {} && env", quoted(self.home.path().as_os_str()));
        for (name, value) in command.get_envs() {
            line.push_str(&format!(" {}={}", name.to_string_lossy(), quoted(value.unwrap_or_default())));
        }
        for word in std::iter::once(command.get_program()).chain(command.get_args()) {
            line.push_str(&format!(" {}", quoted(word)));
        }
        Ok(line)
    }

    /// Runs a command to its end, whatever it says.
    pub async fn output<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Result<Output> {
        let mut command = self.command(arguments)?;
        command.stdin(Stdio::null());
        let output = tokio::task::spawn_blocking(move || command.output()).await?;
        output.context("holdfast could not be started")
    }

    /// Runs a command to its end: its exit code, and all that it said on stdout and stderr.
    pub async fn says<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Result<(i32, String)> {
        let output = self.output(arguments).await?;
        let code = output.status.code().with_context(|| format!("holdfast ended with {}", output.status))?;
        let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.push_str(&String::from_utf8_lossy(&output.stderr));
        Ok((code, said))
    }

    /// Runs a command that must succeed; what it printed on stdout.
    pub async fn holdfast<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Result<String> {
        let arguments: Vec<&str> = arguments.into_iter().collect();
        let output = self.output(arguments.iter().copied()).await?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!(
                "holdfast {} ended with {}: {}",
                arguments.join(" "),
                output.status,
                process::tail(&said, 30)
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts `holdfast run`.
    pub fn run(&self) -> Result<Sidecar> {
        self.run_with(&[])
    }

    pub fn run_with(&self, arguments: &[&str]) -> Result<Sidecar> {
        self.run_as(self.command(std::iter::once("run").chain(arguments.iter().copied()))?)
    }

    /// Starts a `holdfast run` of the caller's making (with an environment of its own, say).
    pub fn run_as(&self, command: Command) -> Result<Sidecar> {
        Sidecar::start(command, &self.home.path().join("run.log"))
    }

    /// Restores source `main` into a new folder below the site's and gives its path. `wish` is `["--latest"]` and such.
    pub async fn restore(&self, name: &str, wish: &[&str]) -> Result<PathBuf> {
        let target = self.home.path().join(name);
        let path = target.to_string_lossy().into_owned();
        let fixed = ["restore", "main", "--identity", "id.key", "--target", &path];
        self.holdfast(fixed.into_iter().chain(wish.iter().copied())).await?;
        Ok(target)
    }

    /// Restores and starts a server on it.
    pub async fn restored(&self, like: &Server, name: &str, wish: &[&str]) -> Result<Server> {
        let target = self.restore(name, wish).await?;
        let server = Server::adopt(like.options().clone(), &target).await?;
        server.wait_for("select not pg_is_in_recovery()", std::time::Duration::from_secs(60)).await?;
        Ok(server)
    }
}
