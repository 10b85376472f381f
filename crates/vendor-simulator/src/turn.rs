//! Extracts the members of a request that determine its answer, in one form for all vendors.
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
    /// For chat: true if the caller requested the usage chunk.
    pub include_usage: bool,
    /// For chat and responses: true if events have the padding field, which the caller can disable.
    pub obfuscation: bool,
    /// For chat: true if the caller sent a prompt in the place of messages.
    pub is_prompt: bool,
    /// For chat: true if the answer has the form of the completions API.
    pub is_completion: bool,
    /// For completions: number of generated texts that the answer leaves out, because of `best_of`.
    pub unshown: usize,
    /// For completions: the text that an answer to each prompt begins with, because of `echo`.
    pub echo: Vec<String>,
    /// For chat: true if the caller uses functions instead of tools.
    pub legacy_functions: bool,
    /// For messages: true to show thinking by its signature only.
    pub omits_thinking: bool,
    pub choices: usize,
    pub max_tokens: Option<u64>,
    pub service_tier: String,
    /// The last user text, or the text with the marker if that message has one.
    pub user_text: String,
    /// Text of the tool result that ends the conversation, if any.
    pub tool_result: Option<String>,
    /// Number of turns with calls since the text with the marker.
    pub steps_done: usize,
    /// Input tokens by the vendor's count.
    pub input_tokens: u64,
    /// For responses: further options of the request.
    pub responses: SimResponsesOptions,
}

impl SimTurn {
    /// Returns the vendor's padding of an event, which hides the size of the content.
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

/// Options of a responses request, except the conversation, that determine the answer.
#[derive(Debug, Default)]
pub struct SimResponsesOptions {
    /// True to include the encrypted content of reasoning.
    pub encrypted: bool,
    /// Names of the custom tools, which take plain text.
    pub custom_tools: Vec<String>,
    pub namespace_members: Vec<(String, String)>,
    /// JSON of `tools` and `reasoning`, which the vendor repeats in its answer.
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
