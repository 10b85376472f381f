//! Measures the content of a request body by kind: text, images, documents, audio. The pass that
//! reads the body collects it.
//!
//! The quote (the maximum amount of text) and the estimate of an answer without reported usage
//! depend on these sizes alone. This file must not price anything, nor count base64 as text.
//!
//! Read next: `image_size.rs`, `estimate.rs` (weights), `billing/estimate.rs` and
//! `billing/quote.rs`.

use crate::estimate::{ASSUMED_PAGES, TOKENS_PER_PAGE, estimate_pages};
use crate::image_size;
use crate::json::StringToken;
use crate::usage::text_tokens;

/// Maximum tokens of an image at a messages vendor: (width × height) ÷ 750 at the largest accepted
/// size. This is also the estimate for an image of unknown size. The source is the vendor's vision
/// guide, read 2026-11.
pub const MAX_IMAGE_TOKENS: u64 = 5_000;
const PIXELS_PER_TOKEN: u64 = 750;

/// Maximum bytes of ordinary text per token, over all tokenizers. Prose has 4 to 5, deeply indented
/// code up to 8; only runs of one letter or of spaces have more.
const MAX_BYTES_PER_TOKEN: u64 = 16;

/// Base64 bytes of audio per token. A chat vendor counts ten tokens a second, which take 8 kB to 64
/// kB of base64 depending on the encoding.
const AUDIO_BYTES_PER_TOKEN: u64 = 1_000;

/// Sizes of the content of one body, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ContentSize {
    body_bytes: u64,
    /// Number of bytes that unescaping saves, summed over all strings of the body.
    escape_bytes: u64,
    /// Number of bytes of the images' base64 in the body.
    image_bytes: u64,
    /// UTF-8 bytes of values that are not text, including images.
    binary_bytes: u64,
    /// Decoded bytes of encrypted reasoning.
    encrypted_bytes: u64,
    audio_bytes: u64,
    image_tokens: u64,
    document_tokens: u64,
}

impl ContentSize {
    /// Returns the maximum number of bytes that a vendor can read as text, which is everything but
    /// the base64 of images.
    pub fn max_text_bytes(&self) -> u64 {
        self.body_bytes.saturating_sub(self.image_bytes)
    }

    /// Returns the estimated input tokens of text, images and documents, without audio.
    pub fn estimated_tokens(&self) -> u64 {
        let text = text_tokens(self.plain_bytes().saturating_add(self.encrypted_bytes));
        text.saturating_add(self.image_tokens)
            .saturating_add(self.document_tokens)
    }

    /// Returns the minimum number of input tokens of the plain text. Images and documents have no
    /// minimum.
    pub fn min_tokens(&self) -> u64 {
        self.plain_bytes() / MAX_BYTES_PER_TOKEN
    }

    fn plain_bytes(&self) -> u64 {
        self.body_bytes
            .saturating_sub(self.escape_bytes)
            .saturating_sub(self.binary_bytes)
    }

    pub fn audio_tokens(&self) -> u64 {
        self.audio_bytes.div_ceil(AUDIO_BYTES_PER_TOKEN)
    }

    /// Adds an image. `data` is its base64 or data URL, or `None` for a URL elsewhere.
    pub(super) fn add_image(&mut self, data: Option<&StringToken<'_>>) {
        let size =
            data.and_then(|data| image_size::image_dimensions(strip_data_url_head(data.raw)));
        let tokens = size.map_or(MAX_IMAGE_TOKENS, |(width, height)| {
            u64::from(width)
                .saturating_mul(height.into())
                .div_ceil(PIXELS_PER_TOKEN)
                .min(MAX_IMAGE_TOKENS)
        });
        self.image_tokens = self.image_tokens.saturating_add(tokens);
        if let Some(data) = data {
            self.image_bytes = self.image_bytes.saturating_add(byte_len(data.raw));
            self.add_binary(data);
        }
    }

    /// Adds a document, file or video.
    pub(super) fn add_document(&mut self, data: Option<&StringToken<'_>>) {
        let pages = data.map_or(ASSUMED_PAGES, |data| {
            estimate_pages(strip_data_url_head(data.raw))
        });
        self.document_tokens = self
            .document_tokens
            .saturating_add(pages.saturating_mul(TOKENS_PER_PAGE));
        data.into_iter().for_each(|data| self.add_binary(data));
    }

    pub(super) fn add_audio(&mut self, data: &StringToken<'_>) {
        self.audio_bytes = self.audio_bytes.saturating_add(byte_len(data.raw));
        self.add_binary(data);
    }

    /// Adds encrypted reasoning, which only its vendor can read. The vendor reads the shorter
    /// plaintext.
    pub(super) fn add_encrypted(&mut self, data: &StringToken<'_>) {
        self.encrypted_bytes = self
            .encrypted_bytes
            .saturating_add(data.decoded_bytes() / 4 * 3);
        self.add_binary(data);
    }

    /// Adds a value that no model reads, such as an id.
    pub(super) fn add_binary(&mut self, data: &StringToken<'_>) {
        self.binary_bytes = self.binary_bytes.saturating_add(data.decoded_bytes());
    }

    /// Completes the sizes at the end of the pass.
    pub(super) fn finish(&mut self, body_bytes: usize, escape_bytes: usize) {
        self.body_bytes = u64::try_from(body_bytes).unwrap_or(u64::MAX);
        self.escape_bytes = u64::try_from(escape_bytes).unwrap_or(u64::MAX);
    }
}

/// Returns the data of a data URL, or the whole text if it is not one.
fn strip_data_url_head(raw: &str) -> &str {
    let is_url = raw.starts_with("data:");
    raw.split_once("base64,")
        .filter(|_| is_url)
        .map_or(raw, |(_, data)| data)
}

fn byte_len(raw: &str) -> u64 {
    u64::try_from(raw.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Protocol::{self, Chat, Messages, Responses};
    use crate::request::read_summary;
    use base64::Engine;

    fn content(protocol: Protocol, body: &str) -> ContentSize {
        read_summary(protocol, body.as_bytes())
            .unwrap()
            .features
            .content
    }

    fn user_message(content: &str) -> String {
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{content}]}}]}}"#)
    }

    fn encoded(bytes: &[u8]) -> String {
        base64::engine::general_purpose::STANDARD.encode(bytes)
    }

    fn png(bytes: usize) -> String {
        let mut image =
            b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x04\xb0\0\0\x03\xe8\x08\x02\0\0\0".to_vec();
        image.resize(bytes, 0xff);
        encoded(&image)
    }

    /// Returns the tokens of the text around the data.
    fn around(body: &str, data: &str) -> u64 {
        text_tokens(byte_len(body) - byte_len(data))
    }

    #[test]
    fn text_is_counted_as_it_reads_and_not_as_it_is_escaped() {
        let plain = r#"{"model":"m","messages":[{"role":"user","content":"ab"}]}"#;
        let escaped = r#"{"model":"m","messages":[{"role":"user","content":"\u0061\n"}]}"#;
        assert_eq!(
            content(Chat, plain).estimated_tokens(),
            text_tokens(byte_len(plain))
        );
        assert_eq!(
            content(Chat, escaped),
            ContentSize {
                escape_bytes: 6,
                ..content(Chat, escaped)
            }
        );
        assert_eq!(
            content(Chat, escaped).estimated_tokens(),
            content(Chat, plain).estimated_tokens()
        );
        assert_eq!(content(Chat, escaped).max_text_bytes(), byte_len(escaped));
        assert_eq!(content(Chat, plain).audio_tokens(), 0);
        assert_eq!(content(Chat, plain).min_tokens(), byte_len(plain) / 16);
        assert_eq!(
            content(Chat, escaped).min_tokens(),
            content(Chat, plain).min_tokens()
        );
    }

    #[test]
    fn an_image_is_counted_by_its_pixels_on_every_surface() {
        let data = png(750_000);
        let slashed = data.replace('/', "\\/");
        let url = format!("data:image/png;base64,{data}");
        let slashed_url = format!(r"data:image\/png;base64,{slashed}");
        let bodies = [
            (
                Messages,
                user_message(&format!(
                    r#"{{"type":"image","source":{{"type":"base64","data":"{data}"}}}}"#
                )),
                &data,
            ),
            (
                Messages,
                user_message(&format!(
                    r#"{{"source":{{"data":"{slashed}"}},"type":"image"}}"#
                )),
                &slashed,
            ),
            (
                Chat,
                user_message(&format!(
                    r#"{{"type":"image_url","image_url":{{"url":"{url}"}}}}"#
                )),
                &url,
            ),
            (
                Chat,
                user_message(&format!(r#"{{"image_url":{{"url":"{slashed_url}"}}}}"#)),
                &slashed_url,
            ),
            (
                Responses,
                format!(
                    r#"{{"model":"m","input":[{{"content":[{{"type":"input_image","image_url":"{url}"}}]}}]}}"#
                ),
                &url,
            ),
        ];
        for (protocol, body, data) in bodies {
            let content = content(protocol, &body);
            assert_eq!(
                content.estimated_tokens(),
                1_600 + around(&body, data),
                "{protocol:?}"
            );
            assert_eq!(
                content.max_text_bytes(),
                byte_len(&body) - byte_len(data),
                "{protocol:?}"
            );
        }
    }

    #[test]
    fn an_image_of_unknown_or_large_size_is_counted_at_the_bound() {
        let huge =
            encoded(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\xff\xff\xff\0\xff\xff\xff\x08\x02\0\0\0");
        for data in ["AAAA", &huge] {
            let body = user_message(&format!(
                r#"{{"type":"image","source":{{"type":"base64","data":"{data}"}}}}"#
            ));
            assert_eq!(
                content(Messages, &body).estimated_tokens(),
                5_000 + around(&body, data)
            );
        }
        let far = user_message(r#"{"type":"image","source":{"type":"url","url":"https://x/y"}}"#);
        assert_eq!(
            content(Messages, &far).estimated_tokens(),
            5_000 + around(&far, "")
        );
        let two = user_message(
            r#"{"type":"image","source":{}},{"type":"tool_result","content":[{"type":"image","source":{}}]}"#,
        );
        assert_eq!(
            content(Messages, &two).estimated_tokens(),
            10_000 + around(&two, "")
        );
    }

    #[test]
    fn a_document_is_counted_by_its_pages_or_its_size_and_plain_text_as_text() {
        let pdf =
            encoded("%PDF-1.4 << /Type /Page >> << /Type /Page >> << /Type /Page >>".as_bytes());
        let url = format!("data:application/pdf;base64,{pdf}");
        let packed = encoded(&[7; 60_000]);
        for (protocol, body, data, pages) in [
            (
                Messages,
                user_message(&format!(
                    r#"{{"type":"document","source":{{"data":"{pdf}"}}}}"#
                )),
                &pdf,
                3,
            ),
            (
                Messages,
                user_message(&format!(
                    r#"{{"type":"document","source":{{"data":"{packed}"}}}}"#
                )),
                &packed,
                10,
            ),
            (
                Chat,
                user_message(&format!(
                    r#"{{"type":"file","file":{{"filename":"a","file_data":"{url}"}}}}"#
                )),
                &url,
                3,
            ),
            (
                Responses,
                format!(
                    r#"{{"model":"m","input":[{{"content":[{{"type":"input_file","file_data":"{url}"}}]}}]}}"#
                ),
                &url,
                3,
            ),
        ] {
            let content = content(protocol, &body);
            assert_eq!(
                content.estimated_tokens(),
                pages * 1_500 + around(&body, data),
                "{protocol:?}"
            );
            assert_eq!(
                content.max_text_bytes(),
                byte_len(&body),
                "no document lowers what is held"
            );
        }
        let far =
            user_message(r#"{"type":"document","source":{"type":"url","url":"https://x/y.pdf"}}"#);
        assert_eq!(
            content(Messages, &far).estimated_tokens(),
            15_000 + around(&far, "")
        );
        let text =
            user_message(r#"{"type":"document","source":{"type":"text","data":"a long text"}}"#);
        assert_eq!(
            content(Messages, &text).estimated_tokens(),
            around(&text, "")
        );
    }

    #[test]
    fn what_only_claims_to_be_an_image_is_still_held_for_as_text() {
        for block in [
            r#"{"type":"text","text":"x","source":{"type":"base64","data":"some words"}}"#,
            r#"{"type":"image","source":{"type":"text","data":"some words"}}"#,
            r#"{"type":"image","data":"some words"}"#,
            r#"{"type":"image","text":"some words","source":{}}"#,
        ] {
            let body = user_message(block);
            assert_eq!(
                content(Messages, &body).max_text_bytes(),
                byte_len(&body),
                "{block}"
            );
        }
    }

    #[test]
    fn audio_and_what_is_encrypted_are_no_text() {
        let data = "A".repeat(12_001);
        let audio = user_message(&format!(
            r#"{{"type":"input_audio","input_audio":{{"data":"{data}","format":"wav"}}}}"#
        ));
        let counted = content(Chat, &audio);
        assert_eq!(
            (counted.estimated_tokens(), counted.audio_tokens()),
            (around(&audio, &data), 13)
        );
        let signed = user_message(&format!(
            r#"{{"type":"thinking","thinking":"t","signature":"{data}"}}"#
        ));
        assert_eq!(
            content(Messages, &signed).estimated_tokens(),
            around(&signed, &data)
        );
        let encrypted = [
            (
                Messages,
                user_message(&format!(
                    r#"{{"type":"redacted_thinking","data":"{data}"}}"#
                )),
            ),
            (
                Responses,
                format!(
                    r#"{{"model":"m","input":[{{"type":"reasoning","encrypted_content":"{data}"}}]}}"#
                ),
            ),
        ];
        for (protocol, body) in encrypted {
            let text = byte_len(&body) - 12_001 + 9_000;
            assert_eq!(
                content(protocol, &body).estimated_tokens(),
                text_tokens(text),
                "{protocol:?}"
            );
        }
    }
}
