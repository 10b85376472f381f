//! Creates signatures of thinking, which look like the vendor's and can be checked against the
//! text.
//!
//! This file must not store signed texts, because a signature alone proves its origin and its text.

use sha2::{Digest as _, Sha256};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const NONCE_BYTES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureKind {
    Thinking,
    Redacted,
    /// The content is search results and the positions that citations refer to.
    Search,
    /// The content is a reasoning item of the responses vendor.
    Reasoning,
}

impl SignatureKind {
    fn prefix(self) -> &'static [u8] {
        match self {
            SignatureKind::Thinking | SignatureKind::Redacted | SignatureKind::Search => {
                &[0x12, 0xa4, 0x01]
            }
            SignatureKind::Reasoning => &[0x80, 0, 0, 0],
        }
    }
}

/// Signs `text`; an empty text stands for hidden thinking. Each `serial` gives a different
/// signature.
pub fn sign(kind: SignatureKind, text: &str, serial: &str) -> String {
    let nonce: Vec<u8> = Sha256::digest(serial)
        .iter()
        .take(NONCE_BYTES)
        .copied()
        .collect();
    compute_signature(kind, text, &nonce)
}

/// Returns whether [`sign`] created this signature for this text.
pub fn is_ours(kind: SignatureKind, text: &str, signature: &str) -> bool {
    let nonce = decode(signature).and_then(|bytes| {
        let nonce = bytes.strip_prefix(kind.prefix())?.get(..NONCE_BYTES)?;
        Some(nonce.to_vec())
    });
    nonce.is_some_and(|nonce| compute_signature(kind, text, &nonce) == signature)
}

fn compute_signature(kind: SignatureKind, text: &str, nonce: &[u8]) -> String {
    let label = match kind {
        SignatureKind::Thinking => "thinking",
        SignatureKind::Redacted => "redacted",
        SignatureKind::Search => "search",
        SignatureKind::Reasoning => "reasoning",
    };
    let mut hash = Sha256::new();
    hash.update(nonce);
    hash.update(label);
    hash.update([0]);
    hash.update(text);
    let digest = hash.finalize();
    let mut bytes = [kind.prefix(), nonce, digest.as_slice()].concat();
    for round in 0..3u8 {
        bytes.extend_from_slice(&Sha256::digest([&digest[..], &[round]].concat()));
    }
    encode(&bytes)
}

/// Encodes base64 with padding.
pub fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let shown = digit <= group.len();
            let index = (bits >> (18 - 6 * digit) & 63) as usize;
            out.push(if shown {
                char::from(ALPHABET[index])
            } else {
                '='
            });
        }
    }
    out
}

/// Decodes base64 with or without padding; `None` if it is invalid.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').as_bytes();
    if text.len() - digits.len() > 2 || digits.len() % 4 == 1 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    let (mut bits, mut count) = (0u32, 0u32);
    for digit in digits {
        bits = bits << 6 | value(*digit)?;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 255).ok()?);
            bits &= (1 << count) - 1;
        }
    }
    Some(bytes)
}

fn value(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(value.into())
}

#[cfg(test)]
mod tests {
    use super::{SignatureKind, decode, encode, is_ours, sign};

    #[test]
    fn a_signature_is_base64_of_one_text_and_no_other() {
        let signature = sign(SignatureKind::Thinking, "hm", "1");
        assert!(
            signature.starts_with("EqQB") && signature.len() > 150,
            "{signature}"
        );
        assert!(is_ours(SignatureKind::Thinking, "hm", &signature));
        assert!(!is_ours(SignatureKind::Thinking, "hm ", &signature));
        assert!(!is_ours(SignatureKind::Redacted, "hm", &signature));
        assert_ne!(sign(SignatureKind::Thinking, "hm", "2"), signature);
        assert!(sign(SignatureKind::Reasoning, "", "1").starts_with("gAAAA"));
        for foreign in ["", "gw1.", "EqQB", "EqQBCgIYAhIM1gbcDa9GJwZA2b3h"] {
            assert!(
                !is_ours(SignatureKind::Thinking, "hm", foreign),
                "{foreign}"
            );
        }
    }

    #[test]
    fn base64_goes_there_and_back() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(plain.as_bytes()), coded);
            assert_eq!(decode(coded).as_deref(), Some(plain.as_bytes()));
        }
        assert_eq!(decode("Zm9v!"), None);
        assert_eq!(decode("Z"), None);
    }
}
