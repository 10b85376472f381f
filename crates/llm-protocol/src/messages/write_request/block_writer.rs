//! Writes blocks of the IR as blocks of the messages protocol.
//!
//! This file must not decide which blocks are sent: an earlier step removed those that the vendor
//! does not accept. It checks only properties that appear during the writing: a URL, a name,
//! malformed arguments.
//!
//! Read next: `write_request/tools.rs`.

use super::markers::{CacheMarkerBudget, MarkerSection};
use crate::Protocol;
use crate::capabilities::arguments;
use crate::capabilities::identifiers::{self, CallIdAllocator};
use crate::ir::event::ResponseContext;
use crate::ir::{
    Block, BlockKind, CacheBreakpoint, File, FileContent, ImageSource, JsonPath, Opaque,
    RequestResult, Thinking, ToolArguments, ToolCall, ToolResult, ToolResultContent, Warnings,
    refuse,
};
use crate::json::{CompactJson, JoinedText, JsonStr, JsonWriter};
use crate::reasoning_token;
use std::collections::VecDeque;

/// The body written so far, and the state for writing blocks.
pub(super) struct BlockWriter<'w> {
    pub json: JsonWriter,
    pub warnings: &'w mut Warnings,
    pub response_context: &'w mut ResponseContext,
    surface: Protocol,
    markers: CacheMarkerBudget,
    ids: CallIdAllocator,
    /// Ids of the calls whose results follow, in order.
    open: VecDeque<String>,
}

impl<'w> BlockWriter<'w> {
    pub fn new(
        json: JsonWriter,
        surface: Protocol,
        markers: CacheMarkerBudget,
        warnings: &'w mut Warnings,
        response_context: &'w mut ResponseContext,
    ) -> Self {
        let (ids, open) = (CallIdAllocator::default(), VecDeque::new());
        BlockWriter {
            json,
            warnings,
            response_context,
            surface,
            markers,
            ids,
            open,
        }
    }

    pub fn block(&mut self, block: &Block<'_>, section: MarkerSection) -> RequestResult {
        if let BlockKind::Opaque(Opaque {
            origin: Protocol::Chat | Protocol::Responses,
            ..
        }) = block.kind
        {
            return Ok(());
        }
        self.json.open_object();
        match &block.kind {
            BlockKind::Text(text) | BlockKind::Refusal(text) => self.text(text),
            BlockKind::Image(image) => self.image(&image.source, block.at)?,
            BlockKind::File(file) => self.file(file, block.at, section)?,
            BlockKind::Thinking(thinking) => self.thinking(thinking),
            BlockKind::Call(call) => self.call(call, block.at),
            BlockKind::Result(outcome) => self.tool_result(outcome, section)?,
            BlockKind::Opaque(opaque) => self.opaque(opaque),
        }
        if !matches!(block.kind, BlockKind::Thinking(_)) {
            self.cache_control(block.cache, section);
        }
        self.json.close_object();
        Ok(())
    }

    /// Writes a text block with the gateway's own text.
    pub fn text_block(&mut self, words: &str) {
        self.json
            .open_typed("text")
            .member("text", words)
            .close_object();
    }

    /// Writes several texts as one text block.
    pub fn joined_text_block<'t, 'a: 't>(
        &mut self,
        texts: impl IntoIterator<Item = &'t JsonStr<'a>> + Clone,
        cache: Option<CacheBreakpoint>,
    ) {
        self.json
            .open_typed("text")
            .member("text", JoinedText(texts));
        self.cache_control(cache, MarkerSection::Messages);
        self.json.close_object();
    }

    /// Writes the member `cache_control` if the block has a marker and the marker is within the
    /// limit.
    pub fn cache_control(&mut self, cache: Option<CacheBreakpoint>, section: MarkerSection) {
        if let Some(cache) = cache
            && self.markers.allow(section)
        {
            write_cache_control(&mut self.json, cache);
        }
    }

    fn text(&mut self, text: &JsonStr<'_>) {
        self.json.member("type", "text").member("text", text);
    }

    fn image(&mut self, image: &ImageSource<'_>, at: JsonPath) -> RequestResult {
        let json = self.json.member("type", "image").member_object("source");
        match image {
            ImageSource::Base64 { media_type, data } => json
                .member("type", "base64")
                .member("media_type", media_type)
                .member("data", data),
            ImageSource::Url(url) if is_https(url) => json.member("type", "url").member("url", url),
            ImageSource::Url(_) => {
                let message = "Image URLs must use https or a base64 data URL.";
                let path = format_args!("{at}.image_url");
                return refuse(self.surface, path, message);
            }
        };
        json.close_object();
        Ok(())
    }

    fn file(&mut self, file: &File<'_>, at: JsonPath, section: MarkerSection) -> RequestResult {
        let json = self.json.member("type", "document").member_object("source");
        match &file.content {
            FileContent::Pdf(data) => {
                json.member("type", "base64")
                    .member("media_type", "application/pdf")
                    .member("data", data);
            }
            FileContent::Text(text) => {
                json.member("type", "text")
                    .member("media_type", "text/plain")
                    .member("data", text);
            }
            FileContent::Url(url) if is_https(url) => {
                json.member("type", "url").member("url", url);
            }
            FileContent::Url(_) => {
                let path = format_args!("{at}.file_url");
                return refuse(self.surface, path, "File URLs must use https.");
            }
            FileContent::Blocks(blocks) => {
                json.member("type", "content").member_array("content");
                for block in blocks {
                    self.block(block, section)?;
                }
                self.json.close_array();
            }
        }
        self.json.close_object();
        for (name, text) in [("title", &file.title), ("context", &file.context)] {
            self.json.member_if_some(name, text.as_ref());
        }
        if file.wants_citations {
            self.json.member("citations", ("enabled", true));
        }
        Ok(())
    }

    /// Writes the thinking exactly as the vendor signed it. A vendor that signs none gets an empty
    /// signature.
    fn thinking(&mut self, thinking: &Thinking<'_>) {
        match thinking {
            Thinking::Shown { text, signature } => {
                self.json
                    .member("type", "thinking")
                    .member("thinking", text);
                let is_signed = |signature: &&JsonStr<'_>| {
                    reasoning_token::is_vendor_signature(&signature.value())
                };
                let unsigned = JsonStr::from_value("");
                let signature = signature.as_ref().filter(is_signed);
                self.json
                    .member("signature", signature.unwrap_or(&unsigned));
            }
            Thinking::Hidden { data } => {
                self.json
                    .member("type", "redacted_thinking")
                    .member("data", data);
            }
        }
    }

    fn call(&mut self, call: &ToolCall<'_>, at: JsonPath) {
        let id = self.ids.allocate(call.id.as_ref());
        let name = identifiers::alias_tool_name(
            call.name.value(),
            CallPath {
                at,
                call,
                of: "name",
            },
            self.warnings,
            self.response_context,
        );
        self.json
            .member("type", "tool_use")
            .member("id", &id)
            .member("name", &name)
            .key("input");
        self.open.push_back(id);
        match &call.arguments {
            ToolArguments::Json(value) => {
                self.json.value(CompactJson(value.raw()));
            }
            ToolArguments::Text(text) if call.is_custom => {
                self.json.open_object().member("input", text).close_object();
            }
            ToolArguments::Text(text) => {
                if arguments::write_input(text, &mut self.json) {
                    self.warnings.rewritten(CallPath {
                        at,
                        call,
                        of: "arguments",
                    });
                }
            }
        }
    }

    fn tool_result(&mut self, outcome: &ToolResult<'_>, section: MarkerSection) -> RequestResult {
        // The pairing step puts results directly after their calls, in the same order.
        let id = self.open.pop_front().unwrap_or_default();
        self.json
            .member("type", "tool_result")
            .member("tool_use_id", &id);
        match &outcome.content {
            ToolResultContent::Text(text) if !text.is_blank() => {
                self.json.member("content", text);
            }
            ToolResultContent::Blocks(blocks) if !blocks.is_empty() => {
                self.json.member_array("content");
                for block in blocks {
                    self.block(block, section)?;
                }
                self.json.close_array();
            }
            ToolResultContent::Nothing
            | ToolResultContent::Text(_)
            | ToolResultContent::Blocks(_) => {}
        }
        if outcome.is_error {
            self.json.member("is_error", true);
        }
        Ok(())
    }

    /// Writes a block that only this protocol has, unchanged except for its cache marker.
    fn opaque(&mut self, opaque: &Opaque<'_>) {
        let members = opaque.value.members();
        self.json
            .copy_members(members.filter(|(name, _)| !name.is("cache_control")));
    }
}

fn is_https(url: &JsonStr<'_>) -> bool {
    url.chars()
        .take(8)
        .map(|letter| letter.to_ascii_lowercase())
        .eq("https://".chars())
}

/// Path of a call's name or arguments in the client's body.
pub(super) struct CallPath<'c, 'a> {
    pub at: JsonPath,
    pub call: &'c ToolCall<'a>,
    pub of: &'static str,
}

impl std::fmt::Display for CallPath<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let member = match (self.at, self.call.is_custom) {
            (JsonPath::Call(..), true) => "custom",
            (JsonPath::Call(..), false) => "function",
            (JsonPath::Item(_) | JsonPath::ItemPart(..) | JsonPath::ItemOutput(..), _) => {
                return write!(f, "{}.{}", self.at, self.of);
            }
            (
                JsonPath::System(_)
                | JsonPath::Message(_)
                | JsonPath::Part(..)
                | JsonPath::Nested(..)
                | JsonPath::Tool(_),
                _,
            ) => "function_call",
        };
        write!(f, "{}.{member}.{}", self.at, self.of)
    }
}

/// Writes the member `cache_control` with its type and lifetime only. Other members that the client
/// may have added are left out.
pub(super) fn write_cache_control(json: &mut JsonWriter, cache: CacheBreakpoint) {
    json.member_typed("cache_control", "ephemeral")
        .member_if_some("ttl", cache.lifetime())
        .close_object();
}
