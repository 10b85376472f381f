//! Contains the table of probes, `probes.yaml`: the request of each probe, the expected answer, the
//! key of the profile that it decides, and the finding.
//!
//! This file must not send a request.

use llm_protocol::Protocol;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::LazyLock;

static TABLE: LazyLock<Result<ProbeTable, String>> = LazyLock::new(|| {
    // Parse into a `Value` first, because that applies the merge keys of YAML.
    let value: Value = serde_saphyr::from_str(include_str!("probes.yaml"))
        .map_err(|error| format!("probes.yaml: {error}"))?;
    serde_json::from_value(value).map_err(|error| format!("probes.yaml: {error}"))
});

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProbeTable {
    chat: ProtocolProbes,
    messages: ProtocolProbes,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProtocolProbes {
    /// Places in an answer or an event where a feature may be found. The name `completion` lists
    /// the places where a completion has content.
    pub places: BTreeMap<String, Vec<String>>,
    /// The plainest request, whose members all other requests have too.
    pub plain: Probe,
    pub probes: Vec<Probe>,
    pub members_with: Map<String, Value>,
    pub members: Map<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Probe {
    pub name: String,
    pub body: Map<String, Value>,
    /// Verdicts on earlier probes that this probe requires. Otherwise it is skipped.
    pub needs: BTreeMap<String, Verdict>,
    /// Features that an accepted answer must or must not show.
    pub expect: BTreeMap<String, bool>,
    /// Key of the profile that the probe decides, with dots between the levels.
    pub decides: Option<String>,
    /// The key's value for each verdict. `null` means that the profile does not need the key.
    pub values: BTreeMap<Verdict, Value>,
    /// Output limit, in tokens, if the usual one is too small.
    pub output_tokens: Option<u64>,
    /// Input tokens that the length of the body does not show.
    pub input_tokens: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Taken,
    Refused,
    Unknown,
    NotAsked,
}

impl Verdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
            Self::NotAsked => "not asked",
        }
    }
}

#[derive(Debug, Serialize)]
pub struct ProbeFinding {
    pub probe: String,
    pub verdict: Verdict,
    pub evidence: String,
    /// Key of the profile that the finding decides, and its value.
    pub decides: Option<String>,
    pub value: Option<Value>,
}

/// Returns the probes of the protocol.
///
/// # Errors
/// Returns an error for the responses protocol, whose servers need no profile.
pub fn probes_of(protocol: Protocol) -> Result<&'static ProtocolProbes, String> {
    let table = TABLE.as_ref().map_err(Clone::clone)?;
    match protocol {
        Protocol::Chat => Ok(&table.chat),
        Protocol::Messages => Ok(&table.messages),
        Protocol::Responses => {
            Err("only chat and messages vendors have a profile that can be learnt".to_owned())
        }
    }
}
