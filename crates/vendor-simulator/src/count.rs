//! Counts tokens for each vendor: text by its bytes, media as the vendors document.
//!
//! Text is counted approximately, as one token for four bytes of the body. Sources, read 2026-11:
//! the messages vendor's guides on vision and PDF, the chat vendor's guides on images (tiles) and
//! on audio.

use base64::Engine;
use serde_json::Value;

use super::errors::SimVendor;

pub const BYTES_PER_TOKEN: usize = 4;
/// For the messages vendor: longest edge of an image in pixels. The next constant is the number of
/// pixels per token.
const MAX_EDGE: u64 = 1_568;
const PIXELS_PER_TOKEN: u64 = 750;
/// For the chat vendor: largest image in pixels. The next constants are its shorter side after
/// scaling, and the edge of a tile.
const MAX_SQUARE: u64 = 2_048;
const MAX_SHORT_SIDE: u64 = 768;
const TILE_EDGE: u64 = 512;
/// Assumed size of an image whose size the simulator cannot read.
const DEFAULT_IMAGE_SIZE: (u64, u64) = (1_024, 1_024);
const TOKENS_PER_PAGE: u64 = 1_500;
/// Base64 bytes of a second of audio at 64 kbit/s. The next constant is the number of tokens per
/// second.
const AUDIO_BYTES_PER_SECOND: usize = 10_667;
const AUDIO_TOKENS_PER_SECOND: u64 = 10;

/// Returns the number of tokens of a text by the simulated vendors' own count.
pub fn tokens(bytes: usize) -> u64 {
    u64::try_from(bytes.div_ceil(BYTES_PER_TOKEN)).unwrap_or(u64::MAX)
}

pub fn input_tokens(vendor: SimVendor, model: &str, body: &Value, body_bytes: usize) -> u64 {
    let mut media = MediaCounter {
        vendor,
        model,
        bytes: 0,
        tokens: 0,
    };
    for member in ["messages", "input", "system"] {
        media.visit(&body[member]);
    }
    tokens(body_bytes.saturating_sub(media.bytes)).saturating_add(media.tokens)
}

struct MediaCounter<'a> {
    vendor: SimVendor,
    model: &'a str,
    bytes: usize,
    tokens: u64,
}

impl MediaCounter<'_> {
    fn visit(&mut self, value: &Value) {
        match value {
            Value::Array(values) => values.iter().for_each(|value| self.visit(value)),
            Value::Object(members) => {
                let kind = value["type"].as_str().unwrap_or_default();
                match kind {
                    "image" | "image_url" | "input_image" => self.image(value),
                    "document" | "file" | "input_file" if value["source"]["type"] != "text" => {
                        self.document(value)
                    }
                    "input_audio" => {
                        self.audio(value["input_audio"]["data"].as_str().unwrap_or_default())
                    }
                    _ => members.values().for_each(|value| self.visit(value)),
                }
            }
            _ => {}
        }
    }

    fn image(&mut self, part: &Value) {
        let url = &part["image_url"];
        let data = url["url"]
            .as_str()
            .or(url.as_str())
            .or(part["source"]["data"].as_str())
            .unwrap_or_default();
        self.bytes += data.len();
        let (width, height) = png_size(strip_data_url(data)).unwrap_or(DEFAULT_IMAGE_SIZE);
        let is_low = url["detail"] == "low" || part["detail"] == "low";
        self.tokens += match self.vendor {
            SimVendor::Messages => messages_tokens(width, height),
            SimVendor::Chat | SimVendor::Responses => {
                let (base, tile) = if self.model.starts_with("gpt-5") {
                    (70, 140)
                } else {
                    (85, 170)
                };
                base + if is_low {
                    0
                } else {
                    tile * tiles(width, height)
                }
            }
        };
    }

    fn document(&mut self, part: &Value) {
        let places = [
            &part["source"]["data"],
            &part["file"]["file_data"],
            &part["file_data"],
        ];
        let data = places
            .into_iter()
            .find_map(Value::as_str)
            .unwrap_or_default();
        self.bytes += data.len();
        let pdf = decode_base64(strip_data_url(data));
        let pages = pdf
            .windows(11)
            .filter(|bytes| *bytes == b"/Type /Page")
            .count()
            .max(1);
        self.tokens += TOKENS_PER_PAGE * u64::try_from(pages).unwrap_or(u64::MAX);
    }

    fn audio(&mut self, data: &str) {
        self.bytes += data.len();
        let seconds =
            u64::try_from(data.len().div_ceil(AUDIO_BYTES_PER_SECOND)).unwrap_or(u64::MAX);
        self.tokens += seconds.saturating_mul(AUDIO_TOKENS_PER_SECOND);
    }
}

fn messages_tokens(width: u64, height: u64) -> u64 {
    let (width, height) = scale_to_fit((width, height), width.max(height), MAX_EDGE);
    (width * height).div_ceil(PIXELS_PER_TOKEN)
}

fn tiles(width: u64, height: u64) -> u64 {
    let size = scale_to_fit((width, height), width.max(height), MAX_SQUARE);
    let (width, height) = scale_to_fit(size, size.0.min(size.1), MAX_SHORT_SIDE);
    width.div_ceil(TILE_EDGE) * height.div_ceil(TILE_EDGE)
}

/// Scales the size down so that this side is at most `max_side`.
fn scale_to_fit((width, height): (u64, u64), side: u64, max_side: u64) -> (u64, u64) {
    if side <= max_side {
        (width, height)
    } else {
        (width * max_side / side, height * max_side / side)
    }
}

fn strip_data_url(data: &str) -> &str {
    data.split_once("base64,").map_or(data, |(_, data)| data)
}

fn decode_base64(base64: &str) -> Vec<u8> {
    base64::engine::general_purpose::STANDARD
        .decode(base64)
        .unwrap_or_default()
}

fn png_size(base64: &str) -> Option<(u64, u64)> {
    let head = decode_base64(base64.get(..32)?);
    let side = |at: usize| {
        head.get(at..)?
            .first_chunk()
            .map(|bytes| u64::from(u32::from_be_bytes(*bytes)))
    };
    let is_png = head.starts_with(b"\x89PNG");
    is_png.then_some((side(16)?, side(20)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_image_is_counted_as_its_vendor_documents() {
        // Sizes from the messages vendor's own table, and examples from the chat vendor's guide.
        assert_eq!(
            [(200, 200), (1_000, 1_000), (1_092, 1_092)].map(|(w, h)| messages_tokens(w, h)),
            [54, 1_334, 1_590]
        );
        assert_eq!(
            [(1_024, 1_024), (2_048, 4_096), (512, 512)].map(|(w, h)| tiles(w, h)),
            [4, 6, 1]
        );
    }

    #[test]
    fn media_are_counted_beside_the_text_and_not_as_text() {
        let image = base64::engine::general_purpose::STANDARD
            .encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x04\x00\0\0\x04\x00\x08\x02\0\0\0");
        let url = format!("data:image/png;base64,{image}");
        let chat =
            json!({"messages": [{"content": [{"type": "image_url", "image_url": {"url": url}}]}]});
        let text = tokens(1_000 - url.len());
        assert_eq!(
            input_tokens(SimVendor::Chat, "gpt-4o", &chat, 1_000),
            text + 85 + 4 * 170
        );
        assert_eq!(
            input_tokens(SimVendor::Chat, "gpt-5.2", &chat, 1_000),
            text + 70 + 4 * 140
        );
        let source = json!({"type": "base64", "data": image});
        let messages = json!({"messages": [{"content": [{"type": "tool_result", "content": [{"type": "image", "source": source}]}]}]});
        let text = tokens(1_000 - image.len());
        assert_eq!(
            input_tokens(SimVendor::Messages, "claude-opus-4-7", &messages, 1_000),
            text + 1_399
        );
        assert_eq!(
            input_tokens(
                SimVendor::Messages,
                "m",
                &json!({"messages": [{"content": "hi"}]}),
                1_000
            ),
            250
        );
    }
}
