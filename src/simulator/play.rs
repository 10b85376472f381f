//! Sending an answer, with whatever the behaviour breaks on the way.
//!
//! It must not decide what is answered (`vendor.rs`). Every end of an answer is counted here.

use std::time::Duration;

use tokio::time::Instant;

use super::behaviour::{Behaviour, Garbage, Point};
use super::events::Events;
use super::http::{Connection, Gone, Request};
use super::pages;
use super::sink::{Framing, Sink};
use super::stats::Tally;
use super::vendor::{Body, Plan, Server};

const HUGE_HEADER_BYTES: usize = 2 * 1024 * 1024;
const LENGTH_TOO_LARGE_BY: usize = 100;
const STREAM_LENGTH_CLAIMED: usize = 1 << 40;
const STREAM_HEAD: &str = "content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n";
const CHUNKED: &str = "transfer-encoding: chunked\r\n";
/// A sender this far behind its schedule starts a new one instead of catching up.
const BEHIND_MAX: Duration = Duration::from_millis(20);

/// Between two comments of a stream that does not end.
const CHATTER: Duration = Duration::from_millis(50);

/// What becomes of the connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    Next,
    Close,
    Reset,
    /// Nothing is left to close.
    Closed,
}

/// Answers one request.
pub async fn play(connection: &mut Connection, server: &Server, request: Request) -> After {
    if request.path().starts_with("/_sim/") {
        let answered = pages::answer(connection, server, &request).await;
        return answered.map_or(After::Closed, |()| After::Next);
    }
    let record = server.stats.started(&request);
    let after = match server.plan(&request) {
        None => Ok(After::Close),
        Some(plan) => {
            record.answer.plan(plan.usage);
            send(connection, server, &request, &plan, &record.answer).await
        }
    };
    match after {
        Ok(After::Next) if !request.keeps_alive => {
            server.stats.completed(&record);
            After::Close
        }
        Ok(after) => {
            server.stats.completed(&record);
            after
        }
        Err(Gone) => {
            server.stats.client_gone(&record);
            After::Closed
        }
    }
}

async fn send(
    connection: &mut Connection,
    server: &Server,
    request: &Request,
    plan: &Plan,
    tally: &Tally,
) -> Result<After, Gone> {
    let behaviour = &plan.behaviour;
    if !behaviour.delay.is_zero() {
        connection.pause_until(Instant::now() + behaviour.delay).await?;
    }
    if behaviour.cut == Some(Point::Headers) {
        return Ok(closing(behaviour));
    }
    if behaviour.hang == Some(Point::Headers) {
        return Err(connection.gone().await);
    }
    server.stats.count_status(plan.status);
    let mut head = format!("HTTP/1.1 {} {}\r\n{}", plan.status, reason(plan.status), plan.head);
    if behaviour.garbage == Some(Garbage::Headers) {
        head.push_str(&format!("x-sim-filler: {}\r\n", "x".repeat(HUGE_HEADER_BYTES)));
    }
    if !request.keeps_alive {
        head.push_str("connection: close\r\n");
    }
    match &plan.body {
        Body::Whole { content_type, bytes } => {
            head.push_str(&format!("content-type: {content_type}\r\n"));
            let bytes: &[u8] = if request.method == "HEAD" { &[] } else { bytes };
            send_whole(connection, behaviour, head, bytes).await
        }
        Body::Stream(_) if behaviour.garbage == Some(Garbage::Json) => {
            head.push_str("content-type: application/json\r\n");
            send_whole(connection, behaviour, head, br#"{"id":"x","content":[]}"#).await
        }
        Body::Stream(events) => send_stream(connection, behaviour, head, events, tally).await,
    }
}

async fn send_whole(
    connection: &mut Connection,
    behaviour: &Behaviour,
    mut head: String,
    bytes: &[u8],
) -> Result<After, Gone> {
    let half = &bytes[..bytes.len() / 2];
    let (stops, claimed, sent) = match behaviour.garbage {
        Some(Garbage::Length) => (true, bytes.len() + LENGTH_TOO_LARGE_BY, bytes),
        Some(Garbage::Json | Garbage::Sse) => (false, half.len(), half),
        _ if behaviour.cut.is_some() && behaviour.clean_end => (false, half.len(), half),
        _ if behaviour.cut.is_some() || behaviour.hang.is_some() => (true, bytes.len(), half),
        _ => (false, bytes.len(), bytes),
    };
    let is_chunk_garbage = behaviour.garbage == Some(Garbage::Chunk);
    let framing = if behaviour.chunked || is_chunk_garbage {
        head.push_str(CHUNKED);
        Framing::Chunked
    } else {
        head.push_str(&format!("content-length: {claimed}\r\n"));
        Framing::Sized
    };
    let mut sink = Sink::open(connection, &head, framing, None).await?;
    if is_chunk_garbage {
        sink.invalid_chunk().await?;
        return Ok(After::Close);
    }
    sink.write(sent).await?;
    if !stops {
        sink.end().await?;
        return Ok(After::Next);
    }
    sink.settle().await?;
    if behaviour.hang.is_some() {
        return Err(sink.connection.gone().await);
    }
    Ok(closing(behaviour))
}

async fn send_stream(
    connection: &mut Connection,
    behaviour: &Behaviour,
    mut head: String,
    events: &Events,
    tally: &Tally,
) -> Result<After, Gone> {
    let line_end = if behaviour.crlf { "\r\n" } else { "\n" };
    let claims_length = behaviour.garbage == Some(Garbage::Length);
    head.push_str(STREAM_HEAD);
    let framing = if claims_length {
        head.push_str(&format!("content-length: {STREAM_LENGTH_CLAIMED}\r\n"));
        Framing::Sized
    } else {
        head.push_str(CHUNKED);
        Framing::Chunked
    };
    let mut sink = Sink::open(connection, &head, framing, behaviour.split).await?;
    let mut deadline = Instant::now() + behaviour.first;
    if !behaviour.first.is_zero() {
        sink.settle().await?;
        sink.connection.pause_until(deadline).await?;
    }
    let mut index = 0;
    loop {
        match incident(behaviour, index, events.len()) {
            Some(Incident::Cut) => {
                sink.settle().await?;
                return Ok(closing(behaviour));
            }
            Some(Incident::Hang) => {
                sink.settle().await?;
                return Err(sink.connection.gone().await);
            }
            Some(Incident::BadChunk) => {
                sink.invalid_chunk().await?;
                return Ok(After::Close);
            }
            Some(Incident::Error) => {
                sink.write(events.error(line_end).as_bytes()).await?;
                break;
            }
            Some(Incident::End) => break,
            Some(Incident::BadEvent) => sink.write(events.garbage(line_end).as_bytes()).await?,
            None => {}
        }
        if index > 0 && !behaviour.gap.is_zero() {
            deadline = wait_for_turn(&mut sink, deadline, behaviour.gap).await?;
        }
        if let Some(kind) = behaviour.keep_alive {
            sink.write(events.keep_alive(kind, index, line_end).as_bytes()).await?;
        }
        sink.write(events.event(index, line_end).as_bytes()).await?;
        tally.wrote(events.shown_bytes(index));
        index += 1;
    }
    if behaviour.chatter {
        loop {
            sink.write(b": still here\n\n").await?;
            sink.settle().await?;
            sink.connection.pause_until(Instant::now() + CHATTER).await?;
        }
    }
    if claims_length {
        sink.settle().await?;
        return Ok(closing(behaviour));
    }
    sink.end().await?;
    Ok(After::Next)
}

/// What happens to a stream before one of its events, or instead of it.
enum Incident {
    Cut,
    Hang,
    Error,
    BadChunk,
    BadEvent,
    End,
}

/// The incident after `sent` of `length` events.
fn incident(behaviour: &Behaviour, sent: usize, length: usize) -> Option<Incident> {
    let is_now = |count: Option<usize>| count.is_some_and(|count| count.min(length) == sent);
    if is_now(events_of(behaviour.cut)) {
        return Some(if behaviour.clean_end { Incident::End } else { Incident::Cut });
    }
    if is_now(events_of(behaviour.hang)) {
        return Some(Incident::Hang);
    }
    if is_now(behaviour.error_event) {
        return Some(Incident::Error);
    }
    match behaviour.garbage {
        Some(Garbage::Chunk) if sent == 1 => Some(Incident::BadChunk),
        Some(Garbage::Sse) if sent == 2 => Some(Incident::BadEvent),
        _ => (sent == length).then_some(Incident::End),
    }
}

/// Waits until `gap` after `last`; gaps shorter than a timer tick come true on average.
async fn wait_for_turn(sink: &mut Sink<'_>, last: Instant, gap: Duration) -> Result<Instant, Gone> {
    let now = Instant::now();
    let deadline = (last + gap).max(now.checked_sub(BEHIND_MAX).unwrap_or(last));
    if deadline > now {
        sink.settle().await?;
        sink.connection.pause_until(deadline).await?;
    }
    Ok(deadline)
}

fn events_of(point: Option<Point>) -> Option<usize> {
    match point {
        Some(Point::Events(count)) => Some(count),
        _ => None,
    }
}

fn closing(behaviour: &Behaviour) -> After {
    if behaviour.reset { After::Reset } else { After::Close }
}

fn reason(status: u16) -> &'static str {
    http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or("Simulated")
}
