//! Tests the simulator over TLS and HTTP/2: the same answers, with the faults that HTTP/2 allows.
//!
//! It must not repeat what the HTTP/1.1 tests check.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, RecvStream};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::wire::{Simulator, post};
use crate::stats::hex;
use crate::{SimulatedFault, SimulatorOptions, SimulatorTls};

const STREAMS_MAX: u32 = 7;

/// A simulator with TLS, and the authority of its certificate.
struct World {
    simulator: Simulator,
    dir: TempDir,
}

impl World {
    async fn start(fault: Option<SimulatedFault>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tls = Some(SimulatorTls {
            dir: dir.path().to_owned(),
            h2_streams: STREAMS_MAX,
        });
        let simulator = Simulator::start(SimulatorOptions {
            fault,
            tls,
            ..SimulatorOptions::default()
        })
        .await;
        Self { simulator, dir }
    }

    async fn handshake(&self, alpn: &[u8]) -> TlsStream<TcpStream> {
        let stream = self.simulator.connect().await;
        // The files are created before the first connection is accepted, but a client may be
        // faster.
        let authority = loop {
            if let Ok(authority) = CertificateDer::from_pem_file(self.dir.path().join("ca.pem")) {
                break authority;
            }
            tokio::task::yield_now().await;
        };
        let mut roots = RootCertStore::empty();
        roots.add(authority).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![alpn.to_vec()];
        let name = "localhost".try_into().unwrap();
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
            .unwrap()
    }

    /// Opens a connection; dropping the second value ends it.
    async fn connect(&self) -> (SendRequest<Bytes>, JoinSet<Result<(), h2::Error>>) {
        let stream = self.handshake(b"h2").await;
        let mut builder = h2::client::Builder::new();
        // Larger data must be sent in several steps.
        builder
            .initial_window_size(65_535)
            .max_header_list_size(64 * 1024);
        let (client, connection) = builder.handshake(stream).await.unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        (client.ready().await.unwrap(), driver)
    }

    async fn stats(&self) -> Value {
        self.simulator.get("/_sim/stats").await
    }
}

/// An answer, as far as it was received.
struct Answer {
    status: u16,
    body: Vec<u8>,
    error: Option<h2::Error>,
}

impl Answer {
    fn events(&self) -> usize {
        String::from_utf8_lossy(&self.body)
            .matches("data: ")
            .count()
    }

    fn reason(&self) -> Option<Reason> {
        self.error.as_ref().and_then(h2::Error::reason)
    }
}

fn body(stream: bool, text: &str) -> Value {
    json!({"model": "m", "stream": stream, "messages": [{"role": "user", "content": text}]})
}

fn chat(
    client: &mut SendRequest<Bytes>,
    host: Option<&str>,
    body: String,
) -> h2::client::ResponseFuture {
    let request = http::Request::post("https://localhost/v1/chat/completions")
        .header("authorization", "Bearer sk-1");
    let request = host
        .into_iter()
        .fold(request, |request, host| request.header("host", host));
    let (answer, mut sender) = client
        .send_request(request.body(()).unwrap(), false)
        .unwrap();
    sender.send_data(body.into(), true).unwrap();
    answer
}

async fn read(answer: h2::client::ResponseFuture) -> Answer {
    match answer.await {
        Err(error) => Answer {
            status: 0,
            body: Vec::new(),
            error: Some(error),
        },
        Ok(answer) => {
            let status = answer.status().as_u16();
            let (body, error) = read_body(answer.into_body()).await;
            Answer {
                status,
                body,
                error,
            }
        }
    }
}

async fn read_body(mut stream: RecvStream) -> (Vec<u8>, Option<h2::Error>) {
    let mut body = Vec::new();
    while let Some(piece) = stream.data().await {
        match piece {
            Ok(piece) => {
                body.extend_from_slice(&piece);
                stream.flow_control().release_capacity(piece.len()).unwrap();
            }
            Err(error) => return (body, Some(error)),
        }
    }
    (body, None)
}

async fn ask(client: &mut SendRequest<Bytes>, stream: bool, text: &str) -> Answer {
    let answer = chat(client, None, body(stream, text).to_string());
    read(answer).await
}

#[tokio::test]
async fn one_connection_carries_many_answers_at_a_time_and_each_is_recorded() {
    let world = World::start(None).await;
    let (mut client, _driver) = world.connect().await;
    let slow = chat(
        &mut client,
        None,
        body(true, "[[sim delay_ms=600000]]").to_string(),
    );
    let large = "x".repeat(3 * 1024 * 1024);
    let text = body(false, &format!("[[sim bytes=300000]] {large}")).to_string();
    let answers = [
        chat(&mut client, None, text.clone()),
        chat(&mut client, None, body(true, "hello").to_string()),
    ];
    let mut answers = answers.into_iter();
    let whole = read(answers.next().unwrap()).await;
    assert_eq!(
        (whole.status, whole.body.len() > 300_000, whole.reason()),
        (200, true, None)
    );
    let streamed = read(answers.next().unwrap()).await;
    assert!(
        String::from_utf8_lossy(&streamed.body).ends_with("data: [DONE]\n\n"),
        "{:?}",
        streamed.error
    );
    let requests = world.simulator.get("/_sim/requests").await;
    let large = requests
        .as_array()
        .unwrap()
        .iter()
        .find(|request| request["body_length"] == text.len())
        .unwrap();
    assert_eq!(large["body_sha256"], hex(&Sha256::digest(&text)));
    assert_eq!(large["http"], "2");
    assert!(
        large["headers"]
            .as_array()
            .unwrap()
            .contains(&json!([":authority", "localhost"])),
        "{large}"
    );
    let stats = world.stats().await;
    assert_eq!(
        (&stats["in_flight"], &stats["connections_by_http"]["2"]),
        (&1.into(), &1.into()),
        "{stats}"
    );
    assert_eq!(client.current_max_send_streams(), STREAMS_MAX as usize);
    drop(slow);
}

#[tokio::test]
async fn an_answer_breaks_off_behind_all_that_was_sent_and_the_others_go_on() {
    let world = World::start(None).await;
    let (mut client, _driver) = world.connect().await;
    for (marker, events, reason) in [
        ("cut=3", 3, Some(Reason::INTERNAL_ERROR)),
        ("cut=3 end=clean", 3, None),
        ("garbage=chunk", 1, Some(Reason::PROTOCOL_ERROR)),
        // Ended, but shorter than its content-length: the client library detects that.
        ("garbage=length", 12, Some(Reason::PROTOCOL_ERROR)),
    ] {
        let answer = ask(&mut client, true, &format!("[[sim events=9 {marker}]]")).await;
        assert_eq!(
            (answer.status, answer.events(), answer.reason()),
            (200, events, reason),
            "{marker}"
        );
    }
    let many = ask(&mut client, true, "[[sim events=5000 cut=4000]]").await;
    assert_eq!(
        (many.events(), many.reason()),
        (4_000, Some(Reason::INTERNAL_ERROR))
    );
    assert_eq!(
        ask(&mut client, true, "[[sim cut=headers]]").await.reason(),
        Some(Reason::INTERNAL_ERROR)
    );
    let half = ask(&mut client, false, "[[sim cut=1]]").await;
    assert!(!half.body.is_empty() && half.reason() == Some(Reason::INTERNAL_ERROR));
    assert_eq!(ask(&mut client, false, "hello").await.status, 200);
    assert_eq!(world.stats().await["connections_by_http"]["2"], 1);
    // This header is too large for the client library, which reports it and closes the connection.
    let too_large = chat(
        &mut client,
        None,
        body(true, "[[sim garbage=headers]]").to_string(),
    )
    .await
    .unwrap_err();
    assert_eq!(
        too_large.reason(),
        Some(Reason::ENHANCE_YOUR_CALM),
        "{too_large}"
    );
}

#[tokio::test]
async fn a_reset_and_a_broken_endpoint_take_the_connection_with_them() {
    let world = World::start(None).await;
    let (mut client, mut driver) = world.connect().await;
    let other = chat(
        &mut client,
        None,
        body(true, "[[sim gap_ms=600000]]").to_string(),
    );
    let cut = ask(&mut client, true, "[[sim events=9 cut=3 reset=1]]").await;
    assert!(
        cut.events() == 3 && cut.error.as_ref().is_some_and(h2::Error::is_io),
        "{:?}",
        cut.error
    );
    assert!(read(other).await.error.is_some());
    let ended = driver.join_next().await.unwrap().unwrap().unwrap_err();
    assert!(ended.to_string().contains("reset"), "{ended}");
    while world.stats().await["in_flight"] != 0 {}
    let world = World::start(Some(SimulatedFault::CloseAfterRequest)).await;
    let (mut client, _driver) = world.connect().await;
    assert_eq!(ask(&mut client, true, "hello").await.status, 0);
    assert_eq!(world.stats().await["requests"], 1);
}

#[tokio::test]
async fn a_client_that_resets_its_stream_or_closes_is_gone() {
    let world = World::start(None).await;
    let (mut client, driver) = world.connect().await;
    let markers = ["gap_ms=600000", "hang=1", "delay_ms=600000", "hang=headers"];
    for (gone, marker) in (1..).zip(markers) {
        let answer = chat(
            &mut client,
            None,
            body(true, &format!("[[sim {marker}]]")).to_string(),
        );
        while world.stats().await["in_flight"] != 1 {}
        // The library resets a stream when its answer is dropped.
        drop(answer);
        while world.stats().await["client_gone"] != gone {}
    }
    // A client that does not read also counts as disconnected once it leaves: no more of its answer
    // can be sent.
    let answer = chat(
        &mut client,
        None,
        body(true, "[[sim bytes=9000000]]").to_string(),
    )
    .await
    .unwrap();
    drop((client, driver));
    while world.stats().await["client_gone"] != 5 {}
    drop(answer);
    assert_eq!(world.stats().await["in_flight"], 0);
}

/// Frames are written by hand: the client library would not send them.
#[tokio::test]
async fn what_every_server_of_http2_refuses_is_refused() {
    let world = World::start(None).await;
    let (mut client, _driver) = world.connect().await;
    let other = chat(
        &mut client,
        Some("elsewhere.example"),
        body(false, "hello").to_string(),
    );
    assert_eq!(read(other).await.status, 400);
    // `:method: GET`, `:scheme: https`, `:path: /` from the static table, then literals.
    let literal = |name: &str, value: &str| {
        let (name, value) = (name.as_bytes(), value.as_bytes());
        [&[0, name.len() as u8], name, &[value.len() as u8], value].concat()
    };
    let authority = literal(":authority", "localhost");
    let (headers, reset, go_away) = (1, 3, 7);
    for (what, fields, kind) in [
        ("no authority", Vec::new(), headers),
        (
            "a name in upper case",
            [authority.clone(), literal("X-Up", "1")].concat(),
            go_away,
        ),
        (
            "a header about the connection",
            [authority.clone(), literal("connection", "close")].concat(),
            reset,
        ),
    ] {
        let block = [&[0x82, 0x87, 0x84], fields.as_slice()].concat();
        let mut stream = world.handshake(b"h2").await;
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let head = [0, 0, block.len() as u8, headers, 5, 0, 0, 0, 1];
        let bytes = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(),
            &settings,
            &head,
            &block,
        ]
        .concat();
        stream.write_all(&bytes).await.unwrap();
        let (answered, payload) = first_frame_of(&mut stream, &[headers, reset, go_away]).await;
        assert_eq!(answered, kind, "{what}");
        // 12 is `:status: 400` in the static table.
        assert!(
            kind != headers || payload[0] == 0x80 | 12,
            "{what}: {payload:?}"
        );
    }
    assert_eq!(world.stats().await["requests"], 0);
}

async fn first_frame_of(stream: &mut TlsStream<TcpStream>, kinds: &[u8]) -> (u8, Vec<u8>) {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        stream.read_exact(&mut payload).await.unwrap();
        if kinds.contains(&head[3]) {
            return (head[3], payload);
        }
    }
}

#[tokio::test]
async fn a_port_of_tls_speaks_http1_too_and_shows_its_pages_to_everybody() {
    let world = World::start(None).await;
    let mut stream = world.handshake(b"http/1.1").await;
    let text = body(true, "[[sim cut=2]]").to_string();
    let request = post(
        "/v1/chat/completions",
        "authorization: Bearer sk-1\r\n",
        &text,
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.matches("data: ").count() == 2,
        "{answer}"
    );
    assert_eq!(
        world.simulator.get("/_sim/requests").await[0]["http"],
        "1.1"
    );
    assert_eq!(
        world.simulator.chat(false, "in the clear").await.status,
        400
    );
    assert_eq!(world.stats().await["requests"], 1);
}

#[tokio::test]
async fn a_certificate_is_made_once_and_its_key_is_private() {
    let world = World::start(None).await;
    drop(world.handshake(b"h2").await);
    let read = |name: &str| std::fs::read(world.dir.path().join(name)).unwrap();
    let made = ["ca.pem", "server.pem", "server-key.pem"].map(read);
    let key = std::fs::metadata(world.dir.path().join("server-key.pem")).unwrap();
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
    assert!(crate::tls::acceptor(world.dir.path()).is_ok());
    assert_eq!(["ca.pem", "server.pem", "server-key.pem"].map(read), made);
    // An existing file in a directory is not replaced.
    std::fs::remove_file(world.dir.path().join("ca.pem")).unwrap();
    let error = crate::tls::acceptor(world.dir.path()).err().unwrap();
    assert!(
        format!("{error:#}").starts_with("cannot make a certificate in "),
        "{error:#}"
    );
}
