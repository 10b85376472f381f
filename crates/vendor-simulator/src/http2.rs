//! Serves HTTP/2: one connection, and one answer per stream.
//!
//! A library implements the protocol, so it rejects what every server rejects: names in upper case,
//! connection headers, a body whose length differs from its `content-length`. But it cannot break
//! off *after* the data that was sent: a reset discards all data that still waits. Therefore a
//! stream asks the connection to abort it once all data has been written. This file must not depend
//! on a vendor. Read next: `http2_stream.rs`, the response side of a stream.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use h2::server::{Builder, Connection, SendResponse};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::exchange::Exchange;
use super::http_message::{
    ClientGone, ConnectionAction, MAX_BODY_BYTES, MAX_HEAD_BYTES, ReadError, SimFraming,
    SimRequest, SimResponseHead,
};
use super::http2_stream::SimHttp2Stream;
use super::options::DEFAULT_H2_STREAMS;
use super::sender;
use super::socket::{Socket, SocketState};
use super::vendor::SimServer;

const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 8 * 1024 * 1024;
/// Maximum number of bytes of one answer that may wait to be written.
const MAX_SEND_BUFFER_BYTES: usize = 256 * 1024;
/// Maximum number of aborts that wait for the connection.
const MAX_PENDING_ABORTS: usize = 64;

/// An abort of an answer, which happens once all earlier data has been written.
struct StreamAbort {
    /// The library resets a stream when it is dropped, so the stream must live until the abort.
    stream: SimHttp2Stream,
    after: ConnectionAction,
}

/// Serves one connection until it ends.
pub async fn serve(socket: Socket, server: Arc<SimServer>) {
    let state = socket.state();
    let streams_max = server
        .options
        .tls
        .as_ref()
        .map_or(DEFAULT_H2_STREAMS, |tls| tls.h2_streams);
    let handshake = Builder::new()
        .max_concurrent_streams(streams_max)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(u32::try_from(MAX_HEAD_BYTES).unwrap_or(u32::MAX))
        .max_send_buffer_size(MAX_SEND_BUFFER_BYTES)
        .handshake::<_, Bytes>(socket);
    let Ok(mut connection) = handshake.await else {
        return;
    };
    let (breaks, mut broken) = mpsc::channel(MAX_PENDING_ABORTS);
    let mut answers = JoinSet::new();
    let (mut due, mut last) = (None, None);
    while let Some(event) = next_event(&mut connection, &mut broken, &mut due, &state).await {
        match event {
            SimHttp2Event::Request(request, responder) => {
                let (server, breaks) = (Arc::clone(&server), breaks.clone());
                answers.spawn(answer(
                    request,
                    SimHttp2Stream::new(responder),
                    server,
                    breaks,
                ));
            }
            SimHttp2Event::Break(StreamAbort {
                mut stream,
                after: ConnectionAction::Close,
            }) => stream.reset(),
            SimHttp2Event::Break(StreamAbort { stream, after }) => {
                if after == ConnectionAction::Reset {
                    state.reset_on_close();
                }
                last = Some(stream);
                break;
            }
        }
        while answers.try_join_next().is_some() {}
    }
    drop(connection);
    drop((last, broken));
    // Each task notices and counts that its client disconnected.
    while answers.join_next().await.is_some() {}
}

enum SimHttp2Event {
    Request(http::Request<RecvStream>, SendResponse<Bytes>),
    Break(StreamAbort),
}

/// Returns the next event; `None` once the connection has ended. An abort whose data may not have
/// been written yet is in `due`.
async fn next_event(
    connection: &mut Connection<Socket, Bytes>,
    broken: &mut mpsc::Receiver<StreamAbort>,
    due: &mut Option<StreamAbort>,
    state: &SocketState,
) -> Option<SimHttp2Event> {
    poll_fn(|cx| {
        // The abort is received before the data is written, because a stream on another thread may
        // queue data and request its abort in between.
        if due.is_none()
            && let Poll::Ready(abort) = broken.poll_recv(cx)
        {
            *due = abort;
        }
        // This call also writes the data that the streams have queued.
        match connection.poll_accept(cx) {
            Poll::Ready(Some(Ok((request, responder)))) => {
                return Poll::Ready(Some(SimHttp2Event::Request(request, responder)));
            }
            Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(None),
            Poll::Pending => {}
        }
        if state.is_blocked() {
            return Poll::Pending;
        }
        due.take().map_or(Poll::Pending, |abort| {
            Poll::Ready(Some(SimHttp2Event::Break(abort)))
        })
    })
    .await
}

async fn answer(
    request: http::Request<RecvStream>,
    stream: SimHttp2Stream,
    server: Arc<SimServer>,
    breaks: mpsc::Sender<StreamAbort>,
) {
    let mut exchange = Exchange::Http2(stream);
    let after = match read_request(request).await {
        Ok(request) => sender::answer_request(&mut exchange, &server, request).await,
        Err(ReadError::Closed) => ConnectionAction::Closed,
        Err(ReadError::Refused(status)) => {
            let head = SimResponseHead {
                status,
                lines: String::new(),
            };
            let framing = SimFraming::Sized(0);
            match exchange.send_head(&head, framing, false).await {
                Ok(()) => exchange
                    .end(framing)
                    .await
                    .map_or(ConnectionAction::Closed, |()| ConnectionAction::Next),
                Err(ClientGone) => ConnectionAction::Closed,
            }
        }
    };
    let Exchange::Http2(stream) = exchange else {
        return;
    };
    if matches!(after, ConnectionAction::Next | ConnectionAction::Closed) {
        return;
    }
    // Without a connection, nothing can be aborted.
    let _ = breaks.send(StreamAbort { stream, after }).await;
}

async fn read_request(request: http::Request<RecvStream>) -> Result<SimRequest, ReadError> {
    let (head, mut incoming) = request.into_parts();
    let authority = head.uri.authority().ok_or(ReadError::Refused(400))?;
    let mut headers = vec![(":authority".to_owned(), authority.to_string())];
    for (name, value) in &head.headers {
        let value = value.to_str().map_err(|_| ReadError::Refused(400))?;
        if name == http::header::HOST && value != authority.as_str() {
            return Err(ReadError::Refused(400));
        }
        headers.push((name.as_str().to_owned(), value.to_owned()));
    }
    let mut body = BytesMut::new();
    while let Some(piece) = incoming.data().await {
        let piece = piece.map_err(|_| ReadError::Closed)?;
        if piece.len() > MAX_BODY_BYTES - body.len() {
            return Err(ReadError::Refused(413));
        }
        body.extend_from_slice(&piece);
        incoming
            .flow_control()
            .release_capacity(piece.len())
            .map_err(|_| ReadError::Closed)?;
    }
    Ok(SimRequest {
        version: "2",
        method: head.method.as_str().to_owned(),
        target: head
            .uri
            .path_and_query()
            .map_or_else(|| "/".to_owned(), ToString::to_string),
        headers,
        body: body.freeze(),
        keeps_alive: true,
    })
}
