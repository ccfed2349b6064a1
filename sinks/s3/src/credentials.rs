//! Who we are to the store. Owns the credentials in use; files are read again when they change, temporary
//! credentials are fetched again before they expire, and both at once when the store refuses the present ones.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use aws_config::{
    BehaviorVersion, default_provider::credentials::DefaultCredentialsChain,
    profile::ProfileFileCredentialsProvider, provider_config::ProviderConfig,
};
use aws_credential_types::{
    Credentials,
    provider::{self, ProvideCredentials, error::CredentialsError, future},
};
use aws_runtime::env_config::file::{EnvConfigFileKind, EnvConfigFiles};
use aws_sdk_s3::config::{Region, SharedCredentialsProvider, SharedHttpClient};
use holdfast_core::{Clock, Instant};
use tokio::sync::Mutex;

use crate::settings::S3Settings;

/// Files are looked at once in this time.
const LOOK: Duration = Duration::from_secs(1);

/// Temporary credentials are replaced this long before they expire.
const MARGIN: Duration = Duration::from_secs(300);

/// While valid ones are at hand, the source is not asked more often than this.
const PATIENCE: Duration = Duration::from_secs(30);

/// Credentials that name no end are asked for again after this: a process that prints them may change its mind.
const UNDATED: Duration = Duration::from_secs(900);

/// Refreshes by itself.
#[derive(Clone, Debug)]
pub struct Keeper(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    source: Source,
    watched: Vec<PathBuf>,
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Debug)]
enum Source {
    Files {
        access: PathBuf,
        secret: PathBuf,
        token: Option<PathBuf>,
    },
    /// The named profile or file, and nothing else.
    Profile {
        name: Option<String>,
        file: Option<PathBuf>,
        http: SharedHttpClient,
        region: Region,
    },
    /// Environment, profile, web identity, container, instance: in the SDK's order.
    Chain {
        http: SharedHttpClient,
        region: Region,
    },
}

#[derive(Debug, Default)]
struct State {
    /// Kept while the files are the same: it knows of roles it assumed.
    provider: Option<SharedCredentialsProvider>,
    seen: Option<Vec<Option<Seen>>>,
    looked: Option<Instant>,
    held: Option<(Credentials, Instant)>,
}

/// What tells a file from its next version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
}

impl Keeper {
    pub fn new(settings: &S3Settings, http: SharedHttpClient, region: Region, clock: Clock) -> Self {
        let (source, watched) = match (&settings.access_key_file, &settings.secret_key_file) {
            (Some(access), Some(secret)) => {
                let token = settings.session_token_file.clone();
                let watched = [access, secret].into_iter().chain(&token).cloned().collect();
                (Source::Files { access: access.clone(), secret: secret.clone(), token }, watched)
            }
            _ => {
                let watched = shared_files(settings.credentials_file.as_deref());
                let (name, file) = (settings.profile.clone(), settings.credentials_file.clone());
                let source = if name.is_some() || file.is_some() {
                    Source::Profile { name, file, http, region }
                } else {
                    Source::Chain { http, region }
                };
                (source, watched)
            }
        };
        Self(Arc::new(Inner { source, watched, clock, state: Mutex::default() }))
    }

    /// Forgets what is held and asks again; says whether that gave other credentials.
    pub async fn renew(&self) -> bool {
        let before = {
            let mut state = self.0.state.lock().await;
            let before = state.held.take().map(|(held, _)| held);
            *state = State::default();
            before
        };
        match self.0.current().await {
            Ok(now) => before.is_none_or(|before| {
                before.access_key_id() != now.access_key_id()
                    || before.secret_access_key() != now.secret_access_key()
                    || before.session_token() != now.session_token()
            }),
            Err(_) => false,
        }
    }
}

impl ProvideCredentials for Keeper {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.0.current())
    }
}

impl Inner {
    async fn current(&self) -> provider::Result {
        let mut state = self.state.lock().await;
        let now = self.clock.now();
        if state.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= LOOK) {
            let seen = Some(look(&self.watched).await);
            state.looked = Some(now);
            if state.seen != seen {
                state.seen = seen;
                state.provider = None;
                state.held = None;
            }
        }
        let spare = match &state.held {
            Some((held, since)) => {
                let age = now.saturating_duration_since(*since);
                let left = held.expiry().map(|end| self.left(end));
                let good = match left {
                    None => age < UNDATED,
                    Some(left) => left > MARGIN || (age < PATIENCE && !left.is_zero()),
                };
                if good {
                    return Ok(held.clone());
                }
                left.is_none_or(|left| !left.is_zero()).then(|| held.clone())
            }
            None => None,
        };
        match self.fetch(&mut state).await {
            Ok(fresh) => {
                state.held = Some((fresh.clone(), now));
                Ok(fresh)
            }
            // A source of credentials that is down for a while does not stop us before they end.
            Err(error) => spare.ok_or(error),
        }
    }

    fn left(&self, end: SystemTime) -> Duration {
        let now = u64::try_from(self.clock.wall().micros()).unwrap_or(0);
        let end = end.duration_since(UNIX_EPOCH).unwrap_or_default();
        end.saturating_sub(Duration::from_micros(now))
    }

    async fn fetch(&self, state: &mut State) -> provider::Result {
        if let Source::Files { access, secret, token } = &self.source {
            let token = match token {
                Some(token) => Some(value(token).await?),
                None => None,
            };
            return Ok(Credentials::new(value(access).await?, value(secret).await?, token, None, "files"));
        }
        let provider = match &state.provider {
            Some(provider) => provider.clone(),
            None => {
                let made = self.source.provider().await;
                state.provider = Some(made.clone());
                made
            }
        };
        provider.provide_credentials().await
    }
}

impl Source {
    async fn provider(&self) -> SharedCredentialsProvider {
        let configured = |http: &SharedHttpClient, region: &Region| {
            ProviderConfig::without_region()
                .with_behavior_version(Some(BehaviorVersion::latest()))
                .with_http_client(http.clone())
                .with_region(Some(region.clone()))
        };
        match self {
            Self::Files { .. } => SharedCredentialsProvider::new(NoProvider),
            Self::Profile { name, file, http, region } => {
                let mut builder =
                    ProfileFileCredentialsProvider::builder().configure(&configured(http, region));
                if let Some(name) = name {
                    builder = builder.profile_name(name);
                }
                if let Some(file) = file {
                    let files = EnvConfigFiles::builder()
                        .with_file(EnvConfigFileKind::Credentials, file)
                        .include_default_config_file(true)
                        .build();
                    builder = builder.profile_files(files);
                }
                SharedCredentialsProvider::new(builder.build())
            }
            Self::Chain { http, region } => {
                let builder = DefaultCredentialsChain::builder()
                    .configure(configured(http, region))
                    .region(region.clone());
                SharedCredentialsProvider::new(builder.build().await)
            }
        }
    }
}

/// Stands where key files are read directly.
#[derive(Debug)]
struct NoProvider;

impl ProvideCredentials for NoProvider {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::ready(Err(CredentialsError::not_loaded("key files are read directly")))
    }
}

/// The shared files that the SDK would read.
fn shared_files(credentials: Option<&Path>) -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let named = |variable: &str, default: &str| {
        std::env::var_os(variable)
            .map(PathBuf::from)
            .or_else(|| home.as_ref().map(|home| home.join(".aws").join(default)))
    };
    let credentials =
        credentials.map(Path::to_owned).or_else(|| named("AWS_SHARED_CREDENTIALS_FILE", "credentials"));
    credentials.into_iter().chain(named("AWS_CONFIG_FILE", "config")).collect()
}

async fn look(files: &[PathBuf]) -> Vec<Option<Seen>> {
    use std::os::unix::fs::MetadataExt;
    let mut seen = Vec::with_capacity(files.len());
    for file in files {
        seen.push(tokio::fs::metadata(file).await.ok().map(|meta| Seen {
            modified: meta.modified().ok(),
            length: meta.len(),
            inode: meta.ino(),
        }));
    }
    seen
}

/// The one value of a file.
async fn value(file: &Path) -> Result<String, CredentialsError> {
    let text = tokio::fs::read_to_string(file).await.map_err(|cause| {
        CredentialsError::invalid_configuration(format!("{} could not be read: {cause}", file.display()))
    })?;
    let text = text.trim();
    if text.is_empty() {
        return Err(CredentialsError::invalid_configuration(format!("{} is empty", file.display())));
    }
    Ok(text.to_owned())
}
