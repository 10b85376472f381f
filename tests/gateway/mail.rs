//! Tests mail through a gateway with a mail server of the tests: an account holder who forgot the
//! password gets a link; nothing leaves without encryption; a restart loses no mail.

use crate::client::Request;
use crate::secrets::Seen;
use crate::world::{Plan, SOON, World, wait_for};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

const USER: &str = "gateway";
const PASSWORD: &str = "a-password-for-the-mail-server";
/// `\0USER\0PASSWORD` in base64, as AUTH PLAIN has it.
const LOGIN: &str = "AGdhdGV3YXkAYS1wYXNzd29yZC1mb3ItdGhlLW1haWwtc2VydmVy";

/// What the server offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Offer {
    Good,
    NoEncryption,
    /// A certificate that nobody signed.
    Untrusted,
    /// Another password than the gateway has.
    WrongLogin,
}

/// What the server received.
#[derive(Default)]
struct Received {
    /// Lines before the encryption.
    clear: Vec<String>,
    connections: usize,
    mails: Vec<String>,
}

struct MailServer {
    port: u16,
    offer: Arc<Mutex<Offer>>,
    received: Arc<Mutex<Received>>,
}

fn tls(certificate: &rcgen::Certificate, key: &KeyPair) -> Arc<ServerConfig> {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = builder
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key);
    Arc::new(config.unwrap())
}

impl MailServer {
    /// Starts a server, and writes the certificate of its authority to `file`.
    fn start(file: &Path) -> Self {
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let (authority_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let pem = authority.self_signed(&authority_key).unwrap().pem();
        std::fs::write(file, pem).unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let issuer = Issuer::from_params(&authority, &authority_key);
        let good = tls(&params.signed_by(&key, &issuer).unwrap(), &key);
        let untrusted = tls(&params.self_signed(&key).unwrap(), &key);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            port: listener.local_addr().unwrap().port(),
            offer: Arc::new(Mutex::new(Offer::NoEncryption)),
            received: Arc::default(),
        };
        let (offer, received) = (Arc::clone(&server.offer), Arc::clone(&server.received));
        // The thread ends with the test process, and the test does not wait for it.
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let offer = *offer.lock().unwrap();
                let config = match offer {
                    Offer::Untrusted => &untrusted,
                    _ => &good,
                };
                // Ends with the connection.
                let _ = serve(socket, offer, config, &received);
                received.lock().unwrap().connections += 1;
            }
        });
        server
    }

    fn offer(&self, offer: Offer) {
        *self.offer.lock().unwrap() = offer;
    }

    fn mails(&self) -> Vec<String> {
        self.received.lock().unwrap().mails.clone()
    }

    /// Waits until this number of mails has come.
    fn wait_for_mails(&self, count: usize) -> Vec<String> {
        wait_for("the mails", SOON, || {
            Some(self.mails()).filter(|mails| mails.len() >= count)
        })
    }
}

/// Reads a line, byte by byte: what follows may be encrypted.
fn read_line(stream: &mut impl Read) -> std::io::Result<String> {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while !line.ends_with(b"\r\n") {
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}

fn serve(
    mut socket: TcpStream,
    offer: Offer,
    config: &Arc<ServerConfig>,
    received: &Mutex<Received>,
) -> std::io::Result<()> {
    socket.write_all(b"220 test\r\n")?;
    loop {
        let line = read_line(&mut socket)?;
        received.lock().unwrap().clear.push(line.clone());
        match line.as_str() {
            "STARTTLS" => break,
            "QUIT" => return socket.write_all(b"221 bye\r\n"),
            _ if offer == Offer::NoEncryption => {
                socket.write_all(b"250-test\r\n250 AUTH PLAIN\r\n")?
            }
            _ => socket.write_all(b"250-test\r\n250-AUTH PLAIN\r\n250 STARTTLS\r\n")?,
        }
    }
    socket.write_all(b"220 go on\r\n")?;
    let connection = ServerConnection::new(Arc::clone(config)).map_err(std::io::Error::other)?;
    let mut stream = StreamOwned::new(connection, socket);
    let mut is_known = false;
    loop {
        let line = read_line(&mut stream)?;
        let reply = match line.split(' ').next().unwrap_or_default() {
            "EHLO" => "250-test\r\n250-AUTH PLAIN\r\n250 8BITMIME\r\n",
            "AUTH" => {
                is_known = offer == Offer::Good && line == format!("AUTH PLAIN {LOGIN}");
                if is_known {
                    "235 welcome\r\n"
                } else {
                    "535 wrong user or password\r\n"
                }
            }
            "QUIT" => {
                stream.write_all(b"221 bye\r\n")?;
                return stream.flush();
            }
            _ if !is_known => "530 log in first\r\n",
            "DATA" => {
                stream.write_all(b"354 go on\r\n")?;
                let mut mail = String::new();
                loop {
                    let line = read_line(&mut stream)?;
                    if line == "." {
                        break;
                    }
                    mail += &format!("{line}\n");
                }
                received.lock().unwrap().mails.push(mail);
                "250 kept\r\n"
            }
            _ => "250 ok\r\n",
        };
        stream.write_all(reply.as_bytes())?;
        stream.flush()?;
    }
}

/// A gateway that sends mail to the server, logs everything and trusts its authority.
fn world(server: &MailServer, folder: &Path, authority: &Path) -> World {
    let port = server.port;
    let mail = format!(
        "mail: {{smtp: \"smtp://localhost:{port}\", user: {USER}, password: {PASSWORD}, \
         from: \"Gateway <gateway@example.com>\"}}\nsignup:"
    );
    Plan::default()
        .edit("signup:", &mail)
        .telling_everything(&folder.join("access.log"))
        .environment("SSL_CERT_FILE", authority)
        .start()
}

fn token(mail: &str) -> String {
    let (_, rest) = mail.split_once("/dashboard/link/").expect("a link");
    rest.chars().take_while(char::is_ascii_hexdigit).collect()
}

/// What the queue says of the mail that waits: attempts and the last error.
fn waiting(world: &World) -> Option<(u32, String)> {
    let db = rusqlite::Connection::open(world.data_dir().join("app.db")).unwrap();
    db.query_row(
        "SELECT attempts, last_error FROM outgoing_mail WHERE state = 'queued'",
        [],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )
    .ok()
}

/// Makes the mail that waits due, so that a test need not wait for a minute.
fn make_due(world: &World) {
    let db = rusqlite::Connection::open(world.data_dir().join("app.db")).unwrap();
    db.execute(
        "UPDATE outgoing_mail SET next_at_ms = 0 WHERE state = 'queued'",
        [],
    )
    .unwrap();
}

#[test]
fn who_forgot_the_password_sets_a_new_one_by_a_link_in_a_mail() {
    let folder = tempfile::tempdir().unwrap();
    let authority = folder.path().join("authority.pem");
    let server = MailServer::start(&authority);
    let mut world = world(&server, folder.path(), &authority);
    let sign_up = "email=ann@example.test&password=a+long+password";
    let signed_up = world.ask(&Request::form("/dashboard/sign-up", sign_up));
    assert_eq!(signed_up.status, 303);
    let forgot = |world: &World, email: &str| {
        let form = Request::form("/dashboard/forgot", &format!("email={email}"));
        world.expect(200, &form);
    };
    forgot(&world, "nobody@example.test");
    forgot(&world, "ann@example.test");

    // Servers that must get nothing: each attempt fails, and the mail waits.
    for (attempt, offer, says) in [
        (1, Offer::NoEncryption, "STARTTLS"),
        (2, Offer::Untrusted, "certificate"),
        (3, Offer::WrongLogin, "535"),
    ] {
        if attempt > 1 {
            server.offer(offer);
            make_due(&world);
        }
        let error = wait_for("the attempt to fail", SOON, || {
            waiting(&world).filter(|(attempts, error)| *attempts == attempt && error.contains(says))
        });
        assert!(!error.1.contains(PASSWORD), "{offer:?}: {error:?}");
    }
    assert_eq!(server.mails(), Vec::<String>::new());
    let retried = world.metric("gateway_mail_total", &["result=\"retried\""]);
    assert_eq!(retried, 3.0);
    assert_eq!(world.metric("gateway_mail_queued", &[]), 1.0);

    // The mail survives a restart, and goes out once the server is right.
    world.signal("TERM");
    assert_eq!(world.wait_end(SOON), 0);
    server.offer(Offer::Good);
    make_due(&world);
    world.start_gateway();
    let mails = server.wait_for_mails(1);
    assert!(mails[0].contains("To: ann@example.test\n"), "{}", mails[0]);
    wait_for("the mail to be counted", SOON, || {
        let sent = world.metric("gateway_mail_total", &["result=\"sent\""]);
        (sent == 1.0 && waiting(&world).is_none()).then_some(())
    });
    let token = token(&mails[0]);
    let path = format!("/dashboard/link/{token}");
    let set = Request::form(&path, "password=another+long+password");
    world.expect(303, &set);
    world.expect(410, &set);
    let sign_in = |password: &str| {
        let fields = format!("email=ann@example.test&password={password}");
        world
            .ask(&Request::form("/dashboard/sign-in", &fields))
            .status
    };
    assert_eq!(sign_in("a+long+password"), 401);
    assert_eq!(sign_in("another+long+password"), 303);
    assert_eq!(server.mails().len(), 1, "nobody else got one");

    for line in &server.received.lock().unwrap().clear {
        let is_greeting = ["EHLO example.com", "STARTTLS", "QUIT"].contains(&line.as_str());
        assert!(is_greeting, "in the clear: {line}");
    }
    let mut seen = Seen::default();
    seen.add_all_of(&world, &folder.path().join("access.log"));
    seen.has_none_of(&[&token, PASSWORD, LOGIN]);
}
