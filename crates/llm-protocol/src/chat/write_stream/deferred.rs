//! Collects the parts that are written whole at the end of an answer: the reasoning that the vendor
//! wants back, and the sources.
//!
//! The official clients disagree about lists in pieces: one concatenates every string that is
//! repeated under the same index, and the other keeps only the last piece. Both read one complete
//! list correctly.
//!
//! This file must not hold more bytes than its budget.

use crate::chat::reasoning_format::{MESSAGES_REASONING_FORMAT, RESPONSES_REASONING_FORMAT};
use crate::json::{JsonStr, JsonStrBuf, JsonWriter};
use crate::openai::reasoning_summary::split_summary;
use crate::reasoning_token::{self, ReasoningItem, ReasoningPayload};

/// Bytes counted for each entry in addition to its texts, so empty entries use up the budget too.
const ENTRY_OVERHEAD_BYTES: usize = 128;

/// Collects `reasoning_details`: the vendor's thinking blocks with their positions in the answer.
#[derive(Debug, Default)]
pub(super) struct ReasoningDetailsBuffer {
    entries: Vec<AnchoredThinking>,
    /// True if the budget was exceeded. Part of the reasoning is useless, because the vendor
    /// refuses changed thinking.
    is_lost: bool,
}

#[derive(Debug)]
struct AnchoredThinking {
    /// Number of code points of content, and number of calls, before the entry.
    anchor: (u64, u64),
    reasoning: BufferedThinking,
}

#[derive(Debug)]
enum BufferedThinking {
    Shown {
        text: JsonStrBuf,
        signature: JsonStrBuf,
    },
    Hidden {
        data: JsonStrBuf,
    },
}

impl ReasoningDetailsBuffer {
    /// Opens a thinking entry and returns its number.
    pub fn open(&mut self, anchor: (u64, u64), budget: &mut usize) -> usize {
        self.add(
            anchor,
            BufferedThinking::Shown {
                text: JsonStrBuf::default(),
                signature: JsonStrBuf::default(),
            },
            budget,
        );
        self.entries.len().saturating_sub(1)
    }

    pub fn push_hidden(&mut self, anchor: (u64, u64), data: &JsonStr<'_>, budget: &mut usize) {
        let mut held = JsonStrBuf::default();
        held.push(data);
        self.count_bytes(held.len(), budget);
        self.add(anchor, BufferedThinking::Hidden { data: held }, budget);
    }

    pub fn append(&mut self, entry: usize, more: &JsonStr<'_>, budget: &mut usize) {
        if let Some(AnchoredThinking {
            reasoning: BufferedThinking::Shown { text, .. },
            ..
        }) = self.entries.get_mut(entry)
        {
            let before = text.len();
            text.push(more);
            let added = text.len() - before;
            self.count_bytes(added, budget);
        }
    }

    /// Sets the signature. A later signature replaces an earlier one.
    pub fn set_signature(&mut self, entry: usize, text: &JsonStr<'_>, budget: &mut usize) {
        if let Some(AnchoredThinking {
            reasoning: BufferedThinking::Shown { signature, .. },
            ..
        }) = self.entries.get_mut(entry)
        {
            signature.clear();
            signature.push(text);
            let added = signature.len();
            self.count_bytes(added, budget);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adjusts the anchors after the content was reduced to the `length` code points that begin at
    /// `start`.
    pub fn shift_anchors(&mut self, start: u64, length: u64) {
        for entry in &mut self.entries {
            entry.anchor.0 = entry.anchor.0.saturating_sub(start).min(length);
        }
    }

    pub fn texts(&self) -> impl Iterator<Item = JsonStr<'_>> {
        self.entries
            .iter()
            .filter_map(|entry| match &entry.reasoning {
                BufferedThinking::Shown { text, .. } => Some(text.text()),
                BufferedThinking::Hidden { .. } => None,
            })
    }

    /// Writes the array. Each entry has its own index, because one of the official clients sorts by
    /// it.
    pub fn write(&self, json: &mut JsonWriter) {
        json.open_array();
        let mut index = 0;
        for AnchoredThinking {
            anchor: (points, calls),
            reasoning,
        } in &self.entries
        {
            let anchor = format!("{points}:{calls}");
            if let BufferedThinking::Shown { text, signature } = reasoning
                && let Some(ReasoningPayload::Item(item)) =
                    reasoning_token::unpack(&signature.text().value())
            {
                write_responses_item(&item, &text.text(), &anchor, &mut index, json);
                continue;
            }
            json.open_object().key("type");
            match reasoning {
                BufferedThinking::Shown { text, signature } => {
                    json.value("reasoning.text").member("text", text.text());
                    if !signature.is_empty() {
                        json.member("signature", signature.text());
                    }
                }
                BufferedThinking::Hidden { data } => {
                    json.value("reasoning.encrypted")
                        .member("data", data.text());
                }
            }
            json.member("format", MESSAGES_REASONING_FORMAT)
                .member("index", index)
                .member("anchor", &anchor)
                .close_object();
            index += 1;
        }
        json.close_array();
    }

    fn add(&mut self, anchor: (u64, u64), reasoning: BufferedThinking, budget: &mut usize) {
        self.count_bytes(ENTRY_OVERHEAD_BYTES, budget);
        if !self.is_lost {
            self.entries.push(AnchoredThinking { anchor, reasoning });
        }
    }

    fn count_bytes(&mut self, bytes: usize, budget: &mut usize) {
        if !try_consume(bytes, budget) {
            self.is_lost = true;
            self.entries = Vec::new();
        }
    }
}

/// Writes the reasoning item of a responses vendor: the texts of its summary and its encrypted
/// content.
fn write_responses_item(
    item: &ReasoningItem,
    text: &JsonStr<'_>,
    anchor: &str,
    index: &mut u64,
    json: &mut JsonWriter,
) {
    let texts = split_summary(text, &item.lengths).unwrap_or_default();
    let texts = texts
        .iter()
        .map(|text| ("reasoning.summary", "summary", text.reborrow()));
    let sealed = (
        "reasoning.encrypted",
        "data",
        JsonStr::from_value(item.encrypted.as_str()),
    );
    for (kind, member, text) in texts.chain([sealed]) {
        json.open_typed(kind)
            .member(member, &text)
            .member("id", &item.id);
        json.member("format", RESPONSES_REASONING_FORMAT)
            .member("index", *index)
            .member("anchor", anchor)
            .close_object();
        *index += 1;
    }
}

/// Collects `annotations`: the web sources of the answer's texts.
#[derive(Debug, Default)]
pub(super) struct ChatCitations(Vec<ChatCitation>);

#[derive(Debug)]
struct ChatCitation {
    slot: u32,
    /// Range of code points of the content that cites the source. Set once the text is complete.
    start: u64,
    end: u64,
    title: JsonStrBuf,
    url: JsonStrBuf,
}

impl ChatCitations {
    pub fn add(
        &mut self,
        slot: u32,
        title: Option<&JsonStr<'_>>,
        url: &JsonStr<'_>,
        budget: &mut usize,
    ) {
        let mut source = ChatCitation {
            slot,
            start: 0,
            end: 0,
            title: JsonStrBuf::default(),
            url: JsonStrBuf::default(),
        };
        source.url.push(url);
        title.into_iter().for_each(|title| source.title.push(title));
        if try_consume(
            source.title.len() + source.url.len() + ENTRY_OVERHEAD_BYTES,
            budget,
        ) {
            self.0.push(source);
        }
    }

    /// Sets the range of the text in `slot`, which is complete.
    pub fn set_range(&mut self, slot: u32, start: u64, end: u64) {
        for source in self
            .0
            .iter_mut()
            .rev()
            .take_while(|source| source.slot == slot)
        {
            (source.start, source.end) = (start, end);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adjusts the ranges like [`ReasoningDetailsBuffer::shift_anchors`] adjusts the anchors.
    pub fn shift_ranges(&mut self, start: u64, length: u64) {
        for at in self
            .0
            .iter_mut()
            .flat_map(|source| [&mut source.start, &mut source.end])
        {
            *at = at.saturating_sub(start).min(length);
        }
    }

    /// Writes the array. `indexed` adds the index of each entry, which clients that accumulate a
    /// stream need.
    pub fn write(&self, indexed: bool, json: &mut JsonWriter) {
        json.open_array();
        for (index, source) in (0_u64..).zip(&self.0) {
            json.open_object();
            if indexed {
                json.member("index", index);
            }
            json.member("type", "url_citation")
                .member_object("url_citation");
            json.member("start_index", source.start)
                .member("end_index", source.end);
            json.member("title", source.title.text())
                .member("url", source.url.text());
            json.close_object().close_object();
        }
        json.close_array();
    }
}

/// Takes `bytes` from the budget. Returns false, and empties the budget, if it is too small.
pub(super) fn try_consume(bytes: usize, budget: &mut usize) -> bool {
    let left = budget.checked_sub(bytes);
    *budget = left.unwrap_or(0);
    left.is_some()
}
