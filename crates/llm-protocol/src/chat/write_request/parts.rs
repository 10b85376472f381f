//! Writes instructions and user content: a plain string for a single text, otherwise parts.
//!
//! It must keep the caller's spelling of texts.
//!
//! Read next: `chat/write_request/results.rs`.

use super::ChatRequestWriter;
use super::text_fallback::TextFallback;
use crate::ir::{Block, BlockKind, File, FileContent, Image, ImageDetail, JsonPath, WarningAction};
use crate::json_string::{JsonStr, JsonWriter};

/// File name for a document without a title.
const DEFAULT_FILE_NAME: &str = "document.pdf";

/// Part of a user message.
pub(crate) struct ContentPart<'t> {
    pub said: PartContent<'t>,
    /// A cache breakpoint follows it.
    pub is_marked: bool,
}

pub(crate) enum PartContent<'t> {
    Text(JsonStr<'t>),
    /// One text in several pieces.
    Texts(Vec<JsonStr<'t>>),
    Image(&'t Image<'t>),
    /// PDF and its data.
    File(&'t File<'t>, &'t JsonStr<'t>),
    /// URL of a document.
    FileAt(&'t JsonStr<'t>),
}

impl<'t> ContentPart<'t> {
    pub fn new(said: PartContent<'t>) -> Self {
        ContentPart {
            said,
            is_marked: false,
        }
    }

    pub fn is_text(&self) -> bool {
        matches!(self.said, PartContent::Text(_) | PartContent::Texts(_))
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
                        parts.push(ContentPart::new(PartContent::Text(text.reborrow())));
                    }
                }
                BlockKind::Image(image) => parts.push(ContentPart::new(PartContent::Image(image))),
                BlockKind::File(file) => self.push_file(block, file, &mut parts),
                BlockKind::Opaque(opaque) => {
                    let texts = self.opaque_block((at, blocks), block.at, opaque, &mut results);
                    parts.extend(
                        (!texts.is_empty()).then(|| ContentPart::new(PartContent::Texts(texts))),
                    );
                }
                // Results are written before; a user turn has no calls and no reasoning.
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

    /// Adds a document: its texts, then the file if it has no text form.
    pub fn push_file<'t>(
        &mut self,
        block: &'t Block<'_>,
        file: &'t File<'t>,
        parts: &mut Vec<ContentPart<'t>>,
    ) {
        let texts = self.document(block.at, file);
        if !texts.is_empty() {
            parts.push(ContentPart::new(PartContent::Texts(texts)));
        }
        match &file.content {
            FileContent::Text(_) => {}
            FileContent::Pdf(data) => parts.push(ContentPart::new(PartContent::File(file, data))),
            FileContent::Url(url) => {
                if file.title.is_some() {
                    let name = if self.recall.voice.is_some() {
                        "filename"
                    } else {
                        "title"
                    };
                    self.warnings
                        .add(WarningAction::Dropped, format_args!("{}.{name}", block.at));
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

impl ChatRequestWriter<'_> {
    /// Writes the value of `content`.
    pub(super) fn content(&mut self, parts: &[ContentPart<'_>]) {
        match parts {
            [] => drop(self.json.str("")),
            [
                ContentPart {
                    said: PartContent::Text(text),
                    is_marked: false,
                },
            ] => drop(self.json.text(text)),
            [
                ContentPart {
                    said: PartContent::Texts(texts),
                    is_marked: false,
                },
            ] => drop(self.json.concat(texts)),
            parts => {
                self.json.open_array();
                for part in parts {
                    if matches!(
                        part.said,
                        PartContent::Image(Image {
                            detail: Some(ImageDetail::Original),
                            ..
                        })
                    ) {
                        self.words
                            .warnings
                            .add(WarningAction::Clamped, "input[].content[].detail");
                    }
                    write_part(part, &mut self.json);
                }
                self.json.close_array();
            }
        }
    }

    /// Writes a message with instructions, or nothing if they are blank.
    pub(super) fn instructions(&mut self, blocks: &[Block<'_>]) {
        // Instructions contain only texts, so the function for user turns works here too.
        let parts = self.words.parts(JsonPath::System(0), blocks);
        if parts.is_empty() || !parts.iter().all(ContentPart::is_text) {
            return;
        }
        self.json
            .open_object()
            .key("role")
            .str(self.model.system_role)
            .key("content");
        self.content(&parts);
        self.json.close_object();
    }
}

fn write_part(part: &ContentPart<'_>, json: &mut JsonWriter) {
    json.open_object().key("type");
    match &part.said {
        PartContent::Text(text) => drop(json.str("text").key("text").text(text)),
        PartContent::Texts(texts) => drop(json.str("text").key("text").concat(texts)),
        PartContent::Image(image) => {
            json.str("image_url")
                .key("image_url")
                .open_object()
                .key("url");
            image.source.write_url(json);
            if let Some(detail) = image.detail {
                // The chat protocol has no higher level.
                let detail = if detail == ImageDetail::Original {
                    ImageDetail::High
                } else {
                    detail
                };
                json.key("detail").str(detail.as_str());
            }
            json.close_object();
        }
        PartContent::File(file, data) => {
            json.str("file").key("file").open_object();
            json.key("filename").str(&file_name(file));
            json.key("file_data").concat(&[
                JsonStr::from_value("data:application/pdf;base64,"),
                data.reborrow(),
            ]);
            json.close_object();
        }
        // The request was refused before; the URL as text would not be the document.
        PartContent::FileAt(url) => drop(json.str("text").key("text").text(url)),
    }
    if part.is_marked {
        json.key("prompt_cache_breakpoint")
            .open_object()
            .key("mode")
            .str("explicit")
            .close_object();
    }
    json.close_object();
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
