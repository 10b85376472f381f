//! A simulated vendor of all protocols. It plays recorded answers and breaks them off as the
//! request's text says: `[[answer PROTOCOL KIND FRAMES]]`.
//!
//! It must not know what the gateway does with a broken answer.

pub mod made;

use crate::h2::{DATA, END_STREAM};
use crate::scripted_vendor::{CANCEL, INTERNAL_ERROR, Step};
use serde_json::json;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// The start of the text by which a request says how its answer breaks off.
pub const GATEWAY_MARK: &str = "[[answer ";

/// How an answer breaks off, and after how many of its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pub kind: Kind,
    pub frames: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The whole answer, in order.
    None,
    /// The answer stops early, but its body ends in order, as its framing says.
    End,
    /// The connection ends before the body does.
    Fin,
    Rst,
    Silence,
    /// An event that is not JSON, then silence.
    Garbage,
    /// Other bytes at a place where a chunk must be.
    BrokenFraming,
    ErrorEvent,
    /// RST_STREAM.
    Reset,
    /// GOAWAY with an error, then the end of the connection.
    GoAway,
    /// Not a cut: the bytes of one character arrive in different segments.
    Segments,
    /// Not a cut: the escapes of one character are in different events.
    Escapes,
    /// A call that the output limit cut off within its arguments.
    Call,
    /// A call that the output limit cut off before the first byte of its arguments.
    BareCall,
    /// A 200 whose body is not an answer; the number of frames selects the body.
    NoAnswer,
    /// A stream of events, even if the request did not ask for one.
    Events,
    /// A last event that names the end and contains nothing of the answer.
    BareEnd,
}

/// Kinds that do not cut the usual recording.
const OTHERS: [Kind; 8] = [
    Kind::None,
    Kind::Segments,
    Kind::Escapes,
    Kind::Call,
    Kind::BareCall,
    Kind::NoAnswer,
    Kind::Events,
    Kind::BareEnd,
];

pub const CUTS: [Kind; 7] = [
    Kind::End,
    Kind::Fin,
    Kind::Rst,
    Kind::Silence,
    Kind::Garbage,
    Kind::BrokenFraming,
    Kind::ErrorEvent,
];
pub const H2_STREAM_CUTS: [Kind; 4] = [Kind::End, Kind::Reset, Kind::Garbage, Kind::ErrorEvent];
pub const H2_CONNECTION_CUTS: [Kind; 2] = [Kind::GoAway, Kind::Fin];

impl Kind {
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    /// Whether the vendor plays the usual recording, whole or cut.
    pub fn is_cut(self) -> bool {
        !OTHERS.contains(&self) || self == Self::None
    }

    /// Whether the kind is possible for this recording: only streams have events. A whole body that
    /// ends in order is not cut if all of it was sent.
    pub fn fits(self, recording: &Recording) -> bool {
        recording.is_stream || !matches!(self, Kind::Garbage | Kind::ErrorEvent | Kind::Silence)
    }
}

/// A vendor's answer in frames.
pub struct Recording {
    pub is_stream: bool,
    pub frames: Vec<String>,
    /// The number of frames up to and including the stop reason.
    pub stop: usize,
    /// The number of frames up to and including the usage.
    usage: usize,
}

impl Recording {
    /// Whether the stop reason and the usage are among the first `frames` frames.
    pub fn seen(&self, frames: usize) -> (bool, bool) {
        (frames >= self.stop, frames >= self.usage)
    }

    fn new(is_stream: bool, frames: Vec<String>, stop: &str, usage: &str) -> Self {
        let until = |mark: &str| {
            frames
                .iter()
                .position(|frame| frame.contains(mark))
                .expect("the recording's end")
                + 1
        };
        // A body that is not streamed is readable only once all of it has arrived.
        let all = frames.len();
        let (stop, usage) = if is_stream {
            (until(stop), until(usage))
        } else {
            (all, all)
        };
        Self {
            is_stream,
            frames,
            stop,
            usage,
        }
    }
}

/// The complete answer that a vendor plays for a kind.
fn recording_of(protocol: &str, is_stream: bool, kind: Kind) -> Recording {
    let frames = match kind {
        Kind::Escapes => vec![made::escapes(protocol, is_stream)],
        Kind::Call => vec![made::call(protocol, is_stream, "{\"cmd\":\"rm -rf /tmp/")],
        Kind::BareCall => vec![made::call(protocol, is_stream, "")],
        Kind::Events => return recording(protocol, true),
        Kind::BareEnd => return bare_end(),
        _ => return recording(protocol, is_stream),
    };
    Recording {
        is_stream,
        frames,
        stop: 0,
        usage: 0,
    }
}

/// A responses stream whose last event says only that the answer is complete.
fn bare_end() -> Recording {
    let mut recording = recording("responses", true);
    let last = recording.frames.len() - 1;
    let end = json!({"type": "response.completed", "sequence_number": last});
    recording.frames[last] = format!("event: response.completed\ndata: {end}\n\n");
    recording
}

/// The recorded answer of a vendor that speaks this protocol.
pub fn recording(protocol: &str, is_stream: bool) -> Recording {
    let (text, stop, usage) = match (protocol, is_stream) {
        ("chat", true) => (
            include_str!("../vectors/chat-to-chat/stream-azure-filters/vendor_response.sse"),
            "\"finish_reason\": \"stop\"",
            "\"completion_tokens\"",
        ),
        ("messages", true) => (
            include_str!(
                "../vectors/chat-to-messages/stream-thinking-text-tool/vendor_response.sse"
            ),
            "\"stop_reason\":\"tool_use\"",
            "\"stop_reason\":\"tool_use\"",
        ),
        ("responses", true) => (
            include_str!("../vectors/responses-to-responses/stream/vendor_response.sse"),
            "\"response.completed\"",
            "\"response.completed\"",
        ),
        ("chat", false) => (CHAT, "", ""),
        ("messages", false) => (MESSAGES, "", ""),
        _ => (RESPONSES, "", ""),
    };
    let frames = if is_stream {
        text.split_inclusive("\n\n")
            .filter(|frame| !frame.trim().is_empty())
            .map(str::to_owned)
            .collect()
    } else {
        // In four parts; the last one is the closing brace.
        let parts = [
            0,
            text.len() / 3,
            text.len() / 2,
            text.len() - 1,
            text.len(),
        ];
        parts
            .windows(2)
            .map(|part| text[part[0]..part[1]].to_owned())
            .collect()
    };
    Recording::new(is_stream, frames, stop, usage)
}

const CHAT: &str = r#"{"id":"c1","object":"chat.completion","created":1700000001,"model":"up","choices":[{"index":0,"message":{"role":"assistant","content":"Hello","refusal":null},"finish_reason":"stop","logprobs":null}],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}"#;
const MESSAGES: &str = r#"{"id":"msg_1","type":"message","role":"assistant","model":"up","content":[{"type":"text","text":"Hello"}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":5,"output_tokens":2}}"#;
const RESPONSES: &str = r#"{"id":"resp_1","object":"response","created_at":1700000001,"status":"completed","error":null,"incomplete_details":null,"model":"up","output":[{"id":"msg_1","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"Hello","annotations":[]}]}],"usage":{"input_tokens":5,"output_tokens":2,"total_tokens":7}}"#;

const GARBAGE: &str = "data: {\"garbage\0\n\n";

fn error_event(protocol: &str) -> String {
    match protocol {
        "chat" => {
            "data: {\"error\":{\"message\":\"boom\",\"type\":\"server_error\",\"code\":null}}\n\n"
                .to_owned()
        }
        "messages" => {
            let error = r#"{"type":"error","error":{"type":"api_error","message":"boom"}}"#;
            format!("event: error\ndata: {error}\n\n")
        }
        _ => {
            let error = r#"{"type":"error","sequence_number":99,"code":"server_error","message":"boom","param":null}"#;
            format!("event: error\ndata: {error}\n\n")
        }
    }
}

/// Reads the request's mark: the vendor's protocol, its recording, and the cut.
fn asked(body: &str) -> (String, Recording, Cut) {
    let (_, mark) = body
        .split_once(GATEWAY_MARK)
        .expect("a request with a mark");
    let words: Vec<_> = mark.split("]]").next().unwrap().split(' ').collect();
    let [protocol, name, frames] = words[..] else {
        panic!("a mark of three words: {words:?}")
    };
    let kinds = [&CUTS[..], &H2_STREAM_CUTS, &H2_CONNECTION_CUTS, &OTHERS].concat();
    let kind = *kinds
        .iter()
        .find(|kind| kind.name() == name)
        .expect("a kind of cut");
    let mut recording = recording_of(protocol, body.contains("\"stream\":true"), kind);
    let mut frames: usize = frames.parse().unwrap();
    match kind {
        Kind::NoAnswer => {
            recording.is_stream = false;
            recording.frames = vec![made::NO_ANSWERS[frames].to_owned()];
            frames = 1;
        }
        kind if OTHERS.contains(&kind) => frames = recording.frames.len(),
        _ => {}
    }
    (protocol.to_owned(), recording, Cut { kind, frames })
}

/// A vendor that speaks HTTP/1.1 without TLS. Each connection serves one request.
pub struct CutVendor {
    pub port: u16,
}

impl CutVendor {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                std::thread::spawn(move || serve(client));
            }
        });
        Self { port }
    }
}

fn serve(mut client: TcpStream) {
    client.set_nodelay(true).unwrap();
    let Some(body) = request(&mut client) else {
        return;
    };
    // Ignore the error: the gateway may have closed the connection.
    let _ = answer(client, &body);
}

fn answer(mut client: TcpStream, body: &str) -> std::io::Result<()> {
    let (protocol, recording, cut) = asked(body);
    let kind = if recording.is_stream {
        "text/event-stream"
    } else {
        "application/json"
    };
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n");
    client.write_all(head.as_bytes())?;
    let mut send = |bytes: &[u8]| {
        let framed = [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
        client.write_all(&framed)
    };
    for frame in &recording.frames[..cut.frames] {
        pieces(frame, cut.kind).try_for_each(&mut send)?;
    }
    match cut.kind {
        Kind::Garbage => send(GARBAGE.as_bytes())?,
        Kind::ErrorEvent => send(error_event(&protocol).as_bytes())?,
        _ => {}
    }
    match cut.kind {
        Kind::BrokenFraming => client.write_all(b"no chunk\r\n")?,
        Kind::Rst => {
            return rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO))
                .map_err(Into::into);
        }
        Kind::Silence | Kind::Garbage | Kind::ErrorEvent => drop(client.read(&mut [0; 1])),
        Kind::Fin => {}
        _ => client.write_all(b"0\r\n\r\n")?,
    }
    Ok(())
}

/// Splits a frame into the pieces in which the vendor sends it.
fn pieces(frame: &str, kind: Kind) -> impl Iterator<Item = &[u8]> {
    let size = if kind == Kind::Segments {
        1
    } else {
        frame.len()
    };
    frame.as_bytes().chunks(size)
}

/// Reads the body of the next request.
fn request(client: &mut TcpStream) -> Option<String> {
    let (mut got, mut piece) = (Vec::new(), [0; 65_536]);
    loop {
        if let Some(head) = got.windows(4).position(|four| four == b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&got[..head]).to_ascii_lowercase();
            let length = text
                .split("content-length: ")
                .nth(1)
                .and_then(|rest| rest.lines().next()?.trim().parse().ok());
            if got.len() >= head + 4 + length.unwrap_or(0_usize) {
                return Some(String::from_utf8_lossy(&got[head + 4..]).into_owned());
            }
        }
        match client.read(&mut piece) {
            Ok(count) if count > 0 => got.extend_from_slice(&piece[..count]),
            _ => return None,
        }
    }
}

/// The steps that play the request's answer over HTTP/2.
pub fn h2_steps(body: &[u8]) -> Vec<Step> {
    let (protocol, recording, cut) = asked(&String::from_utf8_lossy(body));
    let data = |bytes: &[u8], flags| Step::Frame {
        kind: DATA,
        flags,
        on_stream: true,
        payload: bytes.to_vec(),
    };
    let mut steps = vec![Step::Head(0)];
    for frame in &recording.frames[..cut.frames] {
        steps.extend(pieces(frame, cut.kind).map(|piece| data(piece, 0)));
    }
    match cut.kind {
        Kind::Garbage => steps.extend([data(GARBAGE.as_bytes(), 0), Step::Reset(CANCEL)]),
        Kind::ErrorEvent => steps.extend([
            data(error_event(&protocol).as_bytes(), 0),
            Step::Reset(CANCEL),
        ]),
        Kind::Reset => steps.push(Step::Reset(INTERNAL_ERROR)),
        Kind::GoAway => steps.extend([Step::GoAway(None, INTERNAL_ERROR), Step::Close]),
        Kind::Fin => steps.push(Step::Close),
        _ => steps.push(data(b"", END_STREAM)),
    }
    steps
}
