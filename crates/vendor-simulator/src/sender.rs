//! Sends an answer, including the faults of its behaviour, and counts the end of each answer.
//!
//! This file must not decide the answer (`vendor.rs` does).

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::Instant;

use super::behaviour::{Behaviour, Garbage, InterruptPoint};
use super::body_writer::SimBodyWriter;
use super::events::SimEventStream;
use super::exchange::Exchange;
use super::http_message::{ClientGone, ConnectionAction, SimFraming, SimRequest, SimResponseHead};
use super::pages;
use super::stats::SimAnswerStats;
use super::vendor::{SimBody, SimResponsePlan, SimServer};

const LENGTH_TOO_LARGE_BY: usize = 100;
const STREAM_LENGTH_CLAIMED: usize = 1 << 40;
const STREAM_HEAD: &str =
    "content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n";
/// Size in bytes of a header that no client accepts.
const HUGE_HEADER_BYTES: usize = 2 * 1024 * 1024;
/// Maximum lag behind the schedule. A sender that lags further starts a new schedule instead of
/// catching up.
const MAX_LAG: Duration = Duration::from_millis(20);

/// Interval between two comments of an endless stream.
const CHATTER_INTERVAL: Duration = Duration::from_millis(50);

/// Interval at which a held answer checks for its release.
const RELEASE_POLL_INTERVAL: Duration = Duration::from_millis(5);

pub async fn answer_request(
    exchange: &mut Exchange<'_>,
    server: &SimServer,
    request: SimRequest,
) -> ConnectionAction {
    if pages::is_page(&request) {
        let answered = pages::answer(exchange, server, &request).await;
        return answered.map_or(ConnectionAction::Closed, |()| ConnectionAction::Next);
    }
    let release = SimRelease {
        server,
        before: server.releases.load(Relaxed),
    };
    let record = server.stats.record_start(&request);
    let after = match server.plan(&request) {
        None => Ok(ConnectionAction::Disconnect),
        Some(plan) => {
            record.answer.set_usage(plan.usage);
            send_answer(exchange, &release, &request, &plan, &record.answer).await
        }
    };
    match after {
        Ok(ConnectionAction::Next) if !request.keeps_alive => {
            server.stats.record_completed(&record);
            ConnectionAction::Close
        }
        Ok(after) => {
            server.stats.record_completed(&record);
            after
        }
        Err(ClientGone) => {
            server.stats.record_client_gone(&record);
            ConnectionAction::Closed
        }
    }
}

/// The release that a held answer waits for, which is the first one after its request.
struct SimRelease<'a> {
    server: &'a SimServer,
    before: u64,
}

impl SimRelease<'_> {
    async fn wait(&self, exchange: &mut Exchange<'_>) -> Result<(), ClientGone> {
        while self.server.releases.load(Relaxed) == self.before {
            let later = Instant::now() + RELEASE_POLL_INTERVAL;
            exchange.pause_until(later).await?;
        }
        Ok(())
    }
}

async fn send_answer(
    exchange: &mut Exchange<'_>,
    release: &SimRelease<'_>,
    request: &SimRequest,
    plan: &SimResponsePlan,
    answer_stats: &SimAnswerStats,
) -> Result<ConnectionAction, ClientGone> {
    let behaviour = &plan.behaviour;
    if !behaviour.delay.is_zero() {
        exchange
            .pause_until(Instant::now() + behaviour.delay)
            .await?;
    }
    let is_stream = matches!(plan.body, SimBody::Stream(_));
    if behaviour.hold == Some(InterruptPoint::Headers) || behaviour.hold.is_some() && !is_stream {
        release.wait(exchange).await?;
    }
    if behaviour.cut == Some(InterruptPoint::Headers) {
        return Ok(close_action(behaviour));
    }
    if behaviour.hang == Some(InterruptPoint::Headers) {
        return Err(exchange.wait_until_gone().await);
    }
    release.server.stats.count_status(plan.status);
    let mut head = SimResponseHead {
        status: plan.status,
        lines: plan.head.clone(),
    };
    if behaviour.garbage == Some(Garbage::Headers) {
        head.lines.push_str(&format!(
            "x-sim-filler: {}\r\n",
            "x".repeat(HUGE_HEADER_BYTES)
        ));
    }
    let mut sender = SimAnswerSender {
        exchange,
        behaviour,
        release,
        closes: !request.keeps_alive,
    };
    match &plan.body {
        SimBody::Whole {
            content_type,
            bytes,
        } => {
            head.lines
                .push_str(&format!("content-type: {content_type}\r\n"));
            let bytes: &[u8] = if request.method == "HEAD" { &[] } else { bytes };
            sender.send_whole(head, bytes).await
        }
        SimBody::Stream(_) if behaviour.garbage == Some(Garbage::Json) => {
            head.lines.push_str("content-type: application/json\r\n");
            sender.send_whole(head, br#"{"id":"x","content":[]}"#).await
        }
        SimBody::Stream(events) => sender.send_stream(head, events, answer_stats).await,
    }
}

/// Sends one answer with the faults of its behaviour.
struct SimAnswerSender<'a, 'b> {
    exchange: &'a mut Exchange<'b>,
    behaviour: &'a Behaviour,
    release: &'a SimRelease<'a>,
    closes: bool,
}

impl<'b> SimAnswerSender<'_, 'b> {
    async fn send_whole(
        &mut self,
        head: SimResponseHead,
        bytes: &[u8],
    ) -> Result<ConnectionAction, ClientGone> {
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
            SimFraming::Chunked
        } else {
            SimFraming::Sized(claimed)
        };
        let mut sink = self.start_body(&head, framing, None).await?;
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
        sink.flush().await?;
        if behaviour.hang.is_some() {
            return Err(sink.exchange.wait_until_gone().await);
        }
        Ok(close_action(behaviour))
    }

    async fn send_stream(
        &mut self,
        mut head: SimResponseHead,
        events: &SimEventStream,
        answer_stats: &SimAnswerStats,
    ) -> Result<ConnectionAction, ClientGone> {
        let (behaviour, release) = (self.behaviour, self.release);
        let line_end = if behaviour.crlf { "\r\n" } else { "\n" };
        let claims_length = behaviour.garbage == Some(Garbage::Length);
        head.lines.push_str(STREAM_HEAD);
        let framing = if claims_length {
            SimFraming::Sized(STREAM_LENGTH_CLAIMED)
        } else {
            SimFraming::Chunked
        };
        let mut sink = self.start_body(&head, framing, behaviour.split).await?;
        let mut deadline = Instant::now() + behaviour.first;
        if !behaviour.first.is_zero() {
            sink.flush().await?;
            sink.exchange.pause_until(deadline).await?;
        }
        let mut index = 0;
        loop {
            if event_count(behaviour.hold) == Some(index) {
                sink.flush().await?;
                release.wait(sink.exchange).await?;
            }
            match incident(behaviour, index, events.len()) {
                Some(Incident::Cut) => {
                    sink.flush().await?;
                    return Ok(close_action(behaviour));
                }
                Some(Incident::Hang) => {
                    sink.flush().await?;
                    return Err(sink.exchange.wait_until_gone().await);
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
                deadline = wait_for_gap(&mut sink, deadline, behaviour.gap).await?;
            }
            if let Some(kind) = behaviour.keep_alive {
                sink.write(events.keep_alive(kind, index, line_end).as_bytes())
                    .await?;
            }
            sink.write(events.event(index, line_end).as_bytes()).await?;
            answer_stats.record_event(events.shown_bytes(index));
            index += 1;
        }
        if behaviour.chatter {
            return Err(chatter(&mut sink).await);
        }
        if claims_length {
            sink.end_short().await
        } else {
            sink.end().await
        }
    }

    async fn start_body(
        &mut self,
        head: &SimResponseHead,
        framing: SimFraming,
        split: Option<usize>,
    ) -> Result<SimBodyWriter<'_, 'b>, ClientGone> {
        self.exchange.send_head(head, framing, self.closes).await?;
        Ok(SimBodyWriter::new(self.exchange, framing, split))
    }
}

/// A fault before or in place of one of a stream's events.
enum Incident {
    Cut,
    Hang,
    Error,
    BadChunk,
    BadEvent,
    End,
}

/// Returns the fault after `sent` of `length` events.
fn incident(behaviour: &Behaviour, sent: usize, length: usize) -> Option<Incident> {
    let is_now = |count: Option<usize>| count.is_some_and(|count| count.min(length) == sent);
    if is_now(event_count(behaviour.cut)) {
        return Some(if behaviour.clean_end {
            Incident::End
        } else {
            Incident::Cut
        });
    }
    if is_now(event_count(behaviour.hang)) {
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

/// Sends comments until the client disconnects.
async fn chatter(sink: &mut SimBodyWriter<'_, '_>) -> ClientGone {
    let mut send = async || {
        sink.write(b": still here\n\n").await?;
        sink.flush().await?;
        sink.exchange
            .pause_until(Instant::now() + CHATTER_INTERVAL)
            .await
    };
    loop {
        if let Err(gone) = send().await {
            return gone;
        }
    }
}

/// Waits until `gap` after `last`. Gaps shorter than a timer tick are kept on average.
async fn wait_for_gap(
    sink: &mut SimBodyWriter<'_, '_>,
    last: Instant,
    gap: Duration,
) -> Result<Instant, ClientGone> {
    let now = Instant::now();
    let deadline = (last + gap).max(now.checked_sub(MAX_LAG).unwrap_or(last));
    if deadline > now {
        sink.flush().await?;
        sink.exchange.pause_until(deadline).await?;
    }
    Ok(deadline)
}

fn event_count(point: Option<InterruptPoint>) -> Option<usize> {
    match point {
        Some(InterruptPoint::Events(count)) => Some(count),
        _ => None,
    }
}

fn close_action(behaviour: &Behaviour) -> ConnectionAction {
    if behaviour.reset {
        ConnectionAction::Reset
    } else {
        ConnectionAction::Close
    }
}
