//! Sanitizes a client's method and path for logs: truncates and escapes them, and removes the query
//! and texts that look like a secret.
//!
//! This file must not be used to route a request.

use std::fmt::Write as _;

/// Maximum length of a logged path in bytes.
pub const MAX_PATH_BYTES: usize = 128;
/// Maximum length of a logged method in bytes.
const MAX_METHOD_BYTES: usize = 16;
/// Minimum length of a run of letters and digits that counts as a token instead of a word.
const MIN_TOKEN_BYTES: usize = 32;
/// Prefixes of keys. A text with such a prefix counts as a key at any length. `req_` begins an id
/// of the gateway, which is not secret.
const KEY_PREFIXES: [&str; 3] = ["sk-", "sk_", "pk-"];
const REQUEST_ID_PREFIX: &str = "req_";
const MASK: &str = "[masked]";

/// Returns the path without its query, escaped and masked, and at most [`MAX_PATH_BYTES`] long.
pub fn loggable_path(target: &[u8]) -> String {
    if !target.starts_with(b"/") && target.contains(&b'@') {
        // An absolute URL may contain a user and a password.
        return MASK.to_owned();
    }
    let end = target
        .iter()
        .position(|byte| matches!(byte, b'?' | b'#'))
        .unwrap_or(target.len());
    let mut out = String::with_capacity(end.min(MAX_PATH_BYTES));
    let mut rest = &target[..end];
    while !rest.is_empty() && out.len() < MAX_PATH_BYTES {
        let run = rest
            .iter()
            .position(|byte| !is_token_byte(*byte))
            .unwrap_or(rest.len());
        if run > 0 {
            let (word, after) = rest.split_at(run);
            let word = std::str::from_utf8(word).unwrap_or_default();
            out.push_str(if is_secret(word) { MASK } else { word });
            rest = after;
        } else if let Some((byte, after)) = rest.split_first() {
            push_escaped(&mut out, *byte);
            rest = after;
        }
    }
    // The text is ASCII, so every index is a character boundary.
    out.truncate(MAX_PATH_BYTES);
    out
}

/// Returns the method, escaped and truncated.
pub fn loggable_method(method: &[u8]) -> String {
    let mut out = String::with_capacity(MAX_METHOD_BYTES);
    for byte in method.iter().take(MAX_METHOD_BYTES) {
        push_escaped(&mut out, *byte);
    }
    out
}

fn push_escaped(out: &mut String, byte: u8) {
    if byte.is_ascii_graphic() {
        out.push(char::from(byte));
    } else {
        let _ = write!(out, "\\x{byte:02x}");
    }
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

fn is_secret(word: &str) -> bool {
    let names_a_key = KEY_PREFIXES.iter().any(|prefix| {
        let at = word.find(prefix);
        at.is_some_and(|at| {
            (at == 0 || word[..at].ends_with('-')) && word.len() > at + prefix.len()
        })
    });
    let is_token = word.len() >= MIN_TOKEN_BYTES && word.bytes().any(|byte| byte.is_ascii_digit());
    names_a_key || (is_token && !word.starts_with(REQUEST_ID_PREFIX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(target: &str) -> String {
        loggable_path(target.as_bytes())
    }

    #[test]
    fn a_path_is_logged_without_its_query_and_without_control_characters() {
        assert_eq!(path("/v1/chat/completions"), "/v1/chat/completions");
        assert_eq!(path("/v1/models?key=gw-sk-x"), "/v1/models");
        assert_eq!(path("/a#b"), "/a");
        assert_eq!(
            path("/a\r\nb\x1b[0m\u{e9}"),
            "/a\\x0d\\x0ab\\x1b[0m\\xc3\\xa9"
        );
    }

    #[test]
    fn a_path_is_cut() {
        assert_eq!(
            path(&format!("/{}", "ab/".repeat(200))).len(),
            MAX_PATH_BYTES
        );
        assert!(loggable_path(&[0; 4_000]).len() <= MAX_PATH_BYTES);
        assert_eq!(loggable_method(b"DELETE"), "DELETE");
        assert_eq!(loggable_method(b"A\x00"), "A\\x00");
        assert!(loggable_method(&[b'A'; 100]).len() <= MAX_METHOD_BYTES);
    }

    #[test]
    fn what_looks_like_a_key_is_masked_wherever_the_cut_is() {
        let key = format!("gw-sk-{}", "a1".repeat(24));
        assert_eq!(path(&format!("/v1/{key}/x")), "/v1/[masked]/x");
        assert_eq!(path("http://user:secret@host/x"), "[masked]");
        assert_eq!(path("/sk-ant-123"), "/[masked]");
        assert_eq!(path("/x/sk-proj-1?a"), "/x/[masked]");
        assert_eq!(path(&format!("/t/{}", "0f".repeat(16))), "/t/[masked]");
        assert!(!path(&format!("/{}/{key}", "a".repeat(110))).contains("gw-sk-a1"));
        for plain in [
            "/v1/receipts/req_0123456789abcdef0123456789abcdef",
            "/v1/models/task-1",
            "/dashboard/sign-up",
        ] {
            assert_eq!(path(plain), plain);
        }
    }
}
