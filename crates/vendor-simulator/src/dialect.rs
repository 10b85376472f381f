//! Simulates vendors whose servers deviate from a protocol, mostly chat completions. A dialect
//! defines the refusals with their messages, and the places of reasoning, usage and returned state.
//!
//! A dialect is data: `dialects/dialects.json`, with members of requests that a script read from
//! the vendors' SDKs (`dialects/members.json`, by `scripts/vendor-members`). A dialect must not
//! depend on the gateway's presets, which come from different sources, so that tests detect
//! mistakes in either. Read next: `dialect/check.rs`, then `dialect/answer.rs`.

mod answer;
mod check;
mod error;
mod shape;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use self::error::DialectErrors;
use self::shape::{AnswerShape, MessageOrder, SimThinkingSwitch, VendorState};
use crate::errors::SimVendor;

const DIALECTS: &str = include_str!("../dialects/dialects.json");
const MEMBERS: &str = include_str!("../dialects/members.json");
/// Prefix of a path that selects a dialect: `/as/NAME/v1/chat/completions`.
const PATH_PREFIX: &str = "/as/";

/// The deviations of one vendor from a protocol.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dialect {
    /// Source of the rules, and the day on which they were read.
    #[allow(dead_code, reason = "readers of the table need it")]
    source: String,
    #[allow(dead_code, reason = "readers of the table need it")]
    as_of: String,
    /// Protocol of the vendor. In messages and responses, the protocol's own rules for members,
    /// order and results apply too.
    #[serde(default)]
    pub protocol: SimVendor,
    /// Model to which the rules apply.
    #[allow(dead_code, reason = "readers of the table need it")]
    model: String,
    /// Names of members by place. If empty, `members.json` contains them under the dialect's name.
    #[serde(default)]
    members: MembersByPlace,
    /// Allowed values of members that do not accept others.
    #[serde(default)]
    values: MembersByPlace,
    #[serde(default = "usual_roles")]
    roles: Vec<String>,
    #[serde(default)]
    order: MessageOrder,
    /// True if call ids must be nine letters or digits.
    #[serde(default)]
    nine_character_ids: bool,
    #[serde(default)]
    state: VendorState,
    #[serde(default)]
    thinking: SimThinkingSwitch,
    #[serde(default)]
    answer: AnswerShape,
    /// True for a self-hosted server, which accepts requests without a key.
    #[serde(default)]
    pub keyless: bool,
    errors: DialectErrors,
}

type MembersByPlace = BTreeMap<String, Vec<String>>;

fn usual_roles() -> Vec<String> {
    ["assistant", "system", "tool", "user"]
        .map(str::to_owned)
        .to_vec()
}

/// Members that the script found in one SDK.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SdkMembers {
    #[allow(dead_code, reason = "readers of the table need it")]
    source: String,
    #[allow(dead_code, reason = "readers of the table need it")]
    as_of: String,
    members: MembersByPlace,
    values: MembersByPlace,
}

static TABLE: LazyLock<Result<BTreeMap<String, Dialect>, String>> = LazyLock::new(read_table);

fn read_table() -> Result<BTreeMap<String, Dialect>, String> {
    let mut table: BTreeMap<String, Dialect> =
        serde_json::from_str(DIALECTS).map_err(|error| format!("dialects.json: {error}"))?;
    let sdks: BTreeMap<String, SdkMembers> =
        serde_json::from_str(MEMBERS).map_err(|error| format!("members.json: {error}"))?;
    for (name, sdk) in sdks {
        let Some(dialect) = table.get_mut(&name) else {
            return Err(format!("members.json: '{name}' is not in dialects.json"));
        };
        // Entries of the handwritten table override those of the SDK.
        for (place, members) in sdk.members {
            dialect.members.entry(place).or_insert(members);
        }
        for (place, values) in sdk.values {
            dialect.values.entry(place).or_insert(values);
        }
    }
    Ok(table)
}

/// Returns the dialect with this name.
///
/// # Errors
/// Returns the existing names, or the reason why the table cannot be read.
pub fn find(name: &str) -> Result<&'static Dialect, String> {
    let table = TABLE.as_ref().map_err(Clone::clone)?;
    table.get(name).ok_or_else(|| {
        let names: Vec<&str> = table.keys().map(String::as_str).collect();
        format!("no such profile: {name}; there are {}", names.join(", "))
    })
}

/// Splits the path of a request into the dialect's name and the vendor's path.
pub fn split_path(path: &str) -> (Option<&str>, &str) {
    let named = path
        .strip_prefix(PATH_PREFIX)
        .and_then(|rest| rest.find('/').map(|end| rest.split_at(end)));
    match named {
        Some((name, rest)) => (Some(name), rest),
        None => (None, path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_can_be_read_and_every_dialect_has_members_a_source_and_a_date() {
        let table = TABLE.as_ref().unwrap();
        for (name, dialect) in table {
            let places: &[&str] = match dialect.protocol {
                SimVendor::Chat => &["request", "message.user", "message.tool", "call"],
                SimVendor::Messages => &["request", "message.user", "message.assistant", "tool"],
                SimVendor::Responses => &["request", "item.message", "item.function_call", "tool"],
            };
            for place in places {
                assert!(dialect.members.contains_key(*place), "{name}: {place}");
            }
            assert!(!dialect.source.is_empty(), "{name}");
            let year = dialect.as_of.split('-').next().unwrap();
            assert!(year.parse::<u16>().unwrap() >= 2026, "{name}");
        }
        assert!(find("nobody").unwrap_err().contains("mistral"));
    }

    #[test]
    fn a_path_names_its_dialect() {
        assert_eq!(
            split_path("/as/mistral/v1/chat/completions"),
            (Some("mistral"), "/v1/chat/completions")
        );
        assert_eq!(split_path("/v1/messages"), (None, "/v1/messages"));
    }
}
