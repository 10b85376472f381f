//! Which conversation a request belongs to: one short key for all its turns.
//!
//! Clients that keep sessions say which one it is; for the others the beginning counts, which every
//! later turn repeats: the instructions and the first message behind them. Must not keep or tell
//! anything that was said: what leaves is half a hash that also holds the account. Must not read
//! the body once more: the outline knows where the beginning stands.

use super::Outline;
use crate::protocol::scan::{Broken, Kind, Scan, Span};
use sha2::{Digest as _, Sha256};
use std::fmt;

/// Headers in which clients name their session, in the order of trust: agents, relays, then what
/// others call it.
pub const SESSION_HEADERS: [&str; 16] = [
    "x-claude-code-session-id",
    "x-opencode-session",
    "x-session-affinity",
    "x-session-id",
    "session-id",
    "session_id",
    "conversation-id",
    "conversation_id",
    "x-conversation-id",
    "thread-id",
    "thread_id",
    "x-thread-id",
    "x-amp-thread-id",
    "x-litellm-session-id",
    "x-grok-conv-id",
    "x-client-session-id",
];

/// Members of `metadata` that name a session.
const SESSION_MEMBERS: [&str; 5] = [
    "session_id",
    "sessionId",
    "conversation_id",
    "thread_id",
    "chat_id",
];

/// A name of a session that is longer is none, in bytes.
const ID_BYTES_MAX: usize = 512;

/// How many messages at the beginning are looked at.
const HEAD_MESSAGES: usize = 8;

/// Of a text, so much of each end counts, in bytes, and its length: a megabyte of it is not hashed.
const END_BYTES: usize = 4_096;

/// How many texts of the beginning count.
const TEXTS_MAX: u32 = 64;

/// Instructions that change with every request, by how they begin.
const FLEETING: &[u8] = b"x-anthropic-billing-header:";

/// A conversation of an account: 64 bits of SHA-256, written as 16 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConversationKey(u64);

impl ConversationKey {
    /// Evenly spread, for whoever chooses by it.
    pub fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ConversationKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

impl fmt::Debug for ConversationKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// Where a body tells of its conversation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Signs {
    system: Option<Span>,
    head: [Head; HEAD_MESSAGES],
    messages: usize,
    session: Option<Span>,
    cache_key: Option<Span>,
    metadata: Option<Span>,
}

/// Of one of the first messages, the values of two members.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Head {
    role: Option<Span>,
    content: Option<Span>,
}

impl Head {
    /// A member of the message. The first of its name counts.
    pub(super) fn member(&mut self, name: &str, span: Span) {
        let place = match name {
            "role" => &mut self.role,
            "content" => &mut self.content,
            _ => return,
        };
        place.get_or_insert(span);
    }
}

impl Signs {
    /// A member that stood at `span`. The first of its name counts.
    pub(super) fn member(&mut self, name: &str, span: Span) {
        let sign = match name {
            "system" | "instructions" => &mut self.system,
            "session_id" => &mut self.session,
            "prompt_cache_key" => &mut self.cache_key,
            "metadata" => &mut self.metadata,
            _ => return,
        };
        sign.get_or_insert(span);
    }

    /// The next of the messages.
    pub(super) fn message(&mut self, head: Head) {
        if let Some(place) = self.head.get_mut(self.messages) {
            *place = head;
            self.messages = self.messages.saturating_add(1);
        }
    }
}

impl Outline {
    /// The key of the conversation that `body`, which this outline was read from, goes on with.
    /// `header` tells a header's value. The model is no part of it: a conversation may change it.
    pub fn conversation<'h>(
        &self,
        account: &str,
        header: impl Fn(&str) -> Option<&'h str>,
        body: &[u8],
    ) -> ConversationKey {
        let mut hash = Sha256::new();
        hash_part(&mut hash, b'a', account.as_bytes());
        let named = SESSION_HEADERS
            .iter()
            .find_map(|name| header(name).and_then(id).map(str::to_owned));
        match named.or_else(|| self.signs.named(body)) {
            Some(id) => hash_part(&mut hash, b'i', id.as_bytes()),
            None => Beginning {
                hash: &mut hash,
                texts: 0,
            }
            .read(&self.signs, body),
        }
        let digest = hash.finalize();
        ConversationKey(
            digest
                .first_chunk::<8>()
                .map_or(0, |half| u64::from_be_bytes(*half)),
        )
    }
}

impl Signs {
    /// The name that a member of the body gives the session.
    fn named(&self, body: &[u8]) -> Option<String> {
        let named_by = |span: &Option<Span>| id(&string(at(body, (*span)?)?)?).map(str::to_owned);
        let metadata = || session_of(at(body, self.metadata?)?);
        named_by(&self.session)
            .or_else(metadata)
            .or_else(|| named_by(&self.cache_key))
    }
}

/// What stands there. What was read once is UTF-8.
fn at(body: &[u8], span: Span) -> Option<&str> {
    std::str::from_utf8(body.get(span.start..span.end)?).ok()
}

/// The value, if it is a string.
fn string(value: &str) -> Option<String> {
    let text = Scan::new(value, super::DEPTH_MAX).text_or_skip().ok()??;
    Some(text.name().into_owned())
}

/// What counts as a session's name.
fn id(value: &str) -> Option<&str> {
    let value = value.trim();
    let fits =
        !value.is_empty() && value.len() <= ID_BYTES_MAX && !value.contains(char::is_control);
    fits.then_some(value)
}

/// The session in an object: a member of that name, or in `user_id`, where an agent puts several
/// ids together, as an object in a string or as `user_…_session_…`. A user alone is no session: he
/// has many.
fn session_of(object: &str) -> Option<String> {
    let (mut session, mut user) = (None, None);
    let members = Scan::new(object, super::DEPTH_MAX).object_or_skip(|scan, key| {
        let name = key.name();
        let value = scan.text_or_skip()?.map(|value| value.name().into_owned());
        if SESSION_MEMBERS.contains(&name.as_ref()) {
            session = session.take().or(value);
        } else if name == "user_id" {
            user = value;
        }
        Ok::<(), Broken>(())
    });
    members.ok()?;
    let named = session.as_deref().and_then(id).map(str::to_owned);
    named.or_else(|| {
        let user = user.filter(|user| user.len() <= ID_BYTES_MAX)?;
        match user.rsplit_once("_session_") {
            Some((_, session)) => id(session).map(str::to_owned),
            // It ends: what is inside a string is shorter than that.
            None if user.starts_with('{') => session_of(&user),
            None => None,
        }
    })
}

/// The texts that a conversation begins with, as they are spelled.
struct Beginning<'a> {
    hash: &'a mut Sha256,
    texts: u32,
}

impl Beginning<'_> {
    fn read(&mut self, signs: &Signs, body: &[u8]) {
        if let Some(system) = signs.system {
            self.value(body, system, b's');
        }
        for head in signs.head.iter().take(signs.messages) {
            let role = head.role.and_then(|role| string(at(body, role)?));
            let is_instruction = matches!(role.as_deref(), Some("system" | "developer"));
            if let Some(content) = head.content {
                self.value(body, content, if is_instruction { b's' } else { b'm' });
            }
            if !is_instruction {
                break;
            }
        }
    }

    /// What was read once can be read again: a fault ends it early, at the same place each time.
    fn value(&mut self, body: &[u8], span: Span, mark: u8) {
        // A string needs no reading to know its end.
        let token = body
            .get(span.start..span.end)
            .and_then(|value| value.strip_prefix(b"\"")?.strip_suffix(b"\""));
        match token {
            Some(inside) => self.text(inside, mark),
            None => {
                let value = at(body, span).unwrap_or_default();
                let _ = self.texts(&mut Scan::new(value, super::DEPTH_MAX), mark);
            }
        }
    }

    /// Every text in a value, however it is wrapped, without the markers that clients move about.
    fn texts(&mut self, scan: &mut Scan<'_>, mark: u8) -> Result<(), Broken> {
        match scan.kind()? {
            Kind::String => {
                self.text(scan.string()?.raw.as_bytes(), mark);
                Ok(())
            }
            Kind::Array => scan.array(|scan| self.texts(scan, mark)).map(drop),
            Kind::Object => scan
                .object(|scan, key| match key.name().as_ref() {
                    "type" | "cache_control" | "prompt_cache_breakpoint" => scan.skip().map(drop),
                    _ => self.texts(scan, mark),
                })
                .map(drop),
            _ => scan.skip().map(drop),
        }
    }

    /// What stands between the quotes of one.
    fn text(&mut self, bytes: &[u8], mark: u8) {
        if self.texts >= TEXTS_MAX || bytes.starts_with(FLEETING) {
            return;
        }
        self.texts = self.texts.saturating_add(1);
        let first = bytes.get(..END_BYTES).unwrap_or(bytes);
        let last = bytes.len().saturating_sub(END_BYTES).max(first.len());
        hash_part(self.hash, mark, first);
        hash_part(self.hash, b'e', bytes.get(last..).unwrap_or_default());
        self.hash.update((bytes.len() as u64).to_le_bytes());
    }
}

/// Parts cannot run into one another.
fn hash_part(hash: &mut Sha256, mark: u8, bytes: &[u8]) {
    hash.update([mark]);
    hash.update((bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}
