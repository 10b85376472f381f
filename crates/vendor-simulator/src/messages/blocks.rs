//! Encodes the blocks of a message like the messages vendor, both complete and at the start of a
//! stream.
//!
//! This file must not select or order the blocks (`answer.rs` does).

use crate::behaviour::ToolCallMode;
use crate::json::quote;
use crate::part::{SimPart, SimSearch, SimSource, SimText, SimToolCall};
use crate::signature::{SignatureKind, sign};

use super::response::{SimBlock, SimMessagesResponse};

impl SimMessagesResponse {
    /// Encodes a block of a JSON answer.
    pub(super) fn block(&self, index: usize) -> String {
        match (self.blocks[index], self.part(index)) {
            (SimBlock::Result(_), SimPart::Search(search)) => self.result(index, search),
            (_, SimPart::Thinking(_)) => {
                self.thinking(self.visible_output(index), &self.signature(index))
            }
            (_, SimPart::Redacted) => self.redacted(index),
            (_, SimPart::Text(text)) => self.text(index, text),
            (_, SimPart::Refusal(text)) => format!(r#"{{"type":"text","text":{}}}"#, quote(text)),
            (_, SimPart::Call(call)) => {
                let is_json = serde_json::from_str::<serde::de::IgnoredAny>(&call.args).is_ok();
                self.call(index, call, if is_json { &call.args } else { "{}" })
            }
            (_, SimPart::Search(search)) => self.search(index, &search_input(search)),
            (_, SimPart::Unknown(kind)) => {
                format!(r#"{{"type":{},"data":{{"a":[1,null]}}}}"#, quote(kind))
            }
        }
    }

    /// Encodes a block before its deltas.
    pub(super) fn empty_block(&self, index: usize) -> String {
        match (self.blocks[index], self.part(index)) {
            (SimBlock::Part(_), SimPart::Thinking(_)) => self.thinking("", ""),
            (_, SimPart::Text(text)) if text.sources.is_empty() => {
                r#"{"type":"text","text":""}"#.to_owned()
            }
            (_, SimPart::Text(_)) => r#"{"citations":[],"type":"text","text":""}"#.to_owned(),
            (_, SimPart::Refusal(_)) => r#"{"type":"text","text":""}"#.to_owned(),
            (_, SimPart::Call(call)) if self.behaviour.calls != ToolCallMode::Whole => {
                self.call(index, call, "{}")
            }
            (SimBlock::Part(_), SimPart::Search(_)) => self.search(index, "{}"),
            _ => self.block(index),
        }
    }

    pub(super) fn visible_output(&self, index: usize) -> &str {
        match self.part(index) {
            SimPart::Thinking(thinking) if thinking.omitted => "",
            part => part.output(),
        }
    }

    pub(super) fn signature(&self, index: usize) -> String {
        sign(
            SignatureKind::Thinking,
            self.visible_output(index),
            &self.seed(index),
        )
    }

    pub(super) fn citation(&self, index: usize, source: &SimSource) -> String {
        let (cited, url, title) = (
            quote(&source.cited),
            quote(&source.url),
            quote(&source.title),
        );
        let encrypted_index = sign(SignatureKind::Search, "", &self.seed(index));
        format!(
            r#"{{"type":"web_search_result_location","cited_text":{cited},"url":{url},"title":{title},"encrypted_index":"{encrypted_index}"}}"#
        )
    }

    fn thinking(&self, text: &str, signature: &str) -> String {
        format!(
            r#"{{"type":"thinking","thinking":{},"signature":"{signature}"}}"#,
            quote(text)
        )
    }

    fn redacted(&self, index: usize) -> String {
        let data = sign(SignatureKind::Redacted, "", &self.seed(index));
        format!(r#"{{"type":"redacted_thinking","data":"{data}"}}"#)
    }

    fn text(&self, index: usize, text: &SimText) -> String {
        let sources: Vec<String> = text
            .sources
            .iter()
            .map(|source| self.citation(index, source))
            .collect();
        let citations = match sources.is_empty() {
            true => String::new(),
            false => format!(r#""citations":[{}],"#, sources.join(",")),
        };
        format!(
            r#"{{{citations}"type":"text","text":{}}}"#,
            quote(&text.text)
        )
    }

    fn call(&self, index: usize, call: &SimToolCall, input: &str) -> String {
        let name = quote(&call.name);
        let id = match &call.id {
            Some(id) => quote(id),
            None => format!(r#""toolu_{}{:02}""#, self.serial, self.number(index)),
        };
        format!(r#"{{"type":"tool_use","id":{id},"name":{name},"input":{input}}}"#)
    }

    fn search(&self, index: usize, input: &str) -> String {
        let id = self.search_id(index);
        format!(r#"{{"type":"server_tool_use","id":{id},"name":"web_search","input":{input}}}"#)
    }

    fn result(&self, index: usize, search: &SimSearch) -> String {
        let content = match &search.error {
            Some(code) => format!(
                r#"{{"type":"web_search_tool_result_error","error_code":{}}}"#,
                quote(code)
            ),
            None => {
                let hits: Vec<String> =
                    search.hits.iter().map(|hit| self.hit(index, hit)).collect();
                format!("[{}]", hits.join(","))
            }
        };
        let id = self.search_id(index);
        format!(r#"{{"type":"web_search_tool_result","tool_use_id":{id},"content":{content}}}"#)
    }

    fn hit(&self, index: usize, hit: &SimSource) -> String {
        let (url, title) = (quote(&hit.url), quote(&hit.title));
        let content = sign(SignatureKind::Search, "", &self.seed(index));
        format!(
            r#"{{"type":"web_search_result","title":{title},"url":{url},"encrypted_content":"{content}","page_age":null}}"#
        )
    }

    fn search_id(&self, index: usize) -> String {
        let (SimBlock::Part(part) | SimBlock::Result(part)) = self.blocks[index];
        format!(r#""srvtoolu_{}{part:02}""#, self.serial)
    }

    /// Returns the number of calls before the block.
    fn number(&self, index: usize) -> usize {
        (0..index)
            .filter(|before| matches!(self.part(*before), SimPart::Call(_)))
            .count()
    }

    fn seed(&self, index: usize) -> String {
        format!("{}/{index}", self.serial)
    }
}

pub fn search_input(search: &SimSearch) -> String {
    format!(r#"{{"query": {}}}"#, quote(&search.query))
}
