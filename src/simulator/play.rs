//! Sends an answer, including the faults that the behaviour asks for.
//!
//! It must not decide the answer (`vendor.rs`). This file counts every end of an answer.

use std::time::Duration;

use tokio::time::Instant;

use super::behaviour::{Behaviour, Garbage, Point};
use super::events::Events;
use super::exchange::{After, Exchange, Framing, Head};
use super::http::{Gone, Request};
use super::pages;
use super::sink::Sink;
use super::stats::Tally;
use super::vendor::{Body, Plan, Server};

const LENGTH_TOO_LARGE_BY: usize = 100;
const STREAM_LENGTH_CLAIMED: usize = 1 << 40;
const STREAM_HEAD: &str =
    "content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n";
/// Size of a header that no client accepts.
const HUGE_HEADER_BYTES: usize = 2 * 1024 * 1024;
/// A sender that lags further behind its schedule starts a new one instead of catching up.
const BEHIND_MAX: Duration = Duration::from_millis(20);

/// Interval between two comments of a stream that does not end.
const CHATTER: Duration = Duration::from_millis(50);

/// Answers one request.
pub async fn play(exchange: &mut Exchange<'_>, server: &Server, request: Request) -> After {
    if pages::is_page(&request) {
        let answered = pages::answer(exchange, server, &request).await;
        return answered.map_or(After::Closed, |()| After::Next);
    }
    let record = server.stats.started(&request);
    let after = match server.plan(&request) {
        None => Ok(After::Disconnect),
        Some(plan) => {
            record.answer.plan(plan.usage);
            send(exchange, server, &request, &plan, &record.answer).await
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
    exchange: &mut Exchange<'_>,
    server: &Server,
    request: &Request,
    plan: &Plan,
    tally: &Tally,
) -> Result<After, Gone> {
    let behaviour = &plan.behaviour;
    if !behaviour.delay.is_zero() {
        exchange
            .pause_until(Instant::now() + behaviour.delay)
            .await?;
    }
    if behaviour.cut == Some(Point::Headers) {
        return Ok(closing(behaviour));
    }
    if behaviour.hang == Some(Point::Headers) {
        return Err(exchange.gone().await);
    }
    server.stats.count_status(plan.status);
    let mut head = Head {
        status: plan.status,
        lines: plan.head.clone(),
    };
    if behaviour.garbage == Some(Garbage::Headers) {
        head.lines.push_str(&format!(
            "x-sim-filler: {}\r\n",
            "x".repeat(HUGE_HEADER_BYTES)
        ));
    }
    let mut sender = Sender {
        exchange,
        behaviour,
        closes: !request.keeps_alive,
    };
    match &plan.body {
        Body::Whole {
            content_type,
            bytes,
        } => {
            head.lines
                .push_str(&format!("content-type: {content_type}\r\n"));
            let bytes: &[u8] = if request.method == "HEAD" { &[] } else { bytes };
            sender.send_whole(head, bytes).await
        }
        Body::Stream(_) if behaviour.garbage == Some(Garbage::Json) => {
            head.lines.push_str("content-type: application/json\r\n");
            sender.send_whole(head, br#"{"id":"x","content":[]}"#).await
        }
        Body::Stream(events) => sender.send_stream(head, events, tally).await,
    }
}

/// Sends one answer, with the faults of its behaviour.
struct Sender<'a, 'b> {
    exchange: &'a mut Exchange<'b>,
    behaviour: &'a Behaviour,
    closes: bool,
}

impl<'b> Sender<'_, 'b> {
    async fn send_whole(&mut self, head: Head, bytes: &[u8]) -> Result<After, Gone> {
        let behaviour = self.behaviour;
        let half = &bytes[..bytes.len() / 2];
        let (stops, claimed, sent) = match behaviour.garbage {
            Some(Garbage::Length) => (true, bytes.len() + LENGTH_TOO_LARGE_BY, bytes),
            Some(Garbage::Json | Garbage::Sse) => (false, half.len(), half),
            _ if behaviour.cut.is_some() && behaviour.clean_end => (false, half.len(), half),
            _ if behaviour.cut.is_some() || behaviour.hang.is_some() => (true, bytes.len(), half),
            _ => (false, bytes.len(), bytes),
        };
        let is_chunk_garbage = behaviour.garbage == Some(Garbage::Chunk);
        let is_chunked = behaviour.chunked || is_chunk_garbage;
        let framing = if is_chunked {
            Framing::Chunked
        } else {
            Framing::Sized(claimed)
        };
        let mut sink = self.begin(&head, framing, None).await?;
        if is_chunk_garbage {
            return sink.break_framing().await;
        }
        sink.write(sent).await?;
        if !stops {
            return sink.end().await;
        }
        if behaviour.garbage == Some(Garbage::Length) {
            return sink.end_short().await;
        }
        sink.settle().await?;
        if behaviour.hang.is_some() {
            return Err(sink.exchange.gone().await);
        }
        Ok(closing(behaviour))
    }

    async fn send_stream(
        &mut self,
        mut head: Head,
        events: &Events,
        tally: &Tally,
    ) -> Result<After, Gone> {
        let behaviour = self.behaviour;
        let line_end = if behaviour.crlf { "\r\n" } else { "\n" };
        let claims_length = behaviour.garbage == Some(Garbage::Length);
        head.lines.push_str(STREAM_HEAD);
        let framing = if claims_length {
            Framing::Sized(STREAM_LENGTH_CLAIMED)
        } else {
            Framing::Chunked
        };
        let mut sink = self.begin(&head, framing, behaviour.split).await?;
        let mut deadline = Instant::now() + behaviour.first;
        if !behaviour.first.is_zero() {
            sink.settle().await?;
            sink.exchange.pause_until(deadline).await?;
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
                    return Err(sink.exchange.gone().await);
                }
                Some(Incident::BadChunk) => return sink.break_framing().await,
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
                sink.write(events.keep_alive(kind, index, line_end).as_bytes())
                    .await?;
            }
            sink.write(events.event(index, line_end).as_bytes()).await?;
            tally.wrote(events.shown_bytes(index));
            index += 1;
        }
        if behaviour.chatter {
            loop {
                sink.write(b": still here\n\n").await?;
                sink.settle().await?;
                sink.exchange.pause_until(Instant::now() + CHATTER).await?;
            }
        }
        if claims_length {
            sink.end_short().await
        } else {
            sink.end().await
        }
    }

    async fn begin(
        &mut self,
        head: &Head,
        framing: Framing,
        split: Option<usize>,
    ) -> Result<Sink<'_, 'b>, Gone> {
        self.exchange.send_head(head, framing, self.closes).await?;
        Ok(Sink::new(self.exchange, framing, split))
    }
}

/// A fault before one of a stream's events, or in place of it.
enum Incident {
    Cut,
    Hang,
    Error,
    BadChunk,
    BadEvent,
    End,
}

/// The fault after `sent` of `length` events.
fn incident(behaviour: &Behaviour, sent: usize, length: usize) -> Option<Incident> {
    let is_now = |count: Option<usize>| count.is_some_and(|count| count.min(length) == sent);
    if is_now(events_of(behaviour.cut)) {
        return Some(if behaviour.clean_end {
            Incident::End
        } else {
            Incident::Cut
        });
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

/// Waits until `gap` after `last`; gaps shorter than a timer tick are met on average.
async fn wait_for_turn(
    sink: &mut Sink<'_, '_>,
    last: Instant,
    gap: Duration,
) -> Result<Instant, Gone> {
    let now = Instant::now();
    let deadline = (last + gap).max(now.checked_sub(BEHIND_MAX).unwrap_or(last));
    if deadline > now {
        sink.settle().await?;
        sink.exchange.pause_until(deadline).await?;
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
    if behaviour.reset {
        After::Reset
    } else {
        After::Close
    }
}
