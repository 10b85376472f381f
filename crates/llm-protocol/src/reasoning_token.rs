//! Packs one vendor's reasoning into a string that a client of another protocol stores and sends
//! back.
//!
//! Every such token begins with `gw1.`. The rest has one of two forms. The first is base64url of a
//! chat vendor's `reasoning_details`, in the signature that a messages client stores. The second is
//! a kind, a dot and base64url of a JSON object: `m` for a messages vendor's block, `c` for a chat
//! vendor's reasoning or the state of its message or call, `r` for a responses vendor's item.
//! Base64url has no dot, so the two forms cannot be confused. A token that ends after the prefix
//! marks reasoning that no messages vendor made; one of the kind `v` names the vendor whose
//! thinking it signs.
//!
//! This file must not trust a returned token: the caller may have forged it. Its content is checked
//! before a writer puts it into a request body, and a string that cannot be decoded is not a token.
//! The token is not signed or encrypted, because the vendor verifies its own signatures.
//!
//! Read next: `messages/write_stream.rs` and `responses/write_stream.rs`, which pack, and
//! `chat/write_request.rs`, which unpacks.

use crate::json::{
    CompactJson, JsonDocument, JsonStr, JsonValue, JsonWriter, MAX_DEPTH, NodeBuffer, compacted,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Prefix of every token of the gateway.
pub const TOKEN_PREFIX: &str = "gw1.";

/// Maximum length of a token with a kind, in bytes. The gateway neither makes nor accepts a longer
/// one.
pub const MAX_TOKEN_BYTES: usize = 1 << 20;

/// Returns whether a messages vendor may have made this signature, because it is not empty and not
/// one of the gateway's.
pub fn is_vendor_signature(signature: &str) -> bool {
    !signature.is_empty() && !signature.starts_with(TOKEN_PREFIX)
}

/// Begin of a signature that names the vendor of thinking.
const MAKER_PREFIX: &str = "gw1.v.";

/// Returns the signature of thinking that its vendor, `maker`, does not sign.
pub fn maker_signature(maker: &str) -> String {
    format!("{MAKER_PREFIX}{}", URL_SAFE_NO_PAD.encode(maker))
}

/// Returns whether the signature names the vendor of the thinking, which signs none.
pub fn is_maker_signature(signature: &str) -> bool {
    signature.starts_with(MAKER_PREFIX)
}

/// Number of nesting levels around the details in a request body.
const ENCLOSING_DEPTH: u32 = 4;

/// Packs the JSON array of `reasoning_details` into a signature.
pub fn encode_details(details_json: &str) -> String {
    let json = compacted(details_json);
    format!("{TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(json))
}

/// Returns the JSON array of `reasoning_details` in one of the gateway's signatures. Returns `None`
/// for any other signature, and for one that contains no array.
pub fn decode_details(signature: &str) -> Option<String> {
    let json = decode_payload(signature.strip_prefix(TOKEN_PREFIX)?)?;
    let tree = parse_payload(&json)?;
    let is_array = tree.root().is_array();
    is_array.then_some(json)
}

/// Content of a token with a kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReasoningPayload {
    /// A messages vendor's thinking, exactly as the vendor signed it. If the vendor signs none, the
    /// signature names the vendor.
    Thinking {
        text: String,
        signature: String,
    },
    /// A messages vendor's `redacted_thinking`.
    Hidden {
        data: String,
    },
    /// The text of a chat vendor's `reasoning_content`.
    ChatText(String),
    /// A chat vendor's `reasoning_details`, as a JSON array.
    ChatDetails(String),
    /// Members of a chat vendor's message or call that must return with it, as a JSON object.
    State(StatePlace, String),
    Item(ReasoningItem),
}

/// The part of an answer to which state belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatePlace {
    Message,
    /// The call with this index among the message's calls. The index is needed because a client may
    /// move the token.
    Call(u64),
    /// The call that follows the token. Tokens of an earlier version have no position.
    NextCall,
}

/// A responses vendor's reasoning item. The texts of its summary travel separately, joined.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReasoningItem {
    pub id: String,
    pub encrypted: String,
    /// Number of code points in each text of the summary, in order.
    pub lengths: Vec<u64>,
    /// The member `content`, unchanged, as a JSON array.
    pub content: Option<String>,
}

/// Packs a messages vendor's thinking block. Returns `None` if the token would be too long.
pub fn pack_thinking(text: &JsonStr<'_>, signature: &JsonStr<'_>) -> Option<String> {
    encode_payload('m', |json| {
        json.member("t", text).member("s", signature);
    })
}

/// Packs a messages vendor's redacted block. Returns `None` if the token would be too long.
pub fn pack_hidden(data: &JsonStr<'_>) -> Option<String> {
    encode_payload('m', |json| {
        json.member("d", data);
    })
}

/// Packs a chat vendor's reasoning text. Returns `None` if the token would be too long.
pub fn pack_chat_text(text: &JsonStr<'_>) -> Option<String> {
    encode_payload('c', |json| {
        json.member("t", text);
    })
}

/// Packs a chat vendor's `reasoning_details`, a JSON array. Returns `None` if the token would be
/// too long.
pub fn pack_chat_details(details_json: &str) -> Option<String> {
    encode_payload('c', |json| {
        json.member("a", CompactJson(details_json));
    })
}

/// Packs members of a chat vendor's message or call that must return with it. `write` writes the
/// members. Returns `None` if the token would be too long.
pub fn pack_state(place: StatePlace, write: impl FnOnce(&mut JsonWriter)) -> Option<String> {
    encode_payload('c', |json| {
        let name = match place {
            StatePlace::Message => "m",
            StatePlace::NextCall | StatePlace::Call(_) => "x",
        };
        json.member_object(name);
        write(json);
        json.close_object();
        if let StatePlace::Call(index) = place {
            json.member("n", index);
        }
    })
}

/// Packs a responses vendor's item. Returns `None` if the token would be too long.
pub fn pack_item(item: &ReasoningItem) -> Option<String> {
    encode_payload('r', |json| {
        json.member("i", &item.id)
            .member("e", &item.encrypted)
            .member_list("n", &item.lengths);
        if let Some(content) = &item.content {
            json.member("c", CompactJson(content));
        }
    })
}

/// Returns the content of a token with a kind, or `None` for any other string.
pub fn unpack(carrier: &str) -> Option<ReasoningPayload> {
    if carrier.len() > MAX_TOKEN_BYTES {
        return None;
    }
    let (kind, packed) = carrier.strip_prefix(TOKEN_PREFIX)?.split_once('.')?;
    let json = decode_payload(packed)?;
    let tree = parse_payload(&json)?;
    let root = tree.root();
    let text = |name| root.string_of(name).map(std::borrow::Cow::into_owned);
    let array = |name| {
        root.get(name)
            .filter(|value| value.is_array())
            .map(|value| value.raw().to_owned())
    };
    match kind {
        "m" => match (text("t"), text("s"), text("d")) {
            (Some(text), Some(signature), None)
                if is_vendor_signature(&signature)
                    || is_maker_signature(&signature) && !text.is_empty() =>
            {
                Some(ReasoningPayload::Thinking { text, signature })
            }
            (None, None, Some(data)) if !data.is_empty() => Some(ReasoningPayload::Hidden { data }),
            _ => None,
        },
        "c" => text("t")
            .map(ReasoningPayload::ChatText)
            .or_else(|| array("a").map(ReasoningPayload::ChatDetails))
            .or_else(|| {
                let (members, place) = match (root.get("m"), root.get("n")) {
                    (Some(members), _) => (members, StatePlace::Message),
                    (None, Some(index)) => (root.get("x")?, StatePlace::Call(index.count()?)),
                    (None, None) => (root.get("x")?, StatePlace::NextCall),
                };
                let json = members.is_object().then(|| members.raw().to_owned())?;
                Some(ReasoningPayload::State(place, json))
            }),
        "r" => {
            let lengths = root.get("n").filter(|value| value.is_array())?;
            let lengths: Option<Vec<u64>> = lengths.items().map(JsonValue::count).collect();
            let (id, encrypted) = (
                text("i")?,
                text("e").filter(|encrypted| !encrypted.is_empty())?,
            );
            Some(ReasoningPayload::Item(ReasoningItem {
                id,
                encrypted,
                lengths: lengths?,
                content: array("c"),
            }))
        }
        _ => None,
    }
}

fn encode_payload(kind: char, write: impl FnOnce(&mut JsonWriter)) -> Option<String> {
    let mut json = JsonWriter::default();
    json.open_object();
    write(&mut json);
    json.close_object();
    let carrier = format!(
        "{TOKEN_PREFIX}{kind}.{}",
        URL_SAFE_NO_PAD.encode(json.as_bytes())
    );
    (carrier.len() <= MAX_TOKEN_BYTES).then_some(carrier)
}

fn decode_payload(packed: &str) -> Option<String> {
    let json = URL_SAFE_NO_PAD.decode(packed.trim_end_matches('=')).ok()?;
    String::from_utf8(json).ok()
}

fn parse_payload(json: &str) -> Option<JsonDocument<'_>> {
    JsonDocument::parse(
        json,
        MAX_DEPTH.saturating_sub(ENCLOSING_DEPTH),
        NodeBuffer::new(),
    )
    .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> JsonStr<'_> {
        JsonStr::from_value(text)
    }

    #[test]
    fn what_is_packed_comes_back() {
        for json in [
            "[]",
            "[1]",
            "[12]",
            r#"[{"type":"reasoning.encrypted","data":"þÿ~?>","index":0}]"#,
        ] {
            assert_eq!(decode_details(&encode_details(json)).as_deref(), Some(json));
        }
        assert_eq!(encode_details("[ 1, 2 ]"), "gw1.WzEsMl0");
        assert_eq!(decode_details("gw1.WzEsMl0=").as_deref(), Some("[1,2]"));
    }

    #[test]
    fn other_signatures_hold_nothing() {
        // Empty; a messages vendor's; outside the base64url alphabet; not JSON; not an array; half
        // a byte; a token with a kind.
        for signature in [
            "gw1.",
            "EqQBCgIYAhIM",
            "gw1.WzFd+",
            "gw1.WzE",
            "gw1.e30",
            "gw1.W",
            "gw1.c.WzFd",
        ] {
            assert_eq!(decode_details(signature), None, "{signature}");
        }
    }

    #[test]
    fn every_kind_comes_back_letter_by_letter() {
        let odd = "a\"\\\u{1}\n🦀 ";
        let maker = maker_signature(odd);
        let item = ReasoningItem {
            id: "rs_1".into(),
            encrypted: odd.into(),
            lengths: vec![3, 0],
            content: Some("[{}]".into()),
        };
        let bare = ReasoningItem {
            id: String::new(),
            encrypted: "e".into(),
            ..ReasoningItem::default()
        };
        for (carrier, kind, expected) in [
            (
                pack_thinking(&text(odd), &text("EqQ")),
                "m",
                ReasoningPayload::Thinking {
                    text: odd.into(),
                    signature: "EqQ".into(),
                },
            ),
            (
                pack_thinking(&text(""), &text("EqQ")),
                "m",
                ReasoningPayload::Thinking {
                    text: "".into(),
                    signature: "EqQ".into(),
                },
            ),
            (
                pack_thinking(&text(odd), &text(&maker)),
                "m",
                ReasoningPayload::Thinking {
                    text: odd.into(),
                    signature: maker.clone(),
                },
            ),
            (
                pack_hidden(&text(odd)),
                "m",
                ReasoningPayload::Hidden { data: odd.into() },
            ),
            (
                pack_chat_text(&text(odd)),
                "c",
                ReasoningPayload::ChatText(odd.into()),
            ),
            (
                pack_chat_details("[ {\"a\": 1} ]"),
                "c",
                ReasoningPayload::ChatDetails("[{\"a\":1}]".into()),
            ),
            (
                pack_state(StatePlace::Message, |json| {
                    json.member("a", 1);
                }),
                "c",
                ReasoningPayload::State(StatePlace::Message, "{\"a\":1}".into()),
            ),
            (
                pack_state(StatePlace::NextCall, |json| {
                    json.member("a", "b");
                }),
                "c",
                ReasoningPayload::State(StatePlace::NextCall, "{\"a\":\"b\"}".into()),
            ),
            (
                pack_state(StatePlace::Call(2), |json| {
                    json.member("a", crate::json::JsonNull);
                }),
                "c",
                ReasoningPayload::State(StatePlace::Call(2), "{\"a\":null}".into()),
            ),
            (pack_item(&item), "r", ReasoningPayload::Item(item.clone())),
            (pack_item(&bare), "r", ReasoningPayload::Item(bare.clone())),
        ] {
            let carrier = carrier.unwrap();
            assert!(
                carrier.starts_with(&format!("gw1.{kind}.")) && !is_vendor_signature(&carrier),
                "{carrier}"
            );
            assert_eq!(unpack(&carrier), Some(expected), "{carrier}");
            assert_eq!(decode_details(&carrier), None, "{carrier}");
        }
        assert_eq!(pack_hidden(&text("x")).unwrap(), "gw1.m.eyJkIjoieCJ9");
    }

    #[test]
    fn what_is_no_carrier_holds_nothing() {
        let of = |kind: &str, json: &str| format!("gw1.{kind}.{}", URL_SAFE_NO_PAD.encode(json));
        for carrier in [
            String::new(),
            "gAAAAABo".into(),
            "gw1.".into(),
            "gw1.m.".into(),
            "gw1.m.*".into(),
            "gw1.WzFd".into(),
            of("x", r#"{"t":"a","s":"b"}"#),
            of("m", r#"{"t":"a"}"#),
            of("m", r#"{"t":"a","s":""}"#),
            of("m", r#"{"t":"","s":"gw1.v.YQ"}"#),
            of("m", r#"{"t":"a","s":"gw1."}"#),
            of("m", r#"{"t":"a","s":"b","d":"c"}"#),
            of("m", r#"{"d":""}"#),
            of("m", r#"{"t":"a","s":"b"#),
            of("m", r#"["t"]"#),
            of("c", r#"{"t":1}"#),
            of("c", r#"{"a":{}}"#),
            of("c", r#"{"m":[]}"#),
            of("c", r#"{"x":{},"n":-1}"#),
            of("r", r#"{"i":"rs_1","e":"","n":[]}"#),
            of("r", r#"{"i":"rs_1","e":"x"}"#),
            of("r", r#"{"i":"rs_1","e":"x","n":[-1]}"#),
            of(
                "m",
                &format!(r#"{{"d":"a","x":{}{}}}"#, "[".repeat(64), "]".repeat(64)),
            ),
        ] {
            assert_eq!(unpack(&carrier), None, "{carrier}");
        }
    }

    #[test]
    fn a_carrier_is_a_mebibyte_at_most() {
        // Base64 encodes three bytes as four characters, after the prefix and the kind. `{"d":""}`
        // surrounds the data.
        let max_len = (MAX_TOKEN_BYTES - "gw1.m.".len()) / 4 * 3 - r#"{"d":""}"#.len();
        let fits = pack_hidden(&text(&"x".repeat(max_len))).unwrap();
        assert!(fits.len() > MAX_TOKEN_BYTES - 4 && unpack(&fits).is_some());
        assert_eq!(pack_hidden(&text(&"x".repeat(max_len + 3))), None);
        assert_eq!(
            unpack(&format!(
                "gw1.m.{}",
                URL_SAFE_NO_PAD.encode(format!(r#"{{"d":"{}"}}"#, "x".repeat(max_len + 3)))
            )),
            None
        );
    }
}
