//! Builds the model list in the shape of each surface, with the limits and capabilities for known
//! clients.
//!
//! This file must not decide which models a key may see: the caller passes only those.

use config::catalog::CatalogModel;
use llm_protocol::Protocol;
use llm_protocol::capabilities::{
    ChatModel, MessagesModel, ModelCapabilities, ResponsesModel, SamplingSupport, ThinkingType,
};
use llm_protocol::failure::Failure;
use llm_protocol::ir::Effort;
use llm_protocol::metered::ModelKind;
use serde_json::{Value, json};
use std::sync::Arc;

/// Default and maximum page size of the messages protocol's list.
const DEFAULT_PAGE_SIZE: usize = 20;
const MAX_PAGE_SIZE: usize = 1_000;

/// Lists ids; with `?aliases=true` also exact aliases, each after its model.
pub fn list(
    models: &[Arc<CatalogModel>],
    surface: Protocol,
    query: &str,
) -> Result<Value, Failure> {
    let query_value = |name: &str| {
        query
            .split('&')
            .find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name))
            .map(|(_, value)| value)
    };
    let with_aliases = match query_value("aliases") {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => {
            return Err(Failure::invalid_param(
                surface,
                "aliases",
                "must be true or false",
            ));
        }
    };
    let names = |model: &'_ Arc<CatalogModel>| {
        let aliases = model
            .aliases
            .iter()
            .filter(|alias| with_aliases && !alias.contains('*'));
        let names: Vec<_> = std::iter::once(&model.id).chain(aliases).cloned().collect();
        names
            .into_iter()
            .map(|name| (Arc::clone(model), name))
            .collect::<Vec<_>>()
    };
    let listed: Vec<_> = models.iter().flat_map(names).collect();
    if surface != Protocol::Messages {
        let data: Vec<_> = listed
            .iter()
            .map(|(model, name)| describe(model, name, surface))
            .collect();
        return Ok(json!({"object": "list", "data": data}));
    }
    page_of_messages(&listed, query_value)
}

/// Returns a page of the messages protocol's list.
fn page_of_messages<'q>(
    listed: &[(Arc<CatalogModel>, String)],
    query_value: impl Fn(&str) -> Option<&'q str>,
) -> Result<Value, Failure> {
    let surface = Protocol::Messages;
    let limit = query_value("limit").map_or(Some(DEFAULT_PAGE_SIZE), |text| text.parse().ok());
    let limit = limit.filter(|limit| (1..=MAX_PAGE_SIZE).contains(limit));
    let limit: usize = limit
        .ok_or_else(|| Failure::invalid_param(surface, "limit", "must be between 1 and 1000"))?;
    let position = |id: &str| {
        listed
            .iter()
            .position(|(_, name)| name == id)
            .unwrap_or(listed.len())
    };
    let (start, end) = match (query_value("after_id"), query_value("before_id")) {
        (Some(id), _) => {
            let start = position(id).saturating_add(1).min(listed.len());
            (start, start.saturating_add(limit).min(listed.len()))
        }
        (None, Some(id)) => (position(id).saturating_sub(limit), position(id)),
        (None, None) => (0, limit.min(listed.len())),
    };
    let page = listed.get(start..end).unwrap_or_default();
    let data: Vec<_> = page
        .iter()
        .map(|(model, name)| describe(model, name, surface))
        .collect();
    let has_more = if query_value("before_id").is_some() {
        start > 0
    } else {
        end < listed.len()
    };
    Ok(json!({
        "data": data,
        "has_more": has_more,
        "first_id": page.first().map(|(_, name)| name),
        "last_id": page.last().map(|(_, name)| name),
    }))
}

/// No vendor reports when a model of the catalog was created. A fixed day keeps the order stable
/// for clients that sort by it.
const CREATED_S: i64 = 1_767_225_600;

pub fn describe(model: &CatalogModel, name: &str, surface: Protocol) -> Value {
    let mut described = match surface {
        Protocol::Chat | Protocol::Responses => json!({
            "id": name,
            "object": "model",
            "created": CREATED_S,
            "owned_by": model.vendor.name,
            "kind": model.kind.as_str(),
            "context_length": model.context_tokens,
            "context_window": model.context_tokens,
            "max_input_tokens": model.context_tokens,
            "max_output_tokens": model.max_output_tokens,
            "capabilities": match model.kind {
                ModelKind::Chat => openai_capabilities(&model.accepts),
                _ => json!({}),
            },
        }),
        Protocol::Messages => json!({
            "type": "model",
            "id": name,
            "display_name": name,
            "kind": model.kind.as_str(),
            "created_at": "2026-01-01T00:00:00Z",
            "context_length": model.context_tokens,
            "context_window": model.context_tokens,
            "max_input_tokens": model.context_tokens,
            "max_output_tokens": model.max_output_tokens,
            "max_tokens": model.max_output_tokens,
            "lifecycle": "active",
            "line": null,
            "deprecated_at": null,
            "retires_at": null,
            "capabilities": messages_capabilities(&model.accepts),
        }),
    };
    if name != model.id {
        described["alias_of"] = model.id.clone().into();
    }
    described
}

/// Capabilities for the OpenAI-style surfaces.
fn openai_capabilities(accepts: &ModelCapabilities) -> Value {
    let (efforts, sampling) = match accepts {
        ModelCapabilities::Messages(MessagesModel {
            effort_levels,
            sampling,
            ..
        }) => (effort_levels, *sampling != SamplingSupport::Fixed),
        ModelCapabilities::Chat(ChatModel {
            effort_values,
            sampling,
            ..
        })
        | ModelCapabilities::Responses(ResponsesModel {
            effort_values,
            sampling,
            ..
        }) => (effort_values, *sampling),
    };
    json!({
        "streaming": true,
        "function_calling": true,
        "reasoning": can_reason(accepts),
        "reasoning_efforts": efforts.iter().map(|effort| effort.as_str()).collect::<Vec<_>>(),
        "temperature": sampling,
    })
}

fn can_reason(accepts: &ModelCapabilities) -> bool {
    match accepts {
        ModelCapabilities::Messages(model) => {
            model.thinks_by_default
                || model
                    .thinking_types
                    .iter()
                    .any(|kind| *kind != ThinkingType::Disabled)
        }
        ModelCapabilities::Chat(ChatModel { reasoning, .. })
        | ModelCapabilities::Responses(ResponsesModel { reasoning, .. }) => *reasoning,
    }
}

/// Capabilities in the shape of the messages protocol. The list omits features that are unknown.
fn messages_capabilities(accepts: &ModelCapabilities) -> Value {
    let is = |supported: bool| json!({"supported": supported});
    let (efforts, types) = match accepts {
        ModelCapabilities::Messages(MessagesModel {
            effort_levels,
            thinking_types,
            ..
        }) => (effort_levels, thinking_types.as_slice()),
        // The gateway translates a budget into an effort.
        ModelCapabilities::Chat(ChatModel { effort_values, .. })
        | ModelCapabilities::Responses(ResponsesModel { effort_values, .. }) => (
            effort_values,
            [ThinkingType::Enabled, ThinkingType::Adaptive].as_slice(),
        ),
    };
    let levels = [Effort::Low, Effort::Medium, Effort::High, Effort::Max];
    let mut effort = is(!efforts.is_empty());
    for level in levels {
        effort[level.as_str()] = is(efforts.contains(&level));
    }
    let takes = |kind| is(can_reason(accepts) && types.contains(&kind));
    let kinds =
        json!({"adaptive": takes(ThinkingType::Adaptive), "enabled": takes(ThinkingType::Enabled)});
    let mut supported = json!({
        "effort": effort,
        "thinking": {"supported": can_reason(accepts), "types": kinds},
    });
    if let ModelCapabilities::Messages(model) = accepts {
        supported["structured_outputs"] = is(model.structured);
    }
    supported
}
