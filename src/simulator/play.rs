//! Sending an answer, with whatever the behaviour breaks on the way.
//!
//! It must not decide what is answered (`vendor.rs`). Every end of an answer is counted here.

use std::time::Duration;

use tokio::time::Instant;

use super::behaviour::{Behaviour, Garbage, Point};
use super::http::{Connection, Gone, Request};
use super::vendor::{Body, Events, Plan, Server};

const HUGE_HEADER_BYTES: usize = 2 * 1024 * 1024;
const LENGTH_TOO_LARGE_BY: usize = 100;
const STREAM_LENGTH_CLAIMED: usize = 1 << 40;
/// A sender this far behind its schedule starts a new one instead of catching up.
const BEHIND_MAX: Duration = Duration::from_millis(20);

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
        let answered = control(connection, server, &request).await;
        return answered.map_or(After::Closed, |()| After::Next);
    }
    server.stats.started(&request);
    let after = match server.plan(&request) {
        None => Ok(After::Close),
        Some(plan) => {
            let mut player = Player { connection, request: &request, waiting: Vec::new(), framing: Framing::Sized };
            player.play(server, plan).await
        }
    };
    match after {
        Ok(after) => {
            server.stats.completed();
            after
        }
        Err(Gone) => {
            server.stats.client_gone();
            After::Closed
        }
    }
}

/// The simulator's own pages.
async fn control(connection: &mut Connection, server: &Server, request: &Request) -> Result<(), Gone> {
    let (status, body) = match (request.method.as_str(), request.path()) {
        ("GET", "/_sim/stats") => (200, server.stats.summary().to_string()),
        ("GET", "/_sim/requests") => {
            let count = request.query("last").and_then(|count| count.parse().ok());
            (200, server.stats.last(count.unwrap_or(usize::MAX)).to_string())
        }
        ("POST", "/_sim/reset") => {
            server.stats.reset();
            (200, "{}".to_owned())
        }
        _ => (404, r#"{"error":"no such simulator page"}"#.to_owned()),
    };
    let head = format!("HTTP/1.1 {status} Simulator\r\ncontent-type: application/json\r\n");
    connection.push(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await?;
    connection.flush().await
}

/// How body bytes are delimited.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Framing {
    Sized,
    Chunked,
}

struct Player<'a> {
    connection: &'a mut Connection,
    request: &'a Request,
    /// Stream bytes too few for a piece of `split`.
    waiting: Vec<u8>,
    framing: Framing,
}

impl Player<'_> {
    async fn play(&mut self, server: &Server, plan: Plan) -> Result<After, Gone> {
        let behaviour = &plan.behaviour;
        if !behaviour.delay.is_zero() {
            self.connection.pause_until(Instant::now() + behaviour.delay).await?;
        }
        if behaviour.cut == Some(Point::Headers) {
            return Ok(closing(behaviour));
        }
        if behaviour.hang == Some(Point::Headers) {
            return Err(self.connection.gone().await);
        }
        server.stats.count_status(plan.status);
        let mut head = format!("HTTP/1.1 {} {}\r\n{}", plan.status, reason(plan.status), plan.head);
        if behaviour.garbage == Some(Garbage::Headers) {
            head.push_str(&format!("x-sim-filler: {}\r\n", "x".repeat(HUGE_HEADER_BYTES)));
        }
        if !self.request.keeps_alive {
            head.push_str("connection: close\r\n");
        }
        match &plan.body {
            Body::Whole { content_type, bytes } => {
                head.push_str(&format!("content-type: {content_type}\r\n"));
                self.whole(behaviour, head, bytes).await
            }
            Body::Stream(_) if behaviour.garbage == Some(Garbage::Json) => {
                head.push_str("content-type: application/json\r\n");
                self.whole(behaviour, head, br#"{"id":"x","content":[]}"#).await
            }
            Body::Stream(events) => self.stream(behaviour, head, events).await,
        }
    }

    async fn whole(&mut self, behaviour: &Behaviour, mut head: String, bytes: &[u8]) -> Result<After, Gone> {
        let half = &bytes[..bytes.len() / 2];
        let (stops, claimed, sent) = match behaviour.garbage {
            Some(Garbage::Length) => (true, bytes.len() + LENGTH_TOO_LARGE_BY, bytes),
            Some(Garbage::Json | Garbage::Sse) => (false, half.len(), half),
            _ if behaviour.cut.is_some() && behaviour.clean_end => (false, half.len(), half),
            _ if behaviour.cut.is_some() || behaviour.hang.is_some() => (true, bytes.len(), half),
            _ => (false, bytes.len(), bytes),
        };
        let is_chunk_garbage = behaviour.garbage == Some(Garbage::Chunk);
        if behaviour.chunked || is_chunk_garbage {
            self.framing = Framing::Chunked;
            head.push_str("transfer-encoding: chunked\r\n\r\n");
        } else {
            head.push_str(&format!("content-length: {claimed}\r\n\r\n"));
        }
        self.connection.push(head.as_bytes()).await?;
        if is_chunk_garbage {
            return self.invalid_chunk().await;
        }
        if self.request.method != "HEAD" {
            self.body(sent).await?;
        }
        if behaviour.hang.is_some() {
            self.connection.flush().await?;
            return Err(self.connection.gone().await);
        }
        if stops {
            self.connection.flush().await?;
            return Ok(closing(behaviour));
        }
        self.end().await
    }

    async fn stream(&mut self, behaviour: &Behaviour, mut head: String, events: &Events) -> Result<After, Gone> {
        head.push_str("content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n");
        if behaviour.garbage == Some(Garbage::Length) {
            head.push_str(&format!("content-length: {STREAM_LENGTH_CLAIMED}\r\n\r\n"));
        } else {
            self.framing = Framing::Chunked;
            head.push_str("transfer-encoding: chunked\r\n\r\n");
        }
        self.connection.push(head.as_bytes()).await?;
        let mut deadline = Instant::now() + behaviour.first;
        if !behaviour.first.is_zero() {
            self.settle().await?;
            self.connection.pause_until(deadline).await?;
        }
        let line_end = if behaviour.crlf { "\r\n" } else { "\n" };
        let length = events.len();
        let is_at = |point: Option<usize>, index: usize| point.is_some_and(|at| at.min(length) == index);
        for index in 0..=length {
            if is_at(events_of(behaviour.cut), index) {
                self.settle().await?;
                return if behaviour.clean_end { self.end().await } else { Ok(closing(behaviour)) };
            }
            if is_at(events_of(behaviour.hang), index) {
                self.settle().await?;
                return Err(self.connection.gone().await);
            }
            if is_at(behaviour.error_event, index) {
                self.emit(behaviour, &events.error(line_end)).await?;
                break;
            }
            if behaviour.garbage == Some(Garbage::Chunk) && index == 1 {
                self.settle().await?;
                return self.invalid_chunk().await;
            }
            if behaviour.garbage == Some(Garbage::Sse) && index == 2 {
                self.emit(behaviour, &events.garbage(line_end)).await?;
            }
            if index == length {
                break;
            }
            if index > 0 && !behaviour.gap.is_zero() {
                deadline = self.wait_for_turn(deadline, behaviour.gap).await?;
            }
            if behaviour.comment {
                self.emit(behaviour, &format!(": keep-alive{line_end}{line_end}")).await?;
            }
            self.emit(behaviour, &events.event(index, line_end)).await?;
        }
        self.settle().await?;
        if behaviour.garbage == Some(Garbage::Length) { Ok(closing(behaviour)) } else { self.end().await }
    }

    /// Waits until `gap` after `last`; gaps shorter than a timer tick come true on average.
    async fn wait_for_turn(&mut self, last: Instant, gap: Duration) -> Result<Instant, Gone> {
        let deadline = (last + gap).max(Instant::now().checked_sub(BEHIND_MAX).unwrap_or(last));
        if deadline > Instant::now() {
            self.settle().await?;
            self.connection.pause_until(deadline).await?;
        }
        Ok(deadline)
    }

    /// Part of a stream, in pieces if the behaviour says so.
    async fn emit(&mut self, behaviour: &Behaviour, text: &str) -> Result<(), Gone> {
        let Some(size) = behaviour.split else {
            return self.body(text.as_bytes()).await;
        };
        self.waiting.extend_from_slice(text.as_bytes());
        let waiting = std::mem::take(&mut self.waiting);
        let pieces = waiting.chunks_exact(size);
        let rest = pieces.remainder().to_vec();
        for piece in pieces {
            self.body(piece).await?;
            self.connection.flush().await?;
            // Lets a reader in the same process see this piece before the next one.
            tokio::task::yield_now().await;
        }
        self.waiting = rest;
        Ok(())
    }

    /// Sends everything that is still held back.
    async fn settle(&mut self) -> Result<(), Gone> {
        let waiting = std::mem::take(&mut self.waiting);
        self.body(&waiting).await?;
        self.connection.flush().await
    }

    async fn body(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        if bytes.is_empty() {
            return Ok(());
        }
        if self.framing == Framing::Sized {
            return self.connection.push(bytes).await;
        }
        self.connection.push(format!("{:x}\r\n", bytes.len()).as_bytes()).await?;
        self.connection.push(bytes).await?;
        self.connection.push(b"\r\n").await
    }

    async fn invalid_chunk(&mut self) -> Result<After, Gone> {
        self.connection.push(b"zz\r\nnot a chunk\r\n").await?;
        self.connection.flush().await?;
        Ok(After::Close)
    }

    /// Ends the body as its framing wants it.
    async fn end(&mut self) -> Result<After, Gone> {
        if self.framing == Framing::Chunked {
            self.connection.push(b"0\r\n\r\n").await?;
        }
        self.connection.flush().await?;
        Ok(if self.request.keeps_alive { After::Next } else { After::Close })
    }
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
