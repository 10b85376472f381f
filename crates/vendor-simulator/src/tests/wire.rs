//! A client on bare sockets for the simulator's tests.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::{SimulatorOptions, serve};

/// A simulator on a free port; dropping this value stops it.
pub struct Simulator {
    address: std::net::SocketAddr,
    _server: JoinSet<anyhow::Result<()>>,
}

/// A parsed answer; `ended`: the body was complete in its framing.
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
    pub chunks: usize,
    pub ended: bool,
}

impl Simulator {
    pub async fn start(options: SimulatorOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut server = JoinSet::new();
        server.spawn(serve(listener, options));
        Self {
            address,
            _server: server,
        }
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    pub async fn chat(&self, stream: bool, text: &str) -> Answer {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": text}]});
        if stream {
            body["stream"] = true.into();
            body["stream_options"] = json!({"include_usage": true});
        }
        self.call(
            "/v1/chat/completions",
            "authorization: Bearer sk-1\r\n",
            &body.to_string(),
        )
        .await
    }

    pub async fn messages(&self, stream: bool, text: &str) -> Answer {
        let turn = json!({"role": "user", "content": [{"type": "text", "text": text}]});
        let body = json!({"model": "m", "max_tokens": 1000, "stream": stream, "messages": [turn]});
        self.call("/v1/messages", MESSAGES_HEAD, &body.to_string())
            .await
    }

    /// Requests a response with reasoning and its encrypted content, and offers a function and a
    /// custom tool.
    pub async fn responses(&self, stream: bool, text: &str) -> Answer {
        let tools = json!([
            {"type": "function", "name": "get", "parameters": {"type": "object", "properties": {}}, "strict": false},
            {"type": "custom", "name": "patch"}
        ]);
        let body = json!({
            "model": "m", "store": false, "stream": stream, "tools": tools, "reasoning": {"summary": "auto"},
            "include": ["reasoning.encrypted_content"], "input": [{"role": "user", "content": text}]
        });
        self.call(
            "/v1/responses",
            "authorization: Bearer sk-1\r\n",
            &body.to_string(),
        )
        .await
    }

    pub async fn call(&self, path: &str, head: &str, body: &str) -> Answer {
        let mut stream = self.connect().await;
        stream
            .write_all(post(path, head, body).as_bytes())
            .await
            .unwrap();
        read_answer(&mut stream).await
    }

    pub async fn get(&self, path: &str) -> Value {
        let mut stream = self.connect().await;
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes())
            .await
            .unwrap();
        read_answer(&mut stream).await.json()
    }
}

pub const MESSAGES_HEAD: &str = "x-api-key: k\r\nanthropic-version: 2023-06-01\r\n";

pub fn post(path: &str, head: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\n{head}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// Data of each event.
    pub fn data(&self) -> Vec<String> {
        let text = self.text();
        text.lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .map(str::to_owned)
            .collect()
    }

    pub fn events(&self) -> Vec<Value> {
        let data = self.data();
        let is_done = |text: &&String| text.as_str() != "[DONE]";
        data.iter()
            .filter(is_done)
            .map(|text| serde_json::from_str(text).unwrap())
            .collect()
    }
}

/// Reads one answer; if its body breaks off, returns what was received.
pub async fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut answer = Answer {
        status: 0,
        head: String::new(),
        body: Vec::new(),
        chunks: 0,
        ended: false,
    };
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return answer,
        }
    }
    answer.head = String::from_utf8(head).unwrap();
    answer.status = answer.head.split(' ').nth(1).unwrap().parse().unwrap();
    let length = answer.head.split("content-length: ").nth(1);
    if let Some(length) = length.and_then(|rest| rest.split("\r\n").next()) {
        let mut body = Vec::new();
        let length: u64 = length.parse().unwrap();
        let read = stream.take(length).read_to_end(&mut body).await;
        answer.ended = read.is_ok() && body.len() as u64 == length;
        answer.body = body;
        return answer;
    }
    while let Some(chunk) = read_chunk(stream).await {
        if chunk.is_empty() {
            answer.ended = true;
            break;
        }
        answer.chunks += 1;
        answer.body.extend(chunk);
    }
    answer
}

async fn read_chunk(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.push(stream.read_u8().await.ok()?);
    }
    let size = usize::from_str_radix(std::str::from_utf8(&line).ok()?.trim(), 16).ok()?;
    let mut chunk = vec![0; size + 2];
    stream.read_exact(&mut chunk).await.ok()?;
    assert!(chunk.ends_with(b"\r\n"));
    chunk.truncate(size);
    Some(chunk)
}
