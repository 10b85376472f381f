//! Tests a model with a tool call in the way of a coding agent: one request leads to a call, and a
//! second one returns the tool's result. The gateway writes both in the vendor's protocol,
//! according to the vendor's profile.
//!
//! This file must not write a protocol itself: `llm_protocol::translate` does.

use super::client::{VendorClient, events};
use super::report::ToolLoop;
use crate::edge::outbound;
use bytes::Bytes;
use config::catalog::CatalogModel;
use llm_protocol::ir::event::ResponseContext;
use llm_protocol::sse;
use llm_protocol::translate::{self, StreamTranslation};
use llm_protocol::vendor_response::ResponseStream as _;
use llm_protocol::{Protocol, failure, request};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// Protocol of the client's side. Its items return to the vendor unchanged, also those that hold a
/// vendor's state.
const SURFACE: Protocol = Protocol::Responses;
/// Output limit of a step, in tokens: enough for a model that reasons.
const MAX_OUTPUT_TOKENS: u64 = 1_024;
/// Maximum number of repeats of a step without a refused member. A client request gets one.
const MAX_REPEATS: usize = 8;
/// Maximum size of an event of a stream, in bytes.
const MAX_EVENT_BYTES: usize = 1_048_576;

pub async fn run(
    client: &VendorClient<'_>,
    address: SocketAddr,
    model: &CatalogModel,
    streamed: bool,
) -> ToolLoop {
    let mut report = ToolLoop {
        model: model.upstream_model.clone(),
        streamed,
        ..ToolLoop::default()
    };
    let vendor = (client, address, model);
    report.fault = report.run_steps(vendor).await.err();
    report
}

/// An endpoint of a vendor, with the address and the model to test.
type LoopTarget<'a> = (&'a VendorClient<'a>, SocketAddr, &'a CatalogModel);

impl ToolLoop {
    async fn run_steps(&mut self, vendor: LoopTarget<'_>) -> Result<(), String> {
        let question = "What is the weather in Paris? Call the tool, then say it in one sentence.";
        let mut input = vec![json!({"role": "user", "content": question})];
        let mut items = self.ask(vendor, &input, "auto").await?;
        let mut results = results_of(&items);
        if results.is_empty() {
            items = self.ask(vendor, &input, "required").await?;
            results = results_of(&items);
        }
        self.steps = 1;
        if results.is_empty() {
            return Err("the model called no tool".to_owned());
        }
        input.extend(items);
        input.extend(results);
        self.ask(vendor, &input, "auto").await?;
        self.steps = 2;
        Ok(())
    }

    /// Sends a step and returns the items of the answer.
    async fn ask(
        &mut self,
        (client, address, model): LoopTarget<'_>,
        input: &[Value],
        tool_choice: &str,
    ) -> Result<Vec<Value>, String> {
        let parameters = json!({
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        });
        let mut body = json!({
            "model": model.upstream_model, "input": input, "instructions": "You are brief.",
            "max_output_tokens": MAX_OUTPUT_TOKENS.min(model.max_output_tokens),
            "parallel_tool_calls": true, "store": false, "stream": self.streamed,
            "tool_choice": tool_choice,
            "tools": [{"type": "function", "name": "get_weather", "parameters": parameters, "strict": false}],
        });
        if model.hides_reasoning() {
            body["include"] = json!(["reasoning.encrypted_content"]);
        }
        let (mut sent, mut context) = (Bytes::from(body.to_string()), None);
        if model.protocol() != SURFACE {
            let ids = ("vendors test", "vendors test");
            let request = outbound::translation_request(model, SURFACE, &sent, ids, None);
            let translated = translate::translate_request(&request, false)
                .map_err(|failure| format!("cannot write the request: {}", failure.message))?;
            for warning in translated.warnings {
                add_once(&mut self.lost, warning);
            }
            (sent, context) = (translated.body, Some(translated.response_context));
        }
        let (fitted, lost) = outbound::fit_to_vendor(model, SURFACE, sent.into());
        sent = fitted.to_bytes();
        for warning in lost {
            add_once(&mut self.lost, warning);
        }
        let step = self.steps + 1;
        for repeat in 0..=MAX_REPEATS {
            let path = translate::vendor_path(model.protocol());
            let sending = client.generate(address, path, sent.clone());
            let response = sending.await?;
            if response.is_good() {
                let answer = read_answer(model, &response.body, context, self.streamed);
                let Some((items, has_usage)) = answer else {
                    let words = client.message(&response);
                    return Err(format!("step {step}: cannot read the answer: {words}"));
                };
                if !has_usage {
                    add_once(&mut self.lost, "usage".to_owned());
                }
                return Ok(items);
            }
            let member = failure::refused_member(response.status, &response.body);
            let without = member.and_then(|member| request::without_members(&sent, &[member]));
            let (Some(member), Some((without, _)), 0..MAX_REPEATS) = (member, without, repeat)
            else {
                let status = response.status;
                let words = client.message(&response);
                return Err(format!("step {step} was refused ({status}): {words}"));
            };
            sent = without;
            add_once(&mut self.refused, member.to_owned());
        }
        Err(format!("step {step} has no answer"))
    }
}

/// Returns a result for each call in an answer.
fn results_of(items: &[Value]) -> Vec<Value> {
    let calls = items.iter().filter(|item| item["type"] == "function_call");
    let result = |call: &Value| json!({"type": "function_call_output", "call_id": call["call_id"], "output": "18 degrees"});
    calls.map(result).collect()
}

fn add_once(list: &mut Vec<String>, name: String) {
    if !list.contains(&name) {
        list.push(name);
    }
}

/// Returns the items of the answer in the client's protocol, and whether the answer has the
/// vendor's usage. Returns `None` if the gateway cannot read the answer.
fn read_answer(
    model: &CatalogModel,
    body: &[u8],
    context: Option<ResponseContext>,
    streamed: bool,
) -> Option<(Vec<Value>, bool)> {
    let vendor = model.protocol();
    let is_stream = sse::begins_with_event(body, false) == Some(true);
    let (answer, has_usage) = match context {
        None => (events(body), None),
        Some(context) if is_stream => {
            let mut out = Vec::new();
            let mut stream =
                StreamTranslation::new(vendor, SURFACE, context, streamed, MAX_EVENT_BYTES);
            stream.push(body, &mut out).ok()?;
            if !stream.is_complete() {
                stream.finish(&mut out).ok()?;
            }
            (events(&out), Some(stream.usage().is_some()))
        }
        Some(context) => {
            let whole = translate::translate_response(vendor, SURFACE, context, false, body);
            let whole = whole.ok()?;
            (events(&whole.body), Some(whole.usage.is_some()))
        }
    };
    // The last event of a stream has the whole response.
    let mut last = answer.into_iter().next_back()?;
    let mut response = match last["response"].take() {
        Value::Null => last,
        response => response,
    };
    let has_usage = has_usage.unwrap_or(response["usage"].is_object());
    match response["output"].take() {
        Value::Array(items) => Some((items, has_usage)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_of_a_step_gets_its_result() {
        let call = |id: &str| json!({"type": "function_call", "call_id": id});
        let items = [json!({"type": "reasoning"}), call("a"), call("b")];
        let ids: Vec<_> = results_of(&items)
            .iter()
            .map(|result| result["call_id"].clone())
            .collect();
        assert_eq!(ids, ["a", "b"]);
        assert!(results_of(&items[..1]).is_empty());
    }
}
