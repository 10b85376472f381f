//! Determines the operation that a request asks for: its surface, its path, and the version of its
//! protocol.
//!
//! This file must not decide anything but whether a model fits the path.

use config::Settings;
use config::catalog::CatalogModel;
use llm_protocol::Protocol;
use llm_protocol::capabilities::CompletionsApi;
use llm_protocol::failure::Failure;
use llm_protocol::metered::{MeteredEndpoint, ModelKind};
use pingora::proxy::Session;

pub struct ApiOperation {
    pub surface: Protocol,
    pub path: &'static str,
    pub free: bool,
    /// Set for an endpoint beyond the three protocols.
    pub metered: Option<&'static MeteredEndpoint>,
}

impl ApiOperation {
    /// The kind of model that the operation takes.
    pub fn model_kind(&self) -> ModelKind {
        self.metered
            .map_or(ModelKind::Chat, |endpoint| endpoint.kind)
    }

    /// The API that continues prompts, if the operation is one.
    pub fn completions(&self) -> Option<CompletionsApi> {
        CompletionsApi::from_path(self.path)
    }

    /// Checks that the operation can use a model: that the model is of the right kind, and can
    /// continue prompts if the operation does.
    ///
    /// # Errors
    /// Returns 400 that names the path for the model.
    pub fn check_model(&self, model: &CatalogModel) -> Result<(), Failure> {
        let (id, kind, path) = (&model.id, model.kind.as_str(), self.path);
        let completions = self.completions();
        let message = if model.kind != self.model_kind() {
            let paths = model.kind.paths();
            format!(
                "`{id}` is a model of the kind `{kind}`, which {path} does not take. Send it to {paths}."
            )
        } else if completions.is_some() && completions != model.completions() {
            let own = model.completions().map(CompletionsApi::path);
            let paths = own.map_or_else(|| model.kind.paths(), str::to_owned);
            format!("{path} does not take `{id}`. Send it to {paths}.")
        } else {
            return Ok(());
        };
        Err(Failure::invalid_param(self.surface, "model", message))
    }
}

/// Returns the version of the messages protocol, under any of its header names.
pub fn version_header(session: &Session, settings: &Settings) -> Option<String> {
    let headers = &session.req_header().headers;
    settings
        .version_headers
        .iter()
        .find_map(|name| Some(headers.get(name)?.to_str().ok()?.to_owned()))
}
