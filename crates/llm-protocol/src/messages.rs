//! Messages protocol: its request reader, request writer, stream reader and stream writer.
//!
//! Read next: `messages/read_request.rs`.

pub mod read_request;
pub mod read_stream;
pub mod write_request;
pub mod write_stream;
