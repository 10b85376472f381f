//! Rejects requests that a dialect refuses: unknown members, roles, orders, missing state.
//!
//! This file must not depend on a vendor, because the table lists each vendor's refusals.

use serde_json::Value;

use super::Dialect;
use super::answer::OWN_CALL;
use super::error::ErrorKind;
use super::shape::VendorState;
use crate::errors::{SimVendor, SimulatedError};
use crate::signature::{SignatureKind, is_ours};

/// Signature that Google documents for calls that another model made.
const SKIPPED_SIGNATURE: &str = "skip_thought_signature_validator";
const CALL_ID_CHARS: usize = 9;

impl Dialect {
    /// Checks a request against the dialect's rules.
    pub fn check(&self, body: &Value) -> Result<(), SimulatedError> {
        self.check_object("request", "", body)?;
        for tool in items(&body["tools"]) {
            self.check_object("tool", "tools", tool)?;
        }
        if self.protocol == SimVendor::Responses {
            let mut items = items(&body["input"]).iter().enumerate();
            return items.try_for_each(|(index, item)| self.check_item(index, item));
        }
        let messages = items(&body["messages"]);
        for (index, message) in messages.iter().enumerate() {
            self.check_message(index, message)?;
        }
        if self.protocol == SimVendor::Messages {
            return self.check_thinking(body, messages);
        }
        self.check_order(messages)?;
        self.check_results(messages)?;
        self.check_state(body, messages)
    }

    fn error(&self, kind: ErrorKind, names: &[(&str, &str)]) -> SimulatedError {
        self.errors.build(kind, names)
    }

    /// Checks the members of an object and of the nested objects that the table describes.
    fn check_object(&self, place: &str, path: &str, object: &Value) -> Result<(), SimulatedError> {
        let (Some(known), Some(members)) = (self.members.get(place), object.as_object()) else {
            return Ok(());
        };
        for (name, value) in members {
            let written = match path {
                "" => name.clone(),
                path => format!("{path}.{name}"),
            };
            if !known.contains(name) {
                let at = match path {
                    "" => String::new(),
                    path => format!(" at '{path}'"),
                };
                let names = [
                    ("member", name.as_str()),
                    ("path", &written),
                    ("place", path),
                    ("at", &at),
                ];
                return Err(self.error(ErrorKind::Member, &names));
            }
            let inner = format!("{place}.{name}");
            let taken = self.values.get(&inner);
            if let (Some(taken), Some(text)) = (taken, value.as_str())
                && !taken.iter().any(|word| word == text)
            {
                let names = [("member", written.as_str()), ("value", text)];
                return Err(self.error(ErrorKind::Value, &names));
            }
            for object in std::iter::once(value).chain(items(value)) {
                self.check_object(&inner, &written, object)?;
            }
        }
        Ok(())
    }

    fn check_message(&self, index: usize, message: &Value) -> Result<(), SimulatedError> {
        let role = message["role"].as_str().unwrap_or_default();
        let at = index.to_string();
        if !self.roles.iter().any(|known| known == role) {
            let names = [("role", role), ("index", at.as_str())];
            return Err(self.error(ErrorKind::Role, &names));
        }
        // A developer's message has the same members as a system message.
        let place = match role {
            "developer" => "message.system".to_owned(),
            role => format!("message.{role}"),
        };
        self.check_object(&place, &format!("messages[{index}]"), message)?;
        self.check_parts(&format!("messages[{index}].content"), &message["content"])?;
        for call in items(&message["tool_calls"]) {
            self.check_object("call", &format!("messages[{index}].tool_calls"), call)?;
            let id = call["id"].as_str().unwrap_or_default();
            let is_nine =
                id.len() == CALL_ID_CHARS && id.bytes().all(|c| c.is_ascii_alphanumeric());
            if self.nine_character_ids && !is_nine {
                return Err(self.order_error(&format!(
                    "Tool call id was {id} but must be a-z, A-Z, 0-9, with a length of 9."
                )));
            }
        }
        Ok(())
    }

    fn check_item(&self, index: usize, item: &Value) -> Result<(), SimulatedError> {
        // Only a message may leave out its type.
        let kind = item["type"].as_str().unwrap_or("message");
        let (place, path) = (format!("item.{kind}"), format!("input[{index}]"));
        if !self.members.contains_key(&place) {
            return Err(self.unknown_kind(kind, "input"));
        }
        self.check_object(&place, &path, item)?;
        self.check_parts(&format!("{path}.content"), &item["content"])
    }

    fn check_parts(&self, path: &str, parts: &Value) -> Result<(), SimulatedError> {
        for part in items(parts) {
            let kind = part["type"].as_str().unwrap_or_default();
            let (own, any) = (format!("part.{kind}"), "part.*");
            let place = [own.as_str(), any]
                .into_iter()
                .find(|place| self.members.contains_key(*place));
            let Some(place) = place else {
                return Err(self.unknown_kind(kind, "content"));
            };
            self.check_object(place, path, part)?;
        }
        Ok(())
    }

    /// Returns the error for a part or an item of an unknown type.
    fn unknown_kind(&self, kind: &str, place: &str) -> SimulatedError {
        let at = format!(" at '{place}'");
        let names = [
            ("member", kind),
            ("path", place),
            ("place", place),
            ("at", &at),
        ];
        self.error(ErrorKind::Member, &names)
    }

    fn order_error(&self, why: &str) -> SimulatedError {
        self.error(ErrorKind::Order, &[("why", why)])
    }

    fn check_order(&self, messages: &[Value]) -> Result<(), SimulatedError> {
        let role = |message: &Value| message["role"].as_str().unwrap_or_default().to_owned();
        let roles: Vec<String> = messages.iter().map(role).collect();
        let late = roles
            .iter()
            .skip(1)
            .any(|role| role == "system" || role == "developer");
        if self.order.system_first && late {
            return Err(self.order_error("System message must be at the beginning."));
        }
        for pair in roles.windows(2) {
            let (before, role) = (pair[0].as_str(), pair[1].as_str());
            if self.order.no_user_after_tool && (before, role) == ("tool", "user") {
                return Err(self.order_error("Unexpected role 'user' after role 'tool'"));
            }
            if self.order.alternates && before == role && role != "tool" {
                return Err(self.order_error(
                    "Conversation roles must alternate user/assistant/user/assistant/...",
                ));
            }
        }
        let is_final = roles.last().is_some_and(|role| role == "assistant");
        let has_prefix = messages.last().is_some_and(|last| last["prefix"] == true);
        if self.order.no_final_assistant && is_final && !has_prefix {
            return Err(self.order_error(
                "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant",
            ));
        }
        Ok(())
    }

    /// Checks that every call has its result, and every result its call.
    fn check_results(&self, messages: &[Value]) -> Result<(), SimulatedError> {
        let mut open: Vec<&str> = Vec::new();
        for message in messages {
            if message["role"] == "tool" {
                let id = message["tool_call_id"].as_str().unwrap_or_default();
                let Some(at) = open.iter().position(|waiting| *waiting == id) else {
                    return Err(
                        self.order_error(&format!("No call has the id of the result: {id}"))
                    );
                };
                open.swap_remove(at);
                continue;
            }
            if !open.is_empty() {
                return Err(self.order_error("Not the same number of function calls and responses"));
            }
            let calls = items(&message["tool_calls"]);
            open = calls
                .iter()
                .filter_map(|call| call["id"].as_str())
                .collect();
        }
        match open.is_empty() {
            true => Ok(()),
            false => Err(self.order_error("Not the same number of function calls and responses")),
        }
    }

    /// Checks that, with thinking on, every turn with tool calls carries its thinking.
    fn check_thinking(&self, body: &Value, messages: &[Value]) -> Result<(), SimulatedError> {
        if self.state != VendorState::Thinking || !self.thinking.is_on(body) {
            return Ok(());
        }
        for (index, message) in messages.iter().enumerate() {
            let has = |kind: &str| {
                items(&message["content"])
                    .iter()
                    .any(|part| part["type"] == kind)
            };
            if message["role"] == "assistant" && has("tool_use") && !has("thinking") {
                return Err(self.error(ErrorKind::State, &[("index", &index.to_string())]));
            }
        }
        Ok(())
    }

    /// Checks that, while the model thinks, every answer of a request with tools, and every one
    /// with calls, has its reasoning.
    fn check_answers(&self, body: &Value, messages: &[Value]) -> Result<(), SimulatedError> {
        let has_tools = !items(&body["tools"]).is_empty();
        let is_bare = |message: &Value| {
            let is_due = has_tools || !items(&message["tool_calls"]).is_empty();
            is_due && message["role"] == "assistant" && !message["reasoning_content"].is_string()
        };
        let bare = messages.iter().position(is_bare);
        match bare.filter(|_| self.thinking.is_on(body)) {
            Some(index) => Err(self.error(ErrorKind::State, &[("index", &index.to_string())])),
            None => Ok(()),
        }
    }

    /// Checks that calls of this turn have the state that the vendor sent with them.
    fn check_state(&self, body: &Value, messages: &[Value]) -> Result<(), SimulatedError> {
        if self.state == VendorState::ReasoningContentBesideTools {
            return self.check_answers(body, messages);
        }
        let last_user = messages
            .iter()
            .rposition(|message| message["role"] == "user");
        let turn = last_user.map_or(0, |index| index + 1);
        for (index, message) in messages.iter().enumerate().skip(turn) {
            let Some(call) = items(&message["tool_calls"]).first() else {
                continue;
            };
            let is_missing = match self.state {
                VendorState::None
                | VendorState::Thinking
                | VendorState::ReasoningContentBesideTools => false,
                VendorState::ThoughtSignature => {
                    let signature = &call["extra_content"]["google"]["thought_signature"];
                    let name = call["function"]["name"].as_str().unwrap_or_default();
                    !signature.as_str().is_some_and(|signature| {
                        signature == SKIPPED_SIGNATURE
                            || is_ours(SignatureKind::Thinking, name, signature)
                    })
                }
                // An empty text satisfies the vendors, even for calls of other models.
                VendorState::ReasoningContent => {
                    self.thinking.is_on(body) && !message["reasoning_content"].is_string()
                }
                VendorState::OwnReasoningContent => {
                    self.thinking.is_on(body)
                        && id(call).ends_with(OWN_CALL)
                        && !message["reasoning_content"].is_string()
                }
                VendorState::ReasoningDetails => {
                    self.thinking.is_on(body)
                        && is_own(call)
                        && items(&message["reasoning_details"]).is_empty()
                }
            };
            if is_missing {
                return Err(self.error(ErrorKind::State, &[("index", &index.to_string())]));
            }
        }
        Ok(())
    }
}

/// Returns whether the simulator made the call, because only then can its state be returned.
fn is_own(call: &Value) -> bool {
    id(call).contains("Sim") || id(call).starts_with("functions.")
}

fn id(call: &Value) -> &str {
    call["id"].as_str().unwrap_or_default()
}

/// Returns the items of an array, or none for any other value.
fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
