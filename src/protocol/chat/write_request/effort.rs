//! How hard the vendor's model is to think: `thinking` and `output_config.effort` as one word.
//!
//! Read next: `chat/write_request/tools.rs`.

use crate::protocol::Protocol;
use crate::protocol::form::{Action, Effort, Request, Warnings};
use crate::protocol::rules::{ChatModel, ToolsWithReasoning};
use crate::protocol::tree::Value;

/// Budgets in tokens up to which a level holds.
const BUDGETS: [(u64, Effort); 3] = [(4_096, Effort::Low), (16_384, Effort::Medium), (32_768, Effort::High)];

/// What `thinking` says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    Nothing,
    /// As much as the model likes.
    Free,
    Budget(Effort),
    /// No thinking, or only such as a chat vendor cannot be asked for.
    Off,
}

fn wish(request: &Request<'_>) -> Wish {
    let Some(thinking) = request.reasoning.thinking else { return Wish::Nothing };
    let is = |wanted| thinking.get("type").is_some_and(|kind| kind.is(wanted));
    if is("enabled") {
        let tokens = thinking.get("budget_tokens").and_then(Value::count).unwrap_or_default();
        let level = BUDGETS.iter().find(|(most, _)| tokens <= *most);
        return Wish::Budget(level.map_or(Effort::Xhigh, |(_, level)| *level));
    }
    if is("adaptive") { Wish::Free } else { Wish::Off }
}

/// The caller wants to see the reasoning.
pub(super) fn shows_thinking(request: &Request<'_>) -> bool {
    let display = request.reasoning.thinking.and_then(|thinking| thinking.get("display"));
    let is_omitted = display.is_some_and(|display| display.is("omitted"));
    matches!(wish(request), Wish::Free | Wish::Budget(_)) && !is_omitted
}

/// `reasoning_effort`; `None`: nothing is said.
pub(super) fn effort(
    request: &Request<'_>,
    model: &ChatModel,
    has_tools: bool,
    warnings: &mut Warnings,
) -> Option<Effort> {
    let wish = wish(request);
    let said = request.reasoning.effort;
    let field = if said.is_some() && wish != Wish::Off { request.reasoning.effort_field } else { "thinking" };
    if !model.reasoning {
        if matches!(wish, Wish::Free | Wish::Budget(_)) {
            warnings.add(Action::Dropped, "thinking");
        } else if request.surface == Protocol::Responses && said.is_some_and(|level| level != Effort::None) {
            warnings.add(Action::Dropped, request.reasoning.effort_field);
        }
        return None;
    }
    let wanted = match wish {
        Wish::Off => Some(Effort::None),
        Wish::Budget(level) => said.or(Some(level)),
        Wish::Free | Wish::Nothing => said,
    };
    if has_tools && model.tools_with_reasoning == ToolsWithReasoning::EffortNone {
        if wish == Wish::Free || wanted.is_some_and(|level| level != Effort::None) {
            warnings.add(Action::Downgraded, field);
        }
        return Some(Effort::None);
    }
    let wanted = wanted?;
    let nearest = wanted.nearest(&model.effort_values);
    match nearest {
        None => warnings.add(Action::Dropped, field),
        Some(nearest) if nearest != wanted => warnings.add(Action::Downgraded, field),
        Some(_) => {}
    }
    nearest
}
