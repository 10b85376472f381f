//! Bytes that the gateway adds to the output of a stream writer: keep-alives while the vendor is
//! silent, warnings, and the last events of a stream that failed.
//!
//! These bytes must not be built in advance: the number of a numbered event is known only when the
//! event is written.
//!
//! Read next: `responses/event_sequencer.rs`.

use super::failure::Failure;
use super::responses::EventSequencer;
use super::{Protocol, chat, messages};
use bytes::Bytes;

/// Keep-alive of a stream. It shows a waiting client that the connection works.
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
            // An SSE comment, which clients ignore.
            (Protocol::Chat | Protocol::Responses, _) => {
                KeepAlive::Fixed(chat::write_stream::KEEP_ALIVE)
            }
        }
    }

    /// Returns a keep-alive without a sequence number, which may be written while earlier events
    /// are still unwritten.
    pub fn unnumbered_bytes(&self) -> Bytes {
        match self {
            KeepAlive::Fixed(bytes) => Bytes::from_static(bytes),
            KeepAlive::Numbered(_) => Bytes::from_static(chat::write_stream::KEEP_ALIVE),
        }
    }

    /// Returns a keep-alive that must be written at once, because it may carry a sequence number.
    pub fn bytes(&self) -> Bytes {
        match self {
            KeepAlive::Fixed(bytes) => Bytes::from_static(bytes),
            KeepAlive::Numbered(sequencer) => sequencer.keep_alive().into(),
        }
    }
}

/// Writes a warning that arises while a stream runs. The header has been sent, so the warning
/// becomes a comment.
pub(crate) fn write_warning(warning: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b": x-gateway-warnings: ");
    out.extend_from_slice(warning.as_bytes());
    out.extend_from_slice(b"\n\n");
}

/// Returns the last events of a stream that failed after its 200 was sent. No event may follow.
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
