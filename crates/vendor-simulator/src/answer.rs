//! Determines the content of an answer and its token counts, before a protocol encodes it.
//!
//! This file must not contain wire formats. Read next: `chat.rs` or `messages.rs`.

use std::ops::Range;

use super::behaviour::{Behaviour, RefusalMode};
use super::count::{BYTES_PER_TOKEN, tokens};
use super::errors::SimVendor;
use super::part::{SimPart, SimText, SimThinking, SimToolCall};
use super::turn::SimTurn;
use super::usage::SimUsage;

const REFUSAL: &str = "I'm sorry, but I can't help with that.";
const ECHO_CHARACTERS: usize = 200;
const FILLER: &str = "The quick brown fox jumps over the lazy dog. ";
/// Number of deltas of each thinking block and of each call's arguments in a stream.
const DELTAS_PER_PART: usize = 6;

#[derive(Debug)]
pub struct SimulatedAnswer {
    /// Parts in the order in which the model produces them.
    pub parts: Vec<SimPart>,
    pub refuses: bool,
    /// True if the output was cut at the caller's limit.
    pub limited: bool,
    /// Number of deltas of each text in a stream, if the marker sets it.
    deltas: Option<usize>,
    pub usage: SimUsage,
}

impl SimulatedAnswer {
    pub fn new(turn: &SimTurn, behaviour: &Behaviour) -> Self {
        let mut parts = parts(turn, behaviour);
        for part in &mut parts {
            if let SimPart::Thinking(thinking) = part {
                thinking.omitted |= behaviour.omitted.unwrap_or(turn.omits_thinking);
            }
        }
        let searches = parts
            .iter()
            .filter(|part| matches!(part, SimPart::Search(_)))
            .count();
        let mut answer = Self {
            parts,
            refuses: behaviour.refusal != RefusalMode::No,
            limited: false,
            deltas: behaviour.events,
            usage: SimUsage {
                mode: behaviour.usage,
                input: behaviour.input.unwrap_or(turn.input_tokens),
                cache_read: behaviour.cache_read,
                write_5m: behaviour.write_5m,
                write_1h: behaviour.write_1h,
                output: 0,
                reasoning: 0,
                searches: behaviour
                    .searches
                    .unwrap_or(u64::try_from(searches).unwrap_or(u64::MAX)),
                audio_input: behaviour.audio_input,
                audio_output: behaviour.audio_output,
            },
        };
        let produced = answer.apply_limit(turn.max_tokens.filter(|_| !behaviour.overrun));
        let drafts = turn.choices.saturating_add(turn.unshown);
        let choices = u64::try_from(drafts).unwrap_or(1);
        let produced = produced.saturating_mul(choices);
        answer.usage.output = behaviour.output.unwrap_or(produced);
        let thinking = answer
            .parts
            .iter()
            .filter(|part| matches!(part, SimPart::Thinking(_)));
        let thinking_tokens = tokens(thinking.map(|part| part.output().len()).sum());
        // A count from the marker is reported unchanged, even if it is implausible.
        answer.usage.reasoning = behaviour
            .reasoning
            .unwrap_or(thinking_tokens.min(answer.usage.output));
        answer
    }

    /// Cuts the output at `max_tokens` in the order of production, and counts the tokens. The end
    /// of a complete answer counts as a token too.
    fn apply_limit(&mut self, max_tokens: Option<u64>) -> u64 {
        let whole = self
            .parts
            .iter()
            .map(|part| part.output().len())
            .sum::<usize>();
        let count = tokens(whole) + 1;
        let Some(limit) = max_tokens.filter(|limit| *limit < count) else {
            return count;
        };
        self.limited = true;
        let mut bytes_left = usize::try_from(limit)
            .unwrap_or(usize::MAX)
            .saturating_mul(BYTES_PER_TOKEN);
        self.parts.retain_mut(|part| {
            let had_bytes_left = bytes_left > 0;
            let Some(output) = part.output_mut() else {
                return had_bytes_left;
            };
            output.truncate(output.floor_char_boundary(bytes_left));
            bytes_left -= output.len();
            !output.is_empty()
        });
        limit
    }

    /// Returns the ranges of a part's deltas in a stream.
    pub fn pieces(&self, part: &SimPart) -> Vec<Range<usize>> {
        let output = part.output();
        let count = match part {
            SimPart::Text(_) | SimPart::Refusal(_) => self
                .deltas
                .unwrap_or_else(|| default_delta_count(output.len())),
            _ => DELTAS_PER_PART,
        };
        pieces(output, count)
    }

    pub fn calls(&self) -> impl Iterator<Item = &SimToolCall> {
        self.parts.iter().filter_map(|part| match part {
            SimPart::Call(call) => Some(call),
            _ => None,
        })
    }

    pub fn text(&self) -> String {
        self.join_output(|part| matches!(part, SimPart::Text(_)))
    }

    pub fn thinking(&self) -> String {
        self.join_output(|part| matches!(part, SimPart::Thinking(_)))
    }

    pub fn refusal(&self) -> String {
        self.join_output(|part| matches!(part, SimPart::Refusal(_)))
    }

    fn join_output(&self, includes: impl Fn(&SimPart) -> bool) -> String {
        self.parts
            .iter()
            .filter(|part| includes(part))
            .map(SimPart::output)
            .collect()
    }
}

fn parts(turn: &SimTurn, behaviour: &Behaviour) -> Vec<SimPart> {
    let thinking = behaviour.thinking.iter().filter(|text| !text.is_empty());
    let mut parts: Vec<SimPart> = thinking
        .map(|text| {
            SimPart::Thinking(SimThinking {
                text: text.clone(),
                omitted: false,
            })
        })
        .collect();
    let mut calls = calls(turn, behaviour);
    match &behaviour.blocks {
        // The model makes its calls once, and replies after their results.
        Some(blocks)
            if wants_calls(turn, behaviour)
                || !blocks.iter().any(|part| matches!(part, SimPart::Call(_))) =>
        {
            parts.clone_from(blocks);
        }
        _ => {
            let text = text(turn, behaviour, calls.is_empty());
            let refuses = behaviour.refusal == RefusalMode::Instead;
            let part = if refuses {
                SimPart::Refusal(text)
            } else {
                SimPart::Text(SimText {
                    text,
                    sources: Vec::new(),
                })
            };
            parts.extend((!part.output().is_empty()).then_some(part));
        }
    }
    parts.append(&mut calls);
    if behaviour.refusal == RefusalMode::After && turn.vendor != SimVendor::Messages {
        parts.push(SimPart::Refusal(
            behaviour
                .explanation
                .clone()
                .unwrap_or_else(|| REFUSAL.to_owned()),
        ));
    }
    parts
}

/// Returns whether the model makes its calls now, instead of replying to results.
fn wants_calls(turn: &SimTurn, behaviour: &Behaviour) -> bool {
    turn.tool_result.is_none() || behaviour.steps.is_some_and(|steps| turn.steps_done < steps)
}

fn calls(turn: &SimTurn, behaviour: &Behaviour) -> Vec<SimPart> {
    let refuses = behaviour.refusal == RefusalMode::Instead;
    let Some(name) = behaviour
        .tool
        .as_ref()
        .filter(|_| wants_calls(turn, behaviour) && !refuses)
    else {
        return Vec::new();
    };
    (1..=behaviour.tools.unwrap_or(1))
        .map(|number| {
            let id = behaviour.tool_id.as_ref().map(|id| match number {
                1 => id.clone(),
                _ => format!("{id}_{number}"),
            });
            let args = behaviour.args.clone().unwrap_or_else(|| "{}".to_owned());
            SimPart::Call(SimToolCall {
                id,
                name: name.clone(),
                args,
            })
        })
        .collect()
}

fn text(turn: &SimTurn, behaviour: &Behaviour, is_whole_answer: bool) -> String {
    let refuses = behaviour.refusal == RefusalMode::Instead;
    if refuses && turn.vendor == SimVendor::Messages {
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
    if refuses {
        return REFUSAL.to_owned();
    }
    let (opening, source) = match &turn.tool_result {
        Some(result) => ("The tool said: ", result),
        None => ("You said: ", &turn.user_text),
    };
    let quoted: String = source.chars().take(ECHO_CHARACTERS).collect();
    let mut text = format!("{opening}{quoted}");
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

fn default_delta_count(bytes: usize) -> usize {
    if bytes > 512 {
        bytes.div_ceil(64)
    } else {
        (bytes / BYTES_PER_TOKEN).clamp(2, 8)
    }
}

/// Interleaves the lists: the first element of each list, then the second of each, and so on.
pub fn interleave<T>(waiting: Vec<Vec<T>>) -> Vec<T> {
    let mut waiting: Vec<_> = waiting.into_iter().map(Vec::into_iter).collect();
    let mut all = Vec::new();
    while !waiting.is_empty() {
        waiting.retain_mut(|one| {
            all.extend(one.next());
            one.len() > 0
        });
    }
    all
}

/// Splits `text` into `count` pieces of equal size, or into single characters if it has fewer.
fn pieces(text: &str, count: usize) -> Vec<Range<usize>> {
    let total = text.chars().count();
    let count = count.min(total);
    let mut pieces = Vec::with_capacity(count);
    let mut start = 0;
    for (number, (at, character)) in text.char_indices().enumerate() {
        // A piece ends with the character that reaches the piece's share of the text.
        let share = total as u128 * (pieces.len() as u128 + 1) / count as u128;
        if number as u128 + 1 == share {
            let end = at + character.len_utf8();
            pieces.push(start..end);
            start = end;
        }
    }
    pieces
}
