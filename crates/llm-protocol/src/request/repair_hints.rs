//! Records the members of a body that some model of the protocol refuses, during the one pass over
//! the body.
//!
//! This file must not depend on a model: `request/repair_check.rs` decides whether the request's
//! model refuses a member.
//!
//! Read next: `request/repair_check.rs`.

use crate::capabilities::ThinkingType;
use crate::ir::Effort;
use crate::json::{JsonKind, JsonScanner, ScanResult};

/// The facts that the pass over a body finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct RepairHints {
    /// Members that are present and not null, as a bit set.
    present: u16,
    pub effort: EnumMember<Effort>,
    pub thinking: EnumMember<ThinkingType>,
    /// True if a message has the role `system`.
    pub system_turns: bool,
    /// True if a message has the role `developer`.
    pub developer_turns: bool,
    /// True if a message other than the first one has the role `system` or `developer`.
    pub later_instructions: bool,
    /// True if a user's message directly follows a tool's message.
    pub user_behind_tool: bool,
    /// True if the last message is a tool's message.
    ends_with_tool: bool,
    has_messages: bool,
    /// True if the last message is the assistant's.
    pub ends_with_assistant: bool,
    /// True if the assistant's last turn lacks thinking signed by its vendor.
    pub is_unthought: bool,
    /// True if results of that turn's calls follow the turn.
    pub is_answered: bool,
    /// True if a message has `reasoning_content`.
    pub reasoning_content: bool,
    /// True if a call id is not exactly nine letters or digits.
    pub other_than_nine: bool,
}

/// A member whose value is one of a few names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum EnumMember<T> {
    #[default]
    Absent,
    Known(T),
    /// The name or value is unknown, and the vendor must validate it.
    Unknown,
}

/// A top-level member that a model may refuse.
#[derive(Clone, Copy)]
pub(super) enum Setting {
    Temperature = 1,
    TopP = 1 << 1,
    TopK = 1 << 2,
    /// Any other chat member that affects sampling.
    OtherSampling = 1 << 3,
    Stop = 1 << 4,
    Verbosity = 1 << 5,
    ParallelToolCalls = 1 << 6,
    /// A member of the responses protocol.
    Reasoning = 1 << 7,
    Text = 1 << 8,
    Include = 1 << 9,
    Tools = 1 << 10,
    /// The older form of chat's tools.
    Functions = 1 << 11,
}

impl Setting {
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "temperature" => Setting::Temperature,
            "top_p" => Setting::TopP,
            "top_k" => Setting::TopK,
            "presence_penalty" | "frequency_penalty" | "logit_bias" => Setting::OtherSampling,
            "stop" => Setting::Stop,
            "verbosity" => Setting::Verbosity,
            "parallel_tool_calls" => Setting::ParallelToolCalls,
            "reasoning" => Setting::Reasoning,
            "text" => Setting::Text,
            "include" => Setting::Include,
            "tools" => Setting::Tools,
            "functions" => Setting::Functions,
            _ => return None,
        })
    }
}

impl RepairHints {
    pub fn mark_present(&mut self, setting: Setting) {
        self.present |= setting as u16;
    }

    pub fn has(&self, setting: Setting) -> bool {
        self.present & setting as u16 != 0
    }

    /// Records the role of a message. `role` is the JSON string with its quotes.
    pub fn record_role(&mut self, role: &str) {
        let is_behind_tool = std::mem::replace(&mut self.ends_with_tool, role == "\"tool\"");
        match role {
            "\"assistant\"" => self.ends_with_assistant = true,
            "\"user\"" => self.user_behind_tool |= is_behind_tool,
            "\"system\"" => {
                self.system_turns = true;
                self.later_instructions |= self.has_messages;
            }
            "\"developer\"" => {
                self.developer_turns = true;
                self.later_instructions |= self.has_messages;
            }
            // A role with escapes may be any role.
            role if role.contains('\\') => {
                (
                    self.ends_with_assistant,
                    self.system_turns,
                    self.developer_turns,
                ) = (true, true, true);
                (self.later_instructions, self.user_behind_tool) = (true, true);
            }
            _ => {}
        }
    }

    /// Records the end of a message, which may have signed thinking or a tool result.
    pub fn record_message(&mut self, has_thought: bool, has_result: bool) {
        self.has_messages = true;
        if self.ends_with_assistant {
            (self.is_unthought, self.is_answered) = (!has_thought, false);
        }
        self.is_answered |= has_result;
    }

    pub fn read_effort(&mut self, scan: &mut JsonScanner<'_>) -> ScanResult {
        self.effort = read_enum(scan, Effort::parse)?;
        Ok(())
    }

    pub fn record_thinking(&mut self, kind: Option<&str>) {
        self.thinking = kind
            .and_then(ThinkingType::parse)
            .map_or(EnumMember::Unknown, EnumMember::Known);
    }
}

/// Reads a name. Null counts as absent.
fn read_enum<T>(
    scan: &mut JsonScanner<'_>,
    named: fn(&str) -> Option<T>,
) -> ScanResult<EnumMember<T>> {
    if scan.kind()? == JsonKind::Null {
        return scan.skip().map(|_| EnumMember::Absent);
    }
    let text = scan.string_or_skip()?;
    Ok(text
        .and_then(|text| named(&text.name()))
        .map_or(EnumMember::Unknown, EnumMember::Known))
}
