//! Encodes hashes and keys as hexadecimal digits, in the anchor and in segments.
//!
//! This file must not depend on the meaning of the bytes.

pub fn encode_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(64), |text, byte| {
        text + &format!("{byte:02x}")
    })
}

pub(crate) fn decode_hex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok())
        .collect()
}
