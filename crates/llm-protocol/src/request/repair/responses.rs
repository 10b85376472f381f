//! Repairs the sampling, effort, reasoning summaries and verbosity of responses bodies.
//!
//! This file must not change items: `foreign_fields/responses.rs` handles another vendor's remains
//! in them.

use super::{
    EffortDecision, ForeignFieldRemover, MemberDecision, decide_effort, is_default_number,
    parse_effort,
};
use crate::capabilities::ResponsesModel;
use crate::capabilities::repair_rules::KnownCapabilities;
use crate::ir::Effort;
use crate::json::JsonValue;

const ENCRYPTED_REASONING: &str = "reasoning.encrypted_content";

impl<'a> ForeignFieldRemover<'a> {
    pub(super) fn repair_responses(
        &mut self,
        root: JsonValue<'a>,
        model: &ResponsesModel,
        known: &KnownCapabilities,
    ) {
        let is_sampled = !known.sampling || model.sampling;
        self.filter_members(root, "", |name, value| match name {
            // The model refuses even the default value.
            "temperature" | "top_p" if is_sampled || value.is_null() => MemberDecision::Keep,
            "temperature" | "top_p" if is_default_number(value, 1.0) => {
                MemberDecision::DropSilently
            }
            "temperature" | "top_p" => MemberDecision::Drop,
            _ => MemberDecision::Keep,
        });
        if known.reasoning && !model.reasoning {
            self.drop_reasoning_members(root);
        } else if let Some(reasoning) = root.get("reasoning") {
            self.repair_reasoning_members(reasoning, model, known);
        }
        if let Some(text) = root
            .get("text")
            .filter(|_| known.verbosity && !model.verbosity)
        {
            self.filter_members(text, "text.", |name, value| match name {
                "verbosity" if !value.is_null() => MemberDecision::Drop,
                _ => MemberDecision::Keep,
            });
        }
    }

    /// Removes the reasoning members for a model that does not reason.
    fn drop_reasoning_members(&mut self, root: JsonValue<'a>) {
        self.filter_members(root, "", |name, value| match name {
            "reasoning" if value.is_null() => MemberDecision::Keep,
            "reasoning" => match parse_effort(value.get("effort")) {
                Some(Effort::None) if value.get("summary").is_none() => {
                    MemberDecision::DropSilently
                }
                _ => MemberDecision::Drop,
            },
            _ => MemberDecision::Keep,
        });
        let included = root.items_of("include");
        for item in included.filter(|item| item.is(ENCRYPTED_REASONING)) {
            // The item would be empty, so remove it.
            self.gone.push(self.span(item.raw()));
        }
    }

    fn repair_reasoning_members(
        &mut self,
        reasoning: JsonValue<'a>,
        model: &ResponsesModel,
        known: &KnownCapabilities,
    ) {
        const PATH: &str = "reasoning.";
        if known.summaries && !model.summaries {
            self.filter_members(reasoning, PATH, |name, value| match name {
                "summary" | "generate_summary" if !value.is_null() => MemberDecision::Drop,
                _ => MemberDecision::Keep,
            });
        }
        let Some(effort) = reasoning.get("effort").filter(|_| known.efforts) else {
            return;
        };
        match decide_effort(parse_effort(Some(effort)), &model.effort_values) {
            EffortDecision::Keep => {}
            EffortDecision::Drop => {
                self.remove_members(reasoning, PATH, &["effort"]);
            }
            EffortDecision::Lower(level) => {
                self.warnings.downgraded("reasoning.effort");
                self.replace_string(effort, level.as_str());
            }
        }
    }
}
