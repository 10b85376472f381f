//! The messages protocol's room: its four doors.
//!
//! Read next: `messages/read_request.rs`.

pub mod read_request;
pub mod read_stream;
pub mod write_request;
pub mod write_stream;
