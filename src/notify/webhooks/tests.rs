//! Receivers of every kind, and names that resolve to what they should not.

use super::attempt::{ReceiverResolver, WebhookClient};
use super::sender::WebhookSender;
use super::*;
use accounts::{Accounts, NewAccount};
use arc_swap::ArcSwap;
use async_trait::async_trait;
use base::clock::now_ms;
use rcgen::generate_simple_self_signed;
use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

const DAY_MS: i64 = 86_400_000;
const LONG: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(200);
/// An address of the network that the test's config lists.
const LISTED: &str = "127.0.0.1";

/// How a receiver answers one request.
#[derive(Clone, Copy)]
enum Reply {
    Text(&'static str),
    /// It reads the request and never answers.
    Hang,
    /// A byte of the header now and then.
    Drip,
    /// A body without an end.
    Flood,
}

const OK: Reply = Reply::Text("HTTP/1.1 204 No Content\r\n\r\n");
const BROKEN: Reply =
    Reply::Text("HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n");

/// A receiver on a port of its own.
struct Receiver {
    port: u16,
    requests: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Receiver {
    async fn start(replies: &[Reply], tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, mut replies) = (Arc::clone(&requests), VecDeque::from(replies.to_vec()));
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let reply = replies.pop_front().unwrap_or(OK);
                let (seen, tls) = (Arc::clone(&seen), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => answer(stream, reply, &seen).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                answer(stream, reply, &seen).await;
                            }
                        }
                    }
                });
            }
        });
        Self {
            port,
            requests,
            task,
        }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

async fn answer(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    reply: Reply,
    seen: &Mutex<Vec<String>>,
) {
    let mut request = String::new();
    let mut piece = [0; 4_096];
    // The body of every message is a JSON object, and ends the request.
    while !request.ends_with("}}") {
        match stream.read(&mut piece).await {
            Ok(count) if count > 0 => {
                request += std::str::from_utf8(&piece[..count]).unwrap();
            }
            _ => return,
        }
    }
    seen.lock().unwrap().push(request);
    match reply {
        Reply::Text(text) => drop(stream.write_all(text.as_bytes()).await),
        Reply::Hang => std::future::pending().await,
        Reply::Drip => loop {
            if stream.write_all(b"H").await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        },
        Reply::Flood => {
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n")
                .await;
            while stream.write_all(&[b'x'; 4_096]).await.is_ok() {}
        }
    }
}

/// A resolver that gives each lookup its next answer, and the last one to all others.
struct ScriptedResolver {
    answers: Mutex<VecDeque<Vec<&'static str>>>,
    lookups: AtomicUsize,
}

impl ScriptedResolver {
    fn new(answers: &[&[&'static str]]) -> Arc<Self> {
        Arc::new(Self {
            answers: Mutex::new(answers.iter().map(|it| it.to_vec()).collect()),
            lookups: AtomicUsize::new(0),
        })
    }
}

#[async_trait]
impl ReceiverResolver for ScriptedResolver {
    async fn addresses(&self, _host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        let mut answers = self.answers.lock().unwrap();
        let answer = match answers.len() {
            1 => answers[0].clone(),
            _ => answers.pop_front().unwrap(),
        };
        let addresses = answer.iter().map(|text| text.parse().unwrap());
        Ok(addresses.map(|ip| SocketAddr::new(ip, port)).collect())
    }
}

struct World {
    _folder: TempDir,
    accounts: Accounts,
    account: String,
    webhooks: Webhooks,
    sender: WebhookSender,
}

fn world_with(client: WebhookClient, config: &str) -> World {
    let folder = tempfile::tempdir().unwrap();
    let accounts = Accounts::open(folder.path()).unwrap();
    let text = format!("{}\n{config}", include_str!("../../../conf/local.yaml"));
    let settings = config::parse(&text, &|_| None).unwrap();
    let settings = Arc::new(ArcSwap::from_pointee(settings));
    let account = open(&accounts, "a@example.com");
    World {
        webhooks: Webhooks::new(&accounts),
        sender: WebhookSender::new(&accounts, settings, client),
        _folder: folder,
        accounts,
        account,
    }
}

fn open(accounts: &Accounts, email: &str) -> String {
    let new = NewAccount::new(email);
    accounts.create_account(&new, now_ms()).unwrap().id
}

/// A world whose names all resolve to this machine, which the config lists.
fn world(timeout: Duration) -> World {
    let resolver = ScriptedResolver::new(&[&[LISTED]]);
    let client = WebhookClient::in_test(resolver, RootCertStore::empty(), timeout);
    world_with(client, "notifications: {private_networks: [127.0.0.1]}")
}

impl World {
    fn point_to(&self, url: &str) {
        self.point_to_since(url, now_ms());
    }

    fn point_to_since(&self, url: &str, at_ms: i64) {
        let policy = AddressPolicy::new(&["127.0.0.1".parse().unwrap()]);
        let url = WebhookUrl::parse(url, &policy).unwrap();
        self.webhooks.set(&self.account, &url, at_ms).unwrap();
    }

    fn queue(&self) {
        self.queue_at(now_ms());
    }

    fn queue_at(&self, at_ms: i64) {
        let queued = self.webhooks.queue_test(&self.account, "http://gw", at_ms);
        assert!(queued.unwrap());
    }

    /// Sends what is due after some time.
    async fn send_after(&mut self, ms: i64) {
        self.sender.send_due(now_ms() + ms).await;
    }

    fn log(&self) -> Vec<DeliveryLogRow> {
        self.webhooks.log(&self.account).unwrap()
    }

    /// Makes one attempt at a receiver, and returns the line of the log.
    async fn attempt(&mut self, replies: &[Reply]) -> DeliveryLogRow {
        let receiver = Receiver::start(replies, None).await;
        self.point_to(&format!("http://receiver.test:{}/hook", receiver.port));
        self.queue();
        self.send_after(0).await;
        self.log().remove(0)
    }
}

fn header<'r>(request: &'r str, name: &str) -> &'r str {
    request
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name}: ")))
        .unwrap_or_else(|| panic!("no {name} in {request}"))
}

/// Whether Python's own library computes the same signature.
fn python_agrees(secret: &str, request: &str, signature: &str) -> bool {
    let code = r"
import base64, hashlib, hmac, sys
secret, message_id, timestamp, signature, body = sys.stdin.read().split('\n', 4)
key = base64.b64decode(secret.removeprefix('whsec_'))
signed = f'{message_id}.{timestamp}.{body}'.encode()
code = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
sys.exit(0 if hmac.compare_digest(f'v1,{code}', signature) else 1)
";
    let (_, body) = request.split_once("\r\n\r\n").unwrap();
    let (id, timestamp) = (
        header(request, "webhook-id"),
        header(request, "webhook-timestamp"),
    );
    let mut python = Command::new("python3")
        .args(["-c", code])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = python.stdin.take().unwrap();
    let fields = [secret, id, timestamp, signature, body].join("\n");
    input.write_all(fields.as_bytes()).unwrap();
    drop(input);
    python.wait().unwrap().success()
}

#[tokio::test]
async fn a_message_is_posted_with_a_signature_that_others_can_check() {
    let mut world = world(LONG);
    let receiver = Receiver::start(&[], None).await;
    let url = format!("http://receiver.test:{}/hook?a=1", receiver.port);
    let policy = AddressPolicy::new(&["127.0.0.1".parse().unwrap()]);
    let url = WebhookUrl::parse(&url, &policy).unwrap();
    let (account, webhooks) = (world.account.clone(), world.webhooks.clone());
    let old = webhooks.set(&account, &url, now_ms()).unwrap().unwrap();
    assert_eq!(webhooks.set(&account, &url, now_ms()).unwrap(), None);
    world.queue();
    world.send_after(0).await;
    let request = receiver.requests().remove(0);
    assert!(
        request.starts_with("POST /hook?a=1 HTTP/1.1\r\n"),
        "{request}"
    );
    let host = format!("receiver.test:{}", receiver.port);
    assert_eq!(header(&request, "host"), host);
    assert_eq!(header(&request, "content-type"), "application/json");
    assert!(header(&request, "user-agent").starts_with("model-gateway/"));
    let signature = header(&request, "webhook-signature");
    assert!(python_agrees(&old, &request, signature));
    assert!(!python_agrees(
        &old,
        &request.replace("test", "text"),
        signature
    ));
    let timestamp: i64 = header(&request, "webhook-timestamp").parse().unwrap();
    assert!((now_ms() / 1_000 - timestamp).abs() < 60);
    let log = world.log();
    assert_eq!(
        (log[0].state.as_str(), log[0].last_status, log[0].attempts),
        ("delivered", Some(204), 1)
    );
    assert_eq!(header(&request, "webhook-id"), log[0].id);

    // After a rotation, both secrets sign for a day.
    let id = || webhooks.find(&account).unwrap().unwrap().secret_id;
    let first = id();
    let rotate = |id: &str, at_ms| webhooks.rotate(&account, id, at_ms).unwrap();
    let new = rotate(&first, now_ms()).unwrap();
    assert_ne!(new, old);
    assert_ne!(id(), first);
    assert_eq!(rotate(&first, now_ms()), None, "replaced already");
    world.queue();
    world.send_after(0).await;
    let request = receiver.requests().remove(1);
    let both = header(&request, "webhook-signature");
    let (first, second) = both.split_once(' ').unwrap();
    assert!(python_agrees(&new, &request, first) && python_agrees(&old, &request, second));
    assert!(rotate(&id(), now_ms() - OLD_SECRET_MS).is_some());
    world.queue();
    world.send_after(0).await;
    let request = receiver.requests().remove(2);
    assert!(!header(&request, "webhook-signature").contains(' '));
}

#[tokio::test]
async fn a_receiver_that_failed_gets_the_same_message_again() {
    let mut world = world(LONG);
    let receiver = Receiver::start(&[BROKEN, BROKEN, OK], None).await;
    world.point_to(&format!("http://receiver.test:{}", receiver.port));
    world.queue();
    world.send_after(0).await;
    let failed = world.log().remove(0);
    assert_eq!((failed.state.as_str(), failed.attempts), ("pending", 1));
    assert_eq!(failed.last_error, "the receiver answered 500");
    let wait_ms = failed.next_at_ms - now_ms();
    assert!((3_000..=5_500).contains(&wait_ms), "{wait_ms}");
    world.send_after(1_000).await;
    assert_eq!(receiver.requests().len(), 1, "not yet due");
    world.send_after(6_000).await;
    world.send_after(70_000).await;
    let requests = receiver.requests();
    assert_eq!(requests.len(), 3);
    let body = |request: &str| request.split_once("\r\n\r\n").unwrap().1.to_owned();
    for request in &requests {
        assert_eq!(header(request, "webhook-id"), failed.id);
        assert_eq!(body(request), body(&requests[0]));
    }
    let log = world.log().remove(0);
    assert_eq!((log.state.as_str(), log.attempts), ("delivered", 3));

    // An account holder can have it sent once more.
    let resend = |id: &str| world.webhooks.resend(&world.account, id, now_ms()).unwrap();
    assert_eq!(resend("msg_x"), ResendOutcome::NotFound);
    assert_eq!(resend(&failed.id), ResendOutcome::Done);
    world.send_after(0).await;
    assert_eq!(receiver.requests().len(), 4);
    assert_eq!(header(&receiver.requests()[3], "webhook-id"), failed.id);
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let mut world = world(LONG);
    let target = Receiver::start(&[], None).await;
    let location = format!(
        "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.1:{}/\r\ncontent-length: 0\r\n\r\n",
        target.port
    );
    for text in [
        "HTTP/1.1 301 Moved Permanently\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n",
        location.leak(),
    ] {
        let log = world.attempt(&[Reply::Text(text)]).await;
        assert_eq!(log.state, "pending");
        assert!(log.last_error.contains("follows no redirect"), "{log:?}");
    }
    assert!(target.requests().is_empty());
}

#[tokio::test]
async fn what_is_no_answer_is_said_and_tried_again() {
    for (reply, error) in [
        (Reply::Text(""), "did not send a valid HTTP answer"),
        (
            Reply::Text("SSH-2.0-OpenSSH_9.2\r\n"),
            "did not send a valid HTTP answer",
        ),
        (
            Reply::Text("HTTP/1.1 99999 ?\r\n\r\n"),
            "did not send a valid HTTP answer",
        ),
        (
            Reply::Text("HTTP/1.1 200 OK\r\nx: "),
            "did not send a valid HTTP answer",
        ),
        (
            Reply::Text("HTTP/1.1 404 Not Found\r\n\r\n"),
            "the receiver answered 404",
        ),
        (
            Reply::Text("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n"),
            "",
        ),
    ] {
        let mut world = world(LONG);
        let log = world.attempt(&[reply]).await;
        assert_eq!(log.state, "pending", "{log:?}");
        assert!(
            !log.last_error.is_empty() && log.last_error.contains(error),
            "{log:?}"
        );
    }
    let many = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "x".repeat(20_000));
    let log = world(LONG).attempt(&[Reply::Text(many.leak())]).await;
    assert!(log.last_error.contains("valid HTTP answer"), "{log:?}");
}

#[tokio::test]
async fn a_slow_receiver_is_cut_off_in_time() {
    for reply in [Reply::Hang, Reply::Drip] {
        let mut world = world(SHORT);
        let began = Instant::now();
        let log = world.attempt(&[reply]).await;
        assert!(began.elapsed() < LONG);
        assert_eq!(log.state, "pending");
        assert_eq!(
            (log.last_error.as_str(), log.last_status),
            ("no answer within 0 s", None)
        );
    }
}

#[tokio::test]
async fn the_status_decides_and_an_endless_body_is_not_read() {
    let log = world(LONG).attempt(&[Reply::Flood]).await;
    assert_eq!(
        (log.state.as_str(), log.last_status),
        ("delivered", Some(200))
    );
}

#[tokio::test]
async fn a_receiver_that_is_gone_gets_nothing_more() {
    let mut world = world(LONG);
    let receiver = Receiver::start(&[Reply::Text("HTTP/1.1 410 Gone\r\n\r\n")], None).await;
    world.point_to(&format!("http://receiver.test:{}", receiver.port));
    world.queue();
    world.queue();
    world.send_after(0).await;
    let hook = world.webhooks.find(&world.account).unwrap().unwrap();
    assert_eq!(hook.disabled.unwrap().1, "the receiver answered 410 (gone)");
    assert!(world.log().iter().all(|row| row.state == "failed"));
    let queued = world.webhooks.queue_test(&world.account, "", now_ms());
    assert!(!queued.unwrap(), "a disabled webhook takes no message");
    let id = world.log().remove(0).id;
    let resent = world.webhooks.resend(&world.account, &id, now_ms());
    assert_eq!(resent.unwrap(), ResendOutcome::NoWebhook);
    world.send_after(DAY_MS).await;
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn three_days_of_failures_disable_a_webhook_with_a_mail() {
    let mail = "mail: {smtp: smtps://mail.example, from: gateway@example.com}";
    let config = format!("notifications: {{private_networks: [127.0.0.1]}}\n{mail}");
    for (since_ms, last_success, is_disabled) in [
        (4 * DAY_MS, false, true),
        (3 * DAY_MS - 60_000, false, false),
        (4 * DAY_MS, true, false),
    ] {
        let resolver = ScriptedResolver::new(&[&[LISTED]]);
        let client = WebhookClient::in_test(resolver, RootCertStore::empty(), LONG);
        let mut world = world_with(client, &config);
        let purpose = accounts::LinkPurpose::Verify;
        let link =
            world
                .accounts
                .one_time_links()
                .create_own_link(&world.account, purpose, now_ms());
        let token = link.unwrap().token;
        world
            .accounts
            .one_time_links()
            .verify_email_by_link(&token, now_ms())
            .unwrap();
        let replies: &[Reply] = if last_success {
            &[OK, BROKEN]
        } else {
            &[BROKEN]
        };
        let receiver = Receiver::start(replies, None).await;
        let url = format!("http://receiver.test:{}", receiver.port);
        world.point_to_since(&url, now_ms() - 5 * DAY_MS);
        world.queue_at(now_ms() - since_ms);
        world.send_after(0).await;
        if last_success {
            world.queue_at(now_ms() - since_ms + 1);
            world.send_after(0).await;
        }
        let hook = world.webhooks.find(&world.account).unwrap().unwrap();
        assert_eq!(hook.disabled.is_some(), is_disabled, "{since_ms}");
        let db = world.accounts.database();
        let mails = db.mail().take_due_mail(now_ms(), 1, 9).unwrap();
        assert_eq!(mails.len(), usize::from(is_disabled));
        if is_disabled {
            assert_eq!(mails[0].kind, "webhook_disabled");
            assert!(mails[0].detail.contains(&url) && mails[0].detail.contains("3 days"));
            // Saving the URL begins a new time.
            world.point_to(&url);
            assert_eq!(db.webhooks().failing_since(&world.account).unwrap(), None);
        }
    }
}

/// Connections to an address of which no receiver must see any.
async fn no_connection(listener: &TcpListener) -> bool {
    let accepted = tokio::time::timeout(Duration::from_millis(50), listener.accept());
    accepted.await.is_err()
}

#[tokio::test]
async fn a_name_with_an_address_that_is_not_allowed_is_not_called() {
    let private = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = private.local_addr().unwrap().port();
    for (networks, answer) in [
        ("", &["127.0.0.1"][..]),
        ("", &["::ffff:127.0.0.1"]),
        ("", &["::1"]),
        ("", &["0.0.0.0"]),
        ("", &["64:ff9b::127.0.0.1"]),
        ("", &["93.184.216.34", "127.0.0.1"]),
        ("", &["127.0.0.1", "93.184.216.34"]),
        ("127.0.0.1", &["127.0.0.1", "10.0.0.1"]),
        ("127.0.0.1", &["127.0.0.1", "::1"]),
        ("127.0.0.1", &[]),
        ("10.0.0.0/8", &["127.0.0.1"]),
    ] {
        let resolver = ScriptedResolver::new(&[answer]);
        let client = WebhookClient::in_test(resolver, RootCertStore::empty(), LONG);
        let config = format!("notifications: {{private_networks: [{networks:?}]}}");
        let config = config.replace("[\"\"]", "[]");
        let mut world = world_with(client, &config);
        world.point_to(&format!("https://receiver.test:{port}/"));
        world.queue();
        world.send_after(0).await;
        let log = world.log().remove(0);
        // The same words for every name, so that nobody learns the names of the gateway's network.
        assert_eq!(
            log.last_error, "the host has no public address",
            "{answer:?}"
        );
        assert!(no_connection(&private).await, "{answer:?}");
    }
}

#[tokio::test]
async fn a_name_is_resolved_once_per_attempt_and_the_checked_address_is_called() {
    let receiver = Receiver::start(&[BROKEN], None).await;
    // What was checked is called; a name that then changes is checked again.
    let resolver = ScriptedResolver::new(&[&[LISTED], &["169.254.169.254"], &["::1"]]);
    let scripted: Arc<dyn ReceiverResolver> = resolver.clone();
    let client = WebhookClient::in_test(scripted, RootCertStore::empty(), LONG);
    let config = "notifications: {private_networks: [127.0.0.1]}";
    let mut world = world_with(client, config);
    world.point_to(&format!("http://receiver.test:{}", receiver.port));
    world.queue();
    world.send_after(0).await;
    assert_eq!(world.log()[0].last_error, "the receiver answered 500");
    assert_eq!(resolver.lookups.load(Ordering::Relaxed), 1);
    for (after_ms, lookups) in [(6_000, 2), (70_000, 3)] {
        world.send_after(after_ms).await;
        assert_eq!(world.log()[0].last_error, "the host has no public address");
        assert_eq!(resolver.lookups.load(Ordering::Relaxed), lookups);
    }
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn a_url_that_the_config_no_longer_allows_is_not_called() {
    let receiver = Receiver::start(&[], None).await;
    let resolver = ScriptedResolver::new(&[&[LISTED]]);
    let scripted: Arc<dyn ReceiverResolver> = resolver.clone();
    let client = WebhookClient::in_test(scripted, RootCertStore::empty(), LONG);
    let mut world = world_with(client, "");
    world.point_to(&format!("http://127.0.0.1:{}/", receiver.port));
    world.queue();
    world.send_after(0).await;
    assert_eq!(
        world.log()[0].last_error,
        "The URL must begin with https://."
    );
    assert_eq!(resolver.lookups.load(Ordering::Relaxed), 0);
    assert!(receiver.requests().is_empty());
}

#[tokio::test]
async fn tls_is_believed_only_with_a_certificate_of_an_authority_for_the_name() {
    let made = generate_simple_self_signed(vec!["receiver.test".into()]).unwrap();
    let key = made.signing_key.serialize_der().try_into().unwrap();
    let server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let mut known = RootCertStore::empty();
    known.add(made.cert.der().clone()).unwrap();
    let receiver = Receiver::start(&[], Some(acceptor)).await;
    let plain = Receiver::start(&[], None).await;
    for (roots, name, port, error) in [
        (known.clone(), "receiver.test", receiver.port, ""),
        (
            known.clone(),
            "other.test",
            receiver.port,
            "the TLS handshake failed: ",
        ),
        (
            known.clone(),
            "127.0.0.1",
            receiver.port,
            "the TLS handshake failed: ",
        ),
        (
            RootCertStore::empty(),
            "receiver.test",
            receiver.port,
            "the TLS handshake failed: ",
        ),
        (known, "receiver.test", plain.port, ""),
    ] {
        let resolver = ScriptedResolver::new(&[&[LISTED]]);
        let client = WebhookClient::in_test(resolver, roots, SHORT * 20);
        let mut world = world_with(client, "notifications: {private_networks: [127.0.0.1]}");
        world.point_to(&format!("https://{name}:{port}/"));
        world.queue();
        world.send_after(0).await;
        let log = world.log().remove(0);
        if port == plain.port {
            assert!(
                log.state == "pending" && !log.last_error.is_empty(),
                "{log:?}"
            );
        } else {
            assert_eq!(
                log.last_error.is_empty(),
                error.is_empty(),
                "{name}: {log:?}"
            );
            assert!(log.last_error.starts_with(error), "{log:?}");
        }
    }
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn one_message_of_an_account_is_sent_at_a_time_and_others_do_not_wait_for_it() {
    let resolver = ScriptedResolver::new(&[&[LISTED]]);
    let client = WebhookClient::in_test(resolver, RootCertStore::empty(), LONG);
    let config = "notifications: {private_networks: [127.0.0.1]}";
    let world = world_with(client, config);
    let hanging = Receiver::start(&[Reply::Hang], None).await;
    let quick = Receiver::start(&[], None).await;
    world.point_to(&format!("http://receiver.test:{}", hanging.port));
    world.queue();
    world.queue();
    let other = open(&world.accounts, "b@example.com");
    let policy = AddressPolicy::new(&["127.0.0.1".parse().unwrap()]);
    let url = format!("http://receiver.test:{}", quick.port);
    let url = WebhookUrl::parse(&url, &policy).unwrap();
    world.webhooks.set(&other, &url, now_ms()).unwrap();
    let sender = tokio::spawn(world.sender.run());
    let wait_for = async |receiver: &Receiver, count: usize| {
        let reached = async {
            while receiver.requests().len() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, reached)
            .await
            .expect("a request");
    };
    wait_for(&hanging, 1).await;
    for count in 1..=3 {
        world.webhooks.queue_test(&other, "", now_ms()).unwrap();
        wait_for(&quick, count).await;
    }
    assert_eq!(hanging.requests().len(), 1, "the second one waits");
    sender.abort();
}

#[tokio::test]
async fn a_gateway_without_webhooks_sends_none() {
    let resolver = ScriptedResolver::new(&[&[LISTED]]);
    let client = WebhookClient::in_test(resolver, RootCertStore::empty(), LONG);
    let config = "notifications: {webhooks: false, private_networks: [127.0.0.1]}";
    let mut world = world_with(client, config);
    let receiver = Receiver::start(&[], None).await;
    world.point_to(&format!("http://receiver.test:{}", receiver.port));
    world.queue();
    world.send_after(0).await;
    assert!(receiver.requests().is_empty());
    assert_eq!(world.log()[0].attempts, 0);
}

#[tokio::test]
async fn a_dead_process_s_message_is_sent_by_the_next_with_the_same_id() {
    let mut world = world(LONG);
    let receiver = Receiver::start(&[], None).await;
    world.point_to(&format!("http://receiver.test:{}", receiver.port));
    world.queue();
    let db = world.accounts.database();
    let taken = db
        .webhooks()
        .take_due_deliveries(now_ms(), 15_000, &[], 8)
        .unwrap();
    assert_eq!(taken.len(), 1);
    world.send_after(10_000).await;
    assert!(
        receiver.requests().is_empty(),
        "another process may be sending it"
    );
    world.send_after(16_000).await;
    assert_eq!(header(&receiver.requests()[0], "webhook-id"), taken[0].id);
    assert_eq!(world.log()[0].attempts, 2);
}

/// Only used to show that the tests' receivers do answer.
#[tokio::test]
async fn a_receiver_of_these_tests_answers() {
    let receiver = Receiver::start(&[OK], None).await;
    let mut stream = TcpStream::connect((LISTED, receiver.port)).await.unwrap();
    stream
        .write_all(b"POST / HTTP/1.1\r\n\r\n{\"a\":{}}")
        .await
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 204"));
}
