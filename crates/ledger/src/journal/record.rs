//! Defines the records of a journal.
//!
//! Older programs wrote a record as serde's JSON, so the field names must not change.
//! `journal/record_text.rs` has the current format. This file must not do I/O.

use crate::Ending;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalRecord {
    /// A hold was reserved. Without a further record, the request ended like this.
    Open(Ending),
    End(Ending),
    /// No credits were reserved for the request with this id, so it needs no end.
    Forgotten(String),
    /// The first line of a file, with the file's number and the number of lines that the previous
    /// file had then.
    Begun {
        file: u64,
        lines_before: u64,
    },
    /// The last line of a full file, after which another file follows.
    Sealed,
}
