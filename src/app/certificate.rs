//! Replaces the edge's certificate without cutting connections.
//!
//! Each handshake uses the latest certificate; open connections keep theirs. This file must not
//! select by server name: one certificate serves all addresses.

use anyhow::Context as _;
use arc_swap::ArcSwap;
use config::load_certificate;
use pingora::tls::sign::CertifiedKey;
use pingora::tls::{ClientHello, ResolvesServerCert};
use std::path::PathBuf;
use std::sync::Arc;

/// A certificate chain and its key, from the last successful load of their files.
#[derive(Debug)]
pub struct ReloadableCertificate(ArcSwap<CertifiedKey>);

impl ReloadableCertificate {
    /// Loads a certificate from its files.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, or if certificate and key do not match.
    pub fn from_files(files: &(PathBuf, PathBuf)) -> anyhow::Result<Arc<Self>> {
        pingora::tls::install_default_crypto_provider();
        Ok(Arc::new(Self(ArcSwap::from_pointee(Self::load_files(
            files,
        )?))))
    }

    /// Loads the current contents of the files.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, or if certificate and key do not match.
    pub fn load_files((cert, key): &(PathBuf, PathBuf)) -> anyhow::Result<CertifiedKey> {
        load_certificate(cert, key).with_context(|| {
            format!(
                "cannot read the TLS certificate {} with the key {}",
                cert.display(),
                key.display()
            )
        })
    }

    /// Replaces the certificate for all future handshakes.
    pub fn replace(&self, certified: CertifiedKey) {
        self.0.store(Arc::new(certified));
    }
}

impl ResolvesServerCert for ReloadableCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}
