//! Serves the OpenAPI document of the admin API, with the version of this program.
//!
//! `openapi.json` is written by hand; a test compares it with the routes and with responses. The
//! document leaves out the paths of the parts that the config leaves out.

use super::state::{AdminState, PREFIX};
use crate::optional_parts::hides_path;
use axum::Json;
use axum::extract::State;
use config::Settings;
use serde_json::{Value, json};
use std::sync::{Arc, LazyLock};

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let mut document: Value =
        serde_json::from_str(include_str!("openapi.json")).unwrap_or_default();
    document["info"]["version"] = json!(env!("CARGO_PKG_VERSION"));
    document
});

pub async fn document(State(app): State<Arc<AdminState>>) -> Json<Value> {
    let mut document = DOCUMENT.clone();
    leave_out_hidden_paths(&mut document, &app.settings.load());
    Json(document)
}

/// Removes the paths of the parts that are off, then the components that nothing uses any more.
fn leave_out_hidden_paths(document: &mut Value, settings: &Settings) {
    if let Some(paths) = document["paths"].as_object_mut() {
        paths.retain(|path, _| !hides_path(settings, &format!("{PREFIX}{path}")));
    }
    // Components use components, so the last one is found in a later round.
    loop {
        let text = document.to_string();
        let mut is_changed = false;
        let kinds = document["components"].as_object_mut().into_iter().flatten();
        for (kind, components) in kinds {
            let Some(components) = components.as_object_mut() else {
                continue;
            };
            let before = components.len();
            components.retain(|name, _| {
                kind == "securitySchemes"
                    || text.contains(&format!("\"#/components/{kind}/{name}\""))
            });
            is_changed |= components.len() < before;
        }
        if !is_changed {
            return;
        }
    }
}
