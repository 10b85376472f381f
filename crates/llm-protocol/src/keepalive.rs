//! Bytes that the gateway inserts in a stream beside the stream writer: keep-alives while the
//! vendor is silent, warnings, and the last events of a stream that failed.
//!
//! They must not be built in advance: where events are numbered, the number is known only when the
//! event is written.
//!
//! Read next: `responses/event_sequencer.rs`.

use super::failure::Failure;
use super::responses::EventSequencer;
use super::{Protocol, chat, messages};
use bytes::Bytes;

/// Keep-alive of a stream: shows a waiting client that the connection is alive.
#[derive(Clone, Debug)]
pub enum KeepAlive {
    Fixed(&'static [u8]),
    Numbered(EventSequencer),
}

impl KeepAlive {
    /// Returns the keep-alive of `surface`. The second argument is the stream's event sequencer, if
    /// it has one.
    pub fn new(surface: Protocol, sequencer: Option<EventSequencer>) -> KeepAlive {
        match (surface, sequencer) {
            (Protocol::Responses, Some(sequencer)) => KeepAlive::Numbered(sequencer),
            (Protocol::Messages, _) => KeepAlive::Fixed(messages::write_stream::KEEP_ALIVE),
            // An SSE comment, which no client takes for an event.
            (Protocol::Chat | Protocol::Responses, _) => {
                KeepAlive::Fixed(chat::write_stream::KEEP_ALIVE)
            }
        }
    }

    /// Returns a keep-alive that may be written now although earlier events are still unwritten: it
    /// carries no sequence number.
    pub fn unnumbered_bytes(&self) -> Bytes {
        match self {
            KeepAlive::Fixed(bytes) => Bytes::from_static(bytes),
            KeepAlive::Numbered(_) => Bytes::from_static(chat::write_stream::KEEP_ALIVE),
        }
    }

    /// Returns a keep-alive to write now.
    pub fn bytes(&self) -> Bytes {
        match self {
            KeepAlive::Fixed(bytes) => Bytes::from_static(bytes),
            KeepAlive::Numbered(sequencer) => sequencer.keep_alive().into(),
        }
    }
}

/// Writes a warning that arises while a stream runs, as a comment: its header has left.
pub(crate) fn write_warning(warning: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b": x-gateway-warnings: ");
    out.extend_from_slice(warning.as_bytes());
    out.extend_from_slice(b"\n\n");
}

/// Returns the last events of a stream that failed after its 200 was sent. Nothing may follow them.
pub fn encode_terminal_error(
    surface: Protocol,
    sequencer: Option<&EventSequencer>,
    failure: &Failure,
    request_id: &str,
) -> Vec<u8> {
    match sequencer.filter(|_| surface == Protocol::Responses) {
        Some(sequencer) => sequencer.failure_events(failure),
        None => failure.encode_stream_error(surface, request_id),
    }
}
