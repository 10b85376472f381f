//! Edits a responses body before the gateway sends it to a vendor of that protocol. The vendor
//! stores no part of a conversation, so an item must be sent, not referenced. Data at the vendor
//! would belong to the operator's account. Members that reference other objects of the vendor
//! account have been refused by `request/vendor_state.rs`.
//!
//! This file handles references to the operator's account at the vendor, features without a price,
//! and remains of another vendor's answers. The vendor checks everything else.
//!
//! Read next: `request/rewrite.rs`.

use super::remover::{ForeignFieldRemover, RequestCleanup};
use crate::Protocol;
use crate::capabilities::identifiers;
use crate::capabilities::repair_rules::RepairRules;
use crate::failure::Failure;
use crate::ir::{JsonPath, RequestResult};
use crate::json::{
    JsonDocument, JsonStr, JsonValue, MAX_DEPTH, NodeBuffer, edit::JsonEdit, edit::json_string,
};
use crate::profile::VendorProfile;
use crate::reasoning_token;
use crate::request::summary::RequestSummary;
use crate::usage::PerTool;
use std::borrow::Cow;

/// The account of a passthrough request, and the features of its model.
#[derive(Clone, Copy, Debug)]
pub struct PassthroughContext<'a> {
    pub account_id: &'a str,
    pub profile: &'a VendorProfile,
    /// The vendor's own tools that have a price.
    pub sold: PerTool<bool>,
    /// True if the vendor refused the reasoning in the first attempt.
    pub without_reasoning: bool,
    /// The public model id, for the text of a refusal.
    pub model: &'a str,
    /// The members and values that the model is known to refuse.
    pub repair: RepairRules<'a>,
}

/// Computes the edits of a responses body for passthrough. The flag is true if reasoning remains in
/// the body, or the id of an item that followed reasoning; the vendor may refuse either.
///
/// # Errors
/// Returns an error if the body references an object stored at the vendor, or asks for a tool that
/// runs at the vendor and has no price.
pub fn clean_responses_request(
    body: &[u8],
    summary: &RequestSummary,
    sender: &PassthroughContext<'_>,
) -> Result<(RequestCleanup, bool), Failure> {
    let Ok(text) = std::str::from_utf8(body) else {
        return Ok(Default::default());
    };
    let Ok(tree) = JsonDocument::parse(text, MAX_DEPTH, NodeBuffer::new()) else {
        return Ok(Default::default());
    };
    let mut remover = ForeignFieldRemover::new(text);
    let carries = remover
        .clean_responses(tree.root(), sender)
        .map_err(|refused| *refused)?;
    if summary.needs_repair(&sender.repair) {
        remover.repair(tree.root(), &sender.repair, sender.without_reasoning);
    }
    Ok((remover.finish(), carries))
}

/// Tools that the client runs.
const CLIENT_TOOLS: [&str; 6] = [
    "function",
    "custom",
    "namespace",
    "tool_search",
    "local_shell",
    "apply_patch",
];

impl<'a> ForeignFieldRemover<'a> {
    /// Returns true if reasoning or an answer's id remains.
    fn clean_responses(
        &mut self,
        root: JsonValue<'a>,
        sender: &PassthroughContext<'_>,
    ) -> RequestResult<bool> {
        refuse_background(root)?;
        self.clean_top_level(root, sender);
        if let Some(tools) = root.get("tools") {
            self.check_tools(tools, "tools", sender)?;
        }
        refuse_choice(root, sender)?;
        let keeps_ids = root.get("store").and_then(JsonValue::bool) == Some(false);
        self.clean_input(root.get("input"), keeps_ids, sender)
    }

    /// Edits top-level members: removes some and sets others to the gateway's values.
    fn clean_top_level(&mut self, root: JsonValue<'a>, sender: &PassthroughContext<'_>) {
        let mut added = Vec::new();
        let member_text = |name: &str| root.filled_text(name);
        let user = member_text("safety_identifier").or_else(|| member_text("user"));
        let user = identifiers::hash_end_user(
            sender.account_id,
            user.as_ref().map(JsonStr::value).as_deref(),
        );
        let takes = |member: &str| sender.profile.takes(member);
        let (mut has_store, mut has_user) = (false, false);
        for (key, value) in root.members() {
            match key.value().as_ref() {
                "store" => {
                    has_store = true;
                    if value.bool() != Some(false) {
                        self.edits
                            .push(JsonEdit::new(self.span(value.raw()), "false".to_owned()));
                    }
                    if value.bool() == Some(true) {
                        self.warnings.dropped("store");
                    }
                }
                "safety_identifier" if takes("safety_identifier") => {
                    has_user = true;
                    self.replace_string(value, &user);
                }
                "prompt_cache_key" if takes("prompt_cache_key") && value.is_string() => {
                    let key = identifiers::hash_cache_key(
                        sender.account_id,
                        &value.string().unwrap_or_default(),
                    );
                    self.replace_string(value, &key);
                }
                "safety_identifier" | "prompt_cache_key" | "user" | "client_metadata" => {
                    self.gone.push(self.member_span(&key, value));
                }
                _ => {}
            }
        }
        if !has_store {
            added.push(r#""store":false"#.to_owned());
        }
        if !has_user && takes("safety_identifier") {
            added.push(format!(r#""safety_identifier":{}"#, json_string(&user)));
        }
        self.insert_inside(root, added.join(","));
    }

    /// Edits tools that run at the vendor: removes web searches without a price, and refuses all
    /// other tools without one.
    fn check_tools(
        &mut self,
        tools: JsonValue<'a>,
        path: &str,
        sender: &PassthroughContext<'_>,
    ) -> RequestResult {
        for (index, tool) in tools.items().enumerate() {
            let kind = tool.string_of("type").unwrap_or_default();
            let is_far_shell = kind == "shell"
                && tool
                    .find(["environment", "type"])
                    .is_some_and(|kind| !kind.is("local"));
            let is_search = kind.starts_with("web_search");
            if is_search && !sender.sold.web_search {
                self.warnings.dropped(format_args!("{path}[{index}]"));
                self.remove_value(tool);
            }
            let is_own = CLIENT_TOOLS.contains(&kind.as_ref()) || kind == "shell" && !is_far_shell;
            let is_own = is_own || is_sold_tool(&kind, sender);
            if !is_search && !is_own && !kind.is_empty() {
                let message = format!(
                    "{path}[{index}]: '{kind}' is not available for model '{}'.",
                    sender.model
                );
                return refuse_with_code(
                    &format!("{path}[{index}]"),
                    &message,
                    "unsupported_value",
                );
            }
        }
        Ok(())
    }

    /// Edits the conversation. `keeps_ids` says that the client set `store` to false, so it expects
    /// that items are not stored.
    fn clean_input(
        &mut self,
        input: Option<JsonValue<'a>>,
        keeps_ids: bool,
        sender: &PassthroughContext<'_>,
    ) -> RequestResult<bool> {
        let Some(input) = input.filter(|input| input.is_array()) else {
            return Ok(false);
        };
        let (mut carries, mut lost_reasoning) = (false, false);
        for (index, item) in input.items().enumerate() {
            let id = item.string_of("id");
            let kind = match item.string_of("type") {
                Some(kind) => kind,
                // A reference may omit its type.
                None if id.is_some() && item.get("role").is_none() => {
                    Cow::Borrowed("item_reference")
                }
                None => Cow::Borrowed("message"),
            };
            let is_answer = kind.ends_with("_call") || item.member_is("role", "assistant");
            let mut goes = false;
            match kind.as_ref() {
                "item_reference" => {
                    refuse_reference(id.as_deref().unwrap_or_default(), index)?;
                    self.warnings.dropped(JsonPath::Item(index));
                    goes = true;
                }
                // The call references its container, which may hold another account's files. The
                // items after the call contain its result.
                "code_interpreter_call" => {
                    self.warnings.dropped(JsonPath::Item(index));
                    goes = true;
                }
                // A call without its image would make the vendor look the image up.
                "image_generation_call" if item.get("result").is_none() => {
                    refuse_reference(id.as_deref().unwrap_or_default(), index)?;
                }
                "reasoning" => {
                    goes = sender.without_reasoning || is_foreign_reasoning(item);
                    lost_reasoning |= goes;
                    carries |= !goes;
                }
                "additional_tools" | "tool_search_output" => {
                    if let Some(tools) = item.get("tools") {
                        self.check_tools(
                            tools,
                            &format!("{}.tools", JsonPath::Item(index)),
                            sender,
                        )?;
                    }
                }
                _ if is_answer => {}
                // A user's turn begins, and the lost reasoning belonged to the turn before.
                _ => lost_reasoning = false,
            }
            let is_bare = lost_reasoning || sender.without_reasoning;
            let names_nothing = kind != "reasoning"
                && match sender.profile.stores_items {
                    // This vendor looks an id up among its stored items, together with the
                    // reasoning before the item.
                    true => !keeps_ids || is_answer && is_bare,
                    // Compatible servers store nothing, and many require the id of an earlier
                    // answer.
                    false => {
                        is_answer && sender.without_reasoning
                            || !is_valid_id(&kind, id.as_deref().unwrap_or_default())
                    }
                };
            match id {
                Some(_) if !goes && names_nothing => self.drop_member(item, "id"),
                // The id may show the vendor that the client did not keep the reasoning.
                Some(_) if !goes => carries |= is_answer,
                _ => {}
            }
            if goes {
                self.remove_value(item);
            }
        }
        Ok(carries)
    }
}

/// Maximum length of an item's id in characters.
const MAX_ID_CHARS: usize = 64;

/// Returns whether the id has the protocol's format for items of this kind.
fn is_valid_id(kind: &str, id: &str) -> bool {
    let prefix = match kind {
        "message" => "msg_",
        "function_call" => "fc_",
        "custom_tool_call" => "ctc_",
        // The format of their ids differs between servers.
        _ => "",
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    id.len() > prefix.len()
        && id.len() <= MAX_ID_CHARS
        && id.starts_with(prefix)
        && id.bytes().all(is_plain)
}

fn refuse_with_code(param: &str, message: &str, code: &str) -> RequestResult {
    let failure = Failure::invalid_param(Protocol::Responses, param, message);
    Err(failure.with_code(code).into())
}

/// Refuses background mode, for which the vendor would have to store an answer that is fetched
/// later.
fn refuse_background(root: JsonValue<'_>) -> RequestResult {
    if root.get("background").and_then(JsonValue::bool) == Some(true) {
        let message = "background is not supported on this endpoint.";
        return refuse_with_code("background", message, "unsupported_parameter");
    }
    Ok(())
}

/// Refuses a reference to a stored item. A reference to reasoning is allowed, because only the
/// reasoning is lost. Without another item the conversation would be incomplete.
fn refuse_reference(id: &str, index: usize) -> RequestResult {
    if id.starts_with("rs_") {
        return Ok(());
    }
    let message = format!(
        "Item with id '{id}' not found. This endpoint stores no items: set store=false so that items are sent in full."
    );
    refuse_with_code(
        &JsonPath::Item(index).to_string(),
        &message,
        "item_not_found",
    )
}

/// Returns whether the vendor's own tool has a price.
fn is_sold_tool(kind: &str, sender: &PassthroughContext<'_>) -> bool {
    match kind {
        "code_interpreter" => sender.sold.code_execution,
        "mcp" => sender.sold.mcp,
        kind => kind.starts_with("web_search") && sender.sold.web_search,
    }
}

/// Refuses a forced choice of a tool that is not sent with the request.
fn refuse_choice(root: JsonValue<'_>, sender: &PassthroughContext<'_>) -> RequestResult {
    let Some(kind) = root
        .find(["tool_choice", "type"])
        .and_then(JsonValue::string)
    else {
        return Ok(());
    };
    let is_known = matches!(
        kind.as_ref(),
        "function" | "custom" | "allowed_tools" | "shell" | "apply_patch"
    );
    if is_known || is_sold_tool(&kind, sender) {
        return Ok(());
    }
    refuse_with_code(
        "tool_choice",
        &format!("Tool choice '{kind}' not found in 'tools'."),
        "invalid_value",
    )
}

/// Returns whether another vendor made the reasoning, or the item consists of its id.
fn is_foreign_reasoning(item: JsonValue<'_>) -> bool {
    match item
        .text_of("encrypted_content")
        .filter(|sealed| !sealed.is_empty())
    {
        Some(sealed) => sealed.value().starts_with(reasoning_token::TOKEN_PREFIX),
        None => item.get("id").is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::repair_rules::KnownCapabilities;
    use crate::capabilities::{ModelCapabilities, ResponsesModel};
    use crate::request::{RequestEdits, read_summary, rewrite_cleaned};
    use bytes::Bytes;
    use serde_json::{Value as Any, json};

    static ACCEPTS: ModelCapabilities = ModelCapabilities::Responses(ResponsesModel {
        reasoning: false,
        effort_values: Vec::new(),
        summaries: false,
        sampling: false,
        cache_breakpoints: false,
        verbosity: false,
        functions_only: false,
    });

    fn official() -> PassthroughContext<'static> {
        PassthroughContext {
            account_id: "acct_1",
            profile: VendorProfile::official(Protocol::Responses),
            sold: PerTool::default(),
            without_reasoning: false,
            model: "public",
            repair: RepairRules {
                accepts: &ACCEPTS,
                known: KnownCapabilities::NONE,
                max_output_tokens: 0,
                output_limit: None,
                thinking_budget: None,
                is_interleaved: false,
            },
        }
    }

    /// Returns the body as sent, and the warnings.
    fn sent(body: &str, sender: &PassthroughContext<'_>) -> Result<(Any, Vec<String>), Failure> {
        let bytes = Bytes::copy_from_slice(body.as_bytes());
        let summary = read_summary(Protocol::Responses, &bytes).unwrap();
        let (stripped, _) = clean_responses_request(&bytes, &summary, sender)?;
        let edits = RequestEdits {
            model: "up",
            output_limit: Some(100),
            output_limit_field: "max_output_tokens",
            thinking_budget: None,
            include_usage: false,
        };
        let warnings = stripped.warnings.clone();
        let out = rewrite_cleaned(&bytes, &summary, &edits, stripped);
        Ok((serde_json::from_slice(&out).unwrap(), warnings))
    }

    #[test]
    fn tools_that_an_item_brings_along_are_judged_and_held_for_like_others() {
        for kind in ["additional_tools", "tool_search_output"] {
            let item = |tool: Any| json!({"type": kind, "call_id": "c1", "execution": "client", "tools": [tool]});
            let body = |tool: Any| json!({"model": "public", "input": [item(tool)]}).to_string();
            let failure =
                sent(&body(json!({"type": "code_interpreter"})), &official()).unwrap_err();
            assert_eq!(failure.code.as_deref(), Some("unsupported_value"), "{kind}");
            let searches = body(json!({"type": "web_search"}));
            let features = read_summary(Protocol::Responses, searches.as_bytes())
                .unwrap()
                .features;
            assert!(
                features.tool_offers.web_search.is_some() && features.tools,
                "{kind}"
            );
            let (out, warnings) = sent(&searches, &official()).unwrap();
            assert!(
                !out.to_string().contains("web_search") && !warnings.is_empty(),
                "{kind}: {out}"
            );
        }
    }

    #[test]
    fn nothing_that_is_kept_at_the_vendor_can_be_named_however_it_is_said() {
        for item in [
            json!({"id": "msg_secret"}),
            json!({"type": null, "id": "msg_secret"}),
            json!({"type": "image_generation_call", "id": "ig_secret"}),
        ] {
            let body = json!({"model": "public", "input": [item]}).to_string();
            assert!(sent(&body, &official()).is_err(), "{body}");
        }
    }

    fn refusal(body: &Any) -> (String, String) {
        let failure = sent(&body.to_string(), &official()).unwrap_err();
        (
            failure.param.unwrap_or_default(),
            failure.code.unwrap_or_default(),
        )
    }

    fn with_input(items: Any) -> Any {
        json!({"model": "m", "store": false, "input": items})
    }

    fn input(items: Any, sender: &PassthroughContext<'_>) -> Any {
        sent(&with_input(items).to_string(), sender).unwrap().0["input"].clone()
    }

    #[test]
    fn nothing_is_stored_and_callers_are_not_told() {
        let user = identifiers::hash_end_user("acct_1", Some("mia"));
        for body in [
            r#"{"model":"m","input":"hi","user":"mia","client_metadata":{"a":1},"prompt_cache_key":"k"}"#,
            r#"{"client_metadata":{} , "model":"m","store":null,"safety_identifier":"mia", "prompt_cache_key":"k","input":"hi"}"#,
            r#"{ "user":"mia","prompt_cache_key":"k","model":"m","input":"hi","store":true,"max_output_tokens":200}"#,
        ] {
            let (sent, warnings) = sent(body, &official()).unwrap();
            let expected = json!({
                "model": "up", "input": "hi", "store": false, "safety_identifier": user, "max_output_tokens": 100,
                "prompt_cache_key": identifiers::hash_cache_key("acct_1", "k")
            });
            assert_eq!(sent, expected, "{body}");
            assert_eq!(!warnings.is_empty(), body.contains("\"store\":true"));
        }
        let other = PassthroughContext {
            profile: VendorProfile::compatible(),
            ..official()
        };
        let (sent, _) = sent(
            r#"{"model":"m","input":"hi","prompt_cache_key":"k"}"#,
            &other,
        )
        .unwrap();
        assert_eq!(sent.get("prompt_cache_key"), None);
    }

    #[test]
    fn what_is_kept_at_the_vendor_cannot_be_named() {
        let body = |name: &str, value: Any| json!({"model": "m", "input": "hi", name: value});
        let refused = ("background".to_owned(), "unsupported_parameter".to_owned());
        assert_eq!(refusal(&body("background", json!(true))), refused);
        assert!(sent(&body("background", Any::Null).to_string(), &official()).is_ok());
        let reference = |id: &str| {
            with_input(
                json!([{"type": "item_reference", "id": id}, {"role": "user", "content": "x"}]),
            )
        };
        assert_eq!(
            refusal(&reference("msg_1")),
            ("input[0]".to_owned(), "item_not_found".to_owned())
        );
        let (sent, warnings) = sent(&reference("rs_1").to_string(), &official()).unwrap();
        assert_eq!(
            (sent["input"].clone(), warnings),
            (
                json!([{"role": "user", "content": "x"}]),
                vec!["dropped:input[0]".to_owned()]
            )
        );
    }

    #[test]
    fn tools_that_run_at_the_vendor_are_refused_and_searches_left_out() {
        let tool = |kind: &str| json!({"model": "m", "input": "hi", "tools": [{"type": "function", "name": "f"}, {"type": kind}]});
        for kind in [
            "code_interpreter",
            "file_search",
            "image_generation",
            "mcp",
            "computer_use_preview",
            "new_thing",
        ] {
            assert_eq!(refusal(&tool(kind)).0, "tools[1]", "{kind}");
        }
        for kind in [
            "custom",
            "namespace",
            "tool_search",
            "local_shell",
            "shell",
            "apply_patch",
        ] {
            assert_eq!(
                sent(&tool(kind).to_string(), &official()).unwrap().0["tools"]
                    .as_array()
                    .unwrap()
                    .len(),
                2
            );
        }
        for kind in ["web_search", "web_search_preview", "web_search_2025_08_26"] {
            let (stripped, warnings) = sent(&tool(kind).to_string(), &official()).unwrap();
            assert_eq!(
                (stripped["tools"].as_array().unwrap().len(), warnings),
                (1, vec!["dropped:tools[1]".to_owned()])
            );
            let sold = PassthroughContext {
                sold: PerTool {
                    web_search: true,
                    ..official().sold
                },
                ..official()
            };
            assert_eq!(
                sent(&tool(kind).to_string(), &sold).unwrap().0["tools"][1]["type"],
                kind
            );
        }
        let sold = PassthroughContext {
            sold: PerTool {
                code_execution: true,
                mcp: true,
                ..official().sold
            },
            ..official()
        };
        for kind in ["code_interpreter", "mcp"] {
            let (mut stripped, _) = sent(&tool(kind).to_string(), &sold).unwrap();
            assert_eq!(stripped["tools"][1].take(), json!({"type": kind}));
        }
        let ran = json!([{"type": "code_interpreter_call", "id": "ci_1", "container_id": "c", "code": "1"}, {"role": "user", "content": "x"}]);
        assert_eq!(
            input(ran, &sold),
            json!([{"role": "user", "content": "x"}]),
            "its container is not named again"
        );
        let mut far = tool("shell");
        far["tools"][1]["environment"] = json!({"type": "container_auto"});
        assert_eq!(refusal(&far).0, "tools[1]");
        let mut chosen = tool("web_search");
        chosen["tool_choice"] = json!({"type": "web_search"});
        assert_eq!(refusal(&chosen).0, "tool_choice");
        let added = json!([{"type": "additional_tools", "role": "developer", "tools": [{"type": "web_search"}, {"type": "function", "name": "f"}]}]);
        assert_eq!(
            input(added, &official())[0]["tools"],
            json!([{"type": "function", "name": "f"}])
        );
    }

    #[test]
    fn foreign_reasoning_goes_with_the_names_of_what_it_led_to() {
        let thought = |sealed: Any| json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed});
        let call = json!({"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{\"id\":1}"});
        let mut bare = call.clone();
        bare.as_object_mut().unwrap().remove("id");
        let output =
            json!({"type": "function_call_output", "id": "fco_1", "call_id": "c", "output": "x"});
        let message = json!({"type": "message", "id": "msg_1", "role": "assistant", "content": []});
        let own = json!([thought(json!("gAAAA1")), call, output, message]);
        assert_eq!(input(own.clone(), &official()), own);
        for foreign in [
            json!("gw1.m.e30"),
            json!("gw1.c.e30"),
            json!("gw1."),
            Any::Null,
            json!(""),
        ] {
            let foreign_items = json!([thought(foreign.clone()), call, output, message]);
            assert_eq!(
                input(foreign_items, &official()),
                json!([bare, output, message]),
                "{foreign}"
            );
        }
        let resent = PassthroughContext {
            without_reasoning: true,
            ..official()
        };
        // No item may then have an id that refers to what is left out, in any turn.
        let mut nameless = message.clone();
        nameless.as_object_mut().unwrap().remove("id");
        assert_eq!(input(own.clone(), &resent), json!([bare, output, nameless]));
        let readable = json!([{"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]}, message]);
        assert_eq!(input(readable.clone(), &official()), readable);
        // A client that does not set `store` to false sends ids of items that do not exist.
        let mut body = with_input(own);
        body.as_object_mut().unwrap().remove("store");
        let stripped = sent(&body.to_string(), &official()).unwrap().0["input"].clone();
        let ids: Vec<_> = stripped
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item.get("id").is_some())
            .collect();
        assert_eq!(ids, [true, false, false, false]);
    }

    /// Compatible servers require the id of an earlier answer and do not look up stored items.
    #[test]
    fn ids_stay_towards_a_compatible_server_where_they_are_valid() {
        let compatible = PassthroughContext {
            profile: VendorProfile::compatible(),
            ..official()
        };
        let lost = json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gw1.m.e30"});
        let message =
            |id: &str| json!({"type": "message", "id": id, "role": "assistant", "content": []});
        let call = |id: &str| json!({"type": "function_call", "id": id, "call_id": "c", "name": "f", "arguments": "{}"});
        let long = format!("msg_{}", "x".repeat(61));
        let fits = format!("msg_{}", "x".repeat(60));
        for (item, stays) in [
            (message("msg_1"), true),
            (message(&fits), true),
            (message(&long), false),
            (message("msg_"), false),
            (message("chatcmpl-1"), false),
            (message("msg_ö"), false),
            (call("fc_1"), true),
            (call("call_1"), false),
        ] {
            for store in [Any::Null, json!(false), json!(true)] {
                let body = json!({"model": "m", "store": store, "input": [lost, item]});
                let stripped = sent(&body.to_string(), &compatible).unwrap().0["input"].clone();
                let mut expected = item.clone();
                if !stays {
                    expected.as_object_mut().unwrap().remove("id");
                }
                assert_eq!(stripped, json!([expected]), "{store}");
            }
        }
        let resent = PassthroughContext {
            without_reasoning: true,
            ..compatible
        };
        assert_eq!(input(json!([message("msg_1")]), &resent)[0].get("id"), None);
    }
}
