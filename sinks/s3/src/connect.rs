//! From settings to a client: connections (TLS, proxy, limits) and what of the SDK is switched off. Retries,
//! deadlines, payload hashes and checksums are ours to decide, so the SDK's own are off by name.

use std::{
    fmt,
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use aws_config::BehaviorVersion;
use aws_sdk_s3::{
    Client,
    config::{
        Builder, IdentityCache, Region, RequestChecksumCalculation, ResponseChecksumValidation,
        RuntimeComponents, SharedCredentialsProvider, SharedHttpClient, StalledStreamProtectionConfig,
        retry::RetryConfig, timeout::TimeoutConfig,
    },
};
use aws_smithy_http_client::{
    Connector,
    proxy::ProxyConfig,
    tls::{self, TlsContext, TrustStore},
};
use aws_smithy_runtime_api::client::http::{HttpClient, HttpConnectorSettings, SharedHttpConnector};
use holdfast_core::{Clock, Error, Result};
use rustls::{RootCertStore, pki_types::CertificateDer, pki_types::pem::PemObject};

use crate::{credentials::Keeper, date::DateReader, settings::S3Settings};

/// Stores close idle connections after some twenty seconds; we do it first, so that no request meets one that
/// is just being closed.
const IDLE: Duration = Duration::from_secs(15);

const IDLE_MAX: usize = 64;

pub async fn connect(settings: &S3Settings, clock: &Clock, dates: DateReader) -> Result<(Client, Keeper)> {
    settings.check()?;
    let http = SharedHttpClient::new(Connections {
        tls: trust(settings.ca_file.as_deref()).await?,
        proxy: proxy(settings)?,
        connect_timeout: settings.connect_timeout,
        made: Mutex::default(),
    });
    let region = region(settings).await?;
    let keeper = Keeper::new(settings, http.clone(), region.clone(), clock.clone());
    let mut config = Builder::new()
        .behavior_version(BehaviorVersion::latest())
        .http_client(http)
        .region(region)
        .credentials_provider(SharedCredentialsProvider::new(keeper.clone()))
        .identity_cache(IdentityCache::no_cache())
        .retry_config(RetryConfig::disabled())
        .timeout_config(TimeoutConfig::disabled())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
        .disable_s3_express_session_auth(true)
        .interceptor(dates)
        .force_path_style(settings.path_style.unwrap_or(settings.endpoint.is_some()));
    if let Some(endpoint) = &settings.endpoint {
        config = config.endpoint_url(endpoint);
    }
    Ok((Client::from_conf(config.build()), keeper))
}

async fn region(settings: &S3Settings) -> Result<Region> {
    if let Some(region) = &settings.region {
        return Ok(Region::new(region.clone()));
    }
    let named = ["AWS_REGION", "AWS_DEFAULT_REGION"].into_iter().find_map(|name| std::env::var(name).ok());
    if let Some(region) = named.filter(|region| !region.is_empty()) {
        return Ok(Region::new(region));
    }
    let mut profile = aws_config::profile::ProfileFileRegionProvider::builder();
    if let Some(name) = &settings.profile {
        profile = profile.profile_name(name);
    }
    let profile = profile.build();
    match aws_config::meta::region::ProvideRegion::region(&profile).await {
        Some(region) => Ok(region),
        None if settings.endpoint.is_some() => Ok(Region::from_static("us-east-1")),
        None => Err(Error::configure(format!(
            "the region of the bucket «{}» is not known: set `region`, or AWS_REGION",
            settings.bucket
        ))),
    }
}

/// Trusts the system's authorities and those of `file`. The file is checked here: the SDK would panic over it.
async fn trust(file: Option<&Path>) -> Result<TlsContext> {
    let mut store = TrustStore::default();
    if let Some(file) = file {
        let fail = |why: String| Error::configure(format!("`ca_file` {}: {why}", file.display()));
        let pem = tokio::fs::read(file)
            .await
            .map_err(|cause| fail("it could not be read".to_owned()).because(cause))?;
        let mut trial = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate
                .map_err(|cause| fail("it is no PEM file of certificates".to_owned()).because(cause))?;
            trial
                .add(certificate)
                .map_err(|cause| fail("a certificate in it cannot be used".to_owned()).because(cause))?;
        }
        if trial.is_empty() {
            return Err(fail("it holds no certificate".to_owned()));
        }
        store = store.with_pem_certificate(pem);
    }
    TlsContext::builder()
        .with_trust_store(store)
        .build()
        .map_err(|cause| Error::configure("TLS could not be set up").because(cause))
}

fn proxy(settings: &S3Settings) -> Result<ProxyConfig> {
    let Some(url) = &settings.proxy else { return Ok(ProxyConfig::from_env()) };
    if url == "none" {
        return Ok(ProxyConfig::disabled());
    }
    let proxy = ProxyConfig::all(url.as_str()).map_err(|cause| {
        Error::configure("`proxy` is no address: write it like http://host:port, or none").because(cause)
    })?;
    Ok(match &settings.no_proxy {
        Some(hosts) => proxy.no_proxy(hosts),
        None => proxy,
    })
}

/// One pool of connections per pair of time-outs: the store's, and those that sources of credentials ask for.
struct Connections {
    tls: TlsContext,
    proxy: ProxyConfig,
    connect_timeout: Duration,
    made: Mutex<Vec<(HttpTimes, SharedHttpConnector)>>,
}

type HttpTimes = (Option<Duration>, Option<Duration>);

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connections")
    }
}

impl HttpClient for Connections {
    fn http_connector(&self, settings: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        let times = (settings.connect_timeout(), settings.read_timeout());
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, connector)) = made.iter().find(|(known, _)| *known == times) {
            return connector.clone();
        }
        let mut wanted = HttpConnectorSettings::builder();
        wanted.set_connect_timeout(Some(times.0.unwrap_or(self.connect_timeout)));
        wanted.set_read_timeout(times.1);
        let connector = Connector::builder()
            .connector_settings(wanted.build())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(IDLE_MAX)
            .proxy_config(self.proxy.clone())
            .tls_provider(tls::Provider::rustls(tls::rustls_provider::CryptoMode::AwsLc))
            .tls_context(self.tls.clone())
            .build();
        let connector = SharedHttpConnector::new(connector);
        made.push((times, connector.clone()));
        connector
    }
}
