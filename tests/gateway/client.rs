//! An HTTP/1.1 client on raw sockets: the test controls every byte.
//!
//! It must not retry, follow redirects or pool connections. It reports bad ends and never hides
//! them.

use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// If no byte arrives for this long, the gateway hangs and the test fails.
const SILENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Debug)]
pub struct Request {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Option<Vec<u8>>,
    /// The size of the body's chunks; 0 sends a content length instead.
    chunk: usize,
}

impl Request {
    pub fn new(method: &str, path: &str) -> Self {
        Self {
            method: method.into(),
            path: path.into(),
            headers: Vec::new(),
            body: None,
            chunk: 0,
        }
    }

    pub fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    pub fn post(path: &str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            body: Some(body.into()),
            ..Self::new("POST", path)
        }
        .header("content-type", "application/json")
    }

    /// A form in the encoding of a browser.
    pub fn form(path: &str, fields: &str) -> Self {
        let form = Self {
            body: Some(fields.into()),
            ..Self::new("POST", path)
        };
        form.header("content-type", "application/x-www-form-urlencoded")
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self
    }

    pub fn bearer(self, key: &str) -> Self {
        self.header("authorization", &format!("Bearer {key}"))
    }

    /// Sends the body in chunks of this size.
    pub fn chunked(mut self, chunk: usize) -> Self {
        self.chunk = chunk;
        self
    }

    /// The request line and the header.
    pub fn head(&self) -> Vec<u8> {
        let Self { method, path, .. } = self;
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        match &self.body {
            Some(_) if self.chunk > 0 => head.push_str("transfer-encoding: chunked\r\n"),
            Some(body) => head.push_str(&format!("content-length: {}\r\n", body.len())),
            None => {}
        }
        head.push_str("\r\n");
        head.into_bytes()
    }

    /// The body with its framing.
    pub fn framed_body(&self) -> Vec<u8> {
        let body = self.body.as_deref().unwrap_or_default();
        if self.chunk == 0 {
            return body.to_vec();
        }
        let mut framed = Vec::with_capacity(body.len() + body.len() / self.chunk * 8 + 16);
        for chunk in body.chunks(self.chunk) {
            framed.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            framed.extend_from_slice(chunk);
            framed.extend_from_slice(b"\r\n");
        }
        framed.extend_from_slice(b"0\r\n\r\n");
        framed
    }

    pub fn bytes(&self) -> Vec<u8> {
        [self.head(), self.framed_body()].concat()
    }
}

/// How the body of an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The body ended as its framing said.
    Whole,
    /// The connection ended before the body did.
    Cut,
}

#[derive(Clone, Copy, Debug)]
enum Framing {
    Sized(usize),
    ChunkHead,
    Chunk(usize),
    Over(End),
}

/// An answer. Its body may be incomplete.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    framing: Framing,
    /// The statuses of the interim (1xx) answers before it.
    pub interim: Vec<u16>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// Checks the value of a header.
    #[track_caller]
    pub fn has_header(&self, name: &str, value: &str) {
        let text = self.text();
        assert_eq!(self.header(name), Some(value), "{name}: {text}");
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {}: {}", self.status, self.text()))
    }

    /// The gateway's request id. Asserts that both headers have it, in the documented format.
    #[track_caller]
    pub fn request_id(&self) -> String {
        let id = self
            .header("x-request-id")
            .unwrap_or_else(|| panic!("no x-request-id: {:?}", self.headers));
        assert_eq!(self.header("request-id"), Some(id));
        let hex = id.strip_prefix("req_").unwrap_or_default();
        assert!(
            hex.len() == 32 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()),
            "request id {id:?}"
        );
        id.to_owned()
    }

    pub fn end(&self) -> Option<End> {
        match self.framing {
            Framing::Over(end) => Some(end),
            _ => None,
        }
    }

    pub fn has(&self, text: &str) -> bool {
        self.body
            .windows(text.len())
            .any(|window| window == text.as_bytes())
    }

    fn begin(head: &str, interim: Vec<u16>) -> Self {
        let mut lines = head.split("\r\n");
        let status = lines
            .next()
            .and_then(|line| line.split(' ').nth(1))
            .and_then(|status| status.parse().ok());
        let headers: Vec<_> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let status = status.unwrap_or_else(|| panic!("not an answer: {head:?}"));
        let mut answer = Self {
            status,
            headers,
            body: Vec::new(),
            framing: Framing::Over(End::Whole),
            interim,
        };
        let length = answer
            .header("content-length")
            .map(|length| length.parse().expect("a content-length"));
        let chunked = answer.header("transfer-encoding") == Some("chunked");
        assert!(!(chunked && length.is_some()), "two framings: {head}");
        answer.framing = match length {
            _ if chunked => Framing::ChunkHead,
            Some(0) | None => Framing::Over(End::Whole),
            Some(length) => Framing::Sized(length),
        };
        answer
    }
}

pub struct Connection {
    stream: TcpStream,
    raw: Vec<u8>,
}

impl Connection {
    pub fn open(port: u16) -> Self {
        Self::try_open(port).unwrap_or_else(|| panic!("cannot connect to port {port}"))
    }

    pub fn try_open(port: u16) -> Option<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(SILENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Some(Self {
            stream,
            raw: Vec::new(),
        })
    }

    /// Returns false if the gateway has closed the connection.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Closes the sending side; the client can still read.
    pub fn half_close(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Reads more bytes; returns false at the end of the connection.
    fn fill(&mut self) -> bool {
        let mut buffer = [0_u8; 65_536];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(count) => {
                    self.raw.extend_from_slice(&buffer[..count]);
                    return true;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    panic!(
                        "nothing came for {SILENCE:?}; last: {:?}",
                        String::from_utf8_lossy(&self.raw)
                    )
                }
                Err(_) => return false,
            }
        }
    }

    /// Reads the next head, unparsed; returns `None` if the connection ended first.
    pub fn head(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.raw.windows(4).position(|window| window == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.raw[..end]).into_owned();
                self.raw.drain(..end + 4);
                return Some(head);
            }
            if !self.fill() {
                return None;
            }
        }
    }

    /// Reads the head of the next answer; returns `None` if the connection ended first.
    pub fn try_begin(&mut self) -> Option<Answer> {
        let mut interim = Vec::new();
        loop {
            let head = self.head()?;
            let answer = Answer::begin(&head, interim.clone());
            if answer.status >= 200 {
                return Some(answer);
            }
            interim.push(answer.status);
        }
    }

    #[track_caller]
    pub fn begin(&mut self) -> Answer {
        self.try_begin().expect("an answer")
    }

    /// Reads one more piece of the body; returns false once the body has ended.
    pub fn more(&mut self, answer: &mut Answer) -> bool {
        if matches!(answer.framing, Framing::Over(_)) {
            return false;
        }
        if self.raw.is_empty() && !self.fill() {
            answer.framing = Framing::Over(End::Cut);
            return false;
        }
        answer.framing = match answer.framing {
            Framing::Sized(left) => match left - self.take(answer, left) {
                0 => Framing::Over(End::Whole),
                left => Framing::Sized(left),
            },
            Framing::Chunk(left) => match left - self.take(answer, left) {
                0 if self.line().is_some() => Framing::ChunkHead,
                0 => Framing::Over(End::Cut),
                left => Framing::Chunk(left),
            },
            _ => match self.line().map(|line| usize::from_str_radix(&line, 16)) {
                Some(Ok(0)) if self.line().is_some() => Framing::Over(End::Whole),
                Some(Ok(size)) if size > 0 => Framing::Chunk(size),
                Some(Err(error)) => panic!("a chunk's size: {error}"),
                _ => Framing::Over(End::Cut),
            },
        };
        true
    }

    fn take(&mut self, answer: &mut Answer, most: usize) -> usize {
        let count = most.min(self.raw.len());
        answer.body.extend(self.raw.drain(..count));
        count
    }

    fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.raw.windows(2).position(|window| window == b"\r\n") {
                let line = String::from_utf8_lossy(&self.raw[..end]).into_owned();
                self.raw.drain(..end + 2);
                return Some(line);
            }
            if !self.fill() {
                return None;
            }
        }
    }

    /// Reads on until the body holds `text`.
    #[track_caller]
    pub fn until(&mut self, answer: &mut Answer, text: &str) {
        while !answer.has(text) {
            assert!(
                self.more(answer),
                "the body ended before {text:?}: {}",
                answer.text()
            );
        }
    }

    pub fn finish(&mut self, answer: &mut Answer) {
        while self.more(answer) {}
    }

    pub fn try_answer(&mut self) -> Option<Answer> {
        let mut answer = self.try_begin()?;
        self.finish(&mut answer);
        Some(answer)
    }

    #[track_caller]
    pub fn answer(&mut self) -> Answer {
        self.try_answer().expect("an answer")
    }

    #[track_caller]
    pub fn ask(&mut self, request: &Request) -> Answer {
        self.send(&request.bytes());
        self.answer()
    }

    /// Drops the received bytes and waits for more; returns false at the end of the connection.
    pub fn hears_more(&mut self) -> bool {
        self.raw.clear();
        self.fill()
    }

    /// Waits until there are bytes that the client has not read.
    pub fn wait_unread(&self) {
        assert!(
            self.stream.peek(&mut [0]).unwrap() > 0,
            "the connection ended"
        );
    }

    /// Drops the bytes that were received and not parsed.
    pub fn forget(&mut self) {
        self.raw.clear();
    }

    /// Waits until the gateway closes the connection; returns false if it sends another byte.
    pub fn is_closed(&mut self) -> bool {
        self.raw.is_empty() && !self.fill()
    }
}

/// Sends one request on its own connection.
#[track_caller]
pub fn ask(port: u16, request: &Request) -> Answer {
    Connection::open(port).ask(request)
}

pub fn try_ask(port: u16, request: &Request) -> Option<Answer> {
    let mut connection = Connection::try_open(port)?;
    connection.send(&request.bytes());
    connection.try_answer()
}
