//! Determines the operation that a request asks for: its surface, its path, and the version of its
//! protocol.
//!
//! This file must not decide anything but whether a model fits the path.

use config::Settings;
use config::catalog::CatalogModel;
use llm_protocol::Protocol;
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

    /// Checks that a model is of the kind that the operation takes.
    ///
    /// # Errors
    /// Returns 400 that names the path for the model.
    pub fn check_kind(&self, model: &CatalogModel) -> Result<(), Failure> {
        if model.kind == self.model_kind() {
            return Ok(());
        }
        let message = format!(
            "`{}` is a model of the kind `{}`, which {} does not take. Send it to {}.",
            model.id,
            model.kind.as_str(),
            self.path,
            model.kind.paths()
        );
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
