//! Converts the simulator's answer to the vendor's dialect, first by changing the behaviour, then
//! by moving members of the encoded answer.
//!
//! This file must not decide the content (`../answer.rs`).

use serde_json::{Map, Value, json};

use super::Dialect;
use super::error::ErrorKind;
use super::shape::{CachedPlace, ReasoningPlace, SimUsageMember, ThinkingSignature, VendorState};
use crate::behaviour::{Behaviour, ErrorBody, ReasoningFieldMode, ToolCallMode, UsageMode};
use crate::errors::{SimVendor, SimulatedError};
use crate::request::SimParsedBody;
use crate::signature::{SignatureKind, sign};

const THOUGHT: &str = "I think about it.";

impl Dialect {
    /// Applies the vendor's defaults to the behaviour.
    pub fn apply(&self, parsed: &mut SimParsedBody, behaviour: &mut Behaviour) {
        let thinks = self.thinking.is_on(&parsed.body);
        if thinks && behaviour.blocks.is_none() {
            behaviour.thinking.get_or_insert_with(|| THOUGHT.to_owned());
        } else if !thinks {
            behaviour.thinking = None;
        }
        behaviour.spelling = match self.answer.reasoning {
            ReasoningPlace::ReasoningContent | ReasoningPlace::ContentPart => {
                ReasoningFieldMode::Content
            }
            ReasoningPlace::Reasoning => ReasoningFieldMode::Reasoning,
            ReasoningPlace::ReasoningDetails => ReasoningFieldMode::Details,
        };
        let is_usual = behaviour.usage == UsageMode::default();
        if is_usual && self.answer.usage != SimUsageMember::IfAsked {
            behaviour.usage = UsageMode::Finish;
        }
        if self.answer.whole_calls && behaviour.calls == ToolCallMode::default() {
            behaviour.calls = ToolCallMode::Whole;
        }
        behaviour.service_tier = Some("none".to_owned());
        parsed.turn.obfuscation = false;
    }

    /// Returns the error that a marker with `status` selected.
    pub fn error_from_marker(&self, status: u16, behaviour: &Behaviour) -> SimulatedError {
        let kind = match status {
            _ if behaviour.error_body == ErrorBody::Context => ErrorKind::Context,
            429 => ErrorKind::RateLimit,
            500.. => ErrorKind::Failure,
            _ => ErrorKind::Invalid,
        };
        let text = behaviour
            .text
            .as_deref()
            .unwrap_or("the request is invalid");
        self.errors.build(kind, &[("why", text), ("index", "0")])
    }

    /// Rewrites a complete answer, or one event of a stream.
    pub fn rewrite(&self, text: &str) -> String {
        match self.protocol {
            SimVendor::Chat => self.rewrite_chat(text),
            SimVendor::Responses => self.rewrite_responses(text),
            SimVendor::Messages => self.rewrite_messages(text),
        }
    }

    fn rewrite_messages(&self, text: &str) -> String {
        let is_absent = match self.answer.signature {
            ThinkingSignature::Own => return text.to_owned(),
            ThinkingSignature::Empty => false,
            ThinkingSignature::Absent => true,
        };
        let Ok(mut answer) = serde_json::from_str::<Value>(text) else {
            return text.to_owned();
        };
        if answer["delta"]["type"] == "signature_delta" {
            answer["delta"]["signature"] = json!("");
        }
        let whole = answer.get_mut("content").and_then(Value::as_array_mut);
        let blocks: Vec<&mut Value> = match whole {
            Some(blocks) => blocks.iter_mut().collect(),
            None => answer.get_mut("content_block").into_iter().collect(),
        };
        for block in blocks {
            match block.as_object_mut() {
                Some(block) if block["type"] == "thinking" && is_absent => {
                    block.remove("signature");
                }
                Some(block) if block["type"] == "thinking" => {
                    block.insert("signature".to_owned(), json!(""));
                }
                _ => {}
            }
        }
        answer.to_string()
    }

    /// Returns the request with signatures of the simulator, for the protocol's own checks, if the
    /// vendor neither signs its thinking nor checks signatures.
    pub fn sign_thinking(&self, body: &Value) -> Value {
        let mut body = body.clone();
        if self.answer.signature == ThinkingSignature::Own {
            return body;
        }
        let messages = body["messages"].as_array_mut().into_iter().flatten();
        for block in messages
            .filter_map(|message| message["content"].as_array_mut())
            .flatten()
        {
            if block["type"] == "thinking" {
                let text = block["thinking"].as_str().unwrap_or_default();
                block["signature"] = json!(sign(SignatureKind::Thinking, text, ""));
            }
        }
        body
    }

    fn rewrite_chat(&self, text: &str) -> String {
        let Ok(mut answer) = serde_json::from_str::<Value>(text) else {
            // The text `[DONE]` is not JSON and stays unchanged.
            return text.to_owned();
        };
        let id = answer["id"].as_str().unwrap_or_default().to_owned();
        let mut usage = answer
            .as_object_mut()
            .and_then(|answer| answer.remove("usage"));
        if let Some(usage) = usage.as_mut().and_then(Value::as_object_mut) {
            self.rewrite_usage(usage);
        }
        for choice in answer["choices"].as_array_mut().into_iter().flatten() {
            if let Some(own) = choice["finish_reason"]
                .as_str()
                .and_then(|reason| self.answer.finish.get(reason))
            {
                choice["finish_reason"] = json!(own);
            }
            for name in ["message", "delta"] {
                if let Some(message) = choice.get_mut(name).and_then(Value::as_object_mut) {
                    self.rewrite_message(&id, message);
                }
            }
        }
        let is_chunk = answer["object"] == "chat.completion.chunk";
        match (usage.filter(|usage| !usage.is_null()), self.answer.usage) {
            (Some(usage), SimUsageMember::XGroq) if is_chunk => {
                answer["x_groq"] = json!({"id": id, "usage": usage});
            }
            (Some(usage), SimUsageMember::Choice) if is_chunk => {
                answer["choices"][0]["usage"] = usage
            }
            (Some(usage), _) => answer["usage"] = usage,
            (None, _) => {}
        }
        answer.to_string()
    }

    fn rewrite_responses(&self, text: &str) -> String {
        let Ok(mut event) = serde_json::from_str::<Value>(text) else {
            return text.to_owned();
        };
        let details =
            ["/usage", "/response/usage"].map(|usage| format!("{usage}/input_tokens_details"));
        for path in details {
            let is_renamed = self.answer.cached == CachedPlace::ReadAndCreation;
            if let Some(details) = event.pointer_mut(&path).filter(|_| is_renamed) {
                *details = json!({
                    "cache_read_input_tokens": details["cached_tokens"],
                    "cache_creation_input_tokens": details["cache_write_tokens"],
                });
            }
        }
        for path in ["/output", "/response/output"] {
            let items = event.pointer_mut(path).and_then(Value::as_array_mut);
            items.into_iter().flatten().for_each(remove_phase);
        }
        event.get_mut("item").into_iter().for_each(remove_phase);
        event.to_string()
    }

    fn rewrite_usage(&self, usage: &mut Map<String, Value>) {
        if self.answer.cached == CachedPlace::Details {
            return;
        }
        let details = usage.remove("prompt_tokens_details").unwrap_or_default();
        let cached = details["cached_tokens"].as_u64().unwrap_or_default();
        let prompt = usage.get("prompt_tokens").and_then(Value::as_u64);
        match self.answer.cached {
            CachedPlace::Top => {
                usage.insert("cached_tokens".to_owned(), json!(cached));
            }
            CachedPlace::HitAndMiss => {
                let missed = prompt.unwrap_or_default().saturating_sub(cached);
                usage.insert("prompt_cache_hit_tokens".to_owned(), json!(cached));
                usage.insert("prompt_cache_miss_tokens".to_owned(), json!(missed));
            }
            CachedPlace::Details | CachedPlace::ReadAndCreation | CachedPlace::Absent => {}
        }
    }

    fn rewrite_message(&self, id: &str, message: &mut Map<String, Value>) {
        // Only the vendor that defined the protocol sends these members.
        message.retain(|name, _| !matches!(name.as_str(), "annotations" | "refusal"));
        if self.answer.reasoning == ReasoningPlace::ContentPart
            && let Some(thought) = message.remove("reasoning_content")
        {
            let mut parts =
                vec![json!({"type": "thinking", "thinking": [{"type": "text", "text": thought}]})];
            if let Some(text) = message
                .get("content")
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
            {
                parts.push(json!({"type": "text", "text": text}));
            }
            message.insert("content".to_owned(), parts.into());
        }
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for (at, call) in calls.into_iter().flatten().enumerate() {
            let name = call["function"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            // Later fragments of a call have no id.
            let Some(given) = call["id"].as_str().map(str::to_owned) else {
                continue;
            };
            if self.nine_character_ids {
                let end = given.len().saturating_sub(CALL_SUFFIX);
                call["id"] = json!(&given[end..]);
            }
            if self.state == VendorState::OwnReasoningContent {
                call["id"] = json!(format!("{given}{OWN_CALL}"));
            }
            let index = call["index"].as_u64().unwrap_or(at as u64);
            if self.answer.ids_by_name {
                call["id"] = json!(format!("functions.{name}:{index}"));
            }
            // Of parallel calls, only the first one has a signature.
            if self.state == VendorState::ThoughtSignature && index == 0 {
                let signature = sign(SignatureKind::Thinking, &name, id);
                call["extra_content"] = json!({"google": {"thought_signature": signature}});
            }
        }
    }
}

/// Removes the phase of a message, which only the vendor that defined the protocol sends.
fn remove_phase(item: &mut Value) {
    item.as_object_mut().and_then(|item| item.remove("phase"));
}

/// Suffix of the call ids of vendors whose calls need their state. The ids of other models' calls
/// lack the suffix.
pub(super) const OWN_CALL: &str = "_own";
/// Length of the unique suffix of the simulator's call ids.
const CALL_SUFFIX: usize = 9;
