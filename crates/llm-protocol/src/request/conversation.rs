//! Identifies the conversation of a request: one short key for all its turns.
//!
//! Some clients send a session id. For other clients the key comes from the instructions and the
//! first messages, which every later turn repeats. The content must not be stored or reported: the
//! key is a 64-bit hash that also covers the account. The body must not be scanned again,
//! because the request summary has the spans of the beginning.

use super::summary::RequestSummary;
use crate::json::{JsonKind, JsonScanner, MAX_DEPTH, ScanResult, Span};
use spans::ConversationSpans;
use std::fmt;
use xxhash_rust::xxh3::Xxh3Default;

pub(super) mod spans;

/// Headers in which clients send a session id, most trusted first: those of agents, of relays, and
/// then others.
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

/// Members of `metadata` that may contain a session id.
const SESSION_MEMBERS: [&str; 5] = [
    "session_id",
    "sessionId",
    "conversation_id",
    "thread_id",
    "chat_id",
];

/// Maximum length of a session id in bytes. A longer one is ignored.
const MAX_ID_BYTES: usize = 512;

/// Number of bytes that are hashed at each end of a text, together with the text's length. A text
/// of a megabyte is not hashed whole.
const HASHED_END_BYTES: usize = 4_096;

/// Maximum number of texts that the key covers.
const MAX_TEXTS: u32 = 64;

/// Prefix of instructions that change with every request.
const VOLATILE_PREFIX: &[u8] = b"x-anthropic-billing-header:";

/// Key of an account's conversation: XXH3 in 64 bits, written as 16 hex digits. A client that
/// constructs two conversations with one key harms only its own account, and no secret depends on
/// the key, so a cryptographic hash would cost a request much and give nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConversationKey(u64);

impl ConversationKey {
    /// Returns the key as a uniformly distributed number, for load distribution.
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

impl RequestSummary {
    /// Returns the key of the conversation that `body` continues. The summary must come from the
    /// same body. `header` returns the value of a header. The key does not cover the model, because
    /// a conversation may change it.
    pub fn conversation_key<'h>(
        &self,
        account: &str,
        header: impl Fn(&str) -> Option<&'h str>,
        body: &[u8],
    ) -> ConversationKey {
        let mut hash = Xxh3Default::new();
        hash_part(&mut hash, b'a', account.as_bytes());
        let named = SESSION_HEADERS
            .iter()
            .find_map(|name| header(name).and_then(valid_id).map(str::to_owned));
        match named.or_else(|| self.conversation.session_id(body)) {
            Some(id) => hash_part(&mut hash, b'i', id.as_bytes()),
            None => ConversationHasher {
                hash: &mut hash,
                texts: 0,
            }
            .hash_opening(&self.conversation, body),
        }
        ConversationKey(hash.digest())
    }
}

impl ConversationSpans {
    /// Returns the session id in the member of the body that may contain one.
    fn session_id(&self, body: &[u8]) -> Option<String> {
        let named_by = |span: &Option<Span>| {
            valid_id(&parse_string(slice_at(body, (*span)?)?)?).map(str::to_owned)
        };
        let metadata = || find_session_id(slice_at(body, self.metadata?)?);
        named_by(&self.session)
            .or_else(metadata)
            .or_else(|| named_by(&self.cache_key))
    }
}

/// Returns the text at `span`. The body was parsed before, so it is UTF-8.
fn slice_at(body: &[u8], span: Span) -> Option<&str> {
    std::str::from_utf8(body.get(span.start..span.end)?).ok()
}

fn parse_string(value: &str) -> Option<String> {
    let text = JsonScanner::new(value, MAX_DEPTH).string_or_skip().ok()??;
    Some(text.name().into_owned())
}

/// Returns the session id, trimmed, if it is valid.
fn valid_id(value: &str) -> Option<&str> {
    let value = value.trim();
    let fits =
        !value.is_empty() && value.len() <= MAX_ID_BYTES && !value.contains(char::is_control);
    fits.then_some(value)
}

/// Returns the session id in an object. A member may have that name, or `user_id` may contain it:
/// one agent combines several ids there, as a JSON object in a string or as `user_…_session_…`. A
/// user id alone is not a session, because a user has many.
fn find_session_id(object: &str) -> Option<String> {
    let (mut session, mut user) = (None, None);
    let members = JsonScanner::new(object, MAX_DEPTH).object_or_skip(|scan, key| {
        let name = key.name();
        let value = scan
            .string_or_skip()?
            .map(|value| value.name().into_owned());
        if SESSION_MEMBERS.contains(&name.as_ref()) {
            session = session.take().or(value);
        } else if name == "user_id" {
            user = value;
        }
        ScanResult::Ok(())
    });
    members.ok()?;
    let named = session.as_deref().and_then(valid_id).map(str::to_owned);
    named.or_else(|| {
        let user = user.filter(|user| user.len() <= MAX_ID_BYTES)?;
        match user.rsplit_once("_session_") {
            Some((_, session)) => valid_id(session).map(str::to_owned),
            // The recursion ends, because the string's content is shorter than the string.
            None if user.starts_with('{') => find_session_id(&user),
            None => None,
        }
    })
}

/// Hashes the texts at the beginning of a conversation in their escaped form.
struct ConversationHasher<'a> {
    hash: &'a mut Xxh3Default,
    texts: u32,
}

impl ConversationHasher<'_> {
    fn hash_opening(&mut self, conversation: &ConversationSpans, body: &[u8]) {
        if let Some(system) = conversation.system {
            self.hash_value(body, system, b's');
        }
        for head in conversation.head.iter().take(conversation.messages) {
            let role = head
                .role
                .and_then(|role| parse_string(slice_at(body, role)?));
            let is_instruction = matches!(role.as_deref(), Some("system" | "developer"));
            if let Some(content) = head.content {
                self.hash_value(body, content, if is_instruction { b's' } else { b'm' });
            }
            if !is_instruction {
                break;
            }
        }
    }

    /// Hashes the texts in a value. The value was scanned before, so this scan cannot fail.
    fn hash_value(&mut self, body: &[u8], span: Span, mark: u8) {
        // The end of a string is known without a scan.
        let token = body
            .get(span.start..span.end)
            .and_then(|value| value.strip_prefix(b"\"")?.strip_suffix(b"\""));
        match token {
            Some(inside) => self.hash_text(inside, mark),
            None => {
                let value = slice_at(body, span).unwrap_or_default();
                let _ = self.hash_texts(&mut JsonScanner::new(value, MAX_DEPTH), mark);
            }
        }
    }

    /// Hashes every text in a value at any level, except the cache markers, which clients move
    /// between turns.
    fn hash_texts(&mut self, scan: &mut JsonScanner<'_>, mark: u8) -> ScanResult {
        match scan.kind()? {
            JsonKind::String => {
                self.hash_text(scan.string()?.raw.as_bytes(), mark);
                Ok(())
            }
            JsonKind::Array => scan.array(|scan| self.hash_texts(scan, mark)),
            JsonKind::Object => scan.object(|scan, key| match key.name().as_ref() {
                "type" | "cache_control" | "prompt_cache_breakpoint" => scan.skip(),
                _ => self.hash_texts(scan, mark),
            }),
            _ => scan.skip(),
        }
    }

    /// Hashes the text between the quotes of a string.
    fn hash_text(&mut self, bytes: &[u8], mark: u8) {
        if self.texts >= MAX_TEXTS || bytes.starts_with(VOLATILE_PREFIX) {
            return;
        }
        self.texts = self.texts.saturating_add(1);
        let first = bytes.get(..HASHED_END_BYTES).unwrap_or(bytes);
        let last = bytes
            .len()
            .saturating_sub(HASHED_END_BYTES)
            .max(first.len());
        hash_part(self.hash, mark, first);
        hash_part(self.hash, b'e', bytes.get(last..).unwrap_or_default());
        self.hash.update(&(bytes.len() as u64).to_le_bytes());
    }
}

/// Hashes one part with its length, so that parts cannot be confused with one another.
fn hash_part(hash: &mut Xxh3Default, mark: u8, bytes: &[u8]) {
    hash.update(&[mark]);
    hash.update(&(bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}
