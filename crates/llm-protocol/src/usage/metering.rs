//! Converts a vendor's counters into the usage that is billed and reported. No other file
//! interprets counters.
//!
//! The conversion is a pure function of the counters, the maximum usage of the request, and an
//! estimate for implausible counters. It must not depend on JSON, a price, a clock or a log. The
//! same [`Usage`] is billed and reported; each API writes it in its own form.
//!
//! Read next: `usage/counters.rs` (the counters, and how those of one answer are merged),
//! `usage/bounds.rs`.

use super::bounds::UsageBounds;
use super::counters::{ChatCounters, MessagesCounters, UnknownUsage, VendorCounters};
use super::passes::{CompactionPass, CompactionPasses};
use super::server_tool::{PerTool, ServerTool};
use super::tokens::Usage;

#[cfg(test)]
mod tests;

/// The usage of an answer for the bill and for the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MeteredUsage {
    pub usage: Usage,
    pub verdict: UsageVerdict,
    /// Output by the vendor's count, which may exceed the request's maximum.
    pub counted_output: u64,
    pub unknown: UnknownUsage,
}

/// Quality of the vendor's counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum UsageVerdict {
    #[default]
    Exact,
    /// A counter was missing or not a number, so it is estimated.
    Estimated,
    /// A counter is above the request's maximum, which is billed instead.
    Implausible(Excess),
}

/// Marks the counters that were above the request's maximum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Excess {
    pub input: bool,
    pub output: bool,
    pub compaction: bool,
    pub tool_uses: PerTool<bool>,
    /// Units that are billed in the place of tokens.
    pub units: bool,
}

impl Excess {
    /// Marks every counter.
    pub fn all() -> Self {
        Self {
            input: true,
            output: true,
            compaction: true,
            tool_uses: PerTool::<()>::default().map(|()| true),
            units: true,
        }
    }

    /// Returns the names of the marked counters in the metric labels.
    pub fn counters(self) -> impl Iterator<Item = &'static str> {
        let tools = ServerTool::ALL.map(|tool| (*self.tool_uses.get(tool), tool.key()));
        let tokens = [
            (self.input, "input"),
            (self.output, "output"),
            (self.compaction, "compaction"),
            (self.units, "units"),
        ];
        tokens
            .into_iter()
            .chain(tools)
            .filter(|(is_over, _)| *is_over)
            .map(|(_, counter)| counter)
    }
}

/// Computes the usage of an answer from the counters of all its usage objects. `estimate` replaces
/// a counter that is missing or not a number; its output is above 0 if anything was generated.
pub fn meter(counters: &VendorCounters, bounds: &UsageBounds, estimate: &Usage) -> MeteredUsage {
    let estimate = cap(estimate, bounds).0.without_passes();
    let ((usage, is_estimated), unknown) = match counters {
        VendorCounters::Chat(chat) => (
            chat_usage(&chat_counts(chat, &estimate), &estimate),
            chat.unknown,
        ),
        VendorCounters::Messages(messages) => (
            messages_usage(&messages_counts(messages, &estimate), &estimate),
            messages.unknown,
        ),
    };
    let counted_output = usage.without_passes().output_total();
    let (usage, excess) = cap(&usage, bounds);
    let verdict = match (excess == Excess::default(), is_estimated) {
        (false, _) => UsageVerdict::Implausible(excess),
        (true, true) => UsageVerdict::Estimated,
        (true, false) => UsageVerdict::Exact,
    };
    MeteredUsage {
        usage,
        verdict,
        counted_output,
        unknown,
    }
}

/// Removes zeros that count nothing. No prompt is empty, so an answer without any input was not
/// counted, unless no output was generated either; nor was an output that has text.
fn chat_counts(counters: &ChatCounters, estimate: &Usage) -> ChatCounters {
    let is_zero = |count: Option<u64>| count.unwrap_or(0) == 0;
    let input = [
        counters.prompt,
        counters.cached,
        Some(counters.cache_writes.total()),
        counters.audio_prompt,
    ];
    let is_free =
        is_zero(counters.completion) && is_zero(counters.total) && estimate.output_total() == 0;
    if is_free {
        return *counters;
    }
    let is_counted = !input.into_iter().all(is_zero);
    let is_silent = is_counted && estimate.output_total() == 0;
    ChatCounters {
        prompt: counters.prompt.filter(|_| is_counted),
        completion: counters.completion.filter(|count| *count > 0 || is_silent),
        ..*counters
    }
}

/// Removes zeros that count nothing, for a vendor with the messages API. An answer that pauses
/// after a compaction has no input of its own.
fn messages_counts(counters: &MessagesCounters, estimate: &Usage) -> MessagesCounters {
    let is_free = counters.output.unwrap_or(0) == 0 && estimate.output_total() == 0;
    if is_free || !counters.compactions.is_empty() {
        return *counters;
    }
    let is_counted = counters.input_size() > 0;
    let is_silent = is_counted && estimate.output_total() == 0;
    MessagesCounters {
        input: counters.input.filter(|_| is_counted),
        output: counters.output.filter(|count| *count > 0 || is_silent),
        ..*counters
    }
}

/// Returns the usage, and whether a part of it is estimated.
fn chat_usage(counters: &ChatCounters, estimate: &Usage) -> (Usage, bool) {
    let (read, written) = (counters.cached.unwrap_or(0), counters.cache_writes.total());
    let parts = read.saturating_add(written);
    let (uncached, cache_read, cache_write) = match counters.prompt {
        Some(prompt) if cache_is_apart(counters, prompt) => (prompt, read, written),
        Some(prompt) => split_prompt(prompt, read, written),
        None => split_prompt(missing_prompt(counters, estimate).max(parts), read, written),
    };
    let input_total = uncached
        .saturating_add(cache_read)
        .saturating_add(cache_write);
    let cache_write_1h = counters.cache_writes.classes().1.min(cache_write);
    let completion = match counters.completion {
        Some(completion) => whole_completion(counters, completion, input_total),
        None => missing_completion(counters, input_total).unwrap_or(estimate.output_total()),
    };
    let audio_input = counters.audio_prompt.unwrap_or(0).min(uncached);
    let audio_output = counters.audio_completion.unwrap_or(0).min(completion);
    let output = completion.saturating_sub(audio_output);
    let usage = Usage {
        input: uncached.saturating_sub(audio_input),
        cache_read,
        cache_write_5m: cache_write.saturating_sub(cache_write_1h),
        cache_write_1h,
        output,
        reasoning: counters.reasoning.unwrap_or(0).min(output),
        audio_input,
        audio_output,
        service_tier: counters.service_tier,
        ..Usage::default()
    };
    (
        usage.with_uses(counters.tool_uses),
        counters.prompt.is_none() || counters.completion.is_none(),
    )
}

/// Splits a prompt that includes the tokens read from and written to the cache into the three
/// classes.
fn split_prompt(prompt: u64, read: u64, written: u64) -> (u64, u64, u64) {
    let read = read.min(prompt);
    let written = written.min(prompt.saturating_sub(read));
    (
        prompt.saturating_sub(read).saturating_sub(written),
        read,
        written,
    )
}

/// Returns whether the vendor counts the cached tokens separately from the prompt. A number larger
/// than the prompt cannot be a part of it. Otherwise the total decides, if it matches one of the
/// two cases.
fn cache_is_apart(counters: &ChatCounters, prompt: u64) -> bool {
    let (read, written) = (counters.cached.unwrap_or(0), counters.cache_writes.total());
    let parts = read.saturating_add(written);
    if read > prompt || written > prompt {
        return true;
    }
    let reasoning = counters.reasoning.unwrap_or(0);
    let beside = counters
        .total
        .zip(counters.completion)
        .and_then(|(total, completion)| total.checked_sub(prompt)?.checked_sub(completion));
    match beside {
        Some(0) => false,
        // The same number may be the reasoning, which far more vendors count separately.
        Some(beside) if beside == reasoning => false,
        Some(beside) if beside == parts || beside == parts.saturating_add(reasoning) => true,
        _ => parts > prompt,
    }
}

/// Returns the number of all generated tokens. A vendor counts reasoning separately from the
/// completion if the total shows this, or if the reasoning exceeds the completion.
fn whole_completion(counters: &ChatCounters, completion: u64, input_total: u64) -> u64 {
    let reasoning = counters.reasoning.unwrap_or(0);
    match counters
        .total
        .and_then(|total| total.checked_sub(input_total))
    {
        Some(output) if output >= completion => output,
        _ if reasoning > completion => completion.saturating_add(reasoning),
        _ => completion,
    }
}

/// Returns the prompt if its counter is missing. It is the rest of the total, or else an estimate.
fn missing_prompt(counters: &ChatCounters, estimate: &Usage) -> u64 {
    let rest = counters
        .total
        .zip(counters.completion)
        .and_then(|(total, completion)| total.checked_sub(completion));
    rest.filter(|prompt| *prompt > 0)
        .unwrap_or(estimate.input_total())
}

/// Returns the completion if its counter is missing. It is the rest of the total.
fn missing_completion(counters: &ChatCounters, input_total: u64) -> Option<u64> {
    counters.prompt?;
    counters
        .total?
        .checked_sub(input_total)
        .filter(|completion| *completion > 0)
}

/// Returns the usage, and whether a part of it is estimated. Compaction passes are added, because
/// the vendor's classes do not include them.
fn messages_usage(counters: &MessagesCounters, estimate: &Usage) -> (Usage, bool) {
    let cache_read = counters.cache_read.unwrap_or(0);
    let (cache_write_5m, cache_write_1h) = counters.cache_writes.classes();
    let cached = cache_read
        .saturating_add(cache_write_5m)
        .saturating_add(cache_write_1h);
    let output = counters.output.unwrap_or(estimate.output_total());
    let usage = Usage {
        input: counters
            .input
            .unwrap_or(estimate.input_total().saturating_sub(cached)),
        cache_read,
        cache_write_5m,
        cache_write_1h,
        output,
        reasoning: counters.reasoning.unwrap_or(0).min(output),
        service_tier: counters.service_tier,
        inference_geo: counters.inference_geo,
        speed: counters.speed,
        ..Usage::default()
    };
    let usage = usage.with_uses(counters.tool_uses.map(Option::unwrap_or_default));
    (
        usage.with_passes(counters.compactions),
        counters.input.is_none() || counters.output.is_none(),
    )
}

/// Limits the usage to its bounds. Returns the usage, and marks the counters that exceeded their
/// bounds.
fn cap(usage: &Usage, bounds: &UsageBounds) -> (Usage, Excess) {
    let mut excess = Excess::default();
    let passes = cap_passes(&usage.compactions, bounds, &mut excess);
    let mut own = usage.without_passes();
    let mut uses = PerTool::default();
    let mut rounds = 1_u64;
    for tool in ServerTool::ALL {
        let (counted, max) = (own.uses(tool), *bounds.tool_uses.get(tool));
        *excess.tool_uses.get_mut(tool) = counted > max;
        *uses.get_mut(tool) = counted.min(max);
        // The vendor's model reads the conversation once more after each use of the tool.
        rounds = rounds.saturating_add(counted.min(max));
    }
    own = own.with_uses(uses);
    let (believed, max) = match rounds {
        1 => (bounds.input_believed, bounds.input),
        _ => (
            bounds.context.saturating_mul(rounds),
            bounds.context.saturating_mul(rounds),
        ),
    };
    excess.input = own.input_total() > believed;
    if excess.input {
        let classes = [
            &mut own.input,
            &mut own.cache_read,
            &mut own.cache_write_5m,
            &mut own.cache_write_1h,
            &mut own.audio_input,
        ];
        clamp_classes(max, classes);
    }
    excess.output = own.output_total() > bounds.output;
    clamp_classes(bounds.output, [&mut own.output, &mut own.audio_output]);
    own.reasoning = own.reasoning.min(own.output);
    (own.with_passes(passes), excess)
}

/// Reduces the total to `max` by cutting the largest class first and then the next one. An absurd
/// counter is cut, and the others stay unchanged.
fn clamp_classes<const N: usize>(max: u64, mut classes: [&mut u64; N]) {
    classes.sort_by_key(|count| std::cmp::Reverse(**count));
    let sum = classes
        .iter()
        .fold(0_u64, |sum, count| sum.saturating_add(**count));
    let mut beyond = sum.saturating_sub(max);
    for count in classes {
        let taken = beyond.min(*count);
        *count = count.saturating_sub(taken);
        beyond = beyond.saturating_sub(taken);
    }
}

/// Limits each pass to one context. If the request does not allow passes, all of them are removed.
fn cap_passes(
    passes: &CompactionPasses,
    bounds: &UsageBounds,
    excess: &mut Excess,
) -> CompactionPasses {
    if !bounds.compaction {
        excess.compaction = !passes.is_empty();
        return CompactionPasses::default();
    }
    let capped: CompactionPasses = passes.iter().map(|pass| cap_pass(*pass, bounds)).collect();
    excess.compaction = capped != *passes;
    capped
}

fn cap_pass(pass: CompactionPass, bounds: &UsageBounds) -> CompactionPass {
    let mut classes = [
        pass.input,
        pass.cache_read,
        pass.cache_write_5m,
        pass.cache_write_1h,
    ]
    .map(u64::from);
    clamp_classes(bounds.context, classes.each_mut());
    let [input, cache_read, cache_write_5m, cache_write_1h] =
        classes.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
    let output = u64::from(pass.output).min(bounds.pass_output);
    CompactionPass {
        input,
        cache_read,
        cache_write_5m,
        cache_write_1h,
        output: u32::try_from(output).unwrap_or(u32::MAX),
    }
}
