//! Reads a chat vendor's answer, streamed or as one body, into events.
//!
//! It must not hold back text: it emits the content of a chunk at once, and borrows it from the
//! chunk. It buffers only three things: the arguments of a call until its name is known, the text
//! of a refusal (which it emits again as the stop reason), and reasoning that the client sends back
//! later. It skips unknown members, and treats members of a wrong type as absent.
//!
//! Order inside a chunk: reasoning, text, refusal, calls, finish reason, usage.
//!
//! Read next: `chat/read_stream/calls.rs` (assigns fragments to calls), then
//! `messages/write_stream.rs`.

use crate::protocol::Protocol;
use crate::protocol::counters;
use crate::protocol::form::answer::{Event, Fault, Piece, Sink, Start, Stop};
use crate::protocol::scan::Scan;
use crate::protocol::text::{Gathered, Text};
use crate::protocol::tree::{Nodes, Tree, Value};
use crate::usage::{ChatCounters, ServiceTier, VendorCounters};

mod calls;
mod reasoning;

use calls::{Calls, Entry};
use reasoning::Reasoning;

/// Maximum nesting depth of an answer.
const DEPTH_MAX: u32 = 128;

/// Maximum number of bytes of a refusal that the stop reason repeats.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;

/// State of the answer after the chunks read so far.
#[derive(Debug, Default)]
pub struct Reader {
    /// A chunk has arrived.
    heard: bool,
    started: bool,
    slots: Slots,
    /// The text or thinking that continues until something else begins.
    current: Option<(Stretch, u32)>,
    reasoning: Reasoning,
    calls: Calls,
    refusal: Gathered,
    finish: Option<Finish>,
    counters: Option<ChatCounters>,
    tier: Option<ServiceTier>,
}

/// Assigns slots in ascending order.
#[derive(Debug, Default)]
struct Slots(u32);

impl Slots {
    fn next(&mut self) -> u32 {
        let slot = self.0;
        self.0 = slot.saturating_add(1);
        slot
    }
}

/// Kind of a run of deltas that the protocol does not delimit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stretch {
    Text,
    Refusal,
    Thinking,
}

/// Value of `finish_reason`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Finish {
    Stop,
    Calls,
    Length,
    Filter,
    Unknown,
}

impl Reader {
    /// Reads one event of the vendor's stream. `nodes` is reusable memory that the call returns.
    pub fn event(
        &mut self,
        name: &[u8],
        data: &[u8],
        nodes: Nodes,
        to: &mut impl Sink,
    ) -> (Nodes, Result<(), Fault>) {
        if data == b"[DONE]" {
            return (nodes, self.done(to));
        }
        let Ok(text) = std::str::from_utf8(data) else {
            return (nodes, Fault::of_unreadable(Protocol::Chat, name, data));
        };
        match Tree::read(text, DEPTH_MAX, nodes) {
            Ok(tree) if !tree.root().is_object() => (
                tree.into_nodes(),
                Fault::of_unreadable(Protocol::Chat, name, data),
            ),
            Ok(_) if name == b"error" => (Nodes::new(), Err(Fault::told(data))),
            Ok(tree) => {
                let outcome = self.chunk(tree.root(), false, to);
                (tree.into_nodes(), outcome)
            }
            Err(_) => (
                Nodes::new(),
                Fault::of_unreadable(Protocol::Chat, name, data),
            ),
        }
    }

    /// Ends an answer that is complete although its last event is missing.
    pub fn finish(&mut self, to: &mut impl Sink) {
        self.end(to);
    }

    /// Handles `[DONE]`: the vendor has finished, with or without a finish reason.
    fn done(&mut self, to: &mut impl Sink) -> Result<(), Fault> {
        if !self.started {
            return Err(if self.heard { Fault::Empty } else { Fault::Cut });
        }
        self.end(to);
        Ok(())
    }

    /// Reads a chunk or a whole answer. They differ in `delta` and `message`, and in what an entry
    /// of `tool_calls` means.
    fn chunk(&mut self, chunk: Value<'_>, is_whole: bool, to: &mut impl Sink) -> Result<(), Fault> {
        self.heard = true;
        let mut start = Start::default();
        let (mut choice, mut counters, mut is_error) = (None, None, false);
        for (key, value) in chunk.members() {
            match key.value().as_ref() {
                "id" => start.id = value.text(),
                "service_tier" => start.tier = value.text(),
                "choices" => {
                    for read in value
                        .items()
                        .filter(|choice| choice.is_object())
                        .map(Choice::read)
                    {
                        is_error |= read.is_failed();
                        choice = choice.or(Some(read).filter(|read| read.index == 0));
                    }
                }
                "usage" => counters = read_usage(value).or(counters),
                "error" => is_error |= !value.is_null(),
                _ => {}
            }
        }
        if is_error {
            return Err(Fault::told(chunk.raw().as_bytes()));
        }
        self.tier = start
            .tier
            .as_ref()
            .map(|tier| ServiceTier::said(&tier.value()))
            .or(self.tier);
        if let Some(choice) = choice {
            self.start(start, to);
            if let Some(message) = if is_whole {
                choice.message
            } else {
                choice.delta
            } {
                self.message(message, is_whole, to)?;
            }
            if let Some(reason) = &choice.finish_reason {
                self.finish_reason(reason, to);
            }
        }
        self.count(counters, to);
        Ok(())
    }

    fn start(&mut self, start: Start<'_>, to: &mut impl Sink) {
        if self.started {
            return;
        }
        self.started = true;
        to.event(Event::Start(start));
        self.send_counters(to);
    }

    fn finish_reason(&mut self, reason: &Text<'_>, to: &mut impl Sink) {
        let finish = match reason.value().as_ref() {
            // Some vendors send it with every chunk.
            "" => return,
            "stop" => Finish::Stop,
            "tool_calls" | "function_call" => Finish::Calls,
            "length" => Finish::Length,
            "content_filter" => Finish::Filter,
            _ => Finish::Unknown,
        };
        if self.finish != Some(finish) {
            self.finish = Some(finish);
            to.event(Event::Stop(self.stop()));
        }
    }

    fn count(&mut self, counters: Option<ChatCounters>, to: &mut impl Sink) {
        let Some(counters) = counters.filter(ChatCounters::is_usage) else {
            return;
        };
        self.counters.get_or_insert_default().merge(&counters);
        if self.started {
            self.send_counters(to);
        }
    }

    fn send_counters(&self, to: &mut impl Sink) {
        if let Some(counters) = self.counters {
            let counters = &VendorCounters::Chat(ChatCounters {
                service_tier: self.tier,
                ..counters
            });
            to.event(Event::Counters {
                counters,
                is_final: true,
            });
        }
    }

    fn message(
        &mut self,
        message: Value<'_>,
        is_whole: bool,
        to: &mut impl Sink,
    ) -> Result<(), Fault> {
        let said = Said::read(message);
        self.reason(&said, is_whole, to);
        if let Some(content) = said.content {
            self.content(content, to);
        }
        if let Some(refusal) = &said.refusal {
            if self.refusal.len() <= REFUSAL_BYTES_MAX {
                self.refusal.push(refusal);
            }
            self.say(Stretch::Refusal, refusal, to);
        }
        match said.calls.filter(|calls| calls.items().next().is_some()) {
            Some(calls) => {
                self.calls.begin_chunk();
                for call in calls.items() {
                    self.call(&Entry::read(call), is_whole, to)?;
                }
            }
            // `function_call` is the older form and holds one call. If the vendor sends both, it is
            // a repetition.
            None if self.calls.is_only_legacy() => {
                if let Some(function) = said.function_call {
                    self.call(&Entry::legacy(function), false, to)?;
                }
            }
            None => {}
        }
        Ok(())
    }

    /// Reads the content: a string, or the parts that some vendors send instead.
    fn content(&mut self, content: Value<'_>, to: &mut impl Sink) {
        if let Some(text) = content.text() {
            self.say(Stretch::Text, &text, to);
        }
        for part in content.items() {
            if let Some(text) = part.get("text").and_then(Value::text) {
                self.say(Stretch::Text, &text, to);
            }
        }
    }

    fn reason(&mut self, said: &Said<'_>, is_whole: bool, to: &mut impl Sink) {
        let details = said.details.filter(|details| details.is_array());
        match self.reasoning.source(said) {
            Some(reasoning::Source::Content) => {
                said.reasoning_content
                    .iter()
                    .for_each(|text| self.say(Stretch::Thinking, text, to));
            }
            Some(reasoning::Source::Plain) => {
                said.reasoning
                    .iter()
                    .for_each(|text| self.say(Stretch::Thinking, text, to));
            }
            Some(reasoning::Source::Details) => {
                for entry in details.into_iter().flat_map(Value::items) {
                    if let Some(text) = reasoning::entry_text(entry) {
                        self.say(Stretch::Thinking, &text, to);
                    }
                }
            }
            None => {}
        }
        for entry in details.into_iter().flat_map(Value::items) {
            self.reasoning.keep(entry, is_whole);
        }
    }

    /// Continues the current run, or begins a new one if something else began since.
    fn say(&mut self, stretch: Stretch, text: &Text<'_>, to: &mut impl Sink) {
        if text.is_empty() {
            return;
        }
        let slot = match self.current {
            Some((current, slot)) if current == stretch => slot,
            _ => self.begin(stretch, to),
        };
        to.event(Event::Delta {
            slot,
            text: text.borrowed(),
        });
    }

    fn begin(&mut self, stretch: Stretch, to: &mut impl Sink) -> u32 {
        if stretch != Stretch::Thinking {
            self.sign(to);
        }
        let slot = self.slots.next();
        let piece = match stretch {
            Stretch::Text => Piece::Text,
            Stretch::Refusal => Piece::Refusal,
            Stretch::Thinking => Piece::Thinking,
        };
        to.event(Event::Open { slot, piece });
        self.current = Some((stretch, slot));
        slot
    }

    /// Called when something else begins or the answer ends. If the vendor wants reasoning back,
    /// emits it as the signature of the thinking just emitted, or of one without text.
    fn sign(&mut self, to: &mut impl Sink) {
        let Some(signature) = self.reasoning.take_signature() else {
            return;
        };
        let slot = match self.current {
            Some((Stretch::Thinking, slot)) => slot,
            _ => self.begin(Stretch::Thinking, to),
        };
        to.event(Event::Signature {
            slot,
            signature: Text::made(signature),
        });
        // Any later thinking is a new block.
        self.current = None;
    }

    fn call(&mut self, entry: &Entry<'_>, is_whole: bool, to: &mut impl Sink) -> Result<(), Fault> {
        let begins = self.calls.begins(entry, is_whole);
        if begins {
            self.sign(to);
            self.current = None;
        }
        self.calls.entry(entry, is_whole, &mut self.slots, to)
    }

    fn stop(&self) -> Stop<'_> {
        match self.finish {
            _ if !self.refusal.is_empty() => Stop::Refusal {
                explanation: Some(self.refusal.text()),
            },
            Some(Finish::Stop) => Stop::EndTurn,
            Some(Finish::Calls) => Stop::ToolUse,
            Some(Finish::Length) => Stop::MaxTokens,
            Some(Finish::Filter) => Stop::Refusal { explanation: None },
            Some(Finish::Unknown) | None => Stop::Unknown,
        }
    }

    fn end(&mut self, to: &mut impl Sink) {
        self.sign(to);
        if self.finish.is_some() {
            // Repeat the stop: the refusal may have continued after the finish reason.
            to.event(Event::Stop(self.stop()));
        }
        to.event(Event::End);
    }
}

/// Reads a whole answer into the same events as a stream.
pub fn whole(body: Value<'_>, to: &mut impl Sink) -> Result<(), Fault> {
    if !body.is_object() {
        return Err(Fault::NotJson);
    }
    let mut reader = Reader::default();
    reader.chunk(body, true, to)?;
    if !reader.started {
        return Err(Fault::Empty);
    }
    reader.end(to);
    Ok(())
}

/// An entry of `choices`. The request asks for only one; if the vendor omits the index, it is the
/// first.
#[derive(Debug, Default)]
struct Choice<'v> {
    index: u64,
    delta: Option<Value<'v>>,
    message: Option<Value<'v>>,
    finish_reason: Option<Text<'v>>,
}

impl<'v> Choice<'v> {
    fn read(choice: Value<'v>) -> Self {
        let mut read = Choice::default();
        for (key, value) in choice.members() {
            match key.value().as_ref() {
                "index" => read.index = value.count().unwrap_or(0),
                "delta" => read.delta = Some(value),
                "message" => read.message = Some(value),
                "finish_reason" => read.finish_reason = value.text(),
                _ => {}
            }
        }
        read
    }

    /// Returns whether `finish_reason` reports a failure. Aggregating vendors send `error` there.
    fn is_failed(&self) -> bool {
        self.finish_reason
            .as_ref()
            .is_some_and(|reason| reason.is("error"))
    }
}

/// Content of a delta or of a message.
#[derive(Debug, Default)]
struct Said<'v> {
    content: Option<Value<'v>>,
    refusal: Option<Text<'v>>,
    reasoning_content: Option<Text<'v>>,
    reasoning: Option<Text<'v>>,
    details: Option<Value<'v>>,
    calls: Option<Value<'v>>,
    function_call: Option<Value<'v>>,
}

impl<'v> Said<'v> {
    fn read(message: Value<'v>) -> Self {
        let mut said = Said::default();
        let mut audio = None;
        for (key, value) in message.members() {
            match key.value().as_ref() {
                "content" => said.content = Some(value).filter(|value| !value.is_null()),
                "refusal" => said.refusal = text(value),
                "reasoning_content" => said.reasoning_content = text(value),
                "reasoning" => said.reasoning = text(value),
                "reasoning_details" => said.details = Some(value),
                "tool_calls" => said.calls = Some(value).filter(|value| value.is_array()),
                "function_call" => {
                    said.function_call = Some(value).filter(|value| value.is_object())
                }
                "audio" => audio = value.get("transcript"),
                _ => {}
            }
        }
        said.content = said.content.or(audio);
        said
    }
}

/// Returns the string unless it is empty.
fn text(value: Value<'_>) -> Option<Text<'_>> {
    value.text().filter(|text| !text.is_empty())
}

fn read_usage(usage: Value<'_>) -> Option<ChatCounters> {
    counters::chat(&mut Scan::new(usage.raw(), DEPTH_MAX))
        .ok()
        .flatten()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    struct Nobody;

    impl Sink for Nobody {
        fn event(&mut self, _event: Event<'_>) {}
    }

    fn tell(reader: &mut Reader, chunk: &str) -> Result<(), Fault> {
        reader
            .event(b"", chunk.as_bytes(), Nodes::new(), &mut Nobody)
            .1
    }

    #[test]
    fn what_is_kept_of_calls_is_bounded() {
        let mut reader = Reader::default();
        let call = |id: usize| {
            format!(r#"{{"choices":[{{"delta":{{"tool_calls":[{{"id":"call_{id}"}}]}}}}]}}"#)
        };
        let outcome = (0..10_000).try_for_each(|id| tell(&mut reader, &call(id)));
        assert_eq!(outcome, Err(Fault::TooLarge));

        let mut reader = Reader::default();
        let arguments = "x".repeat(100_000);
        let nameless = format!(
            r#"{{"choices":[{{"delta":{{"tool_calls":[{{"function":{{"arguments":"{arguments}"}}}}]}}}}]}}"#
        );
        let outcome = (0..1_000).try_for_each(|_| tell(&mut reader, &nameless));
        assert_eq!(outcome, Err(Fault::TooLarge));
    }
}
