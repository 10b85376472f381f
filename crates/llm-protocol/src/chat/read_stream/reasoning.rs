//! Selects the members of a chat vendor's reasoning that the gateway emits, and collects the parts
//! that the vendor wants back.
//!
//! This file must not emit the same reasoning twice: vendors repeat it in two or three members.
//!
//! Read next: `reasoning_token.rs`, how reasoning passes through a messages client.

use super::delta::{ChatDelta, non_empty_text};
use crate::json::{JsonStr, JsonValue, JsonWriter, RawJson};
use crate::reasoning_token;

/// Maximum number of bytes of reasoning to send back. If the reasoning is longer, the vendor gets
/// none back.
const MAX_REPLAY_BYTES: usize = 1024 * 1024;

/// The member from which the reasoning is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ChatReasoningSource {
    Content,
    Plain,
    Details,
}

#[derive(Debug, Default)]
pub(super) struct ChatReasoningState {
    /// First member that had text. Other members repeat the text, sometimes only at the end.
    source: Option<ChatReasoningSource>,
    /// Entries of `reasoning_details`. The fragments of one text are joined.
    kept: Vec<ReasoningDetail>,
    kept_bytes: usize,
    /// True if an entry holds data that only the vendor can read.
    has_sealed: bool,
    is_too_large: bool,
}

/// One entry of `reasoning_details`, with its members in their original JSON spelling.
#[derive(Debug)]
struct ReasoningDetail {
    members: Vec<(String, String)>,
}

impl ChatReasoningState {
    /// Selects the member from which to read this message's reasoning.
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

    /// Keeps one entry of `reasoning_details`. A fragment of the last entry is joined to that
    /// entry.
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

    /// Returns whether `entry` continues this one, because it has the same type and index, and this
    /// one has a text without a signature.
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
