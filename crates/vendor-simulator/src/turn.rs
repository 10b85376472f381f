//! The members of a request that determine its answer, in one form for all vendors.
//!
//! This file must not check a request (`checks.rs`) or decide the answer (`answer.rs`).

use serde_json::Value;

use super::errors::SimVendor;

const PADDING: &str = "aK3xQ9mZ7tRw2LpV";

/// The members of a request body that determine the answer.
#[derive(Debug)]
pub struct SimTurn {
    pub vendor: SimVendor,
    pub model: String,
    pub stream: bool,
    /// Chat: whether the caller wants the usage chunk.
    pub include_usage: bool,
    /// Chat and responses: whether events have the padding field, which the caller can disable.
    pub obfuscation: bool,
    /// Chat: whether the caller uses functions instead of tools.
    pub legacy_functions: bool,
    /// Messages: whether to show thinking by its signature only.
    pub omits_thinking: bool,
    pub choices: usize,
    pub max_tokens: Option<u64>,
    pub service_tier: String,
    /// The last user text, or the one with the marker, if that message has one.
    pub user_text: String,
    /// Text of the tool result that ends the conversation, if there is one.
    pub tool_result: Option<String>,
    /// Number of turns with calls since the text with the marker.
    pub steps_done: usize,
    /// Input tokens as the vendor counts them.
    pub input_tokens: u64,
    /// Responses: further options of the request.
    pub responses: SimResponsesOptions,
}

impl SimTurn {
    /// The vendor's padding of an event, which hides the size of its content.
    pub fn padding(&self, index: usize) -> String {
        match self.obfuscation {
            true => format!(
                r#","obfuscation":"{}""#,
                &PADDING[..index * 5 % PADDING.len()]
            ),
            false => String::new(),
        }
    }
}

/// Options of the request, other than the conversation, that determine the answer.
#[derive(Debug, Default)]
pub struct SimResponsesOptions {
    /// Whether to include the encrypted content of reasoning.
    pub encrypted: bool,
    /// Names of the custom tools, which take plain text.
    pub custom_tools: Vec<String>,
    /// Members of namespaces, by name.
    pub namespace_members: Vec<(String, String)>,
    /// `tools` and `reasoning`, which the vendor repeats in its answer.
    pub tools: String,
    pub reasoning: String,
}

impl SimResponsesOptions {
    pub fn parse(body: &Value) -> Self {
        let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let added = items(&body["input"])
            .into_iter()
            .filter(|item| item["type"] == "additional_tools");
        let tools: Vec<Value> = added
            .flat_map(|item| items(&item["tools"]))
            .chain(items(&body["tools"]))
            .collect();
        let name = |tool: &Value| tool["name"].as_str().unwrap_or_default().to_owned();
        let mut options = Self {
            encrypted: items(&body["include"])
                .iter()
                .any(|word| word == "reasoning.encrypted_content"),
            tools: if body["tools"].is_array() {
                body["tools"].to_string()
            } else {
                "[]".to_owned()
            },
            reasoning: if body["reasoning"].is_object() {
                body["reasoning"].to_string()
            } else {
                "null".to_owned()
            },
            ..Self::default()
        };
        for tool in &tools {
            for member in items(&tool["tools"])
                .iter()
                .filter(|_| tool["type"] == "namespace")
            {
                options.namespace_members.push((name(member), name(tool)));
                options
                    .custom_tools
                    .extend((member["type"] == "custom").then(|| name(member)));
            }
            options
                .custom_tools
                .extend((tool["type"] == "custom").then(|| name(tool)));
        }
        options
    }
}
