//! Channel binding of kind `tls-server-end-point` (RFC 5929): a hash of the server's certificate, by the
//! hash of the certificate's own signature; MD5 and SHA-1 are replaced by SHA-256.

use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};
use x509_cert::der::{Decode, Encode};

#[derive(Clone, Copy)]
enum Hash {
    Sha224,
    Sha256,
    Sha384,
    Sha512,
}

/// `None` when the signature has no hash of its own (Ed25519): there is no binding then.
pub(crate) fn hash(certificate: &[u8]) -> Option<Vec<u8>> {
    let parsed = x509_cert::Certificate::from_der(certificate).ok()?;
    let algorithm = parsed.signature_algorithm();
    let hash = match algorithm.oid.to_string().as_str() {
        // RSA with MD5 and SHA-1, ECDSA with SHA-1.
        "1.2.840.113549.1.1.4" | "1.2.840.113549.1.1.5" | "1.2.840.10045.4.1" => Hash::Sha256,
        // RSA (PKCS #1 v1.5), then ECDSA.
        "1.2.840.113549.1.1.11" | "1.2.840.10045.4.3.2" => Hash::Sha256,
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" => Hash::Sha384,
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" => Hash::Sha512,
        "1.2.840.113549.1.1.14" | "1.2.840.10045.4.3.1" => Hash::Sha224,
        "1.2.840.113549.1.1.10" => pss(&algorithm.parameters.as_ref()?.to_der().ok()?),
        _ => return None,
    };
    Some(match hash {
        Hash::Sha224 => Sha224::digest(certificate).to_vec(),
        Hash::Sha256 => Sha256::digest(certificate).to_vec(),
        Hash::Sha384 => Sha384::digest(certificate).to_vec(),
        Hash::Sha512 => Sha512::digest(certificate).to_vec(),
    })
}

/// The hash of RSA-PSS stands first in its parameters (the other one there belongs to the mask); without
/// any it is SHA-1.
fn pss(parameters: &[u8]) -> Hash {
    // id-sha256 and its neighbours: 2.16.840.1.101.3.4.2.n
    const FAMILY: &[u8] = &[0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02];
    let at = parameters.windows(FAMILY.len()).position(|window| window == FAMILY);
    match at.and_then(|at| parameters.get(at + FAMILY.len())) {
        Some(2) => Hash::Sha384,
        Some(3) => Hash::Sha512,
        Some(4) => Hash::Sha224,
        _ => Hash::Sha256,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_with(algorithm: &'static rcgen::SignatureAlgorithm) -> Vec<u8> {
        let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
        let params = rcgen::CertificateParams::new(vec!["db".to_owned()]).unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn the_hash_follows_the_certificates_signature() {
        let certificate = made_with(&rcgen::PKCS_ECDSA_P256_SHA256);
        assert_eq!(hash(&certificate), Some(Sha256::digest(&certificate).to_vec()));
        let certificate = made_with(&rcgen::PKCS_ECDSA_P384_SHA384);
        assert_eq!(hash(&certificate), Some(Sha384::digest(&certificate).to_vec()));
        assert_eq!(hash(&made_with(&rcgen::PKCS_ED25519)), None);
        assert_eq!(hash(b"no certificate"), None);
    }
}
