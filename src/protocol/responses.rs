//! Responses protocol: its request reader, request writer, stream reader and stream writer.
//!
//! Read next: `responses/read_request.rs`, `responses/write_stream.rs`.

pub mod kinds;
pub mod read_request;
pub mod read_stream;
mod voice;
pub mod write_request;
pub mod write_stream;

pub use voice::Voice;
