//! The usage object that a client reads where the vendor's own one is not what is billed.
//!
//! It must not decide what is billed: `usage/metering.rs` does. A usage object that states what is
//! billed stays as it is.

use crate::protocol::Protocol;
use crate::protocol::chat::write_stream::write_usage as write_chat_usage;
use crate::protocol::messages::write_stream::write_usage as write_messages_usage;
use crate::protocol::responses::write_stream::ending::write as write_responses_usage;
use crate::protocol::text::Json;
use crate::usage::{MeteredUsage, MeteringTerms, Usage, UsageBounds, UsageVerdict, VendorCounters, meter};

/// What the answer used, as far as it is counted. Nothing is estimated.
pub(super) fn counted(counters: &VendorCounters, bounds: &UsageBounds) -> MeteredUsage {
    meter(counters, bounds, &Usage::default())
}

/// What the whole answer used; estimated where the vendor does not count.
pub(super) fn billed(counters: &VendorCounters, terms: &MeteringTerms, generated_bytes: u64) -> MeteredUsage {
    let learned = counted(counters, &terms.bounds).usage;
    meter(counters, &terms.bounds, &terms.estimator.usage(Some(learned), generated_bytes))
}

/// The usage object to put in the place of the one with these `counters`. `before`: the usage that
/// the client has read.
pub(super) fn restated(
    protocol: Protocol,
    counters: &VendorCounters,
    metered: &MeteredUsage,
    before: &Usage,
) -> Option<String> {
    let is_stated = metered.verdict != UsageVerdict::Estimated
        && match counters {
            VendorCounters::Chat(chat) => chat.states(&metered.usage),
            VendorCounters::Messages(messages) => messages.states(&metered.usage, before),
        };
    if is_stated {
        return None;
    }
    let mut json = Json::default();
    match protocol {
        Protocol::Chat => write_chat_usage(&metered.usage, &mut json),
        Protocol::Messages => write_messages_usage(&metered.usage, &mut json),
        Protocol::Responses => write_responses_usage(&metered.usage, &mut json),
    }
    String::from_utf8(json.into_bytes()).ok()
}
