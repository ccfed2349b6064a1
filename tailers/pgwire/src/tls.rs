//! TLS as libpq means it: who is trusted for each `sslmode`, and what channel binding hashes.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    sync::Arc,
};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    server::ParsedCertificate,
};
use x509_cert::der::Decode;

use crate::{
    Error, Result,
    config::{Roots, Tls, TlsMode, check_readers},
};

mod end_point;
pub(crate) use end_point::hash as end_point_hash;

/// The protocol name that servers from 17 on expect.
const ALPN: &[u8] = b"postgresql";

impl Tls {
    /// The client's side of TLS for these settings; reads certificates and keys, so it blocks. The same
    /// serves a plain SQL connection (`tokio-postgres-rustls`).
    pub fn client_config(&self) -> Result<ClientConfig> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = Verifier::new(self, provider.clone())?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|cause| Error::Config(format!("TLS cannot be set up: {cause}")))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match &self.certificate {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate)?;
                let meta = fs::metadata(key)
                    .map_err(|cause| Error::Config(format!("{} cannot be read: {cause}", key.display())))?;
                check_readers(key, meta.permissions().mode(), meta.uid())?;
                let secret = PrivateKeyDer::from_pem_file(key).map_err(|cause| {
                    Error::Config(format!(
                        "{} holds no usable private key: {cause} (a key with a passphrase is not supported)",
                        key.display()
                    ))
                })?;
                builder.with_client_auth_cert(chain, secret).map_err(|cause| {
                    Error::Config(format!(
                        "{} and {} do not work together: {cause}",
                        certificate.display(),
                        key.display()
                    ))
                })?
            }
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(config)
    }
}

fn certificates(path: &std::path::Path) -> Result<Vec<CertificateDer<'static>>> {
    let bad = |cause| Error::Config(format!("{} holds no usable certificate: {cause}", path.display()));
    let list: Vec<_> =
        CertificateDer::pem_file_iter(path).map_err(bad)?.collect::<Result<_, _>>().map_err(bad)?;
    match list.is_empty() {
        true => Err(Error::Config(format!("{} holds no certificate in PEM form", path.display()))),
        false => Ok(list),
    }
}

/// Checks a server's certificate as far as `sslmode` asks. That the server holds the certificate's key is
/// always checked.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    chain: Option<Chain>,
}

#[derive(Debug)]
struct Chain {
    inner: Arc<WebPkiServerVerifier>,
    /// Given as roots and trusted as they are, also when the server itself presents one (a self-made
    /// certificate that calls itself an authority).
    roots: Vec<CertificateDer<'static>>,
    names: bool,
}

impl Verifier {
    fn new(tls: &Tls, provider: Arc<CryptoProvider>) -> Result<Self> {
        // As in libpq, a root that is there is used also for `require`; below that nothing is promised.
        let roots = match &tls.roots {
            Some(roots) if tls.mode >= TlsMode::Require => roots,
            _ => return Ok(Self { provider, chain: None }),
        };
        let (list, origin) = match roots {
            Roots::File(path) => (certificates(path)?, path.display().to_string()),
            Roots::System => {
                (rustls_native_certs::load_native_certs().certs, "the system's store".to_owned())
            }
        };
        let mut store = RootCertStore::empty();
        let (usable, _) = store.add_parsable_certificates(list.iter().cloned());
        if usable == 0 {
            return Err(Error::Config(format!("{origin} holds no usable root certificate")));
        }
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider.clone())
            .build()
            .map_err(|cause| Error::Config(format!("the roots of {origin} cannot be used: {cause}")))?;
        let names = tls.mode == TlsMode::VerifyFull;
        Ok(Self { provider, chain: Some(Chain { inner, roots: list, names }) })
    }
}

impl Chain {
    fn check(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        if self.roots.iter().any(|root| root == end_entity) {
            in_time(end_entity, now)?;
            return match self.names {
                true => verify_server_name(&ParsedCertificate::try_from(end_entity)?, name),
                false => Ok(()),
            };
        }
        match self.inner.verify_server_cert(end_entity, intermediates, name, ocsp, now) {
            Ok(_) => Ok(()),
            // The name is looked at last, after the chain was found good.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.names => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn in_time(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), rustls::Error> {
    let bad = |error| rustls::Error::InvalidCertificate(error);
    let parsed =
        x509_cert::Certificate::from_der(certificate).map_err(|_| bad(CertificateError::BadEncoding))?;
    let validity = parsed.tbs_certificate().validity();
    if now.as_secs() < validity.not_before.to_unix_duration().as_secs() {
        return Err(bad(CertificateError::NotValidYet));
    }
    if now.as_secs() > validity.not_after.to_unix_duration().as_secs() {
        return Err(bad(CertificateError::Expired));
    }
    Ok(())
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(chain) = &self.chain {
            chain.check(end_entity, intermediates, server_name, ocsp_response, now)?;
        }
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, known)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, known)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Whether the server agreed on Postgres's protocol name, which direct TLS demands.
pub(crate) fn speaks_postgres(alpn: Option<&[u8]>) -> bool {
    alpn == Some(ALPN)
}
