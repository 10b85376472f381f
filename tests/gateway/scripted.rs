//! A vendor that answers each call with the same bytes and pauses, and counts its calls.
//!
//! It must not depend on the request. For vendors that do, use the simulator.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Clone)]
pub enum Step {
    Send(Vec<u8>),
    Wait(Duration),
    /// Sends nothing until the client disconnects.
    Hang,
    Close,
}

pub struct Scripted {
    pub port: u16,
    calls: Arc<AtomicU64>,
}

impl Scripted {
    pub fn start(steps: Vec<Step>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, calls) = (
            listener.local_addr().unwrap().port(),
            Arc::new(AtomicU64::new(0)),
        );
        let counted = Arc::clone(&calls);
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let (steps, counted) = (steps.clone(), Arc::clone(&counted));
                std::thread::spawn(move || serve(client, &steps, &counted));
            }
        });
        Self { port, calls }
    }

    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }
}

/// Serves requests on one connection, one after the other, until either side closes it.
fn serve(mut client: TcpStream, steps: &[Step], calls: &AtomicU64) {
    while read_request(&mut client).is_some() {
        calls.fetch_add(1, Ordering::SeqCst);
        for step in steps {
            match step {
                Step::Send(bytes) if client.write_all(bytes).is_err() => return,
                Step::Send(_) => {}
                Step::Wait(time) => std::thread::sleep(*time),
                Step::Hang => drop(client.read(&mut [0; 1])),
                Step::Close => return,
            }
        }
    }
}

/// Returns `None` if the client disconnected.
fn read_request(client: &mut TcpStream) -> Option<()> {
    let (mut got, mut piece) = (Vec::new(), [0; 65_536]);
    loop {
        let head = got.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(head) = head {
            let text = String::from_utf8_lossy(&got[..head]).to_ascii_lowercase();
            let length = text
                .split("content-length: ")
                .nth(1)
                .and_then(|rest| rest.lines().next()?.trim().parse().ok());
            if got.len() >= head + 4 + length.unwrap_or(0_usize) {
                return Some(());
            }
        }
        match client.read(&mut piece) {
            Ok(count) if count > 0 => got.extend_from_slice(&piece[..count]),
            _ => return None,
        }
    }
}

/// A response with this status and a JSON body.
pub fn json(status: u16, body: &str) -> Vec<Step> {
    let head = format!(
        "HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    vec![Step::Send([head.as_bytes(), body.as_bytes()].concat())]
}

pub fn stream_head() -> Step {
    Step::Send(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            .to_vec(),
    )
}

/// A chunk of a stream.
pub fn piece(text: &str) -> Step {
    Step::Send(format!("{:x}\r\n{text}\r\n", text.len()).into_bytes())
}

pub fn stream_end() -> Step {
    Step::Send(b"0\r\n\r\n".to_vec())
}

/// A stream of these events. Each event is a chunk of its own, with a pause before it so that the
/// gateway reads it alone.
pub fn stream(events: &[String]) -> Vec<Step> {
    let pieces = events
        .iter()
        .flat_map(|event| [piece(event), Step::Wait(Duration::from_millis(100))]);
    std::iter::once(stream_head())
        .chain(pieces)
        .chain([stream_end()])
        .collect()
}
