//! What can be typed. Help texts are the reference; completions and man pages are generated from here.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

#[derive(Debug, Parser)]
#[command(
    name = "holdfast",
    version,
    about = "Continuous, encrypted backup of the databases and volumes of a bare-metal cluster",
    after_help = "Exit codes: 0 done; 1 failed; 2 wrong usage or settings; 3 the moment cannot be restored or a thing is \
missing; 4 another writer owns the stream, or the source is another one; 5 damaged bytes; 6 source or store out of reach. \
run: 0 when it was told to stop (SIGTERM, SIGINT), even if the store did not answer: what is not settled stays with the source. \
wal-fetch: 0 delivered, 1 not there, 126 an error (Postgres stops instead of promoting)."
)]
pub struct Cli {
    /// The settings file.
    #[arg(long, short, global = true, env = "HOLDFAST_CONFIG", default_value = "holdfast.toml")]
    pub config: PathBuf,
    /// Print JSON instead of text.
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make an identity: the one thing, besides the store, that a restore needs.
    Keygen(Keygen),
    /// Create the repository and print its recovery kit.
    Init(Init),
    /// Manage the sources of the repository.
    #[command(subcommand)]
    Source(Source),
    /// Follow the configured sources until stopped.
    Run(Run),
    /// Follow one source until all that it holds now is durable, then end.
    Backfill(One),
    /// Bring a source back as of a moment.
    Restore(Box<Restore>),
    /// Show, from the repository alone, what can be restored and what is at risk. With an identity, of all sources
    /// that the repository has.
    Status(Status),
    /// List restore points, base backups and gaps of a source.
    List(List),
    /// Prove rights, source, store, clock and keys; say for each failure what to change. With an identity, also that
    /// it opens the newest data key.
    Check(Check),
    /// Read back what is stored and prove that it is whole. With an identity (so not on a sidecar's host), contents
    /// too.
    Verify(Verify),
    /// Ask the running sidecar for a base backup now.
    BaseBackup(One),
    /// Deliver one WAL file to Postgres (used as restore_command).
    WalFetch(WalFetch),
    /// Keep what a restore needs from expiring while it runs.
    Hold(Hold),
    /// Requests and cost per month for the configured intervals.
    Plan(CostPlan),
    /// Print completions for a shell.
    Completions { shell: clap_complete::Shell },
    /// Write the man pages into a folder.
    Man { folder: PathBuf },
}

#[derive(Debug, Args)]
pub struct Keygen {
    /// Where to write the identity (mode 0600); never overwritten.
    #[arg(long, short)]
    pub out: PathBuf,
    /// File that holds a passphrase to protect the identity with.
    #[arg(long)]
    pub passphrase_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Init {
    /// Who may restore: NAME=RECIPIENT as keygen printed it. Repeat it: two people, two places.
    #[arg(long = "recipient", required = true, value_name = "NAME=RECIPIENT")]
    pub recipients: Vec<String>,
    /// Identity files to keep in the ring as well; only such as a passphrase protects.
    #[arg(long = "store-identity", value_name = "FILE")]
    pub stored: Vec<PathBuf>,
}

/// Where a command takes an identity from. Restores and changes of the ring need one; other commands read by the
/// source's key file without it.
#[derive(Debug, Args)]
pub struct IdentityArgs {
    /// The identity file that keygen wrote.
    #[arg(long, env = "HOLDFAST_IDENTITY_FILE")]
    pub identity: Option<PathBuf>,
    /// File with the passphrase of the identity. Without --identity, of one that is stored in the repository.
    #[arg(long, env = "HOLDFAST_PASSPHRASE_FILE")]
    pub passphrase_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Source {
    /// Add a source: writes the key file that its sidecar needs.
    Add {
        name: String,
        /// What it is.
        #[arg(long, default_value = "postgres")]
        kind: Kind,
        /// Where to write the source's key (default: key_file of the settings).
        #[arg(long, short)]
        out: Option<PathBuf>,
        #[command(flatten)]
        identity: IdentityArgs,
    },
    /// Write the key file of a source again, from the ring.
    Key {
        name: String,
        /// Where to write it (default: key_file of the settings); never overwritten.
        #[arg(long, short)]
        out: Option<PathBuf>,
        #[command(flatten)]
        identity: IdentityArgs,
    },
    /// Accept the source's present identity as a new lineage (after pg_upgrade or a rebuild).
    Adopt {
        name: String,
        #[command(flatten)]
        identity: IdentityArgs,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    Postgres,
}

#[derive(Debug, Args)]
pub struct Run {
    /// Only these sources (default: all that are configured).
    pub names: Vec<String>,
    /// Take the streams over at once, even if another writer is alive.
    #[arg(long)]
    pub take_over: bool,
}

#[derive(Debug, Args)]
pub struct One {
    pub name: String,
}

#[derive(Debug, Args)]
pub struct Status {
    pub names: Vec<String>,
    /// A head remembered from earlier (as status prints it): fails when the repository was rolled back behind it.
    #[arg(long, value_name = "HEAD")]
    pub expect: Vec<String>,
    #[command(flatten)]
    pub identity: IdentityArgs,
}

#[derive(Debug, Args)]
pub struct List {
    pub name: String,
    /// Also list commits of this window.
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,
    #[arg(long, value_name = "TIME")]
    pub to: Option<String>,
    /// The lineage, as status prints it (default: the newest).
    #[arg(long)]
    pub lineage: Option<String>,
    /// At most so many commits.
    #[arg(long, default_value_t = 1000)]
    pub limit: usize,
    #[command(flatten)]
    pub identity: IdentityArgs,
}

#[derive(Debug, Args)]
pub struct Check {
    pub names: Vec<String>,
    #[command(flatten)]
    pub identity: IdentityArgs,
}

#[derive(Debug, Args)]
pub struct Verify {
    pub name: String,
    #[command(flatten)]
    pub identity: IdentityArgs,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("wish").required(true).args(["at", "lsn", "xid", "named", "immediate", "latest"])))]
pub struct Restore {
    pub name: String,
    /// The last commit before the first one later than TIME (RFC 3339, with offset).
    #[arg(long, value_name = "TIME")]
    pub at: Option<String>,
    /// A WAL position, X/Y.
    #[arg(long)]
    pub lsn: Option<String>,
    /// A transaction id.
    #[arg(long)]
    pub xid: Option<u64>,
    /// A restore point made with pg_create_restore_point.
    #[arg(long = "name", id = "named", value_name = "NAME")]
    pub named: Option<String>,
    /// The first consistent moment of the newest base backup.
    #[arg(long)]
    pub immediate: bool,
    /// Everything that is durable.
    #[arg(long)]
    pub latest: bool,
    /// Stop just before the wished entry instead of just after it.
    #[arg(long)]
    pub exclusive: bool,
    /// `current` (the line of the newest data), `latest` (the highest), or a number.
    #[arg(long, default_value = "current")]
    pub timeline: String,
    /// The lineage (default: the newest one that reaches the moment).
    #[arg(long)]
    pub lineage: Option<String>,
    /// The new data folder; must be empty or not there.
    #[arg(long)]
    pub target: PathBuf,
    /// Where pg_wal shall lie, when not inside the target.
    #[arg(long)]
    pub pg_wal: Option<PathBuf>,
    /// OLD=NEW folder of a tablespace; repeat it.
    #[arg(long, value_name = "OLD=NEW")]
    pub tablespace: Vec<String>,
    /// Make a standby instead of ending recovery.
    #[arg(long)]
    pub standby: bool,
    /// USER or USER:GROUP that the files are given to; needed when root restores.
    #[arg(long, value_name = "USER[:GROUP]")]
    pub owner: Option<String>,
    /// What Postgres does when it has reached the moment.
    #[arg(long, value_enum, default_value = "promote")]
    pub action: RecoveryAction,
    /// Only print what would be done.
    #[arg(long)]
    pub plan: bool,
    /// Start the server, and assert that it reached the promised position, time and timeline.
    #[arg(long)]
    pub start_check: bool,
    /// A role that exists in the cluster, for --start-check; it needs no rights.
    #[arg(long, default_value = "postgres")]
    pub role: String,
    /// After --start-check: start the server with its own settings and leave it running.
    #[arg(long, requires = "start_check")]
    pub keep_running: bool,
    /// Folder of the server's programs, for --start-check.
    #[arg(long, env = "HOLDFAST_PG_BIN")]
    pub pg_bin: Option<PathBuf>,
    #[command(flatten)]
    pub identity: IdentityArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RecoveryAction {
    Promote,
    Pause,
    Shutdown,
}

#[derive(Debug, Args)]
pub struct WalFetch {
    /// The folder that restore left in the data folder.
    #[arg(long)]
    pub own: PathBuf,
    /// %f: a segment or a history file.
    pub file: Option<String>,
    /// %p: where Postgres wants it.
    pub path: Option<PathBuf>,
    /// Run the prefetching process itself.
    #[arg(long, hide = true)]
    pub serve: bool,
}

#[derive(Debug, Args)]
pub struct Hold {
    pub name: String,
    /// How long to keep it; it is renewed until then.
    #[arg(long, default_value = "24h")]
    pub keep: String,
    #[command(flatten)]
    pub identity: IdentityArgs,
}

#[derive(Debug, Args)]
pub struct CostPlan {
    /// Dollars per million PUT requests.
    #[arg(long, default_value_t = 5.0)]
    pub put_price: f64,
}
