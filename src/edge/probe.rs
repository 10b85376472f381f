//! Tests a vendor's endpoint for `model-gateway vendors test`: its DNS, TLS, HTTP version, key and
//! models, and one small request.
//!
//! `probe/client.rs` connects in the same way as client requests, so the result applies to them
//! too. This module serves no client, bills no account, and must not print anything.

mod client;
mod report;
mod tool_loop;

use bytes::Bytes;
pub(super) use client::{ProbeResponse, VendorClient};
use config::Limits;
use config::catalog::{CatalogModel, CatalogVendor, VendorEndpoint};
use http::{Method, header};
use llm_protocol::capabilities::{ChatModel, ModelCapabilities, ResponsesModel};
use llm_protocol::metered::{
    BilledUnit, MeteredAnswer, MeteredEndpoint, MeteredRequest, MeteredTerms, ModelKind,
};
use llm_protocol::translate;
use llm_protocol::usage::{MeteredUsage, UsageVerdict};
pub use report::{EndpointReport, ModelList, TestRequest, ToolLoop, VendorKeyStatus};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time limit for listing the models. `limits.first_byte_seconds` applies if it is shorter.
const LIST_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum number of unlisted models that get a test request. A vendor may serve a model that its
/// list does not show.
const MAX_UNLISTED: usize = 4;
/// Output limit of a test request, in tokens. Some reasoning models refuse a small one.
const MAX_OUTPUT_TOKENS: u64 = 16;
const MAX_OUTPUT_TOKENS_REASONING: u64 = 1_024;

/// Tests one endpoint. `models` has the models of its vendor in the order of the config file.
/// `with_tools` adds a tool loop with each tested model.
pub async fn test_endpoint(
    vendor: &CatalogVendor,
    endpoint: &VendorEndpoint,
    models: &[Arc<CatalogModel>],
    limits: &Limits,
    with_tools: bool,
) -> EndpointReport {
    let mut report = EndpointReport::new(vendor, endpoint);
    let probe = VendorClient::new(vendor, endpoint, limits);
    let Some(address) = probe.find_reachable_address(&mut report).await else {
        return report;
    };
    let listed = probe.list_models(address, &mut report).await;
    let is_listed = |model: &CatalogModel| {
        listed
            .as_ref()
            .is_none_or(|listed| listed.contains(&model.upstream_model))
    };
    let (listed_models, unlisted): (Vec<_>, Vec<_>) =
        models.iter().partition(|model| is_listed(model));
    if let Some(counts) = &mut report.models {
        counts.unlisted = unlisted
            .iter()
            .map(|model| model.upstream_model.clone())
            .collect();
    }
    for model in listed_models
        .into_iter()
        .take(1)
        .chain(unlisted.into_iter().take(MAX_UNLISTED))
    {
        for model in std::iter::once(model).chain(&model.by_responses) {
            if report.key == VendorKeyStatus::Refused {
                return report;
            }
            probe.send_test_request(address, model, &mut report).await;
            if with_tools && model.kind == ModelKind::Chat && report.faults.is_empty() {
                for streamed in [false, true] {
                    let tools = tool_loop::run(&probe, address, model, streamed).await;
                    report.add_tool_loop(tools);
                }
            }
        }
    }
    report
}

impl VendorClient<'_> {
    /// Returns the names of the models that the vendor lists, or `None` if it has no list.
    async fn list_models(
        &self,
        address: SocketAddr,
        report: &mut EndpointReport,
    ) -> Option<HashSet<String>> {
        if !self.endpoint.has_other_paths() {
            return None;
        }
        let response = match self.header(Method::GET, "/v1/models") {
            Ok(header) => {
                self.exchange(address, header, Bytes::new(), LIST_TIMEOUT)
                    .await
            }
            Err(error) => Err(error),
        };
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                report.add_note(format!(
                    "could not list the vendor's models: {}",
                    self.describe(&error, None)
                ));
                return None;
            }
        };
        if matches!(response.status, 401 | 403) {
            report.key = VendorKeyStatus::Refused;
            report.add_fault(format!(
                "the vendor refused the key ({}): {}",
                response.status,
                self.message(&response)
            ));
            return None;
        }
        let value = response.json().filter(|_| response.is_good());
        let listed = value
            .as_ref()
            .and_then(|value| value.get("data").unwrap_or(value).as_array());
        let Some(listed) = listed else {
            report.add_note(format!(
                "the vendor has no list of models there (status {})",
                response.status
            ));
            return None;
        };
        report.key = report.key.or(VendorKeyStatus::Accepted);
        report.models = Some(ModelList {
            count: listed.len(),
            unlisted: Vec::new(),
        });
        let ids = listed.iter().filter_map(|model| model["id"].as_str());
        // Gemini lists resource names of the form `models/NAME`.
        Some(
            ids.flat_map(|id| [id, id.strip_prefix("models/").unwrap_or(id)])
                .map(str::to_owned)
                .collect(),
        )
    }

    /// Sends a small request, at the most common path of the model's kind. A vendor that lacks it
    /// may have a path of its own, as Cohere has for embeddings.
    async fn send_usual_sample(&self, address: SocketAddr, model: &CatalogModel) -> SentSample {
        let common = MeteredEndpoint::of_kind(model.kind).next();
        let mut sent = self.send_sample(address, model, common).await;
        for own in MeteredEndpoint::of_kind(model.kind).filter(|row| row.is_of_one_vendor) {
            if !matches!(&sent.response, Ok(response) if response.status == 404) {
                break;
            }
            let other = self.send_sample(address, model, Some(own)).await;
            if matches!(&other.response, Ok(response) if response.status != 404) {
                sent = other;
            }
        }
        // A model that only continues prompts refuses a chat.
        if let (Some(api), Ok(chat)) = (model.completions(), &sent.response)
            && matches!(chat.status, 400 | 404 | 405 | 422)
        {
            let name = &model.upstream_model;
            let body = json!({"model": name, "prompt": "ok", "max_tokens": MAX_OUTPUT_TOKENS});
            let body = Bytes::from(body.to_string());
            let continued = self.send(address, (None, api.path()), (JSON, body)).await;
            if matches!(&continued.response, Ok(response) if response.status < 300) {
                sent = continued;
            }
        }
        sent
    }

    async fn send_test_request(
        &self,
        address: SocketAddr,
        model: &CatalogModel,
        report: &mut EndpointReport,
    ) {
        let SentSample {
            metered,
            usual_path,
            content_type,
            body,
            response,
            milliseconds,
        } = self.send_usual_sample(address, model).await;
        let name = &model.upstream_model;
        let response = match response {
            Ok(response) => response,
            Err(why) => return report.add_fault(format!("{name} did not answer: {why}")),
        };
        let value = response.json();
        let count = |names: [&str; 2]| {
            let usage = &value.as_ref()?["usage"];
            names.into_iter().find_map(|name| usage[name].as_u64())
        };
        let mut metered_usage = None;
        let (input, output) = match metered {
            Some(endpoint) => {
                let sample = (content_type, body.as_ref());
                metered_usage = read_metered(model, endpoint, sample, &response);
                let units = metered_usage.and_then(|metered| reported_units(model, &metered));
                (units, None)
            }
            None => (
                count(["input_tokens", "prompt_tokens"]),
                count(["output_tokens", "completion_tokens"]),
            ),
        };
        let status = response.status;
        report.requests.push(TestRequest {
            model: name.clone(),
            protocol: model.protocol(),
            status,
            input,
            output,
            milliseconds,
        });
        let path = self.endpoint.display_url(usual_path).unwrap_or_default();
        match status {
            200..300 if value.is_none() && metered_usage.is_none() => {
                report.add_fault(format!(
                    "{path} did not answer with JSON: check the address"
                ));
            }
            200..300 => {
                report.key = report.key.or(VendorKeyStatus::Accepted);
                if input.is_none() || metered.is_none() && output.is_none() {
                    report.add_note(format!(
                        "{name} reported no usage: the gateway will bill estimates for it"
                    ));
                }
            }
            401 | 403 => {
                report.key = VendorKeyStatus::Refused;
                let message = self.message(&response);
                report.add_fault(format!("the vendor refused the key ({status}): {message}"));
            }
            404 => report.add_fault(format!(
                "the vendor does not know {path} or the model {name} (404): {}",
                self.message(&response)
            )),
            _ => report.add_fault(format!(
                "the vendor refused a request to {name} ({status}): {}",
                self.message(&response)
            )),
        }
    }

    /// Sends a small request to an endpoint; `None` is that of a chat model.
    async fn send_sample(
        &self,
        address: SocketAddr,
        model: &CatalogModel,
        metered: Option<&'static MeteredEndpoint>,
    ) -> SentSample {
        let (usual_path, (content_type, body)) = match metered {
            Some(endpoint) => (endpoint.path, endpoint.sample(&model.upstream_model)),
            None => (
                translate::vendor_path(model.protocol()),
                (JSON, test_request_body(model).to_string().into_bytes()),
            ),
        };
        let content = (content_type, body.into());
        self.send(address, (metered, usual_path), content).await
    }

    /// Sends a body to a path, which is that of a metered endpoint or of another one.
    async fn send(
        &self,
        address: SocketAddr,
        (metered, usual_path): (Option<&'static MeteredEndpoint>, &'static str),
        (content_type, body): (&'static str, Bytes),
    ) -> SentSample {
        let began = Instant::now();
        let response = self
            .post(address, usual_path, content_type, body.clone())
            .await;
        SentSample {
            metered,
            usual_path,
            content_type,
            body,
            response,
            milliseconds: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        }
    }
}

const JSON: &str = "application/json";

/// A small request to a vendor, and what became of it.
struct SentSample {
    metered: Option<&'static MeteredEndpoint>,
    usual_path: &'static str,
    content_type: &'static str,
    body: Bytes,
    response: Result<ProbeResponse, String>,
    milliseconds: u64,
}

/// What the gateway would bill for the answer to a sample; `None` if it is of no known form.
fn read_metered(
    model: &CatalogModel,
    endpoint: &'static MeteredEndpoint,
    (content_type, sample): (&str, &[u8]),
    response: &ProbeResponse,
) -> Option<MeteredUsage> {
    let request = MeteredRequest::read(endpoint, Some(content_type), sample, 1).ok()?;
    let limits = model.metered_limits();
    let terms = MeteredTerms::new(endpoint, model.billed_unit(), &request.content, &limits);
    let kind = response.headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let (form, _) = endpoint.answer_form(kind);
    let mut answer = MeteredAnswer::new(terms, form, &model.id, response.body.len());
    answer.push(&response.body, true, &mut Vec::new()).ok()?
}

/// The units that the vendor itself reported.
fn reported_units(model: &CatalogModel, metered: &MeteredUsage) -> Option<u64> {
    let usage = metered.usage;
    let count = match model.billed_unit() {
        BilledUnit::Tokens => usage.tokens_total(),
        BilledUnit::Counted(unit) => usage.units(unit),
    };
    (metered.verdict != UsageVerdict::Estimated).then_some(count)
}

/// Builds the body of a small generation request in the model's protocol.
fn test_request_body(model: &CatalogModel) -> Value {
    let (name, text) = (&model.upstream_model, "Say ok.");
    let messages = json!([{"role": "user", "content": text}]);
    let limit = |reasons: bool| {
        if reasons {
            MAX_OUTPUT_TOKENS_REASONING
        } else {
            MAX_OUTPUT_TOKENS
        }
    };
    match &model.accepts {
        ModelCapabilities::Messages(accepts) => {
            json!({"model": name, "max_tokens": limit(accepts.thinks_by_default), "messages": messages})
        }
        ModelCapabilities::Chat(ChatModel {
            reasoning,
            output_limit_field,
            ..
        }) => {
            let mut body = json!({"model": name, "messages": messages});
            body[*output_limit_field] = limit(*reasoning).into();
            body
        }
        ModelCapabilities::Responses(ResponsesModel { reasoning, .. }) => {
            json!({"model": name, "max_output_tokens": limit(*reasoning), "input": text, "store": false})
        }
    }
}
