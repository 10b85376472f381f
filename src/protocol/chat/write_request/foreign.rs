//! Converts content that only the messages protocol has to text: search results, documents,
//! summaries, and what hosted tools of another vendor did.
//!
//! It must stay small: it truncates the result of a hosted tool, because the answer next to it
//! already uses that result.
//!
//! Read next: `chat/write_request/turns.rs`.

use super::member;
use crate::protocol::form::answer::Recall;
use crate::protocol::form::{Action, At, Block, BlockKind, File, FileContent, Opaque, Warnings};
use crate::protocol::rules::names;
use crate::protocol::text::{Text, compact};
use crate::protocol::tree::Value;
use std::collections::HashMap;

/// Maximum length of a hosted tool's result as text, in characters.
const RESULT_CHARS_MAX: usize = 2_000;

/// Maximum block nesting depth when collecting a result's text.
const DEPTH_MAX: u32 = 6;

/// Opening line of a text that replaces an earlier conversation.
const SUMMARY: &str = "Summary of the earlier conversation:\n";

/// Converts the caller's content to text, and warns about content that has no text form.
pub(in crate::protocol) struct Words<'w> {
    pub warnings: &'w mut Warnings,
    pub recall: &'w mut Recall,
    /// Warn about cache breakpoints.
    pub marks: bool,
}

impl Words<'_> {
    /// Returns the tool's name as it is sent to the vendor.
    pub fn tool_name(&mut self, name: &Text<'_>, at: impl std::fmt::Display) -> String {
        names::tool_name(name.value(), at, self.warnings, self.recall).into_owned()
    }

    /// Converts a block of the turn `at` to the pieces of one text. Returns no pieces if the block
    /// is empty, or if an earlier block already included it.
    pub fn opaque<'a>(
        &mut self,
        (at, blocks): (At, &[Block<'a>]),
        block: At,
        opaque: &Opaque<'a>,
        results: &mut Option<FarResults<'a>>,
    ) -> Vec<Text<'a>> {
        match opaque.name.value().as_ref() {
            "search_result" => self.search_result(block, opaque.value),
            "compaction" => self
                .summary(block, opaque.value)
                .map(Vec::from)
                .unwrap_or_default(),
            _ => {
                let results = results.get_or_insert_with(|| FarResults::of(blocks));
                self.far_tool(at, opaque, results)
                    .map(Text::made)
                    .into_iter()
                    .collect()
            }
        }
    }

    /// Converts a block of a tool result to the pieces of one text.
    pub fn given_back<'a>(&mut self, at: At, opaque: &Opaque<'a>) -> Vec<Text<'a>> {
        match opaque.name.value().as_ref() {
            "search_result" => self.search_result(at, opaque.value),
            "tool_reference" => {
                let name = member(opaque.value, "tool_name").unwrap_or(Text::made(""));
                vec![Text::made(format!(
                    "[tool available: {}]",
                    self.tool_name(&name, at)
                ))]
            }
            _ => {
                let mut json = Vec::new();
                compact(opaque.value.raw(), &mut json);
                vec![Text::made(String::from_utf8(json).unwrap_or_default())]
            }
        }
    }

    /// Writes a search result between tags.
    fn search_result<'a>(&mut self, at: At, value: Value<'a>) -> Vec<Text<'a>> {
        let wants_citations = value
            .get("citations")
            .and_then(|citations| citations.get("enabled"));
        self.citations(at, wants_citations.and_then(Value::bool).unwrap_or(false));
        let mut open = String::from("<search_result");
        attribute("source", member(value, "source").as_ref(), &mut open);
        attribute("title", member(value, "title").as_ref(), &mut open);
        open.push_str(">\n");
        let mut texts = vec![Text::made(open)];
        texts.extend(
            value
                .get("content")
                .into_iter()
                .flat_map(Value::items)
                .filter_map(|item| member(item, "text")),
        );
        texts.push(Text::made("\n</search_result>"));
        texts
    }

    /// Writes the texts of a document between tags. A document that is sent as a file yields only
    /// its context, which precedes it.
    pub fn document<'t>(&mut self, at: At, file: &'t File<'_>) -> Vec<Text<'t>> {
        self.citations(at, file.wants_citations);
        let context = file
            .context
            .as_ref()
            .map(|context| [Text::made("Context: "), context.borrowed()]);
        if let FileContent::Pdf(_) | FileContent::Url(_) = file.content {
            return context.into_iter().flatten().collect();
        }
        let mut open = String::from("<document");
        attribute("title", file.title.as_ref(), &mut open);
        open.push_str(">\n");
        let mut texts = vec![Text::made(open)];
        if let Some(context) = context {
            texts.extend(context);
            texts.push(Text::made("\n"));
        }
        match &file.content {
            FileContent::Pdf(_) | FileContent::Url(_) => {}
            FileContent::Text(text) => texts.push(text.borrowed()),
            FileContent::Blocks(blocks) => {
                texts.extend(blocks.iter().filter_map(|block| match &block.kind {
                    BlockKind::Text(text) => Some(text.borrowed()),
                    _ => None,
                }));
            }
        }
        texts.push(Text::made("\n</document>"));
        texts
    }

    fn citations(&mut self, at: At, are_wanted: bool) {
        if are_wanted {
            self.warnings
                .add(Action::Dropped, format_args!("{at}.citations"));
        }
    }

    /// Returns the text of a compaction, if it is readable.
    fn summary<'a>(&mut self, at: At, value: Value<'a>) -> Option<[Text<'a>; 2]> {
        if value
            .get("tool_changes")
            .is_some_and(|changes| changes.items().next().is_some())
        {
            self.warnings
                .add(Action::Dropped, format_args!("{at}.tool_changes"));
        }
        let content = member(value, "content").filter(|content| !content.is_blank())?;
        Some([Text::made(SUMMARY), content])
    }

    /// Describes the call and the result of a hosted tool. Returns `None` if the block belongs to
    /// an earlier one, or if it is empty.
    fn far_tool(
        &mut self,
        at: At,
        opaque: &Opaque<'_>,
        results: &mut FarResults<'_>,
    ) -> Option<String> {
        let kind = opaque.name.value();
        let (call, result) = match kind.as_ref() {
            "fallback" | "mcp_tool_listing" => return None,
            "server_tool_use" | "mcp_tool_use" => {
                let id = opaque
                    .value
                    .get("id")
                    .and_then(Value::string)
                    .unwrap_or_default();
                (Some(opaque.value), results.take(&id))
            }
            _ => {
                let id = opaque
                    .value
                    .get("tool_use_id")
                    .and_then(Value::string)
                    .unwrap_or_default();
                if results.is_told(&id) {
                    return None;
                }
                (None, Some(opaque.value))
            }
        };
        self.warnings.add(Action::Rewritten, at);
        let lines = [call.map(used), result.map(gave_back)];
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
pub(in crate::protocol) struct FarResults<'a> {
    open: HashMap<String, Value<'a>>,
    told: HashMap<String, Value<'a>>,
}

impl<'a> FarResults<'a> {
    fn of(blocks: &[Block<'a>]) -> Self {
        let mut results = FarResults::default();
        for block in blocks {
            if let BlockKind::Opaque(opaque) = &block.kind
                && let Some(id) = opaque.value.get("tool_use_id").and_then(Value::string)
            {
                results.open.insert(id.into_owned(), opaque.value);
            }
        }
        results
    }

    /// Takes the result of this call, to be written together with the call.
    fn take(&mut self, call: &str) -> Option<Value<'a>> {
        let (id, value) = self.open.remove_entry(call)?;
        self.told.insert(id, value);
        Some(value)
    }

    fn is_told(&self, call: &str) -> bool {
        self.told.contains_key(call)
    }
}

fn used(call: Value<'_>) -> String {
    let name = call.get("name").and_then(Value::string).unwrap_or_default();
    let mut input = Vec::new();
    compact(call.get("input").map_or("{}", Value::raw), &mut input);
    format!(
        "[used {name}: {}]",
        String::from_utf8(input).unwrap_or_default()
    )
}

/// Writes one line per search hit; for any other result its text, truncated.
fn gave_back(result: Value<'_>) -> String {
    let mut out = Told::default();
    out.value(result.get("content"), 0);
    out.text
}

#[derive(Default)]
struct Told {
    text: String,
    chars: usize,
    hits: usize,
}

impl Told {
    /// Adds every text in the value, under the member names that results use.
    fn value(&mut self, value: Option<Value<'_>>, depth: u32) {
        let Some(value) = value.filter(|_| depth < DEPTH_MAX && self.chars < RESULT_CHARS_MAX)
        else {
            return;
        };
        if let Some(text) = value.string() {
            self.line(&text);
            return;
        }
        for item in value.items() {
            self.value(Some(item), depth + 1);
        }
        if !value.is_object() {
            return;
        }
        let text = |name| value.get(name).and_then(Value::string);
        if let Some(code) = text("error_code") {
            self.line(&format!("[error: {code}]"));
        } else if let (Some(title), Some(url)) = (text("title"), text("url")) {
            self.hit(&title, &url);
        } else if let Some(name) = text("tool_name") {
            self.line(&format!("[tool available: {name}]"));
        } else if value.get("type").is_some_and(|kind| kind.is("base64")) {
            // The bytes of a file are not text.
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
                self.value(value.get(name), depth + 1);
            }
        }
    }

    /// Adds a hit in full with its URL: a truncated URL is useless.
    fn hit(&mut self, title: &str, url: &str) {
        let line = format!("- {title}: {url}");
        let counted = self.chars;
        self.hits += 1;
        self.push(&line, usize::MAX);
        // Titles do not count toward the limit for text.
        self.chars = counted;
    }

    fn line(&mut self, line: &str) {
        self.push(line, RESULT_CHARS_MAX.saturating_sub(self.chars));
    }

    fn push(&mut self, line: &str, chars_max: usize) {
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

/// Appends ` name="value"`, or nothing if there is no value.
fn attribute(name: &str, value: Option<&Text<'_>>, out: &mut String) {
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
