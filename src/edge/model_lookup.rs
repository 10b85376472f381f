//! Finds the model for a name that a client sent, among the models that its key may use.

use accounts::Principal;
use config::Settings;
use config::catalog::CatalogModel;
use llm_protocol::failure::Failure;
use std::sync::Arc;

/// Maximum number of names that an error suggests.
const MAX_SUGGESTIONS: usize = 3;

/// Returns the model with this id or alias, if the key and its member may use it. Their lists have
/// ids, not aliases.
///
/// # Errors
/// Returns 404 with near names of the key's own models, or 403 if the key or its member may not use
/// the model.
pub fn find_model<'a>(
    settings: &'a Settings,
    principal: &Principal,
    name: &str,
) -> Result<&'a Arc<CatalogModel>, Failure> {
    let catalog = &settings.catalog;
    let may_use = |model: &CatalogModel| principal.allows(&model.id);
    match catalog.find(name) {
        Some(model) if may_use(model) => Ok(model),
        Some(model) if principal.key_allows(&model.id) => {
            let base_url = &settings.base_url;
            Err(Failure::model_not_allowed_to_member(name, base_url))
        }
        Some(_) => Err(Failure::model_not_allowed(name)),
        None => {
            let near = catalog.near_names(name, may_use, MAX_SUGGESTIONS);
            Err(Failure::model_not_found(name, &near))
        }
    }
}
