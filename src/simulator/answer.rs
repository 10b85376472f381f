//! What is said in answer to a turn, and what it costs, before either protocol words it.
//!
//! It must not contain wire formats. Read next: `chat.rs` or `messages.rs`.

use std::ops::Range;

use super::behaviour::Behaviour;
use super::errors::Vendor;
use super::request::Turn;
use super::usage::Usage;

const REFUSAL: &str = "I'm sorry, but I can't help with that.";
const ECHO_CHARACTERS: usize = 200;
const BYTES_PER_TOKEN: usize = 4;
const FILLER: &str = "The quick brown fox jumps over the lazy dog. ";
/// Pieces of thinking and of a call's arguments in a stream.
const PIECES: usize = 6;

#[derive(Debug)]
pub struct Answer {
    pub thinking: String,
    pub text: String,
    pub calls: Vec<Call>,
    pub refuses: bool,
    /// The output was cut at the caller's maximum.
    pub limited: bool,
    /// Text deltas of a stream.
    pub deltas: usize,
    pub usage: Usage,
}

#[derive(Debug)]
pub struct Call {
    /// The caller-visible id, if the marker set it.
    pub id: Option<String>,
    pub name: String,
    /// JSON, unless it was cut at the maximum.
    pub args: String,
}

impl Answer {
    pub fn new(turn: &Turn, behaviour: &Behaviour) -> Self {
        let thinking = behaviour.thinking.clone().unwrap_or_default();
        let calls = calls(turn, behaviour);
        let text = text(turn, behaviour, calls.is_empty());
        let deltas = behaviour.events.unwrap_or_else(|| usual_deltas(text.len()));
        let mut answer = Self {
            thinking,
            text,
            calls,
            refuses: behaviour.refusal,
            limited: false,
            deltas,
            usage: Usage {
                mode: behaviour.usage,
                input: behaviour.input.unwrap_or_else(|| tokens(turn.body_bytes)),
                cache_read: behaviour.cache_read,
                write_5m: behaviour.write_5m,
                write_1h: behaviour.write_1h,
                output: 0,
                reasoning: 0,
            },
        };
        let produced = answer.apply_limit(turn.max_tokens);
        let choices = u64::try_from(turn.choices).unwrap_or(1);
        let produced = produced.saturating_mul(choices);
        answer.usage.output = behaviour.output.unwrap_or(produced);
        let reasoning = behaviour.reasoning.unwrap_or_else(|| tokens(answer.thinking.len()));
        answer.usage.reasoning = reasoning.min(answer.usage.output);
        if behaviour.reasoning.is_some() {
            // Asked for by number: reported as it is, even if it is nonsense.
            answer.usage.reasoning = reasoning;
        }
        answer
    }

    /// Cuts the output at `max_tokens`, in the order it is produced, and counts it. The end of an
    /// answer is a token too, which an answer that was cut does not have.
    fn apply_limit(&mut self, max_tokens: Option<u64>) -> u64 {
        let whole =
            self.thinking.len() + self.text.len() + self.calls.iter().map(|call| call.args.len()).sum::<usize>();
        let count = tokens(whole) + 1;
        let Some(limit) = max_tokens.filter(|limit| *limit < count) else {
            return count;
        };
        self.limited = true;
        let mut room = usize::try_from(limit).unwrap_or(usize::MAX).saturating_mul(BYTES_PER_TOKEN);
        let Self { thinking, text, calls, .. } = self;
        let args = calls.iter_mut().map(|call| &mut call.args);
        for part in [thinking, text].into_iter().chain(args) {
            part.truncate(part.floor_char_boundary(room));
            room -= part.len();
        }
        self.calls.retain(|call| !call.args.is_empty());
        limit
    }

    pub fn thinking_pieces(&self) -> Vec<Range<usize>> {
        pieces(&self.thinking, PIECES)
    }

    pub fn text_pieces(&self) -> Vec<Range<usize>> {
        pieces(&self.text, self.deltas)
    }
}

impl Call {
    pub fn pieces(&self) -> Vec<Range<usize>> {
        pieces(&self.args, PIECES)
    }
}

fn calls(turn: &Turn, behaviour: &Behaviour) -> Vec<Call> {
    let Some(name) = behaviour.tool.as_ref().filter(|_| turn.tool_result.is_none() && !behaviour.refusal) else {
        return Vec::new();
    };
    (1..=behaviour.tools.unwrap_or(1))
        .map(|number| Call {
            id: behaviour.tool_id.as_ref().map(|id| match number {
                1 => id.clone(),
                _ => format!("{id}_{number}"),
            }),
            name: name.clone(),
            args: behaviour.args.clone().unwrap_or_else(|| "{}".to_owned()),
        })
        .collect()
}

fn text(turn: &Turn, behaviour: &Behaviour, is_whole_answer: bool) -> String {
    if behaviour.refusal && turn.vendor == Vendor::Messages {
        return String::new();
    }
    if let Some(text) = &behaviour.text {
        return text.clone();
    }
    if let Some(bytes) = behaviour.bytes {
        return filler(bytes);
    }
    if !is_whole_answer {
        return String::new();
    }
    if behaviour.refusal {
        return REFUSAL.to_owned();
    }
    let (opening, said) = match &turn.tool_result {
        Some(result) => ("The tool said: ", result),
        None => ("You said: ", &turn.user_text),
    };
    let said: String = said.chars().take(ECHO_CHARACTERS).collect();
    let mut text = format!("{opening}{said}");
    if let Some(events) = behaviour.events
        && text.chars().count() < events
    {
        text.push_str(&filler(events * BYTES_PER_TOKEN));
    }
    text
}

fn filler(bytes: usize) -> String {
    let mut text = FILLER.repeat(bytes.div_ceil(FILLER.len()));
    text.truncate(bytes);
    text
}

/// Tokens of a text, by the simulated vendors' own count.
pub fn tokens(bytes: usize) -> u64 {
    u64::try_from(bytes.div_ceil(BYTES_PER_TOKEN)).unwrap_or(u64::MAX)
}

fn usual_deltas(bytes: usize) -> usize {
    if bytes > 512 { bytes.div_ceil(64) } else { (bytes / BYTES_PER_TOKEN).clamp(2, 8) }
}

/// `text` in `count` pieces of equal size, or one for each character if it has fewer.
fn pieces(text: &str, count: usize) -> Vec<Range<usize>> {
    let total = text.chars().count();
    let count = count.min(total);
    let mut pieces = Vec::with_capacity(count);
    let mut start = 0;
    for (number, (at, character)) in text.char_indices().enumerate() {
        // The piece ends with the character that takes it to its share of the text.
        let share = total as u128 * (pieces.len() as u128 + 1) / count as u128;
        if number as u128 + 1 == share {
            let end = at + character.len_utf8();
            pieces.push(start..end);
            start = end;
        }
    }
    pieces
}
