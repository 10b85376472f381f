//! Contains the tables of the outcome of every member of a request that the gateway translates, by
//! the client's protocol.
//!
//! This module contains data only, which the readers and the writers of all protocols look up. The
//! rows are in the text files beside the sources, which `fields/rows.rs` parses when the crate is
//! compiled.
//!
//! Read next: `fields/chat.rs`.

pub(crate) mod chat;
pub(crate) mod messages;
pub(crate) mod responses;
pub mod rows;
