//! Maps `thinking` and `output_config.effort` to one reasoning effort level.
//!
//! Read next: `chat/write_request/api_variant.rs`.

use crate::protocol::Protocol;
use crate::protocol::form::{Action, Effort, Request, Warnings};
use crate::protocol::tree::Value;

/// Largest budget in tokens for each level.
const BUDGETS: [(u64, Effort); 3] = [
    (4_096, Effort::Low),
    (16_384, Effort::Medium),
    (32_768, Effort::High),
];

/// Preference that `thinking` expresses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    Nothing,
    /// Thinking enabled; the model chooses the amount.
    Free,
    Budget(Effort),
    /// Thinking disabled, or a kind that a chat vendor does not support.
    Off,
}

fn wish(request: &Request<'_>) -> Wish {
    let level_of = |tokens| {
        let level = BUDGETS.iter().find(|(most, _)| tokens <= *most);
        level.map_or(Effort::Xhigh, |(_, level)| *level)
    };
    let Some(thinking) = request.reasoning.thinking else {
        return request
            .reasoning
            .budget_tokens
            .map_or(Wish::Nothing, |tokens| Wish::Budget(level_of(tokens)));
    };
    let is = |wanted| thinking.get("type").is_some_and(|kind| kind.is(wanted));
    if is("enabled") {
        let tokens = thinking
            .get("budget_tokens")
            .and_then(Value::count)
            .unwrap_or_default();
        return Wish::Budget(level_of(tokens));
    }
    if is("adaptive") {
        Wish::Free
    } else {
        Wish::Off
    }
}

/// Returns whether the caller wants to see the reasoning.
pub(in crate::protocol) fn shows_thinking(request: &Request<'_>) -> bool {
    let display = request
        .reasoning
        .thinking
        .and_then(|thinking| thinking.get("display"));
    let is_omitted = display.is_some_and(|display| display.is("omitted"));
    matches!(wish(request), Wish::Free | Wish::Budget(_)) && !is_omitted
}

/// Effort levels that a model supports.
pub(in crate::protocol) struct Thinker<'m> {
    pub reasons: bool,
    /// Supported levels, sorted.
    pub levels: &'m [Effort],
    /// Another part of the request rules out reasoning.
    pub is_kept_from: bool,
}

/// Returns the effort level to send, or `None` to send no level.
pub(in crate::protocol) fn effort(
    request: &Request<'_>,
    thinker: &Thinker<'_>,
    warnings: &mut Warnings,
) -> Option<Effort> {
    let wish = wish(request);
    let said = request.reasoning.effort;
    let is_thinking = request.reasoning.thinking.is_some() && (said.is_none() || wish == Wish::Off);
    let field = if is_thinking || request.reasoning.effort_field.is_empty() {
        "thinking"
    } else {
        request.reasoning.effort_field
    };
    if !thinker.reasons {
        let is_wanted = matches!(wish, Wish::Free | Wish::Budget(_));
        // In a messages request, an effort level alone does not ask for reasoning.
        let is_asked = request.surface != Protocol::Messages
            && said.is_some_and(|level| level != Effort::None);
        if is_wanted || is_asked {
            warnings.add(
                Action::Dropped,
                if request.reasoning.thinking.is_some() {
                    "thinking"
                } else {
                    field
                },
            );
        }
        return None;
    }
    let wanted = match wish {
        Wish::Off => Some(Effort::None),
        Wish::Budget(level) => said.or(Some(level)),
        Wish::Free | Wish::Nothing => said,
    };
    if thinker.is_kept_from {
        if wish == Wish::Free || wanted.is_some_and(|level| level != Effort::None) {
            warnings.add(Action::Downgraded, field);
        }
        return Some(Effort::None);
    }
    let wanted = wanted?;
    let nearest = wanted.nearest(thinker.levels);
    match nearest {
        None => warnings.add(Action::Dropped, field),
        Some(nearest) if nearest != wanted => warnings.add(Action::Downgraded, field),
        Some(_) => {}
    }
    nearest
}
