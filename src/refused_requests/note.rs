//! What is known of a request beside the ledger: the ids that its vendor gave it, how the vendor
//! failed it, and what a request without a receipt asked for.
//!
//! Must not know where it is written.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Maximum number of an account's notes of one kind: the newest are kept.
pub const MAX_NOTES: u32 = 10_000;

/// Maximum length of what a vendor said, in characters.
pub const MAX_WORDS_CHARS: usize = 600;

/// Why a request is noted. Each kind has room of its own, so that many requests of one kind leave
/// those of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NoteKind {
    /// A vendor failed it.
    Failed,
    /// A vendor answered it, under ids of its own.
    Answered,
    /// It has no receipt, because it is free.
    Free,
}

impl NoteKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Answered => "answered",
            Self::Free => "free",
        }
    }

    /// An unknown kind has nothing but ids.
    pub fn from_name(name: &str) -> Self {
        match name {
            "failed" => Self::Failed,
            "free" => Self::Free,
            _ => Self::Answered,
        }
    }
}

/// A request that is noted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestNote {
    pub request_id: String,
    #[serde(with = "shared_text")]
    pub account: Arc<str>,
    pub at_ms: i64,
    pub kind: NoteKind,
    /// Status that the client got; 499 if it had left.
    pub status: u16,
    /// What a free request asked for, such as `the list of models`; empty otherwise.
    pub asked_for: String,
    /// The vendor's id of the request, as the client got it in `x-upstream-request-id`.
    pub header_id: Option<String>,
    /// The id of the answer, as the client got it in the body.
    pub answer_id: Option<String>,
    pub fault: Option<VendorFault>,
}

/// How a vendor failed a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VendorFault {
    /// Name of the vendor in the config.
    pub vendor: String,
    /// HTTP status; `None` if none arrived.
    pub status: Option<u16>,
    /// What happened, such as `no answer within 600 s`.
    pub cause: String,
    /// What the vendor or the operating system said, without secrets, at most [`MAX_WORDS_CHARS`];
    /// empty if it said nothing.
    pub words: String,
    /// Whether the words are about the operator's own account or network: only operators see them.
    pub is_private: bool,
}

impl VendorFault {
    /// Status and cause in a few words, as `status 503: overloaded`.
    pub fn summary(&self) -> String {
        match self.status {
            Some(status) => format!("status {status}: {}", self.cause),
            None => self.cause.clone(),
        }
    }

    /// What the reader may see of the words.
    pub fn words_for(&self, is_operator: bool) -> Option<&str> {
        let is_shown = !self.words.is_empty() && (is_operator || !self.is_private);
        is_shown.then_some(&*self.words)
    }
}

impl RequestNote {
    /// Whether the request, its vendor or its answer has this id.
    pub fn has_id(&self, id: &str) -> bool {
        self.request_id == id
            || self.header_id.as_deref() == Some(id)
            || self.answer_id.as_deref() == Some(id)
    }
}

/// A text that threads share, as JSON.
mod shared_text {
    use serde::{Deserialize as _, Deserializer, Serializer};
    use std::sync::Arc;

    pub fn serialize<S: Serializer>(text: &Arc<str>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(text)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<str>, D::Error> {
        String::deserialize(from).map(Arc::from)
    }
}
