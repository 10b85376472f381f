//! Finds the member of a request that a vendor's error reports as unknown.
//!
//! This file must not name a member that changes the bill, or that a vendor may refuse for safety.
//! The client must get those errors.

use super::context_length::VENDOR_TEXT;
use super::vendor::VendorError;
use crate::table_text::names_in;

/// Members that a request, or a message, part, call or tool of it, can do without. The gateway adds
/// some of them itself; the others are hints for the vendor, or come from another vendor's answers.
const DISPENSABLE: [&str; 29] = names_in(VENDOR_TEXT, "dispensable members");

/// Parts of the sentences in which servers report an unknown member, in lower case. They come from
/// OpenAI, Google, FastAPI with pydantic, Groq, Rust servers with serde, and Python servers.
const SENTENCES: [&str; 20] = names_in(VENDOR_TEXT, "unknown member");

/// Returns the dispensable member that the error names as unknown.
pub fn refused_member(status: u16, body: &[u8]) -> Option<&'static str> {
    if !matches!(status, 400 | 422) {
        return None;
    }
    let error = VendorError::parse(body)?;
    let message = error.message.to_ascii_lowercase();
    let says_unknown = SENTENCES.iter().any(|words| message.contains(words))
        || error
            .code
            .as_deref()
            .is_some_and(|code| matches!(code, "unknown_parameter" | "unsupported_parameter"));
    if !says_unknown {
        return None;
    }
    named_by(&error, &DISPENSABLE).next()
}

/// Returns the candidates that the error names, regardless of the reason.
pub fn named_members<'a>(body: &[u8], candidates: &[&'a str]) -> Vec<&'a str> {
    let error = VendorError::parse(body).unwrap_or_else(|| VendorError {
        message: String::from_utf8_lossy(body).into_owned(),
        ..VendorError::default()
    });
    let mut named: Vec<_> = named_by(&error, candidates).collect();
    named.sort_unstable();
    named.dedup();
    named
}

/// Returns the candidates in the error's message, in their order, and then the candidate in the
/// error's own member for it.
fn named_by<'a>(error: &VendorError, candidates: &[&'a str]) -> impl Iterator<Item = &'a str> {
    let find = |name: &str| {
        let mut candidates = candidates.iter();
        candidates
            .find(|member| member.eq_ignore_ascii_case(name))
            .copied()
    };
    let is_sign = |letter: char| !letter.is_ascii_alphanumeric() && letter != '_';
    // Rust servers list the members that they accept: "unknown field `x`, expected one of `user`,
    // …".
    let said = error.message.split(", expected").next().unwrap_or_default();
    let words = said.split(is_sign).filter_map(find);
    let named: Vec<_> = words.chain(error.param.as_deref().and_then(find)).collect();
    named.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_found_where_a_server_says_that_it_does_not_know_it() {
        for (body, member) in [
            (
                r#"{"message":{"detail":[{"type":"extra_forbidden","loc":["body","stream_options","include_usage"],"msg":"Extra inputs are not permitted"}]}}"#,
                Some("stream_options"),
            ),
            (
                r#"[{"error":{"code":400,"message":"Invalid JSON payload received. Unknown name \"safety_identifier\": Cannot find field."}}]"#,
                Some("safety_identifier"),
            ),
            (
                r#"{"error":{"message":"property 'user' is unsupported"}}"#,
                Some("user"),
            ),
            (
                r#"{"error":{"message":"Unknown parameter","code":"unknown_parameter","param":"seed"}}"#,
                Some("seed"),
            ),
            (
                r#"{"error":{"message":"Unrecognized key(s) in object: 'store'"}}"#,
                Some("store"),
            ),
            (
                r#"{"message":"Additional properties are not allowed ('seed' was unexpected)"}"#,
                Some("seed"),
            ),
            (r#"{"error":"\"seed\" is not allowed"}"#, Some("seed")),
            (
                r#"{"error":{"code":"1210","message":"Invalid API parameter, please check the documentation: user"}}"#,
                Some("user"),
            ),
            (
                r#"{"error":"Unsupported parameter(s): `seed`"}"#,
                Some("seed"),
            ),
            (
                r#"{"error":{"message":"the user is not allowed here"}}"#,
                None,
            ),
            (r#"{"error":{"message":"the user is not known"}}"#, None),
            (
                r#"{"error":{"message":"property 'service_tier' is unsupported"}}"#,
                None,
            ),
            (r#"{"error":{"message":"unknown field `messages`"}}"#, None),
        ] {
            let all = named_members(body.as_bytes(), &DISPENSABLE);
            assert!(member.is_none_or(|member| all == [member]), "{body}");
            assert_eq!(refused_member(400, body.as_bytes()), member, "{body}");
            assert_eq!(refused_member(500, body.as_bytes()), None);
        }
        let listed = r#"{"error":"unknown field `seed`, expected one of `user`, `n`"}"#;
        assert_eq!(
            named_members(listed.as_bytes(), &["n", "seed", "user"]),
            ["seed"]
        );
        let two =
            r#"{"detail":[{"loc":["body","user"],"msg":"x"},{"loc":["body","seed"],"msg":"x"}]}"#;
        assert_eq!(
            named_members(two.as_bytes(), &["n", "seed", "user"]),
            ["seed", "user"]
        );
    }
}
