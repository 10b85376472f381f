//! Checks whether a strict reader of the responses protocol accepts an answer. The readers are the
//! accumulators of the official SDKs and of an agent.
//!
//! The checks are written from the protocol, without knowledge of the translator. Read next:
//! `properties/legal.rs`.

use serde_json::{Value, json};
use std::collections::BTreeMap;

type Fault = Result<(), String>;

fn unless(fault: bool, words: impl FnOnce() -> String) -> Fault {
    if fault { Err(words()) } else { Ok(()) }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// An item between its `added` and its `done` event.
struct Open {
    item: Value,
    /// The text of the deltas so far.
    text: String,
    has_part: bool,
    text_done: Option<String>,
}

/// Checks whether the readers would read these events to the end.
pub fn stream(events: &[(String, String)], completed: bool) -> Fault {
    let mut items: BTreeMap<u64, Open> = BTreeMap::new();
    let mut done: BTreeMap<u64, Value> = BTreeMap::new();
    let mut id = Value::Null;
    let mut is_over = false;
    for (number, (name, data)) in events.iter().enumerate() {
        let event: Value = serde_json::from_str(data).map_err(|error| error.to_string())?;
        let fault = |words: &str| Err(format!("event {number}: {words}: {data}"));
        if event["type"] != name.as_str() || event["sequence_number"] != number || is_over {
            return fault("its name, number or place");
        }
        let kind = name.strip_prefix("response.").unwrap_or_default();
        let wanted = ["created", "in_progress"].get(number);
        if wanted.is_some_and(|wanted| *wanted != kind)
            || wanted.is_none() && matches!(kind, "created" | "in_progress")
        {
            return fault("not where it belongs");
        }
        if let Some(response) = event.get("response") {
            if number > 0 && response["id"] != id {
                return fault("another response");
            }
            id = response["id"].clone();
        }
        let index = event["output_index"].as_u64();
        match (kind, index) {
            ("created" | "in_progress", _) => {}
            ("output_item.added", Some(index)) => {
                if index != (items.len() + done.len()) as u64 {
                    return fault("a gap between items");
                }
                let item = event["item"].clone();
                items.insert(
                    index,
                    Open {
                        item,
                        text: String::new(),
                        has_part: false,
                        text_done: None,
                    },
                );
            }
            ("output_item.done", Some(index)) => {
                let Some(open) = items.remove(&index) else {
                    return fault("no such item");
                };
                item_done(&open, &event["item"])
                    .map_err(|fault| format!("event {number}: {fault}: {data}"))?;
                done.insert(index, event["item"].clone());
            }
            ("completed" | "incomplete", None) => {
                is_over = true;
                ended(kind, &event["response"], &items, &done)
                    .map_err(|fault| format!("event {number}: {fault}: {data}"))?;
            }
            (_, Some(index)) => {
                let Some(open) = items.get_mut(&index) else {
                    return fault("of no open item");
                };
                if event["item_id"] != open.item["id"] {
                    return fault("another item");
                }
                piece(kind, &event, open)
                    .map_err(|fault| format!("event {number}: {fault}: {data}"))?;
            }
            _ => return fault("unknown"),
        }
    }
    unless(is_over != completed, || {
        format!("completed {completed}, ended {is_over}")
    })
}

fn piece(kind: &str, event: &Value, open: &mut Open) -> Fault {
    let of = open.item["type"].as_str().unwrap_or_default().to_owned();
    let fits = match kind.split('.').next().unwrap_or_default() {
        "content_part" | "output_text" | "refusal" => of == "message",
        "reasoning_summary_part" | "reasoning_summary_text" => of == "reasoning",
        "function_call_arguments" => of == "function_call",
        "custom_tool_call_input" => of == "custom_tool_call",
        "web_search_call" => of == "web_search_call",
        _ => false,
    };
    if !fits {
        return Err(format!("of a {of}"));
    }
    let says = |member: &str| {
        event[member]
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| format!("no {member}"))
    };
    if of == "web_search_call" {
        let states = ["in_progress", "searching", "completed"];
        return unless(!states.iter().any(|state| kind.ends_with(state)), || {
            "no state of a search".to_owned()
        });
    }
    let is_part = kind.contains("_part");
    let needs_part = matches!(of.as_str(), "message" | "reasoning");
    if is_part {
        let is_added = kind.ends_with(".added");
        let fault = open.has_part == is_added;
        open.has_part = is_added;
        return unless(fault, || "a part twice".to_owned());
    }
    if needs_part && !open.has_part {
        return Err("before its part".to_owned());
    }
    if kind.ends_with(".annotation.added") {
        return Ok(());
    }
    if kind.ends_with(".delta") {
        let delta = says("delta")?;
        open.text.push_str(&delta);
        return unless(open.text_done.is_some() || delta.is_empty(), || {
            "a delta behind the end, or empty".to_owned()
        });
    }
    let member = match kind.split('.').next().unwrap_or_default() {
        "function_call_arguments" => "arguments",
        "custom_tool_call_input" => "input",
        "refusal" => "refusal",
        _ => "text",
    };
    let text = says(member)?;
    let fault = text != open.text || open.text_done.is_some();
    open.text_done = Some(text);
    unless(fault, || "not the sum of its deltas".to_owned())
}

fn item_done(open: &Open, item: &Value) -> Fault {
    for member in ["id", "type", "call_id", "name", "namespace"] {
        if open.item.get(member) != item.get(member) {
            return Err(format!("another {member}"));
        }
    }
    let kind = item["type"].as_str().unwrap_or_default();
    let told = match kind {
        "message" => {
            let part = &item["content"][0];
            part.get("refusal").unwrap_or(&part["text"]).clone()
        }
        "function_call" => item["arguments"].clone(),
        "custom_tool_call" => item["input"].clone(),
        _ => return item_is_whole(item),
    };
    if open.has_part || told != json!(open.text) || open.text_done.is_none() {
        return Err("not what was told of it".to_owned());
    }
    item_is_whole(item)
}

fn item_is_whole(item: &Value) -> Fault {
    let text = |member: &str| item[member].as_str().is_some_and(|text| !text.is_empty());
    let is_call = item.get("call_id").is_some();
    let fits = match item["type"].as_str().unwrap_or_default() {
        "message" => {
            let parts = list(&item["content"]);
            parts.len() == 1
                && parts
                    .iter()
                    .all(|part| part.get("refusal").is_some() || !blank(&part["text"]))
        }
        "reasoning" => item["summary"].is_array(),
        // A call may name a tool that does not exist; the client refuses it.
        "function_call" => item["name"].is_string() && text("arguments"),
        "custom_tool_call" => item["name"].is_string() && item["input"].is_string(),
        "tool_search_call" => item["arguments"].is_object() && item["execution"] == "client",
        "web_search_call" => {
            item["action"]["type"] == "search" && item["action"]["query"].is_string()
        }
        "local_shell_call" => {
            item["action"]["type"] == "exec" && item["action"]["command"].is_array()
        }
        _ => false,
    };
    let has_status = item["status"].is_string() || item["type"] == "reasoning";
    unless(
        !fits || !text("id") || !has_status || is_call && !text("call_id"),
        || format!("item {item}"),
    )
}

fn blank(text: &Value) -> bool {
    text.as_str().is_none_or(|text| text.trim().is_empty())
}

fn ended(
    kind: &str,
    response: &Value,
    open: &BTreeMap<u64, Open>,
    done: &BTreeMap<u64, Value>,
) -> Fault {
    let output = list(&response["output"]);
    let may_be_cut = may_have_cut_items(response);
    if response["status"] != kind || !may_be_cut && !open.is_empty() {
        return Err("the status, or unfinished items".to_owned());
    }
    if output.len() < open.len() + done.len() {
        return Err("items are missing".to_owned());
    }
    for (index, item) in (0_u64..).zip(output) {
        let is_same = match (done.get(&index), open.get(&index)) {
            (Some(told), _) => told == item,
            (None, Some(open)) => open.item["id"] == item["id"] && item["status"] == "incomplete",
            (None, None) => may_be_cut && item["status"] == "incomplete",
        };
        if !is_same {
            return Err(format!("item {index} is another one"));
        }
    }
    envelope(response)
}

/// A model that declines in the middle of a call leaves that call unfinished in a response that is
/// completed: agents repeat an incomplete one.
fn may_have_cut_items(response: &Value) -> bool {
    let is_refusal = |item: &Value| item["content"][0].get("refusal").is_some();
    response["status"] == "incomplete" || list(&response["output"]).iter().any(is_refusal)
}

fn envelope(response: &Value) -> Fault {
    let usage = &response["usage"];
    let numbers = [
        &usage["input_tokens"],
        &usage["output_tokens"],
        &usage["total_tokens"],
        &usage["input_tokens_details"]["cached_tokens"],
        &usage["input_tokens_details"]["cache_write_tokens"],
        &usage["output_tokens_details"]["reasoning_tokens"],
    ];
    let has_id = response["id"]
        .as_str()
        .is_some_and(|id| id.starts_with("resp_") && id.len() > 5);
    let is_whole = has_id && response["object"] == "response" && response["created_at"].is_u64();
    unless(
        !is_whole || !numbers.iter().all(|number| number.is_u64()),
        || "not a whole response".to_owned(),
    )
}

/// Checks whether an SDK would read this answer.
pub fn answer(body: &Value) -> Fault {
    envelope(body)?;
    if body["status"] != "completed" && body["status"] != "incomplete" {
        return Err(format!("status {}", body["status"]));
    }
    let may_be_cut = may_have_cut_items(body);
    for item in list(&body["output"]) {
        // An item that was cut off stays incomplete.
        if !(may_be_cut && item["status"] == "incomplete") {
            item_is_whole(item)?;
        }
    }
    Ok(())
}
