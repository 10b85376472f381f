//! Estimates the input tokens of a request before a vendor counts them: for `count_tokens` of
//! models whose vendor does not offer it, and for members of a stream that need a number early.
//!
//! The estimate must err upwards, because clients shorten their history by it and a low one leads
//! to hard errors. It uses no tokenizer, whose tables would take more memory than the rest of the
//! gateway.
//!
//! Read next: `ir.rs`.

use super::ir::{
    Block, BlockKind, FileContent, Request, Thinking, ToolArguments, ToolKind, ToolResultContent,
};
use super::json::{JsonStr, JsonValue};
use crate::usage::HUNDREDTHS_PER_TEXT_BYTE;
use base64::Engine;
use memchr::memmem;
use std::borrow::Cow;

/// Weights in hundredths of a token. A byte of UTF-8 text is 1 ÷ 3.5 token, with a margin of ×
/// 1.05; a counted token is the margin alone.
const HUNDREDTHS_PER_BYTE: u64 = HUNDREDTHS_PER_TEXT_BYTE;
const HUNDREDTHS_PER_TOKEN: u64 = 105;

const TOKENS_PER_MESSAGE: u64 = 4;
const TOKENS_PER_TOOL: u64 = 8;
const TOKENS_FOR_TOOLS: u64 = 300;
const TOKENS_PER_IMAGE: u64 = 1_600;
/// Number of tokens of a page that the model reads as text and as an image.
pub(super) const TOKENS_PER_PAGE: u64 = 1_500;
/// Number of pages assumed for a document that only its vendor can read.
pub(super) const ASSUMED_PAGES: u64 = 10;
/// Number of base64 bytes per page. A large page has as many if the pages were counted; a small one
/// has as many if the pages are compressed.
const PAGE_BASE64_BYTES: u64 = 1_048_576;
const PACKED_PAGE_BASE64_BYTES: u64 = 8_192;

/// Number of body bytes per input token. The constant also bounds the memory that is allocated for
/// a body at once; a larger body grows the buffer.
const BODY_BYTES_PER_TOKEN: u64 = 4;
const MAX_INITIAL_BODY_BYTES: u64 = 32 << 20;

/// Returns the initial capacity of a body with this estimated number of input tokens.
pub fn initial_body_capacity(input_tokens: u64) -> usize {
    let bytes = input_tokens
        .saturating_mul(BODY_BYTES_PER_TOKEN)
        .min(MAX_INITIAL_BODY_BYTES);
    usize::try_from(bytes).unwrap_or_default()
}

pub fn estimate_input_tokens(request: &Request<'_>) -> u64 {
    let mut sum = TokenEstimate::default();
    request.system.iter().for_each(|block| sum.add_block(block));
    for turn in &request.turns {
        sum.tokens += TOKENS_PER_MESSAGE;
        turn.blocks.iter().for_each(|block| sum.add_block(block));
    }
    if !request.system.is_empty() {
        sum.tokens += TOKENS_PER_MESSAGE;
    }
    if !request.tools.is_empty() {
        sum.tokens += TOKENS_FOR_TOOLS;
    }
    for tool in &request.tools {
        sum.tokens += TOKENS_PER_TOOL;
        match &tool.kind {
            ToolKind::Function(function) => {
                sum.add_text(&function.name);
                function
                    .description
                    .iter()
                    .for_each(|text| sum.add_text(text));
                function
                    .schema
                    .into_iter()
                    .for_each(|schema| sum.add_json(schema));
                function
                    .examples
                    .into_iter()
                    .for_each(|examples| sum.add_json(examples));
            }
            ToolKind::Custom {
                name,
                description,
                format,
            } => {
                sum.add_text(name);
                description.iter().for_each(|text| sum.add_text(text));
                format.iter().for_each(|format| sum.add_json(*format));
            }
            ToolKind::Vendor { value, .. } => sum.add_json(*value),
        }
    }
    if let super::ir::OutputFormat::Schema { schema, .. } = &request.format {
        sum.add_json(*schema);
    }
    sum.total()
}

#[derive(Default)]
struct TokenEstimate {
    bytes: u64,
    /// Number of tokens of all items so far, without the margin.
    tokens: u64,
}

impl TokenEstimate {
    fn add_text(&mut self, text: &JsonStr<'_>) {
        self.bytes += text.decoded_bytes();
    }

    fn add_json(&mut self, value: JsonValue<'_>) {
        self.bytes += u64::try_from(value.raw().len()).unwrap_or(u64::MAX);
    }

    fn add_block(&mut self, block: &Block<'_>) {
        match &block.kind {
            BlockKind::Text(text) | BlockKind::Refusal(text) => self.add_text(text),
            BlockKind::Image(_) => self.tokens += TOKENS_PER_IMAGE,
            BlockKind::File(file) => {
                file.title
                    .iter()
                    .chain(&file.context)
                    .for_each(|text| self.add_text(text));
                match &file.content {
                    FileContent::Pdf(data) => {
                        self.tokens += TOKENS_PER_PAGE * estimate_pages(&data.value())
                    }
                    FileContent::Text(text) => self.add_text(text),
                    FileContent::Url(_) => self.tokens += TOKENS_PER_PAGE * ASSUMED_PAGES,
                    FileContent::Blocks(blocks) => {
                        blocks.iter().for_each(|block| self.add_block(block))
                    }
                }
            }
            BlockKind::Thinking(Thinking::Shown { text, .. }) => self.add_text(text),
            BlockKind::Thinking(Thinking::Hidden { data }) => self.add_text(data),
            BlockKind::Call(call) => {
                self.add_text(&call.name);
                match &call.arguments {
                    ToolArguments::Json(value) => self.add_json(*value),
                    ToolArguments::Text(text) => self.add_text(text),
                }
            }
            BlockKind::Result(result) => match &result.content {
                ToolResultContent::Nothing => {}
                ToolResultContent::Text(text) => self.add_text(text),
                ToolResultContent::Blocks(blocks) => {
                    blocks.iter().for_each(|block| self.add_block(block))
                }
            },
            BlockKind::Opaque(opaque) => self.add_json(opaque.value),
        }
    }

    fn total(&self) -> u64 {
        let hundredths = self
            .bytes
            .saturating_mul(HUNDREDTHS_PER_BYTE)
            .saturating_add(self.tokens.saturating_mul(HUNDREDTHS_PER_TOKEN));
        hundredths.div_ceil(100)
    }
}

/// Returns the number of pages of the PDF in `base64`, rounded up. Each page has a marker if the
/// PDF's objects are not compressed; otherwise the size determines the number.
pub(super) fn estimate_pages(base64: &str) -> u64 {
    // Some JSON writers escape every slash.
    let base64 = if base64.contains('\\') {
        base64.replace('\\', "").into()
    } else {
        Cow::Borrowed(base64)
    };
    let packed = u64::try_from(base64.len()).unwrap_or(u64::MAX);
    let pages = base64::engine::general_purpose::STANDARD
        .decode(base64.as_bytes())
        .map_or(0, |pdf| {
            let marks = memmem::find_iter(&pdf, b"/Type").filter(|at| {
                let behind = pdf.get(at + 5..).unwrap_or_default().trim_ascii_start();
                behind
                    .strip_prefix(b"/Page")
                    .is_some_and(|rest| rest.first() != Some(&b's'))
            });
            u64::try_from(marks.count()).unwrap_or(u64::MAX)
        });
    let per_page = if pages > 0 {
        PAGE_BASE64_BYTES
    } else {
        PACKED_PAGE_BASE64_BYTES
    };
    pages.max(packed.div_ceil(per_page)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_where_they_show_and_guessed_upwards_where_not() {
        let pages =
            |pdf: &[u8]| estimate_pages(&base64::engine::general_purpose::STANDARD.encode(pdf));
        let page = "<< /Type /Page /Parent 2 0 R >>\n<</Type/Page>>\n".repeat(15);
        assert_eq!(
            pages(format!("%PDF-1.4 << /Type /Pages >> {page}").as_bytes()),
            30
        );
        assert_eq!(pages(b"%PDF-1.7"), 1);
        assert_eq!(pages(&[7; 60_000]), 10);
        assert_eq!(super::estimate_pages("not base64"), 1);
    }
}
