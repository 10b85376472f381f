//! Encodes the deltas of a stream and the message of a JSON answer as the chat vendor does.
//!
//! This file must not select or order the deltas.

use std::ops::Range;

use crate::behaviour::{MalformedShape, ReasoningFieldMode, ToolCallMode};
use crate::json::quote;
use crate::part::{SimPart, SimSource, SimToolCall};
use crate::signature::{SignatureKind, sign};

use super::SimChatResponse;

impl SimChatResponse {
    pub(super) fn message(&self, choice: usize) -> String {
        let answer = &self.answer;
        let (text, refusal) = (answer.text(), answer.refusal());
        let has_calls = answer.calls().next().is_some();
        let content = match self.behaviour.shape {
            _ if text.is_empty() && (has_calls || !refusal.is_empty()) => "null".to_owned(),
            Some(MalformedShape::Array) => {
                format!(r#"[{{"type":"text","text":{}}}]"#, quote(&text))
            }
            _ => quote(&text),
        };
        let refusal = if refusal.is_empty() {
            "null".to_owned()
        } else {
            quote(&refusal)
        };
        let calls = match (has_calls, self.behaviour.calls) {
            (false, _) => String::new(),
            (true, ToolCallMode::Legacy) => {
                format!(r#","function_call":{}"#, self.function(0, true, None))
            }
            (true, _) => {
                let entries: Vec<String> = (0..answer.calls().count())
                    .map(|call| self.whole_call(choice, call))
                    .collect();
                format!(r#","tool_calls":[{}]"#, entries.join(","))
            }
        };
        let (reasoning, annotations, unknown) = (
            self.reasoning(),
            self.annotations(),
            self.behaviour.unknown_field(),
        );
        format!(
            r#"{{"role":"assistant","content":{content}{reasoning}{calls},"refusal":{refusal},"annotations":[{annotations}]{unknown}}}"#
        )
    }

    pub(super) fn role(&self, calls: &str) -> String {
        let has_text = !self.answer.text().is_empty() || self.answer.calls().next().is_none();
        let content = if has_text && self.answer.refusal().is_empty() {
            r#""""#
        } else {
            "null"
        };
        format!(r#"{{"role":"assistant","content":{content}{calls},"refusal":null}}"#)
    }

    /// Encodes a piece of a text, of thinking or of a refusal.
    pub(super) fn piece(&self, part: usize, range: Range<usize>) -> String {
        let piece = quote(&self.answer.parts[part].output()[range]);
        match &self.answer.parts[part] {
            SimPart::Thinking(_) => format!(
                "{{{}}}",
                self.reasoning_fields(&piece, &self.detail(part, &piece))
            ),
            SimPart::Refusal(_) => format!(r#"{{"refusal":{piece}}}"#),
            _ if self.behaviour.shape == Some(MalformedShape::Array) => {
                format!(r#"{{"content":[{{"type":"text","text":{piece}}}]}}"#)
            }
            _ => format!(r#"{{"content":{piece}}}"#),
        }
    }

    /// Encodes reasoning that only the vendor can decode.
    pub(super) fn opaque(&self, part: usize) -> String {
        format!(r#"{{"reasoning_details":[{}]}}"#, self.opaque_detail(part))
    }

    pub(super) fn annotations(&self) -> String {
        let mut at = 0;
        let mut all = Vec::new();
        for part in &self.answer.parts {
            let SimPart::Text(text) = part else { continue };
            let end = at + text.text.chars().count();
            all.extend(
                text.sources
                    .iter()
                    .map(|source| annotation(source, at, end)),
            );
            at = end;
        }
        all.join(",")
    }

    /// Encodes an entry of `tool_calls` in a stream, which is the first one of its call or a later
    /// one.
    pub(super) fn entry(
        &self,
        choice: usize,
        call: usize,
        opens: bool,
        args: Option<Range<usize>>,
    ) -> String {
        let mode = self.behaviour.calls;
        let names = opens || mode == ToolCallMode::Repeat;
        let index = match mode {
            ToolCallMode::NoIndex => String::new(),
            ToolCallMode::Zero => r#""index":0,"#.to_owned(),
            _ => format!(r#""index":{call},"#),
        };
        let id = match names && mode != ToolCallMode::NoId {
            true => format!(r#""id":{},"#, self.call_id(choice, call)),
            false => String::new(),
        };
        let kind = if names { r#""type":"function","# } else { "" };
        let args = args.unwrap_or(0..0);
        format!(
            r#"{{{index}{id}{kind}"function":{}}}"#,
            self.function(call, names, Some(args))
        )
    }

    /// Encodes the name and the arguments of a call, or a range of the arguments.
    pub(super) fn function(&self, call: usize, names: bool, args: Option<Range<usize>>) -> String {
        let Some(call) = self.answer.calls().nth(call) else {
            return "{}".to_owned();
        };
        let args = quote(args.map_or(call.args.as_str(), |range| &call.args[range]));
        match names {
            true => format!(r#"{{"name":{},"arguments":{args}}}"#, quote(&call.name)),
            false => format!(r#"{{"arguments":{args}}}"#),
        }
    }

    fn whole_call(&self, choice: usize, call: usize) -> String {
        let id = match self.behaviour.calls {
            ToolCallMode::NoId => String::new(),
            _ => format!(r#""id":{},"#, self.call_id(choice, call)),
        };
        format!(
            r#"{{{id}"type":"function","function":{}}}"#,
            self.function(call, true, None)
        )
    }

    fn call_id(&self, choice: usize, call: usize) -> String {
        match self.answer.calls().nth(call) {
            Some(SimToolCall { id: Some(id), .. }) => quote(id),
            _ => format!(r#""call_{}{choice:02}{call:02}""#, self.serial),
        }
    }

    /// Encodes the reasoning of a JSON answer as further members.
    fn reasoning(&self) -> String {
        let parts = self.answer.parts.iter().enumerate();
        let details: Vec<String> = parts
            .filter_map(|(index, part)| match part {
                SimPart::Thinking(thinking) => Some(self.detail(index, &quote(&thinking.text))),
                SimPart::Redacted => Some(self.opaque_detail(index)),
                _ => None,
            })
            .collect();
        let text = self.answer.thinking();
        let spelling = self.behaviour.spelling;
        let is_opaque = text.is_empty()
            && matches!(
                spelling,
                ReasoningFieldMode::Content | ReasoningFieldMode::Reasoning
            );
        if details.is_empty() || is_opaque {
            return String::new();
        }
        format!(
            ",{}",
            self.reasoning_fields(&quote(&text), &details.join(","))
        )
    }

    fn reasoning_fields(&self, text: &str, details: &str) -> String {
        match self.behaviour.spelling {
            ReasoningFieldMode::Content => format!(r#""reasoning_content":{text}"#),
            ReasoningFieldMode::Reasoning => format!(r#""reasoning":{text}"#),
            ReasoningFieldMode::Details => format!(r#""reasoning_details":[{details}]"#),
            ReasoningFieldMode::All => {
                format!(
                    r#""reasoning_content":{text},"reasoning":{text},"reasoning_details":[{details}]"#
                )
            }
        }
    }

    fn detail(&self, part: usize, text: &str) -> String {
        let index = self.detail_number(part);
        format!(r#"{{"type":"reasoning.text","text":{text},"format":"unknown","index":{index}}}"#)
    }

    fn opaque_detail(&self, part: usize) -> String {
        let (index, data) = (
            self.detail_number(part),
            sign(
                SignatureKind::Redacted,
                "",
                &format!("{}/{part}", self.serial),
            ),
        );
        format!(
            r#"{{"type":"reasoning.encrypted","data":"{data}","id":"rs_{}{part:02}","format":"openai-responses-v1","index":{index}}}"#,
            self.serial
        )
    }

    fn detail_number(&self, part: usize) -> usize {
        let before = self.answer.parts[..part].iter();
        before
            .filter(|part| matches!(part, SimPart::Thinking(_) | SimPart::Redacted))
            .count()
    }
}

fn annotation(source: &SimSource, start: usize, end: usize) -> String {
    let (title, url) = (quote(&source.title), quote(&source.url));
    format!(
        r#"{{"type":"url_citation","url_citation":{{"end_index":{end},"start_index":{start},"title":{title},"url":{url}}}}}"#
    )
}
