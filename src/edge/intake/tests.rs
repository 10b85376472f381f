//! Tests of who caused an incomplete response, by what the gateway sees first. They use a real
//! connection, because the order of two events an instant apart cannot be set up from outside.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::body_share::BodyShare;
use super::buffered_session::BufferedDownstream;
use super::exchange::{AbortReason, Deadlines, ExchangeState};
use bytes::Bytes;
use pingora::http::ResponseHeader;
use pingora::protocols::http::custom::server::Session as _;
use pingora::protocols::http::{HttpTask, ServerSession};
use pingora::protocols::l4::stream::Stream;
use pingora::{Error, ErrorType};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const SOON: Duration = Duration::from_secs(20);

/// A client that has requested a stream, and the session that answers it.
struct Wire {
    client: TcpStream,
    replay: BufferedDownstream,
    shared: Arc<ExchangeState>,
}

impl Wire {
    async fn open(deadlines: Deadlines) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        client
            .write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n")
            .await
            .unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let mut session = ServerSession::new_http1(Box::new(Stream::from(accepted)));
        assert!(session.read_request().await.unwrap());
        let shared = Arc::new(ExchangeState::default());
        shared.set_terminal_error(|_| b"data: failed\n\n".to_vec());
        shared.begin_attempt(false);
        let body = (Bytes::from_static(b"{}").into(), BodyShare::default());
        let replay =
            BufferedDownstream::new(Box::new(session), body, Arc::clone(&shared), deadlines);
        Self {
            client,
            replay,
            shared,
        }
    }

    /// Opens a stream whose first event the client has received.
    async fn begun() -> Self {
        Self::begun_with(deadlines()).await
    }

    async fn begun_with(deadlines: Deadlines) -> Self {
        let mut wire = Self::open(deadlines).await;
        let mut head = ResponseHeader::build(200, None).unwrap();
        head.insert_header("content-type", "text/event-stream")
            .unwrap();
        head.insert_header("transfer-encoding", "chunked").unwrap();
        wire.replay
            .response_duplex_vec(vec![HttpTask::Header(Box::new(head), false), event()])
            .await
            .unwrap();
        let mut got = Vec::new();
        while !got.ends_with(b"data: a\n\n\r\n") {
            assert!(
                wire.client.read_buf(&mut got).await.unwrap() > 0,
                "{}",
                String::from_utf8_lossy(&got)
            );
        }
        wire
    }

    /// Resets the client's connection. The gateway has not read from it since.
    async fn reset(&mut self) {
        // Unread data turns the close into a reset.
        self.replay
            .response_duplex_vec(vec![event()])
            .await
            .unwrap();
        self.client.readable().await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        drop(std::mem::replace(&mut self.client, other));
    }

    async fn vendor_breaks_off(&mut self) {
        let error = Error::explain(ErrorType::ConnectionClosed, "the vendor's connection");
        let _ = self
            .replay
            .response_duplex_vec(vec![HttpTask::Failed(error)])
            .await;
    }
}

fn event() -> HttpTask {
    HttpTask::Body(Some(Bytes::from_static(b"data: a\n\n")), false)
}

fn deadlines() -> Deadlines {
    Deadlines {
        shutdown: Arc::default(),
        total: Instant::now() + SOON,
        first_byte: SOON,
        idle: SOON,
        client_write: SOON,
        drain: SOON,
        drain_reasoning: SOON,
        may_drain: true,
        keep_alive: Duration::from_secs(15),
    }
}

#[tokio::test]
async fn a_client_that_vanishes_while_it_is_told_of_the_vendors_failure_did_not_cause_it() {
    let mut wire = Wire::begun().await;
    wire.reset().await;
    wire.vendor_breaks_off().await;
    let progress = wire.shared.progress();
    assert!(
        progress.has_client_left(),
        "the frame that tells of the failure could not be written"
    );
    assert!(!progress.is_client_fault());
}

#[tokio::test]
async fn a_client_that_was_seen_to_leave_first_did() {
    let mut wire = Wire::begun().await;
    wire.reset().await;
    while !wire.shared.progress().has_client_left() {
        wire.replay
            .response_duplex_vec(vec![event()])
            .await
            .unwrap();
    }
    wire.vendor_breaks_off().await;
    assert!(wire.shared.progress().is_client_fault());
}

/// Otherwise it would get no error which says that the process ends.
#[tokio::test]
async fn a_client_that_reads_the_event_that_comes_at_the_cutoff_has_not_left() {
    let deadlines = deadlines();
    let shutdown = Arc::clone(&deadlines.shutdown);
    let mut wire = Wire::begun_with(deadlines).await;
    shutdown.set_cutoff(Instant::now());
    tokio::time::sleep_until(shutdown.cutoff().unwrap().into()).await;
    wire.replay
        .response_duplex_vec(vec![event()])
        .await
        .unwrap();
    assert!(!wire.shared.progress().has_client_left());
    let mut got = Vec::new();
    while !got.ends_with(b"data: a\n\n\r\n") {
        assert!(wire.client.read_buf(&mut got).await.unwrap() > 0);
    }
    // A client that does not read holds nobody up.
    for _ in 0..1_000_000 {
        if wire.shared.progress().has_client_left() {
            break;
        }
        wire.replay
            .response_duplex_vec(vec![event()])
            .await
            .unwrap();
    }
    assert!(wire.shared.progress().has_client_left());
}

#[tokio::test]
async fn a_vendor_that_is_silent_for_too_long_before_the_client_leaves_has_failed() {
    let quick = Deadlines {
        idle: Duration::from_millis(10),
        first_byte: Duration::from_millis(10),
        ..deadlines()
    };
    let mut wire = Wire::open(quick).await;
    assert!(wire.replay.read_body_or_idle(true).await.is_err());
    assert_eq!(wire.shared.progress().ended, Some(AbortReason::FirstByte));
    wire.shared.mark_client_left();
    assert!(!wire.shared.progress().is_client_fault());
}

#[test]
fn a_failure_soon_after_a_write_that_the_client_held_up_is_the_clients_doing() {
    for (ago_seconds, client) in [(0, true), (1, true), (6, false)] {
        let shared = ExchangeState::default();
        let blocked_until =
            Instant::now() + Duration::from_secs(5) - Duration::from_secs(ago_seconds);
        shared.lock().progress.blocked_until = Some(blocked_until);
        shared.mark_vendor_failed();
        assert_eq!(
            shared.progress().is_client_fault(),
            client,
            "{ago_seconds} s after it"
        );
    }
}

#[test]
fn another_attempt_is_judged_anew_but_a_client_that_left_stays_gone() {
    let shared = ExchangeState::default();
    shared.mark_vendor_failed();
    shared.begin_attempt(false);
    shared.mark_client_left();
    assert!(shared.progress().is_client_fault());
    shared.begin_attempt(false);
    shared.mark_vendor_failed();
    assert!(shared.progress().is_client_fault());
}

#[test]
fn a_complete_response_stays_so_and_tells_whether_its_last_event_was_missing() {
    let of = |shared: &ExchangeState| {
        let progress = shared.progress();
        (progress.is_completed(), progress.lacks_last_event())
    };
    let shared = ExchangeState::default();
    shared.set_completed();
    shared.set_finishing(true, true);
    shared.begin_attempt(false);
    assert_eq!(of(&shared), (true, false), "its last event ended it");
    let shared = ExchangeState::default();
    shared.set_finishing(true, false);
    assert_eq!(of(&shared), (false, true));
    shared.complete_and_hang_up();
    assert_eq!(of(&shared), (true, true));
    assert!(!shared.progress().is_finishing());
}

#[tokio::test]
async fn a_vendor_that_goes_on_after_its_last_event_does_not_keep_the_client_from_the_end() {
    let mut wire = Wire::begun().await;
    wire.shared.set_completed();
    let began = Instant::now();
    loop {
        // A body filter has removed the bytes.
        wire.replay
            .response_duplex_vec(vec![HttpTask::Body(None, false)])
            .await
            .unwrap();
        let ended = tokio::time::timeout(
            Duration::from_millis(50),
            wire.replay.read_body_or_idle(true),
        )
        .await;
        if ended.is_ok() {
            break;
        }
        assert!(began.elapsed() < SOON, "read on for ever");
    }
    assert_eq!(wire.shared.progress().ended, Some(AbortReason::Tail));
}

#[tokio::test]
async fn the_body_of_an_error_is_not_waited_for_as_long_as_an_answer_is() {
    let quick = Deadlines {
        idle: Duration::from_millis(10),
        first_byte: SOON,
        ..deadlines()
    };
    let mut wire = Wire::open(quick).await;
    let head = ResponseHeader::build(429, None).unwrap();
    wire.replay
        .response_duplex_vec(vec![HttpTask::Header(Box::new(head), false)])
        .await
        .unwrap();
    assert!(wire.replay.read_body_or_idle(true).await.is_err());
    let progress = wire.shared.progress();
    assert!(
        progress.ended == Some(AbortReason::ErrorBody)
            && progress.is_vendor_fault()
            && !progress.has_begun()
    );
}

#[tokio::test]
async fn a_request_counts_as_sent_once_more_of_it_is_asked_for_and_anew_at_each_attempt() {
    let mut wire = Wire::open(deadlines()).await;
    assert_eq!(wire.shared.progress().time_since_sent(), None);
    let waits = tokio::time::timeout(
        Duration::from_millis(200),
        wire.replay.read_body_or_idle(true),
    )
    .await;
    assert!(
        waits.is_err()
            && wire.shared.progress().time_since_sent() >= Some(Duration::from_millis(50))
    );
    wire.shared.begin_attempt(false);
    assert_eq!(wire.shared.progress().time_since_sent(), None);
}

#[test]
fn the_opening_of_a_stream_is_kept_until_it_is_too_long_and_goes_with_its_attempt() {
    let shared = ExchangeState::default();
    assert!(shared.buffer_opening(b"data: a\n\n") && shared.buffer_opening(b"data: b\n\n"));
    assert!(
        !shared.buffer_opening(&vec![b'x'; 262_144]),
        "it is to go out"
    );
    assert_eq!(shared.take_opening(), b"data: a\n\ndata: b\n\n");
    assert!(shared.buffer_opening(b"data: c\n\n"));
    shared.begin_attempt(false);
    assert!(shared.take_opening().is_empty());
}
