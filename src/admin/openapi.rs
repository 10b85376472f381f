//! Serves the OpenAPI document of the admin API, with the version of this program.
//!
//! `openapi.json` is written by hand; a test compares it with the routes and with responses. This
//! file must not depend on the state of the gateway.

use axum::Json;
use serde_json::{Value, json};
use std::sync::LazyLock;

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let mut document: Value =
        serde_json::from_str(include_str!("openapi.json")).unwrap_or_default();
    document["info"]["version"] = json!(env!("CARGO_PKG_VERSION"));
    document
});

pub async fn document() -> Json<&'static Value> {
    Json(&DOCUMENT)
}
