//! Chat Completions protocol: its request reader, request writer, stream reader and stream writer.
//!
//! Read next: `chat/read_request.rs`.

mod opaque_state;
pub mod read_request;
pub mod read_stream;
mod reasoning_format;
pub mod write_request;
pub mod write_stream;
