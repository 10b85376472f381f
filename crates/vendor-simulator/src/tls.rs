//! Creates the simulator's certificate, and the authority that signs it.
//!
//! The certificate must be used only for the simulator. The authority's key is discarded after
//! signing, so a client that trusts `ca.pem` trusts only this certificate.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

pub const ALPN_HTTP2: &[u8] = b"h2";
const ALPN_HTTP1: &[u8] = b"http/1.1";
const AUTHORITY: &str = "ca.pem";
const CERTIFICATE: &str = "server.pem";
const KEY: &str = "server-key.pem";
const NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Returns the path of the authority's certificate, which clients must trust.
pub fn authority_file(dir: &Path) -> PathBuf {
    dir.join(AUTHORITY)
}

/// Accepts TLS with the certificate in `dir`. If the directory is missing or empty, a certificate
/// is generated.
pub fn acceptor(dir: &Path) -> anyhow::Result<TlsAcceptor> {
    if !authority_file(dir).exists() {
        generate(dir)?;
    }
    let (certificate, key) = (dir.join(CERTIFICATE), dir.join(KEY));
    let unreadable = |file: &Path| {
        format!(
            "cannot read {}; delete its directory to have it made",
            file.display()
        )
    };
    let chain =
        CertificateDer::from_pem_file(&certificate).with_context(|| unreadable(&certificate))?;
    let key = PrivateKeyDer::from_pem_file(&key).with_context(|| unreadable(&key))?;
    let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder
        .with_safe_default_protocol_versions()?
        .with_no_client_auth();
    let mut config = builder
        .with_single_cert(vec![chain], key)
        .with_context(|| unreadable(&certificate))?;
    config.alpn_protocols = vec![ALPN_HTTP2.to_vec(), ALPN_HTTP1.to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Generates the files in a temporary sibling directory and renames the directory to `dir`. If
/// several simulators start at once, all use the files of the first.
fn generate(dir: &Path) -> anyhow::Result<()> {
    let mut staging_dir = dir.as_os_str().to_owned();
    staging_dir.push(format!(".{}", std::process::id()));
    let staging_dir = PathBuf::from(staging_dir);
    let outcome = write_files(&staging_dir).and_then(|()| Ok(fs::rename(&staging_dir, dir)?));
    if outcome.is_err() {
        // Nobody uses these files, so a failure to remove them is harmless.
        let _ = fs::remove_dir_all(&staging_dir);
    }
    match outcome {
        Err(_) if authority_file(dir).exists() => Ok(()),
        outcome => {
            outcome.with_context(|| format!("cannot make a certificate in {}", dir.display()))
        }
    }
}

fn write_files(dir: &Path) -> anyhow::Result<()> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "model-gateway simulator CA");
    let authority_key = KeyPair::generate()?;
    let authority = params.self_signed(&authority_key)?;
    let mut server = CertificateParams::new(NAMES.map(str::to_owned).to_vec())?;
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    server.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let certificate = server.signed_by(&key, &Issuer::from_params(&params, &authority_key))?;
    fs::DirBuilder::new().mode(0o700).create(dir)?;
    fs::write(dir.join(AUTHORITY), authority.pem())?;
    fs::write(dir.join(CERTIFICATE), certificate.pem())?;
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(dir.join(KEY))?;
    Ok(file.write_all(key.serialize_pem().as_bytes())?)
}

/// A directory that is removed when it is dropped.
pub struct TemporaryDir(PathBuf);

impl TemporaryDir {
    pub fn new() -> anyhow::Result<Self> {
        let dir =
            std::env::temp_dir().join(format!("model-gateway-simulator-{}", std::process::id()));
        // The creation fails if the directory exists, so that no other process's directory is used.
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(Self(dir))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
