//! Converts an ending's detail to its stored form, the JSON in which common texts are replaced by
//! one control character each.
//!
//! JSON never contains a control character, so the expansion is unambiguous and returns the JSON
//! byte for byte, whatever its fields are. The hash of an entry covers the JSON. The texts are part
//! of the format of `ledger.db`: a text can be added, but not changed or removed. This file must
//! not parse.

use std::borrow::Cow;

/// The replaced texts, in the order of the fields. The first one has the character U+0001, the next
/// one U+0002, and so on. At most 31 are possible.
const TEXTS: [&str; 30] = [
    r#"{"key_id":"key_"#,
    r#"","key_shown":"gw-sk-"#,
    r#"","model":""#,
    r#"","surface":"chat","vendor":""#,
    r#"","surface":"messages","vendor":""#,
    r#"","surface":"responses","vendor":""#,
    r#"","outcome":"completed","usage":{"input":"#,
    r#"","outcome":""#,
    r#"","usage":{"input":"#,
    r#","cache_read":0,"cache_write_5m":0,"cache_write_1h":0,"output":"#,
    r#","cache_read":"#,
    r#","cache_write_5m":0,"cache_write_1h":0,"output":"#,
    r#","cache_write_5m":"#,
    r#","cache_write_1h":0,"output":"#,
    r#","cache_write_1h":"#,
    r#","output":"#,
    r#","reasoning":0},"price_version":"pv_"#,
    r#","reasoning":"#,
    r#","audio_input":"#,
    r#","audio_output":"#,
    r#","web_searches":"#,
    r#","service_tier":""#,
    r#"},"price_version":"pv_"#,
    r#"","estimated":false,"conversation":""#,
    r#"","estimated":false,"took_ms":"#,
    r#"","estimated":"#,
    r#","conversation":""#,
    r#"","took_ms":"#,
    r#","took_ms":"#,
    r#","first_token_ms":"#,
];

/// Returns the stored form of a detail's JSON.
pub(crate) fn compact(json: &str) -> Cow<'_, str> {
    if json.bytes().any(|byte| byte < b' ') {
        return Cow::Borrowed(json);
    }
    let mut stored = String::with_capacity(json.len());
    let (mut rest, mut next) = (json, 0);
    while let Some(at) = rest.find(['{', '"', ',', '}']) {
        let (before, candidate) = rest.split_at(at);
        stored.push_str(before);
        // The fields have a fixed order, so only texts after the last one can follow.
        let found = TEXTS
            .iter()
            .enumerate()
            .skip(next)
            .find_map(|(index, text)| Some((index, candidate.strip_prefix(text)?)));
        match found {
            Some((index, after)) => {
                stored.push(control_character(index));
                (rest, next) = (after, index + 1);
            }
            None => {
                let (sign, after) = candidate.split_at(1);
                stored.push_str(sign);
                rest = after;
            }
        }
    }
    stored.push_str(rest);
    Cow::Owned(stored)
}

/// Returns the JSON of a stored detail.
pub(crate) fn expand(stored: &str) -> String {
    let mut json = String::with_capacity(stored.len() + 480);
    let mut rest = stored;
    while let Some(at) = rest.bytes().position(|byte| byte < b' ') {
        let (before, control) = rest.split_at(at);
        json.push_str(before);
        let (control, after) = control.split_at(1);
        let text = control
            .bytes()
            .next()
            .and_then(|byte| TEXTS.get(usize::from(byte).wrapping_sub(1)));
        json.push_str(text.copied().unwrap_or(control));
        rest = after;
    }
    json.push_str(rest);
    json
}

fn control_character(index: usize) -> char {
    u8::try_from(index + 1).map_or(' ', char::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ending, EndingDetail, RequestOutcome};
    use llm_protocol::Protocol;
    use llm_protocol::usage::Usage;
    use proptest::prelude::*;

    fn ending_json(change: impl FnOnce(&mut EndingDetail)) -> String {
        let mut ending = Ending::in_test("req_1", "acct_1", 0, RequestOutcome::Completed);
        ending.detail.key_id = "key_0199".into();
        ending.detail.price_version = "pv_77aa".into();
        change(&mut ending.detail);
        serde_json::to_string(&ending.detail).unwrap()
    }

    #[test]
    fn an_usual_detail_is_a_third_of_its_json_and_returns_byte_for_byte() {
        let json = ending_json(|detail| {
            detail.surface = Protocol::Messages;
            detail.usage = Usage {
                input: 1_200,
                cache_read: 400,
                output: 350,
                ..Usage::default()
            };
            detail.conversation = Some("12345678901234567890".into());
            (detail.took_ms, detail.first_token_ms) = (Some(1_234), Some(321));
        });
        let stored = compact(&json);
        assert!(
            stored.len() * 3 < json.len(),
            "{} of {}",
            stored.len(),
            json.len()
        );
        assert_eq!(expand(&stored), json);
    }

    #[test]
    fn every_text_is_used_by_some_detail_and_a_control_character_stands_for_one() {
        let mut used = [false; TEXTS.len()];
        let usages = [
            Usage::default(),
            Usage {
                cache_read: 1,
                ..Usage::default()
            },
            Usage {
                cache_read: 1,
                cache_write_5m: 2,
                ..Usage::default()
            },
            Usage {
                cache_write_1h: 3,
                reasoning: 4,
                ..Usage::default()
            },
            Usage {
                audio_input: 5,
                audio_output: 6,
                web_searches: 7,
                ..Usage::default()
            },
            Usage {
                service_tier: serde_json::from_str("\"priority\"").ok(),
                ..Usage::default()
            },
        ];
        for usage in usages {
            for surface in [Protocol::Chat, Protocol::Messages, Protocol::Responses] {
                for outcome in [RequestOutcome::Completed, RequestOutcome::VendorCut] {
                    for (estimated, conversation) in [
                        (false, None),
                        (true, None),
                        (false, Some("7")),
                        (true, Some("7")),
                    ] {
                        let json = ending_json(|detail| {
                            (detail.usage, detail.surface) = (usage, surface);
                            (detail.outcome, detail.estimated) = (outcome, estimated);
                            detail.conversation = conversation.map(Into::into);
                            (detail.took_ms, detail.first_token_ms) = (Some(1), Some(1));
                        });
                        let stored = compact(&json);
                        assert_eq!(expand(&stored), json);
                        for byte in stored.bytes().filter(|byte| *byte < b' ') {
                            used[usize::from(byte) - 1] = true;
                        }
                    }
                }
            }
        }
        let unused: Vec<_> = TEXTS.iter().zip(used).filter(|(_, used)| !used).collect();
        assert!(unused.is_empty(), "{unused:?}");
    }

    #[test]
    fn a_text_with_a_control_character_is_stored_as_it_is() {
        for json in ["{\"key_id\":\"key_\u{1}\"}", "\n", "\u{1f}"] {
            assert_eq!(compact(json), json);
        }
    }

    proptest! {
        #[test]
        fn any_detail_returns_byte_for_byte(
            names in proptest::array::uniform5(".{0,40}"),
            counts in proptest::array::uniform6(0_u64..3),
            conversation in proptest::option::of(".{0,20}"),
            estimated: bool,
            late: bool,
        ) {
            let [key_id, key_shown, model, vendor, price_version] = names;
            let [input, cache_read, cache_write_5m, cache_write_1h, output, reasoning] = counts;
            let mut json = ending_json(|detail| {
                (detail.key_id, detail.key_shown, detail.model) = (key_id, key_shown, model);
                (detail.vendor, detail.price_version) = (vendor, price_version);
                (detail.conversation, detail.estimated) = (conversation, estimated);
                detail.usage = Usage {
                    input, cache_read, cache_write_5m, cache_write_1h, output, reasoning,
                    ..Usage::default()
                };
            });
            if late {
                json.pop();
                json.push_str(super::super::ending::LATE_SUFFIX);
            }
            prop_assert_eq!(expand(&compact(&json)), json);
        }

        /// Also for a text that no ending has, as long as it has no control character.
        #[test]
        fn any_text_of_json_returns_byte_for_byte(
            pieces in proptest::collection::vec((0..TEXTS.len(), "[a-z{}\",:\\\\0-9é]{0,6}"), 0..12),
        ) {
            let text: String = pieces.iter().map(|(index, other)| format!("{}{other}", TEXTS[*index])).collect();
            prop_assert_eq!(expand(&compact(&text)), text);
        }
    }
}
