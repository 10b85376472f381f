//! Converts the blocks of a user turn to the parts of a message, in the form that chat and
//! responses share.
//!
//! The conversion must keep the client's spelling of texts. Writing is up to the two protocols,
//! which have different forms.

use super::text_fallback::TextFallback;
use crate::ir::{Block, BlockKind, File, FileContent, Image, JsonPath};
use crate::json::JsonStr;

/// File name for a document without a title.
const DEFAULT_FILE_NAME: &str = "document.pdf";

pub(crate) struct ContentPart<'t> {
    pub content: PartContent<'t>,
    /// True if a cache breakpoint follows the part.
    pub is_marked: bool,
}

pub(crate) enum PartContent<'t> {
    /// One text, in one or several pieces.
    Text(Vec<JsonStr<'t>>),
    Image(&'t Image<'t>),
    /// A PDF, with its data.
    File(&'t File<'t>, &'t JsonStr<'t>),
    /// URL of a document.
    FileAt(&'t JsonStr<'t>),
}

impl<'t> ContentPart<'t> {
    pub fn new(content: PartContent<'t>) -> Self {
        ContentPart {
            content,
            is_marked: false,
        }
    }

    pub fn text(text: JsonStr<'t>) -> Self {
        ContentPart::new(PartContent::Text(vec![text]))
    }

    pub fn is_text(&self) -> bool {
        matches!(self.content, PartContent::Text(_))
    }
}

impl TextFallback<'_> {
    /// Converts the blocks of a user turn to parts, without its tool results.
    pub fn parts<'t>(&mut self, at: JsonPath, blocks: &'t [Block<'t>]) -> Vec<ContentPart<'t>> {
        let mut results = None;
        let mut parts = Vec::with_capacity(blocks.len());
        for block in blocks {
            let before = parts.len();
            match &block.kind {
                BlockKind::Text(text) | BlockKind::Refusal(text) => {
                    if !text.is_blank() {
                        parts.push(ContentPart::text(text.reborrow()));
                    }
                }
                BlockKind::Image(image) => parts.push(ContentPart::new(PartContent::Image(image))),
                BlockKind::File(file) => self.push_file(block, file, &mut parts),
                BlockKind::Opaque(opaque) => {
                    let texts = self.opaque_block((at, blocks), block.at, opaque, &mut results);
                    parts.extend(
                        (!texts.is_empty()).then(|| ContentPart::new(PartContent::Text(texts))),
                    );
                }
                // Results have been written already, and a user turn has no calls and no reasoning.
                BlockKind::Result(_) | BlockKind::Call(_) | BlockKind::Thinking(_) => {}
            }
            if self.marks
                && block.cache.is_some()
                && let Some(last) = parts.get_mut(before..).and_then(<[_]>::last_mut)
            {
                last.is_marked = true;
            }
        }
        parts
    }

    /// Adds a document: its texts, and then the file if it has no text form.
    pub fn push_file<'t>(
        &mut self,
        block: &'t Block<'_>,
        file: &'t File<'t>,
        parts: &mut Vec<ContentPart<'t>>,
    ) {
        let texts = self.document(block.at, file);
        if !texts.is_empty() {
            parts.push(ContentPart::new(PartContent::Text(texts)));
        }
        match &file.content {
            FileContent::Text(_) => {}
            FileContent::Pdf(data) => parts.push(ContentPart::new(PartContent::File(file, data))),
            FileContent::Url(url) => {
                if file.title.is_some() {
                    let name = if self.response_context.sequencer.is_some() {
                        "filename"
                    } else {
                        "title"
                    };
                    self.warnings.dropped(format_args!("{}.{name}", block.at));
                }
                parts.push(ContentPart::new(PartContent::FileAt(url)));
            }
            FileContent::Blocks(blocks) => {
                parts.extend(blocks.iter().filter_map(|block| match &block.kind {
                    BlockKind::Image(image) => Some(ContentPart::new(PartContent::Image(image))),
                    _ => None,
                }))
            }
        }
    }
}

pub(crate) fn file_name(file: &File<'_>) -> String {
    let Some(title) = file.title.as_ref().filter(|title| !title.is_blank()) else {
        return DEFAULT_FILE_NAME.to_owned();
    };
    let title = title.value();
    let end = title.len().saturating_sub(4);
    let has_ending = title
        .get(end..)
        .is_some_and(|ending| ending.eq_ignore_ascii_case(".pdf"));
    if has_ending {
        title.into_owned()
    } else {
        format!("{title}.pdf")
    }
}
