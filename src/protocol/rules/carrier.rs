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
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// What every signature of ours begins with.
pub const MARK: &str = "gw1.";

/// A messages vendor may have made this signature: there is one, and it is not ours.
pub fn is_vendors(signature: &str) -> bool {
    !signature.is_empty() && !signature.starts_with(MARK)
}

/// Arrays and objects around the details where they stand in a body: messages, message.
const DEPTH_AROUND: u32 = 4;

/// A signature of ours, holding the JSON array of `reasoning_details`.
pub fn encode(details_json: &str) -> String {
    let mut json = Vec::with_capacity(details_json.len());
    compact(details_json, &mut json);
    format!("{MARK}{}", URL_SAFE_NO_PAD.encode(json))
}

/// The JSON array of `reasoning_details` in a signature of ours; `None` for any other signature, and for one that
/// holds nothing or no array.
pub fn decode(signature: &str) -> Option<String> {
    let packed = signature.strip_prefix(MARK)?.trim_end_matches('=');
    let json = URL_SAFE_NO_PAD.decode(packed).ok()?;
    let json = String::from_utf8(json).ok()?;
    let tree = Tree::read(&json, DEPTH_MAX.saturating_sub(DEPTH_AROUND), Nodes::new()).ok()?;
    let is_array = tree.root().is_array();
    is_array.then_some(json)
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
