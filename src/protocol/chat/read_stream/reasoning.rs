//! A chat vendor's reasoning: which of its members the gateway emits, and which parts the vendor
//! wants back.
//!
//! It must not emit the same reasoning twice: vendors send it in two or three members at once.
//!
//! Read next: `protocol/reasoning_token.rs`, how reasoning passes through a messages client.

use super::Said;
use crate::protocol::carrier;
use crate::protocol::text::{Json, Text};
use crate::protocol::tree::Value;

/// Maximum number of bytes of reasoning to send back. If there are more, the vendor gets none back.
const KEPT_BYTES_MAX: usize = 1024 * 1024;

/// Member that the reasoning is read from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// `reasoning_content`
    Content,
    /// `reasoning`
    Plain,
    /// `reasoning_details`
    Details,
}

/// Reasoning of the answer so far.
#[derive(Debug, Default)]
pub(super) struct Reasoning {
    /// First member that had text. The others repeat it, some of them only at the end.
    source: Option<Source>,
    /// Entries of `reasoning_details`, with the fragments of one text joined.
    kept: Vec<Entry>,
    kept_bytes: usize,
    /// An entry holds data that only the vendor can read.
    has_sealed: bool,
    is_too_large: bool,
}

/// One entry of `reasoning_details`, with its members in their original JSON spelling.
#[derive(Debug)]
struct Entry {
    members: Vec<(String, String)>,
}

impl Reasoning {
    /// Returns the member to read this message's reasoning from.
    pub(super) fn source(&mut self, said: &Said<'_>) -> Option<Source> {
        if self.source.is_none() {
            let has_details = || {
                said.details
                    .is_some_and(|details| details.items().any(|it| entry_text(it).is_some()))
            };
            self.source = match said {
                Said {
                    reasoning_content: Some(_),
                    ..
                } => Some(Source::Content),
                Said {
                    reasoning: Some(_), ..
                } => Some(Source::Plain),
                _ if has_details() => Some(Source::Details),
                _ => None,
            };
        }
        self.source
    }

    /// Keeps one entry of `reasoning_details`. In a stream it may be a fragment of the last entry;
    /// it is then joined to that entry.
    pub(super) fn keep(&mut self, entry: Value<'_>, is_whole: bool) {
        if !entry.is_object() || self.is_too_large {
            return;
        }
        self.has_sealed |= ["data", "signature"]
            .iter()
            .any(|name| entry.get(name).and_then(super::text).is_some());
        match self.kept.last_mut() {
            Some(last) if !is_whole && last.goes_on(entry) => self.kept_bytes += last.join(entry),
            _ => {
                let members: Vec<_> = entry
                    .members()
                    .map(|(key, value)| (as_written(&key).to_owned(), value.raw().to_owned()))
                    .collect();
                self.kept_bytes += entry.raw().len() + size_of::<Entry>();
                self.kept.push(Entry { members });
            }
        }
        if self.kept_bytes > KEPT_BYTES_MAX {
            *self = Reasoning {
                source: self.source,
                is_too_large: true,
                ..Reasoning::default()
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
        Some(carrier::encode(&array(&std::mem::take(&mut self.kept))))
    }
}

/// Members that hold the readable text of an entry.
const TEXTS: [&str; 2] = ["text", "summary"];

pub(super) fn entry_text(entry: Value<'_>) -> Option<Text<'_>> {
    TEXTS
        .iter()
        .find_map(|name| entry.get(name).and_then(super::text))
}

impl Entry {
    fn get(&self, name: &str) -> Option<&str> {
        self.members
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// Returns whether `entry` continues this entry: it has the same type and index, and this entry
    /// has a text without a signature.
    fn goes_on(&self, entry: Value<'_>) -> bool {
        let same = |name: &str| match (self.get(name), entry.get(name)) {
            (Some(own), Some(other)) => own == other.raw(),
            (own, other) => own.is_none() && other.is_none(),
        };
        let is_string = |name: &str| self.get(name).is_some_and(|own| own.starts_with('"'));
        let has_place = self.get("index").is_some() || entry_text(entry).is_some();
        same("type")
            && same("index")
            && has_place
            && TEXTS.iter().any(|name| is_string(name))
            && !is_string("signature")
    }

    /// Joins texts and replaces all other members. Returns the number of bytes added.
    fn join(&mut self, entry: Value<'_>) -> usize {
        let mut added = 0;
        for (key, value) in entry.members().filter(|(_, value)| !value.is_null()) {
            let (key, raw) = (as_written(&key), value.raw());
            match self.members.iter_mut().find(|(own, _)| own == key) {
                Some((own, joined)) if TEXTS.contains(&own.as_str()) && joined.ends_with('"') => {
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

/// Returns a member's name as it is spelled between its quotes.
fn as_written<'k>(key: &Text<'k>) -> &'k str {
    match key {
        Text::Token { raw, .. } => raw,
        Text::Made(_) => "",
    }
}

fn array(entries: &[Entry]) -> String {
    let mut json = Json::default();
    json.open_array();
    for entry in entries {
        json.open_object();
        for (key, value) in &entry.members {
            json.key(key).raw(value);
        }
        json.close_object();
    }
    json.close_array();
    String::from_utf8(json.into_bytes()).unwrap_or_default()
}
