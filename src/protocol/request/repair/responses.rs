//! Repairs responses bodies: sampling, effort, reasoning summaries, verbosity.
//!
//! It must not look into items: `foreign_fields/responses.rs` handles another vendor's remains
//! there.

use super::{EffortVerdict, Strip, Verdict, effort_of, effort_verdict, is_number};
use crate::protocol::form::{Action, Effort};
use crate::protocol::rules::ResponsesModel;
use crate::protocol::rules::known::KnownCapabilities;
use crate::protocol::tree::Value;

const ENCRYPTED: &str = "reasoning.encrypted_content";

impl<'a> Strip<'a> {
    pub(super) fn repair_responses(
        &mut self,
        root: Value<'a>,
        model: &ResponsesModel,
        known: &KnownCapabilities,
    ) {
        let is_sampled = !known.sampling || model.sampling;
        self.judge_members(root, "", |name, value| match name {
            // The model refuses even the default value.
            "temperature" | "top_p" if is_sampled || value.is_null() => Verdict::Keep,
            "temperature" | "top_p" if is_number(value, 1.0) => Verdict::DropSilently,
            "temperature" | "top_p" => Verdict::Drop,
            _ => Verdict::Keep,
        });
        if known.reasoning && !model.reasoning {
            self.without_reasoning_members(root);
        } else if let Some(reasoning) = root.get("reasoning") {
            self.reasoning_members(reasoning, model, known);
        }
        if let Some(text) = root
            .get("text")
            .filter(|_| known.verbosity && !model.verbosity)
        {
            self.judge_members(text, "text.", |name, value| match name {
                "verbosity" if !value.is_null() => Verdict::Drop,
                _ => Verdict::Keep,
            });
        }
    }

    /// Removes the reasoning members for a model that does not reason.
    fn without_reasoning_members(&mut self, root: Value<'a>) {
        self.judge_members(root, "", |name, value| match name {
            "reasoning" if value.is_null() => Verdict::Keep,
            "reasoning" => match effort_of(value.get("effort")) {
                Some(Effort::None) if value.get("summary").is_none() => Verdict::DropSilently,
                _ => Verdict::Drop,
            },
            _ => Verdict::Keep,
        });
        let included = root.get("include").into_iter().flat_map(Value::items);
        for item in included.filter(|item| item.is(ENCRYPTED)) {
            // It would have been empty.
            self.gone.push(self.span(item.raw()));
        }
    }

    fn reasoning_members(
        &mut self,
        reasoning: Value<'a>,
        model: &ResponsesModel,
        known: &KnownCapabilities,
    ) {
        const PATH: &str = "reasoning.";
        if known.summaries && !model.summaries {
            self.judge_members(reasoning, PATH, |name, value| match name {
                "summary" | "generate_summary" if !value.is_null() => Verdict::Drop,
                _ => Verdict::Keep,
            });
        }
        let Some(effort) = reasoning.get("effort").filter(|_| known.efforts) else {
            return;
        };
        match effort_verdict(effort_of(Some(effort)), &model.effort_values) {
            EffortVerdict::Keep => {}
            EffortVerdict::Drop => {
                self.judge_members(reasoning, PATH, |name, _| match name {
                    "effort" => Verdict::Drop,
                    _ => Verdict::Keep,
                });
            }
            EffortVerdict::Lower(level) => {
                self.warnings.add(Action::Downgraded, "reasoning.effort");
                self.replace(effort, level.as_str());
            }
        }
    }
}
