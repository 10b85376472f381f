//! The records of a journal.
//!
//! Older programs wrote each one as the JSON that serde makes of it, so that must not change.
//! `journal/record_text.rs` has the text of today. This file must not do I/O.

use crate::Ending;
use serde::{Deserialize, Serialize};

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalRecord {
    /// A hold was reserved. If no other record follows, the request ended like this.
    Open(Ending),
    End(Ending),
    /// Nothing was reserved for the request with this id, so there is nothing to end.
    Forgotten(String),
    /// The first line of a file: the file's number, and the number of lines that the previous file
    /// had then.
    Begun {
        file: u64,
        lines_before: u64,
    },
    /// The last line of a file: another file follows.
    Sealed,
}
