//! Tests TLS at the edge: both HTTP versions, both TLS versions, large bodies and streams, and a
//! certificate that is replaced while connections are open.

use crate::client::Request;
use crate::surface::{BOTH, Chat, Surface};
use crate::world::{Plan, SOON, World, wait_for, wait_until};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Writes a new self-signed certificate for loopback into `dir`, and replaces an existing one.
fn certify(dir: &Path) {
    let out = |name: &str| dir.join(name).display().to_string();
    let output = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
        ])
        .args([
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost,IP:127.0.0.1",
        ])
        .args(["-keyout", &out("key.pem"), "-out", &out("cert.pem")])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

pub fn secure() -> (World, TempDir) {
    secure_with(Plan::default())
}

fn secure_with(plan: Plan) -> (World, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    certify(dir.path());
    let path = |name: &str| dir.path().join(name).display().to_string();
    let tls = format!(
        "listen:\n  tls: {{cert: {:?}, key: {:?}}}\n",
        path("cert.pem"),
        path("key.pem")
    );
    (plan.edit("listen:\n", &tls).start(), dir)
}

/// Result of a curl request with this CA certificate: HTTP version, status and body, or `None` if
/// curl failed.
fn curl(
    world: &World,
    cert: &Path,
    options: &[&str],
    surface: Surface,
    key: &str,
    body: &[u8],
) -> Option<(String, String)> {
    let mut curl = Command::new("curl")
        .args([
            "--silent",
            "--max-time",
            "60",
            "--write-out",
            "\n%{http_version} %{http_code}",
            "--cacert",
        ])
        .arg(cert)
        .args(options)
        .args([
            "--header",
            "content-type: application/json",
            "--header",
            &format!("x-api-key: {key}"),
        ])
        .args([
            "--data-binary",
            "@-",
            &format!("https://127.0.0.1:{}{}", world.edge, surface.path()),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    curl.stdin
        .take()
        .unwrap()
        .write_all(body)
        .unwrap_or_default();
    let output = curl.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, last) = text.rsplit_once('\n').unwrap();
    output
        .status
        .success()
        .then(|| (last.to_owned(), body.to_owned()))
}

/// A body of 5 MB.
fn large(surface: Surface) -> Vec<u8> {
    let mut body = surface.body("input=1 output=1", false, 1_000);
    body["messages"][0]["content"] =
        format!("[[sim input=1 output=1]] {}", "0123456789".repeat(500_000)).into();
    body.to_string().into_bytes()
}

#[test]
fn both_protocols_and_both_versions_carry_large_bodies_and_streams() {
    let (world, dir) = secure();
    let account = world.account();
    let cert = dir.path().join("cert.pem");
    for (options, version) in [
        (&["--http1.1", "--tlsv1.2", "--tls-max", "1.2"][..], "1.1"),
        (&["--http1.1", "--tlsv1.3"], "1.1"),
        (&["--http2", "--tlsv1.2", "--tls-max", "1.2"], "2"),
        (&["--http2", "--tlsv1.3"], "2"),
    ] {
        for surface in BOTH {
            let answer = curl(
                &world,
                &cert,
                options,
                surface,
                &account.key,
                &large(surface),
            );
            assert_eq!(
                answer.expect("an answer").0,
                format!("{version} 200"),
                "{options:?}"
            );
            let body = surface
                .body("events=20 input=1 output=20", true, 1_000)
                .to_string();
            let (status, text) = curl(
                &world,
                &cert,
                options,
                surface,
                &account.key,
                body.as_bytes(),
            )
            .expect("an answer");
            assert_eq!(status, format!("{version} 200"), "{options:?}");
            assert!(
                text.contains(surface.terminal().trim_end()),
                "{options:?}: {text}"
            );
        }
    }
    assert_eq!(world.vendor.calls(), 16);
    // The edge refuses older TLS versions, and does not answer plain HTTP.
    let old = [
        "--http1.1",
        "--tlsv1.0",
        "--tls-max",
        "1.1",
        "--ciphers",
        "DEFAULT@SECLEVEL=0",
    ];
    assert!(curl(&world, &cert, &old, Chat, &account.key, b"{}").is_none());
    let mut plain = world.connect();
    plain.send(&Request::get("/healthz").bytes());
    let mut got = Vec::new();
    while let Some(head) = plain.head() {
        got.push(head);
    }
    assert!(got.is_empty(), "{got:?}");
    world.close();
}

/// A connection of the openssl client that stays open.
struct Held {
    client: Child,
    got: Vec<u8>,
}

impl Held {
    fn open(world: &World, cert: &Path) -> Self {
        let client = Command::new("openssl")
            .args([
                "s_client",
                "-quiet",
                "-verify_return_error",
                "-connect",
                &format!("127.0.0.1:{}", world.edge),
            ])
            .arg("-CAfile")
            .arg(cert)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            client,
            got: Vec::new(),
        }
    }

    fn send(&mut self, request: &Request) {
        self.client
            .stdin
            .as_mut()
            .unwrap()
            .write_all(&request.bytes())
            .unwrap();
    }

    /// Reads until `text` has arrived.
    fn until(&mut self, text: &str) {
        let mut piece = [0; 4_096];
        while !self
            .got
            .windows(text.len())
            .any(|window| window == text.as_bytes())
        {
            let read = self
                .client
                .stdout
                .as_mut()
                .unwrap()
                .read(&mut piece)
                .unwrap();
            assert!(
                read > 0,
                "the connection ended before {text:?}: {}",
                String::from_utf8_lossy(&self.got)
            );
            self.got.extend_from_slice(&piece[..read]);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}

#[test]
fn a_changed_certificate_is_taken_up_and_no_connection_is_cut() {
    let (world, dir) = secure();
    let account = world.account();
    let cert = dir.path().join("cert.pem");
    let old = dir.path().join("old.pem");
    std::fs::copy(&cert, &old).unwrap();
    let body = Chat.body("input=1 output=1", false, 10).to_string();
    let ask = |authority: &Path| curl(&world, authority, &[], Chat, &account.key, body.as_bytes());
    let mut held = Held::open(&world, &cert);
    held.send(&Chat.stream(&account.key, "events=8 gap_ms=400 input=1 output=8"));
    held.until("data: ");

    // Invalid certificate files change nothing.
    std::fs::write(&cert, "no certificate").unwrap();
    world.signal("HUP");
    world.wait_log("cannot reload the config file");
    assert!(ask(&old).is_some());

    certify(dir.path());
    world.signal("HUP");
    world.wait_log("reloaded the TLS certificate");
    assert!(ask(&cert).is_some());
    assert!(ask(&old).is_none(), "the old certificate is still shown");
    held.until("data: [DONE]");
    held.send(&Chat.whole(&account.key, "text=afterwards input=1 output=1"));
    held.until("afterwards");
    drop(held);
    world.close();
}

/// The first message of a TLS 1.2 handshake. The client never sends the next one.
fn client_hello() -> Vec<u8> {
    let extensions = [
        &[0, 10, 0, 4, 0, 2, 0, 23][..], // the group P-256
        &[0, 11, 0, 2, 1, 0],            // uncompressed points
        &[0, 13, 0, 4, 0, 2, 4, 3],      // ECDSA with SHA-256
    ]
    .concat();
    let hello = [
        &[3, 3][..],
        &[7; 32],
        // No session id, one cipher suite, no compression.
        &[0, 0, 2, 0xc0, 0x2b, 1, 0],
        &[0, extensions.len() as u8],
        &extensions,
    ]
    .concat();
    let message = [&[1, 0, 0, hello.len() as u8][..], &hello].concat();
    [&[22, 3, 1, 0, message.len() as u8][..], &message].concat()
}

#[test]
fn a_handshake_that_is_not_finished_ends_within_the_time_of_a_header() {
    let (world, _dir) = secure_with(Plan::default().limit("header_read_seconds", 1));
    for begun in [
        &b"\x16"[..],
        b"\x16\x03\x01\x02\x00\x01\x00",
        &client_hello(),
    ] {
        let mut stream = TcpStream::connect(("127.0.0.1", world.edge)).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(begun).unwrap();
        let mut answer = Vec::new();
        stream
            .read_to_end(&mut answer)
            .unwrap_or_else(|error| panic!("still open after {} bytes: {error}", begun.len()));
        // The server answers only a complete first message, with its own handshake messages.
        assert_eq!(answer.first() == Some(&22), begun.len() > 8, "{answer:?}");
    }
    wait_for("the count", SOON, || {
        let reason = ["reason=\"tls_handshake\""];
        (world.metric("gateway_malformed_total", &reason) == 3.0).then_some(())
    });
    assert!(world.log().contains("the TLS handshake took too long"));
    world.close();
}

#[test]
fn handshakes_that_are_not_finished_give_way_to_other_clients() {
    let plan = Plan::default()
        .limit("connections", 4)
        .limit("connections_per_address", 0);
    let (world, dir) = secure_with(plan);
    let account = world.account();
    let cert = dir.path().join("cert.pem");
    let connected = || world.metric("gateway_client_connections", &[]);
    wait_until("the start's own look to end", SOON, || connected() == 0.0);
    let begun: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = TcpStream::connect(("127.0.0.1", world.edge)).unwrap();
            stream.write_all(b"\x16").unwrap();
            stream
        })
        .collect();
    wait_until("all to be connected", SOON, || connected() == 4.0);
    let body = Chat.body("input=1 output=1", false, 10).to_string();
    // After one second, unfinished handshakes count as idle connections.
    wait_for("an answer to another client", SOON, || {
        curl(&world, &cert, &[], Chat, &account.key, body.as_bytes())
    });
    assert!(world.metric("gateway_idle_connections_closed_total", &[]) >= 1.0);
    drop(begun);
    world.close();
}
