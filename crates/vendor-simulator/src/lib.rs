//! Simulates the vendors: all three protocols on one port, with misbehaviour on request, for tests
//! and load tests.
//!
//! This module must not depend on the gateway: it produces the vendors' bytes independently, so
//! that a mistake in the gateway's types cannot hide from the tests. Customers must not be able to
//! reach it. Read next: `vendor.rs` (the answers), then `sender.rs` (how they are sent).
//!
//! # The marker
//!
//! The first `[[sim key=value key=value …]]` in the last user text selects the behaviour for a
//! request. (That text is a string content, or a text part of the last user message that has one.)
//! A value is a bare word, `"quoted"` (with `\"`, `\\`, `\n`, `\t`), `'quoted'` (raw) or JSON,
//! `{…}` or `[…]`. Flags are `0` or `1`. An unknown key, a bad value or an unclosed marker is a 400
//! that names it. An *event* is one SSE event of any kind (the role chunk, `message_start`, `ping`,
//! `[DONE]`, …); comments do not count. A count beyond the length of the stream means its end,
//! before the terminator.
//!
//! | key | value | effect |
//! | --- | --- | --- |
//! | `text` | string | the reply (with `status`: the error message; with `refusal`: the refusal text) |
//! | `bytes` | count ≤ 64 Mi | a filler reply of this many bytes |
//! | `events` | count ≤ 1 Mi | text deltas; without `text` or `bytes` the reply grows to fit |
//! | `gap_ms`, `gap_us` | duration | between two events (average rate; timers tick in ms) |
//! | `delay_ms` | duration | before the headers |
//! | `first_ms` | duration | between the headers and the first event |
//! | `tool`, `args`, `tools` | name, JSON, count ≤ 128 | calls the tool; ignored if the last turn is a tool result. Default: the first tool, if `tool_choice` requires one |
//! | `steps` | count | with `tool`: number of turns with calls before the reply |
//! | `outline` | flag | the reply is an outline of the conversation as the vendor got it |
//! | `tool_id` | string | id of the call instead of a made-up one (`_2`, `_3`, … on the later ones) |
//! | `thinking` | string | thinking block, or `reasoning_content` |
//! | `input` | tokens | fresh input, *without* cached: chat's `prompt_tokens` is input + cache keys |
//! | `cache_read`, `write_5m`, `write_1h` | tokens | cached input; the two writes are one number on chat |
//! | `output`, `reasoning` | tokens | whole output; its reasoning part |
//! | `audio_input`, `audio_output` | tokens | chat: audio in addition to `input` and `output`, reported as a part of each side |
//! | `searches` | count | messages: number of searches in the usage, instead of the number of searches in `blocks` |
//! | `tier` | word | service tier to report, instead of the requested one; `none`: report no tier |
//! | `usage` | `none` `zero` `twice` `every` `finish` `negative` `huge` `nan` | no usage; all 0; last report twice; cumulative on every chunk (messages: a `message_delta` after every delta); on chat's finish chunk; below 0; 2^63; the bare token NaN |
//! | | `before` | the only full report before the end: chat's usage chunk before the finish chunk; messages: a `message_delta` before the first block, and none in the last one |
//! | | `late` `early` `start` `nosplit` | messages: no input in `message_start`, in the last `message_delta` only; no input in `message_delta`; all in `message_start` and none later; cache writes without the split by age |
//! | `model` | string | model name in the answer |
//! | `finish` | string | `finish_reason` / `stop_reason`, word for word; `null` is JSON's |
//! | `stop_sequence` | string | messages: the sequence that ended the answer |
//! | `refusal` | flag or `after` | chat: `message.refusal`; messages: stop reason `refusal` and `stop_details`, no content but thinking. `after`: the output precedes the refusal |
//! | `explanation`, `category` | string | members of `stop_details` for the refusal; chat: the text of `refusal=after` |
//! | `status` | 300–599 | an error in the vendor's format (with `error_event`: the kind of that event) |
//! | `retry_after` | seconds | header on that error |
//! | `error_body` | `json` `html` `empty` `leak` `quota` `context` `policy` | its body; `leak` quotes a key and an organisation |
//! | `cut` | `headers` or events | closes the connection there; a JSON answer after half of its body |
//! | `reset` | flag | that close is a TCP reset |
//! | `end` | `clean` `cut` | `clean`: the body ends there in correct framing instead of a close |
//! | `hang` | `headers` or events | silence from there on, connection open; a JSON answer after half |
//! | `hold` | `headers` or events | waits there until `POST /_sim/release`; a JSON answer before its headers |
//! | `garbage` | `json` `sse` `chunk` `headers` `length` | broken JSON, an event that is not JSON, an invalid chunk size, a 2 MiB header, a content-length too large by 100 (JSON) or 2^40 (stream) |
//! | `error_event` | events | then an error event ends the stream |
//! | `error_type`, `error_code` | string | type and code of the error, in a body and in an event, instead of the defaults |
//! | `comment` | flag | an SSE comment before every event |
//! | `keepalive` | `comment` `data` `ping` `blank` | before every event, and not counted as one: a comment; `data: : keepalive`; a ping (chat: the comment `: ping`; responses: `keepalive`); an event with empty data |
//! | `unknown` | flag | an unknown field in the answer or in every event, and one unknown event |
//! | `crlf` | flag | CRLF line ends in the event stream |
//! | `split` | bytes | the stream is written in pieces of this size, across events |
//! | `nodone` | flag | no `[DONE]`, no `message_stop`; the body ends cleanly |
//! | `nofinish` | flag | the stream ends cleanly before `message_delta` or the finish chunk |
//! | `chunked` | flag | a JSON answer in chunked framing |
//! | `blocks` | JSON array | the parts of the answer, instead of `thinking`, `tool` and `bytes`; see below |
//! | `display` | `omitted` `summarized` | messages: show thinking by its signature only, or in full; default: as `thinking.display` says (from generation 4.7 on, omitted without it) |
//! | `spelling` | `reasoning_content` `reasoning` `reasoning_details` `all` | chat: the field that holds the reasoning |
//! | `calls` | `interleaved` `zero` `noid` `noindex` `whole` `repeat` `double` `legacy` | chat and responses: fragments of parallel calls alternate; chat: all of them have index 0; they have no id; no index; a call in one chunk; id and name in every fragment; two fragments of a call in one chunk; `function_call` (also if the request has `functions`). messages: `whole` puts the input into the start of the block |
//! | `items` | `usual` `whole` `done` `last` `unlisted` | responses: items piece by piece; with start and end events but without pieces; with end events only; in the terminal event only; not in the terminal event |
//! | `error_form` | `flat` `nested` `failed` `both` | responses: a failure in a stream is an `error` event with its members at the top, with an object in it, `response.failed`, or the first and the third |
//! | `shape` | `array` `nochoices` `error` | chat: content is an array of parts; no choices; either vendor: an error with status 200 |
//! | `min_output` | tokens | chat: a lower output limit is the 400 of a reasoning model that could not finish |
//! | `overrun` | flag | the output limit is ignored, as some compatible servers do |
//! | `chatter` | flag | after its last event the stream continues with comments, without end |
//! | `lenient` | flag | `1`: the vendor checks no more than it needs to answer; `0`: it checks everything, even with `--lenient` |
//!
//! An element of `blocks` is an object with one of these: `thinking` (a text; `omitted: true` shows
//! the signature only), `redacted: true`, `text` (with `citations`, each `{url, title, cited}`),
//! `tool` (a name; with `args`, an object or a string that is sent unchanged, and `id`), `search`
//! (a query that the vendor runs itself; with `hits`, each `{url, title}`, or an `error` code),
//! `unknown` (the type of an unknown block), `refusal` (chat's refusal text). Chat leaves out
//! searches and unknown blocks, and shows redacted thinking in `reasoning_details` only. If
//! `blocks` has a tool and the last turn is a tool result, the answer is `text` instead.
//!
//! # Embeddings, reranking and moderations
//!
//! `POST /v1/embeddings`, Cohere's `/v1/embed` and `/v2/embed`, Voyage's
//! `/v1/contextualizedembeddings`, `/v1/rerank`, `/v2/rerank` and `/v1/moderations` take the
//! marker in their first input or query. `status`, `usage`, `input` (for Cohere's models of
//! reranking: search units), `model`, `unknown` and the keys of the wire have their effect;
//! `dimensions` of a request for embeddings sets the size of the answer. Models `voyage-…` and
//! `rerank-2.5` answer as Voyage's, other models for reranking as Cohere's.
//!
//! # Images, speech and transcriptions
//!
//! `POST /v1/images/generations`, `/v1/images/edits`, `/v1/audio/speech`,
//! `/v1/audio/transcriptions`, Cohere's `/v2/audio/transcriptions` and `/v1/audio/translations`
//! take the marker in their prompt, or in the text that is spoken. `bytes` is the size of an image
//! or of the audio, `text` what was said, `input` its seconds, `output` the tokens of the images. A
//! model `gpt-4o…` counts tokens of audio, any other one seconds.
//!
//! # Profiles
//!
//! `--profile NAME`, or a path that begins with `/as/NAME/`, answers chat completions as one vendor
//! does: it refuses members, roles and orders that the vendor refuses, in the vendor's own error
//! shape, and puts reasoning, usage and state where the vendor does. `dialect.rs` says where the
//! profiles are from.
//!
//! # Payments
//!
//! The paths of Stripe's API that a shop uses answer as Stripe does: see `stripe.rs`.
//!
//! # TLS and HTTP/2
//!
//! With [`SimulatorOptions::tls`], the port serves TLS, with HTTP/2 or HTTP/1.1 by ALPN. Each
//! HTTP/2 stream gets the answer that its request would get over HTTP/1.1. Faults take their
//! closest form:
//!
//! | marker | over HTTP/1.1 | over HTTP/2 |
//! | --- | --- | --- |
//! | `cut` | the connection closes | the stream is reset (`INTERNAL_ERROR`) after all data that was sent |
//! | `cut` `reset=1` | TCP reset | TCP reset: all streams of the connection end |
//! | `end=clean`, a normal end | the last chunk, or the last byte | `END_STREAM` |
//! | `hang` | silence, connection open | silence on this stream; the others continue |
//! | `garbage=chunk` | an invalid chunk size, then a close | the stream is reset (`PROTOCOL_ERROR`) |
//! | `garbage=length` | a close before the claimed length | `END_STREAM` before the claimed length |
//! | `garbage=headers` | a 2 MiB header line | the same, in HEADERS and CONTINUATION frames |
//! | `split` | one chunk per piece | one DATA frame per piece |
//! | `chunked` | chunked framing | no `content-length` |
//!
//! `--fault close` closes the connection. If the client resets a stream, it counts as a client that
//! disconnected. A request without `:authority`, or with a different `host`, is a 400. The pages
//! under `/_sim/` also respond without TLS on the same port; any other request without TLS is a
//! 400.
//!
//! # What is counted
//!
//! Without `input`, a token is four bytes of the body. Media are the exception: they count as the
//! vendors document; see `count.rs`.
//!
//! `/_sim/stats` returns the counters (`connections_by_http`: connections by version).
//! `/_sim/requests?last=N` returns the last requests in full, each with its version (`http`: `1.1`
//! or `2`; `:authority` is one of the headers) and the state of its answer: `answer` has the true
//! token counts (`usage`), the number of `events` written, the bytes of text, thinking and
//! arguments in them (`shown_bytes`), and its `end`: `running`, `sent` (as planned), or `gone` (the
//! client disconnected).
//!
//! # What is refused
//!
//! All vendors check requests as the real ones do, with the same messages: see
//! `checks.rs`. The generation in a model's name (`claude-opus-4-7`, `gpt-5.5`)
//! determines what the model accepts. It refuses, for instance, unknown fields, an output limit
//! above its own, `max_tokens` if a chat model reasons, and sampling or kinds of thinking that it
//! does not have. A name without a generation is not a real vendor's: such a model accepts all of
//! these, and unknown fields that start with `x_`. `simulate --lenient` and the marker `lenient=1`
//! switch the checks off. Signatures of thinking must be the simulator's own, for the same text; so
//! must the content that the responses vendor encrypts.

#![cfg_attr(
    test,
    allow(clippy::too_many_lines, reason = "a test reads from top to bottom")
)]

mod answer;
mod behaviour;
mod body_writer;
mod chat;
mod checks;
mod count;
mod dialect;
mod error_messages;
mod errors;
mod events;
mod exchange;
mod http;
mod http2;
mod http2_stream;
mod http_message;
mod json;
mod marker;
mod media;
mod messages;
mod metered;
mod options;
mod outline;
mod pages;
mod part;
mod request;
mod responses;
mod sender;
mod signature;
mod socket;
mod stats;
pub mod stripe;
#[cfg(test)]
mod tests;
mod tls;
mod turn;
mod usage;
mod vendor;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

pub use self::options::{
    AcceptedKeys, SimulatedFault, SimulatorOptions, SimulatorTls, parse_fault,
};
pub use self::stats::Stats;

use self::exchange::Exchange;
use self::http::SimConnection;
use self::http_message::{ConnectionAction, ReadError};
use self::options::DEFAULT_H2_STREAMS;
use self::socket::Socket;

/// Pause in ms after a failed accept, for instance without free file descriptors.
const ACCEPT_PAUSE_MS: u64 = 10;
/// Time from the start of a connection to the end of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// First byte of every TLS connection, which marks a handshake record.
const TLS_HANDSHAKE: u8 = 22;

/// The arguments of `model-gateway simulate`.
#[derive(Clone, Debug, clap::Args)]
pub struct SimulateArgs {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:9100", value_name = "ADDRESS")]
    listen: String,
    /// Fail every request: `close` (close the connection after reading the request) or `status=N`.
    #[arg(long)]
    fault: Option<String>,
    /// Answer requests that the real vendor of the model would refuse.
    ///
    /// Without it, a model whose generation the simulator recognizes in the name (claude-opus-4-7,
    /// gpt-5.5) refuses the same requests as the real one: unknown fields, max_tokens instead of
    /// max_completion_tokens, a temperature that the model does not allow, output limits above the
    /// model's, and so on.
    #[arg(long)]
    lenient: bool,
    /// Answer chat completions as this vendor does: mistral, groq, gemini and others.
    ///
    /// It refuses what the vendor's own SDK does not have, in the vendor's error shape, and puts
    /// reasoning and usage where the vendor does. A path that begins with /as/NAME/ selects a
    /// profile for one request.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Serve TLS, with HTTP/2 and HTTP/1.1 by ALPN. The pages under /_sim/ also respond without
    /// TLS.
    ///
    /// The certificate is for localhost, 127.0.0.1 and ::1. Start the gateway with SSL_CERT_FILE
    /// set to the printed ca.pem, so that it trusts the authority that signed the certificate.
    #[arg(long)]
    tls: bool,
    /// Keep the certificate in this directory, and reuse an existing one. Implies --tls.
    ///
    /// Without it, each start generates a new certificate in a temporary directory.
    #[arg(long, value_name = "DIR")]
    tls_dir: Option<PathBuf>,
    /// Maximum number of concurrent streams per HTTP/2 connection.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_H2_STREAMS, value_parser = clap::value_parser!(u32).range(1..))]
    h2_streams: u32,
}

/// Serves all vendors on `listener` until the future is dropped.
///
/// # Errors
/// Returns an error if the certificate cannot be read or generated.
pub async fn serve(listener: TcpListener, options: SimulatorOptions) -> anyhow::Result<()> {
    let tls = options
        .tls
        .as_ref()
        .map(|tls| tls::acceptor(&tls.dir))
        .transpose()?;
    let server = Arc::new(vendor::SimServer::new(options));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve_connection(stream, tls.clone(), Arc::clone(&server)));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(ACCEPT_PAUSE_MS)).await,
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

/// Binds the address, prints it, and serves until SIGTERM or SIGINT.
///
/// # Errors
/// Returns an error if the address is in use, the certificate cannot be generated, or an option is
/// invalid.
pub async fn run(arguments: SimulateArgs) -> anyhow::Result<()> {
    use anyhow::Context as _;
    use tokio::signal::unix::{SignalKind, signal};

    let SimulateArgs {
        listen,
        fault,
        lenient,
        profile,
        tls,
        tls_dir,
        h2_streams,
    } = arguments;
    let fault = fault.as_deref().map(parse_fault).transpose()?;
    if let Some(name) = &profile {
        dialect::find(name).map_err(anyhow::Error::msg)?;
    }
    let temporary = if tls && tls_dir.is_none() {
        Some(tls::TemporaryDir::new()?)
    } else {
        None
    };
    let dir = tls_dir.or_else(|| temporary.as_ref().map(|dir| dir.path().to_owned()));
    let tls = dir.map(|dir| SimulatorTls { dir, h2_streams });
    if let Some(tls) = &tls {
        tls::acceptor(&tls.dir)?;
    }
    let listener = TcpListener::bind(&listen)
        .await
        .with_context(|| format!("cannot listen on {listen}"))?;
    let address = listener.local_addr()?;
    print_address(&match &tls {
        Some(SimulatorTls { dir, .. }) => {
            let authority = tls::authority_file(dir);
            format!(
                "simulator listening on https://{address}, its certificate signed by {}",
                authority.display()
            )
        }
        None => format!("simulator listening on http://{address}"),
    });
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let options = SimulatorOptions {
        fault,
        tls,
        lenient,
        profile,
        ..SimulatorOptions::default()
    };
    tokio::select! {
        served = serve(listener, options) => served.context("the simulator stopped serving"),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

// Prints the address. Scripts wait for this line and parse it.
#[allow(clippy::print_stdout)]
fn print_address(line: &str) {
    println!("{line}");
}

/// Serves one connection until it closes.
async fn serve_connection(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    server: Arc<vendor::SimServer>,
) {
    // The option affects only the latency of small writes, so a failure is ignored.
    let _ = stream.set_nodelay(true);
    server.stats.connection_opened();
    match tls {
        None => serve_http1(Socket::plain(stream), &server, AllowedPaths::Everything).await,
        Some(tls) => {
            let negotiated = tokio::time::timeout(HANDSHAKE_TIMEOUT, negotiate(stream, &tls)).await;
            match negotiated {
                Ok(Ok(AcceptedSocket::Plain(socket))) => {
                    serve_http1(socket, &server, AllowedPaths::PagesAlone).await
                }
                Ok(Ok(AcceptedSocket::Http1(socket))) => {
                    serve_http1(socket, &server, AllowedPaths::Everything).await
                }
                Ok(Ok(AcceptedSocket::Http2(socket))) => {
                    server.stats.record_http_version("2");
                    http2::serve(socket, Arc::clone(&server)).await;
                }
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }
    server.stats.connection_closed();
}

/// A connection to a TLS port, classified by its first bytes.
enum AcceptedSocket {
    /// The connection does not use TLS.
    Plain(Socket),
    Http1(Socket),
    Http2(Socket),
}

async fn negotiate(stream: TcpStream, tls: &TlsAcceptor) -> io::Result<AcceptedSocket> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first != [TLS_HANDSHAKE] {
        return Ok(AcceptedSocket::Plain(Socket::plain(stream)));
    }
    let stream = tls.accept(stream).await?;
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(tls::ALPN_HTTP2);
    let socket = Socket::tls(stream);
    Ok(if is_http2 {
        AcceptedSocket::Http2(socket)
    } else {
        AcceptedSocket::Http1(socket)
    })
}

/// Paths that an HTTP/1.1 connection may request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AllowedPaths {
    Everything,
    /// Only the simulator's own pages are allowed, because a vendor's client would use TLS on a TLS
    /// port.
    PagesAlone,
}

/// Serves one HTTP/1.1 connection until it closes.
async fn serve_http1(socket: Socket, server: &vendor::SimServer, allowed: AllowedPaths) {
    server.stats.record_http_version("1.1");
    let mut connection = SimConnection::new(socket);
    loop {
        let after = match connection.read_request().await {
            Ok(request) if allowed == AllowedPaths::PagesAlone && !pages::is_page(&request) => {
                connection.refuse(400).await
            }
            Ok(request) => {
                sender::answer_request(&mut Exchange::Http1(&mut connection), server, request).await
            }
            Err(ReadError::Closed) => ConnectionAction::Closed,
            Err(ReadError::Refused(status)) => connection.refuse(status).await,
        };
        match after {
            ConnectionAction::Next => {}
            ConnectionAction::Close | ConnectionAction::Disconnect => {
                connection.close().await;
                break;
            }
            ConnectionAction::Reset => {
                connection.reset();
                break;
            }
            ConnectionAction::Closed => break,
        }
    }
}
