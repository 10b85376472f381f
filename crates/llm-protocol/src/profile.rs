//! Defines the profile of a vendor's server, which lists the members that the server accepts and
//! refuses. `vendors.*.profile` in the config sets it, and the request writers and the passthrough
//! read it. `capabilities.rs` describes models.
//!
//! This file must not name a vendor, because the config assigns the profiles.

use crate::Protocol;
use crate::reasoning_token;
use crate::table_text::names_in;
use std::sync::{Arc, LazyLock};

/// The members that a server accepts beyond the base of its protocol, and those that it refuses.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VendorProfile {
    /// Names of members beyond the base that the server accepts in requests, messages, parts, calls
    /// and tools. The gateway adds no other member to a request.
    pub request: Vec<String>,
    /// Names of members that the server refuses, or that another vendor defined. The gateway
    /// removes them from passed-on requests, at any level; after `messages.`, from messages alone.
    pub drop: Vec<String>,
    /// True if the server refuses every member that is neither in the base nor in `request`.
    pub strict: bool,
    /// Paths, relative to a message or a call, of values that must return to the server unchanged
    /// (chat).
    pub state: Vec<String>,
    /// Paths of the usage, relative to an answer or a chunk, in addition to [`USAGE_PATHS`] (chat).
    /// A list on the path stands for each of its items.
    pub usage: Arc<[String]>,
    /// Members for the first call of a message that has no state of this vendor because another
    /// vendor made it. The text is the inside of a JSON object (chat).
    pub call_placeholder: Option<String>,
    /// Members for a message that has calls but no reasoning of this vendor. The text is the inside
    /// of a JSON object (chat).
    pub message_placeholder: Option<String>,
    /// True if, in a request with tools, messages without calls need their reasoning too (chat).
    pub state_in_answers: bool,
    /// Values of `service_tier` that the server accepts. If empty, all (chat).
    pub service_tiers: Vec<String>,
    /// True if the server's answers never show reasoning (chat).
    pub hides_thinking: bool,
    /// Parts of the server's error messages about a request that does not fit the model's context,
    /// in addition to those that the gateway knows.
    pub full_context: Vec<String>,
    /// True if the server never generates more than the output limit.
    pub honours_output_limit: bool,
    /// True if the server accepts an output limit of 0, which only fills the prompt cache
    /// (messages).
    pub prewarms_cache: bool,
    /// True if the server stores the items of its answers, and looks an item up by its id
    /// (responses).
    pub stores_items: bool,
    /// True if messages of the user and of the assistant must alternate (chat).
    pub alternates: bool,
    /// True if the id of a call must have at most 40 characters (chat).
    pub short_call_ids: bool,
    /// True if the server gets the preview flags that the client asks for (messages).
    pub takes_betas: bool,
    /// True if the server signs its thinking, and refuses thinking that it did not sign (messages).
    pub signs_thinking: bool,
    /// Name of the vendor, by which the gateway knows thinking that the server does not sign.
    pub maker: String,
    /// True if the calls in the server's chat answers need no repair.
    pub has_exact_calls: bool,
    /// True if the server reads the line in the instructions by which one client identifies itself
    /// for billing (messages).
    pub reads_billing_header: bool,
}

/// Names of members of chat requests, by their role.
const MEMBERS: &str = include_str!("profile.txt");

/// Members of a chat request that every server accepts.
const CHAT_REQUEST: [&str; 12] = names_in(MEMBERS, "request");
/// Members of a chat request or a call that every server accepts, but that a request can do
/// without.
const CHAT_OPTIONAL: [&str; 7] = names_in(MEMBERS, "optional");
/// Members of a messages request that every server accepts.
const MESSAGES_REQUEST: [&str; 10] = names_in(MEMBERS, "messages request");
/// Members without which a messages request is meaningless.
const MESSAGES_REQUIRED: [&str; 5] = names_in(MEMBERS, "messages required");
/// Members of a turn, a block, its source or a tool without which it is incomplete.
const MESSAGES_INNER: [&str; 14] = names_in(MEMBERS, "messages inner");
/// Other members of them that every messages server accepts or ignores.
const MESSAGES_PART: [&str; 3] = names_in(MEMBERS, "messages part");
/// Members of a chat message that every server accepts.
const CHAT_MESSAGE: [&str; 5] = ["role", "content", "name", "tool_calls", "tool_call_id"];
/// Members of a call in a chat message that every server accepts.
const CHAT_CALL: [&str; 4] = ["id", "type", "function", "index"];

/// Members of a part, a tool, a function, a schema or the usage without which a chat request is
/// incomplete.
const CHAT_INNER: [&str; 23] = names_in(MEMBERS, "inner");

/// Other members of them that every server accepts.
const CHAT_PART: [&str; 6] = names_in(MEMBERS, "part");

/// Other members of a chat request that change the bill, the stored data or the answer.
const CHAT_PRICED: [&str; 8] = names_in(MEMBERS, "priced");

/// Members in which a chat request carries reasoning, or asks for reasoning, in the format of some
/// vendor.
const CHAT_REASONING: [&str; 6] = names_in(MEMBERS, "reasoning");

/// Other members that some vendor added to the protocol. The reader of features finds these members
/// and those for reasoning.
const CHAT_FOREIGN: [&str; 3] = ["cache_control", "extra_content", "top_k"];

const SERVICE_TIER: &str = "service_tier";

/// Values of `service_tier` that ask for what a request without one gets.
pub(crate) const USUAL_TIERS: [&str; 3] = ["auto", "default", "standard_only"];

/// The member that marks a prompt for the cache of a messages vendor.
const CACHE_MARKER: &str = "cache_control";

/// Paths at which the gateway looks for the usage of every chat vendor.
pub const USAGE_PATHS: [&str; 3] = ["usage", "choices.usage", "x_groq.usage"];

/// The position of a member in a chat request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChatPlace {
    Request,
    Message,
    Call,
    /// A part of a message, a tool, or a tool's function.
    Inner,
}

static OFFICIAL_CHAT: LazyLock<VendorProfile> = LazyLock::new(|| VendorProfile {
    request: names(&[
        "detail",
        "include_obfuscation",
        "parallel_tool_calls",
        "phase",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "stream_options",
    ]),
    drop: [names(&CHAT_REASONING), names(&CHAT_FOREIGN)].concat(),
    honours_output_limit: true,
    has_exact_calls: true,
    stores_items: true,
    short_call_ids: true,
    ..VendorProfile::default()
});

static OFFICIAL_RESPONSES: LazyLock<VendorProfile> = LazyLock::new(|| VendorProfile {
    drop: Vec::new(),
    ..OFFICIAL_CHAT.clone()
});

static OFFICIAL_MESSAGES: LazyLock<VendorProfile> = LazyLock::new(|| VendorProfile {
    request: names(&[CACHE_MARKER, "display"]),
    honours_output_limit: true,
    prewarms_cache: true,
    signs_thinking: true,
    takes_betas: true,
    reads_billing_header: true,
    ..VendorProfile::default()
});

static COMPATIBLE: LazyLock<VendorProfile> = LazyLock::new(|| VendorProfile {
    request: names(&["stream_options"]),
    ..VendorProfile::default()
});

impl VendorProfile {
    /// Returns the profile of the vendor that defined the protocol.
    pub fn official(protocol: Protocol) -> &'static Self {
        match protocol {
            Protocol::Messages => &OFFICIAL_MESSAGES,
            Protocol::Chat => &OFFICIAL_CHAT,
            Protocol::Responses => &OFFICIAL_RESPONSES,
        }
    }

    /// Returns the profile of a server without a description, which gets the base of the protocol
    /// only.
    pub fn compatible() -> &'static Self {
        &COMPATIBLE
    }

    /// Returns whether the server accepts this member, which is not in the base.
    pub fn takes(&self, member: &str) -> bool {
        self.request.iter().any(|name| name == member)
    }

    /// Returns whether every server accepts this member of a chat message or of a call.
    pub fn is_in_base(member: &str) -> bool {
        CHAT_MESSAGE.contains(&member) || CHAT_CALL.contains(&member)
    }

    /// Returns whether this member of a chat message carries reasoning. State in other members
    /// belongs to a call.
    pub fn is_reasoning(member: &str) -> bool {
        CHAT_REASONING.contains(&member)
    }

    /// Returns the paths of `state` except the member in which the reasoning returns.
    pub(crate) fn state_beside(&self, replay: Option<&str>) -> Vec<String> {
        let is_other = |path: &&String| Some(outermost(path)) != replay;
        self.state.iter().filter(is_other).cloned().collect()
    }

    /// Returns the signature by which the gateway knows the server's thinking, if the server signs
    /// none (messages).
    pub fn maker_signature(&self) -> Option<String> {
        (!self.signs_thinking).then(|| reasoning_token::maker_signature(&self.maker))
    }

    /// Returns whether the server of a chat vendor refuses this value of `service_tier`.
    pub fn lacks_tier(&self, tier: &str) -> bool {
        let is_listed = self.service_tiers.iter().any(|listed| listed == tier);
        self.refuses(ChatPlace::Request, SERVICE_TIER)
            || !self.service_tiers.is_empty() && !is_listed
    }

    /// Returns whether the server caches marked prompts (messages).
    pub fn takes_cache_markers(&self) -> bool {
        self.takes(CACHE_MARKER)
    }

    /// Returns this profile without the members in which a chat request carries reasoning.
    pub(crate) fn without_reasoning(&self) -> Self {
        let is_kept = |name: &&String| !CHAT_REASONING.contains(&name.as_str());
        let mut without = self.clone();
        without.message_placeholder = None;
        without.request = self.request.iter().filter(is_kept).cloned().collect();
        without.drop.extend(names(&CHAT_REASONING));
        without
    }

    /// Returns whether a chat vendor never gets reasoning back.
    pub fn refuses_reasoning(&self) -> bool {
        CHAT_REASONING
            .iter()
            .all(|name| self.refuses(ChatPlace::Message, name))
    }

    /// Returns whether a chat request may have members that the server refuses, or lack a member
    /// that it requires. `has_foreign` says whether the request has a member that some vendor added
    /// to the protocol.
    pub(crate) fn cleans_chat(&self, has_foreign: bool) -> bool {
        let has_placeholder = self.call_placeholder.is_some() || self.message_placeholder.is_some();
        let is_foreign = |name: &&str| CHAT_REASONING.contains(name) || CHAT_FOREIGN.contains(name);
        let mut drop = self.drop.iter().map(String::as_str);
        self.strict
            || has_placeholder
            || !self.drop.is_empty() && has_foreign
            || !drop.all(|name| is_foreign(&name))
    }

    /// Returns whether a finished body may have members that the server refuses, beside those that
    /// were removed from a passed-on chat body.
    pub fn refuses_beyond_cleaning(&self, protocol: Protocol, is_translated: bool) -> bool {
        match protocol {
            Protocol::Chat => {
                let is_base = |name: &String| CHAT_REQUEST.contains(&name.as_str());
                is_translated && self.drop.iter().any(is_base)
            }
            Protocol::Messages => self.strict || !self.drop.is_empty(),
            Protocol::Responses => !self.drop.is_empty(),
        }
    }

    /// Returns whether the server refuses the member of a finished request: of the request itself,
    /// or at any other position.
    pub(crate) fn refuses_in(&self, protocol: Protocol, place: ChatPlace, member: &str) -> bool {
        let is_dropped = || self.drop.iter().any(|name| name == member) && !self.takes(member);
        match (protocol, place) {
            (Protocol::Chat, _) => is_dropped() && CHAT_REQUEST.contains(&member),
            (Protocol::Messages, ChatPlace::Request) => {
                is_dropped()
                    || self.strict && !self.takes(member) && !MESSAGES_REQUEST.contains(&member)
            }
            (Protocol::Messages, _) => {
                let is_base = MESSAGES_PART.contains(&member);
                let is_unknown = self.strict && !self.takes(member) && !is_base;
                (is_unknown || is_dropped()) && !MESSAGES_INNER.contains(&member)
            }
            (Protocol::Responses, _) => is_dropped(),
        }
    }

    /// Returns whether the server refuses the member of a chat request at this position.
    pub(crate) fn refuses(&self, place: ChatPlace, member: &str) -> bool {
        if self.takes(member) {
            return false;
        }
        let base: &[&str] = match place {
            ChatPlace::Request => &CHAT_REQUEST,
            ChatPlace::Message => &CHAT_MESSAGE,
            ChatPlace::Call => &CHAT_CALL,
            ChatPlace::Inner => &CHAT_INNER,
        };
        let is_it = |name: &String| {
            let of_message = name.strip_prefix("messages.");
            let of_message = of_message.filter(|_| place == ChatPlace::Message);
            of_message.unwrap_or(name) == member
        };
        let is_in_base =
            base.contains(&member) || place == ChatPlace::Inner && CHAT_PART.contains(&member);
        self.drop.iter().any(is_it) || self.strict && !is_in_base
    }
}

/// Returns whether a request of the protocol is meaningless without this member.
pub fn is_required(protocol: Protocol, member: &str) -> bool {
    match protocol {
        Protocol::Chat => {
            let is_base = CHAT_REQUEST.contains(&member) || VendorProfile::is_in_base(member);
            is_base && !CHAT_OPTIONAL.contains(&member) || CHAT_INNER.contains(&member)
        }
        Protocol::Messages => MESSAGES_REQUIRED.contains(&member),
        Protocol::Responses => ["model", "input", "tools"].contains(&member),
    }
}

/// Returns whether the gateway writes this member of a chat request itself. Members that switch
/// reasoning are not included.
pub fn is_written(member: &str) -> bool {
    member != "reasoning_effort" && CHAT_REQUEST.contains(&member)
        || OFFICIAL_CHAT.takes(member)
        || CHAT_PRICED.contains(&member)
}

/// Returns the name of the member at the beginning of a path.
pub fn outermost(path: &str) -> &str {
    path.split('.').next().unwrap_or_default()
}

fn names(members: &[&str]) -> Vec<String> {
    members.iter().map(|&name| name.to_owned()).collect()
}
