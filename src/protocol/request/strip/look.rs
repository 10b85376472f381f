//! The first look: is there surely nothing to strip. Bytes are searched for a few names, nothing is parsed.
//!
//! It must not say so wrongly, but for names spelled with escapes, which nobody writes; it may well doubt a body in
//! which nothing needs doing. A name inside a text stands there between escaped quotes, and is not taken for a member.
//!
//! Read next: `request/strip.rs`, which reads a body in doubt.

use super::is_signed;
use crate::protocol::rules::names;
use memchr::{memchr2, memmem};

/// The longest call id that chat's own vendor takes.
const CHAT_ID_BYTES_MAX: usize = 40;

/// All reasoning is signed and all ids of results fit. A call without a result is refused whatever its id is.
pub fn is_clean_messages(body: &[u8]) -> bool {
    let fits = |id: &[u8]| std::str::from_utf8(id).is_ok_and(names::is_plain);
    values_are(body, "\"tool_use_id\"", &fits) && thinking_is_signed(body)
}

/// No member that chat's own vendor does not know, no id that is too long.
pub fn is_clean_chat(body: &[u8]) -> bool {
    let is_named = |start: &str, rest: &[&str]| {
        memmem::find_iter(body, start).any(|at| {
            let behind = body.get(at.saturating_add(start.len())..).unwrap_or_default();
            rest.iter().any(|rest| behind.starts_with(rest.as_bytes()))
        })
    };
    let fits = |id: &[u8]| id.len() <= CHAT_ID_BYTES_MAX;
    !is_named("\"reasoning", &["\"", "_content\"", "_details\""])
        && !is_named("\"thinking", &["\"", "_blocks\""])
        && !is_named("\"cache_control\"", &[""])
        && !is_named("\"output_config\"", &[""])
        && !is_named("\"top_k\"", &[""])
        && values_are(body, "\"tool_call_id\"", &fits)
}

/// Every member of this name is a string without escapes that fits.
fn values_are(body: &[u8], name: &str, fits: &dyn Fn(&[u8]) -> bool) -> bool {
    memmem::find_iter(body, name).all(|at| {
        let mut ahead = Ahead { bytes: body, at: at.saturating_add(name.len()) };
        ahead.is(":") && ahead.string().is_some_and(|value| !value.contains(&b'\\') && fits(value))
    })
}

/// Each block of reasoning is written in one of the two orders that clients write, with a signature.
fn thinking_is_signed(body: &[u8]) -> bool {
    const NAME: &str = "\"thinking\"";
    let kinds = memmem::find_iter(body, NAME).filter_map(|at| {
        let ahead = Ahead { bytes: body, at: at.saturating_add(NAME.len()) };
        (!ahead.clone().is(":")).then_some(ahead)
    });
    let not_followed = kinds.filter(|ahead| !ahead.clone().is_signed_behind_kind()).count();
    not_followed == 0 || not_followed == signed_before_kind(body)
}

/// How many blocks open with their signature and end with their kind.
fn signed_before_kind(body: &[u8]) -> usize {
    const NAME: &str = "\"signature\"";
    memmem::find_iter(body, NAME)
        .filter(|at| Ahead { bytes: body, at: at.saturating_add(NAME.len()) }.is_thinking_behind_signature())
        .count()
}

/// Looks at what follows, token by token.
#[derive(Clone)]
struct Ahead<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Ahead<'a> {
    fn is(&mut self, wanted: &str) -> bool {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let space = rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        let is = rest.get(space..).is_some_and(|rest| rest.starts_with(wanted.as_bytes()));
        self.at = self.at.saturating_add(space).saturating_add(if is { wanted.len() } else { 0 });
        is
    }

    /// The inside of a string.
    fn string(&mut self) -> Option<&'a [u8]> {
        if !self.is("\"") {
            return None;
        }
        let start = self.at;
        loop {
            let found = memchr2(b'"', b'\\', self.bytes.get(self.at..)?)?;
            let end = self.at.saturating_add(found);
            if self.bytes.get(end) == Some(&b'"') {
                self.at = end.saturating_add(1);
                return self.bytes.get(start..end);
            }
            self.at = end.saturating_add(2);
        }
    }

    fn is_member(&mut self, name: &str) -> bool {
        self.is(",") && self.is(name) && self.is(":")
    }

    /// A signature in plain letters.
    fn is_signature(&mut self) -> bool {
        self.string().is_some_and(|value| {
            std::str::from_utf8(value).is_ok_and(|value| !value.contains('\\') && is_signed(value))
        })
    }

    /// `,"thinking":"…","signature":"…"}`
    fn is_signed_behind_kind(&mut self) -> bool {
        self.is_member("\"thinking\"")
            && self.string().is_some()
            && self.is_member("\"signature\"")
            && self.is_signature()
            && self.is("}")
    }

    /// `:"…","thinking":"…","type":"thinking"}`
    fn is_thinking_behind_signature(&mut self) -> bool {
        self.is(":")
            && self.is_signature()
            && self.is_member("\"thinking\"")
            && self.string().is_some()
            && self.is_member("\"type\"")
            && self.is("\"thinking\"")
            && self.is("}")
    }
}
