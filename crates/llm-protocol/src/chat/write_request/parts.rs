//! Writes instructions and user content: a plain string for a single text, otherwise parts.
//!
//! The writer must keep the client's spelling of texts.
//!
//! Read next: `chat/write_request/results.rs`.

use super::writer::ChatRequestWriter;
use crate::ir::{Block, Image, ImageDetail, JsonPath};
use crate::json::{JoinedText, JsonStr, JsonWriter};
use crate::openai::parts::{ContentPart, PartContent, file_name};

/// Type of the part that holds a document by its URL, and the member with the URL.
pub(crate) const DOCUMENT_URL: &str = "document_url";
const PDF_DATA_URL: &str = "data:application/pdf;base64,";

impl ChatRequestWriter<'_> {
    pub(super) fn content(&mut self, parts: &[ContentPart<'_>]) {
        match parts {
            [] => drop(self.json.value("")),
            [
                ContentPart {
                    content: PartContent::Text(text),
                    is_marked: false,
                },
            ] => drop(self.json.value(JoinedText(text))),
            parts => {
                self.json.open_array();
                for part in parts {
                    if matches!(
                        part.content,
                        PartContent::Image(Image {
                            detail: Some(ImageDetail::Original),
                            ..
                        })
                    ) {
                        self.fallback.warnings.clamped("input[].content[].detail");
                    }
                    let takes_url = self.write_context.target.profile.takes(DOCUMENT_URL);
                    write_part(part, takes_url, &mut self.json);
                }
                self.json.close_array();
            }
        }
    }

    /// Writes a message with instructions, or nothing if they are blank.
    pub(super) fn instructions(&mut self, blocks: &[Block<'_>]) {
        let parts = self.fallback.parts(JsonPath::System(0), blocks);
        self.instruction_parts(&parts);
    }

    pub(super) fn instruction_parts(&mut self, parts: &[ContentPart<'_>]) {
        if parts.is_empty() || !parts.iter().all(ContentPart::is_text) {
            return;
        }
        self.json
            .open_object()
            .member("role", self.model.system_role)
            .key("content");
        self.content(parts);
        self.json.close_object();
    }
}

/// Writes a part. `takes_url` says whether the vendor accepts documents as parts of the type
/// `document_url`.
fn write_part(part: &ContentPart<'_>, takes_url: bool, json: &mut JsonWriter) {
    json.open_object().key("type");
    match &part.content {
        PartContent::Text(text) => drop(json.value("text").member("text", JoinedText(text))),
        PartContent::Image(image) => {
            json.value("image_url")
                .member_object("image_url")
                .key("url");
            image.source.write_url(json);
            if let Some(detail) = image.detail {
                // The chat protocol has no higher level.
                let detail = if detail == ImageDetail::Original {
                    ImageDetail::High
                } else {
                    detail
                };
                json.member("detail", detail.as_str());
            }
            json.close_object();
        }
        PartContent::File(file, data) if takes_url => {
            json.value(DOCUMENT_URL).member(
                DOCUMENT_URL,
                JoinedText(&[JsonStr::from_value(PDF_DATA_URL), data.reborrow()]),
            );
            json.member("document_name", file_name(file));
        }
        PartContent::File(file, data) => {
            json.value("file").member_object("file");
            json.member("filename", file_name(file));
            json.member(
                "file_data",
                JoinedText(&[JsonStr::from_value(PDF_DATA_URL), data.reborrow()]),
            );
            json.close_object();
        }
        // The gateway has refused such a request already. Writing the URL as text would not send
        // the document.
        PartContent::FileAt(url) => drop(json.value("text").member("text", url)),
    }
    if part.is_marked {
        json.member("prompt_cache_breakpoint", ("mode", "explicit"));
    }
    json.close_object();
}
