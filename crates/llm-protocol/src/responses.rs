//! Responses protocol: its request reader, request writer, stream reader and stream writer.
//!
//! Read next: `responses/read_request.rs`, `responses/write_stream.rs`.

mod event_sequencer;
pub mod kinds;
pub mod read_request;
pub mod read_stream;
pub mod write_request;
pub mod write_stream;

pub use event_sequencer::EventSequencer;
