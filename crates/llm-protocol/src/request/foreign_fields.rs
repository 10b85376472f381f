//! Removes the remains of another vendor's answers from a conversation, because this vendor would
//! refuse them: reasoning that it did not sign, call ids in another format, unknown members.
//!
//! This module must not validate a request: the vendor refuses a body that cannot be parsed. Few
//! bodies need an edit, and the request summary shows whether the body must be read at all.
//!
//! Read next: `request/repair.rs` (what this model refuses, in the same pass),
//! `request/rewrite.rs`, which applies these edits together with its own.

use super::summary::RequestSummary;
use crate::Protocol;
use crate::capabilities::identifiers::{self, CallIdAllocator};
use crate::capabilities::repair_rules::RepairRules;
use crate::chat::write_request::DOCUMENT_URL;
use crate::fields::messages;
use crate::ir::JsonPath;
use crate::json::{
    JsonDocument, JsonStr, JsonValue, JsonWriter, MAX_DEPTH, NodeBuffer, edit::JsonEdit,
};
use crate::openai::billing_header;
use crate::profile::{ChatPlace, USUAL_TIERS, VendorProfile, outermost};
use crate::reasoning_token;
use remover::ForeignFieldRemover;
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};

pub(super) mod finished;
mod limits;
pub(super) mod remover;
mod responses;

pub use remover::RequestCleanup;
pub use responses::{PassthroughContext, clean_responses_request};

/// Computes the edits for `body` before the gateway sends it to a vendor of the same protocol. The
/// edits remove another vendor's remains, and the parts that the vendor (by its profile) or the
/// model (by `rules`) is known to refuse.
pub fn clean_request(
    protocol: Protocol,
    profile: &VendorProfile,
    body: &[u8],
    summary: &RequestSummary,
    rules: Option<&RepairRules<'_>>,
) -> RequestCleanup {
    if !needs_cleaning(protocol, profile, summary, rules) {
        return RequestCleanup::default();
    }
    let left = summary.features.leftovers;
    let is_clean = !has_foreign_parts(protocol, profile, summary);
    let rules = rules.filter(|rules| summary.needs_repair(rules));
    let Ok(text) = std::str::from_utf8(body) else {
        return RequestCleanup::default();
    };
    let Ok(tree) = JsonDocument::parse(text, MAX_DEPTH, NodeBuffer::new()) else {
        return RequestCleanup::default();
    };
    let mut remover = ForeignFieldRemover::new(text);
    if removes_account_members(protocol, summary) {
        remover.remove_members(tree.root(), "", account_members(protocol));
    }
    if has_advisors(protocol, summary) {
        remover.remove_advisors(tree.root());
    }
    if left.second_limits {
        remover.remove_duplicate_limits(tree.root(), protocol);
    }
    match protocol {
        Protocol::Messages if !is_clean => {
            let is_foreign = match profile.signs_thinking {
                true => is_unsigned_thinking,
                false => is_gateway_thinking,
            };
            remover.clean_messages(tree.root(), is_foreign);
            if !profile.reads_billing_header {
                remover.remove_billing_header(tree.root());
            }
        }
        Protocol::Chat if !is_clean => remover.clean_chat(tree.root(), profile),
        Protocol::Messages | Protocol::Chat | Protocol::Responses => {}
    }
    if let Some(rules) = rules {
        remover.repair(tree.root(), rules, false);
    }
    remover.finish()
}

/// Returns whether [`clean_request`] would have to read the body of a chat or messages request.
/// Responses bodies always need the edits of [`clean_responses_request`].
pub fn needs_cleaning(
    protocol: Protocol,
    profile: &VendorProfile,
    summary: &RequestSummary,
    rules: Option<&RepairRules<'_>>,
) -> bool {
    has_foreign_parts(protocol, profile, summary)
        || removes_account_members(protocol, summary)
        || has_advisors(protocol, summary)
        || summary.features.leftovers.second_limits
        || rules.is_some_and(|rules| summary.needs_repair(rules))
}

/// Returns whether the request has parts that this vendor refuses, because another vendor left them
/// or the profile excludes them.
fn has_foreign_parts(
    protocol: Protocol,
    profile: &VendorProfile,
    summary: &RequestSummary,
) -> bool {
    let left = summary.features.leftovers;
    match protocol {
        Protocol::Messages => {
            left.unsigned_thinking
                || left.odd_ids
                || left.billing_header && !profile.reads_billing_header
        }
        Protocol::Chat => {
            let features = &summary.features;
            let named = features.service_tier.map(|tier| tier.to_string());
            let tier = named.or(features.usual_tier.then(|| "default".to_owned()));
            profile.cleans_chat(left.members)
                || profile.short_call_ids && left.long_ids
                || tier.is_some_and(|tier| profile.lacks_tier(&tier))
        }
        Protocol::Responses => false,
    }
}

fn removes_account_members(protocol: Protocol, summary: &RequestSummary) -> bool {
    summary.features.leftovers.account_members && protocol != Protocol::Responses
}

fn has_advisors(protocol: Protocol, summary: &RequestSummary) -> bool {
    summary.features.leftovers.advisors && protocol == Protocol::Messages
}

/// Computes the edits that remove the reasoning of earlier turns, for a retry with the same
/// protocol. Another model made the reasoning, and this vendor may not be able to read it. Returns
/// `None` if the body has no such reasoning. For responses bodies see [`clean_responses_request`].
pub fn remove_reasoning(
    protocol: Protocol,
    profile: &VendorProfile,
    body: &[u8],
    rules: &RepairRules<'_>,
) -> Option<RequestCleanup> {
    let text = std::str::from_utf8(body).ok()?;
    let tree = JsonDocument::parse(text, MAX_DEPTH, NodeBuffer::new()).ok()?;
    let mut remover = ForeignFieldRemover::new(text);
    match protocol {
        Protocol::Messages if has_thinking(tree.root()) => {
            // A turn with thinking enabled must begin with a thinking block. The vendor refuses the
            // edit that clears thinking if thinking is off.
            remover.remove_members(tree.root(), "", &["thinking"]);
            remover.remove_thinking_edits(tree.root());
            remover.clean_messages(tree.root(), is_thinking);
        }
        Protocol::Chat => {
            remover.clean_chat(tree.root(), &profile.without_reasoning());
        }
        Protocol::Messages | Protocol::Responses => {}
    }
    if remover.warnings.is_empty() && !remover.drops_gateways_reasoning {
        return None;
    }
    remover.remove_members(tree.root(), "", account_members(protocol));
    remover.remove_duplicate_limits(tree.root(), protocol);
    remover.repair(tree.root(), rules, true);
    Some(remover.finish())
}

/// Type of the context edit by which the vendor clears thinking.
const CLEAR_THINKING_EDIT: &str = "clear_thinking_20251015";

/// Top-level members that concern the operator's account at the vendor and that do not affect the
/// answer, and so are removed. `store`, for example, would keep the answer at the vendor, where
/// nobody reads it.
fn account_members(protocol: Protocol) -> &'static [&'static str] {
    match protocol {
        Protocol::Chat => &["store"],
        Protocol::Messages => &["user_profile_id", "workspace_id", "diagnostics"],
        // The function `clean_responses_request` handles these members.
        Protocol::Responses => &[],
    }
}

/// Members of a message in which the gateway writes another vendor's reasoning.
const GATEWAY_REASONING_MEMBERS: [&str; 2] = ["reasoning_content", "reasoning_details"];

impl<'a> ForeignFieldRemover<'a> {
    fn clean_chat(&mut self, root: JsonValue<'a>, profile: &VendorProfile) {
        self.remove_refused(root, "", ChatPlace::Request, profile);
        if let Some(schema) = root.find(["response_format", "json_schema"]) {
            let at = "response_format.json_schema.";
            self.remove_refused(schema, at, ChatPlace::Inner, profile);
        }
        self.remove_unknown_tier(root, profile);
        let has_tools = root.items_of("tools").next().is_some();
        for (index, message) in root.items_of("messages").enumerate() {
            let at = format!("{}.", JsonPath::Message(index));
            if is_gateway_reasoning(message) {
                let refused = GATEWAY_REASONING_MEMBERS
                    .iter()
                    .filter(|name| profile.refuses(ChatPlace::Message, name));
                self.remove_members_silently(message, &refused.copied().collect::<Vec<_>>());
            }
            self.remove_refused(message, &at, ChatPlace::Message, profile);
            self.shorten_id(message.get("tool_call_id"), profile);
            for (part, value) in message.items_of("content").enumerate() {
                if profile.takes(DOCUMENT_URL) && self.rewrite_document(value) {
                    continue;
                }
                let at = format!("{}.", JsonPath::Part(index, part));
                self.remove_refused(value, &at, ChatPlace::Inner, profile);
            }
            for (call, value) in message.items_of("tool_calls").enumerate() {
                let at = format!("{}.", JsonPath::Call(index, call));
                self.remove_refused(value, &at, ChatPlace::Call, profile);
                if let Some(function) = value.get("function") {
                    let at = format!("{at}function.");
                    self.remove_refused(function, &at, ChatPlace::Inner, profile);
                }
                self.shorten_id(value.get("id"), profile);
            }
            self.add_call_placeholder(message, profile);
            self.add_message_placeholder(message, has_tools, profile);
        }
        for (index, tool) in root.items_of("tools").enumerate() {
            let at = format!("{}.", JsonPath::Tool(index));
            self.remove_refused(tool, &at, ChatPlace::Inner, profile);
            if let Some(function) = tool.get("function") {
                let at = format!("{at}function.");
                self.remove_refused(function, &at, ChatPlace::Inner, profile);
            }
        }
    }

    /// Removes a service tier that the vendor does not have.
    fn remove_unknown_tier(&mut self, root: JsonValue<'a>, profile: &VendorProfile) {
        let Some(tier) = root.string_of("service_tier") else {
            return;
        };
        let is_refused = profile.refuses(ChatPlace::Request, "service_tier");
        if is_refused || !profile.lacks_tier(&tier) {
            return;
        }
        if !USUAL_TIERS.contains(&&*tier) {
            self.warnings.dropped("service_tier");
        }
        self.drop_member(root, "service_tier");
    }

    /// Adds the placeholder for the vendor's state to the first call of a message that has no such
    /// state because another vendor made it.
    fn add_call_placeholder(&mut self, message: JsonValue<'a>, profile: &VendorProfile) {
        let Some(placeholder) = &profile.call_placeholder else {
            return;
        };
        // Members for reasoning do not count as state, because any vendor may have them.
        let paths = profile.state.iter();
        let paths = paths.filter(|path| !VendorProfile::is_reasoning(outermost(path)));
        let paths: Vec<_> = paths.collect();
        let is_filled = |object: JsonValue<'_>| {
            let values = paths.iter();
            let mut values =
                values.filter_map(|path| path.split('.').try_fold(object, JsonValue::get));
            values.any(|value| !value.is_null() && !value.is(""))
        };
        if is_filled(message) || message.items_of("tool_calls").any(is_filled) {
            return;
        }
        if let Some(call) = message.items_of("tool_calls").find(|call| call.is_object()) {
            // State that is empty is none.
            for path in paths {
                self.drop_member(call, outermost(path));
            }
            self.insert_inside(call, placeholder.clone());
        }
    }

    /// Adds the placeholder for the vendor's state to a message that needs it and has no state.
    fn add_message_placeholder(
        &mut self,
        message: JsonValue<'a>,
        has_tools: bool,
        profile: &VendorProfile,
    ) {
        let Some(placeholder) = &profile.message_placeholder else {
            return;
        };
        let is_own = has_state(message, profile);
        let is_answer = message.member_is("role", "assistant");
        let is_due = message.items_of("tool_calls").next().is_some()
            || is_answer && has_tools && profile.state_in_answers;
        if !is_due || is_own {
            return;
        }
        // Clients return reasoning, but many lose a member that only this vendor has.
        let place = profile.state.first().map(|path| outermost(path));
        if let Some(member) = place.filter(|member| !VendorProfile::is_reasoning(member)) {
            self.warnings.inserted(format_args!("messages.{member}"));
        }
        self.insert_inside(message, placeholder.clone());
    }

    /// Removes the members that the server refuses at this position. A member that is null or has
    /// no effect needs no warning.
    fn remove_refused(
        &mut self,
        object: JsonValue<'a>,
        path: &str,
        place: ChatPlace,
        profile: &VendorProfile,
    ) {
        for (key, value) in object.members() {
            let name = key.value();
            let span = self.member_span(&key, value);
            // A member of this name may be accepted at another position.
            let is_empty = profile.strict
                && place == ChatPlace::Message
                && value.is_null()
                && !VendorProfile::is_in_base(&name);
            let is_refused = is_empty || profile.refuses(place, &name);
            // A member that was removed before needs no second warning.
            if !is_refused || self.gone.contains(&span) {
                continue;
            }
            if !asks_nothing(place, &name, value) {
                self.warnings.dropped(format_args!("{path}{name}"));
            }
            self.gone.push(span);
        }
    }

    /// Gives a document the form of servers that take it by its URL. Returns whether it did.
    fn rewrite_document(&mut self, part: JsonValue<'a>) -> bool {
        let file = part.get("file").filter(|_| part.member_is("type", "file"));
        let data = file.and_then(|file| file.filled_text("file_data"));
        let Some(data) = data.filter(|data| data.value().starts_with("data:")) else {
            return false;
        };
        let mut json = JsonWriter::default();
        json.open_typed(DOCUMENT_URL).member(DOCUMENT_URL, data);
        let name = file.and_then(|file| file.filled_text("filename"));
        json.member_if_some("document_name", name.as_ref());
        json.close_object();
        self.edits
            .push(JsonEdit::new(self.span(part.raw()), json.into_string()));
        true
    }

    /// Removes the tools that ask a second model. If no tool is left, the tool choice is removed
    /// too, because the vendor would refuse it.
    fn remove_advisors(&mut self, root: JsonValue<'a>) {
        let is_advisor = |tool: JsonValue<'a>| {
            let kind = tool.string_of("type");
            kind.is_some_and(|kind| messages::is_advisor(&kind))
        };
        let tools = || root.items_of("tools").enumerate();
        for (index, _) in tools().filter(|(_, tool)| is_advisor(*tool)) {
            self.warnings.dropped(JsonPath::Tool(index));
        }
        if tools().all(|(_, tool)| is_advisor(tool)) {
            self.remove_members_silently(root, &["tools", "tool_choice"]);
        } else {
            for (_, tool) in tools().filter(|(_, tool)| is_advisor(*tool)) {
                self.remove_value(tool);
            }
        }
        self.is_repaired = true;
    }

    fn shorten_id(&mut self, id: Option<JsonValue<'a>>, profile: &VendorProfile) {
        let id = id.filter(|_| profile.short_call_ids);
        let Some((node, id)) = id.and_then(|id| Some((id, id.string()?))) else {
            return;
        };
        let short = identifiers::chat_call_id(Cow::Borrowed(&id));
        if short != id {
            self.replace_string(node, &short);
        }
    }

    /// Removes the billing line, which differs in each request, from the start of the instructions.
    fn remove_billing_header(&mut self, root: JsonValue<'a>) {
        let Some(system) = root.get("system") else {
            return;
        };
        if let Some(rest) = billing_header::without_header_json(system.raw()) {
            self.edits
                .push(JsonEdit::new(self.span(system.raw()), rest));
            return;
        }
        // The instructions are a string without the billing line.
        if !system.is_array() {
            return;
        }
        let (mut empty, mut is_empty_whole) = (Vec::new(), true);
        for block in system.items() {
            let text = block.get("text");
            let rest = text.and_then(|text| billing_header::without_header_json(text.raw()));
            // Servers refuse an empty text, so remove the whole block.
            let is_empty = rest.as_ref().is_some_and(|rest| rest == "\"\"");
            if let (Some(text), Some(rest), false) = (text, rest, is_empty) {
                self.edits.push(JsonEdit::new(self.span(text.raw()), rest));
            }
            is_empty_whole &= is_empty;
            empty.extend(is_empty.then_some(block));
        }
        if is_empty_whole {
            self.remove_members_silently(root, &["system"]);
        } else {
            empty.into_iter().for_each(|block| self.remove_value(block));
        }
    }

    /// Removes the context edits that clear thinking.
    pub(super) fn remove_thinking_edits(&mut self, root: JsonValue<'a>) {
        let edits = root.find(["context_management", "edits"]).into_iter();
        let (of_thinking, others): (Vec<_>, Vec<_>) = edits
            .flat_map(JsonValue::items)
            .partition(|edit| edit.member_is("type", CLEAR_THINKING_EDIT));
        if of_thinking.is_empty() {
            return;
        }
        if others.is_empty() {
            return self.remove_members(root, "", &["context_management"]);
        }
        self.warnings.dropped("context_management.edits");
        of_thinking
            .into_iter()
            .for_each(|edit| self.remove_value(edit));
    }

    /// Cleans the messages. `goes` selects the assistant's blocks to remove.
    fn clean_messages(&mut self, root: JsonValue<'a>, goes: fn(JsonValue<'_>) -> bool) {
        let mut calls = CallIdMap::default();
        for (index, message) in root.items_of("messages").enumerate() {
            let is_assistant = message.member_is("role", "assistant");
            let blocks = || message.items_of("content");
            let goes = |block: &JsonValue<'_>| is_assistant && goes(*block);
            let is_lost = |block: &JsonValue<'_>| goes(block) && !is_gateway_thinking(*block);
            for (part, _) in blocks().enumerate().filter(|(_, block)| is_lost(block)) {
                self.warnings.dropped(JsonPath::Part(index, part));
            }
            self.drops_gateways_reasoning |=
                blocks().any(|block| goes(&block) && is_gateway_thinking(block));
            let is_left_empty = blocks().next().is_some() && blocks().all(|block| goes(&block));
            if is_left_empty {
                self.remove_value(message);
            } else {
                blocks()
                    .filter(goes)
                    .for_each(|block| self.remove_value(block));
            }
            for block in blocks() {
                self.fix_call_id(block, index, &mut calls);
            }
        }
    }

    /// Replaces the id of a call or of its result if the vendor would refuse it.
    fn fix_call_id(&mut self, block: JsonValue<'a>, message: usize, calls: &mut CallIdMap<'a>) {
        let kind = block.get("type");
        let is = |expected: &str| kind.is_some_and(|kind| kind.is(expected));
        let safe = if is("tool_use") {
            block
                .get("id")
                .and_then(|id| Some((id, calls.map_call_id(id.text()?, message)?)))
        } else if is("tool_result") {
            block
                .get("tool_use_id")
                .and_then(|id| Some((id, calls.map_result_id(id.text()?)?)))
        } else {
            None
        };
        if let Some((node, safe)) = safe {
            self.replace_string(node, &safe);
        }
    }
}

/// Returns whether the message or one of its calls has a member of the vendor's state.
fn has_state(message: JsonValue<'_>, profile: &VendorProfile) -> bool {
    let holds = |object: JsonValue<'_>| {
        let names = profile.state.iter().map(|path| outermost(path));
        let mut values = names.filter_map(|name| object.get(name));
        values.any(|value| !value.is_null())
    };
    holds(message) || message.items_of("tool_calls").any(holds)
}

/// Returns whether removing the member loses nothing, because it is null or empty, or because the
/// vendor behaves that way by default.
fn asks_nothing(place: ChatPlace, name: &str, value: JsonValue<'_>) -> bool {
    let is_empty = value.is_null()
        || value.is_array() && value.items().next().is_none()
        || value.text().is_some_and(|text| text.is_empty());
    // A vendor without this member reports the usage in the last chunk of every stream.
    let is_usage = place == ChatPlace::Request
        && name == "stream_options"
        && value.members().all(|(key, _)| key.is("include_usage"));
    let is_auto = value.is("auto")
        || value.member_is("type", "auto") && value.members().all(|(key, _)| key.is("type"));
    // The place of a call among the events of a stream.
    let is_place = place == ChatPlace::Call && name == "index";
    is_empty || is_usage || is_place || name == "tool_choice" && is_auto
}

/// Returns whether no messages vendor can have signed the thinking block.
fn is_unsigned_thinking(block: JsonValue<'_>) -> bool {
    let is_shown = block.member_is("type", "thinking");
    !is_shown && is_gateway_thinking(block)
        || is_shown
            && block
                .text_of("signature")
                .is_none_or(|signature| !reasoning_token::is_vendor_signature(&signature.value()))
}

/// Returns whether the gateway signed the block. The caller then loses none of its own data.
fn is_gateway_thinking(block: JsonValue<'_>) -> bool {
    let kind = block.get("type");
    let is = |expected: &str| kind.is_some_and(|kind| kind.is(expected));
    let token = match is("redacted_thinking") {
        true => block.get("data"),
        false => block.get("signature").filter(|_| is("thinking")),
    };
    token
        .and_then(JsonValue::text)
        .is_some_and(|token| token.value().starts_with(reasoning_token::TOKEN_PREFIX))
}

/// Returns whether the gateway wrote the message's `reasoning_details`. In that case each entry has
/// an anchor in the answer.
fn is_gateway_reasoning(message: JsonValue<'_>) -> bool {
    let details = || message.items_of("reasoning_details");
    details().next().is_some() && details().all(|entry| entry.get("anchor").is_some())
}

/// Returns whether the block is reasoning, with any signature.
fn is_thinking(block: JsonValue<'_>) -> bool {
    block
        .get("type")
        .is_some_and(|kind| kind.is("thinking") || kind.is("redacted_thinking"))
}

fn has_thinking(root: JsonValue<'_>) -> bool {
    let mut messages = root.items_of("messages");
    messages.any(|message| message.items_of("content").any(is_thinking))
}

/// The call ids so far. Valid ids count too, so that a generated id is unique.
#[derive(Default)]
struct CallIdMap<'a> {
    ids: CallIdAllocator,
    /// The entries are keyed by invalid id: the message that used the id last, and the new ids of
    /// its calls in that message.
    unfit: HashMap<Cow<'a, str>, (usize, VecDeque<String>)>,
}

impl<'a> CallIdMap<'a> {
    /// Returns a replacement for the id of a call, or `None` if the id is valid.
    fn map_call_id(&mut self, id: JsonStr<'a>, message: usize) -> Option<String> {
        let safe = self.ids.allocate(Some(&id));
        let id = id.into_value();
        if identifiers::is_plain_name(&id) {
            return None;
        }
        let (last, open) = self.unfit.entry(id).or_default();
        if *last != message {
            open.clear();
            *last = message;
        }
        open.push_back(safe.clone());
        Some(safe)
    }

    /// Returns the replacement for the id of a result, or `None` if the id is valid. Results of
    /// several calls with one id are matched in order.
    fn map_result_id(&mut self, id: JsonStr<'a>) -> Option<String> {
        let id = id.into_value();
        if identifiers::is_plain_name(&id) {
            return None;
        }
        match self.unfit.get_mut(&id) {
            Some((_, open)) if open.len() > 1 => open.pop_front(),
            Some((_, open)) => open.front().cloned(),
            None => Some(identifiers::messages_call_id(id).into_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::ModelCapabilities;
    use crate::capabilities::repair_rules::KnownCapabilities;
    use crate::json::edit;
    use crate::request::rewrite;
    use crate::request::{RequestEdits, read_summary, rewrite_cleaned};
    use bytes::Bytes;
    use proptest::prelude::*;
    use serde_json::{Value as Any, json};

    /// Reads the summary of the body; adds a model if the body has none.
    fn summary(protocol: Protocol, body: &str) -> RequestSummary {
        let model = if body.contains("\"model\"") {
            "{"
        } else {
            "{\"model\":\"m\","
        };
        read_summary(protocol, body.replacen('{', model, 1).as_bytes()).unwrap()
    }

    fn is_clean(protocol: Protocol, body: &str) -> bool {
        let left = summary(protocol, body).features.leftovers;
        match protocol {
            Protocol::Messages => !left.unsigned_thinking && !left.odd_ids,
            Protocol::Chat => !left.members && !left.long_ids,
            Protocol::Responses => true,
        }
    }

    fn stripped(protocol: Protocol, body: &str) -> (String, Vec<String>) {
        let RequestCleanup {
            edits, warnings, ..
        } = clean_request(
            protocol,
            VendorProfile::official(protocol),
            body.as_bytes(),
            &summary(protocol, body),
            None,
        );
        let mut splices = edits;
        let mut out = Vec::new();
        edit::apply_edits(body.as_bytes(), &mut splices, &mut out);
        (String::from_utf8(out).unwrap(), warnings)
    }

    fn check(protocol: Protocol, body: &str, expected: &str, warnings: &[&str]) {
        let (found, reported) = stripped(protocol, body);
        assert_eq!(found, expected);
        assert_eq!(reported, warnings);
        assert_eq!(
            stripped(protocol, expected),
            (expected.to_owned(), Vec::new()),
            "again"
        );
    }

    #[test]
    fn what_clears_thoughts_goes_with_them_and_other_edits_stay() {
        let turn = r#""messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"a","signature":"x"},{"type":"text","text":"b"}]}]"#;
        let left = r#""messages":[{"role":"assistant","content":[{"type":"text","text":"b"}]}]"#;
        let (clears, uses) = (
            r#"{"type":"clear_thinking_20251015","keep":"all"}"#,
            r#"{"type":"clear_tool_uses_20250919"}"#,
        );
        let of = |edits: &str, rest: &str| {
            format!(r#"{{"context_management":{{"edits":[{edits}]}},{rest}}}"#)
        };
        for (body, expected, reported) in [
            (
                of(clears, turn),
                format!("{{{left}}}"),
                "dropped:context_management",
            ),
            (
                of(&format!("{clears},{uses}"), turn),
                of(uses, left),
                "dropped:context_management.edits",
            ),
            (
                of(uses, turn),
                of(uses, left),
                "dropped:messages[0].content[0]",
            ),
        ] {
            let accepts = ModelCapabilities::Messages(Default::default());
            let none = RepairRules::in_test(&accepts, KnownCapabilities::NONE);
            let RequestCleanup {
                edits, warnings, ..
            } = remove_reasoning(
                Protocol::Messages,
                VendorProfile::official(Protocol::Messages),
                body.as_bytes(),
                &none,
            )
            .unwrap();
            let mut splices = edits;
            let mut out = Vec::new();
            edit::apply_edits(body.as_bytes(), &mut splices, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
            assert!(
                warnings.iter().any(|warning| warning == reported),
                "{warnings:?}"
            );
        }
    }

    #[test]
    fn reasoning_that_the_gateway_put_into_the_history_goes_without_a_warning() {
        let ours = r#"{"type":"reasoning.text","text":"a","signature":"EqQB","format":"anthropic-claude-v1","anchor":"0:0"}"#;
        let theirs = r#"{"type":"reasoning.text","text":"a"}"#;
        let body = |details: &str| {
            format!(
                r#"{{"messages":[{{"role":"assistant","reasoning_content":"a","reasoning_details":[{details}],"content":"b"}}]}}"#
            )
        };
        let left = r#"{"messages":[{"role":"assistant","content":"b"}]}"#;
        check(Protocol::Chat, &body(ours), left, &[]);
        let warnings = [
            "dropped:messages[0].reasoning_content",
            "dropped:messages[0].reasoning_details",
        ];
        check(Protocol::Chat, &body(theirs), left, &warnings);
        check(
            Protocol::Chat,
            &body(&format!("{ours},{theirs}")),
            left,
            &warnings,
        );
        // A vendor that refuses it gets a second attempt without it.
        let accepts = ModelCapabilities::Chat(Default::default());
        let rules = RepairRules::in_test(&accepts, KnownCapabilities::NONE);
        let stripped = remove_reasoning(
            Protocol::Chat,
            VendorProfile::compatible(),
            body(ours).as_bytes(),
            &rules,
        )
        .unwrap();
        assert!(!stripped.edits.is_empty() && stripped.warnings.is_empty());
        assert!(
            remove_reasoning(
                Protocol::Chat,
                VendorProfile::compatible(),
                left.as_bytes(),
                &rules
            )
            .is_none()
        );
    }

    #[test]
    fn nothing_is_kept_in_or_read_from_the_operators_account() {
        let chat = r#"{"store":true,"messages":[{"role":"user","content":"store"}]}"#;
        check(
            Protocol::Chat,
            chat,
            r#"{"messages":[{"role":"user","content":"store"}]}"#,
            &["dropped:store"],
        );
        check(
            Protocol::Messages,
            r#"{"diagnostics":{"previous_message_id":"m"}, "user_profile_id":"u","messages":[],"workspace_id":"w"}"#,
            r#"{"messages":[]}"#,
            &[
                "dropped:diagnostics",
                "dropped:user_profile_id",
                "dropped:workspace_id",
            ],
        );
        for (protocol, body) in [
            (Protocol::Chat, r#"{"store":false,"messages":[]}"#),
            (
                Protocol::Chat,
                r#"{"store":null,"metadata":{"store":true},"messages":[]}"#,
            ),
            (Protocol::Messages, r#"{"diagnostics":null,"messages":[]}"#),
        ] {
            check(protocol, body, body, &[]);
        }
    }

    #[test]
    fn a_request_that_another_organization_pays_for_is_refused() {
        let read = |policy: &str| {
            let body = format!(r#"{{"model":"m","messages":[],"max_tokens":1,{policy}}}"#);
            read_summary(Protocol::Messages, body.as_bytes())
        };
        let refused = crate::failure::Failure::invalid_param(
            Protocol::Messages,
            "billing_policy.bill_to",
            "Input should be 'self'",
        );
        for payer in ["\"user_profile\"", "\"a_new_one\"", "7"] {
            let policy =
                format!(r#""billing_policy":{{"bill_to":{payer},"type":"billing_policy"}}"#);
            assert_eq!(read(&policy).unwrap_err(), refused, "{payer}");
        }
        for own in [
            r#""billing_policy":{"type":"billing_policy","bill_to":"self"}"#,
            r#""billing_policy":{"bill_to":null}"#,
            r#""billing_policy":null"#,
        ] {
            assert!(read(own).is_ok(), "{own}");
        }
    }

    #[test]
    fn a_tool_that_asks_a_second_model_is_dropped_and_the_others_stay() {
        let advisor = r#"{"type":"advisor_20260301","name":"advisor"}"#;
        let own = r#"{"name":"f","input_schema":{}}"#;
        let body = |members: &str| format!(r#"{{"messages":[]{members}}}"#);
        for (tools, left, dropped) in [
            (format!("{own},{advisor}"), Some(own), "dropped:tools[1]"),
            (format!("{advisor},{own}"), Some(own), "dropped:tools[0]"),
            (advisor.to_owned(), None, "dropped:tools[0]"),
            (
                advisor.replace("20260301", "20270101"),
                None,
                "dropped:tools[0]",
            ),
        ] {
            let choice = r#","tool_choice":{"type":"auto"}"#;
            let sent = body(&format!(r#","tools":[{tools}]{choice}"#));
            let expected = left.map(|tool| format!(r#","tools":[{tool}]{choice}"#));
            let expected = body(&expected.unwrap_or_default());
            check(Protocol::Messages, &sent, &expected, &[dropped]);
        }
        let named = body(r#","tools":[{"name":"advisor_20260301","input_schema":{}}]"#);
        check(Protocol::Messages, &named, &named, &[]);
    }

    #[test]
    fn output_limits_by_another_name_are_dropped() {
        let limits = r#"{"n_predict":-1,"max_tokens":7,"messages":[],"maxNewTokens":9,"best_of":null,"max_output_tokens":9}"#;
        let reported = [
            "dropped:max_new_tokens",
            "dropped:max_output_tokens",
            "dropped:n_predict",
        ];
        check(
            Protocol::Chat,
            limits,
            r#"{"max_tokens":7,"messages":[]}"#,
            &reported,
        );
        check(
            Protocol::Messages,
            limits,
            r#"{"max_tokens":7,"messages":[]}"#,
            &reported,
        );
        check(
            Protocol::Chat,
            r#"{"options":{"num_predict":9,"num_ctx":5},"extra_body":{"max_tokens":9,"google":{"thinking_config":{"include_thoughts":true},"generationConfig":[{"maxOutputTokens":9}]},"n":4,"parameters":{"best\u005fof":3}},"messages":[]}"#,
            r#"{"options":{"num_ctx":5},"extra_body":{"google":{"thinking_config":{"include_thoughts":true},"generationConfig":[{}]},"parameters":{}},"messages":[]}"#,
            &[
                "dropped:extra_body.best_of",
                "dropped:extra_body.max_output_tokens",
                "dropped:extra_body.max_tokens",
                "dropped:extra_body.n",
                "dropped:options.num_predict",
            ],
        );
        // In a schema and in a tool's arguments it is data. The surface's own limits remain.
        for body in [
            r#"{"max_tokens":7,"max_completion_tokens":7,"n":2,"messages":[]}"#,
            r#"{"extra_body":{"guided_decoding":{"json_schema":{"max_length":5}},"metadata":{"n":1}},"messages":[]}"#,
            r#"{"response_format":{"json_schema":{"schema":{"max_length":5}}},"messages":[{"role":"user","max_length":1}]}"#,
        ] {
            check(Protocol::Chat, body, body, &[]);
        }
    }

    #[test]
    fn unsigned_reasoning_goes_and_signed_stays() {
        check(
            Protocol::Messages,
            r#"{"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"a","signature":"gw1.x"}, {"type":"text","text":"b"},{"type":"thinking","thinking":"c"}]}]}"#,
            r#"{"messages":[{"role":"assistant","content":[{"type":"text","text":"b"}]}]}"#,
            // The first block is the gateway's own.
            &["dropped:messages[0].content[2]"],
        );
        check(
            Protocol::Messages,
            r#"{"messages":[{"role":"user","content":"x"}, {"content":[{"signature":"","thinking":"a","type":"thinking"}],"role":"assistant"},{"role":"user","content":"y"}]}"#,
            r#"{"messages":[{"role":"user","content":"x"},{"role":"user","content":"y"}]}"#,
            &["dropped:messages[1].content[0]"],
        );
        for signed in [
            r#"{"thinking":{"type":"adaptive"},"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"\"a\"","signature":"EqQB"}]}]}"#,
            r#"{"messages":[{"role":"assistant","content":[{"signature":"EqQB","thinking":"","type":"thinking"}]}]}"#,
            r#"{"messages":[{"role":"assistant","content":[{"type":"redacted_thinking","data":"EmwK"}]},{"role":"user","content":"\"type\":\"thinking\""}]}"#,
        ] {
            assert!(is_clean(Protocol::Messages, signed), "{signed}");
            check(Protocol::Messages, signed, signed, &[]);
        }
        let in_doubt = r#"{"messages":[{"role":"assistant","content":[{"type":"thinking","signature":"a\/b","thinking":"c"}]},{"role":"user","content":[{"type":"thinking","thinking":"mine"}]}]}"#;
        check(Protocol::Messages, in_doubt, in_doubt, &[]);
    }

    #[test]
    fn ids_that_a_messages_vendor_refuses_are_replaced_on_both_sides() {
        let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "bash", "input": {"id": "a.b"}});
        let result = |id: &str| json!({"type": "tool_result", "tool_use_id": id, "content": "ok"});
        let body = |ids: [&str; 5]| {
            let [first, second, third, fourth, fifth] = ids;
            let messages = json!([
                {"role": "assistant", "content": [call(first), call(second)]},
                {"role": "user", "content": [result(first), result(second)]},
                {"role": "assistant", "content": [call(third), call(fourth), call(fifth)]},
                {"role": "user", "content": [result(third), result(fourth), result(fifth)]}
            ]);
            json!({ "messages": messages }).to_string()
        };
        let bash = identifiers::messages_call_id("functions.Bash:0".into()).into_owned();
        let rewritten_id = format!("{bash}__2");
        let input = body([
            "functions.Bash:0",
            "toolu_01A09q90qw90lq917835lq9",
            "functions.Bash:0",
            "",
            "b",
        ]);
        let expected = body([
            &bash,
            "toolu_01A09q90qw90lq917835lq9",
            &rewritten_id,
            "call_3",
            "b",
        ]);
        check(Protocol::Messages, &input, &expected, &[]);
        let escaped = body(["a/b", "c", "d", "e", "f"]);
        let slashes = escaped.replace("a/b", r"a\/b");
        let safe = identifiers::messages_call_id("a/b".into()).into_owned();
        check(
            Protocol::Messages,
            &slashes,
            &escaped.replace("a/b", &safe),
            &[],
        );
        let (twice, _) = stripped(Protocol::Messages, &body(["a.a", "a.a", "b", "c", "d"]));
        let made = identifiers::messages_call_id("a.a".into()).into_owned();
        assert_eq!(twice, body([&made, &format!("{made}__2"), "b", "c", "d"]));
    }

    #[test]
    fn chats_own_vendor_gets_no_member_that_it_does_not_know() {
        let long = "toolu_".repeat(7);
        let short = identifiers::chat_call_id(Cow::Borrowed(&long)).into_owned();
        check(
            Protocol::Chat,
            &format!(
                r#"{{"reasoning": {{"effort":"low"}}, "top_k":null,"model":"m","messages":[{{"role":"assistant","content":[{{"type":"text","text":"\"thinking\"","cache_control":{{"type":"ephemeral"}}}}],"reasoning_content":null,"reasoning_details":[],"tool_calls":[{{"id":"{long}","cache_control":{{}}}}],"thinking_blocks":[1]}},{{"role":"tool","tool_call_id":"{long}"}}],"tools":[{{"function":{{"cache_control":{{}}}},"cache_control":{{}}}}],"thinking":{{}}}}"#
            ),
            &format!(
                r#"{{"model":"m","messages":[{{"role":"assistant","content":[{{"type":"text","text":"\"thinking\""}}],"tool_calls":[{{"id":"{short}"}}]}},{{"role":"tool","tool_call_id":"{short}"}}],"tools":[{{"function":{{}}}}]}}"#
            ),
            &[
                "dropped:messages[0].content[0].cache_control",
                "dropped:messages[0].thinking_blocks",
                "dropped:messages[0].tool_calls[0].cache_control",
                "dropped:reasoning",
                "dropped:thinking",
                "dropped:tools[0].cache_control",
                "dropped:tools[0].function.cache_control",
            ],
        );
        let usual = r#"{"reasoning_effort":"low","messages":[{"role":"tool","tool_call_id":"call_1","content":"\"top_k\""}]}"#;
        assert!(is_clean(Protocol::Chat, usual));
        let foreign = r#"{"thinking":{},"messages":[]}"#;
        let other = clean_request(
            Protocol::Chat,
            VendorProfile::compatible(),
            foreign.as_bytes(),
            &summary(Protocol::Chat, foreign),
            None,
        );
        assert!(other.edits.is_empty() && other.warnings.is_empty());
    }

    #[test]
    fn instructions_without_a_billing_header_stay_when_other_parts_go() {
        let body = r#"{"system":"Be brief.","messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"a","signature":"gw1.x"},{"type":"text","text":"b"}]}]}"#;
        let cleanup = clean_request(
            Protocol::Messages,
            VendorProfile::compatible(),
            body.as_bytes(),
            &summary(Protocol::Messages, body),
            None,
        );
        let cleaned = rewrite::apply_cleanup(&Bytes::from_static(body.as_bytes()), cleanup);
        assert_eq!(
            cleaned,
            &br#"{"system":"Be brief.","messages":[{"role":"assistant","content":[{"type":"text","text":"b"}]}]}"#[..]
        );
    }

    #[test]
    fn what_goes_and_what_is_put_in_do_not_meet() {
        let body =
            Bytes::from_static(br#"{"thinking":{"type":"adaptive"},"model":"m","messages":[]}"#);
        let summary = read_summary(Protocol::Chat, &body).unwrap();
        let edits = RequestEdits {
            model: "up",
            output_limit: Some(7),
            output_limit_field: "max_completion_tokens",
            thinking_budget: None,
            include_usage: false,
        };
        let found = rewrite_cleaned(
            &body,
            &summary,
            &edits,
            clean_request(
                Protocol::Chat,
                VendorProfile::official(Protocol::Chat),
                &body,
                &summary,
                None,
            ),
        );
        assert_eq!(
            found,
            &br#"{"max_completion_tokens":7,"model":"up","messages":[]}"#[..]
        );
    }

    #[test]
    fn what_cannot_be_read_is_left() {
        let of_another = summary(
            Protocol::Messages,
            r#"{"messages":[{"content":[{"type":"thinking"}]}]}"#,
        );
        assert!(of_another.features.leftovers.unsigned_thinking);
        for body in [
            &b""[..],
            b"[1",
            br#"{"messages":7,"thinking":1}"#,
            br#"{"messages":[null,[]]}"#,
            b"\"\xff",
        ] {
            assert!(
                clean_request(
                    Protocol::Messages,
                    VendorProfile::official(Protocol::Messages),
                    body,
                    &of_another,
                    None
                )
                .edits
                .is_empty()
            );
        }
    }

    /// Generates a block of an assistant's turn, as a client may write it.
    fn blocks() -> impl Strategy<Value = String> {
        let words = vec![
            r#"{"type":"thinking","thinking":"a \"thinking\"","signature":"Eq+/"}"#,
            r#"{"signature": "Eq", "thinking": "", "type": "thinking" }"#,
            r#"{"type":"thinking","signature":"Eq","thinking":"a"}"#,
            r#"{"type":"thinking","thinking":"a","signature":"gw1."}"#,
            r#"{"type":"thinking","thinking":"a","signature":""}"#,
            r#"{"type":"thinking","thinking":"a","signature":null}"#,
            r#"{"type":"thinking","thinking":"a"}"#,
            r#"{"thinking":"a","type":"thinking"}"#,
            r#"{"signature":"gw1.","thinking":"a","type":"thinking"}"#,
            r#"{"type":"tool_use","id":"a.b","name":"x","input":{"signature":"Eq","thinking":"b"}}"#,
            r#"{"type":"tool_use","id":"ab","name":"x","input":{"type":"thinking"}}"#,
            r#"{"type":"text","text":"\"type\":\"thinking\",\"signature\":\"\""}"#,
        ];
        proptest::sample::select(words).prop_map(str::to_owned)
    }

    proptest! {
        #[test]
        fn after_it_nothing_is_left_to_do(turns in prop::collection::vec(prop::collection::vec(blocks(), 0..5), 0..4)) {
            let turn = |blocks: &Vec<String>| format!(r#"{{"role":"assistant","content":[{}]}}"#, blocks.join(" , "));
            let turns: Vec<String> = turns.iter().map(turn).collect();
            let result = r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"a.b"}]}"#;
            let body = format!(r#"{{"messages":[{},{result}]}}"#, turns.join(",")).replace("[,", "[");
            let (found, _) = stripped(Protocol::Messages, &body);
            let read: Any = serde_json::from_str(&found).unwrap();
            for block in read["messages"].as_array().unwrap().iter().flat_map(|turn| turn["content"].as_array().unwrap()) {
                let is_signed = block["signature"].as_str().is_some_and(|signature| signature.starts_with("Eq"));
                prop_assert!(block["type"] != "thinking" || is_signed, "{}", block);
                prop_assert!(block["id"] != "a.b" && block["tool_use_id"] != "a.b", "{}", block);
            }
            let empty_before = body.matches(r#""content":[]"#).count();
            prop_assert_eq!(found.matches(r#""content":[]"#).count(), empty_before);
            prop_assert_eq!(stripped(Protocol::Messages, &found).0, found);
        }
    }
}
