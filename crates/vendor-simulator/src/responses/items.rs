//! Encodes the items of a response like the vendor: complete, at their start, and the events in
//! between.
//!
//! This file must not select the items (`answer.rs` does) or order their events.

use std::ops::Range;

use crate::json::quote;
use crate::part::{SimPart, SimSearch, SimSource, SimText, SimToolCall};
use crate::signature::{SignatureKind, sign};

use super::{SimResponsesEvent, SimResponsesResponse};

impl SimResponsesResponse {
    /// Encodes an item in its final state.
    pub(super) fn item(&self, item: usize) -> String {
        let (id, status) = (self.id(item), self.item_status(item));
        match &self.answer.parts[item] {
            SimPart::Thinking(_) | SimPart::Redacted => self.reasoning(item, true),
            SimPart::Text(text) => {
                let content = format!("[{}]", self.text_part(text));
                self.message(item, status, &content)
            }
            SimPart::Refusal(text) => {
                let content = format!(r#"[{{"type":"refusal","refusal":{}}}]"#, quote(text));
                self.message(item, status, &content)
            }
            SimPart::Call(call) => self.call(item, call, &call.args, status),
            SimPart::Search(search) => {
                format!(
                    r#"{{"id":{id},"type":"web_search_call","status":"completed","action":{}}}"#,
                    action(search)
                )
            }
            SimPart::Unknown(kind) => format!(
                r#"{{"id":{id},"type":{},"data":{{"a":[1,null]}}}}"#,
                quote(kind)
            ),
        }
    }

    /// Encodes an item without its content.
    fn empty_item(&self, item: usize) -> String {
        let id = self.id(item);
        match &self.answer.parts[item] {
            SimPart::Thinking(_) | SimPart::Redacted => self.reasoning(item, false),
            SimPart::Text(_) | SimPart::Refusal(_) => self.message(item, "in_progress", "[]"),
            SimPart::Call(call) => self.call(item, call, "", "in_progress"),
            SimPart::Search(_) => {
                format!(r#"{{"id":{id},"type":"web_search_call","status":"in_progress"}}"#)
            }
            SimPart::Unknown(_) => self.item(item),
        }
    }

    pub(super) fn item_event(
        &self,
        step: &SimResponsesEvent,
        index: usize,
    ) -> Option<(String, String)> {
        let (name, item, fields) = match step {
            SimResponsesEvent::Added(item) => {
                return Some(self.item_boundary_event("added", *item, &self.empty_item(*item)));
            }
            SimResponsesEvent::Done(item) => {
                return Some(self.item_boundary_event("done", *item, &self.item(*item)));
            }
            SimResponsesEvent::SummaryBegins(item, number) => {
                let part = r#"{"type":"summary_text","text":""}"#;
                (
                    "reasoning_summary_part.added",
                    item,
                    format!(r#","summary_index":{number},"part":{part}"#),
                )
            }
            SimResponsesEvent::SummaryDelta(item, number, range) => {
                let (text, padding) = (self.piece(*item, range), self.turn.padding(index));
                let fields = format!(r#","summary_index":{number},"delta":{text}{padding}"#);
                ("reasoning_summary_text.delta", item, fields)
            }
            SimResponsesEvent::SummaryText(item, number) => {
                let text = self.summary_text(*item, *number);
                (
                    "reasoning_summary_text.done",
                    item,
                    format!(r#","summary_index":{number},"text":{text}"#),
                )
            }
            SimResponsesEvent::SummaryEnds(item, number) => {
                let text = self.summary_text(*item, *number);
                let part = format!(r#"{{"type":"summary_text","text":{text}}}"#);
                (
                    "reasoning_summary_part.done",
                    item,
                    format!(r#","summary_index":{number},"part":{part}"#),
                )
            }
            SimResponsesEvent::ContentBegins(item) => {
                let part = match &self.answer.parts[*item] {
                    SimPart::Refusal(_) => r#"{"type":"refusal","refusal":""}"#.to_owned(),
                    _ => self.text_part(&SimText::default()),
                };
                (
                    "content_part.added",
                    item,
                    format!(r#","content_index":0,"part":{part}"#),
                )
            }
            SimResponsesEvent::ContentEnds(item) => {
                let part = match &self.answer.parts[*item] {
                    SimPart::Text(text) => self.text_part(text),
                    part => format!(r#"{{"type":"refusal","refusal":{}}}"#, quote(part.output())),
                };
                (
                    "content_part.done",
                    item,
                    format!(r#","content_index":0,"part":{part}"#),
                )
            }
            SimResponsesEvent::Delta(item, range) => self.delta(item, range, index),
            SimResponsesEvent::Whole(item) => self.whole_output_event(item),
            SimResponsesEvent::Annotation(item, number) => {
                let SimPart::Text(text) = &self.answer.parts[*item] else {
                    return None;
                };
                let note = annotation(text.sources.get(*number)?, text);
                let fields = format!(
                    r#","content_index":0,"annotation_index":{number},"annotation":{note}"#
                );
                ("output_text.annotation.added", item, fields)
            }
            SimResponsesEvent::Search(item, phase) => {
                return Some((
                    format!("response.web_search_call.{phase}"),
                    self.item_location(*item),
                ));
            }
            SimResponsesEvent::Created
            | SimResponsesEvent::InProgress
            | SimResponsesEvent::Unknown
            | SimResponsesEvent::Terminal => return None,
        };
        Some((
            format!("response.{name}"),
            format!("{}{fields}", self.item_location(*item)),
        ))
    }

    fn item_boundary_event(&self, edge: &str, item: usize, json: &str) -> (String, String) {
        (
            format!("response.output_item.{edge}"),
            format!(r#","output_index":{item},"item":{json}"#),
        )
    }

    fn item_location(&self, item: usize) -> String {
        format!(r#","item_id":{},"output_index":{item}"#, self.id(item))
    }

    fn delta<'s>(
        &self,
        item: &'s usize,
        range: &Range<usize>,
        index: usize,
    ) -> (&'static str, &'s usize, String) {
        let (piece, padding) = (self.piece(*item, range), self.turn.padding(index));
        match &self.answer.parts[*item] {
            SimPart::Refusal(_) => (
                "refusal.delta",
                item,
                format!(r#","content_index":0,"delta":{piece}{padding}"#),
            ),
            SimPart::Call(call) if self.is_custom(call) => (
                "custom_tool_call_input.delta",
                item,
                format!(r#","delta":{piece}{padding}"#),
            ),
            SimPart::Call(_) => (
                "function_call_arguments.delta",
                item,
                format!(r#","delta":{piece}{padding}"#),
            ),
            _ => (
                "output_text.delta",
                item,
                format!(r#","content_index":0,"delta":{piece},"logprobs":[]{padding}"#),
            ),
        }
    }

    fn whole_output_event<'s>(&self, item: &'s usize) -> (&'static str, &'s usize, String) {
        let whole = quote(self.answer.parts[*item].output());
        match &self.answer.parts[*item] {
            SimPart::Refusal(_) => (
                "refusal.done",
                item,
                format!(r#","content_index":0,"refusal":{whole}"#),
            ),
            SimPart::Call(call) if self.is_custom(call) => (
                "custom_tool_call_input.done",
                item,
                format!(r#","input":{whole}"#),
            ),
            SimPart::Call(call) => {
                let fields = format!(r#","name":{},"arguments":{whole}"#, quote(&call.name));
                ("function_call_arguments.done", item, fields)
            }
            _ => (
                "output_text.done",
                item,
                format!(r#","content_index":0,"text":{whole},"logprobs":[]"#),
            ),
        }
    }

    fn piece(&self, item: usize, range: &Range<usize>) -> String {
        quote(&self.answer.parts[item].output()[range.clone()])
    }

    fn message(&self, item: usize, status: &str, content: &str) -> String {
        let calls = self.answer.parts[item..]
            .iter()
            .any(|part| matches!(part, SimPart::Call(_)));
        let phase = if calls { "commentary" } else { "final_answer" };
        format!(
            r#"{{"id":{},"type":"message","status":"{status}","content":{content},"phase":"{phase}","role":"assistant"}}"#,
            self.id(item)
        )
    }

    fn text_part(&self, text: &SimText) -> String {
        let notes: Vec<String> = text
            .sources
            .iter()
            .map(|source| annotation(source, text))
            .collect();
        let (notes, text) = (notes.join(","), quote(&text.text));
        format!(r#"{{"type":"output_text","annotations":[{notes}],"logprobs":[],"text":{text}}}"#)
    }

    fn call(&self, item: usize, call: &SimToolCall, args: &str, status: &str) -> String {
        let (id, name, args) = (self.id(item), quote(&call.name), quote(args));
        let number = self.answer.parts[..item]
            .iter()
            .filter(|part| matches!(part, SimPart::Call(_)))
            .count();
        let call_id = match &call.id {
            Some(id) => quote(id),
            None => format!(r#""call_{}{number:02}""#, self.serial),
        };
        let member = self
            .turn
            .responses
            .namespace_members
            .iter()
            .find(|(member, _)| *member == call.name);
        let namespace = member
            .map(|(_, space)| format!(r#","namespace":{}"#, quote(space)))
            .unwrap_or_default();
        let (kind, field) = if self.is_custom(call) {
            ("custom_tool_call", "input")
        } else {
            ("function_call", "arguments")
        };
        format!(
            r#"{{"id":{id},"type":"{kind}","status":"{status}","{field}":{args},"call_id":{call_id},"name":{name}{namespace}}}"#
        )
    }

    /// Encodes a reasoning item, either complete or at its start.
    fn reasoning(&self, item: usize, is_whole: bool) -> String {
        let count = if is_whole {
            self.summary(item).len()
        } else {
            0
        };
        let parts = (0..count).map(|number| self.summary_text(item, number));
        let parts: Vec<String> = parts
            .map(|text| format!(r#"{{"type":"summary_text","text":{text}}}"#))
            .collect();
        let encrypted_content = match is_whole && self.turn.responses.encrypted {
            true => {
                let seed = format!("{}/{item}", self.serial);
                format!(
                    r#","encrypted_content":"{}""#,
                    sign(SignatureKind::Reasoning, "", &seed)
                )
            }
            false => String::new(),
        };
        format!(
            r#"{{"id":{},"type":"reasoning"{encrypted_content},"summary":[{}]}}"#,
            self.id(item),
            parts.join(",")
        )
    }

    /// Returns the ranges of a summary's parts, which blank lines separate.
    pub(super) fn summary(&self, item: usize) -> Vec<Range<usize>> {
        let SimPart::Thinking(thinking) = &self.answer.parts[item] else {
            return Vec::new();
        };
        if thinking.omitted {
            return Vec::new();
        }
        let mut at = 0;
        let mut ranges = Vec::new();
        for part in thinking.text.split("\n\n") {
            ranges.push(at..at + part.len());
            at += part.len() + 2;
        }
        ranges
    }

    fn summary_text(&self, item: usize, number: usize) -> String {
        self.summary(item)
            .get(number)
            .map(|range| self.piece(item, range))
            .unwrap_or_default()
    }

    fn is_custom(&self, call: &SimToolCall) -> bool {
        self.turn.responses.custom_tools.contains(&call.name)
    }

    fn item_status(&self, item: usize) -> &'static str {
        let is_cut = self.answer.limited && item + 1 == self.answer.parts.len();
        if is_cut { "incomplete" } else { "completed" }
    }

    /// Returns the id of an item. If reasoning precedes the item, the id ends with an `r`, because
    /// the vendor expects both items back, or neither.
    fn id(&self, item: usize) -> String {
        let parts = &self.answer.parts;
        let is_thought = |part: &SimPart| matches!(part, SimPart::Thinking(_) | SimPart::Redacted);
        let prefix = match &parts[item] {
            SimPart::Thinking(_) | SimPart::Redacted => "rs",
            SimPart::Text(_) | SimPart::Refusal(_) => "msg",
            SimPart::Call(call) if self.is_custom(call) => "ctc",
            SimPart::Call(_) => "fc",
            SimPart::Search(_) => "ws",
            SimPart::Unknown(_) => "unk",
        };
        let follows = !is_thought(&parts[item]) && parts[..item].iter().any(is_thought);
        let mark = if follows { "r" } else { "" };
        format!(r#""{prefix}_{}{item:02}{mark}""#, self.serial)
    }
}

fn action(search: &SimSearch) -> String {
    let query = quote(&search.query);
    let sources: Vec<String> = search
        .hits
        .iter()
        .map(|hit| format!(r#"{{"type":"url","url":{}}}"#, quote(&hit.url)))
        .collect();
    format!(
        r#"{{"type":"search","query":{query},"queries":[{query}],"sources":[{}]}}"#,
        sources.join(",")
    )
}

fn annotation(source: &SimSource, text: &SimText) -> String {
    let (title, url, end) = (
        quote(&source.title),
        quote(&source.url),
        text.text.chars().count(),
    );
    format!(
        r#"{{"type":"url_citation","end_index":{end},"start_index":0,"title":{title},"url":{url}}}"#
    )
}
