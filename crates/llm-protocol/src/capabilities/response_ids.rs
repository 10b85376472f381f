//! Makes the ids of answers and of their parts on the client's surface, from the vendor's id or a
//! seed.
//!
//! This file must not use random numbers, because the same answer must get the same ids.
//! Read next: `identifiers.rs` in this folder.

use crate::json::JsonStr;
use sha2::{Digest as _, Sha256};

/// Converts `msg_X` and `resp_X` to `chatcmpl-X`; any other id is replaced by one made from `seed`.
pub fn chat_response_id(id: Option<&JsonStr<'_>>, seed: &str) -> String {
    response_id(id, "msg_", "chatcmpl-", seed)
}

/// Converts `chatcmpl-X` and `resp_X` to `msg_X`; any other id is replaced by one made from `seed`.
pub fn messages_response_id(id: Option<&JsonStr<'_>>, seed: &str) -> String {
    response_id(id, "chatcmpl-", "msg_", seed)
}

fn response_id(id: Option<&JsonStr<'_>>, theirs: &str, ours: &str, seed: &str) -> String {
    let id = id.map(JsonStr::value).unwrap_or_default();
    let rest = id
        .strip_prefix(theirs)
        .or_else(|| id.strip_prefix("resp_"))
        .unwrap_or_default();
    let kept: String = rest.chars().filter(char::is_ascii_alphanumeric).collect();
    if kept.is_empty() {
        generate_id(ours, seed, 0)
    } else {
        format!("{ours}{kept}")
    }
}

/// Returns `prefix` and 24 base62 characters, which depend on the seed and the number only.
pub fn generate_id(prefix: &str, seed: &str, number: u64) -> String {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let hash = Sha256::digest(format!("{seed}:{number}"));
    let letters = hash
        .iter()
        .take(24)
        .filter_map(|byte| LETTERS.get(usize::from(*byte) % LETTERS.len()));
    let mut id = prefix.to_owned();
    id.extend(letters.map(|letter| char::from(*letter)));
    id
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::identifiers::is_plain_name;

    #[test]
    fn answer_ids_keep_what_they_can() {
        let id = |text: &'static str| Some(JsonStr::from_value(text));
        assert_eq!(
            chat_response_id(id("msg_01XFDUDYJgAACzvnptvVoYEL").as_ref(), "r"),
            "chatcmpl-01XFDUDYJgAACzvnptvVoYEL"
        );
        assert_eq!(
            chat_response_id(id("msg_bdrk_01Xy").as_ref(), "r"),
            "chatcmpl-bdrk01Xy"
        );
        assert_eq!(
            messages_response_id(id("resp_68a1").as_ref(), "r"),
            "msg_68a1"
        );
        assert_eq!(
            messages_response_id(id("chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT").as_ref(), "r").len(),
            33
        );
        for strange in [None, id("gen-17"), id("msg_"), id("msg_…")] {
            assert_eq!(
                chat_response_id(strange.as_ref(), "req_0"),
                generate_id("chatcmpl-", "req_0", 0)
            );
        }
        assert_eq!(generate_id("call_", "req_0", 1).len(), 29);
        assert_ne!(
            generate_id("call_", "req_0", 1),
            generate_id("call_", "req_0", 2)
        );
        assert!(is_plain_name(&generate_id("call_", "req_0", 1)));
    }
}
