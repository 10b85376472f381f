//! Defines the end of a request: the journal's record, and the detail of the ledger's debit or
//! void.
//!
//! The JSON of an ending is hashed with its entry, so its form must not change. This file must not
//! decide what an ending costs.

use crate::sqlite::to_json;
use credits::money::Micro;
use llm_protocol::Protocol;
use llm_protocol::ir::CacheMarkerOrigin;
use llm_protocol::usage::Usage;
use serde::{Deserialize, Serialize};

/// A request and its end. The journal stores it as a record, and the ledger as the detail of a
/// `debit` or a `void`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    #[serde(rename = "ref")]
    pub request_id: String,
    pub account: String,
    pub at_ms: i64,
    /// Credits that the account pays for the request, by bucket.
    pub paid: Micro,
    pub trial: Micro,
    /// Part of the cost that the account could not cover.
    pub writeoff: Micro,
    pub detail: EndingDetail,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndingDetail {
    pub key_id: String,
    pub key_shown: String,
    pub model: String,
    pub surface: Protocol,
    pub vendor: String,
    pub outcome: RequestOutcome,
    pub usage: Usage,
    pub price_version: String,
    pub estimated: bool,
    /// True if a counter of the vendor was higher than the maximum of the request, which is then
    /// billed instead. This field and the following ones are stored only if they are set, so that
    /// entries from before these fields existed keep their hash.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub implausible: bool,
    /// The conversation of the request, if the gateway recognised one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// Time from admission to the end, in ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    /// Time from admission to the first token of a streamed answer, in ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token_ms: Option<u64>,
    /// The origin of the cache markers in the prompt, if it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_marks: Option<CacheMarkerOrigin>,
    /// The membership whose key it is, if the account is an organisation's:
    /// `ORGANISATION/PERSON`, by the ids of their accounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
}

impl EndingDetail {
    /// Returns the ids whose spending the request counts as: of its key, and of the key's member.
    pub fn spenders(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.key_id.as_str()).chain(self.member.as_deref())
    }

    /// Returns the person (by the id of their own account) whose key it is, if the account is an
    /// organisation's.
    pub fn person(&self) -> Option<&str> {
        let (_, person) = self.member.as_deref()?.split_once('/')?;
        Some(person)
    }
}

/// The way in which a request with a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestOutcome {
    Completed,
    ClientLeft,
    /// The gateway stopped the stream because of a limit on time, size or writing.
    GatewayEnded,
    /// The vendor refused the request, and documents such a refusal as free.
    RefusedFree,
    VendorError,
    VendorCut,
    /// The process ended during the request.
    Interrupted,
}

impl RequestOutcome {
    /// All outcomes. The usual one is the first.
    pub const ALL: [Self; 7] = [
        Self::Completed,
        Self::ClientLeft,
        Self::GatewayEnded,
        Self::RefusedFree,
        Self::VendorError,
        Self::VendorCut,
        Self::Interrupted,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::ClientLeft => "client_left",
            Self::GatewayEnded => "gateway_ended",
            Self::RefusedFree => "refused_free",
            Self::VendorError => "vendor_error",
            Self::VendorCut => "vendor_cut",
            Self::Interrupted => "interrupted",
        }
    }

    /// Parses the name of an outcome. Returns `None` for an unknown name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == name)
    }
}

impl Ending {
    pub fn cost(&self) -> Micro {
        self.paid.plus(self.trial).plus(self.writeoff)
    }

    /// Returns the entry's kind. A response is a debit even if it cost nothing, provided that the
    /// client received it or that the vendor generated it for a client that disconnected.
    pub fn kind(&self) -> &'static str {
        match self.detail.outcome {
            RequestOutcome::Completed
            | RequestOutcome::ClientLeft
            | RequestOutcome::GatewayEnded
            | RequestOutcome::RefusedFree => "debit",
            RequestOutcome::VendorError
            | RequestOutcome::VendorCut
            | RequestOutcome::Interrupted => "void",
        }
    }
}

/// Last bytes of the detail of a late ending.
pub(crate) const LATE_SUFFIX: &str = ",\"late\":true}";

pub(crate) fn ending_detail(ending: &Ending) -> rusqlite::Result<String> {
    to_json(&ending.detail)
}
