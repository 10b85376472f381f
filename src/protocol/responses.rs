//! The responses protocol's room.
//!
//! Read next: `responses/read_request.rs`.

pub mod read_request;
pub mod write_stream;
