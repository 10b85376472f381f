//! Maps a path to its destination: an endpoint of a surface, an endpoint that the gateway serves
//! itself, health, or a page of the sidecar.
//!
//! This file must not look at anything but the path. `edge/framing.rs` refuses ambiguous paths.

use llm_protocol::Protocol;
use llm_protocol::metered::{self, MeteredEndpoint};

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Route {
    /// A vendor, reached through this surface. The operation is free of charge or billed.
    Vendor {
        surface: Protocol,
        path: &'static str,
        free: bool,
    },
    /// A vendor, through an endpoint beyond the three protocols.
    Metered(&'static MeteredEndpoint),
    Local(LocalEndpoint),
    /// Measurements of a program, which it sends to the gateway once it signed in there.
    Telemetry,
    Health,
    Sidecar,
    Unknown,
}

impl Route {
    /// What a free request asks for, in words; empty for others.
    pub fn asked_for(&self) -> &'static str {
        match self {
            Self::Local(LocalEndpoint::Models) => "the list of models",
            Self::Local(LocalEndpoint::Model(_)) => "a model of the list",
            Self::Local(LocalEndpoint::Credits) => "the balance",
            Self::Local(LocalEndpoint::Usage) => "the usage",
            Self::Local(LocalEndpoint::Receipt(_)) => "a receipt",
            Self::Vendor { free: true, .. } => "a count of tokens",
            Self::Vendor { .. }
            | Self::Metered(_)
            | Self::Telemetry
            | Self::Health
            | Self::Sidecar
            | Self::Unknown => "",
        }
    }
}

pub fn route(path: &str) -> Route {
    if matches!(path, "/healthz" | "/health" | "/api/hello") {
        return Route::Health;
    }
    if let Some(endpoint) = metered_endpoint(path) {
        return Route::Metered(endpoint);
    }
    let Some(below) = below_v1(path) else {
        return if surface_for_path(path).is_some() {
            Route::Unknown
        } else {
            Route::Sidecar
        };
    };
    let vendor = |surface, path, free| Route::Vendor {
        surface,
        path,
        free,
    };
    match below {
        "/chat/completions" => vendor(Protocol::Chat, "/v1/chat/completions", false),
        "/completions" => vendor(Protocol::Chat, "/v1/completions", false),
        "/fim/completions" => vendor(Protocol::Chat, "/v1/fim/completions", false),
        "/messages" => vendor(Protocol::Messages, "/v1/messages", false),
        "/messages/count_tokens" => vendor(Protocol::Messages, "/v1/messages/count_tokens", true),
        "/responses" => vendor(Protocol::Responses, "/v1/responses", false),
        "/responses/input_tokens" => {
            vendor(Protocol::Responses, "/v1/responses/input_tokens", true)
        }
        "/metrics" | "/logs" | "/traces" => Route::Telemetry,
        rest => parse_endpoint(rest).map_or(Route::Unknown, Route::Local),
    }
}

/// The metered endpoint of a path, which may lack its version, or have one `/v1` too many.
fn metered_endpoint(path: &str) -> Option<&'static MeteredEndpoint> {
    let is_of = |endpoint: &&MeteredEndpoint| {
        let own = endpoint.path;
        path == own
            || path.strip_prefix("/v1") == Some(own)
            || own.strip_prefix("/v1") == Some(path)
    };
    metered::ENDPOINTS.iter().find(is_of)
}

/// Returns the part of a path below `/v1`. SDKs differ in whether the base address includes `/v1`,
/// so the paths of the surfaces and of the model list also work without `/v1` and with two of them.
fn below_v1(path: &str) -> Option<&str> {
    let below = |path| {
        str::strip_prefix(path, "/v1").filter(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let without = |path: &&str| {
        let is_surface = matches!(
            *path,
            "/chat/completions"
                | "/completions"
                | "/fim/completions"
                | "/messages"
                | "/messages/count_tokens"
                | "/responses"
                | "/responses/input_tokens"
                | "/models"
        );
        is_surface || path.starts_with(MODELS_PREFIX)
    };
    match below(path) {
        Some(rest) => Some(below(rest).filter(|rest| without(rest)).unwrap_or(rest)),
        None => Some(path).filter(without),
    }
}

/// Returns the surface that a path is meant for. The end of the path decides: a client with a wrong
/// base address still adds the right end.
pub fn surface_for_path(path: &str) -> Option<Protocol> {
    let ends = [
        ("/completions", Protocol::Chat),
        ("/messages", Protocol::Messages),
        ("/messages/count_tokens", Protocol::Messages),
        ("/responses", Protocol::Responses),
        ("/responses/input_tokens", Protocol::Responses),
    ];
    ends.into_iter()
        .find(|(end, _)| path.ends_with(end))
        .map(|(_, surface)| surface)
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LocalEndpoint {
    Models,
    Model(String),
    Credits,
    Usage,
    Receipt(String),
}

fn parse_endpoint(rest: &str) -> Option<LocalEndpoint> {
    match rest {
        "/models" => Some(LocalEndpoint::Models),
        "/credits" => Some(LocalEndpoint::Credits),
        "/usage" => Some(LocalEndpoint::Usage),
        _ => {
            let named = |prefix| {
                rest.strip_prefix(prefix)
                    .filter(|name: &&str| !name.is_empty())
            };
            let model = named(MODELS_PREFIX).map(|id| LocalEndpoint::Model(decode_model_id(id)));
            model.or_else(|| named("/receipts/").map(|id| LocalEndpoint::Receipt(id.to_owned())))
        }
    }
}

/// Prefix of a model's path below `/v1`, followed by the model's id.
pub const MODELS_PREFIX: &str = "/models/";

/// Decodes a model's id from a path, once. Only the characters that clients escape are decoded.
pub fn decode_model_id(escaped: &str) -> String {
    let mut id = escaped.to_owned();
    for (escape, plain) in [
        ("%2F", "/"),
        ("%2f", "/"),
        ("%3A", ":"),
        ("%3a", ":"),
        ("%40", "@"),
    ] {
        if id.contains(escape) {
            id = id.replace(escape, plain);
        }
    }
    id
}
