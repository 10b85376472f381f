//! Maps `thinking` and `output_config.effort` to one reasoning effort level.
//!
//! Read next: `openai/api_variant.rs`.

use crate::Protocol;
use crate::ir::{Effort, Request, Warnings};
use crate::json::JsonValue;

/// Maximum budget, in tokens, for each effort level.
const BUDGET_LEVELS: [(u64, Effort); 3] = [
    (4_096, Effort::Low),
    (16_384, Effort::Medium),
    (32_768, Effort::High),
];

/// The preference of a request about thinking.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ThinkingPreference {
    Nothing,
    /// Thinking is enabled, and the model chooses the amount.
    Free,
    Budget(Effort),
    /// Thinking is disabled, or of a kind that a chat vendor does not support.
    Off,
}

fn thinking_preference(request: &Request<'_>) -> ThinkingPreference {
    let level_of = |tokens| {
        let level = BUDGET_LEVELS
            .iter()
            .find(|(max_tokens, _)| tokens <= *max_tokens);
        level.map_or(Effort::Xhigh, |(_, level)| *level)
    };
    let Some(thinking) = request.reasoning.thinking else {
        return request
            .reasoning
            .budget_tokens
            .map_or(ThinkingPreference::Nothing, |tokens| {
                ThinkingPreference::Budget(level_of(tokens))
            });
    };
    let is = |expected| thinking.member_is("type", expected);
    if is("enabled") {
        let tokens = thinking
            .get("budget_tokens")
            .and_then(JsonValue::count)
            .unwrap_or_default();
        return ThinkingPreference::Budget(level_of(tokens));
    }
    if is("adaptive") {
        ThinkingPreference::Free
    } else {
        ThinkingPreference::Off
    }
}

/// Returns whether the client wants to see the reasoning.
pub(crate) fn wants_visible_thinking(request: &Request<'_>) -> bool {
    let display = request
        .reasoning
        .thinking
        .and_then(|thinking| thinking.get("display"));
    let is_omitted = display.is_some_and(|display| display.is("omitted"));
    matches!(
        thinking_preference(request),
        ThinkingPreference::Free | ThinkingPreference::Budget(_)
    ) && !is_omitted
}

/// Returns whether the client asks for reasoning.
pub(crate) fn is_on(request: &Request<'_>) -> bool {
    let effort = request.reasoning.effort;
    match thinking_preference(request) {
        ThinkingPreference::Off => false,
        ThinkingPreference::Nothing => effort.is_some_and(|effort| effort != Effort::None),
        ThinkingPreference::Free | ThinkingPreference::Budget(_) => true,
    }
}

/// The effort levels that a model supports.
pub(crate) struct EffortSupport<'m> {
    pub reasons: bool,
    /// Supported levels, sorted.
    pub levels: &'m [Effort],
    /// True if the vendor accepts a level. If not, it can only turn reasoning on and off.
    pub takes_level: bool,
    /// True if another part of the request rules out reasoning.
    pub is_kept_from: bool,
}

/// Returns the effort level to send, or `None` to send no level.
pub(crate) fn select_effort(
    request: &Request<'_>,
    support: &EffortSupport<'_>,
    warnings: &mut Warnings,
) -> Option<Effort> {
    let preference = thinking_preference(request);
    let requested = request.reasoning.effort;
    let is_thinking = request.reasoning.thinking.is_some()
        && (requested.is_none() || preference == ThinkingPreference::Off);
    let field = if is_thinking || request.reasoning.effort_field.is_empty() {
        "thinking"
    } else {
        request.reasoning.effort_field
    };
    if !support.reasons {
        let is_requested = matches!(
            preference,
            ThinkingPreference::Free | ThinkingPreference::Budget(_)
        );
        // In a messages request, an effort level alone is no request for reasoning.
        let is_effort_requested = request.surface != Protocol::Messages
            && requested.is_some_and(|level| level != Effort::None);
        if is_requested || is_effort_requested {
            warnings.dropped(if request.reasoning.thinking.is_some() {
                "thinking"
            } else {
                field
            });
        }
        return None;
    }
    let selected = match preference {
        ThinkingPreference::Off => Some(Effort::None),
        ThinkingPreference::Budget(level) => requested.or(Some(level)),
        ThinkingPreference::Free | ThinkingPreference::Nothing => requested,
    };
    if support.is_kept_from {
        if preference == ThinkingPreference::Free
            || selected.is_some_and(|level| level != Effort::None)
        {
            warnings.downgraded(field);
        }
        return Some(Effort::None);
    }
    let selected = selected?;
    let nearest = selected.nearest(support.levels);
    match nearest {
        None if support.levels.is_empty() => warnings.dropped(field),
        // The model supports reasoning, but not at the requested level.
        None => warnings.downgraded(field),
        Some(nearest) if nearest != selected => warnings.downgraded(field),
        Some(nearest) if nearest != Effort::None && !support.takes_level => {
            warnings.downgraded(field)
        }
        Some(_) => {}
    }
    nearest
}
