//! Converts content that only the messages protocol has to text: search results, documents,
//! summaries, and the work of another vendor's hosted tools.
//!
//! The result of a hosted tool is truncated, because the answer next to it already uses that
//! result.
//!
//! Read next: `chat/write_request/turns.rs`.

use crate::capabilities::identifiers;
use crate::ir::event::ResponseContext;
use crate::ir::{Block, BlockKind, File, FileContent, JsonPath, Opaque, Warnings};
use crate::json::{JsonStr, JsonValue, compacted};
use std::collections::HashMap;

/// Maximum length of a hosted tool's result as text, in characters.
const MAX_RESULT_CHARS: usize = 2_000;

/// Maximum block nesting depth when collecting a result's text.
const MAX_RESULT_DEPTH: u32 = 6;

/// Opening line of a text that replaces an earlier conversation.
const SUMMARY_PREFIX: &str = "Summary of the earlier conversation:\n";

/// Converts the client's content to text, and warns about content that has no text form.
pub(crate) struct TextFallback<'w> {
    pub warnings: &'w mut Warnings,
    pub response_context: &'w mut ResponseContext,
    /// True to warn about cache breakpoints.
    pub marks: bool,
}

impl TextFallback<'_> {
    pub fn tool_name(&mut self, name: &JsonStr<'_>, at: impl std::fmt::Display) -> String {
        identifiers::alias_tool_name(name.value(), at, self.warnings, self.response_context)
            .into_owned()
    }

    /// Converts a block of the turn `at` to the pieces of one text. Returns no pieces if the block
    /// is empty, or if the text of an earlier block includes it.
    pub fn opaque_block<'a>(
        &mut self,
        (at, blocks): (JsonPath, &[Block<'a>]),
        block: JsonPath,
        opaque: &Opaque<'a>,
        results: &mut Option<HostedToolResults<'a>>,
    ) -> Vec<JsonStr<'a>> {
        match opaque.name.value().as_ref() {
            "search_result" => self.search_result(block, opaque.value),
            "compaction" => self
                .summary(block, opaque.value)
                .map(Vec::from)
                .unwrap_or_default(),
            _ => {
                let results = results.get_or_insert_with(|| HostedToolResults::from_blocks(blocks));
                self.hosted_tool(at, opaque, results)
                    .map(JsonStr::from_value)
                    .into_iter()
                    .collect()
            }
        }
    }

    /// Converts a block of a tool result to the pieces of one text.
    pub fn result_block<'a>(&mut self, at: JsonPath, opaque: &Opaque<'a>) -> Vec<JsonStr<'a>> {
        match opaque.name.value().as_ref() {
            "search_result" => self.search_result(at, opaque.value),
            "tool_reference" => {
                let name = opaque
                    .value
                    .text_of("tool_name")
                    .unwrap_or(JsonStr::from_value(""));
                vec![JsonStr::from_value(format!(
                    "[tool available: {}]",
                    self.tool_name(&name, at)
                ))]
            }
            _ => {
                vec![JsonStr::from_value(compacted(opaque.value.raw()))]
            }
        }
    }

    fn search_result<'a>(&mut self, at: JsonPath, value: JsonValue<'a>) -> Vec<JsonStr<'a>> {
        let wants_citations = value.find(["citations", "enabled"]);
        self.warn_citations(
            at,
            wants_citations.and_then(JsonValue::bool).unwrap_or(false),
        );
        let mut open = String::from("<search_result");
        push_attribute("source", value.text_of("source").as_ref(), &mut open);
        push_attribute("title", value.text_of("title").as_ref(), &mut open);
        open.push_str(">\n");
        let mut texts = vec![JsonStr::from_value(open)];
        texts.extend(
            value
                .items_of("content")
                .filter_map(|item| item.text_of("text")),
        );
        texts.push(JsonStr::from_value("\n</search_result>"));
        texts
    }

    /// Writes the texts of a document between tags. A document that is sent as a file yields only
    /// its context, which precedes it.
    pub fn document<'t>(&mut self, at: JsonPath, file: &'t File<'_>) -> Vec<JsonStr<'t>> {
        self.warn_citations(at, file.wants_citations);
        let context = file
            .context
            .as_ref()
            .map(|context| [JsonStr::from_value("Context: "), context.reborrow()]);
        if let FileContent::Pdf(_) | FileContent::Url(_) = file.content {
            return context.into_iter().flatten().collect();
        }
        let mut open = String::from("<document");
        push_attribute("title", file.title.as_ref(), &mut open);
        open.push_str(">\n");
        let mut texts = vec![JsonStr::from_value(open)];
        if let Some(context) = context {
            texts.extend(context);
            texts.push(JsonStr::from_value("\n"));
        }
        match &file.content {
            FileContent::Pdf(_) | FileContent::Url(_) => {}
            FileContent::Text(text) => texts.push(text.reborrow()),
            FileContent::Blocks(blocks) => {
                texts.extend(blocks.iter().filter_map(|block| match &block.kind {
                    BlockKind::Text(text) => Some(text.reborrow()),
                    _ => None,
                }));
            }
        }
        texts.push(JsonStr::from_value("\n</document>"));
        texts
    }

    fn warn_citations(&mut self, at: JsonPath, are_enabled: bool) {
        if are_enabled {
            self.warnings.dropped(format_args!("{at}.citations"));
        }
    }

    /// Returns the text of a compaction, if the text is not encrypted.
    fn summary<'a>(&mut self, at: JsonPath, value: JsonValue<'a>) -> Option<[JsonStr<'a>; 2]> {
        if value
            .get("tool_changes")
            .is_some_and(|changes| changes.items().next().is_some())
        {
            self.warnings.dropped(format_args!("{at}.tool_changes"));
        }
        let content = value
            .text_of("content")
            .filter(|content| !content.is_blank())?;
        Some([JsonStr::from_value(SUMMARY_PREFIX), content])
    }

    /// Describes the call and the result of a hosted tool. Returns `None` if the block is empty or
    /// belongs to an earlier one.
    fn hosted_tool(
        &mut self,
        at: JsonPath,
        opaque: &Opaque<'_>,
        results: &mut HostedToolResults<'_>,
    ) -> Option<String> {
        let kind = opaque.name.value();
        let (call, result) = match kind.as_ref() {
            "fallback" | "mcp_tool_listing" => return None,
            "server_tool_use" | "mcp_tool_use" => {
                let id = opaque.value.string_of("id").unwrap_or_default();
                (Some(opaque.value), results.take(&id))
            }
            _ => {
                let id = opaque.value.string_of("tool_use_id").unwrap_or_default();
                if results.is_taken(&id) {
                    return None;
                }
                (None, Some(opaque.value))
            }
        };
        self.warnings.rewritten(at);
        let lines = [
            call.map(describe_tool_use),
            result.map(describe_tool_result),
        ];
        let lines: Vec<String> = lines
            .into_iter()
            .flatten()
            .filter(|line| !line.is_empty())
            .collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }
}

/// Results of hosted tools in one turn, by call id.
#[derive(Default)]
pub(crate) struct HostedToolResults<'a> {
    open: HashMap<String, JsonValue<'a>>,
    taken: HashMap<String, JsonValue<'a>>,
}

impl<'a> HostedToolResults<'a> {
    fn from_blocks(blocks: &[Block<'a>]) -> Self {
        let mut results = HostedToolResults::default();
        for block in blocks {
            if let BlockKind::Opaque(opaque) = &block.kind
                && let Some(id) = opaque.value.string_of("tool_use_id")
            {
                results.open.insert(id.into_owned(), opaque.value);
            }
        }
        results
    }

    /// Takes the result of this call, which is written together with the call.
    fn take(&mut self, call: &str) -> Option<JsonValue<'a>> {
        let (id, value) = self.open.remove_entry(call)?;
        self.taken.insert(id, value);
        Some(value)
    }

    fn is_taken(&self, call: &str) -> bool {
        self.taken.contains_key(call)
    }
}

fn describe_tool_use(call: JsonValue<'_>) -> String {
    let name = call.string_of("name").unwrap_or_default();
    let input = compacted(call.get("input").map_or("{}", JsonValue::raw));
    format!("[used {name}: {input}]")
}

/// Writes one line for each search hit. Any other result becomes a truncated text.
fn describe_tool_result(result: JsonValue<'_>) -> String {
    let mut out = ResultTextBuilder::default();
    out.push_value(result.get("content"), 0);
    out.text
}

#[derive(Default)]
struct ResultTextBuilder {
    text: String,
    chars: usize,
    hits: usize,
}

impl ResultTextBuilder {
    /// Adds every text in the value, under the member names that results use.
    fn push_value(&mut self, value: Option<JsonValue<'_>>, depth: u32) {
        let Some(value) =
            value.filter(|_| depth < MAX_RESULT_DEPTH && self.chars < MAX_RESULT_CHARS)
        else {
            return;
        };
        if let Some(text) = value.string() {
            self.push_line(&text);
            return;
        }
        for item in value.items() {
            self.push_value(Some(item), depth + 1);
        }
        if !value.is_object() {
            return;
        }
        let text = |name| value.string_of(name);
        if let Some(code) = text("error_code") {
            self.push_line(&format!("[error: {code}]"));
        } else if let (Some(title), Some(url)) = (text("title"), text("url")) {
            self.push_hit(&title, &url);
        } else if let Some(name) = text("tool_name") {
            self.push_line(&format!("[tool available: {name}]"));
        } else if value.member_is("type", "base64") {
            // The value contains the bytes of a file, which are not text.
        } else {
            for name in [
                "text",
                "stdout",
                "stderr",
                "lines",
                "content",
                "source",
                "data",
                "tool_references",
            ] {
                self.push_value(value.get(name), depth + 1);
            }
        }
    }

    /// Adds a hit with its whole URL, because a truncated URL is useless.
    fn push_hit(&mut self, title: &str, url: &str) {
        let line = format!("- {title}: {url}");
        let counted = self.chars;
        self.hits += 1;
        self.push_truncated(&line, usize::MAX);
        // Titles do not count towards the limit for text.
        self.chars = counted;
    }

    fn push_line(&mut self, line: &str) {
        self.push_truncated(line, MAX_RESULT_CHARS.saturating_sub(self.chars));
    }

    fn push_truncated(&mut self, line: &str, chars_max: usize) {
        if line.trim().is_empty() {
            return;
        }
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        let before = self.text.len();
        match line.char_indices().nth(chars_max) {
            Some((cut, _)) => self.text.push_str(line.get(..cut).unwrap_or_default()),
            None => self.text.push_str(line),
        }
        let added = self.text.get(before..).unwrap_or_default().chars().count();
        self.chars = self.chars.saturating_add(added);
    }
}

/// Appends ` name="value"`, or nothing without a value.
fn push_attribute(name: &str, value: Option<&JsonStr<'_>>, out: &mut String) {
    let Some(value) = value else { return };
    out.push(' ');
    out.push_str(name);
    out.push_str("=\"");
    for letter in value.value().chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            other => out.push(other),
        }
    }
    out.push('"');
}

/// Returns whether the tool's own text already reports a failure.
pub(crate) fn starts_with_error(text: &JsonStr<'_>) -> bool {
    text.written()
        .get(..5)
        .is_some_and(|start| start.eq_ignore_ascii_case("error"))
}
