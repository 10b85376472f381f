//! Reads the certificate of `listen.tls` and its private key, and finds their faults.
//!
//! `check` and the edge use the same function, so that a certificate that passes also serves. This
//! file must not put any part of a key into a message.

use super::source::cannot_read;
use base::regular_file::read_regular;
use std::path::Path;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{Error, InconsistentKeys};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Maximum size of one file in bytes. Certificate chains have a few KiB.
const MAX_PEM_BYTES: u64 = 1_048_576;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateFault {
    #[error("{0}")]
    Certificate(String),
    #[error("{0}")]
    Key(String),
}

/// Reads a certificate chain and its key from PEM files.
///
/// # Errors
/// Returns an error if a file cannot be read, or if certificate and key do not match.
pub fn load_certificate(cert: &Path, key: &Path) -> Result<CertifiedKey, CertificateFault> {
    let chain = read_pem(cert).map_err(CertificateFault::Certificate)?;
    let private = read_pem(key).map_err(CertificateFault::Key)?;
    let chain = parse_chain(cert, &chain).map_err(CertificateFault::Certificate)?;
    let private = parse_key(key, &private).map_err(CertificateFault::Key)?;
    let provider = ring::default_provider();
    let private = provider
        .key_provider
        .load_private_key(private)
        .map_err(|error| {
            CertificateFault::Key(format!(
                "{} has a key that cannot be used: {error}",
                key.display()
            ))
        })?;
    let certified = CertifiedKey::new(chain, private);
    match certified.keys_match() {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        Err(Error::InconsistentKeys(_)) => Err(CertificateFault::Key(format!(
            "{} does not belong to the certificate {}",
            key.display(),
            cert.display()
        ))),
        Err(error) => Err(CertificateFault::Certificate(format!(
            "{} has no certificate that can be used: {error}",
            cert.display()
        ))),
    }
}

/// Describes a certificate that clients refuse now, because it has expired or is not valid yet.
pub fn validity_warning(certified: &CertifiedKey, now_ms: i64) -> Option<String> {
    let first = certified.cert.first()?;
    let (_, parsed) = X509Certificate::from_der(first).ok()?;
    let validity = parsed.validity();
    let shown = |seconds: i64| base::clock::rfc3339(seconds.saturating_mul(1_000));
    let (from, to) = (
        validity.not_before.timestamp(),
        validity.not_after.timestamp(),
    );
    let now = now_ms / 1_000;
    if to < now {
        Some(format!(
            "the certificate expired at {}; clients refuse it",
            shown(to)
        ))
    } else if from > now {
        Some(format!(
            "the certificate is valid only from {}; clients refuse it until then",
            shown(from)
        ))
    } else {
        None
    }
}

fn read_pem(path: &Path) -> Result<Vec<u8>, String> {
    let size = std::fs::metadata(path).map_err(|error| cannot_read(path, &error))?;
    if size.len() > MAX_PEM_BYTES {
        return Err(format!(
            "{} has {} bytes; a PEM file has at most {MAX_PEM_BYTES}",
            path.display(),
            size.len()
        ));
    }
    read_regular(path).map_err(|error| cannot_read(path, &error))
}

fn parse_chain(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let path = path.display();
    match chain {
        Ok(chain) if chain.is_empty() => Err(match PrivateKeyDer::from_pem_slice(pem) {
            Ok(_) => format!("{path} has a private key and no certificate: swap `cert` and `key`?"),
            Err(_) => format!("{path} has no PEM certificate (-----BEGIN CERTIFICATE-----)"),
        }),
        Ok(chain) => Ok(chain),
        Err(_) => Err(format!("{path} is damaged: its PEM text cannot be read")),
    }
}

fn parse_key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    if let Ok(key) = PrivateKeyDer::from_pem_slice(pem) {
        return Ok(key);
    }
    let path = path.display();
    let has = |text: &[u8]| pem.windows(text.len()).any(|window| window == text);
    Err(if has(b"ENCRYPTED") {
        format!("{path} is protected by a passphrase: store the key without one")
    } else if has(b"BEGIN CERTIFICATE") {
        format!("{path} has a certificate and no private key: swap `cert` and `key`?")
    } else {
        format!("{path} has no PEM private key (-----BEGIN PRIVATE KEY-----)")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    /// Writes `NAME.pem` and `NAME.key`; the certificate is valid in these years.
    fn certify(dir: &Path, name: &str, from: i32, to: i32) {
        let mut params = CertificateParams::new(vec!["gateway.example".to_owned()]).unwrap();
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(to, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(dir.join(format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    #[test]
    fn a_fault_names_the_file_that_has_it() {
        use CertificateFault::{Certificate, Key};
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        certify(dir.path(), "one", 2020, 2120);
        certify(dir.path(), "other", 2020, 2120);
        let encrypted =
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        std::fs::write(path("encrypted"), encrypted).unwrap();
        std::fs::write(path("empty"), "").unwrap();
        std::fs::write(
            path("damaged"),
            "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
        )
        .unwrap();
        std::fs::write(path("large"), vec![b'\n'; 1_048_577]).unwrap();
        std::fs::create_dir(path("folder")).unwrap();
        let load = |cert: &str, key: &str| load_certificate(&path(cert), &path(key));
        assert!(load("one.pem", "one.key").is_ok());
        for (cert, key, is_in_key, why) in [
            ("gone.pem", "one.key", false, "does not exist"),
            ("one.pem", "gone.key", true, "does not exist"),
            ("folder", "one.key", false, "is a directory"),
            ("empty", "one.key", false, "has no PEM certificate"),
            ("damaged", "one.key", false, "is damaged"),
            ("large", "one.key", false, "has 1048577 bytes"),
            ("one.key", "one.pem", false, "swap `cert` and `key`"),
            ("one.pem", "one.pem", true, "swap `cert` and `key`"),
            ("one.pem", "empty", true, "has no PEM private key"),
            ("one.pem", "encrypted", true, "passphrase"),
            ("one.pem", "other.key", true, "does not belong to"),
        ] {
            let fault = load(cert, key).unwrap_err();
            let message = fault.to_string();
            assert_eq!(matches!(fault, Key(_)), is_in_key, "{message}");
            assert_eq!(matches!(fault, Certificate(_)), !is_in_key, "{message}");
            assert!(message.contains(why), "{cert}, {key}: {message}");
        }
    }

    #[test]
    fn a_certificate_outside_its_time_is_a_warning() {
        let dir = tempfile::tempdir().unwrap();
        certify(dir.path(), "one", 2030, 2031);
        let path = |name: &str| dir.path().join(name);
        let certified = load_certificate(&path("one.pem"), &path("one.key")).unwrap();
        let at = |time: &str| {
            let time: jiff::Timestamp = time.parse().unwrap();
            validity_warning(&certified, time.as_millisecond())
        };
        assert!(
            at("2029-12-31T23:59:59Z")
                .unwrap()
                .contains("only from 2030-01-01")
        );
        assert_eq!(at("2030-01-01T00:00:00Z"), None);
        assert_eq!(at("2031-01-01T00:00:00Z"), None);
        assert!(
            at("2031-01-01T00:00:01Z")
                .unwrap()
                .contains("expired at 2031-01-01")
        );
    }
}
