//! Lists the reasons why a segment cannot be read.
//!
//! This file must not name the expected path of the file, which only the caller knows.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum SegmentFault {
    #[error("it is missing")]
    Missing,
    #[error("it cannot be read: {0}")]
    Unreadable(io::Error),
    #[error("it is damaged: {0}")]
    Damaged(String),
    #[error("it is another segment, perhaps of another installation: {found}, not {expected}")]
    OtherSegment { found: String, expected: String },
    #[error("ledger.db records other {0} than its signed manifest")]
    OtherRecord(&'static str),
    #[error("it has the format {0}, which this program does not know: use a newer version")]
    NewerFormat(u32),
}

impl SegmentFault {
    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged(what.into())
    }

    /// Returns the state for a list of segments.
    pub fn state(&self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Unreadable(_) => "unreadable",
            Self::Damaged(_) => "damaged",
            Self::OtherSegment { .. } => "foreign",
            Self::OtherRecord(_) => "record",
            Self::NewerFormat(_) => "newer",
        }
    }
}

impl From<io::Error> for SegmentFault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::Missing,
            io::ErrorKind::UnexpectedEof => Self::damaged("it is too short"),
            _ => Self::Unreadable(error),
        }
    }
}
