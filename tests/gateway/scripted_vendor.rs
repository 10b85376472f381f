//! A vendor behind TLS that speaks HTTP/2 frame by frame, so that a test controls each frame.
//!
//! It reads requests without decompressing their headers, and answers as its script says. It must
//! not know what a test is about. It uses no HTTP/2 library, because a library refuses to send most
//! of these frames.

use crate::h2::{
    ACK, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, SETTINGS, block, field,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const PING: u8 = 6;
pub const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const MAX_FRAME_BYTES: usize = 16_384;

const NO_ERROR: u32 = 0;
pub const INTERNAL_ERROR: u32 = 2;
pub const REFUSED_STREAM: u32 = 7;
pub const CANCEL: u32 = 8;
pub const ENHANCE_YOUR_CALM: u32 = 11;
pub const HTTP_1_1_REQUIRED: u32 = 13;

const WHOLE: &str = r#"{"id":"c","object":"chat.completion","created":1,"model":"gpt-5.2","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}"#;
const EVENTS: [&str; 4] = [
    r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"gpt-5.2","choices":[{"index":0,"delta":{"role":"assistant","content":"h"},"finish_reason":null}]}"#,
    r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"gpt-5.2","choices":[{"index":0,"delta":{"content":"i"},"finish_reason":null}]}"#,
    r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"gpt-5.2","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
    r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"gpt-5.2","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}"#,
];
/// Token counts of every answer of this vendor.
pub const INPUT: i64 = 7;
pub const OUTPUT: i64 = 3;

/// One step of the vendor's answer to a request that it has read.
#[derive(Clone, Debug)]
pub enum Step {
    /// The head of a 200, with this many bytes of additional header fields.
    Head(usize),
    /// The first half of the body. For a stream, this is its first event.
    Half,
    /// The rest of the body, with END_STREAM.
    Rest,
    /// The rest of the body in a frame without END_STREAM, then trailers.
    RestAndTrailers,
    /// Resets the request's stream with this code.
    Reset(u32),
    /// Sends GOAWAY with the last processed stream (`None`: this one) and the error code.
    GoAway(Option<u32>, u32),
    /// Plays the steps that this function returns for the request's body.
    Answer(fn(&[u8]) -> Vec<Step>),
    Frame {
        kind: u8,
        flags: u8,
        on_stream: bool,
        payload: Vec<u8>,
    },
    /// Waits for this number of answers to the vendor's pings.
    Pongs(usize),
    /// Reads and sends nothing for this time, like a connection behind a slow link.
    Pause(Duration),
    /// Ends the TCP connection without notice. Only the vendor's half is closed: if the kernel
    /// refused what the gateway still sends, it could discard what the gateway has not read yet.
    Close,
    /// Closes every TCP connection of this vendor.
    CloseAll,
    /// Plays the first list for the first request of a connection, and the second for later
    /// requests on it.
    OnConnection(Vec<Step>, Vec<Step>),
}

/// Status and body of an answer that is sent before the request's body has been read.
type Refusal = (&'static str, &'static str);

/// The steps of a complete successful answer.
pub fn answer() -> Vec<Step> {
    vec![Step::Head(0), Step::Half, Step::Rest]
}

/// A SETTINGS frame in the middle of a connection, with one setting.
pub fn setting(name: u16, value: u32) -> Step {
    let payload = [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
    Step::Frame {
        kind: SETTINGS,
        flags: 0,
        on_stream: false,
        payload,
    }
}

/// Returns the steps for the n-th request to the vendor, counted from 0.
pub type Script = Arc<dyn Fn(usize) -> Vec<Step> + Send + Sync>;

/// Counts what the vendor has received.
#[derive(Debug, Default)]
pub struct Seen {
    pub connections: usize,
    /// Requests whose header has arrived.
    pub asked: usize,
    pub asked_h1: usize,
    pub pongs: usize,
    /// Error codes of the streams that the gateway reset.
    pub resets: Vec<u32>,
    /// Bytes of request bodies.
    pub body_bytes: usize,
    /// The largest number of streams open at the same time on one connection.
    pub most_open: usize,
}

/// A root certificate that the gateway trusts, to sign the vendors' certificates.
pub struct Authority {
    params: CertificateParams,
    key: KeyPair,
    pub file: PathBuf,
    _dir: tempfile::TempDir,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("authority.pem");
        std::fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
        Self {
            params,
            key,
            file,
            _dir: dir,
        }
    }

    /// Issues a certificate for `host`, signed by this root.
    pub fn signs(&self, host: &str) -> Certificate {
        let (params, key) = (
            CertificateParams::new(vec![host.to_owned()]).unwrap(),
            KeyPair::generate().unwrap(),
        );
        let signed = params
            .signed_by(&key, &Issuer::from_params(&self.params, &self.key))
            .unwrap();
        Certificate {
            chain: vec![signed.der().clone()],
            key: key.serialize_der(),
        }
    }
}

pub struct Certificate {
    chain: Vec<CertificateDer<'static>>,
    key: Vec<u8>,
}

/// The flow-control window in bytes and the number of concurrent streams that the vendor allows.
#[derive(Clone, Copy)]
pub struct Flow {
    pub stream_window: u32,
    pub max_streams: u32,
    /// If true, the vendor enlarges the window again as it reads. If false, the first window is
    /// never enlarged.
    pub gives_back: bool,
}

impl Default for Flow {
    fn default() -> Self {
        Self {
            stream_window: 65_535,
            max_streams: 100,
            gives_back: true,
        }
    }
}

/// Settings for future connections.
#[derive(Clone)]
struct Mode {
    config: Arc<ServerConfig>,
    flow: Flow,
    /// If set, the vendor answers with this refusal after the first bytes of a body, and then
    /// resets the stream (RFC 9113, section 8.1).
    refusal: Option<Refusal>,
}

pub struct H2Vendor {
    pub port: u16,
    pub seen: Arc<Mutex<Seen>>,
    mode: Arc<Mutex<Mode>>,
}

impl H2Vendor {
    pub fn start(certificate: &Certificate, flow: Flow, script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let config = config(certificate, &[b"h2", b"http/1.1"]);
        let mode = Arc::new(Mutex::new(Mode {
            config,
            flow,
            refusal: None,
        }));
        let vendor = Self {
            port,
            seen: Arc::default(),
            mode: Arc::clone(&mode),
        };
        let (seen, all) = (
            Arc::clone(&vendor.seen),
            Arc::<Mutex<Vec<TcpStream>>>::default(),
        );
        // The thread ends with the test process. A test waits until the vendor has counted what it
        // expects.
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (seen, all, script) =
                    (Arc::clone(&seen), Arc::clone(&all), Arc::clone(&script));
                let mode = mode.lock().unwrap().clone();
                std::thread::spawn(move || converse(socket, mode, &seen, &all, &script));
            }
        });
        vendor
    }

    /// Sets another certificate, or other ALPN protocols, for future connections.
    pub fn change(&self, certificate: &Certificate, protocols: &[&[u8]]) {
        self.mode.lock().unwrap().config = config(certificate, protocols);
    }

    /// Makes the vendor refuse every request before it has read the body, with this status and
    /// body.
    pub fn refuse_early(&self, status: &'static str, body: &'static str) {
        self.mode.lock().unwrap().refusal = Some((status, body));
    }

    pub fn asked(&self) -> usize {
        self.seen.lock().unwrap().asked
    }
}

fn config(certificate: &Certificate, protocols: &[&[u8]]) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(certificate.key.clone()));
    let mut config = builder
        .with_no_client_auth()
        .with_single_cert(certificate.chain.clone(), key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Arc::new(config)
}

struct Connection<'a> {
    stream: StreamOwned<ServerConnection, TcpStream>,
    seen: &'a Mutex<Seen>,
    input: Vec<u8>,
    open: HashMap<u32, (usize, Vec<u8>)>,
    pongs: usize,
    mode: Mode,
    all: &'a Mutex<Vec<TcpStream>>,
    has_answered: bool,
}

fn converse(
    socket: TcpStream,
    mode: Mode,
    seen: &Mutex<Seen>,
    all: &Mutex<Vec<TcpStream>>,
    script: &Script,
) {
    socket.set_nodelay(true).unwrap();
    all.lock().unwrap().push(socket.try_clone().unwrap());
    let mut stream = StreamOwned::new(
        ServerConnection::new(Arc::clone(&mode.config)).unwrap(),
        socket,
    );
    while stream.conn.is_handshaking() {
        if stream.conn.complete_io(&mut stream.sock).is_err() {
            return;
        }
    }
    seen.lock().unwrap().connections += 1;
    if stream.conn.alpn_protocol() != Some(b"h2") {
        return serve_h1(&mut stream, seen);
    }
    let mut connection = Connection {
        stream,
        seen,
        input: Vec::new(),
        open: HashMap::new(),
        pongs: 0,
        mode,
        all,
        has_answered: false,
    };
    connection.serve(script);
}

/// Serves HTTP/1.1: sends a successful answer to each request.
fn serve_h1(stream: &mut StreamOwned<ServerConnection, TcpStream>, seen: &Mutex<Seen>) {
    let (mut read, mut piece) = (Vec::new(), [0; 65_536]);
    while let Ok(length @ 1..) = stream.read(&mut piece) {
        read.extend_from_slice(&piece[..length]);
        if !read.ends_with(b"}") {
            continue;
        }
        seen.lock().unwrap().asked_h1 += 1;
        let (kind, body) = content(&read);
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        read.clear();
        if stream
            .write_all(head.as_bytes())
            .and_then(|()| stream.write_all(&body))
            .is_err()
        {
            return;
        }
    }
}

/// Content type and bytes of the answer to a body.
fn content(body: &[u8]) -> (&'static str, Vec<u8>) {
    let streams = String::from_utf8_lossy(body).contains("\"stream\":true");
    if !streams {
        return ("application/json", WHOLE.into());
    }
    let mut events: Vec<_> = EVENTS
        .iter()
        .map(|event| format!("data: {event}\n\n"))
        .collect();
    events.push("data: [DONE]\n\n".into());
    ("text/event-stream", events.concat().into())
}

impl Connection<'_> {
    fn serve(&mut self, script: &Script) {
        let Some(preface) = self.take(24) else { return };
        assert_eq!(preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        let settings = [
            (4_u16, self.mode.flow.stream_window),
            (3, self.mode.flow.max_streams),
        ];
        let payload: Vec<u8> = settings
            .iter()
            .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat())
            .collect();
        self.send(SETTINGS, 0, 0, &payload);
        while let Some((kind, flags, id, payload)) = self.frame() {
            if let Some((number, body)) = self.receive(kind, flags, id, payload)
                && !self.play(id, &body, script(number))
            {
                return;
            }
        }
    }

    /// Returns the number and body of the request that this frame completes.
    fn receive(
        &mut self,
        kind: u8,
        flags: u8,
        id: u32,
        payload: Vec<u8>,
    ) -> Option<(usize, Vec<u8>)> {
        match kind {
            HEADERS => {
                let mut seen = self.seen.lock().unwrap();
                let number = seen.asked;
                seen.asked += 1;
                self.open.insert(id, (number, Vec::new()));
                seen.most_open = seen.most_open.max(self.open.len());
            }
            DATA => {
                self.seen.lock().unwrap().body_bytes += payload.len();
                if self.mode.flow.gives_back && !payload.is_empty() {
                    let bytes = u32::try_from(payload.len()).unwrap().to_be_bytes();
                    self.send(WINDOW_UPDATE, 0, 0, &bytes);
                    self.send(WINDOW_UPDATE, 0, id, &bytes);
                }
                if let Some((status, body)) = self.mode.refusal
                    && self.open.remove(&id).is_some()
                {
                    self.refuse(id, status, body);
                }
                if let Some((_, body)) = self.open.get_mut(&id) {
                    body.extend_from_slice(&payload);
                }
            }
            SETTINGS if flags & ACK == 0 => self.send(SETTINGS, ACK, 0, b""),
            PING if flags & ACK == 0 => self.send(PING, ACK, 0, &payload),
            PING => {
                self.pongs += 1;
                self.seen.lock().unwrap().pongs += 1;
            }
            RST_STREAM => {
                self.open.remove(&id);
                self.seen
                    .lock()
                    .unwrap()
                    .resets
                    .push(u32::from_be_bytes(payload[..4].try_into().unwrap()));
            }
            _ => {}
        }
        let is_whole = matches!(kind, HEADERS | DATA) && flags & END_STREAM != 0;
        if is_whole {
            self.open.remove(&id)
        } else {
            None
        }
    }

    fn refuse(&mut self, id: u32, status: &str, body: &str) {
        self.head(
            id,
            &block(&vec![
                field(":status", status),
                field("content-type", "application/json"),
            ]),
        );
        self.send(DATA, END_STREAM, id, body.as_bytes());
        self.send(RST_STREAM, 0, id, &NO_ERROR.to_be_bytes());
    }

    /// Returns false if the connection has ended.
    fn play(&mut self, id: u32, body: &[u8], steps: Vec<Step>) -> bool {
        let (kind, content) = content(body);
        let half = if kind == "application/json" {
            content.len() / 2
        } else {
            EVENTS[0].len() + 8
        };
        for step in steps {
            match step {
                Step::Head(filler) => {
                    let mut fields = vec![field("content-type", kind)];
                    fields.extend(
                        (0..filler / 1_024)
                            .map(|n| field(&format!("x-filler-{n}"), &"x".repeat(1_000))),
                    );
                    self.head(id, &[&[0x88][..], &block(&fields)].concat());
                }
                Step::Answer(steps) => {
                    if !self.play(id, body, steps(body)) {
                        return false;
                    }
                }
                Step::Half => self.send(DATA, 0, id, &content[..half]),
                Step::Rest => self.send(DATA, END_STREAM, id, &content[half..]),
                Step::RestAndTrailers => {
                    self.send(DATA, 0, id, &content[half..]);
                    self.send(
                        HEADERS,
                        END_HEADERS | END_STREAM,
                        id,
                        &block(&vec![field("x-checksum", "1")]),
                    );
                }
                Step::Reset(code) => self.send(RST_STREAM, 0, id, &code.to_be_bytes()),
                Step::GoAway(last, code) => {
                    let payload = [last.unwrap_or(id).to_be_bytes(), code.to_be_bytes()].concat();
                    self.send(GOAWAY, 0, 0, &payload);
                }
                Step::Frame {
                    kind,
                    flags,
                    on_stream,
                    payload,
                } => {
                    self.send(kind, flags, if on_stream { id } else { 0 }, &payload);
                }
                Step::Pongs(count) => {
                    while self.pongs < count {
                        let Some((kind, flags, id, payload)) = self.frame() else {
                            return false;
                        };
                        self.receive(kind, flags, id, payload);
                    }
                }
                Step::Pause(time) => std::thread::sleep(time),
                Step::Close => {
                    let _ = self.stream.sock.shutdown(std::net::Shutdown::Write);
                    return false;
                }
                Step::OnConnection(first, others) => {
                    let steps = if std::mem::replace(&mut self.has_answered, true) {
                        others
                    } else {
                        first
                    };
                    if !self.play(id, body, steps) {
                        return false;
                    }
                }
                Step::CloseAll => {
                    for socket in self.all.lock().unwrap().drain(..) {
                        let _ = socket.shutdown(std::net::Shutdown::Both);
                    }
                    return false;
                }
            }
        }
        true
    }

    /// Sends a block of header fields, in as many frames as needed.
    fn head(&mut self, id: u32, block: &[u8]) {
        let pieces: Vec<_> = block.chunks(MAX_FRAME_BYTES).collect();
        for (index, piece) in pieces.iter().enumerate() {
            let kind = if index == 0 { HEADERS } else { CONTINUATION };
            let flags = if index + 1 == pieces.len() {
                END_HEADERS
            } else {
                0
            };
            self.send(kind, flags, id, piece);
        }
    }

    /// Ignores write errors: the next read notices that the gateway has disconnected.
    fn send(&mut self, kind: u8, flags: u8, id: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [&length[1..], &[kind, flags], &id.to_be_bytes()].concat();
        let _ = self.stream.write_all(&[&head, payload].concat());
    }

    fn frame(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        let head = self.take(9)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let payload = self.take(length as usize)?;
        Some((
            head[3],
            head[4],
            u32::from_be_bytes(head[5..].try_into().unwrap()),
            payload,
        ))
    }

    fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        let mut piece = [0; 65_536];
        while self.input.len() < count {
            match self.stream.read(&mut piece) {
                Ok(length @ 1..) => self.input.extend_from_slice(&piece[..length]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => return None,
            }
        }
        Some(self.input.drain(..count).collect())
    }
}
