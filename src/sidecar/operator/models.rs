//! Shows the models with the prices in force.
//!
//! This file must not change anything.

use super::super::authz::Operator;
use super::super::error::PageError;
use super::super::page::{Frame, html};
use super::super::state::SidecarState;
use super::super::{catalog, display};
use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use config::catalog::CatalogModel;
use std::sync::Arc;

#[derive(Template)]
#[template(path = "operator_models.html")]
struct ModelsPage {
    frame: Frame,
    models: Vec<Arc<CatalogModel>>,
}

pub async fn show(
    State(app): State<Arc<SidecarState>>,
    Operator { user, .. }: Operator,
) -> Result<Response, PageError> {
    let page = ModelsPage {
        frame: Frame::new("Models and prices", &user),
        models: app.settings.load().catalog.models().to_vec(),
    };
    Ok(html(StatusCode::OK, &page))
}
