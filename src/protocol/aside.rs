//! What is said in a stream beside its writer: signs of life while the vendor is silent, and the
//! end of one that failed.
//!
//! It must not be written beforehand: where events are numbered, only the moment tells the number.
//!
//! Read next: `responses/voice.rs`.

use super::failure::Failure;
use super::responses::Voice;
use super::{Protocol, chat, messages};
use bytes::Bytes;

/// What tells a waiting client that its stream is alive.
#[derive(Clone, Debug)]
pub enum SignOfLife {
    Fixed(&'static [u8]),
    Numbered(Voice),
}

impl SignOfLife {
    /// `voice`: that of the stream, where it has one.
    pub fn of(surface: Protocol, voice: Option<Voice>) -> SignOfLife {
        match (surface, voice) {
            (Protocol::Responses, Some(voice)) => SignOfLife::Numbered(voice),
            (Protocol::Messages, _) => SignOfLife::Fixed(messages::write_stream::KEEP_ALIVE),
            // A comment, which no client takes for an event.
            (Protocol::Chat | Protocol::Responses, _) => {
                SignOfLife::Fixed(chat::write_stream::KEEP_ALIVE)
            }
        }
    }

    /// To be written now where events are still to be written that came before: without a number.
    pub fn bytes_beside(&self) -> Bytes {
        match self {
            SignOfLife::Fixed(bytes) => Bytes::from_static(bytes),
            SignOfLife::Numbered(_) => Bytes::from_static(chat::write_stream::KEEP_ALIVE),
        }
    }

    /// To be written now.
    pub fn bytes(&self) -> Bytes {
        match self {
            SignOfLife::Fixed(bytes) => Bytes::from_static(bytes),
            SignOfLife::Numbered(voice) => voice.keep_alive().into(),
        }
    }
}

/// The end of a stream that failed after its 200 was sent; nothing may follow it.
pub fn last_words(
    surface: Protocol,
    voice: Option<&Voice>,
    failure: &Failure,
    request_id: &str,
) -> Vec<u8> {
    match voice.filter(|_| surface == Protocol::Responses) {
        Some(voice) => voice.failed(failure),
        None => failure.frame(surface, request_id),
    }
}
