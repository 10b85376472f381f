//! The static files of the pages, which are part of the program.
//!
//! Must not know a page.

use super::error::PageError;
use super::state::SidecarState;
use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};
use std::sync::{Arc, LazyLock};

/// A static file. Its name contains a hash of its contents, so that browsers can cache it forever.
pub struct Asset {
    pub name: String,
    etag: String,
    content_type: &'static str,
    bytes: &'static [u8],
}

impl Asset {
    fn new(stem: &str, extension: &str, content_type: &'static str, bytes: &'static [u8]) -> Self {
        let digest = Sha256::digest(bytes);
        let hash = digest
            .iter()
            .take(8)
            .fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        Self {
            name: format!("{stem}-{hash}.{extension}"),
            etag: format!("\"{hash}\""),
            content_type,
            bytes,
        }
    }

    fn style(stem: &str, bytes: &'static [u8]) -> Self {
        Self::new(stem, "css", "text/css; charset=utf-8", bytes)
    }

    fn script(stem: &str, bytes: &'static [u8]) -> Self {
        Self::new(stem, "js", "text/javascript; charset=utf-8", bytes)
    }
}

pub static STYLE: LazyLock<Asset> =
    LazyLock::new(|| Asset::style("style", include_bytes!("../../dashboard/static/style.css")));
pub static SCRIPT: LazyLock<Asset> =
    LazyLock::new(|| Asset::script("app", include_bytes!("../../dashboard/static/app.js")));
/// Vendored; the license is next to it in `uplot-LICENSE`.
pub static CHART_STYLE: LazyLock<Asset> = LazyLock::new(|| {
    let bytes = include_bytes!("../../dashboard/static/vendor/uplot-1.6.32.css");
    Asset::style("uplot", bytes)
});
pub static CHART_SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    let bytes = include_bytes!("../../dashboard/static/vendor/uplot-1.6.32.js");
    Asset::script("uplot", bytes)
});

/// All static files. A new file is a line here.
static ASSETS: [&LazyLock<Asset>; 4] = [&STYLE, &SCRIPT, &CHART_STYLE, &CHART_SCRIPT];

/// Public.
pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new().route("/dashboard/static/{file}", get(asset))
}

async fn asset(Path(file): Path<String>, headers: HeaderMap) -> Result<Response, PageError> {
    let asset = ASSETS
        .into_iter()
        .find(|asset| asset.name == file)
        .ok_or(PageError::NotFound)?;
    let known = headers
        .get(header::IF_NONE_MATCH)
        .is_some_and(|etag| etag.as_bytes() == asset.etag.as_bytes());
    let mut response = if known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        ([(header::CONTENT_TYPE, asset.content_type)], asset.bytes).into_response()
    };
    let etag =
        HeaderValue::from_str(&asset.etag).map_err(|error| PageError::Inside(error.to_string()))?;
    response.headers_mut().insert(header::ETAG, etag);
    let forever = HeaderValue::from_static("public, max-age=31536000, immutable");
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, forever);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_draws_the_charts_is_the_release_that_it_says_it_is() {
        let sha256 = |bytes: &[u8]| {
            Sha256::digest(bytes)
                .iter()
                .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
        };
        // `dist/uPlot.iife.min.js` and `dist/uPlot.min.css` of uplot 1.6.32 in the npm registry.
        assert_eq!(
            sha256(CHART_SCRIPT.bytes),
            "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
        );
        assert_eq!(
            sha256(CHART_STYLE.bytes),
            "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"
        );
    }
}
