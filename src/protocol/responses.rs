//! The responses protocol's room.
//!
//! Read next: `responses/read_request.rs`, `responses/write_stream.rs`.

pub mod read_request;
mod voice;
pub mod write_stream;

pub use voice::Voice;
