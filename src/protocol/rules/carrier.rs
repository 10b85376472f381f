//! Reasoning of a chat vendor, packed into the signature that a messages client keeps and sends back: `gw1.` and
//! base64url of its `reasoning_details`.
//!
//! It must not trust what comes back: a signature is the caller's word, so what is in it is checked to be an array
//! before anybody writes it into a body. A signature without anything behind the mark only says "not a messages
//! vendor's".
//!
//! Read next: `messages/write_stream.rs`, which packs, and `chat/write_request.rs`, which unpacks.

use crate::protocol::request::DEPTH_MAX;
use crate::protocol::text::compact;
use crate::protocol::tree::{Nodes, Tree};

/// What every signature of ours begins with.
pub const MARK: &str = "gw1.";

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Arrays and objects around the details where they stand in a body: messages, message.
const DEPTH_AROUND: u32 = 4;

/// A signature of ours, holding the JSON array of `reasoning_details`.
pub fn encode(details_json: &str) -> String {
    let mut json = Vec::with_capacity(details_json.len());
    compact(details_json, &mut json);
    let mut signature = String::with_capacity(MARK.len() + json.len().div_ceil(3) * 4);
    signature.push_str(MARK);
    for group in json.chunks(3) {
        let byte = |at: usize| group.get(at).copied().map_or(0, u32::from);
        let bits = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        for letter in 0..=group.len() {
            let six = (bits >> (18 - 6 * letter)) & 63;
            signature.extend(LETTERS.get(six as usize).map(|letter| char::from(*letter)));
        }
    }
    signature
}

/// The JSON array of `reasoning_details` in a signature of ours; `None` for any other signature, and for one that
/// holds nothing or no array.
pub fn decode(signature: &str) -> Option<String> {
    let packed = signature.strip_prefix(MARK)?.trim_end_matches('=');
    // One letter over is no byte.
    if packed.len() % 4 == 1 {
        return None;
    }
    let mut json = Vec::with_capacity(packed.len() / 4 * 3 + 2);
    for group in packed.as_bytes().chunks(4) {
        let mut bits = 0;
        for letter in group {
            bits = (bits << 6) | six(*letter)?;
        }
        bits <<= 6 * (4 - group.len());
        let bytes: [u8; 4] = u32::to_be_bytes(bits);
        json.extend_from_slice(bytes.get(1..group.len())?);
    }
    let json = String::from_utf8(json).ok()?;
    let tree = Tree::read(&json, DEPTH_MAX.saturating_sub(DEPTH_AROUND), Nodes::new()).ok()?;
    let is_array = tree.root().is_array();
    is_array.then_some(json)
}

fn six(letter: u8) -> Option<u32> {
    Some(u32::from(match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'-' => 62,
        b'_' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::{decode, encode};

    #[test]
    fn what_is_packed_comes_back() {
        for json in ["[]", "[1]", "[12]", r#"[{"type":"reasoning.encrypted","data":"þÿ~?>","index":0}]"#] {
            assert_eq!(decode(&encode(json)).as_deref(), Some(json));
        }
        assert_eq!(encode("[ 1, 2 ]"), "gw1.WzEsMl0");
        assert_eq!(decode("gw1.WzEsMl0=").as_deref(), Some("[1,2]"));
    }

    #[test]
    fn other_signatures_hold_nothing() {
        // Nothing; a messages vendor's; no letters of ours; no JSON; no array; half a byte.
        for signature in ["gw1.", "EqQBCgIYAhIM", "gw1.WzFd+", "gw1.WzE", "gw1.e30", "gw1.W"] {
            assert_eq!(decode(signature), None, "{signature}");
        }
    }
}
