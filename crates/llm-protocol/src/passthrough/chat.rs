//! Reads a chat chunk or a whole chat answer in one skipping pass.
//!
//! This file counts text without copying it. It skips unknown members and treats members of a wrong
//! type as absent.
//!
//! Read next: `messages.rs`, its counterpart for messages.

use super::answer_id::AnswerId;
use crate::chat::read_stream::ChatFinishReason;
use crate::counters;
use crate::failure::is_failure_reason;
use crate::json::{JsonKind, JsonScanner, MAX_RESPONSE_DEPTH, ScanResult, Span, StringToken};
use crate::usage::{ChatCounters, ServiceTier, Usage, VendorCounters};
use crate::vendor_response::{StopReasonStatus, UsagePlace};

/// The facts in one chunk or in a whole answer, which differ only in `delta` and `message`.
#[derive(Default, Debug)]
pub(super) struct ChatChunk {
    pub id: Option<Span>,
    created: u64,
    pub model: Option<Span>,
    pub usage: Option<ChatCounters>,
    /// Span of the usage, of any type.
    pub usage_at: Option<Span>,
    pub tier: Option<ServiceTier>,
    /// Span of the member `"usage":null`, with the comma that belongs to it.
    pub null_usage: Option<Span>,
    /// Keys of the choices whose output stands in `message` instead of `delta`, with the names that
    /// they must get.
    pub renamed_keys: Vec<(Span, &'static str)>,
    has_full_delta: bool,
    pub is_error: bool,
    pub generated_bytes: u64,
    /// Base64 bytes of audio output.
    sound_bytes: u64,
    pub has_reasoning: bool,
    /// True if a delta has content other than the role and empty texts.
    has_delta: bool,
    choices: Vec<ChunkChoice>,
}

#[derive(Clone, Copy, Default, Debug)]
struct ChunkChoice {
    index: u64,
    /// Span of the finish reason, with its quotes.
    finish_reason: Option<Span>,
    has_content: bool,
    has_calls: bool,
}

impl ChatChunk {
    pub fn counters(&self) -> Option<ChatCounters> {
        self.usage.filter(ChatCounters::is_usage)
    }

    /// Returns whether the chunk only opens the answer, with a role, an empty text, or findings
    /// about the prompt.
    pub fn is_opening(&self) -> bool {
        let is_finished = self
            .choices
            .iter()
            .any(|choice| choice.finish_reason.is_some());
        !self.has_delta && !is_finished
    }

    /// Returns whether the chunk has choices. A whole answer has choices, each with its finish
    /// reason.
    pub fn has_choices(&self) -> bool {
        !self.choices.is_empty()
    }

    /// Returns whether each choice has its finish reason. See [`ChatChunk::has_choices`] for chunks
    /// without choices.
    pub fn is_finished(&self) -> bool {
        self.choices
            .iter()
            .all(|choice| choice.finish_reason.is_some())
    }

    pub fn has_calls(&self) -> bool {
        self.choices.iter().any(|choice| choice.has_calls)
    }

    /// Returns the index of each choice that is finished, and the span of its finish reason.
    pub fn finish_reasons(&self) -> impl Iterator<Item = (u64, Span)> {
        self.choices
            .iter()
            .filter_map(|choice| Some((choice.index, choice.finish_reason?)))
    }

    /// Returns whether the usage is not null but has no counts.
    pub fn has_empty_usage(&self) -> bool {
        self.usage_at.is_some() && self.null_usage.is_none() && self.counters().is_none()
    }

    /// Returns whether a vendor sends the chunk only because the request asked for usage.
    pub fn is_usage_only(&self) -> bool {
        self.usage.is_some() && self.choices.is_empty()
    }
}

#[derive(Default, Debug)]
pub(super) struct ChatStreamState {
    pub id: AnswerId,
    usage: Option<ChatCounters>,
    /// The service tier, which every chunk repeats.
    tier: Option<ServiceTier>,
    sound_bytes: u64,
    /// Choices that have begun, as a bit set by index. The surface allows 128 choices.
    begun: u128,
    finished: u128,
    with_calls: u128,
    has_full_delta: bool,
    has_output: bool,
    usage_place: UsagePlace,
    /// Number of choices that the client requested; 0 if it is not set.
    choices: u64,
    goes_on_behind_stop: bool,
    /// True for an answer of the completions API.
    pub is_text: bool,
}

impl ChatStreamState {
    pub fn expect_choices(&mut self, choices: u64) {
        self.choices = choices;
    }

    /// `text` is the chunk's JSON.
    pub fn record_chunk(&mut self, chunk: &ChatChunk, text: &str) {
        self.id.record(text, chunk.id, chunk.created);
        for choice in &chunk.choices {
            let bit = 1_u128 << choice.index.min(127);
            self.begun |= bit;
            self.goes_on_behind_stop |= choice.has_content && self.finished & bit != 0;
            if choice.finish_reason.is_some() {
                self.finished |= bit;
            }
            if choice.has_calls {
                self.with_calls |= bit;
            }
        }
        self.has_full_delta |= chunk.has_full_delta;
        self.has_output |= chunk.has_delta;
        self.usage_place
            .record_chunk(chunk.counters().is_some(), chunk.has_delta);
        self.tier = chunk.tier.or(self.tier);
        self.sound_bytes = self.sound_bytes.saturating_add(chunk.sound_bytes);
        if let Some(counters) = chunk.counters() {
            self.usage.get_or_insert_default().merge(&counters);
        }
    }

    pub fn counters(&self) -> Option<VendorCounters> {
        self.usage.map(|usage| {
            VendorCounters::Chat(ChatCounters {
                service_tier: self.tier,
                ..usage
            })
        })
    }

    /// Returns the usage that is known before the vendor reports any: the tier and the audio
    /// output.
    pub fn usage_so_far(&self) -> Option<Usage> {
        let known = self.tier.is_some() || self.sound_bytes > 0;
        let audio_output = self.sound_bytes.div_ceil(AUDIO_BYTES_PER_TOKEN);
        known.then(|| Usage {
            service_tier: self.tier,
            audio_output,
            ..Usage::default()
        })
    }

    /// Returns whether a `message` can take the place of `delta`. Some vendors repeat the whole
    /// answer under `message` after the deltas.
    pub fn takes_message(&self) -> bool {
        !self.has_full_delta
    }

    /// Returns the finish reasons to write for an answer whose vendor counted its output but gave
    /// no reason. `is_done` says that `[DONE]` has arrived, not only the end of the body.
    pub fn derive_finish_reasons(&mut self, is_done: bool) -> Vec<(u64, &'static str)> {
        if !self.has_output || !self.usage_place.ends_answer(is_done) {
            return Vec::new();
        }
        let derived = self
            .unfinished_choices()
            .map(|index| match (self.with_calls >> index) & 1 {
                0 => (index, "stop"),
                _ => (index, "tool_calls"),
            })
            .collect();
        self.finished = self.begun;
        derived
    }

    /// Returns the choices that have begun but have no finish reason.
    pub fn unfinished_choices(&self) -> impl Iterator<Item = u64> {
        let unfinished = self.begun & !self.finished;
        (0..128_u64).filter(move |index| (unfinished >> index) & 1 == 1)
    }

    /// Returns how many of the choices have a finish reason.
    pub fn stop_reason(&self) -> StopReasonStatus {
        if self.begun == 0 || self.begun != self.finished {
            StopReasonStatus::Missing
        } else if u64::from(self.begun.count_ones()) < self.choices.min(128) {
            StopReasonStatus::Begun
        } else {
            StopReasonStatus::All
        }
    }

    /// Returns whether a choice had content after its finish reason.
    pub fn continues_after_stop(&self) -> bool {
        self.goes_on_behind_stop
    }
}

/// Reads a chunk or an answer. Returns `None` if it is not a JSON object. `usage_paths` lists the
/// vendor's own places for the usage, which are searched last. `takes_message`: an answer, or a
/// chunk whose `message` may take the place of `delta`.
pub(super) fn parse_chunk(
    text: &str,
    usage_paths: &[String],
    takes_message: bool,
) -> Option<ChatChunk> {
    let mut scan = JsonScanner::new(text, MAX_RESPONSE_DEPTH);
    if scan.kind().ok()? != JsonKind::Object {
        return None;
    }
    let mut chunk = ChatChunk::default();
    let mut null_usage = NullUsageFinder::default();
    scan.object(|scan, key| {
        null_usage.next_member(&key);
        match key.name().as_ref() {
            "id" => chunk.id = scan.string_or_skip()?.map(|id| id.span),
            "created" => chunk.created = scan.count_or_skip()?.unwrap_or(0),
            "model" => chunk.model = scan.string_or_skip()?.map(|model| model.span),
            "service_tier" => chunk.tier = counters::read_tier(scan)?.or(chunk.tier),
            "usage" if scan.kind()? == JsonKind::Null => {
                let value = scan.skip_span()?;
                chunk.usage_at = Some(value);
                null_usage.record_value(&key, value);
            }
            "usage" => {
                let start = scan.value_start()?;
                chunk.usage = counters::read_chat_usage(scan)?.or(chunk.usage);
                chunk.usage_at = Some(scan.span_from(start));
            }
            // Groq sends the usage of a stream in this member.
            "x_groq" => {
                scan.object_or_skip(|scan, key| {
                    match key.name().as_ref() {
                        "usage" => chunk.usage = counters::read_chat_usage(scan)?.or(chunk.usage),
                        _ => scan.skip()?,
                    }
                    ScanResult::Ok(())
                })?;
            }
            "error" => {
                chunk.is_error |= scan.kind()? != JsonKind::Null;
                scan.skip()?;
            }
            "choices" => {
                scan.array_or_skip(|scan| read_choice(scan, &mut chunk, takes_message))?;
            }
            _ => scan.skip()?,
        }
        null_usage.end_member(scan.position());
        ScanResult::Ok(())
    })
    .ok()?;
    scan.end().ok()?;
    chunk.null_usage = null_usage.removal_span();
    let at_own_place = || counters::find_chat_usage(text, usage_paths);
    chunk.usage = chunk.usage.or_else(at_own_place);
    Some(chunk)
}

/// Finds the span to remove so that the object stays valid JSON. The span extends to the next
/// member, or begins at the end of the previous member if the usage is the last one.
#[derive(Default)]
struct NullUsageFinder {
    span: Option<Span>,
    is_last: bool,
    end_before: Option<usize>,
}

impl NullUsageFinder {
    fn next_member(&mut self, key: &StringToken<'_>) {
        if let Some(span) = self.span.as_mut().filter(|_| self.is_last) {
            span.end = key.span.start;
        }
        self.is_last = false;
    }

    fn record_value(&mut self, key: &StringToken<'_>, value: Span) {
        // A second usage stays, because one removal keeps the object valid.
        if self.span.is_none() {
            self.span = Some(Span {
                start: key.span.start,
                end: value.end,
            });
            self.is_last = true;
        }
    }

    fn end_member(&mut self, end: usize) {
        if !self.is_last {
            self.end_before = Some(end);
        }
    }

    fn removal_span(self) -> Option<Span> {
        let span = self.span?;
        let start = self
            .end_before
            .filter(|_| self.is_last)
            .unwrap_or(span.start);
        Some(Span { start, ..span })
    }
}

/// Names for a `message` that counts for nothing. OpenAI's JavaScript library adds up what it gets
/// in `message` itself, and cannot go on when a chunk overwrites it; a chunk must have a delta.
const SET_ASIDE: &str = r#""vendor_message""#;
const SET_ASIDE_BESIDE_DELTA: &str = r#""delta":{},"vendor_message""#;

fn read_choice(
    scan: &mut JsonScanner<'_>,
    chunk: &mut ChatChunk,
    takes_message: bool,
) -> ScanResult {
    let mut choice = ChunkChoice::default();
    let (mut delta, mut message) = (None, None);
    let mut text = 0;
    let mut is_error = false;
    scan.object_or_skip(|scan, key| {
        match key.name().as_ref() {
            "index" => choice.index = scan.count_or_skip()?.unwrap_or(0),
            "finish_reason" => {
                let reason = scan.string_or_skip()?;
                let is_given = |reason: &StringToken<'_>| ChatFinishReason::is_given(reason.raw);
                choice.finish_reason = reason.filter(is_given).map(|reason| reason.span);
                is_error |= reason.is_some_and(|reason| is_failure_reason(reason.raw));
            }
            "delta" => delta = Some((key.span, read_delta(scan)?)),
            "message" => message = Some((key.span, read_delta(scan)?)),
            // Of the completions API. Together AI repeats a delta's content in it.
            "text" => text = text_bytes(scan)?,
            // Kimi sends the usage of a stream in this member.
            "usage" => chunk.usage = counters::read_chat_usage(scan)?.or(chunk.usage),
            _ => scan.skip()?,
        }
        ScanResult::Ok(())
    })?;
    let has_full_delta = delta.as_ref().is_some_and(|(_, delta)| !delta.is_empty());
    chunk.has_full_delta |= has_full_delta;
    let mut delta_bytes = match (delta, message) {
        // Some vendors leave the delta empty beside the message.
        (delta, Some((key, message))) if takes_message && !has_full_delta => {
            chunk.renamed_keys.push((key, r#""delta""#));
            let empty = delta.map(|(key, _)| (key, SET_ASIDE));
            chunk.renamed_keys.extend(empty);
            message
        }
        (Some((_, delta)), Some((key, _))) => {
            chunk.renamed_keys.push((key, SET_ASIDE));
            delta
        }
        (None, Some((key, _))) => {
            chunk.renamed_keys.push((key, SET_ASIDE_BESIDE_DELTA));
            DeltaBytes::default()
        }
        (delta, _) => delta.map(|(_, delta)| delta).unwrap_or_default(),
    };
    delta_bytes.bytes = delta_bytes.bytes.max(text);
    choice.has_calls = delta_bytes.has_calls;
    choice.has_content = delta_bytes.has_content();
    chunk.choices.push(choice);
    chunk.is_error |= is_error;
    chunk.generated_bytes = chunk
        .generated_bytes
        .saturating_add(delta_bytes.bytes)
        .saturating_add(delta_bytes.reasoning);
    chunk.sound_bytes = chunk.sound_bytes.saturating_add(delta_bytes.sound);
    if delta_bytes.sound > 0 {
        // The value counts as generated, although it is not text.
        chunk.generated_bytes = chunk.generated_bytes.max(1);
    }
    chunk.has_reasoning |= delta_bytes.reasoning > 0;
    chunk.has_delta |= !delta_bytes.is_empty();
    Ok(())
}

/// Number of base64 bytes of audio per token. A stream's audio has 16-bit samples at 24 kHz, which
/// are 64 000 such bytes a second, and a token is a twentieth of a second. The source is the chat
/// vendor's guides to audio, read 2026-11.
const AUDIO_BYTES_PER_TOKEN: u64 = 3_200;

/// Number of bytes generated in a delta or message: text and arguments, reasoning, audio.
#[derive(Default)]
struct DeltaBytes {
    bytes: u64,
    reasoning: u64,
    sound: u64,
    /// True if the delta contains a call or an unknown member.
    has_other: bool,
    has_calls: bool,
}

impl DeltaBytes {
    fn has_content(&self) -> bool {
        self.bytes > 0 || self.reasoning > 0 || self.sound > 0
    }

    fn is_empty(&self) -> bool {
        !self.has_content() && !self.has_other
    }
}

/// Counts a delta or message. Vendors that use two names for reasoning repeat the same text under
/// both.
fn read_delta(scan: &mut JsonScanner<'_>) -> ScanResult<DeltaBytes> {
    let (mut bytes, mut reasoning, mut sound) = (0_u64, 0_u64, 0_u64);
    let (mut has_other, mut has_calls) = (false, false);
    scan.object_or_skip(|scan, key| {
        match key.name().as_ref() {
            "role" => scan.skip()?,
            "content" => bytes += content_bytes(scan)?,
            "refusal" => bytes += text_bytes(scan)?,
            "reasoning_content" | "reasoning" => reasoning = reasoning.max(text_bytes(scan)?),
            "function_call" => {
                has_calls |= scan.kind()? != JsonKind::Null;
                bytes += argument_bytes(scan)?;
            }
            "audio" => {
                has_other |= scan.kind()? != JsonKind::Null;
                scan.object_or_skip(|scan, key| {
                    match key.name().as_ref() {
                        "transcript" => bytes += text_bytes(scan)?,
                        "data" => sound += text_bytes(scan)?,
                        _ => scan.skip()?,
                    }
                    ScanResult::Ok(())
                })?;
            }
            "tool_calls" => {
                scan.array_or_skip(|scan| {
                    has_calls = true;
                    scan.object_or_skip(|scan, key| {
                        match key.name().as_ref() {
                            "function" | "custom" => bytes += argument_bytes(scan)?,
                            _ => scan.skip()?,
                        }
                        ScanResult::Ok(())
                    })?;
                    ScanResult::Ok(())
                })?;
            }
            _ => {
                // The value is null, or an empty text or list.
                let span = scan.skip_span()?;
                has_other |= span.end.saturating_sub(span.start) > "null".len();
            }
        }
        ScanResult::Ok(())
    })?;
    Ok(DeltaBytes {
        bytes,
        reasoning,
        sound,
        has_other: has_other || has_calls,
        has_calls,
    })
}

/// Returns the content's length in bytes. Some vendors stream a list of parts instead of a string.
fn content_bytes(scan: &mut JsonScanner<'_>) -> ScanResult<u64> {
    if scan.kind()? != JsonKind::Array {
        return text_bytes(scan);
    }
    let mut bytes = 0_u64;
    scan.array(|scan| {
        scan.object_or_skip(|scan, key| {
            match key.name().as_ref() {
                "text" => bytes += text_bytes(scan)?,
                // Mistral sends thinking as parts that contain a text.
                "thinking" => bytes += content_bytes(scan)?,
                _ => scan.skip()?,
            }
            ScanResult::Ok(())
        })?;
        ScanResult::Ok(())
    })?;
    Ok(bytes)
}

fn argument_bytes(scan: &mut JsonScanner<'_>) -> ScanResult<u64> {
    let mut bytes = 0_u64;
    scan.object_or_skip(|scan, key| {
        match key.name().as_ref() {
            "arguments" | "input" => bytes += text_bytes(scan)?,
            _ => scan.skip()?,
        }
        ScanResult::Ok(())
    })?;
    Ok(bytes)
}

/// Returns the number of UTF-8 bytes of a string, or 0 for any other value.
fn text_bytes(scan: &mut JsonScanner<'_>) -> ScanResult<u64> {
    Ok(scan
        .string_or_skip()?
        .map_or(0, |text| text.decoded_bytes()))
}
