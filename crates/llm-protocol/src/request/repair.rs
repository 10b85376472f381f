//! Edits the members that this model is known to refuse in a body of its own protocol. As in
//! translation, they are removed, renamed, lowered or moved, and every other byte stays unchanged.
//!
//! Clients choose a dialect by the vendor's name of the model, which they cannot do with a catalog
//! id. Only known refusals are repaired, and not those that all models of the protocol share, which
//! the vendor reports. Each change adds a warning, unless the member asked for the default. A
//! repaired body needs no further repair.
//!
//! Read next: `request/repair_check.rs` (whether there is anything to do),
//! `repair/{chat,messages,responses}.rs`.

use super::foreign_fields::remover::ForeignFieldRemover;
use crate::capabilities::ModelCapabilities;
use crate::capabilities::repair_rules::RepairRules;
use crate::ir::Effort;
use crate::json::{JsonValue, edit::JsonEdit, edit::json_string};

pub(super) mod alternation;
mod chat;
mod messages;
mod responses;

#[derive(Clone, Copy, PartialEq, Eq)]
enum MemberDecision {
    Keep,
    /// The member asks for the model's default behaviour, so it is dropped without a warning.
    DropSilently,
    Drop,
}

/// The decision about an effort level that the model may not support.
enum EffortDecision {
    Keep,
    Drop,
    Lower(Effort),
}

fn decide_effort(effort: Option<Effort>, levels: &[Effort]) -> EffortDecision {
    match effort {
        // Leave an unknown level to the vendor.
        None => EffortDecision::Keep,
        Some(effort) if levels.contains(&effort) => EffortDecision::Keep,
        Some(effort) => effort
            .nearest(levels)
            .map_or(EffortDecision::Drop, EffortDecision::Lower),
    }
}

impl<'a> ForeignFieldRemover<'a> {
    /// Edits the parts that the rules say the model refuses. `without_thinking` says that the
    /// vendor refused the thinking, which is then removed already.
    pub(super) fn repair(
        &mut self,
        root: JsonValue<'a>,
        rules: &RepairRules<'_>,
        without_thinking: bool,
    ) {
        let before = (self.edits.len(), self.gone.len());
        match rules.accepts {
            ModelCapabilities::Chat(model) => self.repair_chat(root, model, &rules.known),
            ModelCapabilities::Messages(model) => {
                self.repair_messages(root, model, rules, without_thinking)
            }
            ModelCapabilities::Responses(model) => self.repair_responses(root, model, &rules.known),
        }
        self.is_repaired |= before != (self.edits.len(), self.gone.len());
    }

    /// Applies `verdict` to every member of the object at `path`.
    fn filter_members(
        &mut self,
        object: JsonValue<'a>,
        path: &str,
        verdict: impl Fn(&str, JsonValue<'a>) -> MemberDecision,
    ) {
        for (key, value) in object.members() {
            let name = key.value();
            let verdict = verdict(&name, value);
            if verdict == MemberDecision::Drop {
                self.warnings.dropped(format_args!("{path}{name}"));
            }
            if verdict != MemberDecision::Keep {
                self.gone.push(self.member_span(&key, value));
            }
        }
    }

    /// Removes the member of this name without a warning.
    pub(super) fn drop_member(&mut self, object: JsonValue<'a>, name: &str) {
        for (key, value) in object.members().filter(|(key, _)| key.is(name)) {
            self.gone.push(self.member_span(&key, value));
        }
    }

    /// Inserts a member before all others.
    fn insert_member(&mut self, object: JsonValue<'a>, name: &str, value: &str) {
        self.insert_inside(object, format!("{}:{value}", json_string(name)));
    }

    fn replace_raw(&mut self, value: JsonValue<'a>, json: String) {
        self.edits.push(JsonEdit::new(self.span(value.raw()), json));
    }
}

/// Parses the member's value as a known effort level.
fn parse_effort(value: Option<JsonValue<'_>>) -> Option<Effort> {
    Effort::parse(&value?.string()?)
}

/// Returns whether the value is null or the default number.
fn is_default_number(value: JsonValue<'_>, usual: f64) -> bool {
    value.is_null()
        || value
            .number()
            .is_some_and(|number| number.total_cmp(&usual).is_eq())
}

fn is_empty_value(value: JsonValue<'_>) -> bool {
    value.is_null()
        || value.is_array() && value.items().next().is_none()
        || value.is_object() && value.members().next().is_none()
        || value.text().is_some_and(|text| text.is_empty())
}

#[cfg(test)]
mod tests;
