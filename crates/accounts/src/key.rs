//! Defines the format of an API key: `gw-sk-`, 43 base62 digits of 256 random bits, and 6 base62
//! digits of their CRC-32.
//!
//! With the checksum, the gateway can refuse a typo or a vendor's key without a look-up, and secret
//! scanners can recognise a key. This file must not depend on accounts or stores. A key in plain
//! text exists only here and in [`GeneratedKey::text`].

use sha2::{Digest, Sha256};

pub const PREFIX: &str = "gw-sk-";

/// Number of digits that hold 256 bits: 62^43 > 2^256 > 62^42.
const BODY_DIGITS: usize = 43;

/// Number of digits that hold 32 bits: 62^6 > 2^32 > 62^5.
const CHECK_DIGITS: usize = 6;

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

pub struct GeneratedKey {
    pub text: String,
    pub hash: [u8; 32],
    /// Shortened text such as `gw-sk-Ab12…wxyz`, which identifies but does not reveal a key.
    pub shown: String,
}

/// Generates a key of 256 bits from the system's random source.
///
/// # Errors
/// Returns an error if the system has no randomness.
pub fn generate() -> Result<GeneratedKey, getrandom::Error> {
    let mut bits = [0u8; 32];
    getrandom::fill(&mut bits)?;
    Ok(from_bits(bits))
}

/// Converts 32 bytes, as one big-endian number, to base 62, left-padded with `0`. Every number has
/// exactly one such text, so all 2^256 keys are equally likely.
fn from_bits(bits: [u8; 32]) -> GeneratedKey {
    let mut number = bits;
    let mut body = [0u8; BODY_DIGITS];
    for digit in body.iter_mut().rev() {
        *digit = ALPHABET[usize::from(divide_by_62(&mut number))];
    }
    let check = checksum(&body);
    let mut text = String::with_capacity(PREFIX.len() + BODY_DIGITS + CHECK_DIGITS);
    text.push_str(PREFIX);
    text.extend(body.iter().chain(&check).map(|&digit| char::from(digit)));
    let shown = shown_text(&text);
    GeneratedKey {
        hash: hash(&text),
        shown,
        text,
    }
}

/// Returns the shortened text of a well-formed key, and any other text unchanged.
pub fn shown_text(text: &str) -> String {
    if text.len() != PREFIX.len() + BODY_DIGITS + CHECK_DIGITS || !text.is_ascii() {
        return text.to_owned();
    }
    format!("{}…{}", &text[..PREFIX.len() + 4], &text[text.len() - 4..])
}

/// Divides a big-endian number by 62 (long division) and returns the remainder.
fn divide_by_62(number: &mut [u8; 32]) -> u8 {
    let mut rest: u16 = 0;
    for byte in number {
        let value = (rest << 8) | u16::from(*byte);
        // Since rest < 62, value < 62 · 256 holds, so the quotient fits into a byte.
        *byte = u8::try_from(value / 62).unwrap_or(u8::MAX);
        rest = value % 62;
    }
    u8::try_from(rest).unwrap_or(u8::MAX)
}

/// Computes the CRC-32 (IEEE) of the 43 digits in base 62, with the most significant digit first.
fn checksum(body: &[u8]) -> [u8; CHECK_DIGITS] {
    let mut rest = crc32fast::hash(body);
    let mut digits = [b'0'; CHECK_DIGITS];
    for digit in digits.iter_mut().rev() {
        *digit = ALPHABET[usize::try_from(rest % 62).unwrap_or(0)];
        rest /= 62;
    }
    digits
}

/// Returns true if `text` has the format of a gateway key and its checksum is correct.
pub fn is_well_formed(text: &str) -> bool {
    let Some(digits) = text.strip_prefix(PREFIX) else {
        return false;
    };
    let digits = digits.as_bytes();
    digits.len() == BODY_DIGITS + CHECK_DIGITS
        && digits.iter().all(u8::is_ascii_alphanumeric)
        && digits[BODY_DIGITS..] == checksum(&digits[..BODY_DIGITS])
}

/// Hashes a key. The database has only this hash and finds the key by it. A fast hash suffices for
/// 256 random bits. The duration of a look-up by hash reveals nothing about the key.
pub fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_checksum_is_the_crc_32_of_the_digits_in_base_62() {
        // Computed by hand: the bytes 0, 1, … 31 as one number have the 43 digits below. Their
        // CRC-32 is 1 430 474 255, and 1430474255 = ((((1·62 + 34)·62 + 50)·62 + 7)·62 + 43)·62 +
        // 25: the digits 1 Y o 7 h P.
        let bits = std::array::from_fn(|index| u8::try_from(index).unwrap());
        assert_eq!(
            from_bits(bits).text,
            "gw-sk-003aUlTJC7tjlCTQj2uNU3MFagCXG9LRKRcwGkBIDlf1Yo7hP"
        );
        assert_eq!(
            from_bits([0; 32]).text,
            format!("gw-sk-{}2CZclj", "0".repeat(43))
        );
        assert_eq!(
            from_bits([255; 32]).text,
            "gw-sk-yhjskwdA6OZ1AL1YmHWZWm8LLG7HjnuCA2j5rOw8Xp13sRzl1"
        );
        assert_eq!(from_bits(bits).shown, "gw-sk-003a…o7hP");
    }

    #[test]
    fn keys_differ_and_one_changed_digit_is_noticed() {
        let mut seen = HashSet::new();
        for _ in 0..2_000 {
            let key = generate().unwrap();
            assert!(is_well_formed(&key.text));
            assert!(seen.insert(key.text));
        }
        let key = generate().unwrap().text;
        for index in 0..key.len() {
            let mut bytes = key.clone().into_bytes();
            bytes[index] = if bytes[index] == b'x' { b'y' } else { b'x' };
            assert!(
                !is_well_formed(std::str::from_utf8(&bytes).unwrap()),
                "a change at {index} went unnoticed"
            );
        }
        let long = "A".repeat(10_240);
        for bad in [
            "",
            "gw-sk-",
            "sk-abc",
            "gw-sk-' OR 1=1 --",
            "gw-sk-\r\n\0",
            "gw-sk-ä",
            &long,
            &format!("{key} "),
        ] {
            assert!(!is_well_formed(bad), "{bad:?} was taken for a key");
        }
    }
}
