//! HTTP/2: one connection, and one answer per stream.
//!
//! A library implements the protocol, so it rejects what every server rejects: names in upper case,
//! connection headers, a body whose length differs from its `content-length`. But it cannot break
//! off *after* the data that was sent: a reset discards all data that still waits. Therefore a
//! stream asks the connection to abort it once all data has been written. It must not know the
//! vendors. Read next: `exchange.rs`, which uses a stream.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::exchange::{After, Exchange, Framing, Head};
use super::http::{BODY_BYTES_MAX, Gone, HEAD_BYTES_MAX, ReadError, Request};
use super::play;
use super::socket::{Socket, State};
use super::vendor::Server;

const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 8 * 1024 * 1024;
/// Maximum number of bytes of one answer that may wait to be written.
const SEND_BUFFER_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of bytes per send: the default size of one DATA frame.
const PIECE_BYTES_MAX: usize = 16 * 1024;
/// Maximum number of aborts that wait for the connection.
const BREAKS_MAX: usize = 64;

/// An abort of an answer, to be done once all data before it has been written.
struct Break {
    /// Dropping the stream makes the library reset it, so it must live until then.
    stream: Stream,
    after: After,
}

/// Serves one connection until it ends.
pub async fn serve(socket: Socket, server: Arc<Server>) {
    let state = socket.state();
    let streams_max = server
        .options
        .tls
        .as_ref()
        .map_or(super::H2_STREAMS, |tls| tls.h2_streams);
    let handshake = Builder::new()
        .max_concurrent_streams(streams_max)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BUFFER_BYTES_MAX)
        .handshake::<_, Bytes>(socket);
    let Ok(mut connection) = handshake.await else {
        return;
    };
    let (breaks, mut broken) = mpsc::channel(BREAKS_MAX);
    let mut answers = JoinSet::new();
    let mut last = None;
    while let Some(event) = next(&mut connection, &mut broken, &state).await {
        match event {
            Event::Request(request, reply) => {
                let (server, breaks) = (Arc::clone(&server), breaks.clone());
                answers.spawn(answer(request, Stream::new(reply), server, breaks));
            }
            Event::Break(Break {
                mut stream,
                after: After::Close,
            }) => stream.reset(),
            Event::Break(Break { stream, after }) => {
                if after == After::Reset {
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
    // Each task notices and counts that the client disconnected.
    while answers.join_next().await.is_some() {}
}

enum Event {
    Request(http::Request<RecvStream>, SendResponse<Bytes>),
    Break(Break),
}

/// The next event; `None` once the connection has ended.
async fn next(
    connection: &mut Connection<Socket, Bytes>,
    broken: &mut mpsc::Receiver<Break>,
    state: &State,
) -> Option<Event> {
    poll_fn(|cx| {
        // This call also writes the data that the streams have queued.
        match connection.poll_accept(cx) {
            Poll::Ready(Some(Ok((request, reply)))) => {
                return Poll::Ready(Some(Event::Request(request, reply)));
            }
            Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(None),
            Poll::Pending => {}
        }
        if state.is_blocked() {
            return Poll::Pending;
        }
        broken.poll_recv(cx).map(|order| order.map(Event::Break))
    })
    .await
}

async fn answer(
    request: http::Request<RecvStream>,
    stream: Stream,
    server: Arc<Server>,
    breaks: mpsc::Sender<Break>,
) {
    let mut exchange = Exchange::Http2(stream);
    let after = match read(request).await {
        Ok(request) => play::play(&mut exchange, &server, request).await,
        Err(ReadError::Closed) => After::Closed,
        Err(ReadError::Refused(status)) => {
            let head = Head {
                status,
                lines: String::new(),
            };
            let framing = Framing::Sized(0);
            match exchange.send_head(&head, framing, false).await {
                Ok(()) => exchange
                    .end(framing)
                    .await
                    .map_or(After::Closed, |()| After::Next),
                Err(Gone) => After::Closed,
            }
        }
    };
    let Exchange::Http2(stream) = exchange else {
        return;
    };
    if matches!(after, After::Next | After::Closed) {
        return;
    }
    // Without a connection there is nothing to abort.
    let _ = breaks.send(Break { stream, after }).await;
}

/// Reads a complete request.
async fn read(request: http::Request<RecvStream>) -> Result<Request, ReadError> {
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
        if piece.len() > BODY_BYTES_MAX - body.len() {
            return Err(ReadError::Refused(413));
        }
        body.extend_from_slice(&piece);
        incoming
            .flow_control()
            .release_capacity(piece.len())
            .map_err(|_| ReadError::Closed)?;
    }
    Ok(Request {
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

/// The response side of one stream.
pub struct Stream {
    reply: SendResponse<Bytes>,
    /// Set once the head has been sent.
    body: Option<SendStream<Bytes>>,
    /// Error code for a reset.
    reason: Reason,
}

impl Stream {
    fn new(reply: SendResponse<Bytes>) -> Self {
        Self {
            reply,
            body: None,
            reason: Reason::INTERNAL_ERROR,
        }
    }

    pub fn send_head(&mut self, head: &Head, framing: Framing) -> Result<(), Gone> {
        let mut response = Response::new(());
        *response.status_mut() =
            StatusCode::from_u16(head.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        for line in head.lines.lines() {
            let Some((name, value)) = line.split_once(": ") else {
                continue;
            };
            if let (Ok(name), Ok(value)) =
                (HeaderName::try_from(name), HeaderValue::try_from(value))
            {
                headers.append(name, value);
            }
        }
        if let Framing::Sized(length) = framing {
            headers.insert(http::header::CONTENT_LENGTH, length.into());
        }
        self.body = Some(
            self.reply
                .send_response(response, false)
                .map_err(|_| Gone)?,
        );
        Ok(())
    }

    /// Sends bytes as the client's flow control window allows.
    pub async fn send_piece(&mut self, mut bytes: &[u8]) -> Result<(), Gone> {
        let body = self.body.as_mut().ok_or(Gone)?;
        while !bytes.is_empty() {
            body.reserve_capacity(bytes.len().min(PIECE_BYTES_MAX));
            // The library wakes this task only for additional capacity, not for existing capacity.
            while body.capacity() == 0 {
                match poll_fn(|cx| body.poll_capacity(cx)).await {
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return Err(Gone),
                }
            }
            let (piece, rest) =
                bytes.split_at(body.capacity().min(bytes.len()).min(PIECE_BYTES_MAX));
            body.send_data(Bytes::copy_from_slice(piece), false)
                .map_err(|_| Gone)?;
            bytes = rest;
        }
        Ok(())
    }

    pub fn end(&mut self) -> Result<(), Gone> {
        self.body
            .as_mut()
            .ok_or(Gone)?
            .send_data(Bytes::new(), true)
            .map_err(|_| Gone)
    }

    /// Makes a later reset report a protocol error instead of an internal error.
    pub fn blame_protocol(&mut self) {
        self.reason = Reason::PROTOCOL_ERROR;
    }

    pub async fn pause_until(&mut self, deadline: Instant) -> Result<(), Gone> {
        let mut timer = pin!(sleep_until(deadline));
        poll_fn(|cx| match self.poll_reset(cx) {
            Poll::Ready(gone) => Poll::Ready(Err(gone)),
            Poll::Pending => timer.as_mut().poll(cx).map(Ok),
        })
        .await
    }

    pub async fn gone(&mut self) -> Gone {
        poll_fn(|cx| self.poll_reset(cx)).await
    }

    /// Ready once the client has reset the stream, or the connection has ended.
    fn poll_reset(&mut self, cx: &mut std::task::Context<'_>) -> Poll<Gone> {
        let reset = match &mut self.body {
            Some(body) => body.poll_reset(cx),
            None => self.reply.poll_reset(cx),
        };
        reset.map(|_| Gone)
    }

    fn reset(&mut self) {
        match &mut self.body {
            Some(body) => body.send_reset(self.reason),
            None => self.reply.send_reset(self.reason),
        }
    }
}
