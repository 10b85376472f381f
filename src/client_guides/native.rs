//! Finds the surfaces on which a model needs no translation.
//!
//! This file must not depend on a client.

use config::catalog::CatalogModel;
use llm_protocol::Protocol;

/// Returns whether the gateway passes requests of this surface on to the model's vendor
/// untranslated.
pub fn is_native(model: &CatalogModel, surface: Protocol) -> bool {
    let by_responses = model.by_responses.iter();
    model.passes_through(surface)
        || by_responses
            .into_iter()
            .any(|model| model.passes_through(surface))
}

/// Returns the surface that a client uses with a model, which is the model's own if the client
/// supports it.
pub fn best_surface(model: &CatalogModel, offered: &[Protocol]) -> Protocol {
    let own = offered.iter().find(|surface| is_native(model, **surface));
    own.or(offered.first()).copied().unwrap_or(Protocol::Chat)
}
