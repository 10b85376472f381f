//! Converts call ids, tool names and end users into a form that is valid in the other protocol.
//!
//! This file must not keep state between requests: the same request must get the same names, or
//! caches and retries break.
//!
//! Read next: `arguments.rs` in this folder.

use super::response_ids::generate_id;
use crate::ir::Warnings;
use crate::ir::event::ResponseContext;
use crate::json::JsonStr;
use sha2::{Digest as _, Sha256};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::{Display, Write as _};

/// Maximum length of a call id for a messages vendor.
const MAX_CALL_ID_CHARS: usize = 64;

/// Maximum length of a call id for a chat vendor.
const MAX_CHAT_CALL_ID_CHARS: usize = 40;

/// Maximum length of a call id for a responses vendor.
const MAX_RESPONSES_CALL_ID_CHARS: usize = 64;

/// Maximum length of a tool name that is valid in all protocols.
const MAX_TOOL_NAME_CHARS: usize = 64;

/// Keeps call ids unique in a request, or in a conversation and its answer. A valid id that occurs
/// once does not change.
#[derive(Debug, Default)]
pub struct CallIdAllocator {
    calls: u64,
    /// The ids allocated so far, with the number of requests for each.
    used: HashMap<String, u64>,
}

impl CallIdAllocator {
    /// Returns the id of the next call in the history, for a messages vendor: `[a-zA-Z0-9_-]+`, at
    /// most 64 characters. The call's result uses the same id.
    pub fn allocate(&mut self, id: Option<&JsonStr<'_>>) -> String {
        let index = self.calls;
        self.calls = self.calls.saturating_add(1);
        let candidate = match id.map(JsonStr::value) {
            Some(id) if !id.is_empty() => messages_call_id(id).into_owned(),
            _ => format!("call_{index}"),
        };
        self.make_unique(candidate)
    }

    /// Returns the id, with a number appended if another call uses it already.
    pub fn make_unique(&mut self, candidate: String) -> String {
        let Some(before) = self.used.get(&candidate).copied() else {
            self.used.insert(candidate.clone(), 1);
            return candidate;
        };
        // A generated id may equal another call's own id, so count up to the first free one.
        let mut occurrence = before.saturating_add(1);
        let mut unique = numbered_id(&candidate, occurrence);
        while self.used.contains_key(&unique) {
            occurrence = occurrence.saturating_add(1);
            unique = numbered_id(&candidate, occurrence);
        }
        self.used.insert(candidate, occurrence);
        self.used.insert(unique.clone(), 1);
        unique
    }
}

fn numbered_id(id: &str, occurrence: u64) -> String {
    let numbered = format!("{id}__{occurrence}");
    if numbered.len() <= MAX_CALL_ID_CHARS {
        numbered
    } else {
        format!("{}__{occurrence}", truncate_with_hash(id, 40))
    }
}

/// Returns a call id for a messages vendor. A valid id does not change.
pub fn messages_call_id(id: Cow<'_, str>) -> Cow<'_, str> {
    if is_plain_name(&id) && id.len() <= MAX_CALL_ID_CHARS {
        id
    } else {
        Cow::Owned(truncate_with_hash(&id, 48))
    }
}

/// Returns a call id for a chat vendor: at most 40 characters.
pub fn chat_call_id(id: Cow<'_, str>) -> Cow<'_, str> {
    shorten_call_id(id, MAX_CHAT_CALL_ID_CHARS)
}

/// Returns a call id for a vendor that accepts exactly nine letters or digits. A valid id does not
/// change.
pub fn nine_char_call_id(id: Cow<'_, str>) -> Cow<'_, str> {
    if is_nine_char_id(&id) {
        id
    } else {
        Cow::Owned(
            generate_id("", &id, 0)
                .chars()
                .take(NINE_CHAR_ID_LEN)
                .collect(),
        )
    }
}

pub fn is_nine_char_id(id: &str) -> bool {
    id.len() == NINE_CHAR_ID_LEN && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

const NINE_CHAR_ID_LEN: usize = 9;

/// Returns a call id for a responses vendor: at most 64 characters.
pub fn responses_call_id(id: Cow<'_, str>) -> Cow<'_, str> {
    shorten_call_id(id, MAX_RESPONSES_CALL_ID_CHARS)
}

fn shorten_call_id(id: Cow<'_, str>, letters_max: usize) -> Cow<'_, str> {
    if id.len() <= letters_max || id.chars().count() <= letters_max {
        return id;
    }
    let hash: String = hash_hex(&id).chars().take(32).collect();
    Cow::Owned(format!("call_{hash}"))
}

/// Returns a tool name that the vendor accepts: `[a-zA-Z0-9_-]{1,64}`. Each changed name adds one
/// warning and is stored in the response context, so that the answer uses the caller's own name.
pub fn alias_tool_name<'a>(
    name: Cow<'a, str>,
    at: impl Display,
    warnings: &mut Warnings,
    response_context: &mut ResponseContext,
) -> Cow<'a, str> {
    if is_plain_name(&name) && name.len() <= MAX_TOOL_NAME_CHARS {
        return name;
    }
    let alias = truncate_with_hash(&name, 55);
    if response_context
        .tool_names
        .insert(alias.clone(), name.into_owned())
        .is_none()
    {
        warnings.renamed(at);
    }
    Cow::Owned(alias)
}

/// Returns the end user's identifier for the vendor: the hex SHA-256 of the account id, and of the
/// end user if the client named one.
pub fn hash_end_user(account_id: &str, end_user: Option<&str>) -> String {
    match end_user {
        Some(end_user) => hash_hex(&format!("{account_id}:{end_user}")),
        None => hash_hex(account_id),
    }
}

/// Returns the key that separates the account's requests in a vendor's cache, as 32 hex digits.
/// `common` is the part that similar requests share.
pub fn hash_cache_key(account_id: &str, common: &str) -> String {
    hash_end_user(account_id, Some(common))
        .chars()
        .take(32)
        .collect()
}

/// Returns whether the name is not empty and has only letters, digits, `_` and `-`.
pub fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(is_plain_byte)
}

fn is_plain_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

/// Returns at most `letters` valid characters of the name, followed by a part of its hash that
/// distinguishes similar names.
fn truncate_with_hash(name: &str, letters: usize) -> String {
    let plain = |letter: char| {
        if u8::try_from(letter).is_ok_and(is_plain_byte) {
            letter
        } else {
            '_'
        }
    };
    let mut cut: String = name.chars().map(plain).take(letters).collect();
    cut.push('_');
    cut.extend(hash_hex(name).chars().take(8));
    cut
}

fn hash_hex(text: &str) -> String {
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(text) {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    fn safe(id: &str) -> Cow<'_, str> {
        messages_call_id(Cow::Borrowed(id))
    }

    #[test]
    fn ids_that_fit_stay_and_others_are_told_apart_by_a_hash() {
        assert_eq!(
            safe("toolu_01A09q90qw90lq917835lq9"),
            "toolu_01A09q90qw90lq917835lq9"
        );
        assert!(matches!(safe("call-1_b"), Cow::Borrowed(_)));
        // printf 'functions.Bash:0' | sha256sum
        assert_eq!(
            safe("functions.Bash:0"),
            format!("functions_Bash_0_{}", &hash_hex("functions.Bash:0")[..8])
        );
        assert_ne!(safe("a.b"), safe("a:b"));
        let long = "x".repeat(65);
        assert_eq!(safe(&long).len(), 57);
        assert!(is_plain_name(&safe("größe")));
    }

    #[test]
    fn a_hash_is_hex_of_sha_256() {
        assert_eq!(
            hash_hex("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn ids_are_unique_in_a_request_whatever_the_caller_calls_them() {
        let mut ids = CallIdAllocator::default();
        let requested = ["a", "a", "a__2", "a", "", "call_4", "a__3"];
        let made: Vec<String> = requested
            .iter()
            .map(|id| ids.allocate(Some(&JsonStr::from_value(*id))))
            .collect();
        assert_eq!(
            made,
            [
                "a",
                "a__2",
                "a__2__2",
                "a__3",
                "call_4",
                "call_4__2",
                "a__3__2"
            ]
        );
        assert_eq!(ids.allocate(None), "call_7");
        let mut ids = CallIdAllocator::default();
        let long = "x".repeat(64);
        assert_eq!(
            ids.allocate(Some(&JsonStr::from_value(long.as_str()))),
            long
        );
        let second = ids.allocate(Some(&JsonStr::from_value(long.as_str())));
        assert!(second.len() <= 64 && second.ends_with("__2"), "{second}");
    }

    #[test]
    fn chat_ids_are_forty_letters_at_most() {
        let fits = "ö".repeat(40);
        assert_eq!(chat_call_id(Cow::Borrowed(&fits)), fits);
        let long = "toolu_".repeat(7);
        let short = chat_call_id(Cow::Borrowed(&long));
        assert_eq!(short, format!("call_{}", &hash_hex(&long)[..32]));
    }

    #[test]
    fn a_tool_name_is_renamed_once_and_can_be_given_back() {
        let (mut warnings, mut response_context) =
            (Warnings::default(), ResponseContext::default());
        let mut named = |name: &'static str, at: &str| {
            alias_tool_name(
                Cow::Borrowed(name),
                at,
                &mut warnings,
                &mut response_context,
            )
        };
        assert_eq!(
            named("get_weather", "tools[0].function.name"),
            "get_weather"
        );
        let alias = named("home.light on", "tools[1].function.name").into_owned();
        assert_eq!(
            alias,
            format!("home_light_on_{}", &hash_hex("home.light on")[..8])
        );
        assert_eq!(named("home.light on", "messages[2]"), alias);
        let long: &'static str = "n".repeat(80).leak();
        assert_eq!(named(long, "tools[2].function.name").len(), 64);
        assert_eq!(
            warnings.into_tokens(),
            [
                "renamed:tools[1].function.name",
                "renamed:tools[2].function.name"
            ]
        );
        assert_eq!(response_context.client_tool_name(&alias), "home.light on");
        assert_eq!(
            response_context.client_tool_name("get_weather"),
            "get_weather"
        );
    }

    #[test]
    fn end_users_are_never_told() {
        assert_eq!(hash_end_user("acct_1", None), hash_hex("acct_1"));
        assert_eq!(hash_end_user("acct_1", Some("mia")), hash_hex("acct_1:mia"));
    }
}
