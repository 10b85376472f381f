//! A chat vendor's reasoning: which of its members the gateway emits, and which parts the vendor
//! wants back.
//!
//! This file must not emit the same reasoning twice: vendors send it in two or three members at
//! once.
//!
//! Read next: `reasoning_token.rs`, how reasoning passes through a messages client.

use super::delta::{ChatDelta, non_empty_text};
use crate::json::{JsonStr, JsonValue, JsonWriter, RawJson};
use crate::reasoning_token;

/// Maximum number of bytes of reasoning to send back. If there are more, the vendor gets none back.
const MAX_REPLAY_BYTES: usize = 1024 * 1024;

/// Member that the reasoning is read from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ChatReasoningSource {
    /// `reasoning_content`
    Content,
    /// `reasoning`
    Plain,
    /// `reasoning_details`
    Details,
}

/// Reasoning of the answer so far.
#[derive(Debug, Default)]
pub(super) struct ChatReasoningState {
    /// First member that had text. The others repeat it, some of them only at the end.
    source: Option<ChatReasoningSource>,
    /// Entries of `reasoning_details`, with the fragments of one text joined.
    kept: Vec<ReasoningDetail>,
    kept_bytes: usize,
    /// An entry holds data that only the vendor can read.
    has_sealed: bool,
    is_too_large: bool,
}

/// One entry of `reasoning_details`, with its members in their original JSON spelling.
#[derive(Debug)]
struct ReasoningDetail {
    members: Vec<(String, String)>,
}

impl ChatReasoningState {
    /// Returns the member to read this message's reasoning from.
    pub(super) fn select_source(&mut self, delta: &ChatDelta<'_>) -> Option<ChatReasoningSource> {
        if self.source.is_none() {
            let has_details = || {
                delta
                    .details
                    .is_some_and(|details| details.items().any(|it| detail_text(it).is_some()))
            };
            self.source = match delta {
                ChatDelta {
                    reasoning_content: Some(_),
                    ..
                } => Some(ChatReasoningSource::Content),
                ChatDelta {
                    reasoning: Some(_), ..
                } => Some(ChatReasoningSource::Plain),
                _ if has_details() => Some(ChatReasoningSource::Details),
                _ => None,
            };
        }
        self.source
    }

    /// Keeps one entry of `reasoning_details`. In a stream it may be a fragment of the last entry;
    /// it is then joined to that entry.
    pub(super) fn push_detail(&mut self, entry: JsonValue<'_>, is_whole: bool) {
        if !entry.is_object() || self.is_too_large {
            return;
        }
        self.has_sealed |= ["data", "signature"]
            .iter()
            .any(|name| entry.get(name).and_then(non_empty_text).is_some());
        match self.kept.last_mut() {
            Some(last) if !is_whole && last.is_continued_by(entry) => {
                self.kept_bytes += last.append(entry)
            }
            _ => {
                let members: Vec<_> = entry
                    .members()
                    .map(|(key, value)| (key.written().to_owned(), value.raw().to_owned()))
                    .collect();
                self.kept_bytes += entry.raw().len() + size_of::<ReasoningDetail>();
                self.kept.push(ReasoningDetail { members });
            }
        }
        if self.kept_bytes > MAX_REPLAY_BYTES {
            *self = ChatReasoningState {
                source: self.source,
                is_too_large: true,
                ..ChatReasoningState::default()
            };
        }
    }

    /// Returns the signature that carries the kept reasoning, or `None` if nobody needs it back.
    pub(super) fn take_signature(&mut self) -> Option<String> {
        if !self.has_sealed {
            return None;
        }
        self.has_sealed = false;
        self.kept_bytes = 0;
        Some(reasoning_token::encode_details(&details_json(
            &std::mem::take(&mut self.kept),
        )))
    }
}

/// Members that hold the readable text of an entry.
const TEXT_MEMBERS: [&str; 2] = ["text", "summary"];

pub(super) fn detail_text(entry: JsonValue<'_>) -> Option<JsonStr<'_>> {
    TEXT_MEMBERS
        .iter()
        .find_map(|name| entry.get(name).and_then(non_empty_text))
}

impl ReasoningDetail {
    fn get(&self, name: &str) -> Option<&str> {
        self.members
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// Returns whether `entry` continues this entry: it has the same type and index, and this entry
    /// has a text without a signature.
    fn is_continued_by(&self, entry: JsonValue<'_>) -> bool {
        let same = |name: &str| match (self.get(name), entry.get(name)) {
            (Some(own), Some(other)) => own == other.raw(),
            (own, other) => own.is_none() && other.is_none(),
        };
        let is_string = |name: &str| self.get(name).is_some_and(|own| own.starts_with('"'));
        let has_place = self.get("index").is_some() || detail_text(entry).is_some();
        same("type")
            && same("index")
            && has_place
            && TEXT_MEMBERS.iter().any(|name| is_string(name))
            && !is_string("signature")
    }

    /// Joins texts and replaces all other members. Returns the number of bytes added.
    fn append(&mut self, entry: JsonValue<'_>) -> usize {
        let mut added = 0;
        for (key, value) in entry.members().filter(|(_, value)| !value.is_null()) {
            let (key, raw) = (key.written(), value.raw());
            match self.members.iter_mut().find(|(own, _)| own == key) {
                Some((own, joined))
                    if TEXT_MEMBERS.contains(&own.as_str()) && joined.ends_with('"') =>
                {
                    let more = raw.strip_prefix('"').unwrap_or("\"");
                    joined.pop();
                    joined.push_str(more);
                    added += more.len();
                }
                Some((_, own)) if own == raw => {}
                Some((_, own)) => {
                    raw.clone_into(own);
                    added += raw.len();
                }
                None => {
                    added += key.len() + raw.len();
                    self.members.push((key.to_owned(), raw.to_owned()));
                }
            }
        }
        added
    }
}

fn details_json(entries: &[ReasoningDetail]) -> String {
    let mut json = JsonWriter::default();
    json.open_array();
    for entry in entries {
        json.open_object();
        for (key, value) in &entry.members {
            json.member(key, RawJson(value));
        }
        json.close_object();
    }
    json.close_array();
    json.into_string()
}
