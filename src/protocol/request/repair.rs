//! What this model is known to refuse in a body of its own protocol, changed as translation would
//! change it: its members left out, renamed, lowered or moved, every other byte as it came.
//!
//! Clients choose a dialect by the vendor's name of the model; behind a catalog id they cannot. It
//! must not repair what nobody said is refused, nor what every model of the protocol refuses: that
//! is the vendor's to say. Each change is named in the warnings, but for what asked for nothing.
//! What was repaired needs no repair.
//!
//! Read next: `request/dialect.rs` (whether there is anything to do),
//! `repair/{chat,messages,responses}.rs`.

use super::strip::Strip;
use crate::protocol::form::{Action, Effort};
use crate::protocol::rules::Accepts;
use crate::protocol::rules::known::RepairRules;
use crate::protocol::scan::Span;
use crate::protocol::splice::json_string;
use crate::protocol::tree::Value;

mod chat;
mod messages;
mod responses;

/// What becomes of a member.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Keep,
    /// It asked for what the model does without it.
    DropSilently,
    Drop,
}

/// What becomes of an effort that the model may not know.
enum EffortVerdict {
    Keep,
    Drop,
    Lower(Effort),
}

fn effort_verdict(effort: Option<Effort>, levels: &[Effort]) -> EffortVerdict {
    match effort {
        // Whatever word it is, the vendor judges it.
        None => EffortVerdict::Keep,
        Some(effort) if levels.contains(&effort) => EffortVerdict::Keep,
        Some(effort) => effort
            .nearest(levels)
            .map_or(EffortVerdict::Drop, EffortVerdict::Lower),
    }
}

impl<'a> Strip<'a> {
    /// Changes what the model of these rules refuses. `without_thinking`: it was refused and is
    /// left out already.
    pub(super) fn repair(
        &mut self,
        root: Value<'a>,
        rules: &RepairRules<'_>,
        without_thinking: bool,
    ) {
        let before = (self.edits.len(), self.gone.len());
        match rules.accepts {
            Accepts::Chat(model) => self.repair_chat(root, model, &rules.known),
            Accepts::Messages(model) => self.repair_messages(root, model, rules, without_thinking),
            Accepts::Responses(model) => self.repair_responses(root, model, &rules.known),
        }
        self.is_repaired |= before != (self.edits.len(), self.gone.len());
    }

    /// Judges every member of an object, whose path is `path`.
    fn judge_members(
        &mut self,
        object: Value<'a>,
        path: &str,
        verdict: impl Fn(&str, Value<'a>) -> Verdict,
    ) {
        for (key, value) in object.members() {
            let name = key.value();
            let verdict = verdict(&name, value);
            if verdict == Verdict::Drop {
                self.warnings
                    .add(Action::Dropped, format_args!("{path}{name}"));
            }
            if verdict != Verdict::Keep {
                self.gone.push(self.member_span(&key, value));
            }
        }
    }

    /// Leaves a member of this name out.
    fn drop_member(&mut self, object: Value<'a>, name: &str) {
        self.judge_members(object, "", |member, _| {
            if member == name {
                Verdict::DropSilently
            } else {
                Verdict::Keep
            }
        });
    }

    /// Puts a member in front of all others.
    fn insert_member(&mut self, object: Value<'a>, name: &str, value: &str) {
        let inside = self.span(object.raw()).start.saturating_add(1);
        let comma = if object.members().next().is_some() {
            ","
        } else {
            ""
        };
        // In front of what goes: the first member may be among it.
        self.edits.insert(
            0,
            (
                Span {
                    start: inside,
                    end: inside,
                },
                format!("{}:{value}{comma}", json_string(name)),
            ),
        );
    }

    /// Puts JSON in the place of a value.
    fn replace_raw(&mut self, value: Value<'a>, json: String) {
        self.edits.push((self.span(value.raw()), json));
    }
}

/// The member as an effort that is known.
fn effort_of(value: Option<Value<'_>>) -> Option<Effort> {
    Effort::named(&value?.string()?)
}

/// A number that says what is said without it.
fn is_number(value: Value<'_>, usual: f64) -> bool {
    value.is_null()
        || value
            .number()
            .is_some_and(|number| number.total_cmp(&usual).is_eq())
}

/// Null, or nothing in it.
fn is_empty(value: Value<'_>) -> bool {
    value.is_null()
        || value.is_array() && value.items().next().is_none()
        || value.is_object() && value.members().next().is_none()
        || value.text().is_some_and(|text| text.is_empty())
}

#[cfg(test)]
mod tests;
