//! Simulated vendors: both wire protocols on one port, misbehaving on request, for tests and load.
//!
//! It must not import anything from the rest of the crate: it speaks the vendors' bytes on its own
//! authority, so that a mistake in our types cannot hide in what tests them. It must not be put
//! where a customer can reach it. Read next: `simulator/vendor.rs` (what is answered), then
//! `simulator/play.rs` (how it is sent).
//!
//! # The marker
//!
//! Behaviour is chosen per request by the first `[[sim key=value key=value …]]` in the last user
//! text (a string content, or a text part of the last user message that has one). A value is a bare
//! word, `"quoted"` (with `\"`, `\\`, `\n`, `\t`), `'quoted'` (raw) or a JSON object `{…}`. Flags
//! are `0` or `1`. An unknown key, a bad value or an unclosed marker is a 400 that names it.
//! An *event* is one SSE event of any kind (the role chunk, `message_start`, `ping`, `[DONE]`, …);
//! comments are not counted. A count above the stream's length means its end, before the terminator.
//!
//! | key | value | effect |
//! | --- | --- | --- |
//! | `text` | string | the reply (with `status`: the error's message; with `refusal`: its words) |
//! | `bytes` | count ≤ 64 Mi | a filler reply of this many bytes |
//! | `events` | count ≤ 1 Mi | text deltas; without `text` or `bytes` the reply grows to fit |
//! | `gap_ms`, `gap_us` | duration | between two events (average rate; timers tick in ms) |
//! | `delay_ms` | duration | before the headers |
//! | `first_ms` | duration | between the headers and the first event |
//! | `tool`, `args`, `tools` | name, JSON, count ≤ 128 | calls the tool; ignored if the last turn is a tool result |
//! | `tool_id` | string | id of the call instead of a made-up one (`_2`, `_3`, … on the later ones) |
//! | `thinking` | string | thinking block, or `reasoning_content` |
//! | `input` | tokens | fresh input, *without* cached: chat's `prompt_tokens` is input + cache keys |
//! | `cache_read`, `write_5m`, `write_1h` | tokens | cached input; the two writes are one number on chat |
//! | `output`, `reasoning` | tokens | whole output; its reasoning part |
//! | `usage` | `none` `zero` `twice` `every` `finish` `negative` `huge` `nan` | usage left out, all 0, last report twice, cumulative on every chunk (messages: a `message_delta` after every delta), on chat's finish chunk, below 0, 2^63, the bare token NaN |
//! | `model` | string | model name in the answer |
//! | `finish` | string | `finish_reason` / `stop_reason`, word for word |
//! | `refusal` | flag | chat: `message.refusal`; messages: stop reason `refusal`, no content |
//! | `status` | 300–599 | error in the vendor's words (with `error_event`: the kind of that event) |
//! | `retry_after` | seconds | header on that error |
//! | `error_body` | `json` `html` `empty` `leak` `quota` `context` `policy` | its body; `leak` quotes a key and an organisation |
//! | `cut` | `headers` or events | closes the connection there; a JSON answer after half of its body |
//! | `reset` | flag | that close is a TCP reset |
//! | `end` | `clean` `cut` | `clean`: the body ends there in correct framing instead of a close |
//! | `hang` | `headers` or events | silence from there on, connection open; a JSON answer after half |
//! | `garbage` | `json` `sse` `chunk` `headers` `length` | broken JSON, an event that is not JSON, an invalid chunk size, a 2 MiB header, a content-length too large by 100 (JSON) or 2^40 (stream) |
//! | `error_event` | events | then an error event ends the stream |
//! | `comment` | flag | an SSE comment before every event |
//! | `unknown` | flag | an unknown field in the answer or in every event, and one unknown event |
//! | `crlf` | flag | CRLF line ends in the event stream |
//! | `split` | bytes | the stream is written in pieces of this size, across events |
//! | `nodone` | flag | no `[DONE]`, no `message_stop`; the body ends cleanly |
//! | `chunked` | flag | a JSON answer in chunked framing |

mod answer;
mod behaviour;
mod chat;
mod errors;
mod events;
mod http;
mod json;
mod marker;
mod messages;
mod pages;
mod play;
mod request;
mod sink;
mod stats;
#[cfg(test)]
mod tests;
mod usage;
mod vendor;
mod words;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

pub use self::stats::Stats;

use self::http::{Connection, ReadError};
use self::play::After;

/// Pause after a failed accept (no file descriptors left, for instance), milliseconds.
const ACCEPT_PAUSE_MS: u64 = 10;

/// How the simulated vendors behave for everyone, whatever the marker says.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The vendor keys that are accepted.
    pub keys: Keys,
    /// Makes this address a broken endpoint.
    pub fault: Option<Fault>,
}

/// Accepted vendor keys; any other key is the vendor's own 401.
#[derive(Clone, Debug, Default)]
pub enum Keys {
    /// Any key that is not empty and not one of the gateway's own (`gw-…`).
    #[default]
    AnyVendor,
    /// Exactly these.
    Only(Vec<String>),
}

/// A broken endpoint: what happens to each call after it has been read and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection is closed without an answer.
    CloseAfterRequest,
    /// An error of this status, in the vendor's words.
    Status(u16),
}

/// Reads the value of `--fault`: `close` or `status=N`.
pub fn parse_fault(text: &str) -> anyhow::Result<Fault> {
    if text == "close" {
        return Ok(Fault::CloseAfterRequest);
    }
    match text.strip_prefix("status=").map(str::parse) {
        Some(Ok(status @ 300..=599)) => Ok(Fault::Status(status)),
        _ => anyhow::bail!("fault {text:?} is neither \"close\" nor \"status=N\" with N from 300 to 599"),
    }
}

/// Serves both vendors on `listener` until the future is dropped.
pub async fn serve(listener: TcpListener, options: Options) -> io::Result<()> {
    let server = Arc::new(vendor::Server::new(options));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(converse(stream, Arc::clone(&server)));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(ACCEPT_PAUSE_MS)).await,
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

/// Binds `listen`, says where, and serves until SIGTERM or SIGINT.
pub async fn run(listen: &str, fault: Option<&str>) -> anyhow::Result<()> {
    use anyhow::Context as _;
    use tokio::signal::unix::{SignalKind, signal};

    let fault = fault.map(parse_fault).transpose()?;
    let listener = TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
    announce(&format!("simulator listening on http://{}", listener.local_addr()?));
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let options = Options { fault, ..Options::default() };
    tokio::select! {
        served = serve(listener, options) => served.context("the simulator stopped serving"),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

// The line is the command's output: scripts wait for it and read the address from it.
#[allow(clippy::print_stdout)]
fn announce(line: &str) {
    println!("{line}");
}

/// One connection, from its first request to its close.
async fn converse(stream: TcpStream, server: Arc<vendor::Server>) {
    // Latency of small writes only; a socket that refuses this still works.
    let _ = stream.set_nodelay(true);
    let mut connection = Connection::new(stream);
    server.stats.connection_opened();
    loop {
        let after = match connection.read_request().await {
            Ok(request) => play::play(&mut connection, &server, request).await,
            Err(ReadError::Closed) => After::Closed,
            Err(ReadError::Refused(status)) => connection.refuse(status).await,
        };
        match after {
            After::Next => {}
            After::Close => {
                connection.close().await;
                break;
            }
            After::Reset => {
                connection.reset();
                break;
            }
            After::Closed => break,
        }
    }
    server.stats.connection_closed();
}
