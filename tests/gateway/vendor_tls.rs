//! Tests vendors behind TLS: a vendor with an invalid certificate receives neither the key nor any
//! other byte.

use crate::surface::Chat;
use crate::world::{Plan, SOON, World, wait_until};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, Stream};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

const ANSWER: &str = r#"{"id":"c","object":"chat.completion","created":1,"model":"gpt-5.2","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#;

/// A CA that the gateway trusts.
fn authority() -> (CertificateParams, KeyPair) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    (params, KeyPair::generate().unwrap())
}

/// The certificate that the vendor presents.
enum Shown {
    Good,
    Expired,
    OtherHost,
    SelfSigned,
}

/// A vendor that keeps the bytes it read.
struct Vendor {
    port: u16,
    read: Arc<Mutex<Vec<u8>>>,
    connections: Arc<Mutex<usize>>,
}

impl Vendor {
    fn start(shown: &Shown, authority: &(CertificateParams, KeyPair)) -> Self {
        let host = if matches!(shown, Shown::OtherHost) {
            "elsewhere.example"
        } else {
            "localhost"
        };
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        if matches!(shown, Shown::Expired) {
            (params.not_before, params.not_after) =
                (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
        }
        let key = KeyPair::generate().unwrap();
        let certificate = match shown {
            Shown::SelfSigned => params.self_signed(&key).unwrap(),
            _ => params
                .signed_by(&key, &Issuer::from_params(&authority.0, &authority.1))
                .unwrap(),
        };
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let config = builder
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (read, connections) = (
            Arc::<Mutex<Vec<u8>>>::default(),
            Arc::<Mutex<usize>>::default(),
        );
        let vendor = Self {
            port,
            read: Arc::clone(&read),
            connections: Arc::clone(&connections),
        };
        let config = Arc::new(config);
        // The thread ends with the test process, and the test does not wait for it.
        std::thread::spawn(move || {
            for mut socket in listener.incoming().flatten() {
                let mut connection = ServerConnection::new(Arc::clone(&config)).unwrap();
                serve(&mut Stream::new(&mut connection, &mut socket), &read);
                *connections.lock().unwrap() += 1;
            }
        });
        vendor
    }
}

/// Answers one request, if one arrives.
fn serve(stream: &mut Stream<'_, ServerConnection, std::net::TcpStream>, read: &Mutex<Vec<u8>>) {
    let mut piece = [0; 4_096];
    while let Ok(length @ 1..) = stream.read(&mut piece) {
        let mut read = read.lock().unwrap();
        read.extend_from_slice(&piece[..length]);
        if read.ends_with(b"}") {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
            let _ = write!(
                stream,
                "{head}content-length: {}\r\n\r\n{ANSWER}",
                ANSWER.len()
            );
            stream.conn.send_close_notify();
            let _ = stream.flush();
            return;
        }
    }
}

fn world(
    vendor: &Vendor,
    authority: &(CertificateParams, KeyPair),
    dir: &tempfile::TempDir,
) -> World {
    let file = dir.path().join("authority.pem");
    std::fs::write(&file, authority.0.self_signed(&authority.1).unwrap().pem()).unwrap();
    let listed = [format!("{{url: \"https://localhost:{}\"}}", vendor.port)];
    Plan::default()
        .endpoints_as(&listed)
        .environment("SSL_CERT_FILE", &file)
        .start()
}

#[test]
fn a_vendor_with_a_certificate_that_is_not_right_is_told_nothing() {
    let (authority, dir) = (authority(), tempfile::tempdir().unwrap());
    for (what, shown) in [
        ("expired", Shown::Expired),
        ("another host's", Shown::OtherHost),
        ("self-signed", Shown::SelfSigned),
    ] {
        let vendor = Vendor::start(&shown, &authority);
        let world = world(&vendor, &authority, &dir);
        let account = world.account();
        let answer = world.ask(&Chat.whole(&account.key, "input=1"));
        Chat.failure(&answer, 502, "server_error", Some("upstream_error"));
        wait_until("the handshake to be over", SOON, || {
            *vendor.connections.lock().unwrap() > 0
        });
        assert_eq!(
            vendor.read.lock().unwrap().len(),
            0,
            "{what}: not one byte, so no key"
        );
        assert_eq!(world.standing(&account).balance, 300_000_000);
    }
}

/// The control: the same vendor with a valid certificate.
#[test]
fn a_vendor_with_a_good_certificate_gets_the_request_and_its_key() {
    let (authority, dir) = (authority(), tempfile::tempdir().unwrap());
    let vendor = Vendor::start(&Shown::Good, &authority);
    let world = world(&vendor, &authority, &dir);
    let account = world.account();
    world.expect(200, &Chat.whole(&account.key, "input=1"));
    let read = String::from_utf8_lossy(&vendor.read.lock().unwrap()).into_owned();
    assert!(
        read.to_ascii_lowercase()
            .contains("\r\nauthorization: bearer sim-beta-key\r\n"),
        "{read}"
    );
    let host = format!("\r\nhost: localhost:{}\r\n", vendor.port);
    assert!(read.to_ascii_lowercase().contains(&host), "{read}");
}
