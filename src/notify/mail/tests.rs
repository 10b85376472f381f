//! Tests of the sender, with a mail server of their own and times of their own.

use super::kind::LIFETIME_MS;
use super::*;
use crate::billing::Billing;
use accounts::{AccountStatus, Actor, NewAccount};
use serde_json::json;
use std::sync::Mutex;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::net::TcpStream;

const NOW: i64 = 1_800_000_000_000;

/// How the server answers.
#[derive(Debug, Clone, Copy)]
enum ServerMode {
    Accept,
    /// Answers each recipient with this line.
    Recipient(&'static str),
    /// Answers the mail with this code, and quotes the mail's lines with a link.
    Quote(&'static str),
    /// Greets with this line.
    Greet(&'static str),
    /// Says nothing.
    Hang,
    /// Closes each connection.
    Close,
}

/// A mail server that keeps what it accepts.
struct TestMailServer {
    port: u16,
    mode: Arc<Mutex<ServerMode>>,
    received: Arc<Mutex<Vec<String>>>,
}

impl TestMailServer {
    async fn start(mode: ServerMode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            port: listener.local_addr().unwrap().port(),
            mode: Arc::new(Mutex::new(mode)),
            received: Arc::default(),
        };
        let (mode, received) = (Arc::clone(&server.mode), Arc::clone(&server.received));
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (mode, received) = (*mode.lock().unwrap(), Arc::clone(&received));
                tokio::spawn(serve(socket, mode, received));
            }
        });
        server
    }

    fn answer(&self, mode: ServerMode) {
        *self.mode.lock().unwrap() = mode;
    }

    fn received(&self) -> Vec<String> {
        self.received.lock().unwrap().clone()
    }
}

async fn serve(socket: TcpStream, mode: ServerMode, received: Arc<Mutex<Vec<String>>>) {
    let mut socket = BufReader::new(socket);
    let greeting = match mode {
        ServerMode::Close => return,
        ServerMode::Hang => return std::future::pending().await,
        ServerMode::Greet(line) => line,
        _ => "220 test",
    };
    let mut reply = format!("{greeting}\r\n");
    let (mut line, mut mail, mut is_data) = (String::new(), String::new(), false);
    loop {
        if socket.write_all(reply.as_bytes()).await.is_err() {
            return;
        }
        line.clear();
        if socket.read_line(&mut line).await.unwrap_or(0) == 0 {
            return;
        }
        reply = match (line.trim_end(), mode) {
            (".", ServerMode::Quote(code)) if is_data => {
                let quoted: Vec<_> = mail.lines().filter(|line| line.contains("link/")).collect();
                is_data = false;
                format!("{code} no: {}\r\n", quoted.join(" "))
            }
            (".", _) if is_data => {
                received.lock().unwrap().push(std::mem::take(&mut mail));
                is_data = false;
                "250 kept\r\n".to_owned()
            }
            _ if is_data => {
                mail += &line;
                String::new()
            }
            ("DATA", _) => {
                is_data = true;
                "354 go on\r\n".to_owned()
            }
            (rcpt, ServerMode::Recipient(refusal)) if rcpt.starts_with("RCPT") => {
                format!("{refusal}\r\n")
            }
            (ehlo, _) if ehlo.starts_with("EHLO") => "250-test\r\n250 8BITMIME\r\n".to_owned(),
            ("QUIT", _) => "221 bye\r\n".to_owned(),
            _ => "250 ok\r\n".to_owned(),
        };
    }
}

struct MailWorld {
    folder: TempDir,
    accounts: Accounts,
    billing: Billing,
    account: String,
    sender: Arc<MailDispatcher>,
}

fn settings(port: u16, more: &str) -> Arc<ArcSwap<Settings>> {
    let text = format!(
        "{}\nmail: {{smtp: \"smtp+plain://127.0.0.1:{port}\", from: \"Gateway <g@example.com>\"{more}}}\n",
        include_str!("../../../conf/local.yaml")
    );
    let settings = config::parse(&text, &|_| None).unwrap();
    Arc::new(ArcSwap::from_pointee(settings))
}

fn world(port: u16, more: &str) -> MailWorld {
    let folder = tempfile::tempdir().unwrap();
    let accounts = Accounts::open(folder.path()).unwrap();
    let billing = Billing::open(folder.path()).unwrap();
    let new = NewAccount::new("ann@example.com");
    let account = accounts.create_account(&new, NOW).unwrap().id;
    let timeout = Duration::from_secs(20);
    let sender = MailDispatcher::new(accounts.clone(), settings(port, more), timeout);
    MailWorld {
        folder,
        accounts,
        billing,
        account,
        sender: Arc::new(sender),
    }
}

impl MailWorld {
    fn queue(&self, kind: MailKind, now_ms: i64) -> QueueMailOutcome {
        queue(&self.accounts, &self.account, kind, &json!({}), now_ms).unwrap()
    }

    /// Sends what is due, and returns how each attempt ended.
    async fn send_due(&self, now_ms: i64) -> Vec<SendOutcome> {
        let mut outcomes = Vec::new();
        for row in self.sender.take_due(10, now_ms) {
            outcomes.push(Arc::clone(&self.sender).send(row, now_ms).await);
        }
        outcomes
    }

    fn last_error(&self) -> String {
        self.accounts.mails().mail_queue().unwrap().last_error
    }
}

/// The token of the link in a mail.
fn token(mail: &str) -> String {
    let (_, rest) = mail.split_once("/dashboard/link/").expect("a link");
    rest.chars().take_while(char::is_ascii_hexdigit).collect()
}

#[tokio::test]
async fn a_reset_mail_has_a_link_that_works_and_is_stored_nowhere() {
    let server = TestMailServer::start(ServerMode::Accept).await;
    let world = world(server.port, "");
    assert_eq!(world.queue(MailKind::Reset, NOW), QueueMailOutcome::Done);
    assert_eq!(world.send_due(NOW).await, [SendOutcome::Sent]);
    assert_eq!(world.send_due(NOW + HOUR_MS).await, [], "sent once");
    let mails = server.received();
    assert_eq!(mails.len(), 1);
    for header in [
        "From: Gateway <g@example.com>\r\n",
        "To: ann@example.com\r\n",
        "Subject: Model gateway: Set a new password\r\n",
        "Auto-Submitted: auto-generated\r\n",
        "Message-ID: <mail_",
        "Date: ",
    ] {
        assert!(mails[0].contains(header), "{header}: {}", mails[0]);
    }
    let token = token(&mails[0]);
    assert_eq!(token.len(), 64);
    assert!(mails[0].contains(&format!("http://127.0.0.1:8080/dashboard/link/{token}\r\n")));
    for entry in std::fs::read_dir(world.folder.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        let is_token = |part: &[u8]| part == token.as_bytes();
        assert!(!bytes.windows(token.len()).any(is_token));
    }
    let set = world.accounts.one_time_links().set_password_by_link(
        &token,
        "a long password",
        None,
        "",
        NOW + 1,
    );
    assert_eq!(set.unwrap(), Some(world.account.clone()));
}

#[tokio::test]
async fn a_server_that_is_away_is_tried_again_less_and_less_often_for_a_day() {
    let server = TestMailServer::start(ServerMode::Close).await;
    let world = world(server.port, "");
    world.queue(MailKind::Test, NOW);
    let (mut now_ms, mut delays) = (NOW, Vec::new());
    loop {
        match world.send_due(now_ms).await[..] {
            [SendOutcome::Retry(next)] => {
                assert_eq!(world.send_due(next - 1).await, [], "not before it is due");
                delays.push((next - now_ms) / MINUTE_MS);
                now_ms = next;
            }
            [SendOutcome::Failed] => break,
            ref other => panic!("{other:?}"),
        }
        let summary = world.accounts.mails().mail_queue().unwrap();
        assert_eq!((summary.queued, summary.oldest_at_ms), (1, Some(NOW)));
        assert!(summary.last_error.starts_with("127.0.0.1:"));
    }
    assert_eq!(delays[..6], [1, 5, 15, 60, 180, 60]);
    assert!(delays[6..].iter().all(|delay| *delay == 60));
    let lasted = now_ms - NOW;
    assert!(lasted <= LIFETIME_MS && lasted > LIFETIME_MS - HOUR_MS);
    assert_eq!(world.accounts.mails().mail_queue().unwrap().queued, 0);

    // A link to reset a password is of no use after an hour.
    world.queue(MailKind::Reset, NOW);
    let mut last = NOW;
    while let [SendOutcome::Retry(next)] = world.send_due(last).await[..] {
        last = next;
    }
    assert_eq!(last - NOW, 21 * MINUTE_MS);
    // When the server is back, the mail goes out: with a link that is new.
    world.queue(MailKind::Reset, NOW);
    world.send_due(NOW).await;
    server.answer(ServerMode::Accept);
    assert_eq!(world.send_due(NOW + MINUTE_MS).await, [SendOutcome::Sent]);
    let token = token(&server.received()[0]);
    let link = world
        .accounts
        .one_time_links()
        .one_time_link(&token, NOW + MINUTE_MS);
    assert!(link.unwrap().is_some());
}

#[tokio::test]
async fn a_refusal_of_the_mail_is_final_and_other_faults_are_not() {
    let server = TestMailServer::start(ServerMode::Accept).await;
    let world = world(server.port, "");
    let retry = [SendOutcome::Retry(NOW + MINUTE_MS)];
    for (mode, expected, says) in [
        (ServerMode::Recipient("450 busy"), &retry[..], "(450)"),
        (ServerMode::Greet("421 busy"), &retry, "(421)"),
        // The server refuses every mail, so this one is tried again.
        (ServerMode::Greet("554 go away"), &retry, "(554)"),
        (ServerMode::Greet("hello"), &retry, "response error"),
        (ServerMode::Close, &retry, "127.0.0.1:"),
        (
            ServerMode::Recipient("550 no such user"),
            &[SendOutcome::Failed],
            "",
        ),
    ] {
        server.answer(mode);
        world.queue(MailKind::Test, NOW);
        assert_eq!(world.send_due(NOW).await, expected, "{mode:?}");
        let error = world.last_error();
        assert!(error.contains(says), "{mode:?}: {error}");
        // So that the next one is the only one that waits.
        server.answer(ServerMode::Accept);
        world.send_due(NOW + MINUTE_MS).await;
        assert_eq!(world.accounts.mails().mail_queue().unwrap().queued, 0);
    }
    assert_eq!(server.received().len(), 5);
}

#[tokio::test]
async fn a_server_that_hangs_is_left_after_the_timeout() {
    let server = TestMailServer::start(ServerMode::Hang).await;
    let world = world(server.port, "");
    let sender = Arc::new(MailDispatcher::new(
        world.accounts.clone(),
        settings(server.port, ""),
        Duration::from_millis(100),
    ));
    world.queue(MailKind::Test, NOW);
    let row = sender.take_due(1, NOW).pop().unwrap();
    assert_eq!(
        sender.send(row, NOW).await,
        SendOutcome::Retry(NOW + MINUTE_MS)
    );
    let error = world.last_error();
    assert!(!error.is_empty(), "the operator sees why");
}

#[tokio::test]
async fn a_server_that_quotes_the_link_does_not_bring_it_into_the_database() {
    let server = TestMailServer::start(ServerMode::Quote("451")).await;
    let world = world(server.port, "");
    world.queue(MailKind::Reset, NOW);
    let outcome = world.send_due(NOW).await;
    assert_eq!(outcome, [SendOutcome::Retry(NOW + MINUTE_MS)]);
    let error = world.last_error();
    assert!(error.contains("/dashboard/link/[masked]"), "{error}");
}

#[tokio::test]
async fn an_hour_has_a_limited_number_of_mails() {
    let server = TestMailServer::start(ServerMode::Accept).await;
    let world = world(server.port, ", per_hour: 2");
    for _ in 0..3 {
        world.queue(MailKind::Test, NOW);
    }
    assert_eq!(
        world.send_due(NOW).await,
        [SendOutcome::Sent, SendOutcome::Sent]
    );
    assert_eq!(world.send_due(NOW + HOUR_MS - 1).await, []);
    assert_eq!(world.send_due(NOW + HOUR_MS + 1).await, [SendOutcome::Sent]);
    assert_eq!(server.received().len(), 3);
    // Mails that ended go after a week.
    let week = NOW + HOUR_MS + RETENTION_MS;
    world.sender.take_due(1, week + 2);
    assert_eq!(world.accounts.mails().mails_sent_since(0).unwrap(), 0);
}

#[tokio::test]
async fn the_queue_of_an_account_has_a_limit() {
    let world = world(1, "");
    for index in 0..QUEUE_LIMITS.per_account {
        let outcome = world.queue(MailKind::Test, NOW);
        assert_eq!(outcome, QueueMailOutcome::Done, "{index}");
    }
    let outcome = world.queue(MailKind::Test, NOW);
    assert_eq!(outcome, QueueMailOutcome::AccountFull);
    let nobody = queue(&world.accounts, "acct_x", MailKind::Test, &json!({}), NOW);
    assert_eq!(nobody.unwrap(), QueueMailOutcome::NoAccount);
}

#[tokio::test]
async fn an_account_that_cannot_sign_in_gets_no_link() {
    let server = TestMailServer::start(ServerMode::Accept).await;
    let world = world(server.port, "");
    world.queue(MailKind::Reset, NOW);
    world
        .accounts
        .set_status(&world.account, AccountStatus::Suspended)
        .unwrap();
    assert_eq!(world.send_due(NOW).await, [SendOutcome::Failed]);
    world.queue(MailKind::Test, NOW);
    let row = world.sender.take_due(1, NOW).pop().unwrap();
    let holder = Actor {
        actor: world.account.clone(),
        address: String::new(),
    };
    world.accounts.delete(&holder, NOW).unwrap();
    let outcome = Arc::clone(&world.sender).send(row, NOW).await;
    assert_eq!(outcome, SendOutcome::Failed);
    assert_eq!(server.received(), Vec::<String>::new());
}

#[tokio::test]
async fn a_mail_that_a_process_took_and_did_not_send_is_sent_by_the_next() {
    let server = TestMailServer::start(ServerMode::Accept).await;
    let world = world(server.port, "");
    world.queue(MailKind::Test, NOW);
    let taken = world.sender.take_due(1, NOW);
    assert_eq!(taken.len(), 1);
    assert_eq!(world.send_due(NOW + LEASE_MS - 1).await, [], "it is taken");
    assert_eq!(world.send_due(NOW + LEASE_MS).await, [SendOutcome::Sent]);
}

#[tokio::test]
async fn the_task_sends_what_waits_from_before_and_ends_with_the_process() {
    let server = TestMailServer::start(ServerMode::Accept).await;
    let world = world(server.port, "");
    for _ in 0..3 {
        world.queue(MailKind::Test, clock::now_ms());
    }
    let (close, closing) = watch::channel(false);
    let context = NotifyContext {
        accounts: world.accounts.clone(),
        billing: world.billing.clone(),
        settings: settings(server.port, ""),
    };
    let task = tokio::spawn(run(context, closing));
    let sent = async {
        while world.accounts.mails().mails_sent_since(0).unwrap() < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SEND_TIMEOUT, sent).await.unwrap();
    assert_eq!(server.received().len(), 3);
    close.send_replace(true);
    tokio::time::timeout(SEND_TIMEOUT, task)
        .await
        .unwrap()
        .unwrap();
}

#[test]
fn every_kind_can_be_stored() {
    let world = world(9, "");
    for kind in MailKind::ALL {
        assert_eq!(world.queue(kind, NOW), QueueMailOutcome::Done, "{kind:?}");
    }
}

#[test]
fn every_kind_has_a_text_and_no_value_adds_a_line() {
    let detail = json!({
        "balance": "9.5\r\nBcc: x@example.com", "threshold": "10", "spent": "51", "period": "day",
        "url": "https://hooks.example", "because": "y".repeat(9_000), "subject": "A payment failed",
        "text": "Nothing was charged.\r\nBcc: x@example.com", "page": "https://gw.example/dashboard",
    });
    for kind in MailKind::ALL {
        assert_eq!(MailKind::from_name(kind.name()), Some(kind));
        let link = kind.link_purpose().map(|_| "https://gw.example/LINK");
        let (detail, url) = (detail.to_string(), "https://gw.example");
        let text = MailText::new(kind, &detail, link, url, "Acme AI");
        assert!(text.subject.starts_with("Acme AI: "), "{kind:?}");
        assert!(text.body.contains("https://gw.example"), "{kind:?}");
        assert_eq!(text.body.contains("/LINK"), link.is_some(), "{kind:?}");
        assert!(
            !text.body.contains("\nBcc:") && !text.body.contains("?"),
            "{kind:?}"
        );
        assert!(text.body.len() < 1_000 && text.body.is_ascii(), "{kind:?}");
    }
    assert_eq!(MailKind::from_name("other"), None);
    let empty = MailText::new(MailKind::LowBalance, "not JSON", None, "", "");
    assert!(empty.body.contains("has ? credits left"));
}
