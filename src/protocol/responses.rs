//! The responses protocol's room: its four doors.
//!
//! Read next: `responses/read_request.rs`.

pub mod read_request;
pub mod read_stream;
pub mod write_request;
pub mod write_stream;
