//! The edge's own certificate, read anew without a connection being cut.
//!
//! Each handshake takes whichever was shown last; connections that stand keep theirs. Must not
//! choose by name: one certificate serves all addresses.

use anyhow::Context as _;
use arc_swap::ArcSwap;
use pingora::tls::sign::CertifiedKey;
use pingora::tls::{ClientHello, CryptoProvider, ResolvesServerCert};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Of the files of a certificate chain and its key: what they held when they were last read well.
#[derive(Debug)]
pub struct Certificate(ArcSwap<CertifiedKey>);

impl Certificate {
    /// # Errors
    /// A file cannot be read, or the two do not belong together.
    pub fn read(files: &(PathBuf, PathBuf)) -> anyhow::Result<Arc<Self>> {
        Ok(Arc::new(Self(ArcSwap::from_pointee(Self::certified(
            files,
        )?))))
    }

    /// What the files hold now.
    ///
    /// # Errors
    /// As [`Certificate::read`].
    pub fn certified((cert, key): &(PathBuf, PathBuf)) -> anyhow::Result<CertifiedKey> {
        pingora::tls::install_default_crypto_provider();
        let provider = CryptoProvider::get_default().context("no cryptography")?;
        let path = |path: &Path| {
            path.to_str()
                .map(str::to_owned)
                .context("a TLS file's path is not UTF-8")
        };
        let what = || {
            format!(
                "read the TLS certificate {} with the key {}",
                cert.display(),
                key.display()
            )
        };
        let (chain, key) = pingora::tls::load_certs_and_key_files(&path(cert)?, &path(key)?)
            .map_err(|error| anyhow::anyhow!("{error}"))
            .with_context(what)?
            .with_context(what)?;
        CertifiedKey::from_der(chain, key, provider).with_context(what)
    }

    /// Takes another one for all handshakes to come.
    pub fn show(&self, certified: CertifiedKey) {
        self.0.store(Arc::new(certified));
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}
