//! Writes instructions and user content: a plain string for a single text, otherwise parts.
//!
//! It must keep the caller's spelling of texts.
//!
//! Read next: `chat/write_request/results.rs`.

use super::Writer;
use super::foreign::Words;
use crate::protocol::form::{Action, At, Block, BlockKind, Detail, File, FileContent, Image};
use crate::protocol::text::{Json, Text};

/// File name for a document without a title.
const FILE_NAME: &str = "document.pdf";

/// Part of a user message.
pub(in crate::protocol) struct Part<'t> {
    pub said: Said<'t>,
    /// A cache breakpoint follows it.
    pub is_marked: bool,
}

pub(in crate::protocol) enum Said<'t> {
    Text(Text<'t>),
    /// One text in several pieces.
    Texts(Vec<Text<'t>>),
    Image(&'t Image<'t>),
    /// PDF and its data.
    File(&'t File<'t>, &'t Text<'t>),
    /// URL of a document.
    FileAt(&'t Text<'t>),
}

impl<'t> Part<'t> {
    pub fn of(said: Said<'t>) -> Self {
        Part {
            said,
            is_marked: false,
        }
    }

    pub fn is_text(&self) -> bool {
        matches!(self.said, Said::Text(_) | Said::Texts(_))
    }
}

impl Words<'_> {
    /// Converts the blocks of a user turn to parts, without its tool results.
    pub fn parts<'t>(&mut self, at: At, blocks: &'t [Block<'t>]) -> Vec<Part<'t>> {
        let mut results = None;
        let mut parts = Vec::with_capacity(blocks.len());
        for block in blocks {
            let before = parts.len();
            match &block.kind {
                BlockKind::Text(text) | BlockKind::Refusal(text) => {
                    if !text.is_blank() {
                        parts.push(Part::of(Said::Text(text.borrowed())));
                    }
                }
                BlockKind::Image(image) => parts.push(Part::of(Said::Image(image))),
                BlockKind::File(file) => self.file(block, file, &mut parts),
                BlockKind::Opaque(opaque) => {
                    let texts = self.opaque((at, blocks), block.at, opaque, &mut results);
                    parts.extend((!texts.is_empty()).then(|| Part::of(Said::Texts(texts))));
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
    pub fn file<'t>(
        &mut self,
        block: &'t Block<'_>,
        file: &'t File<'t>,
        parts: &mut Vec<Part<'t>>,
    ) {
        let texts = self.document(block.at, file);
        if !texts.is_empty() {
            parts.push(Part::of(Said::Texts(texts)));
        }
        match &file.content {
            FileContent::Text(_) => {}
            FileContent::Pdf(data) => parts.push(Part::of(Said::File(file, data))),
            FileContent::Url(url) => {
                if file.title.is_some() {
                    let name = if self.recall.voice.is_some() {
                        "filename"
                    } else {
                        "title"
                    };
                    self.warnings
                        .add(Action::Dropped, format_args!("{}.{name}", block.at));
                }
                parts.push(Part::of(Said::FileAt(url)));
            }
            FileContent::Blocks(blocks) => {
                parts.extend(blocks.iter().filter_map(|block| match &block.kind {
                    BlockKind::Image(image) => Some(Part::of(Said::Image(image))),
                    _ => None,
                }))
            }
        }
    }
}

impl Writer<'_> {
    /// Writes the value of `content`.
    pub(super) fn content(&mut self, parts: &[Part<'_>]) {
        match parts {
            [] => drop(self.json.str("")),
            [
                Part {
                    said: Said::Text(text),
                    is_marked: false,
                },
            ] => drop(self.json.text(text)),
            [
                Part {
                    said: Said::Texts(texts),
                    is_marked: false,
                },
            ] => drop(self.json.joined(texts)),
            parts => {
                self.json.open_array();
                for part in parts {
                    if matches!(
                        part.said,
                        Said::Image(Image {
                            detail: Some(Detail::Original),
                            ..
                        })
                    ) {
                        self.words
                            .warnings
                            .add(Action::Clamped, "input[].content[].detail");
                    }
                    write(part, &mut self.json);
                }
                self.json.close_array();
            }
        }
    }

    /// Writes a message with instructions, or nothing if they are blank.
    pub(super) fn instructions(&mut self, blocks: &[Block<'_>]) {
        // Instructions contain only texts, so the function for user turns works here too.
        let parts = self.words.parts(At::System(0), blocks);
        if parts.is_empty() || !parts.iter().all(Part::is_text) {
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

fn write(part: &Part<'_>, json: &mut Json) {
    json.open_object().key("type");
    match &part.said {
        Said::Text(text) => drop(json.str("text").key("text").text(text)),
        Said::Texts(texts) => drop(json.str("text").key("text").joined(texts)),
        Said::Image(image) => {
            json.str("image_url")
                .key("image_url")
                .open_object()
                .key("url");
            image.source.write_url(json);
            if let Some(detail) = image.detail {
                // The chat protocol has no higher level.
                let detail = if detail == Detail::Original {
                    Detail::High
                } else {
                    detail
                };
                json.key("detail").str(detail.as_str());
            }
            json.close_object();
        }
        Said::File(file, data) => {
            json.str("file").key("file").open_object();
            json.key("filename").str(&file_name(file));
            json.key("file_data")
                .joined(&[Text::made("data:application/pdf;base64,"), data.borrowed()]);
            json.close_object();
        }
        // The request was refused before; the URL as text would not be the document.
        Said::FileAt(url) => drop(json.str("text").key("text").text(url)),
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

pub(in crate::protocol) fn file_name(file: &File<'_>) -> String {
    let Some(title) = file.title.as_ref().filter(|title| !title.is_blank()) else {
        return FILE_NAME.to_owned();
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
