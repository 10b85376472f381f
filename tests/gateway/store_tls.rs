//! Tests a store that is reached over TLS: the gateway accepts certificates that the system trusts,
//! and no others.

use crate::client::{self, Request};
use crate::world::{Plan, SOON, World, binary, free_port, wait_for, wait_until};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use test_world::redis::Server;

/// Makes a self-signed certificate for this machine in `dir`. Returns the paths of the certificate
/// and of its key.
fn certificate(dir: &Path) -> (String, String) {
    let (cert, key) = (
        dir.join("cert.pem").display().to_string(),
        dir.join("key.pem").display().to_string(),
    );
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ])
        .args([
            "-subj",
            "/CN=store",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-addext",
            "basicConstraints=CA:FALSE",
        ])
        .args(["-keyout", &key, "-out", &cert])
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(made.success());
    (cert, key)
}

/// An edge that trusts only `cert`.
struct Trusting(Child);

impl Trusting {
    fn start(world: &World, cert: &str) -> Self {
        let mut command = Command::new(binary());
        command
            .args(["edge", "-c"])
            .arg(&world.config)
            .env("SSL_CERT_FILE", cert)
            .env_remove("SSL_CERT_DIR");
        Self(command.stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Trusting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_store_is_spoken_to_over_tls_where_its_certificate_is_trusted_and_not_else() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = certificate(dir.path());
    let port = free_port().to_string();
    let files = [
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--tls-auth-clients",
        "no",
    ];
    let _redis = Server::start_on(free_port(), &[&["--tls-port", &port][..], &files].concat());
    let store = format!("store: {{kind: redis, url: \"rediss://127.0.0.1:{port}\"}}");
    let mut world = Plan::default()
        .role("edge")
        .edit("store: {kind: embedded}", &store)
        .begin();
    let readiness = |world: &World| client::try_ask(world.admin, &Request::get("/readyz"));
    let said = wait_for("the edge to say", SOON, || {
        readiness(&world).filter(|said| said.text().contains("ertificate"))
    });
    assert_eq!(said.status, 503, "{}", said.text());
    world.kill();
    let edge = Trusting::start(&world, &cert);
    wait_until("an edge that trusts the store", SOON, || world.is_ready());
    drop(edge);
}
