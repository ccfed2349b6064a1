//! An authority of our own and what it issues.

use std::sync::Arc;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer},
};

/// A certificate and its key, in PEM.
#[derive(Clone, Debug)]
pub struct Issued {
    pub certificate: String,
    pub key: String,
    certificate_der: Vec<u8>,
    key_der: Vec<u8>,
}

/// A certificate authority for one test.
pub struct Certificates {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Certificates {
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        params.distinguished_name.push(DnType::CommonName, "holdfast test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        Ok(Self { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate()?)? })
    }

    /// The authority's own certificate (PEM): what clients must trust.
    pub fn authority(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for servers at `localhost` and 127.0.0.1.
    pub fn server(&self) -> Result<Issued> {
        self.issue("localhost", &["localhost", "127.0.0.1"], ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A certificate for a server of another name.
    pub fn server_of(&self, name: &str) -> Result<Issued> {
        self.issue(name, &[name], ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A certificate for a client, its common name the user's.
    pub fn client(&self, user: &str) -> Result<Issued> {
        self.issue(user, &[], ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn issue(&self, common: &str, names: &[&str], usage: ExtendedKeyUsagePurpose) -> Result<Issued> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common);
        params.use_authority_key_identifier_extension = true;
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Issued {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            certificate_der: certificate.der().to_vec(),
            key_der: key.serialize_der(),
        })
    }
}

impl Issued {
    /// Settings for a TLS server that shows this certificate and asks clients for none.
    pub fn server_config(&self) -> Result<Arc<ServerConfig>> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let key = PrivateKeyDer::try_from(self.key_der.clone()).map_err(anyhow::Error::msg)?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![CertificateDer::from(self.certificate_der.clone())], key)
            .context("the issued certificate does not suit its key")?;
        Ok(Arc::new(config))
    }
}
